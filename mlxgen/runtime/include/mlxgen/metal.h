// Launching Metal kernels from generated code. The kernels' source is embedded
// in the module and compiled by the system when it is first needed, so that
// building takes no Metal toolchain.

#pragma once

#ifdef _METAL_

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "mlx/backend/metal/device.h"
#include "mlxgen/op.h"

namespace mlxgen::metal {

using mx::metal::CommandEncoder;

/** A dtype as it stands in the host names of kernels. */
inline std::string type_name(Dtype dtype) {
  auto name = show(dtype);
  return name == "bool" ? "bool_" : name;
}

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
    out.set_data(mx::allocator::malloc(out.nbytes()));
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
  Library(const char* name, const char* source)
      : Library(name, std::string(source)) {}

  /** A scalar function's source with the generated kernels around it. */
  Library(const char* name, const char* source, const char* kernels)
      : Library(name, std::string(source) + elementwise_source + kernels) {}

  MTL::ComputePipelineState* pipeline(
      const Stream& s,
      const std::string& host_name) const {
    auto& device = mx::metal::device(s.device);
    auto library = device.get_library(name_, [this] { return source_; });
    return device.get_kernel(host_name, library);
  }

 private:
  Library(const char* name, std::string source)
      : name_(name), source_(std::move(source)) {
#ifndef MLXGEN_EMULATE_METAL // which compares the sources themselves
    name_ += "." + std::to_string(std::hash<std::string>{}(source_));
#endif
  }

  std::string name_;
  std::string source_;
};

} // namespace mlxgen::metal

#endif // _METAL_
