// CPU kernels of the connectionist temporal classification loss (Graves et al.
// 2006): the dynamic program over the states of a target, and its gradient.
//
// The states of a target are its labels, with an empty one before, between and
// after them: state s is label s / 2 if s is odd. Sums over paths are in
// logarithms.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** One sequence of a batch. */
struct CtcSequence {
  const int32_t* target;
  int length; // of the input
  int states;
  int blank;
  bool reversed; // from the last state and time to the first

  int label(int state) const {
    int s = reversed ? states - 1 - state : state;
    return s % 2 ? target[s / 2] : blank;
  }
  int time(int step) const {
    return reversed ? length - 1 - step : step;
  }
};

/** log(exp(a) + exp(b)); a NaN of either stays. */
template <typename A>
A log_add(A a, A b) {
  const A never = -std::numeric_limits<A>::infinity();
  if (a == never || b == never) {
    return a == never ? b : a;
  }
  return std::max(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
}

/**
 * The sums over all paths to each state at each time, and minus the sum over
 * all complete paths.
 */
template <typename T>
void ctc_states(
    In<T> log_probs,
    In<int32_t> targets,
    In<int32_t> starts,
    In<int32_t> input_lengths,
    In<int32_t> target_lengths,
    int states,
    int blank,
    bool reversed,
    bool,
    Out<T> loss,
    Out<T> log_states) {
  int64_t times = log_probs.dim(0);
  int64_t batch = log_probs.dim(1);
  int64_t classes = log_probs.dim(2);
  const T never = -std::numeric_limits<T>::infinity();
  mlxgen::share(batch, 40 * times * states, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      CtcSequence sequence{
          targets.data + starts[n],
          input_lengths[n],
          2 * target_lengths[n] + 1,
          blank,
          reversed};
      T* table = log_states.data + n * times * states;
      std::fill_n(table, times * states, never);
      int used = sequence.states;
      for (int step = 0; step < sequence.length; ++step) {
        const T* row =
            log_probs.data + (sequence.time(step) * batch + n) * classes;
        auto at = [&](int before, int s) -> T& {
          int state = reversed ? used - 1 - s : s;
          return table[int64_t(sequence.time(step - before)) * states + state];
        };
        for (int s = 0; s < used; ++s) {
          T sum = T(0);
          if (step > 0) {
            sum = at(1, s);
            if (s > 0) {
              sum = log_add(sum, at(1, s - 1));
            }
            if (s > 1 && sequence.label(s) != sequence.label(s - 2)) {
              sum = log_add(sum, at(1, s - 2));
            }
          }
          // Paths begin with the first two states, also if others have NaN.
          at(0, s) = step == 0 && s > 1 ? never : sum + row[sequence.label(s)];
        }
      }
      if (sequence.length == 0) {
        loss[n] = used == 1 ? T(0) : -never;
        continue;
      }
      int end = reversed ? 0 : used - 1;
      int before = reversed ? 1 : used - 2;
      const T* row =
          table + int64_t(sequence.time(sequence.length - 1)) * states;
      loss[n] = -(used > 1 ? log_add(row[end], row[before]) : row[end]);
    }
  });
}

/** The gradient of the loss with respect to unnormalized logits. */
template <typename T>
void ctc_gradient(
    In<T> cotangent,
    In<T> log_probs,
    In<int32_t> targets,
    In<int32_t> starts,
    In<int32_t> input_lengths,
    In<int32_t> target_lengths,
    In<T> loss,
    In<T> forward,
    In<T> backward,
    int blank,
    bool zero_infinity,
    Out<T> out) {
  int64_t batch = log_probs.dim(1);
  int64_t classes = log_probs.dim(2);
  int64_t states = forward.dim(2);
  int64_t times = log_probs.dim(0);
  const T never = -std::numeric_limits<T>::infinity();
  mlxgen::share(
      times * batch, 20 * (classes + states), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          int64_t t = i / batch;
          int64_t n = i % batch;
          const T* row = log_probs.data + i * classes;
          T* to = out.data + i * classes;
          bool is_left_out =
              t >= input_lengths[n] || (zero_infinity && loss[n] == -never);
          std::fill_n(to, classes, is_left_out ? T(0) : never);
          if (is_left_out) {
            continue;
          }
          int64_t start = (n * times + t) * states;
          for (int s = 0; s <= 2 * target_lengths[n]; ++s) {
            T& sum = to[s % 2 ? targets[starts[n] + s / 2] : blank];
            sum = log_add(sum, forward[start + s] + backward[start + s]);
          }
          for (int64_t c = 0; c < classes; ++c) {
            to[c] = (std::exp(row[c]) - std::exp(to[c] + loss[n] - row[c])) *
                cotangent[n];
          }
        }
      });
}

} // namespace cpu
} // namespace mlx_aten
