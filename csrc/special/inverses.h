// The inverses of the incomplete gamma and beta functions in their last
// argument: the quantiles of the gamma and the beta distribution.
//
// Newton's method finds where the logarithm of the smaller tail is that of the
// given probability, as a function of log x, or of log(x / (1 - x)). In these
// variables the densities are log-concave, and with them both tails (Bagnoli
// and Bergstrom, "Log-concave probability and its applications", 2005): a step
// never passes the root from the side where the tail is too small, and the
// error g of the logarithm becomes less than g^2.

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

// What derivatives are computed in: Newton's method needs few of their digits.
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

  /** Go on, from the tail at x and how fast it changes with log x. */
  void step(Tail<W> tail, W rate) {
    W part = tail.below == below ? W(tail.part) : 1 - tail.part;
    bool up = (part < p) == below;
    low = up ? W(x) : W(low);
    high = up ? W(high) : W(x);
    W g = wide_log<T>(part / p);
    W change = g * (part / rate);
    W next = x * wide_exp<T>(below ? -change : W(change));
    bool inside = next > low && next < high;
    constexpr float close = sizeof(T) == sizeof(float) ? 1e-5f : 1e-8f;
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

/** The x at which the part below or above is p <= 1/2, for a > 0. */
template <typename T>
mlxgen::wide<T>
gamma_quantile(mlxgen::wide<T> a, mlxgen::wide<T> p, bool below) {
  using W = mlxgen::wide<T>;
  // Bounds that the root lies above, or below: P(a, x) <= x^a / Gamma(a + 1)
  // (8.7.1), and that of a sub-gamma variable (Boucheron, Lugosi and Massart,
  // "Concentration inequalities", 2013, section 2.4).
  W log_p = wide_log<T>(p);
  W deviation = math::sqrt(-2 * a * log_p);
  W log_gamma = W(lgamma<Number>(static_cast<Number>(a + 1)));
  W least = wide_exp<T>((log_p + log_gamma) / a);
  least = a - deviation > least ? a - deviation : W(least);
  W most = a + deviation - log_p;
  // For small a, Q(a, x) is nearly 1 - x^a / Gamma(a + 1) up to x = 1.
  W power = wide_exp<T>((wide_log<T>(1 - p) + log_gamma) / a);
  W start = a < 1 && power < 0.1f && power > 0 ? W(power) : W(most);
  Search<T> search = {
      below ? W(least) : W(start),
      W(0),
      below ? a + 1 : 2 * most,
      p,
      below,
      false};
  for (int i = 0; i < most_steps && !search.found; ++i) {
    W x = search.x;
    if (!(x > 0)) {
      return x; // underflow
    }
    Number rate =
        gammainc_grad_x<Number>(static_cast<Number>(a), static_cast<Number>(x));
    search.step(incomplete_detail::incomplete_gamma<T>(a, x), x * W(rate));
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

/** The odds x / (1 - x) at which the part below or above is p <= 1/2. */
template <typename T>
mlxgen::wide<T> beta_quantile(
    mlxgen::wide<T> a,
    mlxgen::wide<T> b,
    mlxgen::wide<T> p,
    bool below) {
  using W = mlxgen::wide<T>;
  Search<T> search = {a / b, W(0), W(math::infinity()), p, below, false};
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
        incomplete_detail::incomplete_beta<T>(a, b, x, y), x * (y * W(rate)));
  }
  return search.x;
}

/** The x with I_x(a, b) = p, given p and q = 1 - p. */
template <typename T>
T inverse_of_beta(T a, T b, mlxgen::wide<T> p, mlxgen::wide<T> q) {
  using W = mlxgen::wide<T>;
  bool both = a == math::infinity() && b == math::infinity();
  if (!(a > 0 && b > 0 && p >= 0 && q >= 0) || both) {
    return math::nan();
  }
  if (p == 0 || q == 0) {
    return p == 0 ? T(0) : T(1);
  }
  if (a == math::infinity() || b == math::infinity()) {
    return a == math::infinity() ? T(1) : T(0);
  }
  bool below = p <= 0.5f;
  W odds = beta_quantile<T>(W(a), W(b), below ? W(p) : W(q), below);
  return static_cast<T>(odds < 1 ? odds / (1 + odds) : 1 / (1 + 1 / odds));
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
  return inverse_detail::inverse_of_beta<T>(a, b, W(p), 1 - W(p));
}

/** The x with 1 - I_x(a, b) = q. */
template <typename T>
T betainccinv(T a, T b, T q) {
  using W = mlxgen::wide<T>;
  return inverse_detail::inverse_of_beta<T>(a, b, 1 - W(q), W(q));
}

} // namespace special
} // namespace mlxops
