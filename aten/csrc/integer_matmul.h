// CPU kernel of products of matrices of integers, which MLX does not multiply.

#pragma once

#include <algorithm>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

template <typename T>
void integer_matmul(In<T> x, In<T> y, Out<T> out) {
  int64_t rows = x.dim(-2);
  int64_t inner = x.dim(-1);
  int64_t columns = y.dim(-1);
  int64_t count = columns > 0 ? out.size() / columns : 0;
  mlxgen::share(count, inner * columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* matrix = y.data + row / rows * inner * columns;
      T* sums = out.data + row * columns;
      std::fill_n(sums, columns, T(0));
      for (int64_t k = 0; k < inner; ++k) {
        T factor = x[row * inner + k];
        for (int64_t j = 0; j < columns; ++j) {
          // Sums wrap around, as in torch: unsigned numbers do so in C++.
          sums[j] = static_cast<T>(
              static_cast<uint64_t>(sums[j]) +
              static_cast<uint64_t>(factor) *
                  static_cast<uint64_t>(matrix[k * columns + j]));
        }
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
