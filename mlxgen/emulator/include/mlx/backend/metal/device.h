// A substitute for MLX's Metal device that runs kernels on the CPU. It stands
// in front of MLX's own header on the include path where a package is built
// with MLXGEN_EMULATE_METAL, so that the launchers that mlxgen generates run
// unchanged on a machine without a GPU.
//
// A library's source is translated and compiled by mlxgen (emulator/compile.py,
// in a process of its own); a dispatch takes its place among the tasks of MLX's
// CPU stream, since its inputs are not computed before. Whatever a kernel does
// wrong is kept for mlxgen_metal_report(), which the pytest plugin asks after
// each test; the outputs of such a launch are NaN.

#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/device.h"
#include "mlxgen_metal/abi.h"
#include "mlxgen_metal/mutation.h"

namespace MTL {

struct Size {
  Size(uint64_t w, uint64_t h, uint64_t d) : width(w), height(h), depth(d) {}
  uint64_t width;
  uint64_t height;
  uint64_t depth;
};

struct Library {
  std::string name;
  const mlxgen_metal::Library* table;
  decltype(&mlxgen_metal_launch) launch;
};

struct ComputePipelineState {
  Library* library;
  int entry;

  uint64_t maxTotalThreadsPerThreadgroup() const {
    auto limit = library->table->entries[entry].max_threads;
    return limit ? limit : mlxgen_metal::max_threads;
  }
  uint64_t threadExecutionWidth() const {
    return mlxgen_metal::simdgroup_size;
  }
};

} // namespace MTL

namespace mlx::core::metal {

namespace emulation {

/** What happened since the last report. */
struct Record {
  std::mutex mutex;
  std::map<std::string, uint64_t> launches;
  std::vector<std::string> errors;
  std::set<const void*> filled; // outputs that the launcher itself initialised
  uint64_t count = 0;
};

inline Record& record() {
  static Record value;
  return value;
}

/** Tell that an output has a value before the kernel runs. */
inline void keep(const array& out) {
  std::lock_guard<std::mutex> lock(record().mutex);
  record().filled.insert(out.data<char>());
}

/** The order of threads of the next launch: $MLXGEN_METAL_SCHEDULE, or each in
 * turn. */
inline void choose_schedule(mlxgen_metal::Launch& launch) {
  static const char* const names[] = {
      "natural", "ascending", "descending", "seeded"};
  uint64_t n;
  {
    std::lock_guard<std::mutex> lock(record().mutex);
    n = record().count++;
  }
  launch.schedule = int32_t(n % 4);
  launch.seed = n;
  launch.align_start = int32_t(n / 4 % 2);
  if (auto given = std::getenv("MLXGEN_METAL_SCHEDULE")) {
    for (int i = 0; i < 4; ++i) {
      if (std::strcmp(given, names[i]) == 0) {
        launch.schedule = i;
      }
    }
  }
}

inline int32_t code_of(Dtype dtype) {
  using namespace mlxgen_metal;
  switch (dtype.val()) {
    case Dtype::Val::bool_:
      return boolean;
    case Dtype::Val::uint8:
      return mlxgen_metal::uint8;
    case Dtype::Val::uint16:
      return mlxgen_metal::uint16;
    case Dtype::Val::uint32:
      return mlxgen_metal::uint32;
    case Dtype::Val::uint64:
      return mlxgen_metal::uint64;
    case Dtype::Val::int8:
      return mlxgen_metal::int8;
    case Dtype::Val::int16:
      return mlxgen_metal::int16;
    case Dtype::Val::int32:
      return mlxgen_metal::int32;
    case Dtype::Val::int64:
      return mlxgen_metal::int64;
    case Dtype::Val::float16:
      return mlxgen_metal::float16;
    case Dtype::Val::bfloat16:
      return mlxgen_metal::bfloat16;
    case Dtype::Val::float32:
      return mlxgen_metal::float32;
    case Dtype::Val::complex64:
      return mlxgen_metal::complex64;
    default:
      return other;
  }
}

template <typename T>
int32_t code_of() {
  using namespace mlxgen_metal;
  if constexpr (std::is_same_v<T, bool>) {
    return boolean;
  } else if constexpr (std::is_same_v<T, float>) {
    return mlxgen_metal::float32;
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

/** The memory that an array's elements lie in, whatever their strides. */
inline mlxgen_metal::Argument argument_of(const array& a, int64_t offset) {
  mlxgen_metal::Argument out{};
  auto data = reinterpret_cast<uint8_t*>(const_cast<char*>(a.data<char>()));
  int64_t low = 0;
  int64_t high = 0;
  for (size_t i = 0; i < a.ndim(); ++i) {
    auto reach = (int64_t(a.shape(i)) - 1) * a.strides()[i];
    (reach < 0 ? low : high) += reach;
  }
  auto item = int64_t(a.itemsize());
  out.bound = 1;
  out.data = data + offset;
  out.start = data + low * item;
  out.size = a.size() == 0 ? 0 : uint64_t((high - low + 1) * item);
  out.code = code_of(a.dtype());
  return out;
}

/** The output of a command; raises if it fails. */
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    throw std::runtime_error("[metal emulation] Cannot run " + command);
  }
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, n);
  }
  if (pclose(pipe) != 0) {
    throw std::runtime_error("[metal emulation] " + text);
  }
  return text.substr(0, text.find_last_not_of("\n") + 1);
}

} // namespace emulation

class CommandEncoder {
 public:
  explicit CommandEncoder(Stream stream) : stream_(stream) {}

  /** Forget what is bound: another operator begins. */
  void begin() {
    launch_ = {};
    bytes_.clear();
    kernel_ = nullptr;
  }

  void set_compute_pipeline_state(MTL::ComputePipelineState* kernel) {
    kernel_ = kernel;
  }

  void set_input_array(const array& a, int index, int64_t offset = 0) {
    bind(index) = emulation::argument_of(a, offset);
    cpu::get_command_encoder(stream_).set_input_array(a);
  }

  void set_output_array(array& a, int index, int64_t offset = 0) {
    auto& argument = bind(index);
    argument = emulation::argument_of(a, offset);
    argument.output = 1;
    std::lock_guard<std::mutex> lock(emulation::record().mutex);
    argument.fill = emulation::record().filled.erase(a.data<char>()) == 0;
    cpu::get_command_encoder(stream_).set_output_array(a);
  }

  template <typename Vector>
  void set_vector_bytes(const Vector& values, size_t count, int index) {
    using T = typename Vector::value_type;
    T nothing{};
    const T* data = count > 0 ? values.data() : &nothing;
    copy(data, std::max<size_t>(count, 1) * sizeof(T), index);
    launch_.arguments[index].code = emulation::code_of<T>();
  }
  template <typename Vector>
  void set_vector_bytes(const Vector& values, int index) {
    set_vector_bytes(values, values.size(), index);
  }
  template <typename T>
  void set_bytes(const T* values, int count, int index) {
    copy(values, count * sizeof(T), index);
    launch_.arguments[index].code = emulation::code_of<T>();
  }
  template <typename T>
  void set_bytes(const T& value, int index) {
    set_bytes(&value, 1, index);
  }

  void set_threadgroup_memory_length(size_t length, int index) {
    launch_.shared_sizes[index] = length;
  }

  void add_temporary(array a) {
    cpu::get_command_encoder(stream_).add_temporary(std::move(a));
  }
  void barrier() {}

  void dispatch_threads(MTL::Size grid, MTL::Size group) {
    dispatch(grid, group, false);
  }
  void dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
    dispatch(grid, group, true);
  }

 private:
  mlxgen_metal::Argument& bind(int index) {
    if (index < 0 || index >= mlxgen_metal::max_buffers) {
      throw std::out_of_range("[metal emulation] There are 31 buffers.");
    }
    bytes_.erase(index);
    return launch_.arguments[index];
  }

  void copy(const void* data, size_t size, int index) {
    auto& argument = bind(index);
    auto& bytes = bytes_[index];
    bytes = std::make_shared<std::vector<uint8_t>>(size);
    std::memcpy(bytes->data(), data, size);
    argument = {};
    argument.bound = 1;
    argument.bytes = 1;
    argument.data = argument.start = bytes->data();
    argument.size = size;
  }

  void dispatch(MTL::Size grid, MTL::Size group, bool by_threadgroups) {
    if (kernel_ == nullptr) {
      throw std::runtime_error("[metal emulation] No kernel is set.");
    }
    auto launch = launch_;
    launch.entry = kernel_->entry;
    launch.by_threadgroups = by_threadgroups;
    uint64_t sizes[] = {grid.width, grid.height, grid.depth};
    uint64_t groups[] = {group.width, group.height, group.depth};
    std::copy_n(sizes, 3, launch.grid);
    std::copy_n(groups, 3, launch.group);
    emulation::choose_schedule(launch);
    auto library = kernel_->library;
    auto bytes = bytes_;
    mlxgen_metal::trace(launch, *library->table, library->name);
    mlxgen_metal::mutate(launch, bytes, *library->table);
    // Pointers and values only: inputs are computed by earlier tasks.
    cpu::get_command_encoder(stream_).dispatch(
        [launch, bytes = std::move(bytes), library]() mutable {
          std::vector<char> message(4096);
          int failed = library->launch(&launch, message.data(), message.size());
          auto& record = emulation::record();
          std::lock_guard<std::mutex> lock(record.mutex);
          ++record.launches[library->table->entries[launch.entry].name];
          if (failed) {
            record.errors.emplace_back(message.data());
            fprintf(stderr, "[metal emulation] %s\n", message.data());
            for (auto& argument : launch.arguments) {
              if (argument.output) {
                std::memset(argument.start, 0xFF, argument.size);
              }
            }
          }
        });
  }

  Stream stream_;
  mlxgen_metal::Launch launch_{};
  std::map<int, std::shared_ptr<std::vector<uint8_t>>> bytes_;
  MTL::ComputePipelineState* kernel_ = nullptr;
};

class Device {
 public:
  MTL::Library* get_library(
      const std::string& name,
      const std::function<std::string()>& builder) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& library = libraries_[name];
    if (library == nullptr) {
      library = load(name, builder());
    }
    return library.get();
  }

  MTL::ComputePipelineState* get_kernel(
      const std::string& name,
      MTL::Library* library) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& kernel = kernels_[{library, name}];
    if (kernel != nullptr) {
      return kernel.get();
    }
    for (int i = 0; i < library->table->entry_count; ++i) {
      if (name == library->table->entries[i].name) {
        kernel = std::make_unique<MTL::ComputePipelineState>();
        *kernel = {library, i};
        return kernel.get();
      }
    }
    throw std::runtime_error("[metal emulation] No kernel is named " + name);
  }

 private:
  static std::unique_ptr<MTL::Library> load(
      const std::string& name,
      const std::string& source) {
    auto command = std::getenv("MLXGEN_METAL_COMPILER");
    namespace fs = std::filesystem;
    auto folder = fs::temp_directory_path() /
        ("mlxgen-metal-" + std::to_string(getuid()) + "-" +
         std::to_string(getpid()));
    fs::create_directories(folder);
    auto path = folder / (name + ".metal");
    std::ofstream(path) << source;
    std::string compile = command ? command : MLXGEN_METAL_COMPILER;
    auto object = emulation::output_of(compile + " '" + path.string() + "'");
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    auto handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw std::runtime_error(
          "[metal emulation] " + object + ": " + dlerror());
    }
    auto table = reinterpret_cast<decltype(&mlxgen_metal_library)>(
        dlsym(handle, "mlxgen_metal_library"))();
    if (table->version != mlxgen_metal::abi_version) {
      throw std::runtime_error(
          "[metal emulation] The library was built by another mlxgen.");
    }
    auto library = std::make_unique<MTL::Library>();
    library->name = name;
    library->table = table;
    library->launch = reinterpret_cast<decltype(&mlxgen_metal_launch)>(
        dlsym(handle, "mlxgen_metal_launch"));
    return library;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<MTL::Library>> libraries_;
  std::map<
      std::pair<MTL::Library*, std::string>,
      std::unique_ptr<MTL::ComputePipelineState>>
      kernels_;
};

inline Device& device(mlx::core::Device) {
  static Device value;
  return value;
}

inline CommandEncoder& get_command_encoder(Stream s) {
  static std::mutex mutex;
  static std::map<int, CommandEncoder> encoders;
  std::lock_guard<std::mutex> lock(mutex);
  auto& encoder = encoders.try_emplace(s.index, s).first->second;
  encoder.begin();
  return encoder;
}

} // namespace mlx::core::metal

extern "C" {

/**
 * What happened since the last call, as lines: `launch <count> <kernel>` and
 * `error <message>`.
 */
__attribute__((visibility("default"), used)) inline const char*
mlxgen_metal_report() {
  static std::string text;
  auto& record = mlx::core::metal::emulation::record();
  std::lock_guard<std::mutex> lock(record.mutex);
  std::ostringstream out;
  for (const auto& [name, count] : record.launches) {
    out << "launch " << count << " " << name << "\n";
  }
  for (auto error : record.errors) {
    std::replace(error.begin(), error.end(), '\n', ' ');
    out << "error " << error << "\n";
  }
  record.launches.clear();
  record.errors.clear();
  text = out.str();
  return text.c_str();
}
}
