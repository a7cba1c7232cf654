// Finds races: two threads access the same memory, at least one of them writes,
// and no barrier orders the two accesses. Barriers order threads of the same
// threadgroup; nothing orders threads of different threadgroups. A race is
// found under every schedule of the emulation.
//
// The compiler inserts a call of __tsan_... for each access of a kernel
// (-fsanitize=thread, without its runtime). Outputs and threadgroup memory are
// watched. Three kinds of access are not races: atomic operations; accesses by
// lanes of the same simdgroup, which simdgroup operations order; and writes
// that do not change the value, because kernels let threads write the same
// value.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "mlxgen_metal/abi.h"

namespace mlxgen_metal::races {

// A moment and a thread: the section between two barriers of a threadgroup,
// counted through the launch, and the index of the thread.
using Stamp = uint64_t;
constexpr int thread_bits = 10;
constexpr Stamp several = Stamp(1) << 63; // read by several simdgroups
constexpr Stamp elsewhere = Stamp(1) << 62; // read by another threadgroup

/** The last accesses to the memory of a cell. */
struct Cell {
  Stamp writer;
  Stamp reader;
};

struct Watched {
  uint8_t* start;
  size_t size;
  int shift; // a cell covers 1 << shift bytes
  bool local; // threadgroup memory
  // Kept between launches; older stamps do not count.
  std::vector<Cell> cells;
};

// Outputs, found by their place, and threadgroup memory.
inline Watched outputs[max_buffers];
inline Watched locals[max_buffers + 1];
inline int output_count = 0;
inline int local_count = 0;
inline uint64_t moment = 1;
inline uint64_t launched = 1; // start of this launch
inline uint64_t began = 1; // start of the running threadgroup
inline uint32_t thread = 0; // the running thread

enum Race { none, among_threads, among_threadgroups };

/** A write in a race, pending until it is known whether it changed the value.
 */
struct Pending {
  uint8_t* at; // null: no write is pending
  size_t size;
  uint8_t before[16];
  Race race;
  Stamp other; // the other access
  Cell* cell;
  Stamp writer; // the cell's previous value
  const void* pc;
};
inline Pending pending{};

/** Watch memory with elements of a size, until the next `begin`. */
inline Watched* watch(void* start, size_t size, size_t item, bool local) {
  if (size == 0) {
    return nullptr;
  }
  auto& w = local ? locals[local_count++] : outputs[output_count++];
  w.start = static_cast<uint8_t*>(start);
  w.size = size;
  w.shift = item == 8 ? 3 : item == 4 ? 2 : item == 2 ? 1 : 0;
  w.local = local;
  if (w.cells.size() < (size >> w.shift) + 1) {
    w.cells.resize((size >> w.shift) + 1);
  }
  return &w;
}

/** Begin a launch without watched memory. */
inline void begin() {
  output_count = local_count = 0;
  pending.at = nullptr;
  launched = ++moment;
}

/** Begin a threadgroup; no thread has used its memory yet. */
inline void next_threadgroup() {
  began = ++moment;
}

inline void next_stretch() {
  ++moment;
}

inline Race between(Stamp other, bool local) {
  if (other == 0) {
    return none;
  }
  uint64_t then = (other & ~(several | elsewhere)) >> thread_bits;
  if (then < launched) {
    return none;
  }
  if (then < began || (other & elsewhere)) {
    return local ? none : among_threadgroups;
  }
  bool same = (other & 1023) / 32 == thread / 32 && !(other & several);
  return then == moment && !same ? among_threads : none;
}

/** Decide whether a pending write is a race. */
inline bool settle() {
  if (pending.at == nullptr) {
    return false;
  }
  bool changed = memcmp(pending.at, pending.before, pending.size) != 0;
  if (!changed) {
    pending.cell->writer = pending.writer;
    pending.at = nullptr;
  }
  return changed;
}

/** Record a read; `other` becomes the access with which it races. */
inline Race read(const Watched& watched, Cell& cell, Stamp now, Stamp& other) {
  uint64_t then = (cell.reader & ~(several | elsewhere)) >> thread_bits;
  Stamp kept = then < launched ? 0 : cell.reader & elsewhere;
  if (then >= launched && then < began) {
    kept = elsewhere;
  } else if (then == moment) {
    bool joined = (cell.reader & 1023) / 32 != thread / 32;
    kept |= joined ? several : cell.reader & several;
  }
  cell.reader = now | kept;
  other = cell.writer;
  return between(other, watched.local);
}

/** Record a write; a write in a race becomes pending. */
inline void write(
    const Watched& watched,
    Cell& cell,
    Stamp now,
    uint8_t* at,
    size_t size,
    const void* pc) {
  Stamp other = cell.writer;
  Race race = between(other, watched.local);
  if (race == none) {
    other = cell.reader;
    race = between(other, watched.local);
  }
  if (race != none && pending.at != nullptr) {
    return; // another element of the same write
  }
  if (race != none) {
    pending = {at, size, {}, race, other, &cell, cell.writer, pc};
    memcpy(pending.before, at, size);
  }
  cell.writer = now;
}

/** Record an access to watched memory; return the race of a read. */
inline Race access(
    Watched& w,
    void* p,
    size_t size,
    bool writes,
    Stamp& other,
    const void* pc) {
  auto at = static_cast<uint8_t*>(p);
  size_t offset = size_t(at - w.start);
  size = std::min(size, w.size - offset);
  size_t last = (offset + size - 1) >> w.shift;
  Stamp now = (moment << thread_bits) | thread;
  for (size_t i = offset >> w.shift; i <= last; ++i) {
    if (writes) {
      write(w, w.cells[i], now, at, std::min<size_t>(size, 16), pc);
    } else if (auto race = read(w, w.cells[i], now, other); race != none) {
      return race;
    }
  }
  return none;
}

/** The threadgroup memory that contains an address; null for other memory. */
inline Watched* find(void* p) {
  for (int i = 0; i < local_count; ++i) {
    auto& w = locals[i];
    if (size_t(static_cast<uint8_t*>(p) - w.start) < w.size) {
      return &w;
    }
  }
  return nullptr;
}

/** Whether a thread of this launch has written the element at an offset. */
inline bool was_written(const Watched& w, size_t offset) {
  return w.cells[offset >> w.shift].writer >> thread_bits >= launched;
}

} // namespace mlxgen_metal::races
