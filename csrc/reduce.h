// Sums over the elements of a row, for CPU kernels.

#pragma once

#include <cstdint>

namespace mlxops::cpu {

/**
 * term(0) + ... + term(n - 1), as 16 interleaved sums. The compiler may not
 * reorder a sum, and therefore could not vectorize it; this order is also more
 * accurate.
 */
template <typename A, typename F>
A sum_over(int64_t n, F term) {
  constexpr int lanes = 16;
  A partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) {
      partial[j] += term(i + j);
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    partial[j] += term(i);
  }
  A sum = 0;
  for (A p : partial) {
    sum += p;
  }
  return sum;
}

} // namespace mlxops::cpu
