// Launches Metal kernels from generated code. The kernels' source is embedded
// in the module. The system compiles the required part of it on first use, so
// that builds need no Metal toolchain.

#pragma once

#ifdef _METAL_

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mlx/backend/metal/device.h"
#include "mlx/version.h"
#include "mlxgen/memory.h"
#include "mlxgen/op.h"

namespace mlxgen::metal {

using mx::metal::CommandEncoder;

/** The encoder of a stream's commands. */
inline CommandEncoder& encoder_of(const Stream& s) {
#if MLX_VERSION_NUMERIC >= 31002
  return mx::metal::get_command_encoder(s);
#else
  return mx::metal::device(s.device).get_command_encoder(s.index);
#endif
}

/** The name of a dtype in the host names of kernels. */
std::string name_of(Dtype dtype);

/** Bind a shape or strides; Metal rejects the empty ones of 0-d and absent
 * arrays.
 */
template <typename Vector>
void set_vector(CommandEncoder& encoder, const Vector& values, int index) {
  if (values.empty()) {
    encoder.set_bytes(typename Vector::value_type(1), index);
  } else {
    encoder.set_vector_bytes(values, index);
  }
}

/** Allocate threadgroup memory; Metal requires multiples of 16 bytes. */
inline void set_memory(
    CommandEncoder& encoder,
    int64_t elements,
    size_t bytes_per_element,
    int index) {
  auto bytes = std::max<size_t>(elements, 1) * bytes_per_element;
  encoder.set_threadgroup_memory_length((bytes + 15) / 16 * 16, index);
}

/**
 * Bind an optional array. If it is absent, bind another array, because Metal
 * requires a buffer; the emulation binds one that a kernel cannot read.
 */
inline void set_optional(
    CommandEncoder& encoder,
    const std::optional<array>& a,
    const array& other,
    int index) {
#ifdef MLXGEN_EMULATE_METAL
  if (!a) {
    struct Absent {
      uint64_t bits = ~uint64_t(0);
    };
    return encoder.set_bytes(Absent(), index);
  }
#endif
  encoder.set_input_array(a ? *a : other, index);
}

/** Bind an output that is memory for intermediate results of the kernel. */
inline void set_scratch(CommandEncoder& encoder, array& out, int index) {
#ifdef MLXGEN_EMULATE_METAL
  encoder.set_output_array(out, index, 0, false); // not an error if unwritten
#else
  encoder.set_output_array(out, index);
#endif
}

/**
 * Allocate the outputs of a kernel that is not elementwise, except those with
 * initial values. Return false if all are empty, so that nothing must be
 * launched.
 */
inline bool allocate(Arrays& outputs) {
  bool any = false;
  for (auto& out : outputs) {
    if (out.data_shared_ptr() == nullptr) {
      out.set_data(mlxgen::allocate(out));
#ifdef MLXGEN_EMULATE_METAL
    } else {
      mx::metal::emulation::keep(out);
#endif
    }
    any = any || out.size() > 0;
  }
  return any;
}

template <typename T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

/** Convert a number to a kernel's parameter type, which must represent it. */
template <typename To, typename From>
To number(const char* name, From value) {
  if constexpr (is_integer<To> && is_integer<From>) {
    if (!std::in_range<To>(value)) {
      throw std::overflow_error(
          show(value) + " is out of range for the kernel's parameter '" + name +
          "', which has " + std::to_string(8 * sizeof(To)) + " bits.");
    }
  }
  return static_cast<To>(value);
}

/** Copy an array to a new row-contiguous one. */
void copy(const Stream& s, const array& from, array& to);

/** Numbers of threads along x, y and z, from the formulas of an entry. */
struct Extent {
  std::array<int64_t, 3> threads;
  const char* formulas; // for messages
};

/**
 * Launch a grid in threadgroups of the given size or, by default, of the
 * maximum size. Raise an error if Metal cannot launch the grid, or if it is
 * empty and `idle` is false.
 */
void dispatch(
    CommandEncoder& encoder,
    MTL::ComputePipelineState* kernel,
    const Extent& grid,
    const std::optional<Extent>& group,
    bool idle = false);

/** The value of a function constant. */
struct Constant {
  std::array<char, 8> value;
  MTL::DataType type;
  int index;
  std::string text; // of the value
};

template <typename T>
Constant constant(T value, int index) {
  constexpr auto type = std::is_same_v<T, bool> ? MTL::DataTypeBool
      : std::is_same_v<T, float>                ? MTL::DataTypeFloat
      : std::is_same_v<T, mx::float16_t>        ? MTL::DataTypeHalf
      : std::is_same_v<T, mx::bfloat16_t>       ? MTL::DataTypeBFloat
      : std::is_same_v<T, int>                  ? MTL::DataTypeInt
      : std::is_same_v<T, uint32_t>             ? MTL::DataTypeUInt
      : std::is_same_v<T, int64_t>              ? MTL::DataTypeLong
                                                : MTL::DataTypeULong;
  using Shown = std::conditional_t<std::is_integral_v<T>, T, float>;
  Constant made{{}, type, index, std::to_string(static_cast<Shown>(value))};
  std::memcpy(made.value.data(), &value, sizeof(T));
  return made;
}

/** The source of kernels, which is compiled when one of them is requested. */
class Library {
 public:
  Library(std::string name, std::function<std::string()> source);

  /**
   * Return a kernel of the source, or one that `instantiation` creates, which
   * is then compiled separately, with the values of its function constants.
   */
  MTL::ComputePipelineState* pipeline(
      const Stream& s,
      const std::string& kernel,
      const std::string& instantiation = "",
      const std::vector<Constant>& constants = {}) const;

 private:
  mutable std::once_flag made_;
  mutable std::string name_;
  mutable std::string text_;
  std::function<std::string()> source_;
};

/** Return the smallest value of a template parameter that suffices for a call.
 */
int64_t enough(
    const char* op,
    const char* what,
    int64_t value,
    const std::vector<int64_t>& values);

/** A template of a kernel; only instantiations that are launched are compiled.
 */
class Template {
 public:
  /** `values` are those of the template parameters after the dtype; "T" is the
   * type of the dtype. */
  Template(
      std::string name,
      const char* source,
      std::string function,
      const std::vector<Dtype>& dtypes,
      const std::vector<std::vector<std::string>>& values);

  MTL::ComputePipelineState* pipeline(
      const Stream& s,
      Dtype dtype,
      const std::vector<std::string>& values,
      const std::vector<Constant>& constants = {}) const;

 private:
  std::string function_;
  Library library_;
};

///////////////////////////////////////////////////////////////////////////////
// Kernels around scalar functions
///////////////////////////////////////////////////////////////////////////////

/** The call of a scalar function, and the names in its statement. */
struct Element {
  std::string name; // of the operator
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> attributes;
  std::string statement; // in these names and the computing type C
};

/** The value of an attribute, bound if the kernel uses it. */
using SetAttributes = std::function<void(CommandEncoder&, int index)>;

/** The kernels of an elementwise operator: templates around its element. */
class Elementwise {
 public:
  /** `types` are those of the attributes; `source` contains the function. */
  Elementwise(
      const std::string& package,
      const char* source,
      Element element,
      std::vector<std::string> types,
      const std::vector<Dtype>& dtypes);

  /** Launch the kernel that matches the arrays' sizes and strides. */
  void run(
      const Stream& s,
      const Arrays& inputs,
      Arrays& outputs,
      const SetAttributes& set_attributes) const;

 private:
  std::string name_;
  Library library_;
};

inline const char* type_of(float) {
  return "float";
}
inline const char* type_of(int) {
  return "int";
}
inline const char* type_of(int64_t) {
  return "int64_t";
}
inline const char* type_of(bool) {
  return "bool";
}

template <typename... Ts>
std::vector<std::string> types_of(const std::tuple<Ts...>*) {
  return {type_of(Ts())...};
}

/**
 * The Metal table entry of an elementwise operator. Its kernels are generated
 * around the scalar function of `source` that `element` calls.
 */
template <typename Op>
Row elementwise(
    const char* kernel,
    std::vector<Dtype> dtypes,
    const char* package,
    const char* source,
    Element element) {
  using Attributes = decltype(std::declval<const Op&>().metal_attributes());
  auto kernels = std::make_shared<const Elementwise>(
      package,
      source,
      std::move(element),
      types_of(static_cast<const Attributes*>(nullptr)),
      dtypes);
  auto launch = [kernels](
                    Primitive& self, const Arrays& inputs, Arrays& outputs) {
    auto attributes = static_cast<const Op&>(self).metal_attributes();
    auto set = [&](CommandEncoder& encoder, int index) {
      auto each = [&](auto... value) {
        (encoder.set_bytes(value, index++), ...);
      };
      std::apply(each, attributes);
    };
    kernels->run(self.stream(), inputs, outputs, set);
  };
  return {Backend::metal, kernel, std::move(dtypes), launch};
}

} // namespace mlxgen::metal

#endif // _METAL_
