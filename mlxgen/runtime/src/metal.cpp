// Launches Metal kernels, for all operators: compiles the required source and,
// for scalar functions, generates kernels over arrays of any strides.

#ifdef _METAL_

#include "mlxgen/metal.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <sstream>

namespace mlxgen::metal {

std::string name_of(Dtype dtype) {
  auto name = show(dtype);
  return name == "bool" ? "bool_" : name;
}

namespace {

// From the first number of elements on, a thread computes several of them.
// Above the second number, offsets have 64 bits and a grid is folded into rows.
// The emulation uses smaller numbers, so that tests cover all cases.
#ifdef MLXGEN_EMULATE_METAL
constexpr size_t many = 256;
constexpr int64_t most = 2000;
constexpr size_t row = 512;
#else
constexpr size_t many = size_t(1) << 16;
constexpr int64_t most = std::numeric_limits<int>::max();
constexpr size_t row = size_t(1) << 30;
#endif

/** A threadgroup that covers a grid well, with sizes that are powers of 2. */
MTL::Size group_for(
    const MTL::Size& grid,
    const MTL::ComputePipelineState* kernel) {
  std::array<size_t, 3> lengths{grid.width, grid.height, grid.depth};
  std::array<size_t, 3> group{1, 1, 1};
  auto left = std::bit_floor(kernel->maxTotalThreadsPerThreadgroup());
  for (bool grown = true; grown;) {
    grown = false;
    for (int i = 0; i < 3; ++i) {
      if (left > 1 && 2 * group[i] <= lengths[i]) {
        group[i] *= 2;
        left /= 2;
        grown = true;
      }
    }
  }
  return MTL::Size(group[0], group[1], group[2]);
}

/** The error for an invalid grid or threadgroup. */
std::invalid_argument
wrong(const char* what, const Extent& extent, const std::string& why) {
  auto [x, y, z] = extent.threads;
  std::ostringstream os;
  os << "The " << what << " [" << extent.formulas << "] is (" << x << ", " << y
     << ", " << z << "): " << why << ".";
  return std::invalid_argument(os.str());
}

MTL::Size size_of(const Extent& extent) {
  const auto& [x, y, z] = extent.threads;
  return MTL::Size(x, y, z);
}

/** The threadgroup that an entry specifies. */
MTL::Size group_of(
    const Extent& group,
    const MTL::ComputePipelineState* kernel) {
  auto most = static_cast<int64_t>(kernel->maxTotalThreadsPerThreadgroup());
  int64_t threads = 1;
  for (auto length : group.threads) {
    if (length <= 0) {
      throw wrong("threadgroup", group, "each axis needs at least 1 thread");
    }
    // All sizes are at least 1, so that larger products are all too large.
    threads *= std::min(length, most + 1);
    threads = std::min(threads, most + 1);
  }
  if (threads > most) {
    throw wrong(
        "threadgroup",
        group,
        "the device allows this kernel at most " + std::to_string(most) +
            " threads");
  }
  return size_of(group);
}

} // namespace

void dispatch(
    CommandEncoder& encoder,
    MTL::ComputePipelineState* kernel,
    const Extent& grid,
    const std::optional<Extent>& group,
    bool idle) {
  constexpr int64_t most = std::numeric_limits<uint32_t>::max();
  auto [least, largest] =
      std::minmax_element(grid.threads.begin(), grid.threads.end());
  if (*least < 0) {
    throw wrong("grid", grid, "sizes must not be negative");
  }
  if (*least == 0) {
    if (idle) {
      return;
    }
    throw wrong("grid", grid, "an empty grid writes no outputs");
  }
  if (*largest > most) {
    throw wrong("grid", grid, "thread positions have 32 bits");
  }
  auto threads = size_of(grid);
  encoder.dispatch_threads(
      threads, group ? group_of(*group, kernel) : group_for(threads, kernel));
}

///////////////////////////////////////////////////////////////////////////////
// Libraries
///////////////////////////////////////////////////////////////////////////////

namespace {

// The index of a kernel's first function constant; hand-written source uses
// others.
constexpr int first_constant = 1000;

} // namespace

Library::Library(std::string name, std::function<std::string()> source)
    : name_(std::move(name)), source_(std::move(source)) {
#ifdef MLXGEN_EMULATE_METAL
  mx::metal::emulation::libraries().emplace_back(name_, source_);
#endif
}

MTL::ComputePipelineState* Library::pipeline(
    const Stream& s,
    const std::string& kernel,
    [[maybe_unused]] const std::string& instantiation,
    const std::vector<Constant>& constants) const {
  auto& device = mx::metal::device(s.device);
#ifdef MLXGEN_EMULATE_METAL // compiles all kernels together; compares sources
  auto library = device.get_library(name_, source_);
#else
  // MLX caches libraries by name only; the name therefore includes a source
  // hash.
  std::call_once(made_, [this] {
    text_ = source_();
    name_ += "." + std::to_string(std::hash<std::string>{}(text_));
  });
  auto library = device.get_library(
      instantiation.empty() ? name_ : name_ + "." + kernel,
      [&] { return text_ + instantiation; });
#endif
  // MLX caches kernels by name, too; the name therefore includes the constants.
  mx::metal::MTLFCList set;
  auto specialized = kernel;
  for (const auto& one : constants) {
    set.emplace_back(one.value.data(), one.type, one.index);
    specialized += "_" + one.text;
  }
  return device.get_kernel(kernel, library, specialized, set);
}

namespace {

/** The Metal name of a dtype's type. */
std::string type_name(Dtype dtype) {
  if (dtype == mx::float16) {
    return "half";
  }
  if (dtype == mx::bfloat16) {
    return "bfloat";
  }
  auto name = show(dtype);
  bool sized = mx::issubdtype(dtype, mx::integer);
  return dtype == mx::float32 ? "float" : sized ? name + "_t" : name;
}

/** The host name of a template's instantiation. */
std::string instantiated(
    const std::string& name,
    const std::string& function,
    const std::string& arguments) {
  auto kernel = function + "<" + arguments + ">";
  return "template [[host_name(\"" + name + "\")]] [[kernel]]\ndecltype(" +
      kernel + ") " + kernel + ";\n";
}

/** The name of a template's kernel, and its instantiation. A value may have a
 * cast, as "(Mode)1", which the name lacks. */
std::pair<std::string, std::string> instance_of(
    const std::string& function,
    Dtype dtype,
    const std::vector<std::string>& values) {
  auto name = function + "_" + name_of(dtype);
  auto arguments = type_name(dtype);
  for (const auto& value : values) {
    name += "_" + value.substr(value.rfind(')') + 1);
    arguments += ", " + (value == "T" ? type_name(dtype) : value);
  }
  return {name, instantiated(name, function, arguments)};
}

/** All possible instances, which the emulation compiles in advance. */
[[maybe_unused]] std::string instances_of(
    const std::string& function,
    const std::vector<Dtype>& dtypes,
    const std::vector<std::vector<std::string>>& values) {
  std::vector<std::vector<std::string>> all{{}};
  for (const auto& some : values) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& one : all) {
      for (const auto& value : some) {
        longer.push_back(one);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  std::string text;
  for (auto dtype : dtypes) {
    for (const auto& one : all) {
      text += instance_of(function, dtype, one).second;
    }
  }
  return text;
}

} // namespace

int64_t enough(
    const char* op,
    const char* what,
    int64_t value,
    const std::vector<int64_t>& values) {
  auto found = std::lower_bound(values.begin(), values.end(), value);
  if (found == values.end()) { // in a graph for any shape
    unmet(op, {what, value, values.back()});
  }
  return *found;
}

Template::Template(
    std::string name,
    const char* source,
    std::string function,
    const std::vector<Dtype>& dtypes,
    const std::vector<std::vector<std::string>>& values)
    : function_(std::move(function)),
      library_(std::move(name), [source, function = function_, dtypes, values] {
        std::string text = source;
#ifdef MLXGEN_EMULATE_METAL
        text += instances_of(function, dtypes, values);
#endif
        return text;
      }) {
}

MTL::ComputePipelineState* Template::pipeline(
    const Stream& s,
    Dtype dtype,
    const std::vector<std::string>& values,
    const std::vector<Constant>& constants) const {
  auto [name, instance] = instance_of(function_, dtype, values);
  return library_.pipeline(s, name, instance, constants);
}

void copy(const Stream& s, const array& from, array& to) {
  // Not built before the first use: few packages need it.
  static const Template kernels(
      "mlxgen.copy",
      R"metal(
#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void mlxgen_copy(
    device const T* from [[buffer(0)]],
    device T* to [[buffer(1)]],
    constant size_t& count [[buffer(2)]],
    uint2 thread_index [[thread_position_in_grid]],
    uint2 thread_grid [[threads_per_grid]]) {
  size_t i = thread_index.x + size_t(thread_grid.x) * thread_index.y;
  if (i < count) {
    to[i] = from[i];
  }
}
)metal",
      "mlxgen_copy",
      {mx::bool_,
       mx::uint8,
       mx::uint16,
       mx::uint32,
       mx::uint64,
       mx::int8,
       mx::int16,
       mx::int32,
       mx::int64,
       mx::float16,
       mx::bfloat16,
       mx::float32},
      {});
  to.set_data(mlxgen::allocate(to));
  auto size = to.size();
  if (size == 0) {
    return;
  }
  auto kernel = kernels.pipeline(s, from.dtype(), {});
  auto& encoder = encoder_of(s);
  encoder.set_compute_pipeline_state(kernel);
  encoder.set_input_array(from, 0);
  encoder.set_output_array(to, 1);
  encoder.set_bytes(size, 2);
  auto width = std::min(size, row);
  auto group = std::min<size_t>(width, kernel->maxTotalThreadsPerThreadgroup());
  encoder.dispatch_threads(
      MTL::Size(width, (size + width - 1) / width, 1), MTL::Size(group, 1, 1));
}

///////////////////////////////////////////////////////////////////////////////
// Kernels around scalar functions
///////////////////////////////////////////////////////////////////////////////

namespace {

// The common part of generated elementwise kernels.
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

// The start of a thread in an array, for the last axes.
template <typename I, int AXES, int N>
inline I place_of(uint3 thread_index, constant const I* strides, int ndim) {
  I place = N * I(thread_index.x) * strides[ndim - 1];
  if (AXES != 1) {
    place += I(thread_index.y) * strides[ndim - 2];
  }
  if (AXES == 3) {
    place += I(thread_index.z) * strides[0];
  }
  return place;
}

} // namespace mlxgen
)metal";

// The kernels around an element. I is the type of offsets, N the number of
// elements per thread, AXES the number of axes (0: more than 3). A line that
// begins with IN, OUT or ATTR is a template for one line per input, output or
// attribute; @ is its name, # its number. No argument has the name of another
// one here (check/names.yaml).
constexpr const char* kernels_source = R"metal(
// True if an input is one number for all positions, which is then read once.
IN  |constant bool @_is_scalar [[function_constant(CONSTANT)]];

template <typename T>
inline void NAME_element(
IN  |    T @_value,
OUT |    thread T& @_value,
ATTR|    TYPE @,
    ) {
  using C = typename mlxgen::Compute<T>::type;
IN  |  C @ = C(@_value);
OUT |  C @;
  STATEMENT;
OUT |  @_value = T(@);
}

// All reads precede all writes, so that the compiler can combine the reads: it
// does not know that outputs have separate memory.
template <typename T, typename I, int N>
[[kernel]] void NAME_dense(
IN  |    device const T* @_at [[buffer(INDEX)]],
OUT |    device T* @_at [[buffer(INDEX)]],
    constant I& count [[buffer(INDEX)]],
ATTR|    constant TYPE& @_at [[buffer(INDEX)]],
    uint2 thread_index [[thread_position_in_grid]],
    uint2 thread_grid [[threads_per_grid]]) {
IN  |  const T @_scalar = @_is_scalar ? @_at[0] : T(0);
ATTR|  const TYPE @ = @_at;
  I k = thread_index.x;
  if (sizeof(I) > 4) {
    k += I(thread_grid.x) * I(thread_index.y);
  }
  k *= N;
  if ((N == 1 && sizeof(I) == 4) || N <= count - k) {
IN  |    T @_values[N];
OUT |    T @_values[N];
    for (int i = 0; i < N; ++i) {
IN  |      @_values[i] = @_is_scalar ? @_scalar : @_at[k + i];
    }
    for (int i = 0; i < N; ++i) {
      NAME_element<T>(
IN  |          @_values[i],
OUT |          @_values[i],
ATTR|          @,
          );
    }
    for (int i = 0; i < N; ++i) {
OUT |      @_at[k + i] = @_values[i];
    }
  } else {
    for (; k < count; ++k) {
OUT |      T @_value;
      NAME_element<T>(
IN  |          @_is_scalar ? @_scalar : @_at[k],
OUT |          @_value,
ATTR|          @,
          );
OUT |      @_at[k] = @_value;
    }
  }
}

template <typename T, typename I, int AXES, int N>
[[kernel]] void NAME_strided(
IN  |    device const T* @_at [[buffer(INDEX)]],
OUT |    device T* @_at [[buffer(INDEX)]],
    constant const int* shape [[buffer(INDEX)]],
    constant const I* thread_strides [[buffer(INDEX)]],
    constant int& ndim [[buffer(INDEX)]],
ATTR|    constant TYPE& @_at [[buffer(INDEX)]],
    uint3 thread_index [[thread_position_in_grid]],
    uint3 thread_grid [[threads_per_grid]]) {
  const int thread_axes = AXES > 0 ? AXES : ndim;
IN  |  const T @_scalar = @_is_scalar ? @_at[0] : T(0);
ATTR|  const TYPE @ = @_at;
IN  |  I @_place = mlxgen::place_of<I, AXES, N>(thread_index, thread_strides + # * thread_axes, thread_axes);
  const I thread_width = N > 1 ? I(shape[thread_axes - 1]) : I(thread_grid.x);
  I k = AXES == 0 || AXES == 3 ? I(thread_grid.y) * I(thread_index.z) : I(0);
  k = N * I(thread_index.x) +
      (AXES == 1 ? I(0) : thread_width * (k + I(thread_index.y)));
  uint thread_rest = thread_index.z;
  for (int i = thread_axes - 3; AXES == 0 && i >= 0; --i) {
    const I thread_place = thread_rest % uint(shape[i]);
    thread_rest /= uint(shape[i]);
IN  |    @_place += thread_place * thread_strides[# * thread_axes + i];
  }
  const int thread_left = N > 1 ? int(thread_width - N * I(thread_index.x)) : 1;
  for (int i = 0; i < N && i < thread_left; ++i, ++k) {
OUT |    T @_value;
    NAME_element<T>(
IN  |        @_is_scalar ? @_scalar : @_at[@_place],
OUT |        @_value,
ATTR|        @,
        );
OUT |    @_at[k] = @_value;
IN  |    @_place += thread_strides[(# + 1) * thread_axes - 1];
  }
}
)metal";

void replace(std::string& text, const char* what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos;) {
    text.replace(at, std::strlen(what), by);
    at += by.size();
  }
}

/** Fill in kernels_source for an element; `types` are those of the attributes.
 */
std::string kernels_of(
    const Element& element,
    const std::vector<std::string>& types) {
  std::string text;
  std::istringstream lines(kernels_source);
  int buffers = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto* names = line.starts_with("IN  |") ? &element.inputs
        : line.starts_with("OUT |")               ? &element.outputs
        : line.starts_with("ATTR|")               ? &element.attributes
                                                  : nullptr;
    size_t count = names ? names->size() : 1;
    if (line.find("[[kernel]]") != std::string::npos) {
      buffers = 0;
    }
    for (size_t i = 0; i < count; ++i) {
      auto made = names ? line.substr(5) : line;
      replace(made, "CONSTANT", std::to_string(first_constant + i));
      if (made.find("INDEX") != std::string::npos) {
        replace(made, "INDEX", std::to_string(buffers++));
      }
      if (names != nullptr) {
        replace(made, "TYPE", names == &element.attributes ? types[i] : "");
        replace(made, "@", (*names)[i]);
        replace(made, "#", std::to_string(i));
      }
      replace(made, "NAME", element.name);
      replace(made, "STATEMENT", element.statement);
      auto closing = made.find_first_not_of(' ');
      if (text.ends_with(",\n") && made[closing] == ')') {
        text.resize(text.size() - 2); // the last argument's comma
        made.erase(0, closing);
      }
      text += made + "\n";
    }
  }
  return text;
}

/** The instantiation of a template, and the number of elements per thread. */
struct Variant {
  std::string kind;
  std::string arguments;
  size_t each;
};

size_t in_8_bytes(Dtype dtype) {
  return std::max<size_t>(1, 8 / mx::size_of(dtype));
}

std::string with_number(const std::string& arguments, size_t n) {
  return arguments + std::to_string(n);
}

/** For arrays with the same layout without gaps. */
Variant dense_variant(Dtype dtype, size_t size) {
  auto n = in_8_bytes(dtype);
  if (static_cast<int64_t>(size) > most) {
    return {"dense_large", with_number("int64_t, ", n), n};
  }
  if (size >= many && n > 1) {
    return {"dense_n", with_number("int, ", n), n};
  }
  return {"dense", "int, 1", 1};
}

/** For arrays with this number of axes. */
Variant strided_variant(size_t axes, bool large) {
  size_t n = axes <= 3 ? 1 : large ? 4 : 2;
  auto counted = axes <= 3 ? std::to_string(axes) : "n";
  auto arguments = (axes <= 3 ? counted : "0") + ", " + std::to_string(n);
  return {
      "strided_" + counted + (large ? "_large" : ""),
      (large ? "int64_t, " : "int, ") + arguments,
      n};
}

std::string
kernel_name(const std::string& name, const Variant& variant, Dtype dtype) {
  return name + "_" + variant.kind + "_" + name_of(dtype);
}

std::string
instantiated(const std::string& name, const Variant& variant, Dtype dtype) {
  auto stem = variant.kind.substr(0, variant.kind.find('_'));
  return instantiated(
      kernel_name(name, variant, dtype),
      name + "_" + stem,
      type_name(dtype) + ", " + variant.arguments);
}

/** All kernels that a launch may use, which the emulation compiles in advance.
 */
std::string all_instantiated(
    const std::string& name,
    const std::vector<Dtype>& dtypes) {
  std::string text;
  for (auto dtype : dtypes) {
    for (auto size : {size_t(1), many, static_cast<size_t>(most) + 1}) {
      auto variant = dense_variant(dtype, size);
      if (size != many || variant.each > 1) {
        text += instantiated(name, variant, dtype);
      }
    }
    for (size_t axes = 1; axes <= 4; ++axes) {
      for (bool large : {false, true}) {
        text += instantiated(name, strided_variant(axes, large), dtype);
      }
    }
  }
  return text;
}

/** The largest distance of an element from an array's first element. */
int64_t reach_of(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& strides) {
  int64_t reach = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    reach += (shape[axis] - 1) * std::abs(strides[axis]);
  }
  return reach;
}

} // namespace

Elementwise::Elementwise(
    const std::string& package,
    const char* source,
    Element element,
    std::vector<std::string> types,
    const std::vector<Dtype>& dtypes)
    : name_(element.name),
      library_(
          package + "." + name_,
          [source,
           element = std::move(element),
           types = std::move(types),
           dtypes] {
            auto text =
                source + (elementwise_source + kernels_of(element, types));
#ifdef MLXGEN_EMULATE_METAL
            text += all_instantiated(element.name, dtypes);
#endif
            return text;
          }) {
}

void Elementwise::run(
    const Stream& s,
    const Arrays& inputs,
    Arrays& outputs,
    const SetAttributes& set_attributes) const {
  bool dense = allocate_elementwise(inputs, outputs);
  auto size = outputs[0].size();
  if (size == 0) {
    return;
  }
  auto dtype = inputs[0].dtype();
  std::optional<Axes> axes;
  bool large = false;
  if (!dense) {
    auto all = inputs;
    all.push_back(outputs[0]);
    axes.emplace(all, outputs[0].shape(), most);
    for (const auto& strides : axes->strides) {
      large = large || reach_of(axes->shape, strides) >= most;
    }
  }
  auto variant = dense ? dense_variant(dtype, size)
                       : strided_variant(axes->shape.size(), large);
  std::vector<Constant> scalars;
  for (const auto& in : inputs) {
    int place = first_constant + int(scalars.size());
    scalars.push_back(constant(is_repeated_scalar(in), place));
  }
  auto name = kernel_name(name_, variant, dtype);
  auto kernel =
      library_.pipeline(s, name, instantiated(name_, variant, dtype), scalars);
  auto& encoder = encoder_of(s);
  encoder.set_compute_pipeline_state(kernel);
  int index = 0;
  for (const auto& in : inputs) {
    encoder.set_input_array(in, index++);
  }
  for (auto& out : outputs) {
    encoder.set_output_array(out, index++);
  }
  auto over = [&](size_t length) {
    return (length + variant.each - 1) / variant.each;
  };
  if (dense) {
    auto threads = over(size);
    auto width = threads;
    if (static_cast<int64_t>(size) > most) {
      width = std::min(threads, row);
      encoder.set_bytes(static_cast<int64_t>(size), index++);
    } else {
      encoder.set_bytes(static_cast<int>(size), index++);
    }
    set_attributes(encoder, index);
    auto group =
        std::min<size_t>(width, kernel->maxTotalThreadsPerThreadgroup());
    encoder.dispatch_threads(
        MTL::Size(width, (threads + width - 1) / width, 1),
        MTL::Size(group, 1, 1));
    return;
  }
  const auto& lengths = axes->shape;
  axes->strides.pop_back(); // the output's
  std::vector<int64_t> strides;
  for (const auto& own : axes->strides) {
    strides.insert(strides.end(), own.begin(), own.end());
  }
  std::vector<int> shape(lengths.begin(), lengths.end());
  set_vector(encoder, shape, index++);
  if (large) {
    set_vector(encoder, strides, index++);
  } else {
    set_vector(
        encoder, std::vector<int>(strides.begin(), strides.end()), index++);
  }
  encoder.set_bytes(static_cast<int>(lengths.size()), index++);
  set_attributes(encoder, index);
  size_t last = lengths.size() - 1;
  size_t width = lengths[last];
  size_t height = last > 0 ? lengths[last - 1] : 1;
  auto grid = MTL::Size(over(width), height, size / (width * height));
  encoder.dispatch_threads(grid, group_for(grid, kernel));
}

} // namespace mlxgen::metal

#endif // _METAL_
