// A substitute for the functions of MLX's header that an extension can link,
// for hand-written launchers (`manual: [eval_gpu]`).

#pragma once

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>

#include "mlx/backend/metal/device.h"
#include "mlx/primitives.h"

namespace mlx::core {

/** The name of a dtype in the host names of MLX's kernels. */
inline std::string type_to_name(const Dtype& dtype) {
  std::ostringstream os;
  os << dtype;
  return dtype == bool_ ? "bool_" : os.str();
}
inline std::string type_to_name(const array& a) {
  return type_to_name(a.dtype());
}

/** Append texts and numbers. */
template <typename... Args>
void concatenate(std::string& text, const Args&... args) {
  std::ostringstream os;
  (os << ... << args);
  text += os.str();
}

inline int get_work_per_thread(Dtype dtype) {
  return std::max(1, 8 / int(dtype.size()));
}
inline int get_work_per_thread(Dtype dtype, size_t size) {
  return size < (size_t(1) << 16) ? 1 : get_work_per_thread(dtype);
}

inline size_t ceildiv(size_t n, size_t m) {
  return (n + m - 1) / m;
}

inline void check_kernel_threadgroup_size(
    const MTL::ComputePipelineState* kernel,
    MTL::Size group,
    const std::string& name) {
  auto threads = group.width * group.height * group.depth;
  if (threads > kernel->maxTotalThreadsPerThreadgroup()) {
    throw std::runtime_error(
        name +
        ": too many threads in a threadgroup: " + std::to_string(threads));
  }
}

} // namespace mlx::core
