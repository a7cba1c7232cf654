// CPU kernels of the distances between the rows of two matrices.

#pragma once

#include <algorithm>

#include "distance.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

template <typename T>
void cdist(In<T> x, In<T> y, double p, Out<T> out) {
  using A = accum_t<T>;
  int64_t rows = x.dim(-2);
  int64_t others = y.dim(-2);
  int64_t width = x.dim(-1);
  int64_t count = others > 0 ? out.size() / others : 0;
  mlxgen::share(count, 4 * width * others, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* a = x.data + row * width;
      const T* b = y.data + row / rows * others * width;
      for (int64_t j = 0; j < others; ++j) {
        Norm<A> norm{A(p), A(0)};
        for (int64_t k = 0; k < width; ++k) {
          norm.add(static_cast<A>(a[k]) - static_cast<A>(b[j * width + k]));
        }
        out[row * others + j] = static_cast<T>(norm.result());
      }
    }
  });
}

/** The gradient with respect to x. */
template <typename T>
void cdist_vjp(
    In<T> cotangent,
    In<T> x,
    In<T> y,
    In<T> distance,
    double p,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t rows = x.dim(-2);
  int64_t others = y.dim(-2);
  int64_t width = x.dim(-1);
  int64_t count = width > 0 ? x.size() / width : 0;
  mlxgen::share(count, 8 * width * others, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* b = y.data + row / rows * others * width;
      for (int64_t k = 0; k < width; ++k) {
        A from = static_cast<A>(x[row * width + k]);
        A sum = 0;
        for (int64_t j = 0; j < others; ++j) {
          Norm<A> norm{A(p), static_cast<A>(distance[row * others + j])};
          A slope = norm.slope(from - static_cast<A>(b[j * width + k]));
          sum += static_cast<A>(cotangent[row * others + j]) * slope;
        }
        out[row * width + k] = static_cast<T>(sum);
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
