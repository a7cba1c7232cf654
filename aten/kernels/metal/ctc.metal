// Metal kernels of the connectionist temporal classification loss, with the
// definitions of csrc/ctc.h.

#include <metal_stdlib>

using namespace metal;

/** log(exp(a) + exp(b)); a NaN of either stays. */
inline float log_add(float a, float b) {
  if (a == -INFINITY || b == -INFINITY) {
    return a == -INFINITY ? b : a;
  }
  return max(a, b) + log(1 + exp(-fabs(a - b)));
}

/** The label of a state, which is odd for labels and even for blanks. */
inline int label_of(device const int* target, int state, int blank) {
  return state % 2 != 0 ? target[state / 2] : blank;
}

/** A threadgroup per sequence, whose threads share the states of a time. */
template <typename T>
[[kernel]] void ctc_states(
    device const T* log_probs [[buffer(0)]],
    device const int* targets [[buffer(1)]],
    device const int* starts [[buffer(2)]],
    device const int* input_lengths [[buffer(3)]],
    device const int* target_lengths [[buffer(4)]],
    device T* loss [[buffer(5)]],
    device T* log_states [[buffer(6)]],
    constant int& times [[buffer(7)]],
    constant int& batch [[buffer(8)]],
    constant int& classes [[buffer(9)]],
    constant int& states [[buffer(10)]],
    constant int& blank [[buffer(11)]],
    constant bool& reversed [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_index_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]]) {
  int n = int(group.y);
  int length = input_lengths[n];
  int used = 2 * target_lengths[n] + 1;
  int last = used - 1;
  targets += starts[n];
  log_states += size_t(n) * times * states;
  size_t count = size_t(times) * states;
  for (size_t i = thread_in_group; i < count; i += group_size.x) {
    log_states[i] = T(-INFINITY);
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (int step = 0; step < length; ++step) {
    int time = reversed ? length - 1 - step : step;
    int previous = step == 0 ? time : reversed ? time + 1 : time - 1;
    device T* row = log_states + size_t(time) * states;
    device const T* before = log_states + size_t(previous) * states;
    for (int i = int(thread_in_group); i < used; i += int(group_size.x)) {
      // The states before this one are behind it if the order is reversed.
      int s = reversed ? last - i : i;
      int back = reversed ? 1 : -1;
      int label = label_of(targets, s, blank);
      float sum = 0;
      if (step > 0) {
        sum = float(before[s]);
        if (i > 0) {
          sum = log_add(sum, float(before[s + back]));
        }
        if (i > 1 && label != label_of(targets, s + 2 * back, blank)) {
          sum = log_add(sum, float(before[s + 2 * back]));
        }
      }
      sum += float(log_probs[(size_t(time) * batch + n) * classes + label]);
      // Paths begin with the first two states, also if others have NaN.
      row[s] = T(step == 0 && i > 1 ? -INFINITY : sum);
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
  if (thread_in_group == 0) {
    if (length == 0) {
      loss[n] = T(used == 1 ? 0.0f : INFINITY);
    } else {
      device const T* row =
          log_states + (reversed ? 0 : size_t(length - 1) * states);
      float sum = float(row[reversed ? 0 : last]);
      if (used > 1) {
        sum = log_add(sum, float(row[reversed ? 1 : last - 1]));
      }
      loss[n] = T(-sum);
    }
  }
}

/** One thread per result: class, sequence, time. */
template <typename T>
[[kernel]] void ctc_gradient(
    device const T* cotangent [[buffer(0)]],
    device const T* log_probs [[buffer(1)]],
    device const int* targets [[buffer(2)]],
    device const int* starts [[buffer(3)]],
    device const int* input_lengths [[buffer(4)]],
    device const int* target_lengths [[buffer(5)]],
    device const T* loss [[buffer(6)]],
    device const T* forward [[buffer(7)]],
    device const T* backward [[buffer(8)]],
    device T* out [[buffer(9)]],
    constant int& times [[buffer(10)]],
    constant int& states [[buffer(11)]],
    constant int& blank [[buffer(12)]],
    constant bool& zero_infinity [[buffer(13)]],
    uint3 position [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  int n = int(position.y);
  size_t at = (size_t(position.z) * threads.y + n) * threads.x + position.x;
  float result = 0;
  if (int(position.z) < input_lengths[n] &&
      !(zero_infinity && float(loss[n]) == INFINITY)) {
    size_t start = (size_t(n) * times + position.z) * states;
    float sum = -INFINITY;
    for (int s = 0; s <= 2 * target_lengths[n]; ++s) {
      if (label_of(targets + starts[n], s, blank) == int(position.x)) {
        sum = log_add(
            sum, float(forward[start + s]) + float(backward[start + s]));
      }
    }
    float row = float(log_probs[at]);
    result = (exp(row) - exp(sum + float(loss[n]) - row)) * float(cotangent[n]);
  }
  out[at] = T(result);
}
