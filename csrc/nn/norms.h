// CPU kernels of normalization fused with adjacent operations of a model: a
// gate, a residual connection, a second normalization. csrc/nn/rows.h explains
// how rows are computed.

#pragma once

#include "nn/activations.h"
#include "nn/rows.h"

namespace mlxops::cpu {

/**
 * y = n weight act(gate) with n = x / sqrt(mean(x^2) + eps) or, with the gate
 * first, y = n weight with n = v / sqrt(mean(v^2) + eps) and v = x act(gate).
 */
template <typename T>
void rms_norm_gate(
    In<T> x,
    In<T> gate,
    In<T> weight,
    double eps,
    int activation,
    bool norm_before_gate,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t n = x.dim(-1);
  auto w = rows::weight_of(weight, n);
  rows::share(rows::count(x.shape), n, [&](int64_t first, int64_t last) {
    std::vector<A> scratch(2 * n);
    A* v = scratch.data();
    A* a = v + n;
    for (int64_t row = first; row < last; ++row) {
      const T* from = x.data + row * n;
      rows::load(gate.data + row * n, a, n);
      rows::apply(a, n, [=](A g) { return act(g, sigmoid(g), activation); });
      rows::fill(v, n, [=](int64_t i) {
        return mlxgen::widen(from[i]) * (norm_before_gate ? A(1) : a[i]);
      });
      A scale = rows::rms_scale(v, n, eps);
      rows::store(out.data + row * n, n, [=, w = w.data()](int64_t i) {
        return v[i] * scale * w[i] * (norm_before_gate ? a[i] : A(1));
      });
    }
  });
}

/** Gradients; the rows of grad_weight add up to the gradient with respect to
 * weight. */
template <typename T>
void rms_norm_gate_vjp(
    In<T> x,
    In<T> gate,
    In<T> weight,
    In<T> cotangent,
    double eps,
    int activation,
    bool norm_before_gate,
    Out<T> grad_x,
    Out<T> grad_gate,
    Out<accum_t<T>> grad_weight) {
  using A = accum_t<T>;
  int64_t n = x.dim(-1);
  auto w = rows::weight_of(weight, n);
  rows::share_sums(
      rows::count(x.shape), n, [&](int64_t first, int64_t last, int64_t sum) {
        std::vector<A> scratch(4 * n);
        A* v = scratch.data();
        A* d = v + n; // gradient with respect to v, divided by scale
        A* g = d + n;
        A* s = g + n; // sigmoid(g)
        A* dw = grad_weight.data + sum * n;
        std::fill_n(dw, n, A(0));
        for (int64_t row = first; row < last; ++row) {
          const T* from = x.data + row * n;
          const T* dy = cotangent.data + row * n;
          rows::load(gate.data + row * n, g, n);
          rows::fill(s, n, [=](int64_t i) { return sigmoid(g[i]); });
          auto inner = [=](int64_t i) { // the factor of x in v
            return norm_before_gate ? A(1) : act(g[i], s[i], activation);
          };
          auto outer = [=](int64_t i) { // the factor of the normalized v in y
            return norm_before_gate ? act(g[i], s[i], activation) : A(1);
          };
          rows::fill(v, n, [=](int64_t i) {
            return mlxgen::widen(from[i]) * inner(i);
          });
          rows::fill(d, n, [=, w = w.data()](int64_t i) {
            return mlxgen::widen(dy[i]) * outer(i) * w[i];
          });
          A scale = rows::rms_scale(v, n, eps);
          A shift = rows::dot(d, v, n) / n * scale * scale;
          rows::add(dw, n, [=](int64_t i) {
            return mlxgen::widen(dy[i]) * v[i] * scale * outer(i);
          });
          rows::store(grad_x.data + row * n, n, [=](int64_t i) {
            return scale * (d[i] - v[i] * shift) * inner(i);
          });
          rows::store(
              grad_gate.data + row * n, n, [=, w = w.data()](int64_t i) {
                A da = norm_before_gate
                    ? mlxgen::widen(dy[i]) * v[i] * scale * w[i]
                    : scale * (d[i] - v[i] * shift) * mlxgen::widen(from[i]);
                return da * act_derivative(g[i], s[i], activation);
              });
        }
      });
}

/**
 * h = residual + w1 x / sqrt(mean(x^2) + eps) and y = w2 h / sqrt(mean(h^2) +
 * eps), with h as stored, rounded to T.
 */
template <typename T>
void norm_add_norm(
    In<T> x,
    In<T> residual,
    In<T> w1,
    In<T> w2,
    double eps,
    Out<T> y,
    Out<T> h) {
  using A = accum_t<T>;
  int64_t n = x.dim(-1);
  auto first_weight = rows::weight_of(w1, n);
  auto second_weight = rows::weight_of(w2, n);
  rows::share(rows::count(x.shape), n, [&](int64_t first, int64_t last) {
    std::vector<A> scratch(n);
    A* v = scratch.data();
    for (int64_t row = first; row < last; ++row) {
      const T* from = x.data + row * n;
      const T* other = residual.data + row * n;
      T* sum = h.data + row * n;
      rows::load(from, v, n);
      A scale = rows::rms_scale(v, n, eps);
      rows::store(sum, n, [=, w = first_weight.data()](int64_t i) {
        return mlxgen::widen(other[i]) + v[i] * scale * w[i];
      });
      rows::load(sum, v, n);
      scale = rows::rms_scale(v, n, eps);
      rows::store(
          y.data + row * n, n, [=, w = second_weight.data()](int64_t i) {
            return v[i] * scale * w[i];
          });
    }
  });
}

/** Gradients; the rows of grad_w1 and grad_w2 add up to those of the weights.
 */
template <typename T>
void norm_add_norm_vjp(
    In<T> x,
    In<T> h,
    In<T> w1,
    In<T> w2,
    In<T> grad_y,
    In<T> grad_h,
    double eps,
    Out<T> grad_x,
    Out<T> grad_residual,
    Out<accum_t<T>> grad_w1,
    Out<accum_t<T>> grad_w2) {
  using A = accum_t<T>;
  int64_t n = x.dim(-1);
  auto first_weight = rows::weight_of(w1, n);
  auto second_weight = rows::weight_of(w2, n);
  rows::share_sums(
      rows::count(x.shape), n, [&](int64_t first, int64_t last, int64_t sum) {
        std::vector<A> scratch(3 * n);
        A* v = scratch.data();
        A* d = v + n;
        A* dh = d + n;
        A* dw1 = grad_w1.data + sum * n;
        A* dw2 = grad_w2.data + sum * n;
        std::fill_n(dw1, n, A(0));
        std::fill_n(dw2, n, A(0));
        for (int64_t row = first; row < last; ++row) {
          const T* from = x.data + row * n;
          const T* total = h.data + row * n;
          const T* dy = grad_y.data + row * n;
          const T* more = grad_h.data + row * n;
          rows::load(total, v, n);
          rows::fill(d, n, [=, w = second_weight.data()](int64_t i) {
            return mlxgen::widen(dy[i]) * w[i];
          });
          A scale = rows::rms_scale(v, n, eps);
          A shift = rows::dot(d, v, n) / n * scale * scale;
          rows::add(dw2, n, [=](int64_t i) {
            return mlxgen::widen(dy[i]) * v[i] * scale;
          });
          rows::fill(dh, n, [=](int64_t i) {
            return mlxgen::widen(more[i]) + scale * (d[i] - v[i] * shift);
          });
          rows::store(grad_residual.data + row * n, n, [=](int64_t i) {
            return dh[i];
          });
          rows::load(from, v, n);
          rows::fill(d, n, [=, w = first_weight.data()](int64_t i) {
            return dh[i] * w[i];
          });
          scale = rows::rms_scale(v, n, eps);
          shift = rows::dot(d, v, n) / n * scale * scale;
          rows::add(dw1, n, [=](int64_t i) { return dh[i] * v[i] * scale; });
          rows::store(grad_x.data + row * n, n, [=](int64_t i) {
            return scale * (d[i] - v[i] * shift);
          });
        }
      });
}

/**
 * h = x + residual and y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias
 * over the last axis, with h as stored, rounded to T.
 */
template <typename T>
void layer_norm_residual(
    In<T> x,
    In<T> residual,
    In<T> weight,
    In<T> bias,
    double eps,
    Out<T> y,
    Out<T> h) {
  using A = accum_t<T>;
  int64_t n = x.dim(-1);
  auto factor = rows::weight_of(weight, n);
  auto term = rows::weight_of(bias, n, A(0));
  rows::share(rows::count(x.shape), n, [&](int64_t first, int64_t last) {
    std::vector<A> scratch(n);
    A* v = scratch.data();
    for (int64_t row = first; row < last; ++row) {
      const T* from = x.data + row * n;
      const T* other = residual.data + row * n;
      T* sum = h.data + row * n;
      rows::store(sum, n, [=](int64_t i) {
        return mlxgen::widen(from[i]) + mlxgen::widen(other[i]);
      });
      A scale = rows::centre(sum, v, n, eps);
      rows::store(
          y.data + row * n,
          n,
          [=, w = factor.data(), b = term.data()](int64_t i) {
            return v[i] * scale * w[i] + b[i];
          });
    }
  });
}

/** Gradients; the rows of grad_weight and grad_bias add up to the gradients. */
template <typename T>
void layer_norm_residual_vjp(
    In<T> h,
    In<T> weight,
    In<T> grad_y,
    In<T> grad_h,
    double eps,
    Out<T> grad_x,
    Out<accum_t<T>> grad_weight,
    Out<accum_t<T>> grad_bias) {
  using A = accum_t<T>;
  int64_t n = h.dim(-1);
  auto factor = rows::weight_of(weight, n);
  rows::share_sums(
      rows::count(h.shape), n, [&](int64_t first, int64_t last, int64_t sum) {
        std::vector<A> scratch(2 * n);
        A* v = scratch.data();
        A* d = v + n;
        A* dw = grad_weight.data + sum * n;
        A* db = grad_bias.data + sum * n;
        std::fill_n(dw, n, A(0));
        std::fill_n(db, n, A(0));
        for (int64_t row = first; row < last; ++row) {
          const T* dy = grad_y.data + row * n;
          const T* more = grad_h.data + row * n;
          A scale = rows::centre(h.data + row * n, v, n, eps);
          rows::fill(d, n, [=, w = factor.data()](int64_t i) {
            return mlxgen::widen(dy[i]) * w[i];
          });
          A mean = rows::sum(d, n) / n;
          A shift = rows::dot(d, v, n) / n * scale * scale;
          rows::add(dw, n, [=](int64_t i) {
            return mlxgen::widen(dy[i]) * v[i] * scale;
          });
          rows::add(db, n, [=](int64_t i) { return mlxgen::widen(dy[i]); });
          rows::store(grad_x.data + row * n, n, [=](int64_t i) {
            return mlxgen::widen(more[i]) +
                scale * (d[i] - mean - v[i] * shift);
          });
        }
      });
}

} // namespace mlxops::cpu
