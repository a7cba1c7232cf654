// CPU kernels of single elements, for operators whose derivatives are torch's.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "mlxgen/simd_math.h"

namespace mlx_aten {
namespace cpu {

/** Minus target * log(x) + (1 - target) * log(1 - x); logarithms from -100. */
template <typename T>
T binary_entropies(T x, T target) {
  T log = mlxgen::math::log(x);
  T other = mlxgen::math::log1p(-x);
  log = log < T(-100) ? T(-100) : log; // a NaN stays
  other = other < T(-100) ? T(-100) : other;
  return -(target * log + (1 - target) * other);
}

template <typename T>
T real_power(T x, T y) {
  return mlxgen::math::pow(x, y);
}

/** x * log(y), and 0 where x is 0. */
template <typename T>
T x_log_y(T x, T y) {
  T product = x * mlxgen::math::log(y);
  return x == 0 && y == y ? T(0) : product;
}

/** x * log(1 + y), and 0 where x is 0. */
template <typename T>
T x_log1p_y(T x, T y) {
  T product = x * mlxgen::math::log1p(y);
  return x == 0 && y == y ? T(0) : product;
}

/** a * b - c * d, of which the first product is not rounded. */
template <typename T>
T product_difference(T a, T b, T c, T d) {
  return std::fma(a, b, -(c * d));
}

/** The remainder with the sign of y. */
template <typename T>
T float_remainder(T x, T y) {
  T rest = std::fmod(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

} // namespace cpu
} // namespace mlx_aten
