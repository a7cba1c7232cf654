// Several neighboring elements per thread, computed in float: common code of
// the kernels.

#pragma once

#include <metal_stdlib>

using namespace metal;

// The number of elements that a thread reads or writes at a time, as in MLX's
// kernels. They are not read as a vector, because rows, and arrays that begin
// inside of another array, are aligned for single elements only.
static constant constexpr const int per_thread = 4;

/** The elements at `from`; only `left` of them exist, the others are 0. */
template <typename T>
inline float4 read(device const T* from, int left) {
  float to[per_thread] = {0, 0, 0, 0};
  if (left >= per_thread) {
    for (int i = 0; i < per_thread; ++i) {
      to[i] = static_cast<float>(from[i]);
    }
  } else {
    for (int i = 0; i < per_thread; ++i) {
      if (i < left) {
        to[i] = static_cast<float>(from[i]);
      }
    }
  }
  return float4(to[0], to[1], to[2], to[3]);
}

/** Write the elements to `to`, at most `left` of them. */
template <typename T>
inline void write(float4 from, device T* to, int left) {
  // Elements of a vector should not be selected by a variable index.
  T values[per_thread] = {
      static_cast<T>(from.x),
      static_cast<T>(from.y),
      static_cast<T>(from.z),
      static_cast<T>(from.w)};
  if (left >= per_thread) {
    for (int i = 0; i < per_thread; ++i) {
      to[i] = values[i];
    }
  } else {
    for (int i = 0; i < per_thread; ++i) {
      if (i < left) {
        to[i] = values[i];
      }
    }
  }
}

/** The elements as stored. */
template <typename T>
inline float4 rounded(float4 x) {
  return float4(
      static_cast<float>(static_cast<T>(x.x)),
      static_cast<float>(static_cast<T>(x.y)),
      static_cast<float>(static_cast<T>(x.z)),
      static_cast<float>(static_cast<T>(x.w)));
}

/** The sum of a thread's elements. */
inline float sum(float4 x) {
  return (x.x + x.y) + (x.z + x.w);
}

/**
 * The sum of the values of all threads of a threadgroup, for every thread, with
 * one barrier: each simdgroup adds up the partial sums. `sums`, with one
 * element for each simdgroup, can therefore be reused only after the next
 * barrier. A single simdgroup does not wait.
 */
template <typename V>
inline V threadgroup_sum(
    V value,
    threadgroup V* sums,
    uint lane,
    uint simdgroup,
    uint simdgroups) {
  value = simd_sum(value);
  if (simdgroups == 1) {
    return value;
  }
  if (lane == 0) {
    sums[simdgroup] = value;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? V(sums[lane]) : V(0));
}
