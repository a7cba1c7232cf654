// The runtime that generated operators stand on: dtype rules, error messages,
// the dispatch table, and the parts of vmap and jvp that do not depend on the
// operator. Header-only; its symbols stay hidden inside each package's library,
// so that packages built with different versions of mlxgen can share a process.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace mlxgen {

namespace mx = mlx::core;

using mx::array;
using mx::Dtype;
using mx::Primitive;
using mx::Shape;
using mx::Stream;
using mx::StreamOrDevice;

using Arrays = std::vector<array>;

///////////////////////////////////////////////////////////////////////////////
// Errors: `[op] What is wrong. Got x: float32 (2, 3), ...`
///////////////////////////////////////////////////////////////////////////////

/** An argument with its name, for messages. */
using Named = std::pair<const char*, std::optional<array>>;
using Shown = std::pair<const char*, std::string>;

inline std::string show(const Shape& shape) {
  std::ostringstream os;
  os << "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    os << (i ? ", " : "") << shape[i];
  }
  os << (shape.size() == 1 ? ",)" : ")");
  return os.str();
}

inline std::string show(const std::vector<int>& values) {
  return show(Shape(values.begin(), values.end()));
}

inline std::string show(Dtype dtype) {
  std::ostringstream os;
  os << dtype;
  return os.str();
}

inline std::string show(const array& a) {
  return show(a.dtype()) + " " + show(a.shape());
}

inline std::string show(const Arrays& arrays) {
  std::string text = "[";
  for (const auto& a : arrays) {
    text += (text.size() > 1 ? ", " : "") + show(a);
  }
  return text + "]";
}

inline std::string show(const std::string& text) {
  return "'" + text + "'";
}

inline std::string show(bool value) {
  return value ? "True" : "False";
}

template <typename T>
  requires std::is_arithmetic_v<T>
std::string show(T value) {
  std::ostringstream os;
  os << value;
  return os.str();
}

template <typename T>
std::string show(const std::optional<T>& value) {
  return value ? show(*value) : "None";
}

[[noreturn]] inline void
fail(const char* op, const std::string& what, const std::vector<Shown>& args) {
  std::string text = "[" + std::string(op) + "] " + what;
  const char* separator = " Got ";
  for (const auto& [name, value] : args) {
    text += separator + std::string(name) + ": " + value;
    separator = ", ";
  }
  throw std::invalid_argument(text + (args.empty() ? "" : "."));
}

[[noreturn]] inline void
fail(const char* op, const std::string& what, const std::vector<Named>& args) {
  std::vector<Shown> shown;
  for (const auto& [name, value] : args) {
    shown.emplace_back(name, show(value));
  }
  fail(op, what, shown);
}

/** Which of `choices` a string attribute is; raises if it is none of them. */
inline int choice(
    const char* op,
    const char* name,
    const std::string& value,
    std::initializer_list<const char*> choices) {
  int index = 0;
  std::string all;
  for (auto c : choices) {
    if (value == c) {
      return index;
    }
    all += (index ? ", '" : "'") + std::string(c) + "'";
    ++index;
  }
  throw std::invalid_argument(
      "[" + std::string(op) + "] " + name + " must be one of " + all +
      ", got '" + value + "'.");
}

///////////////////////////////////////////////////////////////////////////////
// Dtypes and shapes of the inputs
///////////////////////////////////////////////////////////////////////////////

/** What becomes of integer (and boolean) inputs that a kernel does not take. */
enum class Integers { to_float32, keep, error };

/** The dtypes that a group of arguments may have together. */
struct DtypeRule {
  std::vector<Dtype> allowed;
  Integers integers;

  bool allows(Dtype dtype) const {
    return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
  }

  Dtype resolve(const char* op, const std::vector<Named>& args) const {
    std::optional<Dtype> dtype;
    for (const auto& [_, value] : args) {
      if (value) {
        dtype =
            dtype ? mx::promote_types(*dtype, value->dtype()) : value->dtype();
      }
    }
    if (!dtype) {
      fail(op, "At least one array is needed.", std::vector<Shown>());
    }
    auto out = *dtype;
    if (allows(out)) {
      return out;
    }
    bool integral = mx::issubdtype(out, mx::integer) || out == mx::bool_;
    if (integral && integers == Integers::to_float32) {
      return mx::float32;
    }
    // An index given in another integer type is cast to the kernel's.
    if (integral && allowed.size() == 1 && integers == Integers::keep &&
        mx::issubdtype(allowed[0], mx::integer)) {
      return allowed[0];
    }
    std::string names;
    for (auto d : allowed) {
      names += (names.empty() ? "" : ", ") + show(d);
    }
    fail(
        op,
        "dtype " + show(out) + " is not supported (supported: " + names + ").",
        args);
  }
};

/** A list of arrays, as it is named in messages. */
inline std::vector<Named> named(const char* name, const Arrays& arrays) {
  std::vector<Named> out;
  for (const auto& a : arrays) {
    out.emplace_back(name, a);
  }
  return out;
}

/** An input as kernels that are not elementwise see it. */
inline array ready(const array& a, Dtype dtype, const Stream& s) {
  return mx::contiguous(mx::astype(a, dtype, s), false, s);
}

/** Whether the arrays' shapes broadcast together. */
inline bool can_broadcast(const Arrays& arrays) {
  size_t ndim = 0;
  for (const auto& a : arrays) {
    ndim = std::max(ndim, a.ndim());
  }
  for (size_t back = 1; back <= ndim; ++back) {
    int length = 1;
    for (const auto& a : arrays) {
      int d = back <= a.ndim() ? a.shape()[a.ndim() - back] : 1;
      if (d != 1 && length != 1 && d != length) {
        return false;
      }
      length = d == 1 ? length : d;
    }
  }
  return true;
}

/**
 * Give numbers the shape of the array beside them (x + 2): by strides of 0,
 * without a node in the graph. Not while anything is traced, where the
 * broadcast has to be part of the graph. False: this is not such a case.
 */
inline bool spread_numbers(Arrays& inputs) {
  auto is_array = [](const array& in) { return in.ndim() > 0; };
  auto model = std::find_if(inputs.begin(), inputs.end(), is_array);
  if (model == inputs.end() || model->size() == 0) {
    return false;
  }
  for (const auto& in : inputs) {
    bool fits = is_array(in) ? in.shape() == model->shape() : in.is_available();
    if (!fits || in.is_tracer()) {
      return false;
    }
  }
  for (auto& in : inputs) {
    if (!is_array(in)) {
      array out(model->shape(), in.dtype(), nullptr, {});
      auto flags = in.flags();
      flags.row_contiguous = flags.col_contiguous = out.size() == 1;
      out.copy_shared_buffer(in, mx::Strides(out.ndim(), 0), flags, 1);
      out.set_status(array::Status::available);
      in = std::move(out);
    }
  }
  return true;
}

/**
 * The inputs of an elementwise op: promoted to one dtype that the kernels take,
 * and broadcast together.
 */
inline Arrays elementwise_inputs(
    const char* op,
    const DtypeRule& rule,
    std::initializer_list<const char*> names,
    Arrays inputs,
    const Stream& s) {
  auto dtype = inputs[0].dtype();
  bool same_dtype = true;
  bool same_shape = true;
  for (size_t i = 1; i < inputs.size(); ++i) {
    same_dtype = same_dtype && inputs[i].dtype() == dtype;
    same_shape = same_shape && inputs[i].shape() == inputs[0].shape();
  }
  same_dtype = same_dtype && rule.allows(dtype);
  if (same_dtype && (same_shape || spread_numbers(inputs))) {
    return inputs;
  }
  auto named = [&] {
    std::vector<Named> args;
    auto name = names.begin();
    for (const auto& in : inputs) {
      args.emplace_back(*name++, in);
    }
    return args;
  };
  if (!same_shape && !can_broadcast(inputs)) {
    fail(op, "The shapes cannot be broadcast together.", named());
  }
  if (!same_dtype) {
    dtype = rule.resolve(op, named());
    for (auto& in : inputs) {
      in = mx::astype(in, dtype, s);
    }
  }
  if (!same_shape) {
    // MLX's own, which shapeless compilation can repeat with other shapes.
    inputs = mx::broadcast_arrays(inputs, s);
  }
  return inputs;
}

///////////////////////////////////////////////////////////////////////////////
// Dispatch: the one place where a backend's kernel is found
///////////////////////////////////////////////////////////////////////////////

enum class Backend { cpu, metal };

inline const char* name_of(Backend backend) {
  return backend == Backend::cpu ? "cpu" : "metal";
}

/** The backend that runs work on a stream, if this build has one for it. */
inline std::optional<Backend> backend_of(const Stream& s) {
  if (s.device == mx::Device::cpu) {
    return Backend::cpu;
  }
#ifdef _METAL_
  return Backend::metal;
#else
  return std::nullopt;
#endif
}

/** A kernel launcher: what eval_cpu and eval_gpu run. */
using Launcher =
    void (*)(Primitive& self, const Arrays& inputs, Arrays& outputs);

/** The launcher that calls a member function of a primitive. */
template <auto Method>
struct Launch;

template <typename P, void (P::*Method)(const Arrays&, Arrays&)>
struct Launch<Method> {
  static void run(Primitive& self, const Arrays& inputs, Arrays& outputs) {
    (static_cast<P&>(self).*Method)(inputs, outputs);
  }
};

struct Row {
  Backend backend;
  const char* kernel;
  std::vector<Dtype> dtypes;
  Launcher launch;
};

class Dispatch;

inline std::vector<const Dispatch*>& dispatch_table() {
  static std::vector<const Dispatch*> table;
  return table;
}

/** One operator's row set in the table; registers itself when constructed. */
class Dispatch {
 public:
  Dispatch(const char* op, bool has_composite, std::vector<Row> rows)
      : op(op), has_composite(has_composite), rows(std::move(rows)) {
    dispatch_table().push_back(this);
  }
  Dispatch(const Dispatch&) = delete;
  Dispatch& operator=(const Dispatch&) = delete;

  const Row* find(Backend backend) const {
    for (const auto& row : rows) {
      if (row.backend == backend) {
        return &row;
      }
    }
    return nullptr;
  }

  /** Whether a kernel can run on this stream with this dtype. */
  bool has_kernel(const Stream& s, Dtype dtype) const {
#ifdef MLXGEN_EMULATE_METAL
    // As on the GPU: the composite, which may stand on other kernels.
    if (has_composite && dtype != mx::float64 &&
        find(Backend::metal) == nullptr &&
        std::getenv("MLXGEN_METAL_EMULATION") != nullptr) {
      return false;
    }
#endif
    auto backend = backend_of(s);
    auto row = backend ? find(*backend) : nullptr;
    return row != nullptr &&
        std::find(row->dtypes.begin(), row->dtypes.end(), dtype) !=
        row->dtypes.end();
  }

  /** Raise, when the graph is built, what would otherwise fail at eval. */
  void require(const Stream& s, Dtype dtype) const {
    if (has_kernel(s, dtype)) {
      return;
    }
    std::ostringstream os;
    os << "[" << op << "] No kernel for " << dtype << " on the "
       << (s.device == mx::Device::cpu ? "CPU" : "GPU")
       << "; there is one for ";
    const char* separator = "";
    for (const auto& row : rows) {
      os << separator << name_of(row.backend) << " (";
      for (size_t i = 0; i < row.dtypes.size(); ++i) {
        os << (i ? ", " : "") << row.dtypes[i];
      }
      os << ")";
      separator = " and ";
    }
    os << ".";
    throw std::invalid_argument(os.str());
  }

  void run(
      Backend backend,
      Primitive& self,
      const Arrays& inputs,
      Arrays& outputs) const {
#ifdef MLXGEN_EMULATE_METAL
    if (backend == Backend::cpu && emulates(inputs, outputs)) {
      backend = Backend::metal;
    }
#endif
    if (auto row = find(backend); row != nullptr) {
      return row->launch(self, inputs, outputs);
    }
    throw std::runtime_error(
        "[" + std::string(op) + "] No kernel for the " + name_of(backend) +
        " backend.");
  }

  void run_gpu(Primitive& self, const Arrays& inputs, Arrays& outputs) const {
    run(Backend::metal, self, inputs, outputs);
  }

#ifdef MLXGEN_EMULATE_METAL
  /** Whether the Metal kernel runs in place of the CPU's (docs/metal.md). */
  bool emulates(const Arrays& inputs, const Arrays& outputs) const {
    auto row = find(Backend::metal);
    if (row == nullptr || std::getenv("MLXGEN_METAL_EMULATION") == nullptr) {
      return false;
    }
    bool known = false;
    for (const auto& in : inputs) {
      known = known ||
          std::find(row->dtypes.begin(), row->dtypes.end(), in.dtype()) !=
              row->dtypes.end();
    }
    auto is_double = [](const array& a) { return a.dtype() == mx::float64; };
    return known && std::none_of(inputs.begin(), inputs.end(), is_double) &&
        std::none_of(outputs.begin(), outputs.end(), is_double);
  }
#endif

  const char* op;
  bool has_composite;
  std::vector<Row> rows;
};

///////////////////////////////////////////////////////////////////////////////
// Memory of elementwise ops
///////////////////////////////////////////////////////////////////////////////

/**
 * Allocate the outputs of an elementwise op. When all inputs lie in memory in
 * the same dense layout the outputs take it too (and an input's buffer, when
 * nobody else needs it) and the result is true: element i of every buffer
 * belongs together. Otherwise the outputs are row-contiguous.
 */
inline bool allocate_elementwise(const Arrays& inputs, Arrays& outputs) {
  const auto& first = inputs[0];
  bool dense = std::all_of(inputs.begin(), inputs.end(), [&](const array& in) {
    return in.flags().row_contiguous && first.flags().row_contiguous;
  });
  dense =
      dense || std::all_of(inputs.begin(), inputs.end(), [&](const array& in) {
        return in.flags().contiguous && in.data_size() == in.size() &&
            in.strides() == first.strides();
      });
  size_t next = 0;
  for (auto& out : outputs) {
    bool donated = false;
    for (; dense && !donated && next < inputs.size(); ++next) {
      if (inputs[next].is_donatable() &&
          inputs[next].itemsize() == out.itemsize()) {
        out.copy_shared_buffer(inputs[next]);
        donated = true;
      }
    }
    if (donated) {
      continue;
    }
    if (dense) {
      out.set_data(
          mx::allocator::malloc(out.nbytes()),
          first.data_size(),
          first.strides(),
          first.flags());
    } else {
      out.set_data(mx::allocator::malloc(out.nbytes()));
    }
  }
  return dense;
}

///////////////////////////////////////////////////////////////////////////////
// Inputs of a primitive, in the order of the signature
///////////////////////////////////////////////////////////////////////////////

/** Hands out a primitive's inputs: single, optional and lists of arrays. */
class Unpack {
 public:
  explicit Unpack(const Arrays& inputs) : inputs_(inputs) {}

  const array& one() {
    return inputs_[next_++];
  }
  std::optional<array> optional(bool present) {
    return present ? std::optional<array>(one()) : std::nullopt;
  }
  Arrays many(int count) {
    next_ += count;
    return {inputs_.begin() + next_ - count, inputs_.begin() + next_};
  }

 private:
  const Arrays& inputs_;
  int next_ = 0;
};

///////////////////////////////////////////////////////////////////////////////
// vmap
///////////////////////////////////////////////////////////////////////////////

inline int batch_size(const Arrays& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      return inputs[i].shape(axes[i]);
    }
  }
  return 1;
}

/** Every input with its batch axis in front; length 1 where it has none. */
inline Arrays batch_to_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s) {
  Arrays out;
  out.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    out.push_back(
        axes[i] < 0 ? mx::expand_dims(inputs[i], 0, s)
                    : mx::moveaxis(inputs[i], axes[i], 0, s));
  }
  return out;
}

/** As batch_to_front, with inputs that have no batch axis repeated. */
inline Arrays batch_in_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s) {
  auto out = batch_to_front(inputs, axes, s);
  auto size = batch_size(inputs, axes);
  for (size_t i = 0; i < out.size(); ++i) {
    if (axes[i] < 0) {
      auto shape = out[i].shape();
      shape[0] = size;
      out[i] = mx::broadcast_to(out[i], shape, s);
    }
  }
  return out;
}

/**
 * One call per element of the batch, stacked: exact for every operator.
 * An empty batch takes its shapes and dtypes from a call on zeros.
 */
inline Arrays vmap_sequential(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s) {
  auto size = batch_size(inputs, axes);
  std::vector<Arrays> columns;
  for (int b = 0; b < std::max(size, 1); ++b) {
    Arrays element;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (axes[i] < 0) {
        element.push_back(inputs[i]);
      } else if (size > 0) {
        element.push_back(mx::take(inputs[i], b, axes[i], s));
      } else {
        auto shape = inputs[i].shape();
        shape.erase(shape.begin() + axes[i]);
        element.push_back(mx::zeros(shape, inputs[i].dtype(), s));
      }
    }
    auto outputs = fun(element);
    columns.resize(outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) {
      columns[k].push_back(outputs[k]);
    }
  }
  Arrays stacked;
  for (auto& column : columns) {
    if (size > 0) {
      stacked.push_back(mx::stack(column, 0, s));
    } else {
      auto shape = column[0].shape();
      shape.insert(shape.begin(), 0);
      stacked.push_back(mx::zeros(shape, column[0].dtype(), s));
    }
  }
  return stacked;
}

///////////////////////////////////////////////////////////////////////////////
// jvp and vjp
///////////////////////////////////////////////////////////////////////////////

/**
 * The jvp from a vjp. A vjp is linear in its cotangents, so its own vjp at any
 * cotangent, applied to the tangents, is the jvp, exactly.
 */
inline Arrays jvp_from_vjp(
    const std::function<Arrays(const Arrays&)>& pullback,
    const Arrays& outputs,
    const Arrays& tangents,
    StreamOrDevice s) {
  Arrays cotangents;
  for (const auto& out : outputs) {
    cotangents.push_back(mx::zeros_like(out, s));
  }
  // One array may be the gradient of several arguments; mx::vjp would use only
  // the first of the tangents given for it.
  auto distinct = [&](const Arrays& values) {
    auto gradients = pullback(values);
    for (size_t i = 1; i < gradients.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (gradients[j].id() == gradients[i].id()) {
          gradients[i] = mx::copy(gradients[i], s);
          break;
        }
      }
    }
    return gradients;
  };
  return mx::vjp(distinct, cotangents, tangents).second;
}

/** Raised by the vjp and jvp of arguments that have no derivative. */
[[noreturn]] inline void not_differentiable(
    const char* op,
    const char* argument) {
  throw std::invalid_argument(
      "[" + std::string(op) + "] Not differentiable with respect to '" +
      argument + "'. Use mx.stop_gradient on it, or leave it out of argnums.");
}

/** An identity without derivative, for arguments of composites declared so. */
class NotDifferentiable : public Primitive {
 public:
  NotDifferentiable(Stream stream, const char* op, const char* argument)
      : Primitive(stream), op_(op), argument_(argument) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }
  Arrays jvp(const Arrays&, const Arrays&, const std::vector<int>&) override {
    not_differentiable(op_, argument_);
  }
  Arrays vjp(
      const Arrays&,
      const Arrays&,
      const std::vector<int>&,
      const Arrays&) override {
    not_differentiable(op_, argument_);
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    return {{wrap(inputs[0], op_, argument_, stream())}, axes};
  }
  const char* name() const override {
    return "NotDifferentiable";
  }
  bool is_equivalent(const Primitive& other) const override {
    const auto& p = static_cast<const NotDifferentiable&>(other);
    return op_ == p.op_ && argument_ == p.argument_;
  }
  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  static array
  wrap(const array& a, const char* op, const char* argument, StreamOrDevice s) {
    return array(
        a.shape(),
        a.dtype(),
        std::make_shared<NotDifferentiable>(mx::to_stream(s), op, argument),
        {a});
  }

 private:
  const char* op_;
  const char* argument_;
};

/** Zeros for inputs without a tangent: a linear op's jvp is the op on tangents.
 */
inline Arrays zeros_for(const Arrays& primals, const Stream& s) {
  Arrays out;
  for (const auto& p : primals) {
    out.push_back(mx::zeros_like(p, s));
  }
  return out;
}

/** All inputs of a primitive, with those in `argnums` replaced by `values`. */
inline Arrays with_arguments(
    Arrays inputs,
    const std::vector<int>& argnums,
    const Arrays& values) {
  for (size_t i = 0; i < argnums.size(); ++i) {
    inputs[argnums[i]] = values[i];
  }
  return inputs;
}

/** The vjp of a composition of MLX ops, for the inputs in `argnums`. */
inline Arrays composite_vjp(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums) {
  Arrays chosen;
  for (auto arg : argnums) {
    chosen.push_back(primals[arg]);
  }
  auto restricted = [&](const Arrays& values) {
    return fun(with_arguments(primals, argnums, values));
  };
  return mx::vjp(restricted, chosen, cotangents).second;
}

/** The jvp of a composition of MLX ops, for the inputs in `argnums`. */
inline Arrays composite_jvp(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& primals,
    const Arrays& tangents,
    const std::vector<int>& argnums) {
  Arrays chosen;
  for (auto arg : argnums) {
    chosen.push_back(primals[arg]);
  }
  auto restricted = [&](const Arrays& values) {
    return fun(with_arguments(primals, argnums, values));
  };
  return mx::jvp(restricted, chosen, tangents).second;
}

/** Add one argument's share to the jvp of every output. */
inline void accumulate(Arrays& jvps, const Arrays& term, const Stream& s) {
  if (jvps.empty()) {
    jvps = term;
    return;
  }
  for (size_t k = 0; k < term.size(); ++k) {
    jvps[k] = mx::add(jvps[k], term[k], s);
  }
}

/** A jvp to which no argument contributed is zero. */
template <typename Shapes>
Arrays
jvps_or_zeros(Arrays jvps, Shapes&& shapes, Dtype dtype, const Stream& s) {
  if (jvps.empty()) {
    for (const auto& shape : shapes()) {
      jvps.push_back(mx::zeros(shape, dtype, s));
    }
  }
  return jvps;
}

using VjpFunction = std::function<Arrays(
    const Arrays& primals,
    const Arrays& cotangents,
    const Arrays& outputs)>;

/** A gradient summed over the axes along which its argument was broadcast. */
inline array unbroadcast(const array& grad, const Shape& shape) {
  if (grad.shape() == shape || grad.ndim() < shape.size()) {
    return grad;
  }
  int extra = static_cast<int>(grad.ndim() - shape.size());
  std::vector<int> axes;
  for (int i = 0; i < static_cast<int>(grad.ndim()); ++i) {
    if (i < extra || (shape[i - extra] == 1 && grad.shape(i) != 1)) {
      axes.push_back(i);
    }
  }
  return mx::reshape(mx::sum(grad, axes, true), shape);
}

/**
 * `fun` with a gradient of its own. Unlike mx::custom_function it keeps that
 * gradient under vmap (vmap of the vjp), and derives the jvp from it.
 */
inline std::function<Arrays(const Arrays&)> with_gradient(
    std::function<Arrays(const Arrays&)> fun,
    VjpFunction formulas) {
  auto vjp = [formulas = std::move(formulas)](
                 const Arrays& primals,
                 const Arrays& cotangents,
                 const Arrays& outputs) {
    auto grads = formulas(primals, cotangents, outputs);
    for (size_t i = 0; i < grads.size(); ++i) {
      grads[i] = unbroadcast(grads[i], primals[i].shape());
    }
    return grads;
  };
  auto jvp = [fun, vjp](
                 const Arrays& primals,
                 const Arrays& tangents,
                 const std::vector<int>& argnums) {
    auto outputs = fun(primals);
    auto s = outputs[0].has_primitive() ? outputs[0].primitive().stream()
                                        : mx::to_stream({});
    auto pullback = [&](const Arrays& cotangents) {
      auto all = vjp(primals, cotangents, outputs);
      Arrays chosen;
      for (auto arg : argnums) {
        chosen.push_back(all[arg]);
      }
      return chosen;
    };
    return jvp_from_vjp(pullback, outputs, tangents, s);
  };
  auto vmap = [fun, vjp](const Arrays& inputs, const std::vector<int>& axes)
      -> std::pair<Arrays, std::vector<int>> {
    auto batched_fun = mx::vmap(fun, axes);
    auto batched_vjp = [vjp, axes](
                           const Arrays& primals,
                           const Arrays& cotangents,
                           const Arrays& outputs) {
      Arrays all = primals;
      all.insert(all.end(), cotangents.begin(), cotangents.end());
      all.insert(all.end(), outputs.begin(), outputs.end());
      auto all_axes = axes;
      all_axes.resize(all.size(), 0);
      auto n = primals.size();
      auto m = cotangents.size();
      auto flat = [&vjp, n, m](const Arrays& values) {
        auto begin = values.begin();
        return vjp(
            {begin, begin + n},
            {begin + n, begin + n + m},
            {begin + n + m, values.end()});
      };
      auto grads = mx::vmap(flat, all_axes)(all);
      for (size_t i = 0; i < n; ++i) {
        // An input without a batch axis gets the sum over the batch.
        grads[i] = axes[i] < 0 ? mx::sum(grads[i], 0)
                               : mx::moveaxis(grads[i], 0, axes[i]);
      }
      return grads;
    };
    auto outputs = with_gradient(batched_fun, batched_vjp)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  };
  return mx::custom_function(std::move(fun), std::move(vjp), jvp, vmap);
}

} // namespace mlxgen
