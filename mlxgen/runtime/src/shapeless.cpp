// Implements shapeless.h: primitives for graphs that run with other shapes than
// those in the trace.

#include "mlxgen/shapeless.h"

#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace mlxgen {

using mx::array;
using mx::Shape;
using Arrays = std::vector<array>;

bool is_shapeless() {
  // MLX tells extensions only that a trace is active: its arrays are tracers.
  // In a trace for any shape, however, broadcasting is part of the graph even
  // if the shapes are equal. Never freed, because MLX may be unloaded earlier.
  static const array& probe = *[] {
    auto* made = new array(Shape{}, mx::float32, nullptr, {});
    made->set_tracer(true);
    return made;
  }();
  return probe.is_tracer() &&
      mx::broadcast_arrays({probe, probe}, mx::Device::cpu)[0].id() !=
      probe.id();
}

void no_shapeless(const char* op, const char* why) {
  std::ostringstream os;
  os << "[" << op << "] Cannot be compiled with shapeless=True: " << why
     << ". Compile it without shapeless, which traces it again for each shape.";
  throw std::invalid_argument(os.str());
}

namespace {

/** An identity whose gradient cannot be traced shapeless. */
class ForwardOnly : public mx::Primitive {
 public:
  ForwardOnly(mx::Stream stream, const char* op, const char* why)
      : Primitive(stream), op_(op), why_(why) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }

  Arrays vjp(
      const Arrays&,
      const Arrays& cotangents,
      const std::vector<int>&,
      const Arrays&) override {
    refuse_shapeless(op_, why_);
    return cotangents;
  }
  Arrays jvp(const Arrays&, const Arrays& tangents, const std::vector<int>&)
      override {
    refuse_shapeless(op_, why_);
    return tangents;
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    return {{refuse_shapeless_gradient(op_, why_, inputs[0], stream())}, axes};
  }

  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }
  bool is_equivalent(const Primitive& other) const override {
    return op_ == static_cast<const ForwardOnly&>(other).op_;
  }
  const char* name() const override {
    return "ForwardOnly";
  }

 private:
  const char* op_;
  const char* why_;
};

array broadcast(const array& a, const Arrays& others, mx::StreamOrDevice s);
array sum_to(const array& a, const array& like, mx::StreamOrDevice s);

int rank_of(const Arrays& arrays) {
  size_t rank = 0;
  for (const auto& a : arrays) {
    rank = std::max(rank, a.ndim());
  }
  return static_cast<int>(rank);
}

/** An input of vmap with its batch axis in front of `rank` axes, if it has one.
 */
array batch_first(const array& a, int axis, int rank, mx::StreamOrDevice s) {
  if (axis < 0) {
    return a;
  }
  auto out = mx::moveaxis(a, axis, 0, s);
  // One at a time: MLX 0.32.4's vmap of several can be wrong.
  while (static_cast<int>(out.ndim()) <= rank) {
    out = mx::expand_dims(out, 1, s);
  }
  return out;
}

/** The first input, broadcast to the common shape of all. */
class Broadcast : public mx::Primitive {
 public:
  using Primitive::Primitive;

  static Shape shape_of(const Arrays& inputs) {
    auto shape = inputs[0].shape();
    for (const auto& in : inputs) {
      shape = mx::broadcast_shapes(shape, in.shape());
    }
    return shape;
  }

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    eval(inputs[0], outputs[0]);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    eval(inputs[0], outputs[0]);
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays&) override {
    Arrays out;
    for (auto arg : argnums) {
      out.push_back(
          arg == 0 ? sum_to(cotangents[0], primals[0], stream())
                   : mx::zeros_like(primals[arg], stream()));
    }
    return out;
  }

  Arrays jvp(
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) override {
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (argnums[i] == 0) {
        return {broadcast(tangents[i], primals, stream())};
      }
    }
    auto none = mx::zeros_like(primals[0], stream());
    return {broadcast(none, primals, stream())};
  }

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    int rank = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto own = static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0);
      rank = std::max(rank, own);
    }
    Arrays all;
    for (size_t i = 0; i < inputs.size(); ++i) {
      all.push_back(batch_first(inputs[i], axes[i], rank, stream()));
    }
    return {{broadcast(all[0], all, stream())}, {0}};
  }

  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {shape_of(inputs)};
  }

  bool is_equivalent(const Primitive&) const override {
    return true;
  }

  const char* name() const override {
    return "Broadcast";
  }

 private:
  static void eval(const array& in, array& out) {
    mx::Strides strides(out.ndim(), 0);
    auto more = out.ndim() - in.ndim();
    for (size_t i = 0; i < in.ndim(); ++i) {
      strides[more + i] = in.shape(i) == 1 ? 0 : in.strides()[i];
    }
    auto flags = in.flags();
    if (out.size() != in.size()) {
      flags.row_contiguous = flags.col_contiguous = false;
    }
    out.copy_shared_buffer(in, strides, flags, in.data_size());
  }
};

/** A reduction over axes that may all have size 1. */
class Reduction : public mx::Reduce {
 public:
  using Reduce::Reduce;

  void eval_cpu(const Arrays& inputs, array& out) override {
    eval(inputs, out, &Reduce::eval_cpu);
  }
  void eval_gpu(const Arrays& inputs, array& out) override {
    eval(inputs, out, &Reduce::eval_gpu);
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) override {
    if (state().first != Reduce::Sum) {
      return Reduce::vjp(primals, cotangents, argnums, outputs);
    }
    return {broadcast(cotangents[0], primals, stream())};
  }

  Arrays jvp(
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) override {
    if (state().first != Reduce::Sum) {
      return Reduce::jvp(primals, tangents, argnums);
    }
    return {mlxgen::shapeless::sum(tangents[0], state().second, stream())};
  }

 private:
  void eval(
      const Arrays& inputs,
      array& out,
      void (Reduce::*run)(const Arrays&, array&)) {
    auto [type, axes] = state();
    std::erase_if(axes, [&](int axis) { return inputs[0].shape(axis) == 1; });
    if (axes.empty()) {
      out.copy_shared_buffer(inputs[0]);
    } else {
      Reduce longer(stream(), type, axes);
      (longer.*run)(inputs, out);
    }
  }
};

/** The first input, summed to the shape of the second. */
class SumTo : public mx::Primitive {
 public:
  using Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    eval(inputs[0], outputs[0], &mx::Reduce::eval_cpu);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    eval(inputs[0], outputs[0], &mx::Reduce::eval_gpu);
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays&) override {
    Arrays out;
    for (auto arg : argnums) {
      out.push_back(
          arg == 0 ? broadcast(cotangents[0], primals, stream())
                   : mx::zeros_like(primals[arg], stream()));
    }
    return out;
  }

  Arrays jvp(
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) override {
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (argnums[i] == 0) {
        return {sum_to(tangents[i], primals[1], stream())};
      }
    }
    return {mx::zeros_like(primals[1], stream())};
  }

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    const auto& s = stream();
    if (axes[0] < 0) { // only the shape of the other input matters
      auto like = shapeless::sum(inputs[1], {axes[1]}, s);
      return {{sum_to(inputs[0], mx::squeeze(like, axes[1], s), s)}, {-1}};
    }
    int rank = static_cast<int>(inputs[0].ndim()) - 1;
    auto a = batch_first(inputs[0], axes[0], rank, s);
    auto like = inputs[1];
    auto own = static_cast<int>(like.ndim()) - (axes[1] >= 0);
    if (axes[1] >= 0) {
      like = batch_first(like, axes[1], rank, s);
    } else {
      std::vector<int> rest(rank);
      std::iota(rest.begin(), rest.end(), 1);
      while (static_cast<int>(like.ndim()) <= rank) {
        like = mx::expand_dims(like, 0, s);
      }
      like = broadcast(like, {like, shapeless::sum(a, rest, s)}, s);
    }
    std::vector<int> extra(rank - own);
    std::iota(extra.begin(), extra.end(), 1);
    auto out = sum_to(a, like, s);
    return {{extra.empty() ? out : mx::squeeze(out, extra, s)}, {0}};
  }

  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[1].shape()};
  }

  bool is_equivalent(const Primitive&) const override {
    return true;
  }

  const char* name() const override {
    return "SumTo";
  }

 private:
  void eval(
      const array& in,
      array& out,
      void (mx::Reduce::*run)(const Arrays&, array&)) {
    auto more = static_cast<int>(in.ndim() - out.ndim());
    auto kept = in.shape();
    std::vector<int> axes;
    for (int i = 0; i < static_cast<int>(in.ndim()); ++i) {
      auto n = i < more ? 1 : out.shape(i - more);
      if (in.shape(i) != n) {
        axes.push_back(i);
        kept[i] = n;
      }
    }
    auto reduced = in;
    if (!axes.empty()) {
      reduced = array(kept, in.dtype(), nullptr, {});
      mx::Reduce sum(stream(), mx::Reduce::Sum, axes);
      (sum.*run)({in}, reduced);
    }
    mx::Strides strides(
        reduced.strides().begin() + more, reduced.strides().end());
    out.copy_shared_buffer(
        reduced, strides, reduced.flags(), reduced.data_size());
  }
};

array broadcast(const array& a, const Arrays& others, mx::StreamOrDevice s) {
  Arrays inputs{a};
  for (const auto& other : others) {
    inputs.push_back(mx::stop_gradient(other, s));
  }
  auto shape = Broadcast::shape_of(inputs);
  auto op = std::make_shared<Broadcast>(mx::to_stream(s));
  return array(std::move(shape), a.dtype(), std::move(op), std::move(inputs));
}

array sum_to(const array& a, const array& like, mx::StreamOrDevice s) {
  auto op = std::make_shared<SumTo>(mx::to_stream(s));
  return array(
      like.shape(), a.dtype(), std::move(op), {a, mx::stop_gradient(like, s)});
}

/** A reduction that keeps its axes, with the dtype of MLX's reduction. */
array reduce(
    const array& a,
    std::vector<int> axes,
    mx::Reduce::ReduceType type,
    mx::Dtype dtype,
    mx::StreamOrDevice s) {
  auto shape = a.shape();
  for (auto& axis : axes) {
    axis += axis < 0 ? static_cast<int>(a.ndim()) : 0;
    shape[axis] = 1;
  }
  std::sort(axes.begin(), axes.end());
  auto op = std::make_shared<Reduction>(mx::to_stream(s), type, axes);
  return array(
      std::move(shape), dtype, std::move(op), {mx::astype(a, dtype, s)});
}

} // namespace

array refuse_shapeless_gradient(
    const char* op,
    const char* why,
    const array& out,
    mx::StreamOrDevice s) {
  if (!is_shapeless()) {
    return out;
  }
  auto primitive = std::make_shared<ForwardOnly>(mx::to_stream(s), op, why);
  return array(out.shape(), out.dtype(), std::move(primitive), {out});
}

Arrays refuse_shapeless_gradient(
    const char* op,
    const char* why,
    Arrays outputs,
    mx::StreamOrDevice s) {
  for (auto& out : outputs) {
    out = refuse_shapeless_gradient(op, why, out, s);
  }
  return outputs;
}

Arrays broadcast_together(const Arrays& inputs, mx::StreamOrDevice s) {
  if (!is_shapeless()) {
    return mx::broadcast_arrays(inputs, s);
  }
  Arrays outputs;
  for (const auto& in : inputs) {
    outputs.push_back(broadcast(in, inputs, s));
  }
  return outputs;
}

namespace shapeless {

// MLX's own reductions determine the dtype and reject invalid axes.
#define MLXGEN_REDUCE(name, type)                                           \
  array name(                                                               \
      const array& a, const std::vector<int>& axes, mx::StreamOrDevice s) { \
    auto dtype = mx::name(a, axes, true, s).dtype();                        \
    return reduce(a, axes, mx::Reduce::type, dtype, s);                     \
  }

MLXGEN_REDUCE(sum, Sum)
MLXGEN_REDUCE(prod, Prod)
MLXGEN_REDUCE(max, Max)
MLXGEN_REDUCE(min, Min)
MLXGEN_REDUCE(all, And)
MLXGEN_REDUCE(any, Or)

#undef MLXGEN_REDUCE

array mean(const array& a, const std::vector<int>& axes, mx::StreamOrDevice s) {
  auto dtype = mx::mean(a, axes, true, s).dtype();
  auto share = mx::number_of_elements(a, axes, true, dtype, s);
  return mx::multiply(sum(mx::astype(a, dtype, s), axes, s), share, s);
}

std::vector<int> every_axis(const array& a) {
  std::vector<int> axes(a.ndim());
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

array without_axes(
    const array& reduced,
    const std::vector<int>& axes,
    bool keepdims,
    mx::StreamOrDevice s) {
  return keepdims || axes.empty() ? reduced : mx::squeeze(reduced, axes, s);
}

} // namespace shapeless

} // namespace mlxgen
