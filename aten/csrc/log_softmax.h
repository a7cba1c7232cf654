// CPU kernels of logarithms of sums of exponentials along the last axis.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "mlxgen/kernel.h"
#include "mlxgen/simd_math.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** The maximum of a row, and the sum of the exponentials of the differences
 * from it. 16 interleaved maxima and sums are vectorized. */
template <typename T>
void exponentials(const T* row, int64_t n, T& most, T& sum) {
  constexpr int64_t lanes = 16;
  int64_t whole = n / lanes * lanes;
  most = row[0]; // of NaN, the sum is NaN
  T maxima[lanes];
  std::fill_n(maxima, lanes, most);
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      maxima[j] = row[i + j] > maxima[j] ? row[i + j] : maxima[j];
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    maxima[0] = row[i] > maxima[0] ? row[i] : maxima[0];
  }
  for (T part : maxima) {
    most = part > most ? part : most;
  }
  T sums[lanes] = {};
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      sums[j] += mlxgen::math::exp(row[i + j] - most);
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    sums[0] += mlxgen::math::exp(row[i] - most);
  }
  sum = 0;
  for (T part : sums) {
    sum += part;
  }
}

/** log(sum(exp(x))) of each row. */
template <typename T>
void log_sum_rows(In<T> x, Out<T> out) {
  int64_t n = x.dim(-1);
  mlxgen::share(out.size(), 16 * n, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      T most, sum;
      exponentials(x.data + row * n, n, most, sum);
      if (std::fabs(most) == std::numeric_limits<T>::infinity()) {
        for (int64_t i = 0; i < n; ++i) { // infinite, unless one is NaN
          most = std::isnan(x[row * n + i]) ? x[row * n + i] : most;
        }
        out[row] = most;
      } else {
        out[row] = most + std::log(sum);
      }
    }
  });
}

/**
 * x - max - log(sum(exp(x - max))): the logarithm of the sum alone would be
 * rounded as large numbers are.
 */
template <typename T>
void log_softmax_rows(In<T> x, Out<T> out) {
  int64_t n = x.dim(-1);
  int64_t rows = n > 0 ? x.size() / n : 0;
  mlxgen::share(rows, 16 * n, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* from = x.data + row * n;
      T most, sum;
      exponentials(from, n, most, sum);
      T log = std::log(sum);
      for (int64_t i = 0; i < n; ++i) {
        out[row * n + i] = from[i] - most - log;
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
