// Packed training: sequences that follow each other along the axis of time.
// Recurrences and causal_conv1d begin each of them without a state.

#pragma once

#include <algorithm>
#include <cstdint>

#include "mlxgen/kernel.h"

namespace mlxops::cpu {

/** The steps [first, end) of a sequence. A step in none has the index -1. */
struct Sequence {
  int64_t index;
  int64_t first;
  int64_t end;

  bool exists() const {
    return index >= 0;
  }
  /** True at the first step, unless the state is that of this sequence. */
  bool starts_anew(int64_t step) const {
    return index > 0 && step == first;
  }
};

/**
 * The sequences of some steps, from their starts and the end of the last one.
 * Without starts, all steps are one sequence. If the starts do not ascend, the
 * sequences are unspecified, but within the steps.
 */
struct Sequences {
  mlxgen::In<int32_t> starts;
  int64_t steps;

  Sequence of(int64_t step) const {
    if (!starts) {
      return {0, 0, steps};
    }
    int64_t from = 0, to = starts.size(); // the next sequence is between them
    while (from < to) {
      int64_t middle = (from + to) / 2;
      if (starts[middle] <= step) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    if (from == 0 || from == starts.size()) {
      return {-1, 0, 0};
    }
    return {
        from - 1,
        std::max<int64_t>(starts[from - 1], 0),
        std::min<int64_t>(starts[from], steps)};
  }

  /** The first sequence, which continues the state; {0, 0, 0} without steps. */
  Sequence initial() const {
    if (!starts || last().end == 0) {
      return {0, 0, starts ? 0 : steps};
    }
    int64_t first = std::clamp<int64_t>(starts[0], 0, steps);
    return {0, first, std::clamp<int64_t>(starts[1], first, steps)};
  }

  /** The last sequence with steps; {0, 0, 0} if there is none. */
  Sequence last() const {
    if (!starts) {
      return {0, 0, steps};
    }
    int64_t end = std::clamp<int64_t>(starts[starts.size() - 1], 0, steps);
    Sequence found = end > 0 ? of(end - 1) : Sequence{-1, 0, 0};
    return found.exists() ? found : Sequence{0, 0, 0};
  }
};

/**
 * What each step begins with, for formulas: 1 for the state after the previous
 * step, 2 for the given state, 3 for zeros; and 0 for a step in no sequence.
 * With `reverse` the steps are computed from the last to the first.
 */
template <typename T>
void sequence_marks(
    mlxgen::In<int32_t> cu_seqlens,
    mlxgen::In<T> like,
    int axis,
    bool reverse,
    mlxgen::Out<int32_t> out) {
  Sequences sequences{cu_seqlens, like.dim(axis)};
  int64_t last = sequences.last().end;
  for (int64_t t = 0; t < sequences.steps; ++t) {
    Sequence own = sequences.of(t);
    bool begins = t == (reverse ? own.end - 1 : own.first);
    bool given = reverse ? own.end == last : own.index == 0;
    out[t] = !own.exists() ? 0 : !begins ? 1 : given ? 2 : 3;
  }
}

} // namespace mlxops::cpu
