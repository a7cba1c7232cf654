// The derivatives of selective_scan_vjp, which MLX derives from a formula over
// the states of all steps.

#pragma once

#include "mlxops/exp_of.h"
#include "mlxops/linear_recurrence.h"
#include "mlxops/sigmoid_of.h"
#include "nn/composed.h"

namespace mlxops {

/** Gradients of selective_scan_vjp's arrays. */
inline std::vector<mx::array> second_gradients_of_selective_scan(
    const mx::array& u,
    const mx::array& delta,
    const mx::array& A,
    const mx::array& B,
    const mx::array& C,
    const std::optional<mx::array>& D,
    const std::optional<mx::array>& z,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& cotangent,
    const mx::array& cotangent_last,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  refuse_shapeless("selective_scan");
  using Arrays = std::vector<mx::array>;
  auto times = [&](const mx::array& a, const mx::array& b) {
    return mx::multiply(a, b, s);
  };
  std::optional<mx::array> computed;
  if (cu_seqlens) {
    auto marks = marks_of_steps(*cu_seqlens, u, false, s);
    computed = column(mx::greater(marks, mx::array(0), s), s);
  }
  auto taken = [&](const mx::array& a) {
    return computed ? kept(a, *computed, s) : a;
  };
  auto rule = [&](const Arrays& given) -> Arrays {
    auto x = taken(given[0]), step = taken(given[1]);
    // The limit of the product of an infinite rate and its decay, 0, is 0.
    auto rate = of_rank(
        mx::maximum(given[2], mx::array(-1e30, given[2].dtype()), s), 4, s);
    auto decay = exp_of(times(column(step, s), rate), s);
    auto added = times(column(times(step, x), s), row(taken(given[3]), s));
    auto states =
        linear_recurrence(decay, added, given[7], cu_seqlens, 1, false, s);
    auto y = mx::sum(times(states, row(taken(given[4]), s)), -1, false, s);
    if (D) {
      y = mx::add(y, times(of_rank(given[5], 3, s), x), s);
    }
    if (z) {
      auto gate = taken(given[6]);
      y = times(y, times(gate, sigmoid_of(gate, s)));
    }
    return {taken(y), last_of_steps(states, given[7], cu_seqlens, s)};
  };
  auto none = mx::zeros({0}, cotangent_last.dtype(), s);
  // The parts of the sum over an axis, the first of which is the whole sum.
  auto of_sum = [&](int i, int axis, const mx::array& like) {
    const auto& parts = cotangents[i];
    return parts.shape(axis) > 0 ? one_of(parts, 0, axis, s)
                                 : mx::zeros(like.shape(), parts.dtype(), s);
  };
  return second_gradients(
      rule,
      [](const Arrays& given) { return given; },
      {u,
       delta,
       A,
       B,
       C,
       D.value_or(none),
       z.value_or(none),
       state.value_or(mx::zeros_like(cotangent_last, s)),
       cotangent,
       cotangent_last},
      8,
      {cotangents[0],
       cotangents[1],
       of_sum(2, 0, A),
       of_sum(3, 1, B),
       of_sum(4, 1, C),
       D ? of_sum(5, 0, *D) : none,
       z ? cotangents[6] : none,
       cotangents[7]},
      s);
}

} // namespace mlxops
