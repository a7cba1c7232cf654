// Metal kernels of causal_conv1d: the formulas of csrc/nn/causal_conv.h. A
// thread has one channel for some steps, and keeps the last inputs in
// registers; neighbouring threads have neighbouring channels.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"
#include "nn/activations.h"

using namespace metal;

// A window has always so many inputs: those behind the last tap are 0, and so
// are their weights.
static constant constexpr const int most_taps = 8;
static constant constexpr const int steps_per_thread = 8;
static constant constexpr const int steps_per_sum = 64; // as on the CPU
static constant constexpr const int silu_of_convolution = 1;

/** The newest value comes last; none is older than the taps. */
struct Window {
  float values[most_taps];
};

inline void push(thread Window& window, float value, int taps) {
  for (int i = 0; i + 1 < most_taps; ++i) {
    window.values[i] = i + taps >= most_taps ? window.values[i + 1] : 0;
  }
  window.values[most_taps - 1] = value;
}

inline Window empty_window() {
  Window window;
  for (int i = 0; i < most_taps; ++i) {
    window.values[i] = 0;
  }
  return window;
}

/** The last tap's weight comes last, or the first one's. */
template <typename T>
inline Window weights_of(device const T* weight, int taps, bool forwards) {
  Window w = empty_window();
  for (int k = 0; k < taps; ++k) {
    push(w, static_cast<float>(weight[forwards ? k : taps - 1 - k]), taps);
  }
  return w;
}

inline float dot(thread const Window& a, thread const Window& b, float start) {
  for (int i = 0; i < most_taps; ++i) {
    start += a.values[i] * b.values[i];
  }
  return start;
}

/** A sequence's inputs in a channel: those of the state, then x. */
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

template <typename T>
[[kernel]] void causal_conv1d(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* state [[buffer(3)]],
    device T* y [[buffer(4)]],
    device T* next_state [[buffer(5)]],
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
  Window w = weights_of(weight + size_t(c) * taps, taps, true);
  float start = has_bias ? static_cast<float>(bias[c]) : 0;
  int first = int(place.y) * steps_per_thread;
  int last = min(first + steps_per_thread, steps);
  int before = taps - 1;
  Window window = empty_window();
  for (int s = first; s < first + before && s < last + before; ++s) {
    push(window, inputs.at(s), taps);
  }
  y += size_t(place.z) * steps * channels + c;
  for (int t = first; t < last; ++t) {
    push(window, inputs.at(t + before), taps);
    float value = dot(window, w, start);
    if (activation == silu_of_convolution) {
      value *= logistic(value);
    }
    y[size_t(t) * channels] = static_cast<T>(value);
  }
  next_state += size_t(place.z) * before * channels + c;
  for (int k = 0; last == steps && k < before; ++k) {
    next_state[size_t(k) * channels] = static_cast<T>(inputs.at(steps + k));
  }
}

template <typename T>
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
  Window w = weights_of(weight + size_t(c) * taps, taps, true);
  Window backwards = weights_of(weight + size_t(c) * taps, taps, false);
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
  Window window = empty_window();
  Window slopes = empty_window(); // d of the last steps
  Window totals = empty_window();
  float bias_total = 0;
  // Steps before the first are computed for what they give it.
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
      for (int i = 0; i < most_taps; ++i) {
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
  for (int i = 0; i < most_taps; ++i) {
    int k = i - (most_taps - taps);
    if (k >= 0) {
      sums[size_t(k) * channels] = totals.values[i];
    }
  }
  sums[size_t(taps) * channels] = bias_total;
}

// clang-format off
#define instantiate_causal(name, type)                                  \
  instantiate_kernel("causal_conv1d_" #name, causal_conv1d, type)       \
  instantiate_kernel("causal_conv1d_vjp_" #name, causal_conv1d_vjp, type)

instantiate_causal(float32, float)
instantiate_causal(float16, half)
instantiate_causal(bfloat16, bfloat16_t)
    // clang-format on
