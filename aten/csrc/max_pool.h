// CPU kernels of max pooling in three axes, with the indices of the maxima.

#pragma once

#include <algorithm>
#include <limits>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"
#include "pool.h"

namespace mlx_aten {
namespace cpu {

/**
 * The first maximum of each window, or its last NaN, and its index in the plane
 * (depth, height, width).
 */
template <typename T>
void max_pool(
    In<T> x,
    int out_d,
    int out_h,
    int out_w,
    int kernel_d,
    int kernel_h,
    int kernel_w,
    int stride_d,
    int stride_h,
    int stride_w,
    int padding_d,
    int padding_h,
    int padding_w,
    int dilation_d,
    int dilation_h,
    int dilation_w,
    Out<T> out,
    Out<int64_t> indices) {
  using A = accum_t<T>;
  int depth = int(x.dim(-3));
  int height = int(x.dim(-2));
  int width = int(x.dim(-1));
  PoolAxis along_d{depth, out_d, kernel_d, stride_d, padding_d, dilation_d};
  PoolAxis along_h{height, out_h, kernel_h, stride_h, padding_h, dilation_h};
  PoolAxis along_w{width, out_w, kernel_w, stride_w, padding_w, dilation_w};
  int64_t plane = int64_t(depth) * height * width;
  int64_t rows = out_w > 0 ? out.size() / out_w : 0;
  int64_t cost = 4 * x.size() / std::max<int64_t>(rows, 1);
  mlxgen::share(rows, cost, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int h = int(row % out_h);
      int d = int(row / out_h % out_d);
      const T* from = x.data + row / out_h / out_d * plane;
      for (int w = 0; w < out_w; ++w) {
        int begin_w = along_w.begin(w);
        int end_w = along_w.end(w);
        int64_t index =
            (int64_t(along_d.begin(d)) * height + along_h.begin(h)) * width +
            begin_w;
        A most = std::numeric_limits<A>::has_infinity
            ? -std::numeric_limits<A>::infinity()
            : std::numeric_limits<A>::lowest();
        for (int i = along_d.begin(d); i < along_d.end(d);
             i += along_d.step()) {
          for (int j = along_h.begin(h); j < along_h.end(h);
               j += along_h.step()) {
            int64_t start = (int64_t(i) * height + j) * width;
            for (int k = begin_w; k < end_w; k += along_w.step()) {
              A value = static_cast<A>(from[start + k]);
              if (value > most || value != value) {
                most = value;
                index = start + k;
              }
            }
          }
        }
        out[row * out_w + w] = static_cast<T>(most);
        indices[row * out_w + w] = index;
      }
    }
  });
}

/** The sums of the cotangents whose index is the same input. */
template <typename T>
void max_pool_vjp(
    In<T> cotangent,
    In<int64_t> indices,
    int depth,
    int height,
    int width,
    int kernel_d,
    int kernel_h,
    int kernel_w,
    int stride_d,
    int stride_h,
    int stride_w,
    int padding_d,
    int padding_h,
    int padding_w,
    int dilation_d,
    int dilation_h,
    int dilation_w,
    Out<accum_t<T>> out) {
  using A = accum_t<T>;
  int64_t plane = int64_t(depth) * height * width;
  int64_t windows = cotangent.dim(-3) * cotangent.dim(-2) * cotangent.dim(-1);
  int64_t planes = plane > 0 ? out.size() / plane : 0;
  mlxgen::share(planes, plane + 4 * windows, [&](int64_t first, int64_t last) {
    std::fill_n(out.data + first * plane, (last - first) * plane, A(0));
    for (int64_t i = first * windows; i < last * windows; ++i) {
      if (indices[i] >= 0 && indices[i] < plane) {
        out[i / windows * plane + indices[i]] += static_cast<A>(cotangent[i]);
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
