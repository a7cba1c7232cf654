// CPU kernels of im2col and col2im: the elements of all blocks of images, and
// the transposed map, which adds up the blocks.

#pragma once

#include <algorithm>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** An axis of an image: element k of block j is at position(j, k). */
struct BlockAxis {
  int length;
  int dilation;
  int padding;
  int stride;

  /** Negative or at least `length` in the padding. */
  int64_t position(int64_t block, int k) const {
    return block * stride - padding + int64_t(k) * dilation;
  }
  bool contains(int64_t at) const {
    return at >= 0 && at < length;
  }
};

/**
 * Call each(pixel, i) for every element i of the blocks of one image that is
 * not in the padding; elements are in the order (kernel, block).
 */
template <typename F>
void for_blocks(
    BlockAxis along_h,
    BlockAxis along_w,
    int kernel_h,
    int kernel_w,
    int blocks_h,
    int blocks_w,
    F each) {
  for (int k = 0; k < kernel_h * kernel_w; ++k) {
    for (int j = 0; j < blocks_h; ++j) {
      int64_t h = along_h.position(j, k / kernel_w);
      int64_t i = (int64_t(k) * blocks_h + j) * blocks_w;
      for (int l = 0; along_h.contains(h) && l < blocks_w; ++l) {
        int64_t w = along_w.position(l, k % kernel_w);
        if (along_w.contains(w)) {
          each(h * along_w.length + w, i + l);
        }
      }
    }
  }
}

template <typename T>
void unfold(
    In<T> x,
    int blocks_h,
    int blocks_w,
    int kernel_h,
    int kernel_w,
    int dilation_h,
    int dilation_w,
    int padding_h,
    int padding_w,
    int stride_h,
    int stride_w,
    Out<T> out) {
  BlockAxis along_h{int(x.dim(-2)), dilation_h, padding_h, stride_h};
  BlockAxis along_w{int(x.dim(-1)), dilation_w, padding_w, stride_w};
  int64_t image = x.dim(-2) * x.dim(-1);
  int64_t columns = out.dim(-2) * out.dim(-1);
  int64_t planes = columns > 0 ? out.size() / columns : 0;
  mlxgen::share(planes, 4 * columns, [&](int64_t first, int64_t last) {
    std::fill_n(out.data + first * columns, (last - first) * columns, T(0));
    for (int64_t plane = first; plane < last; ++plane) {
      const T* from = x.data + plane * image;
      T* to = out.data + plane * columns;
      for_blocks(
          along_h,
          along_w,
          kernel_h,
          kernel_w,
          blocks_h,
          blocks_w,
          [=](int64_t pixel, int64_t i) { to[i] = from[pixel]; });
    }
  });
}

template <typename T>
void fold(
    In<T> x,
    int height,
    int width,
    int blocks_h,
    int blocks_w,
    int kernel_h,
    int kernel_w,
    int dilation_h,
    int dilation_w,
    int padding_h,
    int padding_w,
    int stride_h,
    int stride_w,
    Out<T> out) {
  using A = accum_t<T>;
  BlockAxis along_h{height, dilation_h, padding_h, stride_h};
  BlockAxis along_w{width, dilation_w, padding_w, stride_w};
  int64_t image = int64_t(height) * width;
  int64_t columns = x.dim(-2) * x.dim(-1);
  int64_t planes = image > 0 ? out.size() / image : 0;
  mlxgen::share(planes, 4 * columns, [&](int64_t first, int64_t last) {
    std::vector<A> sums(image);
    for (int64_t plane = first; plane < last; ++plane) {
      const T* from = x.data + plane * columns;
      std::fill(sums.begin(), sums.end(), A(0));
      for_blocks(
          along_h,
          along_w,
          kernel_h,
          kernel_w,
          blocks_h,
          blocks_w,
          [&](int64_t pixel, int64_t i) {
            sums[pixel] += static_cast<A>(from[i]);
          });
      for (int64_t i = 0; i < image; ++i) {
        out[plane * image + i] = static_cast<T>(sums[i]);
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
