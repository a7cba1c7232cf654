// Modified Bessel functions of real order, I_v(x) and K_v(x).
//
// I_v for v >= 0 has four methods, whose domains overlap widely:
//
//   large x         Hankel's expansion (10.40.1)
//   large v         the uniform expansion in 1/v (10.41.3)
//   small x         the power series (10.25.2)
//   otherwise       the uniform expansion at v + n, then the recurrence down
//                   (10.29.1), in which nothing cancels
//
// K_v uses Temme's series for x <= 2 and Steed's continued fraction above, both
// for |m| <= 1/2 and followed by the recurrence up, in which nothing cancels
// either; for large v it uses the uniform expansion (10.41.4). Negative orders
// follow by reflection (10.27.2), (10.27.3).
//
// Temme, "On the numerical evaluation of the modified Bessel function of the
// third kind" (1975); Thompson and Barnett, "Coulomb and Bessel functions of
// complex arguments and order" (1986). Numbers such as (10.40.1) are equations
// of the Digital Library of Mathematical Functions, https://dlmf.nist.gov.
//
// Results are computed as a product of a number and e^exponent, because the
// factors can be out of range when the product is not.

#pragma once

#include "bessel.h"
#include "bessel_coefficients.h"
#include "exp_log_coefficients.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace bessel_order_detail {

namespace math = mlxgen::math;
using mlxgen::wide;

/** Constants that depend on the precision of the result. */
template <typename T>
struct Precision {
#ifdef __METAL_VERSION__
  enum : bool { is_float = true };
#else
  enum : bool { is_float = sizeof(T) == sizeof(float) };
#endif
  // The smallest order for the uniform expansion, and its number of terms.
  enum : int { large_order = is_float ? 12 : 30, terms = is_float ? 8 : 12 };
  // The x from which on Hankel's expansion is accurate before it diverges.
  enum : int { large_x = is_float ? 14 : 25 };
  /** The relative size of a negligible term. */
  static float small() {
    return is_float ? 5e-12f : 1e-17f;
  }
};

template <typename T>
inline wide<T> log_of_2() {
  return wide<T>(MLXGEN_COEFFICIENTS(T, log_2_parts)[0]) +
      wide<T>(MLXGEN_COEFFICIENTS(T, log_2_parts)[1]);
}

/** sum of (sign)^k U_k(p) / v^k, 10.41(ii). */
template <typename T>
inline wide<T> debye_sum(wide<T> p, wide<T> signed_v) {
  using W = wide<T>;
  W square = p * p;
  W factor = p / signed_v;
  W power = factor;
  W sum(1.0f);
  int start = 0;
  for (int k = 1; k <= Precision<T>::terms; ++k) {
    W u = MLXGEN_COEFFICIENTS(T, debye)[start + k];
    for (int i = k - 1; i >= 0; --i) {
      u = u * square + W(MLXGEN_COEFFICIENTS(T, debye)[start + i]);
    }
    sum = sum + power * u;
    power = power * factor;
    start += k + 1;
  }
  return sum;
}

/** The common part of the uniform expansions of I_v(x) and K_v(x). */
template <typename W>
struct Uniform {
  W p; // 1 / sqrt(1 + z^2), z = x / v
  W eta; // (10.41.7), times v
  W eta_less_z; // times v
};

template <typename W>
inline Uniform<W> uniform(W v, W x) {
  W z = x / v;
  W root = math::sqrt(1 + z * z);
  // log((1 + root) / z), also accurate for large z
  W logarithm = z <= 1 ? math::log((1 + root) / z)
                       : math::log1p((1 + 1 / (z + root)) / z);
  Uniform<W> out;
  out.p = 1 / root;
  out.eta = v * (root - logarithm);
  out.eta_less_z = v * (1 / (root + z) - logarithm);
  return out;
}

/**
 * number e^(sign eta), or if scaled number e^(sign (eta - x)), as the returned
 * number and an exponent.
 */
template <typename W>
inline W split_exponent(
    W number,
    float sign,
    Uniform<W> at,
    W x,
    bool scaled,
    MLXGEN_OUT(W) exponent) {
  // x is exact and eta is not, so that x is the better exponent.
  bool moderate = math::fabs(at.eta_less_z) < 60;
  if (moderate) {
    exponent = scaled ? W(0) : sign * x;
    return number * math::exp(sign * at.eta_less_z);
  }
  exponent = sign * (scaled ? at.eta_less_z : at.eta);
  return number;
}

/** e^-exponent I_v(x), or e^(-x - exponent) I_v(x); v >= 0 and 0 < x < inf. */
template <typename T>
inline wide<T>
first_kind(wide<T> v, wide<T> x, bool scaled, MLXGEN_OUT(wide<T>) exponent) {
  using W = wide<T>;
  if (x >= static_cast<float>(Precision<T>::large_x) && 2 * x >= v * v) {
    W square = 4 * v * v;
    W term(1.0f);
    W sum(1.0f);
    for (int k = 1; k < 100; ++k) {
      float odd = static_cast<float>(2 * k - 1);
      term = term * ((odd * odd - square) / (8 * k * x));
      sum = sum + term;
      if (math::fabs(term) < Precision<T>::small()) {
        break;
      }
    }
    exponent = scaled ? W(0) : W(x);
    return sum / (W(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]) * math::sqrt(x));
  }
  if (x <= 8 && v < static_cast<float>(Precision<T>::large_order)) {
    // 1 / Gamma(1 + m) for v = m + n, |m| <= 1/2
    W n = math::rint(v);
    W m = v - n;
    W gamma = math::polynomial(MLXGEN_COEFFICIENTS(T, temme_2), m * m) -
        m * math::polynomial(MLXGEN_COEFFICIENTS(T, temme_1), m * m);
    // A power of 2, so that nothing underflows before the result does.
    constexpr float large = 1125899906842624.0f; // 2^50
    W halved = 0.5f * x;
    // The half of a subnormal number may be rounded to 0.
    W power = 2 * halved == x ? math::pow(halved, m)
                              : math::pow(x, m) * math::exp(-m * log_of_2<T>());
    W product = large * gamma * power;
    for (int j = 1; j <= static_cast<int>(n); ++j) {
      product = product * x * (0.5f / (m + j));
    }
    W square = halved * halved;
    W term(1.0f);
    W sum(1.0f);
    for (int k = 1; k < 100; ++k) {
      term = term * (square / (k * (v + k)));
      sum = sum + term;
      if (term < Precision<T>::small() * sum) {
        break;
      }
    }
    exponent = scaled ? -x : W(0);
    return product * sum / large;
  }
  float more = 0;
  while (v + more < static_cast<float>(Precision<T>::large_order)) {
    more += 1;
  }
  W order = v + more;
  Uniform<W> at = uniform(order, x);
  exponent = scaled ? at.eta_less_z : at.eta;
  W factor =
      math::sqrt(at.p / order) / W(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]);
  W sum = debye_sum<T>(at.p, order);
  W number = split_exponent(factor * sum, 1.0f, at, x, scaled, exponent);
  if (more == 0) {
    return number;
  }
  // I for the two orders, relative to the first.
  W above_order = order + 1;
  Uniform<W> next = uniform(above_order, x);
  W above = debye_sum<T>(next.p, above_order) / sum *
      math::sqrt(next.p * order / (at.p * above_order)) *
      math::exp(next.eta_less_z - at.eta_less_z);
  W here(1.0f);
  W twice = 2 / x;
  for (; more > 0; more -= 1) {
    W below = above + (v + more) * twice * here;
    above = here;
    here = below;
  }
  return number * here;
}

/** K_m(x) and K_m+1(x) for |m| <= 1/2, x <= 2. */
template <typename T>
inline void temme_series(
    wide<T> m,
    wide<T> x,
    MLXGEN_OUT(wide<T>) here,
    MLXGEN_OUT(wide<T>) above) {
  using W = wide<T>;
  W gamma_1 = math::polynomial(MLXGEN_COEFFICIENTS(T, temme_1), m * m);
  W gamma_2 = math::polynomial(MLXGEN_COEFFICIENTS(T, temme_2), m * m);
  W halved = 0.5f * x;
  W logarithm =
      2 * halved == x ? -math::log(halved) : log_of_2<T>() - math::log(x);
  W sigma = m * logarithm;
  W up = math::exp(sigma);
  W down = 1 / up;
  W sinh = math::fabs(sigma) < 1
      ? 0.5f * (math::expm1(sigma) - math::expm1(-sigma))
      : 0.5f * (up - down);
  W sinh_ratio = sigma == 0 ? W(1) : sinh / sigma;
  W cosh = 0.5f * (up + down);
  W turn = W(MLXGEN_COEFFICIENTS(T, pi)[0]) * m;
  W sine_ratio = m == 0 ? W(1) : turn / math::sinpi(m);
  W f = sine_ratio * (gamma_1 * cosh + gamma_2 * sinh_ratio * logarithm);
  W p = 0.5f * up / (gamma_2 - m * gamma_1);
  W q = 0.5f * down / (gamma_2 + m * gamma_1);
  W square = 0.25f * x * x;
  W factor(1.0f);
  here = f;
  above = p;
  for (int k = 1; k < 50; ++k) {
    f = (k * f + p + q) / (k * k - m * m);
    factor = factor * (square / k);
    p = p / (k - m);
    q = q / (k + m);
    here = here + factor * f;
    W more = factor * (p - k * f);
    above = above + more;
    if (factor * f < Precision<T>::small() * here &&
        math::fabs(more) < Precision<T>::small() * above) {
      break;
    }
  }
  above = above / x * 2;
}

/** e^x K_m(x) and e^x K_m+1(x) for |m| <= 1/2, x > 2. */
template <typename T>
inline void steed_fraction(
    wide<T> m,
    wide<T> x,
    MLXGEN_OUT(wide<T>) here,
    MLXGEN_OUT(wide<T>) above) {
  using W = wide<T>;
  if (x > 1e10f) {
    // Two terms of (10.40.2): in the fraction, the digits of 1 + x after the
    // point would be missing.
    W factor = W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0]) / math::sqrt(x);
    here = factor * (1 + (m * m - 0.25f) * (0.5f / x));
    above = factor * (1 + ((m + 1) * (m + 1) - 0.25f) * (0.5f / x));
    return;
  }
  W first = 0.25f - m * m;
  W a = -first;
  W b = 2 * (1 + x);
  W d = 1 / b;
  W change = d;
  W h = d;
  W before(0.0f);
  W now(1.0f);
  W c = first;
  W q = first;
  W s = 1 + q * change;
  for (int k = 2; k < 200; ++k) {
    a = a - static_cast<float>(2 * (k - 1));
    c = -(a * c) / static_cast<float>(k);
    if (math::fabs(c) > 1e25f) {
      // c grows like k!, and its factor decreases: scale by 2^64 to stay in
      // float's range.
      c = c * 5.42101086e-20f;
      before = before * 1.84467441e19f;
      now = now * 1.84467441e19f;
    }
    W after = (before - b * now) / a;
    before = now;
    now = after;
    q = q + c * after;
    b = b + 2;
    d = 1 / (b + a * d);
    change = (b * d - 1) * change;
    h = h + change;
    W more = q * change;
    s = s + more;
    if (math::fabs(more) < Precision<T>::small() * s) {
      break;
    }
  }
  here = W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0]) / (math::sqrt(x) * s);
  above = here * ((m + x + 0.5f) - first * h) / x;
}

/** e^-exponent K_v(x), or e^(x - exponent) K_v(x); v >= 0 and 0 < x < inf. */
template <typename T>
inline wide<T>
second_kind(wide<T> v, wide<T> x, bool scaled, MLXGEN_OUT(wide<T>) exponent) {
  using W = wide<T>;
  if (v >= static_cast<float>(Precision<T>::large_order) && 2 * x < v * v) {
    Uniform<W> at = uniform(v, x);
    W number = math::sqrt(at.p / v) *
        W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0]) * debye_sum<T>(at.p, -v);
    return split_exponent(number, -1.0f, at, x, scaled, exponent);
  }
  if (v >= static_cast<float>(Precision<T>::large_order)) {
    // (10.40.2)
    W square = 4 * v * v;
    W term(1.0f);
    W sum(1.0f);
    for (int k = 1; k < 100; ++k) {
      float odd = static_cast<float>(2 * k - 1);
      term = term * ((square - odd * odd) / (8 * k * x));
      sum = sum + term;
      if (math::fabs(term) < Precision<T>::small() * sum) {
        break;
      }
    }
    exponent = scaled ? W(0) : -x;
    return sum * W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0]) / math::sqrt(x);
  }
  W n = math::rint(v);
  W m = v - n;
  W here;
  W above;
  if (x <= 2) {
    temme_series<T>(m, x, here, above);
    exponent = scaled ? W(x) : W(0);
  } else {
    steed_fraction<T>(m, x, here, above);
    exponent = scaled ? W(0) : -x;
  }
  W twice = 2 / x;
  for (int k = 1; k <= static_cast<int>(n); ++k) {
    // If 2 / x overflows, K_m+2 does, too.
    W next =
        k == static_cast<int>(n) ? W(above) : here + (m + k) * twice * above;
    here = above;
    above = next;
  }
  return here;
}

/** number e^exponent; overflows or underflows only if the product does. */
template <typename W>
inline W raised(W number, W exponent) {
  W root = math::exp(0.5f * exponent);
  W product = number * root;
  return root == math::infinity() ? W(product) : product * root;
}

template <typename W>
inline bool is_odd(W whole) {
  W halved = 0.5f * whole;
  return math::rint(halved) != halved;
}

/** I_v(x), or e^-|x| I_v(x). */
template <typename T>
inline wide<T> modified_first(T order, T argument, bool scaled) {
  using W = wide<T>;
  W v = order;
  W x = argument;
  W n = math::rint(v);
  bool whole = v == n;
  if (v != v || x != x || (x < 0 && !whole)) {
    return W(math::nan());
  }
  W u = math::fabs(v);
  W z = math::fabs(x);
  bool reflected = v < 0 && !whole;
  bool negative = x < 0 && is_odd(n);
  W result;
  if (z == math::infinity()) {
    result = u == math::infinity() ? W(math::nan())
        : scaled                   ? W(0)
                                   : W(math::infinity());
  } else if (z == 0) {
    result = reflected
        ? (math::sinpi(u) < 0 ? W(-math::infinity()) : W(math::infinity()))
        : (u == 0 ? W(1) : W(0));
  } else if (u == math::infinity()) {
    result = W(0);
  } else {
    W exponent;
    W number = first_kind<T>(u, z, scaled, exponent);
    result = raised(number, exponent);
    if (reflected) {
      // (10.27.2)
      number = second_kind<T>(u, z, false, exponent);
      exponent = scaled ? exponent - z : W(exponent);
      number =
          number * math::sinpi(u) * W(MLXGEN_COEFFICIENTS(T, two_over_pi)[0]);
      result = result + raised(number, exponent);
    }
  }
  return negative ? -result : W(result);
}

/** K_v(x), or e^x K_v(x). */
template <typename T>
inline wide<T> modified_second(T order, T argument, bool scaled) {
  using W = wide<T>;
  W v = math::fabs(W(order));
  W x = argument;
  bool both = v == math::infinity() && x == math::infinity();
  if (v != v || x != x || x < 0 || both) {
    return W(math::nan());
  }
  if (x == 0 || v == math::infinity()) {
    return W(math::infinity());
  }
  if (x == math::infinity()) {
    return W(0);
  }
  W exponent;
  W number = second_kind<T>(v, x, scaled, exponent);
  return raised(number, exponent);
}

} // namespace bessel_order_detail

/**
 * The modified Bessel function I_v(x) of any real order. NaN for negative x
 * unless the order is an integer.
 */
template <typename T>
T iv(T v, T x) {
  return static_cast<T>(bessel_order_detail::modified_first(v, x, false));
}

/** e^-|x| I_v(x). */
template <typename T>
T ive(T v, T x) {
  return static_cast<T>(bessel_order_detail::modified_first(v, x, true));
}

/** The modified Bessel function K_v(x) of any real order; NaN for negative x.
 */
template <typename T>
T kv(T v, T x) {
  return static_cast<T>(bessel_order_detail::modified_second(v, x, false));
}

/** e^x K_v(x). */
template <typename T>
T kve(T v, T x) {
  return static_cast<T>(bessel_order_detail::modified_second(v, x, true));
}

///////////////////////////////////////////////////////////////////////////////
// Derivatives of the scaled functions
///////////////////////////////////////////////////////////////////////////////

// Those of e^-x I_v(x) and e^x K_v(x) are differences, which cancel for large
// x. There, the terms of Hankel's expansion are differentiated.

namespace bessel_order_detail {

/**
 * The first or second derivative of e^-x I_v(x) for kind = -1, or e^x K_v(x)
 * for kind = 1, for integers v and x >= 25; the second for x >= 16 in float.
 */
template <typename T, int v, int kind, int order>
inline wide<T> hankel_derivative(wide<T> x) {
  using W = wide<T>;
  constexpr int terms = Precision<T>::is_float && order == 1 ? 10 : 20;
  W u = 1 / x;
  constexpr bool second = order == 2;
  W sum = (terms + 0.5f) * (second ? terms + 1.5f : 1.0f);
  MLXOPS_UNROLL
  for (int k = terms; k > 0; --k) {
    int odd = 2 * k - 1;
    W factor = W(static_cast<float>(kind * (4 * v * v - odd * odd))) / (8 * k);
    sum = (k - 0.5f) * (second ? k + 0.5f : 1.0f) + factor * u * sum;
  }
  W scale = kind > 0 ? W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0])
                     : 1 / W(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]);
  return scale * u * (second ? W(u) : W(-1)) * sum / math::sqrt(x);
}

#ifndef __METAL_VERSION__
/** e^-x I_0(x) and e^-x I_1(x) / x for x >= 0. */
template <typename T>
inline void scaled_first(double x, double& zero, double& ratio) {
  bool small = x <= 8;
  double u = 1 / (small ? 8 : x);
  double power = wide_exp<double>(-(small ? x : 0));
  double root = 1 / math::sqrt(small ? 1 : x);
  double near_0 = power * math::polynomial(for_double::i0_small, x * x);
  double near_1 = power * math::polynomial(for_double::i1_small, x * x);
  zero =
      choose(small, near_0, root * math::polynomial(for_double::i0_large, u));
  ratio = choose(
      small, near_1, u * root * math::polynomial(for_double::i1_large, u));
}
#endif
#ifdef MLXGEN_TWOFOLD
template <typename T>
inline void scaled_first(
    mlxgen::twofold x,
    MLXGEN_OUT(mlxgen::twofold) zero,
    MLXGEN_OUT(mlxgen::twofold) ratio) {
  zero = modified_first(T(0), static_cast<T>(x), true);
  ratio = x < 1e-9f ? mlxgen::twofold(0.5f)
                    : modified_first(T(1), static_cast<T>(x), true) / x;
}
#endif

/** The n-th derivative of e^-|x| I_v(x) for kind = -1, or e^x K_v(x). */
template <typename T, int kind>
inline wide<T> scaled_derivative(int n, T order, T argument) {
  using W = wide<T>;
  W v = order;
  W x = argument;
  W z = math::fabs(x);
  bool odd_order = n % 2 != 0;
  if (x != x || v != v || (x < 0 && (kind > 0 || v != math::rint(v)))) {
    return W(math::nan());
  }
  if (kind > 0 && x == 0) {
    return odd_order ? W(-math::infinity()) : W(math::infinity());
  }
  bool negative =
      kind < 0 ? x < 0 && is_odd(v + static_cast<float>(n)) : odd_order;
  if (!(z >= static_cast<float>(Precision<T>::large_x) && 2 * z >= v * v)) {
    // (10.29.1) n times. At 0, the exponential is not differentiated.
    W sum(0.0f);
    W factor = 1;
    for (int j = 0; j <= 2 * n; ++j) {
      T at = static_cast<T>(v + static_cast<float>(n - j));
      T size = static_cast<T>(z);
      W next = kind < 0 ? modified_first(at, size, true)
                        : modified_second(at, size, true);
      if (kind > 0 && next == math::infinity()) {
        sum = next; // the largest term
        break;
      }
      sum = x == 0 && j % 2 != 0 ? W(sum) : sum + factor * next;
      factor = factor * static_cast<float>(j - 2 * n) / (j + 1);
    }
    sum = math::ldexp(sum, -n);
    return negative ? -sum : W(sum);
  }
  if (z == math::infinity()) {
    return W(0);
  }
  W term = 1;
  for (int i = 0; i < n; ++i) {
    term = term * (-0.5f - static_cast<float>(i)) / z;
  }
  W sum = term;
  W square = 4 * v * v;
  // The terms grow from about k + n = 2 z on.
  for (int k = 1; k < 100 && 2 * z > static_cast<float>(k + n); ++k) {
    float odd = static_cast<float>(2 * k - 1);
    W factor = (square - odd * odd) / (8 * k * z);
    float step = static_cast<float>(k) - 0.5f;
    term = term * factor * (W(step + n) / step) * static_cast<float>(kind);
    sum = sum + term;
    if (math::fabs(term) < Precision<T>::small() * math::fabs(sum)) {
      break;
    }
  }
  W scale = kind > 0 ? W(MLXGEN_COEFFICIENTS(T, sqrt_half_pi)[0])
                     : 1 / W(MLXGEN_COEFFICIENTS(T, sqrt_two_pi)[0]);
  W y = scale * sum / math::sqrt(z);
  return kind < 0 && negative ? -y : W(y);
}

} // namespace bessel_order_detail

/** The derivative of e^-|x| I_0(x); 0 at 0. */
template <typename T>
T i0e_slope(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W z = math::fabs(x);
  W zero;
  W ratio;
  scaled_first<T>(z, zero, ratio);
  W y = choose(z < 25, z * ratio - zero, hankel_derivative<T, 0, -1, 1>(z));
  y = choose(x < 0, -y, y);
  return static_cast<T>(choose(x == 0, 0.0f, y));
}

/** The derivative of e^-|x| I_1(x); 1/2 at 0. */
template <typename T>
T i1e_slope(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W z = math::fabs(W(value));
  W zero;
  W ratio;
  scaled_first<T>(z, zero, ratio);
  W y = zero - ratio - z * ratio;
  return static_cast<T>(choose(z < 25, y, hankel_derivative<T, 1, -1, 1>(z)));
}

/** The derivative of e^x K_0(x). */
template <typename T>
T k0e_slope(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W y = bessel_detail::modified_k0<T, true>(x) -
      bessel_detail::modified_k1<T, true>(x);
  y = choose(x < 25, y, hankel_derivative<T, 0, 1, 1>(x));
  return static_cast<T>(choose(x == 0, -math::infinity(), y));
}

/** The derivative of e^x K_1(x). */
template <typename T>
T k1e_slope(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W one = bessel_detail::modified_k1<T, true>(x);
  W y = (one - bessel_detail::modified_k0<T, true>(x)) - one / x;
  y = choose(x < 25, y, hankel_derivative<T, 1, 1, 1>(x));
  return static_cast<T>(choose(one == math::infinity(), -math::infinity(), y));
}

/** The second derivative of e^-|x| I_0(x); at 0 that of I_0(x). */
template <typename T>
T i0e_curvature(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W z = math::fabs(W(value));
  W zero;
  W ratio;
  scaled_first<T>(z, zero, ratio);
  W near = 2 * zero - ratio * (2 * z + 1);
  W y = choose(z < 25, near, hankel_derivative<T, 0, -1, 2>(z));
  return static_cast<T>(choose(z == 0, 0.5f, y));
}

/** The second derivative of e^-|x| I_1(x); at 0 that of I_1(x). */
template <typename T>
T i1e_curvature(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W z = math::fabs(x);
  W zero;
  W ratio;
  scaled_first<T>(z, zero, ratio);
  // e^-z I_2(z) / z, which cancels for small z, also by (10.25.2)
  W square = 0.25f * z * z;
  W sum(1.0f);
  MLXOPS_UNROLL
  for (int k = 8; k > 0; --k) {
    sum = 1 + square * sum / (k * (k + 2));
  }
  W small = wide_exp<T>(-z) * z * sum * 0.125f;
  W more = choose(z < 1, small, (zero - 2 * ratio) / z);
  W near = 2 * (z * ratio + (ratio - zero)) - more;
  W y = choose(z < 25, near, hankel_derivative<T, 1, -1, 2>(z));
  y = choose(x < 0, -y, y);
  return static_cast<T>(choose(x == 0, 0.0f, y));
}

/** The second derivative of e^x K_0(x). */
template <typename T>
T k0e_curvature(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W one = bessel_detail::modified_k1<T, true>(x);
  W slope = bessel_detail::modified_k0<T, true>(x) - one;
  W y = (one / x + slope) + slope;
  y = choose(
      x < (Precision<T>::is_float ? 16 : 25),
      y,
      hankel_derivative<T, 0, 1, 2>(x));
  return static_cast<T>(choose(one == math::infinity(), math::infinity(), y));
}

/** The second derivative of e^x K_1(x). */
template <typename T>
T k1e_curvature(T value) {
  using namespace bessel_order_detail;
  using W = wide<T>;
  W x = value;
  W zero = bessel_detail::modified_k0<T, true>(x);
  W one = bessel_detail::modified_k1<T, true>(x);
  W y = 2 * (one - zero) + (zero - 2 * (one - one / x)) / x;
  y = choose(
      x < (Precision<T>::is_float ? 16 : 25),
      y,
      hankel_derivative<T, 1, 1, 2>(x));
  return static_cast<T>(choose(one == math::infinity(), math::infinity(), y));
}

/** The n-th derivative of e^-|x| I_v(x); at 0 that of I_v(x). */
template <typename T>
T ive_derivative(int n, T v, T x) {
  return static_cast<T>(bessel_order_detail::scaled_derivative<T, -1>(n, v, x));
}

/** The n-th derivative of e^x K_v(x). */
template <typename T>
T kve_derivative(int n, T v, T x) {
  return static_cast<T>(bessel_order_detail::scaled_derivative<T, 1>(n, v, x));
}

} // namespace special
} // namespace mlxops
