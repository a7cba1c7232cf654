// Metal kernels of grid sampling, with the definitions of csrc/grid_sample.h.

#include <metal_atomic>
#include <metal_stdlib>

#include "elements.h"

using namespace metal;

// The values of the string arguments, in the order of their declaration.
enum GridMode { bilinear_mode, nearest_mode };
enum GridPadding { zeros_padding, border_padding, reflection_padding };

/** The position of a grid coordinate in pixels, and its derivative. */
struct GridCoordinate {
  float value;
  float slope;
};

inline GridCoordinate
locate(float from, int size, int padding, bool align_corners) {
  // -1 and 1 are the centers of the outer pixels, or else their outer edges.
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

/** The pixels around a point: everything that does not depend on the channel.
 */
struct Corners {
  ptrdiff_t offset[4]; // upper left, upper right, lower left, lower right
  bool inside[4];
  float right; // weight of the right pixels; NaN if there is no such point
  float lower;

  float across(int k) const {
    return k & 1 ? right : 1 - right;
  }
  float down(int k) const {
    return k >> 1 ? lower : 1 - lower;
  }
};

/** A coordinate as an integer; for NaN, one that is outside of all images. */
inline int pixel(float coordinate) {
  return int(clamp(coordinate, -2.0f, 2147483520.0f));
}

/**
 * The pixels around (column, row), with offsets in elements. The offsets have
 * 64 bits and are computed once for all channels, so that nothing is divided
 * and images of any size are supported.
 */
inline Corners corners_of(
    float column,
    float row,
    int mode,
    int height,
    int width,
    int channels) {
  Corners corners;
  if (mode == nearest_mode) {
    column = rint(column);
    row = rint(row);
  }
  float left = floor(column);
  float top = floor(row);
  int x = pixel(left);
  int y = pixel(top);
  bool columns[2] = {uint(x) < uint(width), uint(x + 1) < uint(width)};
  bool rows[2] = {uint(y) < uint(height), uint(y + 1) < uint(height)};
  ptrdiff_t first = (ptrdiff_t(y) * width + x) * channels;
  for (int k = 0; k < 4; ++k) {
    corners.inside[k] =
        columns[k & 1] && rows[k >> 1] && (k == 0 || mode == bilinear_mode);
    corners.offset[k] = first + (k & 1 ? channels : 0) +
        (k >> 1 ? ptrdiff_t(width) * channels : 0);
  }
  corners.right = mode == nearest_mode ? 0.0f : column - left;
  corners.lower = mode == nearest_mode ? 0.0f : row - top;
  return corners;
}

/**
 * The threads of a point, along x, share its channels; the points of an image
 * are along y, and images along z.
 */
template <typename T>
[[kernel]] void grid_sample(
    device const T* x [[buffer(0)]],
    device const T* grid [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant int* x_shape [[buffer(3)]],
    constant int& mode [[buffer(4)]],
    constant int& padding_mode [[buffer(5)]],
    constant bool& align_corners [[buffer(6)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  int height = x_shape[1];
  int width = x_shape[2];
  int channels = x_shape[3];
  size_t point = size_t(position.z) * threads.y + position.y;
  x += size_t(position.z) * height * width * channels;
  grid += 2 * point;
  out += point * channels;
  Corners corners = corners_of(
      locate(static_cast<float>(grid[0]), width, padding_mode, align_corners)
          .value,
      locate(static_cast<float>(grid[1]), height, padding_mode, align_corners)
          .value,
      mode,
      height,
      width,
      channels);
  uint step = threads.x * per_thread;
  for (uint i = position.x * per_thread; i < uint(channels); i += step) {
    int left = int(uint(channels) - i);
    // 0, or NaN if a coordinate is not finite.
    float4 result = float4(0 * corners.right + 0 * corners.lower);
    for (int k = 0; k < 4; ++k) {
      if (corners.inside[k]) {
        result += corners.across(k) * corners.down(k) *
            read(x + corners.offset[k] + i, left);
      }
    }
    write(result, out + i, left);
  }
}

/**
 * Like grid_sample, with one thread per point or eight, which are lanes of the
 * same simdgroup.
 *
 * Points may share pixels, but only the values of the grid determine which.
 * Their contributions to grad_x are therefore added atomically, in an order
 * that varies between runs: a sum in a fixed order would require sorting the
 * points by pixel.
 */
template <typename T>
[[kernel]] void grid_sample_vjp(
    device const T* x [[buffer(0)]],
    device const T* grid [[buffer(1)]],
    device const T* cotangent [[buffer(2)]],
    device atomic<float>* grad_x [[buffer(3)]],
    device T* grad_grid [[buffer(4)]],
    constant int* x_shape [[buffer(5)]],
    constant int& mode [[buffer(6)]],
    constant int& padding_mode [[buffer(7)]],
    constant bool& align_corners [[buffer(8)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  int height = x_shape[1];
  int width = x_shape[2];
  int channels = x_shape[3];
  size_t point = size_t(position.z) * threads.y + position.y;
  size_t start = size_t(position.z) * height * width * channels;
  x += start;
  grad_x += start;
  grid += 2 * point;
  grad_grid += 2 * point;
  cotangent += point * channels;
  GridCoordinate column =
      locate(static_cast<float>(grid[0]), width, padding_mode, align_corners);
  GridCoordinate row =
      locate(static_cast<float>(grid[1]), height, padding_mode, align_corners);
  Corners corners =
      corners_of(column.value, row.value, mode, height, width, channels);
  // For each corner, the sum over the channels of cotangent * x.
  float products[4] = {0, 0, 0, 0};
  uint step = threads.x * per_thread;
  for (uint i = position.x * per_thread; i < uint(channels); i += step) {
    int left = int(uint(channels) - i);
    float4 d = read(cotangent + i, left);
    for (int k = 0; k < 4; ++k) {
      if (corners.inside[k]) {
        float weight = corners.across(k) * corners.down(k);
        for (int j = 0; j < min(left, per_thread); ++j) {
          atomic_fetch_add_explicit(
              &grad_x[corners.offset[k] + i + j],
              weight * d[j],
              memory_order_relaxed);
        }
        if (mode == bilinear_mode) {
          products[k] += sum(d * read(x + corners.offset[k] + i, left));
        }
      }
    }
  }
  float2 slope = float2(0);
  if (mode == bilinear_mode) {
    // 0, or NaN if the other coordinate is not finite.
    slope = float2(0 * corners.lower, 0 * corners.right);
    for (int k = 0; k < 4; ++k) {
      if (corners.inside[k]) {
        float by_column = products[k] * corners.down(k);
        float by_row = products[k] * corners.across(k);
        slope +=
            float2(k & 1 ? by_column : -by_column, k >> 1 ? by_row : -by_row);
      }
    }
    for (uint apart = threads.x / 2; apart > 0; apart /= 2) {
      slope += simd_shuffle_xor(slope, ushort(apart));
    }
  }
  if (position.x == 0) {
    grad_grid[0] = static_cast<T>(slope.x * column.slope);
    grad_grid[1] = static_cast<T>(slope.y * row.slope);
  }
}
