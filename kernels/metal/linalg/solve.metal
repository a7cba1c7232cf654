// Metal kernels that solve small systems of equations.

#include <metal_stdlib>

#include "lanes.h"

using namespace metal;

/**
 * A lane per row. An upper triangular matrix is a lower one in reverse order.
 * Zeros on the diagonal give infinities and NaN, other numbers that are not
 * finite give NaN.
 */
template <typename T, int N>
[[kernel]] void solve_small_triangle(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant bool& upper [[buffer(3)]],
    constant int& n [[buffer(4)]],
    constant int& columns [[buffer(5)]],
    constant int& count [[buffer(6)]],
    uint position [[thread_position_in_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]]) {
  Lane<N> lane(position, thread_in_simdgroup, count);
  int i = lane.i;
  bool inside = i < n;
  int own = upper ? n - 1 - i : i;
  a += size_t(lane.matrix) * n * n;
  size_t start = (size_t(lane.matrix) * n + (inside ? own : 0)) * columns;
  float row[N];
  float diagonal = inside ? float(a[own * n + own]) : 1;
  bool finite = isfinite(diagonal);
  for (int j = 0; j < N; ++j) {
    row[j] = inside && j < i ? float(a[own * n + (upper ? n - 1 - j : j)]) : 0;
    finite = finite && isfinite(row[j]);
  }
  finite = lane.all(finite);
  for (int c = 0; c < columns; ++c) {
    float x = inside ? float(b[start + c]) : 0;
    for (int k = 0; k < N; ++k) {
      float solved = lane.from(x / diagonal, k);
      x = i == k ? solved : (i > k ? x - row[k] * solved : x);
    }
    // Lane k has divided in step k, and is not changed later.
    if (lane.used && inside) {
      out[start + c] = T(finite ? x : NAN);
    }
  }
}

/**
 * A lane per row: LU factorization with partial pivoting, in which rows stay in
 * their lanes. A singular matrix gives infinities and NaN, one with a number
 * that is not finite gives NaN.
 */
template <typename T, int N>
[[kernel]] void solve_small(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int& n [[buffer(3)]],
    constant int& columns [[buffer(4)]],
    constant int& count [[buffer(5)]],
    uint position [[thread_position_in_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]]) {
  Lane<N> lane(position, thread_in_simdgroup, count);
  int i = lane.i;
  bool inside = i < n;
  a += size_t(lane.matrix) * n * n;
  size_t start = (size_t(lane.matrix) * n + (inside ? i : 0)) * columns;
  float row[N]; // with ones on the diagonal after the last row
  bool finite = true;
  for (int j = 0; j < N; ++j) {
    row[j] = inside && j < n ? float(a[i * n + j]) : float(i == j);
    finite = finite && isfinite(row[j]);
  }
  finite = lane.all(finite);
  int step = N; // in which the lane's row is the pivot
  ushort pivots[N]; // lanes
  for (int k = 0; k < N; ++k) {
    // A NaN is the largest number, so that it reaches the result.
    float size = abs(row[k]);
    size = step < N ? -1 : (isnan(size) ? INFINITY : size);
    int best = i;
    for (int apart = 1; apart < N; apart *= 2) {
      float other = simd_shuffle_xor(size, ushort(apart));
      int place = simd_shuffle_xor(best, ushort(apart));
      bool better = other > size || (other == size && place < best);
      size = better ? other : size;
      best = better ? place : best;
    }
    pivots[k] = best;
    step = i == best ? k : step;
    bool below = step == N;
    float factor = row[k] / lane.from(row[k], best);
    row[k] = below ? factor : row[k];
    for (int j = k + 1; j < N; ++j) {
      float x = lane.from(row[j], best);
      row[j] = below ? row[j] - factor * x : row[j];
    }
  }
  float diagonal = 1;
  for (int k = 0; k < N; ++k) {
    diagonal = step == k ? row[k] : diagonal;
  }
  for (int c = 0; c < columns; ++c) {
    float y = inside ? float(b[start + c]) : 0;
    for (int k = 0; k < N; ++k) {
      float x = lane.from(y, pivots[k]);
      y = step > k ? y - row[k] * x : y;
    }
    float found = 0;
    for (int k = N - 1; k >= 0; --k) {
      float x = lane.from(y / diagonal, pivots[k]);
      y = step < k ? y - row[k] * x : y;
      found = i == k ? x : found;
    }
    if (lane.used && inside) {
      out[start + c] = T(finite ? found : NAN);
    }
  }
}
