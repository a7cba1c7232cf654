// Metal kernels of max pooling in three axes, with the windows of csrc/pool.h.

#include <metal_stdlib>

#include "pool.h"
#include "wide.h"

using namespace metal;
using mlx_aten::PoolAxis;

/** The first maximum of a window, or its last NaN: one thread per window. */
template <typename T>
[[kernel]] void max_pool(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    device int64_t* indices [[buffer(2)]],
    constant int& depth [[buffer(3)]],
    constant int& height [[buffer(4)]],
    constant int& width [[buffer(5)]],
    constant int& out_d [[buffer(6)]],
    constant int& out_h [[buffer(7)]],
    constant int& out_w [[buffer(8)]],
    constant int& kernel_d [[buffer(9)]],
    constant int& kernel_h [[buffer(10)]],
    constant int& kernel_w [[buffer(11)]],
    constant int& stride_d [[buffer(12)]],
    constant int& stride_h [[buffer(13)]],
    constant int& stride_w [[buffer(14)]],
    constant int& padding_d [[buffer(15)]],
    constant int& padding_h [[buffer(16)]],
    constant int& padding_w [[buffer(17)]],
    constant int& dilation_d [[buffer(18)]],
    constant int& dilation_h [[buffer(19)]],
    constant int& dilation_w [[buffer(20)]],
    uint3 position [[thread_position_in_grid]]) {
  PoolAxis along_d = {depth, out_d, kernel_d, stride_d, padding_d, dilation_d};
  PoolAxis along_h = {height, out_h, kernel_h, stride_h, padding_h, dilation_h};
  PoolAxis along_w = {width, out_w, kernel_w, stride_w, padding_w, dilation_w};
  int d = int(position.z % uint(out_d));
  int h = int(position.y);
  int w = int(position.x);
  x += size_t(position.z / uint(out_d)) * depth * height * width;
  int begin_d = along_d.begin(d);
  int begin_h = along_h.begin(h);
  int begin_w = along_w.begin(w);
  int end_d = along_d.end(d);
  int end_h = along_h.end(h);
  int end_w = along_w.end(w);
  int64_t index = (int64_t(begin_d) * height + begin_h) * width + begin_w;
  typedef typename Wide<T>::type A;
  A most = Least<A>::value;
  for (int i = begin_d; i < end_d; i += along_d.step()) {
    for (int j = begin_h; j < end_h; j += along_h.step()) {
      int64_t start = (int64_t(i) * height + j) * width;
      for (int k = begin_w; k < end_w; k += along_w.step()) {
        A value = static_cast<A>(x[start + k]);
        if (value > most || value != value) {
          most = value;
          index = start + k;
        }
      }
    }
  }
  size_t at = (size_t(position.z) * out_h + h) * out_w + w;
  out[at] = static_cast<T>(most);
  indices[at] = index;
}

/**
 * The sum of the cotangents whose index is this thread's input. Only windows
 * that contain the input are searched, and no atomics are needed.
 */
template <typename T>
[[kernel]] void max_pool_vjp(
    device const T* cotangent [[buffer(0)]],
    device const int64_t* indices [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant int& depth [[buffer(3)]],
    constant int& height [[buffer(4)]],
    constant int& width [[buffer(5)]],
    constant int& out_d [[buffer(6)]],
    constant int& out_h [[buffer(7)]],
    constant int& out_w [[buffer(8)]],
    constant int& kernel_d [[buffer(9)]],
    constant int& kernel_h [[buffer(10)]],
    constant int& kernel_w [[buffer(11)]],
    constant int& stride_d [[buffer(12)]],
    constant int& stride_h [[buffer(13)]],
    constant int& stride_w [[buffer(14)]],
    constant int& padding_d [[buffer(15)]],
    constant int& padding_h [[buffer(16)]],
    constant int& padding_w [[buffer(17)]],
    constant int& dilation_d [[buffer(18)]],
    constant int& dilation_h [[buffer(19)]],
    constant int& dilation_w [[buffer(20)]],
    uint3 position [[thread_position_in_grid]]) {
  PoolAxis along_d = {depth, out_d, kernel_d, stride_d, padding_d, dilation_d};
  PoolAxis along_h = {height, out_h, kernel_h, stride_h, padding_h, dilation_h};
  PoolAxis along_w = {width, out_w, kernel_w, stride_w, padding_w, dilation_w};
  int d = int(position.z % uint(depth));
  int h = int(position.y);
  int w = int(position.x);
  size_t start = size_t(position.z / uint(depth)) * out_d * out_h * out_w;
  cotangent += start;
  indices += start;
  int64_t input = (int64_t(d) * height + h) * width + w;
  float sum = 0;
  for (int i = along_d.first_window(d); i < along_d.end_window(d); ++i) {
    for (int j = along_h.first_window(h); j < along_h.end_window(h); ++j) {
      for (int k = along_w.first_window(w); k < along_w.end_window(w); ++k) {
        size_t window = (size_t(i) * out_h + j) * out_w + k;
        if (indices[window] == input) {
          sum += static_cast<float>(cotangent[window]);
        }
      }
    }
  }
  out[(size_t(position.z) * height + h) * width + w] = sum;
}
