// Metal kernel of products whose matrix depends on the row: the gradients of
// segmented_matmul.

#include <metal_stdlib>

using namespace metal;

/**
 * out[n] = the sum of x[n] weight[s] over the segments s that contain n, with
 * matrices (inner, columns), or transposed (columns, inner). A thread computes
 * a column of 8 rows, so that it reads a matrix once for all of them.
 */
template <typename T>
[[kernel]] void segment_products(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const uint* segments [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant bool& transpose [[buffer(4)]],
    constant uint& rows [[buffer(5)]],
    constant uint& inner [[buffer(6)]],
    constant uint& columns [[buffer(7)]],
    constant uint& count [[buffer(8)]],
    uint2 thread_position [[thread_position_in_grid]]) {
  constexpr uint per_thread = 8;
  uint column = thread_position.x;
  uint first = thread_position.y * per_thread;
  uint last = min(first + per_thread, rows);
  float sums[per_thread] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (uint s = 0; s < count; ++s) {
    uint begin = max(first, segments[2 * s]);
    uint end = min(last, segments[2 * s + 1]);
    if (begin >= end) {
      continue;
    }
    device const T* matrix = weight + size_t(s) * inner * columns;
    matrix += transpose ? size_t(column) * inner : column;
    for (uint p = 0; p < inner; ++p) {
      float factor = float(matrix[transpose ? p : size_t(p) * columns]);
      for (uint i = 0; i < per_thread; ++i) {
        uint row = first + i;
        if (row >= begin && row < end) {
          sums[i] += factor * float(x[size_t(row) * inner + p]);
        }
      }
    }
  }
  for (uint i = 0; i < per_thread; ++i) {
    if (first + i < last) {
      out[size_t(first + i) * columns + column] = T(sums[i]);
    }
  }
}
