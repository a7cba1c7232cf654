// Common code of the Metal kernels of gated_delta, wkv7 and the gradient of
// ssm_scan: the formulas of csrc/nn/delta.h.
//
// A simdgroup keeps rows_per_simdgroup rows of the state in registers, each
// lane every 32nd of their numbers, and processes them through time. In the
// forward no simdgroup waits for another. The backward accumulates sums over
// rows in threadgroup memory, in the same order in every run.

#pragma once

#include <metal_stdlib>

#include "sequences.h"

using namespace metal;

static constant constexpr const uint rows_per_simdgroup = 4;

/** The rows of a simdgroup, `count` of which exist, and their head. */
struct DeltaPlace {
  uint steps;
  uint heads;
  uint values;
  uint width;
  uint batch;
  uint head;
  uint block; // of the rows of a threadgroup
  uint first;
  int count;
  uint lane;
  uint simdgroup;

  /** The index of a value that each head has for each step. */
  size_t at(uint t) const {
    return (size_t(batch) * steps + t) * heads + head;
  }

  /** The start of the rows in a state. */
  size_t start() const {
    return ((size_t(batch) * heads + head) * values + first) * width;
  }
};

/** The rows of a simdgroup in a grid of (blocks of `rows`, heads, batch). */
inline DeltaPlace delta_place(
    constant const int* v_shape,
    uint width,
    uint rows,
    uint3 group,
    uint lane,
    uint simdgroup) {
  uint first = group.x * rows + simdgroup * rows_per_simdgroup;
  return {
      uint(v_shape[1]),
      uint(v_shape[2]),
      uint(v_shape[3]),
      width,
      group.z,
      group.y,
      group.x,
      first,
      v_shape[3] - int(first),
      lane,
      simdgroup};
}

/** The numbers of a step: a lane's part of vectors, and one for each row. */
template <int N>
struct DeltaStep {
  float w[N];
  float a[N];
  float b[N];
  float k[N];
  float r[N];
  float v[rows_per_simdgroup];
  float grad_y[rows_per_simdgroup];
  float x[rows_per_simdgroup]; // of ssm_scan, whose v is x times dt
  float beta;
};

/** A lane's part of the rows of a state, or of its gradient. */
template <int N>
struct DeltaRows {
  float at[rows_per_simdgroup][N];
};

/** A lane's numbers out of `width`; missing numbers are zeros. */
template <int N, typename T>
inline void
read_lane(device const T* from, uint lane, uint width, thread float* to) {
  for (int n = 0; n < N; ++n) {
    uint j = lane + 32 * n;
    to[n] = j < width ? static_cast<float>(from[j]) : 0.0f;
  }
}

/** A number of each row. */
template <typename T>
inline void read_rows(
    device const T* from,
    thread const DeltaPlace& place,
    thread float* to) {
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    to[i] = i < place.count ? static_cast<float>(from[i]) : 0.0f;
  }
}

/** Write a number for each row; every lane has all of them. */
template <typename T>
inline void write_rows(
    thread const float* from,
    thread const DeltaPlace& place,
    device T* to) {
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    if (int(place.lane) == i && i < place.count) {
      to[i] = static_cast<T>(from[i]);
    }
  }
}

/** A state, or zeros. */
template <int N>
inline void read_state(
    device const float* from,
    bool there,
    thread const DeltaPlace& place,
    thread DeltaRows<N>& to) {
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    uint width = there && i < place.count ? place.width : 0;
    read_lane<N>(from + i * place.width, place.lane, width, to.at[i]);
  }
}

template <int N>
inline void write_state(
    thread const DeltaRows<N>& from,
    thread const DeltaPlace& place,
    device float* to) {
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    for (int n = 0; n < N; ++n) {
      uint j = place.lane + 32 * n;
      if (i < place.count && j < place.width) {
        to[i * place.width + j] = from.at[i][n];
      }
    }
  }
}

template <int N>
inline void clear(thread DeltaRows<N>& rows) {
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    for (int n = 0; n < N; ++n) {
      rows.at[i][n] = 0;
    }
  }
}

/** A step of a simdgroup's rows, and their y. */
template <typename Rule, int N>
inline void advance(
    thread const DeltaStep<N>& step,
    thread DeltaRows<N>& s,
    thread float* y) {
  const bool reads = Rule::corrects || Rule::adds;
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    float p = 0;
    if (reads) {
      for (int n = 0; n < N; ++n) {
        p += s.at[i][n] * step.a[n];
      }
      p = simd_sum(p);
    }
    float u = Rule::corrects ? step.beta * (step.v[i] - p) : step.v[i];
    float read = 0;
    for (int n = 0; n < N; ++n) {
      float next = s.at[i][n] * step.w[n] + u * step.k[n];
      if (Rule::adds) {
        next += p * step.b[n];
      }
      s.at[i][n] = next;
      read += next * step.r[n];
    }
    y[i] = simd_sum(read);
  }
}

/**
 * A backward step: `grad` becomes the gradient with respect to the state before
 * it, and `sums` the gradients of the step's numbers, summed over these rows.
 */
template <typename Rule, int N>
inline void retreat(
    thread const DeltaStep<N>& step,
    thread const DeltaRows<N>& before,
    thread const DeltaRows<N>& after,
    thread DeltaRows<N>& grad,
    thread DeltaStep<N>& sums) {
  const bool reads = Rule::corrects || Rule::adds;
  sums.beta = 0;
  for (int n = 0; n < N; ++n) {
    sums.w[n] = sums.a[n] = sums.b[n] = sums.k[n] = sums.r[n] = 0;
  }
  for (int i = 0; i < int(rows_per_simdgroup); ++i) {
    float p = 0, with_k = 0, with_b = 0;
    for (int n = 0; n < N; ++n) {
      grad.at[i][n] += step.grad_y[i] * step.r[n];
      with_k += grad.at[i][n] * step.k[n];
      if (reads) {
        p += before.at[i][n] * step.a[n];
      }
      if (Rule::adds) {
        with_b += grad.at[i][n] * step.b[n];
      }
    }
    p = reads ? simd_sum(p) : 0.0f;
    float grad_u = simd_sum(with_k);
    float u = step.v[i];
    float grad_p = 0;
    if (Rule::corrects) {
      float error = u - p;
      u = step.beta * error;
      sums.beta += grad_u * error;
      grad_u *= step.beta;
      grad_p = -grad_u;
    } else if (Rule::adds) {
      grad_p = simd_sum(with_b);
    }
    sums.v[i] = grad_u;
    for (int n = 0; n < N; ++n) {
      float s = before.at[i][n];
      float d = grad.at[i][n];
      sums.w[n] += d * s;
      sums.k[n] += u * d;
      sums.r[n] += step.grad_y[i] * after.at[i][n];
      grad.at[i][n] = d * step.w[n];
      if (reads) {
        sums.a[n] += grad_p * s;
        grad.at[i][n] += grad_p * step.a[n];
      }
      if (Rule::adds) {
        sums.b[n] += p * d;
      }
    }
  }
}

/** A step, unless it is masked or in no sequence: then its y is 0. */
template <typename Rule, int N>
inline void take(
    thread const Rule& rule,
    thread const DeltaPlace& place,
    uint t,
    thread DeltaRows<N>& s,
    thread float* y) {
  DeltaStep<N> step;
  Sequence sequence = rule.sequences.of(t);
  if (sequence.starts_anew(t)) {
    clear(s);
  }
  if (sequence.exists() && rule.read(place, t, step)) {
    advance<Rule>(step, s, y);
  } else {
    for (int i = 0; i < int(rows_per_simdgroup); ++i) {
      y[i] = 0;
    }
  }
}

/** The forward recurrence, on independent simdgroups. */
template <int N, typename T, typename Rule>
inline void delta_forward(
    thread const Rule& rule,
    thread const DeltaPlace& place,
    device const float* state,
    bool has_state,
    device T* y,
    device float* last) {
  DeltaRows<N> s;
  read_state(state + place.start(), has_state, place, s);
  for (uint t = 0; t < place.steps; ++t) {
    float read[rows_per_simdgroup];
    take(rule, place, t, s, read);
    write_rows(read, place, y + place.at(t) * place.values + place.first);
  }
  write_state(s, place, last + place.start());
}

/** The inputs of the backward recurrence in addition to the rule. */
template <typename T>
struct DeltaBackward {
  device const float* state;
  bool has_state;
  device const T* grad_y;
  device const float* grad_last;
  device T* grad_v;
  device float* grad_state;
  // The states before every stretch of chunk * chunk steps, before the chunks
  // of a stretch except the first, and after the steps of a chunk.
  device float* states;
  threadgroup float* shared; // sums of each simdgroup
  uint chunk;
  uint block; // rows of a threadgroup
  uint blocks;

  uint stretches(thread const DeltaPlace& place) const {
    return (place.steps + chunk * chunk - 1) / (chunk * chunk);
  }

  /** This simdgroup's rows of state i of this threadgroup. */
  device float* at(thread const DeltaPlace& place, uint i) const {
    uint slots = stretches(place) + 2 * chunk - 1;
    size_t group = (size_t(place.batch) * place.heads + place.head) * blocks;
    return states +
        (((group + place.block) * slots + i) * block +
         place.simdgroup * rows_per_simdgroup) *
        place.width;
  }
};

/** Compute steps first to last; store every `every`-th state, from a slot on.
 */
template <int N, typename T, typename Rule>
inline void go(
    thread const Rule& rule,
    thread const DeltaPlace& place,
    thread const DeltaBackward<T>& to,
    uint first,
    uint last,
    uint every,
    uint slot,
    thread DeltaRows<N>& s) {
  float y[rows_per_simdgroup];
  uint wanted = first + every;
  for (uint t = first; t < last; ++t) {
    take(rule, place, t, s, y);
    if (t + 1 == wanted) {
      write_state(s, place, to.at(place, slot++));
      wanted += every;
    }
  }
}

/** The backward recurrence, for a threadgroup's rows. */
template <int N, typename T, typename Rule>
inline void delta_backward(
    thread const Rule& rule,
    thread const DeltaPlace& place,
    thread const DeltaBackward<T>& to) {
  uint steps = place.steps;
  uint chunk = to.chunk;
  uint chunks = (steps + chunk - 1) / chunk;
  uint in_stretch = to.stretches(place);
  uint in_chunk = in_stretch + chunk - 1;
  uint columns = rule.columns(place);
  uint simdgroups = to.block / rows_per_simdgroup;
  DeltaRows<N> s;
  read_state(to.state + place.start(), to.has_state, place, s);
  write_state(s, place, to.at(place, 0));
  uint kept = (max(in_stretch, 1u) - 1) * chunk * chunk;
  go(rule, place, to, 0, kept, chunk * chunk, 1, s);
  DeltaRows<N> grad;
  read_state(to.grad_last + place.start(), true, place, grad);
  for (uint c = chunks; c-- > 0;) {
    uint first = c * chunk;
    uint last = min(first + chunk, steps);
    uint within = c % chunk;
    if (c + 1 == chunks || within == chunk - 1) {
      read_state(to.at(place, c / chunk), true, place, s);
      go(rule, place, to, first - within * chunk, first, chunk, in_stretch, s);
    }
    uint start = within == 0 ? c / chunk : in_stretch + within - 1;
    read_state(to.at(place, start), true, place, s);
    go(rule, place, to, first, last, 1, in_chunk, s);
    for (uint t = last; t-- > first;) {
      DeltaRows<N> before;
      uint slot = t == first ? start : in_chunk + t - 1 - first;
      read_state(to.at(place, slot), true, place, before);
      size_t rows = place.at(t) * place.values + place.first;
      DeltaStep<N> step, sums;
      Sequence sequence = rule.sequences.of(t);
      bool anew = sequence.starts_anew(t);
      if (anew) {
        clear(before);
      }
      bool taken = sequence.exists() && rule.read(place, t, step);
      if (taken) {
        read_rows(to.grad_y + rows, place, step.grad_y);
        retreat<Rule>(step, before, s, grad, sums);
        rule.share(place, step, sums, to.shared + place.simdgroup * columns);
        write_rows(sums.v, place, to.grad_v + rows);
      } else {
        float zeros[rows_per_simdgroup] = {0, 0, 0, 0};
        write_rows(zeros, place, to.grad_v + rows);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint thread_index = place.simdgroup * 32 + place.lane;
      for (uint i = thread_index; i < columns; i += simdgroups * 32) {
        float total = 0;
        for (uint j = 0; taken && j < simdgroups; ++j) {
          total += to.shared[j * columns + i];
        }
        rule.write(place, t, i, total);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (anew) {
        clear(grad);
        read_state(to.at(place, slot), true, place, before);
      }
      s = before;
    }
  }
  write_state(grad, place, to.grad_state + place.start());
}
