// The part of MLX's Metal device that generated code uses, for compilers without
// Metal: found before MLX's own headers, it allows type checks of the launches.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mlx/array.h"
#include "mlx/device.h"

namespace MTL {

enum DataType {
  DataTypeFloat,
  DataTypeHalf,
  DataTypeBFloat,
  DataTypeInt,
  DataTypeUInt,
  DataTypeBool,
  DataTypeLong,
  DataTypeULong
};

struct Size {
  Size(uint64_t width, uint64_t height, uint64_t depth);
};

struct Library {};

struct ComputePipelineState {
  uint64_t maxTotalThreadsPerThreadgroup() const;
};

} // namespace MTL

namespace mlx::core::metal {

struct CommandEncoder {
  void set_input_array(const array& a, int index, int64_t offset = 0);
  void set_output_array(array& a, int index, int64_t offset = 0);
  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);
  void dispatch_threads(MTL::Size grid, MTL::Size group);
  void set_threadgroup_memory_length(size_t length, int index);

  template <typename Vector>
  void set_vector_bytes(const Vector& values, int index) {
    static_cast<void>(values.data() + index);
  }
  template <typename T>
  void set_bytes(const T&, int) {}
};

struct Device {
  MTL::Library* get_library(
      const std::string& name,
      const std::function<std::string()>& source);
  MTL::ComputePipelineState* get_kernel(
      const std::string& name,
      MTL::Library* library);
};

Device& device(mlx::core::Device device);
CommandEncoder& get_command_encoder(Stream s);

} // namespace mlx::core::metal
