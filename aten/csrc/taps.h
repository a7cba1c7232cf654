// The inputs that an output of resampling or average pooling depends on, along
// one axis. The CPU and Metal kernels share this header.
//
// Output j is a weighted sum of consecutive inputs: its taps. The functions
// with several axes apply the kernels to each axis, so that all modes need only
// the taps of one. Taps ascend: neither their begin nor their end decreases
// with j. The outputs that depend on an input are therefore consecutive, too.
// Beyond the ends of the axis, interpolation repeats the outer inputs: these
// have several weights, which are not added, so that infinities with weights of
// 0 are NaN, as in torch.

#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#else
#include <algorithm>
#include <cmath>
#endif

namespace mlx_aten {

#ifdef __METAL_VERSION__
using metal::ceil;
using metal::fabs;
using metal::floor;
using metal::max;
using metal::min;
#else
using std::ceil;
using std::fabs;
using std::floor;
using std::max;
using std::min;
#endif

// The values of the argument `mode`, in the order of its declaration.
enum TapMode {
  nearest_taps,
  nearest_exact_taps,
  linear_taps,
  cubic_taps,
  smooth_linear_taps, // antialiased
  smooth_cubic_taps,
  window_taps, // averages of the inputs in a window
  padded_window_taps, // the padding counts as inputs
  window_sum_taps,
  adaptive_taps,
};

/** The inputs [begin, begin + count) of an output, which may be beyond the
 * ends, and what their weights depend on. */
template <typename A>
struct Taps {
  int begin;
  int count;
  A place; // the position of the output, see weight()
  A divisor;
};

/** An axis of `length` inputs and `size` outputs, with numbers of type A. */
template <typename A>
struct TapAxis {
  int mode;
  int length;
  int size;
  A scale; // inputs per output
  bool align_corners;
  int kernel_size; // of windows, as the next two
  int stride;
  int padding;

  /** `scale_`: the inputs per output if the caller knows it, else 0. */
  TapAxis(
      int mode_,
      int length_,
      int size_,
      A scale_,
      bool align_corners_,
      int kernel_size_,
      int stride_,
      int padding_)
      : mode(mode_),
        length(length_),
        size(size_),
        align_corners(align_corners_),
        kernel_size(kernel_size_),
        stride(stride_),
        padding(padding_) {
    if (align_corners) {
      scale = size > 1 ? A(length - 1) / A(size - 1) : A(0);
    } else {
      scale = scale_ > 0 ? scale_ : A(length) / A(size);
    }
  }

  /** The taps of output j, without the divisor of antialiasing. */
  Taps<A> taps(int j) const {
    if (mode == nearest_taps || mode == nearest_exact_taps) {
      return nearest(j);
    }
    if (mode == linear_taps || mode == cubic_taps) {
      return between(j);
    }
    if (mode == smooth_linear_taps || mode == smooth_cubic_taps) {
      return smooth(j);
    }
    return window(j);
  }

  /** The input of tap k. */
  int input(Taps<A> taps, int k) const {
    return min(max(taps.begin + k, 0), length - 1);
  }

  /** The weight of tap k. */
  A weight(Taps<A> taps, int k) const {
    if (mode == linear_taps) {
      return k == 0 ? 1 - taps.place : taps.place;
    }
    if (mode == cubic_taps) {
      return cubic(taps.place - A(k - 1), A(-0.75));
    }
    if (mode == smooth_linear_taps || mode == smooth_cubic_taps) {
      return filter(taps.place, taps.begin + k) / taps.divisor;
    }
    return 1 / taps.divisor;
  }

  /** The taps of output j. */
  Taps<A> weighted(int j) const {
    Taps<A> found = taps(j);
    if (mode == smooth_linear_taps || mode == smooth_cubic_taps) {
      A sum = 0;
      for (int k = 0; k < found.count; ++k) {
        sum += filter(found.place, found.begin + k);
      }
      found.divisor = sum;
    }
    return found;
  }

  /** The first output whose taps end after input i. */
  int first_output(int i) const {
    int low = 0;
    int high = size;
    while (low < high) {
      int middle = low + (high - low) / 2;
      Taps<A> found = taps(middle);
      if (min(found.begin + found.count, length) > i) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  Taps<A> nearest(int j) const {
    A at = mode == nearest_exact_taps ? A(j) + A(0.5) : A(j);
    int i = min(int(floor(at * scale)), length - 1);
    return {i, 1, A(0), A(1)};
  }

  /** Two inputs for linear interpolation, four for cubic. */
  Taps<A> between(int j) const {
    bool is_linear = mode == linear_taps;
    if (is_linear && size == length) {
      return {j, 1, A(0), A(1)};
    }
    A at = align_corners ? scale * A(j) : scale * (A(j) + A(0.5)) - A(0.5);
    if (is_linear) {
      at = max(at, A(0));
    }
    int left = min(int(floor(at)), length - 1);
    A place = min(max(at - A(left), A(0)), A(1));
    return {is_linear ? left : left - 1, is_linear ? 2 : 4, place, A(1)};
  }

  /** A filter that is as wide as an output; `place` is its center. */
  Taps<A> smooth(int j) const {
    A center = scale * (A(j) + A(0.5));
    A reach = (mode == smooth_linear_taps ? A(1) : A(2)) * max(scale, A(1));
    int begin = max(int(center - reach + A(0.5)), 0);
    int end = min(int(center + reach + A(0.5)), length);
    int most = 2 * int(ceil(reach)) + 1;
    return {begin, min(end - begin, most), center - A(0.5), A(1)};
  }

  A filter(A center, int i) const {
    A distance = (A(i) - center) / max(scale, A(1));
    if (mode == smooth_linear_taps) {
      return max(1 - fabs(distance), A(0));
    }
    return cubic(distance, A(-0.5));
  }

  /** The piecewise cubic of Keys (1981) with slope a at distance 1. */
  A cubic(A distance, A a) const {
    A x = fabs(distance);
    if (x <= 1) {
      return ((a + 2) * x - (a + 3)) * x * x + 1;
    }
    return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : A(0);
  }

  Taps<A> window(int j) const {
    if (mode == adaptive_taps) {
      int begin = start(j);
      // The end of a window is the start of the next one, rounded up.
      int end = length - start(size - j - 1);
      return {begin, end - begin, A(0), A(end - begin)};
    }
    int begin = j * stride - padding;
    int end = min(begin + kernel_size, length + padding);
    int whole = end - begin;
    begin = max(begin, 0);
    end = max(min(end, length), begin);
    int divisor = mode == window_taps ? end - begin
        : mode == window_sum_taps     ? 1
                                      : whole;
    return {begin, end - begin, A(0), A(divisor)};
  }

  /** The start of adaptive window j: floor(j * length / size). */
  int start(int j) const {
    return j / size * length + int(j % size * int64_t(length) / size);
  }
};

} // namespace mlx_aten
