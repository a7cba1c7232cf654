// Derivatives of the gradient of linear_cross_entropy, composed of MLX's
// operations. They store the logits, and several arrays of their size.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/bias_base.h"
#include "mlxops/cross_entropy_rows_second.h"
#include "mlxops/cross_entropy_rows_vjp.h"
#include "mlxops/matrix_product.h"

namespace mlxops::second {

namespace mx = mlx::core;

/**
 * With the logits `z = x weight^T + bias` and the gradient g of the losses by
 * them, linear_cross_entropy_rows_vjp returns `g weight`, `g^T x` and the sum
 * of the rows of g. For cotangents X, W and b of these, g has the cotangent
 * `D = X weight^T + x W^T + b`, from which cross_entropy_rows_second computes
 * the parts h of z and c of the losses' cotangent. The results are
 *
 *   h weight + g W, h^T x + g^T X, the sum of the rows of h, and c
 *
 * Absent cotangents are zeros.
 */
inline std::vector<mx::array> linear_cross_entropy(
    const mx::array& x_,
    const mx::array& weight_,
    const mx::array& targets,
    const std::optional<mx::array>& bias,
    const std::optional<mx::array>& class_weight,
    const mx::array& counted,
    const mx::array& most,
    const mx::array& log_sum,
    const mx::array& extra,
    const mx::array& cotangent,
    const std::optional<mx::array>& of_x_,
    const std::optional<mx::array>& of_weight_,
    const std::optional<mx::array>& of_bias,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    int all_words,
    mx::StreamOrDevice s) {
  auto dtype = most.dtype();
  auto counts = mx::not_equal(targets, mx::array(ignore_index), s);
  // Rows that do not count may be infinite.
  auto rows = [&](const mx::array& a) {
    auto zero = mx::array(0, dtype);
    return mx::where(
        mx::expand_dims(counts, -1, s), mx::astype(a, dtype, s), zero, s);
  };
  auto product = [&](const mx::array& a, const mx::array& b) {
    return matrix_product(a, mx::transpose(b, s), s);
  };
  // Over the rows: a^T b.
  auto over_rows = [&](const mx::array& a, const mx::array& b) {
    auto matrix = [&](const mx::array& m) {
      return m.ndim() == 1 ? mx::expand_dims(m, 0, s)
                           : mx::flatten(m, 0, -2, s);
    };
    return matrix_product(mx::transpose(matrix(a), s), matrix(b), s);
  };
  auto x = rows(x_);
  auto weight = mx::astype(weight_, dtype, s);
  auto of_x = of_x_ ? std::optional(rows(*of_x_)) : std::nullopt;
  auto of_weight = of_weight_ ? std::optional(mx::astype(*of_weight_, dtype, s))
                              : std::nullopt;
  auto z = product(x, weight);
  if (bias) {
    auto base = bias_base(mx::stop_gradient(*bias, s), softcap, s);
    z = mx::add(z, mx::subtract(mx::astype(*bias, dtype, s), base, s), s);
  }
  std::optional<mx::array> direction;
  auto add = [&](std::optional<mx::array>& sum, const mx::array& term) {
    sum = sum ? mx::add(*sum, term, s) : term;
  };
  if (of_x) {
    add(direction, product(*of_x, weight));
  }
  if (of_weight) {
    add(direction, product(x, *of_weight));
  }
  if (of_bias) {
    add(direction,
        of_x || of_weight ? *of_bias
                          : mx::add(mx::zeros_like(z, s), *of_bias, s));
  }
  auto change = cross_entropy_rows_second(
      z,
      targets,
      class_weight,
      most,
      log_sum,
      extra,
      cotangent,
      direction.value_or(mx::zeros_like(z, s)),
      softcap,
      ignore_index,
      label_smoothing,
      z_loss,
      all_words,
      s);
  std::optional<mx::array> to_x = matrix_product(change[0], weight, s);
  std::optional<mx::array> to_weight = over_rows(change[0], x);
  if (of_x || of_weight) {
    auto gradient = cross_entropy_rows_vjp(
        z,
        targets,
        class_weight,
        counted,
        most,
        log_sum,
        extra,
        cotangent,
        softcap,
        ignore_index,
        label_smoothing,
        z_loss,
        0,
        s);
    if (of_weight) {
      add(to_x, matrix_product(gradient, *of_weight, s));
    }
    if (of_x) {
      add(to_weight, over_rows(gradient, *of_x));
    }
  }
  auto ones = mx::ones_like(mx::expand_dims(most, -1, s), s);
  auto to_bias = mx::squeeze(over_rows(change[0], ones), -1, s);
  return {*to_x, *to_weight, to_bias, change[1]};
}

/** Those of quantized_cross_entropy_vjp: the weights have no gradient. */
inline std::vector<mx::array> quantized_cross_entropy(
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
    const mx::array& of_x,
    const std::optional<mx::array>& of_bias,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    mx::StreamOrDevice s) {
  auto words = mx::dequantize(
      weight,
      scales,
      biases,
      group_size,
      bits,
      mode,
      std::nullopt,
      std::nullopt,
      s);
  auto grads = linear_cross_entropy(
      x,
      words,
      targets,
      bias,
      class_weight,
      counted,
      most,
      log_sum,
      extra,
      cotangent,
      of_x,
      std::nullopt,
      of_bias,
      softcap,
      ignore_index,
      label_smoothing,
      z_loss,
      0,
      s);
  return {grads[0], grads[2], grads[3]};
}

} // namespace mlxops::second
