// CPU kernels of the cross entropy of logits with words as targets: one pass
// over the logits for the loss, one for its gradient.

#pragma once

#include <algorithm>
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

/** About what an element of a row costs, for mlxgen::share. */
constexpr int64_t cost_of_exp = 8;

/**
 * What losses are made of. Of each row z of logits, after the softcap:
 *
 *   lse = log(sum_c exp(z_c)),  target = z_y,  total = sum_c weight_c z_c
 *
 * where y is the row's target, and `total` is only computed if `sums` says so.
 * All are 0 in rows whose target is ignored, which are not read. A target that
 * is no word is NaN.
 */
template <typename T>
void cross_entropy_rows(
    In<T> logits,
    In<int32_t> targets,
    In<accum_t<T>> weight,
    double softcap,
    int ignore_index,
    bool sums,
    Out<accum_t<T>> lse,
    Out<accum_t<T>> target,
    Out<accum_t<T>> total) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  auto one = [=](int64_t row) {
    lse[row] = target[row] = total[row] = 0;
    int32_t y = targets[row];
    if (y == ignore_index) {
      return;
    }
    const T* from = logits.data + row * width;
    target[row] = std::numeric_limits<A>::quiet_NaN();
    LogSumExp<A> all;
    A z[block_of_row];
    for (int64_t first = 0; first < width; first += block_of_row) {
      int64_t n = std::min(block_of_row, width - first);
      widen_block(from + first, n, z);
      softcap_block(z, n, A(softcap));
      if (y >= first && y < first + n) {
        target[row] = z[y - first];
      }
      if (sums) {
        total[row] +=
            weight ? dot_block(z, weight.data + first, n) : sum_block(z, n);
      }
      all.add(z, n, z);
    }
    lse[row] = all.value();
  };
  mlxgen::share(
      targets.size(), width * cost_of_exp, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          one(row);
        }
      });
}

namespace block {

template <bool capped, bool weighted, typename A>
MLXGEN_MULTIVERSION void logit_gradient_here(
    A* z,
    int64_t n,
    A lse,
    A grad_lse,
    A grad_total,
    const A* weight,
    A cap) {
  for (int64_t i = 0; i < n; ++i) {
    A share = weighted ? weight[i] * grad_total : grad_total;
    A gradient = mlxgen::math::exp(z[i] - lse) * grad_lse + share;
    A tanh = capped ? z[i] / cap : A(0);
    z[i] = gradient * (1 - tanh * tanh);
  }
}

} // namespace block

/** Cotangents of a row's lse, target and total, and what else its gradient
 * takes. */
template <typename A>
struct RowGradient {
  A lse;
  A grad_lse;
  A grad_target;
  A grad_total;

  /**
   * Replace a block of n logits, as they are after the softcap, by
   *
   *   exp(z_c - lse) grad_lse + [c = y] grad_target + weight_c grad_total
   *
   * times the derivative of the softcap, 1 - (z_c / cap)^2. `y` is the target's
   * place in the block, if it is in there; `weight` may be null.
   */
  void apply(A* z, int64_t n, int64_t y, const A* weight, A cap) const {
    A of_target = 0;
    bool here = y >= 0 && y < n;
    if (here) {
      A tanh = cap != 0 ? z[y] / cap : A(0);
      of_target = grad_target * (1 - tanh * tanh);
    }
    auto all = [&]<bool capped, bool weighted>() {
      mlxgen::multiversion([&] {
        block::logit_gradient_here<capped, weighted>(
            z, n, lse, grad_lse, grad_total, weight, cap);
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
      z[y] += of_target;
    }
  }
};

/** The gradient of cross_entropy_rows; NaN where the target is no word. */
template <typename T>
void cross_entropy_rows_vjp(
    In<T> logits,
    In<int32_t> targets,
    In<accum_t<T>> weight,
    In<accum_t<T>> lse,
    In<accum_t<T>> grad_lse,
    In<accum_t<T>> grad_target,
    In<accum_t<T>> grad_total,
    double softcap,
    int ignore_index,
    Out<T> grad_logits) {
  using A = accum_t<T>;
  int64_t width = logits.dim(-1);
  auto one = [=](int64_t row) {
    T* to = grad_logits.data + row * width;
    int32_t y = targets[row];
    if (y == ignore_index || y < 0 || y >= width) {
      A value = y == ignore_index ? 0 : std::numeric_limits<A>::quiet_NaN();
      std::fill_n(to, width, static_cast<T>(value));
      return;
    }
    const T* from = logits.data + row * width;
    RowGradient<A> gradient{
        lse[row], grad_lse[row], grad_target[row], grad_total[row]};
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
