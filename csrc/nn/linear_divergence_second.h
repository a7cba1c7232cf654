// The second derivatives of the divergences of linear outputs, from the graph
// of MLX's products and the divergences of logits. It stores the logits.

#pragma once

#include <array>
#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/js_div_rows.h"
#include "mlxops/kl_div_rows.h"
#include "nn/linear_divergence_blocks.h"

namespace mlxops::blocks {

/**
 * The gradients of linear_divergence_rows_vjp with respect to x, weight,
 * target_x, target_weight and the cotangent, for the cotangents of its outputs.
 */
inline std::vector<mx::array> linear_divergence_second(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& target_x,
    const mx::array& target_weight,
    const std::optional<mx::array>& mask,
    const mx::array& cotangent,
    const std::vector<mx::array>& directions,
    double beta,
    double scale,
    bool asked_x,
    bool asked_weight,
    bool asked_target_x,
    bool asked_target_weight,
    mx::StreamOrDevice s) {
  const std::array asked{
      asked_x, asked_weight, asked_target_x, asked_target_weight};
  DivergenceBlocks blocks(x, s);
  auto losses = [&](const std::vector<mx::array>& layers) {
    auto logits = [&](int i) {
      auto words = mx::astype(layers[i + 1], blocks.dtype, s);
      return mx::matmul(
          blocks.counted(layers[i], mask), mx::transpose(words, s), s);
    };
    auto q = logits(0);
    auto p = logits(2);
    return std::vector{
        beta == 0 ? kl_div_rows(q, p, mask, scale, s)[0]
                  : js_div_rows(q, p, mask, beta, scale, s)[0]};
  };
  auto some = [&](const std::vector<mx::array>& all) {
    std::vector<mx::array> kept;
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i]) {
        kept.push_back(all[i]);
      }
    }
    return kept;
  };
  auto gradients = [&](const std::vector<mx::array>& arrays) {
    std::vector<mx::array> layers(arrays.begin(), arrays.end() - 1);
    return some(mx::vjp(losses, layers, {arrays.back()}).second);
  };
  return mx::vjp(
             gradients,
             {x, weight, target_x, target_weight, cotangent},
             some(directions))
      .second;
}

} // namespace mlxops::blocks
