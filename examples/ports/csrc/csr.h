// Products with sparse matrices in CSR form, and walks on graphs.

#pragma once

#include <algorithm>
#include <cstdint>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

template <typename T>
void csr_matmul(
    In<T> data,
    In<int32_t> indices,
    In<int32_t> indptr,
    In<T> x,
    Out<T> out) {
  int64_t width = x.dim(1);
  for (int64_t row = 0; row < out.dim(0); ++row) {
    for (int64_t k = indptr[row]; k < indptr[row + 1]; ++k) {
      for (int64_t j = 0; j < width; ++j) {
        out[row * width + j] += data[k] * x[indices[k] * width + j];
      }
    }
  }
}

inline void random_walk(
    In<int64_t> indptr,
    In<int64_t> indices,
    In<int64_t> start,
    In<float> numbers,
    Out<int64_t> out) {
  int64_t steps = numbers.dim(1);
  for (int64_t walk = 0; walk < start.size(); ++walk) {
    int64_t node = start[walk];
    int64_t* nodes = out.data + walk * (steps + 1);
    nodes[0] = node;
    for (int64_t i = 0; i < steps; ++i) {
      int64_t first = indptr[node];
      int64_t count = indptr[node + 1] - first;
      if (count > 0) {
        auto chosen = static_cast<int64_t>(numbers[walk * steps + i] * count);
        node = indices[first + std::min(chosen, count - 1)];
      }
      nodes[i + 1] = node;
    }
  }
}

} // namespace mlx_ports::cpu
