// Metal kernels of the linear recurrence h_t = a_t h_{t-1} + b_t along an axis.
//
// Two steps can be combined: h -> a h + b, followed by h -> c h + d, is h -> (c
// a) h + (c b + d) (Martin and Cundy, "Parallelizing Linear Recurrent Neural
// Nets Over Sequence Length" (2018), section 2.2). If channels are neighbors in
// memory, a thread computes a channel, and simdgroups share the steps if there
// are few channels: each runs over its own steps from h = 0, then receives the
// h before its steps, and runs again. Along the last axis a simdgroup computes
// a channel, and each lane every 32nd step.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"
#include "sequences.h"

using namespace metal;

/** h -> factor h + term, or only term if the step starts anew. */
struct Step {
  float factor;
  float term;
  bool anew;

  /** A product of many factors may be inf: its product with 0 is 0 here. */
  float operator()(float h) const {
    return h == 0 || anew ? term : factor * h + term;
  }
};

/** The sequences of a computation that may run backward in time. */
struct Runs {
  Sequences sequences;
  bool reverse; // of the recurrence
  bool backward; // of the computation

  bool packed() const {
    return sequences.count > 0;
  }
  int time(uint t) const {
    return backward ? sequences.steps - 1 - int(t) : int(t);
  }
  /** True at the first step of a sequence in the order of the recurrence. */
  bool begins(thread const Sequence& own, int time) const {
    return time == (reverse ? own.end - 1 : own.first);
  }
  /** True at the last one. */
  bool ends(thread const Sequence& own, int time) const {
    return time == (reverse ? own.first : own.end - 1);
  }
  /** True in the sequence that begins with the initial h. */
  bool given(thread const Sequence& own) const {
    return reverse ? own.end == sequences.last().end : own.index == 0;
  }
};

/** The recurrence of one channel. */
template <typename T>
struct Forward {
  device const T* a;
  device const T* b;
  device T* out;
  float initial;
  bool has_initial;
  int64_t stride;
  Runs runs;

  Step step(uint t) const {
    if (!runs.packed()) {
      return read(t);
    }
    int time = runs.time(t);
    Sequence own = runs.sequences.of(time);
    if (!own.exists()) {
      return {0, 0, true};
    }
    Step step = read(t);
    if (runs.begins(own, time)) {
      if (has_initial && runs.given(own)) {
        step.term += step.factor * initial;
      }
      step.anew = true;
    }
    return step;
  }
  Step read(uint t) const {
    return {
        static_cast<float>(a[t * stride]),
        static_cast<float>(b[t * stride]),
        false};
  }
  void write(uint t, float h) const {
    out[t * stride] = static_cast<T>(h);
  }
};

/** The recurrence of its gradient, over the steps in reverse order. */
template <typename T>
struct Backward {
  device const T* a;
  device const T* h;
  device const T* cotangent;
  device T* grad_a;
  device T* grad_b;
  device T* grad_initial;
  float first; // h before the recurrence's first step, which is the last here
  float initial;
  bool has_initial;
  uint last;
  int64_t stride;
  Runs runs;

  Step step(uint t) const {
    bool anew = t == 0;
    if (runs.packed()) {
      int time = runs.time(t);
      Sequence own = runs.sequences.of(time);
      if (!own.exists()) {
        return {0, 0, true};
      }
      anew = runs.ends(own, time);
    }
    return {
        anew ? 0.0f : static_cast<float>(a[(t - 1) * stride]),
        static_cast<float>(cotangent[t * stride]),
        anew};
  }
  void write(uint t, float g) const {
    bool begins = t == last;
    bool given = true;
    bool exists = true;
    if (runs.packed()) {
      int time = runs.time(t);
      Sequence own = runs.sequences.of(time);
      exists = own.exists();
      begins = exists && runs.begins(own, time);
      given = runs.given(own);
    }
    float of_a = 0;
    if (begins && given) {
      *grad_initial = static_cast<T>(static_cast<float>(a[t * stride]) * g);
      of_a = has_initial || !runs.packed() ? g * first : 0;
    } else if (!begins && exists) {
      of_a = g * static_cast<float>(h[(t + 1) * stride]);
    }
    grad_a[t * stride] = static_cast<T>(of_a);
    grad_b[t * stride] = static_cast<T>(g);
  }
};

/** Run one lane over the steps of its channel; return the last h. */
template <typename R>
inline float run(thread const R& channel, uint begin, uint end, float h) {
  for (uint t = begin; t < end; ++t) {
    Step step = channel.step(t);
    h = step.anew ? step.term : step.factor * h + step.term;
    channel.write(t, h);
  }
  return h;
}

/** One channel per lane; simdgroups share the steps. */
template <typename R>
inline void share_steps(
    thread const R& channel,
    bool is_there,
    uint steps,
    threadgroup Step* all,
    uint lane,
    uint part,
    uint parts) {
  uint each = (steps + parts - 1) / parts;
  uint begin = min(part * each, steps);
  uint end = min(begin + each, steps);
  float h = channel.initial;
  if (parts > 1) {
    if (is_there) {
      Step total = {1, 0, false};
      for (uint t = begin; t < end; ++t) {
        Step step = channel.step(t);
        total.factor *= step.factor;
        total.term =
            step.anew ? step.term : step.factor * total.term + step.term;
        total.anew = total.anew || step.anew;
      }
      all[part * 32 + lane] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_there) {
      for (uint i = 0; i < part; ++i) {
        Step before = all[i * 32 + lane];
        h = before(h);
      }
    }
  }
  if (is_there) {
    run(channel, begin, end, h);
  }
}

/** One channel per simdgroup; lanes share the steps. */
template <typename R>
inline void scan_steps(thread const R& channel, uint steps, uint lane) {
  float h = channel.initial;
  for (uint begin = 0; begin < steps; begin += 32) {
    uint t = begin + lane;
    Step total = {1, 0, false};
    if (t < steps) {
      total = channel.step(t);
    }
    for (uint distance = 1; distance < 32; distance *= 2) {
      Step before = {
          simd_shuffle_up(total.factor, distance),
          simd_shuffle_up(total.term, distance),
          channel.runs.packed() &&
              simd_shuffle_up(total.anew ? 1 : 0, distance) == 1};
      if (lane >= distance) {
        total = {
            total.factor * before.factor,
            total(before.term),
            total.anew || before.anew};
      }
    }
    float value = total(h);
    if (t < steps) {
      channel.write(t, value);
    }
    h = simd_broadcast(value, 31);
  }
}

template <typename R>
inline void run_channel(
    thread const R& channel,
    bool is_there,
    bool along_lanes,
    uint steps,
    threadgroup Step* all,
    uint lane,
    uint part,
    uint parts) {
  if (along_lanes) {
    scan_steps(channel, steps, lane);
  } else {
    share_steps(channel, is_there, steps, all, lane, part, parts);
  }
}

/** The start of a thread's channel, and the distance of its steps. */
struct Place {
  uint channel;
  size_t start;
  int64_t stride;

  Place(
      uint3 position,
      bool along_lanes,
      uint channels,
      uint steps,
      uint inner,
      bool reverse) {
    channel = along_lanes ? position.y : position.x;
    uint known =
        min(channel, channels - 1); // also for threads without a channel
    start =
        (size_t(known / inner) * steps + (reverse ? steps - 1 : 0)) * inner +
        known % inner;
    stride = reverse ? -int64_t(inner) : int64_t(inner);
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void linear_recurrence(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device const T* initial [[buffer(2)]],
    device const int* cu_seqlens [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant bool& has_initial [[buffer(5)]],
    constant int64_t& cu_seqlens_size [[buffer(6)]],
    constant bool& reverse [[buffer(7)]],
    constant uint& steps [[buffer(8)]],
    constant uint& inner [[buffer(9)]],
    constant uint& channels [[buffer(10)]],
    constant int& along_lanes [[buffer(11)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup Step all[32 * 32];
  Place place(position, along_lanes, channels, steps, inner, reverse);
  bool is_there = place.channel < channels;
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  Forward<T> channel = {
      a + place.start,
      b + place.start,
      out + place.start,
      has_initial && is_there ? static_cast<float>(initial[place.channel])
                              : 0.0f,
      has_initial,
      place.stride,
      {sequences, reverse, reverse}};
  run_channel(
      channel, is_there, along_lanes, steps, all, lane, simdgroup, simdgroups);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void linear_recurrence_vjp(
    device const T* a [[buffer(0)]],
    device const T* h [[buffer(1)]],
    device const T* initial [[buffer(2)]],
    device const int* cu_seqlens [[buffer(3)]],
    device const T* cotangent [[buffer(4)]],
    device T* grad_a [[buffer(5)]],
    device T* grad_b [[buffer(6)]],
    device T* grad_initial [[buffer(7)]],
    constant bool& has_initial [[buffer(8)]],
    constant int64_t& cu_seqlens_size [[buffer(9)]],
    constant bool& reverse [[buffer(10)]],
    constant uint& steps [[buffer(11)]],
    constant uint& inner [[buffer(12)]],
    constant uint& channels [[buffer(13)]],
    constant int& along_lanes [[buffer(14)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup Step all[32 * 32];
  Place place(position, along_lanes, channels, steps, inner, !reverse);
  bool is_there = place.channel < channels;
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  Sequence given = reverse ? sequences.last() : sequences.initial();
  if (given.first >= given.end) { // no step writes the result
    if (is_there && (along_lanes ? lane : simdgroup) == 0) {
      grad_initial[place.channel] = static_cast<T>(0.0f);
    }
  }
  if (steps == 0) {
    return;
  }
  Backward<T> channel = {
      a + place.start,
      h + place.start,
      cotangent + place.start,
      grad_a + place.start,
      grad_b + place.start,
      grad_initial + place.channel,
      has_initial && is_there ? static_cast<float>(initial[place.channel])
                              : 0.0f,
      0,
      has_initial,
      steps - 1,
      place.stride,
      {sequences, reverse, !reverse}};
  run_channel(
      channel, is_there, along_lanes, steps, all, lane, simdgroup, simdgroups);
}
