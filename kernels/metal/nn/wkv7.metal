// Metal kernels of wkv7: the recurrence of RWKV-7 over time.

#include <metal_stdlib>

#include "delta.h"
#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** Reads the steps of wkv7 and writes their gradients. */
template <typename T>
struct Wkv7 {
  static constant constexpr const bool corrects = false;
  static constant constexpr const bool adds = true;

  device const T* r;
  device const float* w;
  device const T* k;
  device const T* v;
  device const T* a;
  device const T* b;
  Sequences sequences;
  // The gradients' destinations, for a block of rows.
  device float* grad_r;
  device float* grad_w;
  device float* grad_k;
  device float* grad_a;
  device float* grad_b;

  template <int N>
  bool read(thread const DeltaPlace& place, uint t, thread DeltaStep<N>& to)
      const {
    uint width = place.width;
    size_t at = place.at(t) * width;
    read_lane<N>(r + at, place.lane, width, to.r);
    read_lane<N>(w + at, place.lane, width, to.w);
    read_lane<N>(k + at, place.lane, width, to.k);
    read_lane<N>(a + at, place.lane, width, to.a);
    read_lane<N>(b + at, place.lane, width, to.b);
    read_rows(v + at + place.first, place, to.v);
    return true;
  }

  /** The number of sums per step: of r, w, k, a and b. */
  uint columns(thread const DeltaPlace& place) const {
    return 5 * place.width;
  }

  template <int N>
  void share(
      thread const DeltaPlace& place,
      thread const DeltaStep<N>&,
      thread const DeltaStep<N>& sums,
      threadgroup float* to) const {
    uint width = place.width;
    for (int n = 0; n < N; ++n) {
      uint j = place.lane + 32 * n;
      if (j < width) {
        to[j] = sums.r[n];
        to[width + j] = sums.w[n];
        to[2 * width + j] = sums.k[n];
        to[3 * width + j] = sums.a[n];
        to[4 * width + j] = sums.b[n];
      }
    }
  }

  void write(thread const DeltaPlace& place, uint t, uint i, float total)
      const {
    uint width = place.width;
    size_t at = place.at(t) * width + i % width;
    uint which = i / width;
    device float* to = which == 0 ? grad_r
        : which == 1              ? grad_w
        : which == 2              ? grad_k
        : which == 3              ? grad_a
                                  : grad_b;
    to[at] = total;
  }
};

/** S <- S diag(w) + (S a) b^T + v k^T; y = S r, at every step. */
template <typename T, int Width>
[[kernel]] void wkv7(
    device const T* r [[buffer(0)]],
    device const float* w [[buffer(1)]],
    device const T* k [[buffer(2)]],
    device const T* v [[buffer(3)]],
    device const T* a [[buffer(4)]],
    device const T* b [[buffer(5)]],
    device const float* state [[buffer(6)]],
    device const int* cu_seqlens [[buffer(7)]],
    device T* y [[buffer(8)]],
    device float* last [[buffer(9)]],
    constant bool& has_state [[buffer(10)]],
    constant int64_t& cu_seqlens_size [[buffer(11)]],
    constant const int* r_shape [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  DeltaPlace place =
      delta_place(r_shape, r_shape[3], 16, group, lane, simdgroup);
  Sequences sequences(cu_seqlens, cu_seqlens_size, r_shape[1]);
  Wkv7<T> rule = {r, w, k, v, a, b, sequences};
  delta_forward<Width / 32>(rule, place, state, has_state, y, last);
}

/** A threadgroup per head and block of rows. */
template <typename T, int Width>
[[kernel, max_total_threads_per_threadgroup(512)]] void wkv7_vjp(
    device const T* r [[buffer(0)]],
    device const float* w [[buffer(1)]],
    device const T* k [[buffer(2)]],
    device const T* v [[buffer(3)]],
    device const T* a [[buffer(4)]],
    device const T* b [[buffer(5)]],
    device const float* state [[buffer(6)]],
    device const int* cu_seqlens [[buffer(7)]],
    device const T* grad_y [[buffer(8)]],
    device const float* grad_last [[buffer(9)]],
    device float* grad_r [[buffer(10)]],
    device float* grad_w [[buffer(11)]],
    device float* grad_k [[buffer(12)]],
    device T* grad_v [[buffer(13)]],
    device float* grad_a [[buffer(14)]],
    device float* grad_b [[buffer(15)]],
    device float* grad_state [[buffer(16)]],
    device float* states [[buffer(17)]],
    constant bool& has_state [[buffer(18)]],
    constant int64_t& cu_seqlens_size [[buffer(19)]],
    constant const int* r_shape [[buffer(20)]],
    constant int& block [[buffer(21)]],
    constant int& chunk [[buffer(22)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  // One simdgroup for every four rows of a block.
  threadgroup float shared[(Width > 128 ? 4 : Width > 64 ? 8 : 16) * 5 * Width];
  DeltaPlace place =
      delta_place(r_shape, r_shape[3], block, group, lane, simdgroup);
  size_t sums =
      size_t(group.x) * r_shape[0] * r_shape[1] * r_shape[2] * r_shape[3];
  Wkv7<T> rule = {
      r,
      w,
      k,
      v,
      a,
      b,
      Sequences(cu_seqlens, cu_seqlens_size, r_shape[1]),
      grad_r + sums,
      grad_w + sums,
      grad_k + sums,
      grad_a + sums,
      grad_b + sums};
  DeltaBackward<T> to = {
      state,
      has_state,
      grad_y,
      grad_last,
      grad_v,
      grad_state,
      states,
      shared,
      uint(chunk),
      uint(block),
      groups.x};
  delta_backward<Width / 32>(rule, place, to);
}
