// The derivatives of gated_delta_vjp and wkv7_vjp, which MLX derives from the
// recurrence, one step after the other.

#pragma once

#include <cmath>

#include "nn/composed.h"

namespace mlxops {

/** Which steps are computed, and which ones begin with the state before. */
struct DeltaConditions {
  std::optional<mx::array> computed; // (batch or 1, steps)
  std::optional<mx::array> continued; // (1, steps)

  DeltaConditions(
      const mx::array& like,
      const std::optional<mx::array>& mask,
      const std::optional<mx::array>& cu_seqlens,
      mx::StreamOrDevice s)
      : computed(mask) {
    if (cu_seqlens) {
      auto marks =
          mx::expand_dims(marks_of_steps(*cu_seqlens, like, false, s), 0, s);
      auto inside = mx::greater(marks, mx::array(0), s);
      computed = mask ? mx::logical_and(*mask, inside, s) : inside;
      continued = mx::not_equal(marks, mx::array(3), s);
    }
  }
};

/** A recurrence of matrices of (values, keys) as states. */
class DeltaSteps {
 public:
  DeltaSteps(DeltaConditions conditions, int steps, mx::StreamOrDevice s)
      : conditions_(conditions), steps_(steps), s_(s) {}

  /**
   * S = S diag(w) + (S a) b^T + v k^T and y = S r for every step: the y, of
   * shape (batch, 1, heads, values, 1), and the last S.
   */
  std::vector<mx::array> operator()(
      const mx::array& r,
      const mx::array& w,
      const mx::array& k,
      const mx::array& v,
      const mx::array& a,
      const mx::array& b,
      const mx::array& state) const {
    auto rs = columns(r), vs = columns(v), as = columns(a);
    auto ws = rows(w), ks = rows(k), bs = rows(b);
    auto computed = each(conditions_.computed);
    auto continued = each(conditions_.continued);
    auto times = [&](const mx::array& x, const mx::array& y) {
      return mx::matmul(x, y, s_);
    };
    auto S = mx::expand_dims(state, 1, s_);
    std::vector<mx::array> results;
    for (int t = 0; t < steps_; ++t) {
      if (!continued.empty()) {
        S = kept(S, continued[t], s_);
      }
      auto added =
          mx::add(times(times(S, as[t]), bs[t]), times(vs[t], ks[t]), s_);
      auto next = mx::add(mx::multiply(S, ws[t], s_), added, s_);
      auto y = times(next, rs[t]);
      if (!computed.empty()) {
        auto other = mx::logical_not(computed[t], s_);
        next = mx::add(kept(next, computed[t], s_), kept(S, other, s_), s_);
        y = kept(y, computed[t], s_);
      }
      S = next;
      results.push_back(y);
    }
    results.push_back(mx::squeeze(S, 1, s_));
    return results;
  }

  /** The first arrays, all but the state: 0 for omitted steps, even if NaN. */
  std::vector<mx::array> taken(std::vector<mx::array> arrays) const {
    for (size_t i = 0; conditions_.computed && i + 1 < arrays.size(); ++i) {
      auto condition = wide(*conditions_.computed, arrays[i].ndim());
      arrays[i] = kept(arrays[i], condition, s_);
    }
    return arrays;
  }

  /** The cotangents of the results, from those of y and of the last state. */
  std::vector<mx::array> of_results(const std::vector<mx::array>& given) const {
    auto results = split(column(given[0], s_));
    results.push_back(given[1]);
    return results;
  }

 private:
  /**
   * A part for each step, whose gradients are joined only once. Each result of
   * mx::split lists all of its results, hence two levels.
   */
  std::vector<mx::array> split(const mx::array& a) const {
    std::vector<mx::array> parts;
    mx::Shape ends;
    int stretch = static_cast<int>(std::ceil(std::sqrt(steps_)));
    for (int t = stretch; t < steps_; t += stretch) {
      ends.push_back(t);
    }
    if (steps_ > 0) {
      for (const auto& several : mx::split(a, ends, 1, s_)) {
        auto each = mx::split(several, several.shape(1), 1, s_);
        parts.insert(parts.end(), each.begin(), each.end());
      }
    }
    return parts;
  }

  std::vector<mx::array> columns(const mx::array& a) const {
    return split(column(a, s_));
  }
  std::vector<mx::array> rows(const mx::array& a) const {
    return split(row(a, s_));
  }
  mx::array wide(mx::array condition, int ndim) const {
    while (condition.ndim() < ndim) {
      condition = column(condition, s_);
    }
    return condition;
  }
  std::vector<mx::array> each(const std::optional<mx::array>& condition) const {
    return condition ? split(wide(*condition, 5)) : std::vector<mx::array>{};
  }

  DeltaConditions conditions_;
  int steps_;
  mx::StreamOrDevice s_;
};

/** Gradients of gated_delta_vjp's arrays. */
inline std::vector<mx::array> second_gradients_of_gated_delta(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& g,
    const mx::array& beta,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& grad_y,
    const mx::array& grad_last,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  refuse_shapeless("gated_delta");
  int share = v.shape(2) / q.shape(2);
  DeltaSteps steps({v, mask, cu_seqlens, s}, v.shape(1), s);
  // S g + beta (v - S g k) k^T
  auto rule = [&](const std::vector<mx::array>& arrays) {
    auto given = steps.taken(arrays);
    auto of_heads = [&](const mx::array& a) {
      return share == 1 ? a : mx::repeat(a, share, 2, s);
    };
    auto keys = of_heads(given[1]);
    auto decay = g.ndim() == 3 ? column(given[3], s) : given[3];
    auto part = column(given[4], s);
    return steps(
        of_heads(given[0]),
        decay,
        keys,
        mx::multiply(part, given[2], s),
        mx::multiply(decay, keys, s),
        mx::negative(mx::multiply(part, keys, s), s),
        given[5]);
  };
  return second_gradients(
      rule,
      [&](const auto& given) { return steps.of_results(given); },
      {q,
       k,
       v,
       g,
       beta,
       state.value_or(mx::zeros_like(grad_last, s)),
       grad_y,
       grad_last},
      6,
      {of_first_part(cotangents[0], q, s),
       of_first_part(cotangents[1], k, s),
       cotangents[2],
       of_first_part(cotangents[3], g, s),
       of_first_part(cotangents[4], beta, s),
       cotangents[5]},
      s);
}

/** Gradients of wkv7_vjp's arrays. */
inline std::vector<mx::array> second_gradients_of_wkv7(
    const mx::array& r,
    const mx::array& w,
    const mx::array& k,
    const mx::array& v,
    const mx::array& a,
    const mx::array& b,
    const std::optional<mx::array>& state,
    const std::optional<mx::array>& cu_seqlens,
    const mx::array& grad_y,
    const mx::array& grad_last,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  refuse_shapeless("wkv7");
  DeltaSteps steps({v, std::nullopt, cu_seqlens, s}, v.shape(1), s);
  auto rule = [&](const std::vector<mx::array>& arrays) {
    auto x = steps.taken(arrays);
    return steps(x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
  };
  auto of = [&](int i) { return of_first_part(cotangents[i], r, s); };
  return second_gradients(
      rule,
      [&](const auto& given) { return steps.of_results(given); },
      {r,
       w,
       k,
       v,
       a,
       b,
       state.value_or(mx::zeros_like(grad_last, s)),
       grad_y,
       grad_last},
      7,
      {of(0), of(1), of(2), cotangents[3], of(4), of(5), cotangents[6]},
      s);
}

} // namespace mlxops
