// Common code of kernels of layers that normalize rows: a threadgroup of whole
// simdgroups computes one row or several rows, and a thread `per_thread`
// neighboring columns. It keeps these in registers, which suffices for rows of
// up to 4096 elements. In wider rows a thread has further columns, at a
// distance of one stretch of the threadgroup, which it reads again.

#pragma once

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

// The number of rows that each row of a weight's gradient sums, as in
// csrc/nn/rows.h.
static constant constexpr const uint rows_per_sum = 16;

/** A thread's first two parts of a row; it reads further parts again. */
struct KeptParts {
  float4 first = float4(0);
  float4 second = float4(0);

  void keep(uint part, float4 value) {
    if (part == 0) {
      first = value;
    } else if (part == 1) {
      second = value;
    }
  }

  template <typename T>
  float4 part_or_read(uint part, device const T* from, int left) const {
    return part == 0 ? first : part == 1 ? second : read(from, left);
  }
};

/** A part of an optional weight; 1 if it is absent. */
template <typename T>
inline float4 weight_part(device const T* weight, bool given, int left) {
  return given ? read(weight, left) : float4(1);
}

/** The elements; only `left` of them exist, the others are 0. */
inline float4 inside(float4 x, int left) {
  return float4(
      left > 0 ? x.x : 0.0f,
      left > 1 ? x.y : 0.0f,
      left > 2 ? x.z : 0.0f,
      left > 3 ? x.w : 0.0f);
}

/**
 * Add to a thread's part of a sum over rows: to its first columns in registers,
 * and to the other columns in memory.
 */
inline void add_part(
    float4 value,
    bool keeps,
    thread float4& kept,
    bool begins,
    device float* to,
    int left) {
  if (keeps) {
    kept += value;
  } else {
    write(begins ? value : read(to, left) + value, to, left);
  }
}
