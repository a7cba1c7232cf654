// Activation functions inside of layers: those of csrc/nn/activations.h.

#pragma once

#include <metal_stdlib>

using namespace metal;

// The values of an operator's argument `activation`, in order.
enum Activation { silu_activation, sigmoid_activation };

/** 1 / (1 + exp(-x)), by exp of a negative number: it does not overflow. */
template <typename V>
inline V logistic(V x) {
  V e = precise::exp(-fabs(x));
  return select(V(1), e, x < V(0)) / (V(1) + e);
}

template <typename V>
inline V act(V x, int kind) {
  V s = logistic(x);
  return kind == silu_activation ? x * s : s;
}

template <typename V>
inline V act_derivative(V x, int kind) {
  V s = logistic(x);
  return s * (kind == silu_activation ? V(1) + x * (V(1) - s) : V(1) - s);
}
