// Metal kernels of RMS normalisation fused with a residual connection: the
// formulas of csrc/normalization.h.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** The sum of the values of all threads of a threadgroup, for each of them. */
inline float threadgroup_sum(
    float value,
    threadgroup float* sums, // one for each simdgroup
    uint lane,
    uint simdgroup,
    uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) {
    sums[simdgroup] = value;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (uint i = 0; i < simdgroups; ++i) {
    total += sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup); // `sums` can be used again
  return total;
}

/** One threadgroup per row; at most 1024 threads. */
template <typename T>
[[kernel]] void rms_norm_residual(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* y [[buffer(3)]],
    device T* h [[buffer(4)]],
    constant bool& has_weight [[buffer(5)]],
    constant float& eps [[buffer(6)]],
    constant int& width [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[32];
  size_t start = size_t(group.y) * width;
  float squares = 0;
  for (int i = thread_in_group.x; i < width; i += group_size.x) {
    T sum = static_cast<T>(
        static_cast<float>(x[start + i]) +
        static_cast<float>(residual[start + i]));
    h[start + i] = sum;
    float value = static_cast<float>(sum);
    squares += value * value;
  }
  squares = threadgroup_sum(squares, sums, lane, simdgroup, simdgroups);
  float scale = precise::rsqrt(squares / width + eps);
  for (int i = thread_in_group.x; i < width; i += group_size.x) {
    float factor = has_weight ? static_cast<float>(weight[i]) : 1.0f;
    y[start + i] =
        static_cast<T>(static_cast<float>(h[start + i]) * scale * factor);
  }
}

/** One threadgroup per row of grad_weight, that is for rows_per_sum rows. */
template <typename T>
[[kernel]] void rms_norm_residual_vjp(
    device const T* h [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* grad_y [[buffer(2)]],
    device const T* grad_h [[buffer(3)]],
    device T* grad_x [[buffer(4)]],
    device float* grad_weight [[buffer(5)]],
    constant bool& has_weight [[buffer(6)]],
    constant float& eps [[buffer(7)]],
    constant int& width [[buffer(8)]],
    constant int& rows [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr int rows_per_sum = 16; // as in csrc/normalization.h
  threadgroup float sums[32];
  device float* weight_sum = grad_weight + size_t(group.y) * width;
  int first = group.y * rows_per_sum;
  int last = min(first + rows_per_sum, rows);
  for (int row = first; row < last; ++row) {
    size_t start = size_t(row) * width;
    float squares = 0;
    float projection = 0;
    for (int i = thread_in_group.x; i < width; i += group_size.x) {
      float value = static_cast<float>(h[start + i]);
      float factor = has_weight ? static_cast<float>(weight[i]) : 1.0f;
      squares += value * value;
      projection += value * static_cast<float>(grad_y[start + i]) * factor;
    }
    squares = threadgroup_sum(squares, sums, lane, simdgroup, simdgroups);
    projection = threadgroup_sum(projection, sums, lane, simdgroup, simdgroups);
    float scale = precise::rsqrt(squares / width + eps);
    float shift = projection / width * scale * scale;
    // A thread has the same columns in every row: it can sum them up in place.
    for (int i = thread_in_group.x; i < width; i += group_size.x) {
      float value = static_cast<float>(h[start + i]);
      float d = static_cast<float>(grad_y[start + i]);
      float factor = has_weight ? static_cast<float>(weight[i]) : 1.0f;
      float part = d * (value * scale);
      weight_sum[i] = row == first ? part : weight_sum[i] + part;
      grad_x[start + i] = static_cast<T>(
          static_cast<float>(grad_h[start + i]) +
          scale * (d * factor - value * shift));
    }
  }
}

// clang-format off
#define instantiate_rms_norm_residual(name, type)                           \
  instantiate_kernel("rms_norm_residual_" #name, rms_norm_residual, type)   \
  instantiate_kernel("rms_norm_residual_vjp_" #name, rms_norm_residual_vjp, type)

instantiate_rms_norm_residual(float32, float)
instantiate_rms_norm_residual(float16, half)
instantiate_rms_norm_residual(bfloat16, bfloat16_t)
    // clang-format on
