// CPU kernels of wkv7: the recurrence of RWKV-7 over time.

#pragma once

#include "delta.h"

namespace mlxops::cpu {

MLXGEN_BEGIN_INLINED

/** Reads the steps of wkv7 and writes their gradients. */
template <typename T>
struct Wkv7 {
  using A = accum_t<T>;
  static constexpr bool corrects = false;
  static constexpr bool adds = true;
  struct Grads {
    Out<A> r;
    Out<A> w;
    Out<A> k;
    Out<T> v;
    Out<A> a;
    Out<A> b;
  };

  In<T> r;
  In<A> w;
  In<T> k;
  In<T> v;
  In<T> a;
  In<T> b;
  Sequences sequences;

  bool read(const DeltaPlace& place, DeltaStep<A>& to) const {
    int64_t length = r.dim(3), at = place.at * length;
    widen_to(to.r, r.data + at, length);
    widen_to(to.w, w.data + at, length);
    widen_to(to.k, k.data + at, length);
    widen_to(to.v, v.data + at + place.first, place.rows);
    widen_to(to.a, a.data + at, length);
    widen_to(to.b, b.data + at, length);
    return true;
  }

  void write(
      const DeltaPlace& place,
      bool,
      const DeltaStep<A>&,
      const DeltaSums<A>& sums,
      const Grads& to) const {
    int64_t length = r.dim(3), at = place.at * length;
    narrow_to(to.v.data + at + place.first, sums.v, place.rows);
    at += place.block * r.size();
    std::copy_n(sums.r, length, to.r.data + at);
    std::copy_n(sums.w, length, to.w.data + at);
    std::copy_n(sums.k, length, to.k.data + at);
    std::copy_n(sums.a, length, to.a.data + at);
    std::copy_n(sums.b, length, to.b.data + at);
  }
};

MLXGEN_END_INLINED

/** S <- S diag(w) + (S a) b^T + v k^T; y = S r, at every step. */
template <typename T>
void wkv7(
    In<T> r,
    In<accum_t<T>> w,
    In<T> k,
    In<T> v,
    In<T> a,
    In<T> b,
    In<accum_t<T>> state,
    In<int32_t> cu_seqlens,
    Out<T> y,
    Out<accum_t<T>> last) {
  Sequences sequences{cu_seqlens, r.dim(1)};
  delta_forward(Wkv7<T>{r, w, k, v, a, b, sequences}, state, y, last);
}

template <typename T>
void wkv7_vjp(
    In<T> r,
    In<accum_t<T>> w,
    In<T> k,
    In<T> v,
    In<T> a,
    In<T> b,
    In<accum_t<T>> state,
    In<int32_t> cu_seqlens,
    In<T> grad_y,
    In<accum_t<T>> grad_last,
    int block,
    int chunk,
    Out<accum_t<T>> grad_r,
    Out<accum_t<T>> grad_w,
    Out<accum_t<T>> grad_k,
    Out<T> grad_v,
    Out<accum_t<T>> grad_a,
    Out<accum_t<T>> grad_b,
    Out<accum_t<T>> grad_state,
    Out<accum_t<T>> states) {
  Sequences sequences{cu_seqlens, r.dim(1)};
  delta_backward(
      Wkv7<T>{r, w, k, v, a, b, sequences},
      {grad_r, grad_w, grad_k, grad_v, grad_a, grad_b},
      state,
      grad_y,
      grad_last,
      block,
      chunk,
      grad_state,
      states);
}

} // namespace mlxops::cpu
