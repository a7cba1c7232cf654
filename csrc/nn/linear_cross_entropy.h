// CPU kernels of the cross entropy of linear outputs, x weight^T + bias. The
// logits are never all stored: Wijmans, Huval, Hertzberg, Koltun and
// Kraehenbuehl, "Cut Your Losses in Large-Vocabulary Language Models" (2024).
//
// Rows whose target is ignored are left out of all products.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cross_entropy.h"
#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"
#include "softmax.h"

namespace mlxops::cpu {

/** The rows of x whose targets count, contiguous. */
template <typename T>
struct CountedRows {
  std::vector<int64_t> places;
  std::vector<T> copied;
  Matrix<T> x;

  CountedRows(In<T> all, In<int32_t> targets, int ignore_index) {
    int64_t depth = all.dim(-1);
    for (int64_t row = 0; row < targets.size(); ++row) {
      if (targets[row] != ignore_index) {
        places.push_back(row);
      }
    }
    x = {all.data, depth};
    if (count() < targets.size()) {
      copied.resize(count() * depth);
      for (int64_t i = 0; i < count(); ++i) {
        std::copy_n(
            all.data + places[i] * depth, depth, copied.data() + i * depth);
      }
      x.data = copied.data();
    }
  }

  int64_t count() const {
    return static_cast<int64_t>(places.size());
  }
};

/**
 * A number that is subtracted from all logits: the largest bias. The loss does
 * not depend on it, but sums with a large number would lose accuracy. With a
 * softcap, nothing may be subtracted.
 */
template <typename T>
accum_t<T> base_of(In<T> bias, double softcap) {
  using A = accum_t<T>;
  A most = -std::numeric_limits<A>::infinity();
  int64_t words = bias && softcap == 0 ? bias.size() : 0;
  for (int64_t i = 0; i < words; ++i) {
    most = std::max<A>(most, mlxgen::widen(bias[i]));
  }
  return std::isfinite(most) ? most : A(0);
}

/** base_of as an operator. */
template <typename T>
void bias_base(In<T> bias, double softcap, Out<accum_t<T>> out) {
  out[0] = base_of(bias, softcap);
}

/**
 * The logits of some rows and words: x weight^T + bias - base, before a
 * softcap.
 */
template <typename T, typename A>
void some_logits(
    Matrix<T> x,
    In<T> weight,
    In<T> bias,
    A base,
    int64_t rows,
    int64_t first_word,
    int64_t words,
    A* to,
    int64_t stride) {
  int64_t depth = weight.dim(1);
  if (bias) {
    for (int64_t row = 0; row < rows; ++row) {
      widen_block(bias.data + first_word, words, to + row * stride, base);
    }
  }
  Matrix<T> w{weight.data + first_word * depth, depth};
  multiply(rows, depth, words, x, w.transposed(), to, stride, bool(bias));
}

// The number of words in a part of a row, and the numbers of rows and words of
// a part that are computed at a time; the numbers that are stored for a part.
constexpr int64_t words_of_part = 2048;
constexpr int64_t numbers_of_part = 6;
constexpr int64_t rows_at_once = 384;
constexpr int64_t words_at_once = 256;

inline int64_t parts_of(int64_t words) {
  return (words + words_of_part - 1) / words_of_part;
}

/**
 * For each part of the words: the largest logit of a row, the sum of the other
 * exponentials, the target's logit, NaN if it is in another part, the sum of
 * weighted logits relative to the largest, the sum of the words' weights, and
 * the number of words.
 */
template <typename T, typename A>
void write_parts(
    In<T> x,
    In<T> weight,
    In<int32_t> targets,
    In<T> bias,
    In<A> class_weight,
    A base,
    double softcap,
    int ignore_index,
    bool sums,
    A* out) {
  int64_t depth = weight.dim(1);
  int64_t words = weight.dim(0);
  CountedRows<T> those(x, targets, ignore_index);
  int64_t count = those.count();
  int64_t parts = parts_of(words);
  std::fill_n(out, targets.size() * parts * numbers_of_part, A(0));
  auto block = [&](int64_t first_row, int64_t part) {
    thread_local std::vector<A> z;
    thread_local std::vector<RowOfLogits<A>> of_rows;
    int64_t rows = std::min(rows_at_once, count - first_row);
    z.resize(rows_at_once * words_at_once);
    of_rows.assign(rows, {});
    int64_t begin = part * words_of_part;
    int64_t last = std::min(words, begin + words_of_part);
    for (int64_t word = begin; word < last; word += words_at_once) {
      int64_t n = std::min(words_at_once, last - word);
      some_logits(
          those.x.from(first_row, 0),
          weight,
          bias,
          base,
          rows,
          word,
          n,
          z.data(),
          words_at_once);
      for (int64_t row = 0; row < rows; ++row) {
        A* logits = z.data() + row * words_at_once;
        softcap_block(logits, n, A(softcap));
        of_rows[row].add(
            logits,
            n,
            int64_t(targets[those.places[first_row + row]]) - word,
            class_weight ? class_weight.data + word : nullptr,
            sums);
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      const RowOfLogits<A>& of = of_rows[row];
      int64_t place = those.places[first_row + row];
      A* to = out + (place * parts + part) * numbers_of_part;
      to[0] = of.all.most;
      to[1] = of.all.others;
      to[2] = of.target;
      to[3] = of.total;
      to[4] = of.weight;
      to[5] = A(last - begin);
    }
  };
  int64_t row_blocks = (count + rows_at_once - 1) / rows_at_once;
  mlxgen::share(
      row_blocks * parts,
      std::min(count, rows_at_once) * std::min(words, words_of_part) * depth,
      [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          block(i / parts * rows_at_once, i % parts);
        }
      });
}

/** The outputs of cross_entropy_rows, from the results for `count` parts. */
template <typename A>
void join_parts(
    const A* parts,
    int64_t count,
    In<int32_t> targets,
    In<A> class_weight,
    A base,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    Out<A> loss,
    Out<A> counted,
    Out<A> most,
    Out<A> log_sum,
    Out<A> extra) {
  for (int64_t row = 0; row < targets.size(); ++row) {
    int64_t y = targets[row];
    if (y == ignore_index) {
      loss[row] = counted[row] = most[row] = log_sum[row] = extra[row] = 0;
      continue;
    }
    RowOfLogits<A> all;
    int64_t words = 0;
    for (int64_t i = 0; i < count; ++i) {
      const A* from = parts + (row * count + i) * numbers_of_part;
      RowOfLogits<A> part;
      part.all.most = from[0];
      part.all.others = from[1];
      part.target = from[2];
      part.total = from[3];
      part.weight = from[4];
      all.join(part);
      words += static_cast<int64_t>(from[5]);
    }
    bool is_word = y >= 0 && y < words;
    Loss<A>{A(label_smoothing), A(z_loss), words}.write(
        all,
        class_weight && is_word ? class_weight[y] : A(1),
        base,
        &loss[row],
        &counted[row],
        &most[row],
        &log_sum[row],
        &extra[row]);
  }
}

/** write_parts as an operator. */
template <typename T>
void linear_cross_entropy_parts(
    In<T> x,
    In<T> weight,
    In<int32_t> targets,
    In<T> bias,
    In<accum_t<T>> class_weight,
    In<accum_t<T>> base,
    double softcap,
    int ignore_index,
    bool sums,
    Out<accum_t<T>> out) {
  write_parts(
      x,
      weight,
      targets,
      bias,
      class_weight,
      base ? base[0] : accum_t<T>(0),
      softcap,
      ignore_index,
      sums,
      out.data);
}

/** join_parts as an operator. */
template <typename T>
void linear_cross_entropy_joined(
    In<T> parts,
    In<int32_t> targets,
    In<T> class_weight,
    In<T> base,
    int ignore_index,
    double label_smoothing,
    double z_loss,
    Out<accum_t<T>> loss,
    Out<accum_t<T>> counted,
    Out<accum_t<T>> most,
    Out<accum_t<T>> log_sum,
    Out<accum_t<T>> extra) {
  join_parts(
      parts.data,
      parts.dim(-2),
      targets,
      class_weight,
      base ? base[0] : T(0),
      ignore_index,
      label_smoothing,
      z_loss,
      loss,
      counted,
      most,
      log_sum,
      extra);
}

/** The outputs of cross_entropy_rows for the logits x weight^T + bias. */
template <typename T>
void linear_cross_entropy_rows(
    In<T> x,
    In<T> weight,
    In<int32_t> targets,
    In<T> bias,
    In<accum_t<T>> class_weight,
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
  A base = base_of(bias, softcap);
  int64_t count = parts_of(weight.dim(0));
  std::vector<A> parts(targets.size() * count * numbers_of_part);
  write_parts(
      x,
      weight,
      targets,
      bias,
      class_weight,
      base,
      softcap,
      ignore_index,
      label_smoothing != 0,
      parts.data());
  join_parts(
      parts.data(),
      count,
      targets,
      class_weight,
      base,
      ignore_index,
      label_smoothing,
      z_loss,
      loss,
      counted,
      most,
      log_sum,
      extra);
}

/**
 * Gradients of linear_cross_entropy_rows; `of_x` and `of_weight` request them.
 * If `all_words` is not 0, the words are a part of that many, the bias is
 * relative to the largest one of all, and targets are words of the part,
 * ignored, or neither.
 *
 * For a block of words and a block of rows, all cores first compute the
 * gradient with respect to the logits, each for its own words, and the gradient
 * by these words. Then they compute the gradient with respect to the rows, each
 * for its own rows and columns.
 */
template <typename T>
void linear_cross_entropy_rows_vjp(
    In<T> x,
    In<T> weight,
    In<int32_t> targets,
    In<T> bias,
    In<accum_t<T>> class_weight,
    In<accum_t<T>> counted,
    In<accum_t<T>> most,
    In<accum_t<T>> log_sum,
    In<accum_t<T>> extra,
    In<accum_t<T>> cotangent,
    double softcap,
    int ignore_index,
    double label_smoothing,
    double,
    bool of_x,
    bool of_weight,
    int all_words,
    Out<T> grad_x,
    Out<T> grad_weight,
    Out<accum_t<T>> grad_bias) {
  using A = accum_t<T>;
  // The maximum size of the gradient with respect to logits, and of the
  // gradient with respect to weights if that is not accumulated in place.
  constexpr int64_t largest_block = int64_t(1) << 22;
  constexpr int64_t rows_of_share = 256;
  constexpr int64_t columns_of_share = 256;
  int64_t depth = weight.dim(1);
  int64_t words = weight.dim(0);
  A base = all_words != 0 ? A(0) : base_of(bias, softcap);
  CountedRows<T> those(x, targets, ignore_index);
  int64_t count = those.count();
  std::fill_n(grad_x.data, grad_x.size(), T(0));
  std::fill_n(grad_bias.data, grad_bias.size(), A(0));
  if (count == 0) {
    std::fill_n(grad_weight.data, grad_weight.size(), T(0));
    return;
  }
  int64_t wide = std::clamp(
      largest_block / std::max<int64_t>(depth, 1) / words_at_once *
          words_at_once,
      words_at_once,
      16 * words_at_once);
  wide = std::min(wide, words);
  int64_t high = std::min(largest_block / wide, count);
  std::vector<A> of_logits(high * wide);
  std::vector<A> sums_x(of_x ? count * depth : 0);
  std::vector<A> sums_weight(
      of_weight && !std::is_same_v<T, A> ? wide * depth : 0);
  for (int64_t word = 0; word < words; word += wide) {
    int64_t n = std::min(wide, words - word);
    A* to_weight = sums_weight.data();
    if constexpr (std::is_same_v<T, A>) {
      to_weight = grad_weight.data + (of_weight ? word * depth : 0);
    }
    for (int64_t row = 0; row < count; row += high) {
      int64_t rows = std::min(high, count - row);
      Matrix<T> some = those.x.from(row, 0);
      auto of_words = [&](int64_t first) {
        int64_t m = std::min(words_at_once, n - first);
        A* block = of_logits.data() + first;
        some_logits(
            some, weight, bias, base, rows, word + first, m, block, wide);
        for (int64_t i = 0; i < rows; ++i) {
          int64_t place = those.places[row + i];
          int64_t y = targets[place];
          A* logits = block + i * wide;
          softcap_block(logits, m, A(softcap));
          bool is_word = all_words != 0 || (y >= 0 && y < words);
          auto gradient = RowGradient<A>::of(
              is_word ? cotangent[place] : std::numeric_limits<A>::quiet_NaN(),
              counted[place],
              most[place],
              log_sum[place],
              extra[place],
              A(label_smoothing),
              all_words != 0 ? all_words : words);
          gradient.apply(
              logits,
              m,
              y - word - first,
              class_weight ? class_weight.data + word + first : nullptr,
              A(softcap));
          if (grad_bias.size() > 0) {
            A* to = grad_bias.data + word + first;
            for (int64_t k = 0; k < m; ++k) {
              to[k] += logits[k];
            }
          }
        }
        if (of_weight) {
          multiply(
              m,
              rows,
              depth,
              Matrix<A>{block, wide}.transposed(),
              some,
              to_weight + first * depth,
              depth,
              row > 0);
        }
      };
      mlxgen::share(
          (n + words_at_once - 1) / words_at_once,
          4 * rows * std::min(n, words_at_once) * depth,
          [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
              of_words(i * words_at_once);
            }
          });
      if (!of_x) {
        continue;
      }
      int64_t across = (depth + columns_of_share - 1) / columns_of_share;
      auto of_rows = [&](int64_t first, int64_t column) {
        multiply(
            std::min(rows_of_share, rows - first),
            n,
            std::min(columns_of_share, depth - column),
            Matrix<A>{of_logits.data() + first * wide, wide},
            Matrix<T>{weight.data + word * depth + column, depth},
            sums_x.data() + (row + first) * depth + column,
            depth,
            true);
      };
      mlxgen::share(
          (rows + rows_of_share - 1) / rows_of_share * across,
          2 * std::min(rows, rows_of_share) * n *
              std::min(columns_of_share, depth),
          [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
              of_rows(
                  i / across * rows_of_share, i % across * columns_of_share);
            }
          });
    }
    if constexpr (!std::is_same_v<T, A>) {
      if (of_weight) {
        narrow_block(to_weight, n * depth, grad_weight.data + word * depth);
      }
    }
  }
  for (int64_t i = 0; i < count && of_x; ++i) {
    narrow_block(
        sums_x.data() + i * depth,
        depth,
        grad_x.data + those.places[i] * depth);
  }
}

} // namespace mlxops::cpu
