// Functions of statistics and machine learning whose plain formulas lose
// accuracy or lack the limits at the edges of their domains: logistic
// functions, entropies, power transformations, losses.
//
// Numbers such as (4.2.19) are equations of https://dlmf.nist.gov.

#pragma once

#include "exp_log.h"
#include "in_float.h"
#include "mlxgen/scalar.h"
#include "statistics_coefficients.h"

namespace mlxops {
namespace special {

/** exp(x) - 1. */
template <typename T>
T exp_m1(T x) {
  return static_cast<T>(wide_expm1<T>(mlxgen::wide<T>(x)));
}

/** log(1 + x). */
template <typename T>
T log_1p(T x) {
  return static_cast<T>(wide_log1p<T>(mlxgen::wide<T>(x)));
}

///////////////////////////////////////////////////////////////////////////////
// Logistic functions
///////////////////////////////////////////////////////////////////////////////

/** 1 / (1 + exp(-x)). */
template <typename T>
T expit(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = wide_exp<T>(-mlxgen::math::fabs(x));
  return static_cast<T>(choose(x < 0, y, 1.0f) / (1 + y));
}

/** The derivative of expit, y / (1 + y)^2. */
template <typename T>
T expit_slope(T value) {
  using W = mlxgen::wide<T>;
  W y = wide_exp<T>(-mlxgen::math::fabs(W(value)));
  W total = 1 + y;
  return static_cast<T>(y / (total * total));
}

/** The second derivative of expit, the first one times tanh(-x / 2). */
template <typename T>
T expit_curvature(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W z = mlxgen::math::fabs(x);
  W y = wide_exp<T>(-z);
  W total = 1 + y;
  W tanh = wide_expm1<T>(-z) / total;
  return static_cast<T>(y / (total * total) * choose(x < 0, -tanh, tanh));
}

/** log(p / (1 - p)). */
template <typename T>
T logit(T value) {
  using W = mlxgen::wide<T>;
  W p = value;
  // Near the zero at 1/2, log(1 + (2 p - 1) / (1 - p)), where 2 p - 1 is exact.
  bool middle = p > 0.25f && p < 0.625f;
  W ratio = choose(middle, 2 * p - 1, p) / (1 - p);
  return static_cast<T>(wide_log_of_sum<T>(
      choose(middle, 1.0f, ratio), choose(middle, ratio, 0.0f)));
}

/** The derivative of logit, 1 / (x (1 - x)), also for -0. */
template <typename T>
T logit_slope(T x) {
  T product = x * (1 - x);
  return 1 / (product == 0 ? T(0) : product);
}

/** log(1 + exp(x)). */
template <typename T>
T softplus(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = wide_log1p<T>(wide_exp<T>(-mlxgen::math::fabs(x)));
  return static_cast<T>(choose(x > 0, x, 0.0f) + y);
}

/** log(expit(x)). */
template <typename T>
T log_expit(T x) {
  return -softplus<T>(-x);
}

/** log(1 - exp(x)) for x <= 0. */
template <typename T>
T log1mexp(T value) {
  return static_cast<T>(wide_log1mexp<T>(mlxgen::wide<T>(value)));
}

/** log2(2^x + 2^y). */
template <typename T>
T logaddexp2(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = first;
  W y = second;
  W log_2 = MLXGEN_COEFFICIENTS(T, log_of_2)[0];
  W more = wide_log1p<T>(wide_exp<T>(-log_2 * mlxgen::math::fabs(x - y)));
  W sum = choose(x > y, x, y) + more / log_2;
  // Both may be infinite; NaN if one of them is NaN.
  sum = choose(x == y, x + 1, sum);
  return static_cast<T>(choose(x != x, x, sum));
}

///////////////////////////////////////////////////////////////////////////////
// Entropies
///////////////////////////////////////////////////////////////////////////////

/** x log(y), 0 where x is 0 and y is a number. */
template <typename T>
T xlogy(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = first;
  W y = second;
  W product = x * wide_log<T>(y);
  return static_cast<T>(choose(x == 0 && y == y, 0.0f, product));
}

/** x log(1 + y), 0 where x is 0 and y is a number. */
template <typename T>
T xlog1py(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = first;
  W y = second;
  W product = x * wide_log1p<T>(y);
  return static_cast<T>(choose(x == 0 && y == y, 0.0f, product));
}

/** -x log(x), 0 at 0 and -inf below. */
template <typename T>
T entr(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = choose(x == 0, 0.0f, -x * wide_log<T>(x));
  return static_cast<T>(choose(x < 0, -mlxgen::math::infinity(), y));
}

/** The derivative of entr, -1 - log(x). */
template <typename T>
T entr_slope(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = choose(x == 0, mlxgen::math::infinity(), -1 - wide_log<T>(x));
  return static_cast<T>(choose(x < 0, mlxgen::math::nan(), y));
}

namespace detail {

/**
 * log(x / y) for positive numbers. If they are close to each other, also excess
 * = x / y - 1.
 */
template <typename T>
inline mlxgen::wide<T> log_of_ratio(
    mlxgen::wide<T> x,
    mlxgen::wide<T> y,
    MLXGEN_OUT(bool) near,
    MLXGEN_OUT(mlxgen::wide<T>) excess) {
  using W = mlxgen::wide<T>;
  // x - y is exact for such numbers.
  near = x < 2 * y && y < 2 * x;
  // The quotient may be out of range when its logarithm is not.
  const int shift = sizeof(T) == 8 ? 512 : 64;
  W small = mlxgen::math::ldexp(W(1.0f), -shift);
  W large = mlxgen::math::ldexp(W(1.0f), shift);
  W tiny = mlxgen::math::ldexp(W(1.0f), sizeof(T) == 8 ? -1000 : -100);
  bool above = tiny * x > y;
  bool below = tiny * y > x;
  W numerator = x * choose(above, small, choose(below, large, 1.0f));
  W denominator = y * choose(above, large, choose(below, small, 1.0f));
  excess = choose(near, x - y, numerator) / denominator;
  W log = wide_log_of_sum<T>(
      choose(near, 1.0f, excess), choose(near, excess, 0.0f));
  W more = 2 * shift * MLXGEN_COEFFICIENTS(T, log_of_2)[0];
  return log + choose(above, more, choose(below, -more, 0.0f));
}

} // namespace detail

/** log(x / y) for positive numbers. */
template <typename T>
T log_ratio(T x, T y) {
  using W = mlxgen::wide<T>;
  bool near;
  W excess;
  return static_cast<T>(detail::log_of_ratio<T>(W(x), W(y), near, excess));
}

/** x log(x / y), 0 if x is 0 and y is not negative, else inf. */
template <typename T>
T rel_entr(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = first;
  W y = second;
  bool near;
  W excess;
  W log = detail::log_of_ratio<T>(x, y, near, excess);
  W result = choose(x > 0 && y > 0, x * log, mlxgen::math::infinity());
  result = choose(x == 0 && y >= 0, 0.0f, result);
  return static_cast<T>(choose(x != x || y != y, x + y, result));
}

/** x log(x / y) - x + y, y if x is 0 and y is not negative, else inf. */
template <typename T>
T kl_div(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = first;
  W y = second;
  bool near;
  W d;
  W log = detail::log_of_ratio<T>(x, y, near, d);
  // With x = y (1 + d), y ((1 + d) log(1 + d) - d) near d = 0.
  W p = mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, divergence_p), d);
  W q = mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, divergence_q), d);
  W result = choose(near, y * d * d * (p / q), x * (log - 1) + y);
  result = choose(x > 0 && y > 0, result, mlxgen::math::infinity());
  result = choose(x == 0 && y >= 0, y, result);
  return static_cast<T>(choose(x != x || y != y, x + y, result));
}

///////////////////////////////////////////////////////////////////////////////
// Quotients with a removable singularity, and their derivatives
///////////////////////////////////////////////////////////////////////////////

/** (exp(x) - 1) / x. */
template <typename T>
T exprel(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  bool tiny = mlxgen::math::fabs(x) < 1e-18f;
  W y = choose(tiny, 1.0f, wide_expm1<T>(x) / x);
  // exp(x) overflows before the quotient does.
  W large = wide_exp<T>(x - 32) * (MLXGEN_COEFFICIENTS(T, exp_32)[0] / x);
  y = choose(x > 80, large, y);
  return static_cast<T>(choose(x == mlxgen::math::infinity(), x, y));
}

namespace detail {

/**
 * exp(-exponent) times the n-th derivative of exprel, which is the integral of
 * t^n exp(x t) over t from 0 to 1, for a finite x.
 */
template <typename T>
inline mlxgen::wide<T> exprel_derivative_in_parts(
    int n,
    mlxgen::wide<T> x,
    MLXGEN_OUT(mlxgen::wide<T>) exponent) {
  using W = mlxgen::wide<T>;
  W z = mlxgen::math::fabs(x);
  exponent = 0;
  if (z < n + 40) {
    // (8.7.1), in the form with positive terms only.
    bool negative = x < 0;
    W sum = W(1.0f) / (n + 1);
    W term = negative ? W(sum) : W(1.0f);
    for (int k = 1; k < 1000; ++k) {
      term = term * z / (negative ? n + 1 + k : k);
      W next = sum + (negative ? W(term) : term / (n + 1 + k));
      if (next == sum) {
        break;
      }
      sum = next;
    }
    return negative ? sum * wide_exp<T>(x) : W(sum);
  }
  // Integration by parts, where exp(-|x|) is negligible compared with 1. For
  // large x, everything is divided by exp(x), which overflows before the result
  // does.
  bool large = x > 0;
  W e = large ? W(1.0f) : wide_exp<T>(x);
  W y = 1 / z;
  for (int k = 1; k <= n; ++k) {
    y = (e - k * y) / x;
  }
  exponent = large ? W(x) : W(0.0f);
  return y;
}

} // namespace detail

/** The n-th derivative of exprel. */
template <typename T>
T exprel_derivative(int n, T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  if (x != x || mlxgen::math::fabs(x) == mlxgen::math::infinity()) {
    return x < 0 ? 0 : value;
  }
  W exponent;
  W y = detail::exprel_derivative_in_parts<T>(n, x, exponent);
  W root = wide_exp<T>(0.5f * exponent);
  return static_cast<T>(y * root * root);
}

/**
 * The n-th derivative of log(1 + x) / x, which is (-1)^n n! times the integral
 * of t^n / (1 + x t)^(n + 1) over t from 0 to 1.
 */
template <typename T>
T log1prel_derivative(int n, T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  if (!(x > -1)) {
    return x == -1
        ? (n % 2 != 0 ? -mlxgen::math::infinity() : mlxgen::math::infinity())
        : mlxgen::math::nan();
  }
  if (x == mlxgen::math::infinity()) {
    return 0;
  }
  // (15.8.1): (1 + x)^-(n + 1) times the sum of s^k / (n + 1 + k).
  W s = x / (1 + x);
  W sum = W(1.0f) / (n + 1);
  if (mlxgen::math::fabs(s) < 0.5f) {
    W power = 1.0f;
    for (int k = 1; k < 100; ++k) {
      power = power * s;
      sum = sum + power / (n + 1 + k);
    }
  } else {
    sum = wide_log1p<T>(x) / s;
    for (int k = 1; k <= n; ++k) {
      sum = (sum - W(1.0f) / k) / s;
    }
  }
  W result = sum / (1 + x);
  for (int k = 1; k <= n; ++k) {
    result = result * -k / (1 + x);
  }
  return static_cast<T>(result);
}

/** sin(pi x) / (pi x). */
template <typename T>
T sinc(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = mlxgen::math::sinpi(x) / (MLXGEN_COEFFICIENTS(T, pi)[0] * x);
  return static_cast<T>(choose(mlxgen::math::fabs(x) < 1e-9f, 1.0f, y));
}

/** The derivative of sinc. */
template <typename T>
T sinc_derivative(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W pi = MLXGEN_COEFFICIENTS(T, pi)[0];
  // Where the formula cancels, the derivative of the series (4.19.1).
  W u = pi * x;
  W sum = 1.0f;
  for (int k = 12; k > 0; --k) {
    sum = 1 - u * u * sum / (2 * k * (2 * k + 3));
  }
  W small = pi * u * sum / -3;
  W y = (mlxgen::math::cospi(x) - mlxgen::math::sinpi(x) / u) / x;
  return static_cast<T>(choose(mlxgen::math::fabs(x) < 0.5f, small, y));
}

/** 0F1(; n + 3 / 2; -(pi x / 2)^2) for |x| <= 0.5. */
template <typename T>
T sinc_series(int n, T value) {
  using W = mlxgen::wide<T>;
  W u = MLXGEN_COEFFICIENTS(T, pi)[0] * W(value);
  W order = 2.0f * n;
  W sum = 1.0f;
#pragma GCC unroll 12
  for (int k = 12; k > 0; --k) {
    sum = 1 - u * u * sum / (2 * k * (order + (2 * k + 1)));
  }
  return static_cast<T>(sum);
}

///////////////////////////////////////////////////////////////////////////////
// Power transformations
///////////////////////////////////////////////////////////////////////////////

namespace detail {

/** (exp(lmbda x) - 1) / lmbda, and its limit at lmbda = 0. */
template <typename T>
inline mlxgen::wide<T> power_difference(
    mlxgen::wide<T> x,
    mlxgen::wide<T> lmbda) {
  mlxgen::wide<T> product = lmbda * x;
  mlxgen::wide<T> y = wide_expm1_over<T>(product, lmbda);
  // The product is NaN if x is infinite and lmbda is 0.
  return choose(
      mlxgen::math::fabs(product) >= 1e-17f,
      y,
      x - 0 * mlxgen::math::fabs(lmbda));
}

/**
 * The derivative of power_difference with respect to lmbda, x^2 times the
 * integral of t exp(z t) over t from 0 to 1 for z = lmbda x.
 */
template <typename T>
inline mlxgen::wide<T> power_difference_slope(
    mlxgen::wide<T> x,
    mlxgen::wide<T> lmbda) {
  using W = mlxgen::wide<T>;
  W z = lmbda * x;
  W size = mlxgen::math::fabs(z);
  W sum = 0.0f;
  MLXOPS_UNROLL
  for (int k = 17; k >= 0; --k) {
    sum = W(1.0f) / (k + 2) + z * sum * (W(1.0f) / (k + 1));
  }
  // By parts; divided by exp(z) for z > 0, which overflows before the result
  // does.
  bool above = z > 0;
  W e = wide_exp<T>(-size);
  W far = choose(above, (z - 1) + e, e * (z - 1) + 1) / z / z;
  W factor = x * wide_exp<T>(choose(above & (size >= 1), 0.5f * z, 0.0f));
  W y = choose(size < 1, sum, far) * factor * factor;
  W infinity = mlxgen::math::infinity();
  bool end = (mlxgen::math::fabs(x) == infinity) | (size == infinity);
  W limit = choose(z < 0, 1 / lmbda / lmbda, infinity);
  return choose(end & (lmbda == lmbda), limit, y);
}

/**
 * The n-th derivative of power_difference with respect to lmbda, for n >= 1, or
 * its limit for infinite x.
 */
template <typename T>
inline mlxgen::wide<T>
power_difference_derivative(int n, mlxgen::wide<T> x, mlxgen::wide<T> lmbda) {
  using W = mlxgen::wide<T>;
  W product = lmbda * x;
  W infinity = mlxgen::math::infinity();
  W y = n % 2 != 0 || x > 0 ? W(infinity) : -infinity;
  if (lmbda == lmbda &&
      (mlxgen::math::fabs(x) == infinity ||
       mlxgen::math::fabs(product) == infinity)) {
    if (!(product < 0)) {
      return y;
    }
    y = -1 / lmbda; // its n-th derivative
    for (int k = 1; k <= n; ++k) {
      y = y * -k / lmbda;
    }
    return y;
  }
  W exponent;
  y = exprel_derivative_in_parts<T>(n, product, exponent);
  W factor = wide_exp<T>(0.5f * exponent) * x;
  y = y * factor * factor;
  for (int k = 1; k < n; ++k) {
    y = y * x;
  }
  return y;
}

/** log(1 + lmbda x) / lmbda, and its limit at lmbda = 0: the inverse function.
 */
template <typename T>
inline mlxgen::wide<T> log_quotient(mlxgen::wide<T> x, mlxgen::wide<T> lmbda) {
  mlxgen::wide<T> log = wide_log1p_of_product<T>(lmbda, x) / lmbda;
  // The product is NaN if x is infinite and lmbda is 0.
  bool bent = mlxgen::math::fabs(lmbda * x) >= 1e-17f;
  return choose(bent, log, x - 0 * mlxgen::math::fabs(lmbda));
}

} // namespace detail

/** (x^lmbda - 1) / lmbda, or log(x) where lmbda is 0. */
template <typename T>
T boxcox(T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference<T>(wide_log<T>(W(x)), W(lmbda)));
}

/** boxcox(1 + x, lmbda). */
template <typename T>
T boxcox1p(T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference<T>(wide_log1p<T>(W(x)), W(lmbda)));
}

/** (1 + lmbda y)^(1 / lmbda), or exp(y) where lmbda is 0. */
template <typename T>
T inv_boxcox(T y, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(wide_exp<T>(detail::log_quotient<T>(W(y), W(lmbda))));
}

/** The derivative of boxcox with respect to lmbda. */
template <typename T>
T boxcox_slope(T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference_slope<T>(wide_log<T>(W(x)), W(lmbda)));
}

/** The derivative of boxcox1p with respect to lmbda. */
template <typename T>
T boxcox1p_slope(T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference_slope<T>(wide_log1p<T>(W(x)), W(lmbda)));
}

/** The n-th derivative of boxcox with respect to lmbda, for n >= 1. */
template <typename T>
T boxcox_derivative(int n, T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference_derivative<T>(n, wide_log<T>(W(x)), W(lmbda)));
}

/** The n-th derivative of boxcox1p with respect to lmbda, for n >= 1. */
template <typename T>
T boxcox1p_derivative(int n, T x, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(
      detail::power_difference_derivative<T>(n, wide_log1p<T>(W(x)), W(lmbda)));
}

/** (1 + x)^y. */
template <typename T>
T power_1p(T value, T exponent) {
  using W = mlxgen::wide<T>;
  W y = exponent;
  W power = wide_exp<T>(y * wide_log1p<T>(W(value)));
  return static_cast<T>(choose(y == 0, 1.0f, power));
}

/** The derivative of inv_boxcox, (1 + lmbda y)^(1 / lmbda - 1). */
template <typename T>
T inv_boxcox_slope(T y, T lmbda) {
  using W = mlxgen::wide<T>;
  W rest = 1 - W(lmbda);
  W log = rest * detail::log_quotient<T>(W(y), W(lmbda));
  // 1 also at the end of the domain.
  bool line = rest == 0 && W(y) >= -1;
  return static_cast<T>(wide_exp<T>(choose(line, 0.0f, log)));
}

namespace detail {

/** The first and second derivative of log(1 + p) / p for -3/8 < p < 5/8. */
template <typename T>
inline void log1prel_derivatives(
    mlxgen::wide<T> p,
    MLXGEN_OUT(mlxgen::wide<T>) first,
    MLXGEN_OUT(mlxgen::wide<T>) second) {
  using W = mlxgen::wide<T>;
  // (4.6.4): with f = p / (p + 2) it is (1 - f) (1 + f^2/3 + f^4/5 + ...),
  // which is differentiated with respect to f, and f to p.
  W f = p / (p + 2);
  W slope = 0.0f;
  W curvature = 0.0f;
  MLXOPS_UNROLL
  for (int n = 30; n > 0; --n) {
    curvature = curvature * f + slope;
    slope = slope * f +
        (n % 2 != 0 ? W(-1.0f) : W(static_cast<float>(n)) / (n + 1));
  }
  W rest = 1 - f;
  W factor = 0.5f * rest * rest; // df/dp
  first = slope * factor;
  second = (curvature * factor - slope * rest) * factor;
}

/** p / (1 + p), and 1 if p is infinite. */
template <typename W>
inline W share(W p) {
  return choose(p == mlxgen::math::infinity(), 1.0f, p / (1 + p));
}

} // namespace detail

/** The derivative of log(1 + lmbda y) / lmbda with respect to lmbda. */
template <typename T>
T log_quotient_slope(T value, T second) {
  using W = mlxgen::wide<T>;
  W y = value;
  W lmbda = second;
  W p = lmbda * y;
  W slope;
  W curvature;
  detail::log1prel_derivatives<T>(p, slope, curvature);
  W log = wide_log1p_of_product<T>(lmbda, y);
  W far = (detail::share(p) - log) / lmbda / lmbda;
  bool near = (p > -0.375f) & (p < 0.625f);
  return static_cast<T>(choose(near, y * slope * y, far));
}

/** The second derivative of log(1 + lmbda y) / lmbda. */
template <typename T>
T log_quotient_curvature(T value, T second) {
  using W = mlxgen::wide<T>;
  W y = value;
  W lmbda = second;
  W p = lmbda * y;
  W slope;
  W curvature;
  detail::log1prel_derivatives<T>(p, slope, curvature);
  // For q = log(1 + p) / lmbda, the derivatives of lmbda q are y / (1 + p) and
  // -(y / (1 + p))^2, so that q'' = -((y / (1 + p))^2 + 2 q') / lmbda.
  W log = wide_log1p_of_product<T>(lmbda, y);
  W r = detail::share(p);
  W far = (2 * (log - r) - r * r) / lmbda / lmbda / lmbda;
  bool near = (p > -0.375f) & (p < 0.625f);
  return static_cast<T>(choose(near, y * (y * curvature) * y, far));
}

/** inv_boxcox(y, lmbda) - 1. */
template <typename T>
T inv_boxcox1p(T y, T lmbda) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(wide_expm1<T>(detail::log_quotient<T>(W(y), W(lmbda))));
}

///////////////////////////////////////////////////////////////////////////////
// Losses and lengths
///////////////////////////////////////////////////////////////////////////////

/** r^2 / 2 up to |r| = delta, then a line; inf for a negative delta. */
template <typename T>
T huber(T delta, T r) {
  using W = mlxgen::wide<T>;
  W d = delta;
  W z = mlxgen::math::fabs(W(r));
  W y = choose(z <= d, 0.5f * z * z, d * (z - 0.5f * d));
  return static_cast<T>(choose(d < 0, mlxgen::math::infinity(), y));
}

/** delta^2 (sqrt(1 + (r / delta)^2) - 1); inf for a negative delta. */
template <typename T>
T pseudo_huber(T delta, T r) {
  using W = mlxgen::wide<T>;
  W d = delta;
  W z = mlxgen::math::fabs(W(r));
  // Without the difference: z^2 / (1 + root), or with z and d exchanged.
  bool small = z <= d;
  W ratio = choose(small, z, d) / choose(small, d, z);
  W root = mlxgen::math::sqrt(1 + ratio * ratio);
  W y = choose(small, z, d) * (z / (choose(small, 1.0f, ratio) + root));
  y = choose((d == 0 && z == z) || (z == 0 && d == d), 0.0f, y);
  return static_cast<T>(choose(d < 0, mlxgen::math::infinity(), y));
}

/** sqrt(x^2 + y^2). */
template <typename T>
T hypot(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = mlxgen::math::fabs(W(first));
  W y = mlxgen::math::fabs(W(second));
  W plain = mlxgen::math::sqrt(x * x + y * y);
  // The squares may be out of range when the root is not.
  W large = choose(x > y, x, y);
  W ratio = choose(x > y, y, x) / large;
  W scaled = large * mlxgen::math::sqrt(1 + ratio * ratio);
  W h = choose(plain > 1e-12f && plain < 1e12f, plain, scaled);
  h = choose(x == 0 && y == 0, 0.0f, h);
  bool infinite =
      x == mlxgen::math::infinity() || y == mlxgen::math::infinity();
  return static_cast<T>(choose(infinite, mlxgen::math::infinity(), h));
}

/** The smaller one of two lengths divided by the larger one; NaN for 0 / 0. */
template <typename W>
inline W ratio_of_lengths(W x, W y) {
  bool less = x < y;
  return choose(less, x, y) / choose(less, y, x);
}

/** x / hypot(x, y), also if the length is out of range; 0 at the origin. */
template <typename T>
T cosine_of(T first, T second) {
  using W = mlxgen::wide<T>;
  W x = mlxgen::math::fabs(W(first));
  W y = mlxgen::math::fabs(W(second));
  W ratio = ratio_of_lengths(x, y);
  W cosine = choose(x < y, ratio, W(1)) / mlxgen::math::sqrt(1 + ratio * ratio);
  cosine = choose(x == 0 && y == 0, W(0), cosine);
  return static_cast<T>(mlxgen::math::copysign(cosine, W(first)));
}

/** The derivative of pseudo_huber with respect to delta. */
template <typename T>
T pseudo_huber_slope(T delta, T r) {
  using W = mlxgen::wide<T>;
  W d = mlxgen::math::fabs(W(delta));
  W z = mlxgen::math::fabs(W(r));
  W ratio = ratio_of_lengths(z, d);
  W root = mlxgen::math::sqrt(1 + ratio * ratio);
  // length (1 - cos)^2, where 1 - cos = sin^2 / (1 + cos)
  W sine = choose(z < d, ratio, W(1)) / root;
  W cosine = choose(z < d, W(1), ratio) / root;
  W part = sine * sine / (1 + cosine);
  W length = choose(z < d, d, z) * root;
  W y = length * part * part;
  W infinity = mlxgen::math::infinity();
  y = choose(z == 0 && d == d, W(0), y);
  return static_cast<T>(choose(d == infinity && z < infinity, W(0), y));
}

/** The derivative of pseudo_huber with respect to r. */
template <typename T>
T pseudo_huber_force(T delta, T r) {
  using W = mlxgen::wide<T>;
  W d = delta;
  W z = mlxgen::math::fabs(W(r));
  W ratio = ratio_of_lengths(z, d);
  W y = choose(z < d, z, d) / mlxgen::math::sqrt(1 + ratio * ratio);
  y = choose(z == 0 && d == d, W(0), y);
  return static_cast<T>(choose(r < 0, -y, y));
}

/** 1 - y / x, accurate if x is close to y. */
template <typename T>
T relative_difference(T x, T y) {
  bool end = mlxgen::math::fabs(x) == mlxgen::math::infinity() &&
      mlxgen::math::fabs(y) < mlxgen::math::infinity();
  return end ? T(1) : (x - y) / x;
}

/** |x| with the sign of y. */
template <typename T>
T copysign(T x, T y) {
  using W = mlxgen::wide<T>;
  return static_cast<T>(mlxgen::math::copysign(W(x), W(y)));
}

/** The n-th derivative of the sine. */
template <typename T>
T sine_derivative(int n, T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = n % 2 != 0 ? mlxgen::math::cos(x) : mlxgen::math::sin(x);
  return static_cast<T>(n % 4 >= 2 ? -y : W(y));
}

/** x y, and 0 if x is 0. */
template <typename T>
T product_or_zero(T x, T y) {
  return x == 0 && y == y ? T(0) : x * y;
}

/** cos(x) - 1. */
template <typename T>
T cosm1(T value) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y = mlxgen::math::sin(0.5f * x);
  return static_cast<T>(0.0f - 2 * y * y);
}

} // namespace special
} // namespace mlxops
