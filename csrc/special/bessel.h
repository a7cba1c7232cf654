// Bessel functions: modified and ordinary ones of orders 0 and 1.
//
// All of them are straight-line code, so that the generated loops over them are
// vectorized: the best approximation of a power series near 0, the expansion
// for large arguments, and a selection at the end.
//
//   I  a polynomial in x^2, for x <= 8, or 5 in float; then e^x / sqrt(x) and
//      one in 1/x
//   K  polynomials in x^2 and log(x), for x <= 1; then e^-x / sqrt(x) and a
//      rational function of 1/x
//   J  polynomials in x^2 with the zero factored out, for x < 3; then modulus
//   Y  and phase, rational functions of 1/x^2
//
// Modulus and phase follow Harrison, "Fast and accurate Bessel function
// computation" (2009): zeros are points where the phase and the argument,
// reduced exactly, add up to a multiple of pi, so that nothing cancels there.
// Numbers such as (10.18.4) are equations of the Digital Library of
// Mathematical Functions, https://dlmf.nist.gov.
//
// For a result in float, I is computed in float. Roots are taken of x, not of
// 1/x, which can underflow on Metal.

#pragma once

#include "bessel_coefficients.h"
#include "exp_log.h"
#include "in_float.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

///////////////////////////////////////////////////////////////////////////////
// I and K
///////////////////////////////////////////////////////////////////////////////

namespace bessel_detail {

namespace math = mlxgen::math;
using mlxgen::wide;

/** I_0(x), or e^-|x| I_0(x). */
template <bool scaled>
inline float modified_i0(float x) {
  float z = math::fabs(x);
  bool small = z <= 5;
  // I is infinite long before 95.
  float end = !scaled && z > 95 ? 95.0f : z;
  float far = small ? 5.0f : end;
  float near = math::polynomial(in_float::i0_small, z * z);
  float factor =
      math::polynomial(in_float::i0_large, 1 / far) / math::sqrt(far);
  if (scaled) {
    near = in_float::exp(-(small ? z : 0), near);
    return small ? near : factor;
  }
  float large = in_float::exp(far, factor); // (10.40.1)
  return small ? near : large;
}

/** I_1(x), or e^-|x| I_1(x). */
template <bool scaled>
inline float modified_i1(float x) {
  float z = math::fabs(x);
  bool small = z <= 5;
  // I is infinite long before 95.
  float end = !scaled && z > 95 ? 95.0f : z;
  float far = small ? 5.0f : end;
  float near = x * math::polynomial(in_float::i1_small, z * z);
  float factor =
      math::polynomial(in_float::i1_large, 1 / far) / math::sqrt(far);
  if (scaled) {
    near = in_float::exp(-(small ? z : 0), near);
    return small ? near : math::copysign(factor, x);
  }
  float large = in_float::exp(far, factor); // (10.40.1)
  return small ? near : math::copysign(large, x);
}

#ifndef __METAL_VERSION__

template <bool scaled>
inline double modified_i0(double x) {
  double z = math::fabs(x);
  bool small = z <= 8;
  double u = 1 / (small ? 8 : z);
  double near = math::polynomial(for_double::i0_small, z * z);
  double far = math::polynomial(for_double::i0_large, u) / math::sqrt(z);
  if (scaled) {
    return small ? near * wide_exp<double>(-z) : far;
  }
  // (10.40.1); in two halves, because e^z overflows before the result does.
  double root = wide_exp<double>(0.5f * z);
  double product = root == math::infinity() ? root : far * root * root;
  return small ? near : product;
}

template <bool scaled>
inline double modified_i1(double x) {
  double z = math::fabs(x);
  bool small = z <= 8;
  double u = 1 / (small ? 8 : z);
  double near = x * math::polynomial(for_double::i1_small, z * z);
  double far = math::polynomial(for_double::i1_large, u) / math::sqrt(z);
  if (scaled) {
    return small ? near * wide_exp<double>(-z) : math::copysign(far, x);
  }
  // (10.40.1); in two halves, because e^z overflows before the result does.
  double root = wide_exp<double>(0.5f * z);
  double product = root == math::infinity() ? root : far * root * root;
  return small ? near : math::copysign(product, x);
}

#endif

/** K_0(x), or e^x K_0(x). */
template <typename T, bool scaled>
inline wide<T> modified_k0(wide<T> x) {
  using W = wide<T>;
  bool small = x <= 1;
  W w = x * x;
  W u = 1 / (small ? W(1) : W(x));
  // (10.31.2)
  W near = math::polynomial(MLXGEN_COEFFICIENTS(T, k0_small), w) -
      wide_log<T>(small ? W(x) : W(1)) *
          math::polynomial(MLXGEN_COEFFICIENTS(T, i0_unit), w);
  // (10.40.2)
  W far = math::polynomial(MLXGEN_COEFFICIENTS(T, k0_large_p), u) /
      (math::polynomial(MLXGEN_COEFFICIENTS(T, k0_large_q), u) * math::sqrt(x));
  // In two halves, because e^-x underflows in steps near the underflow of the
  // result.
  W root =
      wide_exp<T>(small ? (scaled ? W(x) : W(0)) : (scaled ? W(0) : -0.5f * x));
  W result = small ? (scaled ? near * root : W(near)) : far * root * root;
  return x < 0 ? W(math::nan()) : W(result);
}

/** K_1(x), or e^x K_1(x). */
template <typename T, bool scaled>
inline wide<T> modified_k1(wide<T> x) {
  using W = wide<T>;
  bool small = x <= 1;
  W w = x * x;
  W u = 1 / (small ? W(1) : W(x));
  // (10.31.1)
  W logarithm = wide_log<T>(small ? W(x) : W(1)) *
      math::polynomial(MLXGEN_COEFFICIENTS(T, i1_unit), w);
  W near = 1 / x +
      x * (logarithm + math::polynomial(MLXGEN_COEFFICIENTS(T, k1_small), w));
  W far = math::polynomial(MLXGEN_COEFFICIENTS(T, k1_large_p), u) /
      (math::polynomial(MLXGEN_COEFFICIENTS(T, k1_large_q), u) * math::sqrt(x));
  W root =
      wide_exp<T>(small ? (scaled ? W(x) : W(0)) : (scaled ? W(0) : -0.5f * x));
  W result = small ? (scaled ? near * root : W(near)) : far * root * root;
  result = x == 0 ? W(math::infinity()) : W(result);
  return x < 0 ? W(math::nan()) : W(result);
}

} // namespace bessel_detail

/** The modified Bessel function I_0(x). */
template <typename T>
T i0(T x) {
  return bessel_detail::modified_i0<false>(x);
}

/** e^-|x| I_0(x). */
template <typename T>
T i0e(T x) {
  return bessel_detail::modified_i0<true>(x);
}

/** The modified Bessel function I_1(x). */
template <typename T>
T i1(T x) {
  return bessel_detail::modified_i1<false>(x);
}

/** e^-|x| I_1(x). */
template <typename T>
T i1e(T x) {
  return bessel_detail::modified_i1<true>(x);
}

/** The modified Bessel function K_0(x); infinite at 0, NaN below. */
template <typename T>
T k0(T x) {
  return static_cast<T>(bessel_detail::modified_k0<T, false>(x));
}

/** e^x K_0(x). */
template <typename T>
T k0e(T x) {
  return static_cast<T>(bessel_detail::modified_k0<T, true>(x));
}

/** The modified Bessel function K_1(x); infinite at 0, NaN below. */
template <typename T>
T k1(T x) {
  return static_cast<T>(bessel_detail::modified_k1<T, false>(x));
}

/** e^x K_1(x). */
template <typename T>
T k1e(T x) {
  return static_cast<T>(bessel_detail::modified_k1<T, true>(x));
}

///////////////////////////////////////////////////////////////////////////////
// J and Y
///////////////////////////////////////////////////////////////////////////////

namespace bessel_detail {

// x / pi + offset for x >= 3, reduced: the nearest integer is subtracted, and
// `sign` is -1 if it was odd, else 1. The remainder is as accurate as its type
// allows, even if it is small.
//
// The products of x and 24 binary digits of 1/pi are exact, in parts; multiples
// of 2 are dropped from each part. The multiples of a fixed unit in it are
// summed exactly, and the rest separately. Payne and Hanek, "Radian reduction
// for trigonometric functions" (1983).

#ifdef MLXGEN_TWOFOLD

/** Adds part, modulo 2, to units + rest. */
inline void add_turns(
    float part,
    MLXGEN_OUT(float) units,
    MLXGEN_OUT(mlxgen::twofold) rest) {
  part -= 2 * mlxgen::native::rint(0.5f * part);
  float rounded = (part + 12.0f) - 12.0f; // to a multiple of 2^-20
  units += rounded;
  rest = rest + (part - rounded);
}

inline mlxgen::twofold
half_turns(mlxgen::twofold argument, float offset, MLXGEN_OUT(float) sign) {
  float x = argument.hi;
  auto bits = mlxgen::bits_of(x);
  int exponent = static_cast<int>(bits >> 23 & 255u) - 127;
  int skip = exponent < 0 ? 0 : exponent / 24;
  auto moved = static_cast<decltype(bits)>(24 * (skip - 1)) << 23;
  float power = mlxgen::float_of(bits - moved);
  float units = 0;
  mlxgen::twofold rest(0.0f);
  for (int i = 0; i < 5; ++i) {
    power *= 5.9604644775390625e-8f; // 2^-24
    mlxgen::twofold product =
        mlxgen::product_of(power, for_float::words[skip + i].hi);
    add_turns(product.hi, units, rest);
    add_turns(product.lo, units, rest);
  }
  float whole = mlxgen::native::rint(units + offset);
  float halved = 0.5f * whole;
  sign = mlxgen::native::rint(halved) == halved ? 1.0f : -1.0f;
  return rest + ((units - whole) + offset);
}

template <typename T>
inline mlxgen::twofold chosen(bool c, mlxgen::twofold x, mlxgen::twofold y) {
  return c ? x : y;
}

template <typename T>
inline mlxgen::twofold
half_turns(mlxgen::twofold x, float offset, MLXGEN_OUT(mlxgen::twofold) sign) {
  float float_sign;
  mlxgen::twofold y = half_turns(x, offset, float_sign);
  sign = mlxgen::twofold(float_sign);
  return y;
}

#endif

#ifndef __METAL_VERSION__

/**
 * c ? x : y by bits. For the operator, gcc moves the computation of y into a
 * branch, and does not vectorize a loop if that contains a table lookup.
 */
template <typename T>
inline double chosen(bool c, double x, double y) {
  uint64_t mask = uint64_t{0} - static_cast<uint64_t>(c);
  return std::bit_cast<double>(
      (std::bit_cast<uint64_t>(x) & mask) |
      (std::bit_cast<uint64_t>(y) & ~mask));
}

inline void add_turns(double part, double& units, double& rest) {
  part -= 2 * math::rint(0.5 * part);
  double rounded = (part + 0x1.8p5) - 0x1.8p5; // to a multiple of 2^-47
  units += rounded;
  rest += part - rounded;
}

template <typename T>
inline double half_turns(double x, double offset, double& sign) {
  // x in two parts, so that products with 24 to 26 bits are exact. A float
  // needs no split.
  constexpr bool split = sizeof(T) == sizeof(double);
  auto bits = std::bit_cast<uint64_t>(x);
  auto top = [](uint64_t b) {
    return std::bit_cast<double>(split ? b >> 27 << 27 : b);
  };

  // As long as 1/pi in three parts is sufficient.
  using for_double::reciprocal_pi;
  bool is_near = x < 0x1p30;
  double high = top(bits);
  double low = x - high;
  double nearest = math::rint(x * reciprocal_pi[0] + offset);
  double near =
      ((high * reciprocal_pi[0] - nearest) + offset) + low * reciprocal_pi[0];
  near +=
      high * reciprocal_pi[1] + (low * reciprocal_pi[1] + x * reciprocal_pi[2]);

  uint64_t exponent = bits >> 52 & 2047;
  constexpr uint64_t first = 1023 + 29;
  uint64_t above = exponent < first ? 0 : exponent - first;
  uint64_t skip = above * 2731 >> 16; // above / 24
  uint64_t scaled = bits - (24 * skip << 52) + (uint64_t{24} << 52);
  high = top(scaled);
  low = std::bit_cast<double>(scaled) - high;
  double units = 0;
  double rest = 0;
  double power = 1;
  for (int i = 0; i < 6; ++i) {
    power *= 0x1p-24;
    double word = power * for_double::words[skip + i];
    add_turns(high * word, units, rest);
    if (split) {
      add_turns(low * word, units, rest);
    }
  }
  double whole = math::rint(units + offset);
  double far = ((units - whole) + offset) + rest;

  whole = chosen<T>(is_near, nearest, whole);
  sign = 1 - 2 * (whole - 2 * math::floor(0.5 * whole));
  return chosen<T>(is_near, near, far);
}

#endif

/**
 * modulus sin(pi (x / pi + offset + phase)) for x >= 3; modulus and phase are
 * already divided by sqrt(x) and x.
 */
template <typename T>
inline wide<T> wave(wide<T> x, float offset, wide<T> modulus, wide<T> phase) {
  wide<T> sign;
  wide<T> turns = half_turns<T>(x, offset, sign);
  wide<T> y = sign * modulus * math::sinpi(turns + phase);
  return chosen<T>(x == math::infinity(), wide<T>(0), y);
}

/** J_0(x) for 0 <= x < 3. */
template <typename T>
inline wide<T> small_j0(wide<T> x) {
  using W = wide<T>;
  W zero = MLXGEN_COEFFICIENTS(T, j0_zero)[0];
  W rest = MLXGEN_COEFFICIENTS(T, j0_zero)[1];
  return ((x - zero) - rest) * (x + (zero + rest)) *
      math::polynomial(MLXGEN_COEFFICIENTS(T, j0_small), x * x);
}

/** J_1(x) for 0 <= x < 3. */
template <typename T>
inline wide<T> small_j1(wide<T> x) {
  return x * math::polynomial(MLXGEN_COEFFICIENTS(T, j1_small), x * x);
}

/** log(x / zero), also accurate near the zero; less = x - zero. */
template <typename W>
inline W log_ratio(W x, W less, W zero, W log_zero) {
  // Near the zero, add the quotient's rounding error; else subtract log(zero).
  bool close = x > 0.5f * zero;
  W quotient = x / zero;
  W error = (less - (quotient - 1) * zero) / zero;
  return math::log(close ? W(quotient) : W(x)) + (close ? W(error) : -log_zero);
}

/** J_0(x), or Y_0(x) with offset -1/4, for x >= 3. */
template <typename T>
inline wide<T> large_0(wide<T> x, float offset) {
  using W = wide<T>;
  W u = 1 / x;
  W w = u * u;
  // (10.18.4), (10.18.17), (10.18.18)
  W modulus = math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_0_p), w) /
      (math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_0_q), w) *
       math::sqrt(x));
  W phase = math::polynomial(MLXGEN_COEFFICIENTS(T, phase_0_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, phase_0_q), w);
  return wave<T>(x, offset, modulus, phase * u);
}

/** J_1(x) with offset -1/4, or Y_1(x) with -3/4, for x >= 3. */
template <typename T>
inline wide<T> large_1(wide<T> x, float offset) {
  using W = wide<T>;
  W u = 1 / x;
  W w = u * u;
  W modulus = math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_1_p), w) /
      (math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_1_q), w) *
       math::sqrt(x));
  W phase = math::polynomial(MLXGEN_COEFFICIENTS(T, phase_1_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, phase_1_q), w);
  return wave<T>(x, offset, modulus, phase * u);
}

} // namespace bessel_detail

/** The Bessel function J_0(x). */
template <typename T>
T j0(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = math::fabs(W(value));
  bool small = x < 3;
  W near = small_j0<T>(x);
  W far = large_0<T>(x, 0.25f);
  return static_cast<T>(chosen<T>(small, near, far));
}

/** The Bessel function J_1(x). */
template <typename T>
T j1(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = math::fabs(W(value));
  bool small = x < 3;
  W near = small_j1<T>(x);
  W far = large_1<T>(x, -0.25f);
  W y = chosen<T>(small, near, far);
  y = value < 0 ? -y : W(y);
  return value == 0 ? value : static_cast<T>(y);
}

/** J_1(x) / x. */
template <typename T>
T j1_over_x(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = math::fabs(W(value));
  W near = math::polynomial(MLXGEN_COEFFICIENTS(T, j1_small), x * x);
  W far = large_1<T>(x, -0.25f) / x;
  return static_cast<T>(chosen<T>(x < 3, near, far));
}

/** J_2(x) / x^2. */
template <typename T>
T j2_over_square(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = math::fabs(W(value));
  // (10.2.2), and (10.6.1)
  W square = 0.25f * x * x;
  W sum(1.0f);
  MLXOPS_UNROLL
  for (int k = 14; k > 0; --k) {
    sum = 1 - square * sum / (k * (k + 2));
  }
  W far = (2 / x * large_1<T>(x, -0.25f) - large_0<T>(x, 0.25f)) / x / x;
  return static_cast<T>(chosen<T>(x < 3, 0.125f * sum, far));
}

/** J_n(x) / x^n for n >= 1. */
template <typename T>
T bessel_ratio(int n, T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = math::fabs(W(value));
  if (x < 3 || x < n) {
    // (10.2.2)
    W term(1.0f);
    for (int k = 1; k <= n; ++k) {
      term = term * (W(0.5f) / k);
    }
    W sum = term;
    W square = 0.25f * x * x;
    for (int k = 1; k < 100; ++k) {
      term = term * (-square / (k * (k + n)));
      W next = sum + term;
      if (next == sum) {
        break;
      }
      sum = next;
    }
    return static_cast<T>(sum);
  }
  // (10.6.1)
  W before = large_0<T>(x, 0.25f);
  W here = large_1<T>(x, -0.25f);
  for (int k = 1; k < n; ++k) {
    W next = 2 * k / x * here - before;
    before = here;
    here = next;
  }
  for (int k = 1; k <= n; ++k) {
    here = here / x;
  }
  return static_cast<T>(here);
}

/** The Bessel function Y_0(x); -inf at 0, NaN below. */
template <typename T>
T y0(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = value;
  bool small = x < 3;
  W zero = MLXGEN_COEFFICIENTS(T, y0_zero)[0];
  W rest = MLXGEN_COEFFICIENTS(T, y0_zero)[1];
  W less = (x - zero) - rest;
  zero = zero + rest;
  W log_zero = MLXGEN_COEFFICIENTS(T, log_y0_zero)[0];
  // (10.8.2) less its value at the zero
  W logarithm = W(MLXGEN_COEFFICIENTS(T, two_over_pi)[0]) *
      log_ratio(x, less, zero, log_zero);
  W near = logarithm * small_j0<T>(x) +
      less * (x + zero) *
          math::polynomial(MLXGEN_COEFFICIENTS(T, y0_small), x * x);
  W far = large_0<T>(x, -0.25f);
  W y = chosen<T>(small, near, far);
  return static_cast<T>(x < 0 ? W(math::nan()) : W(y));
}

/** The Bessel function Y_1(x); -inf at 0, NaN below. */
template <typename T>
T y1(T value) {
  using namespace bessel_detail;
  using W = wide<T>;
  W x = value;
  bool small = x < 3;
  W zero = MLXGEN_COEFFICIENTS(T, y1_zero)[0];
  W rest = MLXGEN_COEFFICIENTS(T, y1_zero)[1];
  W less = (x - zero) - rest;
  zero = zero + rest;
  W log_zero = MLXGEN_COEFFICIENTS(T, log_y1_zero)[0];
  // (10.8.1) less its value at the zero
  W logarithm = W(MLXGEN_COEFFICIENTS(T, two_over_pi)[0]) *
      log_ratio(x, less, zero, log_zero);
  W near = logarithm * small_j1<T>(x) +
      less * (x + zero) *
          math::polynomial(MLXGEN_COEFFICIENTS(T, y1_small), x * x) / x;
  W far = large_1<T>(x, -0.75f);
  W y = chosen<T>(small, near, far);
  y = x == 0 ? W(-math::infinity()) : W(y);
  return static_cast<T>(x < 0 ? W(math::nan()) : W(y));
}

} // namespace special
} // namespace mlxops
