// CPU kernels of causal_conv1d, a short convolution over time for every channel
// separately. They process a stretch of time for several channels, which are
// the elements of vectors, and keep the last inputs in the cache.

#pragma once

#include <algorithm>
#include <vector>

#include "nn/activations.h"
#include "nn/rows.h"

namespace mlxops::cpu {

// A value of causal_conv1d's argument `activation`.
constexpr int silu_of_convolution = 1;

// The number of steps that each row of a weight's gradient sums, as in
// kernels/metal/nn/causal_conv.metal.
constexpr int64_t steps_per_sum = 64;

/** The inputs of a sequence: those of the state, followed by x. */
template <typename T>
class CausalInputs {
 public:
  CausalInputs(In<T> x, In<T> state, int64_t taps)
      : x_(x), state_(state), before_(taps - 1) {}

  /** Channels from `channel` on at a step, which counts from the state's first.
   */
  template <typename A>
  void load(int64_t sequence, int64_t step, int64_t channel, A* to, int64_t n)
      const {
    int64_t channels = x_.dim(2);
    if (step >= before_) {
      const T* from = x_.data +
          (sequence * x_.dim(1) + step - before_) * channels + channel;
      rows::load(from, to, n);
    } else if (state_) {
      rows::load(
          state_.data + (sequence * before_ + step) * channels + channel,
          to,
          n);
    } else {
      std::fill_n(to, n, A(0));
    }
  }

 private:
  In<T> x_;
  In<T> state_;
  int64_t before_;
};

namespace causal {

constexpr int64_t block = 256; // channels

/** The last `taps` rows of a sequence of rows. */
template <typename A>
class Window {
 public:
  explicit Window(int64_t taps) : taps_(taps), rows_(taps * block) {}

  A* row(int64_t step) {
    return rows_.data() + step % taps_ * block;
  }
  void clear() {
    std::fill(rows_.begin(), rows_.end(), A(0));
  }

 private:
  int64_t taps_;
  std::vector<A> rows_;
};

MLXGEN_BEGIN_INLINED

/** to[i] += a[i] b[i]. */
template <typename A>
inline void multiply_add(const A* a, const A* b, A* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] += a[i] * b[i];
  }
}

MLXGEN_END_INLINED

/** The weight, a row for each tap, followed by the bias, or 0. */
template <typename T>
std::vector<accum_t<T>> by_taps(In<T> weight, In<T> bias) {
  int64_t channels = weight.dim(0);
  int64_t taps = weight.dim(1);
  std::vector<accum_t<T>> to((taps + 1) * channels, 0);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t k = 0; k < taps; ++k) {
      to[k * channels + c] = mlxgen::widen(weight[c * taps + k]);
    }
    if (bias) {
      to[taps * channels + c] = mlxgen::widen(bias[c]);
    }
  }
  return to;
}

/** The number of parts of a sequence: at least one stretch. */
inline int64_t stretches(int64_t steps) {
  return std::max<int64_t>(1, (steps + steps_per_sum - 1) / steps_per_sum);
}

} // namespace causal

/**
 * y[t] = act(bias + sum over k of weight[k] input[t + k]), where input is the
 * state followed by x; next_state is the end of the input, which the next call
 * needs.
 */
template <typename T>
void causal_conv1d(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> state,
    int activation,
    Out<T> y,
    Out<T> next_state) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t channels = x.dim(2);
  int64_t taps = weight.dim(1);
  int64_t before = taps - 1;
  auto w = causal::by_taps(weight, bias);
  CausalInputs<T> inputs(x, state, taps);
  int64_t stretches = causal::stretches(steps);
  int64_t cost = std::min(steps, steps_per_sum) * channels * taps;
  rows::share(
      x.dim(0) * stretches, cost, [&](int64_t first_item, int64_t last_item) {
        causal::Window<A> window(taps);
        std::vector<A> sums(causal::block);
        A* sum = sums.data();
        for (int64_t item = first_item; item < last_item; ++item) {
          int64_t sequence = item / stretches;
          int64_t first = item % stretches * steps_per_sum;
          int64_t last = std::min(first + steps_per_sum, steps);
          for (int64_t c = 0; c < channels; c += causal::block) {
            int64_t n = std::min(causal::block, channels - c);
            for (int64_t s = first; s < first + before; ++s) {
              inputs.load(sequence, s, c, window.row(s), n);
            }
            for (int64_t t = first; t < last; ++t) {
              inputs.load(sequence, t + before, c, window.row(t + before), n);
              std::copy_n(w.data() + taps * channels + c, n, sum);
              for (int64_t k = 0; k < taps; ++k) {
                causal::multiply_add(
                    window.row(t + k), w.data() + k * channels + c, sum, n);
              }
              if (activation == silu_of_convolution) {
                rows::apply(sum, n, [](A v) { return v * sigmoid(v); });
              }
              rows::store(
                  y.data + (sequence * steps + t) * channels + c,
                  n,
                  [=](int64_t i) { return sum[i]; });
            }
            for (int64_t k = 0; last == steps && k < before; ++k) {
              inputs.load(sequence, steps + k, c, sum, n);
              rows::store(
                  next_state.data + (sequence * before + k) * channels + c,
                  n,
                  [=](int64_t i) { return sum[i]; });
            }
          }
        }
      });
}

/**
 * Gradients. Let d[t] be the gradient with respect to the sum at step t. The
 * gradient by input[s] is the sum over k of weight[k] d[s - k], and the
 * gradient with respect to weight[k] is the sum over t of d[t] input[t + k].
 * The rows of `sums` add up to the latter and, after the last tap, to the
 * gradient with respect to the bias.
 */
template <typename T>
void causal_conv1d_vjp(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> state,
    In<T> grad_y,
    In<T> grad_next,
    int activation,
    Out<T> grad_x,
    Out<T> grad_state,
    Out<accum_t<T>> sums) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t channels = x.dim(2);
  int64_t taps = weight.dim(1);
  int64_t before = taps - 1;
  auto w = causal::by_taps(weight, bias);
  CausalInputs<T> inputs(x, state, taps);
  int64_t stretches = causal::stretches(steps);
  int64_t cost = std::min(steps, steps_per_sum) * channels * taps * 3;
  rows::share(
      x.dim(0) * stretches, cost, [&](int64_t first_item, int64_t last_item) {
        causal::Window<A> window(taps);
        causal::Window<A> slopes(taps); // d of the last steps
        std::vector<A> scratch(causal::block);
        A* sum = scratch.data();
        for (int64_t item = first_item; item < last_item; ++item) {
          int64_t sequence = item / stretches;
          int64_t first = item % stretches * steps_per_sum;
          bool ends = item % stretches == stretches - 1;
          int64_t last = ends ? steps + before : first + steps_per_sum;
          A* totals = sums.data + item * (taps + 1) * channels;
          std::fill_n(totals, (taps + 1) * channels, A(0));
          for (int64_t c = 0; c < channels; c += causal::block) {
            int64_t n = std::min(causal::block, channels - c);
            slopes.clear();
            // Steps before the first one contribute to its gradients.
            int64_t start = std::max<int64_t>(0, first - before);
            for (int64_t s = start; s < start + before; ++s) {
              inputs.load(sequence, s, c, window.row(s), n);
            }
            for (int64_t s = start; s < last; ++s) {
              A* d = slopes.row(s);
              if (s >= steps) {
                std::fill_n(d, n, A(0));
              } else {
                inputs.load(sequence, s + before, c, window.row(s + before), n);
                rows::load(
                    grad_y.data + (sequence * steps + s) * channels + c, d, n);
                if (activation == silu_of_convolution) {
                  std::copy_n(w.data() + taps * channels + c, n, sum);
                  for (int64_t k = 0; k < taps; ++k) {
                    causal::multiply_add(
                        window.row(s + k), w.data() + k * channels + c, sum, n);
                  }
                  rows::apply(sum, n, [](A v) {
                    return act_derivative(v, sigmoid(v), activation::silu);
                  });
                  for (int64_t i = 0; i < n; ++i) {
                    d[i] *= sum[i];
                  }
                }
              }
              if (s < first) {
                continue;
              }
              for (int64_t k = 0; s < steps && k < taps; ++k) {
                causal::multiply_add(
                    d, window.row(s + k), totals + k * channels + c, n);
              }
              rows::add(totals + taps * channels + c, n, [=](int64_t i) {
                return d[i];
              });
              std::fill_n(sum, n, A(0));
              for (int64_t k = 0; k < taps && k <= s; ++k) {
                causal::multiply_add(
                    slopes.row(s - k), w.data() + k * channels + c, sum, n);
              }
              if (s >= steps) {
                const T* more = grad_next.data +
                    (sequence * before + s - steps) * channels + c;
                rows::add(
                    sum, n, [=](int64_t i) { return mlxgen::widen(more[i]); });
              }
              T* to = s < before
                  ? grad_state.data + (sequence * before + s) * channels + c
                  : grad_x.data + (sequence * steps + s - before) * channels +
                      c;
              rows::store(to, n, [=](int64_t i) { return sum[i]; });
            }
          }
        }
      });
}

} // namespace mlxops::cpu
