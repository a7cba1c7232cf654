// Metal kernel of sums over segments.

#include <metal_stdlib>

#include "elements.h"
#include "sorted.h"

using namespace metal;

/**
 * out[s] = sum of the x[i] with segment_ids[i] == s, accumulated in float; the
 * ids ascend in the order of the rows in `order`.
 *
 * It uses no atomics, so that every run returns the same result: a threadgroup
 * of one simdgroup or eight computes up to 32 columns of a segment. Eight
 * threads share a row or, if it is short, one thread computes it; the next
 * threads compute the next rows.
 */
template <typename T>
[[kernel]] void segment_sum_sorted(
    device const T* x [[buffer(0)]],
    device const int* segment_ids [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    constant uint& width [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint most = 8; // threads of a row, and simdgroups
  threadgroup uint bounds[2];
  threadgroup float sums[most * most * per_thread];
  uint segment = group.y;
  for (uint i = simdgroup; i < 2; i += simdgroups) {
    uint count = count_below(segment_ids, order, rows, segment + i, lane);
    if (lane == 0) {
      bounds[i] = count;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  bool narrow = width <= per_thread;
  uint sharing = narrow ? 1 : most;
  uint first_row = narrow ? thread_in_group.x : thread_in_group.x / most;
  uint row_step = narrow ? group_size.x : group_size.x / most;
  uint first = group.x * most * per_thread; // column of the threadgroup
  uint column = (thread_in_group.x & (sharing - 1)) * per_thread;
  int left = int(width) - int(first + column);
  float4 total = float4(0);
  for (uint row = bounds[0] + first_row; row < bounds[1]; row += row_step) {
    total += read(x + size_t(order[row]) * width + first + column, left);
  }
  for (uint apart = sharing; apart < 32; apart *= 2) {
    total += simd_shuffle_xor(total, ushort(apart));
  }

  out += size_t(segment) * width + first;
  if (simdgroups == 1) {
    if (lane < sharing) {
      write(total, out + column, left);
    }
    return;
  }
  // The sums of eight simdgroups: a simdgroup adds up those of four columns.
  if (lane < sharing) {
    for (int i = 0; i < per_thread; ++i) {
      sums[simdgroup * most * per_thread + column + i] = total[i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup < sharing) {
    column = simdgroup * per_thread + lane % per_thread;
    float part = sums[lane / per_thread * most * per_thread + column];
    for (uint apart = per_thread; apart < 32; apart *= 2) {
      part += simd_shuffle_xor(part, ushort(apart));
    }
    if (lane < per_thread && first + column < width) {
      out[column] = static_cast<T>(part);
    }
  }
}
