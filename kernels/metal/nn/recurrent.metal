// Metal kernels of recurrent networks over time: the formulas of
// csrc/nn/recurrent.h.
//
// A threadgroup has one element of the batch: each step needs all of the one
// before. Forward, a simdgroup has a unit at a time and its lanes share the
// rows of its gates; backward, a thread has a unit and goes down its
// column.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

static constant constexpr const uint most_units = 1024;

inline float sigmoid(float x) {
  float e = precise::exp(-fabs(x));
  return (x < 0 ? e : 1.0f) / (1 + e);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void lstm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* hidden [[buffer(2)]],
    device const float* cell [[buffer(3)]],
    device T* hidden_out [[buffer(4)]],
    device float* cell_out [[buffer(5)]],
    constant bool& has_hidden [[buffer(6)]],
    constant bool& has_cell [[buffer(7)]],
    constant uint& steps [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // Of the step before and of this one, in turn.
  threadgroup float state[2 * most_units];
  size_t row = size_t(group.y) * steps;
  x += row * 4 * width;
  hidden_out += row * width;
  cell_out += row * width;
  for (uint k = thread_in_group.x; k < width; k += group_size.x) {
    state[k] = has_hidden
        ? static_cast<float>(hidden[size_t(group.y) * width + k])
        : 0.0f;
  }
  size_t gate = size_t(width) * width; // from one gate's rows to the next's
  for (uint t = 0; t < steps; ++t) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* h = state + (t & 1) * most_units;
    threadgroup float* next = state + ((t + 1) & 1) * most_units;
    for (uint unit = simdgroup; unit < width; unit += simdgroups) {
      device const T* w = weight + size_t(unit) * width;
      float4 total = float4(0);
      for (uint k = lane; k < width; k += 32) {
        total += h[k] *
            float4(static_cast<float>(w[k]),
                   static_cast<float>(w[gate + k]),
                   static_cast<float>(w[2 * gate + k]),
                   static_cast<float>(w[3 * gate + k]));
      }
      total = simd_sum(total);
      if (lane == 0) {
        float i = sigmoid(total.x + static_cast<float>(x[unit]));
        float f = sigmoid(total.y + static_cast<float>(x[width + unit]));
        float g =
            precise::tanh(total.z + static_cast<float>(x[2 * width + unit]));
        float o = sigmoid(total.w + static_cast<float>(x[3 * width + unit]));
        float before = 0;
        if (t > 0) {
          before = *(cell_out + unit - width);
        } else if (has_cell) {
          before = cell[size_t(group.y) * width + unit];
        }
        float c = f * before + i * g;
        T result = static_cast<T>(o * precise::tanh(c));
        cell_out[unit] = c;
        hidden_out[unit] = result;
        next[unit] = static_cast<float>(result); // as it is stored
      }
    }
    x += 4 * width;
    hidden_out += width;
    cell_out += width;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void lstm_vjp(
    device const T* gates [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const float* cell [[buffer(2)]],
    device const float* cell_out [[buffer(3)]],
    device const T* cotangent [[buffer(4)]],
    device const float* cotangent_cell [[buffer(5)]],
    device T* grad_gates [[buffer(6)]],
    device T* grad_hidden [[buffer(7)]],
    device float* grad_cell [[buffer(8)]],
    constant bool& has_cell [[buffer(9)]],
    constant uint& steps [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]]) {
  threadgroup float grad[4 * most_units];
  uint unit = thread_in_group.x;
  bool is_there = unit < width;
  size_t first = size_t(group.y) * width;
  float of_h = 0;
  float of_c = 0;
  for (uint t = steps; t-- > 0;) {
    if (is_there) {
      size_t row = size_t(group.y) * steps + t;
      size_t at = row * width + unit;
      device const T* gate = gates + row * 4 * width + unit;
      float i = sigmoid(static_cast<float>(gate[0]));
      float f = sigmoid(static_cast<float>(gate[width]));
      float g = precise::tanh(static_cast<float>(gate[2 * width]));
      float o = sigmoid(static_cast<float>(gate[3 * width]));
      float before = 0;
      if (t > 0) {
        before = cell_out[at - width];
      } else if (has_cell) {
        before = cell[first + unit];
      }
      float shown = precise::tanh(cell_out[at]);
      float dh = static_cast<float>(cotangent[at]) + of_h;
      float dc = cotangent_cell[at] + of_c + dh * o * (1 - shown * shown);
      grad[unit] = dc * g * i * (1 - i);
      grad[width + unit] = dc * before * f * (1 - f);
      grad[2 * width + unit] = dc * i * (1 - g * g);
      grad[3 * width + unit] = dh * shown * o * (1 - o);
      device T* to = grad_gates + row * 4 * width + unit;
      for (uint j = 0; j < 4; ++j) {
        to[j * width] = static_cast<T>(grad[j * width + unit]);
      }
      of_c = dc * f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    of_h = 0;
    if (is_there) {
      for (uint j = 0; j < 4 * width; ++j) {
        of_h += grad[j] * static_cast<float>(weight[size_t(j) * width + unit]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (is_there) {
    grad_hidden[first + unit] = static_cast<T>(of_h);
    grad_cell[first + unit] = of_c;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void gru(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* hidden [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant bool& has_bias [[buffer(5)]],
    constant bool& has_hidden [[buffer(6)]],
    constant uint& steps [[buffer(7)]],
    constant uint& width [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // Of the step before and of this one, in turn.
  threadgroup float state[2 * most_units];
  size_t row = size_t(group.y) * steps;
  x += row * 3 * width;
  out += row * width;
  for (uint k = thread_in_group.x; k < width; k += group_size.x) {
    state[k] = has_hidden
        ? static_cast<float>(hidden[size_t(group.y) * width + k])
        : 0.0f;
  }
  size_t gate = size_t(width) * width; // from one gate's rows to the next's
  for (uint t = 0; t < steps; ++t) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* h = state + (t & 1) * most_units;
    threadgroup float* next = state + ((t + 1) & 1) * most_units;
    for (uint unit = simdgroup; unit < width; unit += simdgroups) {
      device const T* w = weight + size_t(unit) * width;
      float3 total = float3(0);
      for (uint k = lane; k < width; k += 32) {
        total += h[k] *
            float3(static_cast<float>(w[k]),
                   static_cast<float>(w[gate + k]),
                   static_cast<float>(w[2 * gate + k]));
      }
      total = simd_sum(total);
      if (lane == 0) {
        float r = sigmoid(static_cast<float>(x[unit]) + total.x);
        float z = sigmoid(static_cast<float>(x[width + unit]) + total.y);
        float gated =
            total.z + (has_bias ? static_cast<float>(bias[unit]) : 0.0f);
        float n =
            precise::tanh(static_cast<float>(x[2 * width + unit]) + r * gated);
        T result = static_cast<T>((1 - z) * n + z * h[unit]);
        out[unit] = result;
        next[unit] = static_cast<float>(result); // as it is stored
      }
    }
    x += 3 * width;
    out += width;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void gru_vjp(
    device const T* x [[buffer(0)]],
    device const T* products [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device const T* before [[buffer(4)]],
    device const T* cotangent [[buffer(5)]],
    device T* grad_x [[buffer(6)]],
    device T* grad_products [[buffer(7)]],
    device T* grad_hidden [[buffer(8)]],
    constant bool& has_bias [[buffer(9)]],
    constant uint& steps [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]]) {
  threadgroup float grad[3 * most_units];
  uint unit = thread_in_group.x;
  bool is_there = unit < width;
  float of_n = has_bias && is_there ? static_cast<float>(bias[unit]) : 0.0f;
  float of_h = 0;
  for (uint t = steps; t-- > 0;) {
    if (is_there) {
      size_t row = size_t(group.y) * steps + t;
      size_t at = row * width + unit;
      size_t gate = row * 3 * width + unit;
      float r = sigmoid(
          static_cast<float>(x[gate]) + static_cast<float>(products[gate]));
      float z = sigmoid(
          static_cast<float>(x[gate + width]) +
          static_cast<float>(products[gate + width]));
      float gated = static_cast<float>(products[gate + 2 * width]) + of_n;
      float n =
          precise::tanh(static_cast<float>(x[gate + 2 * width]) + r * gated);
      float dh = static_cast<float>(cotangent[at]) + of_h;
      float dn = dh * (1 - z) * (1 - n * n);
      float dr = dn * gated * r * (1 - r);
      float dz = dh * (static_cast<float>(before[at]) - n) * z * (1 - z);
      grad[unit] = dr;
      grad[width + unit] = dz;
      grad[2 * width + unit] = dn * r;
      grad_x[gate] = static_cast<T>(dr);
      grad_x[gate + width] = static_cast<T>(dz);
      grad_x[gate + 2 * width] = static_cast<T>(dn);
      grad_products[gate] = static_cast<T>(dr);
      grad_products[gate + width] = static_cast<T>(dz);
      grad_products[gate + 2 * width] = static_cast<T>(dn * r);
      of_h = dh * z;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_there) {
      for (uint j = 0; j < 3 * width; ++j) {
        of_h += grad[j] * static_cast<float>(weight[size_t(j) * width + unit]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (is_there) {
    grad_hidden[size_t(group.y) * width + unit] = static_cast<T>(of_h);
  }
}
