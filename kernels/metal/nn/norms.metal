// Metal kernels of normalization fused with adjacent operations of a model: the
// formulas of csrc/nn/norms.h. kernels/metal/nn/rows.h explains how threads
// share a row.

#include <metal_stdlib>

#include "nn/activations.h"
#include "nn/rows.h"

using namespace metal;

/** Part of a row: its activated gate, and the numbers to normalize. */
struct Gated {
  float4 a;
  float4 v;
};

template <typename T>
inline Gated gated_part(
    device const T* x,
    device const T* gate,
    int left,
    int activation,
    bool norm_before_gate) {
  Gated part;
  part.a = act(read(gate, left), activation);
  part.v = read(x, left);
  if (!norm_before_gate) {
    part.v *= part.a;
  }
  return part;
}

/** One threadgroup per row. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rms_norm_gate(
    device const T* x [[buffer(0)]],
    device const T* gate [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant bool& has_weight [[buffer(4)]],
    constant float& eps [[buffer(5)]],
    constant int& activation [[buffer(6)]],
    constant bool& norm_before_gate [[buffer(7)]],
    constant uint& width [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[32];
  size_t start = size_t(group.y) * width;
  x += start;
  gate += start;
  out += start;
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  Gated kept;
  float squares = 0;
  for (uint i = first; i < width; i += step) {
    Gated part =
        gated_part(x + i, gate + i, width - i, activation, norm_before_gate);
    squares += sum(part.v * part.v);
    if (i == first) {
      kept = part;
    }
  }
  squares = threadgroup_sum(squares, sums, lane, simdgroup, simdgroups);
  float scale = precise::rsqrt(squares / width + eps);
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    Gated part = kept;
    if (i != first) {
      part = gated_part(x + i, gate + i, left, activation, norm_before_gate);
    }
    float4 y = part.v * scale * weight_part(weight + i, has_weight, left);
    write(norm_before_gate ? y * part.a : y, out + i, left);
  }
}

/** The same with further numbers for the gradients, and d, that of v / scale.
 */
struct GatedGradient {
  float4 x;
  float4 gate;
  float4 dy;
  float4 w;
  float4 a;
  float4 v;
  float4 d;
};

template <typename T>
inline GatedGradient gated_gradient(
    device const T* x,
    device const T* gate,
    device const T* weight,
    device const T* dy,
    int left,
    int activation,
    bool norm_before_gate,
    bool has_weight) {
  GatedGradient part;
  part.x = read(x, left);
  part.gate = read(gate, left);
  part.dy = read(dy, left);
  part.w = weight_part(weight, has_weight, left);
  part.a = act(part.gate, activation);
  part.v = norm_before_gate ? part.x : part.x * part.a;
  part.d = part.dy * part.w * (norm_before_gate ? part.a : float4(1));
  return part;
}

/** One threadgroup per row of grad_weight, which sums rows_per_sum rows. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rms_norm_gate_vjp(
    device const T* x [[buffer(0)]],
    device const T* gate [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const T* cotangent [[buffer(3)]],
    device T* grad_x [[buffer(4)]],
    device T* grad_gate [[buffer(5)]],
    device float* grad_weight [[buffer(6)]],
    constant bool& has_weight [[buffer(7)]],
    constant float& eps [[buffer(8)]],
    constant int& activation [[buffer(9)]],
    constant bool& norm_before_gate [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    constant uint& rows [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // Rows use the two halves alternately: a thread may still add up the sums of
  // one row while others write those of the next row.
  threadgroup float2 sums[2 * 32];
  uint first_row = group.y * rows_per_sum;
  uint last_row = min(first_row + rows_per_sum, rows);
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  grad_weight += size_t(group.y) * width;
  float4 weight_sum = float4(0);
  for (uint row = first_row; row < last_row; ++row) {
    size_t start = size_t(row) * width;
    GatedGradient kept;
    float2 total = float2(0); // of v^2, and of d v
    for (uint i = first; i < width; i += step) {
      GatedGradient part = gated_gradient(
          x + start + i,
          gate + start + i,
          weight + i,
          cotangent + start + i,
          width - i,
          activation,
          norm_before_gate,
          has_weight);
      total += float2(sum(part.v * part.v), sum(part.d * part.v));
      if (i == first) {
        kept = part;
      }
    }
    total = threadgroup_sum(
        total, sums + (row & 1) * 32, lane, simdgroup, simdgroups);
    float scale = precise::rsqrt(total.x / width + eps);
    float shift = total.y / width * scale * scale;
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      GatedGradient part = kept;
      if (i != first) {
        part = gated_gradient(
            x + start + i,
            gate + start + i,
            weight + i,
            cotangent + start + i,
            left,
            activation,
            norm_before_gate,
            has_weight);
      }
      float4 dv = scale * (part.d - part.v * shift);
      float4 dn = part.dy * part.v * scale;
      float4 da = norm_before_gate ? dn * part.w : dv * part.x;
      add_part(
          norm_before_gate ? dn * part.a : dn,
          i == first,
          weight_sum,
          row == first_row,
          grad_weight + i,
          left);
      write(norm_before_gate ? dv : dv * part.a, grad_x + start + i, left);
      write(
          da * act_derivative(part.gate, activation),
          grad_gate + start + i,
          left);
    }
  }
  write(weight_sum, grad_weight + first, int(width) - int(first));
}

/** One threadgroup per row, of a thread for eight elements. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void norm_add_norm(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device const T* w1 [[buffer(2)]],
    device const T* w2 [[buffer(3)]],
    device T* y [[buffer(4)]],
    device T* h [[buffer(5)]],
    constant bool& has_w1 [[buffer(6)]],
    constant bool& has_w2 [[buffer(7)]],
    constant float& eps [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[2 * 32]; // a half for each norm
  size_t start = size_t(group.y) * width;
  x += start;
  residual += start;
  y += start;
  h += start;
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  KeptParts kept;
  float squares = 0;
  for (uint i = first, part = 0; i < width; i += step, ++part) {
    float4 value = read(x + i, width - i);
    squares += sum(value * value);
    kept.keep(part, value);
  }
  squares = threadgroup_sum(squares, sums, lane, simdgroup, simdgroups);
  float scale = precise::rsqrt(squares / width + eps);
  squares = 0;
  for (uint i = first, part = 0; i < width; i += step, ++part) {
    int left = int(width - i);
    float4 value = read(residual + i, left) +
        kept.part_or_read(part, x + i, left) * scale *
            weight_part(w1 + i, has_w1, left);
    write(value, h + i, left);
    value = rounded<T>(value);
    squares += sum(value * value);
    kept.keep(part, value);
  }
  squares = threadgroup_sum(squares, sums + 32, lane, simdgroup, simdgroups);
  scale = precise::rsqrt(squares / width + eps);
  for (uint i = first, part = 0; i < width; i += step, ++part) {
    int left = int(width - i);
    float4 value = kept.part_or_read(part, h + i, left);
    write(value * scale * weight_part(w2 + i, has_w2, left), y + i, left);
  }
}

/** One threadgroup per row of grad_w1, which sums rows_per_sum rows. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void norm_add_norm_vjp(
    device const T* x [[buffer(0)]],
    device const T* h [[buffer(1)]],
    device const T* w1 [[buffer(2)]],
    device const T* w2 [[buffer(3)]],
    device const T* grad_y [[buffer(4)]],
    device const T* grad_h [[buffer(5)]],
    device T* grad_x [[buffer(6)]],
    device T* grad_residual [[buffer(7)]],
    device float* grad_w1 [[buffer(8)]],
    device float* grad_w2 [[buffer(9)]],
    constant bool& has_w1 [[buffer(10)]],
    constant bool& has_w2 [[buffer(11)]],
    constant float& eps [[buffer(12)]],
    constant uint& width [[buffer(13)]],
    constant uint& rows [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 sums[2 * 32]; // a half for each norm
  uint first_row = group.y * rows_per_sum;
  uint last_row = min(first_row + rows_per_sum, rows);
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  grad_w1 += size_t(group.y) * width;
  grad_w2 += size_t(group.y) * width;
  float4 w1_sum = float4(0);
  float4 w2_sum = float4(0);
  for (uint row = first_row; row < last_row; ++row) {
    size_t start = size_t(row) * width;
    bool begins = row == first_row;
    float4 kept = float4(0);
    float4 kept_dy = float4(0); // then of h
    float2 total = float2(0); // of h^2, and of h grad_y w2
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = read(h + start + i, left);
      float4 dy = read(grad_y + start + i, left);
      float4 d = dy * weight_part(w2 + i, has_w2, left);
      total += float2(sum(value * value), sum(value * d));
      if (i == first) {
        kept = value;
        kept_dy = dy;
      }
    }
    total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
    float scale = precise::rsqrt(total.x / width + eps);
    float shift = total.y / width * scale * scale;
    total = float2(0); // of x^2, and of x dh w1
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = i == first ? kept : read(h + start + i, left);
      float4 dy = i == first ? kept_dy : read(grad_y + start + i, left);
      float4 dw = dy * value * scale;
      add_part(dw, i == first, w2_sum, begins, grad_w2 + i, left);
      float4 d = dy * weight_part(w2 + i, has_w2, left);
      float4 dh = read(grad_h + start + i, left) + scale * (d - value * shift);
      write(dh, grad_residual + start + i, left);
      value = read(x + start + i, left);
      d = dh * weight_part(w1 + i, has_w1, left);
      total += float2(sum(value * value), sum(value * d));
      if (i == first) {
        kept = value;
        kept_dy = dh;
      }
    }
    total = threadgroup_sum(total, sums + 32, lane, simdgroup, simdgroups);
    scale = precise::rsqrt(total.x / width + eps);
    shift = total.y / width * scale * scale;
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = i == first ? kept : read(x + start + i, left);
      float4 dh = i == first ? kept_dy : read(grad_residual + start + i, left);
      float4 dw = dh * value * scale;
      add_part(dw, i == first, w1_sum, begins, grad_w1 + i, left);
      float4 d = dh * weight_part(w1 + i, has_w1, left);
      write(scale * (d - value * shift), grad_x + start + i, left);
    }
  }
  write(w1_sum, grad_w1 + first, int(width) - int(first));
  write(w2_sum, grad_w2 + first, int(width) - int(first));
}

/** One threadgroup per row. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void layer_norm_residual(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device T* y [[buffer(4)]],
    device T* h [[buffer(5)]],
    constant bool& has_weight [[buffer(6)]],
    constant bool& has_bias [[buffer(7)]],
    constant float& eps [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[2 * 32]; // a half for the mean, one for the variance
  size_t start = size_t(group.y) * width;
  x += start;
  residual += start;
  y += start;
  h += start;
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  float4 kept = float4(0);
  float total = 0;
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 value = read(x + i, left) + read(residual + i, left);
    write(value, h + i, left);
    value = rounded<T>(value);
    total += sum(value);
    if (i == first) {
      kept = value;
    }
  }
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  float mean = total / width;
  total = 0;
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 value = i == first ? kept : read(h + i, left);
    value = inside(value - mean, left);
    total += sum(value * value);
  }
  total = threadgroup_sum(total, sums + 32, lane, simdgroup, simdgroups);
  float scale = precise::rsqrt(total / width + eps);
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 value = i == first ? kept : read(h + i, left);
    value = (value - mean) * scale * weight_part(weight + i, has_weight, left);
    write(has_bias ? value + read(bias + i, left) : value, y + i, left);
  }
}

/** One threadgroup per row of grad_weight, which sums rows_per_sum rows. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void
layer_norm_residual_vjp(
    device const T* h [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* grad_y [[buffer(2)]],
    device const T* grad_h [[buffer(3)]],
    device T* grad_x [[buffer(4)]],
    device float* grad_weight [[buffer(5)]],
    device float* grad_bias [[buffer(6)]],
    constant bool& has_weight [[buffer(7)]],
    constant float& eps [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    constant uint& rows [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 sums[2 * 32]; // a half for means, one for later sums
  uint first_row = group.y * rows_per_sum;
  uint last_row = min(first_row + rows_per_sum, rows);
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  grad_weight += size_t(group.y) * width;
  grad_bias += size_t(group.y) * width;
  float4 kept_weight =
      weight_part(weight + first, has_weight, int(width) - int(first));
  float4 weight_sum = float4(0);
  float4 bias_sum = float4(0);
  for (uint row = first_row; row < last_row; ++row) {
    size_t start = size_t(row) * width;
    bool begins = row == first_row;
    float4 kept = float4(0);
    float4 kept_dy = float4(0);
    float2 total = float2(0); // of h, and of d = grad_y weight
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = read(h + start + i, left);
      float4 dy = read(grad_y + start + i, left);
      float4 d = dy *
          (i == first ? kept_weight
                      : weight_part(weight + i, has_weight, left));
      total += float2(sum(value), sum(d));
      if (i == first) {
        kept = value;
        kept_dy = dy;
      }
    }
    total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
    float2 mean = total / width;
    total = float2(0); // of v^2 and of v d, where v = h - mean
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = i == first ? kept : read(h + start + i, left);
      float4 dy = i == first ? kept_dy : read(grad_y + start + i, left);
      float4 v = inside(value - mean.x, left);
      float4 d = dy *
          (i == first ? kept_weight
                      : weight_part(weight + i, has_weight, left));
      total += float2(sum(v * v), sum(v * d));
    }
    total = threadgroup_sum(total, sums + 32, lane, simdgroup, simdgroups);
    float scale = precise::rsqrt(total.x / width + eps);
    float shift = total.y / width * scale * scale;
    for (uint i = first; i < width; i += step) {
      int left = int(width - i);
      float4 value = i == first ? kept : read(h + start + i, left);
      float4 dy = i == first ? kept_dy : read(grad_y + start + i, left);
      float4 v = value - mean.x;
      float4 d = dy *
          (i == first ? kept_weight
                      : weight_part(weight + i, has_weight, left));
      float4 dw = dy * v * scale;
      add_part(dw, i == first, weight_sum, begins, grad_weight + i, left);
      add_part(dy, i == first, bias_sum, begins, grad_bias + i, left);
      d = scale * (d - mean.y - v * shift);
      write(read(grad_h + start + i, left) + d, grad_x + start + i, left);
    }
  }
  write(weight_sum, grad_weight + first, int(width) - int(first));
  write(bias_sum, grad_bias + first, int(width) - int(first));
}
