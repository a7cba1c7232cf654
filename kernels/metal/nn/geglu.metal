// Metal kernels of gated linear units with a GELU gate: the formulas of
// csrc/nn/geglu.h. mlxgen generates the [[kernel]]s around them.

#include <metal_stdlib>

using namespace metal; // MLX's header uses its functions without a prefix

#include "mlx/backend/metal/kernels/erf.h"

static constant constexpr const int gelu_by_tanh = 1;

/** The normal distribution at x and its density, or their approximations. */
inline float2 normal_at(float x, int approximate) {
  if (approximate == gelu_by_tanh) {
    // (1 + tanh(u)) / 2 = sigmoid(2 u), and its derivative.
    float square = x * x;
    float factor = 1.5957691216057308f; // 2 sqrt(2 / pi)
    float u = factor * x * (1 + 0.044715f * square);
    float e = precise::exp(-fabs(u));
    float s = (u < 0 ? e : 1.0f) / (1 + e);
    float slope = e / ((1 + e) * (1 + e));
    return float2(s, slope * factor * (1 + 3 * 0.044715f * square));
  }
  return float2(
      (1 + erf(x * 0.70710678118654752f)) / 2,
      precise::exp(x * x * -0.5f) * 0.3989422804014327f);
}

/** x * gelu(gate). */
template <typename T>
T geglu_metal(T x, T gate, int approximate) {
  return x * (gate * normal_at(gate, approximate).x);
}

template <typename T>
void geglu_vjp_metal(
    T x,
    T gate,
    T cotangent,
    int approximate,
    thread T& grad_x,
    thread T& grad_gate) {
  float2 normal = normal_at(gate, approximate);
  grad_x = cotangent * (gate * normal.x);
  grad_gate = cotangent * x * (normal.x + gate * normal.y);
}
