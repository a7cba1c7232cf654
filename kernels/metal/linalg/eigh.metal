// Metal kernel of the eigenvalues and eigenvectors of small symmetric matrices.

#include <metal_stdlib>

#include "lanes.h"

using namespace metal;

/**
 * A lane per column: one-sided Jacobi rotations (Hestenes, "Inversion of
 * matrices by biorthogonalization and related results", 1958), which make the
 * columns of a matrix orthogonal. For a positive definite matrix, these are
 * multiples of the eigenvectors. The matrix here is a / size + 2, whose
 * eigenvalues are between 1 and 3; `size` is the largest sum of a column's
 * absolute values. In step r, column j is rotated with column j ^ r.
 */
template <typename T, int N>
[[kernel]] void small_eigh(
    device const T* a [[buffer(0)]],
    device T* w [[buffer(1)]],
    device T* v [[buffer(2)]],
    constant int& n [[buffer(3)]],
    constant int& count [[buffer(4)]],
    uint position [[thread_position_in_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]]) {
  constexpr float limit = 2.4e-7f; // 2 eps, for cosines of columns
  Lane<N> lane(position, thread_in_simdgroup, count);
  int j = lane.i;
  bool inside = j < n;
  a += size_t(lane.matrix) * n * n;
  w += size_t(lane.matrix) * n;
  v += size_t(lane.matrix) * n * n;
  float own[N];
  float size = 0;
  for (int i = 0; i < N; ++i) {
    bool read = inside && i < n;
    own[i] = read ? float(a[i >= j ? i * n + j : j * n + i]) : 0;
    size += abs(own[i]);
  }
  float sum = size; // NaN or infinite if a number is
  for (int apart = 1; apart < N; apart *= 2) {
    size = max(size, simd_shuffle_xor(size, ushort(apart)));
    sum += simd_shuffle_xor(sum, ushort(apart));
  }
  bool finite = isfinite(sum);
  size = finite && size > 0 ? size : 1;
  for (int i = 0; i < N; ++i) {
    own[i] = finite ? own[i] / size + (inside && i == j ? 2 : 0) : 0;
  }
  bool rotated = true;
  for (int sweep = 0; sweep < 15 && simd_any(rotated); ++sweep) {
    rotated = false;
    for (int r = 1; r < N; ++r) {
      float other[N];
      float square = 0, product = 0;
      for (int i = 0; i < N; ++i) {
        other[i] = simd_shuffle_xor(own[i], ushort(r));
        square += own[i] * own[i];
        product += own[i] * other[i];
      }
      float difference = simd_shuffle_xor(square, ushort(r)) - square;
      float both = sqrt(square) * sqrt(difference + square);
      if (abs(product) > limit * both) {
        rotated = true;
        float zeta = difference / (2 * product);
        float sign = zeta == 0 ? (j < (j ^ r) ? 1 : -1) : (zeta > 0 ? 1 : -1);
        float t = sign / (abs(zeta) + sqrt(1 + zeta * zeta));
        float c = 1 / sqrt(1 + t * t);
        for (int i = 0; i < N; ++i) {
          own[i] = c * (own[i] - t * other[i]);
        }
      }
    }
  }
  float square = 0;
  for (int i = 0; i < N; ++i) {
    square += own[i] * own[i];
  }
  float scale = 1 / sqrt(square);
  for (int i = 0; i < N; ++i) {
    own[i] = own[i] * scale;
    if (lane.used && inside && i < n) {
      v[i * n + j] = own[i];
    }
  }
  // The eigenvalue by Rayleigh's quotient. The column is read from memory,
  // since an array in registers needs constant indices.
  float value = 0;
  if (lane.used && inside) {
    for (int i = 0; i < n; ++i) {
      float total = 0;
      for (int k = 0; k < N; ++k) {
        total += k < n ? float(a[i >= k ? i * n + k : k * n + i]) * own[k] : 0;
      }
      value += v[i * n + j] * total;
    }
  }
  int place = 0; // in ascending order
  for (int k = 0; k < N; ++k) {
    float other = lane.from(value, k);
    bool before = other < value || (!(value < other) && k < j);
    place += k < n && before;
  }
  simdgroup_barrier(mem_flags::mem_device);
  if (lane.used && inside) {
    w[place] = T(finite ? value : NAN);
    for (int i = 0; i < N; ++i) {
      if (i < n) {
        v[i * n + place] = T(finite ? own[i] : NAN);
      }
    }
  }
}
