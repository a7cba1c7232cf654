// The product with the same matrix in every step of a recurrent network. Some
// rows of the batch are an item for a core, from the first step to the last.
// The matrix is packed once.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

/** Products of up to `most` vectors with a matrix of (inner, columns). */
template <typename A>
class StepProduct {
 public:
  static constexpr int64_t most = product::tile_rows;

  template <typename T>
  StepProduct(Matrix<T> matrix, int64_t inner, int64_t columns)
      : inner_(inner), columns_(columns), tile_(product::best_tile<A>()) {
    packed_ = product::pack(
        columns, inner, tile_.columns, matrix.transposed(), memory_);
  }

  StepProduct(const StepProduct&) = delete;
  StepProduct& operator=(const StepProduct&) = delete;

  int64_t columns() const {
    return columns_;
  }

  /** Vectors are interleaved: element i of vector r has index i * most + r. */
  void operator()(const A* vectors, int64_t count, A* to, int64_t stride)
      const {
    A part[most * 128 / sizeof(A)];
    for (int64_t j = 0; j < columns_; j += tile_.columns) {
      tile_.compute(
          inner_, most, {vectors, 1, most}, packed_ + j * inner_, part);
      for (int64_t r = 0; r < count; ++r) {
        std::copy_n(
            part + r * tile_.columns,
            std::min(tile_.columns, columns_ - j),
            to + r * stride + j);
      }
    }
  }

  /**
   * Call each(first, count) for some rows of a batch at a time, on all cores.
   * The result for a row does not depend on the other rows.
   */
  template <typename F>
  void share(int64_t batch, int64_t steps, F each) const {
    int64_t groups = std::max<int64_t>(
        (batch + most - 1) / most,
        std::min<int64_t>(batch, mlxgen::cpu::thread_count()));
    mlxgen::share(
        groups, steps * inner_ * columns_, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            int64_t first = i * batch / groups;
            each(first, (i + 1) * batch / groups - first);
          }
        });
  }

 private:
  int64_t inner_;
  int64_t columns_;
  product::Tile<A> tile_;
  std::vector<A> memory_;
  const A* packed_; // in memory_
};

} // namespace mlxops::cpu
