// CPU kernels of sum_parts, the sums of partial results of blocks of rows or
// channels, and of its gradient.

#pragma once

#include <algorithm>
#include <cstdint>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

/**
 * Sums over the leading axes of x that `like` lacks, and over the heads of x
 * that share a head of `like`, its last axis but one.
 */
template <typename T>
void sum_parts(In<accum_t<T>> x, In<T> like, Out<T> out) {
  using A = accum_t<T>;
  if (out.size() == 0) {
    return;
  }
  int64_t ndim = like.ndim();
  int64_t width = like.dim(ndim - 1);
  int64_t rows = out.size() / width;
  int64_t share = ndim > 1 ? x.dim(x.ndim() - 2) / like.dim(ndim - 2) : 1;
  // Without shared heads there is nothing to add.
  int64_t parts = x.size() / std::max<int64_t>(out.size() * share, 1);
  mlxgen::share(rows, width * share * parts, [&](int64_t begin, int64_t end) {
    constexpr int64_t most = 64;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t first = 0; first < width; first += most) {
        int64_t count = std::min(most, width - first);
        A sums[most] = {};
        for (int64_t part = 0; part < parts; ++part) {
          for (int64_t k = 0; k < share; ++k) {
            const A* from =
                x.data + ((part * rows + i) * share + k) * width + first;
            for (int64_t j = 0; j < count; ++j) {
              sums[j] += from[j];
            }
          }
        }
        for (int64_t j = 0; j < count; ++j) {
          mlxgen::narrow(sums[j], out[i * width + first + j]);
        }
      }
    }
  });
}

/** The gradient: each part has the gradient of its sum. */
template <typename T>
void spread_parts(In<T> sums, In<accum_t<T>> like, Out<accum_t<T>> out) {
  if (out.size() == 0) {
    return;
  }
  int64_t width = sums.dim(-1);
  int64_t rows = sums.size() / width;
  int64_t share = sums.ndim() > 1 ? like.dim(-2) / sums.dim(-2) : 1;
  mlxgen::share(out.size() / width, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        out[i * width + j] = mlxgen::widen(sums[i / share % rows * width + j]);
      }
    }
  });
}

} // namespace mlxops::cpu
