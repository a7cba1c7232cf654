// The divergences of divergence.h between two linear outputs for layers and
// backends without a kernel for all of it, such as quantized layers, and GPUs:
// MLX multiplies matrices, and the kernels for logits compute the rest, for
// blocks of rows. The gradients are computed for blocks of words. Each block
// waits for the previous one, so that only few are in memory at a time.
//
// A graph that is compiled `shapeless` has one block, because the numbers of
// rows and words are not known before the kernels run.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/bias_base.h"
#include "mlxops/js_div_rows.h"
#include "mlxops/js_div_rows_vjp.h"
#include "mlxops/kl_div_rows.h"
#include "mlxops/kl_div_rows_vjp.h"
#include "mlxops/layer_products.h"
#include "mlxops/softcap.h"

namespace mlxops::blocks {

namespace mx = mlx::core;

/** How a layer computes logits, apart from its arrays. */
struct LayerKind {
  double softcap = 0; // none if it is 0
  // Those of mx::quantize, for a quantized weight.
  std::optional<int> group_size = std::nullopt;
  std::optional<int> bits = std::nullopt;
  std::string mode = "affine";

  bool operator==(const LayerKind&) const = default;
};

/** A last layer and its inputs: softcap(x weight^T + bias). */
struct LastLayer {
  mx::array x;
  mx::array weight;
  std::optional<mx::array> scales = std::nullopt; // of a quantized weight
  std::optional<mx::array> biases = std::nullopt;
  std::optional<mx::array> bias = std::nullopt;
  LayerKind kind = {};

  /** Call a function with each array that may have a gradient. */
  template <typename F>
  void each(F function) {
    function(x);
    if (!scales) {
      function(weight);
    }
    if (bias) {
      function(*bias);
    }
  }
};

/** The student, the teacher, and what counts of their divergence. */
struct LayerPair {
  LastLayer student;
  LastLayer teacher;
  std::optional<mx::array> mask;
  double beta; // 0 for KL(P || Q)
  double scale;

  template <typename F>
  void each(F function) {
    student.each(function);
    teacher.each(function);
  }

  /** The arrays that may have gradients, in the order of all gradients. */
  std::vector<mx::array> arrays() const {
    std::vector<mx::array> all;
    LayerPair(*this).each([&](const mx::array& a) { all.push_back(a); });
    return all;
  }

  /** The same layers with other arrays. */
  LayerPair with(const std::vector<mx::array>& arrays) const {
    auto other = *this;
    auto next = arrays.begin();
    other.each([&](mx::array& a) { a = *next++; });
    return other;
  }
};

/** What blocks of both directions have in common. */
struct DivergenceBlocks {
  // The maximum number of elements in a block of logits or of a weight, and the
  // minimum numbers of rows and words.
  static constexpr int64_t largest = int64_t(1) << 22;
  static constexpr int64_t fewest_rows = 128;
  static constexpr int64_t fewest_words = 256;

  mx::StreamOrDevice s;
  mx::Dtype dtype = mx::float32; // of all computations: the accumulator dtype

  DivergenceBlocks(const LayerPair& layers, mx::StreamOrDevice s_) : s(s_) {
    for (const auto& a : layers.arrays()) {
      dtype = mx::promote_types(dtype, a.dtype());
    }
  }

  /** The number of rows in a block of `all` that are `width` wide. */
  static int
  height(int64_t all, int64_t width, int64_t fewest, int64_t limit = largest) {
    if (mlxgen::is_shapeless()) {
      return static_cast<int>(std::max<int64_t>(all, 1));
    }
    int64_t most = limit / std::max<int64_t>(width, 1);
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

  /** The number of words in a block of the layer's weight. */
  int words_of(const LastLayer& layer) const {
    // On the CPU, MLX dequantizes with several operations, whose results are
    // in memory at the same time.
    bool parts = layer.scales && mx::to_stream(s).device == mx::Device::cpu;
    return height(
        layer.weight.shape(0),
        layer.x.shape(-1),
        fewest_words,
        parts ? largest / 8 : largest);
  }

  std::optional<mx::array>
  rows(const std::optional<mx::array>& a, int first, int last) const {
    return a ? std::optional(rows(*a, first, last, {})) : std::nullopt;
  }

  /** The weights of some words in the accumulator dtype. */
  mx::array words(
      const LastLayer& layer,
      int first,
      int last,
      const std::vector<mx::array>& before) const {
    auto some = rows(layer.weight, first, last, before);
    if (layer.scales) {
      some = mx::dequantize(
          some,
          rows(*layer.scales, first, last, {}),
          rows(layer.biases, first, last),
          layer.kind.group_size,
          layer.kind.bits,
          layer.kind.mode,
          std::nullopt,
          std::nullopt,
          s);
    }
    return mx::astype(some, dtype, s);
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

  /**
   * What is added to all products. A number that is added to all logits does
   * not change divergences, but the rounding of logits.
   */
  std::optional<mx::array> relative_bias(const LastLayer& layer) const {
    if (!layer.bias) {
      return std::nullopt;
    }
    auto base =
        bias_base(mx::stop_gradient(*layer.bias, s), layer.kind.softcap, s);
    return mx::subtract(
        mx::astype(*layer.bias, dtype, s), mx::astype(base, dtype, s), s);
  }

  /** The logits of products and what relative_bias returns for their words. */
  mx::array finished(
      mx::array products,
      const std::optional<mx::array>& bias,
      const LayerKind& kind) const {
    if (bias) {
      products = mx::add(products, *bias, s);
    }
    return kind.softcap > 0 ? softcap(products, kind.softcap, s) : products;
  }

  /**
   * The layer's logits for these inputs. Words of another dtype are converted
   * a block at a time.
   */
  mx::array logits(const LastLayer& layer, const mx::array& x) const {
    auto product = [&](const mx::array& words) {
      return layer_products(x, words, true, s);
    };
    int all = layer.weight.shape(0);
    int words = words_of(layer);
    bool ready = !layer.scales && layer.weight.dtype() == dtype;
    std::vector<mx::array> parts;
    for (int first = 0; first < all && !ready && words < all; first += words) {
      std::vector<mx::array> before;
      if (!parts.empty()) {
        before.push_back(parts.back());
      }
      int last = std::min(first + words, all);
      parts.push_back(product(this->words(layer, first, last, before)));
    }
    auto products = parts.empty() ? product(this->words(layer, 0, all, {}))
                                  : mx::concatenate(std::move(parts), -1, s);
    return finished(std::move(products), relative_bias(layer), layer.kind);
  }

  /** The outputs of js_div_rows, and those of kl_div_rows if beta is 0. */
  std::vector<mx::array> of_logits(
      const mx::array& q,
      const mx::array& p,
      const std::optional<mx::array>& mask,
      const LayerPair& layers) const {
    if (layers.beta != 0) {
      return js_div_rows(q, p, mask, layers.beta, layers.scale, s);
    }
    auto of = kl_div_rows(q, p, mask, layers.scale, s);
    auto none = zeros(of[0]);
    return {of[0], of[1], of[2], of[3], of[4], none, of[5], none, of[6]};
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

/** The outputs of linear_divergence_rows. */
inline std::vector<mx::array> divergence_of(
    const LayerPair& layers,
    mx::StreamOrDevice s) {
  DivergenceBlocks blocks(layers, s);
  const auto& student = layers.student;
  const auto& teacher = layers.teacher;
  auto of_block = [&](const mx::array& own,
                      const mx::array& other,
                      const std::optional<mx::array>& counts) {
    return blocks.of_logits(
        blocks.logits(student, mx::astype(own, blocks.dtype, s)),
        blocks.logits(teacher, mx::astype(other, blocks.dtype, s)),
        counts,
        layers);
  };
  const auto& x = student.x;
  mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
  int64_t all = 1;
  for (auto size : shape) {
    all *= size;
  }
  int high = DivergenceBlocks::height(
      all, student.weight.shape(0), DivergenceBlocks::fewest_rows);
  if (high >= all) {
    return of_block(x, teacher.x, layers.mask);
  }
  auto own = blocks.matrix(x);
  auto other = blocks.matrix(teacher.x);
  std::optional<mx::array> counts;
  if (layers.mask) {
    counts = mx::flatten(*layers.mask, s);
  }
  std::vector<std::vector<mx::array>> parts;
  std::vector<mx::array> before;
  for (int first = 0; first < all; first += high) {
    int last = static_cast<int>(std::min<int64_t>(first + high, all));
    auto of = of_block(
        blocks.rows(own, first, last, before),
        blocks.rows(other, first, last, before),
        blocks.rows(counts, first, last));
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

/**
 * The gradients with respect to the arrays of the layers that are asked for,
 * and empty arrays. `rows` are the outputs of divergence_of.
 */
inline std::vector<mx::array> divergence_vjp(
    const LayerPair& layers,
    const std::vector<mx::array>& rows,
    const mx::array& cotangent,
    const std::vector<bool>& asked,
    mx::StreamOrDevice s) {
  DivergenceBlocks blocks(layers, s);
  const auto& mask = layers.mask;
  double beta = layers.beta;
  double scale = layers.scale;
  const auto& most = rows[1];
  const auto& log_sum = rows[2];
  const auto& target_most = rows[3];
  const auto& target_log_sum = rows[4];
  const auto& beside = rows[5];
  const auto& target_beside = rows[6];
  const auto& mean = rows[7];
  const auto& target_mean = rows[8];
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
    const LastLayer& layer;
    mx::array x;
    std::optional<mx::array> bias;
    bool of_x;
    bool of_weight;
    bool of_bias;
    std::optional<mx::array> grad_x = std::nullopt;
    std::optional<mx::array> grad_weight = std::nullopt;
    std::vector<mx::array> grad_bias = {}; // of blocks, (1, words)
  };
  std::vector<Side> sides;
  auto next = asked.begin();
  for (const auto* layer : {&layers.student, &layers.teacher}) {
    bool of_x = *next++;
    bool of_weight = !layer->scales && *next++;
    bool of_bias = layer->bias && *next++;
    sides.push_back(
        {*layer,
         blocks.counted(layer->x, mask),
         blocks.relative_bias(*layer),
         of_x,
         of_weight,
         of_bias});
  }
  int all = layers.student.weight.shape(0);
  int words = std::min(
      {DivergenceBlocks::height(
           all, most.size(), DivergenceBlocks::fewest_words),
       blocks.words_of(layers.student),
       blocks.words_of(layers.teacher)});
  std::vector<mx::array> before;
  for (int first = 0; first < all; first += words) {
    int last = std::min(first + words, all);
    std::vector<mx::array> some;
    std::vector<mx::array> logits;
    for (auto& side : sides) {
      some.push_back(blocks.words(side.layer, first, last, before));
      logits.push_back(blocks.finished(
          layer_products(side.x, some.back(), true, s),
          blocks.rows(side.bias, first, last),
          side.layer.kind));
    }
    before.clear();
    for (int i = 0; i < 2; ++i) {
      auto& side = sides[i];
      if (!side.of_x && !side.of_weight && !side.of_bias) {
        continue;
      }
      auto of_products = i == 0 ? of_student(logits[0], logits[1])
                                : of_teacher(logits[0], logits[1]);
      if (double cap = side.layer.kind.softcap; cap > 0) {
        auto one = mx::array(1.0, blocks.dtype);
        auto part = mx::divide(logits[i], mx::array(cap, blocks.dtype), s);
        auto slope = mx::subtract(one, mx::square(part, s), s);
        of_products = mx::multiply(of_products, slope, s);
      }
      if (side.of_x) {
        auto part = layer_products(of_products, some[i], false, s);
        side.grad_x = side.grad_x ? mx::add(*side.grad_x, part, s) : part;
        before.push_back(*side.grad_x);
      }
      if (side.of_weight) {
        auto part = layer_products(
            mx::transpose(blocks.matrix(of_products), s),
            blocks.matrix(side.x),
            false,
            s);
        side.grad_weight = blocks.with_rows(
            side.grad_weight, part, side.layer.weight, first, last);
        before.push_back(*side.grad_weight);
      }
      if (side.of_bias) {
        side.grad_bias.push_back(
            mlxgen::shapeless::sum(blocks.matrix(of_products), {0}, s));
        before.push_back(side.grad_bias.back());
      }
    }
  }
  std::vector<mx::array> grads;
  auto add = [&](const std::optional<mx::array>& grad, const mx::array& like) {
    grads.push_back(
        grad ? mx::astype(*grad, like.dtype(), s)
             : mx::zeros({0}, like.dtype(), s));
  };
  for (auto& side : sides) {
    add(side.grad_x, side.layer.x);
    if (!side.layer.scales) {
      add(side.grad_weight, side.layer.weight);
    }
    if (side.layer.bias) {
      std::optional<mx::array> grad;
      if (side.of_bias) {
        grad = mx::squeeze(
            mx::concatenate(std::move(side.grad_bias), -1, s), 0, s);
      }
      add(grad, *side.layer.bias);
    }
  }
  return grads;
}

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
  return divergence_of(
      {{x, weight}, {target_x, target_weight}, mask, beta, scale}, s);
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
  return divergence_vjp(
      {{x, weight}, {target_x, target_weight}, mask, beta, scale},
      {most, // the loss, which is not used
       most,
       log_sum,
       target_most,
       target_log_sum,
       beside,
       target_beside,
       mean,
       target_mean},
      cotangent,
      {of_x, of_weight, of_target_x, of_target_weight},
      s);
}

} // namespace mlxops::blocks
