// CPU kernels of decays: scalar functions, around which mlxgen generates the
// loop.

#pragma once

#include "mlxgen/simd_math.h"
#include "special/statistics.h"

namespace mlxops::cpu {

template <typename T>
T exp_of(T x) {
  return mlxgen::math::exp(x);
}

/** exp(-8 gate rate) and sqrt(1 - decay^2), which is 1 at the first step. */
template <typename T>
void rg_lru_gates(T gate, T rate, T first, T& decay, T& factor) {
  T exponent = T(-8) * gate * rate;
  decay = mlxgen::math::exp(exponent);
  // 1 - decay^2 would lose the digits of slow decays. Our expm1 vectorizes with
  // clang, too.
  T root = mlxgen::math::sqrt(-special::exp_m1(2 * exponent));
  factor = first > T(0.5) ? T(1) : root;
}

} // namespace mlxops::cpu
