// Targets of losses in the form that kernels expect.

#pragma once

#include <limits>

#include "mlx/mlx.h"

namespace mlxops::targets {

namespace mx = mlx::core;

/**
 * Targets as int32. A target out of range becomes a number that is neither a
 * word nor ignored, because a plain conversion could yield any word.
 */
inline mx::array
to_int32(const mx::array& targets, int ignore_index, mx::StreamOrDevice s) {
  auto dtype = targets.dtype();
  auto out = mx::astype(targets, mx::int32, s);
  auto info = mx::iinfo(dtype);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (info.max <= static_cast<uint64_t>(most)) {
    return out;
  }
  auto fits = mx::less_equal(targets, mx::array(most, dtype), s);
  if (info.min < 0) {
    auto least = mx::array(int64_t(std::numeric_limits<int32_t>::min()), dtype);
    fits = mx::logical_and(fits, mx::greater_equal(targets, least, s), s);
  }
  return mx::where(fits, out, mx::array(ignore_index == -1 ? -2 : -1), s);
}

} // namespace mlxops::targets
