// Common code of the CPU kernels of layers that normalize rows. The cores share
// the rows. A row is computed in the accumulator type, in buffers that stay in
// the cache, so that every array is read and written once.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace rows {

// The number of rows that each row of a weight's gradient sums, before these
// are summed, too. The parts can be computed at the same time, and do not
// depend on the number of threads. The same number as in
// kernels/metal/nn/rows.h.
constexpr int64_t per_sum = 16;

inline int64_t count(const mlxgen::Shape& shape) {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    n *= shape[i];
  }
  return shape.empty() || shape.back() == 0 ? 0 : n;
}

MLXGEN_BEGIN_INLINED

/** to[i] = value(i). */
template <typename A, typename F>
inline void fill(A* __restrict to, int64_t n, F value) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = value(i);
  }
}

/** to[i] = from[i]. */
template <typename T, typename A>
inline void load(const T* from, A* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = mlxgen::widen(from[i]);
  }
}

/**
 * x[i] = value(x[i]), separately from loads and stores, for functions in
 * libmvec: gcc does not vectorize calls in loops over elements of two sizes.
 */
template <typename A, typename F>
inline void apply(A* x, int64_t n, F value) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = value(x[i]);
  }
}

/** to[i] = value(i), rounded to T. */
template <typename T, typename F>
inline void store(T* __restrict to, int64_t n, F value) {
  for (int64_t i = 0; i < n; ++i) {
    mlxgen::narrow(value(i), to[i]);
  }
}

/** to[i] += value(i). */
template <typename A, typename F>
inline void add(A* __restrict to, int64_t n, F value) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] += value(i);
  }
}

/** a[0] b[0] + ... in 16 interleaved sums, which form a vector. */
template <typename A>
inline A dot(const A* a, const A* b, int64_t n) {
  constexpr int lanes = 16;
  A partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) {
      partial[j] += a[i + j] * b[i + j];
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    partial[j] += a[i] * b[i];
  }
  A total = 0;
  for (A p : partial) {
    total += p;
  }
  return total;
}

template <typename A>
inline A sum(const A* a, int64_t n) {
  constexpr int lanes = 16;
  A partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) {
      partial[j] += a[i + j];
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    partial[j] += a[i];
  }
  A total = 0;
  for (A p : partial) {
    total += p;
  }
  return total;
}

/** 1 / sqrt(mean(v^2) + eps). */
template <typename A>
inline A rms_scale(const A* v, int64_t n, double eps) {
  return 1 / std::sqrt(dot(v, v, n) / n + static_cast<A>(eps));
}

/** v = x - mean(x); returns 1 / sqrt(mean(v^2) + eps). */
template <typename T, typename A>
inline A centre(const T* x, A* v, int64_t n, double eps) {
  load(x, v, n);
  A mean = sum(v, n) / n;
  apply(v, n, [=](A value) { return value - mean; });
  return rms_scale(v, n, eps);
}

MLXGEN_END_INLINED

/** An optional weight in the accumulator type; `otherwise` if it is absent. */
template <typename T>
std::vector<accum_t<T>>
weight_of(In<T> weight, int64_t width, accum_t<T> otherwise = 1) {
  std::vector<accum_t<T>> wide(width, otherwise);
  for (int64_t i = 0; weight && i < width; ++i) {
    wide[i] = mlxgen::widen(weight[i]);
  }
  return wide;
}

template <typename F>
MLXGEN_MULTIVERSION void here(F& f, int64_t first, int64_t last) {
  MLXGEN_INLINED_CALL f(first, last);
}

/**
 * Call f(first, last) on all cores for all of `count` items, each of `elements`
 * elements, compiled for several instruction sets.
 */
template <typename F>
void share(int64_t count, int64_t elements, F f) {
  mlxgen::share(count, elements * 8, [&](int64_t first, int64_t last) {
    mlxgen::multiversion([&] { here(f, first, last); });
  });
}

/** Call f(first, last, i) for row i of the sums and the rows that it sums. */
template <typename F>
void share_sums(int64_t count, int64_t elements, F f) {
  int64_t sums = (count + per_sum - 1) / per_sum;
  share(sums, per_sum * elements, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      MLXGEN_INLINED_CALL f(i * per_sum, std::min((i + 1) * per_sum, count), i);
    }
  });
}

} // namespace rows
} // namespace mlxops::cpu
