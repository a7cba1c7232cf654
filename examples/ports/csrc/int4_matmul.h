// A product with weights of 4 bits.

#pragma once

#include <cstdint>
#include <vector>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

template <typename T>
void int4_matmul(
    In<T> x,
    In<uint32_t> weight,
    In<T> scales,
    In<T> biases,
    int group,
    Out<T> out) {
  using C = accum_t<T>;
  int64_t rows = x.dim(0), width = x.dim(1), columns = weight.dim(0);
  std::vector<C> unpacked(width); // a row of weights
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t k = 0; k < width; ++k) {
      int64_t at = column * width + k;
      auto bits = weight[at / 8] >> (4 * (at % 8)) & 15;
      unpacked[k] = static_cast<C>(scales[at / group]) * static_cast<C>(bits) +
          static_cast<C>(biases[at / group]);
    }
    for (int64_t row = 0; row < rows; ++row) {
      C sum = 0;
      for (int64_t k = 0; k < width; ++k) {
        sum += static_cast<C>(x[row * width + k]) * unpacked[k];
      }
      out[row * columns + column] = static_cast<T>(sum);
    }
  }
}

} // namespace mlx_ports::cpu
