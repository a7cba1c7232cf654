// CPU kernels of causal_conv1d, a short convolution over time for every channel
// separately. They process a stretch of time for several channels, which are
// the elements of vectors, and keep the last inputs in the cache.

#pragma once

#include <algorithm>
#include <vector>

#include "nn/activations.h"
#include "nn/rows.h"
#include "nn/sequences.h"

namespace mlxops::cpu {

// A value of causal_conv1d's argument `activation`.
constexpr int silu_of_convolution = 1;

// The number of steps that each row of a weight's gradient sums, as in
// kernels/metal/nn/causal_conv.metal.
constexpr int64_t steps_per_sum = 64;

/** The inputs of each step and of the steps before it. */
template <typename T>
class CausalInputs {
 public:
  CausalInputs(In<T> x, In<T> state, int64_t taps)
      : x_(x), state_(state), before_(taps - 1) {}

  /**
   * Channels from `channel` on of the input for tap k of a step, or of the one
   * after the last of a sequence: x, or before the sequence the state, or 0.
   */
  template <typename A>
  void load(
      int64_t batch,
      const Sequence& sequence,
      int64_t step,
      int64_t k,
      int64_t channel,
      A* to,
      int64_t n) const {
    int64_t channels = x_.dim(2);
    int64_t at = step + k - before_;
    if (at >= sequence.first) {
      rows::load(
          x_.data + (batch * x_.dim(1) + at) * channels + channel, to, n);
    } else if (state_ && sequence.index == 0) {
      at += before_ - sequence.first;
      rows::load(
          state_.data + (batch * before_ + at) * channels + channel, to, n);
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

/** The number of parts of the steps: at least one stretch. */
inline int64_t stretches(int64_t steps) {
  return std::max<int64_t>(1, (steps + steps_per_sum - 1) / steps_per_sum);
}

} // namespace causal

/**
 * y[t] = act(bias + sum over k of weight[k] input[t + k]), where input is the
 * state followed by x; next_state is the end of the input, which the next call
 * needs. Inputs of other sequences are replaced by zeros, and y is 0 outside of
 * all sequences.
 */
template <typename T>
void causal_conv1d(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> state,
    In<int32_t> cu_seqlens,
    int activation,
    Out<T> y,
    Out<T> next_state) {
  using A = accum_t<T>;
  int64_t steps = x.dim(1);
  int64_t channels = x.dim(2);
  int64_t taps = weight.dim(1);
  int64_t before = taps - 1;
  auto w = causal::by_taps(weight, bias);
  Sequences sequences{cu_seqlens, steps};
  Sequence ending = sequences.last();
  CausalInputs<T> inputs(x, state, taps);
  int64_t stretches = causal::stretches(steps);
  int64_t cost = std::min(steps, steps_per_sum) * channels * taps;
  rows::share(
      x.dim(0) * stretches, cost, [&](int64_t first_item, int64_t last_item) {
        causal::Window<A> window(taps);
        std::vector<A> sums(causal::block);
        A* sum = sums.data();
        for (int64_t item = first_item; item < last_item; ++item) {
          int64_t batch = item / stretches;
          int64_t first = item % stretches * steps_per_sum;
          int64_t last = std::min(first + steps_per_sum, steps);
          for (int64_t c = 0; c < channels; c += causal::block) {
            int64_t n = std::min(causal::block, channels - c);
            for (int64_t t = first; t < last; ++t) {
              T* to = y.data + (batch * steps + t) * channels + c;
              Sequence sequence = sequences.of(t);
              if (!sequence.exists()) {
                std::fill_n(to, n, T(0));
                continue;
              }
              bool known = t > first && t > sequence.first;
              for (int64_t k = known ? before : 0; k < taps; ++k) {
                A* row = window.row(t + k);
                inputs.load(batch, sequence, t, k, c, row, n);
              }
              std::copy_n(w.data() + taps * channels + c, n, sum);
              for (int64_t k = 0; k < taps; ++k) {
                causal::multiply_add(
                    window.row(t + k), w.data() + k * channels + c, sum, n);
              }
              if (activation == silu_of_convolution) {
                rows::apply(sum, n, [](A v) { return v * sigmoid(v); });
              }
              rows::store(to, n, [=](int64_t i) { return sum[i]; });
            }
            for (int64_t k = 0; last == steps && k < before; ++k) {
              inputs.load(batch, ending, ending.end, k, c, sum, n);
              rows::store(
                  next_state.data + (batch * before + k) * channels + c,
                  n,
                  [=](int64_t i) { return sum[i]; });
            }
          }
        }
      });
}

/**
 * Gradients. Let d[t] be the gradient with respect to the sum at step t. The
 * gradient with respect to x[t] is the sum over k of weight[before - k]
 * d[t + k] within the sequence, that with respect to state[j] the sum over k of
 * weight[k] d[first + j - k], where `first` is the first step of the first
 * sequence, and that with respect to weight[k] is the sum over t of d[t] times
 * the input for this tap. The rows of `sums` add up to the latter and, after
 * the last tap, to the gradient with respect to the bias.
 */
template <typename T>
void causal_conv1d_vjp(
    In<T> x,
    In<T> weight,
    In<T> bias,
    In<T> state,
    In<int32_t> cu_seqlens,
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
  Sequences sequences{cu_seqlens, steps};
  Sequence initial = sequences.initial();
  Sequence ending = sequences.last();
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
          int64_t batch = item / stretches;
          int64_t first = item % stretches * steps_per_sum;
          bool ends = item % stretches == stretches - 1;
          int64_t last = ends ? steps + before : first + steps_per_sum;
          A* totals = sums.data + item * (taps + 1) * channels;
          std::fill_n(totals, (taps + 1) * channels, A(0));
          for (int64_t c = 0; c < channels; c += causal::block) {
            int64_t n = std::min(causal::block, channels - c);
            // Steps before the first one contribute to its gradients.
            int64_t start = std::max<int64_t>(0, first - before);
            // The gradient with respect to an input of the steps `from` to s,
            // of which those before `end` belong to its sequence.
            auto gather = [&](int64_t s, int64_t from, int64_t end) {
              std::fill_n(sum, n, A(0));
              for (int64_t k = 0; k < taps && k <= s - from; ++k) {
                if (s - k < end) {
                  causal::multiply_add(
                      slopes.row(s - k), w.data() + k * channels + c, sum, n);
                }
              }
            };
            // The same input may also be one of the next state's.
            auto finish = [&](int64_t row, T* to) {
              if (row >= 0) {
                const T* more =
                    grad_next.data + (batch * before + row) * channels + c;
                rows::add(
                    sum, n, [=](int64_t i) { return mlxgen::widen(more[i]); });
              }
              rows::store(to, n, [=](int64_t i) { return sum[i]; });
            };
            for (int64_t s = start; s < last; ++s) {
              A* d = slopes.row(s);
              Sequence sequence = sequences.of(s);
              bool taken = s < steps && sequence.exists();
              if (!taken) {
                std::fill_n(d, n, A(0));
              } else {
                bool known = s > start && s > sequence.first;
                for (int64_t k = known ? before : 0; k < taps; ++k) {
                  A* row = window.row(s + k);
                  inputs.load(batch, sequence, s, k, c, row, n);
                }
                rows::load(
                    grad_y.data + (batch * steps + s) * channels + c, d, n);
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
              for (int64_t k = 0; taken && k < taps; ++k) {
                causal::multiply_add(
                    d, window.row(s + k), totals + k * channels + c, n);
              }
              rows::add(totals + taps * channels + c, n, [=](int64_t i) {
                return d[i];
              });
              int64_t j = s - initial.first;
              if (j >= 0 && j < before) {
                gather(s, initial.first, initial.end);
                finish(
                    ending.index == 0 ? j - (ending.end - ending.first) : -1,
                    grad_state.data + (batch * before + j) * channels + c);
              }
              int64_t t = s - before;
              if (t >= 0) {
                Sequence own = sequences.of(t);
                bool in_next = t >= ending.first && t < ending.end;
                gather(s, t, own.end);
                finish(
                    in_next ? t - ending.end + before : -1,
                    grad_x.data + (batch * steps + t) * channels + c);
              }
            }
          }
        }
      });
}

} // namespace mlxops::cpu
