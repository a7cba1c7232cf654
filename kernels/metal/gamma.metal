// Metal kernels of the gamma function's logarithm and its derivatives: the
// methods of csrc/gamma.h, in float. That file has the explanations; numbers
// such as (5.5.3) are equations of https://dlmf.nist.gov.
//
// A few ulp of error, but near the zeros on the negative axis it is relative to
// the terms that cancel there.

#include <metal_stdlib>

#include "gamma_coefficients.h"

using namespace metal;

/** c[0] + c[1] x + c[2] x^2 + ... */
template <int N>
float polynomial(constant const float (&c)[N], float x) {
  float y = c[N - 1];
  for (int i = N - 2; i >= 0; --i) {
    y = fma(y, x, c[i]);
  }
  return y;
}

/** log |Gamma(x)|. */
template <typename T>
T lgamma_metal(T value) {
  using namespace gamma_coefficients;
  float x = value;
  float z = fabs(x);
  float r = z - rint(z);
  if (x < 0 && (r == 0 || isinf(x))) {
    return isinf(x) ? x : INFINITY;
  }
  // log Gamma(z), or log Gamma(1 + z) below 1.
  float body;
  if (z < 6) {
    float t = z < 1 ? z + 1 : z;
    float zeros = z < 1 ? z * (z - 1) : (z - 1) * (z - 2);
    body = zeros *
        (polynomial(lgamma_middle_p, t) / polynomial(lgamma_middle_q, t));
  } else {
    float u = 1 / z;
    body = (z - 0.5f) * (precise::log(z) - 1) +
        (lgamma_constant + u * polynomial(lgamma_large, u * u));
  }
  if (x < 0) {
    // (5.5.3)
    float sin_pi = fabs(r * polynomial(sine, r * r));
    return -body - precise::log(z < 1 ? sin_pi : z * sin_pi);
  }
  return z < 1 ? body - precise::log(z) : body;
}

/** The derivative of log Gamma(x). */
template <typename T>
T digamma_metal(T value) {
  using namespace gamma_coefficients;
  float x = value;
  float z = fabs(x);
  float r = z - rint(z);
  if (x < 0 && (r == 0 || isinf(x))) {
    return NAN;
  }
  // psi(z), or psi(1 + z) below 1.
  float body;
  if (z < 6) {
    float t = z < 1 ? z + 1 : z;
    float zero = (t - digamma_root) - digamma_root_low;
    body = zero *
        (polynomial(digamma_middle_p, t) / polynomial(digamma_middle_q, t));
  } else {
    float u = 1 / z;
    body =
        precise::log(z) - (0.5f * u + u * u * polynomial(digamma_large, u * u));
  }
  if (x < 0) {
    // (5.5.4)
    float pole = z < 1 ? 1 / r : (z + r) / (z * r);
    return body + pole - r * polynomial(cotangent, r * r);
  }
  return z < 1 ? body - 1 / x : body;
}

/** The derivative of digamma. */
template <typename T>
T trigamma_metal(T value) {
  using namespace gamma_coefficients;
  float x = value;
  float z = fabs(x);
  if (isinf(z)) {
    return x < 0 ? INFINITY : 0;
  }
  float pole = 1 / (z * z);
  // psi'(z) for large z, or psi'(1 + z) = psi'(z) - 1/z^2.
  float body;
  if (z < 6) {
    body = polynomial(trigamma_middle_p, z) / polynomial(trigamma_middle_q, z);
  } else {
    float u = 1 / z;
    body = u + u * u * (0.5f + u * polynomial(trigamma_large, u * u));
  }
  if (x < 0) {
    // (5.15.6)
    float r = z - rint(z);
    float reciprocal = 1 / (r * polynomial(sine, r * r));
    return reciprocal * reciprocal - (z < 6 ? body : body - pole);
  }
  return z < 6 ? body + pole : body;
}

/** x^n for n >= 0. */
inline float integer_power(float x, int n) {
  float y = 1;
  for (; n > 0; n >>= 1) {
    y = n & 1 ? y * x : y;
    x *= x;
  }
  return y;
}

/** n! / x^n for x > 0. */
inline float factorial_over_power(int n, float x) {
  const float small = exp2(-80.0f);
  float product = 1;
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

/** x^s zeta(s, x) for x > 0, s > 1. */
inline float scaled_zeta(int s, float x) {
  float sum = 0;
  float a = x;
  for (int k = 1; a < s + 6; ++k) {
    float term = integer_power(x / a, s);
    sum += term;
    if (term < 1e-8f * sum) {
      return sum;
    }
    a = x + k;
  }
  // (25.11.5)
  float tail = a / (s - 1) + 0.5f;
  float factor = s / a;
  for (int j = 0; j < 8; ++j) {
    tail += gamma_coefficients::bernoulli[j] * factor;
    factor *= (s + 2 * j + 1) / a * ((s + 2 * j + 2) / a);
  }
  return sum + integer_power(x / a, s) * tail;
}

/** The n-th derivative of digamma. */
template <typename T>
T polygamma_metal(int n, T value) {
  float x = value;
  if (n == 0) {
    return digamma_metal(x);
  }
  if (n == 1) {
    return trigamma_metal(x);
  }
  int s = n + 1;
  float sign = n % 2 == 0 ? -1 : 1;
  if (x > 0) {
    if (isinf(x)) {
      return sign * 0.0f;
    }
    return sign * factorial_over_power(n, x) * (scaled_zeta(s, x) / x);
  }
  // The sum over k >= 0 of (x + k)^-s, negative terms first.
  float m = rint(x);
  float f = x - m;
  float size = fabs(f);
  if (f == 0 || isinf(x)) {
    return sign * INFINITY;
  }
  bool even = s % 2 == 0;
  float sum = (f < 0 && !even ? -1 : 1) +
      integer_power(size / (1 + f), s) * scaled_zeta(s, 1 + f);
  if (m != 0) {
    float between = integer_power(size / (1 - f), s) * scaled_zeta(s, 1 - f) -
        integer_power(size / (1 - x), s) * scaled_zeta(s, 1 - x);
    sum += even ? between : -between;
  }
  return sign * factorial_over_power(n, size) * (sum / size);
}
