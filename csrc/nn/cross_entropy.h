// CPU kernels of the cross entropy of logits with words as targets: one pass
// over the logits for the loss, and one for the gradient.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "softmax.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

/** The approximate cost of a row's element, for mlxgen::share. */
constexpr int64_t cost_of_exp = 8;

/** The intermediate results for a row's loss, accumulated block by block. */
template <typename A>
struct RowOfLogits {
  LogSumExp<A> all;
  A target = std::numeric_limits<A>::quiet_NaN(); // its logit, if found
  A weight = 0; // of the words so far
  A total = 0; // of weight_c z_c, relative to all.shift()

  /**
   * Add n logits, which are overwritten; `y` is the index of the target among
   * them, if it is one of them. `weights` may be null; `sums` requests `total`.
   */
  void add(A* z, int64_t n, int64_t y, const A* weights, bool sums) {
    if (y >= 0 && y < n) {
      target = z[y];
    }
    if (!sums) {
      all.add(z, n, z);
      return;
    }
    A exponentials[block_of_row];
    A before = all.shift();
    all.add(z, n, exponentials);
    move(before);
    weight += weights != nullptr ? sum_block(weights, n) : A(n);
    total += shifted_sum(z, weights, n, all.shift());
  }

  /** Add the results for another part of the row. */
  void join(RowOfLogits other) {
    A before = all.shift();
    A other_before = other.all.shift();
    all.join(other.all);
    other.all = all;
    move(before);
    other.move(other_before);
    weight += other.weight;
    total += other.total;
    target = std::isnan(target) ? other.target : target;
  }

 private:
  /** Make `total` relative to all.shift(); it was relative to `before`. */
  void move(A before) {
    if (weight != 0) {
      total += weight * (before - all.shift());
    }
  }
};

/** The options of a loss, and the outputs of a row. */
template <typename A>
struct Loss {
  A smoothing;
  A z_loss;
  int64_t words;

  /**
   * Write the outputs of a row: its loss, the weight of its target, the largest
   * logit, the logarithm of the sum of exponentials relative to it, and the
   * part of the loss's derivative with respect to that logarithm that remains
   * if the target is certain. All logits may lack the same number, `base`.
   */
  void write(
      const RowOfLogits<A>& row,
      A weight,
      A base,
      A* loss,
      A* counted,
      A* most,
      A* log_sum,
      A* extra) const {
    *most = row.all.shift();
    *log_sum = row.all.log_sum();
    A lse = *most + *log_sum + base;
    *counted = weight;
    *loss = 0;
    *extra = 0;
    if (weight != 0) { // else the target's logit may be -inf
      *loss = weight * (1 - smoothing) * (*log_sum - (row.target - *most));
    }
    if (z_loss != 0) {
      *loss += weight * z_loss * lse * lse;
      *extra += 2 * weight * z_loss * lse;
    }
    if (smoothing != 0) {
      A share = smoothing / A(words);
      *loss += share * (row.weight * *log_sum - row.total);
      *extra += share * row.weight;
    }
  }
};

/**
 * The losses of rows of logits z, after the softcap:
 *
 *   w_y ((1 - s) (lse - z_y) + z_loss lse^2) + s / V sum_c w_c (lse - z_c)
 *
 * for lse = log(sum_c exp(z_c)), the target y, the smoothing s and V words.
 * Rows whose target is ignored are not read, and all their outputs are 0. A
 * target that is not a word yields NaN. Loss describes the other outputs.
 */
template <typename T>
void cross_entropy_rows(
    In<T> logits,
    In<int32_t> targets,
    In<accum_t<T>> weight,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> counted,
    Out<accum_t<T>> most,
    Out<accum_t<T>> log_sum,
    Out<accum_t<T>> extra) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  Loss<A> made{A(label_smoothing), A(z_loss), width};
  auto one = [=](int64_t row) {
    int32_t y = targets[row];
    if (y == ignore_index) {
      loss[row] = counted[row] = most[row] = log_sum[row] = extra[row] = 0;
      return;
    }
    const T* from = logits.data + row * width;
    RowOfLogits<A> all;
    A z[block_of_row];
    for (int64_t first = 0; first < width; first += block_of_row) {
      int64_t n = std::min(block_of_row, width - first);
      widen_block(from + first, n, z);
      softcap_block(z, n, A(softcap));
      all.add(
          z,
          n,
          y - first,
          weight ? weight.data + first : nullptr,
          label_smoothing != 0);
    }
    bool is_word = y >= 0 && y < width;
    made.write(
        all,
        weight && is_word ? weight[y] : A(1),
        A(0),
        &loss[row],
        &counted[row],
        &most[row],
        &log_sum[row],
        &extra[row]);
  };
  mlxgen::share(
      targets.size(), width * cost_of_exp, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          one(row);
        }
      });
}

/**
 * The mean of a row of losses: their sum over `total`, the sum of their
 * weights, or infinity if that is 0.
 */
template <typename A>
void mean_of_losses(In<A> losses, In<A> weights, Out<A> mean, Out<A> total) {
  int64_t n = losses.dim(-1);
  for (int64_t i = 0; i < mean.size(); ++i) {
    A sum = sum_block(weights.data + i * n, n);
    total[i] = sum == 0 ? std::numeric_limits<A>::infinity() : sum;
    mean[i] = sum_block(losses.data + i * n, n) / total[i];
  }
}

/** The gradient of mean_of_losses, the same for all losses of a row. */
template <typename A>
void mean_of_losses_vjp(
    In<A> cotangent,
    In<A> total,
    In<A> weights,
    Out<A> out) {
  int64_t n = weights.dim(-1);
  for (int64_t i = 0; i < cotangent.size(); ++i) {
    std::fill_n(out.data + i * n, n, cotangent[i] / total[i]);
  }
}

namespace block {

template <bool capped, bool weighted, typename A>
MLXGEN_MULTIVERSION void logit_gradient_here(
    A* z,
    int64_t n,
    A most,
    A log_sum,
    A of_chance,
    A share,
    const A* weight,
    A cap) {
  for (int64_t i = 0; i < n; ++i) {
    A chance = mlxgen::math::exp((z[i] - most) - log_sum);
    A gradient = chance * of_chance - (weighted ? weight[i] * share : share);
    A tanh = capped ? z[i] / cap : A(0);
    z[i] = gradient * (1 - tanh * tanh);
  }
}

} // namespace block

/** The factors of a row's gradient. */
template <typename A>
struct RowGradient {
  A most;
  A log_sum;
  A of_target; // factor of the target's own part
  A extra; // additional factor of all words
  A share; // factor of the weights, which are subtracted

  /** Return them for the cotangent of a row's loss, the weight of its target,
   * and the outputs of Loss::write. */
  static RowGradient of(
      A cotangent,
      A weight,
      A most,
      A log_sum,
      A extra,
      A smoothing,
      int64_t words) {
    return {
        most,
        log_sum,
        cotangent * weight * (1 - smoothing),
        cotangent * extra,
        cotangent * smoothing / A(words)};
  }

  /**
   * Replace a block of n logits (after the softcap) by the derivatives of the
   * loss by them,
   *
   *   of_target (p_c - [c = y]) + extra p_c - share weight_c
   *
   * with the probabilities p, times that of the softcap, 1 - (z_c / cap)^2. `y`
   * is the index of the target in the block, if it is there; `weight` may be
   * null.
   */
  void apply(A* z, int64_t n, int64_t y, const A* weight, A cap) const {
    A own = 0;
    bool here = y >= 0 && y < n;
    if (here) {
      // Not p - 1, which is inaccurate if the target is nearly certain.
      A log_p = (z[y] - most) - log_sum;
      A tanh = cap != 0 ? z[y] / cap : A(0);
      own = of_target * std::expm1(log_p) + extra * std::exp(log_p) -
          (weight != nullptr ? weight[y] * share : share);
      own *= 1 - tanh * tanh;
    }
    auto all = [&]<bool capped, bool weighted>() {
      mlxgen::multiversion([&] {
        block::logit_gradient_here<capped, weighted>(
            z, n, most, log_sum, of_target + extra, share, weight, cap);
      });
    };
    if (weight != nullptr) {
      cap != 0 ? all.template operator()<true, true>()
               : all.template operator()<false, true>();
    } else {
      cap != 0 ? all.template operator()<true, false>()
               : all.template operator()<false, false>();
    }
    if (here) {
      z[y] = own;
    }
  }
};

/**
 * The gradient of cross_entropy_rows; NaN if the target is not a word. If
 * `words` is not 0, the logits are a part of that many words, and the target
 * may be one of the others.
 */
template <typename T>
void cross_entropy_rows_vjp(
    In<T> logits,
    In<int32_t> targets,
    In<accum_t<T>> weight,
    In<accum_t<T>> counted,
    In<accum_t<T>> most,
    In<accum_t<T>> log_sum,
    In<accum_t<T>> extra,
    In<accum_t<T>> cotangent,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double,
    int words,
    Out<T> grad_logits) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  auto one = [=](int64_t row) {
    T* to = grad_logits.data + row * width;
    int32_t y = targets[row];
    bool elsewhere = words == 0 && (y < 0 || y >= width);
    if (y == ignore_index || elsewhere) {
      A value = y == ignore_index ? 0 : std::numeric_limits<A>::quiet_NaN();
      std::fill_n(to, width, static_cast<T>(value));
      return;
    }
    const T* from = logits.data + row * width;
    auto gradient = RowGradient<A>::of(
        cotangent[row],
        counted[row],
        most[row],
        log_sum[row],
        extra[row],
        A(label_smoothing),
        words != 0 ? words : width);
    A z[block_of_row];
    for (int64_t first = 0; first < width; first += block_of_row) {
      int64_t n = std::min(block_of_row, width - first);
      widen_block(from + first, n, z);
      softcap_block(z, n, A(softcap));
      gradient.apply(
          z, n, y - first, weight ? weight.data + first : nullptr, A(softcap));
      narrow_block(z, n, to + first);
    }
  };
  mlxgen::share(
      targets.size(), width * cost_of_exp, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          one(row);
        }
      });
}

} // namespace mlxops::cpu
