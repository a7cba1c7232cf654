// The code that generated operators share, compiled once per library; op.h
// describes the functions.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>

#include "mlx/backend/common/utils.h"
#include "mlx/dtype_utils.h"
#include "mlxgen/cpu.h"
#include "mlxgen/formula.h"
#include "mlxgen/memory.h"
#include "mlxgen/op.h"
#include "mlxgen/shapeless.h"

namespace mlxgen {

std::string show(const Shape& shape) {
  std::ostringstream os;
  os << "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    os << (i ? ", " : "") << shape[i];
  }
  os << (shape.size() == 1 ? ",)" : ")");
  return os.str();
}

std::string show(const std::vector<int>& values) {
  return show(Shape(values.begin(), values.end()));
}

std::string show(Dtype dtype) {
  std::ostringstream os;
  os << dtype;
  return os.str();
}

std::string show(const array& a) {
  return show(a.dtype()) + " " + show(a.shape());
}

std::string show(const Arrays& arrays) {
  std::string text = "[";
  for (const auto& a : arrays) {
    text += (text.size() > 1 ? ", " : "") + show(a);
  }
  return text + "]";
}

std::string show(const std::string& text) {
  return "'" + text + "'";
}

std::string show(bool value) {
  return value ? "True" : "False";
}

std::string show(const Scalar& number) {
  return number.visit([](auto value) { return show(value); });
}

void fail(
    const char* op,
    const std::string& what,
    const std::vector<Shown>& args) {
  std::string text = "[" + std::string(op) + "] " + what;
  const char* separator = " Got ";
  for (const auto& [name, value] : args) {
    text += separator + std::string(name) + ": " + value;
    separator = ", ";
  }
  throw std::invalid_argument(text + (args.empty() ? "" : "."));
}

void fail(const char* op, const char* what, std::initializer_list<Given> args) {
  std::vector<Shown> shown;
  for (const auto& [name, value, text] : args) {
    shown.emplace_back(name, text(value));
  }
  fail(op, std::string(what), shown);
}

bool holds(bool (*call)(const void* check), const void* check) {
  try {
    return call(check);
  } catch (const std::logic_error&) { // an index, or mismatched shapes
  } catch (const std::overflow_error&) {
  }
  return false;
}

namespace {

/** Its message names an operator that the user called. */
struct NoDerivative : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

} // namespace

void fail_in(const char* op) {
  auto named = [op](const std::exception& error) {
    std::string text = error.what();
    auto name = "[" + std::string(op) + "] ";
    return text.starts_with(name) ? text : name + text;
  };
  // Python maps each of these to a different exception.
  try {
    throw;
  } catch (const NoDerivative&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(named(error));
  } catch (const std::domain_error& error) {
    throw std::domain_error(named(error));
  } catch (const std::out_of_range& error) {
    throw std::out_of_range(named(error));
  } catch (const std::overflow_error& error) {
    throw std::overflow_error(named(error));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(named(error));
  }
}

namespace {

KeySource key_source = [] {
  return mx::random::KeySequence::default_().next();
};

} // namespace

void set_key_source(KeySource source) {
  key_source = source;
}

mx::array random_key(const std::optional<mx::array>& key) {
  return key ? *key : key_source();
}

namespace {

/** Call `compute`; its errors name the operator. */
template <typename Compute>
auto naming(const char* op, const Compute& compute) {
  try {
    return compute();
  } catch (const std::exception&) {
    fail_in(op);
  }
}

/** Raise an error if a size is negative. */
void require_lengths(const std::vector<Shape>& shapes) {
  for (const auto& shape : shapes) {
    if (std::any_of(shape.begin(), shape.end(), [](auto n) { return n < 0; })) {
      throw std::invalid_argument(
          "The output shape " + show(shape) + " has a negative size.");
    }
  }
}

/** Arguments for a message; those without an array are None. */
std::vector<Shown> shown(const Operands& args) {
  std::vector<Shown> out;
  for (const auto& arg : args) {
    auto before = out.size();
    arg.each([&](const array& a) { out.emplace_back(arg.name, show(a)); });
    if (out.size() == before) {
      out.emplace_back(arg.name, "None");
    }
  }
  return out;
}

} // namespace

std::vector<Shape> checked_shapes(
    const char* op,
    std::vector<Shape> (*call)(const void* rule),
    const void* rule,
    std::initializer_list<Given> args) {
  try {
    auto shapes = call(rule);
    require_lengths(shapes);
    return shapes;
  } catch (const std::exception& error) {
    fail(op, error.what(), args);
  }
}

void require_one_shape(const char* op, const Arrays& inputs) {
  for (const auto& in : inputs) {
    if (in.shape() != inputs[0].shape()) {
      fail(
          op,
          "The compiled function requires inputs of the same shape.",
          std::vector<Shown>{{"inputs", show(inputs)}});
    }
  }
}

int choice(
    const char* op,
    const char* name,
    const std::string& value,
    std::initializer_list<const char*> choices,
    bool or_array) {
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
      "[" + std::string(op) + "] " + name + " must be " +
      (or_array ? "an array or " : "") + "one of " + all + ", got '" + value +
      "'.");
}

namespace {

/** The number of bytes of an array, which MLX computes modulo 2^64. */
double bytes_of(const Shape& shape, Dtype dtype) {
  double bytes = mx::size_of(dtype);
  for (auto length : shape) {
    bytes *= length;
  }
  return bytes;
}

constexpr double most_bytes = 0x1p47; // the address space of processors

/** Return true if this number of bytes can be allocated. */
bool is_available(double bytes) {
  if (bytes > most_bytes) {
    return false;
  }
  auto memory = ::operator new(static_cast<size_t>(bytes), std::nothrow);
  ::operator delete(memory);
  return memory != nullptr;
}

} // namespace

void no_memory(const Shape& shape, Dtype dtype) {
  throw std::runtime_error(
      "Cannot allocate an array of " + show(dtype) + " " + show(shape) + ".");
}

namespace {

/**
 * True if the node is MLX's Copy or StopGradient, whose output has the memory
 * of its input. MLX exports no type but that of the base class.
 */
bool shares_memory(Primitive& node) {
  auto type = typeid(node).name();
  return std::strcmp(type, "N3mlx4core4CopyE") == 0 ||
      std::strcmp(type, "N3mlx4core12StopGradientE") == 0;
}

/** True if `a` is row-contiguous, or will be when it is computed. */
bool is_row_contiguous(const array& a) {
  if (a.is_available()) {
    return a.flags().row_contiguous;
  }
  // Each argument of mx.grad is a Copy.
  if (a.has_primitive() && shares_memory(a.primitive())) {
    return is_row_contiguous(a.inputs()[0]);
  }
  auto from = a.has_primitive()
      ? dynamic_cast<RowContiguousOutputs*>(&a.primitive())
      : nullptr;
  return from != nullptr && from->row_contiguous();
}

/**
 * A row-contiguous array on the CPU. MLX's own function also copies an array
 * that is already row-contiguous if its buffer is much larger, to release the
 * buffer; kernels do not keep their inputs, so that this copy is not needed.
 */
class RowContiguous : public Primitive, public RowContiguousOutputs {
 public:
  using Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    if (inputs[0].flags().row_contiguous) {
      outputs[0].copy_shared_buffer(inputs[0]);
    } else {
      cpu::copy(stream(), inputs[0], outputs[0]);
    }
  }
  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::logic_error("[RowContiguous] The GPU uses MLX's own primitive.");
  }
  Arrays jvp(const Arrays&, const Arrays& tangents, const std::vector<int>&)
      override {
    return tangents;
  }
  Arrays vjp(
      const Arrays&,
      const Arrays& cotangents,
      const std::vector<int>&,
      const Arrays&) override {
    return cotangents;
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    return {{of(inputs[0], stream())}, axes};
  }
  const char* name() const override {
    return "RowContiguous";
  }
  bool row_contiguous() override {
    return true;
  }
  bool is_equivalent(const Primitive&) const override {
    return true;
  }
  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  /** `a`, unless it is known to be row-contiguous. */
  static array of(const array& a, const Stream& s) {
    if (is_row_contiguous(a)) {
      return a;
    }
    auto op = std::make_shared<RowContiguous>(s);
    return array(a.shape(), a.dtype(), std::move(op), {a});
  }
};

/** Integers as int32 on the CPU; those out of range become the nearest one. */
class ToInt32 : public Primitive, public RowContiguousOutputs {
 public:
  using Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    auto& encoder = cpu::begin(stream(), inputs, outputs);
    using Wide = Types<int64_t, uint32_t, uint64_t>;
    for_dtype(Wide(), inputs[0].dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      using Limits = std::numeric_limits<int32_t>;
      cpu::enqueue(
          encoder,
          inputs,
          outputs,
          [from = In<T>(inputs[0]), to = Out<int32_t>(outputs[0])] {
            for (int64_t i = 0; i < to.size(); ++i) {
              T low = std::is_signed_v<T> ? T(Limits::min()) : T(0);
              to[i] = static_cast<int32_t>(
                  std::clamp(from[i], low, T(Limits::max())));
            }
          });
    });
  }
  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::logic_error("[ToInt32] The GPU uses MLX's own primitives.");
  }
  Arrays jvp(const Arrays& primals, const Arrays&, const std::vector<int>&)
      override {
    return {mx::zeros(primals[0].shape(), mx::int32, stream())};
  }
  Arrays vjp(
      const Arrays& primals,
      const Arrays&,
      const std::vector<int>&,
      const Arrays&) override {
    return {mx::zeros_like(primals[0], stream())};
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    return {{of(inputs[0], stream())}, axes};
  }
  const char* name() const override {
    return "ToInt32";
  }
  bool row_contiguous() override {
    return true;
  }
  bool is_equivalent(const Primitive&) const override {
    return true;
  }
  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  static array of(const array& a, const Stream& s) {
    auto op = std::make_shared<ToInt32>(s);
    return array(
        a.shape(), mx::int32, std::move(op), {RowContiguous::of(a, s)});
  }
};

} // namespace

array to_dtype(const array& a, Dtype dtype, const Stream& s) {
  auto is_integer = [](Dtype d) { return mx::issubdtype(d, mx::integer); };
  if (a.dtype() == dtype || !is_integer(a.dtype()) || !is_integer(dtype)) {
    return mx::astype(a, dtype, s);
  }
  auto out = a;
  auto from = mx::iinfo(a.dtype());
  auto to = mx::iinfo(dtype);
  if (dtype == mx::int32 && from.max > to.max && s.device == mx::Device::cpu) {
    return ToInt32::of(a, s);
  }
  if (from.min < to.min && to.min == 0) {
    // Negative numbers become larger than all others of the same width.
    out = mx::astype(a, mx::uint64, s);
    from = mx::iinfo(mx::uint64);
  } else if (from.min < to.min) {
    out = mx::maximum(out, array(to.min, a.dtype()), s);
  }
  if (from.max > to.max) {
    out = mx::minimum(out, array(to.max, out.dtype()), s);
  }
  return mx::astype(out, dtype, s);
}

array ready(const array& a, Dtype dtype, const Stream& s, bool for_kernel) {
  auto out = to_dtype(a, dtype, s);
  if (!for_kernel || is_row_contiguous(out)) {
    return out;
  }
  // MLX does not check that it can allocate memory for the copy.
  auto bytes = bytes_of(out.shape(), dtype);
  if (bytes > 0x1p30 && !is_available(bytes)) {
    no_memory(out.shape(), dtype);
  }
  return s.device == mx::Device::cpu ? RowContiguous::of(out, s)
                                     : mx::contiguous(out, false, s);
}

namespace {

/** The shape to which arrays broadcast together, or none. */
std::optional<Shape> common_shape(const Arrays& arrays) {
  Shape shape;
  for (const auto& a : arrays) {
    shape.insert(
        shape.begin(), std::max(a.ndim(), shape.size()) - shape.size(), 1);
    for (size_t back = 1; back <= a.ndim(); ++back) {
      auto& length = shape[shape.size() - back];
      auto own = a.shape()[a.ndim() - back];
      if (own != 1 && length != 1 && own != length) {
        return {};
      }
      length = length == 1 ? own : length;
    }
  }
  return shape;
}

/**
 * Broadcast arrays to their common shape by strides of 0, without a node in the
 * graph. Not during a trace, in which the broadcast must be part of the graph;
 * return false in this case.
 */
bool spread(Arrays& inputs, const Shape& shape) {
  for (const auto& in : inputs) {
    bool fits = in.shape() == shape || in.is_available();
    if (!fits || in.size() == 0 || in.is_tracer()) {
      return false;
    }
  }
  for (auto& in : inputs) {
    if (in.shape() == shape) {
      continue;
    }
    array out(shape, in.dtype(), nullptr, {});
    mx::Strides strides(shape.size() - in.ndim(), 0);
    for (size_t i = 0; i < in.ndim(); ++i) {
      strides.push_back(in.shape()[i] == 1 ? 0 : in.strides()[i]);
    }
    auto flags = in.flags();
    if (out.size() != in.size()) {
      flags.row_contiguous = flags.col_contiguous = false;
    }
    out.copy_shared_buffer(in, strides, flags, in.data_size());
    out.set_status(array::Status::available);
    in = std::move(out);
  }
  return true;
}

} // namespace

Arrays elementwise_inputs(
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
  if (is_shapeless()) {
    same_shape = inputs.size() == 1; // other inputs may be broadcast later
  }
  if (same_dtype && same_shape) {
    return inputs;
  }
  auto shape = common_shape(inputs);
  if (same_dtype && shape && !is_shapeless() && spread(inputs, *shape)) {
    return inputs;
  }
  auto named = [&] {
    Operands args;
    auto name = names.begin();
    for (const auto& in : inputs) {
      args.emplace_back(*name++, in);
    }
    return args;
  };
  if (!shape) {
    fail(op, "The shapes cannot be broadcast together.", shown(named()));
  }
  if (!same_dtype) {
    dtype = rule.resolve(op, named());
    for (auto& in : inputs) {
      in = to_dtype(in, dtype, s);
    }
  }
  if (!same_shape) {
    inputs = broadcast_together(inputs, s);
  }
  return inputs;
}

const char* name_of(Backend backend) {
  return backend == Backend::cpu ? "cpu" : "metal";
}

std::optional<Backend> backend_of(const Stream& s) {
  if (s.device == mx::Device::cpu) {
    return Backend::cpu;
  }
#ifdef _METAL_
  return Backend::metal;
#else
  return std::nullopt;
#endif
}

std::vector<const Dispatch*>& dispatch_table() {
  static std::vector<const Dispatch*> table;
  return table;
}

Axes::Axes(const Arrays& arrays, const Shape& of, int64_t longest)
    : strides(arrays.size()) {
  shape.reserve(of.size());
  for (auto& own : strides) {
    own.reserve(of.size());
  }
  for (size_t axis = 0; axis < of.size(); ++axis) {
    if (of[axis] == 1) {
      continue;
    }
    bool follows = !shape.empty() && shape.back() * of[axis] <= longest;
    for (size_t i = 0; follows && i < arrays.size(); ++i) {
      follows = strides[i].back() == arrays[i].strides()[axis] * of[axis];
    }
    if (follows) {
      shape.back() *= of[axis];
    } else {
      shape.push_back(of[axis]);
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      auto stride = arrays[i].strides()[axis];
      if (follows) {
        strides[i].back() = stride;
      } else {
        strides[i].push_back(stride);
      }
    }
  }
  if (shape.empty()) {
    shape.push_back(1);
    for (auto& own : strides) {
      own.push_back(0);
    }
  }
}

bool is_repeated_scalar(const array& in) {
  return in.data_size() == 1 && in.size() > 1;
}

bool allocate_elementwise(const Arrays& inputs, Arrays& outputs) {
  auto fits = is_repeated_scalar;
  auto found = std::find_if_not(inputs.begin(), inputs.end(), fits);
  const auto& first = found == inputs.end() ? inputs[0] : *found;
  auto all = [&](auto&& holds) {
    return found != inputs.end() &&
        std::all_of(inputs.begin(), inputs.end(), [&](const array& in) {
             return fits(in) || holds(in);
           });
  };
  bool dense = all([](const array& in) { return in.flags().row_contiguous; });
  dense = dense || all([&](const array& in) {
            return in.flags().contiguous && in.data_size() == in.size() &&
                in.strides() == first.strides();
          });
  size_t next = 0;
  for (auto& out : outputs) {
    bool donated = false;
    for (; !donated && next < inputs.size(); ++next) {
      const auto& in = inputs[next];
      bool same = dense || in.flags().row_contiguous;
      if (same && !fits(in) && mx::is_donatable(in, out)) {
        out.copy_shared_buffer(in);
        donated = true;
      }
    }
    if (donated) {
      continue;
    }
    if (dense) {
      out.set_data(
          allocate(out), first.data_size(), first.strides(), first.flags());
    } else {
      out.set_data(allocate(out));
    }
  }
  return dense;
}

void donate(const Stream& s, const array& in, array& out, Copy copy) {
  if (in.flags().row_contiguous && mx::is_donatable(in, out)) {
    out.copy_shared_buffer(in);
  } else {
    copy(s, in, out);
  }
}

void require_donated(
    const char* op,
    const char* output,
    const Shape& shape,
    const char* input,
    const Shape& donated) {
  if (shape != donated) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] " + output + " has shape " + show(shape) +
        ", but takes over the values of " + input + ", which has shape " +
        show(donated) + ".");
  }
}

namespace {

/** The nearest number of a type. */
template <typename T>
T nearest(double value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr auto least = std::numeric_limits<T>::min();
    constexpr auto most = std::numeric_limits<T>::max();
    if (std::isnan(value)) {
      return 0;
    }
    return value <= double(least) ? least
        : value >= double(most)   ? most
                                  : static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

} // namespace

void fill(array& out, double value) {
  out.set_data(allocate(out));
  mx::dispatch_all_types(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::fill_n(out.data<T>(), out.size(), nearest<T>(value));
  });
}

void no_vmap(const char* op) {
  throw std::invalid_argument(
      "[" + std::string(op) +
      "] vmap is not supported: the entry declares `vmap: none`.");
}

int batch_size(const Arrays& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      return inputs[i].shape(axes[i]);
    }
  }
  return 1;
}

Arrays batch_to_front(
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

Arrays batch_in_front(
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

Arrays vmap_sequential(
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
      } else if (inputs[i].size() > 0) {
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

Arrays jvp_from_vjp(
    const std::function<Arrays(const Arrays&)>& pullback,
    const Arrays& outputs,
    const Arrays& tangents,
    StreamOrDevice s) {
  Arrays cotangents;
  for (const auto& out : outputs) {
    cotangents.push_back(mx::zeros_like(out, s));
  }
  // Several arguments may have the same array as gradient; mx::vjp would use
  // only the first of its tangents.
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

namespace {

std::vector<Internal>& internal_operators() {
  static std::vector<Internal> table;
  return table;
}

} // namespace

Internals::Internals(std::vector<Internal> of) {
  internal_operators() = std::move(of);
}

void not_differentiable(const char* op, const char* argument) {
  std::string name = op;
  bool named = true;
  bool twice = false;
  for (const auto& row : internal_operators()) {
    if (name == row.op) {
      const auto& known = row.arguments;
      name = row.callers;
      named = std::find(known.begin(), known.end(), argument) != known.end();
      twice = row.twice;
      break;
    }
  }
  std::string text = "[" + name + "] Not differentiable";
  if (twice) {
    text += " twice";
  }
  if (named) {
    text += std::string(" with respect to '") + argument + "'";
  }
  const char* advice[2][2]{
      {". Use mx.stop_gradient on the result.",
       ", nor with mx.jvp. Use mx.grad or mx.vjp, once."},
      {". Use mx.stop_gradient on it, or leave it out of argnums.",
       ". Use mx.stop_gradient on it in one of the derivatives, or leave it "
       "out of argnums there."},
  };
  throw NoDerivative(text + advice[named][twice]);
}

Arrays zeros_for(const Arrays& primals, const Stream& s) {
  Arrays out;
  for (const auto& p : primals) {
    out.push_back(mx::zeros_like(p, s));
  }
  return out;
}

namespace {

/**
 * An identity of a composite's outputs with the transforms of the operator, not
 * those of the composite. Its inputs are the operator's inputs, followed by the
 * composite's outputs.
 */
class StandIn : public Primitive {
 public:
  StandIn(std::shared_ptr<Primitive> op, size_t outputs)
      : Primitive(op->stream()), op_(std::move(op)), outputs_(outputs) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    share(inputs, outputs);
  }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    share(inputs, outputs);
  }
  // The composite's outputs have no tangents and need no gradients.
  Arrays jvp(
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) override {
    return op_->jvp(own(primals), tangents, argnums);
  }
  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) override {
    return op_->vjp(own(primals), cotangents, argnums, outputs);
  }
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs,
      const std::vector<int>& axes) override {
    return op_->vmap(own(inputs), own(axes));
  }
  const char* name() const override {
    return op_->name();
  }
  bool is_equivalent(const Primitive& other) const override {
    const auto& op = *static_cast<const StandIn&>(other).op_;
    return typeid(*op_) == typeid(op) && op_->is_equivalent(op);
  }
  std::vector<Shape> output_shapes(const Arrays& inputs) override {
    std::vector<Shape> shapes;
    for (size_t i = inputs.size() - outputs_; i < inputs.size(); ++i) {
      shapes.push_back(inputs[i].shape());
    }
    return shapes;
  }

 private:
  template <typename T>
  std::vector<T> own(const std::vector<T>& values) const {
    return {values.begin(), values.end() - outputs_};
  }
  void share(const Arrays& inputs, Arrays& outputs) const {
    for (size_t i = 0; i < outputs_; ++i) {
      outputs[i].copy_shared_buffer(inputs[inputs.size() - outputs_ + i]);
    }
  }

  std::shared_ptr<Primitive> op_;
  size_t outputs_;
};

} // namespace

Arrays without_gradients(const Arrays& inputs, StreamOrDevice s) {
  Arrays out;
  for (const auto& in : inputs) {
    out.push_back(mx::stop_gradient(in, s));
  }
  return out;
}

Arrays
stand_in(std::shared_ptr<Primitive> op, Arrays inputs, const Arrays& outputs) {
  std::vector<Shape> shapes;
  for (const auto& out : outputs) {
    shapes.push_back(out.shape());
    inputs.push_back(out);
  }
  return array::make_arrays(
      std::move(shapes),
      dtypes_of(outputs),
      std::make_shared<StandIn>(std::move(op), outputs.size()),
      std::move(inputs));
}

Arrays with_arguments(
    Arrays inputs,
    const std::vector<int>& argnums,
    const Arrays& values) {
  for (size_t i = 0; i < argnums.size(); ++i) {
    inputs[argnums[i]] = values[i];
  }
  return inputs;
}

Arrays composite_vjp(
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

Arrays composite_jvp(
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

namespace {

bool is_inexact(Dtype dtype) {
  return mx::issubdtype(dtype, mx::inexact);
}

/** Return true if a derivative matches a value of that shape and dtype. */
bool fits(const array& derivative, const Shape& shape, Dtype dtype) {
  return derivative.shape() == shape &&
      (is_inexact(derivative.dtype()) || !is_inexact(dtype));
}

/** Raise an error with the shapes, or else the dtypes, of `what` and `other`.
 */
[[noreturn]] void differ(
    const char* op,
    const std::string& what,
    const array& a,
    const std::string& other,
    const Shape& shape,
    Dtype dtype) {
  bool same = a.shape() == shape;
  auto has = same ? " has dtype " : " has shape ";
  auto tell = [&](const Shape& shape, Dtype dtype) {
    return has + (same ? show(dtype) : show(shape));
  };
  throw std::invalid_argument(
      "[" + std::string(op) + "] " + what + tell(a.shape(), a.dtype()) +
      ", but " + other + tell(shape, dtype) + ".");
}

Stream stream_of(const array& a) {
  return a.has_primitive() ? a.primitive().stream() : mx::to_stream({});
}

std::string output(size_t k, size_t count) {
  return count > 1 ? "output " + std::to_string(k) : "the output";
}

/** Sum a gradient over the axes along which its argument was broadcast. */
array unbroadcast(const array& grad, const Shape& shape, const Stream& s) {
  int extra = static_cast<int>(grad.ndim()) - static_cast<int>(shape.size());
  if (extra < 0 || grad.shape() == shape) {
    return grad;
  }
  std::vector<int> axes;
  for (int i = 0; i < static_cast<int>(grad.ndim()); ++i) {
    if (i < extra || (shape[i - extra] == 1 && grad.shape(i) != 1)) {
      axes.push_back(i);
    } else if (shape[i - extra] != grad.shape(i)) {
      return grad;
    }
  }
  return mx::reshape(mx::sum(grad, axes, true, s), shape, s);
}

} // namespace

Arrays sum_of_terms(
    const char* op,
    const std::vector<int>& argnums,
    const std::function<Term(int arg, size_t i)>& term,
    const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes,
    const Stream& s) {
  auto dtype = [&](size_t k) { return dtypes[std::min(k, dtypes.size() - 1)]; };
  Arrays jvps;
  for (size_t i = 0; i < argnums.size(); ++i) {
    auto [argument, values] = naming(op, [&] { return term(argnums[i], i); });
    for (size_t k = 0; k < values.size(); ++k) {
      if (!fits(values[k], shapes[k], dtype(k))) {
        auto what = "The jvp of '" + std::string(argument) + "'";
        auto other = output(k, shapes.size());
        differ(op, what, values[k], other, shapes[k], dtype(k));
      }
      auto one = mx::astype(values[k], dtype(k), s);
      if (k < jvps.size()) {
        jvps[k] = mx::add(jvps[k], one, s);
      } else {
        jvps.push_back(std::move(one));
      }
    }
  }
  for (size_t k = jvps.size(); k < shapes.size(); ++k) {
    jvps.push_back(mx::zeros(shapes[k], dtype(k), s));
  }
  return jvps;
}

Arrays gradients(
    const char* op,
    const std::vector<int>& argnums,
    const Arrays& primals,
    const std::function<Gradient(int arg)>& gradient,
    const Stream& s,
    bool broadcast) {
  Arrays out;
  out.reserve(argnums.size());
  for (int arg : argnums) {
    const auto& primal = primals[arg];
    if (!is_inexact(primal.dtype())) {
      out.push_back(mx::zeros_like(primal, s));
      continue;
    }
    auto [argument, value] = naming(op, [&] { return gradient(arg); });
    if (!value) {
      out.push_back(mx::zeros_like(primal, s));
      continue;
    }
    auto one =
        broadcast ? unbroadcast(*value, primal.shape(), s) : *std::move(value);
    if (!fits(one, primal.shape(), primal.dtype())) {
      auto name = "'" + std::string(argument) + "'";
      auto what = "The gradient of " + name;
      differ(op, what, one, name, primal.shape(), primal.dtype());
    }
    bool same = one.dtype() == primal.dtype();
    out.push_back(same ? std::move(one) : mx::astype(one, primal.dtype(), s));
  }
  return out;
}

Arrays given_together(
    const char* op,
    const char* arguments,
    const std::function<Arrays()>& compute,
    size_t count) {
  auto gradients = naming(op, compute);
  if (gradients.size() != count) {
    throw std::invalid_argument(
        "[" + std::string(op) + "] The gradient of '" + arguments + "' has " +
        std::to_string(gradients.size()) + " arrays, expected " +
        std::to_string(count) + ".");
  }
  return gradients;
}

Arrays composed(
    const char* op,
    Arrays outputs,
    const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes) {
  auto is_floating = [](Dtype d) { return mx::issubdtype(d, mx::floating); };
  for (size_t k = 0; k < outputs.size(); ++k) {
    auto& out = outputs[k];
    auto dtype = dtypes.empty() ? out.dtype() : dtypes[k];
    if (out.shape() == shapes[k] && out.dtype() == dtype) {
      continue;
    }
    if (out.shape() != shapes[k] || !is_floating(out.dtype()) ||
        !is_floating(dtype)) {
      auto what = "In the composite, " + output(k, shapes.size());
      differ(op, what, out, "the kernel's", shapes[k], dtype);
    }
    out = mx::astype(out, dtype, stream_of(out));
  }
  return outputs;
}

std::vector<Dtype> dtypes_of(const Arrays& arrays) {
  std::vector<Dtype> dtypes;
  for (const auto& a : arrays) {
    dtypes.push_back(a.dtype());
  }
  return dtypes;
}

std::vector<int> all_of(const Arrays& inputs) {
  std::vector<int> indices(inputs.size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

namespace {

std::function<Arrays(const Arrays&)> differentiable(
    std::function<Arrays(const Arrays&)> fun,
    VjpFunction vjp) {
  auto jvp = [fun, vjp](
                 const Arrays& primals,
                 const Arrays& tangents,
                 const std::vector<int>& argnums) {
    // Outputs with the custom gradient, for derivatives of this derivative.
    auto outputs = differentiable(fun, vjp)(primals);
    auto s = stream_of(outputs[0]);
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
        // The gradient of an input without a batch axis is the sum over the
        // batch.
        grads[i] = axes[i] < 0 ? mx::sum(grads[i], 0)
                               : mx::moveaxis(grads[i], 0, axes[i]);
      }
      return grads;
    };
    auto outputs = differentiable(batched_fun, batched_vjp)(inputs);
    return {outputs, std::vector<int>(outputs.size(), 0)};
  };
  // mx::jvp also differentiates the functions inside of `fun`, which may have
  // no jvp, unless no tangent reaches them.
  auto forward = [fun](const Arrays& inputs) {
    return fun(without_gradients(inputs, {}));
  };
  return mx::custom_function(forward, std::move(vjp), jvp, vmap);
}

/**
 * Whether this thread traces a function. The flags of a function's own inputs
 * do not tell: mx::jvp clears them before it computes tangents.
 */
bool in_transformation() {
  static const auto* tracer = [] {
    auto* x = new array(0); // never destroyed: the process just ends
    x->set_tracer(true);
    return x;
  }();
  return tracer->is_tracer(); // false outside of transformations
}

} // namespace

std::function<Arrays(const Arrays&)> with_gradient(
    const char* op,
    std::function<Arrays(const Arrays&)> fun,
    VjpFunction vjp) {
  auto named = [op, vjp = std::move(vjp)](
                   const Arrays& primals,
                   const Arrays& cotangents,
                   const Arrays& outputs) {
    return naming(op, [&] { return vjp(primals, cotangents, outputs); });
  };
  return [fun = std::move(fun), named](const Arrays& inputs) {
    return in_transformation() ? differentiable(fun, named)(inputs)
                               : fun(inputs);
  };
}

Dtype DtypeRule::resolve(const char* op, const Operands& args) const {
  std::optional<Dtype> dtype;
  for (const auto& arg : args) {
    arg.each([&](const array& a) {
      dtype = dtype ? mx::promote_types(*dtype, a.dtype()) : a.dtype();
    });
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
  // An index of another integer type is cast to the kernel's type.
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
      shown(args));
}

void DtypeRule::require(const char* op, const Operands& args) const {
  Operands present;
  for (const auto& arg : args) {
    arg.each([&](const array& a) { present.emplace_back(arg.name, a); });
  }
  if (!present.empty()) {
    resolve(op, present);
  }
}

Dtype DtypeRule::resolve_sums(const char* op, Dtype dtype, const Operands& args)
    const {
  auto sums = mx::promote_types(dtype, mx::float32);
  for (const auto& arg : args) {
    arg.each([&](const array& a) {
      if (mx::promote_types(resolve(op, {{arg.name, a}}), sums) != sums) {
        auto what = "dtype float64 is not supported with " + show(dtype) + ".";
        fail(op, what, shown(args));
      }
    });
  }
  return sums;
}

void unmet(const char* op, const Need& need) {
  std::ostringstream os;
  os << "[" << op << "] The Metal kernel supports " << need.what << " up to "
     << need.most << ", got " << need.value << ".";
  throw std::invalid_argument(os.str());
}

namespace {

/** The first parameter that is too large for a kernel. */
const Need* too_much(const Needs& needs) {
  for (const auto& need : needs) {
    if (need.value > need.most) {
      return &need;
    }
  }
  return nullptr;
}

} // namespace

bool Dispatch::has_kernel(
    const Stream& s,
    Dtype dtype,
    const std::function<Needs()>& needs) const {
  auto backend = backend_of(s);
#ifdef MLXGEN_EMULATE_METAL
  if (backend == Backend::cpu && emulates(dtype)) {
    backend = Backend::metal;
  }
#endif
  auto row = backend ? find(*backend) : nullptr;
  return row != nullptr &&
      std::find(row->dtypes.begin(), row->dtypes.end(), dtype) !=
      row->dtypes.end() &&
      !(needs && backend == Backend::metal && too_much(naming(op, needs)));
}

void Dispatch::require(
    const Stream& s,
    Dtype dtype,
    const std::function<Needs()>& needs) const {
  if (has_kernel(s, dtype, needs)) {
    return;
  }
  if (has_kernel(s, dtype)) {
    auto all = naming(op, needs);
    unmet(op, *too_much(all));
  }
  std::ostringstream os;
  os << "[" << op << "] No kernel for " << dtype << " on the "
     << (s.device == mx::Device::cpu ? "CPU" : "GPU") << "; kernels exist for ";
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

void Dispatch::run(
    Backend backend,
    Primitive& self,
    const Arrays& inputs,
    Arrays& outputs) const {
  for (const auto& out : outputs) {
    if (bytes_of(out.shape(), out.dtype()) > most_bytes) {
      no_memory(out.shape(), out.dtype());
    }
  }
#ifdef MLXGEN_EMULATE_METAL
  auto is_double = [](const array& a) { return a.dtype() == mx::float64; };
  if (backend == Backend::cpu && find(Backend::metal) != nullptr &&
      emulates(mx::float32) &&
      std::none_of(inputs.begin(), inputs.end(), is_double) &&
      std::none_of(outputs.begin(), outputs.end(), is_double)) {
    backend = Backend::metal;
  }
#endif
  if (auto row = find(backend); row != nullptr) {
    return naming(op, [&] { row->launch(self, inputs, outputs); });
  }
  throw std::runtime_error(
      "[" + std::string(op) + "] No kernel for the " + name_of(backend) +
      " backend.");
}

#ifdef MLXGEN_EMULATE_METAL
bool Dispatch::emulates(Dtype dtype) const {
  return dtype != mx::float64 &&
      (has_composite || find(Backend::metal) != nullptr) &&
      std::getenv("MLXGEN_METAL_EMULATION") != nullptr;
}
#endif

} // namespace mlxgen
