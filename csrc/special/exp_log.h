// exp, expm1, log and log1p for the scalar functions of this folder, in forms
// that a loop can be vectorised over on every system: straight-line code, with
// no call. The C library's have vector variants on some systems only.
//
//   wide_exp<T>(x)    x and the result are wide<T>, with the precision that a
//                     result in T needs
//
// Where wide<T> is twofold they are those of mlxgen/scalar.h. Numbers such as
// (4.6.1) are equations of https://dlmf.nist.gov.

#pragma once

#include "exp_log_coefficients.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

#ifndef __METAL_VERSION__

/**
 * c ? x : y. gcc makes a branch of that where x is a constant from which much
 * follows, and a loop with branches is not vectorised.
 */
inline double choose(bool c, double x, double y) {
  uint64_t mask = -static_cast<uint64_t>(c);
  return std::bit_cast<double>(
      (std::bit_cast<uint64_t>(x) & mask) |
      (std::bit_cast<uint64_t>(y) & ~mask));
}

namespace detail {

// The sum with it has the integer nearest to a number in its last bits.
inline constexpr double to_integer = 0x1.8p52;

/** 2^k for an integer k, |k| <= 1022. */
inline double two_to_the(double k) {
  auto bits = std::bit_cast<uint64_t>(k + to_integer);
  return std::bit_cast<double>((bits << 52) + std::bit_cast<uint64_t>(1.0));
}

/** x 2^k for an integer k, |k| <= 1200, as far as results of type T reach. */
template <typename T>
inline double scaled(double x, double k) {
  if (sizeof(T) == 4) {
    return x * two_to_the(k);
  }
  // In two steps, since the result may be subnormal.
  double half = (0.5 * k + to_integer) - to_integer;
  return x * two_to_the(half) * two_to_the(k - half);
}

/** From where on exp(x) is infinite in T, and exp(-x) is 0. */
template <typename T>
inline constexpr double exp_end = sizeof(T) == 4 ? 700 : 800;

/** The integer k nearest to x / log 2, and exp(x - k log 2) - 1. */
template <typename T>
inline double expm1_without_powers(double x, double& k) {
  const auto& log_2 = MLXGEN_COEFFICIENTS(T, log_2_parts);
  k = (x * MLXGEN_COEFFICIENTS(T, log_2_reciprocal)[0] + to_integer) -
      to_integer;
  double r = (x - k * log_2[0]) - k * log_2[1];
  return r * mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, exp_series), r);
}

/** log(x) + more for x > 0, where |more| is small beside x. */
template <typename T>
inline double log_and_more(double x, double more) {
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2), from the bits of x: k is how many
  // exponents x is above sqrt(1/2). 1023 more makes it positive for the shift.
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  constexpr uint64_t one = uint64_t{1023} << 52;
  bool tiny = sizeof(T) == 8 && x < 0x1p-1000;
  auto bits = std::bit_cast<uint64_t>(choose(tiny, x * 0x1p200, x));
  uint64_t exponent = (bits - sqrt_half + one) >> 52;
  auto m = std::bit_cast<double>(bits - (exponent << 52) + one);
  // To double, through the last bits of 2^52: there is no instruction for
  // 64-bit integers before AVX-512.
  constexpr double two_52 = 0x1p52;
  auto k = std::bit_cast<double>(std::bit_cast<uint64_t>(two_52) | exponent);
  k -= choose(tiny, two_52 + 1023 + 200, two_52 + 1023);

  // log(1 + g) by a polynomial (4.6.1): a rational function would need fewer
  // terms, but a division takes longer than those.
  const auto& log_2 = MLXGEN_COEFFICIENTS(T, log_2_parts);
  double g = m - 1;
  double series =
      mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, log_series), g);
  return k * log_2[0] + (g + (g * g * series + (k * log_2[1] + more)));
}

} // namespace detail

template <typename T>
inline double wide_exp(double x) {
  double k;
  double y = 1 + detail::expm1_without_powers<T>(x, k);
  y = detail::scaled<T>(y, k);
  y = choose(x > detail::exp_end<T>, mlxgen::math::infinity(), y);
  return choose(x < -detail::exp_end<T>, 0, y);
}

template <typename T>
inline double wide_expm1(double x) {
  double k;
  double y = detail::expm1_without_powers<T>(x, k);
  // 2^k (1 + y) - 1
  double unit = k > 60 ? 0 : detail::two_to_the(-k);
  double whole = detail::scaled<T>(y + (1 - unit), k);
  y = k == 0 ? y : whole;
  y = choose(x > detail::exp_end<T>, mlxgen::math::infinity(), y);
  y = choose(x < -50, -1, y);
  return x == 0 ? x : y;
}

/** The logarithm y as found for x, unless x is 0, infinite, negative or NaN. */
inline double checked_log(double x, double y) {
  y = choose(x < mlxgen::math::infinity(), y, x);
  y = choose(x == 0, -mlxgen::math::infinity(), y);
  return choose(x < 0, mlxgen::math::nan(), y);
}

template <typename T>
inline double wide_log(double x) {
  return checked_log(x, detail::log_and_more<T>(x, 0));
}

/** log(x + y), where what the sum loses by rounding counts: |x| >= |y|. */
template <typename T>
inline double wide_log_of_sum(double x, double y) {
  double sum = x + y;
  double rest = y - (sum - x);
  return checked_log(sum, detail::log_and_more<T>(sum, rest / sum));
}

template <typename T>
inline double wide_log1p(double x) {
  bool small = x < 1;
  double y = wide_log_of_sum<T>(small ? 1 : x, small ? x : 1);
  return x == 0 ? x : y;
}

#endif

#ifdef MLXGEN_TWOFOLD

inline mlxgen::twofold choose(bool c, mlxgen::twofold x, mlxgen::twofold y) {
  return c ? x : y;
}

template <typename T>
inline mlxgen::twofold wide_exp(mlxgen::twofold x) {
  return mlxgen::math::exp(x);
}

template <typename T>
inline mlxgen::twofold wide_expm1(mlxgen::twofold x) {
  return mlxgen::math::expm1(x);
}

template <typename T>
inline mlxgen::twofold wide_log(mlxgen::twofold x) {
  return mlxgen::math::log(x);
}

template <typename T>
inline mlxgen::twofold wide_log_of_sum(mlxgen::twofold x, mlxgen::twofold y) {
  mlxgen::twofold log_1 =
      y == 0 ? mlxgen::twofold(0.0f) : mlxgen::math::log1p(y);
  return x == 1 ? log_1 : mlxgen::math::log(x + y);
}

template <typename T>
inline mlxgen::twofold wide_log1p(mlxgen::twofold x) {
  return mlxgen::math::log1p(x);
}

#endif

} // namespace special
} // namespace mlxops
