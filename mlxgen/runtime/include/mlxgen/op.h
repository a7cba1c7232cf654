// The runtime that generated operators stand on: dtype rules, error messages,
// the dispatch table, and the parts of vmap and jvp that do not depend on the
// operator. Compiled once per package (src/op.cpp); its symbols stay hidden in
// that library, so that packages built with different versions of mlxgen can
// share a process.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
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

std::string show(const Shape& shape);

std::string show(const std::vector<int>& values);

std::string show(Dtype dtype);

std::string show(const array& a);

std::string show(const Arrays& arrays);

std::string show(const std::string& text);

std::string show(bool value);

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

[[noreturn]] void
fail(const char* op, const std::string& what, const std::vector<Shown>& args);

[[noreturn]] void
fail(const char* op, const std::string& what, const std::vector<Named>& args);

/**
 * Raise the exception that is being handled with the operator's name in front
 * of its message, if it is not there already.
 */
[[noreturn]] void fail_in(const char* op);

/** An argument of any type with its name, to be shown if something is wrong. */
template <typename T>
struct Given {
  const char* name;
  const T& value;
};

template <typename T>
Given<T> given(const char* name, const T& value) {
  return {name, value};
}

/**
 * Raise unless a check of the arguments holds, and show those that it is about.
 * One that cannot be computed, such as a division by 0, does not hold.
 */
template <typename Check, typename... Args>
void require(
    Check check,
    const char* op,
    const char* message,
    const Given<Args>&... args) {
  try {
    if (check()) {
      return;
    }
  } catch (const std::logic_error&) { // an index, or shapes that do not fit
  } catch (const std::overflow_error&) {
  }
  fail(op, message, std::vector<Shown>{{args.name, show(args.value)}...});
}

/** Raise unless every length is at least 0. */
void require_lengths(const std::vector<Shape>& shapes);

/**
 * Raise unless the inputs have one shape, as when a function was compiled that
 * now takes others: nothing broadcasts them.
 */
void require_one_shape(const char* op, const Arrays& inputs);

/** What an op's shape rule gives for its arguments, which errors show. */
template <typename... Args>
std::vector<Shape> shapes_of(
    const char* op,
    std::vector<Shape> (*rule)(Args...),
    std::initializer_list<const char*> names,
    const std::type_identity_t<Args>&... args) {
  try {
    auto shapes = rule(args...);
    require_lengths(shapes);
    return shapes;
  } catch (const std::exception& error) {
    std::vector<Shown> shown;
    auto name = names.begin();
    (shown.emplace_back(*name++, show(args)), ...);
    fail(op, error.what(), shown);
  }
}

/** Which of `choices` a string attribute is; raises if it is none of them. */
int choice(
    const char* op,
    const char* name,
    const std::string& value,
    std::initializer_list<const char*> choices);

///////////////////////////////////////////////////////////////////////////////
// Dtypes and shapes of the inputs
///////////////////////////////////////////////////////////////////////////////

/** What becomes of integer (and boolean) inputs that a kernel does not take. */
enum class Integers { to_float32, keep, error };

/** The dtypes that a group of arguments may have together. */
struct DtypeRule {
  std::vector<Dtype> allowed;
  Integers integers = Integers::to_float32;

  bool allows(Dtype dtype) const {
    return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
  }

  Dtype resolve(const char* op, const std::vector<Named>& args) const;

  /** The dtype of sums of `dtype`, in which arguments of fewer digits fit. */
  Dtype resolve_sums(
      const char* op,
      Dtype dtype,
      const std::vector<Named>& args) const;
};

/** Those of an argument that is a list, among all inputs of a primitive. */
inline Arrays slice(const Arrays& inputs, int start, int count) {
  return {inputs.begin() + start, inputs.begin() + start + count};
}

inline const std::vector<Dtype> floating{
    mx::float16,
    mx::bfloat16,
    mx::float32,
    mx::float64};

/** A list of arrays, as it is named in messages. */
std::vector<Named> named(const char* name, const Arrays& arrays);

/**
 * `a` in another dtype. An integer that does not fit into it becomes the
 * nearest one that does, or of an unsigned dtype the last: what is out of range
 * as an index stays so.
 */
array to_dtype(const array& a, Dtype dtype, const Stream& s);

/** An input as kernels that are not elementwise, or composites, see it. */
array ready(
    const array& a,
    Dtype dtype,
    const Stream& s,
    bool for_kernel = true);

/**
 * The inputs of an elementwise op: promoted to one dtype that the kernels take,
 * and broadcast together.
 */
Arrays elementwise_inputs(
    const char* op,
    const DtypeRule& rule,
    std::initializer_list<const char*> names,
    Arrays inputs,
    const Stream& s);

///////////////////////////////////////////////////////////////////////////////
// Dispatch: the one place where a backend's kernel is found
///////////////////////////////////////////////////////////////////////////////

enum class Backend { cpu, metal };

const char* name_of(Backend backend);

/** The backend that runs work on a stream, if this build has one for it. */
std::optional<Backend> backend_of(const Stream& s);

/** A kernel launcher: what eval_cpu and eval_gpu run. */
using Launcher =
    std::function<void(Primitive& self, const Arrays& inputs, Arrays& outputs)>;

/** The launcher that calls a member function of a primitive. */
template <typename Op>
Launcher launch(void (Op::*method)(const Arrays&, Arrays&)) {
  return [method](Primitive& self, const Arrays& inputs, Arrays& outputs) {
    (static_cast<Op&>(self).*method)(inputs, outputs);
  };
}

struct Row {
  Backend backend;
  const char* kernel;
  std::vector<Dtype> dtypes;
  Launcher launch;
};

/** A template parameter of a Metal kernel: what a call needs, and the most. */
struct Need {
  const char* what;
  int64_t value;
  int64_t most;
};
using Needs = std::vector<Need>;

/** Raise that a kernel has no such template parameter. */
[[noreturn]] void unmet(const char* op, const Need& need);

class Dispatch;

std::vector<const Dispatch*>& dispatch_table();

/** One operator's row set in the table; registers itself when constructed. */
class Dispatch {
 public:
  Dispatch(const char* op, std::vector<Row> rows, bool has_composite = false)
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

  /**
   * Whether a kernel can run on this stream with this dtype; `needs` are the
   * call's where it is Metal's.
   */
  bool has_kernel(
      const Stream& s,
      Dtype dtype,
      const std::function<Needs()>& needs = nullptr) const;

  /** Raise, when the graph is built, what would otherwise fail at eval. */
  void require(
      const Stream& s,
      Dtype dtype,
      const std::function<Needs()>& needs = nullptr) const;

  void run(
      Backend backend,
      Primitive& self,
      const Arrays& inputs,
      Arrays& outputs) const;

#ifdef MLXGEN_EMULATE_METAL
  /**
   * Whether the operator on the CPU is the one on the GPU (docs/emulation.md):
   * its Metal kernel, or its composite. float64, which Metal does not have, and
   * operators for the CPU alone keep the CPU's kernel.
   */
  bool emulates(Dtype dtype) const;
#endif

  const char* op;
  bool has_composite;
  std::vector<Row> rows;
};

///////////////////////////////////////////////////////////////////////////////
// Memory of elementwise ops
///////////////////////////////////////////////////////////////////////////////

/** Shape and strides of several arrays of one shape, in as few axes as can be.
 */
struct Axes {
  std::vector<int64_t> shape;
  std::vector<std::vector<int64_t>> strides; // of each array

  /** Axes that belong together become one, unless it has above `longest`. */
  explicit Axes(
      const Arrays& arrays,
      const Shape& of,
      int64_t longest = std::numeric_limits<int64_t>::max());
};

/** Whether this is one number, broadcast to all places. */
bool is_repeated_scalar(const array& in);

/**
 * Allocate the outputs of an elementwise op. When all inputs lie in memory in
 * the same dense layout, but for repeated scalars, which fit every layout, the
 * outputs take it too, and the result is true: element i of every buffer
 * belongs together. Otherwise the outputs are row-contiguous. Outputs take the
 * buffers of inputs in their layout that nobody else needs.
 */
bool allocate_elementwise(const Arrays& inputs, Arrays& outputs);

///////////////////////////////////////////////////////////////////////////////
// vmap
///////////////////////////////////////////////////////////////////////////////

[[noreturn]] void no_vmap(const char* op);

int batch_size(const Arrays& inputs, const std::vector<int>& axes);

/** Every input with its batch axis in front; length 1 where it has none. */
Arrays batch_to_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s);

/** As batch_to_front, with inputs that have no batch axis repeated. */
Arrays batch_in_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s);

/**
 * One call per element of the batch, stacked: exact for every operator.
 * An empty batch takes its shapes and dtypes from a call on zeros.
 */
Arrays vmap_sequential(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s);

///////////////////////////////////////////////////////////////////////////////
// jvp and vjp
///////////////////////////////////////////////////////////////////////////////

/**
 * The jvp from a vjp. A vjp is linear in its cotangents, so its own vjp at any
 * cotangent, applied to the tangents, is the jvp, exactly.
 */
Arrays jvp_from_vjp(
    const std::function<Arrays(const Arrays&)>& pullback,
    const Arrays& outputs,
    const Arrays& tangents,
    StreamOrDevice s);

/**
 * Raised by the vjp and jvp of arguments that have no derivative; `of_gradient`
 * where the operator is internal and none of its arguments has one.
 */
[[noreturn]] void not_differentiable(
    const char* op,
    const char* argument,
    bool of_gradient = false);

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
Arrays zeros_for(const Arrays& primals, const Stream& s);

/** Inputs through which no gradient flows. */
Arrays without_gradients(const Arrays& inputs, const Stream& s);

/** The composite's outputs with the transforms of `op`, of the same inputs. */
Arrays
stand_in(std::shared_ptr<Primitive> op, Arrays inputs, const Arrays& outputs);

/** All inputs of a primitive, with those in `argnums` replaced by `values`. */
Arrays with_arguments(
    Arrays inputs,
    const std::vector<int>& argnums,
    const Arrays& values);

/** The vjp of a composition of MLX ops, for the inputs in `argnums`. */
Arrays composite_vjp(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums);

/** The jvp of a composition of MLX ops, for the inputs in `argnums`. */
Arrays composite_jvp(
    const std::function<Arrays(const Arrays&)>& fun,
    const Arrays& primals,
    const Arrays& tangents,
    const std::vector<int>& argnums);

/** An argument's share of the jvp of every output; nothing means zeros. */
struct Term {
  const char* argument;
  Arrays values = {};
};

/**
 * A jvp as the sum of a term per argument, `i` being the tangent's index. The
 * terms must have the outputs' shapes, and take their dtypes: one for each, or
 * one for all.
 */
Arrays sum_of_terms(
    const char* op,
    const std::vector<int>& argnums,
    const std::function<Term(int arg, size_t i)>& term,
    const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes,
    const Stream& s);

/** What an argument's formula or function gives; nothing means zeros. */
struct Gradient {
  const char* argument;
  std::optional<array> value = std::nullopt;
};

/**
 * The gradients of some inputs, each from `gradient`. They must have the shapes
 * of the inputs (`broadcast`: of what these broadcast to), and take their
 * dtypes; no integer becomes a float.
 */
Arrays gradients(
    const char* op,
    const std::vector<int>& argnums,
    const Arrays& primals,
    const std::function<Gradient(int arg)>& gradient,
    const Stream& s,
    bool broadcast = false);

/** Gradients computed together, of which there have to be `count`. */
Arrays given_together(
    const char* op,
    const char* arguments,
    const std::function<Arrays()>& compute,
    size_t count);

/** The outputs of a composite: they must have these shapes, in these dtypes. */
Arrays composed(
    const char* op,
    Arrays outputs,
    const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes = {});

/** The dtypes of arrays. */
std::vector<Dtype> dtypes_of(const Arrays& arrays);

/** The indices of all inputs. */
std::vector<int> all_of(const Arrays& inputs);

using VjpFunction = std::function<Arrays(
    const Arrays& primals,
    const Arrays& cotangents,
    const Arrays& outputs)>;

/**
 * `fun` with a gradient of its own. Unlike mx::custom_function it keeps that
 * gradient under vmap (vmap of the vjp), and derives the jvp from it.
 */
std::function<Arrays(const Arrays&)> with_gradient(
    std::function<Arrays(const Arrays&)> fun,
    VjpFunction vjp);

} // namespace mlxgen
