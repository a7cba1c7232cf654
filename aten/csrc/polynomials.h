// Orthogonal polynomials by their three-term recurrences, and small functions
// of numbers. Used on every backend.

#pragma once

#include "mlxgen/scalar.h"

namespace mlx_aten {

/**
 * Chebyshev polynomials of a high degree, for T, U, V or W by that of degree 1:
 * p[n] = U[n - 1] p[1] - U[n - 2], with U by doubling its degree.
 */
template <typename W>
W chebyshev(W x, W first, int64_t n) {
  W value = W(1.0f), before = W(0.0f); // U[0] and U[-1]
  for (int64_t bit = int64_t(1) << 62; bit != 0; bit >>= 1) {
    // U[2 k] and U[2 k - 1]
    W twice = (value + before) * (value - before);
    before = W(2.0f) * before * (value - x * before);
    value = twice;
    if (((n - 1) & bit) != 0) {
      W next = W(2.0f) * x * value - before;
      before = value;
      value = next;
    }
  }
  return value * first - before;
}

/**
 * The polynomial of degree n, truncated, at x; 0 for a negative degree, and, as
 * in torch on x86, for one that is no 64-bit integer.
 *
 * The families, with the recurrence for p[k + 1] (DLMF, table 18.9.1):
 * 0 to 3  Chebyshev T, U, V, W: 2 x p[k] - p[k - 1]; they differ in p[1]
 * 4       Hermite H: 2 x p[k] - 2 k p[k - 1]
 * 5       Hermite He: x p[k] - k p[k - 1]
 * 6       Laguerre L: ((2 k + 1 - x) p[k] - k p[k - 1]) / (k + 1)
 * 7       Legendre P: ((2 k + 1) x p[k] - k p[k - 1]) / (k + 1)
 */
template <typename T>
T orthogonal_polynomial(int family, T x, T n) {
  using W = mlxgen::wide<T>;
  if (!(n >= 1)) {
    return static_cast<T>(n > -1 ? 1.0f : 0.0f);
  }
  if (n >= 9223372036854775808.0f) {
    return static_cast<T>(0.0f);
  }
  // Degrees whose values are far beyond the largest number.
  if ((family == 4 || family == 5) && n > (sizeof(T) == 8 ? 512.0f : 128.0f)) {
    return static_cast<T>(mlxgen::math::nan());
  }
  W slope = family == 0 || family == 5 || family == 7 ? W(1.0f) : W(2.0f);
  W first = family == 6 ? W(1.0f) - W(x) : slope * W(x);
  if (family == 2) {
    first = first - W(1.0f);
  } else if (family == 3) {
    first = first + W(1.0f);
  }
  W before = W(1.0f), value = first;
  if (family < 4 && n > 512) {
    return static_cast<T>(chebyshev(W(x), first, static_cast<int64_t>(n)));
  }
  int degree = n < 2147483648.0f ? static_cast<int>(n) : 2147483647;
  for (int k = 1; k < degree && value == value; ++k) {
    W next = W(0.0f), order = W(static_cast<float>(k));
    if (family < 4) {
      next = W(2.0f) * W(x) * value - before;
    } else if (family < 6) {
      next = slope * (W(x) * value - order * before);
    } else {
      W both = order + order + W(1.0f);
      W factor = family == 6 ? both - W(x) : both * W(x);
      next = (factor * value - order * before) / (order + W(1.0f));
    }
    before = value;
    value = next;
  }
  return static_cast<T>(value);
}

/** The value of zeta(x, q), but infinity at its poles, and NaN where its terms
 * are not real or have no sum, as in torch. */
template <typename T>
T zeta_or_pole(T x, T q, T value) {
  bool is_pole = q <= 0 && q == mlxgen::math::floor(q);
  if (x == 1 || (is_pole && !(x < 1))) {
    return static_cast<T>(mlxgen::math::infinity());
  }
  bool has_root = q <= 0 && x != mlxgen::math::floor(x);
  return x < 1 || has_root ? static_cast<T>(mlxgen::math::nan()) : value;
}

/** x * y, and 0 where x is 0, also if y is infinite. */
template <typename T>
T product_or_zero(T x, T y) {
  return x == 0 ? static_cast<T>(0.0f) : static_cast<T>(x * y);
}

/** The greatest common divisor of the absolute values. */
template <typename T>
T gcd(T a, T b) {
  a = a < 0 ? static_cast<T>(-a) : a;
  b = b < 0 ? static_cast<T>(-b) : b;
  while (b != 0) {
    T rest = static_cast<T>(a % b);
    a = b;
    b = rest;
  }
  return a;
}

} // namespace mlx_aten
