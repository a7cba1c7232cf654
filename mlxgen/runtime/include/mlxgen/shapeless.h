// Formulas under mx.compile(shapeless=True), which are traced once and then run
// with arrays of other shapes. In two cases MLX's own graph is wrong or
// crashes: the gradient of a broadcast sums over the axes that were broadcast
// in the trace, and a reduction crashes if all of its axes have size 1. The
// functions here replace MLX's in such traces: they build primitives that
// decide at run time. Anything that cannot be traced shapeless is rejected.

#pragma once

#include <limits>
#include <vector>

#include "mlx/ops.h"

namespace mlxgen {

namespace mx = mlx::core;

/** Return true while a graph is traced that will also run with other shapes. */
bool is_shapeless();

/** Raise an error in such a trace: the operator keeps the shapes of the first
 * call.
 */
[[noreturn]] void no_shapeless(const char* op, const char* why);

inline void refuse_shapeless(const char* op, const char* why) {
  if (is_shapeless()) {
    no_shapeless(op, why);
  }
}

/** The result of an operator; in such a trace its gradient raises an error. */
mx::array refuse_shapeless_gradient(
    const char* op,
    const char* why,
    const mx::array& out,
    mx::StreamOrDevice s);

std::vector<mx::array> refuse_shapeless_gradient(
    const char* op,
    const char* why,
    std::vector<mx::array> outputs,
    mx::StreamOrDevice s);

/** Broadcast arrays together; gradients are summed to the shapes at run time.
 */
std::vector<mx::array> broadcast_together(
    const std::vector<mx::array>& inputs,
    mx::StreamOrDevice s);

namespace shapeless {

mx::array
sum(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
mean(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
prod(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
max(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
min(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
all(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);
mx::array
any(const mx::array& a, const std::vector<int>& axes, mx::StreamOrDevice s);

std::vector<int> every_axis(const mx::array& a);

mx::array without_axes(
    const mx::array& reduced,
    const std::vector<int>& axes,
    bool keepdims,
    mx::StreamOrDevice s);

} // namespace shapeless

/**
 * Return `reduced`, which MLX reduces from `a`. If `a` has no elements, return
 * the identity: MLX's reduction of a (5, 0) array over the last axis reads
 * beyond its list of axes, and may never end.
 */
inline mx::array unless_empty(
    const mx::array& a,
    const mx::array& reduced,
    float identity,
    mx::StreamOrDevice s) {
  return a.size() > 0 || reduced.size() == 0
      ? reduced
      : mx::full(reduced.shape(), identity, reduced.dtype(), s);
}

// MLX's reductions: over several axes, over one, over all.
#define MLXGEN_REDUCTION(name, identity)                                   \
  inline mx::array name(                                                   \
      const mx::array& a,                                                  \
      const std::vector<int>& axes,                                        \
      bool keepdims,                                                       \
      mx::StreamOrDevice s) {                                              \
    if (!is_shapeless()) {                                                 \
      return unless_empty(a, mx::name(a, axes, keepdims, s), identity, s); \
    }                                                                      \
    return shapeless::without_axes(                                        \
        shapeless::name(a, axes, s), axes, keepdims, s);                   \
  }                                                                        \
  inline mx::array name(                                                   \
      const mx::array& a, int axis, bool keepdims, mx::StreamOrDevice s) { \
    return mlxgen::name(a, std::vector<int>{axis}, keepdims, s);           \
  }                                                                        \
  inline mx::array name(                                                   \
      const mx::array& a, bool keepdims, mx::StreamOrDevice s) {           \
    return is_shapeless()                                                  \
        ? mlxgen::name(a, shapeless::every_axis(a), keepdims, s)           \
        : mx::name(a, keepdims, s);                                        \
  }

MLXGEN_REDUCTION(sum, 0)
MLXGEN_REDUCTION(mean, std::numeric_limits<float>::quiet_NaN())
MLXGEN_REDUCTION(prod, 1)
MLXGEN_REDUCTION(max, 0) // of nothing: MLX's error
MLXGEN_REDUCTION(min, 0)
MLXGEN_REDUCTION(all, 1)
MLXGEN_REDUCTION(any, 0)

#undef MLXGEN_REDUCTION

// MLX's functions of two arrays.
#define MLXGEN_BROADCAST(name)                                        \
  inline auto name(                                                   \
      const mx::array& a, const mx::array& b, mx::StreamOrDevice s) { \
    if (!is_shapeless()) {                                            \
      return mx::name(a, b, s);                                       \
    }                                                                 \
    auto both = broadcast_together({a, b}, s);                        \
    return mx::name(both[0], both[1], s);                             \
  }

MLXGEN_BROADCAST(add)
MLXGEN_BROADCAST(subtract)
MLXGEN_BROADCAST(multiply)
MLXGEN_BROADCAST(divide)
MLXGEN_BROADCAST(divmod)
MLXGEN_BROADCAST(floor_divide)
MLXGEN_BROADCAST(remainder)
MLXGEN_BROADCAST(power)
MLXGEN_BROADCAST(minimum)
MLXGEN_BROADCAST(maximum)
MLXGEN_BROADCAST(arctan2)
MLXGEN_BROADCAST(logaddexp)

#undef MLXGEN_BROADCAST

// Their gradients are zeros with the shapes of the trace.
#define MLXGEN_COMPARISON(name)                                         \
  inline mx::array name(                                                \
      const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {   \
    return is_shapeless()                                               \
        ? mx::name(mx::stop_gradient(a, s), mx::stop_gradient(b, s), s) \
        : mx::name(a, b, s);                                            \
  }

MLXGEN_COMPARISON(equal)
MLXGEN_COMPARISON(not_equal)
MLXGEN_COMPARISON(less)
MLXGEN_COMPARISON(less_equal)
MLXGEN_COMPARISON(greater)
MLXGEN_COMPARISON(greater_equal)
MLXGEN_COMPARISON(logical_and)
MLXGEN_COMPARISON(logical_or)

#undef MLXGEN_COMPARISON

inline mx::array where(
    const mx::array& condition,
    const mx::array& x,
    const mx::array& y,
    mx::StreamOrDevice s) {
  if (!is_shapeless()) {
    return mx::where(condition, x, y, s);
  }
  auto all = broadcast_together({condition, x, y}, s);
  return mx::where(all[0], all[1], all[2], s);
}

} // namespace mlxgen
