#include <metal_stdlib>
using namespace metal;

#define BOTH(name) instantiate(name, float) instantiate_twice(half)
#define instantiate_twice(type) template [[host_name("twice_" #type)]] [[kernel]] void twice<type>

template <typename T>
[[kernel]] void twice(const device T* x, device T* out, uint i [[thread_position_in_grid]]) {
  out[i] = 2 * x[i];
}

[[kernel, host_name("third")]] void three(
    const device float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = 3 * x[i];
}

template <typename T>
[[kernel]] void four(const device T* x, device T* out, uint i [[thread_position_in_grid]]) {
  out[i] = 4 * x[i];
}

instantiate_twice(float);
template [[host_name("twice_float")]] [[kernel]] decltype(twice<float>) twice<float>;
BOTH(five)
