// Metal kernels of resampling and average pooling along one axis, with the taps
// of csrc/taps.h: one thread per result, without atomics.

#include <metal_stdlib>

#include "taps.h"

using namespace metal;

/** out[.., j, k] = sum over the taps i of j of weight * x[.., i, k] */
template <typename T>
[[kernel]] void resample(
    device const T* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant int& length [[buffer(2)]],
    constant int& size [[buffer(3)]],
    constant int& mode [[buffer(4)]],
    constant float& scale [[buffer(5)]],
    constant bool& align_corners [[buffer(6)]],
    constant int& kernel_size [[buffer(7)]],
    constant int& stride [[buffer(8)]],
    constant int& padding [[buffer(9)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  mlx_aten::TapAxis<float> axis(
      mode, length, size, scale, align_corners, kernel_size, stride, padding);
  x += size_t(position.z) * length * threads.x + position.x;
  mlx_aten::Taps<float> taps = axis.weighted(int(position.y));
  float sum = 0;
  for (int k = 0; k < taps.count; ++k) {
    size_t i = axis.input(taps, k);
    sum += axis.weight(taps, k) * static_cast<float>(x[i * threads.x]);
  }
  out[(size_t(position.z) * size + position.y) * threads.x + position.x] = sum;
}

/** out[.., i, k] = sum over the outputs j with the tap i */
template <typename T>
[[kernel]] void resample_transposed(
    device const T* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant int& length [[buffer(2)]],
    constant int& size [[buffer(3)]],
    constant int& mode [[buffer(4)]],
    constant float& scale [[buffer(5)]],
    constant bool& align_corners [[buffer(6)]],
    constant int& kernel_size [[buffer(7)]],
    constant int& stride [[buffer(8)]],
    constant int& padding [[buffer(9)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  mlx_aten::TapAxis<float> axis(
      mode, length, size, scale, align_corners, kernel_size, stride, padding);
  x += size_t(position.z) * size * threads.x + position.x;
  int i = int(position.y);
  float sum = 0;
  for (int j = axis.first_output(i); j < size; ++j) {
    mlx_aten::Taps<float> taps = axis.weighted(j);
    if (taps.begin > i) {
      break;
    }
    float value = static_cast<float>(x[size_t(j) * threads.x]);
    for (int k = 0; k < taps.count; ++k) {
      sum += axis.input(taps, k) == i ? axis.weight(taps, k) * value : 0;
    }
  }
  out[(size_t(position.z) * length + position.y) * threads.x + position.x] =
      sum;
}

/** Sums of consecutive bytes, rounded: see csrc/rounded_taps.h. */
[[kernel]] void byte_sums(
    device const uint8_t* x [[buffer(0)]],
    device const int* firsts [[buffer(1)]],
    device const int* weights [[buffer(2)]],
    device const int* bits [[buffer(3)]],
    device uint8_t* out [[buffer(4)]],
    constant int& length [[buffer(5)]],
    constant int& taps [[buffer(6)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  size_t first = size_t(position.z) * length + firsts[position.y];
  x += first * threads.x + position.x;
  weights += position.y * taps;
  int shift = bits[position.y];
  int sum = 1 << shift >> 1;
  for (int k = 0; k < taps; ++k) {
    sum += weights[k] * int(x[size_t(k) * threads.x]);
  }
  out[(size_t(position.z) * threads.y + position.y) * threads.x + position.x] =
      uint8_t(clamp(sum >> shift, 0, 255));
}
