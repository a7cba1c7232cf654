// A substitute for MLX's Metal device that runs kernels on the CPU. In a
// package that is built with MLXGEN_EMULATE_METAL, the include path finds it
// before MLX's own header, so that the launchers that mlxgen generates run
// unchanged on a machine without a GPU.
//
// It declares only the functions that launchers call; emulator/device.cpp,
// which is compiled once and not with every operator, contains the rest.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "mlx/array.h"
#include "mlx/device.h"
#include "mlx/stream.h"
#include "mlxgen_metal/abi.h"

namespace NS {

using UInteger = uint64_t;

} // namespace NS

namespace MTL {

enum DataType {
  DataTypeFloat = 3,
  DataTypeHalf = 16,
  DataTypeInt = 29,
  DataTypeUInt = 33,
  DataTypeBool = 53,
  DataTypeLong = 81,
  DataTypeULong = 85,
  DataTypeBFloat = 121
};

struct Size {
  Size(uint64_t w, uint64_t h, uint64_t d) : width(w), height(h), depth(d) {}
  static Size Make(uint64_t w, uint64_t h, uint64_t d) {
    return {w, h, d};
  }
  uint64_t width;
  uint64_t height;
  uint64_t depth;
};

struct Library;

struct ComputePipelineState {
  uint64_t maxTotalThreadsPerThreadgroup() const;
  uint64_t threadExecutionWidth() const;

  Library* library = nullptr;
  int entry = 0;
  std::map<int, std::string> constants; // bytes of function constants by index
  bool raises = false; // errors also where the outputs are evaluated
  bool whole = true; // elements that no thread writes are an error
};

} // namespace MTL

namespace mlx::core::metal {

using MTLFCList =
    std::vector<std::tuple<const void*, MTL::DataType, NS::UInteger>>;

namespace emulation {

/** Launches by kernel, and errors. */
struct Events {
  std::map<std::string, uint64_t> launches;
  std::vector<std::string> errors;
};

/** Return the events since the last call. */
Events take();

/** Return whether a message is that of an error of a kernel. */
bool is_error(const std::string& message);

/** Load a compiled library of kernels. */
std::unique_ptr<MTL::Library> open(
    const std::string& name,
    const std::string& object);

/** Record that an output has a value before the kernel runs. */
void keep(const array& out);

/** The operators' libraries: the name and the function that returns the source.
 */
std::vector<std::pair<std::string, std::function<std::string()>>>& libraries();

template <typename T>
int32_t code_of() {
  using namespace mlxgen_metal;
  if constexpr (std::is_same_v<T, bool>) {
    return boolean;
  } else if constexpr (std::is_same_v<T, float>) {
    return mlxgen_metal::float32;
  } else if constexpr (std::is_same_v<T, float16_t>) {
    return mlxgen_metal::float16;
  } else if constexpr (std::is_same_v<T, bfloat16_t>) {
    return mlxgen_metal::bfloat16;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr int32_t codes[] = {
        mlxgen_metal::int8,
        mlxgen_metal::int16,
        mlxgen_metal::int32,
        mlxgen_metal::int64};
    constexpr int place = sizeof(T) == 1 ? 0
        : sizeof(T) == 2                 ? 1
        : sizeof(T) == 4                 ? 2
                                         : 3;
    return codes[place] + (std::is_unsigned_v<T> ? 1 : 0);
  } else {
    return other;
  }
}

} // namespace emulation

class CommandEncoder {
 public:
  explicit CommandEncoder(Stream stream);
  ~CommandEncoder();

  /** Remove all bindings, because another operator begins. */
  void begin();

  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel);
  void set_input_array(const array& a, int index, int64_t offset = 0);
  /** Bind an output; unless it is `whole`, it is memory for the kernel. */
  void
  set_output_array(array& a, int index, int64_t offset = 0, bool whole = true);

  template <typename Vector>
  void set_vector_bytes(const Vector& values, size_t count, int index) {
    using T = typename Vector::value_type;
    T nothing{};
    copy(
        count > 0 ? values.data() : &nothing,
        (count > 0 ? count : 1) * sizeof(T),
        index,
        emulation::code_of<T>());
  }
  template <typename Vector>
  void set_vector_bytes(const Vector& values, int index) {
    set_vector_bytes(values, values.size(), index);
  }
  template <typename T>
  void set_bytes(const T* values, int count, int index) {
    copy(values, count * sizeof(T), index, emulation::code_of<T>());
  }
  template <typename T>
  void set_bytes(const T& value, int index) {
    set_bytes(&value, 1, index);
  }

  void set_threadgroup_memory_length(size_t length, int index);
  void add_temporary(array a);
  void barrier() {}
  void dispatch_threads(MTL::Size grid, MTL::Size group);
  void dispatch_threadgroups(MTL::Size grid, MTL::Size group);

 private:
  struct State;

  mlxgen_metal::Argument& bind(int index);
  void copy(const void* data, size_t size, int index, int32_t code);
  void dispatch(MTL::Size grid, MTL::Size group, bool by_threadgroups);

  Stream stream_;
  std::unique_ptr<State> state_;
};

class Device {
 public:
  MTL::Library* get_library(
      const std::string& name,
      const std::function<std::string()>& builder);
  MTL::ComputePipelineState* get_kernel(
      const std::string& name,
      MTL::Library* library,
      const std::string& specialized = "",
      const MTLFCList& constants = {});
};

Device& device(mlx::core::Device);
CommandEncoder& get_command_encoder(Stream s);

} // namespace mlx::core::metal
