// The error function, the normal distribution, and their inverses.
//
// Everything is straight-line code, so that the generated loops are vectorised.
// There are two approximations forward and two back:
//
//   erf(x) / x      for |x| <= 1, a polynomial in x^2
//   erfcx(x)        for x >= 0, which is (x + 3)^-1 times a polynomial in
//                   1 - 6 / (x + 3), a variable between -1 and 1
//   erfinv(y) / y   for |y| <= 3/4, a rational function of y^2 - 9/32
//   erfcinv(p) / s  for p <= 1/4, a rational function of s = sqrt(-log p)
//
// Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2)
// erfc x in 0 <= x < infinity", Math. Comp. 36 (1981), had the idea of the
// second; that of the fourth is in Wichura, "Algorithm AS 241", Appl. Statist.
// 37 (1988). Numbers such as (7.2.3) are equations of https://dlmf.nist.gov.

#pragma once

#include "error_function_coefficients.h"
#include "exp_log.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace detail {

namespace math = mlxgen::math;
using mlxgen::wide;

#ifndef __METAL_VERSION__
/** x^2 - square, where square is x^2 rounded; 0 for large x. */
inline double rest_of_square(double x, double square) {
  // The square of the first half of the bits is exact (Dekker 1971).
  auto bits = std::bit_cast<uint64_t>(x) & 0xfffffffff8000000;
  auto high = std::bit_cast<double>(bits);
  double low = x - high;
  double rest = ((high * high - square) + 2 * high * low) + low * low;
  return choose(x < 60, rest, 0);
}
#endif
#ifdef MLXGEN_TWOFOLD
/** Below the precision of what is made of it. */
inline mlxgen::twofold rest_of_square(mlxgen::twofold, mlxgen::twofold) {
  return 0.0f;
}
#endif

/** exp(c x^2) for x >= 0, where multiplication by c is exact. */
template <typename T>
inline wide<T> exp_of_square(wide<T> x, float c) {
  wide<T> square = x * x;
  wide<T> y = wide_exp<T>(c * square);
  // The result has the error of the exponent as its relative error: for double
  // that of the square counts, up to where the result is 0 or infinite.
  if (sizeof(T) == 8) {
    y = y * (1 + c * rest_of_square(x, square));
  }
  return y;
}

/** erf(x) for |x| <= 1. */
template <typename T>
inline wide<T> small_erf(wide<T> x) {
  return x + x * math::polynomial(MLXGEN_COEFFICIENTS(T, erf_small), x * x);
}

/** erfcx(x) for x >= 0. */
template <typename T>
inline wide<T> positive_erfcx(wide<T> x) {
  wide<T> u = 1 / (x + 3);
  return u * math::polynomial(MLXGEN_COEFFICIENTS(T, erfcx), 1 - 6 * u);
}

/** The x with erf(x) = y and erfc(x) = p, for p <= 1: y = 1 - p. */
template <typename T>
struct Inverse {};

template <>
struct Inverse<float> {
  static wide<float> of(wide<float> y, wide<float> p) {
    // x / y is smooth in w = -log(p), from small y to the end.
    wide<float> w = -wide_log<float>(p);
    wide<float> x = y *
        (math::polynomial(for_float::erfinv_p, w) /
         math::polynomial(for_float::erfinv_q, w));
    return p == 0 ? wide<float>(math::infinity()) : wide<float>(x);
  }
};

#ifndef __METAL_VERSION__
template <>
struct Inverse<double> {
  static double of(double y, double p) {
    double s = math::sqrt(-wide_log<double>(p));
    bool small = p > 0.25;
    double x = small ? y : s;
    double z = small ? y * y - 0.28125 : s;
    double numerator = small ? math::polynomial(for_double::erfinv_small_p, z)
                             : math::polynomial(for_double::erfinv_large_p, z);
    double denominator = small
        ? math::polynomial(for_double::erfinv_small_q, z)
        : math::polynomial(for_double::erfinv_large_q, z);
    x = x * (numerator / denominator);
    return p == 0 ? math::infinity() : x;
  }
};
#endif

} // namespace detail

/** erf(x) (7.2.1). */
template <typename T>
T erf(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W tail = detail::exp_of_square<T>(z, -1) * detail::positive_erfcx<T>(z);
  W large = mlxgen::math::copysign(1 - tail, x);
  return static_cast<T>(choose(z < 1, detail::small_erf<T>(x), large));
}

/** erfc(x) = 1 - erf(x) (7.2.2). */
template <typename T>
T erfc(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W tail = detail::exp_of_square<T>(z, -1) * detail::positive_erfcx<T>(z);
  W large = choose(x < 0, 2 - tail, tail);
  return static_cast<T>(choose(z < 0.5f, 1 - detail::small_erf<T>(x), large));
}

/** erfcx(x) = exp(x^2) erfc(x) (7.2.3). */
template <typename T>
T erfcx(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W y = choose(x == 0, 1.0f, detail::positive_erfcx<T>(z));
  return static_cast<T>(
      choose(x < 0, 2 * detail::exp_of_square<T>(z, 1) - y, y));
}

/**
 * The first or second derivative of erfcx, for order 1 or 2: 2 x erfcx(x) -
 * 2 / sqrt(pi) and 2 erfcx(x) + 2 x erfcx'(x) without their loss of digits.
 */
template <typename T>
T erfcx_derivative(int order, T value) {
  using W = mlxgen::wide<T>;
  using mlxgen::math::polynomial;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W u = 1 / (z + 3);
  W t = 1 - 6 * u;
  W slope = u * u * polynomial(MLXGEN_COEFFICIENTS(T, erfcx_slope), t);
  W curvature =
      u * u * u * polynomial(MLXGEN_COEFFICIENTS(T, erfcx_curvature), t);
  // erfcx(-x) = 2 exp(x^2) - erfcx(x) (7.4.3)
  W growth = 4 * detail::exp_of_square<T>(z, 1);
  W first = choose(x < 0, x * growth + slope, slope);
  W second =
      choose(x < 0, growth + 2 * x * (x * growth) - curvature, curvature);
  return static_cast<T>(order == 1 ? first : second);
}

/** exp(-x^2). */
template <typename T>
T exp_minus_square(T x) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(detail::exp_of_square<T>(mlxgen::math::fabs(W(x)), -1));
}

/** The density of the normal distribution, exp(-x^2 / 2) / sqrt(2 pi). */
template <typename T>
T normal_density(T x) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      MLXGEN_COEFFICIENTS(T, normal_density_at_0)[0] *
      detail::exp_of_square<T>(mlxgen::math::fabs(W(x)), -0.5f));
}

/** The y with erf(y) = x; NaN outside of -1 to 1 (7.17.1). */
template <typename T>
T erfinv(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W y = mlxgen::math::copysign(detail::Inverse<T>::of(z, 1 - z), x);
  return static_cast<T>(y);
}

/** The y with erfc(y) = x; NaN outside of 0 to 2. */
template <typename T>
T erfcinv(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  bool left = x > 1;
  W y = detail::Inverse<T>::of(left ? x - 1 : 1 - x, left ? 2 - x : W(x));
  return static_cast<T>(left ? -y : W(y));
}

/** The cumulative normal distribution, erfc(-x / sqrt(2)) / 2. */
template <typename T>
T ndtr(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W u = MLXGEN_COEFFICIENTS(T, sqrt_half)[0] * x;
  W z = mlxgen::math::fabs(u);
  W tail = 0.5f *
      (detail::exp_of_square<T>(mlxgen::math::fabs(x), -0.5f) *
       detail::positive_erfcx<T>(z));
  W small = 0.5f + 0.5f * detail::small_erf<T>(u);
  return static_cast<T>(choose(z < 0.5f, small, choose(x < 0, tail, 1 - tail)));
}

/** log(ndtr(x)). */
template <typename T>
T log_ndtr(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W y = 0.5f *
      detail::positive_erfcx<T>(MLXGEN_COEFFICIENTS(T, sqrt_half)[0] * z);
  W tail = y * detail::exp_of_square<T>(z, -0.5f);
  // The logarithm of y, or of 1 - tail.
  W log =
      wide_log_of_sum<T>(choose(x < 0, y, 1.0f), choose(x < 0, 0.0f, -tail));
  return static_cast<T>(choose(x < 0, log - 0.5f * (x * x), log));
}

/** The x with ndtr(x) = p; NaN outside of 0 to 1. */
template <typename T>
T ndtri(T value) {
  using W = mlxgen::wide<T>;
  W p = value;
  bool left = p < 0.5f;
  W y = detail::Inverse<T>::of(
      left ? 1 - 2 * p : 2 * p - 1, left ? 2 * p : 2 * (1 - p));
  W x = MLXGEN_COEFFICIENTS(T, sqrt_2)[0] * y;
  return static_cast<T>(left ? -x : W(x));
}

} // namespace special
} // namespace mlxops
