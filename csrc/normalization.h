// CPU kernels of RMS normalization fused with a residual connection.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "mlxgen/kernel.h"
#include "reduce.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

/**
 * h = x + residual and y = h / sqrt(mean(h^2) + eps) * weight, over the last
 * axis. y is computed from h as stored, rounded to T.
 */
template <typename T>
void rms_norm_residual(
    In<T> x,
    In<T> residual,
    In<T> weight,
    double eps,
    Out<T> y,
    Out<T> h) {
  using A = accum_t<T>;
  int64_t width = x.dim(-1);
  int64_t size = x.size();
  for (int64_t start = 0; start < size; start += width) {
    const T* from = x.data + start;
    const T* other = residual.data + start;
    T* sum = h.data + start;
    T* to = y.data + start;
    for (int64_t i = 0; i < width; ++i) {
      sum[i] =
          static_cast<T>(static_cast<A>(from[i]) + static_cast<A>(other[i]));
    }
    A squares = sum_over<A>(width, [=](int64_t i) {
      A value = static_cast<A>(sum[i]);
      return value * value;
    });
    A scale = 1 / std::sqrt(squares / width + static_cast<A>(eps));
    if (weight) {
      for (int64_t i = 0; i < width; ++i) {
        to[i] = static_cast<T>(
            static_cast<A>(sum[i]) * scale * static_cast<A>(weight[i]));
      }
    } else {
      for (int64_t i = 0; i < width; ++i) {
        to[i] = static_cast<T>(static_cast<A>(sum[i]) * scale);
      }
    }
  }
}

// The number of rows that each row of rms_norm_residual_vjp's grad_weight sums.
constexpr int64_t rows_per_sum = 16;

/**
 * Gradients of rms_norm_residual. With n = h / sqrt(mean(h^2) + eps) and d =
 * grad_y * weight,
 *
 *   grad_x = grad_h + (d - n mean(d n)) / sqrt(mean(h^2) + eps)
 *
 * for x and residual alike. The gradient with respect to weight is the sum of
 * grad_y n over all rows; row i of grad_weight is the sum over rows_per_sum
 * rows, from i * rows_per_sum on. Metal's threadgroups can compute these parts
 * without waiting for each other, and the result does not depend on their
 * order.
 */
template <typename T>
void rms_norm_residual_vjp(
    In<T> h,
    In<T> weight,
    In<T> grad_y,
    In<T> grad_h,
    double eps,
    Out<T> grad_x,
    Out<accum_t<T>> grad_weight) {
  using A = accum_t<T>;
  int64_t width = h.dim(-1);
  int64_t rows = width == 0 ? 0 : h.size() / width;
  std::fill_n(grad_weight.data, grad_weight.size(), A(0));
  std::vector<A> unit(width, A(1));
  const A* factor = unit.data();
  if (weight) {
    std::transform(weight.data, weight.data + width, unit.begin(), [](T w) {
      return static_cast<A>(w);
    });
  }
  for (int64_t row = 0; row < rows; ++row) {
    const T* value = h.data + row * width;
    const T* dy = grad_y.data + row * width;
    const T* dh = grad_h.data + row * width;
    T* to = grad_x.data + row * width;
    A* sum = grad_weight.data + row / rows_per_sum * width;
    A squares = sum_over<A>(width, [=](int64_t i) {
      A v = static_cast<A>(value[i]);
      return v * v;
    });
    A scale = 1 / std::sqrt(squares / width + static_cast<A>(eps));
    A projection = sum_over<A>(width, [=](int64_t i) {
      return static_cast<A>(value[i]) * static_cast<A>(dy[i]) * factor[i];
    });
    A shift = projection / width * scale * scale;
    for (int64_t i = 0; i < width; ++i) {
      A v = static_cast<A>(value[i]);
      A d = static_cast<A>(dy[i]);
      sum[i] += d * (v * scale);
      to[i] = static_cast<T>(
          static_cast<A>(dh[i]) + scale * (d * factor[i] - v * shift));
    }
  }
}

} // namespace mlxops::cpu
