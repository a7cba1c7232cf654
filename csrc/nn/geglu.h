// CPU kernels of gated linear units with a GELU gate: scalar functions, around
// which mlxgen generates the loop.

#pragma once

#include "mlxgen/simd_math.h"
#include "special/error_function.h"

namespace mlxops::cpu {

namespace gelu {

// A value of geglu's argument `approximate`.
constexpr int by_tanh = 1;

/** The normal distribution at x and its density, or their approximations. */
template <typename T>
struct Normal {
  T value;
  T slope;
};

template <typename T>
Normal<T> normal_at(T x, int approximate) {
  // (1 + tanh(u)) / 2 = sigmoid(2 u), and its derivative.
  T square = x * x;
  T factor = T(1.5957691216057308); // 2 sqrt(2 / pi)
  T u = factor * x * (1 + T(0.044715) * square);
  bool tanh = approximate == by_tanh;
  T e = mlxgen::math::exp(tanh ? -mlxgen::math::fabs(u) : square * T(-0.5));
  T s = (u < 0 ? e : T(1)) / (1 + e);
  T slope = e / ((1 + e) * (1 + e));
  T distribution = special::ndtr<T>(x);
  return {
      tanh ? s : distribution,
      tanh ? slope * factor * (1 + T(3 * 0.044715) * square)
           : e * T(0.3989422804014327)};
}

} // namespace gelu

/** x * gelu(gate). */
template <typename T>
T geglu(T x, T gate, int approximate) {
  return x * (gate * gelu::normal_at(gate, approximate).value);
}

template <typename T>
void geglu_vjp(
    T x,
    T gate,
    T cotangent,
    int approximate,
    T& grad_x,
    T& grad_gate) {
  auto normal = gelu::normal_at(gate, approximate);
  grad_x = cotangent * (gate * normal.value);
  grad_gate = cotangent * x * (normal.value + gate * normal.slope);
}

} // namespace mlxops::cpu
