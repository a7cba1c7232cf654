// MLX's products with a matrix for each row or segment, as formulas call them
// on a GPU: with vmap, which they lack. Tests without a GPU compute them on the
// CPU, where MLX has no kernels for all dtypes, or less accurate ones.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/mlx.h"

namespace mlxops::experts {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;

inline bool on_cpu(mx::StreamOrDevice s) {
  return mx::to_stream(s).device == mx::Device::cpu;
}

/** 16-bit numbers on the CPU as float32. */
inline mx::array widened(const mx::array& a, mx::StreamOrDevice s) {
  return on_cpu(s) && a.itemsize() == 2 ? mx::astype(a, mx::float32, s) : a;
}

/** A primitive of MLX with vmap: one element after the other. */
class OneByOne : public mx::Primitive {
 public:
  OneByOne(std::shared_ptr<Primitive> op, mx::Shape shape, mx::Dtype dtype)
      : Primitive(op->stream()),
        op_(std::move(op)),
        shape_(std::move(shape)),
        dtype_(dtype) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    op_->eval_cpu(inputs, outputs);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    op_->eval_gpu(inputs, outputs);
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    int count = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      count = axes[i] < 0 ? count : inputs[i].shape(axes[i]);
    }
    Arrays outputs;
    for (int n = 0; n < count; ++n) {
      Arrays element;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto& in = inputs[i];
        element.push_back(
            axes[i] < 0 ? in : mx::take(in, n, axes[i], stream()));
      }
      outputs.emplace_back(
          shape_,
          dtype_,
          std::make_shared<OneByOne>(op_, shape_, dtype_),
          element);
    }
    return {{mx::stack(outputs, 0, stream())}, {0}};
  }
  const char* name() const override {
    return op_->name();
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return op_->is_equivalent(*static_cast<const OneByOne&>(other).op_);
  }

 private:
  std::shared_ptr<mx::Primitive> op_;
  mx::Shape shape_;
  mx::Dtype dtype_;
};

inline mx::array one_by_one(const mx::array& result) {
  return mx::array(
      result.shape(),
      result.dtype(),
      std::make_shared<OneByOne>(
          result.primitive_ptr(), result.shape(), result.dtype()),
      result.inputs());
}

/** x[n] @ weight[indices[n]] for x of (N, 1, K). */
inline mx::array gather_mm(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& indices,
    bool sorted_indices,
    mx::StreamOrDevice s) {
  if (on_cpu(s)) {
    auto chosen = mx::take(widened(weight, s), indices, 0, s);
    auto y = mx::matmul(widened(x, s), chosen, s);
    return mx::astype(y, x.dtype(), s);
  }
  return one_by_one(
      mx::gather_mm(x, weight, std::nullopt, indices, sorted_indices, s));
}

/** The same for quantized matrices, whose scales are numbers or codes. */
inline mx::array gather_qmm(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& scales,
    const std::optional<mx::array>& biases,
    const std::optional<mx::array>& codes,
    const mx::array& indices,
    bool transpose,
    int group_size,
    int bits,
    const std::string& mode,
    bool sorted_indices,
    mx::StreamOrDevice s) {
  const auto& by = scales ? *scales : *codes;
  auto wide = widened(x, s);
  // Only some releases have an argument before `sorted_indices`.
  auto call = [&](auto no) {
    if constexpr (requires {
                    mx::gather_qmm(
                        wide,
                        weight,
                        by,
                        biases,
                        no,
                        indices,
                        transpose,
                        group_size,
                        bits,
                        mode,
                        no,
                        sorted_indices,
                        s);
                  }) {
      return mx::gather_qmm(
          wide,
          weight,
          by,
          biases,
          no,
          indices,
          transpose,
          group_size,
          bits,
          mode,
          no,
          sorted_indices,
          s);
    } else {
      return mx::gather_qmm(
          wide,
          weight,
          by,
          biases,
          no,
          indices,
          transpose,
          group_size,
          bits,
          mode,
          sorted_indices,
          s);
    }
  };
  return mx::astype(one_by_one(call(std::nullopt)), x.dtype(), s);
}

/** mx::segmented_mm. */
inline mx::array segmented_mm(
    const mx::array& a,
    const mx::array& b,
    const mx::array& segments,
    mx::StreamOrDevice s) {
  auto y =
      one_by_one(mx::segmented_mm(widened(a, s), widened(b, s), segments, s));
  return mx::astype(y, a.dtype(), s);
}

} // namespace mlxops::experts
