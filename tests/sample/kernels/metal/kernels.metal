// Metal kernels of the sample project: scalar functions and [[kernel]]s.

#include <metal_stdlib>

using namespace metal;

template <typename T>
T square(T x) {
  return x * x;
}

template <typename T>
T scale(T x, T a) {
  return a * x;
}

template <typename T>
T blend(T x, T y, int n, bool flip, int mode) {
  return flip ? y : x + T(n + mode);
}

template <typename T>
void parts(T x, T a, thread T& low, thread T& high) {
  low = x - a;
  high = x + a;
}

template <typename T>
[[kernel]] void total(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant int64_t& x_size [[buffer(2)]],
    uint index [[thread_position_in_grid]]) {
  out[0] = x[index];
}

template <typename T>
[[kernel]] void half_total(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint index [[thread_position_in_grid]]) {
  out[0] = x[index];
}

template <typename T>
[[kernel]] void segments(
    device const T* x [[buffer(0)]],
    device const int* ids [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& count [[buffer(3)]],
    constant int& width [[buffer(4)]],
    constant const int* x_shape [[buffer(5)]],
    constant const int64_t* x_strides [[buffer(6)]],
    constant int& x_ndim [[buffer(7)]],
    uint2 index [[thread_position_in_grid]]) {
  out[ids[index.x] * width] = x[index.y];
}

template <typename T>
[[kernel]] void norm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    device float* scale [[buffer(3)]],
    constant float& eps [[buffer(4)]],
    constant bool& has_weight [[buffer(5)]],
    uint index [[thread_position_in_grid]]) {
  out[index] = has_weight ? weight[0] : x[index];
}

template <typename T>
[[kernel]] void carry(
    device const T* x [[buffer(0)]],
    device const float* state [[buffer(1)]],
    device T* out [[buffer(2)]],
    device float* last [[buffer(3)]],
    uint index [[thread_position_in_grid]]) {
  out[index] = x[index];
  last[index] = x[index];
}

// The index of a string is -1 if an array is given, or nothing.
template <typename T>
[[kernel]] void masked(
    device const T* x [[buffer(0)]],
    device const T* mask [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& mask_mode [[buffer(3)]],
    constant bool& has_mask [[buffer(4)]],
    constant float& fill [[buffer(5)]],
    uint index [[thread_position_in_grid]]) {
  out[index] = mask_mode == 1 ? T(fill) : has_mask ? x[index] * mask[index] : x[index];
}

// `next` has the values of the donated array.
template <typename T>
[[kernel]] void put(
    device const T* row [[buffer(0)]],
    device T* next [[buffer(1)]],
    device T* largest [[buffer(2)]],
    constant int& place [[buffer(3)]],
    constant float& least [[buffer(4)]],
    constant int& cache_size [[buffer(5)]],
    uint index [[thread_position_in_grid]]) {
  next[place + index] = row[index];
  largest[index] = max(largest[index], row[index]);
}

template <typename T>
[[kernel]] void diagonal(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant const int64_t* x_strides [[buffer(3)]],
    constant const int64_t* weight_strides [[buffer(4)]],
    constant bool& has_weight [[buffer(5)]],
    uint i [[thread_position_in_grid]]) {
  T value = x[i * (x_strides[0] + x_strides[1])];
  out[i] = has_weight ? value * weight[i * weight_strides[0]] : value;
}

// One dtype, without a template; accumulated with atomics.
[[kernel]] void count_bits(
    device const int* x [[buffer(0)]],
    device atomic<int>* out [[buffer(1)]],
    uint index [[thread_position_in_grid]]) {
  out[0] = x[index];
}

// Instantiated by its launcher, for the values in the entry.
template <typename T, int N, int M = 1, typename V = float>
[[kernel]] void rows(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint index [[thread_position_in_grid]]) {
  threadgroup float kept[N * M];
  kept[0] = x[index];
  out[index] = kept[0];
}
