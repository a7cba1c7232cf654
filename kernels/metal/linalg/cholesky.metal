// Metal kernel of the Cholesky factors of small matrices.

#include <metal_stdlib>

#include "lanes.h"

using namespace metal;

/** A lane per row. */
template <typename T, int N>
[[kernel]] void small_cholesky(
    device const T* a [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant bool& upper [[buffer(2)]],
    constant int& n [[buffer(3)]],
    constant int& count [[buffer(4)]],
    uint position [[thread_position_in_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]]) {
  Lane<N> lane(position, thread_in_simdgroup, count);
  int i = lane.i;
  a += size_t(lane.matrix) * n * n;
  out += size_t(lane.matrix) * n * n;
  float row[N]; // with ones on the diagonal after the last row
  bool positive = true;
  for (int j = 0; j < N; ++j) {
    bool read = i < n && j <= i;
    row[j] = read ? float(a[upper ? j * n + i : i * n + j]) : float(i == j);
    positive = positive && isfinite(row[j]);
  }
  positive = lane.all(positive);
  for (int k = 0; k < N; ++k) {
    float pivot = lane.from(row[k], k);
    positive = positive && pivot > 0;
    float root = sqrt(pivot);
    row[k] = i == k ? root : row[k] / root;
    for (int j = k + 1; j < N; ++j) {
      row[j] -= row[k] * lane.from(row[k], j);
    }
  }
  if (lane.used && i < n) {
    for (int j = 0; j < N; ++j) {
      if (j < n) {
        float x = j <= i ? row[j] : 0;
        out[upper ? j * n + i : i * n + j] = T(positive ? x : NAN);
      }
    }
  }
}
