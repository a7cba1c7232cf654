// block_diag as a composition of MLX ops, for backends without a kernel, and
// its gradient: what formulas cannot say, since offsets add up from block to
// block.

#pragma once

#include <vector>

#include "mlx/mlx.h"

namespace mlxops {

namespace mx = mlx::core;

/** An array as a block: scalars are 1 x 1, arrays of one axis are rows. */
inline mx::array as_block(const mx::array& a, mx::StreamOrDevice s) {
  return a.ndim() == 2 ? a : mx::reshape(a, {1, -1}, s);
}

inline mx::array block_diag_of_ops(
    const std::vector<mx::array>& arrays,
    mx::StreamOrDevice s) {
  std::vector<mx::array> blocks;
  int width = 0;
  for (const auto& a : arrays) {
    blocks.push_back(as_block(a, s));
    width += blocks.back().shape(1);
  }
  std::vector<mx::array> bands;
  int left = 0;
  for (const auto& block : blocks) {
    int right = width - left - block.shape(1);
    bands.push_back(
        mx::pad(
            block,
            std::vector<std::pair<int, int>>{{0, 0}, {left, right}},
            mx::array(0, block.dtype()),
            "constant",
            s));
    left += block.shape(1);
  }
  return mx::concatenate(bands, 0, s);
}

/** Each array's gradient is its block of the cotangent. */
inline std::vector<mx::array> block_diag_vjp(
    const std::vector<mx::array>& arrays,
    const std::vector<mx::array>& cotangents,
    const std::vector<mx::array>&,
    mx::StreamOrDevice s) {
  std::vector<mx::array> grads;
  int top = 0;
  int left = 0;
  for (const auto& a : arrays) {
    int rows = a.ndim() == 2 ? a.shape(0) : 1;
    int columns = a.ndim() == 0 ? 1 : a.shape(-1);
    auto block =
        mx::slice(cotangents[0], {top, left}, {top + rows, left + columns}, s);
    grads.push_back(mx::reshape(block, a.shape(), s));
    top += rows;
    left += columns;
  }
  return grads;
}

} // namespace mlxops
