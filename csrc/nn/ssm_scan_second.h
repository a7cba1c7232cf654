// The derivatives of ssm_scan_vjp, and ssm_scan's jvp by its decays: formulas
// over the states of all steps.

#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "mlxops/kept.h"
#include "mlxops/linear_recurrence.h"
#include "nn/composed.h"

namespace mlxops {

/** The steps from `first` to `end`. */
inline mx::array
steps_of(const mx::array& a, int first, int end, mx::StreamOrDevice s) {
  auto start = mx::Shape(a.ndim(), 0), stop = a.shape();
  start[1] = first;
  stop[1] = end;
  return mx::slice(a, start, stop, s);
}

/** The terms of ssm_scan's steps, wide and for each head. */
struct ScanSteps {
  mx::StreamOrDevice s;
  mx::array rate; // the decay's logarithm, divided by dt: (1, 1, heads)
  const std::optional<mx::array>& cu_seqlens;
  std::optional<mx::array> marks; // of sequence_marks, one for each step
  std::optional<mx::array> computed; // true for the steps to compute

  ScanSteps(
      const mx::array& A_log,
      const mx::array& dt,
      const std::optional<mx::array>& mask,
      const std::optional<mx::array>& cu_seqlens,
      mx::StreamOrDevice s)
      : s(s),
        rate(of_rank(rate_of(A_log, s), 3, s)),
        cu_seqlens(cu_seqlens),
        computed(mask) {
    if (cu_seqlens) {
      marks = marks_of(dt, false);
      auto inside = row(mx::greater(*marks, mx::array(0), s), s);
      computed = mask ? mx::logical_and(*mask, inside, s) : inside;
    }
  }

  /** Finite, because the limit of its product with a decay of 0 is 0. */
  static mx::array rate_of(const mx::array& A_log, mx::StreamOrDevice s) {
    mx::array most(69, A_log.dtype()); // its exponential is about 1e30
    return mx::negative(exponential(mx::minimum(A_log, most, s), s), s);
  }

  mx::array marks_of(const mx::array& dt, bool reverse) const {
    return marks_of_steps(*cu_seqlens, dt, reverse, s);
  }

  /** An array of steps, 0 for omitted steps. */
  mx::array taken(mx::array a) const {
    a = mx::astype(a, rate.dtype(), s);
    return computed ? only(*computed, a) : a;
  }

  /** An array of steps, 0 where the condition on (batch, step) is false. */
  mx::array only(mx::array condition, const mx::array& a) const {
    while (condition.ndim() < a.ndim()) {
      condition = column(condition, s);
    }
    return kept(a, condition, s);
  }

  /** An array of steps, 0 for the steps with other marks. */
  mx::array at_mark(const mx::array& marks, int mark, const mx::array& a)
      const {
    return only(row(mx::equal(marks, mx::array(mark), s), s), a);
  }

  /** B or C of each step, as rows. */
  mx::array of_groups(const mx::array& a) const {
    int share = rate.shape(2) / a.shape(2);
    auto wide = taken(a);
    return row(share == 1 ? wide : mx::repeat(wide, share, 2, s), s);
  }

  /** The states after all steps, which decay by a and add b. */
  mx::array recurrence(
      const mx::array& a,
      const mx::array& b,
      const mx::array& initial,
      bool reverse = false) const {
    auto factor = mx::broadcast_to(column(column(a, s), s), b.shape(), s);
    return linear_recurrence(factor, b, initial, cu_seqlens, 1, reverse, s);
  }

  /** The states after all steps. */
  mx::array states(
      const mx::array& decay,
      const mx::array& value,
      const mx::array& B,
      const mx::array& state) const {
    return recurrence(decay, mx::multiply(column(value, s), B, s), state);
  }

  /** The states before all steps, from those after them. */
  mx::array before(const mx::array& states, const mx::array& state) const {
    auto first = mx::expand_dims(state, 1, s);
    auto all = mx::concatenate({first, states}, 1, s);
    all = steps_of(all, 0, states.shape(1), s);
    if (!marks) {
      return all;
    }
    first = mx::broadcast_to(first, all.shape(), s);
    return mx::add(at_mark(*marks, 1, all), at_mark(*marks, 2, first), s);
  }
};

/** The tangent of ssm_scan by A_log and dt, as a formula. */
inline std::vector<mx::array> tangents_of_ssm_scan(
    const mx::array& x,
    const mx::array& A_log,
    const mx::array& B,
    const mx::array& C,
    const mx::array& dt,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& of_A_log,
    const mx::array& of_dt,
    mx::StreamOrDevice s) {
  refuse_shapeless("ssm_scan");
  ScanSteps scan(A_log, dt, mask, cu_seqlens, s);
  auto times = [&](const mx::array& a, const mx::array& b) {
    return mx::multiply(a, b, s);
  };
  int steps = x.shape(1);
  auto zeros = mx::zeros(
      {x.shape(0), x.shape(2), x.shape(3), B.shape(3)}, A_log.dtype(), s);
  auto step = scan.taken(dt);
  auto of_step = scan.taken(of_dt);
  auto wide = scan.taken(x);
  auto keys = scan.of_groups(B);
  auto decay = exponential(times(scan.rate, step), s);
  auto first = state.value_or(zeros);
  auto states = scan.states(decay, times(column(step, s), wide), keys, first);
  auto of_log = times(scan.rate, mx::add(times(of_A_log, step), of_step, s));
  auto of_decay = column(column(times(of_log, decay), s), s);
  auto taken = times(column(times(column(of_step, s), wide), s), keys);
  auto change = mx::add(times(of_decay, scan.before(states, first)), taken, s);
  auto changes = scan.recurrence(decay, change, zeros);
  auto after = times(changes, scan.of_groups(C));
  auto last = zeros;
  if (cu_seqlens) {
    auto found = scan.at_mark(scan.marks_of(dt, true), 2, changes);
    last = mx::sum(found, 1, false, s);
  } else if (steps > 0) {
    last = mx::squeeze(steps_of(changes, steps - 1, steps, s), 1, s);
  }
  return {mx::astype(mx::sum(after, -1, false, s), x.dtype(), s), last};
}

/** The results of ssm_scan_vjp for x, A_log, B, C, D, dt, state and cotangents.
 */
inline std::vector<mx::array> parts_of_ssm_scan_vjp(
    const std::vector<mx::array>& arrays,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& cu_seqlens,
    int block,
    mx::StreamOrDevice s) {
  const auto& A_log = arrays[1];
  const auto& D = arrays[4];
  const auto& state = arrays[6];
  const auto& last = arrays[8];
  int heads = A_log.shape(0), rows = arrays[0].shape(3),
      steps = arrays[0].shape(1);
  int blocks = (rows + block - 1) / block;
  ScanSteps scan(A_log, arrays[5], mask, cu_seqlens, s);
  auto column = [&](const mx::array& a) { return mlxops::column(a, s); };
  auto times = [&](const mx::array& a, const mx::array& b) {
    return mx::multiply(a, b, s);
  };
  auto along = [&](const mx::array& a) { return mx::sum(a, -1, false, s); };
  auto x = scan.taken(arrays[0]);
  auto B = scan.of_groups(arrays[2]);
  auto C = scan.of_groups(arrays[3]);
  auto dt = scan.taken(arrays[5]);
  auto grad = scan.taken(arrays[7]);
  auto log_decay = times(scan.rate, dt);
  auto decay = exponential(log_decay, s);
  auto value = times(column(dt), x);
  auto from = [&](const mx::array& a, int first, int end) {
    return steps_of(a, first, end, s);
  };
  auto after = scan.states(decay, value, B, state);
  auto before = scan.before(after, state);
  auto ones = mx::ones({decay.shape(0), 1, heads}, decay.dtype(), s);
  auto factors = mx::concatenate({decay, ones}, 1, s);
  // The gradients with respect to the states after each step.
  auto of_after = scan.recurrence(
      from(factors, 1, steps + 1), times(column(grad), C), last, true);
  auto of_state = last;
  if (scan.marks) {
    auto given = times(column(column(decay)), of_after);
    auto none = mx::all(mx::equal(*scan.marks, mx::array(0), s), s);
    given = mx::sum(scan.at_mark(*scan.marks, 2, given), 1, false, s);
    of_state = mx::add(given, kept(last, none, s), s);
  } else if (steps > 0) {
    of_state = mx::squeeze(
        times(column(column(from(decay, 0, 1))), from(of_after, 0, 1)), 1, s);
  }
  auto of_value = along(times(of_after, B));
  auto of_log_decay = times(column(decay), along(times(of_after, before)));
  // Sums over the rows of a block, which are axis 3.
  auto by_blocks = [&](mx::array a) {
    a = mx::pad(
        a, {3}, {0}, {blocks * block - rows}, mx::array(0.0f), "constant", s);
    auto shape = a.shape();
    shape[3] = blocks;
    shape.insert(shape.begin() + 4, block);
    return mx::moveaxis(
        mx::sum(mx::reshape(a, shape, s), 4, false, s), 3, 0, s);
  };
  auto over_time = [&](const mx::array& a) {
    return mx::sum(by_blocks(a), 2, false, s);
  };
  return {
      mx::astype(
          mx::add(
              times(column(dt), of_value),
              times(column(of_rank(D, 3, s)), grad),
              s),
          arrays[0].dtype(),
          s),
      over_time(times(column(log_decay), of_log_decay)),
      by_blocks(times(of_after, column(value))),
      by_blocks(times(after, column(grad))),
      over_time(times(x, grad)),
      by_blocks(scan.taken(
          mx::add(
              times(x, of_value), times(column(scan.rate), of_log_decay), s))),
      of_state};
}

/** Gradients of ssm_scan_vjp's arrays, which MLX derives from a formula. */
inline std::vector<mx::array> second_gradients_of_ssm_scan(
    const mx::array& x,
    const mx::array& A_log,
    const mx::array& B,
    const mx::array& C,
    const mx::array& D,
    const mx::array& dt,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& cotangent,
    const mx::array& cotangent_last,
    int block,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  refuse_shapeless("ssm_scan");
  auto first = state ? *state : mx::zeros_like(cotangent_last, s);
  return mx::vjp(
             [&](const std::vector<mx::array>& arrays) {
               return parts_of_ssm_scan_vjp(arrays, mask, cu_seqlens, block, s);
             },
             {x, A_log, B, C, D, dt, first, cotangent, cotangent_last},
             cotangents)
      .second;
}

} // namespace mlxops
