// The regularized incomplete gamma functions P(a, x), Q(a, x) and beta function
// I_x(a, b), and their derivatives with respect to every argument. Numbers such
// as (8.12.3) are equations of the Digital Library of Mathematical Functions,
// https://dlmf.nist.gov.
//
// Of two complementary parts the smaller one, the tail, is computed:
//
//   parameters large, x near the middle   an expansion that is uniform in x
//   x small                               a power series
//   otherwise                             a continued fraction
//
// A tail is a power such as x^a exp(-x), prepared so that nothing cancels,
// times a sum or fraction. All functions are templates over the type N of their
// numbers: with `Dual` numbers, which carry a derivative, the same code
// computes the derivative with respect to a parameter. This is stable, because
// in a tail the derivatives of the power and of the sum or fraction have the
// same sign, except for b < 1, where they cancel by a small factor.
//
// Results in double have relative errors of about 1e-15, and up to 1e-14 if
// they are 1 minus the power for a or b below 1. The power of a tail adds as
// much error as rounding its arguments: 1e-13 for results of 1e-300.

#pragma once

#include "exp_log.h"
#include "incomplete_coefficients.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace math = mlxgen::math;

namespace incomplete_detail {

using mlxgen::wide;

///////////////////////////////////////////////////////////////////////////////
// Numbers with a derivative
///////////////////////////////////////////////////////////////////////////////

/** A number and its derivative with respect to some parameter. */
template <typename W>
struct Dual {
  W value;
  W rate;

  explicit Dual(W x) : value(x), rate(0.0f) {}
  Dual(W x, W derivative) : value(x), rate(derivative) {}

  friend Dual operator-(Dual x) {
    return Dual(-x.value, -x.rate);
  }
  friend Dual operator+(Dual x, Dual y) {
    return Dual(x.value + y.value, x.rate + y.rate);
  }
  friend Dual operator+(Dual x, W y) {
    return Dual(x.value + y, x.rate);
  }
  friend Dual operator+(W x, Dual y) {
    return Dual(x + y.value, y.rate);
  }
  friend Dual operator-(Dual x, Dual y) {
    return Dual(x.value - y.value, x.rate - y.rate);
  }
  friend Dual operator-(Dual x, W y) {
    return Dual(x.value - y, x.rate);
  }
  friend Dual operator-(W x, Dual y) {
    return Dual(x - y.value, -y.rate);
  }
  friend Dual operator*(Dual x, Dual y) {
    return Dual(x.value * y.value, x.value * y.rate + x.rate * y.value);
  }
  friend Dual operator*(Dual x, W y) {
    return Dual(x.value * y, x.rate * y);
  }
  friend Dual operator*(W x, Dual y) {
    return y * x;
  }
  friend Dual operator/(Dual x, Dual y) {
    W quotient = x.value / y.value;
    return Dual(quotient, (x.rate - quotient * y.rate) / y.value);
  }
  friend Dual operator/(Dual x, W y) {
    return Dual(x.value / y, x.rate / y);
  }
  friend Dual operator/(W x, Dual y) {
    W quotient = x / y.value;
    return Dual(quotient, -quotient * y.rate / y.value);
  }
};

// Operations that are common to plain numbers and those with a derivative.

template <typename W>
W value_of(W x) {
  return x;
}
template <typename W>
W value_of(Dual<W> x) {
  return x.value;
}
template <typename W>
W rate_of(W) {
  return W(0.0f);
}
template <typename W>
W rate_of(Dual<W> x) {
  return x.rate;
}

/** A number of the first argument's type. */
template <typename W>
W number_like(W, W value, W) {
  return value;
}
template <typename W>
Dual<W> number_like(Dual<W>, W value, W rate) {
  return Dual<W>(value, rate);
}

template <typename T, typename N>
N log1p_of(N x) {
  return number_like(
      x, math::log1p(value_of(x)), rate_of(x) / (1 + value_of(x)));
}
/** exp(x) and exp(x) - 1, both to full relative accuracy. */
template <typename N>
struct Exponential {
  N value;
  N less_1;
};

template <typename T, typename N>
Exponential<N> exponential(N x) {
  auto less_1 = math::expm1(value_of(x));
  auto value = less_1 + 1;
  if (value_of(x) < -0.5f) {
    value = math::exp(value_of(x));
    less_1 = value - 1;
  }
  auto rate = rate_of(x) * value;
  return Exponential<N>{
      number_like(x, value, rate), number_like(x, less_1, rate)};
}

template <typename N>
N sqrt_of(N x) {
  auto y = math::sqrt(value_of(x));
  return number_like(x, y, rate_of(x) / (2 * y));
}

/** A number from a table. */
#ifdef MLXGEN_TWOFOLD
inline mlxgen::twofold entry(MLXGEN_IN_CONSTANT const mlxgen::Pair& c) {
  return mlxgen::twofold(c.hi, c.lo);
}
#endif
#ifndef __METAL_VERSION__
inline double entry(const double& c) {
  return c;
}
#endif

/** yes or no. Metal's ?: cannot mix variables and results of calls. */
template <typename N>
N choose(bool condition, N yes, N no) {
  return condition ? yes : no;
}

/** c[0] + c[1] x + c[2] x^2 + ... */
template <typename N, typename C, int n>
N polynomial_of(MLXGEN_IN_CONSTANT const C (&c)[n], N x) {
  N y = N(entry(c[n - 1]));
  for (int i = n - 2; i >= 0; --i) {
    y = y * x + entry(c[i]);
  }
  return y;
}

///////////////////////////////////////////////////////////////////////////////
// Gamma functions and powers
///////////////////////////////////////////////////////////////////////////////

// The relative size of a series' term or a fraction's change that is
// negligible.
template <typename T>
struct Limits {
  // Below exp(-exponent) a tail is zero in T.
  static float exponent() {
    return 760;
  }
  static float term() {
    return 5e-17f;
  }
  static float change() {
    return 1e-14f;
  }
};
template <>
struct Limits<float> {
  static float exponent() {
    return 120;
  }
  static float term() {
    return 1e-9f;
  }
  static float change() {
    return 1e-8f;
  }
};

// An upper limit: a scan of the whole domain found at most 60 steps.
MLXGEN_NUMBER int most_steps = 200;

// From here on, Gamma is computed by gamma_star.
MLXGEN_NUMBER float large = 8;

/** Gamma(z) / (sqrt(2 pi / z) (z / e)^z) from 1 / z, for z >= large (5.11.3).
 */
template <typename T, typename N>
N gamma_star(N inverse) {
  return polynomial_of(MLXGEN_COEFFICIENTS(T, gamma_star), inverse);
}

/** 1 / Gamma(1 + r) - 1 for 0 <= r <= 1. */
template <typename T, typename N>
N reciprocal_gamma_less_1(N r) {
  N fit = polynomial_of(MLXGEN_COEFFICIENTS(T, reciprocal_gamma), r);
  return r * (1 - r) * fit;
}

// For all z below, with Z = z + 9 (5.5.1, 5.11.3),
//
//   1 / Gamma(1 + z) = (z + 1) ... (z + 8) / Gamma(Z)
//     = exp(Z - z log Z) Z^(-17/2) (z + 1) ... (z + 8) /
//       (sqrt(2 pi) gamma_star(Z)),
//
// without a loop, whose length a processor could not predict.

MLXGEN_NUMBER float shift = 9;

/** (z + 1) ... (z + 8) */
template <typename N>
N rising(N z) {
  N u = z * (z + shift);
  return ((u + 8) * (u + 14)) * ((u + 18) * (u + 20));
}

/** w^(17/2) */
template <typename N>
N rising_power(N w) {
  N w2 = w * w;
  N w4 = w2 * w2;
  return w4 * w4 * sqrt_of(w);
}

/** exp(z log Z - Z) / Gamma(1 + z) from z and 1 / Z. */
template <typename T, typename N>
N reciprocal_gamma(N z, N inverse) {
  return rising(z) * rising_power(inverse) /
      (gamma_star<T>(inverse) * entry(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]));
}

/** log Gamma(1 + r) for 0 <= r <= 1, to full relative accuracy. */
template <typename T, typename N>
N log_gamma_plus_1(N r) {
  return -log1p_of<T>(reciprocal_gamma_less_1<T>(r));
}

/** The deviation of a ratio from 1, in two measures. */
template <typename W>
struct Deviation {
  W phi; // (ratio - 1) - log(ratio), not negative
  W log; // log(ratio)
};

/** For ratio = 1 + t, from the one of both that is given more precisely. */
template <typename T>
Deviation<wide<T>> deviation(wide<T> t, wide<T> ratio) {
  using W = wide<T>;
  if (t < -0.5f || t > 1) {
    W log = math::log(ratio);
    return Deviation<W>{t - log, log};
  }
  // log(1 + t) = 2 atanh(f) (4.6.6), and t - 2 f = f t.
  W f = t / (t + 2);
  W z = f * f;
  W rest = 2 * (z * polynomial_of(MLXGEN_COEFFICIENTS(T, atanh_rest), z));
  return Deviation<W>{f * (t - rest), f * (rest + 2)};
}

/**
 * A factor root * rest * root, in parts: if a float represents a tail
 * inaccurately or not at all, the root of the tail is still an ordinary number.
 * Its logarithmic derivative is that of rest plus slope.
 */
template <typename W, typename N>
struct Scale {
  W root;
  N rest;
  W slope;
};

template <typename W, typename N>
N scaled(Scale<W, N> scale, N x) {
  if (scale.root == 0) {
    // x may be infinite here.
    return N(W(0.0f));
  }
  N y = scale.rest * x;
  W rate = rate_of(y) + value_of(y) * scale.slope;
  return number_like(
      x, scale.root * value_of(y) * scale.root, scale.root * rate * scale.root);
}

/** The part of a distribution below x, or the part above x. */
template <typename N>
struct Tail {
  N part;
  bool below;
};

/** The requested part. */
template <typename T, typename W>
T part_of(Tail<W> tail, bool below) {
  return static_cast<T>(
      choose<W>(tail.below == below, tail.part, 1 - tail.part));
}

/** The derivative of the part below. */
template <typename W>
W rate_of_tail(Tail<Dual<W>> tail) {
  return choose<W>(tail.below, tail.part.rate, -tail.part.rate);
}

///////////////////////////////////////////////////////////////////////////////
// The uniform expansion, for gamma and beta
///////////////////////////////////////////////////////////////////////////////

// Both are distributions with a large parameter nu and a measure zeta of the
// distance of x from the middle, such that their density in zeta is
//
//   sqrt(nu / (2 pi)) exp(-nu zeta^2 / 2) G(nu) f(zeta),
//   f = f_0 + f_1 zeta + ...,  f_0 = 1.
//
// For gamma (8.12.1), nu = a, x = a (1 + d), zeta^2 / 2 = d - log(1 + d). For
// beta, nu = a b / (a + b), x = x0 + x0 y0 d with x0 = a / (a + b) and
// y0 = 1 - x0, and nu zeta^2 / 2 = -a log(x / x0) - b log(y / y0) (8.18.8, with
// another factor). For both f = zeta / d, and its coefficients f_n are
// polynomials in r = y0 - x0; gamma is beta's limit for r = 1. The parts are
//
//   erfc(-+zeta sqrt(nu / 2)) / 2 -+ exp(-nu zeta^2 / 2) S / sqrt(2 pi nu).
//
// Differentiation gives S' - nu zeta S = nu (1 - G f), hence
//
//   S = nu / (nu + b_1) (b_0 + b_1 zeta + b_2 zeta^2 + ...),
//   b_(n-1) = f_n + (n + 1) b_(n+1) / nu,
//
// Temme's recurrence for gamma: Gil, Segura and Temme, "Efficient and accurate
// algorithms for the computation and inversion of the incomplete gamma function
// ratios" (2012), section 2.3.

// From here on, and for |zeta| <= 1, the terms in the tables are sufficient.
MLXGEN_NUMBER float uniform_nu = 12;

/** The recurrence, downward. */
template <typename W, typename N>
struct UniformSum {
  N zeta;
  N inverse; // 1 / nu
  N sum;
  N b0;
  N b1;

  UniformSum(N z, N nu)
      : zeta(z),
        inverse(1 / nu),
        sum(N(W(0.0f))),
        b0(N(W(0.0f))),
        b1(N(W(0.0f))) {}

  /** From b_n and b_(n+1) to b_(n-1) and b_n. */
  void step(int n, N f) {
    N b = f + (W(static_cast<float>(n + 1)) * inverse) * b1;
    b1 = b0;
    b0 = b;
    sum = sum * zeta + b;
  }

  /** The sum is result / (1 + b_1 / nu). */
  N divisor() {
    return 1 + b1 * inverse;
  }
};

template <typename T, typename N>
UniformSum<wide<T>, N> uniform_gamma(N nu, N zeta) {
  using W = wide<T>;
  UniformSum<W, N> series(zeta, nu);
  MLXGEN_IN_CONSTANT const auto& f = MLXGEN_COEFFICIENTS(T, uniform_gamma);
  for (int n = sizeof(f) / sizeof(f[0]) - 1; n > 0; --n) {
    series.step(n, N(entry(f[n])));
  }
  return series;
}

template <typename T, typename N>
UniformSum<wide<T>, N> uniform_beta(N nu, N zeta, N r) {
  using W = wide<T>;
  UniformSum<W, N> series(zeta, nu);
  MLXGEN_IN_CONSTANT const auto& gamma = MLXGEN_COEFFICIENTS(T, uniform_gamma);
  MLXGEN_IN_CONSTANT const auto& c = MLXGEN_COEFFICIENTS(T, uniform_beta);
  int end = sizeof(c) / sizeof(c[0]);
  N square = r * r;
  for (int n = sizeof(gamma) / sizeof(gamma[0]) - 1; n > 0; --n) {
    int begin = end - (n / 2 + 1);
    N f = N(entry(c[end - 1]));
    for (int i = end - 2; i >= begin; --i) {
      f = f * square + entry(c[i]);
    }
    series.step(n, choose<N>(n % 2 == 0, f, f * r));
    end = begin;
  }
  return series;
}

/**
 * The tail. `log` is the derivative of -nu zeta^2 / 2 by the parameter that
 * dual numbers vary; `over_zeta` is `log` divided by zeta, with its limit at 0.
 */
template <typename T, typename W>
Tail<W>
uniform_tail(W nu, W zeta, UniformSum<W, W> series, W half_square, W, W) {
  // exp(z^2) erfc(z) / 2 by a rational function at z^2 = nu zeta^2 / 2, and the
  // correction, over one denominator.
  W v = 1 / (1 + math::sqrt(half_square) / 2);
  W p = v * polynomial_of(MLXGEN_COEFFICIENTS(T, scaled_erfc_p), v);
  W q = 2 * polynomial_of(MLXGEN_COEFFICIENTS(T, scaled_erfc_q), v);
  W divisor = series.divisor() *
      (entry(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]) * math::sqrt(nu));
  bool below = zeta < 0;
  W correction = q * choose<W>(below, -series.sum, series.sum);
  W root = math::exp(-half_square / 2);
  W part = (p * divisor + correction) / (q * divisor);
  return Tail<W>{root * part * root, below};
}

template <typename T, typename W>
Tail<Dual<W>> uniform_tail(
    Dual<W> nu,
    W,
    UniformSum<W, Dual<W>> series,
    W half_square,
    W log,
    W over_zeta) {
  Dual<W> sum = series.sum / series.divisor();
  // The derivative of erfc is elementary, so that no erfc is needed.
  W rate = -over_zeta -
      (log * sum.value - sum.value * nu.rate / (2 * nu.value) + sum.rate);
  W size = entry(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]) * math::sqrt(nu.value);
  W root = math::exp(-half_square / 2);
  return Tail<Dual<W>>{Dual<W>(W(0.0f), root * (rate / size) * root), true};
}

///////////////////////////////////////////////////////////////////////////////
// Continued fractions
///////////////////////////////////////////////////////////////////////////////

/** Numbers below this can be multiplied by some thousands eight times. */
#ifdef MLXGEN_TWOFOLD
inline float far_from_overflow(mlxgen::twofold) {
  return 1e10f;
}
#endif
#ifndef __METAL_VERSION__
inline float far_from_overflow(double) {
  return 1e38f;
}
#endif

/** 1 / (d_0 + c_1 / (d_1 + c_2 / (d_2 + ...))), by the recurrences (1.12.5). */
template <typename W, typename N>
struct Fraction {
  N top;
  N top_before;
  N bottom;
  N bottom_before;

  explicit Fraction(N d)
      : top(N(W(1.0f))),
        top_before(N(W(0.0f))),
        bottom(d),
        bottom_before(N(W(1.0f))) {}

  void step(N c, N d) {
    N next = d * top + c * top_before;
    top_before = top;
    top = next;
    next = d * bottom + c * bottom_before;
    bottom_before = bottom;
    bottom = next;
  }

  /**
   * Return true if the value has converged since the last call; its derivative
   * is compared with weight * value.
   */
  bool settle(MLXGEN_OUT(N) last, W weight, float tolerance) {
    N value = top / bottom;
    N change = value - last;
    last = value;
    if (!(math::fabs(value_of(bottom)) < far_from_overflow(weight))) {
      N factor = 1 / bottom;
      top = value;
      top_before = top_before * factor;
      bottom_before = bottom_before * factor;
      bottom = N(W(1.0f));
    }
    W size = math::fabs(value_of(value));
    W rate = math::fabs(rate_of(value)) + weight * size;
    return !(math::fabs(value_of(change)) > tolerance * size) &&
        !(math::fabs(rate_of(change)) > tolerance * rate);
  }
};

// Steps between two convergence tests. The terms of all fractions here are
// below some thousands, so that nothing overflows in between.
MLXGEN_NUMBER int steps_per_look = 4;

///////////////////////////////////////////////////////////////////////////////
// Incomplete gamma functions
///////////////////////////////////////////////////////////////////////////////

/** x^a exp(-x) / Gamma(a + 1), for small or moderate a. */
template <typename T, typename N>
Scale<wide<T>, N> small_gamma_scale(N a, wide<T> x) {
  using W = wide<T>;
  W a_value = value_of(a);
  N inverse = 1 / (a + shift);
  W log = math::log(x * value_of(inverse));
  W exponent = a_value * log + ((a_value - x) + shift);
  return Scale<W, N>{
      math::exp(exponent / 2),
      reciprocal_gamma<T>(a, inverse),
      log + shift * value_of(inverse)};
}

/** The same for a >= large, from the deviation of x / a from 1. */
template <typename T, typename N>
Scale<wide<T>, N> large_gamma_scale(N a, Deviation<wide<T>> x) {
  using W = wide<T>;
  W root_two_pi = entry(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]);
  return Scale<W, N>{
      math::exp(value_of(a) * x.phi * -0.5f),
      1 / (root_two_pi * sqrt_of(a) * gamma_star<T>(1 / a)),
      x.log};
}

/** The sum of x^n / ((a + 1) ... (a + n)), n = 0, 1, ...; (8.7.1). */
template <typename T, typename N>
N gamma_series(N a, wide<T> x) {
  using W = wide<T>;
  N sum = N(W(1.0f));
  N term = sum;
  N d = a;
  W x4 = x * x * (x * x);
  for (int n = 0; n < most_steps; n += 4) {
    // Four terms with one division, which does not wait for the previous ones.
    N d1 = d + 1;
    N d2 = d + 2;
    N d3 = d + 3;
    d = d + 4;
    N d34 = d3 * d;
    N d234 = d2 * d34;
    N inverse = 1 / (d1 * d234);
    sum = sum + term * (inverse * (x * (d234 + x * (d34 + x * (d + x)))));
    term = term * (x4 * inverse);
    if (math::fabs(value_of(term)) < Limits<T>::term() * value_of(sum) &&
        !(math::fabs(rate_of(term)) >
          Limits<T>::term() * math::fabs(rate_of(sum)))) {
      break;
    }
  }
  return sum;
}

/** Gamma(a, x) / (x^a exp(-x)); (8.9.2). */
template <typename T, typename N>
N gamma_fraction(N a, wide<T> x, wide<T> weight) {
  using W = wide<T>;
  N d = (x - a) + 1;
  Fraction<W, N> fraction(d);
  N last = N(W(0.0f));
  for (int n = 1; n < most_steps; ++n) {
    W w = W(static_cast<float>(n));
    d = d + 2;
    fraction.step(w * (a - w), d);
    if (n % steps_per_look == 0 &&
        fraction.settle(last, weight, Limits<T>::change())) {
      break;
    }
  }
  return last;
}

/**
 * For a <= 1, x <= 2: Q(a, x) from P(a, x) = x^a / Gamma(1 + a) (1 + a S)
 * without the difference from 1; S is the sum of (-x)^n / (n! (a + n)) for n >=
 * 1 (8.7.1).
 */
template <typename T, typename N>
Tail<N> gamma_near_zero(N a, wide<T> x) {
  using W = wide<T>;
  N v = a * math::log(x) - log_gamma_plus_1<T>(a);
  W power = -x;
  N sum = power / (a + 1);
  for (int n = 2; n < most_steps; ++n) {
    W w = W(static_cast<float>(n));
    power = power * (-x / w);
    sum = sum + power / (a + w);
    if (math::fabs(power) < Limits<T>::term() * math::fabs(value_of(sum))) {
      break;
    }
  }
  Exponential<N> e = exponential<T>(v);
  N share = a * sum;
  N above = -e.less_1 - e.value * share;
  bool below = value_of(above) > 0.5f;
  return Tail<N>{choose<N>(below, e.value * (share + 1), above), below};
}

/** For finite a >= 0 and x > 0. */
template <typename T, typename N>
Tail<N> incomplete_gamma(N a, wide<T> x) {
  using W = wide<T>;
  W a_value = value_of(a);
  if (a_value >= uniform_nu) {
    W t = (x - a_value) / a_value;
    Deviation<W> from_a = deviation<T>(t, x / a_value);
    W half_square = a_value * from_a.phi;
    bool below = t < 0;
    if (half_square > Limits<T>::exponent()) {
      return Tail<N>{N(W(0.0f)), below};
    }
    W zeta = math::sqrt(2 * from_a.phi);
    if (zeta <= 1) {
      zeta = math::copysign(zeta, t);
      W over_zeta = t == 0 ? W(1.0f) : from_a.log / zeta;
      N zeta_of_a = number_like(a, zeta, -(over_zeta + zeta / 2) / a_value);
      return uniform_tail<T>(
          a,
          zeta,
          uniform_gamma<T>(a, zeta_of_a),
          half_square,
          from_a.log,
          over_zeta);
    }
    Scale<W, N> scale = large_gamma_scale<T>(a, from_a);
    N part =
        below ? gamma_series<T>(a, x) : a * gamma_fraction<T>(a, x, from_a.log);
    return Tail<N>{scaled(scale, part), below};
  }
  if (a_value <= 1 && x <= 2) {
    return gamma_near_zero<T>(a, x);
  }
  bool below = x < a_value + 1;
  if (!below && x > 2 * Limits<T>::exponent()) {
    return Tail<N>{N(W(0.0f)), false};
  }
  Scale<W, N> scale = small_gamma_scale<T>(a, x);
  N part = below ? gamma_series<T>(a, x) : a * gamma_fraction<T>(a, x, W(1.0f));
  return Tail<N>{scaled(scale, part), below};
}

/** The part of the gamma distribution below x, or above. */
template <typename T>
T gamma_part(T a, T x, bool want_below) {
  if (!(a >= 0 && x >= 0)) {
    return math::nan();
  }
  T zero = want_below ? 0 : 1;
  T one = want_below ? 1 : 0;
  bool a_infinite = a == math::infinity();
  bool x_infinite = x == math::infinity();
  if ((a == 0 && x == 0) || (a_infinite && x_infinite)) {
    return math::nan();
  }
  if (x == 0 || a_infinite) {
    return zero;
  }
  if (a == 0 || x_infinite) {
    return one;
  }
  return part_of<T>(incomplete_gamma<T>(wide<T>(a), wide<T>(x)), want_below);
}

///////////////////////////////////////////////////////////////////////////////
// Incomplete beta function
///////////////////////////////////////////////////////////////////////////////

/**
 * The position of x: y = 1 - x, and the middle is x0 = a / (a + b). The smaller
 * one of x and y is exact, and everything is computed from it.
 */
template <typename W>
struct Place {
  W x;
  W y;
  W excess; // a y - b x, which is (a + b) (x0 - x)
};

/** a - (a + b) x. In double, with the rounding errors of the sum and product.
 */
template <typename W>
W excess_of(W a, W b, W x) {
  return a - (a + b) * x;
}
#ifndef __METAL_VERSION__
inline double excess_of(double a, double b, double x) {
  double s = a + b;
  double part = s - a;
  double rest = (a - (s - part)) + (b - part);
  double product = s * x;
  return (a - product) - (std::fma(s, x, -product) + rest * x);
}
#endif

template <typename W>
Place<W> place_of(W a, W b, W x, W y) {
  return Place<W>{x, y, x < y ? excess_of(a, b, x) : -excess_of(b, a, y)};
}

template <typename W>
Place<W> mirrored(Place<W> at) {
  return Place<W>{at.y, at.x, -at.excess};
}

/**
 * x^a y^b / B(a, b).
 *
 * Stirling's formula for Gamma(a + b), and for Gamma(a) and Gamma(b) if their
 * argument is large, changes the powers to exp(-a phi(t) - b phi(u)), where 1 +
 * t = x / x0, 1 + u = y / y0 and a t + b u = 0.
 */
template <typename T, typename N>
Scale<wide<T>, N> beta_scale(N a, N b, Place<wide<T>> at) {
  using W = wide<T>;
  if (value_of(a) >= large && value_of(b) < large) {
    N swap = a;
    a = b;
    b = swap;
    at = mirrored(at);
  }
  W a_value = value_of(a);
  W b_value = value_of(b);
  W s_value = a_value + b_value;
  N s = a + b;
  N unscaled = a * (b / s);
  W root_two_pi = entry(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]);
  N inverse_a = 1 / (a + shift);
  if (b_value < large) {
    N inverse_b = 1 / (b + shift);
    N inverse_s = 1 / (s + shift);
    N ratio = (s + shift) * inverse_a * inverse_b;
    W log_x = math::log(at.x * (s_value + shift) * value_of(inverse_a));
    W log_y = math::log(at.y * (s_value + shift) * value_of(inverse_b));
    W exponent = a_value * log_x + b_value * log_y + shift;
    N above = rising(a) * rising(b) * gamma_star<T>(inverse_s);
    N below = rising(s) * (gamma_star<T>(inverse_a) * root_two_pi) *
        gamma_star<T>(inverse_b);
    W a_slope = log_x + shift * value_of(inverse_a - inverse_s);
    W b_slope = log_y + shift * value_of(inverse_b - inverse_s);
    return Scale<W, N>{
        math::exp(exponent / 2),
        unscaled * rising_power(ratio) * (above / below),
        rate_of(a) * a_slope + rate_of(b) * b_slope};
  }
  W u = at.excess / b_value;
  Deviation<W> from_y = deviation<T>(u, at.y * s_value / b_value);
  N ratio = gamma_star<T>(1 / s) / gamma_star<T>(1 / b);
  if (a_value < large) {
    W sx = s_value * at.x;
    W log_x = math::log(sx * value_of(inverse_a));
    W exponent =
        a_value * log_x + ((a_value - sx) + shift) - b_value * from_y.phi;
    W a_slope = log_x + shift * value_of(inverse_a);
    return Scale<W, N>{
        math::exp(exponent / 2),
        a * sqrt_of(b / s) * reciprocal_gamma<T>(a, inverse_a) * ratio,
        rate_of(a) * a_slope + rate_of(b) * from_y.log};
  }
  W t = -at.excess / a_value;
  Deviation<W> from_x = deviation<T>(t, at.x * s_value / a_value);
  W exponent = -a_value * from_x.phi - b_value * from_y.phi;
  return Scale<W, N>{
      math::exp(exponent / 2),
      sqrt_of(unscaled) * ratio / (root_two_pi * gamma_star<T>(1 / a)),
      rate_of(a) * from_x.log + rate_of(b) * from_y.log};
}

/**
 * I_x(a, b) B(a, b) / (x^a y^b) for x left of the middle: the even part of
 * (8.17.22), which Didonato and Morris give in "Algorithm 708: Significant
 * digit computation of the incomplete beta function ratios" (1992).
 */
template <typename T, typename N>
N beta_fraction(N a, N b, Place<wide<T>> at, wide<T> weight) {
  using W = wide<T>;
  W x = at.x;
  W two_less_x = at.y + 1;
  N s = a + b;
  N excess = number_like(a, at.excess, rate_of(a) * at.y - rate_of(b) * x);
  N inverse = 1 / (a + 1);
  Fraction<W, N> fraction(a * inverse * (excess + 1));
  N last = N(W(0.0f));
  for (int m = 1; m < most_steps; ++m) {
    W w = W(static_cast<float>(m));
    // m (b - m) x / (a + 2 m - 1)
    N upper = (b - w) * x * w * inverse;
    N c = upper * ((a + (w - 1)) * inverse) * ((s + (w - 1)) * x);
    inverse = 1 / (a + (2 * w + 1));
    N d = upper + ((a + w) * inverse) * (excess + (1 + w * two_less_x)) + w;
    fraction.step(c, d);
    if (m % steps_per_look == 0 &&
        fraction.settle(last, weight, Limits<T>::change())) {
      break;
    }
  }
  return last;
}

/** log(Gamma(z + a) / Gamma(z)) for 0 <= a <= 1 <= z, divided by a. */
template <typename T, typename N>
N log_gamma_ratio(N z, N a) {
  using W = wide<T>;
  // Up to large z: the product of 1 + a / (z + j), minus 1.
  N product = N(W(0.0f));
  while (value_of(z) < large) {
    N factor = a / z;
    product = product + factor + product * factor;
    z = z + 1;
  }
  N v = a / z;
  Deviation<W> ratio = deviation<T>(value_of(v), 1 + value_of(v));
  N phi =
      number_like(a, ratio.phi, rate_of(v) * value_of(v) / (1 + value_of(v)));
  N log = number_like(a, ratio.log, rate_of(v) / (1 + value_of(v)));
  // gamma_star(z + a) - gamma_star(z): the difference of the polynomial,
  // divided by the difference of its arguments.
  MLXGEN_IN_CONSTANT const auto& c = MLXGEN_COEFFICIENTS(T, gamma_star);
  N w0 = 1 / z;
  N w1 = 1 / (z + a);
  int last = sizeof(c) / sizeof(c[0]) - 1;
  N star = N(entry(c[last]));
  N slope = star - star;
  for (int i = last - 1; i >= 0; --i) {
    slope = slope * w1 + star;
    star = star * w0 + entry(c[i]);
  }
  N change = -(slope * v * w1) / star;
  N log_z = number_like(a, math::log(value_of(z)), rate_of(z) / value_of(z));
  return a * log_z + (a - 0.5f) * log - z * phi + log1p_of<T>(change) -
      log1p_of<T>(product);
}

/**
 * For a <= 1, x <= 1/2, b x <= 2: both parts from
 * I_x(a, b) = b / (a + b) exp(v) (1 + a S) (8.17.7, 15.2.1), with
 * exp(v) = x^a Gamma(1 + a + b) / (Gamma(1 + a) Gamma(1 + b)) and
 * S = the sum of (1 - b)_n x^n / (n! (a + n)) for n >= 1.
 */
template <typename T, typename N>
Tail<N> beta_near_zero(N a, N b, wide<T> x) {
  using W = wide<T>;
  N v =
      a * math::log(x) + log_gamma_ratio<T>(b + 1, a) - log_gamma_plus_1<T>(a);
  N power = (1 - b) * x;
  N sum = power / (a + 1);
  for (int n = 2; n < most_steps; ++n) {
    W w = W(static_cast<float>(n));
    power = power * ((w - b) * (x / w));
    N term = power / (a + w);
    sum = sum + term;
    if (!(math::fabs(value_of(term)) >
          Limits<T>::term() * math::fabs(value_of(sum))) &&
        !(math::fabs(rate_of(term)) >
          Limits<T>::term() * math::fabs(rate_of(sum)))) {
      break;
    }
  }
  N s = a + b;
  N share = a * sum;
  Exponential<N> e = exponential<T>(v);
  N above = a / s - b / s * (e.less_1 + e.value * share);
  bool below = value_of(above) > 0.5f;
  return Tail<N>{choose<N>(below, b / s * e.value * (share + 1), above), below};
}

/** For finite a, b >= 0, not both 0, and 0 < x < 1, y = 1 - x. */
template <typename T, typename N>
Tail<N> incomplete_beta(N a, N b, wide<T> x, wide<T> y) {
  using W = wide<T>;
  W a_value = value_of(a);
  W b_value = value_of(b);
  W s = a_value + b_value;
  Place<W> at = place_of(a_value, b_value, x, y);
  W nu = a_value * (b_value / s);
  if (nu >= uniform_nu) {
    Deviation<W> from_x = deviation<T>(-at.excess / a_value, x * s / a_value);
    Deviation<W> from_y = deviation<T>(at.excess / b_value, y * s / b_value);
    W half_square = a_value * from_x.phi + b_value * from_y.phi;
    bool below = at.excess > 0;
    if (half_square > Limits<T>::exponent()) {
      return Tail<N>{N(W(0.0f)), below};
    }
    W zeta = math::sqrt(2 * (half_square / nu));
    if (zeta <= 1) {
      zeta = math::copysign(zeta, -at.excess);
      W x0 = a_value / s;
      W y0 = b_value / s;
      // Derivatives of nu and of -nu zeta^2 / 2 by the varied parameter.
      W nu_rate = rate_of(a) * y0 * y0 + rate_of(b) * x0 * x0;
      W log = rate_of(a) * from_x.log + rate_of(b) * from_y.log;
      W over_zeta =
          at.excess == 0 ? rate_of(a) * y0 - rate_of(b) * x0 : log / zeta;
      N nu_of = number_like(a, nu, nu_rate);
      N zeta_of = number_like(a, zeta, -(over_zeta + nu_rate * zeta / 2) / nu);
      N r =
          number_like(a, y0 - x0, 2 * (rate_of(b) * x0 - rate_of(a) * y0) / s);
      return uniform_tail<T>(
          nu_of,
          zeta,
          uniform_beta<T>(nu_of, zeta_of, r),
          half_square,
          log,
          over_zeta);
    }
  }
  if (a_value <= 1 && x <= 0.5f && b_value * x <= 2) {
    return beta_near_zero<T>(a, b, x);
  }
  if (b_value <= 1 && y <= 0.5f && a_value * y <= 2) {
    Tail<N> tail = beta_near_zero<T>(b, a, y);
    return Tail<N>{tail.part, !tail.below};
  }
  Scale<W, N> scale = beta_scale<T>(a, b, at);
  bool below = x <= (a_value + 1) / (s + 2);
  if (scale.root == 0) {
    return Tail<N>{N(W(0.0f)), below};
  }
  // The derivative of the scale's logarithm, for the size of the whole.
  W weight = math::fabs(scale.slope);
  N part = below ? beta_fraction<T>(a, b, at, weight)
                 : beta_fraction<T>(b, a, mirrored(at), weight);
  return Tail<N>{scaled(scale, part), below};
}

/** A factor for a and b whose sum would overflow. */
template <typename T>
wide<T> huge_scale(T a, T b) {
  return wide<T>(a + b == math::infinity() ? 0.25f : 1.0f);
}

/** True if I_x(a, b) is NaN, as in SciPy, for arguments that are not NaN. */
template <typename T>
bool beta_undefined(T a, T b, T x) {
  bool valid = a >= 0 && b >= 0 && x >= 0 && x <= 1;
  return !valid || (a == b && (a == 0 || a == math::infinity()));
}

template <typename T>
T beta_part(T a, T b, T x, bool want_below) {
  using W = wide<T>;
  if (beta_undefined(a, b, x)) {
    return math::nan();
  }
  T zero = want_below ? 0 : 1;
  T one = want_below ? 1 : 0;
  if (x == 0 || x == 1) {
    return x == 0 ? zero : one;
  }
  if (a == 0 || b == math::infinity()) {
    return one;
  }
  if (b == 0 || a == math::infinity()) {
    return zero;
  }
  W scale = huge_scale(a, b);
  return part_of<T>(
      incomplete_beta<T>(W(a) * scale, W(b) * scale, W(x), 1 - W(x)),
      want_below);
}

/** The derivative of I_x(a, b) by a or by b. */
template <typename T>
T beta_rate(T a, T b, T x, bool in_a) {
  using W = wide<T>;
  if (beta_undefined(a, b, x)) {
    return math::nan();
  }
  if (x == 0 || x == 1 || a == math::infinity() || b == math::infinity()) {
    return 0;
  }
  W scale = huge_scale(a, b);
  W a_value = W(a) * scale;
  W b_value = W(b) * scale;
  // By the logarithm of a large parameter: the derivative of 1 / a by a may
  // underflow where the result does not.
  W varied = choose<W>(in_a, a_value, b_value);
  W unit = choose<W>(varied > 1, varied, W(1.0f));
  Tail<Dual<W>> tail = incomplete_beta<T>(
      Dual<W>(a_value, choose<W>(in_a, unit, W(0.0f))),
      Dual<W>(b_value, choose<W>(in_a, W(0.0f), unit)),
      W(x),
      1 - W(x));
  return static_cast<T>(rate_of_tail(tail) / unit * scale);
}

/** x^(a-power) exp(-x) / Gamma(a) for a power of 1 or 2. */
template <typename T>
wide<T> gamma_density(wide<T> a, wide<T> x, int power) {
  using W = wide<T>;
  if (a >= uniform_nu) {
    W ratio = x / a;
    Scale<W, W> scale =
        large_gamma_scale<T>(a, deviation<T>((x - a) / a, ratio));
    W density = scaled(scale, 1 / ratio);
    return power == 1 || density == 0 ? W(density) : density / x;
  }
  // Without the factors x, which can underflow when the result does not.
  W inverse = 1 / (a + shift);
  W exponent =
      (a - power) * math::log(x) + a * math::log(inverse) + ((a - x) + shift);
  W root = math::exp(exponent / 2);
  W rest = a * reciprocal_gamma<T>(a, inverse);
  return root * rest * root;
}

} // namespace incomplete_detail

/**
 * P(a, x), the lower incomplete gamma function divided by Gamma(a) (8.2.4). NaN
 * for negative arguments, and if both are 0 or both infinite.
 */
template <typename T>
T gammainc(T a, T x) {
  return incomplete_detail::gamma_part(a, x, true);
}

/** Q(a, x) = 1 - P(a, x), the upper incomplete gamma function. */
template <typename T>
T gammaincc(T a, T x) {
  return incomplete_detail::gamma_part(a, x, false);
}

/** The derivative of P(a, x) by a; never positive. At a = 0, from the right. */
template <typename T>
T gammainc_grad_a(T a, T x) {
  using namespace incomplete_detail;
  using W = wide<T>;
  bool infinite = a == math::infinity() || x == math::infinity();
  if (!(a >= 0 && x >= 0) || (a == 0 && x == 0) || (a == x && infinite)) {
    return math::nan();
  }
  if (x == 0 || infinite) {
    return 0;
  }
  return static_cast<T>(
      rate_of_tail(incomplete_gamma<T>(Dual<W>(W(a), W(1.0f)), W(x))));
}

/** The derivative of P(a, x) by x: x^(a-1) exp(-x) / Gamma(a). */
template <typename T>
T gammainc_grad_x(T a, T x) {
  using namespace incomplete_detail;
  using W = wide<T>;
  bool infinite = a == math::infinity() || x == math::infinity();
  if (!(a >= 0 && x >= 0) || (a == x && (a == 0 || infinite))) {
    return math::nan();
  }
  if (x == 0) {
    return a > 1 ? T(0) : a == 1 ? T(1) : T(math::infinity());
  }
  if (a == 0 || infinite) {
    return 0;
  }
  return static_cast<T>(gamma_density<T>(W(a), W(x), 1));
}

/** The second derivative of P(a, x) by x. */
template <typename T>
T gammainc_curvature_x(T a, T x) {
  using namespace incomplete_detail;
  using W = wide<T>;
  bool infinite = a == math::infinity() || x == math::infinity();
  if (!(a >= 0 && x >= 0) || (a == x && (a == 0 || infinite))) {
    return math::nan();
  }
  if (x == 0) {
    T near = a > 1 ? T(math::infinity()) : T(-math::infinity());
    T end = a == 1 ? T(-1) : T(1);
    return a > 2 || a == 0 ? T(0) : a == 1 || a == 2 ? end : near;
  }
  if (a == 0 || infinite) {
    return 0;
  }
  W rest = (W(a) - 1) - W(x);
  return static_cast<T>(gamma_density<T>(W(a), W(x), 2) * rest);
}

/**
 * I_x(a, b), the incomplete beta function divided by B(a, b) (8.17.2). NaN for
 * negative a or b, for x outside of [0, 1], and if a and b are both 0 or both
 * infinite.
 */
template <typename T>
T betainc(T a, T b, T x) {
  return incomplete_detail::beta_part(a, b, x, true);
}

/** 1 - I_x(a, b). */
template <typename T>
T betaincc(T a, T b, T x) {
  return incomplete_detail::beta_part(a, b, x, false);
}

/** The derivative of I_x(a, b) by a; never positive. */
template <typename T>
T betainc_grad_a(T a, T b, T x) {
  return incomplete_detail::beta_rate(a, b, x, true);
}

/** The derivative of I_x(a, b) by b; never negative. */
template <typename T>
T betainc_grad_b(T a, T b, T x) {
  return incomplete_detail::beta_rate(a, b, x, false);
}

/** The derivative of I_x(a, b) by x: x^(a-1) (1-x)^(b-1) / B(a, b). */
template <typename T>
T betainc_grad_x(T a, T b, T x) {
  using namespace incomplete_detail;
  using W = wide<T>;
  if (beta_undefined(a, b, x)) {
    return math::nan();
  }
  if (x == 0 || x == 1) {
    T near = x == 0 ? a : b;
    T other = x == 0 ? b : a;
    return near > 1 ? T(0) : near == 1 ? other : T(math::infinity());
  }
  if (a == 0 || b == 0 || a == math::infinity() || b == math::infinity()) {
    return 0;
  }
  W scale = huge_scale(a, b);
  W a_value = W(a) * scale;
  W b_value = W(b) * scale;
  W y = 1 - W(x);
  Scale<W, W> power =
      beta_scale<T>(a_value, b_value, place_of(a_value, b_value, W(x), y));
  return static_cast<T>(scaled(power, 1 / (W(x) * y)));
}

} // namespace special
} // namespace mlxops
