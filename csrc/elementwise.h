// CPU kernels of the simple elementwise ops: one scalar function each. The loop
// around them is generated, and vectorised.

#pragma once

#include <type_traits>

#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

/** Signed integers, too, overflow as MLX's do: C++ does not define it. */
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
  // exp of a negative number only: no overflow, and full accuracy in the tail
  // where sigmoid is small.
  T e = mlxgen::math::exp(-mlxgen::math::fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  return x * (gate * sigmoid);
}

template <typename T>
void sincos(T x, T& sin, T& cos) {
  // Given the same argument twice, gcc makes one call of the two, of a function
  // without a vector variant; it also sees through fabs and minus. Adding 0
  // turns -0 to 0, so it is kept, and cos does not mind.
  sin = mlxgen::math::sin(x);
  cos = mlxgen::math::cos(x + T(0));
}

} // namespace mlxops::cpu
