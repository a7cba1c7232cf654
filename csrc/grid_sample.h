// CPU kernels of grid sampling: an image is interpolated at arbitrary points,
// with gradients.
//
// Coordinates, modes and paddings have the meaning of
// torch.nn.functional.grid_sample, for channels-last arrays. This includes
// points outside of the image, at infinity, and NaN:
//
//   padding   forward                  gradient of the grid
//   zeros     0; NaN where a           0 or NaN
//             coordinate is not
//             finite (bilinear)
//   border    the nearest pixel        0
//   others    NaN counts as 0 (the first pixel)

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "mlxgen/kernel.h"
#include "reduce.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace grid_sample_detail {

// The values of the string arguments, in the order of their declaration.
enum Mode { bilinear, nearest };
enum Padding { zeros, border, reflection };

/** A coordinate in pixels, and its derivative with respect to the grid
 * coordinate. */
template <typename A>
struct Coordinate {
  A value;
  A slope;
};

/** The position of `from`, which is -1 to 1 along an axis of the given size. */
template <typename A>
Coordinate<A> locate(A from, int size, int padding, bool align_corners) {
  // -1 and 1 are the centers of the outer pixels, or else their outer edges.
  A slope = (align_corners ? A(size - 1) : A(size)) / 2;
  A value = align_corners ? (from + 1) * slope : (from + 1) * slope - A(0.5);
  if (padding == reflection) {
    A low = align_corners ? A(0) : A(-0.5);
    A period = 2 * (align_corners ? A(size - 1) : A(size));
    if (period == 0) {
      return {0, 0};
    }
    A distance = std::fabs(value - low);
    A forth = distance - std::trunc(distance / period) * period;
    A back = period - forth;
    bool mirrored = (forth > back) != (value < low);
    value = std::min(forth, back) + low;
    slope = mirrored ? -slope : slope;
  }
  if (padding != zeros) {
    // Written so that NaN becomes 0.
    A last = A(size - 1);
    slope = value > 0 && value < last ? slope : A(0);
    value = value > 0 ? std::min(value, last) : A(0);
  }
  return {value, slope};
}

/** The four pixels around a point, and the weights of the point between them.
 */
template <typename T>
struct Neighbours {
  using A = accum_t<T>;
  int64_t offset[4]; // upper left, upper right, lower left, lower right
  bool inside[4];
  A right; // weight of the right pixels, NaN if there is no such point
  A lower;

  /** For an image of the given size; offsets are relative to its first element.
   */
  Neighbours(A x, A y, int width, int height, int channels) {
    A left = std::floor(x);
    A top = std::floor(y);
    right = x - left;
    lower = y - top;
    for (int k = 0; k < 4; ++k) {
      A column = left + (k & 1);
      A row = top + (k >> 1);
      inside[k] = column >= 0 && column < width && row >= 0 && row < height;
      offset[k] = inside[k]
          ? (static_cast<int64_t>(row) * width + static_cast<int64_t>(column)) *
              channels
          : 0;
    }
  }
};

/** The element of the pixel nearest to a point; negative outside of the image.
 */
template <typename A>
int64_t nearest_offset(A x, A y, int width, int height, int channels) {
  A column = std::rint(x);
  A row = std::rint(y);
  if (!(column >= 0 && column < width && row >= 0 && row < height)) {
    return -1;
  }
  return (static_cast<int64_t>(row) * width + static_cast<int64_t>(column)) *
      channels;
}

} // namespace grid_sample_detail

/**
 * x (N, H, W, C) interpolated at grid (N, Ho, Wo, 2), whose last axis contains
 * the column and the row: out (N, Ho, Wo, C).
 */
template <typename T>
void grid_sample(
    In<T> x,
    In<T> grid,
    int mode,
    int padding_mode,
    bool align_corners,
    Out<T> out) {
  using namespace grid_sample_detail;
  using A = accum_t<T>;
  int height = x.dim(1);
  int width = x.dim(2);
  int channels = x.dim(3);
  int64_t points = grid.dim(1) * grid.dim(2);
  std::vector<T> outside(out.size() > 0 ? channels : 0, T(0));
  for (int64_t i = 0; i < grid.dim(0) * points; ++i) {
    const T* image = x.data + i / points * height * width * channels;
    T* to = out.data + i * channels;
    auto point = [&](int axis, int size) {
      A from = static_cast<A>(grid[2 * i + axis]);
      return locate(from, size, padding_mode, align_corners).value;
    };
    A column = point(0, width);
    A row = point(1, height);
    if (mode == nearest) {
      auto offset = nearest_offset(column, row, width, height, channels);
      std::copy_n(offset < 0 ? outside.data() : image + offset, channels, to);
      continue;
    }
    Neighbours<T> near(column, row, width, height, channels);
    const T* pixel[4];
    for (int k = 0; k < 4; ++k) {
      pixel[k] = near.inside[k] ? image + near.offset[k] : outside.data();
    }
    A weight[4] = {
        (1 - near.right) * (1 - near.lower),
        near.right * (1 - near.lower),
        (1 - near.right) * near.lower,
        near.right * near.lower};
    for (int c = 0; c < channels; ++c) {
      to[c] = static_cast<T>(
          weight[0] * static_cast<A>(pixel[0][c]) +
          weight[1] * static_cast<A>(pixel[1][c]) +
          weight[2] * static_cast<A>(pixel[2][c]) +
          weight[3] * static_cast<A>(pixel[3][c]));
    }
  }
}

/**
 * Gradients of grid_sample by x and grid. The gradient with respect to x is a
 * sum of many terms and stays in the accumulator type.
 */
template <typename T>
void grid_sample_vjp(
    In<T> x,
    In<T> grid,
    In<T> cotangent,
    int mode,
    int padding_mode,
    bool align_corners,
    Out<accum_t<T>> grad_x,
    Out<T> grad_grid) {
  using namespace grid_sample_detail;
  using A = accum_t<T>;
  int height = x.dim(1);
  int width = x.dim(2);
  int channels = x.dim(3);
  int64_t points = grid.dim(1) * grid.dim(2);
  std::fill_n(grad_x.data, grad_x.size(), A(0));
  std::fill_n(grad_grid.data, grad_grid.size(), T(0));
  for (int64_t i = 0; i < grid.dim(0) * points; ++i) {
    int64_t start = i / points * height * width * channels;
    const T* g = cotangent.data + i * channels;
    auto point = [&](int axis, int size) {
      A from = static_cast<A>(grid[2 * i + axis]);
      return locate(from, size, padding_mode, align_corners);
    };
    auto column = point(0, width);
    auto row = point(1, height);
    auto add = [&](int64_t offset, A weight) {
      A* to = grad_x.data + start + offset;
      for (int c = 0; c < channels; ++c) {
        to[c] += weight * static_cast<A>(g[c]);
      }
    };
    if (mode == nearest) {
      auto offset =
          nearest_offset(column.value, row.value, width, height, channels);
      if (offset >= 0) {
        add(offset, A(1));
      }
      continue;
    }
    Neighbours<T> near(column.value, row.value, width, height, channels);
    A right = near.right;
    A lower = near.lower;
    A weight[4] = {
        (1 - right) * (1 - lower),
        right * (1 - lower),
        (1 - right) * lower,
        right * lower};
    A product[4] = {};
    for (int k = 0; k < 4; ++k) {
      if (near.inside[k]) {
        add(near.offset[k], weight[k]);
        const T* pixel = x.data + start + near.offset[k];
        product[k] = sum_over<A>(channels, [=](int64_t c) {
          return static_cast<A>(g[c]) * static_cast<A>(pixel[c]);
        });
      }
    }
    A by_column = (product[1] - product[0]) * (1 - lower) +
        (product[3] - product[2]) * lower;
    A by_row = (product[2] - product[0]) * (1 - right) +
        (product[3] - product[1]) * right;
    grad_grid[2 * i] = static_cast<T>(by_column * column.slope);
    grad_grid[2 * i + 1] = static_cast<T>(by_row * row.slope);
  }
}

} // namespace mlxops::cpu
