// Finds races: two threads use the same memory, one of them writes, and nothing
// orders the two. Threads of one threadgroup are ordered by its barriers,
// threads of different threadgroups by nothing. In whatever order the emulation
// runs threads, a race shows.
//
// The compiler calls __tsan_... for each access that a kernel makes
// (-fsanitize=thread, of which nothing else is used). Watched are outputs and
// threadgroup memory. Atomic operations do not count, nor do lanes of the same
// simdgroup, which simdgroup operations order, nor writes of what is there
// already: kernels let threads write the same value.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "mlxgen_metal/abi.h"

namespace mlxgen_metal::races {

// A moment and a thread: which stretch between two barriers of which
// threadgroup it was, counted through the launch, and the thread's index.
using Stamp = uint64_t;
constexpr int thread_bits = 10;
constexpr Stamp several = Stamp(1) << 63; // simdgroups have read it since
constexpr Stamp elsewhere = Stamp(1) << 62; // another threadgroup has read it

/** Who last used the memory from one byte on. */
struct Cell {
  Stamp writer;
  Stamp reader;
};

struct Watched {
  uint8_t* start;
  size_t size;
  int shift; // a cell is for 1 << shift bytes
  bool local; // to the threadgroup, of whatever number
  // Kept from launch to launch: what is older than this one does not count.
  std::vector<Cell> cells;
};

constexpr int most = 2 * max_buffers + 1;
inline Watched watched[most];
inline int count = 0;
inline uint64_t moment = 1;
inline uint64_t launched = 1; // when this launch began
inline uint64_t began = 1; // when the threadgroup that runs did
inline uint32_t thread = 0; // that runs

enum Race { none, among_threads, among_threadgroups };

/** A write in a race, until it can be seen whether it changed anything. */
struct Pending {
  uint8_t* at; // null: there is none
  size_t size;
  uint8_t before[16];
  Race race;
  Stamp other; // with whom
  Cell* cell;
  Stamp writer; // of the cell before
};
inline Pending pending{};

/** Watch memory of elements of a size, until `begin`. */
inline void watch(void* start, size_t size, size_t item, bool local) {
  if (size == 0 || count == most) {
    return;
  }
  auto& w = watched[count++];
  w.start = static_cast<uint8_t*>(start);
  w.size = size;
  w.shift = item == 8 ? 3 : item == 4 ? 2 : item == 2 ? 1 : 0;
  w.local = local;
  if (w.cells.size() < (size >> w.shift) + 1) {
    w.cells.resize((size >> w.shift) + 1);
  }
}

/** Begin a launch: nothing is watched yet. */
inline void begin() {
  count = 0;
  pending.at = nullptr;
  launched = ++moment;
}

/** Begin a threadgroup, whose own memory nobody has used. */
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

/** Settle the pending write, if there is one: whether it is a race. */
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

/** Note a read; with whom it is in a race becomes `other`. */
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

/** Note a write, which is pending where it is in a race. */
inline void
write(const Watched& watched, Cell& cell, Stamp now, uint8_t* at, size_t size) {
  Stamp other = cell.writer;
  Race race = between(other, watched.local);
  if (race == none) {
    other = cell.reader;
    race = between(other, watched.local);
  }
  if (race != none) {
    pending = {at, size, {}, race, other, &cell, cell.writer};
    memcpy(pending.before, at, size);
  }
  cell.writer = now;
}

/** Note an access to memory that is watched; for a read as `read`. */
inline Race access(void* p, size_t size, bool writes, Stamp& other) {
  auto at = static_cast<uint8_t*>(p);
  for (int i = 0; i < count; ++i) {
    auto& w = watched[i];
    size_t offset = size_t(at - w.start);
    if (offset >= w.size) {
      continue;
    }
    auto& cell = w.cells[offset >> w.shift];
    Stamp now = (moment << thread_bits) | thread;
    if (!writes) {
      return read(w, cell, now, other);
    }
    write(w, cell, now, at, std::min(size, w.size - offset));
    return none;
  }
  return none;
}

} // namespace mlxgen_metal::races
