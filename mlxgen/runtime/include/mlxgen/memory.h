// Allocates the memory of outputs. For a large array the system maps new memory
// every time, in pages of 4 KiB on the first write. This takes more time than
// most functions of the elements; with pages of 2 MiB it takes a fraction of
// that time. NumPy requests large pages, too.

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

/** Raise an error: the memory of an array cannot be allocated. */
[[noreturn]] void no_memory(
    const mlx::core::Shape& shape,
    mlx::core::Dtype dtype);

/**
 * Uninitialized memory for an output, in the type that set_data() takes: a
 * Buffer up to MLX 0.32.3, and then a Data that owns one.
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
    // Only advice: if the system rejects it, nothing changes.
    madvise(
        reinterpret_cast<void*>(start), first + bytes - start, MADV_HUGEPAGE);
  }
#endif
  return data;
}

} // namespace mlxgen
