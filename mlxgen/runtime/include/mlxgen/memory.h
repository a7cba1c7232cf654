// The memory of large outputs. The system maps it anew for every array, 4 KiB
// at a time as it is first written to, which takes longer than most functions
// of the elements do; 2 MiB at a time, a fraction of that. NumPy asks for the
// same.

#pragma once

#include <cstddef>
#include <cstdint>

#include "mlx/allocator.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mlxgen {

/** Memory for an output, which nothing has written to. */
inline mlx::core::allocator::Data allocate(size_t bytes) {
  auto data = mlx::core::allocator::malloc(bytes);
#if defined(__linux__)
  constexpr size_t large = size_t{1} << 22;
  if (bytes >= large) {
    auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto first = reinterpret_cast<uintptr_t>(data.buffer().raw_ptr());
    auto start = (first + page - 1) / page * page;
    // Advice: where it is refused, all is as before.
    madvise(
        reinterpret_cast<void*>(start), first + bytes - start, MADV_HUGEPAGE);
  }
#endif
  return data;
}

} // namespace mlxgen
