// The Python side of generated bindings: streams, results, and arguments that
// accept scalars and arrays. Scalars are weakly typed, as in mlx.core's own
// ops, whose converters are not in MLX's public headers.

#pragma once

#include <complex>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "mlx/mlx.h"
#include "mlxgen/number.h"

namespace mlxgen {

namespace mx = mlx::core;
namespace nb = nanobind;

/** An argument of type `scalar | array`. */
class ArrayArg {
 public:
  ArrayArg() = default;

  /** The dtype for promotion; a scalar has none. */
  std::optional<mx::Dtype> dtype() const {
    return array_ && !weak_ ? std::optional(array_->dtype()) : std::nullopt;
  }

  /**
   * Return the array; a scalar takes the dtype `like` if its kind allows it, as
   * in mlx.core. If `like` is the argument's `fixed` dtype, arrays are cast to
   * it elsewhere.
   */
  mx::array get(std::optional<mx::Dtype> like, bool fixed = false) const {
    if (array_) {
      // Indices and masks next to floats stay integers and bools; for other
      // arguments, promotion yields the floats' dtype.
      bool other = like && mx::issubdtype(*like, mx::inexact) &&
          !mx::issubdtype(array_->dtype(), mx::inexact);
      bool weak = weak_ && like && !other &&
          !(fixed && mx::issubdtype(*like, mx::integer));
      return weak ? mx::astype(*array_, *like) : *array_;
    }
    if (auto v = std::get_if<bool>(&scalar_)) {
      return mx::array(*v, like.value_or(mx::bool_));
    }
    if (auto v = std::get_if<int64_t>(&scalar_)) {
      return from_int(*v, like);
    }
    auto v = std::get<double>(scalar_);
    auto dtype = like.value_or(mx::float32);
    if (!mx::issubdtype(dtype, mx::inexact)) {
      dtype = mx::float32;
    }
    return dtype == mx::float64 ? mx::array(v, dtype)
                                : mx::array(static_cast<float>(v), dtype);
  }

  /** Load `src` if it is an array or can represent one; Flags is nanobind's. */
  template <typename Flags>
  bool load(nb::handle src, Flags flags, nb::detail::cleanup_list* cleanup) {
    // One caster loads all elements of a list.
    array_.reset();
    weak_ = false;
    *this = ArrayArg(); // nanobind reuses casters for the items of a list
    nb::detail::type_caster_base<mx::array> caster;
    constexpr auto convert =
        static_cast<Flags>(nb::detail::cast_flags::convert);
    if (caster.from_python(src, flags & ~convert, cleanup)) {
      auto found = caster.operator mx::array*();
      if (found == nullptr) { // None
        return false;
      }
      array_ = *found;
      return true;
    }
    return load_scalar(src) || load_foreign(src);
  }

 private:
  bool load_scalar(nb::handle src);
  bool load_foreign(nb::handle src);

  static mx::array from_int(int64_t v, std::optional<mx::Dtype> like) {
    bool wide = v > std::numeric_limits<int32_t>::max() ||
        v < std::numeric_limits<int32_t>::min();
    auto dtype = like.value_or(wide ? mx::int64 : mx::int32);
    if (dtype == mx::bool_) {
      dtype = mx::int32;
    }
    if (mx::issubdtype(dtype, mx::integer) && dtype.size() < 8) {
      auto info = mx::iinfo(dtype);
      if (v < info.min || v > static_cast<int64_t>(info.max)) {
        std::ostringstream os;
        os << "Converting " << v << " to " << dtype
           << " would result in overflow.";
        throw std::invalid_argument(os.str());
      }
    }
    return mx::array(v, dtype);
  }

  std::optional<mx::array> array_;
  bool weak_ = false; // a NumPy scalar, which is weakly typed in mlx.core, too
  std::variant<bool, int64_t, double> scalar_;
};

inline bool ArrayArg::load_scalar(nb::handle src) {
  auto object = src.ptr();
  if (PyFloat_Check(object)) {
    scalar_ = PyFloat_AS_DOUBLE(object);
    return true;
  }
  if (PyBool_Check(object)) {
    scalar_ = object == Py_True;
    return true;
  }
  if (PyLong_Check(object)) {
    int overflow = 0;
    int64_t v = PyLong_AsLongLongAndOverflow(object, &overflow);
    scalar_ = v;
    return overflow == 0;
  }
  if (PyComplex_Check(object)) {
    auto c = PyComplex_AsCComplex(object);
    array_ = mx::array(std::complex<float>(c.real, c.imag));
    return true;
  }
  return false;
}

// NumPy arrays and scalars, and objects with a conversion to arrays. Other
// objects (lists, strings, None) are not arrays, as in mlx.core's ops.
inline bool ArrayArg::load_foreign(nb::handle src) {
  if (nb::hasattr(src, "__mlx_array__")) {
    array_ = nb::cast<mx::array>(src.attr("__mlx_array__")());
    return true;
  }
  if (!nb::hasattr(src, "__array__") && !nb::hasattr(src, "__dlpack__")) {
    return false;
  }
  array_ = nb::cast<mx::array>(nb::type<mx::array>()(src));
  weak_ = true;
  return true;
}

/** The dtype for scalars that are passed together with these arguments. */
template <typename... Args>
std::optional<mx::Dtype> weak_dtype(const Args&... args) {
  std::optional<mx::Dtype> dtype;
  auto add = [&](const ArrayArg& arg) {
    if (auto d = arg.dtype()) {
      dtype = dtype ? mx::promote_types(*dtype, *d) : *d;
    }
  };
  auto visit = [&](const auto& arg) {
    using T = std::decay_t<decltype(arg)>;
    if constexpr (std::is_same_v<T, ArrayArg>) {
      add(arg);
    } else {
      for (const auto& item : as_range(arg)) {
        add(item);
      }
    }
  };
  (visit(args), ...);
  return dtype;
}

inline std::vector<ArrayArg> as_range(const std::optional<ArrayArg>& arg) {
  return arg ? std::vector<ArrayArg>{*arg} : std::vector<ArrayArg>{};
}
inline const std::vector<ArrayArg>& as_range(const std::vector<ArrayArg>& arg) {
  return arg;
}

inline mx::array
get(const ArrayArg& arg, std::optional<mx::Dtype> like, bool fixed = false) {
  return arg.get(like, fixed);
}
inline std::optional<mx::array> get(
    const std::optional<ArrayArg>& arg,
    std::optional<mx::Dtype> like,
    bool fixed = false) {
  return arg ? std::optional(arg->get(like, fixed)) : std::nullopt;
}
inline std::vector<mx::array> get(
    const std::vector<ArrayArg>& args,
    std::optional<mx::Dtype> like,
    bool fixed = false) {
  std::vector<mx::array> out;
  for (const auto& arg : args) {
    out.push_back(arg.get(like, fixed));
  }
  return out;
}

inline std::vector<std::optional<mx::array>> get(
    const std::vector<std::optional<ArrayArg>>& args,
    std::optional<mx::Dtype> like) {
  std::vector<std::optional<mx::array>> out;
  for (const auto& arg : args) {
    out.push_back(get(arg, like));
  }
  return out;
}

/** A stream argument: None, a stream, a device or a device type. */
struct StreamArg {
  mx::StreamOrDevice value;
};

/** A Python int, which may exceed the integers of C++. */
struct IntArg {
  std::optional<int64_t> value; // none if it exceeds 64 bits
};

/** Convert to a C++ int; if it overflows, raise an error that names the
 * argument.
 */
template <typename Int>
Int to_int(const IntArg& arg, const char* op, const char* name) {
  using Limits = std::numeric_limits<Int>;
  if (!arg.value || *arg.value < Limits::min() || *arg.value > Limits::max()) {
    std::ostringstream os;
    os << "[" << op << "] " << name << " must be from " << Limits::min()
       << " to " << Limits::max();
    if (arg.value) {
      os << ", got " << *arg.value;
    }
    os << ".";
    throw std::overflow_error(os.str());
  }
  return static_cast<Int>(*arg.value);
}
template <typename Int>
std::optional<Int>
to_int(const std::optional<IntArg>& arg, const char* op, const char* name) {
  return arg ? std::optional(to_int<Int>(*arg, op, name)) : std::nullopt;
}

/** A Python number: bool, int or float. */
struct NumberArg {
  std::optional<Scalar> value; // none for an int that exceeds 64 bits
};

inline Scalar
to_number(const NumberArg& arg, const char* op, const char* name) {
  if (!arg.value) {
    std::ostringstream os;
    os << "[" << op << "] " << name << " must be an int of 64 bits or a float.";
    throw std::overflow_error(os.str());
  }
  return *arg.value;
}
inline std::optional<Scalar> to_number(
    const std::optional<NumberArg>& arg,
    const char* op,
    const char* name) {
  return arg ? std::optional(to_number(*arg, op, name)) : std::nullopt;
}

/** An array or a string: two arguments in C++, of which one is given. */
using StringOrArray = std::variant<std::string, ArrayArg>;

inline std::pair<std::optional<std::string>, std::optional<ArrayArg>>
string_and_array(const std::optional<StringOrArray>& arg) {
  if (!arg) {
    return {};
  }
  if (auto string = std::get_if<std::string>(&*arg)) {
    return {*string, std::nullopt};
  }
  return {std::nullopt, std::get<ArrayArg>(*arg)};
}

/** `axis=`: None, one axis or several. */
using AxesArg = std::variant<std::monostate, int, std::vector<int>>;

inline std::optional<std::vector<int>> to_axes(const AxesArg& axes) {
  if (auto one = std::get_if<int>(&axes)) {
    return std::vector<int>{*one};
  }
  if (auto many = std::get_if<std::vector<int>>(&axes)) {
    return *many;
  }
  return std::nullopt;
}

/** A number of integers, or one integer that is used for all of them. */
using IntsArg = std::variant<IntArg, std::vector<IntArg>>;

inline std::vector<int>
to_list(const std::vector<IntArg>& list, const char* op, const char* name) {
  std::vector<int> out;
  for (const auto& item : list) {
    out.push_back(to_int<int>(item, op, name));
  }
  return out;
}

/** One integer, also in a list, is repeated; the operator checks the number. */
inline std::vector<int>
to_ints(const IntsArg& ints, size_t count, const char* op, const char* name) {
  if (auto one = std::get_if<IntArg>(&ints)) {
    return std::vector<int>(count, to_int<int>(*one, op, name));
  }
  auto list = to_list(std::get<1>(ints), op, name);
  return list.size() == 1 ? std::vector<int>(count, list[0]) : list;
}
inline std::optional<std::vector<int>> to_ints(
    const std::optional<IntsArg>& ints,
    size_t count,
    const char* op,
    const char* name) {
  return ints ? std::optional(to_ints(*ints, count, op, name)) : std::nullopt;
}

inline mx::Shape
to_shape(const std::vector<IntArg>& shape, const char* op, const char* name) {
  auto list = to_list(shape, op, name);
  return mx::Shape(list.begin(), list.end());
}
inline std::optional<mx::Shape> to_shape(
    const std::optional<std::vector<IntArg>>& shape,
    const char* op,
    const char* name) {
  return shape ? std::optional(to_shape(*shape, op, name)) : std::nullopt;
}

/** Several outputs, as the tuple that Python expects. */
inline nb::tuple as_tuple(const std::vector<mx::array>& outputs) {
  nb::list items;
  for (const auto& out : outputs) {
    items.append(nb::cast(out));
  }
  return nb::tuple(items);
}

/** A single output by itself. */
inline nb::object array_or_tuple(const std::vector<mx::array>& outputs) {
  return outputs.size() == 1 ? nb::cast(outputs[0]) : as_tuple(outputs);
}
inline nb::object array_or_list(const std::vector<mx::array>& outputs) {
  return outputs.size() == 1 ? nb::cast(outputs[0]) : nb::cast(outputs);
}

/** The arrays of `*arrays`; another overload may accept other arguments. */
inline std::vector<ArrayArg> array_args(const nb::args& given) {
  std::vector<ArrayArg> arrays;
  for (auto item : given) {
    ArrayArg array;
    if (!nb::try_cast(item, array)) {
      throw nb::next_overload();
    }
    arrays.push_back(array);
  }
  return arrays;
}

/** The array object that gets the new value: the target of `relu_` or `out`. */
inline mx::array& target(nb::handle object, const char* op, const char* name) {
  mx::array* found = nullptr;
  if (!nb::try_cast(object, found, false) || found == nullptr) {
    std::ostringstream os;
    os << "[" << op << "] " << name << " must be an mx.array, which gets the "
       << "new value, not " << nb::type_name(object.type()).c_str() << ".";
    throw nb::type_error(os.str().c_str());
  }
  return *found;
}

/**
 * Return the result as a new array. If `out` is an array, that object gets the
 * value and is returned, as in MLX's `out += x`.
 */
inline nb::object
assigned(nb::handle out, const mx::array& result, const char* op) {
  if (out.is_none()) {
    return nb::cast(result);
  }
  target(out, op, "out").overwrite_descriptor(result);
  return nb::borrow(out);
}
inline nb::object assigned(
    nb::handle out,
    const std::vector<mx::array>& results,
    const char* op) {
  if (out.is_none()) {
    return as_tuple(results);
  }
  bool listed = nb::isinstance<nb::tuple>(out) || nb::isinstance<nb::list>(out);
  if (!listed || nb::len(out) != results.size()) {
    std::ostringstream os;
    os << "[" << op << "] out must be a tuple of " << results.size()
       << " arrays.";
    throw nb::type_error(os.str().c_str());
  }
  std::vector<mx::array*> targets; // all are checked before the first changes
  for (auto item : out) {
    targets.push_back(&target(item, op, "each item of out"));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    targets[i]->overwrite_descriptor(results[i]);
  }
  return nb::tuple(out);
}

/**
 * Return a docstring as a pointer: nanobind compiles a function's definition
 * for each type of its arguments, and the type of a literal has its length.
 */
constexpr const char* doc(const char* text) {
  return text;
}

/**
 * Define the in-place variant of a function: it calls the function, and gives
 * the value to the object of the argument `name` at `index`.
 */
inline void def_inplace(
    nb::module_ module,
    const char* function,
    const char* variant,
    const char* name,
    size_t index,
    const char* signature,
    const char* documentation) {
  nb::handle in = module; // which outlives its functions
  module.def(
      variant,
      [=](nb::args args, nb::kwargs kwargs) {
        nb::object object = nb::none();
        if (index < args.size()) {
          object = args[index];
        } else if (kwargs.contains(name)) {
          object = kwargs[name];
        }
        auto& array = target(object, variant, name);
        nb::object result = in.attr(function)(*args, **kwargs);
        mx::array* value = nullptr;
        if (!nb::try_cast(result, value, false) || value == nullptr) {
          std::ostringstream os;
          os << "[" << variant << "] This overload of " << function
             << " has no in-place variant, because it returns several arrays.";
          throw nb::type_error(os.str().c_str());
        }
        array.overwrite_descriptor(*value);
        return object;
      },
      nb::sig(signature),
      documentation);
}

/** The module whose attribute `_advance` is `mx.random.uniform`. */
inline nb::handle key_module;

/**
 * Return the next key of `mx.random.state`, which `mx.random.seed` sets. Python
 * cannot write this state, so that MLX's own function advances it.
 */
inline mx::array next_key() {
  nb::gil_scoped_acquire lock;
  auto random = nb::module_::import_("mlx.core").attr("random");
  auto key = nb::cast<mx::array>(random.attr("state")[0]);
  key_module.attr("_advance")();
  return mx::random::split(key).second;
}

/** Keep MLX's function, which a user may replace by one of this module. */
inline void keep_advance(nb::module_ module) {
  key_module = module;
  module.attr("_advance") =
      nb::module_::import_("mlx.core").attr("random").attr("uniform");
}

/** Return the submodule at a dotted path; create it on first use. */
inline nb::module_ submodule(nb::module_ root, std::string path) {
  while (!path.empty()) {
    auto dot = path.find('.');
    auto name = path.substr(0, dot);
    path = dot == std::string::npos ? "" : path.substr(dot + 1);
    root = nb::hasattr(root, name.c_str())
        ? nb::borrow<nb::module_>(root.attr(name.c_str()))
        : root.def_submodule(name.c_str());
  }
  return root;
}

/** Define `__all__`, so that `import *` also finds `_softmax`. */
inline void list_functions(nb::module_ module) {
  nb::list names;
  for (auto [name, value] : nb::cast<nb::dict>(module.attr("__dict__"))) {
    auto special = nb::cast<std::string>(name).rfind("__", 0) == 0;
    if (!special && !PyModule_Check(value.ptr())) {
      names.append(name);
    }
  }
  module.attr("__all__") = names;
}

/** Warn about a deprecated operator, once per call site, as Python does. */
inline void warn_deprecated(const char* message) {
  if (PyErr_WarnEx(PyExc_DeprecationWarning, message, 1) != 0) {
    throw nb::python_error();
  }
}

} // namespace mlxgen

namespace nanobind::detail {

template <>
struct type_caster<mlxgen::ArrayArg> {
  NB_TYPE_CASTER(mlxgen::ArrayArg, const_name("scalar | array"))

  template <typename Flags>
  bool from_python(handle src, Flags flags, cleanup_list* cleanup) noexcept {
    try {
      return value.load(src, flags, cleanup);
    } catch (...) {
      return false;
    }
  }
};

template <>
struct type_caster<mlxgen::IntArg> {
  NB_TYPE_CASTER(mlxgen::IntArg, const_name("int"))

  template <typename Flags>
  bool from_python(handle src, Flags flags, cleanup_list*) noexcept {
    // The first of two passes over overloads accepts no bools and NumPy
    // scalars.
    constexpr auto convert = static_cast<Flags>(cast_flags::convert);
    if ((flags & convert) == 0 && !PyLong_CheckExact(src.ptr())) {
      return false;
    }
    auto index = steal(PyNumber_Index(src.ptr()));
    if (!index.is_valid()) {
      PyErr_Clear();
      return false;
    }
    int overflow = 0;
    int64_t v = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    value.value = overflow ? std::nullopt : std::optional(v);
    return true;
  }
};

template <>
struct type_caster<mlxgen::NumberArg> {
  NB_TYPE_CASTER(mlxgen::NumberArg, const_name("int | float"))

  template <typename Flags>
  bool from_python(handle src, Flags flags, cleanup_list* cleanup) noexcept {
    auto object = src.ptr();
    if (PyBool_Check(object)) {
      value.value = object == Py_True;
      return true;
    }
    make_caster<mlxgen::IntArg> integer; // also NumPy's, by __index__
    if (!PyFloat_Check(object) && integer.from_python(src, flags, cleanup)) {
      value.value.reset();
      if (auto v = integer.value.value) {
        value.value = *v;
      }
      return true;
    }
    // NumPy's float32 is no Python float. MLX's arrays are not numbers; to ask
    // Python for that takes longer than an operator's call. A module with other
    // classes of numbers has imported `numbers`; an import from here could
    // fail.
    bool real = PyFloat_Check(object);
    if (!real && !inst_check(src)) {
      auto numbers = steal(PyImport_GetModule(str("numbers").ptr()));
      real = numbers.is_valid() &&
          PyObject_IsInstance(object, numbers.attr("Real").ptr()) == 1;
    }
    auto number = steal(real ? PyNumber_Float(object) : nullptr);
    if (!number.is_valid()) {
      PyErr_Clear();
      return false;
    }
    value.value = PyFloat_AS_DOUBLE(number.ptr());
    return true;
  }
};

template <>
struct type_caster<mlxgen::StreamArg> {
  NB_TYPE_CASTER(mlxgen::StreamArg, const_name("StreamOrDevice"))

  template <typename Flags>
  bool from_python(handle src, Flags flags, cleanup_list* cleanup) noexcept {
    if (src.is_none()) {
      return true;
    }
    return load<mlx::core::Stream>(src, flags, cleanup) ||
#if MLX_VERSION_NUMERIC >= 31002
        load<mlx::core::ThreadLocalStream>(src, flags, cleanup) ||
#endif
        load<mlx::core::Device>(src, flags, cleanup) ||
        load<mlx::core::Device::DeviceType>(src, flags, cleanup);
  }

 private:
  template <typename T, typename Flags>
  bool load(handle src, Flags flags, cleanup_list* cleanup) noexcept {
    make_caster<T> caster;
    if (!caster.from_python(src, flags, cleanup)) {
      return false;
    }
    value.value = caster.operator cast_t<T&>();
    return true;
  }
};

} // namespace nanobind::detail
