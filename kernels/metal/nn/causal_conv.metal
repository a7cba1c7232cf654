// Metal kernels of causal_conv1d: the formulas of csrc/nn/causal_conv.h. A
// thread computes one channel for several steps, and keeps the last inputs in
// registers; neighboring threads have neighboring channels.

#include <metal_stdlib>

#include "nn/activations.h"
#include "nn/sequences.h"

using namespace metal;

static constant constexpr const int steps_per_thread = 8;
static constant constexpr const int steps_per_sum = 64; // as on the CPU
static constant constexpr const int silu_of_convolution = 1;

/** The newest value is last; values older than the taps are 0. */
template <int K>
struct Window {
  float values[K];
};

template <int K>
inline void push(thread Window<K>& window, float value, int taps) {
  for (int i = 0; i + 1 < K; ++i) {
    window.values[i] = i + taps >= K ? window.values[i + 1] : 0;
  }
  window.values[K - 1] = value;
}

template <int K>
inline Window<K> empty_window() {
  Window<K> window;
  for (int i = 0; i < K; ++i) {
    window.values[i] = 0;
  }
  return window;
}

/** The last tap's weight, or the first tap's, is last. */
template <int K, typename T>
inline Window<K> weights_of(device const T* weight, int taps, bool forwards) {
  Window<K> w = empty_window<K>();
  for (int k = 0; k < taps; ++k) {
    push(w, static_cast<float>(weight[forwards ? k : taps - 1 - k]), taps);
  }
  return w;
}

template <int K>
inline float
dot(thread const Window<K>& a, thread const Window<K>& b, float start) {
  for (int i = 0; i < K; ++i) {
    start += a.values[i] * b.values[i];
  }
  return start;
}

/** The same for the newest values, those of the steps up to `step`: of these,
 * `from` to `end` count. */
template <int K>
inline float dot_of_steps(
    thread const Window<K>& values,
    thread const Window<K>& weights,
    int step,
    int from,
    int end) {
  float sum = 0;
  for (int i = 0; i < K; ++i) {
    int t = step - (K - 1 - i);
    if (t >= from && t < end) {
      sum += values.values[i] * weights.values[i];
    }
  }
  return sum;
}

/** The inputs of each step and of the steps before it, in a channel. */
template <typename T>
struct CausalInputs {
  device const T* x;
  device const T* state;
  bool has_state;
  int before;
  size_t channels;

  /**
   * The input for tap k of a step, or of the one after the last of a sequence:
   * x, or before the sequence the state, or 0.
   */
  float at(thread const Sequence& sequence, int step, int k) const {
    int t = step + k - before;
    if (t >= sequence.first) {
      return static_cast<float>(x[size_t(t) * channels]);
    }
    return has_state && sequence.index == 0
        ? static_cast<float>(
              state[size_t(t + before - sequence.first) * channels])
        : 0;
  }

  /** Push the inputs that the window lacks for a step. */
  template <int K>
  void push_to(
      thread Window<K>& window,
      thread const Sequence& sequence,
      int step,
      bool known) const {
    for (int k = known ? before : 0; k <= before; ++k) {
      push(window, at(sequence, step, k), before + 1);
    }
  }
};

template <typename T>
inline CausalInputs<T> inputs_of(
    device const T* x,
    device const T* state,
    bool has_state,
    int taps,
    uint steps,
    uint channels,
    uint channel,
    uint batch) {
  CausalInputs<T> inputs;
  inputs.x = x + size_t(batch) * steps * channels + channel;
  inputs.state = state + size_t(batch) * (taps - 1) * channels + channel;
  inputs.has_state = has_state;
  inputs.before = taps - 1;
  inputs.channels = channels;
  return inputs;
}

template <typename T, int K>
[[kernel]] void causal_conv1d(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* state [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device T* y [[buffer(5)]],
    device T* last [[buffer(6)]],
    constant bool& has_bias [[buffer(7)]],
    constant bool& has_state [[buffer(8)]],
    constant int64_t& cu_seqlens_size [[buffer(9)]],
    constant int& activation [[buffer(10)]],
    constant int& taps [[buffer(11)]],
    constant int& steps [[buffer(12)]],
    constant int& channels [[buffer(13)]],
    uint3 place [[thread_position_in_grid]]) {
  uint c = place.x;
  auto inputs =
      inputs_of(x, state, has_state, taps, steps, channels, c, place.z);
  Window<K> w = weights_of<K>(weight + size_t(c) * taps, taps, true);
  float start = has_bias ? static_cast<float>(bias[c]) : 0;
  int first = int(place.y) * steps_per_thread;
  int end = min(first + steps_per_thread, steps);
  int before = taps - 1;
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  Window<K> window = empty_window<K>();
  y += size_t(place.z) * steps * channels + c;
  for (int t = first; t < end; ++t) {
    Sequence sequence = sequences.of(t);
    float value = 0;
    if (sequence.exists()) {
      inputs.push_to(window, sequence, t, t > first && t > sequence.first);
      value = dot(window, w, start);
      if (activation == silu_of_convolution) {
        value *= logistic(value);
      }
    }
    y[size_t(t) * channels] = static_cast<T>(value);
  }
  last += size_t(place.z) * before * channels + c;
  if (end == steps) {
    Sequence ending = sequences.last();
    for (int k = 0; k < before; ++k) {
      last[size_t(k) * channels] =
          static_cast<T>(inputs.at(ending, ending.end, k));
    }
  }
}

template <typename T, int K>
[[kernel]] void causal_conv1d_vjp(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* state [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device const T* grad_y [[buffer(5)]],
    device const T* grad_next [[buffer(6)]],
    device T* grad_x [[buffer(7)]],
    device T* grad_state [[buffer(8)]],
    device float* sums [[buffer(9)]],
    constant bool& has_bias [[buffer(10)]],
    constant bool& has_state [[buffer(11)]],
    constant int64_t& cu_seqlens_size [[buffer(12)]],
    constant int& activation [[buffer(13)]],
    constant int& taps [[buffer(14)]],
    constant int& steps [[buffer(15)]],
    constant int& channels [[buffer(16)]],
    constant int& stretches [[buffer(17)]],
    uint3 place [[thread_position_in_grid]]) {
  uint c = place.x;
  auto inputs =
      inputs_of(x, state, has_state, taps, steps, channels, c, place.z);
  Window<K> w = weights_of<K>(weight + size_t(c) * taps, taps, true);
  Window<K> backwards = weights_of<K>(weight + size_t(c) * taps, taps, false);
  float start = has_bias ? static_cast<float>(bias[c]) : 0;
  int before = taps - 1;
  int first = int(place.y) * steps_per_sum;
  int last =
      int(place.y) == stretches - 1 ? steps + before : first + steps_per_sum;
  grad_y += size_t(place.z) * steps * channels + c;
  grad_next += size_t(place.z) * before * channels + c;
  grad_x += size_t(place.z) * steps * channels + c;
  grad_state += size_t(place.z) * before * channels + c;
  sums += (size_t(place.z) * stretches + place.y) * (taps + 1) * channels + c;
  Window<K> window = empty_window<K>();
  Window<K> slopes = empty_window<K>(); // d of the last steps
  Window<K> totals = empty_window<K>();
  float bias_total = 0;
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  Sequence initial = sequences.initial();
  Sequence ending = sequences.last();
  // Steps before the first one contribute to its gradients.
  int begin = max(0, first - before);
  for (int s = begin; s < last; ++s) {
    float d = 0;
    Sequence sequence = sequences.of(s);
    bool taken = s < steps && sequence.exists();
    if (taken) {
      inputs.push_to(window, sequence, s, s > begin && s > sequence.first);
      d = static_cast<float>(grad_y[size_t(s) * channels]);
      if (activation == silu_of_convolution) {
        d *= act_derivative(dot(window, w, start), silu_activation);
      }
    }
    push(slopes, d, taps);
    if (s < first) {
      continue;
    }
    if (taken) {
      for (int i = 0; i < K; ++i) {
        totals.values[i] += d * window.values[i];
      }
      bias_total += d;
    }
    // Inputs of the next state have its gradient, too.
    int row = s - initial.first; // of the state
    if (row >= 0 && row < before) {
      float value =
          dot_of_steps(slopes, backwards, s, initial.first, initial.end);
      int next = row - (ending.end - ending.first);
      if (ending.index == 0 && next >= 0) {
        value += static_cast<float>(grad_next[size_t(next) * channels]);
      }
      grad_state[size_t(row) * channels] = static_cast<T>(value);
    }
    int t = s - before;
    if (t >= 0) {
      float value = dot_of_steps(slopes, backwards, s, t, sequences.of(t).end);
      int next = t - ending.end + before;
      if (t >= ending.first && t < ending.end && next >= 0) {
        value += static_cast<float>(grad_next[size_t(next) * channels]);
      }
      grad_x[size_t(t) * channels] = static_cast<T>(value);
    }
  }
  for (int i = 0; i < K; ++i) {
    int k = i - (K - taps);
    if (k >= 0) {
      sums[size_t(k) * channels] = totals.values[i];
    }
  }
  sums[size_t(taps) * channels] = bias_total;
}
