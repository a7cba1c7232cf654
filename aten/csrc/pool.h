// The windows of max pooling along one axis. The CPU and Metal kernels share
// this header.

#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#else
#include <algorithm>
#include <cstdint>
#endif

namespace mlx_aten {

/** An axis of `length` inputs and `size` windows. */
struct PoolAxis {
  int length;
  int size;
  int kernel_size; // 0: adaptive windows, which have no other attributes
  int stride;
  int padding;
  int dilation;

  /** The first input of a window. */
  int begin(int window) const {
    if (kernel_size == 0) {
      return scaled(window, length, size);
    }
    int at = window * stride - padding;
    return at < 0 ? at + (dilation - 1 - at) / dilation * dilation : at;
  }

  /** The end of a window's inputs, which are `step()` apart. */
  int end(int window) const {
    if (kernel_size == 0) {
      return length - scaled(size - window - 1, length, size);
    }
    int last = window * stride - padding + (kernel_size - 1) * dilation;
    return last < length ? last + 1 : length;
  }

  int step() const {
    return kernel_size == 0 ? 1 : dilation;
  }

  /** The first window that reaches as far as an input. */
  int first_window(int input) const {
    if (kernel_size == 0) {
      return scaled(input, size, length);
    }
    int at = input + padding - (kernel_size - 1) * dilation;
    return at > 0 ? (at + stride - 1) / stride : 0;
  }

  /** The end of the windows that begin before or at an input. */
  int end_window(int input) const {
    if (kernel_size == 0) {
      return size - scaled(length - input - 1, size, length);
    }
    int end = (input + padding) / stride + 1;
    return end < size ? end : size;
  }

 private:
  /** floor(i * to / from) */
  static int scaled(int i, int to, int from) {
    return int(int64_t(i) * to / from);
  }
};

} // namespace mlx_aten
