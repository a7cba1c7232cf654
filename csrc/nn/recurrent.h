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
#include "sequences.h"
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

/** What a step begins with; `outside` is a step in no sequence. */
enum class Begin : char { outside, previous, given, zeros };

inline std::vector<Begin> begins(In<int32_t> cu_seqlens, int64_t steps) {
  Sequences sequences{cu_seqlens, steps};
  std::vector<Begin> result(steps);
  for (int64_t t = 0; t < steps; ++t) {
    Sequence own = sequences.of(t);
    result[t] = !own.exists() ? Begin::outside
        : t > own.first       ? Begin::previous
        : own.index == 0      ? Begin::given
                              : Begin::zeros;
  }
  return result;
}

/** The states before all steps, from those after them; null means zeros. */
template <typename T>
struct Before {
  const std::vector<Begin>& begins;
  int64_t width;
  const T* states;
  const T* initial; // can be null

  int64_t steps() const {
    return begins.size();
  }
  /** False if the states before step t are zeros. */
  bool exist(int64_t t) const {
    return begins[t] == Begin::previous ||
        (begins[t] == Begin::given && initial != nullptr);
  }
  const T* operator()(int64_t row, int64_t t) const {
    if (!exist(t)) {
      return nullptr;
    }
    return begins[t] == Begin::given ? initial + row * width
                                     : states + (row * steps() + t - 1) * width;
  }
};

/** The operations of a gate outside of products, roughly. */
constexpr int64_t gate_cost = 30;

/**
 * Call step(row, t, products) for all steps of all rows, in the order of time.
 * `products` are those of the weight with the state before the step. `before`
 * reads the results of earlier steps.
 */
template <typename A, typename T, typename Step>
void forward(
    const Before<T>& before,
    Matrix<T> weight,
    int64_t columns,
    int64_t batch,
    Step step) {
  int64_t width = before.width;
  int64_t steps = before.steps();
  StepProduct<T, A> product(weight.transposed(), width, columns);
  if (steps == 1) {
    std::vector<A> products(batch * columns);
    if (before.exist(0)) {
      StepVectors<A> h(batch, width);
      for (int64_t b = 0; b < batch; ++b) {
        h.set(b, before(b, 0));
      }
      product.once(h, products.data());
    }
    mlxgen::share(batch, gate_cost * columns, [&](int64_t first, int64_t end) {
      for (int64_t b = first; b < end; ++b) {
        step(b, 0, products.data() + b * columns);
      }
    });
    return;
  }
  product.pack();
  share_rows(batch, steps * columns * width, [&](int64_t first, int64_t count) {
    StepVectors<A> h(count, width);
    std::vector<A> products(count * columns);
    for (int64_t t = 0; t < steps; ++t) {
      if (before.exist(t)) {
        for (int64_t r = 0; r < count; ++r) {
          h.set(r, before(first + r, t));
        }
        product(h, products.data());
      } else {
        std::fill(products.begin(), products.end(), A(0));
      }
      for (int64_t r = 0; r < count; ++r) {
        step(first + r, t, products.data() + r * columns);
      }
    }
  });
}

/**
 * Call step(row, t, products, of_h, grad) for all steps of all rows, from the
 * last one to the first. The step computes the gradients `grad` of the
 * products; the gradient of its state is replaced by the part of that of the
 * state before that does not pass through the products. A step in no sequence
 * changes neither. Then call done(row, of_h) with the gradient of the first
 * state.
 */
template <typename A, typename T, typename Step, typename Done>
void backward(
    const Before<T>& before,
    Matrix<T> weight,
    int64_t columns,
    int64_t batch,
    Step step,
    Done done) {
  int64_t width = before.width;
  int64_t steps = before.steps();
  StepProduct<T, A> again(weight.transposed(), width, columns);
  StepProduct<T, A> product(weight, columns, width);
  if (steps == 1) {
    bool is_there = before.exist(0);
    std::vector<A> products(batch * columns);
    std::vector<A> of_h(batch * width), back(batch * width);
    StepVectors<A> grads(batch, columns);
    if (is_there) {
      StepVectors<A> h(batch, width);
      for (int64_t b = 0; b < batch; ++b) {
        h.set(b, before(b, 0));
      }
      again.once(h, products.data());
    }
    mlxgen::share(batch, gate_cost * columns, [&](int64_t first, int64_t end) {
      std::vector<A> grad(columns);
      for (int64_t b = first; b < end; ++b) {
        const A* of_gates = products.data() + b * columns;
        step(b, 0, of_gates, of_h.data() + b * width, grad.data());
        grads.set(b, grad.data());
      }
    });
    if (is_there) {
      product.once(grads, back.data());
    }
    for (int64_t i = 0; i < batch * width; ++i) {
      of_h[i] = is_there ? of_h[i] + back[i] : A(0);
    }
    for (int64_t b = 0; b < batch; ++b) {
      done(b, of_h.data() + b * width);
    }
    return;
  }
  again.pack();
  product.pack();
  int64_t cost = 2 * steps * columns * width;
  share_rows(batch, cost, [&](int64_t first, int64_t count) {
    // The gates of some steps are computed together, again.
    int64_t most = std::max<int64_t>(2 * product::most_rows / count, 1);
    std::vector<A> of_h(count * width), back(count * width), grad(columns);
    std::vector<A> products(most * count * columns);
    StepVectors<A> grads(count, columns);
    auto of_step = [&](int64_t t, int64_t r) {
      return products.data() + (t % most * count + r) * columns;
    };
    for (int64_t t = steps; t-- > 0;) {
      if (t + 1 == steps || (t + 1) % most == 0) {
        int64_t begin = t / most * most;
        StepVectors<A> h((t + 1 - begin) * count, width);
        for (int64_t i = begin; i <= t; ++i) {
          for (int64_t r = 0; r < count; ++r) {
            h.set((i - begin) * count + r, before(first + r, i));
          }
        }
        again(h, products.data());
        for (int64_t i = begin; i <= t; ++i) {
          if (!before.exist(i)) {
            std::fill_n(of_step(i, 0), count * columns, A(0));
          }
        }
      }
      for (int64_t r = 0; r < count; ++r) {
        step(first + r, t, of_step(t, r), of_h.data() + r * width, grad.data());
        grads.set(r, grad.data());
      }
      if (before.exist(t)) {
        product(grads, back.data());
        for (int64_t i = 0; i < count * width; ++i) {
          of_h[i] += back[i];
        }
      } else if (before.begins[t] != Begin::outside) {
        std::fill(of_h.begin(), of_h.end(), A(0));
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      done(first + r, of_h.data() + r * width);
    }
  });
}

/** From the gates i, f, g and o: c = f c + i g and h = o tanh(c). */
template <typename T, typename A>
MLXGEN_MULTIVERSION void lstm_here(
    int64_t width,
    const T* __restrict x,
    const A* __restrict product,
    const A* __restrict before,
    T* __restrict hidden,
    A* __restrict cell) {
  for (int64_t k = 0; k < width; ++k) {
    auto gate = [&](int64_t i) {
      return mlxgen::widen(x[i * width + k]) + product[i * width + k];
    };
    A value = sigmoid(gate(1)) * before[k] +
        sigmoid(gate(0)) * mlxgen::math::tanh(gate(2));
    cell[k] = value;
    mlxgen::narrow(sigmoid(gate(3)) * mlxgen::math::tanh(value), hidden[k]);
  }
}

/**
 * A step of the gradient. `grad` is the gradient with respect to the gates;
 * of_h and of_c come from the next step, and of_c then passes to the previous
 * one. of_h passes only through the product.
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
    A* __restrict of_h,
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
    of_h[k] = 0;
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
    In<int32_t> cu_seqlens,
    Out<T> hidden_out,
    Out<accum_t<T>> cell_out) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  auto begins = recurrent::begins(cu_seqlens, steps);
  recurrent::Before<T> before{
      begins, width, hidden_out.data, hidden ? hidden.data : nullptr};
  recurrent::Before<A> cell_before{
      begins, width, cell_out.data, cell ? cell.data : nullptr};
  std::vector<A> none(width);
  auto step = [&](int64_t b, int64_t t, const A* products) {
    int64_t row = b * steps + t;
    if (begins[t] == recurrent::Begin::outside) {
      std::fill_n(hidden_out.data + row * width, width, T(0));
      std::fill_n(cell_out.data + row * width, width, A(0));
      return;
    }
    const A* c = cell_before(b, t);
    mlxgen::multiversion([&] {
      recurrent::lstm_here<T, A>(
          width,
          x.data + row * 4 * width,
          products,
          c != nullptr ? c : none.data(),
          hidden_out.data + row * width,
          cell_out.data + row * width);
    });
  };
  Matrix<T> matrix{weight.data, width};
  recurrent::forward<A>(before, matrix, 4 * width, x.dim(0), step);
}

/** Gradients of x and of the first states. */
template <typename T>
void lstm_vjp(
    In<T> x,
    In<T> weight,
    In<T> hidden,
    In<accum_t<T>> cell,
    In<int32_t> cu_seqlens,
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
  auto begins = recurrent::begins(cu_seqlens, steps);
  recurrent::Before<T> before{
      begins, width, hidden_out.data, hidden ? hidden.data : nullptr};
  recurrent::Before<A> cell_before{
      begins, width, cell_out.data, cell ? cell.data : nullptr};
  std::vector<A> none(width);
  std::fill_n(grad_cell.data, grad_cell.size(), A(0));
  auto step = [&](int64_t b, int64_t t, const A* products, A* of_h, A* grad) {
    int64_t row = b * steps + t;
    if (begins[t] == recurrent::Begin::outside) {
      std::fill_n(grad_x.data + row * 4 * width, 4 * width, T(0));
      return;
    }
    const A* c = cell_before(b, t);
    mlxgen::multiversion([&] {
      recurrent::lstm_back_here<T, A>(
          width,
          x.data + row * 4 * width,
          products,
          c != nullptr ? c : none.data(),
          cell_out.data + row * width,
          cotangent.data + row * width,
          cotangent_cell.data + row * width,
          of_h,
          grad_cell.data + b * width, // passes through the steps
          grad);
    });
    for (int64_t k = 0; k < 4 * width; ++k) {
      mlxgen::narrow(grad[k], grad_x[row * 4 * width + k]);
    }
    if (begins[t] == recurrent::Begin::zeros) {
      std::fill_n(grad_cell.data + b * width, width, A(0));
    }
  };
  auto done = [&](int64_t b, const A* of_h) {
    for (int64_t k = 0; k < width; ++k) {
      mlxgen::narrow(of_h[k], grad_hidden[b * width + k]);
    }
  };
  Matrix<T> matrix{weight.data, width};
  recurrent::backward<A>(before, matrix, 4 * width, x.dim(0), step, done);
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
    const T* __restrict before,
    T* __restrict hidden) {
  for (int64_t k = 0; k < width; ++k) {
    auto input = [&](int64_t i) { return mlxgen::widen(x[i * width + k]); };
    A r = sigmoid(input(0) + product[k]);
    A z = sigmoid(input(1) + product[width + k]);
    A n = mlxgen::math::tanh(input(2) + r * (product[2 * width + k] + bias[k]));
    mlxgen::narrow((1 - z) * n + z * mlxgen::widen(before[k]), hidden[k]);
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

/** A bias in the computing type; zeros by default. */
template <typename T>
std::vector<accum_t<T>> widened(In<T> bias, int64_t width) {
  std::vector<accum_t<T>> to(width);
  for (int64_t i = 0; bias && i < width; ++i) {
    to[i] = mlxgen::widen(bias[i]);
  }
  return to;
}

} // namespace recurrent

/** The hidden state after every step. */
template <typename T>
void gru(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> hidden,
    In<int32_t> cu_seqlens,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  auto begins = recurrent::begins(cu_seqlens, steps);
  recurrent::Before<T> before{
      begins, width, out.data, hidden ? hidden.data : nullptr};
  auto of_n = recurrent::widened(bias, width);
  std::vector<T> none(width);
  auto step = [&](int64_t b, int64_t t, const A* products) {
    int64_t row = b * steps + t;
    if (begins[t] == recurrent::Begin::outside) {
      std::fill_n(out.data + row * width, width, T(0));
      return;
    }
    const T* h = before(b, t);
    mlxgen::multiversion([&] {
      recurrent::gru_here<T, A>(
          width,
          x.data + row * 3 * width,
          products,
          of_n.data(),
          h != nullptr ? h : none.data(),
          out.data + row * width);
    });
  };
  Matrix<T> matrix{weight.data, width};
  recurrent::forward<A>(before, matrix, 3 * width, x.dim(0), step);
}

/** Gradients with respect to x, by n's product with its bias, and by the first
 * state. */
template <typename T>
void gru_vjp(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> hidden,
    In<int32_t> cu_seqlens,
    In<T> states,
    In<T> cotangent,
    Out<T> grad_x,
    Out<T> grad_gated,
    Out<T> grad_hidden) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t width = weight.dim(1);
  auto begins = recurrent::begins(cu_seqlens, steps);
  recurrent::Before<T> before{
      begins, width, states.data, hidden ? hidden.data : nullptr};
  auto of_n = recurrent::widened(bias, width);
  std::vector<T> none(width);
  auto step = [&](int64_t b, int64_t t, const A* products, A* of_h, A* grad) {
    int64_t row = b * steps + t;
    if (begins[t] == recurrent::Begin::outside) {
      std::fill_n(grad_x.data + row * 3 * width, 3 * width, T(0));
      std::fill_n(grad_gated.data + row * width, width, T(0));
      return;
    }
    const T* h = before(b, t);
    std::vector<A> grad_n(width);
    mlxgen::multiversion([&] {
      recurrent::gru_back_here<T, A>(
          width,
          x.data + row * 3 * width,
          products,
          of_n.data(),
          h != nullptr ? h : none.data(),
          cotangent.data + row * width,
          of_h,
          grad,
          grad_n.data());
    });
    for (int64_t k = 0; k < width; ++k) {
      T* to = grad_x.data + row * 3 * width + k;
      mlxgen::narrow(grad[k], to[0]);
      mlxgen::narrow(grad[width + k], to[width]);
      mlxgen::narrow(grad_n[k], to[2 * width]);
      mlxgen::narrow(grad[2 * width + k], grad_gated[row * width + k]);
    }
  };
  auto done = [&](int64_t b, const A* of_h) {
    for (int64_t k = 0; k < width; ++k) {
      mlxgen::narrow(of_h[k], grad_hidden[b * width + k]);
    }
  };
  Matrix<T> matrix{weight.data, width};
  recurrent::backward<A>(before, matrix, 3 * width, x.dim(0), step, done);
}

namespace recurrent {

/** The outer product of two vectors. */
template <typename T>
MLXGEN_MULTIVERSION void outer_here(
    int64_t rows,
    int64_t columns,
    const T* __restrict a,
    const T* __restrict b,
    T* __restrict to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      mlxgen::narrow(
          mlxgen::widen(a[i]) * mlxgen::widen(b[j]), to[i * columns + j]);
    }
  }
}

} // namespace recurrent

/**
 * The gradient with respect to a weight, from the gradients with respect to its
 * products with the states before every step: the first `rows` of cotangent,
 * and then all others. `states` are those after every step; `first` is the
 * state before all of them.
 */
template <typename T>
void step_weight_vjp(
    In<T> cotangent,
    In<T> others,
    In<T> states,
    In<T> first,
    In<int32_t> cu_seqlens,
    int64_t rows,
    Out<T> out) {
  using A = accum_t<T>;
  constexpr int64_t most = product::block_rows;
  int64_t batch = cotangent.dim(0);
  int64_t steps = cotangent.dim(1);
  int64_t more = others ? others.dim(2) : 0;
  int64_t width = states.dim(2);
  auto begins = recurrent::begins(cu_seqlens, steps);
  recurrent::Before<T> before{
      begins, width, states.data, first ? first.data : nullptr};
  int64_t inner = batch * steps;
  if (steps == 0 || (steps == 1 && !before.exist(0))) {
    std::fill_n(out.data, out.size(), T(0));
    return;
  }
  std::vector<T> copies; // the states before all steps
  const T* from = before(0, 0);
  if (steps > 1) {
    copies.resize(inner * width);
    from = copies.data();
    for (int64_t i = 0; i < inner; ++i) {
      if (const T* state = before(i / steps, i % steps)) {
        std::copy_n(state, width, copies.data() + i * width);
      }
    }
  }
  int64_t blocks = (rows + most - 1) / most;
  mlxgen::share(
      blocks + (more + most - 1) / most,
      most * inner * width,
      [&](int64_t begin, int64_t end) {
        std::vector<A> sums(inner == 1 ? 0 : most * width);
        for (int64_t i = begin; i < end; ++i) {
          bool is_other = i >= blocks;
          In<T> grads = is_other ? others : cotangent;
          int64_t at = (is_other ? i - blocks : i) * most;
          int64_t count = std::min(most, (is_other ? more : rows) - at);
          T* to = out.data + (is_other ? rows + at : at) * width;
          if (inner == 1) {
            mlxgen::multiversion([&] {
              recurrent::outer_here(count, width, grads.data + at, from, to);
            });
            continue;
          }
          multiply(
              count,
              inner,
              width,
              Matrix<T>{grads.data + at, 1, grads.dim(2)},
              Matrix<T>{from, width},
              sums.data(),
              width);
          for (int64_t j = 0; j < count * width; ++j) {
            mlxgen::narrow(sums[j], to[j]);
          }
        }
      });
}

} // namespace mlxops::cpu
