// Targets of losses in the form that kernels expect.

#pragma once

#include <limits>
#include <optional>

#include "mlx/mlx.h"
#include "mlxgen/op.h"

namespace mlxops::targets {

namespace mx = mlx::core;

/** The weights of rows; differentiating with respect to them raises an error.
 */
inline mx::array fixed_weights(
    const mx::array& row_weight,
    mx::StreamOrDevice s) {
  return mlxgen::NotDifferentiable::wrap(
      row_weight, "fixed_weights", "row_weight", s);
}

/** Targets of rows whose weight is 0 become ignored. */
inline mx::array of_weights(
    const mx::array& targets,
    const std::optional<mx::array>& row_weight,
    int ignore_index,
    mx::StreamOrDevice s) {
  if (!row_weight) {
    return targets;
  }
  auto weight = mx::stop_gradient(*row_weight, s);
  auto none = mx::equal(weight, mx::array(0, weight.dtype()), s);
  return mx::where(none, mx::array(ignore_index), targets, s);
}

/**
 * Targets as int32. A target out of range becomes a number that is neither a
 * word nor ignored, because a plain conversion could yield any word.
 */
inline mx::array to_int32(
    const mx::array& targets,
    const std::optional<mx::array>& row_weight,
    int ignore_index,
    mx::StreamOrDevice s) {
  // Numbers out of range become the ends of the range, which are not words.
  auto out = mlxgen::to_dtype(targets, mx::int32, mx::to_stream(s));
  using Limits = std::numeric_limits<int32_t>;
  if (ignore_index == Limits::min() || ignore_index == Limits::max()) {
    auto fits = mx::equal(mx::astype(out, targets.dtype(), s), targets, s);
    out = mx::where(fits, out, mx::array(-1), s);
  }
  return of_weights(out, row_weight, ignore_index, s);
}

} // namespace mlxops::targets
