// CPU kernels of the simple elementwise ops: one scalar function each. mlxgen
// generates the vectorized loop around each function.

#pragma once

#include <type_traits>

#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

/** Signed integers wrap on overflow, as MLX's do; C++ leaves this undefined. */
template <typename T>
T add_cpu(T a, T b) {
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T axpby(T x, T y, T alpha, T beta) {
  return alpha * x + beta * y;
}

/** x * silu(gate), where silu(g) = g * sigmoid(g). */
template <typename T>
T swiglu(T x, T gate) {
  // exp of a negative number does not overflow, and is accurate in the tail,
  // where sigmoid is small.
  T e = mlxgen::math::exp(-mlxgen::math::fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  return x * (gate * sigmoid);
}

template <typename T>
void swiglu_vjp(T x, T gate, T cotangent, T& grad_x, T& grad_gate) {
  T e = mlxgen::math::exp(-mlxgen::math::fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  T rest = (gate < 0 ? T(1) : e) / (1 + e); // 1 - sigmoid
  grad_x = cotangent * (gate * sigmoid);
  grad_gate = cotangent * x * (sigmoid * (1 + gate * rest));
}

template <typename T>
void sincos(T x, T& sin, T& cos) {
  // With the same argument for both, gcc merges the two calls into one function
  // without a vector variant; it also sees through fabs and minus. Adding 0
  // changes -0 to 0, so that gcc must keep it, and cos is the same for both.
  sin = mlxgen::math::sin(x);
  cos = mlxgen::math::cos(x + T(0));
}

} // namespace mlxops::cpu
