// The functions of the runtime (runtime.cpp) that translated kernels call. The
// runtime is compiled separately, because kernels define functions with the
// names of the C library's mathematics, whose header must not be included here.

#pragma once

#include <source_location>

#include "mlxgen_metal/abi.h"

// For functions that are not the kernel's own: races.h ignores their accesses.
#define MLXGEN_UNWATCHED __attribute__((no_sanitize("thread")))

namespace mlxgen_metal {

/** The attributes of position parameters, as indices into Thread::position. */
enum Position : int32_t {
  thread_position_in_grid,
  thread_position_in_threadgroup,
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  thread_index_in_quadgroup,
  quadgroup_index_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_grid,
  threadgroups_per_grid,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  simdgroups_per_threadgroup,
  threads_per_simdgroup,
  quadgroups_per_threadgroup,
  threads_per_quadgroup,
  grid_origin,

  dispatch_simdgroups_per_threadgroup = simdgroups_per_threadgroup,
  dispatch_quadgroups_per_threadgroup = quadgroups_per_threadgroup,
  thread_execution_width = threads_per_simdgroup,
  grid_size = threads_per_grid,
};

/** The values of a simdgroup's lanes at one operation. */
struct Lanes {
  const uint8_t* slots; // 64 bytes each
  uint32_t active;
  uint32_t lane;
};

/** Where a kernel calls an operation. */
using Call = std::source_location;

/** Storage of a threadgroup variable, filled with NaN bytes. */
void* shared_storage(
    const void* key,
    size_t size,
    size_t alignment,
    const char* name);

/** Wait for the threadgroup (`whole`) or the simdgroup. */
void barrier(const char* what, bool whole, Call call);

/** Publish a value to the other lanes of the simdgroup, and return theirs. */
Lanes exchange(const void* value, size_t size, const char* what, Call call);

/** Record an atomic write, which is no access that can be part of a race. */
void wrote(const void* address, size_t size);

/** The number of the active mutant: $MLXGEN_METAL_CHANGE, or 0. */
extern const int change;

/** End the launch with an error: the emulation or Metal does not support it. */
void unsupported(const char* what);

} // namespace mlxgen_metal
