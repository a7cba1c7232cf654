// CPU kernels of divergences between the distributions that two arrays of
// logits stand for, as in distillation. Rows are gone through in blocks.
//
// P is the softmax of `target_logits` and Q that of `logits`, both times
// `scale`. Rows that `mask` leaves out are 0, and not read.

#pragma once

#include <algorithm>
#include <cstdint>

#include "cross_entropy.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "softmax.h"

namespace mlxops::cpu {

namespace block {

// What has no probability adds nothing, however far apart the logits are.

template <typename A>
MLXGEN_MULTIVERSION void
times_difference_here(A* e, const A* p, const A* q, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    e[i] = e[i] == 0 ? A(0) : e[i] * (p[i] - q[i]);
  }
}

template <typename A>
MLXGEN_MULTIVERSION void kl_gradient_here(
    A* q,
    const A* p,
    int64_t n,
    A lse,
    A target_lse,
    A loss,
    A cotangent,
    bool of_target) {
  if (of_target) {
    for (int64_t i = 0; i < n; ++i) {
      A chance = mlxgen::math::exp(p[i] - target_lse);
      A ratio = (p[i] - target_lse) - (q[i] - lse);
      q[i] = chance == 0 ? A(0) : cotangent * chance * (ratio - loss);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      q[i] = cotangent *
          (mlxgen::math::exp(q[i] - lse) -
           mlxgen::math::exp(p[i] - target_lse));
    }
  }
}

template <typename A>
MLXGEN_MULTIVERSION void mixture_terms_here(
    const A* x,
    const A* other,
    int64_t n,
    A lse,
    A other_lse,
    A part,
    A centre,
    A* to) {
  for (int64_t i = 0; i < n; ++i) {
    A log_x = x[i] - lse;
    A chance = mlxgen::math::exp(log_x);
    A apart = (other[i] - other_lse) - log_x;
    A up = apart > 0 ? apart : A(0);
    // Of the two probabilities the larger one is taken out of the logarithm.
    A ratio = mlxgen::math::exp(apart - 2 * up);
    A mixed = apart > 0 ? part * ratio + (1 - part) : part + (1 - part) * ratio;
    A log_ratio = -up - mlxgen::math::log(mixed);
    to[i] = chance == 0 ? A(0) : chance * (log_ratio - centre);
  }
}

} // namespace block

/**
 * to = p (log(p / m) - centre) for the probabilities p of x and their mixture
 * with those of another distribution, m = part p + (1 - part) other.
 */
template <typename A>
void mixture_terms(
    const A* x,
    const A* other,
    int64_t n,
    A lse,
    A other_lse,
    A part,
    A centre,
    A* to) {
  mlxgen::multiversion([&] {
    block::mixture_terms_here(x, other, n, lse, other_lse, part, centre, to);
  });
}

/** All blocks of two rows, widened and scaled: block(first, n, x, y). */
template <typename A, typename T, typename F>
void over_blocks(const T* x, const T* y, int64_t width, A scale, F block) {
  A x_[block_of_row];
  A y_[block_of_row];
  for (int64_t first = 0; first < width; first += block_of_row) {
    int64_t n = std::min(block_of_row, width - first);
    widen_block(x + first, n, x_, scale);
    widen_block(y + first, n, y_, scale);
    block(first, n, x_, y_);
  }
}

/** row(i, start) on all cores, where start is that of its elements. */
template <typename F>
void share_rows(int64_t count, int64_t width, F row) {
  mlxgen::share(
      count, 4 * width * cost_of_exp, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          row(i, i * width);
        }
      });
}

/** The divergence KL(P || Q) of each row, and its lses. */
template <typename T>
void kl_div_rows(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    double scale,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> lse,
    Out<accum_t<T>> target_lse) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    loss[row] = lse[row] = target_lse[row] = 0;
    if (mask && !mask[row]) {
      return;
    }
    LogSumExp<A> all_q;
    LogSumExp<A> all_p;
    A total = 0; // of exp(p) (p - q)
    over_blocks(
        logits.data + start,
        target_logits.data + start,
        width,
        A(scale),
        [&](int64_t, int64_t n, A* q, const A* p) {
          A e[block_of_row];
          A before = all_p.add(p, n, e);
          mlxgen::multiversion(
              [&] { block::times_difference_here(e, p, q, n); });
          total = (before == 0 ? A(0) : total * before) + sum_block(e, n);
          all_q.add(q, n, q);
        });
    lse[row] = all_q.value();
    target_lse[row] = all_p.value();
    loss[row] = total / all_p.sum - (target_lse[row] - lse[row]);
  });
}

/** Its gradient in `logits`, or in `target_logits`. */
template <typename T>
void kl_div_rows_vjp(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    In<accum_t<T>> loss,
    In<accum_t<T>> lse,
    In<accum_t<T>> target_lse,
    In<accum_t<T>> cotangent,
    double scale,
    bool of_target,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    T* to = out.data + start;
    if (mask && !mask[row]) {
      std::fill_n(to, width, T(0));
      return;
    }
    A factor = cotangent[row] * A(scale);
    over_blocks(
        logits.data + start,
        target_logits.data + start,
        width,
        A(scale),
        [&](int64_t first, int64_t n, A* q, const A* p) {
          mlxgen::multiversion([&] {
            block::kl_gradient_here(
                q,
                p,
                n,
                lse[row],
                target_lse[row],
                loss[row],
                factor,
                of_target);
          });
          narrow_block(q, n, to + first);
        });
  });
}

/**
 * The divergence beta KL(P || M) + (1 - beta) KL(Q || M) of each row from the
 * mixture M = beta P + (1 - beta) Q; `part` is KL(Q || M), `target_part` KL(P
 * || M).
 */
template <typename T>
void js_div_rows(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    double beta,
    double scale,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> lse,
    Out<accum_t<T>> target_lse,
    Out<accum_t<T>> part,
    Out<accum_t<T>> target_part) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  A b = A(beta);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    loss[row] = lse[row] = target_lse[row] = part[row] = target_part[row] = 0;
    if (mask && !mask[row]) {
      return;
    }
    auto blocks = [&](auto block) {
      over_blocks(
          logits.data + start,
          target_logits.data + start,
          width,
          A(scale),
          block);
    };
    LogSumExp<A> all_q;
    LogSumExp<A> all_p;
    blocks([&](int64_t, int64_t n, A* q, A* p) {
      all_q.add(q, n, q);
      all_p.add(p, n, p);
    });
    A of_q = lse[row] = all_q.value();
    A of_p = target_lse[row] = all_p.value();
    blocks([&](int64_t, int64_t n, const A* q, const A* p) {
      A terms[block_of_row];
      mixture_terms(q, p, n, of_q, of_p, 1 - b, A(0), terms);
      part[row] += sum_block(terms, n);
      mixture_terms(p, q, n, of_p, of_q, b, A(0), terms);
      target_part[row] += sum_block(terms, n);
    });
    loss[row] = b * target_part[row] + (1 - b) * part[row];
  });
}

/**
 * Its gradient in `logits`; in `target_logits` where the two, and what belongs
 * to them, have changed places. `beta` is the part of `logits` in the mixture.
 */
template <typename T>
void js_div_rows_vjp(
    In<T> logits,
    In<T> other,
    In<bool> mask,
    In<accum_t<T>> lse,
    In<accum_t<T>> other_lse,
    In<accum_t<T>> part,
    In<accum_t<T>> cotangent,
    double beta,
    double scale,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  share_rows(lse.size(), width, [&](int64_t row, int64_t start) {
    T* to = out.data + start;
    if (mask && !mask[row]) {
      std::fill_n(to, width, T(0));
      return;
    }
    A factor = cotangent[row] * A(beta) * A(scale);
    over_blocks(
        logits.data + start,
        other.data + start,
        width,
        A(scale),
        [&](int64_t first, int64_t n, A* x, const A* y) {
          mixture_terms(
              x, y, n, lse[row], other_lse[row], A(beta), part[row], x);
          widen_block(x, n, x, factor);
          narrow_block(x, n, to + first);
        });
  });
}

} // namespace mlxops::cpu
