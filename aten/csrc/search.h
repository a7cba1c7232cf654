// CPU kernel of searches in sorted rows.

#pragma once

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/**
 * The number of elements of a sorted row that are below each value, or not
 * above it. NaN of the values are above all.
 */
template <typename T>
void places_in(In<T> sorted, In<T> values, bool right, Out<int64_t> out) {
  int64_t length = sorted.dim(-1);
  int64_t count = values.dim(-1);
  mlxgen::share(out.size(), 64, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const T* row = sorted.data + k / count * length;
      T value = values[k];
      int64_t low = 0;
      int64_t high = length;
      while (low < high) {
        int64_t middle = low + (high - low) / 2;
        // As in torch, a comparison with NaN leads to the right.
        bool found = right ? row[middle] > value : row[middle] >= value;
        low = found ? low : middle + 1;
        high = found ? middle : high;
      }
      out[k] = low;
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
