// The base classes of generated primitives. They derive everything from a few
// members, which an operator defines if it needs them:
//
//   dispatch    its kernels, by backend
//   state()     its attributes
//   apply()     the operator itself, on other inputs
//   composite() its composition of MLX ops, for backends without a kernel
//   gradient()  the gradient of one input
//   element()   one element, in the computing type (Elementwise, on the CPU)
//   task()      the computation of a kernel over views (others, on the CPU)
//
// A member function that the operator declares replaces the one here.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "mlxgen/number.h"
#include "mlxgen/op.h"
#include "mlxgen/shapeless.h"

namespace mlxgen {

/** Whether attributes are equal; numbers also need the same kind. */
template <typename T>
bool same(const T& a, const T& b) {
  return a == b;
}

inline bool same(const Scalar& a, const Scalar& b) {
  return a.same(b);
}

inline bool same(
    const std::optional<Scalar>& a,
    const std::optional<Scalar>& b) {
  return a && b ? a->same(*b) : !a && !b;
}

template <typename... T>
bool same(const std::tuple<T...>& a, const std::tuple<T...>& b) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return (same(std::get<I>(a), std::get<I>(b)) && ...);
  }(std::index_sequence_for<T...>());
}

/** The source of the jvp; the jvp of a formula is a separate member function.
 */
enum class Jvp {
  gradient, // the diagonal Jacobian, which is its own transpose
  linear, // the operator on the tangents
  vjp, // the vjp of the vjp
  composite,
};

/** The computation of a batch. */
enum class Vmap {
  elementwise, // in one call, with the batch in front and broadcast
  batch, // in one call, with the batch in front of every input
  sequential, // one call per element
  none,
};

/** The constants of an operator. */
struct Rules {
  const char* op;
  Jvp jvp;
  Vmap vmap;
  bool uses_outputs;
  bool has_gradient;
  bool has_composite;
};

/** The parts of primitives that are compiled once, for all operators. */
class OperatorBase : public Primitive, public RowContiguousOutputs {
 public:
  using Primitive::Primitive;

  Arrays jvp(
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) override;

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) override;

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override;

  /** Check inputs of other shapes, too. */
  std::vector<Shape> output_shapes(const Arrays& inputs) override;

  /** Outputs of kernels over views are; see Out. */
  bool row_contiguous() override;

  /** The gradient of the composite with respect to one input. */
  array
  composite_gradient(int arg, const Arrays& primals, const Arrays& cotangents);

 private:
  virtual Rules rules() const = 0;
  // Members of the operator; rules() has those that exist.
  virtual Arrays call(const Arrays& inputs) = 0;
  virtual Arrays composition(const Arrays& inputs) = 0;
  virtual Gradient gradient_of(
      int arg,
      const Arrays& primals,
      const Arrays& cotangents,
      const Arrays& outputs) = 0;

  std::function<Arrays(const Arrays&)> forward();
};

template <typename Op>
class Operator : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

  static constexpr Jvp kJvp = Jvp::vjp;
  static constexpr Vmap kVmap = Vmap::sequential;
  // True if gradient() needs the outputs.
  static constexpr bool kUsesOutputs = false;
  // True if the composite has all transforms of the operator.
  static constexpr bool kIsComposite = false;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    Op::dispatch.run(Backend::cpu, *this, inputs, outputs);
  }

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    Op::dispatch.run(Backend::metal, *this, inputs, outputs);
  }

  bool is_equivalent(const Primitive& other) const override {
    return same(self().state(), static_cast<const Op&>(other).state());
  }

  std::tuple<> state() const {
    return {};
  }

  /** The input whose dtype is the type parameter of the kernels. */
  const array& typed(const Arrays& inputs) const {
    return inputs[0];
  }

  static constexpr bool has_gradient() {
    return requires { &Op::gradient; };
  }
  static constexpr bool has_composite() {
    return requires { &Op::composite; };
  }

  /** The operator's result if it has no kernel. */
  static Arrays stand_in(
      std::shared_ptr<Op> op,
      const Arrays& inputs,
      const std::vector<Shape>& shapes,
      const std::vector<Dtype>& dtypes) {
    constexpr bool whole = Op::kIsComposite;
    auto outputs = composed(
        Op::dispatch.op,
        op->composite(whole ? inputs : without_gradients(inputs, op->stream())),
        shapes,
        dtypes);
    return whole ? outputs : mlxgen::stand_in(std::move(op), inputs, outputs);
  }

 private:
  Op& self() {
    return static_cast<Op&>(*this);
  }
  const Op& self() const {
    return static_cast<const Op&>(*this);
  }
  Rules rules() const override {
    return {
        Op::dispatch.op,
        Op::kJvp,
        Op::kVmap,
        Op::kUsesOutputs,
        has_gradient(),
        has_composite()};
  }
  Arrays call(const Arrays& inputs) override {
    return self().apply(inputs);
  }
  Arrays composition([[maybe_unused]] const Arrays& inputs) override {
    if constexpr (has_composite()) {
      return self().composite(inputs);
    }
    return {};
  }
  Gradient gradient_of(
      [[maybe_unused]] int arg,
      [[maybe_unused]] const Arrays& primals,
      [[maybe_unused]] const Arrays& cotangents,
      [[maybe_unused]] const Arrays& outputs) override {
    if constexpr (has_gradient()) {
      return self().gradient(arg, primals, cotangents, outputs, stream());
    }
    return {""};
  }
};

/**
 * An operator around a scalar function of NIn inputs and NOut outputs, whose
 * shapes and dtypes are equal.
 */
template <typename Op, size_t NIn, size_t NOut>
class Elementwise : public Operator<Op> {
 public:
  using Operator<Op>::Operator;

  static constexpr Jvp kJvp = Jvp::gradient;
  static constexpr Vmap kVmap = Vmap::elementwise;
  static constexpr size_t kInputs = NIn;
  static constexpr size_t kOutputs = NOut;

  /** The attributes, as Metal kernels receive them. */
  std::tuple<> metal_attributes() const {
    return {};
  }

  /** Outputs have the layout of the inputs. */
  bool row_contiguous() override {
    return false;
  }

  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    require_one_shape(Op::dispatch.op, inputs);
    return std::vector<Shape>(NOut, inputs[0].shape());
  }

  /** The operator's checks hold: the inputs of its elements were checked. */
  Arrays apply(const Arrays& inputs) {
    const auto& s = this->stream();
    auto on = [&](const auto&... state) -> Arrays {
      auto outputs = make(broadcast_together(inputs, s), s, state...);
      if constexpr (NOut == 1) {
        return {outputs};
      } else {
        return outputs;
      }
    };
    return std::apply(on, static_cast<const Op&>(*this).state());
  }

  /** The operator's outputs for inputs of one shape and dtype. */
  template <typename... State>
  [[gnu::noinline]] static auto
  make(Arrays inputs, const Stream& s, State&&... state) {
    auto dtype = inputs[0].dtype();
    auto op = [&] {
      return std::make_shared<Op>(s, std::forward<State>(state)...);
    };
    if constexpr (Operator<Op>::has_composite()) {
      if (!Op::dispatch.has_kernel(s, dtype)) {
        return result(
            Operator<Op>::stand_in(
                op(),
                inputs,
                std::vector<Shape>(NOut, inputs[0].shape()),
                std::vector<Dtype>(NOut, dtype)));
      }
    } else {
      Op::dispatch.require(s, dtype);
    }
    auto shape = inputs[0].shape();
    if constexpr (NOut == 1) {
      return array(std::move(shape), dtype, op(), std::move(inputs));
    } else {
      return array::make_arrays(
          std::vector<Shape>(NOut, shape),
          std::vector<Dtype>(NOut, dtype),
          op(),
          inputs);
    }
  }

 private:
  static auto result(Arrays outputs) {
    if constexpr (NOut == 1) {
      return std::move(outputs[0]);
    } else {
      return outputs;
    }
  }
};

} // namespace mlxgen
