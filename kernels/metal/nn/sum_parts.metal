// Metal kernels of sum_parts, the sums of partial results of blocks of rows or
// channels, and of its gradient.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** One thread per sum, over parts and over heads that share one. */
template <typename T>
[[kernel]] void sum_parts(
    device const float* x [[buffer(0)]],
    device const T* like [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& width [[buffer(3)]],
    constant int& share [[buffer(4)]],
    constant int& parts [[buffer(5)]],
    uint i [[thread_position_in_grid]],
    uint size [[threads_per_grid]]) {
  size_t row = size_t(i) / width * share * width + i % width;
  float total = 0;
  for (int part = 0; part < parts; ++part) {
    for (int k = 0; k < share; ++k) {
      total += x[size_t(part) * size * share + row + size_t(k) * width];
    }
  }
  out[i] = static_cast<T>(total);
}

/** A thread per part. */
template <typename T>
[[kernel]] void spread_parts(
    device const T* sums [[buffer(0)]],
    device const float* like [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant int& width [[buffer(3)]],
    constant int& share [[buffer(4)]],
    constant int& rows [[buffer(5)]],
    uint i [[thread_position_in_grid]]) {
  int row = int(i) / width / share % rows;
  out[i] = static_cast<float>(sums[row * width + int(i) % width]);
}
