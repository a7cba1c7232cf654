// Metal kernels that do not match the entries that name them.

#include <metal_stdlib>

using namespace metal;

template <typename T>
T order(T y, T x) {
  return x - y;
}

template <typename T>
T types(T x, float n, int flag) {
  return x;
}

template <typename T>
void no_result(T x) {}

template <typename T>
T pointer(device const T* x) {
  return *x;
}

template <typename T>
void values(T x, T a, T& low, T& high) {}

template <typename T, typename U>
T two_types(U x) {
  return x;
}

template <typename T>
[[kernel]] void unknown(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant int& rows [[buffer(2)]],
    device const T* xx [[buffer(3)]]) {}

template <typename T>
[[kernel]] void order_of_buffers(
    device T* out [[buffer(0)]],
    device const T* x [[buffer(1)]]) {}

template <typename T>
[[kernel]] void types_of_buffers(
    device const float* x [[buffer(0)]],
    device const T* ids [[buffer(1)]],
    device int* out [[buffer(2)]],
    constant float& n [[buffer(3)]],
    constant T& a [[buffer(4)]],
    constant int& flag [[buffer(5)]],
    constant const float* x_shape [[buffer(6)]]) {}

template <typename T>
[[kernel]] void const_output(
    device const T* x [[buffer(0)]],
    device const T* out [[buffer(1)]]) {}

template <typename T>
[[kernel]] void writable_input(
    device T* x [[buffer(0)]],
    device T* out [[buffer(1)]]) {}

template <typename T>
[[kernel]] void by_value(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    device const int* n [[buffer(2)]]) {}

template <typename T>
[[kernel]] void same_buffer(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(0)]]) {}

template <typename T>
[[kernel]] void shared_memory(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    threadgroup T* scratch [[threadgroup(0)]]) {}

template <typename T>
[[kernel]] void presence(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant bool& has_x [[buffer(2)]]) {}

template <typename T>
[[kernel]] void of_list(
    device const T* xs [[buffer(0)]],
    device T* out [[buffer(1)]]) {}

[[kernel]] void narrow(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant int& n [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {}

[[kernel]] int not_given(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(kOut)]],
    texture2d<float> image [[texture(0)]],
    constant int& [[buffer(2)]],
    int i [[thread_position_in_grid]]) {
  return 0;
}

template <typename T>
  requires metal::is_integral_v<T>
[[kernel]] void for_integers(
    device const T* x,
    device T* out,
    uint i [[thread_position_in_grid]]) {}
