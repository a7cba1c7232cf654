// The error function, the normal distribution, and their inverses.
//
// Everything is straight-line code, so that the generated loops are vectorized.
// In double there are two approximations each for the functions and their
// inverses:
//
//   erf(x) / x      for |x| <= 1, a polynomial in x^2
//   erfcx(x)        for x >= 0, which is (x + 3)^-1 times a polynomial in
//                   1 - 6 / (x + 3), a variable between -1 and 1
//   erfinv(y) / y   for |y| <= 3/4, a rational function of y^2 - 9/32
//   erfcinv(p) / s  for p <= 1/4, a rational function of s = sqrt(-log p)
//
// In float
//
//   erf(x) / x      as above; for larger x, -log(1 - erf(x)) is a polynomial in
//   x erfcx(x)        for x >= 1/2, which is (x + 1/2)^-1 times a polynomial in
//                   (x - 2) / (x + 2); in ndtr the same for x / sqrt(2)
//   erfinv(y) / y   the root of pi / 4 + w - w r(w), with a rational function
//                   of w = -log(1 - y^2); one up to w = 16, one for all w
//
// The last uses the variable of Giles, "Approximating the erfinv function", GPU
// Computing Gems 2 (2012). The second is based on Shepherd and Laframboise,
// "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity",
// Math. Comp. 36 (1981), and the fourth in double on Wichura, "Algorithm AS
// 241", Appl. Statist. 37 (1988). Numbers such as (7.2.3) are equations of
// https://dlmf.nist.gov.

#pragma once

#include "error_function_coefficients.h"
#include "exp_log.h"
#include "in_float.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

///////////////////////////////////////////////////////////////////////////////
// In float
///////////////////////////////////////////////////////////////////////////////

namespace in_float {

/** erf(x) for |x| <= 1. */
inline float small_erf(float x) {
  return x + x * math::polynomial(erf_small, x * x);
}

/** erfcx(x) for x >= 1/2. */
inline float large_erfcx(float x) {
  float end = x > 1e38f ? 1e38f : x;
  float y = math::polynomial(erfcx_large, (end - 2) / (end + 2));
  return y / (x + 0.5f);
}

/** exp(x^2 / 2) ndtr(-x) for x >= 1/2. */
inline float tail_of_ndtr(float x) {
  float end = x > 1e38f ? 1e38f : x;
  float y = math::polynomial(ndtr_tail, (end - 3) / (end + 3));
  return y / (x + 0.75f);
}

/** erfinv(y) / y at w = -log(1 - y^2) <= 16. */
inline float erfinv_ratio(float w) {
  float rest = math::polynomial(erfinv_p, w) / math::polynomial(erfinv_q, w);
  return math::sqrt((quarter_pi[0] + w) - w * rest);
}

/** The same for all w, times the root of `square`, a power of 2. */
inline float erfcinv_ratio(float w, float square) {
  float rest = math::polynomial(erfcinv_p, w) / math::polynomial(erfcinv_q, w);
  float end = square * w;
  return math::sqrt((square * quarter_pi[0] + end) - end * rest);
}

inline float erf_of(float x) {
  float z = math::fabs(x);
  float k;
  // From 4 on it is 1.
  float log_tail = -math::polynomial(erf_large, z > 4 ? 4.0f : z);
  float tail = (1 + expm1_without_powers(log_tail, 0, k)) * two_to_the(k);
  return z < 1 ? small_erf(x) : math::copysign(1 - tail, x);
}

inline float erfc_of(float x) {
  float z = math::fabs(x);
  float end = z > 10.125f ? 10.125f : z; // the result is 0 from here on
  float tail = exp_of_square(end, -1, large_erfcx(end));
  float large = x < 0 ? 2 - tail : tail;
  return z < 0.5f ? 1 - small_erf(x) : large;
}

inline float erfcx_of(float x) {
  float z = math::fabs(x);
  float y = z < 0.5f ? math::polynomial(erfcx_small, z) : large_erfcx(z);
  // 2 exp(x^2) is infinite from 9.5 on.
  return x < 0 ? exp_of_square(z > 9.5f ? 9.5f : z, 1, 2) - y : y;
}

inline float erfinv_of(float x) {
  float z = math::fabs(x);
  // Outside of the domain this is the root of a negative number.
  float y = x * erfinv_ratio(minus_log_of_product(1 - z, 1 + z, 0));
  return z == 1 ? math::copysign(math::infinity(), x) : y;
}

/** The y with erf(y / sqrt(square)) = z, given 1 - z^2 = 2^power p q. */
inline float inverse(float z, float p, float q, int32_t power, float square) {
  float y = z * erfcinv_ratio(minus_log_of_product(p, q, power), square);
  float product = p * q;
  float end = math::copysign(math::infinity(), z);
  float outside = product == 0 ? end : math::nan();
  return product > 0 ? y : outside;
}

inline float erfcinv_of(float x) {
  return inverse(1 - x, x, 2 - x, 0, 1);
}

inline float ndtri_of(float x) {
  return inverse(2 * x - 1, x, 1 - x, 2, 2);
}

inline float ndtr_of(float x) {
  float z = math::fabs(x);
  float end = z > 14.5f ? 14.5f : z; // the result is 0 from here on
  float tail = exp_of_square(end, -0.5f, tail_of_ndtr(end));
  float small = 0.5f + x * math::polynomial(ndtr_small, x * x);
  float large = x < 0 ? tail : 1 - tail;
  return z < 1 ? small : large;
}

inline float log_ndtr_of(float x) {
  float z = math::fabs(x);
  float ratio = tail_of_ndtr(z);
  float left = short_log(ratio, 0) - 0.5f * x * x;
  float tail = exp_of_square(z > 14.5f ? 14.5f : z, -0.5f, ratio);
  float square = tail * tail;
  // Positive 0 if the tail is 0.
  float right = 0 - (tail + square * math::polynomial(log_ndtr_large, tail));
  float y = x < 0 ? left : right;
  return ((x > -1) & (x < 0.5f)) ? math::polynomial(log_ndtr_small, x) : y;
}

/** c g / (2 - g erfcx(z)) with g = exp(-x^2 / 2) and z = |x| / sqrt(2). */
inline float log_ndtr_slope_of(float x) {
  float u = math::fabs(x);
  float z = sqrt_half[0] * u;
  float ratio = z < 0.5f ? math::polynomial(erfcx_small, z) : large_erfcx(z);
  float g = exp_of_square(u > 14.75f ? 14.75f : u, -0.5f, 1);
  return 2 * normal_density_at_0[0] * (x > 0 ? g : 1.0f) /
      (x > 0 ? 2 - g * ratio : ratio);
}

inline float exp_minus_square_of(float x) {
  float z = math::fabs(x);
  return exp_of_square(z > 10.5f ? 10.5f : z, -1, 1);
}

inline float normal_density_of(float x) {
  float z = math::fabs(x);
  float end = z > 14.75f ? 14.75f : z;
  return exp_of_square(end, -0.5f, normal_density_at_0[0]);
}

} // namespace in_float

///////////////////////////////////////////////////////////////////////////////
// In double
///////////////////////////////////////////////////////////////////////////////

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
/** 0, because the rest is below the precision that results need. */
inline mlxgen::twofold rest_of_square(mlxgen::twofold, mlxgen::twofold) {
  return 0.0f;
}
#endif

/** exp(c x^2) for x >= 0, where multiplication by c is exact. */
template <typename T>
inline wide<T> exp_of_square(wide<T> x, float c) {
  wide<T> square = x * x;
  wide<T> y = wide_exp<T>(c * square);
  // The relative error of the result is the error of the exponent. For double
  // the rounding error of the square matters, until the result is 0 or
  // infinite.
  if (sizeof(T) == 8) {
    y = y * (1 + c * rest_of_square(x, square));
  }
  return y;
}

#ifndef __METAL_VERSION__

/** erf(x) for |x| <= 1. */
inline double small_erf(double x) {
  return x + x * math::polynomial(for_double::erf_small, x * x);
}

/** erfcx(x) for x >= 0. */
inline double positive_erfcx(double x) {
  double u = 1 / (x + 3);
  return u * math::polynomial(for_double::erfcx, 1 - 6 * u);
}

/** The x with erf(x) = y and erfc(x) = p, for p <= 1: y = 1 - p. */
inline double inverse(double y, double p) {
  double s = math::sqrt(-wide_log<double>(p));
  bool small = p > 0.25;
  double x = small ? y : s;
  double z = small ? y * y - 0.28125 : s;
  double numerator = small ? math::polynomial(for_double::erfinv_small_p, z)
                           : math::polynomial(for_double::erfinv_large_p, z);
  double denominator = small ? math::polynomial(for_double::erfinv_small_q, z)
                             : math::polynomial(for_double::erfinv_large_q, z);
  x = x * (numerator / denominator);
  return p == 0 ? math::infinity() : x;
}

inline double erf_of(double x) {
  double z = math::fabs(x);
  double tail = exp_of_square<double>(z, -1) * positive_erfcx(z);
  double large = math::copysign(1 - tail, x);
  return choose(z < 1, small_erf(x), large);
}

inline double erfc_of(double x) {
  double z = math::fabs(x);
  double tail = exp_of_square<double>(z, -1) * positive_erfcx(z);
  double large = choose(x < 0, 2 - tail, tail);
  return choose(z < 0.5f, 1 - small_erf(x), large);
}

inline double erfcx_of(double x) {
  double z = math::fabs(x);
  double y = choose(x == 0, 1.0f, positive_erfcx(z));
  return choose(x < 0, 2 * exp_of_square<double>(z, 1) - y, y);
}

inline double erfinv_of(double x) {
  double z = math::fabs(x);
  return math::copysign(inverse(z, 1 - z), x);
}

inline double erfcinv_of(double x) {
  bool left = x > 1;
  double y = inverse(left ? x - 1 : 1 - x, left ? 2 - x : x);
  return left ? -y : y;
}

inline double ndtr_of(double x) {
  double u = for_double::sqrt_half[0] * x;
  double z = math::fabs(u);
  double tail =
      0.5f * (exp_of_square<double>(math::fabs(x), -0.5f) * positive_erfcx(z));
  double small = 0.5f + 0.5f * small_erf(u);
  return choose(z < 0.5f, small, choose(x < 0, tail, 1 - tail));
}

inline double log_ndtr_of(double x) {
  double z = math::fabs(x);
  double y = 0.5f * positive_erfcx(for_double::sqrt_half[0] * z);
  double tail = y * exp_of_square<double>(z, -0.5f);
  // The logarithm of y, or of 1 - tail.
  double log = wide_log_of_sum<double>(
      choose(x < 0, y, 1.0f), choose(x < 0, 0.0f, -tail));
  return choose(x < 0, log - 0.5f * x * x, log);
}

inline double ndtri_of(double p) {
  bool left = p < 0.5f;
  double y = inverse(left ? 1 - 2 * p : 2 * p - 1, left ? 2 * p : 2 * (1 - p));
  double x = for_double::sqrt_2[0] * y;
  return left ? -x : x;
}

inline double log_ndtr_slope_of(double x) {
  double z = math::fabs(x);
  double ratio = positive_erfcx(for_double::sqrt_half[0] * z);
  double g = exp_of_square<double>(z, -0.5f);
  return 2 * for_double::normal_density_at_0[0] * choose(x > 0, g, 1.0f) /
      choose(x > 0, 2 - g * ratio, ratio);
}

/** (x + 3) erfcx(x) for x >= 0, where t = 1 - 6 / (x + 3). */
inline double erfcx_factor(double, double t) {
  return math::polynomial(for_double::erfcx, t);
}

inline double exp_minus_square_of(double x) {
  return exp_of_square<double>(math::fabs(x), -1);
}

inline double normal_density_of(double x) {
  return for_double::normal_density_at_0[0] *
      exp_of_square<double>(math::fabs(x), -0.5f);
}

#endif

#ifdef MLXGEN_TWOFOLD
/** (x + 3) erfcx(x) for x >= 0; from 1e18 on it is constant. */
inline mlxgen::twofold erfcx_factor(mlxgen::twofold x, mlxgen::twofold) {
  float z = x.hi > 1e18f ? 1e18f : x.hi;
  return (z + 3) * in_float::erfcx_of(z);
}
#endif

using in_float::erf_of;
using in_float::erfc_of;
using in_float::erfcinv_of;
using in_float::erfcx_of;
using in_float::erfinv_of;
using in_float::exp_minus_square_of;
using in_float::log_ndtr_of;
using in_float::log_ndtr_slope_of;
using in_float::ndtr_of;
using in_float::ndtri_of;
using in_float::normal_density_of;

} // namespace detail

///////////////////////////////////////////////////////////////////////////////
// In both
///////////////////////////////////////////////////////////////////////////////

/** erf(x) (7.2.1). */
template <typename T>
T erf(T x) {
  return detail::erf_of(x);
}

/** erfc(x) = 1 - erf(x) (7.2.2). */
template <typename T>
T erfc(T x) {
  return detail::erfc_of(x);
}

/** erfcx(x) = exp(x^2) erfc(x) (7.2.3). */
template <typename T>
T erfcx(T x) {
  return detail::erfcx_of(x);
}

/** The y with erf(y) = x; NaN outside of -1 to 1 (7.17.1). */
template <typename T>
T erfinv(T x) {
  return detail::erfinv_of(x);
}

/** The y with erfc(y) = x; NaN outside of 0 to 2. */
template <typename T>
T erfcinv(T x) {
  return detail::erfcinv_of(x);
}

/** The cumulative normal distribution, erfc(-x / sqrt(2)) / 2. */
template <typename T>
T ndtr(T x) {
  return detail::ndtr_of(x);
}

/** log(ndtr(x)). */
template <typename T>
T log_ndtr(T x) {
  return detail::log_ndtr_of(x);
}

/** The x with ndtr(x) = p; NaN outside of 0 to 1. */
template <typename T>
T ndtri(T p) {
  return detail::ndtri_of(p);
}

/**
 * The first or second derivative of erfcx, for order 1 or 2: 2 x erfcx(x) - 2 /
 * sqrt(pi) and 2 erfcx(x) + 2 x erfcx'(x), but without loss of accuracy.
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

/** The derivative of log_ndtr. */
template <typename T>
T log_ndtr_slope(T x) {
  return detail::log_ndtr_slope_of(x);
}

/** The second derivative of log_ndtr. */
template <typename T>
T log_ndtr_curvature(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  // With u = -x / sqrt(2) the derivative is sqrt(2 / pi) / erfcx(u). Its
  // derivative -erfcx'(u) / (sqrt(pi) erfcx(u)^2) is a quotient without powers
  // of u, and for x > 0 nothing cancels in m (-x - m) either.
  W u = mlxgen::math::fabs(x) * W(MLXGEN_COEFFICIENTS(T, sqrt_half)[0]);
  W t = 1 - 6 / (u + 3);
  W ratio = detail::erfcx_factor(u, t);
  W left = mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, erfcx_slope), t) /
      (ratio * ratio);
  W scale = 2 * W(MLXGEN_COEFFICIENTS(T, normal_density_at_0)[0]) *
      W(MLXGEN_COEFFICIENTS(T, sqrt_half)[0]);
  W end = choose(x > 50, 50.0f, x);
  W slope = W(detail::log_ndtr_slope_of(static_cast<T>(end)));
  return static_cast<T>(choose(x > 0, -slope * (end + slope), scale * left));
}

/** exp(-x^2). */
template <typename T>
T exp_minus_square(T x) {
  return detail::exp_minus_square_of(x);
}

/** The density of the normal distribution, exp(-x^2 / 2) / sqrt(2 pi). */
template <typename T>
T normal_density(T x) {
  return detail::normal_density_of(x);
}

/** exp(x^2). */
template <typename T>
T exp_square(T x) {
  return 1 / detail::exp_minus_square_of(x);
}

/** 1 / normal_density(x). */
template <typename T>
T over_normal_density(T x) {
  return 1 / detail::normal_density_of(x);
}

} // namespace special
} // namespace mlxops
