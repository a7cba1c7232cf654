// What kernels of layers that normalise rows have in common: a threadgroup, of
// whole simdgroups, per row or per some rows, and `per_thread` neighbouring
// columns per thread. These it keeps in registers, which is all there is for
// rows of up to 4096 elements. In wider ones it has further columns, a stretch
// of the threadgroup after the other, which it reads again.

#pragma once

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

// How many rows each row of a weight's gradient sums up: as in csrc/nn/rows.h.
static constant constexpr const uint rows_per_sum = 16;

/** A thread's first two parts of a row; others it reads again. */
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

/** A part of an optional weight; 1 where there is none. */
template <typename T>
inline float4 weight_part(device const T* weight, bool given, int left) {
  return given ? read(weight, left) : float4(1);
}

/** The elements of which `left` are there; 0 for the others. */
inline float4 inside(float4 x, int left) {
  return float4(
      left > 0 ? x.x : 0.0f,
      left > 1 ? x.y : 0.0f,
      left > 2 ? x.z : 0.0f,
      left > 3 ? x.w : 0.0f);
}

/**
 * Add to a thread's part of a sum over rows: to what it keeps of its first
 * columns, and to what it has written of others.
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
