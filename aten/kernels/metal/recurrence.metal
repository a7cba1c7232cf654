// Metal kernel of a linear recurrence: one thread per row.

#include <metal_stdlib>

using namespace metal;

/** out[k] = x[k] + decay[k] * out[k + 1], from the end of each row. */
template <typename T>
[[kernel]] void recurrence(
    device const T* x [[buffer(0)]],
    device const T* decay [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& length [[buffer(3)]],
    uint3 position [[thread_position_in_grid]]) {
  size_t begin = size_t(position.x) * length;
  float sum = 0;
  for (int k = length - 1; k >= 0; --k) {
    float factor = k == length - 1 ? 0 : static_cast<float>(decay[begin + k]);
    float rest = k == length - 1 ? 0 : factor * sum;
    sum = static_cast<float>(x[begin + k]) + rest;
    out[begin + k] = static_cast<T>(sum);
  }
}
