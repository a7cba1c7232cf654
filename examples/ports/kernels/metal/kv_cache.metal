// Writes new tokens into a cache, whose values `out` has already.

#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void kv_cache_update(
    device const T* update [[buffer(0)]],
    device const int* positions [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant const int64_t* update_strides [[buffer(3)]],
    constant int& H [[buffer(4)]],
    constant int& L [[buffer(5)]],
    uint3 position [[thread_position_in_grid]],
    uint3 grid [[threads_per_grid]]) {
  int channel = position.x, token = position.y, batch = position.z / H;
  int head = position.z % H, target = positions[batch] + token;
  if (target >= 0 && target < L) {
    out[(size_t(position.z) * L + target) * grid.x + channel] = update
        [batch * update_strides[0] + head * update_strides[1] +
         token * update_strides[2] + channel * update_strides[3]];
  }
}
