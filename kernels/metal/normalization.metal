// Metal kernels of RMS normalization fused with a residual connection: the
// formulas of csrc/normalization.h.
//
// A thread has `per_thread` neighboring columns. It keeps these in registers,
// which suffices for rows of up to 4096 elements. In wider rows it has further
// columns, at a distance of one stretch of the threadgroup, which it reads
// twice.

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

/** A thread's part of h = x + residual, as stored. */
template <typename T>
inline float4
add_part(device const T* x, device const T* residual, device T* h, int left) {
  float4 total = read(x, left) + read(residual, left);
  write(total, h, left);
  return rounded<T>(total);
}

/** One threadgroup per row, of whole simdgroups. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rms_norm_residual(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* y [[buffer(3)]],
    device T* h [[buffer(4)]],
    constant bool& has_weight [[buffer(5)]],
    constant float& eps [[buffer(6)]],
    constant uint& width [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[32];
  size_t start = size_t(group.y) * width;
  x += start;
  residual += start;
  y += start;
  h += start;
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  int left = int(width) - int(first);
  float4 kept = add_part(x + first, residual + first, h + first, left);
  float squares = sum(kept * kept);
  for (uint i = first + step; i < width; i += step) {
    float4 value = add_part(x + i, residual + i, h + i, int(width - i));
    squares += sum(value * value);
  }
  squares = threadgroup_sum(squares, sums, lane, simdgroup, simdgroups);
  float scale = precise::rsqrt(squares / width + eps);
  float4 factor = has_weight ? read(weight + first, left) : float4(1);
  write(kept * scale * factor, y + first, left);
  for (uint i = first + step; i < width; i += step) {
    left = int(width - i);
    factor = has_weight ? read(weight + i, left) : float4(1);
    write(read(h + i, left) * scale * factor, y + i, left);
  }
}

/**
 * One threadgroup, of whole simdgroups, per row of grad_weight, which sums
 * rows_per_sum rows. A thread has the same columns in every row and adds up
 * their parts of grad_weight without other threads.
 */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rms_norm_residual_vjp(
    device const T* h [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* grad_y [[buffer(2)]],
    device const T* grad_h [[buffer(3)]],
    device T* grad_x [[buffer(4)]],
    device float* grad_weight [[buffer(5)]],
    constant bool& has_weight [[buffer(6)]],
    constant float& eps [[buffer(7)]],
    constant uint& width [[buffer(8)]],
    constant uint& rows [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint rows_per_sum = 16; // as in csrc/normalization.h
  // Rows use the two halves alternately: a thread may still add up the sums of
  // one row while others write those of the next row.
  threadgroup float2 sums[2 * 32];
  uint first_row = group.y * rows_per_sum;
  uint last_row = min(first_row + rows_per_sum, rows);
  size_t start = size_t(first_row) * width;
  h += start;
  grad_y += start;
  grad_h += start;
  grad_x += start;
  grad_weight += size_t(group.y) * width;
  uint first = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  int left = int(width) - int(first);
  float4 kept_factor = has_weight ? read(weight + first, left) : float4(1);
  float4 weight_sum = float4(0);
  for (uint row = first_row; row < last_row; ++row) {
    float4 kept = read(h + first, left);
    float4 kept_d = read(grad_y + first, left);
    // Of h^2, and of h * grad_y * weight.
    float2 total = float2(sum(kept * kept), sum(kept * kept_d * kept_factor));
    for (uint i = first + step; i < width; i += step) {
      int rest = int(width - i);
      float4 value = read(h + i, rest);
      float4 factor = has_weight ? read(weight + i, rest) : float4(1);
      total += float2(
          sum(value * value), sum(value * read(grad_y + i, rest) * factor));
    }
    total = threadgroup_sum(
        total, sums + (row & 1) * 32, lane, simdgroup, simdgroups);
    float scale = precise::rsqrt(total.x / width + eps);
    float shift = total.y / width * scale * scale;
    weight_sum += kept_d * (kept * scale);
    write(
        read(grad_h + first, left) +
            scale * (kept_d * kept_factor - kept * shift),
        grad_x + first,
        left);
    for (uint i = first + step; i < width; i += step) {
      int rest = int(width - i);
      float4 value = read(h + i, rest);
      float4 d = read(grad_y + i, rest);
      float4 factor = has_weight ? read(weight + i, rest) : float4(1);
      float4 before = float4(0);
      if (row > first_row) {
        before = read(grad_weight + i, rest);
      }
      write(before + d * (value * scale), grad_weight + i, rest);
      write(
          read(grad_h + i, rest) + scale * (d * factor - value * shift),
          grad_x + i,
          rest);
    }
    h += width;
    grad_y += width;
    grad_h += width;
    grad_x += width;
  }
  write(weight_sum, grad_weight + first, left);
}
