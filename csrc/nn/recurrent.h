// CPU kernels of recurrent networks over time: a long short-term memory, and
// gated recurrent units. The caller has multiplied the input by its weights.
// The gradients compute the gates again, for a few steps at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/simd_math.h"
#include "mlxgen/threads.h"
#include "step_product.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace recurrent {

template <typename A>
A sigmoid(A x) {
  A e = mlxgen::math::exp(-mlxgen::math::fabs(x));
  return (x < 0 ? e : A(1)) / (1 + e);
}

/**
 * The hidden states before every step, for `count` rows of a batch from `first`
 * on, and their products with a matrix, which are computed for several steps at
 * a time. Steps run from the last to the first.
 */
template <typename T, typename A>
class StatesBefore {
 public:
  StatesBefore(
      const StepProduct<A>& product,
      In<T> states,
      In<T> initial,
      int64_t first,
      int64_t count)
      : product_(product),
        steps_(states.dim(1)),
        width_(states.dim(2)),
        states_(states.data + first * steps_ * width_),
        initial_(initial ? initial.data + first * width_ : nullptr),
        none_(width_),
        packed_(width_ * most),
        products_(count * most * product.columns()) {}

  const T* state(int64_t r, int64_t t) const {
    return t > 0   ? states_ + (r * steps_ + t - 1) * width_
        : initial_ ? initial_ + r * width_
                   : none_.data();
  }

  const A* products(int64_t r, int64_t t) {
    int64_t begin = t / most * most;
    A* to = products_.data() + r * most * product_.columns();
    if (t + 1 == steps_ || t + 1 == begin + most) {
      for (int64_t i = begin; i <= t; ++i) {
        const T* h = state(r, i);
        for (int64_t k = 0; k < width_; ++k) {
          packed_[k * most + i - begin] = mlxgen::widen(h[k]);
        }
      }
      product_(packed_.data(), t + 1 - begin, to, product_.columns());
    }
    return to + (t - begin) * product_.columns();
  }

 private:
  static constexpr int64_t most = StepProduct<A>::most;
  const StepProduct<A>& product_;
  int64_t steps_;
  int64_t width_;
  const T* states_;
  const T* initial_;
  std::vector<T> none_;
  std::vector<A> packed_;
  std::vector<A> products_;
};

/** From the gates i, f, g and o: c = f c + i g and h = o tanh(c). */
template <typename T, typename A>
MLXGEN_MULTIVERSION void lstm_here(
    int64_t width,
    const T* __restrict x,
    const A* __restrict product,
    A* __restrict c,
    T* __restrict hidden,
    A* __restrict cell) {
  for (int64_t k = 0; k < width; ++k) {
    auto gate = [&](int64_t i) {
      return mlxgen::widen(x[i * width + k]) + product[i * width + k];
    };
    A value = sigmoid(gate(1)) * c[k] +
        sigmoid(gate(0)) * mlxgen::math::tanh(gate(2));
    c[k] = value;
    cell[k] = value;
    mlxgen::narrow(sigmoid(gate(3)) * mlxgen::math::tanh(value), hidden[k]);
  }
}

/**
 * A step of the gradient. `grad` is the gradient with respect to the gates;
 * of_h and of_c come from the next step, and of_c then passes to the previous
 * one.
 */
template <typename T, typename A>
MLXGEN_MULTIVERSION void lstm_back_here(
    int64_t width,
    const T* __restrict x,
    const A* __restrict product,
    const A* __restrict before,
    const A* __restrict cell,
    const T* __restrict grad_hidden,
    const A* __restrict grad_cell,
    const A* __restrict of_h,
    A* __restrict of_c,
    A* __restrict grad) {
  for (int64_t k = 0; k < width; ++k) {
    auto gate = [&](int64_t i) {
      return mlxgen::widen(x[i * width + k]) + product[i * width + k];
    };
    A i = sigmoid(gate(0));
    A f = sigmoid(gate(1));
    A g = mlxgen::math::tanh(gate(2));
    A o = sigmoid(gate(3));
    A shown = mlxgen::math::tanh(cell[k]);
    A dh = mlxgen::widen(grad_hidden[k]) + of_h[k];
    A dc = grad_cell[k] + of_c[k] + dh * o * (1 - shown * shown);
    grad[k] = dc * g * i * (1 - i);
    grad[width + k] = dc * before[k] * f * (1 - f);
    grad[2 * width + k] = dc * i * (1 - g * g);
    grad[3 * width + k] = dh * shown * o * (1 - o);
    of_c[k] = dc * f;
  }
}

} // namespace recurrent

/** The hidden and the cell state after every step. */
template <typename T>
void lstm(
    In<T> x,
    In<T> weight,
    In<T> hidden,
    In<accum_t<T>> cell,
    Out<T> hidden_out,
    Out<accum_t<T>> cell_out) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  Matrix<T> matrix{weight.data, width};
  StepProduct<A> product(matrix.transposed(), width, 4 * width);
  constexpr int64_t most = StepProduct<A>::most;
  product.share(x.dim(0), steps, [&](int64_t first, int64_t count) {
    std::vector<A> h(width * most), c(width * count), gates(4 * width * count);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t k = 0; k < width; ++k) {
        int64_t at = (first + r) * width + k;
        h[k * most + r] = hidden ? mlxgen::widen(hidden[at]) : A(0);
        c[r * width + k] = cell ? cell[at] : A(0);
      }
    }
    for (int64_t t = 0; t < steps; ++t) {
      product(h.data(), count, gates.data(), 4 * width);
      for (int64_t r = 0; r < count; ++r) {
        int64_t row = (first + r) * steps + t;
        T* to = hidden_out.data + row * width;
        mlxgen::multiversion([&] {
          recurrent::lstm_here<T, A>(
              width,
              x.data + row * 4 * width,
              gates.data() + r * 4 * width,
              c.data() + r * width,
              to,
              cell_out.data + row * width);
        });
        for (int64_t k = 0; k < width; ++k) {
          h[k * most + r] = mlxgen::widen(to[k]); // as it is stored
        }
      }
    }
  });
}

/** Gradients of x and of the first states. */
template <typename T>
void lstm_vjp(
    In<T> x,
    In<T> weight,
    In<T> hidden,
    In<accum_t<T>> cell,
    In<T> hidden_out,
    In<accum_t<T>> cell_out,
    In<T> cotangent,
    In<accum_t<T>> cotangent_cell,
    Out<T> grad_x,
    Out<T> grad_hidden,
    Out<accum_t<T>> grad_cell) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  Matrix<T> matrix{weight.data, width};
  StepProduct<A> again(matrix.transposed(), width, 4 * width);
  StepProduct<A> product(matrix, 4 * width, width);
  constexpr int64_t most = StepProduct<A>::most;
  product.share(x.dim(0), steps, [&](int64_t first, int64_t count) {
    std::vector<A> of_h(width * count), of_c(width * count), none(width);
    std::vector<A> grad(4 * width), packed(4 * width * most);
    recurrent::StatesBefore<T, A> before(
        again, hidden_out, hidden, first, count);
    for (int64_t t = steps; t-- > 0;) {
      for (int64_t r = 0; r < count; ++r) {
        int64_t row = (first + r) * steps + t;
        const A* cell_before = t > 0 ? cell_out.data + (row - 1) * width
            : cell                   ? cell.data + (first + r) * width
                                     : none.data();
        const A* products = before.products(r, t);
        mlxgen::multiversion([&] {
          recurrent::lstm_back_here<T, A>(
              width,
              x.data + row * 4 * width,
              products,
              cell_before,
              cell_out.data + row * width,
              cotangent.data + row * width,
              cotangent_cell.data + row * width,
              of_h.data() + r * width,
              of_c.data() + r * width,
              grad.data());
        });
        for (int64_t k = 0; k < 4 * width; ++k) {
          packed[k * most + r] = grad[k];
          mlxgen::narrow(grad[k], grad_x[row * 4 * width + k]);
        }
      }
      product(packed.data(), count, of_h.data(), width);
    }
    for (int64_t k = 0; k < count * width; ++k) {
      mlxgen::narrow(of_h[k], grad_hidden[first * width + k]);
      grad_cell[first * width + k] = of_c[k];
    }
  });
}

namespace recurrent {

/** From r, z and n: h = (1 - z) n + z h, where n includes r times its product.
 */
template <typename T, typename A>
MLXGEN_MULTIVERSION void gru_here(
    int64_t width,
    const T* __restrict x,
    const A* __restrict product,
    const A* __restrict bias,
    const A* __restrict before,
    T* __restrict hidden) {
  for (int64_t k = 0; k < width; ++k) {
    auto input = [&](int64_t i) { return mlxgen::widen(x[i * width + k]); };
    A r = sigmoid(input(0) + product[k]);
    A z = sigmoid(input(1) + product[width + k]);
    A n = mlxgen::math::tanh(input(2) + r * (product[2 * width + k] + bias[k]));
    mlxgen::narrow((1 - z) * n + z * before[k], hidden[k]);
  }
}

/**
 * A step of the gradient with respect to the product. The gradient with respect
 * to x differs only in n, where it is grad_n. of_h comes from the next step,
 * and then contains the part for the previous step that does not pass through
 * the product.
 */
template <typename T, typename A>
MLXGEN_MULTIVERSION void gru_back_here(
    int64_t width,
    const T* __restrict x,
    const A* __restrict product,
    const A* __restrict bias,
    const T* __restrict before,
    const T* __restrict grad_hidden,
    A* __restrict of_h,
    A* __restrict grad,
    A* __restrict grad_n) {
  for (int64_t k = 0; k < width; ++k) {
    auto input = [&](int64_t i) { return mlxgen::widen(x[i * width + k]); };
    A r = sigmoid(input(0) + product[k]);
    A z = sigmoid(input(1) + product[width + k]);
    A gated = product[2 * width + k] + bias[k];
    A n = mlxgen::math::tanh(input(2) + r * gated);
    A dh = mlxgen::widen(grad_hidden[k]) + of_h[k];
    A dn = dh * (1 - z) * (1 - n * n);
    grad[k] = dn * gated * r * (1 - r);
    grad[width + k] = dh * (mlxgen::widen(before[k]) - n) * z * (1 - z);
    grad[2 * width + k] = dn * r;
    grad_n[k] = dn;
    of_h[k] = dh * z;
  }
}

/** An array widened to the computing type; zeros for an absent array. */
template <typename T>
std::vector<accum_t<T>> widened(In<T> x, int64_t first, int64_t count) {
  std::vector<accum_t<T>> to(count);
  for (int64_t i = 0; x && i < count; ++i) {
    to[i] = mlxgen::widen(x[first + i]);
  }
  return to;
}

} // namespace recurrent

/** The hidden state after every step. */
template <typename T>
void gru(In<T> x, In<T> weight, In<T> bias, In<T> hidden, Out<T> out) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  Matrix<T> matrix{weight.data, width};
  StepProduct<A> product(matrix.transposed(), width, 3 * width);
  constexpr int64_t most = StepProduct<A>::most;
  auto of_n = recurrent::widened(bias, 0, width);
  product.share(x.dim(0), steps, [&](int64_t first, int64_t count) {
    auto h = recurrent::widened(hidden, first * width, count * width);
    std::vector<A> packed(width * most), products(3 * width * count);
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t k = 0; k < width; ++k) {
          packed[k * most + r] = h[r * width + k];
        }
      }
      product(packed.data(), count, products.data(), 3 * width);
      for (int64_t r = 0; r < count; ++r) {
        int64_t row = (first + r) * steps + t;
        T* to = out.data + row * width;
        mlxgen::multiversion([&] {
          recurrent::gru_here<T, A>(
              width,
              x.data + row * 3 * width,
              products.data() + r * 3 * width,
              of_n.data(),
              h.data() + r * width,
              to);
        });
        for (int64_t k = 0; k < width; ++k) {
          h[r * width + k] = mlxgen::widen(to[k]); // as it is stored
        }
      }
    }
  });
}

/** Gradients with respect to x, by n's product with its bias, and by the first
 * state. */
template <typename T>
void gru_vjp(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> hidden,
    In<T> states,
    In<T> cotangent,
    Out<T> grad_x,
    Out<T> grad_gated,
    Out<T> grad_hidden) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  Matrix<T> matrix{weight.data, width};
  StepProduct<A> again(matrix.transposed(), width, 3 * width);
  StepProduct<A> product(matrix, 3 * width, width);
  constexpr int64_t most = StepProduct<A>::most;
  auto of_n = recurrent::widened(bias, 0, width);
  product.share(x.dim(0), steps, [&](int64_t first, int64_t count) {
    std::vector<A> of_h(width * count), back(width * count);
    std::vector<A> grad(3 * width), grad_n(width), packed(3 * width * most);
    recurrent::StatesBefore<T, A> before(again, states, hidden, first, count);
    for (int64_t t = steps; t-- > 0;) {
      for (int64_t r = 0; r < count; ++r) {
        int64_t row = (first + r) * steps + t;
        const A* products = before.products(r, t);
        mlxgen::multiversion([&] {
          recurrent::gru_back_here<T, A>(
              width,
              x.data + row * 3 * width,
              products,
              of_n.data(),
              before.state(r, t),
              cotangent.data + row * width,
              of_h.data() + r * width,
              grad.data(),
              grad_n.data());
        });
        for (int64_t k = 0; k < width; ++k) {
          T* to = grad_x.data + row * 3 * width + k;
          mlxgen::narrow(grad[k], to[0]);
          mlxgen::narrow(grad[width + k], to[width]);
          mlxgen::narrow(grad_n[k], to[2 * width]);
          mlxgen::narrow(grad[2 * width + k], grad_gated[row * width + k]);
        }
        for (int64_t k = 0; k < 3 * width; ++k) {
          packed[k * most + r] = grad[k];
        }
      }
      product(packed.data(), count, back.data(), width);
      for (int64_t i = 0; i < count * width; ++i) {
        of_h[i] += back[i];
      }
    }
    for (int64_t i = 0; i < count * width; ++i) {
      mlxgen::narrow(of_h[i], grad_hidden[first * width + i]);
    }
  });
}

/**
 * The gradient with respect to the first `rows` rows of a weight, from the
 * gradients with respect to its products with the states before every step.
 * `states` are those after every step; `first` is the state before all of them.
 */
template <typename T>
void step_weight_vjp(
    In<T> cotangent,
    In<T> states,
    In<T> first,
    int64_t rows,
    Out<T> out) {
  using A = accum_t<T>;
  constexpr int64_t most = product::block_rows;
  int64_t batch = cotangent.dim(0);
  int64_t steps = cotangent.dim(1);
  int64_t all = cotangent.dim(2);
  int64_t width = states.dim(2);
  mlxgen::share(
      (rows + most - 1) / most,
      most * batch * steps * width,
      [&](int64_t begin, int64_t end) {
        std::vector<A> sums(most * width);
        for (int64_t i = begin; i < end; ++i) {
          int64_t at = i * most;
          int64_t count = std::min(most, rows - at);
          multiply(
              count,
              first && steps > 0 ? batch : 0,
              width,
              Matrix<T>{cotangent.data + at, 1, steps * all},
              Matrix<T>{first.data, width},
              sums.data(),
              width);
          for (int64_t b = 0; steps > 1 && b < batch; ++b) {
            multiply(
                count,
                steps - 1,
                width,
                Matrix<T>{cotangent.data + (b * steps + 1) * all + at, 1, all},
                Matrix<T>{states.data + b * steps * width, width},
                sums.data(),
                width,
                true);
          }
          for (int64_t j = 0; j < count * width; ++j) {
            mlxgen::narrow(sums[j], out[at * width + j]);
          }
        }
      });
}

} // namespace mlxops::cpu
