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
// In what is compiled `shapeless` there is one block of all words: how many
// these are is not known before the kernels run.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/bias_base.h"
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
  std::optional<mx::array> bias; // less the number that all logits lack
  mx::array targets;
  mx::array counted;
  mx::array x; // 0 in rows that do not count: they may be infinite
  int words; // of a block

  LinearBlocks(
      const mx::array& x_,
      const mx::array& weight_,
      const mx::array& targets_,
      const std::optional<mx::array>& bias_,
      double softcap,
      int ignore_index,
      mx::StreamOrDevice s_)
      : s(s_),
        dtype(mx::promote_types(x_.dtype(), mx::float32)),
        weight(weight_),
        targets(targets_),
        counted(mx::not_equal(targets, mx::array(ignore_index), s)),
        x(where(mx::expand_dims(counted, -1, s), mx::astype(x_, dtype, s), 0)),
        words(
            static_cast<int>(std::min<int64_t>(
                std::max<int64_t>(
                    largest / std::max<int64_t>(targets.size(), 1),
                    fewest_words),
                weight.shape(0)))) {
    if (bias_) {
      auto base = bias_base(*bias_, softcap, s);
      bias = mx::subtract(mx::astype(*bias_, dtype, s), base, s);
    }
    if (mlxgen::is_shapeless()) {
      words = weight.shape(0);
    }
  }

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
    mx::array targets; // from the first word on
  };

  // What targets of a block are in rows that do not count, and elsewhere.
  static constexpr int ignored = -2;
  static constexpr int elsewhere = -1;

  /** All words. */
  bool is_all(int first, int last) const {
    return first == 0 && last == weight.shape(0);
  }

  /** Rows of `a`, from the first word of a block on. */
  mx::array part(const mx::array& a, int first, int last) const {
    if (is_all(first, last)) {
      return a;
    }
    mx::Shape start(a.ndim(), 0);
    mx::Shape stop = a.shape();
    start[0] = first;
    stop[0] = last;
    return mx::slice(a, start, stop, s);
  }

  /** `all`, with these rows from the first word of a block on. */
  mx::array with_part(
      const std::optional<mx::array>& all,
      const mx::array& rows,
      const mx::array& like,
      int first,
      int last) const {
    auto narrow = mx::astype(rows, like.dtype(), s);
    if (is_all(first, last)) {
      return narrow;
    }
    mx::Shape start(like.ndim(), 0);
    mx::Shape stop = like.shape();
    start[0] = first;
    stop[0] = last;
    return mx::slice_update(
        all ? *all : mx::zeros_like(like, s), narrow, start, stop, s);
  }

  /** Words from `first` on, after what is computed `before`. */
  Block from(int first, const std::vector<mx::array>& before) const {
    int last = std::min(first + words, weight.shape(0));
    auto some = part(weight, first, last);
    if (!before.empty()) {
      some = mx::depends({some}, before)[0];
    }
    some = mx::astype(some, dtype, s);
    auto logits = mx::matmul(x, mx::transpose(some, s), s);
    if (bias) {
      logits = mx::add(logits, part(*bias, first, last), s);
    }
    if (is_all(first, last)) {
      return {first, last, some, logits, targets};
    }
    auto places = mx::where(
        between(first, last),
        mx::subtract(targets, mx::array(first), s),
        mx::array(elsewhere),
        s);
    places = mx::where(counted, places, mx::array(ignored), s);
    return {first, last, some, logits, places};
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
    const mx::array& most,
    const mx::array& log_sum,
    const mx::array& extra,
    const mx::array& cotangent,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    bool of_x,
    bool of_weight,
    mx::StreamOrDevice s) {
  LinearBlocks blocks(x, weight, targets, bias, softcap, ignore_index, s);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  auto valid = blocks.where(blocks.between(0, weight.shape(0)), cotangent, nan);
  std::optional<mx::array> grad_x;
  std::optional<mx::array> grad_weight;
  std::optional<mx::array> grad_bias;
  std::vector<mx::array> before;
  for (int first = 0; first < weight.shape(0); first += blocks.words) {
    auto block = blocks.from(first, before);
    bool all = blocks.is_all(first, block.last);
    auto of_logits = cross_entropy_rows_vjp(
        block.logits,
        block.targets,
        std::nullopt,
        most,
        log_sum,
        extra,
        all ? cotangent : valid,
        softcap,
        all ? ignore_index : LinearBlocks::ignored,
        label_smoothing,
        z_loss,
        all ? 0 : weight.shape(0),
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
      grad_weight =
          blocks.with_part(grad_weight, part, weight, first, block.last);
      before.push_back(*grad_weight);
    }
    if (bias) {
      // Not a sum, which cannot be over one row in a shapeless graph, and not
      // ones_like, which has the shape of the first call.
      auto ones = mx::astype(mx::equal(targets, targets, s), blocks.dtype, s);
      ones = mx::expand_dims(mx::flatten(ones, s), 0, s);
      auto part = mx::squeeze(mx::matmul(ones, rows, s), 0, s);
      grad_bias = blocks.with_part(grad_bias, part, *bias, first, block.last);
      before.push_back(*grad_bias);
    }
  }
  auto none = mx::zeros({0}, x.dtype(), s);
  auto out_x = grad_x ? mx::astype(*grad_x, x.dtype(), s) : none;
  return {out_x, grad_weight.value_or(none), grad_bias.value_or(none)};
}

} // namespace mlxops::blocks
