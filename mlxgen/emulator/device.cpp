// The substitute for MLX's Metal device: its implementation. It is compiled
// into the operators' library if that is built with MLXGEN_EMULATE_METAL.
//
// mlxgen translates and compiles the source of a library, either before the
// tests ($MLXGEN_METAL_PREBUILT contains <name>.metal and <name>.so), or when
// an operator first needs it (emulator/compile.py, in a separate process). A
// dispatch becomes a task of MLX's CPU stream, because its inputs are computed
// by earlier tasks. Errors of kernels are collected for mlxgen_metal_report(),
// which the pytest plugin calls after each test; the outputs of a failed launch
// are NaN. plugins/metal also raises an error where the outputs are evaluated.

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/backend/metal/device.h"
#include "mlxgen_metal/mutation.h"

namespace MTL {

struct Library {
  std::string name;
  const mlxgen_metal::Library* table;
  decltype(&mlxgen_metal_launch) launch;
};

uint64_t ComputePipelineState::maxTotalThreadsPerThreadgroup() const {
  auto limit = library->table->entries[entry].max_threads;
  return limit ? limit : mlxgen_metal::max_threads;
}

uint64_t ComputePipelineState::threadExecutionWidth() const {
  return mlxgen_metal::simdgroup_size;
}

} // namespace MTL

namespace mlx::core::metal {

namespace {

/** Launches and errors since the last report. */
struct Record {
  std::mutex mutex;
  emulation::Events events;
  std::set<std::string> messages; // of all errors
  std::set<const void*> filled; // outputs that the launcher initialized
  uint64_t count = 0;
};

Record& record() {
  static Record value;
  return value;
}

/** Choose the schedule of the next launch: $MLXGEN_METAL_SCHEDULE, or else all
 * schedules in turn. */
void choose_schedule(mlxgen_metal::Launch& launch) {
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

int32_t code_of(Dtype dtype) {
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

/** Set the values of function constants. */
void set_constants(
    const mlxgen_metal::Library& table,
    const std::map<int, std::string>& values) {
  for (int i = 0; i < table.constant_count; ++i) {
    const auto& constant = table.constants[i];
    auto found = values.find(constant.index);
    *constant.defined = found != values.end();
    if (found != values.end() &&
        found->second.size() == size_t(constant.size)) {
      std::memcpy(constant.value, found->second.data(), constant.size);
    }
  }
}

/** Return the memory that contains an array's elements, for any strides. */
mlxgen_metal::Argument argument_of(const array& a, int64_t offset) {
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
  out.offset = uint64_t(
      reinterpret_cast<char*>(out.start) -
      static_cast<const char*>(a.buffer().raw_ptr()));
  out.code = code_of(a.dtype());
  return out;
}

/** Return the output of a command; raise if it fails. */
std::string output_of(const std::string& command) {
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

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/** Return the path of a library that was compiled before, or "". */
std::string prebuilt(const std::string& name, const std::string& source) {
  auto given = std::getenv("MLXGEN_METAL_PREBUILT");
  if (given == nullptr) {
    return "";
  }
  auto folder = std::filesystem::path(given);
  auto object = folder / (name + ".so");
  bool same = std::filesystem::exists(object) &&
      read(folder / (name + ".metal")) == source;
  return same ? object.string() : "";
}

std::string compiled(const std::string& name, const std::string& source) {
  namespace fs = std::filesystem;
  auto command = std::getenv("MLXGEN_METAL_COMPILER");
  auto folder = fs::temp_directory_path() /
      ("mlxgen-metal-" + std::to_string(getuid()) + "-" +
       std::to_string(getpid()));
  fs::create_directories(folder);
  auto path = folder / (name + ".metal");
  std::ofstream(path) << source;
  std::string compile = command ? command : MLXGEN_METAL_COMPILER;
  auto object = output_of(compile + " '" + path.string() + "'");
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return object;
}

} // namespace

std::unique_ptr<MTL::Library> emulation::open(
    const std::string& name,
    const std::string& object) {
  auto handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw std::runtime_error("[metal emulation] " + object + ": " + dlerror());
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

bool emulation::is_error(const std::string& message) {
  std::lock_guard<std::mutex> lock(record().mutex);
  return record().messages.count(message) > 0;
}

emulation::Events emulation::take() {
  std::lock_guard<std::mutex> lock(record().mutex);
  return std::exchange(record().events, {});
}

std::vector<std::pair<std::string, std::function<std::string()>>>&
emulation::libraries() {
  static std::vector<std::pair<std::string, std::function<std::string()>>> all;
  return all;
}

void emulation::keep(const array& out) {
  std::lock_guard<std::mutex> lock(record().mutex);
  record().filled.insert(out.data<char>());
}

// ------------------------------------------------------------------- encoder

struct CommandEncoder::State {
  mlxgen_metal::Launch launch{};
  std::map<int, std::shared_ptr<std::vector<uint8_t>>> bytes;
  MTL::ComputePipelineState* kernel = nullptr;
};

CommandEncoder::CommandEncoder(Stream stream)
    : stream_(stream), state_(std::make_unique<State>()) {}

CommandEncoder::~CommandEncoder() = default;

void CommandEncoder::begin() {
  *state_ = {};
}

void CommandEncoder::set_compute_pipeline_state(
    MTL::ComputePipelineState* kernel) {
  state_->kernel = kernel;
}

void CommandEncoder::set_input_array(
    const array& a,
    int index,
    int64_t offset) {
  bind(index) = argument_of(a, offset);
  cpu::get_command_encoder(stream_).set_input_array(a);
}

void CommandEncoder::set_output_array(
    array& a,
    int index,
    int64_t offset,
    bool whole) {
  auto& argument = bind(index);
  argument = argument_of(a, offset);
  argument.output = 1;
  std::lock_guard<std::mutex> lock(record().mutex);
  argument.fill = record().filled.erase(a.data<char>()) == 0;
  argument.whole = argument.fill && whole;
  cpu::get_command_encoder(stream_).set_output_array(a);
}

void CommandEncoder::set_threadgroup_memory_length(size_t length, int index) {
  state_->launch.shared_sizes[index] = length;
}

void CommandEncoder::add_temporary(array a) {
  cpu::get_command_encoder(stream_).add_temporary(std::move(a));
}

void CommandEncoder::dispatch_threads(MTL::Size grid, MTL::Size group) {
  dispatch(grid, group, false);
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
  dispatch(grid, group, true);
}

mlxgen_metal::Argument& CommandEncoder::bind(int index) {
  if (index < 0 || index >= mlxgen_metal::max_buffers) {
    throw std::out_of_range("[metal emulation] Metal has 31 buffers.");
  }
  state_->bytes.erase(index);
  return state_->launch.arguments[index];
}

void CommandEncoder::copy(
    const void* data,
    size_t size,
    int index,
    int32_t code) {
  auto& argument = bind(index);
  auto& bytes = state_->bytes[index];
  bytes = std::make_shared<std::vector<uint8_t>>(size);
  std::memcpy(bytes->data(), data, size);
  argument = {};
  argument.bound = 1;
  argument.bytes = 1;
  argument.data = argument.start = bytes->data();
  argument.size = size;
  argument.code = code;
}

void CommandEncoder::dispatch(
    MTL::Size grid,
    MTL::Size group,
    bool by_threadgroups) {
  if (state_->kernel == nullptr) {
    throw std::runtime_error("[metal emulation] No kernel is set.");
  }
  auto launch = state_->launch;
  launch.entry = state_->kernel->entry;
  for (auto& argument : launch.arguments) {
    argument.whole = argument.whole && state_->kernel->whole;
  }
  launch.by_threadgroups = by_threadgroups;
  uint64_t sizes[] = {grid.width, grid.height, grid.depth};
  uint64_t groups[] = {group.width, group.height, group.depth};
  std::copy_n(sizes, 3, launch.grid);
  std::copy_n(groups, 3, launch.group);
  choose_schedule(launch);
  auto kernel = state_->kernel;
  auto library = kernel->library;
  auto bytes = state_->bytes;
  mlxgen_metal::trace(launch, *library->table, library->name);
  mlxgen_metal::mutate(launch, bytes, *library->table);
  // Pointers and values only: inputs are computed by earlier tasks.
  cpu::get_command_encoder(stream_).dispatch(
      [launch, bytes, kernel, library, raises = kernel->raises]() mutable {
        std::vector<char> message(4096);
        static std::mutex one_at_a_time; // constants belong to the library
        std::unique_lock<std::mutex> running(one_at_a_time);
        set_constants(*library->table, kernel->constants);
        int failed = library->launch(
            library->table, &launch, message.data(), message.size());
        running.unlock();
        auto& happened = record();
        std::lock_guard<std::mutex> lock(happened.mutex);
        ++happened.events.launches[library->table->entries[launch.entry].name];
        if (failed) {
          happened.events.errors.emplace_back(message.data());
          bool is_new = happened.messages.insert(message.data()).second;
          for (auto& argument : launch.arguments) {
            if (argument.output) {
              std::memset(argument.start, 0xFF, argument.size);
            }
          }
          if (raises) {
            throw std::runtime_error(message.data());
          }
          if (is_new) {
            fprintf(stderr, "[metal emulation] %s\n", message.data());
          }
        }
      });
}

// -------------------------------------------------------------------- device

namespace {

std::mutex device_mutex;
std::unordered_map<std::string, std::unique_ptr<MTL::Library>> libraries;
std::map<
    std::pair<MTL::Library*, std::string>,
    std::unique_ptr<MTL::ComputePipelineState>>
    kernels;

} // namespace

MTL::Library* Device::get_library(
    const std::string& name,
    const std::function<std::string()>& builder) {
  std::lock_guard<std::mutex> lock(device_mutex);
  auto& library = libraries[name];
  if (library == nullptr) {
    auto source = builder();
    auto object = prebuilt(name, source);
    library =
        emulation::open(name, object.empty() ? compiled(name, source) : object);
  }
  return library.get();
}

MTL::ComputePipelineState* Device::get_kernel(
    const std::string& name,
    MTL::Library* library,
    const std::string& specialized,
    const MTLFCList& constants) {
  std::lock_guard<std::mutex> lock(device_mutex);
  // As in MLX, the name is that of the kernel if none is given.
  auto& kernel = kernels[{library, specialized.empty() ? name : specialized}];
  if (kernel != nullptr) {
    return kernel.get();
  }
  for (int i = 0; i < library->table->entry_count; ++i) {
    if (name == library->table->entries[i].name) {
      kernel = std::make_unique<MTL::ComputePipelineState>();
      kernel->library = library;
      kernel->entry = i;
      for (const auto& [value, type, index] : constants) {
        auto size = type == MTL::DataTypeBool                          ? 1
            : type == MTL::DataTypeHalf || type == MTL::DataTypeBFloat ? 2
            : type == MTL::DataTypeLong || type == MTL::DataTypeULong  ? 8
                                                                       : 4;
        auto bytes = static_cast<const char*>(value);
        kernel->constants[int(index)].assign(bytes, size);
      }
      return kernel.get();
    }
  }
  throw std::runtime_error(
      "[metal emulation] There is no kernel named " + name);
}

Device& device(mlx::core::Device) {
  static Device value;
  return value;
}

CommandEncoder& get_command_encoder(Stream s) {
  static std::mutex mutex;
  static std::map<int, CommandEncoder> encoders;
  std::lock_guard<std::mutex> lock(mutex);
  auto& encoder = encoders.try_emplace(s.index, s).first->second;
  encoder.begin();
  return encoder;
}

} // namespace mlx::core::metal

/**
 * Return the events since the last call, as lines: `launch <count> <kernel>`
 * and `error <message>`.
 */
extern "C" __attribute__((visibility("default"))) const char*
mlxgen_metal_report() {
  static std::string text;
  auto events = mlx::core::metal::emulation::take();
  std::ostringstream out;
  for (const auto& [name, count] : events.launches) {
    out << "launch " << count << " " << name << "\n";
  }
  for (auto error : events.errors) {
    std::replace(error.begin(), error.end(), '\n', ' ');
    out << "error " << error << "\n";
  }
  text = out.str();
  return text.c_str();
}

/** Call `take` with the name and the source of every operator's library. */
extern "C" __attribute__((visibility("default"))) void mlxgen_metal_sources(
    void (*take)(const char* name, const char* source)) {
  for (const auto& [name, source] : mlx::core::metal::emulation::libraries()) {
    take(name.c_str(), source().c_str());
  }
}
