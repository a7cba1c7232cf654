// The cross entropy of linear outputs with quantized weights. Blocks of words
// are dequantized, and computed by the kernels for weights that are not
// quantized. Each block waits for the previous one, so that only few are in
// memory at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/bias_base.h"
#include "mlxops/linear_cross_entropy_joined.h"
#include "mlxops/linear_cross_entropy_parts.h"
#include "mlxops/linear_cross_entropy_rows_vjp.h"

namespace mlxops::blocks {

namespace mx = mlx::core;

/** The results of mx::quantize and its arguments, and targets. */
struct QuantizedBlocks {
  // The maximum number of elements in a block, of which MLX may allocate
  // several before it uses the first; and the minimum of words.
  static constexpr int64_t largest = int64_t(1) << 20;
  static constexpr int64_t fewest_words = 256;

  // The target in rows that do not count, and outside of the block.
  static constexpr int ignored = -2;
  static constexpr int elsewhere = -1;

  const mx::array& weight;
  const mx::array& scales;
  const std::optional<mx::array>& biases;
  const mx::array& targets;
  std::optional<int> group_size;
  std::optional<int> bits;
  const std::string& mode;
  int ignore_index;
  mx::StreamOrDevice s;

  /** The rows of `a` from `first` to `last`. */
  mx::array part(const mx::array& a, int first, int last) const {
    mx::Shape start(a.ndim(), 0);
    mx::Shape stop = a.shape();
    start[0] = first;
    stop[0] = last;
    return mx::slice(a, start, stop, s);
  }

  std::optional<mx::array>
  part(const std::optional<mx::array>& a, int first, int last) const {
    return a ? std::optional(part(*a, first, last)) : std::nullopt;
  }

  mx::array between(int first, int last) const {
    return mx::logical_and(
        mx::greater_equal(targets, mx::array(first), s),
        mx::less(targets, mx::array(last), s),
        s);
  }

  /**
   * Call a function with the first and the last word of each block, the
   * dequantized words, and the targets relative to the first word. The next
   * block waits for the array that it returns.
   */
  template <typename F>
  void each(int depth, F function) const {
    int all = weight.shape(0);
    auto counts = mx::not_equal(targets, mx::array(ignore_index), s);
    int64_t most = largest / std::max(depth, 1);
    int words =
        static_cast<int>(std::min<int64_t>(std::max(most, fewest_words), all));
    std::vector<mx::array> before;
    for (int first = 0; first < all; first += words) {
      int last = std::min(first + words, all);
      auto some = part(weight, first, last);
      if (!before.empty()) {
        some = mx::depends({some}, before)[0];
      }
      some = mx::dequantize(
          some,
          part(scales, first, last),
          part(biases, first, last),
          group_size,
          bits,
          mode,
          std::nullopt,
          std::nullopt,
          s);
      auto places = mx::where(
          between(first, last),
          mx::subtract(targets, mx::array(first), s),
          mx::array(elsewhere),
          s);
      places = mx::where(counts, places, mx::array(ignored), s);
      before = {function(first, last, some, places)};
    }
  }
};

/** quantized_cross_entropy_rows. */
inline std::vector<mx::array> quantized_cross_entropy(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    const mx::array& targets,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& class_weight,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    mx::StreamOrDevice s) {
  QuantizedBlocks blocks{
      weight, scales, biases, targets, group_size, bits, mode, ignore_index, s};
  std::optional<mx::array> base;
  if (bias) {
    base = bias_base(*bias, softcap, s);
  }
  std::vector<mx::array> parts;
  auto of_block = [&](int first,
                      int last,
                      const mx::array& words,
                      const mx::array& places) {
    parts.push_back(linear_cross_entropy_parts(
        x,
        words,
        places,
        blocks.part(bias, first, last),
        blocks.part(class_weight, first, last),
        base,
        softcap,
        QuantizedBlocks::ignored,
        label_smoothing != 0,
        s));
    return parts.back();
  };
  blocks.each(x.shape(-1), of_block);
  return linear_cross_entropy_joined(
      mx::concatenate(std::move(parts), -2, s),
      targets,
      class_weight,
      base,
      ignore_index,
      label_smoothing,
      z_loss,
      s);
}

/** Gradients of quantized_cross_entropy_rows with respect to x and bias. */
inline std::vector<mx::array> quantized_cross_entropy_vjp(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& scales,
    const std::optional<mx::array>& biases,
    const mx::array& targets,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& class_weight,
    const mx::array& counted,
    const mx::array& most,
    const mx::array& log_sum,
    const mx::array& extra,
    const mx::array& cotangent,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    mx::StreamOrDevice s) {
  QuantizedBlocks blocks{
      weight, scales, biases, targets, group_size, bits, mode, ignore_index, s};
  // In the dtype of sums, because the results of all blocks are added.
  auto wide = mx::astype(x, most.dtype(), s);
  auto relative = bias;
  if (bias) {
    auto base = bias_base(*bias, softcap, s);
    relative = mx::subtract(mx::astype(*bias, most.dtype(), s), base, s);
  }
  auto valid = mx::where(
      blocks.between(0, weight.shape(0)),
      cotangent,
      mx::array(std::numeric_limits<double>::quiet_NaN(), cotangent.dtype()),
      s);
  std::optional<mx::array> grad_x;
  std::vector<mx::array> grad_bias;
  auto of_block = [&](int first,
                      int last,
                      const mx::array& words,
                      const mx::array& places) {
    auto grads = linear_cross_entropy_rows_vjp(
        wide,
        words,
        places,
        blocks.part(relative, first, last),
        blocks.part(class_weight, first, last),
        counted,
        most,
        log_sum,
        extra,
        valid,
        softcap,
        QuantizedBlocks::ignored,
        label_smoothing,
        z_loss,
        true,
        false,
        weight.shape(0),
        s);
    grad_x = grad_x ? mx::add(*grad_x, grads[0], s) : grads[0];
    grad_bias.push_back(grads[2]);
    return *grad_x;
  };
  blocks.each(x.shape(-1), of_block);
  return {
      mx::astype(*grad_x, x.dtype(), s),
      mx::concatenate(std::move(grad_bias), 0, s)};
}

} // namespace mlxops::blocks
