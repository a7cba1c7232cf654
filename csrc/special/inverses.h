// The inverses of the incomplete gamma and beta functions in their last
// argument: the quantiles of the gamma and the beta distribution.
//
// Halley's method finds where the logarithm of the smaller tail is that of the
// given probability, as a function of log x, or of log(x / (1 - x)). In these
// variables the densities are log-concave, and with them both tails (Bagnoli
// and Bergstrom, "Log-concave probability and its applications", 2005), so that
// the derivative never vanishes. A step makes of the logarithm's error g one of
// about g^3; from where the search begins, two steps are the rule. Where x is
// so small that its power series has one term, that is the result. Numbers such
// as (8.7.1) are equations of https://dlmf.nist.gov.

#pragma once

#include "exp_log.h"
#include "gamma.h"
#include "incomplete.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace inverse_detail {

namespace math = mlxgen::math;
using incomplete_detail::Tail;

// What derivatives are computed in: a step needs few of their digits.
#ifdef MLXGEN_TWOFOLD
using Number = float;
#else
using Number = double;
#endif

/** A search for the x > 0 at which a tail is p. */
template <typename T>
struct Search {
  using W = mlxgen::wide<T>;

  W x;
  W low;
  W high;
  W p;
  bool below; // whether the tail is the one below x
  bool found;

  /**
   * Go on, from the tail at x, how fast it changes with log x, and how fast the
   * logarithm of that does.
   */
  void step(Tail<W> tail, W rate, W drift) {
    W part = tail.below == below ? W(tail.part) : 1 - tail.part;
    bool up = (part < p) == below;
    low = up ? W(x) : W(low);
    high = up ? W(high) : W(x);
    W g = wide_log<T>(part / p);
    // Halley's step: the rate itself changes with log x, by rate * drift.
    W change = g * (part / rate);
    W along = change * drift;
    W bend = 1 + 0.5f * (below ? g - along : g + along);
    bend = bend < 0.5f ? W(0.5f) : W(bend);
    change = change / bend;
    W next = x * wide_exp<T>(below ? -change : W(change));
    bool inside = next > low && next < high;
    constexpr float close = sizeof(T) == sizeof(float) ? 3e-4f : 3e-6f;
    found = math::fabs(g) < close;
    if (!inside && !found) {
      // Between both in log x, where the tail or its derivative underflows.
      W middle = math::sqrt(low) * math::sqrt(high);
      next = !(high < math::infinity()) ? low * 16 : high * 0.0625f;
      next = low > 0 && high < math::infinity() ? W(middle) : W(next);
    }
    x = found && !(next > 0) ? W(x) : W(next);
  }
};

// So many steps take no function here.
MLXGEN_NUMBER int most_steps = 200;

/**
 * Where a normal variable has p <= 1/2 above it, to 0.003: (26.2.22) of
 * Abramowitz and Stegun's handbook.
 */
inline Number normal_quantile(Number p) {
  Number t = math::sqrt(-2 * math::log(p));
  return t - (2.30753f + 0.27061f * t) / (1 + t * (0.99229f + 0.04481f * t));
}

// Where x is that small, only the first term of a power series counts.
MLXGEN_NUMBER float tiny = 1e-20f;
// Where it is that small, this is a good start.
MLXGEN_NUMBER float small = 0.1f;

/** Where to begin for the gamma distribution; below `tiny` it is the result. */
template <typename T>
mlxgen::wide<T> gamma_start(mlxgen::wide<T> a, mlxgen::wide<T> p, bool below) {
  using W = mlxgen::wide<T>;
  if (a < 1) {
    // P(a, x) = x^a / Gamma(a + 1) (1 + O(x)) (8.7.1)
    W log_p = wide_log<T>(p);
    W log_rest = wide_log1p<T>(-p);
    W log_gamma = incomplete_detail::log_gamma_plus_1<T>(a);
    W x = wide_exp<T>(((below ? log_p : log_rest) + log_gamma) / a);
    // From above, a bound for a sub-gamma variable (Boucheron, Lugosi and
    // Massart, "Concentration inequalities", 2013, section 2.4).
    W most = a + math::sqrt(-2 * a * log_p) - log_p;
    return below || x < small ? W(x) : W(most);
  }
  // The cube root of a gamma variable is nearly normal (Wilson and Hilferty,
  // "The distribution of chi-square", 1931).
  Number n = 1 / (9 * static_cast<Number>(a));
  Number z = normal_quantile(static_cast<Number>(p)) * math::sqrt(n);
  Number root = (below ? -z : z) + (1 - n);
  if (root > small) {
    return a * W(root * root * root);
  }
  W log_gamma = W(lgamma<Number, true>(static_cast<Number>(a + 1)));
  return wide_exp<T>((wide_log<T>(p) + log_gamma) / a);
}

/** The x at which the part below or above is p <= 1/2, for a > 0. */
template <typename T>
mlxgen::wide<T>
gamma_quantile(mlxgen::wide<T> a, mlxgen::wide<T> p, bool below) {
  using W = mlxgen::wide<T>;
  W start = gamma_start<T>(a, p, below);
  if (a < 1 && start < tiny) {
    return start;
  }
  Search<T> search = {start, W(0), W(math::infinity()), p, below, false};
  for (int i = 0; i < most_steps && !search.found; ++i) {
    W x = search.x;
    if (!(x > 0)) {
      return x; // underflow
    }
    Number rate =
        gammainc_grad_x<Number>(static_cast<Number>(a), static_cast<Number>(x));
    search.step(
        incomplete_detail::incomplete_gamma<T>(a, x), x * W(rate), a - x);
  }
  return search.x;
}

/** The x with P(a, x) = p, given p and q = 1 - p. */
template <typename T>
T inverse_of_gamma(T a, mlxgen::wide<T> p, mlxgen::wide<T> q) {
  using W = mlxgen::wide<T>;
  if (!(a >= 0 && p >= 0 && q >= 0)) {
    return math::nan();
  }
  if (p == 0 || q == 0) {
    return p == 0 ? T(0) : T(math::infinity());
  }
  if (a == 0 || a == math::infinity()) {
    return math::nan();
  }
  bool below = p <= 0.5f;
  return static_cast<T>(gamma_quantile<T>(W(a), below ? W(p) : W(q), below));
}

/** Where to begin for the beta distribution; where that is certain, the end. */
template <typename T>
mlxgen::wide<T> beta_start(
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    mlxgen::wide<T> p,
    bool below,
    MLXGEN_OUT(bool) certain) {
  using W = mlxgen::wide<T>;
  W start = a / b;
  bool both = a >= 1 && b >= 1;
  if (both) {
    // (26.5.22) of Abramowitz and Stegun's handbook
    Number z = normal_quantile(static_cast<Number>(p));
    z = below ? -z : z;
    Number u = 1 / (2 * static_cast<Number>(a) - 1);
    Number v = 1 / (2 * static_cast<Number>(b) - 1);
    Number h = 2 / (u + v);
    Number c = (z * z - 3) / 6;
    Number w = (v - u) * (c + 0.8333333f - 0.6666667f / h);
    w = h + c > 0 ? z * math::sqrt(h + c) / h + w : Number(0);
    w = w == w ? w : Number(0); // from numbers out of float's range
    start = start * wide_exp<T>(W(2 * w));
  }
  if (both && p > 1e-8f) {
    return start;
  }
  // I_x(a, b) = x^a / (a B(a, b)) (1 + O(b x)) (8.17.7), and from the other end
  // the same in 1 - x.
  W divisor;
  W log_beta = detail::log_beta<T>(a, b, divisor);
  W log_p = wide_log<T>(p);
  W log_rest = wide_log1p<T>(-p);
  W log_left = below ? log_p : log_rest;
  W log_right = below ? log_rest : log_p;
  W x = wide_exp<T>((log_left + log_beta + wide_log<T>(a / divisor)) / a);
  W y = wide_exp<T>((log_right + log_beta + wide_log<T>(b / divisor)) / b);
  W left = x * (1 + b);
  W right = y * (1 + a);
  certain = left < tiny || right < tiny;
  start = right < small ? 1 / y : W(start);
  return left < small ? W(x) : W(start);
}

/** The odds x / (1 - x) at which the part below or above is p <= 1/2. */
template <typename T>
mlxgen::wide<T> beta_quantile(
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    mlxgen::wide<T> p,
    bool below) {
  using W = mlxgen::wide<T>;
  bool certain = false;
  W start = beta_start<T>(a, b, p, below, certain);
  Search<T> search = {start, W(0), W(math::infinity()), p, below, certain};
  for (int i = 0; i < most_steps && !search.found; ++i) {
    W odds = search.x;
    W y = 1 / (1 + odds);
    W x = odds < 1 ? odds * y : 1 / (1 + 1 / odds);
    if (!(x > 0 && y > 0)) {
      break; // underflow
    }
    bool left = x < y;
    Number rate = betainc_grad_x<Number>(
        static_cast<Number>(left ? a : b),
        static_cast<Number>(left ? b : a),
        static_cast<Number>(left ? x : y));
    search.step(
        incomplete_detail::incomplete_beta<T>(a, b, x, y),
        x * (y * W(rate)),
        a * y - b * x);
  }
  return search.x;
}

/** An x from 0 to 1; if it is above 1/2, 1 - x has more digits. */
template <typename W>
struct Quantile {
  W x;
  bool from_1; // whether 1 - x is given in its place
};

/** The x with I_x(a, b) = p, given p and q = 1 - p. */
template <typename T>
Quantile<mlxgen::wide<T>>
inverse_of_beta(T a, T b, mlxgen::wide<T> p, mlxgen::wide<T> q) {
  using W = mlxgen::wide<T>;
  bool both = a == math::infinity() && b == math::infinity();
  if (!(a > 0 && b > 0 && p >= 0 && q >= 0) || both) {
    return {W(math::nan()), false};
  }
  if (p == 0 || q == 0) {
    return {W(0), q == 0};
  }
  if (a == math::infinity() || b == math::infinity()) {
    return {W(0), a == math::infinity()};
  }
  bool below = p <= 0.5f;
  W odds = beta_quantile<T>(W(a), W(b), below ? W(p) : W(q), below);
  return odds < 1 ? Quantile<W>{odds / (1 + odds), false}
                  : Quantile<W>{1 / (1 + odds), true};
}

} // namespace inverse_detail

/** The x with P(a, x) = p (8.2.4). */
template <typename T>
T gammaincinv(T a, T p) {
  using W = mlxgen::wide<T>;
  return inverse_detail::inverse_of_gamma<T>(a, W(p), 1 - W(p));
}

/** The x with Q(a, x) = q (8.2.4). */
template <typename T>
T gammainccinv(T a, T q) {
  using W = mlxgen::wide<T>;
  return inverse_detail::inverse_of_gamma<T>(a, 1 - W(q), W(q));
}

/** The x with I_x(a, b) = p (8.17.2). */
template <typename T>
T betaincinv(T a, T b, T p) {
  using W = mlxgen::wide<T>;
  auto y = inverse_detail::inverse_of_beta<T>(a, b, W(p), 1 - W(p));
  return static_cast<T>(y.from_1 ? 1 - y.x : W(y.x));
}

/** The x with 1 - I_x(a, b) = q. */
template <typename T>
T betainccinv(T a, T b, T q) {
  using W = mlxgen::wide<T>;
  auto y = inverse_detail::inverse_of_beta<T>(a, b, 1 - W(q), W(q));
  return static_cast<T>(y.from_1 ? 1 - y.x : W(y.x));
}

// Near 1, a quantile has too few digits for its derivatives: these are
// functions of the place x, or x - 1 if x is above 1/2, which is -0 at 1.

/**
 * The place of a quantile x: of betainccinv(a, b, p) if `above` is 1, else of
 * betaincinv. Most x have enough digits.
 */
template <typename T>
T beta_place(int above, T a, T b, T p, T x) {
  using W = mlxgen::wide<T>;
  if (x < 0.984375f) {
    return x > 0.5f ? x - 1 : x;
  }
  W rest = 1 - W(p);
  auto y = inverse_detail::inverse_of_beta<T>(
      a, b, above != 0 ? W(rest) : W(p), above != 0 ? W(p) : W(rest));
  return static_cast<T>(y.from_1 ? -y.x : W(y.x));
}

/** The derivative of a quantile: 1 / betainc_grad_x(a, b, x) at a place. */
template <typename T>
T beta_quantile_slope(T a, T b, T place) {
  bool from_1 = mlxgen::math::copysign(T(1), place) < 0;
  T u = from_1 ? b : a;
  T v = from_1 ? a : b;
  return 1 / betainc_grad_x<T>(u, v, mlxgen::math::fabs(place));
}

/** betainc_grad_a at a place. */
template <typename T>
T beta_place_grad_a(T a, T b, T place) {
  bool from_1 = mlxgen::math::copysign(T(1), place) < 0;
  T u = from_1 ? b : a;
  T v = from_1 ? a : b;
  T rate =
      incomplete_detail::beta_rate<T>(u, v, mlxgen::math::fabs(place), !from_1);
  return from_1 ? -rate : rate;
}

} // namespace special
} // namespace mlxops
