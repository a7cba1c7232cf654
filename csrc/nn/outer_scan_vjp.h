// The gradients of outer_scan and ssm_scan: three scans of the same kind, and
// states kept of few steps.
//
// With S_t the state, L_t its gradient and g_t that of y_t, and v_t with its
// weight, L_t = e_{t+1} L_{t+1} + g_t q_t^T: a scan that runs back. The
// gradients of q, v and k are S_t^T g_t, L_t k_t and L_t^T v_t, so all are
// outputs of such scans, of which S or L are transposed at will. That of log
// e_t is <L_t, e_t S_{t-1}> = <L_t, S_t> - v_t^T L_t k_t, and from step to step
//
//   <L_t, S_t> = <L_{t+1}, e_{t+1} S_t> + q_t^T S_t^T g_t,
//
// so it is a sum, over the steps from t on, of what the scans give (as in Yang
// et al., "Gated Linear Attention Transformers with Hardware-Efficient
// Training", 2023). It keeps the rounding of all its terms, which for decays
// that are added up grows with the number of steps. So the sum begins anew at
// every stretch of steps, from <e L, S> of the states there.

#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/outer_scan.h"

namespace mlxops {

namespace mx = mlx::core;

/** Steps from one state that is kept to the next. */
constexpr int steps_of_stretch = 64;

/** Some steps of an array. */
inline mx::array stretch_of(const mx::array& a, int i, mx::StreamOrDevice s) {
  mx::Shape start(a.ndim(), 0), stop = a.shape();
  start[1] = i * steps_of_stretch;
  stop[1] = std::min(stop[1], start[1] + steps_of_stretch);
  return mx::slice(a, start, stop, s);
}

/** Of an outer_scan its y, and the state behind each stretch of steps. */
struct Stretches {
  std::vector<mx::array> states;
  mx::array y;
};

inline Stretches scan_stretches(
    const mx::array& v,
    const mx::array& k,
    const mx::array& q,
    const mx::array& log_decay,
    const std::optional<mx::array>& weight,
    std::optional<mx::array> state,
    bool reverse,
    mx::StreamOrDevice s) {
  int count = std::max(
      1, (log_decay.shape(1) + steps_of_stretch - 1) / steps_of_stretch);
  std::vector<mx::array> ys, states;
  for (int j = 0; j < count; ++j) {
    auto part = [&](const mx::array& a) {
      return stretch_of(a, reverse ? count - 1 - j : j, s);
    };
    auto out = outer_scan(
        part(v),
        part(k),
        part(q),
        part(log_decay),
        weight ? std::optional(part(*weight)) : std::nullopt,
        state,
        reverse,
        s);
    ys.push_back(out[0]);
    states.push_back(out[1]);
    state = out[1];
  }
  if (reverse) {
    std::reverse(ys.begin(), ys.end());
    std::reverse(states.begin(), states.end());
  }
  return {std::move(states), mx::concatenate(std::move(ys), 1, s)};
}

/** Heads that share an array's own: their products with it, or their sums. */
class Heads {
 public:
  Heads(int heads, mx::StreamOrDevice s) : heads_(heads), s_(s) {}

  /** The sums over the last axis of each head's x times its own of y. */
  mx::array dot(const mx::array& x, const mx::array& y) const {
    auto products =
        mx::multiply(by_own(x, y.shape(2)), mx::expand_dims(y, 3, s_), s_);
    return mx::reshape(
        mx::sum(products, -1, false, s_), {x.shape(0), x.shape(1), heads_}, s_);
  }
  mx::array sum(const mx::array& x, int own) const {
    return own == heads_ ? x : mx::sum(by_own(x, own), 3, false, s_);
  }

 private:
  mx::array by_own(const mx::array& x, int own) const {
    return mx::reshape(
        x, {x.shape(0), x.shape(1), own, heads_ / own, x.shape(3)}, s_);
  }

  int heads_;
  mx::StreamOrDevice s_;
};

/** Gradients of v, k, q, log_decay, weight and state. */
inline std::vector<mx::array> gradients_of_outer_scan(
    const mx::array& v,
    const mx::array& k,
    const mx::array& q,
    const mx::array& log_decay,
    const std::optional<mx::array>& weight,
    const std::optional<mx::array>& state,
    bool reverse,
    const mx::array& cotangent,
    const mx::array& cotangent_last,
    mx::StreamOrDevice s) {
  Heads heads(log_decay.shape(2), s);
  auto transposed = [&](const mx::array& a) {
    return mx::swapaxes(a, 2, 3, s);
  };
  auto weighted = [&](const mx::array& a) {
    return weight ? mx::multiply(a, mx::expand_dims(*weight, 3, s), s) : a;
  };
  auto first = state ? std::optional(transposed(*state)) : std::nullopt;
  auto there =
      scan_stretches(k, v, cotangent, log_decay, weight, first, reverse, s);
  auto back = scan_stretches(
      cotangent, q, k, log_decay, std::nullopt, cotangent_last, !reverse, s);
  auto of_k = outer_scan(
      q,
      cotangent,
      v,
      log_decay,
      std::nullopt,
      transposed(cotangent_last),
      !reverse,
      s)[0];
  auto of_weight = heads.dot(back.y, v);
  auto taken = weight ? mx::multiply(*weight, of_weight, s) : of_weight;
  // Where the decay follows, a step's own terms are none of it. The difference
  // has the rounding of its terms: nothing is left of one below that.
  auto terms = mx::subtract(heads.dot(there.y, q), taken, s);
  int count = there.states.size();
  std::vector<mx::array> of_log_decay;
  for (int i = 0; i < count; ++i) {
    int next = reverse ? i - 1 : i + 1;
    auto at_end = mx::sum(
        mx::multiply(
            transposed(
                next < 0 || next == count ? cotangent_last : back.states[next]),
            there.states[i],
            s),
        std::vector<int>{2, 3},
        false,
        s);
    of_log_decay.push_back(
        mx::add(
            mx::cumsum(stretch_of(terms, i, s), 1, !reverse, !reverse, s),
            mx::expand_dims(at_end, 1, s),
            s));
  }
  auto least = std::log(mx::finfo(log_decay.dtype()).eps);
  return {
      heads.sum(weighted(back.y), v.shape(2)),
      heads.sum(weighted(of_k), k.shape(2)),
      heads.sum(there.y, q.shape(2)),
      mx::where(
          mx::greater(log_decay, mx::array(least, log_decay.dtype()), s),
          mx::concatenate(std::move(of_log_decay), 1, s),
          mx::zeros({}, log_decay.dtype(), s),
          s),
      of_weight,
      reverse ? back.states.back() : back.states.front()};
}

/** exp, in float64 to its digits: MLX's own has but those of float32 there. */
inline mx::array exponential(const mx::array& x, mx::StreamOrDevice s) {
  return x.dtype() == mx::float64
      ? mx::power(mx::array(std::numbers::e, mx::float64), x, s)
      : mx::exp(x, s);
}

/** Gradients of x, A_log, B, C, D, dt and state. */
inline std::vector<mx::array> gradients_of_ssm_scan(
    mx::array x,
    const mx::array& A_log,
    mx::array B,
    mx::array C,
    const mx::array& D,
    mx::array dt,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& mask,
    mx::array cotangent,
    const mx::array& cotangent_last,
    mx::StreamOrDevice s) {
  // Of steps that are left out nothing enters, be it NaN, and nothing comes.
  auto masked = [&](const mx::array& a) {
    if (!mask) {
      return a;
    }
    std::vector<int> others(a.ndim() - 2);
    std::iota(others.begin(), others.end(), 2);
    auto there = mx::expand_dims(*mask, others, s);
    return mx::where(there, a, mx::zeros({}, a.dtype(), s), s);
  };
  for (auto* a : {&x, &B, &C, &dt, &cotangent}) {
    *a = masked(*a);
  }
  auto rate = mx::negative(exponential(A_log, s), s);
  auto log_decay = mx::multiply(rate, dt, s);
  auto of = gradients_of_outer_scan(
      x, B, C, log_decay, dt, state, false, cotangent, cotangent_last, s);
  auto past = mx::multiply(cotangent, mx::expand_dims(D, 1, s), s);
  auto sum = [&](const mx::array& a, std::vector<int> axes) {
    return mx::sum(a, axes, false, s);
  };
  return {
      mx::add(of[0], past, s),
      sum(mx::multiply(log_decay, of[3], s), {0, 1}),
      of[1],
      of[2],
      sum(mx::multiply(mx::astype(cotangent, dt.dtype(), s), x, s), {0, 1, 3}),
      masked(mx::add(of[4], mx::multiply(rate, of[3], s), s)),
      of[5]};
}

} // namespace mlxops
