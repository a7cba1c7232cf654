// Metal kernel of sequence_marks: the formulas of csrc/nn/sequences.h.

#include "sequences.h"

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

/** A thread per step. */
template <typename T>
[[kernel]] void sequence_marks(
    device const int* cu_seqlens [[buffer(0)]],
    device const T* like [[buffer(1)]],
    device int* out [[buffer(2)]],
    constant int64_t& cu_seqlens_size [[buffer(3)]],
    constant bool& reverse [[buffer(4)]],
    constant int& steps [[buffer(5)]],
    uint t [[thread_position_in_grid]]) {
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  Sequence own = sequences.of(t);
  bool begins = int(t) == (reverse ? own.end - 1 : own.first);
  bool given = reverse ? own.end == sequences.last().end : own.index == 0;
  out[t] = !own.exists() ? 0 : !begins ? 1 : given ? 2 : 3;
}
