// The divergences of divergence.h between two layers that may be quantized, and
// may have a bias and a softcap. All backends compute them in the blocks of
// linear_divergence_blocks.h.
//
// The primitives here have no kernels: they pass on what the blocks compute.
// They exist for their gradients, because the blocks compute only gradients
// that are needed. A quantized weight has no gradient.

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/primitive.h"
#include "mlxgen/shapeless.h"
#include "nn/linear_divergence_blocks.h"
#include "nn/linear_divergence_second.h"

namespace mlxops::blocks {

/** What an operator has in place of kernels. */
struct NoKernels {
  const char* op;

  template <typename... Args>
  void run(const Args&...) const {
    throw std::logic_error("It has no kernels.");
  }
};

/** A pair of layers without their arrays, and the order of these as inputs. */
struct PairKind {
  struct Layer {
    LayerKind kind;
    bool quantized;
    bool has_biases;
    bool has_bias;

    bool operator==(const Layer&) const = default;
  };

  std::array<Layer, 2> layers;
  bool has_mask;
  double beta;
  double scale;

  bool operator==(const PairKind&) const = default;

  static PairKind of(const LayerPair& pair) {
    auto layer = [](const LastLayer& of) -> Layer {
      return {
          of.kind,
          of.scales.has_value(),
          of.biases.has_value(),
          of.bias.has_value()};
    };
    return {
        {layer(pair.student), layer(pair.teacher)},
        pair.mask.has_value(),
        pair.beta,
        pair.scale};
  }

  /** The number of inputs that may have gradients, which are the first ones. */
  size_t gradients() const {
    size_t count = 0;
    for (const auto& layer : layers) {
      count += 2 - layer.quantized + layer.has_bias;
    }
    return count;
  }

  size_t inputs() const {
    size_t count = gradients() + has_mask;
    for (const auto& layer : layers) {
      count += 2 * layer.quantized + layer.has_biases;
    }
    return count;
  }

  static std::vector<mx::array> inputs_of(const LayerPair& pair) {
    auto inputs = pair.arrays();
    for (const auto* layer : {&pair.student, &pair.teacher}) {
      if (layer->scales) {
        inputs.push_back(layer->weight);
        inputs.push_back(*layer->scales);
        if (layer->biases) {
          inputs.push_back(*layer->biases);
        }
      }
    }
    if (pair.mask) {
      inputs.push_back(*pair.mask);
    }
    return inputs;
  }

  /** The pair with these inputs, which others may follow. */
  LayerPair with(const std::vector<mx::array>& inputs) const {
    size_t next = 0;
    size_t next_fixed = gradients();
    auto layer = [&](const Layer& of) {
      auto x = inputs[next++];
      auto weight = of.quantized ? inputs[next_fixed++] : inputs[next++];
      LastLayer made{x, weight};
      made.kind = of.kind;
      if (of.quantized) {
        made.scales = inputs[next_fixed++];
      }
      if (of.has_biases) {
        made.biases = inputs[next_fixed++];
      }
      if (of.has_bias) {
        made.bias = inputs[next++];
      }
      return made;
    };
    auto student = layer(layers[0]);
    auto teacher = layer(layers[1]);
    std::optional<mx::array> mask;
    if (has_mask) {
      mask = inputs[next_fixed];
    }
    return {std::move(student), std::move(teacher), mask, beta, scale};
  }
};

/**
 * The gradients that are asked for. Its inputs are those of LayersDivergence,
 * the outputs of LayersDivergence, and the cotangent of the losses.
 */
class LayersDivergenceVJP : public mlxgen::Operator<LayersDivergenceVJP> {
 public:
  DEFINE_NAME(LayersDivergenceVJP)
  static constexpr NoKernels dispatch{"linear_divergence_vjp"};

  LayersDivergenceVJP(mx::Stream s, PairKind kind, std::vector<bool> asked)
      : Operator(s), kind_(std::move(kind)), asked_(std::move(asked)) {}

  auto state() const {
    return std::tie(kind_, asked_);
  }

  std::vector<mx::array> composite(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> rows(
        inputs.begin() + kind_.inputs(), inputs.end() - 1);
    auto all = divergence_vjp(
        kind_.with(inputs), rows, inputs.back(), asked_, stream());
    std::vector<mx::array> kept;
    for (size_t i = 0; i < all.size(); ++i) {
      if (asked_[i]) {
        kept.push_back(all[i]);
      }
    }
    return kept;
  }

  std::vector<mx::array> apply(const std::vector<mx::array>& inputs) {
    auto op = std::make_shared<LayersDivergenceVJP>(stream(), kind_, asked_);
    auto outputs = op->composite(mlxgen::without_gradients(inputs, stream()));
    return mlxgen::stand_in(std::move(op), inputs, outputs);
  }

  /** The gradients with respect to numbers of rows are parts of the others. */
  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>&) override {
    mlxgen::refuse_shapeless(
        dispatch.op, "its second derivative is composed of MLX's operations");
    auto found = divergence_second(
        kind_.with(primals), primals.back(), cotangents, asked_, stream());
    auto gradient = [&](int arg) -> mlxgen::Gradient {
      if (arg + size_t(1) == primals.size()) {
        return {"cotangent", found.back()};
      }
      if (static_cast<size_t>(arg) < kind_.gradients()) {
        return {"layers", found[arg]};
      }
      return {"rows"};
    };
    return mlxgen::gradients(dispatch.op, argnums, primals, gradient, stream());
  }

 private:
  PairKind kind_;
  std::vector<bool> asked_;
};

/** The divergences of rows, and the other outputs of divergence_of. */
class LayersDivergence : public mlxgen::Operator<LayersDivergence> {
 public:
  DEFINE_NAME(LayersDivergence)
  static constexpr NoKernels dispatch{"layers_divergence"};

  LayersDivergence(mx::Stream s, PairKind kind)
      : Operator(s), kind_(std::move(kind)) {}

  auto state() const {
    return std::tie(kind_);
  }

  std::vector<mx::array> composite(const std::vector<mx::array>& inputs) {
    return divergence_of(kind_.with(inputs), stream());
  }

  std::vector<mx::array> apply(const std::vector<mx::array>& inputs) {
    auto op = std::make_shared<LayersDivergence>(stream(), kind_);
    auto outputs = op->composite(mlxgen::without_gradients(inputs, stream()));
    return mlxgen::stand_in(std::move(op), inputs, outputs);
  }

  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override {
    std::vector<bool> asked(kind_.gradients());
    for (size_t arg : argnums) {
      if (arg < asked.size()) {
        asked[arg] = true;
      }
    }
    auto inputs = primals;
    inputs.insert(inputs.end(), outputs.begin(), outputs.end());
    inputs.push_back(cotangents[0]);
    auto found = LayersDivergenceVJP(stream(), kind_, asked).apply(inputs);
    std::vector<std::optional<mx::array>> all(primals.size());
    size_t next = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i]) {
        all[i] = found[next++];
      }
    }
    auto gradient = [&](int arg) -> mlxgen::Gradient {
      return {"layers", all[arg]};
    };
    return mlxgen::gradients(dispatch.op, argnums, primals, gradient, stream());
  }

 private:
  PairKind kind_;
};

/** layers_divergence. */
inline mx::array layers_divergence(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& scales,
    const std::optional<mx::array>& biases,
    const std::optional<mx::array>& bias,
    const mx::array& target_x,
    const mx::array& target_weight,
    const std::optional<mx::array>& target_scales,
    const std::optional<mx::array>& target_biases,
    const std::optional<mx::array>& target_bias,
    const std::optional<mx::array>& mask,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    std::optional<int> target_group_size,
    std::optional<int> target_bits,
    const std::string& target_mode,
    std::optional<double> softcap,
    std::optional<double> target_softcap,
    double beta,
    double scale,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  if (scales || target_scales) {
    mlxgen::refuse_shapeless(
        LayersDivergence::dispatch.op, "mx.dequantize keeps the shapes");
  }
  auto fixed = [&](const std::optional<mx::array>& a, const char* name) {
    return a ? std::optional(
                   mlxgen::NotDifferentiable::wrap(
                       *a, LayersDivergence::dispatch.op, name, s))
             : std::nullopt;
  };
  LastLayer student{
      x,
      weight,
      fixed(scales, "scales"),
      fixed(biases, "biases"),
      bias,
      {softcap.value_or(0), group_size, bits, mode}};
  LastLayer teacher{
      target_x,
      target_weight,
      fixed(target_scales, "target_scales"),
      fixed(target_biases, "target_biases"),
      target_bias,
      {target_softcap.value_or(0),
       target_group_size,
       target_bits,
       target_mode}};
  // The fraction of the second distribution in the mixture is at most 1/2.
  bool exchanged = beta > 0.5;
  LayerPair pair{
      exchanged ? teacher : student,
      exchanged ? student : teacher,
      mask,
      exchanged ? 1 - beta : beta,
      scale};
  return LayersDivergence(s, PairKind::of(pair))
      .apply(PairKind::inputs_of(pair))[0];
}

} // namespace mlxops::blocks
