// CPU kernel of a product of two matrices, on all cores: MLX's takes many times
// as long on Linux.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

/** a b^T, or a^T b for `columns`: of the columns of a, of which b has as many.
 */
template <typename T>
void matrix_product(In<T> a, In<T> b, bool columns, Out<T> out) {
  using A = accum_t<T>;
  int64_t rows = out.dim(0);
  int64_t width = out.dim(1);
  int64_t inner = columns ? a.dim(0) : a.dim(1);
  Matrix<T> left{a.data, a.dim(1)};
  Matrix<T> right{b.data, b.dim(1)};
  left = columns ? left.transposed() : left;
  right = columns ? right : right.transposed();
  constexpr int64_t most = product::block_rows;
  mlxgen::share(
      (rows + most - 1) / most,
      most * inner * width,
      [&](int64_t begin, int64_t end) {
        std::vector<A> sums(most * width);
        for (int64_t i = begin; i < end; ++i) {
          int64_t first = i * most;
          int64_t count = std::min(most, rows - first);
          multiply(
              count,
              inner,
              width,
              left.from(first, 0),
              right,
              sums.data(),
              width);
          for (int64_t j = 0; j < count * width; ++j) {
            mlxgen::narrow(sums[j], out[first * width + j]);
          }
        }
      });
}

} // namespace mlxops::cpu
