// The binary interface of a library of emulated kernels, shared by translated
// kernels, the runtime, Python (ctypes, library.py) and the substitute for
// MLX's Metal device. It consists of plain C structures, so that no C++ ABI is
// shared.

#pragma once

#include <stddef.h>
#include <stdint.h>

namespace mlxgen_metal {

constexpr uint32_t abi_version = 5;
constexpr int max_buffers = 31;
constexpr uint32_t simdgroup_size = 32;
constexpr uint32_t max_threads = 1024; // of a threadgroup
constexpr size_t max_threadgroup_memory = 32768;

/** The type of an argument's elements; `other` matches every type. */
enum Code : int32_t {
  other = 0,
  boolean = 1,
  int8 = 2,
  uint8 = 3,
  int16 = 4,
  uint16 = 5,
  int32 = 6,
  uint32 = 7,
  int64 = 8,
  uint64 = 9,
  float16 = 10,
  bfloat16 = 11,
  float32 = 12,
  complex64 = 13,
};

enum Kind : int32_t { buffer = 0, threadgroup_memory = 1, position = 2 };

/** A kernel's parameter. */
struct Parameter {
  const char* name;
  const char* type;
  int32_t kind;
  int32_t index; // [[buffer(index)]]; for a position, its index in Thread
  int32_t code; // of the element
  int32_t size; // of the element, 0 if unknown
  int32_t reference; // exactly one element
  int32_t constant; // read-only
  int32_t optional; // its function constant is false: it may be unbound
};

/** The position of a thread, in the order of the position parameters. */
struct Thread {
  uint32_t position[17][3];
  void* const* buffers;
  void* const* shared;
};

struct Entry {
  const char* name; // the host name
  void (*run)(const Thread&);
  const Parameter* (*parameters)();
  int32_t count;
  int32_t max_threads;
};

struct Constant {
  const char* name;
  int32_t index;
  int32_t size;
  int32_t code;
  void* value;
  int32_t* defined;
};

/** The memory bound to a buffer index: [start, start + size), with `data` in
 * it. */
struct Argument {
  uint8_t* data; // the value of the kernel's pointer
  uint8_t* start; // the lowest address of the memory
  uint64_t size;
  int32_t bound; // 0: nothing is bound here
  int32_t bytes; // 1: set_bytes, whose size must match
  int32_t output; // 1: may be written to
  int32_t code;
  int32_t fill; // 1: filled with NaN before the launch
  int32_t whole; // 1: elements that no thread writes are an error
  uint64_t offset; // of `start` in its allocation, which Metal aligns
};

enum Schedule : int32_t {
  natural = 0, // all threads up to the next barrier, in order
  ascending = 1, // one simdgroup after another, each as far as possible
  descending = 2,
  seeded = 3, // simdgroups, and the lanes in them, in random order
};

struct Launch {
  int32_t entry;
  int32_t by_threadgroups; // the grid is in threadgroups, not threads
  uint64_t grid[3];
  uint64_t group[3];
  Argument arguments[max_buffers];
  uint64_t shared_sizes[max_buffers];
  int32_t schedule;
  int32_t align_start; // put the guard page before buffers, not after them
  uint64_t seed;
  double seconds; // time limit; 0: $MLXGEN_METAL_TIMEOUT, or 60
};

struct Library {
  uint32_t version;
  const Entry* entries;
  int32_t entry_count;
  const Constant* constants;
  int32_t constant_count;
};

} // namespace mlxgen_metal

extern "C" {
/** The contents of the library. */
const mlxgen_metal::Library* mlxgen_metal_library();
/**
 * Run a kernel of a library. Return the number of characters of the error in
 * `message`, or 0. All libraries share one runtime, which runs one launch at a
 * time.
 */
int mlxgen_metal_launch(
    const mlxgen_metal::Library* library,
    mlxgen_metal::Launch* launch,
    char* message,
    size_t capacity);
}
