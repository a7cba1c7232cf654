// CPU kernel of block_diag.

#pragma once

#include <algorithm>
#include <vector>

#include "mlxgen/kernel.h"

namespace mlxops::cpu {

using mlxgen::In;
using mlxgen::Out;

/**
 * The arrays along the diagonal, zeros elsewhere. An array of one axis is a
 * row, a scalar is a 1 x 1 matrix.
 */
template <typename T>
void block_diag(const std::vector<In<T>>& arrays, Out<T> out) {
  std::fill_n(out.data, out.size(), T(0));
  int64_t width = out.dim(1);
  T* corner = out.data;
  for (const auto& block : arrays) {
    int64_t rows = block.ndim() == 2 ? block.dim(0) : 1;
    int64_t columns = block.ndim() == 0 ? 1 : block.dim(-1);
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(block.data + row * columns, columns, corner + row * width);
    }
    corner += rows * width + columns;
  }
}

} // namespace mlxops::cpu
