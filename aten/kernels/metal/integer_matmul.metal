// Metal kernel of products of matrices of integers: one thread per element.

#include <metal_stdlib>

using namespace metal;

template <typename T>
[[kernel]] void integer_matmul(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& inner [[buffer(3)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  size_t row = size_t(position.z) * threads.y + position.y;
  size_t columns = threads.x;
  x += row * inner;
  y += size_t(position.z) * inner * columns + position.x;
  uint64_t sum = 0; // it wraps around
  for (int k = 0; k < inner; ++k) {
    sum += static_cast<uint64_t>(x[k]) * static_cast<uint64_t>(y[k * columns]);
  }
  out[row * columns + position.x] = static_cast<T>(sum);
}
