// Metal kernels of the distances between the rows of two matrices.

#include <metal_stdlib>

#include "distance.h"

using namespace metal;

template <typename T>
[[kernel]] void cdist(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& width [[buffer(3)]],
    constant float& p [[buffer(4)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  size_t row = size_t(position.z) * threads.y + position.y;
  x += row * width;
  y += (size_t(position.z) * threads.x + position.x) * width;
  mlx_aten::Norm<float> norm = {p, 0.0f};
  for (int k = 0; k < width; ++k) {
    norm.add(static_cast<float>(x[k]) - static_cast<float>(y[k]));
  }
  out[row * threads.x + position.x] = static_cast<T>(norm.result());
}

/** The gradient with respect to x. */
template <typename T>
[[kernel]] void cdist_vjp(
    device const T* cotangent [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* y [[buffer(2)]],
    device const T* distance [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant int& others [[buffer(5)]],
    constant float& p [[buffer(6)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  size_t row = size_t(position.z) * threads.y + position.y;
  size_t width = threads.x;
  y += size_t(position.z) * others * width + position.x;
  float from = static_cast<float>(x[row * width + position.x]);
  float sum = 0;
  for (int j = 0; j < others; ++j) {
    mlx_aten::Norm<float> norm = {
        p, static_cast<float>(distance[row * others + j])};
    float slope = norm.slope(from - static_cast<float>(y[j * width]));
    sum += static_cast<float>(cotangent[row * others + j]) * slope;
  }
  out[row * width + position.x] = static_cast<T>(sum);
}
