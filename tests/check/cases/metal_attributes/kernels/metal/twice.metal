#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void twice(
    device const T* x [[bufer(0)]],
    device T* out [[buffer]],
    constant int& n [[buffer(-1)]],
    uint2 lane [[thread_index_in_simdgroup]],
    uint vertex [[vertex_id]],
    float place [[thread_position_in_threadgroup]],
    uint i [[thread_position_in_gird]]) {
  out[i] = n * x[i];
}

template <typename T>
[[kernel]] void one(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint i [[thread_postion_in_grid]]) {
  out[i] = x[i];
}
