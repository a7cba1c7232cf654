// Writes new tokens into a cache, whose values `out` has already.

#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void kv_cache_update(
    device const T* update [[buffer(0)]],
    device const int* positions [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& H [[buffer(3)]],
    constant int& L [[buffer(4)]],
    uint3 position [[thread_position_in_grid]],
    uint3 grid [[threads_per_grid]]) {
  size_t row = position.z;
  int target = positions[row / H] + int(position.y);
  if (target >= 0 && target < L) {
    out[(row * L + target) * grid.x + position.x] =
        update[(row * grid.y + position.y) * grid.x + position.x];
  }
}
