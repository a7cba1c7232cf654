// Metal kernels of causal_conv1d: the formulas of csrc/nn/causal_conv.h. A
// thread computes one channel for several steps, and keeps the last inputs in
// registers; neighboring threads have neighboring channels.

#include <metal_stdlib>

#include "nn/activations.h"

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

/** A sequence's inputs in a channel: those of the state, followed by x. */
template <typename T>
struct CausalInputs {
  device const T* x;
  device const T* state;
  bool has_state;
  int before;
  size_t channels;

  float at(int step) const {
    if (step >= before) {
      return static_cast<float>(x[size_t(step - before) * channels]);
    }
    return has_state ? static_cast<float>(state[size_t(step) * channels]) : 0;
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
    uint sequence) {
  CausalInputs<T> inputs;
  inputs.x = x + size_t(sequence) * steps * channels + channel;
  inputs.state = state + size_t(sequence) * (taps - 1) * channels + channel;
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
    device T* y [[buffer(4)]],
    device T* last [[buffer(5)]],
    constant bool& has_bias [[buffer(6)]],
    constant bool& has_state [[buffer(7)]],
    constant int& activation [[buffer(8)]],
    constant int& taps [[buffer(9)]],
    constant int& steps [[buffer(10)]],
    constant int& channels [[buffer(11)]],
    uint3 place [[thread_position_in_grid]]) {
  uint c = place.x;
  auto inputs =
      inputs_of(x, state, has_state, taps, steps, channels, c, place.z);
  Window<K> w = weights_of<K>(weight + size_t(c) * taps, taps, true);
  float start = has_bias ? static_cast<float>(bias[c]) : 0;
  int first = int(place.y) * steps_per_thread;
  int end = min(first + steps_per_thread, steps);
  int before = taps - 1;
  Window<K> window = empty_window<K>();
  for (int s = first; s < first + before && s < end + before; ++s) {
    push(window, inputs.at(s), taps);
  }
  y += size_t(place.z) * steps * channels + c;
  for (int t = first; t < end; ++t) {
    push(window, inputs.at(t + before), taps);
    float value = dot(window, w, start);
    if (activation == silu_of_convolution) {
      value *= logistic(value);
    }
    y[size_t(t) * channels] = static_cast<T>(value);
  }
  last += size_t(place.z) * before * channels + c;
  for (int k = 0; end == steps && k < before; ++k) {
    last[size_t(k) * channels] = static_cast<T>(inputs.at(steps + k));
  }
}

template <typename T, int K>
[[kernel]] void causal_conv1d_vjp(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* state [[buffer(3)]],
    device const T* grad_y [[buffer(4)]],
    device const T* grad_next [[buffer(5)]],
    device T* grad_x [[buffer(6)]],
    device T* grad_state [[buffer(7)]],
    device float* sums [[buffer(8)]],
    constant bool& has_bias [[buffer(9)]],
    constant bool& has_state [[buffer(10)]],
    constant int& activation [[buffer(11)]],
    constant int& taps [[buffer(12)]],
    constant int& steps [[buffer(13)]],
    constant int& channels [[buffer(14)]],
    constant int& stretches [[buffer(15)]],
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
  // Steps before the first one contribute to its gradients.
  int begin = max(0, first - before);
  for (int s = begin; s < begin + before; ++s) {
    push(window, inputs.at(s), taps);
  }
  for (int s = begin; s < last; ++s) {
    float d = 0;
    if (s < steps) {
      push(window, inputs.at(s + before), taps);
      d = static_cast<float>(grad_y[size_t(s) * channels]);
      if (activation == silu_of_convolution) {
        d *= act_derivative(dot(window, w, start), silu_activation);
      }
    }
    push(slopes, d, taps);
    if (s < first) {
      continue;
    }
    float value = dot(slopes, backwards, 0);
    if (s < steps) {
      for (int i = 0; i < K; ++i) {
        totals.values[i] += d * window.values[i];
      }
      bias_total += d;
    } else {
      value += static_cast<float>(grad_next[size_t(s - steps) * channels]);
    }
    if (s < before) {
      grad_state[size_t(s) * channels] = static_cast<T>(value);
    } else {
      grad_x[size_t(s - before) * channels] = static_cast<T>(value);
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
