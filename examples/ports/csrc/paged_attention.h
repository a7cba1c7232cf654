// Attention of one query per sequence to keys and values in pages.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

template <typename T>
void paged_attention(
    In<T> q,
    In<T> keys,
    In<T> values,
    In<int32_t> table,
    In<int32_t> lengths,
    double scale,
    Out<T> out) {
  using C = accum_t<T>;
  int64_t heads = q.dim(1), width = q.dim(2);
  int64_t groups = keys.dim(1), size = keys.dim(2);
  std::vector<C> sums(width);
  for (int64_t row = 0; row < q.dim(0) * heads; ++row) {
    int64_t sequence = row / heads;
    int64_t group = row % heads / (heads / groups);
    const T* query = q.data + row * width;
    // The softmax of the tokens so far: its largest score and its denominator.
    C most = -std::numeric_limits<C>::infinity();
    C denominator = 0;
    sums.assign(width, 0);
    for (int64_t token = 0; token < lengths[sequence]; ++token) {
      int64_t page = table[sequence * table.dim(1) + token / size];
      int64_t at = ((page * groups + group) * size + token % size) * width;
      C score = 0;
      for (int64_t i = 0; i < width; ++i) {
        score += static_cast<C>(query[i]) * static_cast<C>(keys[at + i]);
      }
      score *= static_cast<C>(scale);
      C next = std::max(most, score);
      C before = std::exp(most - next);
      C weight = std::exp(score - next);
      denominator = denominator * before + weight;
      for (int64_t i = 0; i < width; ++i) {
        sums[i] = sums[i] * before + weight * static_cast<C>(values[at + i]);
      }
      most = next;
    }
    for (int64_t i = 0; i < width; ++i) {
      out[row * width + i] = static_cast<T>(sums[i] / denominator);
    }
  }
}

} // namespace mlx_ports::cpu
