// Writes new tokens into a cache, whose values `out` has already.

#pragma once

#include <algorithm>
#include <cstdint>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

template <typename T>
void kv_cache_update(In<T> update, In<int32_t> positions, Out<T> out) {
  int64_t heads = out.dim(1), length = out.dim(2), width = out.dim(3);
  int64_t tokens = update.dim(2);
  for (int64_t row = 0; row < out.dim(0) * heads; ++row) {
    int64_t first = positions[row / heads];
    for (int64_t t = 0; t < tokens; ++t) {
      if (first + t >= 0 && first + t < length) {
        std::copy_n(
            update.data + (row * tokens + t) * width,
            width,
            out.data + (row * length + first + t) * width);
      }
    }
  }
}

} // namespace mlx_ports::cpu
