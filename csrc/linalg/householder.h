// Householder's reflections of small matrices, with the signs of LAPACK.

#pragma once

#include "lanes.h"

namespace mlxops::cpu::lanes {

MLXGEN_BEGIN_INLINED

/** a -= v (tau v.T a), for columns from `first` and rows from `top`. `sums` is
 * memory for a row. */
template <typename V>
inline void reflect(
    V* a,
    int columns,
    int top,
    int rows,
    int first,
    const V* v,
    const V& tau,
    V* __restrict sums) {
  for (int j = first; j < columns; ++j) {
    sums[j] = v[top] * a[int64_t(top) * columns + j];
  }
  for (int i = top + 1; i < rows; ++i) {
    const V factor = v[i];
    const V* row = a + int64_t(i) * columns;
    for (int j = first; j < columns; ++j) {
      sums[j] += factor * row[j];
    }
  }
  for (int j = first; j < columns; ++j) {
    sums[j] *= tau;
  }
  for (int i = top; i < rows; ++i) {
    const V factor = v[i];
    V* row = a + int64_t(i) * columns;
    for (int j = first; j < columns; ++j) {
      row[j] -= factor * sums[j];
    }
  }
}

/**
 * The reflection 1 - tau v v.T that maps x to a multiple of its first element,
 * `alpha`, as LAPACK's larfg: v[first] = 1. It is the identity if the other
 * elements of x are 0. Returns the multiple in alpha.
 */
template <typename T, typename V>
inline void reflection(V* x, int first, int n, V& alpha, V& tau) {
  V zero, one;
  set<T>(zero, T(0));
  set<T>(one, T(1));
  V scale = x[first], sum = zero;
  absolute(scale);
  for (int i = first + 1; i < n; ++i) {
    V size = x[i];
    absolute(size);
    scale = size > scale ? size : scale;
    sum += size;
  }
  const auto flat = sum == zero;
  // Scaled, so that squares are in range and tiny columns stay accurate.
  reciprocal_power<T>(scale);
  const V head = x[first] * scale;
  sum = head * head;
  for (int i = first + 1; i < n; ++i) {
    x[i] *= scale;
    sum += x[i] * x[i];
  }
  square_root<T>(sum);
  V norm = sum;
  // The sign of -0 counts, too.
  T* signs = reinterpret_cast<T*>(&norm);
  const T* heads = reinterpret_cast<const T*>(x + first);
  for (int lane = 0; lane < width<T, V>; ++lane) {
    signs[lane] = -std::copysign(signs[lane], heads[lane]);
  }
  tau = flat ? zero : (norm - head) / norm;
  V divisor = flat ? one : head - norm;
  alpha = flat ? x[first] : norm / scale;
  for (int i = first + 1; i < n; ++i) {
    x[i] /= divisor;
  }
  x[first] = one;
}

MLXGEN_END_INLINED

} // namespace mlxops::cpu::lanes
