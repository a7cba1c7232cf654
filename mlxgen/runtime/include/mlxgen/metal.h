// Launching Metal kernels from generated code. The kernels' source is embedded
// in the module and compiled by the system when it is first needed, so that
// building takes no Metal toolchain.

#pragma once

#ifdef _METAL_

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "mlx/backend/metal/device.h"
#include "mlxgen/memory.h"
#include "mlxgen/op.h"

namespace mlxgen::metal {

using mx::metal::CommandEncoder;

/** Bind a shape or strides; a 0-d array's are empty, which Metal refuses. */
template <typename Vector>
void set_vector(CommandEncoder& encoder, const Vector& values, int index) {
  if (values.empty()) {
    encoder.set_bytes(typename Vector::value_type(1), index);
  } else {
    encoder.set_vector_bytes(values, index);
  }
}

/** Allocate the outputs of a kernel that is not elementwise. */
inline void allocate(Arrays& outputs) {
  for (auto& out : outputs) {
    out.set_data(mlxgen::allocate(out));
  }
}

/**
 * Fill an output with zeros for kernels that accumulate into it. Memory is
 * shared with the CPU and this buffer is new, so no work in flight uses it.
 */
inline void zero(array& out) {
  std::memset(out.data<char>(), 0, out.nbytes());
#ifdef MLXGEN_EMULATE_METAL
  mx::metal::emulation::keep(out);
#endif
}

// A grid of one thread per element is folded into rows of this width, so that
// no dimension exceeds 32 bits. The emulation folds small ones, to test that.
#ifdef MLXGEN_EMULATE_METAL
constexpr size_t row = 2048;
#else
constexpr size_t row = size_t(1) << 30;
#endif

/** One thread for each of `size` elements. */
inline void dispatch_elements(
    CommandEncoder& encoder,
    MTL::ComputePipelineState* kernel,
    size_t size) {
  auto width = std::min(size, row);
  auto height = (size + width - 1) / width;
  auto group = std::min<size_t>(width, kernel->maxTotalThreadsPerThreadgroup());
  encoder.dispatch_threads(MTL::Size(width, height, 1), MTL::Size(group, 1, 1));
}

/** Threads along x, y and z, in threadgroups of the given size. */
inline void dispatch(
    CommandEncoder& encoder,
    MTL::ComputePipelineState* kernel,
    std::array<int64_t, 3> grid,
    std::array<int64_t, 3> group) {
  if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) {
    return;
  }
  if (group[0] == 0) {
    group = {
        std::min<int64_t>(grid[0], kernel->maxTotalThreadsPerThreadgroup()),
        1,
        1};
  }
  encoder.dispatch_threads(
      MTL::Size(grid[0], grid[1], grid[2]),
      MTL::Size(group[0], group[1], group[2]));
}

// What generated elementwise kernels stand on.
constexpr const char* elementwise_source = R"metal(
namespace mlxgen {

// float16 and bfloat16 are computed in float.
template <typename T>
struct Compute {
  using type = T;
};
template <>
struct Compute<half> {
  using type = float;
};
template <>
struct Compute<bfloat> {
  using type = float;
};

// The offset of element `index` (in row-major order) of a strided array.
inline int64_t offset_of(
    int64_t index,
    constant const int* shape,
    constant const int64_t* strides,
    int ndim) {
  int64_t offset = 0;
  for (int axis = ndim - 1; axis >= 0; --axis) {
    offset += (index % shape[axis]) * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

} // namespace mlxgen
)metal";

/**
 * The kernels of an operator, compiled when the first of them is asked for. MLX
 * keeps libraries by name alone, hence the hash of the source in it.
 */
class Library {
 public:
  Library(std::string name, std::function<std::string()> source)
      : name_(std::move(name)), source_(std::move(source)) {
#ifdef MLXGEN_EMULATE_METAL
    mx::metal::emulation::libraries().emplace_back(name_, source_);
#endif
  }

  MTL::ComputePipelineState* pipeline(
      const Stream& s,
      const std::string& kernel) const {
    std::call_once(named_, [this] {
      text_ = source_();
#ifndef MLXGEN_EMULATE_METAL // which compares the sources themselves
      name_ += "." + std::to_string(std::hash<std::string>{}(text_));
#endif
    });
    auto& device = mx::metal::device(s.device);
    auto library = device.get_library(name_, [this] { return text_; });
    return device.get_kernel(kernel, library);
  }

 private:
  mutable std::once_flag named_;
  mutable std::string name_;
  mutable std::string text_;
  std::function<std::string()> source_;
};

/** The launch of an elementwise operator's kernels. */
inline void run_elementwise(
    const Stream& s,
    const Library& library,
    const std::string& name,
    const Arrays& inputs,
    Arrays& outputs,
    const std::function<int(CommandEncoder&, int index)>& set_attributes) {
  bool dense = allocate_elementwise(inputs, outputs);
  auto size = outputs[0].size();
  if (size == 0) {
    return;
  }
  auto kernel = library.pipeline(
      s,
      name + (dense ? "_dense_" : "_strided_") + metal_name(inputs[0].dtype()));
  auto& encoder = mx::metal::get_command_encoder(s);
  encoder.set_compute_pipeline_state(kernel);
  int index = 0;
  for (const auto& in : inputs) {
    encoder.set_input_array(in, index++);
  }
  for (auto& out : outputs) {
    encoder.set_output_array(out, index++);
  }
  encoder.set_bytes(static_cast<int64_t>(size), index++);
  index = set_attributes(encoder, index);
  if (!dense) {
    set_vector(encoder, inputs[0].shape(), index++);
    encoder.set_bytes(static_cast<int>(inputs[0].ndim()), index++);
    for (const auto& in : inputs) {
      set_vector(encoder, in.strides(), index++);
    }
  }
  dispatch_elements(encoder, kernel, size);
}

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
 * Metal's row of an elementwise operator: the kernels are generated around the
 * scalar function that is called in `element`, out of `source`.
 */
template <typename Op>
Row elementwise(
    const char* kernel,
    std::vector<Dtype> dtypes,
    const char* package,
    const char* source,
    MetalElement element) {
  using Attributes = decltype(std::declval<const Op&>().metal_attributes());
  auto text = [source, element, dtypes] {
    auto types = types_of(static_cast<const Attributes*>(nullptr));
    return source +
        (elementwise_source + metal_kernels(element, types, dtypes));
  };
  auto library = std::make_shared<const Library>(
      std::string(package) + "." + element.name, text);
  auto launch = [library, name = element.name](
                    Primitive& self, const Arrays& inputs, Arrays& outputs) {
    auto attributes = static_cast<const Op&>(self).metal_attributes();
    auto set = [&](CommandEncoder& encoder, int index) {
      auto each = [&](auto... value) {
        (encoder.set_bytes(value, index++), ...);
      };
      std::apply(each, attributes);
      return index;
    };
    run_elementwise(self.stream(), *library, name, inputs, outputs, set);
  };
  return {Backend::metal, kernel, std::move(dtypes), launch};
}

} // namespace mlxgen::metal

#endif // _METAL_
