// CPU kernels of gated_delta: the gated delta rule over time.

#pragma once

#include "delta.h"

namespace mlxops::cpu {

MLXGEN_BEGIN_INLINED

/** Reads the steps of gated_delta and writes their gradients. */
template <typename T>
struct GatedDelta {
  using A = accum_t<T>;
  static constexpr bool corrects = true;
  static constexpr bool adds = false;
  struct Grads {
    Out<A> q;
    Out<A> k;
    Out<T> v;
    Out<A> g;
    Out<A> beta;
  };

  In<T> q;
  In<T> k;
  In<T> v;
  In<A> g;
  In<T> beta;
  In<bool> mask;
  Sequences sequences;

  bool read(const DeltaPlace& place, DeltaStep<A>& to) const {
    if (mask && !mask[place.time]) {
      return false;
    }
    int64_t length = q.dim(3), key_heads = q.dim(2), heads = v.dim(2);
    int64_t at = place.time * key_heads + place.head / (heads / key_heads);
    widen_to(to.r, q.data + at * length, length);
    widen_to(to.k, k.data + at * length, length);
    widen_to(to.v, v.data + place.at * v.dim(3) + place.first, place.rows);
    to.beta = mlxgen::widen(beta[place.at]);
    if (g.ndim() == 4) {
      std::copy_n(g.data + place.at * length, length, to.w);
    } else {
      std::fill_n(to.w, length, g[place.at]);
    }
    for (int64_t j = 0; j < length; ++j) {
      to.a[j] = to.w[j] * to.k[j];
    }
    return true;
  }

  void write(
      const DeltaPlace& place,
      bool,
      const DeltaStep<A>& step,
      const DeltaSums<A>& sums,
      const Grads& to) const {
    int64_t length = q.dim(3);
    int64_t at = place.block * beta.size() + place.at;
    narrow_to(
        to.v.data + place.at * v.dim(3) + place.first, sums.v, place.rows);
    std::copy_n(sums.r, length, to.q.data + at * length);
    to.beta[at] = sums.beta;
    A total = 0;
    for (int64_t j = 0; j < length; ++j) {
      to.k[at * length + j] = sums.k[j] + step.w[j] * sums.a[j];
      sums.w[j] += step.k[j] * sums.a[j];
      total += sums.w[j];
    }
    if (g.ndim() == 4) {
      std::copy_n(sums.w, length, to.g.data + at * length);
    } else {
      to.g[at] = total;
    }
  }
};

MLXGEN_END_INLINED

/** S <- g S; S <- S + beta (v - S k) k^T; y = S q, at every step. */
template <typename T>
void gated_delta(
    In<T> q,
    In<T> k,
    In<T> v,
    In<accum_t<T>> g,
    In<T> beta,
    In<accum_t<T>> state,
    In<bool> mask,
    In<int32_t> cu_seqlens,
    Out<T> y,
    Out<accum_t<T>> last) {
  Sequences sequences{cu_seqlens, v.dim(1)};
  GatedDelta<T> rule{q, k, v, g, beta, mask, sequences};
  delta_forward(rule, state, y, last);
}

template <typename T>
void gated_delta_vjp(
    In<T> q,
    In<T> k,
    In<T> v,
    In<accum_t<T>> g,
    In<T> beta,
    In<accum_t<T>> state,
    In<bool> mask,
    In<int32_t> cu_seqlens,
    In<T> grad_y,
    In<accum_t<T>> grad_last,
    int block,
    int chunk,
    Out<accum_t<T>> grad_q,
    Out<accum_t<T>> grad_k,
    Out<T> grad_v,
    Out<accum_t<T>> grad_g,
    Out<accum_t<T>> grad_beta,
    Out<accum_t<T>> grad_state,
    Out<accum_t<T>> states) {
  Sequences sequences{cu_seqlens, v.dim(1)};
  delta_backward(
      GatedDelta<T>{q, k, v, g, beta, mask, sequences},
      {grad_q, grad_k, grad_v, grad_g, grad_beta},
      state,
      grad_y,
      grad_last,
      block,
      chunk,
      grad_state,
      states);
}

} // namespace mlxops::cpu
