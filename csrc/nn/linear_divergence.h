// CPU kernels of the divergences of divergence.h between two linear outputs,
// x weight^T of a student and of a teacher. The logits are never all stored.
// `beta` is the fraction of the teacher in the mixture of the Jensen-Shannon
// divergence; 0 stands for KL(P || Q).
//
// The divergences need whole rows, and are computed for blocks of rows. Their
// gradients need only a few numbers about each row, and are computed for blocks
// of words, so that sums for a weight are complete after its block.
//
// Rows that `mask` excludes are left out of all products.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "divergence.h"
#include "linear_cross_entropy.h"
#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

/** The indices of rows that count. */
inline std::vector<int64_t> counted_places(In<bool> mask, int64_t rows) {
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; ++row) {
    if (!mask || mask[row]) {
      places.push_back(row);
    }
  }
  return places;
}

/** x weight^T of the rows that count, which are contiguous here. */
template <typename T>
struct LinearRows {
  int64_t depth;
  std::vector<T> copied;
  Matrix<T> x;
  Matrix<T> weight;

  LinearRows(In<T> all, In<T> weight_, const std::vector<int64_t>& places)
      : depth(weight_.dim(1)), x{all.data, depth}, weight{weight_.data, depth} {
    int64_t count = static_cast<int64_t>(places.size());
    if (count * depth < all.size()) {
      copied.resize(count * depth);
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(
            all.data + places[i] * depth, depth, copied.data() + i * depth);
      }
      x.data = copied.data();
    }
  }

  LinearRows(const LinearRows&) = delete;

  /** The logits of some rows and words, whose rows are `stride` apart. */
  template <typename A>
  void logits(
      int64_t row,
      int64_t rows,
      int64_t word,
      int64_t words,
      A* to,
      int64_t stride) const {
    auto w = weight.from(word, 0).transposed();
    multiply(rows, depth, words, x.from(row, 0), w, to, stride);
  }
};

template <typename T>
mlxgen::View<T> view_of(T* data, mlxgen::Shape shape) {
  mlxgen::View<T> view;
  view.data = data;
  view.shape = std::move(shape);
  return view;
}

/** Call function(first, n) for blocks of words, on all cores. */
template <typename F>
void share_words(int64_t words, int64_t cost_of_word, F function) {
  mlxgen::share(
      (words + words_at_once - 1) / words_at_once,
      std::min(words, words_at_once) * cost_of_word,
      [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          int64_t word = i * words_at_once;
          function(word, std::min(words_at_once, words - word));
        }
      });
}

/** a b, or a b^T, for matrices; MLX's product takes several times as long. */
template <typename T>
void layer_products(In<T> a, In<T> b, bool transposed, Out<T> out) {
  constexpr int64_t at_once = 256;
  int64_t inner = a.dim(-1);
  int64_t columns = out.dim(-1);
  int64_t rows = columns > 0 ? out.size() / columns : 0;
  Matrix<T> right{b.data, b.dim(1)};
  int64_t across = (columns + at_once - 1) / at_once;
  mlxgen::share(
      (rows + at_once - 1) / at_once * across,
      2 * std::min(rows, at_once) * inner * std::min(columns, at_once),
      [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          int64_t row = i / across * at_once;
          int64_t column = i % across * at_once;
          multiply(
              std::min(at_once, rows - row),
              inner,
              std::min(at_once, columns - column),
              Matrix<T>{a.data + row * inner, inner},
              transposed ? right.from(column, 0).transposed()
                         : right.from(0, column),
              out.data + row * columns + column,
              columns);
        }
      });
}

/** The outputs of js_div_rows, and those of kl_div_rows if beta is 0. */
template <typename T>
void linear_divergence_rows(
    In<T> x,
    In<T> weight,
    In<T> target_x,
    In<T> target_weight,
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
  // The maximum size of a block of logits, unless it has the fewest rows.
  constexpr int64_t largest_block = int64_t(1) << 23;
  constexpr int64_t fewest_rows = 48;
  constexpr int outputs = 9;
  const std::array<A*, outputs> out{
      loss.data,
      most.data,
      log_sum.data,
      target_most.data,
      target_log_sum.data,
      beside.data,
      target_beside.data,
      mean.data,
      target_mean.data};
  for (A* of : out) {
    std::fill_n(of, loss.size(), A(0));
  }
  auto places = counted_places(mask, loss.size());
  int64_t count = static_cast<int64_t>(places.size());
  LinearRows<T> student(x, weight, places);
  LinearRows<T> teacher(target_x, target_weight, places);
  int64_t words = weight.dim(0);
  int64_t high = std::clamp(largest_block / words, fewest_rows, rows_at_once);
  high = std::min(high, count);
  std::vector<A> q(high * words);
  std::vector<A> p(high * words);
  std::vector<A> results(high * outputs);
  for (int64_t row = 0; row < count; row += high) {
    int64_t rows = std::min(high, count - row);
    share_words(
        words,
        rows * (student.depth + teacher.depth),
        [&](int64_t word, int64_t n) {
          student.logits(row, rows, word, n, q.data() + word, words);
          teacher.logits(row, rows, word, n, p.data() + word, words);
        });
    mlxgen::Shape shape{static_cast<int>(rows), static_cast<int>(words)};
    auto q_ = view_of<const A>(q.data(), shape);
    auto p_ = view_of<const A>(p.data(), shape);
    auto to = [&](int i) {
      return view_of(results.data() + i * rows, {static_cast<int>(rows)});
    };
    std::fill(results.begin(), results.end(), A(0));
    if (beta == 0) {
      kl_div_rows<A>(
          q_, p_, {}, scale, to(0), to(1), to(2), to(3), to(4), to(6), to(8));
    } else {
      js_div_rows<A>(
          q_,
          p_,
          {},
          beta,
          scale,
          to(0),
          to(1),
          to(2),
          to(3),
          to(4),
          to(5),
          to(6),
          to(7),
          to(8));
    }
    for (int i = 0; i < outputs; ++i) {
      for (int64_t k = 0; k < rows; ++k) {
        out[i][places[row + k]] = results[i * rows + k];
      }
    }
  }
}

/** The gradients of a student's or a teacher's x and weight. */
template <typename T>
struct LinearGradient {
  using A = accum_t<T>;

  const LinearRows<T>& of;
  bool of_x;
  bool of_weight;
  Out<T> grad_x;
  Out<T> grad_weight;
  std::vector<A> block; // logits, then their gradient
  std::vector<A> sums_x;
  std::vector<A> sums_weight;
  A* to_weight = nullptr;

  bool asked() const {
    return of_x || of_weight;
  }

  /** Allocate for `count` rows and for blocks. */
  void start(int64_t count, int64_t high, int64_t wide) {
    block.resize(high * wide);
    sums_x.resize(of_x ? count * of.depth : 0);
    sums_weight.resize(
        of_weight && !std::is_same_v<T, A> ? wide * of.depth : 0);
  }

  void start_words(int64_t word) {
    to_weight = sums_weight.data();
    if constexpr (std::is_same_v<T, A>) {
      to_weight = grad_weight.data + (of_weight ? word * of.depth : 0);
    } else {
      std::fill(sums_weight.begin(), sums_weight.end(), A(0));
    }
  }

  /** Add the products with `rows` rows to the gradient by `n` words. */
  void add_to_weight(
      int64_t row,
      int64_t rows,
      int64_t first,
      int64_t n,
      int64_t wide) {
    if (of_weight) {
      multiply(
          n,
          rows,
          of.depth,
          Matrix<A>{block.data() + first, wide}.transposed(),
          of.x.from(row, 0),
          to_weight + first * of.depth,
          of.depth,
          true);
    }
  }

  /** Add the products with `n` words to the gradient by `rows` rows. */
  void
  add_to_x(int64_t row, int64_t rows, int64_t word, int64_t n, int64_t wide) {
    constexpr int64_t rows_of_share = 256;
    constexpr int64_t columns_of_share = 256;
    if (!of_x) {
      return;
    }
    int64_t across = (of.depth + columns_of_share - 1) / columns_of_share;
    auto add = [&](int64_t first, int64_t column) {
      multiply(
          std::min(rows_of_share, rows - first),
          n,
          std::min(columns_of_share, of.depth - column),
          Matrix<A>{block.data() + first * wide, wide},
          of.weight.from(word, column),
          sums_x.data() + (row + first) * of.depth + column,
          of.depth,
          true);
    };
    mlxgen::share(
        (rows + rows_of_share - 1) / rows_of_share * across,
        2 * std::min(rows, rows_of_share) * n *
            std::min(columns_of_share, of.depth),
        [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            add(i / across * rows_of_share, i % across * columns_of_share);
          }
        });
  }

  void end_words(int64_t word, int64_t n) {
    if constexpr (!std::is_same_v<T, A>) {
      if (of_weight) {
        narrow_block(
            to_weight, n * of.depth, grad_weight.data + word * of.depth);
      }
    }
  }

  void end(const std::vector<int64_t>& places) {
    for (size_t i = 0; i < places.size() && of_x; ++i) {
      narrow_block(
          sums_x.data() + i * of.depth,
          of.depth,
          grad_x.data + places[i] * of.depth);
    }
  }
};

/** The gradients with respect to the logits of both in a row. */
template <typename A>
struct RowOfDivergence {
  Softmaxes<A> of;
  bool of_kl;
  A beta; // fractions of P and Q in the mixture
  A rest;
  A q_0; // logit of Q at the largest logit of P
  A p_0; // logit of P at the largest logit of Q
  A mean_q; // of log(Q / M) over Q, relative to Q's largest element
  A mean_p;
  A cotangent;

  Softmaxes<A> exchanged() const {
    return {of.factor, of.most_p, of.log_sum_p, of.most_q, of.log_sum_q};
  }

  /** The gradient by the logits x of the distribution `own`. */
  static void of_mixture(
      A* x,
      const A* other,
      int64_t n,
      const Softmaxes<A>& own,
      A part,
      A other_part,
      A other_0,
      A mean,
      A cotangent) {
    auto mix = Mixture<A>::of(own.apart(own.most_q, other_0), part, other_part);
    mlxgen::multiversion([&] {
      block::js_gradient_here(
          x, other, n, own, mix, other_0, mean, cotangent * part);
    });
  }

  /** Replace the logits by the requested gradients. */
  void apply(A* q, A* p, int64_t n, bool of_q, bool of_p) const {
    A before[words_at_once]; // the logits of Q; KL: then the gradient by P's
    A factor = cotangent * of.factor;
    if (of_p) {
      std::copy_n(q, n, before);
    }
    if (of_kl) {
      auto gradient = [&](A* to, bool of_target) {
        mlxgen::multiversion([&] {
          block::kl_gradient_here(to, p, n, of, q_0, mean_p, factor, of_target);
        });
      };
      if (of_q) {
        gradient(q, false);
      }
      if (of_p) {
        gradient(before, true);
        std::copy_n(before, n, p);
      }
      return;
    }
    if (of_q) {
      of_mixture(q, p, n, of, rest, beta, p_0, mean_q, factor);
    }
    if (of_p) {
      of_mixture(p, before, n, exchanged(), beta, rest, q_0, mean_p, factor);
    }
  }
};

/** The requested gradients of linear_divergence_rows. */
template <typename T>
void linear_divergence_rows_vjp(
    In<T> x,
    In<T> weight,
    In<T> target_x,
    In<T> target_weight,
    In<bool> mask,
    In<accum_t<T>> most,
    In<accum_t<T>> log_sum,
    In<accum_t<T>> target_most,
    In<accum_t<T>> target_log_sum,
    In<accum_t<T>> beside,
    In<accum_t<T>> target_beside,
    In<accum_t<T>> mean,
    In<accum_t<T>> target_mean,
    In<accum_t<T>> cotangent,
    double beta,
    double scale,
    bool of_x,
    bool of_weight,
    bool of_target_x,
    bool of_target_weight,
    Out<T> grad_x,
    Out<T> grad_weight,
    Out<T> grad_target_x,
    Out<T> grad_target_weight) {
  using A = accum_t<T>;
  // The maximum size of the gradient with respect to logits, and of the
  // gradient with respect to weights if that is not accumulated in place.
  constexpr int64_t largest_block = int64_t(1) << 22;
  for (const auto& out :
       {grad_x, grad_weight, grad_target_x, grad_target_weight}) {
    std::fill_n(out.data, out.size(), T(0));
  }
  auto places = counted_places(mask, cotangent.size());
  int64_t count = static_cast<int64_t>(places.size());
  if (count == 0) {
    return;
  }
  LinearRows<T> student_rows(x, weight, places);
  LinearRows<T> teacher_rows(target_x, target_weight, places);
  LinearGradient<T> student{
      student_rows, of_x, of_weight, grad_x, grad_weight, {}, {}, {}};
  LinearGradient<T> teacher{
      teacher_rows,
      of_target_x,
      of_target_weight,
      grad_target_x,
      grad_target_weight,
      {},
      {},
      {}};
  int64_t words = weight.dim(0);
  int64_t depth = std::max(student_rows.depth, teacher_rows.depth);
  int64_t wide = std::clamp(
      largest_block / std::max<int64_t>(depth, 1) / words_at_once *
          words_at_once,
      words_at_once,
      16 * words_at_once);
  wide = std::min(wide, words);
  int64_t high = std::min(largest_block / wide, count);
  const std::array both{&student, &teacher};
  for (auto* side : both) {
    side->start(count, high, wide);
  }
  for (int64_t word = 0; word < words; word += wide) {
    int64_t n = std::min(wide, words - word);
    for (auto* side : both) {
      side->start_words(word);
    }
    for (int64_t row = 0; row < count; row += high) {
      int64_t rows = std::min(high, count - row);
      auto of_words = [&](int64_t first, int64_t m) {
        A* q = student.block.data() + first;
        A* p = teacher.block.data() + first;
        student_rows.logits(row, rows, word + first, m, q, wide);
        teacher_rows.logits(row, rows, word + first, m, p, wide);
        for (int64_t i = 0; i < rows; ++i) {
          int64_t at = places[row + i];
          RowOfDivergence<A> made{
              {A(scale),
               most[at],
               log_sum[at],
               target_most[at],
               target_log_sum[at]},
              beta == 0,
              A(beta),
              A(1 - beta),
              target_beside[at],
              beside[at],
              mean[at],
              target_mean[at],
              cotangent[at]};
          made.apply(
              q + i * wide, p + i * wide, m, student.asked(), teacher.asked());
        }
        for (auto* side : both) {
          side->add_to_weight(row, rows, first, m, wide);
        }
      };
      share_words(n, 4 * rows * depth, of_words);
      for (auto* side : both) {
        side->add_to_x(row, rows, word, n, wide);
      }
    }
    for (auto* side : both) {
      side->end_words(word, n);
    }
  }
  for (auto* side : both) {
    side->end(places);
  }
}

} // namespace mlxops::cpu
