// CPU kernels of divergences between the distributions that two arrays of
// logits stand for, as in distillation. Rows are gone through in blocks.
//
// P is the softmax of `target_logits` and Q that of `logits`, both times
// `scale`. Rows that `mask` leaves out are 0, and not read.
//
// Where P and Q are nearly the same, what makes up a divergence or its gradient
// nearly cancels, so that few digits of floats are left: such rows are computed
// again, in double.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cross_entropy.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "softmax.h"

namespace mlxops::cpu {

/** Whether a divergence is so small that floats have too few digits for it. */
template <typename A>
bool is_too_small(A divergence, A scale = 1) {
  return std::is_same_v<A, float> && divergence < scale / 8;
}

/** Logarithms of probabilities: (x - most) factor - log_sum. */
template <typename A>
struct LogSoftmax {
  A factor = 1;
  A most = 0;
  A log_sum = 0;

  static LogSoftmax of(const LogSumExp<A, false>& all) {
    return {all.factor, all.shift(), all.log_sum()};
  }
};

namespace block {

// What has no probability adds nothing, however far apart the logits are.

template <typename A>
MLXGEN_MULTIVERSION void times_difference_here(
    A* e,
    const A* p,
    const A* q,
    int64_t n,
    A most_p,
    A most_q) {
  for (int64_t i = 0; i < n; ++i) {
    A apart = (p[i] - most_p) - (q[i] - most_q);
    e[i] = e[i] == 0 ? A(0) : e[i] * apart;
  }
}

template <typename A>
MLXGEN_MULTIVERSION void kl_gradient_here(
    A* q,
    const A* p,
    int64_t n,
    LogSoftmax<A> of_q,
    LogSoftmax<A> of_p,
    A loss,
    A cotangent,
    bool of_target) {
  // Loops are vectorised over numbers, not over members.
  auto [factor, most_q, log_sum_q] = of_q;
  A most_p = of_p.most;
  A log_sum_p = of_p.log_sum;
  if (of_target) {
    for (int64_t i = 0; i < n; ++i) {
      A log_q = (q[i] - most_q) * factor - log_sum_q;
      A log_p = (p[i] - most_p) * factor - log_sum_p;
      A chance = mlxgen::math::exp(log_p);
      A ratio = log_p - log_q;
      q[i] = chance == 0 ? A(0) : cotangent * chance * (ratio - loss);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      A log_q = (q[i] - most_q) * factor - log_sum_q;
      A log_p = (p[i] - most_p) * factor - log_sum_p;
      q[i] = cotangent * (mlxgen::math::exp(log_q) - mlxgen::math::exp(log_p));
    }
  }
}

template <typename A>
MLXGEN_MULTIVERSION void mixture_terms_here(
    const A* x,
    const A* other,
    int64_t n,
    LogSoftmax<A> of_x,
    LogSoftmax<A> of_other,
    A part,
    A centre,
    A times,
    A* to) {
  auto [factor, most_x, log_sum_x] = of_x;
  A most_other = of_other.most;
  A log_sum_other = of_other.log_sum;
  for (int64_t i = 0; i < n; ++i) {
    A log_x = (x[i] - most_x) * factor - log_sum_x;
    A log_other = (other[i] - most_other) * factor - log_sum_other;
    A chance = mlxgen::math::exp(log_x);
    A apart = log_other - log_x;
    A up = apart > 0 ? apart : A(0);
    // Of the two probabilities the larger one is taken out of the logarithm.
    A ratio = mlxgen::math::exp(apart - 2 * up);
    A mixed = apart > 0 ? part * ratio + (1 - part) : part + (1 - part) * ratio;
    A log_ratio = -up - mlxgen::math::log(mixed);
    to[i] = chance == 0 ? A(0) : times * chance * (log_ratio - centre);
  }
}

/** Make of logits the terms of KL(Q || M) and KL(P || M). */
template <typename A>
MLXGEN_MULTIVERSION void divergences_here(
    A* q,
    A* p,
    int64_t n,
    LogSoftmax<A> of_q,
    LogSoftmax<A> of_p,
    A beta) {
  auto [factor, most_q, log_sum_q] = of_q;
  A most_p = of_p.most;
  A log_sum_p = of_p.log_sum;
  for (int64_t i = 0; i < n; ++i) {
    A log_q = (q[i] - most_q) * factor - log_sum_q;
    A log_p = (p[i] - most_p) * factor - log_sum_p;
    A chance_q = mlxgen::math::exp(log_q);
    A chance_p = mlxgen::math::exp(log_p);
    A apart = log_p - log_q;
    A up = apart > 0 ? apart : A(0);
    A down = apart > 0 ? A(0) : -apart;
    // Of the two probabilities the larger one is taken out of the logarithm.
    A ratio = mlxgen::math::exp(-up - down);
    A mixed = apart > 0 ? (1 - beta) * ratio + beta : (1 - beta) + beta * ratio;
    A log_mixed = mlxgen::math::log(mixed);
    q[i] = chance_q == 0 ? A(0) : chance_q * (-up - log_mixed);
    p[i] = chance_p == 0 ? A(0) : chance_p * (-down - log_mixed);
  }
}

} // namespace block

/**
 * to = factor p (log(p / m) - centre) for the probabilities p of x and their
 * mixture with those of another distribution, m = part p + (1 - part) other.
 */
template <typename A>
void mixture_terms(
    const A* x,
    const A* other,
    int64_t n,
    LogSoftmax<A> of_x,
    LogSoftmax<A> of_other,
    A part,
    A centre,
    A factor,
    A* to) {
  mlxgen::multiversion([&] {
    block::mixture_terms_here(
        x, other, n, of_x, of_other, part, centre, factor, to);
  });
}

/** All blocks of two rows, widened: block(first, n, x, y). */
template <typename A, typename T, typename F>
void over_blocks(const T* x, const T* y, int64_t width, F block) {
  A x_[block_of_row];
  A y_[block_of_row];
  for (int64_t first = 0; first < width; first += block_of_row) {
    int64_t n = std::min(block_of_row, width - first);
    widen_block(x + first, n, x_);
    widen_block(y + first, n, y_);
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

/** KL(P || Q) of a row. */
template <typename A>
struct KLRow {
  LogSoftmax<A> of_q;
  LogSoftmax<A> of_p;
  A loss = 0;

  template <typename T>
  static KLRow of(const T* logits, const T* targets, int64_t width, A scale) {
    LogSumExp<A, false> all_q{scale};
    LogSumExp<A, false> all_p{scale};
    A total = 0; // of exp(p) (p - q), each relative to its largest
    over_blocks<A>(
        logits,
        targets,
        width,
        [&](int64_t, int64_t n, const A* q, const A* p) {
          A e_q[block_of_row];
          A e_p[block_of_row];
          A shift_q = all_q.shift();
          A shift_p = all_p.shift();
          A sum = all_p.sum();
          A before = all_p.add(p, n, e_p);
          all_q.add(q, n, e_q);
          A apart = (shift_p - all_p.shift()) - (shift_q - all_q.shift());
          total = before == 0 ? A(0) : (total + sum * apart) * before;
          mlxgen::multiversion([&] {
            block::times_difference_here(
                e_p, p, q, n, all_p.shift(), all_q.shift());
          });
          total += sum_block(e_p, n);
        });
    return {
        LogSoftmax<A>::of(all_q),
        LogSoftmax<A>::of(all_p),
        total / all_p.sum() * scale - (all_p.log_sum() - all_q.log_sum())};
  }
};

/**
 * The divergence KL(P || Q) of each row, the largest elements, and the
 * logarithms of the sums of exponentials relative to them.
 */
template <typename T>
void kl_div_rows(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    double scale,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> most,
    Out<accum_t<T>> log_sum,
    Out<accum_t<T>> target_most,
    Out<accum_t<T>> target_log_sum) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    KLRow<A> made;
    if (!mask || mask[row]) {
      const T* q = logits.data + start;
      const T* p = target_logits.data + start;
      made = KLRow<A>::of(q, p, width, A(scale));
      if (is_too_small(made.loss)) {
        made.loss = A(KLRow<double>::of(q, p, width, scale).loss);
      }
    }
    loss[row] = made.loss;
    most[row] = made.of_q.most;
    log_sum[row] = made.of_q.log_sum;
    target_most[row] = made.of_p.most;
    target_log_sum[row] = made.of_p.log_sum;
  });
}

/** Its gradient in `logits`, or in `target_logits`. */
template <typename T>
void kl_div_rows_vjp(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    In<accum_t<T>> loss,
    In<accum_t<T>> most,
    In<accum_t<T>> log_sum,
    In<accum_t<T>> target_most,
    In<accum_t<T>> target_log_sum,
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
    const T* q_ = logits.data + start;
    const T* p_ = target_logits.data + start;
    auto write = [&]<typename W>(const KLRow<W>& made) {
      W factor = W(cotangent[row]) * W(scale);
      over_blocks<W>(q_, p_, width, [&](int64_t first, int64_t n, W* q, W* p) {
        mlxgen::multiversion([&] {
          block::kl_gradient_here(
              q, p, n, made.of_q, made.of_p, made.loss, factor, of_target);
        });
        narrow_block(q, n, to + first);
      });
    };
    if (is_too_small(loss[row])) {
      write(KLRow<double>::of(q_, p_, width, scale));
    } else {
      write(
          KLRow<A>{
              {A(scale), most[row], log_sum[row]},
              {A(scale), target_most[row], target_log_sum[row]},
              loss[row]});
    }
  });
}

/** beta KL(P || M) + (1 - beta) KL(Q || M) of a row. */
template <typename A>
struct JSRow {
  LogSoftmax<A> of_q;
  LogSoftmax<A> of_p;
  A part = 0; // KL(Q || M)
  A target_part = 0; // KL(P || M)
  A loss = 0;

  template <typename T>
  static JSRow
  of(const T* logits, const T* targets, int64_t width, A beta, A scale) {
    LogSumExp<A, false> all_q{scale};
    LogSumExp<A, false> all_p{scale};
    over_blocks<A>(logits, targets, width, [&](int64_t, int64_t n, A* q, A* p) {
      all_q.add(q, n, q);
      all_p.add(p, n, p);
    });
    JSRow made{LogSoftmax<A>::of(all_q), LogSoftmax<A>::of(all_p)};
    over_blocks<A>(logits, targets, width, [&](int64_t, int64_t n, A* q, A* p) {
      mlxgen::multiversion([&] {
        block::divergences_here(q, p, n, made.of_q, made.of_p, beta);
      });
      made.part += sum_block(q, n);
      made.target_part += sum_block(p, n);
    });
    made.loss = beta * made.target_part + (1 - beta) * made.part;
    return made;
  }
};

/**
 * The divergence beta KL(P || M) + (1 - beta) KL(Q || M) of each row from the
 * mixture M = beta P + (1 - beta) Q; `part` is KL(Q || M), `target_part` KL(P
 * || M). The others are as those of kl_div_rows.
 */
template <typename T>
void js_div_rows(
    In<T> logits,
    In<T> target_logits,
    In<bool> mask,
    double beta,
    double scale,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> most,
    Out<accum_t<T>> log_sum,
    Out<accum_t<T>> target_most,
    Out<accum_t<T>> target_log_sum,
    Out<accum_t<T>> part,
    Out<accum_t<T>> target_part) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  A b = A(beta);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    JSRow<A> made;
    if (!mask || mask[row]) {
      const T* q = logits.data + start;
      const T* p = target_logits.data + start;
      made = JSRow<A>::of(q, p, width, b, A(scale));
      if (is_too_small(made.loss, b * (1 - b))) {
        made.loss = A(JSRow<double>::of(q, p, width, beta, scale).loss);
      }
    }
    loss[row] = made.loss;
    most[row] = made.of_q.most;
    log_sum[row] = made.of_q.log_sum;
    target_most[row] = made.of_p.most;
    target_log_sum[row] = made.of_p.log_sum;
    part[row] = made.part;
    target_part[row] = made.target_part;
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
    In<accum_t<T>> loss,
    In<accum_t<T>> most,
    In<accum_t<T>> log_sum,
    In<accum_t<T>> other_most,
    In<accum_t<T>> other_log_sum,
    In<accum_t<T>> part,
    In<accum_t<T>> cotangent,
    double beta,
    double scale,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  A b = A(beta);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    T* to = out.data + start;
    if (mask && !mask[row]) {
      std::fill_n(to, width, T(0));
      return;
    }
    const T* x_ = logits.data + start;
    const T* y_ = other.data + start;
    auto write = [&]<typename W>(const JSRow<W>& made) {
      W factor = W(cotangent[row]) * W(beta) * W(scale);
      over_blocks<W>(x_, y_, width, [&](int64_t first, int64_t n, W* x, W* y) {
        mixture_terms(
            x, y, n, made.of_q, made.of_p, W(beta), made.part, factor, x);
        narrow_block(x, n, to + first);
      });
    };
    if (is_too_small(loss[row], b * (1 - b))) {
      write(JSRow<double>::of(x_, y_, width, 1 - beta, scale));
    } else {
      write(
          JSRow<A>{
              {A(scale), most[row], log_sum[row]},
              {A(scale), other_most[row], other_log_sum[row]},
              part[row]});
    }
  });
}

} // namespace mlxops::cpu
