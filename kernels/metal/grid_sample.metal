// Metal kernels of grid sampling: the definitions of csrc/grid_sample.h.

#include <metal_atomic>
#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

// The choices of the string arguments, in the order of their declaration.
enum GridMode { bilinear_mode, nearest_mode };
enum GridPadding { zeros_padding, border_padding, reflection_padding };

/** Where a coordinate of the grid lies, in pixels, and its derivative. */
struct GridCoordinate {
  float value;
  float slope;
};

inline GridCoordinate
locate(float from, int size, int padding, bool align_corners) {
  // -1 and 1 are the centres of the outer pixels, or else their outer edges.
  float slope = (align_corners ? float(size - 1) : float(size)) / 2;
  float value = align_corners ? (from + 1) * slope : (from + 1) * slope - 0.5f;
  if (padding == reflection_padding) {
    float low = align_corners ? 0.0f : -0.5f;
    float period = 2 * (align_corners ? float(size - 1) : float(size));
    if (period == 0) {
      return {0, 0};
    }
    float distance = fabs(value - low);
    float forth = distance - trunc(distance / period) * period;
    float back = period - forth;
    bool mirrored = (forth > back) != (value < low);
    value = (back < forth ? back : forth) + low;
    slope = mirrored ? -slope : slope;
  }
  if (padding != zeros_padding) {
    // Written so that NaN becomes 0.
    float last = float(size - 1);
    slope = value > 0 && value < last ? slope : 0.0f;
    value = value > 0 ? (last < value ? last : value) : 0.0f;
  }
  return {value, slope};
}

/** Whether a pixel is inside of the image. */
inline bool is_inside(float column, float row, int width, int height) {
  return column >= 0 && column < width && row >= 0 && row < height;
}

/** One thread for each element of out: channel, column, image and row. */
template <typename T>
[[kernel]] void grid_sample(
    device const T* x [[buffer(0)]],
    device const T* grid [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int* x_shape [[buffer(3)]],
    constant int* grid_shape [[buffer(4)]],
    constant int& mode [[buffer(5)]],
    constant int& padding_mode [[buffer(6)]],
    constant bool& align_corners [[buffer(7)]],
    uint3 position [[thread_position_in_grid]]) {
  int height = x_shape[1];
  int width = x_shape[2];
  int channels = x_shape[3];
  size_t point = size_t(position.z) * grid_shape[2] + position.y;
  size_t image = position.z / grid_shape[1];
  device const T* pixels = x + image * height * width * channels + position.x;
  float column = locate(
                     static_cast<float>(grid[2 * point]),
                     width,
                     padding_mode,
                     align_corners)
                     .value;
  float row = locate(
                  static_cast<float>(grid[2 * point + 1]),
                  height,
                  padding_mode,
                  align_corners)
                  .value;
  float result;
  if (mode == nearest_mode) {
    column = rint(column);
    row = rint(row);
    result = 0;
    if (is_inside(column, row, width, height)) {
      result = static_cast<float>(
          pixels[(size_t(row) * width + size_t(column)) * channels]);
    }
  } else {
    float left = floor(column);
    float top = floor(row);
    float right_weight = column - left;
    float lower_weight = row - top;
    // 0, or NaN where a coordinate is not finite.
    result = 0 * right_weight + 0 * lower_weight;
    for (int k = 0; k < 4; ++k) {
      bool right = k & 1;
      bool lower = k >> 1;
      float c = right ? left + 1 : left;
      float r = lower ? top + 1 : top;
      if (is_inside(c, r, width, height)) {
        float weight = (right ? right_weight : 1 - right_weight) *
            (lower ? lower_weight : 1 - lower_weight);
        result += weight *
            static_cast<float>(
                      pixels[(size_t(r) * width + size_t(c)) * channels]);
      }
    }
  }
  out[point * channels + position.x] = static_cast<T>(result);
}

/**
 * A simdgroup for each point, its 32 threads sharing the channels: thread 0 to
 * 31, column, image and row. Points may share pixels, so their parts of grad_x
 * are added atomically, in an order that varies from run to run.
 */
template <typename T>
[[kernel]] void grid_sample_vjp(
    device const T* x [[buffer(0)]],
    device const T* grid [[buffer(1)]],
    device const T* cotangent [[buffer(2)]],
    device atomic<float>* grad_x [[buffer(3)]],
    device T* grad_grid [[buffer(4)]],
    constant int* x_shape [[buffer(5)]],
    constant int* grid_shape [[buffer(6)]],
    constant int& mode [[buffer(7)]],
    constant int& padding_mode [[buffer(8)]],
    constant bool& align_corners [[buffer(9)]],
    uint3 position [[thread_position_in_grid]]) {
  int height = x_shape[1];
  int width = x_shape[2];
  int channels = x_shape[3];
  size_t point = size_t(position.z) * grid_shape[2] + position.y;
  size_t image = position.z / grid_shape[1];
  size_t start = image * height * width * channels;
  device const T* g = cotangent + point * channels;
  GridCoordinate column = locate(
      static_cast<float>(grid[2 * point]), width, padding_mode, align_corners);
  GridCoordinate row = locate(
      static_cast<float>(grid[2 * point + 1]),
      height,
      padding_mode,
      align_corners);
  float by_column = 0;
  float by_row = 0;
  if (mode == nearest_mode) {
    float c = rint(column.value);
    float r = rint(row.value);
    if (is_inside(c, r, width, height)) {
      size_t pixel = start + (size_t(r) * width + size_t(c)) * channels;
      for (int i = position.x; i < channels; i += 32) {
        atomic_fetch_add_explicit(
            &grad_x[pixel + i], static_cast<float>(g[i]), memory_order_relaxed);
      }
    }
  } else {
    float left = floor(column.value);
    float top = floor(row.value);
    float right_weight = column.value - left;
    float lower_weight = row.value - top;
    // 0, or NaN where the other coordinate is not finite.
    by_column = 0 * lower_weight;
    by_row = 0 * right_weight;
    for (int k = 0; k < 4; ++k) {
      bool right = k & 1;
      bool lower = k >> 1;
      float c = right ? left + 1 : left;
      float r = lower ? top + 1 : top;
      if (is_inside(c, r, width, height)) {
        size_t pixel = start + (size_t(r) * width + size_t(c)) * channels;
        float across = right ? right_weight : 1 - right_weight;
        float down = lower ? lower_weight : 1 - lower_weight;
        float product = 0;
        for (int i = position.x; i < channels; i += 32) {
          float d = static_cast<float>(g[i]);
          product += d * static_cast<float>(x[pixel + i]);
          atomic_fetch_add_explicit(
              &grad_x[pixel + i], across * down * d, memory_order_relaxed);
        }
        by_column += right ? product * down : -product * down;
        by_row += lower ? product * across : -product * across;
      }
    }
    by_column = simd_sum(by_column);
    by_row = simd_sum(by_row);
  }
  if (position.x == 0) {
    grad_grid[2 * point] = static_cast<T>(by_column * column.slope);
    grad_grid[2 * point + 1] = static_cast<T>(by_row * row.slope);
  }
}

// clang-format off
#define instantiate_grid_sample(name, type)                     \
  instantiate_kernel("grid_sample_" #name, grid_sample, type)   \
  instantiate_kernel("grid_sample_vjp_" #name, grid_sample_vjp, type)

instantiate_grid_sample(float32, float)
instantiate_grid_sample(float16, half)
instantiate_grid_sample(bfloat16, bfloat16_t)
    // clang-format on
