// The derivatives of causal_conv1d_vjp, which MLX derives from a formula.

#pragma once

#include "mlxops/sigmoid_of.h"
#include "nn/composed.h"

namespace mlxops {

/** The inputs of causal_conv1d's taps: where they are in the state and x. */
struct CausalTaps {
  mx::array at; // (steps, taps)
  mx::array exist; // (steps, taps, 1)
  mx::array last_at; // (taps - 1,)
  mx::array last_exist; // (taps - 1, 1)
  mx::array computed; // (steps, 1)

  static CausalTaps of(
      const mx::array& cu_seqlens,
      const mx::array& x,
      int taps,
      mx::StreamOrDevice s) {
    int steps = x.shape(1), before = taps - 1;
    auto number = [](int i) { return mx::array(i); };
    auto marks = marks_of_steps(cu_seqlens, x, false, s);
    auto step = mx::arange(steps, s);
    // The starts of sequences; that of the first one is the only one with the
    // mark 2.
    auto starts = [&](const mx::array& found) {
      auto places = mx::where(found, step, number(-1), s);
      return steps > 0 ? mx::cummax(places, 0, false, true, s) : places;
    };
    auto start = starts(mx::greater(marks, number(1), s));
    auto of_state = mx::equal(start, starts(mx::equal(marks, number(2), s)), s);
    auto inside = mx::greater(marks, number(0), s);
    // Of rows of numbers: the step, or the one after the last, and how far a
    // tap is behind it.
    auto from = [&](const mx::array& end,
                    const mx::array& start,
                    const mx::array& of_state,
                    const mx::array& inside,
                    int width) {
      auto tap = mx::arange(width, s);
      auto place = mx::subtract(
          mx::add(column(end, s), tap, s), number(before), s); // in x
      auto begin = column(start, s);
      auto in_x = mx::greater_equal(place, begin, s);
      auto at = mx::where(
          in_x,
          mx::add(place, number(before), s),
          mx::add(mx::subtract(place, begin, s), number(before), s),
          s);
      auto exist = mx::logical_and(
          mx::logical_or(in_x, column(of_state, s), s), column(inside, s), s);
      return std::pair{mx::where(exist, at, number(0), s), column(exist, s)};
    };
    auto [at, exist] = from(step, start, of_state, inside, taps);
    // The last sequence; without one, the state remains.
    auto none = mx::logical_not(mx::any(inside, s), s);
    auto ends = mx::equal(marks_of_steps(cu_seqlens, x, true, s), number(2), s);
    auto last = [&](const mx::array& a, int other) {
      auto found = mx::sum(mx::where(ends, a, number(0), s), s);
      return mx::reshape(mx::where(none, number(other), found, s), {1}, s);
    };
    auto [last_at, last_exist] = from(
        last(mx::add(step, number(1), s), 0),
        last(start, 0),
        mx::astype(last(mx::astype(of_state, mx::int32, s), 1), mx::bool_, s),
        mx::array({true}),
        before);
    return {
        at,
        exist,
        mx::squeeze(last_at, 0, s),
        mx::squeeze(last_exist, 0, s),
        column(inside, s)};
  }
};

/** Gradients of causal_conv1d_vjp's arrays. */
inline std::vector<mx::array> second_gradients_of_causal_conv(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias_,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& grad_y,
    const mx::array& grad_next,
    bool silu,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  refuse_shapeless("causal_conv1d");
  using Arrays = std::vector<mx::array>;
  int batch = x.shape(0), steps = x.shape(1), channels = x.shape(2);
  int taps = weight.shape(1);
  auto none = mx::zeros({channels}, grad_y.dtype(), s);
  if (x.size() + grad_next.size() == 0) { // MLX cannot gather from no inputs
    auto zeros = [&](const mx::array& a) { return mx::zeros_like(a, s); };
    return {
        zeros(x),
        zeros(weight),
        none,
        zeros(grad_next),
        zeros(grad_y),
        zeros(grad_next)};
  }
  std::optional<CausalTaps> places;
  if (cu_seqlens) {
    places = CausalTaps::of(*cu_seqlens, x, taps, s);
  }
  auto rule = [&](const Arrays& given) -> Arrays {
    auto inputs = mx::concatenate({given[3], given[0]}, 1, s);
    auto factors = of_rank(mx::transpose(given[1], s), 4, s);
    auto bias = of_rank(given[2], 3, s);
    auto from = [&](int first, int end) {
      return mx::slice(inputs, {0, first, 0}, {batch, end, channels}, s);
    };
    auto gathered = [&](const mx::array& at, const mx::array& exist) {
      return kept(mx::take(inputs, at, 1, s), exist, s);
    };
    Arrays windows;
    for (int k = 0; !places && k < taps; ++k) {
      windows.push_back(from(k, k + steps));
    }
    auto window =
        places ? gathered(places->at, places->exist) : mx::stack(windows, 2, s);
    auto y = mx::add(
        mx::sum(mx::multiply(window, factors, s), 2, false, s), bias, s);
    if (silu) {
      y = mx::multiply(y, sigmoid_of(y, s), s);
    }
    if (!places) {
      return {y, from(steps, steps + taps - 1)};
    }
    return {
        kept(y, places->computed, s),
        gathered(places->last_at, places->last_exist)};
  };
  // The first row of sums can be the whole sum.
  auto sums = mx::take(cotangents[2], 0, 0, s);
  auto of_weight =
      mx::transpose(mx::slice(sums, {0, 0}, {taps, channels}, s), s);
  return second_gradients(
      rule,
      [](const Arrays& given) { return given; },
      {x,
       weight,
       bias_.value_or(none),
       state.value_or(mx::zeros_like(grad_next, s)),
       grad_y,
       grad_next},
      4,
      {cotangents[0], of_weight, mx::take(sums, taps, 0, s), cotangents[1]},
      s);
}

} // namespace mlxops
