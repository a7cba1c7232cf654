// The gradient of the cross entropy of linear outputs where there is no kernel
// for all of it, as on GPUs: for one block of the words after the other MLX
// multiplies matrices, and the kernel of cross_entropy's gradient does the
// rest. Blocks wait for each other, so that there are few of them at a time.
//
// Tiles whose logits stay in registers, as in the forward, would not do here:
// the gradients of a tile's 64 rows and 64 words are sums over all of D, which
// no threadgroup holds. Split along D, each part would multiply for the logits
// again, D / 128 times; added up in memory, each tile would add 128 D numbers
// by atomics for 3 * 2 * 64 * 64 * D operations, 48 for a byte, which is about
// what a GPU's memory keeps up with if these adds cost nothing. A block in
// memory costs some 20 bytes for 6 D operations: with D = 2048 above 600 for a
// byte, so that MLX's products are what takes the time.
//
// No shape but that of `weight` becomes part of the graph, so that what is
// compiled `shapeless` may have other rows; its words are those of the first
// call.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/cross_entropy_rows_vjp.h"

namespace mlxops::blocks {

namespace mx = mlx::core;

/** What is the same for all blocks of words. */
struct LinearBlocks {
  // A block of logits has up to so many elements, and at least so many words.
  static constexpr int64_t largest = int64_t(1) << 22;
  static constexpr int64_t fewest_words = 256;

  mx::StreamOrDevice s;
  mx::Dtype dtype; // of sums; all is computed in it
  mx::array weight;
  std::optional<mx::array> bias;
  mx::array targets;
  mx::array counted;
  mx::array valid; // whether the target is a word
  mx::array x; // 0 in rows that do not count: they may be infinite
  int words; // of a block

  LinearBlocks(
      const mx::array& x_,
      const mx::array& weight_,
      const mx::array& targets_,
      const std::optional<mx::array>& bias_,
      int ignore_index,
      mx::StreamOrDevice s_)
      : s(s_),
        dtype(mx::promote_types(x_.dtype(), mx::float32)),
        weight(weight_),
        bias(bias_),
        targets(targets_),
        counted(mx::not_equal(targets, mx::array(ignore_index), s)),
        valid(between(0, weight.shape(0))),
        x(where(mx::expand_dims(counted, -1, s), mx::astype(x_, dtype, s), 0)),
        words(
            static_cast<int>(std::min<int64_t>(
                std::max<int64_t>(
                    largest / std::max<int64_t>(targets.size(), 1),
                    fewest_words),
                weight.shape(0)))) {}

  mx::array where(const mx::array& condition, const mx::array& a, double other)
      const {
    return mx::where(condition, a, mx::array(other, dtype), s);
  }

  /** Whether the target is one of these words. */
  mx::array between(int first, int last) const {
    return mx::logical_and(
        mx::greater_equal(targets, mx::array(first), s),
        mx::less(targets, mx::array(last), s),
        s);
  }

  struct Block {
    int first;
    int last;
    mx::array weight;
    mx::array logits;
    mx::array here; // whether the target is one of these words
    mx::array targets; // from the first word on; -1 in rows that do not count
  };

  /** Words from `first` on, after what is computed `before`. */
  Block from(int first, const std::vector<mx::array>& before) const {
    int last = std::min(first + words, weight.shape(0));
    auto some = mx::slice(weight, {first, 0}, {last, weight.shape(1)}, s);
    if (!before.empty()) {
      some = mx::depends({some}, before)[0];
    }
    some = mx::astype(some, dtype, s);
    auto logits = mx::matmul(x, mx::transpose(some, s), s);
    if (bias) {
      auto shift = mx::slice(*bias, {first}, {last}, s);
      logits = mx::add(logits, mx::astype(shift, dtype, s), s);
    }
    auto here = between(first, last);
    auto places = mx::where(
        here, mx::subtract(targets, mx::array(first), s), mx::array(0), s);
    places = mx::where(counted, places, mx::array(-1), s);
    return {first, last, some, logits, here, places};
  }

  /** An array of rows as a matrix. */
  mx::array matrix(const mx::array& a) const {
    return a.ndim() == 1 ? mx::expand_dims(a, 0, s) : mx::flatten(a, 0, -2, s);
  }
};

/** linear_cross_entropy_rows_vjp. */
inline std::vector<mx::array> linear_cross_entropy_vjp(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& targets,
    const std::optional<mx::array>& bias,
    const mx::array& lse,
    const mx::array& grad_lse,
    const mx::array& grad_target,
    const mx::array& grad_total,
    double softcap,
    int ignore_index,
    bool of_x,
    bool of_weight,
    mx::StreamOrDevice s) {
  LinearBlocks blocks(x, weight, targets, bias, ignore_index, s);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  auto of_lse = blocks.where(blocks.valid, grad_lse, nan);
  auto none = mx::zeros({0}, x.dtype(), s);
  auto grad_weight = of_weight ? mx::zeros_like(weight, s) : none;
  auto grad_bias = bias ? mx::zeros_like(*bias, s) : none;
  std::optional<mx::array> grad_x;
  std::vector<mx::array> before;
  for (int first = 0; first < weight.shape(0); first += blocks.words) {
    auto block = blocks.from(first, before);
    auto of_logits = cross_entropy_rows_vjp(
        block.logits,
        block.targets,
        std::nullopt,
        lse,
        of_lse,
        blocks.where(block.here, grad_target, 0),
        grad_total,
        softcap,
        -1,
        s);
    before.clear();
    if (of_x) {
      auto part = mx::matmul(of_logits, block.weight, s);
      grad_x = grad_x ? mx::add(*grad_x, part, s) : part;
      before.push_back(*grad_x);
    }
    auto rows = blocks.matrix(of_logits);
    if (of_weight) {
      auto part =
          mx::matmul(mx::transpose(rows, s), blocks.matrix(blocks.x), s);
      grad_weight = mx::slice_update(
          grad_weight,
          mx::astype(part, weight.dtype(), s),
          mx::Shape{first, 0},
          mx::Shape{block.last, weight.shape(1)},
          s);
      before.push_back(grad_weight);
    }
    if (bias) {
      auto of_bias = mx::astype(mx::sum(rows, 0, false, s), bias->dtype(), s);
      grad_bias = mx::slice_update(
          grad_bias, of_bias, mx::Shape{first}, mx::Shape{block.last}, s);
      before.push_back(grad_bias);
    }
  }
  auto out_x = grad_x ? mx::astype(*grad_x, x.dtype(), s) : none;
  return {out_x, grad_weight, grad_bias};
}

} // namespace mlxops::blocks
