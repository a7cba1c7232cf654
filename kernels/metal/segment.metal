// Metal kernel of sums over segments.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** How many of the n ids, which ascend in this order, are below `bound`. */
inline int
count_below(device const int* ids, device const uint* order, int n, int bound) {
  int low = 0;
  int high = n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (ids[order[middle]] < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/**
 * out[s] = sum of the x[i] with segment_ids[i] == s, added up in float; the ids
 * ascend in the order of the rows that `order` lists.
 *
 * No atomics, and the same result in every run: a threadgroup finds the rows of
 * one segment by bisection, and its thread (i, j) of c x r adds up column i of
 * every r-th row from j on. There are at most 256 threads.
 */
template <typename T>
[[kernel]] void segment_sum_sorted(
    device const T* x [[buffer(0)]],
    device const int* segment_ids [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant int& rows [[buffer(4)]],
    constant int& width [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]]) {
  threadgroup float sums[256];
  int segment = group.y;
  int column = group.x * group_size.x + thread_in_group.x;
  int first = count_below(segment_ids, order, rows, segment);
  int last = first +
      count_below(segment_ids, order + first, rows - first, segment + 1);
  float sum = 0;
  if (column < width) {
    for (int row = first + thread_in_group.y; row < last; row += group_size.y) {
      sum += static_cast<float>(x[size_t(order[row]) * width + column]);
    }
  }
  sums[thread_in_group.y * group_size.x + thread_in_group.x] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_in_group.y == 0 && column < width) {
    float total = 0;
    for (uint j = 0; j < group_size.y; ++j) {
      total += sums[j * group_size.x + thread_in_group.x];
    }
    out[size_t(segment) * width + column] = static_cast<T>(total);
  }
}

// clang-format off
instantiate_kernel("segment_sum_sorted_float32", segment_sum_sorted, float)
instantiate_kernel("segment_sum_sorted_float16", segment_sum_sorted, half)
instantiate_kernel("segment_sum_sorted_bfloat16", segment_sum_sorted, bfloat16_t)
    // clang-format on
