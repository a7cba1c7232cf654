// CPU kernels of divergences between the distributions of two arrays of logits,
// as in distillation. Rows are processed in blocks.
//
// P is the softmax of `target_logits` and Q that of `logits`, both scaled by
// `scale`. Rows that `mask` excludes are 0, and are not read.
//
// Averages over a distribution are averages of differences from the element of
// the largest probability. If this element is nearly certain, the average is
// nearly its value, and only the difference is accurate.
//
// If P and Q are nearly equal, the terms of a divergence or of its gradient
// nearly cancel, so that floats would lose accuracy: such rows are computed
// again, in double.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cross_entropy.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "softmax.h"

namespace mlxops::cpu {

/** Return true if a divergence is so small that floats are too inaccurate. */
template <typename A>
bool is_too_small(A divergence, A scale = 1) {
  return std::is_same_v<A, float> && divergence < scale / 8;
}

/** Logarithms of probabilities: (x - most) factor - log_sum. */
template <typename A>
struct Softmaxes {
  A factor = 1;
  A most_q = 0;
  A log_sum_q = 0;
  A most_p = 0;
  A log_sum_p = 0;

  /** log(P / Q) of an element with these logits. */
  A apart(A q, A p) const {
    return ((p - most_p) - (q - most_q)) * factor + (log_sum_q - log_sum_p);
  }
};

/**
 * A distribution in a mixture M: log(own / M) of elements, relative to the own
 * largest element.
 */
template <typename A>
struct Mixture {
  A of_largest = 0; // its log(own / M)
  A shift = 0;
  A own = 0; // fractions of M at the largest element
  A other = 0;

  /**
   * For M = part own + rest other; `apart` is the logarithm of other / own at
   * the largest element.
   */
  static Mixture of(A apart, A part, A rest) {
    A more = rest * std::expm1(apart); // M / own - 1
    A log = more < A(-0.5) ? std::log(part + rest * std::exp(apart))
                           : std::log1p(more);
    A shift = std::log(rest) - log;
    return {-log, shift, part * std::exp(-log), std::exp(apart + shift)};
  }

  /** For the logarithm of other / own at an element. */
  A operator()(A apart) const {
    // M / own, divided by its value at the largest element: own + exp(above)
    // or, if this exceeds 1, exp(above) (1 + own exp(-above)).
    A above = apart + shift;
    bool far = above > 0;
    A up = far ? above : A(0);
    A e = mlxgen::math::exp(above - 2 * up) * (far ? own : A(1));
    A sum = e + (far ? A(1) : own);
    A more = e - (far ? A(0) : other); // sum - 1, because own + other is 1
    A rounded = sum - 1;
    A log = mlxgen::math::log(sum) * (more / rounded);
    return -up - (rounded == 0 ? more : log);
  }
};

namespace block {

// Elements without probability add nothing, for any difference of the logits.

template <typename A>
MLXGEN_MULTIVERSION void
times_difference_here(A* e, const A* p, const A* q, int64_t n, A p_0, A q_0) {
  for (int64_t i = 0; i < n; ++i) {
    A apart = (p[i] - p_0) - (q[i] - q_0);
    e[i] = e[i] == 0 ? A(0) : e[i] * apart;
  }
}

// Loops are vectorized over local variables, not over members.

template <typename A>
MLXGEN_MULTIVERSION void kl_gradient_here(
    A* q,
    const A* p,
    int64_t n,
    Softmaxes<A> of,
    A q_0,
    A mean,
    A cotangent,
    bool of_target) {
  auto [factor, most_q, log_sum_q, most_p, log_sum_p] = of;
  // A difference of two numbers that may be nearly 1.
  A of_largest = std::expm1(-log_sum_q) - std::expm1(-log_sum_p);
  if (of_target) {
    for (int64_t i = 0; i < n; ++i) {
      A chance = mlxgen::math::exp((p[i] - most_p) * factor - log_sum_p);
      A apart = ((p[i] - most_p) - (q[i] - q_0)) * factor;
      q[i] = chance == 0 ? A(0) : cotangent * chance * (apart - mean);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      A log_q = (q[i] - most_q) * factor - log_sum_q;
      A log_p = (p[i] - most_p) * factor - log_sum_p;
      A difference = mlxgen::math::exp(log_q) - mlxgen::math::exp(log_p);
      bool largest = (q[i] == most_q) & (p[i] == most_p);
      q[i] = cotangent * (largest ? of_largest : difference);
    }
  }
}

/**
 * The terms of KL(Q || M) and KL(P || M) relative to those of the largest
 * elements, at which the other distribution has the logits p_0 and q_0.
 */
template <typename A>
MLXGEN_MULTIVERSION void js_terms_here(
    const A* q,
    const A* p,
    int64_t n,
    Softmaxes<A> of,
    Mixture<A> mix_q,
    Mixture<A> mix_p,
    A q_0,
    A p_0,
    A* to_q,
    A* to_p) {
  auto [factor, most_q, log_sum_q, most_p, log_sum_p] = of;
  A log_sums = log_sum_q - log_sum_p;
  for (int64_t i = 0; i < n; ++i) {
    A down_q = q[i] - most_q;
    A down_p = p[i] - most_p;
    A chance_q = mlxgen::math::exp(down_q * factor - log_sum_q);
    A chance_p = mlxgen::math::exp(down_p * factor - log_sum_p);
    A apart = (down_p - down_q) * factor + log_sums;
    bool none_q = (chance_q == 0) | ((down_q == 0) & (p[i] == p_0));
    bool none_p = (chance_p == 0) | ((down_p == 0) & (q[i] == q_0));
    to_q[i] = none_q ? A(0) : chance_q * mix_q(apart);
    to_p[i] = none_p ? A(0) : chance_p * mix_p(-apart);
  }
}

template <typename A>
MLXGEN_MULTIVERSION void js_gradient_here(
    A* x,
    const A* other,
    int64_t n,
    Softmaxes<A> of,
    Mixture<A> mix,
    A other_0,
    A mean,
    A cotangent) {
  auto [factor, most, log_sum, most_other, log_sum_other] = of;
  A log_sums = log_sum - log_sum_other;
  for (int64_t i = 0; i < n; ++i) {
    A down = x[i] - most;
    A chance = mlxgen::math::exp(down * factor - log_sum);
    A apart = ((other[i] - most_other) - down) * factor + log_sums;
    bool largest = (down == 0) & (other[i] == other_0);
    A term = (largest ? A(0) : mix(apart)) - mean;
    x[i] = chance == 0 ? A(0) : cotangent * chance * term;
  }
}

} // namespace block

/** Call block(first, n, x, y) for all blocks of two rows, widened. */
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

/** Call row(i, start) on all cores; `start` is the index of the first element.
 */
template <typename F>
void share_rows(int64_t count, int64_t width, F row) {
  mlxgen::share(
      count, 4 * width * cost_of_exp, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          row(i, i * width);
        }
      });
}

/** The sums of exponentials of two rows, block by block. */
template <typename A>
struct TwoRows {
  LogSumExp<A> all_q;
  LogSumExp<A> all_p;
  A q_0 = 0; // logit of Q at the largest logit of P
  A p_0 = 0; // logit of P at the largest logit of Q

  /** Add a block. The exponentials, and the result for P, are those of
   * LogSumExp::add. */
  A add(const A* q, const A* p, int64_t n, A* e_q, A* e_p) {
    A before_q = all_q.most;
    A before_p = all_p.most;
    all_q.add(q, n, e_q);
    A scale = all_p.add(p, n, e_p);
    if (all_q.most > before_q) {
      p_0 = p[std::find(q, q + n, all_q.most) - q];
    }
    if (all_p.most > before_p) {
      q_0 = q[std::find(p, p + n, all_p.most) - p];
    }
    return scale;
  }

  Softmaxes<A> softmaxes() const {
    return {
        all_q.factor,
        all_q.shift(),
        all_q.log_sum(),
        all_p.shift(),
        all_p.log_sum()};
  }
};

/** KL(P || Q) of a row. */
template <typename A>
struct KLRow {
  Softmaxes<A> of;
  A q_0 = 0; // logit of Q at the largest logit of P; 0 if that is infinite
  A mean = 0; // of log(P / Q) over P, relative to P's largest element
  A loss = 0;

  template <typename T>
  static KLRow make(const T* logits, const T* targets, int64_t width, A scale) {
    TwoRows<A> rows{{scale}, {scale}};
    A q_0 = 0;
    A total = 0; // of exp(p) times differences, relative to P's largest
    over_blocks<A>(
        logits,
        targets,
        width,
        [&](int64_t, int64_t n, const A* q, const A* p) {
          A e_q[block_of_row];
          A e_p[block_of_row];
          A p_before = rows.all_p.shift();
          A q_before = q_0;
          A sum = rows.all_p.sum();
          A before = rows.add(q, p, n, e_q, e_p);
          A p_0 = rows.all_p.shift();
          q_0 = std::isfinite(rows.q_0) ? rows.q_0 : A(0);
          A apart = (p_before - p_0) - (q_before - q_0);
          total = before == 0 ? A(0) : (total + sum * apart) * before;
          mlxgen::multiversion(
              [&] { block::times_difference_here(e_p, p, q, n, p_0, q_0); });
          total += sum_block(e_p, n);
        });
    auto of = rows.softmaxes();
    A mean = total / rows.all_p.sum() * scale;
    return {of, q_0, mean, mean + of.apart(q_0, of.most_p)};
  }
};

/**
 * The divergence KL(P || Q) of each row, the largest elements, the logarithms
 * of the sums of exponentials relative to them, and the other numbers of KLRow.
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
    Out<accum_t<T>> target_log_sum,
    Out<accum_t<T>> target_beside,
    Out<accum_t<T>> target_mean) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    KLRow<A> made;
    if (!mask || mask[row]) {
      const T* q = logits.data + start;
      const T* p = target_logits.data + start;
      made = KLRow<A>::make(q, p, width, A(scale));
      if (is_too_small(made.loss)) {
        made.loss = A(KLRow<double>::make(q, p, width, scale).loss);
      }
    }
    loss[row] = made.loss;
    most[row] = made.of.most_q;
    log_sum[row] = made.of.log_sum_q;
    target_most[row] = made.of.most_p;
    target_log_sum[row] = made.of.log_sum_p;
    target_beside[row] = made.q_0;
    target_mean[row] = made.mean;
  });
}

/** The gradient with respect to `logits`, or by `target_logits`. */
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
    In<accum_t<T>> target_beside,
    In<accum_t<T>> target_mean,
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
              q, p, n, made.of, made.q_0, made.mean, factor, of_target);
        });
        narrow_block(q, n, to + first);
      });
    };
    if (is_too_small(loss[row])) {
      write(KLRow<double>::make(q_, p_, width, scale));
    } else {
      Softmaxes<A> of{
          A(scale),
          most[row],
          log_sum[row],
          target_most[row],
          target_log_sum[row]};
      write(KLRow<A>{of, target_beside[row], target_mean[row]});
    }
  });
}

/** beta KL(P || M) + (1 - beta) KL(Q || M) of a row. */
template <typename A>
struct JSRow {
  Softmaxes<A> of;
  A q_0 = 0; // logit of Q at the largest logit of P
  A p_0 = 0; // logit of P at the largest logit of Q
  A mean_q = 0; // of log(Q / M) over Q, relative to Q's largest element
  A mean_p = 0; // likewise
  A loss = 0;

  template <typename T>
  static JSRow
  make(const T* logits, const T* targets, int64_t width, A beta, A scale) {
    TwoRows<A> rows{{scale}, {scale}};
    A x[block_of_row];
    A y[block_of_row];
    auto add = [&](int64_t, int64_t n, const A* q, const A* p) {
      rows.add(q, p, n, x, y);
    };
    over_blocks<A>(logits, targets, width, add);
    JSRow made{rows.softmaxes(), rows.q_0, rows.p_0};
    const auto& of = made.of;
    A at_q = of.apart(of.most_q, made.p_0);
    A at_p = of.apart(made.q_0, of.most_p);
    auto mix_q = Mixture<A>::of(at_q, 1 - beta, beta);
    auto mix_p = Mixture<A>::of(-at_p, beta, 1 - beta);
    auto terms = [&](int64_t, int64_t n, const A* q, const A* p) {
      mlxgen::multiversion([&] {
        block::js_terms_here(
            q, p, n, of, mix_q, mix_p, made.q_0, made.p_0, x, y);
      });
      made.mean_q += sum_block(x, n);
      made.mean_p += sum_block(y, n);
    };
    over_blocks<A>(logits, targets, width, terms);
    made.loss = beta * (made.mean_p + mix_p.of_largest) +
        (1 - beta) * (made.mean_q + mix_q.of_largest);
    return made;
  }
};

/**
 * The divergence beta KL(P || M) + (1 - beta) KL(Q || M) of each row from the
 * mixture M = beta P + (1 - beta) Q, and the other numbers of JSRow. The
 * remaining outputs are those of kl_div_rows.
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
    Out<accum_t<T>> beside,
    Out<accum_t<T>> target_beside,
    Out<accum_t<T>> mean,
    Out<accum_t<T>> target_mean) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  A b = A(beta);
  share_rows(loss.size(), width, [&](int64_t row, int64_t start) {
    JSRow<A> made;
    if (!mask || mask[row]) {
      const T* q = logits.data + start;
      const T* p = target_logits.data + start;
      made = JSRow<A>::make(q, p, width, b, A(scale));
      if (is_too_small(made.loss, b * (1 - b))) {
        made.loss = A(JSRow<double>::make(q, p, width, beta, scale).loss);
      }
    }
    loss[row] = made.loss;
    most[row] = made.of.most_q;
    log_sum[row] = made.of.log_sum_q;
    target_most[row] = made.of.most_p;
    target_log_sum[row] = made.of.log_sum_p;
    beside[row] = made.p_0;
    target_beside[row] = made.q_0;
    mean[row] = made.mean_q;
    target_mean[row] = made.mean_p;
  });
}

/**
 * The gradient with respect to `logits`; to get the gradient with respect to
 * `target_logits`, exchange the two and everything that belongs to them. `beta`
 * is the fraction of `logits` in the mixture.
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
    In<accum_t<T>> beside,
    In<accum_t<T>> mean,
    In<accum_t<T>> cotangent,
    double beta,
    double rest,
    double scale,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
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
      W apart = made.of.apart(made.of.most_q, made.p_0);
      auto mix = Mixture<W>::of(apart, W(beta), W(rest));
      over_blocks<W>(x_, y_, width, [&](int64_t first, int64_t n, W* x, W* y) {
        mlxgen::multiversion([&] {
          block::js_gradient_here(
              x, y, n, made.of, mix, made.p_0, made.mean_q, factor);
        });
        narrow_block(x, n, to + first);
      });
    };
    if (is_too_small(loss[row], A(beta) * A(rest))) {
      write(JSRow<double>::make(x_, y_, width, rest, scale));
    } else {
      write(
          JSRow<A>{
              {A(scale),
               most[row],
               log_sum[row],
               other_most[row],
               other_log_sum[row]},
              A(0),
              beside[row],
              mean[row]});
    }
  });
}

} // namespace mlxops::cpu
