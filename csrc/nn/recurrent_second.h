// The derivatives of lstm_vjp and gru_vjp: formulas over all steps, of which
// MLX knows every derivative. The gates of all steps are computed together; the
// gradients of the states pass from step to step.

#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/kept.h"
#include "mlxops/sequence_marks.h"
#include "nn/composed.h"

namespace mlxops::recurrent {

namespace mx = mlx::core;

/** Operations on arrays of all steps, (batch, steps, units). */
struct Formula {
  mx::StreamOrDevice s;
  mx::Dtype wide; // in which it computes
  std::optional<mx::array> marks; // of sequence_marks, (steps, 1)

  /** For the gates x. */
  Formula(
      const mx::array& x,
      const std::optional<mx::array>& cu_seqlens,
      mx::StreamOrDevice s)
      : s(s), wide(x.dtype() == mx::float64 ? mx::float64 : mx::float32) {
    if (cu_seqlens) {
      marks = sequence_marks(*cu_seqlens, mx::stop_gradient(x, s), 1, false, s);
    }
  }

  mx::array widened(const mx::array& a) const {
    return mx::astype(a, wide, s);
  }
  /** An array of all steps, 0 for steps in no sequence. */
  mx::array inside(const mx::array& a) const {
    return marks ? kept(widened(a), mx::greater(*marks, mx::array(0), s), s)
                 : widened(a);
  }
  /** An array of all steps, 0 for those with other marks. */
  mx::array at_mark(int mark, const mx::array& a) const {
    return kept(a, mx::equal(*marks, mx::array(mark), s), s);
  }
  /**
   * An array of a step for the step before, 0 if they are in different
   * sequences. Add it to the result for the first state, if it belongs there.
   */
  mx::array passed(const mx::array& a, int step, mx::array& of_first) const {
    if (!marks) {
      of_first = a;
      return a;
    }
    auto mark = part(*marks, 0, step, step + 1);
    auto is = [&](int n) {
      return kept(a, mx::equal(mark, mx::array(n), s), s);
    };
    of_first = plus(of_first, is(2));
    return is(1);
  }
  mx::array times(const mx::array& a, const mx::array& b) const {
    return mx::multiply(a, b, s);
  }
  mx::array plus(const mx::array& a, const mx::array& b) const {
    return mx::add(a, b, s);
  }
  /** 1 - a. */
  mx::array rest(const mx::array& a) const {
    return mx::subtract(mx::array(1.0f, wide), a, s);
  }
  /** The derivative of tanh, where it is a. */
  mx::array slope_of_tanh(const mx::array& a) const {
    return rest(mx::square(a, s));
  }
  /** The derivative of the sigmoid, where it is a. */
  mx::array slope(const mx::array& a) const {
    return times(a, rest(a));
  }
  /** MLX's has only float32's accuracy in float64. */
  mx::array sigmoid(const mx::array& a) const {
    if (wide != mx::float64) {
      return mx::sigmoid(a, s);
    }
    auto half = mx::array(0.5, wide);
    return plus(half, times(half, mx::tanh(times(half, a), s)));
  }
  /** Elements `first` to `end` of an axis. */
  mx::array part(const mx::array& a, int axis, int first, int end) const {
    auto from = mx::Shape(a.ndim(), 0), to = a.shape();
    from[axis] = first;
    to[axis] = end;
    return mx::slice(a, from, to, s);
  }
  /** The n-th of the gates along the last axis. */
  mx::array gate(const mx::array& a, int n, int width) const {
    return part(a, a.ndim() - 1, n * width, (n + 1) * width);
  }
  mx::array at(const mx::array& a, int step) const {
    return mx::squeeze(part(a, 1, step, step + 1), 1, s);
  }
  /** The states before all steps, from those after them. */
  mx::array before(
      const mx::array& states,
      const std::optional<mx::array>& initial) const {
    auto all = widened(states);
    auto first = initial ? widened(*initial)
                         : mx::zeros({all.shape(0), all.shape(2)}, wide, s);
    first = mx::expand_dims(first, 1, s);
    all = part(mx::concatenate({first, all}, 1, s), 1, 0, states.shape(1));
    if (!marks) {
      return all;
    }
    first = mx::broadcast_to(first, all.shape(), s);
    return plus(at_mark(1, all), at_mark(2, first));
  }
  /** The products of states and the weight. */
  mx::array products(const mx::array& states, const mx::array& weight) const {
    return mx::matmul(states, mx::transpose(widened(weight), s), s);
  }
  /** The gradient of the first state, which is 0 without one. */
  mx::array of_first(
      const mx::array& grad,
      const std::optional<mx::array>& initial,
      const mx::array& like) const {
    return initial ? mx::astype(grad, like.dtype(), s)
                   : mx::zeros(grad.shape(), like.dtype(), s);
  }
  mx::array joined(const std::vector<mx::array>& gates) const {
    return mx::concatenate(gates, -1, s);
  }
  /** Arrays of each step, the last one first, as (batch, steps, ...). */
  mx::array over_time(std::vector<mx::array> steps, const mx::array& like)
      const {
    if (steps.empty()) {
      return mx::zeros(like.shape(), like.dtype(), s);
    }
    std::reverse(steps.begin(), steps.end());
    return mx::astype(mx::stack(steps, 1, s), like.dtype(), s);
  }
};

using Parts = std::function<std::vector<mx::array>(
    const std::vector<std::optional<mx::array>>&)>;

/** The gradients of these arrays, zeros for absent ones. */
inline std::vector<mx::array> gradients_of(
    const Parts& parts,
    const std::vector<std::optional<mx::array>>& arrays,
    const std::vector<mx::array>& cotangents,
    const char* op,
    mx::StreamOrDevice s) {
  mlxgen::refuse_shapeless(
      op, "its second derivative depends on the number of steps");
  std::vector<mx::array> there;
  for (const auto& a : arrays) {
    if (a) {
      there.push_back(*a);
    }
  }
  auto found = mx::vjp(
                   [&](const std::vector<mx::array>& values) {
                     auto all = arrays;
                     size_t next = 0;
                     for (auto& a : all) {
                       if (a) {
                         a = values[next++];
                       }
                     }
                     return parts(all);
                   },
                   there,
                   cotangents)
                   .second;
  std::vector<mx::array> result;
  size_t next = 0;
  for (const auto& a : arrays) {
    result.push_back(a ? found[next++] : mx::zeros({0}, mx::float32, s));
  }
  return result;
}

} // namespace mlxops::recurrent

namespace mlxops {

/** Gradients of the arrays of lstm_vjp, by those of its results. */
inline std::vector<mx::array> second_gradients_of_lstm(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& hidden,
    const std::optional<mx::array>& cell,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& hidden_out,
    const mx::array& cell_out,
    const mx::array& cotangent,
    const mx::array& cotangent_cell,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  recurrent::Formula on(x, cu_seqlens, s);
  auto parts = [&](const std::vector<std::optional<mx::array>>& arrays) {
    const auto& w = *arrays[1];
    int width = w.shape(1);
    auto gates = on.plus(
        on.inside(*arrays[0]),
        on.products(on.before(*arrays[4], arrays[2]), w));
    auto i = on.sigmoid(on.gate(gates, 0, width));
    auto f = on.sigmoid(on.gate(gates, 1, width));
    auto g = mx::tanh(on.gate(gates, 2, width), s);
    auto o = on.sigmoid(on.gate(gates, 3, width));
    auto shown = mx::tanh(on.inside(*arrays[5]), s);
    auto c = on.before(*arrays[5], arrays[3]);
    auto of_h = on.inside(*arrays[6]);
    auto of_c = on.inside(*arrays[7]);
    // The factors of the gradients of c and h.
    auto factors = on.joined({
        on.times(g, on.slope(i)),
        on.times(c, on.slope(f)),
        on.times(i, on.slope_of_tanh(g)),
    });
    auto factor_o = on.times(shown, on.slope(o));
    auto to_c = on.times(o, on.slope_of_tanh(shown));
    auto wide = on.widened(w);
    auto dh = mx::zeros({x.shape(0), width}, on.wide, s);
    auto dc = dh, of_hidden = dh, of_cell = dh;
    std::vector<mx::array> grads;
    for (int t = x.shape(1); t-- > 0;) {
      dh = on.plus(on.at(of_h, t), dh);
      dc = on.plus(on.plus(on.at(of_c, t), dc), on.times(dh, on.at(to_c, t)));
      grads.push_back(on.joined({
          on.times(mx::tile(dc, {1, 3}, s), on.at(factors, t)),
          on.times(dh, on.at(factor_o, t)),
      }));
      dc = on.passed(on.times(dc, on.at(f, t)), t, of_cell);
      dh = on.passed(mx::matmul(grads.back(), wide, s), t, of_hidden);
    }
    return std::vector<mx::array>{
        on.over_time(grads, *arrays[0]),
        on.of_first(of_hidden, arrays[2], x),
        of_cell};
  };
  return recurrent::gradients_of(
      parts,
      {x,
       weight,
       hidden,
       cell,
       hidden_out,
       cell_out,
       cotangent,
       cotangent_cell},
      cotangents,
      "lstm",
      s);
}

/** Gradients of the arrays of gru_vjp, by those of its results. */
inline std::vector<mx::array> second_gradients_of_gru(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& hidden,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& states,
    const mx::array& cotangent,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  recurrent::Formula on(x, cu_seqlens, s);
  auto parts = [&](const std::vector<std::optional<mx::array>>& arrays) {
    const auto& w = *arrays[1];
    int width = w.shape(1);
    auto inputs = on.inside(*arrays[0]);
    auto h = on.before(*arrays[4], arrays[3]);
    auto products = on.products(h, w);
    auto sum = [&](int n) {
      return on.plus(on.gate(inputs, n, width), on.gate(products, n, width));
    };
    auto r = on.sigmoid(sum(0));
    auto z = on.sigmoid(sum(1));
    auto gated = on.gate(products, 2, width);
    if (arrays[2]) {
      gated = on.plus(gated, of_rank(on.widened(*arrays[2]), 3, s));
    }
    auto n =
        mx::tanh(on.plus(on.gate(inputs, 2, width), on.times(r, gated)), s);
    auto of_h = on.inside(*arrays[5]);
    // The factors of the gradient of h.
    auto of_n = on.times(on.rest(z), on.slope_of_tanh(n));
    auto of_gated = on.times(of_n, r);
    auto of_r = on.times(of_n, on.times(gated, on.slope(r)));
    auto of_z = on.times(mx::subtract(h, n, s), on.slope(z));
    auto factors = on.joined({of_r, of_z, of_gated});
    auto wide = on.widened(w);
    auto dh = mx::zeros({x.shape(0), width}, on.wide, s);
    auto of_hidden = dh;
    std::vector<mx::array> sums;
    for (int t = x.shape(1); t-- > 0;) {
      dh = on.plus(on.at(of_h, t), dh);
      sums.push_back(dh);
      auto grad = on.times(mx::tile(dh, {1, 3}, s), on.at(factors, t));
      auto next = on.plus(on.times(dh, on.at(z, t)), mx::matmul(grad, wide, s));
      dh = on.passed(next, t, of_hidden);
    }
    auto all = on.over_time(sums, of_h);
    auto grad_x = on.joined(
        {on.times(all, of_r), on.times(all, of_z), on.times(all, of_n)});
    return std::vector<mx::array>{
        mx::astype(grad_x, x.dtype(), s),
        mx::astype(on.times(all, of_gated), x.dtype(), s),
        on.of_first(of_hidden, arrays[3], x)};
  };
  return recurrent::gradients_of(
      parts,
      {x, weight, bias, hidden, states, cotangent},
      cotangents,
      "gru",
      s);
}

} // namespace mlxops
