// Activation functions inside of layers, for vectorized loops.

#pragma once

#include "mlxgen/loop.h"
#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

// The values of an operator's argument `activation`, in order.
namespace activation {
constexpr int silu = 0;
constexpr int sigmoid = 1;
} // namespace activation

MLXGEN_BEGIN_INLINED

/** 1 / (1 + exp(-x)), by exp of a negative number: it does not overflow. */
template <typename A>
inline A sigmoid(A x) {
  A e = mlxgen::math::exp(-mlxgen::math::fabs(x));
  return (x < 0 ? e : A(1)) / (1 + e);
}

/** The activation of x, whose sigmoid is s. */
template <typename A>
inline A act(A x, A s, int kind) {
  return kind == activation::silu ? x * s : s;
}

/** Its derivative. */
template <typename A>
inline A act_derivative(A x, A s, int kind) {
  return s * (kind == activation::silu ? 1 + x * (1 - s) : 1 - s);
}

MLXGEN_END_INLINED

} // namespace mlxops::cpu
