// CPU kernels of the simple elementwise ops: one scalar function each. The loop
// around them is generated, and vectorised.

#pragma once

#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

template <typename T>
T add_cpu(T a, T b) {
  return a + b;
}

template <typename T>
T axpby(T x, T y, T alpha, T beta) {
  return alpha * x + beta * y;
}

/** x * silu(gate), where silu(g) = g * sigmoid(g). */
template <typename T>
T swiglu(T x, T gate) {
  // exp of a negative number only: no overflow, and full accuracy in the tail
  // where sigmoid is small.
  T e = mlxgen::math::exp(-mlxgen::math::fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  return x * (gate * sigmoid);
}

template <typename T>
void sincos(T x, T& sin, T& cos) {
  // cos is even. Given the same argument, gcc would merge the two calls into one
  // of the scalar function cexpi, and the loop would not be vectorised.
  sin = mlxgen::math::sin(x);
  cos = mlxgen::math::cos(mlxgen::math::fabs(x));
}

} // namespace mlxops::cpu
