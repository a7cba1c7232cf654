// The gamma function and its relatives: gamma, rgamma, lgamma, digamma,
// polygamma, the zeta functions, the beta functions.
//
// They are straight-line code, so that the generated loops over them are
// vectorized: every alternative is computed, then one is selected. Most have
// three ranges for z = |x|,
//
//   z < 1        one step of the recurrence, up to 1 <= z < 2
//   1 <= z < 6   a rational function, with the zeros of the result factored out
//   6 <= z       the asymptotic (Stirling) expansion, a polynomial in 1/z^2
//
// and negative x follow by reflection. If a function is instantiated for
// `positive` arguments, the compiler removes the code for other arguments; the
// results are the same. Numbers such as (5.5.3) are equations of the Digital
// Library of Mathematical Functions, https://dlmf.nist.gov.
//
// For results in float, lgamma and digamma are computed in float above 0, with
// other ranges:
//
//   lgamma   x < 1, x < 3, 3 <= x    log x and a product in two parts each
//   digamma  x < 1, x < 2, 2 <= x    1 / x in two parts
//
// and below 0 from a logarithm and a rational function without ranges.
//
// Near their zeros on the negative axis, lgamma, digamma and polygamma are
// differences with errors of a few ulp of the terms that cancel; results in
// float are computed from more accurate terms.

#pragma once

#include "exp_log.h"
#include "gamma_coefficients.h"
#include "in_float.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace math = mlxgen::math;

// The coefficients for results of type T.
#define MLXOPS_TABLE(name) MLXGEN_COEFFICIENTS(T, name)

namespace detail {

// The start of the asymptotic expansions, which are fitted for it.
MLXGEN_NUMBER float large_z = 6.0f;
// The |x| from which on the rests of the expansions for negative x are
// negligible.
MLXGEN_NUMBER float rest_end = 1000000.0f;

/** log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2 for large z (5.11.1). */
template <typename T>
inline mlxgen::wide<T> stirling_correction(mlxgen::wide<T> z) {
  mlxgen::wide<T> r = 1 / z;
  return r * math::polynomial(MLXOPS_TABLE(lgamma_large), r * r);
}

/** log Gamma(z) for 0 <= z < 6; if z < 1, log z must be subtracted. */
template <typename T>
inline mlxgen::wide<T> lgamma_middle(mlxgen::wide<T> z) {
  using W = mlxgen::wide<T>;
  // Gamma(1 + z) = z Gamma(z) (5.5.1). log Gamma is zero at 1 and 2; the
  // factors t - 1 and t - 2 are exact near these zeros.
  bool small = z < 1;
  W t = small ? z + 1 : W(z);
  W zeros = (small ? W(z) : z - 1) * (small ? z - 1 : z - 2);
  return zeros *
      (math::polynomial(MLXOPS_TABLE(lgamma_middle_p), t) /
       math::polynomial(MLXOPS_TABLE(lgamma_middle_q), t));
}

/** sin(pi x) / pi, exact at integers. */
template <typename T>
inline mlxgen::wide<T> sine_over_pi(mlxgen::wide<T> x) {
  using W = mlxgen::wide<T>;
  W whole = math::rint(x);
  W r = x - whole;
  W y = r * math::polynomial(MLXOPS_TABLE(sine), r * r);
  W halved = whole * 0.5f;
  return halved == math::rint(halved) ? W(y) : -y;
}

/** value (-1)^(x + y) for integers x and y. */
template <typename W>
inline W signed_by_sum(W value, W x, W y) {
  W half_x = 0.5f * x;
  W half_y = 0.5f * y;
  bool even = (half_x == math::rint(half_x)) == (half_y == math::rint(half_y));
  return choose(even, value, -value);
}

/** sin(pi (x + y)) / pi, also if x + y is rounded; 0 for infinite numbers. */
template <typename T>
inline mlxgen::wide<T> sine_of_sum(mlxgen::wide<T> x, mlxgen::wide<T> y) {
  using W = mlxgen::wide<T>;
  W whole_x = math::rint(x);
  W whole_y = math::rint(y);
  W sine = sine_over_pi<T>((x - whole_x) + (y - whole_y));
  sine = signed_by_sum(sine, whole_x, whole_y);
  return choose(sine == sine, sine, W(0));
}

/** cos(pi (x + y)), also if x + y is rounded. */
template <typename W>
inline W cosine_of_sum(W x, W y) {
  W whole_x = math::rint(x);
  W whole_y = math::rint(y);
  W cosine = math::cospi((x - whole_x) + (y - whole_y));
  return signed_by_sum(cosine, whole_x, whole_y);
}

} // namespace detail

namespace in_float {

// The last addition causes most of an error. In both functions it adds a number
// with a very small error and a smaller number.

/** log Gamma(x) for x > 0. */
inline float positive_lgamma(float x) {
  bool small = x < 1;
  bool large = x >= 3;
  // log Gamma(z) = t (t - 1) / 2 (1 + more), where t = z - 1; if x < 1, log x
  // must be subtracted (5.5.1).
  float z = small ? x + 1 : x;
  float t = small ? x : x - 1;
  float above = math::polynomial(lgamma_middle_p, z);
  float below = math::polynomial(lgamma_middle_q, z);
  float quotient = (large ? 1.0f : above) / (large ? x : below);
  float more = lgamma_slope[0] + (t - 1.25f) * quotient;

  // (5.11.1): (x - 1/2) (log x - 1) and more, where log x - 1 = sum + rest; for
  // small x this is log x.
  float end = x > 1e38f ? 1e38f : x;
  Logarithm log = log_in_parts(small ? x * 16777216.0f : end, small ? 24 : 0);
  float less = log.high - (large ? 1.0f : 0.0f);
  float first = less + log.g; // with an error of (first - less) - log.g
  float second = log.tail - ((first - less) - log.g);
  float sum = first + second;
  float rest = second - (sum - first);
  float correction =
      quotient * math::polynomial(lgamma_large, quotient * quotient);

  // The product x sum or t/2 (t - 1), which is high and low: the product of
  // their leading bits is exact.
  float u = large ? end : 0.5f * t;
  float v = large ? sum : t - 1;
  float high_u = first_bits(u);
  float high_v = first_bits(v);
  float high = high_u * high_v;
  float low = high_u * (v - high_v) + (u - high_u) * v;
  low = low + (large ? (correction - 0.5f * sum) + u * rest : u * (v * more));
  float y = high + ((large ? stirling[0] : 0.0f) + low);
  return small ? (y - rest) - sum : y;
}

/** psi(x) for x >= 0. */
inline float positive_digamma(float x) {
  bool small = x < 1;
  bool large = x >= 2;
  // psi(z) = zero (1 + more), where t = z - 1
  float z = small ? x + 1 : x;
  float t = small ? x : x - 1;
  float high = t - digamma_root[0];
  float zero = high - digamma_root[1];
  float slope = math::polynomial(digamma_middle_p, z) /
      math::polynomial(digamma_middle_q, z);
  float more = digamma_slope[0] + zero * slope;
  float low = zero * more - digamma_root[1];
  // (5.11.2)
  float r = 1 / x;
  float w = r * r;
  Logarithm log = log_in_parts(x, 0);
  float less = 0.5f * r + w * math::polynomial(digamma_large, w);
  float asymptotic = log.high + (log.g + (log.tail - less));
  // psi(x) = psi(1 + x) - 1/x (5.5.2) for small x; 1/x = r + rest
  float high_x = first_bits(x);
  float high_r = first_bits(r);
  float error = 1 - high_x * high_r - high_x * (r - high_r) - (x - high_x) * r;
  float rest = x > 1e-30f ? error * r : 0; // r may be infinite
  float middle = small ? (low + (high - rest)) - r : high + low;
  float y = large ? asymptotic : middle;
  return x == math::infinity() ? x : y;
}

} // namespace in_float

namespace detail {

/** log |Gamma(x)| for x <= 0, for results in float. */
inline mlxgen::wide<float> negative_lgamma(mlxgen::wide<float> x) {
  using W = mlxgen::wide<float>;
  // With z = -x this is log((1 + z) (2 + z)) - log(|sin(pi z)| / pi)
  // - log Gamma(3 + z) (5.5.1, 5.5.3), the last by Stirling's formula for
  // y = z + 5/2 and a rest.
  W z = math::fabs(x);
  W sine = math::fabs(sine_over_pi<float>(z));
  W factors = (z + 1) * (0.5f * z + 1);
  W y = z + 2.5f;
  W end = z > rest_end ? W(rest_end) : W(z);
  W rest = math::polynomial(for_float::lgamma_rest_p, end) /
      math::polynomial(for_float::lgamma_rest_q, end);
  rest = rest + W(for_float::half_log_half_pi[0]);
  W result =
      -fine_log<float>(sine / factors) - (y * (fine_log<float>(y) - 1) + rest);
  result = sine == 0 ? W(math::infinity()) : W(result);
  return x == -math::infinity() ? x : result;
}

template <bool positive>
inline float lgamma_of(float x) {
#ifdef __METAL_VERSION__
  if (x > 0) { // a branch, so that a GPU skips the rest
    return in_float::positive_lgamma(x);
  }
#endif
  float y = in_float::positive_lgamma(x);
  if (positive) {
    return y;
  }
  return x > 0 ? y : static_cast<float>(negative_lgamma(x));
}

#ifndef __METAL_VERSION__
template <bool positive>
inline double lgamma_of(double x) {
  double z = positive ? x : math::fabs(x);
  bool small = z < 1;
  bool large = z >= large_z;
  // stirling_correction and lgamma_middle, with one division for both.
  double t = small ? z + 1 : z;
  double zeros = (small ? z : z - 1) * (small ? z - 1 : z - 2);
  double above = zeros * math::polynomial(for_double::lgamma_middle_p, t);
  double below = math::polynomial(for_double::lgamma_middle_q, t);
  double quotient = (large ? 1 : above) / (large ? z : below);
  double correction = quotient *
      math::polynomial(for_double::lgamma_large, quotient * quotient);
  double rest = for_double::log_2_pi[0] * 0.5 - 0.5 + correction;
  double log_z = fine_log<double>(z);
  double asymptotic = (z - 0.5) * (log_z - 1) + rest;
  double body = large ? asymptotic : quotient;
  double direct = body - (small ? log_z : 0);

  // log Gamma(-z) = -log(z |sin(pi z)| / pi) - log Gamma(z) (5.5.3). Below 1, z
  // and the subtracted log z cancel.
  double sine = math::fabs(sine_over_pi<double>(z));
  double other = -body - fine_log<double>(small ? sine : z * sine);
  other = sine == 0 ? math::infinity() : other;
  other = x == -math::infinity() ? x : other;
  return !positive && x <= 0 ? other : direct;
}
#endif

} // namespace detail

/**
 * log |Gamma(x)|. Infinite at the poles x = 0, -1, -2, ...; -inf at -inf, as
 * scipy.special.gammaln has it.
 */
template <typename T, bool positive = false>
T lgamma(T x) {
  return detail::lgamma_of<positive>(x);
}

namespace detail {

/** psi(x); a negative x is an integer and `past`. */
template <typename T, bool positive = false>
inline mlxgen::wide<T> digamma_past(mlxgen::wide<T> x, mlxgen::wide<T> past) {
  using W = mlxgen::wide<T>;
  W z = positive ? W(x) : math::fabs(x);
  bool small = z < 1;
  bool large = z >= large_z;
  bool negative = !positive && x < 0;

  // psi(1 + z), or psi(z) if z >= 1.
  W t = small ? z + 1 : W(z);
  W zero =
      (t - W(MLXOPS_TABLE(digamma_root)[0])) - W(MLXOPS_TABLE(digamma_root)[1]);
  W numerator = zero * math::polynomial(MLXOPS_TABLE(digamma_middle_p), t);
  W denominator = math::polynomial(MLXOPS_TABLE(digamma_middle_q), t);
  W quotient = (large ? W(1) : W(numerator)) / (large ? z : denominator);

  // (5.11.2)
  W w = quotient * quotient;
  W asymptotic = fine_log<T>(z) -
      (0.5f * quotient + w * math::polynomial(MLXOPS_TABLE(digamma_large), w));
  W body = large ? asymptotic : quotient;

  // psi(z) = psi(1 + z) - 1/z (5.5.2) for small z, and
  // psi(-z) = psi(1 + z) + pi cot(pi z)   (5.5.4)
  //         = psi(z) + 1/z + 1/r - r polynomial(r^2), z = integer + r.
  // The reciprocals share a division.
  W r = -past;
  W positive_numerator = small ? W(-1) : W(0);
  W negative_numerator = small ? W(1) : z + r;
  W negative_denominator = small ? W(r) : z * r;
  W poles = (negative ? negative_numerator : positive_numerator) /
      (negative ? negative_denominator : x);
  W rest = r * math::polynomial(MLXOPS_TABLE(cotangent), r * r);

  W result = (body + poles) - (negative ? W(rest) : W(0));
  result = negative && r == 0 ? W(math::nan()) : W(result);
  return x == math::infinity() ? x : result; // fine_log excludes infinity
}

/** psi(x). */
template <typename T, bool positive = false>
inline mlxgen::wide<T> digamma(mlxgen::wide<T> x) {
  return digamma_past<T, positive>(x, x - math::rint(x));
}

/** psi(x) for x < 0, for results in float. */
inline mlxgen::wide<float> negative_digamma(mlxgen::wide<float> x) {
  using W = mlxgen::wide<float>;
  // With z = -x this is psi(3 + z) - 1/(1 + z) - 1/(2 + z) + pi cot(pi z)
  // (5.5.2, 5.5.4), the last with z = integer + r: 1/r - r polynomial(r^2).
  W z = math::fabs(x);
  W r = z - math::rint(z);
  W factors = (z + 1) * (z + 2);
  W poles = (factors - r * (2 * z + 3)) / (r * factors);
  W end = z > rest_end ? W(rest_end) : W(z);
  W rest = math::polynomial(for_float::digamma_rest_p, end) /
      math::polynomial(for_float::digamma_rest_q, end);
  rest = rest - r * math::polynomial(for_float::cotangent, r * r);
  W result = poles + (fine_log<float>(z + 2.5f) + rest);
  return r == 0 ? W(math::nan()) : W(result);
}

template <bool positive>
inline float digamma_of(float x) {
#ifdef __METAL_VERSION__
  if (x >= 0) {
    return in_float::positive_digamma(x);
  }
#endif
  float y = in_float::positive_digamma(x);
  if (positive) {
    return y;
  }
  return x >= 0 ? y : static_cast<float>(negative_digamma(x));
}

#ifndef __METAL_VERSION__
template <bool positive>
inline double digamma_of(double x) {
  return digamma<double, positive>(x);
}
#endif

} // namespace detail

/**
 * psi(x), the derivative of log Gamma(x). -inf at 0, inf at -0, NaN at the
 * other poles and at -inf.
 */
template <typename T, bool positive = false>
T digamma(T x) {
  return detail::digamma_of<positive>(x);
}

namespace detail {

/** (p(x) - p(y)) / (x - y) for a polynomial p, without a subtraction. */
template <typename W, typename C, int N>
inline W divided_difference(MLXGEN_IN_CONSTANT const C (&c)[N], W x, W y) {
  W value = W(c[N - 1]);
  W slope = 0;
  MLXOPS_UNROLL
  for (int i = N - 2; i >= 0; --i) {
    slope = slope * y + value;
    value = value * x + W(c[i]);
  }
  return slope;
}

/**
 * The sum of 1/(a + k) - 1/(s + k) over k = 1, ..., 5 for order 1, or of the
 * difference of their squares for order 2, divided by (s - a) u v, where
 * u = 1/(a + 6) and v = 1/(s + 6). All terms are positive, and have one
 * division together.
 */
template <int order, typename W>
inline W sum_of_steps(W u, W v) {
  W sum = 0;
  W divisor = 1;
  MLXOPS_UNROLL
  for (int k = 1; k < 6; ++k) {
    // (6 - k + a) u and (6 - k + s) v
    W p = 1 - k * u;
    W q = 1 - k * v;
    W below = p * q;
    W above = order == 1 ? W(1) : u * q + v * p;
    below = order == 1 ? W(below) : below * below;
    sum = sum * below + divisor * above;
    divisor = divisor * below;
  }
  return sum / divisor;
}

/** sin(pi r) / pi for |r| <= 1/2. */
template <typename T>
inline mlxgen::wide<T> small_sine(mlxgen::wide<T> r) {
  return r * math::polynomial(MLXOPS_TABLE(sine), r * r);
}

} // namespace detail

/**
 * psi(a) - psi(a + b), which is much smaller than both if b is much smaller
 * than a.
 */
template <typename T, bool positive = false>
T digamma_difference(T value_a, T value_b) {
  using W = mlxgen::wide<T>;
  W first = value_a;
  W b = value_b;
  W last = first + b;
  // psi(a) - psi(s), with the reflections of negative numbers (5.5.4), or of
  // both if the other one is below 1/2: two poles may cancel. If only one
  // number is reflected, d = s - a is not small compared with the smaller one.
  bool below_0 = !positive && ((first < 0) | (last < 0));
  bool first_below = below_0 & (first < 0.5f);
  bool last_below = below_0 & (last < 0.5f);
  bool one_below = first_below != last_below;
  W a = first_below ? 1 - first : W(first);
  W s = last_below ? 1 - last : W(last);
  W d = one_below ? s - a : (first_below ? -b : W(b));
  // All terms are d times something positive: those of
  //   psi(z) = psi(z + 6) - 1/z - 1/(z + 1) - ... - 1/(z + 5)   (5.5.2)
  //   psi(z) = log z - 1 / (2 z) - w p(w), w = 1/z^2            (5.11.2)
  W u = 1 / (a + detail::large_z);
  W v = 1 / (s + detail::large_z);
  W x = u * u;
  W y = v * v;
  W p = math::polynomial(MLXOPS_TABLE(digamma_large), x);
  W slope = detail::divided_difference(MLXOPS_TABLE(digamma_large), x, y);
  // x - y = d (u + v) u v
  W rest = u * 0.5f + u * (u + v) * (p + y * slope);
  rest = d * v * (rest + u * detail::sum_of_steps<1>(u, v));
  W result = -(d / s / a + (wide_log1p<T>(d * u) + rest));
  result =
      ((s == math::infinity()) & (a < s)) ? W(-math::infinity()) : W(result);
  if (!positive) {
    // pi cot(pi x) of the negative one, or the difference of both by
    //   cot(x) - cot(y) = sin(y - x) / (sin(x) sin(y))
    W r = first - math::rint(first);
    W t = b - math::rint(b);
    W turns = math::rint(r + t);
    W q = (r + t) - turns;
    W cosine = 0.5f - math::fabs(first_below ? W(r) : W(q));
    W above = detail::small_sine<T>(one_below ? W(cosine) : W(t));
    W pi = MLXOPS_TABLE(pi)[0];
    W factor = one_below ? W(pi) : W(1);
    bool less = one_below ? last_below : turns != 0;
    above = above * (less ? -factor : W(factor));
    W below = first_below ? detail::small_sine<T>(r) : W(1);
    below = last_below ? below * detail::small_sine<T>(q) : W(below);
    // Between poles at a distance of an integer.
    W cotangents = above == 0 ? W(0) : above / below;
    cotangents = one_below & (below == 0) ? W(math::nan()) : W(cotangents);
    result = below_0 ? result - cotangents : W(result);
  }
  return static_cast<T>(result);
}

namespace detail {

/** psi'(x); a negative x is an integer and `past`. */
template <typename T, bool positive = false>
inline mlxgen::wide<T> trigamma_past(mlxgen::wide<T> x, mlxgen::wide<T> past) {
  using W = mlxgen::wide<T>;
  W z = positive ? W(x) : math::fabs(x);
  bool large = z >= large_z;
  bool negative = !positive && x < 0;

  // psi'(z) for large z (5.15.8), else psi'(1 + z) = psi'(z) - 1/z^2 (5.15.5).
  W numerator = math::polynomial(MLXOPS_TABLE(trigamma_middle_p), z);
  W denominator = math::polynomial(MLXOPS_TABLE(trigamma_middle_q), z);
  W quotient = (large ? W(1) : W(numerator)) / (large ? z : denominator);
  W w = quotient * quotient;
  W asymptotic = quotient +
      w * (0.5f + quotient * math::polynomial(MLXOPS_TABLE(trigamma_large), w));
  W body = large ? asymptotic : quotient;

  // psi'(-z) = (pi / sin(pi z))^2 - psi'(1 + z) (5.15.6)
  W sine = sine_over_pi<T>(past);
  W pole = 1 / (negative ? sine : z);
  pole = large && !negative ? W(0) : W(pole);
  W other = (large ? W(w) : W(0)) - body;
  W result = pole * pole + (negative ? other : body);
  bool at_end = !positive && x == -math::infinity();
  return at_end ? W(math::infinity()) : W(result);
}

/** psi'(x). */
template <typename T, bool positive = false>
inline mlxgen::wide<T> trigamma(mlxgen::wide<T> x) {
  return trigamma_past<T, positive>(x, x);
}

} // namespace detail

/**
 * psi'(x), the derivative of digamma; positive. Infinite at the poles and, as
 * in scipy.special.polygamma, at -inf.
 */
template <typename T, bool positive = false>
T trigamma(T value) {
  return static_cast<T>(detail::trigamma<T, positive>(value));
}

namespace detail {

/** psi'(start) - psi'(start + b), like digamma_difference. */
template <typename T, bool positive>
inline mlxgen::wide<T> wide_trigamma_difference(
    mlxgen::wide<T> start,
    mlxgen::wide<T> b) {
  using W = mlxgen::wide<T>;
  W last = start + b;
  bool below_0 = !positive && ((start < 0) & (last < 0));
  W a = below_0 ? 1 - last : W(start);
  W s = below_0 ? 1 - start : W(last);
  // The derivatives of the terms of digamma_difference; with (5.15.8) instead
  // of (5.11.2), a factor of b in each, and without differences:
  //   u - v = b u v, u^3 p(x) - v^3 p(y) = (u^3 - v^3) p(x) + v^3 (x - y) slope
  W i = 1 / a;
  W j = 1 / s;
  W u = 1 / (a + large_z);
  W v = 1 / (s + large_z);
  W x = u * u;
  W y = v * v;
  W p = math::polynomial(MLXOPS_TABLE(trigamma_large), x);
  W slope = divided_difference(MLXOPS_TABLE(trigamma_large), x, y);
  W rest = (x + u * v + y) * p + v * y * (u + v) * slope;
  rest = rest + (1 + (u + v) * 0.5f) + sum_of_steps<2>(u, v);
  W result = b * i * j * (i + j) + b * u * v * rest;
  if (!positive) {
    W sine_a = sine_over_pi<T>(start);
    W sine_s = sine_of_sum<T>(start, b);
    // last may be rounded.
    W past = (start - math::rint(start)) + (b - math::rint(b));
    W cotangents =
        math::cospi(start) / sine_a + math::cospi(past) / sine_over_pi<T>(past);
    W quotient = sine_over_pi<T>(b) / (sine_a * sine_s);
    W reflected = result + quotient * cotangents;
    W direct = trigamma<T>(start) - trigamma<T>(last);
    bool above_0 = (start > 0) & (last > 0);
    result = above_0 ? result : (below_0 ? reflected : direct);
  }
  return result;
}

} // namespace detail

/** psi'(a) - psi'(a + b), like digamma_difference. */
template <typename T, bool positive = false>
T trigamma_difference(T a, T b) {
  return static_cast<T>(detail::wide_trigamma_difference<T, positive>(
      mlxgen::wide<T>(a), mlxgen::wide<T>(b)));
}

///////////////////////////////////////////////////////////////////////////////
// gamma and its reciprocal
///////////////////////////////////////////////////////////////////////////////

namespace detail {

/**
 * Gamma(x) or its reciprocal; not for the poles on the negative axis.
 * `moderate` omits some checks; it requires |x| below 1000.
 */
template <typename T, bool positive, bool moderate>
inline Scaled<mlxgen::wide<T>> gamma_in_parts(
    mlxgen::wide<T> x,
    bool reciprocal) {
  using W = mlxgen::wide<T>;
  W z = positive ? W(x) : math::fabs(x);
  bool small = z < large_z;
  bool negative = !positive && x < 0;

  // With t = z, or z + 6 if z < 6 (5.5.1),
  //   Gamma(z) = Gamma(t) / (z (z + 1) ... (z + 5))
  //   Gamma(t) = sqrt(2 pi) t^(t - 1/2) exp(-t) g(1/t)   (5.11.3)
  // and 1 / Gamma(-z) = -z Gamma(z) sin(pi z) / pi (5.5.3). For positive x,
  // Gamma(z) follows from this directly; negative x have the reciprocal. The
  // opposite result changes the signs of exponents and exchanges the sides of a
  // quotient.
  bool upright = negative == reciprocal;
  W t = choose(small, z + large_z, z);
  W sign = upright ? W(1) : W(-1);
  Scaled<W> y = power_in_parts<T, moderate>(t, sign * (t - 0.5f), -sign * t);

  W root = MLXOPS_TABLE(sqrt_two_pi)[0];
  W above = root * math::polynomial(MLXOPS_TABLE(gamma_large), 1 / t);
  W sine = sine_over_pi<T>(z);
  above = negative ? above * (small ? -sine : -z * sine) : W(above);
  W product = (z + 1) * (z + 2) * ((z + 3) * (z + 4)) * (z + 5);
  W below = small ? (negative ? W(product) : product * x) : W(1);
  // The rounding error of z + 6, to first order: psi(t) is nearly linear.
  W lost = small ? z - (t - large_z) : W(0);
  above = above + above * (lost * (t * 0.125f + 1));
  // If products of x may be subnormal, Gamma(x) = 1/x (5.7.1).
  bool tiny = z < 1e-18f;
  W numerator = choose(tiny, W(1), choose(upright, above, below));
  W denominator = choose(tiny, x, choose(upright, below, above));
  W quotient = numerator / denominator;
  W near_0 = reciprocal ? x : quotient;
  y.x = tiny ? W(near_0) : y.x * quotient;
  y.exponent = tiny ? W(0) : W(y.exponent);
  return y;
}

/** Gamma(x) or its reciprocal as a number. */
template <typename T, bool positive = false>
inline mlxgen::wide<T> gamma_or_reciprocal(mlxgen::wide<T> x, bool reciprocal) {
  using W = mlxgen::wide<T>;
  // Results at 200 and above are 0 or infinite. The same holds at -200, with
  // signs that alternate between the poles.
  x = choose(x > 200, W(200), x);
  if (!positive) {
    W end = W(-200) + (x - math::rint(x * 0.5f) * 2);
    x = choose(x < -200, end, x);
  }
  return unscaled<true>(gamma_in_parts<T, positive, true>(x, reciprocal));
}

} // namespace detail

/**
 * Gamma(x). NaN at the poles -1, -2, ... and -inf, infinite at 0 with its sign,
 * as in scipy.special.gamma.
 */
template <typename T, bool positive = false>
T gamma(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = detail::gamma_or_reciprocal<T, positive>(x, false);
  // Factorials are exact.
  W factorial = !positive && x < 0 ? W(math::nan()) : math::rint(y);
  return static_cast<T>(x == math::rint(x) ? factorial : y);
}

/** 1 / Gamma(x), which is 0 at the poles of Gamma, and at both infinities. */
template <typename T, bool positive = false>
T rgamma(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = detail::gamma_or_reciprocal<T, positive>(x, true);
  bool pole = !positive && x < 0 && x == math::rint(x);
  return static_cast<T>(pole ? W(0) : W(y));
}

/** The first or second derivative of rgamma, for order 1 or 2. */
template <typename T>
T rgamma_derivative(int order, T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  bool reflected = x < 0.5f;
  W z = reflected ? 1 - x : W(x);
  W psi = detail::digamma<T, true>(z);
  W prime = detail::trigamma<T, true>(z);
  W scale = detail::gamma_or_reciprocal<T, true>(z, !reflected);
  // 1 / Gamma(x) = sin(pi x) Gamma(1 - x) / pi (5.5.3), whose derivatives have
  // no poles for x < 1.
  W pi = MLXOPS_TABLE(pi)[0];
  W sine = detail::sine_over_pi<T>(x);
  W cosine = math::cospi(x);
  W first = reflected ? cosine - sine * psi : -psi;
  W second = reflected ? sine * (psi * psi + prime - pi * pi) - 2 * cosine * psi
                       : psi * psi - prime;
  W y = scale * (order == 1 ? first : second);
  return static_cast<T>(x == math::infinity() ? W(0) : W(y));
}

/** The sign of Gamma(x): 1 or -1, NaN at the poles -1, -2, ... and -inf. */
template <typename T>
T gammasgn(T value) {
  // Half of the integer below x shows whether that integer is even.
  T below = math::floor(value) * T(0.5f);
  T sign = below == math::floor(below) ? T(1) : T(-1);
  sign = value < 0 ? sign : math::copysign(T(1), value);
  sign = value < 0 && value == math::floor(value) ? T(math::nan()) : sign;
  return value == value ? sign : value;
}

///////////////////////////////////////////////////////////////////////////////
// polygamma and the zeta functions
///////////////////////////////////////////////////////////////////////////////

namespace detail {

/**
 * The sum over k >= 0 of (size / (a + k))^s / size, from the first of these
 * powers, for a >= 5.
 */
template <typename T>
inline mlxgen::wide<T> zeta_tail(
    mlxgen::wide<T> a,
    mlxgen::wide<T> last,
    mlxgen::wide<T> size,
    mlxgen::wide<T> extra) {
  // Euler-Maclaurin summation (25.11.5 with further terms): an integral and
  // corrections. With this number of corrections and of leading terms, the
  // error is below the rounding error for all s and a.
  using W = mlxgen::wide<T>;
  constexpr int corrections = sizeof(T) == sizeof(float) ? 10 : 16;
  W s = extra + 1;
  W rest = 0.5f;
  W factor = s / a;
  W square = 1 / (a * a);
  MLXOPS_UNROLL
  for (int j = 0; j < corrections; ++j) {
    rest = rest + W(MLXOPS_TABLE(bernoulli)[j]) * factor;
    factor = factor * ((s + (2 * j + 1)) * (s + (2 * j + 2)) * square);
  }
  // The corrections overflow where they are negligible.
  W tail = last * a / size / extra + last / size * rest;
  return last == 0 ? W(last) : W(tail);
}

/**
 * The sum over k >= 0 of (size / (x + k))^s / size, for s = 1 + extra and
 * positive arguments; for extra <= 0, where the sum diverges, its continuation.
 */
template <typename T>
inline mlxgen::wide<T>
zeta_sum(mlxgen::wide<T> x, mlxgen::wide<T> size, mlxgen::wide<T> extra) {
  using W = mlxgen::wide<T>;
  constexpr int terms = sizeof(T) == sizeof(float) ? 5 : 6;
  W s = extra + 1;
  W sum = 0;
  MLXOPS_UNROLL
  for (int k = 0; k < terms; ++k) {
    sum = sum + reciprocal_power<T>((x + k) / size, s);
  }
  W a = x + terms;
  W last = reciprocal_power<T>(a / size, s);
  return sum / size + zeta_tail<T>(a, last, size, extra);
}

/** zeta(1 + extra), from powers of primes only. */
template <typename T>
inline mlxgen::wide<T> zeta_of_primes(mlxgen::wide<T> extra) {
  using W = mlxgen::wide<T>;
  W s = extra + 1;
  W two = reciprocal_power<T>(W(2), s);
  W three = reciprocal_power<T>(W(3), s);
  W five = reciprocal_power<T>(W(5), s);
  W seven = reciprocal_power<T>(W(7), s);
  W four = two * two;
  W sum = seven + two * three + five + four + three + two;
  return 1 + (sum + zeta_tail<T>(W(8), two * four, W(1), extra));
}

// For sums that may cancel: wide<T> with its full precision.
#ifdef MLXGEN_TWOFOLD
template <typename T>
using fine = T;
#else
template <typename T>
using fine = double;
#endif

/** |x + k| for the largest term of the sum over k >= 0 of (x + k)^-s. */
template <bool positive, typename W>
inline W distance_to_pole(W x) {
  bool near = !positive && x < 0.5f;
  return near ? math::fabs(x - math::rint(x)) : W(x);
}

/**
 * size^(s - 1) times the sum over k >= 0 of (x + k)^-s, where size is the
 * distance of x from its nearest pole and s = 1 + extra, which is an integer
 * for negative x; parity is (-1)^s.
 */
template <typename T, bool positive>
inline mlxgen::wide<T> zeta_near_pole(
    mlxgen::wide<T> x,
    mlxgen::wide<T> size,
    mlxgen::wide<T> extra,
    mlxgen::wide<T> parity) {
  using W = mlxgen::wide<T>;
  using F = fine<T>;
  // x = f + whole, so that the terms are those of f^-s and, for negative x,
  //   zeta(s, 1 + f) + (-1)^s (zeta(s, 1 - f) - zeta(s, 1 - x)).
  bool negative = !positive && x < 0.5f;
  W f = negative ? x - math::rint(x) : W(x);
  W sign = !positive && f < 0 ? W(parity) : W(1);
  W sum = zeta_sum<F>(f + 1, size, extra) + sign / size;
  W between = zeta_sum<F>(1 - f, size, extra) - zeta_sum<F>(1 - x, size, extra);
  sum = negative ? sum + parity * between : W(sum);
  return sum;
}

} // namespace detail

/**
 * The n-th derivative of digamma for n >= 2, (-1)^(n+1) n! zeta(n + 1, x)
 * (5.15.1), with SciPy's values at poles: infinite, positive for odd n and
 * negative for even n.
 */
template <typename T, bool positive = false>
T higher_polygamma(int n, T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W size = detail::distance_to_pole<positive>(x);
  W parity = n % 2 != 0 ? W(1) : W(-1);
  W sum = detail::zeta_near_pole<T, positive>(x, size, W(n), parity);

  // n! = sqrt(2 pi n) (n / e)^n g(1/n) (5.11.3): only n! may be out of range.
  W order = n;
  W factor = math::sqrt(order) * W(MLXOPS_TABLE(sqrt_two_pi)[0]) *
      math::polynomial(MLXOPS_TABLE(factorial), 1 / order);
  W base = order * W(MLXOPS_TABLE(inverse_e)[0]) / size;
  Scaled<W> y = power_in_parts<T>(base, order, W(0));
  y.x = y.x * (factor * sum);

  W result = unscaled(y);
  result = ((size == 0) | (x == -math::infinity())) ? W(math::infinity())
                                                    : W(result);
  result = x == math::infinity() ? W(0) : W(result);
  return static_cast<T>(parity * result);
}

/**
 * zeta(s, x), the sum over k >= 0 of (x + k)^-s (25.11.1), for s > 1. Infinite
 * at s = 1 and if x is 0, -1, -2, ...; otherwise, as in scipy.special.zeta, NaN
 * for s < 1, and for negative x unless s is an integer.
 */
template <typename T, bool positive = false>
T hurwitz_zeta(T value_s, T value_x) {
  using W = mlxgen::wide<T>;
  W given = value_s;
  W x = value_x;
  // For any larger s, every power is 0, 1 or infinite.
  W s = given > 1e30f ? W(1e30f) : W(given);
  W size = detail::distance_to_pole<positive>(x);
  W halved = s * 0.5f;
  W parity = halved == math::rint(halved) ? W(1) : W(-1);
  W sum = detail::zeta_near_pole<T, positive>(x, size, s - 1, parity);
  Scaled<W> y = power_in_parts<T>(size, 1 - s, W(0));
  y.x = y.x * sum;

  W result = unscaled(y);
  // For so large arguments the sum may be out of range.
  result = y.exponent < -1200 ? W(0) : W(result);
  result = x == math::infinity() ? W(0) : W(result);
  result = ((x < 0) & (s != math::rint(s))) ? W(math::nan()) : W(result);
  result = ((x <= 0) & (x == math::rint(x))) ? W(math::infinity()) : W(result);
  result = given == 1 ? W(math::infinity()) : W(result);
  result = ((given >= 1) & (x == x)) ? W(result) : W(math::nan());
  return static_cast<T>(result);
}

/** zeta(x), for all real x (25.2.1). Infinite at 1, NaN at -inf. */
template <typename T>
T riemann_zeta(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  bool negative = x < 0;
  // zeta(1 - y) = 2 (2 pi)^-y cos(pi y / 2) Gamma(y) zeta(y) (25.4.1)
  W extra = negative ? -x : x - 1;
  extra = extra > 400 ? W(400) : W(extra);
  W y = extra + 1;
  W zeta = detail::zeta_of_primes<T>(extra);

  // (2 pi)^-y Gamma(y) as in gamma_or_reciprocal.
  bool small = y < detail::large_z;
  W t = small ? y + detail::large_z : W(y);
  Scaled<W> factor = power_in_parts<T, true>(
      t, t - 0.5f, -(t + y * W(MLXOPS_TABLE(log_2_pi)[0])));
  W root = MLXOPS_TABLE(sqrt_two_pi)[0];
  W product = y * (y + 1) * ((y + 2) * (y + 3)) * ((y + 4) * (y + 5));
  W sine = detail::sine_over_pi<T>(0.5f * x) * W(MLXOPS_TABLE(pi)[0]);
  factor.x = factor.x * (2 * root * sine * zeta) *
      math::polynomial(MLXOPS_TABLE(gamma_large), 1 / t) /
      (small ? W(product) : W(1));
  W reflected = sine == 0 ? W(0) : unscaled<true>(factor);

  W result = negative ? reflected : zeta;
  result = math::fabs(x) < 1e-18f ? W(-0.5f) : W(result);
  result = x == -math::infinity() ? W(math::nan()) : W(result);
  return static_cast<T>(result);
}

///////////////////////////////////////////////////////////////////////////////
// beta
///////////////////////////////////////////////////////////////////////////////

namespace detail {

/**
 * log B(a, b) = log Gamma(a) + log Gamma(b) - log Gamma(a + b) (5.12.1) for
 * positive a and b; the caller must subtract log `divisor`.
 *
 * If Stirling's expansion holds for b, the larger one, differences of large
 * terms are taken before anything is computed, as in DiDonato and Morris,
 * "Algorithm 708: significant digit computation of the incomplete beta function
 * ratios" (1992).
 */
template <typename T>
inline mlxgen::wide<T> log_beta(
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    MLXGEN_OUT(mlxgen::wide<T>) divisor) {
  using W = mlxgen::wide<T>;
  W p = a < b ? a : b;
  W q = a < b ? b : a;
  W s = p + q;
  bool large_q = q >= large_z;
  bool large_p = p >= large_z;

  W correction_q = stirling_correction<T>(q);
  W correction_s = stirling_correction<T>(s);
  W body_p = lgamma_middle<T>(p);
  W body_q = lgamma_middle<T>(q);
  W body_s = lgamma_middle<T>(s);
  W half_log = W(MLXOPS_TABLE(log_2_pi)[0]) * 0.5f;
  W log_1 = wide_log<T>(large_q ? q : s);
  bool large_s = s >= large_z;
  W large_body_s = (s - 0.5f) * (log_1 - 1) + (half_log - 0.5f + correction_s);
  // q < 6: three values of log Gamma, each without log z below 1.
  W direct = body_p + body_q - (large_s ? large_body_s : body_s);
  W below_1 = p < 1 ? W(p) : W(1);
  W others = (q < 1 ? W(q) : W(1)) / (s < 1 ? W(s) : W(1));
  divisor = large_p ? W(1) : W(below_1);
  divisor = large_q ? W(divisor) : divisor * others;

  // p < 6 <= q: log Gamma(q) - log Gamma(q + p) from (5.11.1).
  W h = p / q;
  W log_1p = wide_log1p<T>(h);
  W difference =
      correction_q - correction_s - (p * log_1p + (q - 0.5f) * log_1p);
  W mixed = body_p - p * (log_1 - 1) + difference;

  // Both are large.
  W both = (p - 0.5f) * wide_log<T>(h) - 0.5f * log_1 +
      (half_log + stirling_correction<T>(p) + difference);
  W result = large_p ? both : large_q ? mixed : direct;
  W infinite = choose(p > 0, W(-math::infinity()), W(0));
  return choose(q == math::infinity(), infinite, result);
}

/**
 * B(a, b) = above / below exp(result), for any signs; `s` is a + b. `sine_a`
 * and `sine_s` are sin(pi a) / pi and sin(pi s) / pi, for which a and s may
 * lack digits.
 */
template <typename T, bool positive = false>
inline mlxgen::wide<T> signed_log_beta(
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    mlxgen::wide<T> s,
    mlxgen::wide<T> sine_a,
    mlxgen::wide<T> sine_s,
    MLXGEN_OUT(mlxgen::wide<T>) above,
    MLXGEN_OUT(mlxgen::wide<T>) below) {
  using W = mlxgen::wide<T>;
  W p = a < b ? a : b;
  W q = a < b ? b : a;
  bool negative = !positive && p < 0;
  bool both = !positive && q < 0;
  W falls = choose(negative, choose(s <= 0, W(1), W(0)), W(0));
  bool falling = choose(both, W(0), falls) > 0;

  // By reflection (5.5.3) of the negative ones among p, q and s:
  //   q > 0 >= s   B(q, 1 - s) sin(pi s) / sin(pi p)
  //   q, s > 0     pi / (q sin(pi p) B(1 - p, s))
  //   q < 0        pi sin(pi s) / ((1 - s) sin(pi p) sin(pi q) B(1 - p, 1 - q))
  W u = falling ? W(q) : 1 - p;
  W v = both ? 1 - q : W(s);
  v = falling ? 1 - s : W(v);
  u = negative ? u : p;
  v = negative ? v : q;
  W divisor;
  W result = log_beta<T>(u, v, divisor);
  W sine_b = sine_over_pi<T>(b);
  W sine_p = a < b ? sine_a : sine_b;
  W sine_q = a < b ? sine_b : sine_a;
  // If all are integers, the quotient of the sines is (-1)^q.
  bool whole = math::fabs(sine_p) + math::fabs(sine_s) == 0;
  W halved = q * 0.5f;
  W sign = halved == math::rint(halved) ? W(1) : W(-1);
  sine_p = choose(whole, choose(falling, W(1), sine_p), sine_p);
  sine_s = choose(whole, choose(falling, sign, sine_s), sine_s);

  W above_both = sine_s * divisor;
  W below_both = (1 - s) * sine_p * sine_q;
  W below_one = (q == math::infinity() ? W(1) : W(q)) * sine_p;
  above = both ? above_both : divisor;
  below = both ? below_both : below_one;
  above = falling ? sine_s : above;
  below = falling ? sine_p * divisor : W(below);
  above = negative ? W(above) : W(1);
  below = negative ? below : divisor;
  result = falling ? -result : W(result);
  return negative ? -result : W(result);
}

/**
 * The order of Gamma's pole at x: 1 at 0, -1, -2, ..., else 0. It is a floating
 * number, because gcc does not vectorize much bool arithmetic.
 */
template <bool positive = false, typename W>
inline W pole_at(W x) {
  return positive
      ? W(0)
      : choose(x == math::rint(x), choose(x <= 0, W(1), W(0)), W(0));
}

} // namespace detail

/** log |B(a, b)|. */
template <typename T, bool positive = false>
T betaln(T a, T b) {
  using W = mlxgen::wide<T>;
  W above;
  W below;
  W s = W(a) + W(b);
  W y = detail::signed_log_beta<T, positive>(
      W(a),
      W(b),
      s,
      detail::sine_over_pi<T>(W(a)),
      detail::sine_over_pi<T>(s),
      above,
      below);
  W result =
      y + (wide_log<T>(math::fabs(above)) - wide_log<T>(math::fabs(below)));
  W poles = detail::pole_at<positive>(W(a)) + detail::pole_at<positive>(W(b));
  result = poles == 2 ? W(math::infinity()) : W(result);
  return static_cast<T>(result);
}

namespace detail {

/** True if Gamma(x) is negative, for an x that is not a pole. */
template <typename W>
inline bool gamma_is_negative(W x) {
  W halved = math::floor(x) * 0.5f;
  return (x < 0) & (halved != math::floor(halved));
}

} // namespace detail

/**
 * B(a, b) = Gamma(a) Gamma(b) / Gamma(a + b) (5.12.1). Signs at poles are those
 * of scipy.special.beta: Gamma is positive there, but with two poles in the
 * numerator the result is (-1)^b infinite.
 */
template <typename T, bool positive = false>
T beta(T value_a, T value_b) {
  using W = mlxgen::wide<T>;
  W a = value_a;
  W b = value_b;
  W above;
  W below;
  W y = detail::signed_log_beta<T, positive>(
      a,
      b,
      a + b,
      detail::sine_over_pi<T>(a),
      detail::sine_over_pi<T>(a + b),
      above,
      below);
  W root = wide_exp<T>(0.5f * y);
  W result = root * (above / below) * root;

  W poles = detail::pole_at<positive>(a) + detail::pole_at<positive>(b);
  W order = poles - detail::pole_at<positive>(a + b);
  W halved = b * 0.5f;
  W infinity = math::infinity();
  W odd = choose(halved == math::rint(halved), infinity, -infinity);
  bool minus = detail::gamma_is_negative(a) != detail::gamma_is_negative(b);
  W infinite = choose(poles > 1, odd, infinity);
  W zero = choose(minus, W(-0.0f), W(0));
  result = choose(order > 0, infinite, choose(order < 0, zero, result));
  result = choose(a == a, choose(b == b, result, b), a);
  return static_cast<T>(result);
}

///////////////////////////////////////////////////////////////////////////////
// Quotients of gamma functions
///////////////////////////////////////////////////////////////////////////////

namespace detail {

/** Like pole_at; `sine` is that of x, for which x may lack digits. */
template <bool positive = false, typename W>
inline W pole_of_sum(W x, W sine) {
  return choose(sine == 0, pole_at<positive>(x), W(0));
}

/**
 * factor / B(a, b), for any signs; 0 at the poles of B. `s` and the sines are
 * those of signed_log_beta.
 */
template <typename T, bool positive = false>
inline mlxgen::wide<T> over_beta(
    Scaled<mlxgen::wide<T>> factor,
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    mlxgen::wide<T> s,
    mlxgen::wide<T> sine_a,
    mlxgen::wide<T> sine_s) {
  using W = mlxgen::wide<T>;
  W above;
  W below;
  W y = signed_log_beta<T, positive>(a, b, s, sine_a, sine_s, above, below);
  Scaled<W> e = power_in_parts<T>(W(1), W(0), -y);
  e.x = e.x * (below / above) * factor.x;
  e.exponent = e.exponent + factor.exponent;
  // The poles of B are those of a and b, unless a pole of s cancels them.
  W order = pole_of_sum<positive>(a, sine_a) + pole_at<positive>(b);
  order = order - pole_of_sum<positive>(s, sine_s);
  return choose(order > 0, W(0), unscaled(e));
}

/** x or, if y and z are integers, the nearest integer, if it is certain. */
template <typename W>
inline W made_whole(W x, W y, W z) {
  W whole = choose(math::fabs(x) < 1e12f, math::rint(x), x);
  W next = choose(y == math::rint(y), whole, x);
  return choose(z == math::rint(z), next, x);
}

/** Like poch. */
template <typename T, bool positive = false>
inline mlxgen::wide<T> wide_poch(mlxgen::wide<T> x, mlxgen::wide<T> m) {
  using W = mlxgen::wide<T>;
  // Gamma(m) / B(x, m) for positive m, or the reciprocal from x + m up to x.
  bool down = !positive && m < 0;
  W size = positive ? W(m) : math::fabs(m);
  W start = choose(down, x + m, x);
  W end = choose(down, x, x + m);
  // x + m may need more digits after the point.
  W sine = sine_over_pi<T>(x);
  W sine_sum = sine_of_sum<T>(x, m);
  Scaled<W> factor = gamma_in_parts<T, true, false>(size, false);
  W up = over_beta<T, positive>(
      factor,
      start,
      size,
      end,
      choose(down, sine_sum, sine),
      choose(down, sine, sine_sum));
  W y = choose(down, 1 / up, made_whole(up, x, m));
  // For the smallest m the result is 1 + m psi(x), and near 0 it is x / (x +
  // m).
  W pole = pole_at<positive>(x);
  bool near_0 = math::fabs(x) < 0.5f;
  W tiny = choose(near_0, x / (x + m), choose(pole > 0, y, W(1)));
  y = choose(size < 1e-30f, tiny, y);
  W infinity = math::infinity();
  W order = pole_of_sum<positive>(x + m, sine_sum) - pole;
  y = choose(order < 0, W(0), choose(order > 0, infinity, y));
  y = choose(x == infinity, choose(down, W(0), infinity), y);
  W nan = math::nan();
  y = choose(m == infinity, choose(x > 0, infinity, nan), y);
  y = choose(m == -infinity, nan, choose(x == -infinity, nan, y));
  y = choose(m == 0, W(1), y);
  return choose(x == x, choose(m == m, y, m), x);
}

} // namespace detail

/**
 * The rising factorial, Gamma(x + m) / Gamma(x) (5.2.5), for any m. Infinite at
 * the poles of Gamma(x + m) and 0 at those of Gamma(x); if both have poles, the
 * limit for integer m, as in scipy.special.poch.
 */
template <typename T, bool positive = false>
T poch(T value_x, T value_m) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(detail::wide_poch<T, positive>(W(value_x), W(value_m)));
}

/**
 * The binomial coefficient, Gamma(n + 1) / (Gamma(k + 1) Gamma(n - k + 1))
 * (1.2.6), for any n and k; NaN if n is -1, -2, ...
 */
template <typename T>
T binom(T value_n, T value_k) {
  using W = mlxgen::wide<T>;
  W n = value_n;
  W k = value_k;
  Scaled<W> factor = {1 / (n + 1), W(0)};
  // Near 0 without rounding. For a large k, n - k has fewer digits after the
  // point than n.
  W rest = choose(n < 1, (1 - k) + n, (n - k) + 1);
  W y = detail::over_beta<T>(
      factor,
      rest,
      k + 1,
      n + 2,
      -detail::sine_of_sum<T>(n, -k),
      detail::sine_over_pi<T>(n));
  y = detail::made_whole(y, n, k);
  W infinity = math::infinity();
  W large = choose(k > 0, choose(k < infinity, infinity, y), y);
  y = choose(n == infinity, large, y);
  y = choose(k == 0, choose(n == n, W(1), n), y);
  y = choose(detail::pole_at(n + 1) > 0, W(math::nan()), y);
  return static_cast<T>(y);
}

///////////////////////////////////////////////////////////////////////////////
// Derivatives of quotients of gamma functions
///////////////////////////////////////////////////////////////////////////////

// At the poles of a divisor Gamma(x), the quotient is 0 and the derivative of
// its logarithm is infinite. By reflection (5.5.3), 1 / Gamma(x) is
// sin(pi x) / pi times Gamma(1 - x), which has no pole. If a factor Gamma(y)
// has a pole, too, it is reflected as well. So a quotient is a product of
// sines, the `waves`, times positive gamma functions, `size`, and its
// derivatives are
//
//   size (waves' + waves log(size)')
//   size (waves'' + 2 waves' log(size)' + waves (log(size)'^2 + log(size)''))
//
// Quotients of sines are differentiated by
//   (sin x / sin y)' = sin(y - x) / sin(y)^2 for x' = y'.

/** psi(x + y), also if x + y is rounded. */
template <typename T, bool positive = false>
T digamma_of_sum(T value_x, T value_y) {
  using W = mlxgen::wide<T>;
  W x = value_x;
  W y = value_y;
  W past = (x - math::rint(x)) + (y - math::rint(y));
  past = past - math::rint(past);
  return static_cast<T>(detail::digamma_past<T, positive>(x + y, past));
}

/** psi'(x + y), also if x + y is rounded. */
template <typename T, bool positive = false>
T trigamma_of_sum(T value_x, T value_y) {
  using W = mlxgen::wide<T>;
  W x = value_x;
  W y = value_y;
  W past = (x - math::rint(x)) + (y - math::rint(y));
  return static_cast<T>(detail::trigamma_past<T, positive>(x + y, past));
}

namespace detail {

/** The derivatives of a logarithm, or of a product of sines. */
template <typename W>
struct Rates {
  W value; // of the sines; not of the logarithm
  W by_x;
  W by_xx;
  W by_y;
  W by_xy;
};

template <typename W>
inline W first_derivative(Rates<W> waves, Rates<W> log) {
  return waves.by_x + waves.value * log.by_x;
}

template <typename W>
inline W second_derivative(Rates<W> waves, Rates<W> log) {
  return waves.by_xx + 2 * waves.by_x * log.by_x +
      waves.value * (log.by_x * log.by_x + log.by_xx);
}

template <typename W>
inline W mixed_derivative(Rates<W> waves, Rates<W> log) {
  return waves.by_xy + waves.by_x * log.by_y + waves.by_y * log.by_x +
      waves.value * (log.by_x * log.by_y + log.by_xy);
}

/** The derivative of B(a, b) with respect to a; also twice, or to a and b. */
template <typename T, bool positive, bool twice, bool mixed>
inline mlxgen::wide<T> beta_derivative(T value_a, T value_b) {
  using W = mlxgen::wide<T>;
  W a = value_a;
  W b = value_b;
  W s = a + b;
  W infinity = math::infinity();
  // Gamma(s) is reflected, and Gamma(a) if it may have a pole, too.
  bool reflected = !positive && ((s <= 0) & (s > -infinity));
  bool both = reflected & (a < 0);
  bool all = both & (b < 0);
  W sine_a = sine_over_pi<T>(a);
  W sine_b = sine_over_pi<T>(b);
  W sine_s = sine_of_sum<T>(a, b);

  // Their product with Gamma(b), where 1 / Gamma(1 - b) = Gamma(b) sin(pi b) /
  // pi for negative b.
  //   a >= 0   Gamma(a) Gamma(b) Gamma(1 - s)
  //   a < 0    Gamma(b) Gamma(1 - s) / Gamma(1 - a)
  W u = choose(both, b, a);
  W v = choose(reflected, 1 - s, b);
  u = choose(all, 1 - a, u);
  v = choose(all, 1 - b, v);
  W above;
  W below;
  W y = signed_log_beta<T, positive>(u, v, u + v, sine_a, sine_s, above, below);
  y = choose(all, -y, y);
  W numerator = choose(all, below, above);
  W denominator = choose(all, above * (1 - s), below);
  W sines = choose(reflected && b < 0, sine_b, W(1));
  W quotient = numerator / (denominator * sines);

  // For integers b the quotient of the sines is (-1)^b.
  bool whole = sine_b == 0;
  W over_a = 1 / sine_a;
  W ratio = choose(whole, signed_by_sum(W(1), b, W(0)), sine_s * over_a);
  Rates<W> waves = {W(1), W(0), W(0), W(0), W(0)};
  waves.value = choose(reflected, choose(both, ratio, sine_s), W(1));
  W cosine_s = cosine_of_sum(a, b);
  W square = choose(whole, W(0), sine_b * over_a * over_a);
  waves.by_x = choose(reflected, choose(both, -square, cosine_s), W(0));

  // psi(a) - psi(s) by reflection is psi(1 - a) - psi(1 - s).
  W first = choose(both, 1 - s, a);
  Rates<W> log = {W(0), W(0), W(0), W(0), W(0)};
  W difference =
      W(digamma_difference<T, positive>(static_cast<T>(first), value_b));
  W above_0 = choose(reflected, 1 - s, s);
  W psi_s = digamma<T, true>(above_0);
  W direct = digamma<T, positive>(a) - psi_s;
  log.by_x = choose(reflected, choose(both, -difference, direct), difference);

  W pi = MLXOPS_TABLE(pi)[0];
  W curved = -(pi * pi) * sine_s;
  W result = first_derivative(waves, log);
  if (twice) {
    W steep = choose(whole, W(0), 2 * square * math::cospi(a) * over_a);
    waves.by_xx = choose(reflected, choose(both, steep, curved), W(0));
    W change = wide_trigamma_difference<T, positive>(first, b);
    W sum = trigamma<T, positive>(a) + trigamma<T, true>(above_0);
    log.by_xx = choose(reflected && !both, sum, change);
    result = second_derivative(waves, log);
  }
  if (mixed) {
    waves.by_y =
        choose(reflected, choose(both, cosine_s * over_a, cosine_s), W(0));
    W steep = -math::cospi(b) * over_a * over_a;
    waves.by_xy = choose(reflected, choose(both, steep, curved), W(0));
    W other = W(digamma_difference<T, positive>(value_b, value_a));
    W direct_b = digamma<T, positive>(b) - psi_s;
    log.by_y = choose(reflected, direct_b, other);
    W prime = trigamma<T, true>(above_0);
    log.by_xy = choose(reflected, prime, -prime);
    result = mixed_derivative(waves, log);

    // The residue at p = 0 is 1 for all q, so that the terms cancel for small
    // p. With `mean`, the mean of psi' between q and s,
    //   psi(p) - psi(s) = -1 / p + rest
    //   psi(q) - psi(s) = -p mean
    //   mean = (psi'(q) + psi'(s)) / 2 - p^2 / 12 psi^(3)((q + s) / 2) ...
    bool swapped = math::fabs(b) < math::fabs(a);
    W p = choose(swapped, b, a);
    W q = choose(swapped, a, b);
    T small_p = static_cast<T>(p);
    T large_q = static_cast<T>(q);
    W change = wide_trigamma_difference<T, positive>(q, p);
    W third = W(higher_polygamma<T, positive>(3, static_cast<T>(q + 0.5f * p)));
    W twelfth = MLXOPS_TABLE(bernoulli)[0];
    W mean_less_prime = 0.5f * change - p * p * third * twelfth;
    W rest = digamma<T, positive>(1 + p) - digamma<T, positive>(s);
    W difference_q = W(digamma_difference<T, positive>(large_q, small_p));
    W near_0 = waves.value * (mean_less_prime + rest * difference_q);
    bool near = math::fabs(p) < 1e-4f * distance_to_pole<positive>(q);
    result = choose(near, near_0, result);
  }
  W root = wide_exp<T>(0.5f * y);
  return root * (quotient * result) * root;
}

} // namespace detail

/** The derivative of B(a, b) with respect to a. */
template <typename T, bool positive = false>
T beta_slope(T a, T b) {
  return static_cast<T>(
      detail::beta_derivative<T, positive, false, false>(a, b));
}

/** The second derivative of B(a, b) with respect to a. */
template <typename T, bool positive = false>
T beta_curvature(T a, T b) {
  return static_cast<T>(
      detail::beta_derivative<T, positive, true, false>(a, b));
}

/** The derivative of B(a, b) with respect to both. */
template <typename T, bool positive = false>
T beta_mixed(T a, T b) {
  return static_cast<T>(
      detail::beta_derivative<T, positive, false, true>(a, b));
}

namespace detail {

template <typename T, bool positive, bool twice>
inline mlxgen::wide<T> poch_derivative(T value_x, T value_m) {
  using W = mlxgen::wide<T>;
  W x = value_x;
  W m = value_m;
  W s = x + m;
  W infinity = math::infinity();
  // Gamma(x) is reflected, and Gamma(s) if it may have a pole, too. The second
  // derivative of 1 / Gamma(x) is reflected for small positive x, too.
  bool above_0 = positive || (x > 0 && s > 0);
  bool reflected = math::fabs(s) < infinity && x < 0.5f && (twice || !above_0);
  bool both = reflected && s < 0.5f;

  Rates<W> waves = {W(1), W(0), W(0), W(0), W(0)};
  Rates<W> log = {W(0), W(0), W(0), W(0), W(0)};
  W pi = MLXOPS_TABLE(pi)[0];
  if (reflected && !both) {
    // Gamma(1 - x) Gamma(s) = B(1 - x, s) Gamma(1 + m)
    W sine = sine_over_pi<T>(x);
    waves.value = sine;
    waves.by_x = math::cospi(x);
    log.by_x = digamma<T, true>(s) - digamma<T, true>(1 - x);
    if (twice) {
      waves.by_xx = -(pi * pi) * sine;
      log.by_xx = trigamma<T, true>(s) + trigamma<T, true>(1 - x);
    }
    W divisor;
    W y = log_beta<T>(s, 1 - x, divisor);
    Scaled<W> e = power_in_parts<T>(W(1), W(0), y);
    Scaled<W> factor = gamma_in_parts<T, true, false>(1 + m, false);
    W result =
        twice ? second_derivative(waves, log) : first_derivative(waves, log);
    e.x = e.x / divisor * factor.x * result;
    e.exponent = e.exponent + factor.exponent;
    return choose(result == 0, W(0), unscaled(e));
  }
  // With s - x = m, from the smaller one of 1 - s and 1 - x to the larger one.
  bool down = both && m < 0;
  W first = choose(both, choose(down, 1 - x, 1 - s), x);
  W step = choose(down, -m, m);
  W size = wide_poch<T, positive>(first, step);
  size = choose(down, 1 / size, size);
  W difference =
      W(digamma_difference<T, positive>(
          static_cast<T>(first), static_cast<T>(step)));
  W change = twice ? wide_trigamma_difference<T, positive>(first, step) : W(0);
  if (!positive && !reflected && s <= 0) {
    difference = digamma<T>(x) - W(digamma_of_sum<T>(value_x, value_m));
    change = trigamma<T>(x) - W(trigamma_of_sum<T>(value_x, value_m));
  }
  difference = choose(down, -difference, difference);
  change = choose(down, -change, change);
  log.by_x = choose(both, difference, -difference);
  log.by_xx = -change;
  if (both) {
    // For integers m the quotient of the sines is (-1)^m.
    W sine_m = sine_over_pi<T>(m);
    bool whole = sine_m == 0;
    W over_s = choose(whole, W(0), 1 / sine_of_sum<T>(x, m));
    waves.value = choose(
        whole, signed_by_sum(W(1), m, W(0)), sine_over_pi<T>(x) * over_s);
    waves.by_x = sine_m * over_s * over_s;
    waves.by_xx = -2 * waves.by_x * cosine_of_sum(x, m) * over_s;
  }
  W result =
      twice ? second_derivative(waves, log) : first_derivative(waves, log);
  return choose(result == 0, W(0), size * result);
}

} // namespace detail

/** The derivative of poch(x, m) with respect to x. */
template <typename T, bool positive = false>
T poch_slope(T x, T m) {
  return static_cast<T>(detail::poch_derivative<T, positive, false>(x, m));
}

/** The second derivative of poch(x, m) with respect to x. */
template <typename T>
T poch_curvature(T x, T m) {
  return static_cast<T>(detail::poch_derivative<T, false, true>(x, m));
}

/**
 * psi(a) - psi(a + b), the derivative of betaln(a, b) with respect to a; also
 * where both have poles and B(a, b) has none.
 */
template <typename T, bool positive = false>
T betaln_slope(T a, T b) {
  using W = mlxgen::wide<T>;
  W s = W(a) + W(b);
  // Then b is a positive integer. By reflection, for which b stays.
  bool poles = (detail::pole_at<positive>(W(a)) > 0) & (s <= 0) & (b > 0);
  bool cancel = poles & (s == math::rint(s));
  T first = cancel ? static_cast<T>(1 - s) : a;
  W difference = W(digamma_difference<T, positive>(first, b));
  return static_cast<T>(cancel ? -difference : W(difference));
}

/** psi'(a) - psi'(a + b), like betaln_slope. */
template <typename T, bool positive = false>
T betaln_curvature(T a, T b) {
  using W = mlxgen::wide<T>;
  W s = W(a) + W(b);
  bool poles = (detail::pole_at<positive>(W(a)) > 0) & (s <= 0) & (b > 0);
  bool cancel = poles & (s == math::rint(s));
  return trigamma_difference<T, positive>(
      cancel ? static_cast<T>(1 - s) : a, b);
}

namespace detail {

/** psi(x) - psi(y) for positive numbers, where `step` is y - x. */
template <typename T>
inline mlxgen::wide<T>
digamma_between(mlxgen::wide<T> x, mlxgen::wide<T> y, mlxgen::wide<T> step) {
  using W = mlxgen::wide<T>;
  bool up = step >= 0;
  W difference =
      W(digamma_difference<T, true>(
          static_cast<T>(choose(up, x, y)), static_cast<T>(math::fabs(step))));
  return choose(up, difference, -difference);
}

/** The derivatives of binom(n, k) by n and k, `twice` for two of them. */
template <typename T, bool twice>
inline mlxgen::wide<T> binom_derivative(int in_n, T value_n, T value_k) {
  using W = mlxgen::wide<T>;
  W n = value_n;
  W k = value_k;
  // Gamma(y) / (Gamma(a) Gamma(b)); a and y near 0 without rounding
  W y = n + 1;
  W a = choose(n < 1, (1 - k) + n, (n - k) + 1);
  W b = k + 1;
  bool a_reflected = a < 0.5f;
  bool b_reflected = b < 0.5f;
  bool one = a_reflected != b_reflected;
  // If k is small, y and a must be alike.
  bool y_reflected = (y < 0.75f) & (a_reflected | b_reflected);
  W u = choose(a_reflected, 1 - a, a);
  W v = choose(b_reflected, 1 - b, b);
  W w = choose(y_reflected, 1 - y, y);

  // The product of the functions of u, v and w is
  //   B(w, reflected)            if one of Gamma(a), Gamma(b) is reflected
  //   1 / (reflected B(w, other))            if also Gamma(y) is
  //   B(u, v)                    if all are
  //   1 / (y B(u, v))            if none is
  W reflected = choose(a_reflected, u, v);
  W other = choose(a_reflected, v, u);
  bool upright = one ? !y_reflected : a_reflected;
  W partner = choose(y_reflected, other, reflected);
  W divisor;
  W log_size = log_beta<T>(choose(one, w, u), choose(one, partner, v), divisor);
  log_size = choose(upright, log_size, -log_size);
  Scaled<W> size = power_in_parts<T>(W(1), W(0), log_size);
  W factor = choose(one, reflected, y);
  W quotient =
      choose(upright, W(1), divisor) / choose(upright, divisor, factor);

  W sine_a = -sine_of_sum<T>(n, -k);
  W cosine_a = -cosine_of_sum(n, -k);
  W sine_k = sine_over_pi<T>(k);
  W sine_b = -sine_k;
  W over_y = choose(y_reflected, 1 / sine_over_pi<T>(y), W(1));
  W cosine_y = choose(y_reflected, math::cospi(y), W(0));

  // Rates by n, called x, and by k, called y. The sines of a and y are one
  // factor: only that of y - a = k remains in the derivative, and k may be
  // small. The other factor, the sine of b, depends on k only.
  bool pair = a_reflected & y_reflected;
  W alone = choose(a_reflected, cosine_a, -cosine_y * over_y * over_y);
  Rates<W> left = {W(0), W(0), W(0), W(0), W(0)};
  left.value = choose(a_reflected, sine_a, W(1)) * over_y;
  left.by_x = choose(pair, sine_k * over_y * over_y, alone);
  left.by_y = choose(a_reflected, -cosine_a * over_y, W(0));
  W sine = choose(b_reflected, sine_b, W(1));
  W cosine = choose(b_reflected, math::cospi(b), W(0));
  Rates<W> waves = {W(0), W(0), W(0), W(0), W(0)};
  waves.value = left.value * sine;
  waves.by_x = left.by_x * sine;
  waves.by_y = left.by_y * sine + left.value * cosine;

  // log(size) has the derivatives psi(w) - psi(u) by n and psi(u) - psi(v) by
  // k.
  bool same_wu = a_reflected == y_reflected;
  bool same_uv = a_reflected == b_reflected;
  W to_u = choose(same_wu, choose(a_reflected, k, -k), u - w);
  W to_v = choose(same_uv, choose(a_reflected, n - 2 * k, 2 * k - n), v - u);
  W result;
  if (!twice) {
    // Only one difference, because it takes longer than the rest.
    bool by_n = in_n > 0;
    W difference = digamma_between<T>(
        choose(by_n, w, u), choose(by_n, u, v), choose(by_n, to_u, to_v));
    result = choose(by_n, waves.by_x, waves.by_y) + waves.value * difference;
  } else {
    Rates<W> log = {W(0), W(0), W(0), W(0), W(0)};
    log.by_x = digamma_between<T>(w, u, to_u);
    log.by_y = digamma_between<T>(u, v, to_v);
    W prime_u =
        choose(a_reflected, trigamma<T, true>(u), -trigamma<T, true>(u));
    W prime_v =
        choose(b_reflected, trigamma<T, true>(v), -trigamma<T, true>(v));
    W prime_w =
        choose(y_reflected, -trigamma<T, true>(w), trigamma<T, true>(w));
    bool up = to_u >= 0;
    W change =
        wide_trigamma_difference<T, true>(choose(up, w, u), math::fabs(to_u));
    change = choose(up != y_reflected, change, -change);
    log.by_xx = choose(same_wu, change, prime_w + prime_u);
    log.by_xy = -prime_u;
    W log_yy = prime_u + prime_v;

    W pi = MLXOPS_TABLE(pi)[0];
    W curved_a = choose(a_reflected, -(pi * pi) * sine_a, W(0));
    W curved_b = choose(b_reflected, -(pi * pi) * sine_b, W(0));
    W cotangent = cosine_y * over_y;
    W curved_y = choose(
        y_reflected, (pi * pi + 2 * cotangent * cotangent) * over_y, W(0));
    left.by_xx = choose(a_reflected, curved_a, curved_y);
    left.by_xx = choose(pair, -2 * left.by_x * cotangent, left.by_xx);
    left.by_xy = choose(pair, math::cospi(k) * over_y * over_y, -curved_a);
    W left_yy = curved_a * over_y;
    waves.by_xx = left.by_xx * sine;
    waves.by_xy = left.by_xy * sine + left.by_x * cosine;
    W waves_yy =
        left_yy * sine + 2 * left.by_y * cosine + left.value * curved_b;
    // Rates by k in both places.
    Rates<W> waves_k = {waves.value, waves.by_y, waves_yy, W(0), W(0)};
    Rates<W> log_k = {W(0), log.by_y, log_yy, W(0), W(0)};
    W by_nk = mixed_derivative(waves, log);
    W by_kk = second_derivative(waves_k, log_k);
    W by_nn = second_derivative(waves, log);
    W by_k = choose(in_n == 1, by_nk, by_kk);
    result = choose(in_n == 2, by_nn, by_k);
  }
  // In two steps: the product of the factors may be too small for floats.
  W middle = math::rint(size.exponent * 0.5f);
  W part = unscaled(Scaled<W>{size.x * quotient, middle});
  W product = unscaled(Scaled<W>{part * result, size.exponent - middle});
  result = choose(result == 0, W(0), product);
  return choose(pole_at(y) > 0, W(math::nan()), result);
}

} // namespace detail

/** The derivative of binom(n, k) with respect to n or, if in_n is 0, to k. */
template <typename T>
T binom_slope(int in_n, T n, T k) {
  return static_cast<T>(detail::binom_derivative<T, false>(in_n, n, k));
}

/**
 * The second derivative of binom(n, k): in_n times with respect to n, and else
 * to k.
 */
template <typename T>
T binom_curvature(int in_n, T n, T k) {
  return static_cast<T>(detail::binom_derivative<T, true>(in_n, n, k));
}

} // namespace special
} // namespace mlxops
