// CPU kernels of a state that decays and takes up outer products: the scan of
// Mamba-2, and the scans of its gradient.
//
// A head's state is a matrix. Its rows do not know of each other, so some rows
// of a head are an item for a core, and stay in its cache from step to step.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace outer {

constexpr int64_t rows_per_item = 16;

/**
 * S = decay S + x k^T for some rows of S, then y = S q. The sums have the order
 * of a vector's elements, on every processor.
 */
template <int rows, typename A>
__attribute__((always_inline)) inline void step(
    int64_t columns,
    A decay,
    const A* x,
    const A* k,
    const A* q,
    A* state,
    A* y) {
  // What AVX2 has: g++ splits larger ones badly, and with AVX-512 these are as
  // fast.
  typedef A Vector __attribute__((vector_size(32)));
  constexpr int lanes = 32 / sizeof(A);
  auto load = [](const A* from, Vector& to) {
    std::memcpy(&to, from, sizeof(to)); // rows begin anywhere
  };
  Vector sums[rows] = {};
  int64_t n = 0;
  for (; n + lanes <= columns; n += lanes) {
    Vector key, query;
    load(k + n, key);
    load(q + n, query);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      A* at = state + r * columns + n;
      Vector s;
      load(at, s);
      s = decay * s + x[r] * key;
      std::memcpy(at, &s, sizeof(s));
      sums[r] += s * query;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    A rest = 0;
    for (int64_t i = n; i < columns; ++i) {
      A& s = state[r * columns + i];
      s = decay * s + x[r] * k[i];
      rest += s * q[i];
    }
    A parts[lanes];
    std::memcpy(parts, &sums[r], sizeof(parts));
#pragma GCC unroll 8
    for (int half = lanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int j = 0; j < half; ++j) {
        parts[j] += parts[j + half];
      }
    }
    y[r] = parts[0] + rest;
  }
}

/** The same for any number of rows. */
template <typename A>
MLXGEN_MULTIVERSION void step_here(
    int64_t rows,
    int64_t columns,
    A decay,
    const A* x,
    const A* k,
    const A* q,
    A* state,
    A* y) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    step<4>(columns, decay, x + r, k, q, state + r * columns, y + r);
  }
  for (; r < rows; ++r) {
    step<1>(columns, decay, x + r, k, q, state + r * columns, y + r);
  }
}

/** Numbers to compute with: these, or a copy. */
template <typename T, typename A = accum_t<T>>
const A* widened(const T* from, int64_t count, std::vector<A>& to) {
  if constexpr (std::is_same_v<T, A>) {
    return from;
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = mlxgen::widen(from[i]);
    }
    return to.data();
  }
}

/** How a head goes from step to step. */
template <typename A>
struct Step {
  A decay;
  A weight; // of what is taken up
  bool is_there; // or else the state stays
};

/**
 * S_t = decay_t S_{t-1} + weight_t v_t k_t^T and y_t = S_t q_t + skip v_t. With
 * `reverse` from the last step to the first, and there the decay follows: so
 * S is the gradient of such a scan's state. v, k, q and y are (batch, steps,
 * heads, ...), those of the former for one head or several each.
 */
template <typename T, typename Y, typename Steps, typename Skip>
void scan(
    int64_t heads,
    In<T> v,
    In<T> k,
    In<T> q,
    In<accum_t<T>> initial,
    bool reverse,
    Steps steps_of, // Step<A>(batch, head, step)
    Skip skip, // A(head)
    Out<Y> y,
    Out<accum_t<T>> last) {
  using A = accum_t<T>;
  int64_t batch = v.dim(0);
  int64_t steps = v.dim(1);
  int64_t rows = v.dim(3);
  int64_t columns = k.dim(3);
  if (initial) {
    std::copy_n(initial.data, last.size(), last.data);
  } else {
    std::fill_n(last.data, last.size(), A(0));
  }
  int64_t blocks = (rows + rows_per_item - 1) / rows_per_item;
  int64_t cost = steps * (std::min(rows, rows_per_item) * columns + 100);
  mlxgen::share(batch * heads * blocks, cost, [&](int64_t begin, int64_t end) {
    std::vector<A> wide_k(columns), wide_q(columns);
    A x[rows_per_item], product[rows_per_item];
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i % blocks * rows_per_item;
      int64_t count = std::min(rows_per_item, rows - first);
      int64_t head = i / blocks % heads;
      int64_t b = i / blocks / heads;
      auto of = [&](auto x, int64_t t, int64_t width) {
        int64_t own = x.dim(2);
        return x.data + ((b * steps + t) * own + head * own / heads) * width;
      };
      A* state = last.data + ((b * heads + head) * rows + first) * columns;
      A factor = skip(head);
      A pending = 1; // the decay that follows, in reverse
      for (int64_t j = 0; j < steps; ++j) {
        int64_t t = reverse ? steps - 1 - j : j;
        Y* to = y.data + ((b * steps + t) * heads + head) * rows + first;
        Step<A> step = steps_of(b, head, t);
        if (!step.is_there) {
          std::fill_n(to, count, Y(0));
          continue;
        }
        const T* from = of(v, t, rows) + first;
        for (int64_t p = 0; p < count; ++p) {
          x[p] = step.weight * mlxgen::widen(from[p]);
        }
        const A* key = widened(of(k, t, columns), columns, wide_k);
        const A* query = widened(of(q, t, columns), columns, wide_q);
        A decay = reverse ? pending : step.decay;
        mlxgen::multiversion([&] {
          step_here<A>(count, columns, decay, x, key, query, state, product);
        });
        pending = step.decay;
        for (int64_t p = 0; p < count; ++p) {
          mlxgen::narrow(
              factor == 0 ? product[p]
                          : product[p] + factor * mlxgen::widen(from[p]),
              to[p]);
        }
      }
      if (reverse) {
        for (int64_t n = 0; n < count * columns; ++n) {
          state[n] *= pending;
        }
      }
    }
  });
}

} // namespace outer

/** Mamba-2's scan: the decay is exp(-exp(A_log) dt), the weight dt. */
template <typename T>
void ssm_scan(
    In<T> x,
    In<accum_t<T>> A_log,
    In<T> B,
    In<T> C,
    In<accum_t<T>> D,
    In<accum_t<T>> dt,
    In<accum_t<T>> state,
    In<bool> mask,
    Out<T> y,
    Out<accum_t<T>> last) {
  using A = accum_t<T>;
  int64_t steps = dt.dim(1);
  int64_t heads = dt.dim(2);
  outer::scan<T, T>(
      heads,
      x,
      B,
      C,
      state,
      false,
      [&](int64_t b, int64_t head, int64_t t) {
        int64_t at = b * steps + t;
        if (mask && !mask[at]) {
          return outer::Step<A>{1, 0, false};
        }
        A step = dt[at * heads + head];
        return outer::Step<A>{
            std::exp(-std::exp(A_log[head]) * step), step, true};
      },
      [&](int64_t head) { return D[head]; },
      y,
      last);
}

/** The scan alone, of which all gradients are scans, too. */
template <typename T>
void outer_scan(
    In<T> v,
    In<T> k,
    In<T> q,
    In<accum_t<T>> log_decay,
    In<accum_t<T>> weight,
    In<accum_t<T>> state,
    bool reverse,
    Out<accum_t<T>> y,
    Out<accum_t<T>> last) {
  using A = accum_t<T>;
  int64_t steps = log_decay.dim(1);
  int64_t heads = log_decay.dim(2);
  outer::scan<T, A>(
      heads,
      v,
      k,
      q,
      state,
      reverse,
      [&](int64_t b, int64_t head, int64_t t) {
        int64_t at = (b * steps + t) * heads + head;
        return outer::Step<A>{
            std::exp(log_decay[at]), weight ? weight[at] : A(1), true};
      },
      [](int64_t) { return A(0); },
      y,
      last);
}

} // namespace mlxops::cpu
