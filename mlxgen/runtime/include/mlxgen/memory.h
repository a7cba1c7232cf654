// The memory of outputs. That of large ones the system maps anew for every
// array, 4 KiB at a time as it is first written to, which takes longer than
// most functions of the elements do; 2 MiB at a time, a fraction of that. NumPy
// asks for the same.

#pragma once

#include <cstddef>
#include <cstdint>

#include "mlx/allocator.h"
#include "mlx/array.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mlxgen {

/** Raise that there is none for an array. */
[[noreturn]] void no_memory(
    const mlx::core::Shape& shape,
    mlx::core::Dtype dtype);

/**
 * Memory for an output, which nothing has written to: what set_data() takes, a
 * Buffer until MLX 0.32.3, and then a Data that owns one.
 */
inline auto allocate(const mlx::core::array& out) {
  auto bytes = out.nbytes();
  auto data = mlx::core::allocator::malloc(bytes);
  auto buffer = [](auto& given) {
    if constexpr (requires { given.buffer(); }) {
      return given.buffer();
    } else {
      return given;
    }
  }(data);
  if (bytes > 0 && buffer.ptr() == nullptr) {
    no_memory(out.shape(), out.dtype());
  }
#if defined(__linux__)
  constexpr size_t large = size_t{1} << 22;
  if (bytes >= large) {
    auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto first = reinterpret_cast<uintptr_t>(buffer.raw_ptr());
    auto start = (first + page - 1) / page * page;
    // Advice: where it is refused, all is as before.
    madvise(
        reinterpret_cast<void*>(start), first + bytes - start, MADV_HUGEPAGE);
  }
#endif
  return data;
}

} // namespace mlxgen
