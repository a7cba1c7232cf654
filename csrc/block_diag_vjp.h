// The gradient of block_diag. The offsets of the blocks accumulate.

#pragma once

#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"

namespace mlxops {

namespace mx = mlx::core;

/** Each array's gradient is its block of the cotangent. */
inline std::vector<mx::array> block_diag_vjp(
    const std::vector<mx::array>& arrays,
    const std::vector<mx::array>& cotangents,
    const std::vector<mx::array>&,
    mx::StreamOrDevice s) {
  mlxgen::refuse_shapeless("block_diag", "its gradient cuts slices");
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
