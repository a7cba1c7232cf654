// Metal kernels of im2col and col2im, one thread per result.

#include <metal_stdlib>

using namespace metal;

/** Element z of block (y, x): the planes, with their elements, are along z. */
template <typename T>
[[kernel]] void unfold(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant int& height [[buffer(2)]],
    constant int& width [[buffer(3)]],
    constant int& kernel_h [[buffer(4)]],
    constant int& kernel_w [[buffer(5)]],
    constant int& dilation_h [[buffer(6)]],
    constant int& dilation_w [[buffer(7)]],
    constant int& padding_h [[buffer(8)]],
    constant int& padding_w [[buffer(9)]],
    constant int& stride_h [[buffer(10)]],
    constant int& stride_w [[buffer(11)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  int k = int(position.z % uint(kernel_h * kernel_w));
  size_t plane = position.z / uint(kernel_h * kernel_w);
  int h = int(position.y) * stride_h - padding_h + k / kernel_w * dilation_h;
  int w = int(position.x) * stride_w - padding_w + k % kernel_w * dilation_w;
  bool inside = h >= 0 && h < height && w >= 0 && w < width;
  out[(size_t(position.z) * threads.y + position.y) * threads.x + position.x] =
      inside ? x[(plane * height + h) * width + w] : T(0);
}

/** The sum of a pixel's elements in all blocks. */
template <typename T>
[[kernel]] void fold(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant int& blocks_h [[buffer(2)]],
    constant int& blocks_w [[buffer(3)]],
    constant int& kernel_h [[buffer(4)]],
    constant int& kernel_w [[buffer(5)]],
    constant int& dilation_h [[buffer(6)]],
    constant int& dilation_w [[buffer(7)]],
    constant int& padding_h [[buffer(8)]],
    constant int& padding_w [[buffer(9)]],
    constant int& stride_h [[buffer(10)]],
    constant int& stride_w [[buffer(11)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  x += size_t(position.z) * kernel_h * kernel_w * blocks_h * blocks_w;
  float sum = 0;
  for (int i = 0; i < kernel_h; ++i) {
    int h = int(position.y) + padding_h - i * dilation_h;
    if (h < 0 || h % stride_h != 0 || h / stride_h >= blocks_h) {
      continue;
    }
    for (int j = 0; j < kernel_w; ++j) {
      int w = int(position.x) + padding_w - j * dilation_w;
      if (w >= 0 && w % stride_w == 0 && w / stride_w < blocks_w) {
        size_t block = size_t(h / stride_h) * blocks_w + w / stride_w;
        sum += static_cast<float>(
            x[size_t(i * kernel_w + j) * blocks_h * blocks_w + block]);
      }
    }
  }
  out[(size_t(position.z) * threads.y + position.y) * threads.x + position.x] =
      T(sum);
}
