// The exponential function and the logarithm, and powers, for the scalar
// functions of this folder: as straight-line code that a loop is vectorised
// over on every system, and with fewer terms for results in float.
//
// mlxgen::math has the same functions, of which the C library's have vector
// variants on Linux only, and take twice the time. For pairs of floats those of
// mlxgen::math are used.

#pragma once

#include "elementary_coefficients.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace math = mlxgen::math;

// The coefficients for results of type T.
#define MLXOPS_TABLE(name) MLXGEN_COEFFICIENTS(T, name)

// Before a loop that is to be unrolled, as the loop around it is not vectorised
// otherwise.
#if defined(__GNUC__) && !defined(__clang__)
#define MLXOPS_UNROLL _Pragma("GCC unroll 32")
#else
#define MLXOPS_UNROLL
#endif

/** A number x 2^exponent, where x is near 1 and the whole may be out of range.
 */
template <typename W>
struct Scaled {
  W x;
  W exponent;
};

#ifndef __METAL_VERSION__

namespace detail {

/** 2^n for whole n from -1022 to 1023. */
inline double power_of_two(double n) {
  // The last bits of 2^52 + k are those of k: there is no instruction for
  // conversion to 64-bit integers before AVX-512.
  return std::bit_cast<double>(
      std::bit_cast<uint64_t>(n + (0x1p52 + 1023)) << 52);
}

/** The mantissa m of x > 0, sqrt(1/2) <= m < sqrt(2), and the exponent. */
inline Scaled<double> split(double x) {
  // k is how many exponents x is above sqrt(1/2). 1023 more makes it positive
  // for the shift.
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  constexpr uint64_t one = uint64_t{1023} << 52;
  constexpr double two_52 = 0x1p52;
  bool tiny = x < 0x1p-1000;
  auto bits = std::bit_cast<uint64_t>(tiny ? x * 0x1p200 : x);
  uint64_t exponent = (bits - sqrt_half + one) >> 52;
  auto m = std::bit_cast<double>(bits - (exponent << 52) + one);
  auto k = std::bit_cast<double>(std::bit_cast<uint64_t>(two_52) | exponent);
  return {m, k - (two_52 + (tiny ? 1023 + 200 : 1023))};
}

/** The part of log m that is to be subtracted from m - 1. */
template <typename T>
inline double log_remainder(double m) {
  // With g = m - 1 and f = g / (g + 2), log m = 2 f + f^3 polynomial(f^2)
  // (4.6.6), where 2 f = g - f g: the rounding of f then matters little.
  double g = m - 1;
  double f = g / (g + 2);
  double z = f * f;
  double half = 0.5 * g * g;
  return half - f * (half + z * math::polynomial(MLXOPS_TABLE(logarithm), z));
}

/** exp(x + low), for a low much below x. */
template <typename T>
inline Scaled<double> exp_in_parts(double x, double low) {
  // x = n log 2 + r; beyond these bounds every power is 0 or infinite.
  x = x > 800 ? 800 : x < -800 ? -800 : x;
  double n = math::rint((x + low) * MLXOPS_TABLE(inverse_log_2)[0]);
  double r = x - n * MLXOPS_TABLE(log_2)[0];
  r = r - n * MLXOPS_TABLE(log_2)[1] + low;
  r = r > 1 ? 1 : r < -1 ? -1 : r;
  double y = math::polynomial(MLXOPS_TABLE(exponential), r);
  return {1 + (r + r * r * y), n};
}

} // namespace detail

/** The number that was scaled. */
inline double unscaled(Scaled<double> y) {
  double n = y.exponent;
  n = n > 2040 ? 2040 : n < -2040 ? -2040 : n;
  double half = math::rint(n * 0.5);
  return y.x * detail::power_of_two(half) * detail::power_of_two(n - half);
}

template <typename T>
inline double exp(double x) {
  return unscaled(detail::exp_in_parts<T>(x, 0));
}

template <typename T>
inline double log(double x) {
  Scaled<double> s = detail::split(x);
  double k = s.exponent;
  double rest = detail::log_remainder<T>(s.x);
  double y = k * MLXOPS_TABLE(log_2)[0] +
      ((s.x - 1) - (rest - k * MLXOPS_TABLE(log_2)[1]));
  y = x < math::infinity() ? y : x;
  y = x < 0 ? math::nan() : y;
  return x == 0 ? -math::infinity() : y;
}

/** log(1 + x), for finite x > -1. */
template <typename T>
inline double log1p(double x) {
  double u = 1 + x;
  // To first order in what the addition has lost.
  return log<T>(u) + (x - (u - 1)) / u;
}

/** x^-y for x >= 1 and y >= 0; below 1e-299 it is 0. */
template <typename T>
inline double reciprocal_power(double x, double y) {
  Scaled<double> s = detail::split(x);
  double k = s.exponent;
  double rest = detail::log_remainder<T>(s.x);
  double log = k * MLXOPS_TABLE(log_2)[0] +
      ((s.x - 1) - (rest - k * MLXOPS_TABLE(log_2)[1]));
  double exponent = -y * log;
  bool tiny = exponent < -690;
  Scaled<double> e = detail::exp_in_parts<T>(tiny ? -690 : exponent, 0);
  return tiny ? 0 : e.x * detail::power_of_two(e.exponent);
}

/**
 * exp(y log x + shift) for x > 0 and any y, to some units in the last place
 * however large the exponent is; for NaN of anything NaN.
 */
template <typename T>
inline Scaled<double> power_in_parts(double x, double y, double shift) {
  // log x = k log 2 + high + low, where high has 26 bits, and so has the upper
  // part of y: their product is exact, as is that of k.
  Scaled<double> s = detail::split(x);
  double k = s.exponent;
  double g = s.x - 1;
  double rest = detail::log_remainder<T>(s.x);
  constexpr double grid = 0x1.8p26; // what is added to it is rounded to 2^-26
  double high = (g - rest + grid) - grid;
  double low = (g - high) - rest;
  y = y > 1e290 ? 1e290 : y < -1e290 ? -1e290 : y;
  double part = y * 134217729; // 2^27 + 1
  double y_high = part - (part - y);
  double y_low = y - y_high;

  double whole = math::rint(y * k);
  double fraction = (y_high * k - whole) + y_low * k;
  double product = y_high * high;
  double sum = product + shift;
  double back = sum - product;
  double lost = (product - (sum - back)) + (shift - back);
  double log_2 = MLXOPS_TABLE(log_2)[0] + MLXOPS_TABLE(log_2)[1];
  lost += fraction * log_2 + (y_low * high + y * low);
  Scaled<double> e = detail::exp_in_parts<T>(sum, lost);
  return {e.x, e.exponent + whole};
}

#endif

#ifdef MLXGEN_TWOFOLD

inline mlxgen::twofold unscaled(Scaled<mlxgen::twofold> y) {
  return math::ldexp(y.x, static_cast<int>(y.exponent));
}

template <typename T>
inline mlxgen::twofold exp(mlxgen::twofold x) {
  return math::exp(x);
}

template <typename T>
inline mlxgen::twofold log(mlxgen::twofold x) {
  return math::log(x);
}

template <typename T>
inline mlxgen::twofold log1p(mlxgen::twofold x) {
  return math::log1p(x);
}

template <typename T>
inline mlxgen::twofold reciprocal_power(mlxgen::twofold x, mlxgen::twofold y) {
  return math::exp(-y * math::log(x));
}

template <typename T>
inline Scaled<mlxgen::twofold>
power_in_parts(mlxgen::twofold x, mlxgen::twofold y, mlxgen::twofold shift) {
  mlxgen::twofold e = y * math::log(x) + shift;
  e = e > 300 ? mlxgen::twofold(300.0f) : e;
  e = e < -300 ? mlxgen::twofold(-300.0f) : e;
  float n = mlxgen::native::rint(e.hi * 1.44269502f);
  mlxgen::twofold r = e - n * mlxgen::twofold(0.693147182f, -1.90465421e-09f);
  return Scaled<mlxgen::twofold>{math::exp(r), mlxgen::twofold(n)};
}

#endif

} // namespace special
} // namespace mlxops
