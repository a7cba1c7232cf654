// Packed sequences, as in csrc/nn/sequences.h.

#pragma once

#include <metal_stdlib>

using namespace metal;

/** The steps [first, end) of a sequence. A step in none has the index -1. */
struct Sequence {
  int index;
  int first;
  int end;

  bool exists() const {
    return index >= 0;
  }
  /** True at the first step, unless the state is that of this sequence. */
  bool starts_anew(int step) const {
    return index > 0 && step == first;
  }
};

/** Without starts (count is 0), all steps are one sequence. */
struct Sequences {
  device const int* starts;
  int count;
  int steps;

  Sequences(device const int* starts, int64_t count, int steps)
      : starts(starts), count(int(count)), steps(steps) {}

  Sequence of(int step) const {
    if (count == 0) {
      return {0, 0, steps};
    }
    int from = 0, to = count; // the next sequence is between them
    while (from < to) {
      int middle = (from + to) / 2;
      if (starts[middle] <= step) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    if (from == 0 || from == count) {
      return {-1, 0, 0};
    }
    return {from - 1, max(starts[from - 1], 0), min(starts[from], steps)};
  }

  /** The first sequence, which continues the state; {0, 0, 0} without steps. */
  Sequence initial() const {
    if (count == 0 || last().end == 0) {
      return {0, 0, count == 0 ? steps : 0};
    }
    int first = clamp(starts[0], 0, steps);
    return {0, first, clamp(starts[1], first, steps)};
  }

  /** The last sequence with steps; {0, 0, 0} if there is none. */
  Sequence last() const {
    if (count == 0) {
      return {0, 0, steps};
    }
    int end = clamp(starts[count - 1], 0, steps);
    Sequence found = {-1, 0, 0};
    if (end > 0) {
      found = of(end - 1);
    }
    if (!found.exists()) {
      return {0, 0, 0};
    }
    return found;
  }
};
