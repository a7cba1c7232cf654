// The divergences of divergence.h between two linear outputs for backends
// without a kernel for all of it, such as GPUs: MLX multiplies matrices, and
// the kernels for logits compute the rest, for blocks of rows. The gradients
// are computed for blocks of words. Each block waits for the previous one, so
// that only few are in memory at a time.
//
// A graph that is compiled `shapeless` has one block, because the numbers of
// rows and words are not known before the kernels run.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/js_div_rows.h"
#include "mlxops/js_div_rows_vjp.h"
#include "mlxops/kl_div_rows.h"
#include "mlxops/kl_div_rows_vjp.h"

namespace mlxops::blocks {

namespace mx = mlx::core;

/** What blocks of both directions have in common. */
struct DivergenceBlocks {
  // The maximum number of elements in a block of logits or of a weight, and the
  // minimum numbers of rows and words.
  static constexpr int64_t largest = int64_t(1) << 22;
  static constexpr int64_t fewest_rows = 128;
  static constexpr int64_t fewest_words = 256;

  mx::StreamOrDevice s;
  mx::Dtype dtype; // of all computations: the accumulator dtype

  DivergenceBlocks(const mx::array& x, mx::StreamOrDevice s_)
      : s(s_), dtype(mx::promote_types(x.dtype(), mx::float32)) {}

  /** The number of rows in a block of `all` that are `width` wide. */
  static int height(int64_t all, int64_t width, int64_t fewest) {
    if (mlxgen::is_shapeless()) {
      return static_cast<int>(std::max<int64_t>(all, 1));
    }
    int64_t most = largest / std::max<int64_t>(width, 1);
    return static_cast<int>(std::clamp<int64_t>(
        std::max(most, fewest), 1, std::max(all, int64_t(1))));
  }

  /** Rows of `a`, which are computed after `before`. */
  mx::array rows(
      const mx::array& a,
      int first,
      int last,
      const std::vector<mx::array>& before) const {
    auto some = a;
    if (first > 0 || last < a.shape(0)) {
      mx::Shape start(a.ndim(), 0);
      mx::Shape stop = a.shape();
      start[0] = first;
      stop[0] = last;
      some = mx::slice(a, start, stop, s);
    }
    return before.empty() ? some : mx::depends({some}, before)[0];
  }

  /** `x` in the accumulator dtype, and 0 in rows that do not count. */
  mx::array counted(const mx::array& x, const std::optional<mx::array>& mask)
      const {
    auto wide = mx::astype(x, dtype, s);
    return mask
        ? mlxgen::where(
              mx::expand_dims(*mask, -1, s), wide, mx::array(0.0, dtype), s)
        : wide;
  }

  /** x weight^T. Words of another dtype are converted a block at a time. */
  mx::array logits(const mx::array& x, const mx::array& weight) const {
    auto product = [&](const mx::array& words) {
      return mx::matmul(x, mx::transpose(mx::astype(words, dtype, s), s), s);
    };
    int all = weight.shape(0);
    int words = height(all, weight.shape(1), fewest_words);
    if (weight.dtype() == dtype || words >= all) {
      return product(weight);
    }
    std::vector<mx::array> parts;
    for (int first = 0; first < all; first += words) {
      std::vector<mx::array> before;
      if (!parts.empty()) {
        before.push_back(parts.back());
      }
      int last = std::min(first + words, all);
      parts.push_back(product(rows(weight, first, last, before)));
    }
    return mx::concatenate(std::move(parts), -1, s);
  }

  /** An array of rows as a matrix. */
  mx::array matrix(const mx::array& a) const {
    return a.ndim() == 1 ? mx::expand_dims(a, 0, s) : mx::flatten(a, 0, -2, s);
  }

  /** Zeros like `a`; zeros_like has the shape of a graph's first call. */
  mx::array zeros(const mx::array& a) const {
    return mx::astype(mx::less(a, a, s), dtype, s);
  }

  mx::array ones(const mx::array& a) const {
    return mx::astype(mx::logical_not(mx::less(a, a, s), s), dtype, s);
  }

  /** `all`, with these rows from the first one of a block on replaced. */
  mx::array with_rows(
      const std::optional<mx::array>& all,
      const mx::array& rows,
      const mx::array& like,
      int first,
      int last) const {
    auto narrow = mx::astype(rows, like.dtype(), s);
    if (first == 0 && last == like.shape(0)) {
      return narrow;
    }
    mx::Shape start(like.ndim(), 0);
    mx::Shape stop = like.shape();
    start[0] = first;
    stop[0] = last;
    return mx::slice_update(
        all ? *all : mx::zeros_like(like, s), narrow, start, stop, s);
  }
};

/** linear_divergence_rows. */
inline std::vector<mx::array> linear_divergence(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& target_x,
    const mx::array& target_weight,
    const std::optional<mx::array>& mask,
    double beta,
    double scale,
    mx::StreamOrDevice s) {
  DivergenceBlocks blocks(x, s);
  auto of_block = [&](const mx::array& own,
                      const mx::array& other,
                      const std::optional<mx::array>& counts) {
    auto q = blocks.logits(mx::astype(own, blocks.dtype, s), weight);
    auto p = blocks.logits(mx::astype(other, blocks.dtype, s), target_weight);
    if (beta != 0) {
      return js_div_rows(q, p, counts, beta, scale, s);
    }
    auto of = kl_div_rows(q, p, counts, scale, s);
    auto none = blocks.zeros(of[0]);
    return std::vector{
        of[0], of[1], of[2], of[3], of[4], none, of[5], none, of[6]};
  };
  mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
  int64_t all = 1;
  for (auto size : shape) {
    all *= size;
  }
  int high = DivergenceBlocks::height(
      all, weight.shape(0), DivergenceBlocks::fewest_rows);
  if (high >= all) {
    return of_block(x, target_x, mask);
  }
  auto own = blocks.matrix(x);
  auto other = blocks.matrix(target_x);
  std::optional<mx::array> counts;
  if (mask) {
    counts = mx::flatten(*mask, s);
  }
  std::vector<std::vector<mx::array>> parts;
  std::vector<mx::array> before;
  for (int first = 0; first < all; first += high) {
    int last = static_cast<int>(std::min<int64_t>(first + high, all));
    auto of = of_block(
        blocks.rows(own, first, last, before),
        blocks.rows(other, first, last, before),
        counts ? std::optional(blocks.rows(*counts, first, last, {}))
               : std::nullopt);
    before = {of[0]};
    parts.resize(of.size());
    for (size_t i = 0; i < of.size(); ++i) {
      parts[i].push_back(of[i]);
    }
  }
  std::vector<mx::array> outputs;
  for (auto& part : parts) {
    outputs.push_back(
        mx::reshape(mx::concatenate(std::move(part), 0, s), shape, s));
  }
  return outputs;
}

/** linear_divergence_rows_vjp. */
inline std::vector<mx::array> linear_divergence_vjp(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& target_x,
    const mx::array& target_weight,
    const std::optional<mx::array>& mask,
    const mx::array& most,
    const mx::array& log_sum,
    const mx::array& target_most,
    const mx::array& target_log_sum,
    const mx::array& beside,
    const mx::array& target_beside,
    const mx::array& mean,
    const mx::array& target_mean,
    const mx::array& cotangent,
    double beta,
    double scale,
    bool of_x,
    bool of_weight,
    bool of_target_x,
    bool of_target_weight,
    mx::StreamOrDevice s) {
  DivergenceBlocks blocks(x, s);
  // Divergences that are not small: the kernels would compute small ones again
  // from whole rows, and here rows are parts.
  auto loss = blocks.ones(most);
  auto of_student = [&](const mx::array& q, const mx::array& p) {
    return beta == 0 ? kl_div_rows_vjp(
                           q,
                           p,
                           mask,
                           loss,
                           most,
                           log_sum,
                           target_most,
                           target_log_sum,
                           target_beside,
                           target_mean,
                           cotangent,
                           scale,
                           false,
                           s)
                     : js_div_rows_vjp(
                           q,
                           p,
                           mask,
                           loss,
                           most,
                           log_sum,
                           target_most,
                           target_log_sum,
                           beside,
                           mean,
                           cotangent,
                           1 - beta,
                           beta,
                           scale,
                           s);
  };
  auto of_teacher = [&](const mx::array& q, const mx::array& p) {
    return beta == 0 ? kl_div_rows_vjp(
                           q,
                           p,
                           mask,
                           loss,
                           most,
                           log_sum,
                           target_most,
                           target_log_sum,
                           target_beside,
                           target_mean,
                           cotangent,
                           scale,
                           true,
                           s)
                     : js_div_rows_vjp(
                           p,
                           q,
                           mask,
                           loss,
                           target_most,
                           target_log_sum,
                           most,
                           log_sum,
                           target_beside,
                           target_mean,
                           cotangent,
                           beta,
                           1 - beta,
                           scale,
                           s);
  };

  struct Side {
    const mx::array& weight;
    mx::array x;
    bool of_x;
    bool of_weight;
    std::optional<mx::array> grad_x;
    std::optional<mx::array> grad_weight;
  };
  std::vector<Side> sides{
      {weight, blocks.counted(x, mask), of_x, of_weight, {}, {}},
      {target_weight,
       blocks.counted(target_x, mask),
       of_target_x,
       of_target_weight,
       {},
       {}}};
  int all = weight.shape(0);
  int64_t width = std::max<int64_t>(
      {static_cast<int64_t>(most.size()),
       weight.shape(1),
       target_weight.shape(1)});
  int words =
      DivergenceBlocks::height(all, width, DivergenceBlocks::fewest_words);
  std::vector<mx::array> before;
  for (int first = 0; first < all; first += words) {
    int last = std::min(first + words, all);
    std::vector<mx::array> some;
    std::vector<mx::array> logits;
    for (auto& side : sides) {
      some.push_back(
          mx::astype(
              blocks.rows(side.weight, first, last, before), blocks.dtype, s));
      logits.push_back(mx::matmul(side.x, mx::transpose(some.back(), s), s));
    }
    before.clear();
    for (int i = 0; i < 2; ++i) {
      auto& side = sides[i];
      if (!side.of_x && !side.of_weight) {
        continue;
      }
      auto of_logits = i == 0 ? of_student(logits[0], logits[1])
                              : of_teacher(logits[0], logits[1]);
      if (side.of_x) {
        auto part = mx::matmul(of_logits, some[i], s);
        side.grad_x = side.grad_x ? mx::add(*side.grad_x, part, s) : part;
        before.push_back(*side.grad_x);
      }
      if (side.of_weight) {
        auto part = mx::matmul(
            mx::transpose(blocks.matrix(of_logits), s),
            blocks.matrix(side.x),
            s);
        side.grad_weight =
            blocks.with_rows(side.grad_weight, part, side.weight, first, last);
        before.push_back(*side.grad_weight);
      }
    }
  }
  auto none = mx::zeros({0}, x.dtype(), s);
  std::vector<mx::array> grads;
  for (auto& side : sides) {
    grads.push_back(
        side.grad_x ? mx::astype(*side.grad_x, x.dtype(), s) : none);
    grads.push_back(side.grad_weight.value_or(none));
  }
  return grads;
}

} // namespace mlxops::blocks
