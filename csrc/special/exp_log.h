// exp, expm1, log, log1p and powers for the scalar functions of this folder, in
// a form that vectorizes on every system: straight-line code without calls. The
// C library's functions have vector variants on some systems only, and take
// twice the time.
//
//   wide_exp<T>(x)    x and the result are wide<T>, with the precision that a
//                     result in T needs
//   power_in_parts<T>(x, y, shift)
//                     exp(y log x + shift), which may be out of range
//
// If wide<T> is twofold, they are the functions of mlxgen/scalar.h. Numbers
// such as (4.6.1) are equations of https://dlmf.nist.gov.

#pragma once

#include "exp_log_coefficients.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

/** x 2^exponent, where x is near 1 and the product may be out of range. */
template <typename W>
struct Scaled {
  W x;
  W exponent;
};

#ifndef __METAL_VERSION__

/**
 * c ? x : y. If x is a constant with many consequences, gcc compiles the
 * operator to a branch, and a loop with branches is not vectorized.
 */
inline double choose(bool c, double x, double y) {
  uint64_t mask = -static_cast<uint64_t>(c);
  return std::bit_cast<double>(
      (std::bit_cast<uint64_t>(x) & mask) |
      (std::bit_cast<uint64_t>(y) & ~mask));
}

namespace detail {

// The last bits of a sum with it are the integer nearest to the number.
inline constexpr double to_integer = 0x1.8p52;

/** 2^k for an integer k, |k| <= 1022. */
inline double two_to_the(double k) {
  auto bits = std::bit_cast<uint64_t>(k + to_integer);
  return std::bit_cast<double>((bits << 52) + std::bit_cast<uint64_t>(1.0));
}

/** x 2^k for an integer k, |k| <= 1200, within the range of results of type T.
 */
template <typename T>
inline double scaled(double x, double k) {
  if (sizeof(T) == 4) {
    return x * two_to_the(k);
  }
  // In two steps, because the result may be subnormal.
  double half = (0.5 * k + to_integer) - to_integer;
  return x * two_to_the(half) * two_to_the(k - half);
}

/** The x from which on exp(x) is infinite in T, and exp(-x) is 0. */
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

/** exp(x + low) for |x| <= 1e6, and |low| much smaller than |x|. */
template <typename T>
inline Scaled<double> exp_in_parts(double x, double low) {
  const auto& log_2 = MLXGEN_COEFFICIENTS(T, log_2_parts);
  double k = mlxgen::math::rint(
      (x + low) * MLXGEN_COEFFICIENTS(T, log_2_reciprocal)[0]);
  double r = (x - k * log_2[0]) - k * log_2[1] + low;
  double y =
      r * mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, exp_series), r);
  return {1 + y, k};
}

/**
 * The mantissa of x > 0, from sqrt(1/2) to sqrt(2), and its exponent. `normal`
 * omits what subnormal numbers need.
 */
template <typename T, bool normal = false>
inline Scaled<double> split(double x) {
  // From the bits of x: the number of exponents from sqrt(1/2) to x. 1023 is
  // added to make it positive for the shift.
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  constexpr uint64_t one = uint64_t{1023} << 52;
  bool tiny = !normal && sizeof(T) == 8 && x < 0x1p-1000;
  auto bits = std::bit_cast<uint64_t>(tiny ? x * 0x1p200 : x);
  uint64_t exponent = (bits - sqrt_half + one) >> 52;
  auto m = std::bit_cast<double>(bits - (exponent << 52) + one);
  // Conversion to double through the last bits of 2^52: before AVX-512 there is
  // no instruction for 64-bit integers.
  constexpr double two_52 = 0x1p52;
  auto k = std::bit_cast<double>(std::bit_cast<uint64_t>(two_52) | exponent);
  return {m, k - (two_52 + (tiny ? 1023 + 200 : 1023))};
}

/** Double's log(1 + g) - g for a mantissa 1 + g. */
inline double log_tail(double g) {
  // (4.6.6): with f = g / (g + 2) the logarithm is 2 f + f^3 polynomial(f^2),
  // where 2 f = g - f g, so that the rounding error of f has little effect.
  double f = g / (g + 2);
  double z = f * f;
  double square = 0.5 * g * g;
  double rest = z * mlxgen::math::polynomial(for_double::log_series, z);
  return f * (square + rest) - square;
}

/** log(x) + more for x > 0, where |more| is small compared with x. */
template <typename T>
inline double log_and_more(double x, double more) {
  const auto& log_2 = MLXGEN_COEFFICIENTS(T, log_2_parts);
  Scaled<double> s = split<T>(x);
  double k = s.exponent;
  double g = s.x - 1;
  double tail;
  if constexpr (sizeof(T) == 4) {
    // (4.6.1) has more terms, but no division.
    tail = g * g * mlxgen::math::polynomial(for_float::log_series, g);
  } else {
    tail = log_tail(g);
  }
  return k * log_2[0] + (g + (tail + (k * log_2[1] + more)));
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

/**
 * (exp(x) - 1) / divisor, which may be finite where exp(x) is not; NaN if both
 * are infinite. The divisor is at least 2^-1024.
 */
template <typename T>
inline double wide_expm1_over(double x, double divisor) {
  double k;
  double y = detail::expm1_without_powers<T>(x, k);
  double unit = k > 60 ? 0 : detail::two_to_the(-k);
  bool low = x < -50;
  // A division at the end would take 3 % of the time of boxcox.
  double reciprocal = 1 / divisor;
  y = choose(low, -1, y + (1 - unit)) * reciprocal;
  y = detail::scaled<T>(y, choose(low, 0, k));
  double infinity = mlxgen::math::infinity();
  double end = mlxgen::math::copysign(infinity, divisor);
  // From 2^2048 on, a quotient of doubles is infinite.
  bool high = x > (sizeof(T) == 4 ? detail::exp_end<T> : 1419);
  return choose(high, end + 0 * divisor, y);
}

/** Select the logarithm y of x, unless x is 0, infinite, negative or NaN. */
inline double checked_log(double x, double y) {
  y = choose(x < mlxgen::math::infinity(), y, x);
  y = choose(x == 0, -mlxgen::math::infinity(), y);
  return choose(x < 0, mlxgen::math::nan(), y);
}

template <typename T>
inline double wide_log(double x) {
  return checked_log(x, detail::log_and_more<T>(x, 0));
}

/**
 * log(x) for 0 < x < infinity, else some number or NaN. For results in float
 * that are differences of logarithms: accurate to double, while wide_log has
 * ten digits.
 */
template <typename T>
inline double fine_log(double x) {
  if constexpr (sizeof(T) == 4) {
    const auto& log_2 = for_double::log_2_parts;
    Scaled<double> s = detail::split<T>(x);
    double g = s.x - 1;
    return s.exponent * (log_2[0] + log_2[1]) + (g + detail::log_tail(g));
  } else {
    return detail::log_and_more<T>(x, 0);
  }
}

/** log(x + y) including the rounding error of the sum: |x| >= |y|. */
template <typename T>
inline double wide_log_of_sum(double x, double y) {
  double sum = x + y;
  double rest = y - (sum - x);
  return checked_log(sum, detail::log_and_more<T>(sum, rest / sum));
}

/**
 * log(1 - exp(x)) for x <= 0: Maechler, "Accurately computing log(1 -
 * exp(-|a|))" (2012).
 */
template <typename T>
inline double wide_log1mexp(double x) {
  double k;
  double y = detail::expm1_without_powers<T>(x, k);
  double power = detail::scaled<T>(1 + y, k);
  power = x < -detail::exp_end<T> ? 0 : power;
  // From -log(2) / 2 on, the logarithm of -expm1(x).
  bool near = k == 0;
  double sum = choose(near, -y, 1 - power);
  // The rounding error of the difference matters if it is near 1.
  double rest = choose(near, 0, (1 - sum) - power);
  double log = detail::log_and_more<T>(sum, rest);
  double end = choose(x == 0, -mlxgen::math::infinity(), mlxgen::math::nan());
  return choose(x < 0, log, end);
}

namespace detail {

/** log(one + x) - less log 2, where `one` is 1, or 0 for x >= 1. */
template <typename T>
inline double log_of_one_and(double x, double one, double less) {
  bool small = x < one;
  double first = small ? one : x;
  double second = small ? x : one;
  double sum = first + second;
  double rest = second - (sum - first);
  // 1 + x is 0 or above 2^-54.
  Scaled<double> s = split<T, true>(sum);
  double k = s.exponent - less;
  double g = s.x - 1;
  double tail;
  double more;
  const auto& log_2 = MLXGEN_COEFFICIENTS(T, log_2_parts);
  if constexpr (sizeof(T) == 4) {
    tail = g * g * mlxgen::math::polynomial(for_float::log_series, g);
    // Divided by the sum it differs by less than the rounding error of x, and
    // for x >= 1 it is below the precision of the logarithm.
    more = choose(small, rest, 0);
  } else {
    tail = log_tail(g);
    more = rest / sum;
  }
  double y = k * log_2[0] + (g + (tail + (k * log_2[1] + more)));
  return checked_log(sum, y);
}

} // namespace detail

template <typename T>
inline double wide_log1p(double x) {
  double y = detail::log_of_one_and<T>(x, 1, 0);
  return x == 0 ? x : y;
}

/** log(1 + x y), also if x y is out of range. */
template <typename T>
inline double wide_log1p_of_product(double x, double y) {
  double product = x * y;
  if constexpr (sizeof(T) == 4) {
    return wide_log1p<T>(product);
  }
  bool large = product == mlxgen::math::infinity();
  product = choose(large, (x * 0x1p-512) * (y * 0x1p-512), product);
  return detail::log_of_one_and<T>(
      product, choose(large, 0, 1), choose(large, -1024, 0));
}

/** The number that was scaled; the exponent of a moderate one is below 2000. */
template <bool moderate = false>
inline double unscaled(Scaled<double> y) {
  double n = y.exponent;
  if (!moderate) {
    n = choose(n > 2040, 2040, choose(n < -2040, -2040, n));
  }
  double part = mlxgen::math::rint(n * 0.5);
  return y.x * detail::two_to_the(part) * detail::two_to_the(n - part);
}

/** x^-y for x >= 1 and y >= 0; below 1e-299 it is 0. */
template <typename T>
inline double reciprocal_power(double x, double y) {
  double exponent = -y * detail::log_and_more<T>(x, 0);
  bool tiny = exponent < -690;
  Scaled<double> e = detail::exp_in_parts<T>(tiny ? -690 : exponent, 0);
  return tiny ? 0 : e.x * detail::two_to_the(e.exponent);
}

/**
 * exp(y log x + shift) for x > 0 and any y, to some ulp for any size of the
 * exponent; NaN if an argument is NaN. `moderate` omits the checks; it requires
 * y, y log x and the shift to be below 1e4.
 */
template <typename T, bool moderate = false>
inline Scaled<double> power_in_parts(double x, double y, double shift) {
  if (!moderate) {
    y = choose(y > 1e290, 1e290, choose(y < -1e290, -1e290, y));
  }
  if constexpr (sizeof(T) == 4) {
    double e = y * fine_log<T>(x) + shift;
    if (!moderate) {
      e = choose(e > 1e9, 1e9, choose(e < -1e9, -1e9, e));
    }
    double k;
    double z = 1 + detail::expm1_without_powers<T>(e, k);
    return {z, k};
  } else {
    // log x = k log 2 + high + low. high and the upper part of y have 26 bits,
    // so that their product is exact, as is the product with k.
    Scaled<double> s = detail::split<T>(x);
    double k = s.exponent;
    double g = s.x - 1;
    double tail = detail::log_tail(g);
    constexpr double grid = 0x1.8p26; // rounds a sum with it to 2^-26
    double high = (g + tail + grid) - grid;
    double low = (g - high) + tail;
    double part = y * 134217729; // 2^27 + 1
    double y_high = part - (part - y);
    double y_low = y - y_high;

    double whole = mlxgen::math::rint(y * k);
    double fraction = (y_high * k - whole) + y_low * k;
    double product = y_high * high;
    double sum = product + shift;
    double back = sum - product;
    double lost = (product - (sum - back)) + (shift - back);
    const auto& log_2 = for_double::log_2_parts;
    lost += fraction * (log_2[0] + log_2[1]) + (y_low * high + y * low);
    if (!moderate) {
      // For such exponents the power is 0 or infinite, and the remainder is no
      // longer smaller than the sum.
      bool large = mlxgen::math::fabs(sum) > 1e6;
      sum = choose(large, mlxgen::math::copysign(1e6, sum), sum);
      lost = choose(large, 0, lost);
    }
    Scaled<double> e = detail::exp_in_parts<T>(sum, lost);
    return {e.x, e.exponent + whole};
  }
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
inline mlxgen::twofold wide_expm1_over(
    mlxgen::twofold x,
    mlxgen::twofold divisor) {
  if (x > 80.0f) {
    mlxgen::twofold root = mlxgen::math::exp(0.5f * x);
    return root / divisor * root;
  }
  return mlxgen::math::expm1(x) / divisor;
}

template <typename T>
inline mlxgen::twofold wide_log(mlxgen::twofold x) {
  return mlxgen::math::log(x);
}

template <typename T>
inline mlxgen::twofold fine_log(mlxgen::twofold x) {
  return mlxgen::math::log(x);
}

template <typename T>
inline mlxgen::twofold wide_log_of_sum(mlxgen::twofold x, mlxgen::twofold y) {
  mlxgen::twofold log_1 =
      y == 0 ? mlxgen::twofold(0.0f) : mlxgen::math::log1p(y);
  return x == 1 ? mlxgen::twofold(log_1) : mlxgen::math::log(x + y);
}

template <typename T>
inline mlxgen::twofold wide_log1mexp(mlxgen::twofold x) {
  mlxgen::twofold near = -mlxgen::math::expm1(x);
  near = x > -1e-18f ? -x : mlxgen::twofold(near);
  mlxgen::twofold power = mlxgen::math::exp(x);
  return x > -0.6875f ? mlxgen::math::log(near)
                      : wide_log_of_sum<T>(mlxgen::twofold(1.0f), -power);
}

template <typename T>
inline mlxgen::twofold wide_log1p(mlxgen::twofold x) {
  return mlxgen::math::log1p(x);
}

template <typename T>
inline mlxgen::twofold wide_log1p_of_product(
    mlxgen::twofold x,
    mlxgen::twofold y) {
  mlxgen::twofold product = x * y;
  if (product == mlxgen::math::infinity()) {
    constexpr float scale = 5.42101086e-20f; // 2^-64
    return mlxgen::math::log((x * scale) * (y * scale)) +
        128 * mlxgen::twofold(0.693147182f, -1.90465421e-09f);
  }
  return mlxgen::math::log1p(product);
}

template <bool moderate = false>
inline mlxgen::twofold unscaled(Scaled<mlxgen::twofold> y) {
  return mlxgen::math::ldexp(y.x, static_cast<int>(y.exponent));
}

template <typename T>
inline mlxgen::twofold reciprocal_power(mlxgen::twofold x, mlxgen::twofold y) {
  return mlxgen::math::exp(-y * mlxgen::math::log(x));
}

template <typename T, bool moderate = false>
inline Scaled<mlxgen::twofold>
power_in_parts(mlxgen::twofold x, mlxgen::twofold y, mlxgen::twofold shift) {
  mlxgen::twofold e = y * mlxgen::math::log(x) + shift;
  e = e > 1e6f ? mlxgen::twofold(1e6f) : mlxgen::twofold(e);
  e = e < -1e6f ? mlxgen::twofold(-1e6f) : mlxgen::twofold(e);
  float n = mlxgen::native::rint(e.hi * 1.44269502f);
  mlxgen::twofold r = e - n * mlxgen::twofold(0.693147182f, -1.90465421e-09f);
  return Scaled<mlxgen::twofold>{mlxgen::math::exp(r), mlxgen::twofold(n)};
}

#endif

} // namespace special
} // namespace mlxops
