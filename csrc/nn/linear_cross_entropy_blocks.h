// The gradient of the cross entropy of linear outputs for backends without a
// kernel for all of it, such as GPUs: block by block of the words, MLX
// multiplies matrices and the kernel of cross_entropy's gradient computes the
// rest. Each block waits for the previous one, so that only few are in memory
// at a time.
//
// Tiles whose logits stay in registers, as in the forward, are not suitable
// here. The gradients of a tile's 64 rows and 64 words are sums over all of D,
// which does not fit into a threadgroup. With D split, each part would compute
// the logits again, D / 128 times. With sums in memory, each tile would add 128
// D numbers by atomics for 3 * 2 * 64 * 64 * D operations, 48 per byte: even if
// these additions were free, this is about the limit of a GPU's memory. A block
// in memory costs some 20 bytes for 6 D operations. With D = 2048 these are
// more than 600 per byte, so that MLX's products take most of the time.
//
// A graph that is compiled `shapeless` has one block of all words, because the
// number of words is not known before the kernels run.

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

/** The common data of all blocks of words. */
struct LinearBlocks {
  // The maximum number of elements in a block of logits, and the minimum of
  // words.
  static constexpr int64_t largest = int64_t(1) << 22;
  static constexpr int64_t fewest_words = 256;

  mx::StreamOrDevice s;
  mx::Dtype dtype; // of all computations: the accumulator dtype
  mx::array weight;
  std::optional<mx::array> bias; // minus the number subtracted from all logits
  mx::array targets;
  mx::array counted;
  mx::array x; // 0 in rows that do not count, which may be infinite
  int words; // of a block

  LinearBlocks(
      const mx::array& x_,
      const mx::array& weight_,
      const mx::array& targets_,
      const std::optional<mx::array>& bias_,
      double softcap,
      int ignore_index,
      bool of_all,
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
      bias = mx::astype(*bias_, dtype, s);
      if (of_all) {
        bias = mx::subtract(*bias, bias_base(*bias_, softcap, s), s);
      }
    }
    if (mlxgen::is_shapeless()) {
      words = weight.shape(0);
    }
  }

  mx::array where(const mx::array& condition, const mx::array& a, double other)
      const {
    return mx::where(condition, a, mx::array(other, dtype), s);
  }

  /** True if the target is one of these words. */
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
    mx::array targets; // relative to the first word
  };

  // The target in rows that do not count, and outside of the block.
  static constexpr int ignored = -2;
  static constexpr int elsewhere = -1;

  /** All words. */
  bool is_all(int first, int last) const {
    return first == 0 && last == weight.shape(0);
  }

  /** The rows of `a` from the first word of a block on. */
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

  /** `all`, with these rows from the first word of a block on replaced. */
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

  /** Words from `first` on; they are computed after `before`. */
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

/**
 * linear_cross_entropy_rows_vjp. If `all_words` is not 0, the words are a part
 * of that many, the bias is relative to the largest one of all, and targets are
 * words of the part, ignored, or neither.
 */
inline std::vector<mx::array> linear_cross_entropy_vjp(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& targets,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& class_weight,
    const mx::array& counted,
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
    int all_words,
    mx::StreamOrDevice s) {
  LinearBlocks blocks(
      x, weight, targets, bias, softcap, ignore_index, all_words == 0, s);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  auto valid = cotangent;
  if (all_words == 0) {
    valid = blocks.where(blocks.between(0, weight.shape(0)), cotangent, nan);
  }
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
        class_weight
            ? std::optional(blocks.part(*class_weight, first, block.last))
            : std::nullopt,
        counted,
        most,
        log_sum,
        extra,
        all ? cotangent : valid,
        softcap,
        all ? ignore_index : LinearBlocks::ignored,
        label_smoothing,
        z_loss,
        all || all_words != 0 ? all_words : weight.shape(0),
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
      // Not a sum, which cannot reduce a single row in a shapeless graph, and
      // not ones_like, which has the shape of the first call.
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
