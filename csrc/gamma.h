// CPU kernels of the gamma function's logarithm and its derivatives.
//
// lgamma, digamma and trigamma are straight-line code, so that the generated
// loops over them are vectorised: every alternative is computed, then one is
// chosen. They have three ranges for z = |x|,
//
//   z < 1        one step of the recurrence, up to 1 <= z < 2
//   1 <= z < 6   a rational function, with the zeros of the result factored out
//   6 <= z       the asymptotic (Stirling) expansion, a polynomial in 1/z^2
//
// and negative x follow by reflection. Numbers such as (5.5.3) are equations of
// the Digital Library of Mathematical Functions, https://dlmf.nist.gov.
//
// Results in float are computed in double, with shorter approximations. That is
// the only way to be accurate near the zeros on the negative axis, and they are
// the floats nearest to the exact values but for one in some thousands.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gamma_coefficients.h"
#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

namespace math = mlxgen::math;

namespace gamma_detail {

template <typename T>
using Coefficients =
    std::conditional_t<std::is_same_v<T, float>, HalfPrecision, FullPrecision>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Where the asymptotic expansions begin; they are fitted for it.
constexpr double large_z = 6;

/** c[0] + c[1] x + c[2] x^2 + ... */
template <size_t N>
inline double polynomial(const double (&c)[N], double x) {
  double y = c[N - 1];
  for (size_t i = N - 1; i > 0; --i) {
    y = y * x + c[i - 1];
  }
  return y;
}

/**
 * log x for x >= 0 and NaN. The C library's has no vector variant on most
 * systems, and where it has one the call costs more than this.
 */
template <typename C>
inline double log(double x) {
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2), from the bits of x: k is how many
  // exponents x is above sqrt(1/2). 1023 more makes it positive for the shift.
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  constexpr uint64_t one = uint64_t{1023} << 52;
  bool tiny = x < 0x1p-1000;
  auto bits = std::bit_cast<uint64_t>(tiny ? x * 0x1p200 : x);
  uint64_t exponent = (bits - sqrt_half + one) >> 52;
  auto m = std::bit_cast<double>(bits - (exponent << 52) + one);
  // To double, through the last bits of 2^52: there is no instruction for
  // 64-bit integers before AVX-512.
  constexpr double two_52 = 0x1p52;
  auto k = std::bit_cast<double>(std::bit_cast<uint64_t>(two_52) | exponent);
  k -= two_52 + (tiny ? 1023 + 200 : 1023);

  // With g = m - 1 and f = g / (g + 2), log m = 2 f + f^3 polynomial(f^2)
  // (4.6.6), where 2 f = g - f g: the rounding of f then matters little.
  double g = m - 1;
  double f = g / (g + 2);
  double z = f * f;
  double half = 0.5 * g * g;
  double rest = f * (half + z * polynomial(C::logarithm, z));
  double y = k * C::log_2 + (g - (half - (rest + k * C::log_2_low)));
  y = x < infinity ? y : x;
  return x == 0 ? -infinity : y;
}

} // namespace gamma_detail

/**
 * log |Gamma(x)|. Infinite at the poles x = 0, -1, -2, ...; -inf at -inf, as
 * scipy.special.gammaln has it.
 */
template <typename T>
T lgamma(T value) {
  using namespace gamma_detail;
  using C = Coefficients<T>;
  double x = value;
  double z = math::fabs(x);
  bool small = z < 1;
  bool large = z >= large_z;
  bool negative = x < 0;

  // Gamma(1 + z) = z Gamma(z) (5.5.1): below 1, the rational function gives
  // log Gamma(1 + z), and log z is subtracted at the end. log Gamma is zero at
  // 1 and 2; the factors t - 1 and t - 2 are exact where they matter.
  double t = small ? z + 1 : z;
  double zeros = (small ? z : z - 1) * (small ? z - 1 : z - 2);
  double numerator = zeros * polynomial(C::lgamma_middle_p, t);
  double denominator = polynomial(C::lgamma_middle_q, t);
  // One division serves both ranges.
  double quotient = (large ? 1 : numerator) / (large ? z : denominator);

  // (5.11.1)
  double asymptotic = (z - 0.5) * (log<C>(z) - 1) +
      (C::lgamma_constant +
       quotient * polynomial(C::lgamma_large, quotient * quotient));
  double body = large ? asymptotic : quotient;

  // log Gamma(-z) = -log(z |sin(pi z)| / pi) - log Gamma(z) (5.5.3). Below 1,
  // z and the subtracted log z cancel.
  double r = z - math::rint(z);
  double sine = math::fabs(r * polynomial(C::sine, r * r));
  double positive_factor = small ? z : 1;
  double negative_factor = small ? sine : z * sine;
  double log_factor = log<C>(negative ? negative_factor : positive_factor);

  double result = (negative ? -body : body) - log_factor;
  result = negative && r == 0 ? infinity : result;
  result = x == -infinity ? x : result;
  return static_cast<T>(result);
}

/**
 * psi(x), the derivative of log Gamma(x). -inf at 0, inf at -0, NaN at the
 * other poles and at -inf.
 */
template <typename T>
T digamma(T value) {
  using namespace gamma_detail;
  using C = Coefficients<T>;
  double x = value;
  double z = math::fabs(x);
  bool small = z < 1;
  bool large = z >= large_z;
  bool negative = x < 0;

  // psi(1 + z), or psi(z) where z >= 1.
  double t = small ? z + 1 : z;
  double zero = (t - C::digamma_root) - C::digamma_root_low;
  double numerator = zero * polynomial(C::digamma_middle_p, t);
  double denominator = polynomial(C::digamma_middle_q, t);
  double quotient = (large ? 1 : numerator) / (large ? z : denominator);

  // (5.11.2)
  double w = quotient * quotient;
  double asymptotic =
      log<C>(z) - (0.5 * quotient + w * polynomial(C::digamma_large, w));
  double body = large ? asymptotic : quotient;

  // psi(z) = psi(1 + z) - 1/z (5.5.2) for small z, and
  // psi(-z) = psi(1 + z) + pi cot(pi z)   (5.5.4)
  //         = psi(z) + 1/z + 1/r - r polynomial(r^2), z = integer + r.
  // The reciprocals share a division.
  double r = z - math::rint(z);
  double positive_numerator = small ? -1 : 0;
  double negative_numerator = small ? 1 : z + r;
  double negative_denominator = small ? r : z * r;
  double poles = (negative ? negative_numerator : positive_numerator) /
      (negative ? negative_denominator : x);
  double rest = r * polynomial(C::cotangent, r * r);

  double result = (body + poles) - (negative ? rest : 0);
  result = negative && r == 0 ? nan : result;
  return static_cast<T>(result);
}

/**
 * psi'(x), the derivative of digamma; positive. Infinite at the poles and, as
 * scipy.special.polygamma has it, at -inf.
 */
template <typename T>
T trigamma(T value) {
  using namespace gamma_detail;
  using C = Coefficients<T>;
  double x = value;
  double z = math::fabs(x);
  bool large = z >= large_z;
  bool negative = x < 0;

  // psi'(z) for large z (5.15.8), else psi'(1 + z) = psi'(z) - 1/z^2 (5.15.5).
  double numerator = polynomial(C::trigamma_middle_p, z);
  double denominator = polynomial(C::trigamma_middle_q, z);
  double quotient = (large ? 1 : numerator) / (large ? z : denominator);
  double w = quotient * quotient;
  double asymptotic =
      quotient + w * (0.5 + quotient * polynomial(C::trigamma_large, w));
  double body = large ? asymptotic : quotient;

  // psi'(-z) = (pi / sin(pi z))^2 - psi'(1 + z) (5.15.6)
  double r = z - math::rint(z);
  double sine = r * polynomial(C::sine, r * r);
  double pole = 1 / (negative ? sine : z);
  pole = pole * pole;
  double positive_result = body + (large ? 0 : pole);
  double negative_result = pole - (body - (large ? w : 0));

  double result = negative ? negative_result : positive_result;
  result = x == -infinity ? infinity : result;
  return static_cast<T>(result);
}

namespace gamma_detail {

/** x^n for n >= 0. */
inline double power(double x, int n) {
  double y = 1;
  for (; n > 0; n >>= 1) {
    y = n & 1 ? y * x : y;
    x *= x;
  }
  return y;
}

/** n! / x^n for x > 0. */
inline double factorial_over_power(int n, double x) {
  // The factors i / x first fall below 1, then exceed it. For a large n the
  // product on the way can leave the range of double though its end does not.
  constexpr double small = 0x1p-800;
  double product = 1;
  int scale = 0;
  for (int i = 1; i <= n; ++i) {
    product *= i / x;
    if (product < small) {
      product /= small;
      ++scale;
    } else if (scale > 0 && product > 1) {
      product *= small;
      --scale;
    }
  }
  for (; scale > 0; --scale) {
    product *= small;
  }
  return product;
}

/** x^s zeta(s, x) = sum over k >= 0 of (x / (x + k))^s, for x > 0, s > 1. */
template <typename C>
double scaled_zeta(int s, double x) {
  // Euler-Maclaurin summation (25.11.5 with further terms): the first terms
  // one by one, then the tail from a on as an integral and corrections.
  double sum = 0;
  double a = x;
  for (int k = 1; a < s + 8; ++k) {
    double term = power(x / a, s);
    sum += term;
    if (term < std::numeric_limits<double>::epsilon() / 4 * sum) {
      return sum;
    }
    a = x + k;
  }
  double tail = a / (s - 1) + 0.5;
  double factor = s / a;
  int j = s;
  for (double b : C::bernoulli) {
    tail += b * factor;
    factor *= (j + 1) / a * ((j + 2) / a);
    j += 2;
  }
  return sum + power(x / a, s) * tail;
}

} // namespace gamma_detail

/**
 * The n-th derivative of digamma, for any n >= 0:
 * (-1)^(n+1) n! zeta(n + 1, x) for n >= 1 (5.15.1), with scipy's values at
 * poles: infinite, and positive for odd n, negative for even n.
 */
template <typename T>
T polygamma(int n, T value) {
  using namespace gamma_detail;
  using C = Coefficients<T>;
  if (n == 0) {
    return digamma(value);
  }
  if (n == 1) {
    return trigamma(value);
  }
  double x = value;
  int s = n + 1;
  double sign = n % 2 == 0 ? -1 : 1;
  if (x > 0) {
    if (x == infinity) {
      return static_cast<T>(sign * 0);
    }
    double sum = scaled_zeta<C>(s, x) / x;
    return static_cast<T>(sign * factorial_over_power(n, x) * sum);
  }
  // The sum over k >= 0 of (x + k)^-s runs through the negative numbers first.
  // With x + m = f the number next to 0, it is f^-s, and zeta(s, 1 + f), and m
  // terms more, zeta(s, 1 - f) - zeta(s, 1 - x) with the sign of (-1)^s. All
  // are computed relative to |f|^-s, the largest.
  double m = std::rint(x);
  double f = x - m;
  double size = std::fabs(f);
  if (f == 0 || x == -infinity) {
    return static_cast<T>(sign * infinity);
  }
  auto zeta = [&](double y) {
    return power(size / y, s) * scaled_zeta<C>(s, y);
  };
  double between = m == 0 ? 0 : zeta(1 - f) - zeta(1 - x);
  bool even = s % 2 == 0;
  double sum = (f < 0 && !even ? -1 : 1) + zeta(1 + f);
  sum += even ? between : -between;
  return static_cast<T>(sign * factorial_over_power(n, size) * (sum / size));
}

} // namespace mlxops::cpu
