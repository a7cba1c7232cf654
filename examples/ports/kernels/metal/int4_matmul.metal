// A product with weights of 4 bits: a simdgroup per tile of 8 x 8 outputs.

#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void int4_matmul(
    device const T* x [[buffer(0)]],
    device const uint* weight [[buffer(1)]],
    device const T* scales [[buffer(2)]],
    device const T* biases [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant int& group [[buffer(5)]],
    constant int& M [[buffer(6)]],
    constant int& N [[buffer(7)]],
    constant int& K [[buffer(8)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float left[64], right[64];
  int row = 8 * tile.y, column = 8 * tile.x;
  simdgroup_matrix<float, 8, 8> sums =
      make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int k = 0; k < K; k += 8) {
    for (int i = lane; i < 64; i += 32) {
      int r = i / 8, c = i % 8;
      left[i] = row + r < M ? float(x[size_t(row + r) * K + k + c]) : 0.0f;
      float value = 0;
      if (column + r < N) {
        uint packed = weight[(size_t(column + r) * K + k) / 8];
        size_t at = (size_t(column + r) * K + k) / group;
        value = float(scales[at]) * float((packed >> (4 * c)) & 15) +
            float(biases[at]);
      }
      right[8 * c + r] = value; // transposed
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<float, 8, 8> a, b;
    simdgroup_load(a, left, 8);
    simdgroup_load(b, right, 8);
    simdgroup_multiply_accumulate(sums, a, b, sums);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(sums, left, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = lane; i < 64; i += 32) {
    int r = row + i / 8, c = column + i % 8;
    if (r < M && c < N) {
      out[size_t(r) * N + c] = T(left[i]);
    }
  }
}
