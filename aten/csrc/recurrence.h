// CPU kernel of a linear recurrence along the last axis.

#pragma once

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** out[k] = x[k] + decay[k] * out[k + 1], from the end of each row. */
template <typename T>
void recurrence(In<T> x, In<T> decay, Out<T> out) {
  using A = accum_t<T>;
  int64_t length = x.dim(-1);
  int64_t rows = length > 0 ? x.size() / length : 0;
  mlxgen::share(rows, 4 * length, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      A sum = 0;
      for (int64_t k = (row + 1) * length; k-- > row * length;) {
        // The last factor has nothing to multiply, also if it is infinite.
        bool end = k == (row + 1) * length - 1;
        sum = static_cast<A>(x[k]) +
            (end ? A(0) : static_cast<A>(decay[k]) * sum);
        out[k] = static_cast<T>(sum);
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
