// Airy functions and their derivatives.
//
//   |x| <= 2     polynomials in x, with the zeros factored out
//   2 < x        e^-xi or e^xi with xi = 2/3 x^(3/2), and a function of 1/xi
//   x < -2       modulus and phase, functions of 1/xi^2
//
// On the negative axis the angle is about xi, which is computed with the digits
// that its reduction modulo 2 pi needs. Numbers such as (9.8.1) are equations
// of the Digital Library of Mathematical Functions, https://dlmf.nist.gov.

#pragma once

#include "airy_coefficients.h"
#include "bessel.h"
#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

namespace airy_detail {

namespace math = mlxgen::math;
using bessel_detail::add_turns;
using mlxgen::wide;

// The limit of x up to which the digits of xi / pi before the point are
// accurate.
//
// 2/3 x^(3/2) as a sum of two, and xi / pi modulo 2, for x >= 0.

#ifdef MLXGEN_TWOFOLD

constexpr float turns_limit(mlxgen::twofold) {
  return 1e12f;
}

inline mlxgen::twofold xi(mlxgen::twofold x, MLXGEN_OUT(mlxgen::twofold) rest) {
  mlxgen::twofold two_thirds = mlxgen::twofold(for_float::two_thirds[0].hi) +
      mlxgen::twofold(for_float::two_thirds[1].hi, for_float::two_thirds[1].lo);
  rest = mlxgen::twofold(0.0f);
  return x * math::sqrt(x) * two_thirds;
}

inline mlxgen::twofold turns(mlxgen::twofold argument) {
  using mlxgen::product_of;
  using mlxgen::twofold;
  // sqrt(x) in three parts, and its product with x in five.
  float x = argument.hi;
  twofold root = math::sqrt(argument);
  twofold square = product_of(root.hi, root.hi);
  twofold remainder = (x - square) - 2.0f * product_of(root.hi, root.lo);
  remainder = remainder - product_of(root.lo, root.lo);
  twofold first = product_of(x, root.hi);
  twofold second = product_of(x, root.lo);
  float part[5];
  part[0] = first.hi;
  part[1] = first.lo;
  part[2] = second.hi;
  part[3] = second.lo;
  part[4] = x * (remainder.hi / (2 * root.hi));
  float units = 0;
  twofold rest(0.0f);
  for (int i = 0; i < 5; ++i) {
    for (int k = 0; k < 3; ++k) {
      twofold product = product_of(part[i], for_float::turns[k].hi);
      add_turns(product.hi, units, rest);
      add_turns(product.lo, units, rest);
    }
  }
  units -= 2 * mlxgen::native::rint(0.5f * units);
  return rest + units;
}

#endif

#ifndef __METAL_VERSION__

constexpr double turns_limit(double) {
  return 1e19;
}

/** x sqrt(x), and its rounding error. */
inline double three_halves_power(double x, double& rest) {
  double root = std::sqrt(x);
  double lacking = std::fma(-root, root, x) / (2 * root);
  double product = x * root;
  rest = std::fma(x, root, -product) + x * lacking;
  return product;
}

inline double xi(double x, double& rest) {
  using for_double::two_thirds;
  double low;
  double power = three_halves_power(x, low);
  double product = power * two_thirds[0];
  rest = std::fma(power, two_thirds[0], -product) + power * two_thirds[1] +
      low * two_thirds[0];
  return product;
}

inline double turns(double x) {
  double low;
  double power = three_halves_power(x, low);
  double product = power * for_double::turns[0];
  double rest = std::fma(power, for_double::turns[0], -product) +
      (power * for_double::turns[1] + low * for_double::turns[0]);
  return (product - 2 * math::rint(0.5 * product)) + rest;
}

#endif

template <typename T>
inline void small(
    wide<T> x,
    MLXGEN_OUT(wide<T>) ai,
    MLXGEN_OUT(wide<T>) aip,
    MLXGEN_OUT(wide<T>) bi,
    MLXGEN_OUT(wide<T>) bip) {
  using W = wide<T>;
  W to_aip_zero = (x - W(MLXGEN_COEFFICIENTS(T, aip_zero)[0])) -
      W(MLXGEN_COEFFICIENTS(T, aip_zero)[1]);
  W to_bi_zero = (x - W(MLXGEN_COEFFICIENTS(T, bi_zero)[0])) -
      W(MLXGEN_COEFFICIENTS(T, bi_zero)[1]);
  ai = math::polynomial(MLXGEN_COEFFICIENTS(T, ai_small), x);
  aip = to_aip_zero * math::polynomial(MLXGEN_COEFFICIENTS(T, aip_small), x);
  bi = to_bi_zero * math::polynomial(MLXGEN_COEFFICIENTS(T, bi_small), x);
  bip = math::polynomial(MLXGEN_COEFFICIENTS(T, bip_small), x);
}

/** For 2 < x. */
template <typename T>
inline void monotone(
    wide<T> x,
    MLXGEN_OUT(wide<T>) ai,
    MLXGEN_OUT(wide<T>) aip,
    MLXGEN_OUT(wide<T>) bi,
    MLXGEN_OUT(wide<T>) bip) {
  using W = wide<T>;
  W rest;
  W size = xi(x, rest);
  if (!(size < 1e4f)) {
    // Overflow and underflow; NaN remains.
    bool known = x > 2;
    ai = known ? W(0) : W(x);
    aip = known ? W(-0.0f) : W(x);
    bi = known ? W(math::infinity()) : W(x);
    bip = bi;
    return;
  }
  W u = 1 / size;
  W root = math::sqrt(math::sqrt(x));
  // In halves, which overflow and underflow later than the results.
  W growth = math::exp(0.5f * size);
  W decay = math::exp(-0.5f * size);

  // (9.7.5), (9.7.6)
  ai = math::polynomial(MLXGEN_COEFFICIENTS(T, ai_large_p), u) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, ai_large_q), u);
  ai = ai / root * (1 - rest) * decay * decay;
  aip = math::polynomial(MLXGEN_COEFFICIENTS(T, aip_large_p), u) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, aip_large_q), u);
  aip = -(aip * root * (1 - rest) * decay * decay);
  // (9.7.7), (9.7.8)
  if (x < 5) {
    W t = x - 3.5f;
    bi = math::polynomial(MLXGEN_COEFFICIENTS(T, bi_middle), t);
    bip = math::polynomial(MLXGEN_COEFFICIENTS(T, bip_middle), t);
  } else {
    bi = math::polynomial(MLXGEN_COEFFICIENTS(T, bi_large), u);
    bip = math::polynomial(MLXGEN_COEFFICIENTS(T, bip_large), u);
  }
  bool infinite = growth == math::infinity();
  bi = infinite ? W(growth) : bi / root * (1 + rest) * growth * growth;
  bip = infinite ? W(growth) : bip * root * (1 + rest) * growth * growth;
}

/** At -x, for 2 < x. */
template <typename T>
inline void oscillating(
    wide<T> x,
    MLXGEN_OUT(wide<T>) ai,
    MLXGEN_OUT(wide<T>) aip,
    MLXGEN_OUT(wide<T>) bi,
    MLXGEN_OUT(wide<T>) bip) {
  using W = wide<T>;
  if (!(x < turns_limit(x))) {
    ai = aip = bi = bip = W(math::nan());
    return;
  }
  W rest;
  W size = xi(x, rest);
  W u = 1 / size;
  W w = u * u;
  W root = math::sqrt(math::sqrt(x));
  W angle = turns(x);

  // (9.8.1), (9.8.2), (9.8.20), (9.8.22)
  W modulus = math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, modulus_q), w) / root;
  W phase = math::polynomial(MLXGEN_COEFFICIENTS(T, phase_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, phase_q), w) * u;
  ai = modulus * math::sinpi((angle + 0.25f) + phase);
  bi = modulus * math::cospi((angle + 0.25f) + phase);
  // (9.8.5), (9.8.6), (9.8.21), (9.8.23)
  modulus = math::polynomial(MLXGEN_COEFFICIENTS(T, modulusp_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, modulusp_q), w) * root;
  phase = math::polynomial(MLXGEN_COEFFICIENTS(T, phasep_p), w) /
      math::polynomial(MLXGEN_COEFFICIENTS(T, phasep_q), w) * u;
  aip = modulus * math::sinpi((angle - 0.25f) + phase);
  bip = modulus * math::cospi((angle - 0.25f) + phase);
}

} // namespace airy_detail

/**
 * Ai(x), Ai'(x), Bi(x) and Bi'(x). NaN at -inf, and for x so far below 0 that
 * its digits do not determine the position between two zeros.
 */
template <typename T>
void airy(
    T value,
    MLXGEN_OUT(T) ai,
    MLXGEN_OUT(T) aip,
    MLXGEN_OUT(T) bi,
    MLXGEN_OUT(T) bip) {
  using W = mlxgen::wide<T>;
  W x = value;
  W y[4];
  if (x <= 2 && x >= -2) {
    airy_detail::small<T>(x, y[0], y[1], y[2], y[3]);
  } else if (x < -2) {
    airy_detail::oscillating<T>(-x, y[0], y[1], y[2], y[3]);
  } else {
    airy_detail::monotone<T>(x, y[0], y[1], y[2], y[3]);
  }
  ai = static_cast<T>(y[0]);
  aip = static_cast<T>(y[1]);
  bi = static_cast<T>(y[2]);
  bip = static_cast<T>(y[3]);
}

} // namespace special
} // namespace mlxops
