// Metal kernels of decays: the formulas of csrc/nn/decays.h. mlxgen generates
// the [[kernel]]s around them.

#include <metal_stdlib>

using namespace metal; // MLX's header uses its functions without a prefix

#include "mlx/backend/metal/kernels/expm1f.h"

template <typename T>
T exp_of_metal(T x) {
  return precise::exp(x);
}

/** exp(-8 gate rate) and sqrt(1 - decay^2), which is 1 at the first step. */
template <typename T>
void rg_lru_gates_metal(
    T gate,
    T rate,
    T first,
    thread T& decay,
    thread T& factor) {
  T exponent = -8 * gate * rate;
  decay = precise::exp(exponent);
  factor = first > 0.5f ? 1.0f : precise::sqrt(-expm1f(2 * exponent));
}
