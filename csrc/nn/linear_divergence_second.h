// The second derivatives of the divergences of linear outputs, from the graph
// of MLX's products and the divergences of logits. It stores the logits.

#pragma once

#include <optional>
#include <vector>

#include "mlx/mlx.h"
#include "mlxops/matrix_product.h"
#include "nn/linear_divergence_blocks.h"

namespace mlxops::blocks {

/**
 * The gradients of divergence_vjp with respect to the arrays of the layers and
 * the cotangent, for the cotangents of those of its outputs that are asked for.
 */
inline std::vector<mx::array> divergence_second(
    const LayerPair& layers,
    const mx::array& cotangent,
    const std::vector<mx::array>& directions,
    const std::vector<bool>& asked,
    mx::StreamOrDevice s) {
  DivergenceBlocks blocks(layers, s);
  auto losses = [&](const std::vector<mx::array>& arrays) {
    auto given = layers.with(arrays);
    auto logits = [&](const LastLayer& layer) {
      auto words = blocks.words(layer, 0, layer.weight.shape(0), {});
      auto x = blocks.counted(layer.x, layers.mask);
      return blocks.finished(
          matrix_product(x, mx::transpose(words, s), s),
          blocks.relative_bias(layer),
          layer.kind);
    };
    auto q = logits(given.student);
    auto p = logits(given.teacher);
    return std::vector{blocks.of_logits(q, p, layers.mask, layers)[0]};
  };
  auto gradients = [&](const std::vector<mx::array>& arrays) {
    std::vector<mx::array> of(arrays.begin(), arrays.end() - 1);
    auto all = mx::vjp(losses, of, {arrays.back()}).second;
    std::vector<mx::array> kept;
    for (size_t i = 0; i < all.size(); ++i) {
      if (asked[i]) {
        kept.push_back(all[i]);
      }
    }
    return kept;
  };
  auto arrays = layers.arrays();
  arrays.push_back(cotangent);
  return mx::vjp(gradients, arrays, directions).second;
}

/** linear_divergence_second. */
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
  const std::vector<bool> asked{
      asked_x, asked_weight, asked_target_x, asked_target_weight};
  std::vector<mx::array> kept;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i]) {
      kept.push_back(directions[i]);
    }
  }
  return divergence_second(
      {{x, weight}, {target_x, target_weight}, mask, beta, scale},
      cotangent,
      kept,
      asked,
      s);
}

} // namespace mlxops::blocks
