// CPU kernel of the QR decompositions of small matrices.

#pragma once

#include <vector>

#include "householder.h"

namespace mlxops::cpu {

namespace lanes {

template <typename T>
struct QrArrays {
  const T* a;
  T* q;
  T* r;
  int m;
  int n;
};

MLXGEN_BEGIN_INLINED

/** The number of V of memory for a matrix. */
inline int64_t memory_of_qr(int64_t m, int64_t n) {
  return (m + 1) * (2 * n + 1);
}

template <typename T, typename V>
inline void
decompose(const QrArrays<T>& arrays, int64_t first, int64_t count, V* memory) {
  const int m = arrays.m, n = arrays.n;
  const int k = std::min(m, n);
  V* a = memory; // m x n, later m x k
  V* vectors = a + int64_t(m) * n; // k x m
  V* tau = vectors + int64_t(k) * m;
  V* sums = tau + k;
  V* scales = sums + n;
  V zero, one, alpha, bad, outside, low, high;
  set<T>(zero, T(0));
  set<T>(one, T(1));
  const int64_t size = int64_t(m) * n;
  load<T>(arrays.a + first * size, count, size, n, 1, m, n, a);
  bad = zero;
  outside = zero;
  set<T>(low, power_of_two<T>(-bias<T> / 3));
  set<T>(high, power_of_two<T>(bias<T> - margin));
  for (int j = 0; j < n; ++j) {
    scales[j] = zero;
  }
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      V number = a[int64_t(i) * n + j];
      absolute(number);
      scales[j] += number; // the sum may overflow
    }
  }
  for (int j = 0; j < n; ++j) {
    bad += scales[j] - scales[j];
    outside += scales[j] < low ? one : zero;
    outside += scales[j] > high ? one : zero;
  }
  const bool scaled = any<T>(outside);
  for (int j = 0; j < n && scaled; ++j) {
    find_scale<T>(scales[j]);
  }
  if (any<T>(bad)) {
    bad = zero;
    find_bad<T>(a, int64_t(m) * n, bad);
  }
  for (int i = 0; i < m && scaled; ++i) {
    for (int j = 0; j < n; ++j) {
      a[int64_t(i) * n + j] *= scales[j];
    }
  }
  for (int step = 0; step < k; ++step) {
    V* v = vectors + int64_t(step) * m;
    for (int i = step; i < m; ++i) {
      v[i] = a[int64_t(i) * n + step];
    }
    reflection<T>(v, step, m, alpha, tau[step]);
    a[int64_t(step) * n + step] = alpha;
    reflect(a, n, step, m, step + 1, v, tau[step], sums);
    for (int i = step + 1; i < m; ++i) {
      a[int64_t(i) * n + step] = zero;
    }
  }
  const bool unknown = any<T>(bad);
  for (int i = 0; i < k && (scaled || unknown); ++i) {
    for (int j = 0; j < n; ++j) {
      V& number = a[int64_t(i) * n + j];
      number = (scaled ? number / scales[j] : number) + bad;
    }
  }
  store<T>(a, count, int64_t(k) * n, n, 1, k, n, arrays.r + first * k * n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < k; ++j) {
      a[int64_t(i) * k + j] = i == j ? one : zero;
    }
  }
  for (int step = k - 1; step >= 0; --step) {
    const V* v = vectors + int64_t(step) * m;
    reflect(a, k, step, m, step, v, tau[step], sums);
  }
  for (int64_t i = 0; i < int64_t(m) * k && unknown; ++i) {
    a[i] += bad;
  }
  store<T>(a, count, int64_t(m) * k, k, 1, m, k, arrays.q + first * m * k);
}

MLXGEN_END_INLINED

template <typename T>
struct Qr {
  QrArrays<T> arrays;

  template <typename V>
  void operator()(int64_t first, int64_t count) const {
    alignas(vector_bytes) V memory[(most + 1) * (2 * most + 1)];
    decompose(arrays, first, count, memory);
  }
};

} // namespace lanes

/**
 * q and r, with the signs of LAPACK. Matrices of more than 32 rows or columns,
 * which a shapeless graph may contain, are computed one at a time.
 */
template <typename T>
void small_qr(In<T> a, Out<T> q, Out<T> r) {
  int m = static_cast<int>(a.dim(-2)), n = static_cast<int>(a.dim(-1));
  if (a.size() == 0) {
    return;
  }
  lanes::QrArrays<T> arrays{a.data, q.data, r.data, m, n};
  const int64_t matrices = a.size() / (int64_t(m) * n);
  const int64_t cost = 4 * int64_t(m) * n * std::min(m, n);
  if (std::max(m, n) <= lanes::most) {
    return lanes::share<T>(matrices, cost, lanes::Qr<T>{arrays});
  }
  mlxgen::share(matrices, cost, [&](int64_t first, int64_t last) {
    std::vector<T> memory(lanes::memory_of_qr(m, n));
    for (; first < last; ++first) {
      lanes::decompose(arrays, first, 1, memory.data());
    }
  });
}

} // namespace mlxops::cpu
