// The position of an id in a sorted order of ids, for kernels that reduce equal
// ids without atomics.

#pragma once

#include <metal_stdlib>

using namespace metal;

/**
 * The number of the n ids below `bound`; the ids ascend in this order. The 32
 * lanes of a simdgroup search together: each step leaves less than a 32nd of
 * the range, while bisection leaves a half.
 */
inline uint count_below(
    device const int* ids,
    device const uint* order,
    uint n,
    int bound,
    uint lane) {
  uint first = 0; // all ids before it are below the bound
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
