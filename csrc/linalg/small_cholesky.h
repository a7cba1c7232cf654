// CPU kernel of the Cholesky factors of small matrices.

#pragma once

#include "lanes.h"

namespace mlxops::cpu {

namespace lanes {

MLXGEN_BEGIN_INLINED

/**
 * x = powers of 2 to multiply factors of matrices of the size of x with. Return
 * true if one of them is not 1. Products of tiny numbers lose digits; those of
 * large ones do not overflow.
 */
template <typename T, typename V>
inline bool find_root(V& x) {
  T* at = reinterpret_cast<T*>(&x);
  bool needed = false;
  for (int lane = 0; lane < width<T, V>; ++lane) {
    const int size = exponent_of(at[lane]);
    const bool tiny = size < -bias<T> / 3;
    needed |= tiny;
    at[lane] = power_of_two<T>(tiny ? -size / 2 : 0);
  }
  return needed;
}

MLXGEN_END_INLINED

template <typename T>
struct Cholesky {
  const T* from;
  T* to;
  int n;
  bool upper;

  template <typename V>
  void operator()(int64_t first, int64_t count) const {
    alignas(vector_bytes) V a[most * most], column[most];
    V bad, root, pivot, one;
    set<T>(bad, T(0));
    set<T>(one, T(1));
    root = bad;
    const int64_t size = int64_t(n) * n;
    // The lower triangle, or the upper one as if it were the lower one.
    const int64_t row = upper ? 1 : n;
    const int64_t step = upper ? n : 1;
    load<T>(from + first * size, count, size, row, step, n, n, a);
    for (int i = 0; i < n; ++i) {
      survey<T>(a + i * n, i + 1, root, bad);
    }
    const bool scaled = find_root<T>(root);
    for (int i = 0; i < n * n && scaled; ++i) {
      a[i] *= root * root;
    }
    for (int k = 0; k < n; ++k) {
      pivot = a[k * n + k];
      bad = pivot > 0 ? bad : bad + std::numeric_limits<T>::quiet_NaN();
      square_root<T>(pivot);
      a[k * n + k] = pivot;
      pivot = one / pivot;
      for (int i = k + 1; i < n; ++i) {
        a[i * n + k] *= pivot;
        column[i] = a[i * n + k];
      }
      for (int i = k + 1; i < n; ++i) {
        const V factor = column[i];
        V* at = a + i * n;
        for (int j = k + 1; j <= i; ++j) {
          at[j] -= factor * column[j];
        }
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        V number = scaled ? a[i * n + j] / root : a[i * n + j];
        a[i * n + j] = j <= i ? number + bad : bad;
      }
    }
    store<T>(a, count, size, row, step, n, n, to + first * size);
  }
};

} // namespace lanes

/** Lower factors, or their transposes; NaN if not positive definite. */
template <typename T>
void small_cholesky(In<T> a, bool upper, Out<T> out) {
  int n = static_cast<int>(a.dim(-1));
  if (a.size() == 0) {
    return;
  }
  lanes::Cholesky<T> kernel{a.data, out.data, n, upper};
  lanes::share<T>(a.size() / (n * n), n * n * (n / 3 + 4), kernel);
}

} // namespace mlxops::cpu
