// Metal kernels of the simple elementwise ops: one scalar function each. mlxgen
// generates the [[kernel]]s around them; half and bfloat are computed in float.

#include <metal_stdlib>

using namespace metal;

template <typename T>
T add_metal(T a, T b) {
  return a + b;
}

template <typename T>
T axpby_metal(T x, T y, T alpha, T beta) {
  return alpha * x + beta * y;
}

/** x * silu(gate), where silu(g) = g * sigmoid(g). */
template <typename T>
T swiglu_metal(T x, T gate) {
  // exp of a negative number does not overflow, and is accurate in the tail,
  // where sigmoid is small.
  T e = precise::exp(-fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  return x * (gate * sigmoid);
}

template <typename T>
void swiglu_vjp_metal(
    T x,
    T gate,
    T cotangent,
    thread T& grad_x,
    thread T& grad_gate) {
  T e = precise::exp(-fabs(gate));
  T sigmoid = (gate < 0 ? e : T(1)) / (1 + e);
  T rest = (gate < 0 ? T(1) : e) / (1 + e); // 1 - sigmoid
  grad_x = cotangent * (gate * sigmoid);
  grad_gate = cotangent * x * (sigmoid * (1 + gate * rest));
}

template <typename T>
void sincos_metal(T x, thread T& sin, thread T& cos) {
  sin = precise::sin(x);
  cos = precise::cos(x);
}
