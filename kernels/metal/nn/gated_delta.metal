// Metal kernels of gated_delta: the gated delta rule over time.

#include <metal_stdlib>

#include "delta.h"
#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** Reads the steps of gated_delta and writes their gradients. */
template <typename T>
struct GatedDelta {
  static constant constexpr const bool corrects = true;
  static constant constexpr const bool adds = false;

  device const T* q;
  device const T* k;
  device const T* v;
  device const float* g;
  device const T* beta;
  device const bool* mask;
  bool has_mask;
  Sequences sequences;
  bool channels; // of g
  uint key_heads;
  uint key_head; // of the place's head
  // The gradients' destinations, for a block of rows.
  device float* grad_q;
  device float* grad_k;
  device float* grad_g;
  device float* grad_beta;

  template <int N>
  bool read(thread const DeltaPlace& place, uint t, thread DeltaStep<N>& to)
      const {
    uint width = place.width;
    size_t time = size_t(place.batch) * place.steps + t;
    if (has_mask && !mask[time]) {
      return false;
    }
    size_t at = place.at(t);
    size_t key = (time * key_heads + key_head) * width;
    read_lane<N>(q + key, place.lane, width, to.r);
    read_lane<N>(k + key, place.lane, width, to.k);
    read_rows(v + at * place.values + place.first, place, to.v);
    to.beta = static_cast<float>(beta[at]);
    if (channels) {
      read_lane<N>(g + at * width, place.lane, width, to.w);
    } else {
      float decay = g[at];
      for (int n = 0; n < N; ++n) {
        to.w[n] = decay;
      }
    }
    for (int n = 0; n < N; ++n) {
      to.a[n] = to.w[n] * to.k[n];
    }
    return true;
  }

  /** The number of sums per step: of q, k, g, and beta. */
  uint columns(thread const DeltaPlace& place) const {
    return 2 * place.width + (channels ? place.width : 1) + 1;
  }

  template <int N>
  void share(
      thread const DeltaPlace& place,
      thread const DeltaStep<N>& step,
      thread const DeltaStep<N>& sums,
      threadgroup float* to) const {
    uint lane = place.lane;
    uint width = place.width;
    float decay = 0;
    for (int n = 0; n < N; ++n) {
      uint j = lane + 32 * n;
      float w = sums.w[n] + step.k[n] * sums.a[n];
      if (j < width) {
        to[j] = sums.r[n];
        to[width + j] = sums.k[n] + step.w[n] * sums.a[n];
        if (channels) {
          to[2 * width + j] = w;
        } else {
          decay += w;
        }
      }
    }
    decay = simd_sum(decay);
    if (lane == 0) {
      if (!channels) {
        to[2 * width] = decay;
      }
      to[columns(place) - 1] = sums.beta;
    }
  }

  void write(thread const DeltaPlace& place, uint t, uint i, float total)
      const {
    uint width = place.width;
    size_t at = place.at(t);
    if (i < width) {
      grad_q[at * width + i] = total;
    } else if (i < 2 * width) {
      grad_k[at * width + i - width] = total;
    } else if (i + 1 == columns(place)) {
      grad_beta[at] = total;
    } else if (channels) {
      grad_g[at * width + i - 2 * width] = total;
    } else {
      grad_g[at] = total;
    }
  }
};

/** The head of q and k that belongs to one of v's. */
inline uint key_head_of(thread const DeltaPlace& place, uint key_heads) {
  return key_heads == place.heads ? place.head
                                  : place.head / (place.heads / key_heads);
}

/** S <- g S; S <- S + beta (v - S k) k^T; y = S q, at every step. */
template <typename T, int D>
[[kernel]] void gated_delta(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const float* g [[buffer(3)]],
    device const T* beta [[buffer(4)]],
    device const float* state [[buffer(5)]],
    device const bool* mask [[buffer(6)]],
    device const int* cu_seqlens [[buffer(7)]],
    device T* y [[buffer(8)]],
    device float* last [[buffer(9)]],
    constant bool& has_state [[buffer(10)]],
    constant bool& has_mask [[buffer(11)]],
    constant int64_t& cu_seqlens_size [[buffer(12)]],
    constant const int* q_shape [[buffer(13)]],
    constant const int* v_shape [[buffer(14)]],
    constant int& g_ndim [[buffer(15)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  DeltaPlace place =
      delta_place(v_shape, q_shape[3], 16, group, lane, simdgroup);
  uint key_heads = q_shape[2];
  GatedDelta<T> rule = {
      q,
      k,
      v,
      g,
      beta,
      mask,
      has_mask,
      Sequences(cu_seqlens, cu_seqlens_size, v_shape[1]),
      g_ndim == 4,
      key_heads,
      key_head_of(place, key_heads)};
  delta_forward<D / 32>(rule, place, state, has_state, y, last);
}

/** A threadgroup per head and block of rows. */
template <typename T, int D>
[[kernel, max_total_threads_per_threadgroup(512)]] void gated_delta_vjp(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const float* g [[buffer(3)]],
    device const T* beta [[buffer(4)]],
    device const float* state [[buffer(5)]],
    device const bool* mask [[buffer(6)]],
    device const int* cu_seqlens [[buffer(7)]],
    device const T* grad_y [[buffer(8)]],
    device const float* grad_last [[buffer(9)]],
    device float* grad_q [[buffer(10)]],
    device float* grad_k [[buffer(11)]],
    device T* grad_v [[buffer(12)]],
    device float* grad_g [[buffer(13)]],
    device float* grad_beta [[buffer(14)]],
    device float* grad_state [[buffer(15)]],
    device float* states [[buffer(16)]],
    constant bool& has_state [[buffer(17)]],
    constant bool& has_mask [[buffer(18)]],
    constant int64_t& cu_seqlens_size [[buffer(19)]],
    constant const int* q_shape [[buffer(20)]],
    constant const int* v_shape [[buffer(21)]],
    constant int& g_ndim [[buffer(22)]],
    constant int& block [[buffer(23)]],
    constant int& chunk [[buffer(24)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  // One simdgroup for every four rows of a block.
  threadgroup float shared[(D > 128 ? 8 : 16) * (3 * D + 1)];
  DeltaPlace place =
      delta_place(v_shape, q_shape[3], block, group, lane, simdgroup);
  bool channels = g_ndim == 4;
  size_t sums = size_t(group.x) * v_shape[0] * v_shape[1] * v_shape[2];
  uint key_heads = q_shape[2];
  GatedDelta<T> rule = {
      q,
      k,
      v,
      g,
      beta,
      mask,
      has_mask,
      Sequences(cu_seqlens, cu_seqlens_size, v_shape[1]),
      channels,
      key_heads,
      key_head_of(place, key_heads),
      grad_q + sums * place.width,
      grad_k + sums * place.width,
      grad_g + sums * (channels ? place.width : 1),
      grad_beta + sums};
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
  delta_backward<D / 32>(rule, place, to);
}
