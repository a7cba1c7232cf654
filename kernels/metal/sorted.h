// Where an id stands in an order by ids: for kernels that reduce what belongs
// together without atomics.

#pragma once

#include <metal_stdlib>

using namespace metal;

/**
 * How many of the n ids, which ascend in this order, are below `bound`. The 32
 * lanes of a simdgroup look for it together: each step leaves less than a 32nd
 * part, where bisection leaves a half.
 */
inline uint count_below(
    device const int* ids,
    device const uint* order,
    uint n,
    int bound,
    uint lane) {
  uint first = 0; // ids in front of it are below
  while (n > 0) {
    uint step = (n + 31) / 32;
    uint place = lane * step;
    bool below = place < n && ids[order[first + place]] < bound;
    uint count = simd_sum(uint(below));
    if (count == 0) {
      break;
    }
    uint found = (count - 1) * step + 1;
    first += found;
    n = min(n - found, step - 1);
  }
  return first;
}
