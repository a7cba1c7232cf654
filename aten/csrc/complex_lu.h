// CPU kernel of LU factorizations of complex matrices, which MLX does not have:
// Gaussian elimination with the largest |re| + |im| as pivot, as in LAPACK.

#pragma once

#include <algorithm>
#include <cmath>
#include <complex>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** Each complex number is a pair of floats. Pivots count from 1. */
inline void complex_lu(In<float> x, Out<float> lu, Out<int32_t> pivots) {
  using C = std::complex<float>;
  int64_t m = x.dim(-2);
  int64_t n = x.dim(-1) / 2;
  int64_t count = std::min(m, n);
  std::copy_n(x.data, x.size(), lu.data);
  int64_t batch = x.size() / std::max<int64_t>(2 * m * n, 1);
  mlxgen::share(batch, 8 * m * n * count, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      C* a = reinterpret_cast<C*>(lu.data) + k * m * n;
      for (int64_t j = 0; j < count; ++j) {
        int64_t pivot = j;
        float most = -1;
        for (int64_t i = j; i < m; ++i) {
          C z = a[i * n + j];
          float size = std::abs(z.real()) + std::abs(z.imag());
          if (size > most) {
            most = size;
            pivot = i;
          }
        }
        pivots[k * count + j] = static_cast<int32_t>(pivot + 1);
        std::swap_ranges(a + j * n, a + (j + 1) * n, a + pivot * n);
        for (int64_t i = j + 1; most > 0 && i < m; ++i) {
          C factor = a[i * n + j] / a[j * n + j];
          a[i * n + j] = factor;
          for (int64_t c = j + 1; c < n; ++c) {
            a[i * n + c] -= factor * a[j * n + c];
          }
        }
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
