// The runtime of generated operators: dtype rules, error messages, the dispatch
// table, and the parts of vmap and jvp that do not depend on the operator. It
// is compiled once per package (src/op.cpp). Its symbols are hidden in that
// library, so that packages that were built with different versions of mlxgen
// can be used in one process.

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
#include "mlxgen/number.h"

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
// Errors: `[op] Sentence. Got x: float32 (2, 3), ...`
///////////////////////////////////////////////////////////////////////////////

/** A shown argument with its name, for messages. */
using Shown = std::pair<const char*, std::string>;

std::string show(const Shape& shape);

std::string show(const std::vector<int>& values);

std::string show(Dtype dtype);

std::string show(const array& a);

std::string show(const Arrays& arrays);

std::string show(const std::string& text);

std::string show(bool value);

std::string show(const Scalar& number);

template <typename T>
  requires std::is_arithmetic_v<T>
std::string show(T value) {
  std::ostringstream os;
  os << value;
  return os.str();
}

template <typename T>
  requires std::is_arithmetic_v<T>
std::string show(const std::vector<T>& values) {
  std::string text = "[";
  for (T value : values) {
    text += (text.size() > 1 ? ", " : "") + show(value);
  }
  return text + "]";
}

template <typename T>
std::string show(const std::optional<T>& value) {
  return value ? show(*value) : "None";
}

[[noreturn]] void
fail(const char* op, const std::string& what, const std::vector<Shown>& args);

/**
 * Rethrow the exception that is being handled, with the operator's name at the
 * start of its message.
 */
[[noreturn]] void fail_in(const char* op);

/** An argument of any type with its name, to be shown in an error. */
struct Given {
  const char* name;
  const void* value;
  std::string (*text)(const void* value);
};

template <typename T>
Given given(const char* name, const T& value) {
  auto text = [](const void* value) {
    return show(*static_cast<const T*>(value));
  };
  return {name, &value, text};
}

[[noreturn]] void
fail(const char* op, const char* what, std::initializer_list<Given> args);

/**
 * Call a check. A check that cannot be computed, for example because of a
 * division by 0, fails.
 */
bool holds(bool (*call)(const void* check), const void* check);

/** Raise an error that shows the arguments of a check, unless the check holds.
 */
template <typename Check, typename... Args>
void require(
    const Check& check,
    const char* op,
    const char* message,
    const Args&... args) {
  auto call = [](const void* check) -> bool {
    return (*static_cast<const Check*>(check))();
  };
  if (!holds(call, &check)) {
    fail(op, message, std::initializer_list<Given>{args...});
  }
}

/**
 * Raise an error unless the inputs have one shape. They differ if a compiled
 * function is called with other shapes, which nothing broadcasts.
 */
void require_one_shape(const char* op, const Arrays& inputs);

std::vector<Shape> checked_shapes(
    const char* op,
    std::vector<Shape> (*call)(const void* rule),
    const void* rule,
    std::initializer_list<Given> args);

/** The shapes of an operator's outputs; errors of the rule show its arguments.
 */
template <typename Rule, typename... Args>
std::vector<Shape>
shapes_of(const char* op, const Rule& rule, const Args&... args) {
  auto call = [](const void* rule) {
    return (*static_cast<const Rule*>(rule))();
  };
  return checked_shapes(op, call, &rule, std::initializer_list<Given>{args...});
}

/**
 * Return the index of a string in `choices`; raise an error if it is not there.
 * With `or_array` the error says that the argument can also be an array.
 */
int choice(
    const char* op,
    const char* name,
    const std::string& value,
    std::initializer_list<const char*> choices,
    bool or_array = false);

/** The same for an optional string, whose index is -1 if there is none. */
inline int choice(
    const char* op,
    const char* name,
    const std::optional<std::string>& value,
    std::initializer_list<const char*> choices,
    bool or_array = false) {
  return value ? choice(op, name, *value, choices, or_array) : -1;
}

///////////////////////////////////////////////////////////////////////////////
// Dtypes and shapes of the inputs
///////////////////////////////////////////////////////////////////////////////

/** The conversion of integer and boolean inputs that a kernel does not support.
 */
enum class Integers { to_float32, keep, error };

/** An array argument with its name: one, none, or several. */
struct Operand {
  using Optionals = std::vector<std::optional<array>>;

  Operand(const char* name, const array& a) : name(name), first(&a), count(1) {}
  Operand(const char* name, const std::optional<array>& a)
      : name(name), first(a ? &*a : nullptr), count(a ? 1 : 0) {}
  Operand(const char* name, const Arrays& list)
      : name(name), first(list.data()), count(list.size()) {}
  Operand(const char* name, const Optionals& list)
      : name(name), optionals(&list) {}

  /** Call f(array) for each array. */
  template <typename F>
  void each(F f) const {
    for (size_t i = 0; i < count; ++i) {
      f(first[i]);
    }
    for (size_t i = 0; optionals && i < optionals->size(); ++i) {
      if ((*optionals)[i]) {
        f(*(*optionals)[i]);
      }
    }
  }

  const char* name;
  const array* first = nullptr;
  size_t count = 0;
  const Optionals* optionals = nullptr;
};

using Operands = std::vector<Operand>;

/** The dtypes that a group of arguments may have together. */
struct DtypeRule {
  std::vector<Dtype> allowed;
  Integers integers = Integers::to_float32;

  bool allows(Dtype dtype) const {
    return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
  }

  Dtype resolve(const char* op, const Operands& args) const;

  /** Raise an error unless the present arrays have an allowed dtype together.
   */
  void require(const char* op, const Operands& args) const;

  /** The accumulator dtype for `dtype`, if no argument needs a wider one. */
  Dtype resolve_sums(const char* op, Dtype dtype, const Operands& args) const;
};

/** The arrays of a list argument, among all inputs of a primitive. */
inline Arrays list_of(const Arrays& inputs, int start, int count) {
  return {inputs.begin() + start, inputs.begin() + start + count};
}

inline const std::vector<Dtype> floating{
    mx::float16,
    mx::bfloat16,
    mx::float32,
    mx::float64};

/**
 * Convert `a` to another dtype. An integer out of range becomes the nearest
 * representable integer; for an unsigned dtype it becomes the largest one, so
 * that an index that is out of range stays out of range.
 */
array to_dtype(const array& a, Dtype dtype, const Stream& s);

/** Base of primitives that may know the layout of their outputs. */
struct RowContiguousOutputs {
  virtual ~RowContiguousOutputs() = default;
  /** True if all outputs are row-contiguous: kernels need no copy of them. */
  virtual bool row_contiguous() = 0;
};

/** An input as composites and kernels that are not elementwise receive it. */
array ready(
    const array& a,
    Dtype dtype,
    const Stream& s,
    bool for_kernel = true);

/**
 * The inputs of an elementwise op: promoted to one dtype that the kernels
 * support, and broadcast together.
 */
Arrays elementwise_inputs(
    const char* op,
    const DtypeRule& rule,
    std::initializer_list<const char*> names,
    Arrays inputs,
    const Stream& s);

///////////////////////////////////////////////////////////////////////////////
// Dispatch: selects the kernel of a backend
///////////////////////////////////////////////////////////////////////////////

enum class Backend { cpu, metal };

const char* name_of(Backend backend);

/** The backend that runs work on a stream, if this build includes it. */
std::optional<Backend> backend_of(const Stream& s);

/** A kernel launcher, which eval_cpu and eval_gpu call. */
using Launcher =
    std::function<void(Primitive& self, const Arrays& inputs, Arrays& outputs)>;

/** Copies an array to a new row-contiguous one, on the backend of a kernel. */
using Copy = void (*)(const Stream& stream, const array& from, array& to);

/**
 * Give an output the values of an input: its memory, if nothing else uses that,
 * else a copy.
 */
void donate(const Stream& s, const array& in, array& out, Copy copy);

/** Raise an error if an output has another shape than its donated input. */
void require_donated(
    const char* op,
    const char* output,
    const Shape& shape,
    const char* input,
    const Shape& donated);

/**
 * Allocate an output, and fill it with a number; integers saturate. The memory
 * is shared with the GPU, and no pending work uses this new buffer.
 */
void fill(array& out, double value);

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

/** A template parameter of a Metal kernel: the required and the maximum value.
 */
struct Need {
  const char* what;
  int64_t value;
  int64_t most;
};
using Needs = std::vector<Need>;

/** Raise an error: no instantiation of a kernel is large enough for a call. */
[[noreturn]] void unmet(const char* op, const Need& need);

class Dispatch;

std::vector<const Dispatch*>& dispatch_table();

/** The table entries of one operator; its constructor registers it. */
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
   * Return true if a kernel can run on this stream with this dtype; for Metal,
   * `needs` returns the template parameters of the call.
   */
  bool has_kernel(
      const Stream& s,
      Dtype dtype,
      const std::function<Needs()>& needs = nullptr) const;

  /** Raise errors of eval when the graph is built. */
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
   * Return true if the CPU emulates the GPU (docs/emulation.md): the operator
   * runs its Metal kernel or its composite. float64, which Metal lacks, and
   * operators for the CPU only use the CPU's kernel.
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

/** The common shape of several arrays and their strides, in the fewest axes. */
struct Axes {
  std::vector<int64_t> shape;
  std::vector<std::vector<int64_t>> strides; // of each array

  /** Merge axes, unless the merged axis is larger than `longest`. */
  explicit Axes(
      const Arrays& arrays,
      const Shape& of,
      int64_t longest = std::numeric_limits<int64_t>::max());
};

/** Return true if this is a single number, broadcast to all positions. */
bool is_repeated_scalar(const array& in);

/**
 * Allocate the outputs of an elementwise op. If all inputs have the same dense
 * layout (repeated scalars match every layout), the outputs use this layout,
 * and the result is true: elements i of all buffers belong together. Otherwise
 * the outputs are row-contiguous. Outputs reuse the buffers of inputs in their
 * layout that are donated.
 */
bool allocate_elementwise(const Arrays& inputs, Arrays& outputs);

///////////////////////////////////////////////////////////////////////////////
// vmap
///////////////////////////////////////////////////////////////////////////////

[[noreturn]] void no_vmap(const char* op);

int batch_size(const Arrays& inputs, const std::vector<int>& axes);

/** All inputs with the batch axis in front, of size 1 for inputs without one.
 */
Arrays batch_to_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s);

/** Like batch_to_front, but inputs without a batch axis are repeated. */
Arrays batch_in_front(
    const Arrays& inputs,
    const std::vector<int>& axes,
    StreamOrDevice s);

/**
 * One call per element of the batch, stacked; exact for every operator. For an
 * empty batch, a call on zeros determines the shapes and dtypes.
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
 * Compute the jvp from a vjp. A vjp is linear in its cotangents. Its own vjp at
 * any cotangent, applied to the tangents, is therefore exactly the jvp.
 */
Arrays jvp_from_vjp(
    const std::function<Arrays(const Arrays&)>& pullback,
    const Arrays& outputs,
    const Arrays& tangents,
    StreamOrDevice s);

/**
 * An internal operator without some derivative. Users know only the public
 * operators whose formulas call it, which messages name.
 */
struct Internal {
  const char* op;
  const char* callers;
  bool twice; // only gradients call it, so that its callers have a first one
  std::vector<std::string> arguments; // that a caller has, too
};

/** Registers those of a package. */
struct Internals {
  explicit Internals(std::vector<Internal> of);
};

/** Raised by the vjp and jvp of arguments without a derivative. */
[[noreturn]] void not_differentiable(const char* op, const char* argument);

/**
 * An identity without a derivative, for such arguments of composites. Integers
 * and bools have a zero, and need no identity.
 */
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
    if (!mx::issubdtype(a.dtype(), mx::inexact)) {
      return a;
    }
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
Arrays without_gradients(const Arrays& inputs, StreamOrDevice s);

/** The composite's outputs with the transforms of `op` for the same inputs. */
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

/** The contribution of an argument to the jvp of every output; none means
 * zeros.
 */
struct Term {
  const char* argument;
  Arrays values = {};
};

/**
 * Compute a jvp as the sum of a term per argument; `i` is the index of the
 * tangent. The terms must have the outputs' shapes. They are converted to the
 * outputs' dtypes: one for each, or one for all.
 */
Arrays sum_of_terms(
    const char* op,
    const std::vector<int>& argnums,
    const std::function<Term(int arg, size_t i)>& term,
    const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes,
    const Stream& s);

/** The result of an argument's formula or function; none means zeros. */
struct Gradient {
  const char* argument;
  std::optional<array> value = std::nullopt;
};

/**
 * Compute the gradients of some inputs, each with `gradient`. Each must have
 * the shape of its input (`broadcast`: of the broadcast input). It is converted
 * to the input's dtype, but no integer becomes a float. Those of integers and
 * bools are zeros, because mx.checkpoint asks for the gradients of all inputs.
 */
Arrays gradients(
    const char* op,
    const std::vector<int>& argnums,
    const Arrays& primals,
    const std::function<Gradient(int arg)>& gradient,
    const Stream& s,
    bool broadcast = false);

/** Gradients that are computed together, checked to be `count` arrays. */
Arrays given_together(
    const char* op,
    const char* arguments,
    const std::function<Arrays()>& compute,
    size_t count);

/** The outputs of a composite, which must have these shapes and dtypes. */
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
 * Return `fun` with a custom gradient. Unlike mx::custom_function, it keeps
 * this gradient under vmap (vmap of the vjp), and derives the jvp from it.
 * Errors of the gradient name the operator.
 */
std::function<Arrays(const Arrays&)> with_gradient(
    const char* op,
    std::function<Arrays(const Arrays&)> fun,
    VjpFunction vjp);

} // namespace mlxgen
