// What gradients of gradients that are composed of MLX's operations share.

#pragma once

#include <numbers>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/kept.h"
#include "mlxops/sequence_marks.h"

namespace mlxops {

namespace mx = mlx::core;

/** exp, accurate in float64; MLX's has only float32's accuracy there. */
inline mx::array exponential(const mx::array& x, mx::StreamOrDevice s) {
  return x.dtype() == mx::float64
      ? mx::power(mx::array(std::numbers::e, mx::float64), x, s)
      : mx::exp(x, s);
}

inline void refuse_shapeless(const char* name) {
  if (mlxgen::is_shapeless()) {
    throw std::invalid_argument(
        "A second derivative of " + std::string(name) +
        " cannot be compiled with shapeless=True. Use mx.compile without it.");
  }
}

inline mx::array row(const mx::array& a, mx::StreamOrDevice s) {
  return mx::expand_dims(a, -2, s);
}
inline mx::array column(const mx::array& a, mx::StreamOrDevice s) {
  return mx::expand_dims(a, -1, s);
}

/**
 * With axes of size 1 in front. The gradient of MLX's broadcasting would sum
 * over several of them, and its own gradient insert them at once; MLX 0.32.4's
 * vmap of that is wrong if the batch is another axis than the first.
 */
inline mx::array of_rank(mx::array a, int rank, mx::StreamOrDevice s) {
  while (static_cast<int>(a.ndim()) < rank) {
    a = mx::expand_dims(a, 0, s);
  }
  return a;
}

/** Row `index` of an axis; mx::take refuses empty arrays. */
inline mx::array
one_of(const mx::array& a, int index, int axis, mx::StreamOrDevice s) {
  auto start = mx::Shape(a.ndim(), 0), stop = a.shape();
  start[axis] = index;
  stop[axis] = index + 1;
  return mx::squeeze(mx::slice(a, start, stop, s), axis, s);
}

/** What each of the steps, axis 1 of `like`, begins with; of shape (steps,). */
inline mx::array marks_of_steps(
    const mx::array& cu_seqlens,
    const mx::array& like,
    bool reverse,
    mx::StreamOrDevice s) {
  return mx::reshape(
      sequence_marks(cu_seqlens, mx::stop_gradient(like, s), 1, reverse, s),
      {like.shape(1)},
      s);
}

/** The arrays in the dtype of their sums. */
inline std::vector<mx::array>
widened(std::vector<mx::array> arrays, mx::Dtype dtype, mx::StreamOrDevice s) {
  for (auto& a : arrays) {
    a = mx::astype(a, dtype, s);
  }
  return arrays;
}

/**
 * The cotangent of the sum of parts, from those of the parts. All are equal
 * where sum_parts adds the parts, so that the first part can be the whole sum.
 * Heads that share a head of `like`, its last axis but one, are parts, too.
 */
inline mx::array of_first_part(
    const mx::array& parts,
    const mx::array& like,
    mx::StreamOrDevice s) {
  auto stop = parts.shape();
  if (stop[0] == 0) {
    return mx::zeros(like.shape(), parts.dtype(), s);
  }
  auto stride = mx::Shape(parts.ndim(), 1);
  stop[0] = 1;
  if (like.ndim() > 1 && like.shape(-2) > 0) {
    stride[parts.ndim() - 2] = parts.shape(-2) / like.shape(-2);
  }
  auto first = mx::Shape(parts.ndim(), 0);
  return mx::squeeze(mx::slice(parts, first, stop, stride, s), 0, s);
}

/**
 * The gradients of the gradients that `rule` has for the first `count` of the
 * arrays, for the cotangents of these. `of_results` gives the cotangents of
 * what `rule` returns, from the other arrays.
 */
template <typename Rule, typename OfResults>
std::vector<mx::array> second_gradients(
    const Rule& rule,
    const OfResults& of_results,
    const std::vector<mx::array>& arrays,
    int count,
    const std::vector<mx::array>& cotangents,
    mx::StreamOrDevice s) {
  using Arrays = std::vector<mx::array>;
  auto gradients = [&](const Arrays& given) {
    auto middle = given.begin() + count;
    return mx::vjp(
               rule,
               Arrays(given.begin(), middle),
               of_results(Arrays(middle, given.end())))
        .second;
  };
  auto dtype = arrays.back().dtype() == mx::float64 ? mx::float64 : mx::float32;
  return mx::vjp(
             gradients,
             widened(arrays, dtype, s),
             widened(cotangents, dtype, s))
      .second;
}

/** The last state of steps, from those after each step and the first one. */
inline mx::array last_of_steps(
    const mx::array& states,
    const mx::array& first,
    const std::optional<mx::array>& cu_seqlens,
    mx::StreamOrDevice s) {
  int steps = states.shape(1);
  if (!cu_seqlens) {
    return steps > 0 ? one_of(states, steps - 1, 1, s) : first;
  }
  auto marks = marks_of_steps(*cu_seqlens, states, true, s);
  auto axes = std::vector<int>(states.ndim() - 2);
  std::iota(axes.begin(), axes.end(), 1);
  auto ends = mx::expand_dims(mx::equal(marks, mx::array(2), s), axes, s);
  auto none = mx::all(mx::equal(marks, mx::array(0), s), s);
  auto found = mx::sum(kept(states, ends, s), 1, false, s);
  return mx::add(found, kept(first, none, s), s);
}

} // namespace mlxops
