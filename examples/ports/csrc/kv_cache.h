// Writes new tokens into a cache, whose values `out` has already.

#pragma once

#include <cstdint>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

template <typename T>
void kv_cache_update(Strided<T> update, In<int32_t> positions, Out<T> out) {
  int64_t heads = out.dim(1), length = out.dim(2), width = out.dim(3);
  int64_t tokens = update.dim(2);
  for (int64_t row = 0; row < out.dim(0) * heads; ++row) {
    int64_t batch = row / heads, head = row % heads;
    int64_t first = positions[batch];
    for (int64_t t = 0; t < tokens; ++t) {
      if (first + t >= 0 && first + t < length) {
        T* to = out.data + (row * length + first + t) * width;
        for (int64_t i = 0; i < width; ++i) {
          to[i] = update(batch, head, t, i);
        }
      }
    }
  }
}

} // namespace mlx_ports::cpu
