// CPU kernels of the scan of Mamba-2: a state that decays and accumulates outer
// products.
//
// A head's state is a matrix. Its rows are independent of each other, so that
// several rows of a head are an item for a core and stay in its cache from step
// to step. delta.h computes the gradient: the gradient with respect to each
// step's decay is the inner product of the state before the step and the
// gradient with respect to the state after it, so that it is accurate for
// strong and weak decays.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../reduce.h"
#include "delta.h"

namespace mlxops::cpu {

namespace ssm {

constexpr int64_t rows_per_item = 16;

/**
 * S = decay S + x k^T for some rows of S, then y = S q. The order of the sums
 * is that of a vector's elements, on every processor.
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
  // AVX2's vector size: g++ splits larger vectors badly, and with AVX-512 these
  // are equally fast.
  typedef A Vector __attribute__((vector_size(32)));
  constexpr int lanes = 32 / sizeof(A);
  auto load = [](const A* from, Vector& to) {
    std::memcpy(&to, from, sizeof(to)); // rows may be unaligned
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

/**
 * The tangent of a step by its decay and its outer product: Z = decay Z +
 * of_decay S + of_x k^T, and y = Z q, before S = decay S + x k^T.
 */
template <typename A>
MLXGEN_MULTIVERSION void tangent_here(
    int64_t rows,
    int64_t columns,
    A decay,
    A of_decay,
    const A* x,
    const A* of_x,
    const A* k,
    const A* q,
    A* state,
    A* tangent,
    A* y) {
  for (int64_t r = 0; r < rows; ++r) {
    A* s = state + r * columns;
    A* z = tangent + r * columns;
    for (int64_t n = 0; n < columns; ++n) {
      z[n] = decay * z[n] + of_decay * s[n] + of_x[r] * k[n];
      s[n] = decay * s[n] + x[r] * k[n];
    }
    y[r] = sum_over<A>(columns, [=](int64_t n) { return z[n] * q[n]; });
  }
}

/**
 * The logarithm of a decay, divided by dt. It is finite, because the limit of
 * its product with a decay of 0 is 0.
 */
template <typename A>
A rate_of(A A_log) {
  return std::max(-std::exp(A_log), std::numeric_limits<A>::lowest());
}

/** Numbers in the computing type: the array itself, or a copy. */
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

/** The scan, or its tangent with respect to the decays and weights of steps. */
template <bool tangents, typename T, typename A = accum_t<T>>
void scan(
    In<T> x,
    In<A> A_log,
    In<T> B,
    In<T> C,
    In<A> D,
    In<A> dt,
    In<A> state,
    In<bool> mask,
    In<int32_t> cu_seqlens,
    In<A> of_A_log,
    In<A> of_dt,
    Out<T> y,
    Out<A> last) {
  Sequences sequences{cu_seqlens, x.dim(1)};
  int64_t batch = x.dim(0), steps = x.dim(1), heads = x.dim(2), rows = x.dim(3);
  int64_t groups = B.dim(2), columns = B.dim(3);
  if (state && !tangents) {
    std::copy_n(state.data, last.size(), last.data);
  } else {
    std::fill_n(last.data, last.size(), A(0));
  }
  int64_t blocks = (rows + rows_per_item - 1) / rows_per_item;
  int64_t cost = steps * (std::min(rows, rows_per_item) * columns + 100);
  mlxgen::share(batch * heads * blocks, cost, [&](int64_t begin, int64_t end) {
    std::vector<A> wide_k(columns), wide_q(columns);
    std::vector<A> states(tangents ? rows_per_item * columns : 0);
    A taken[rows_per_item], of_taken[rows_per_item], product[rows_per_item];
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i % blocks * rows_per_item;
      int64_t count = std::min(rows_per_item, rows - first);
      int64_t head = i / blocks % heads;
      int64_t b = i / blocks / heads;
      int64_t start = ((b * heads + head) * rows + first) * columns;
      A* now = last.data + start;
      std::fill(states.begin(), states.end(), A(0));
      if (state && tangents) {
        std::copy_n(state.data + start, count * columns, states.data());
      }
      for (int64_t t = b * steps; t < (b + 1) * steps; ++t) {
        int64_t at = t * heads + head;
        T* to = y.data + at * rows + first;
        Sequence sequence = sequences.of(t - b * steps);
        if (sequence.starts_anew(t - b * steps)) {
          std::fill_n(now, count * columns, A(0));
          std::fill(states.begin(), states.end(), A(0));
        }
        if (!sequence.exists() || (mask && !mask[t])) {
          std::fill_n(to, count, T(0));
          continue;
        }
        const T* from = x.data + at * rows + first;
        for (int64_t p = 0; p < count; ++p) {
          taken[p] = dt[at] * mlxgen::widen(from[p]);
        }
        int64_t group = (t * groups + head * groups / heads) * columns;
        const A* key = widened(B.data + group, columns, wide_k);
        const A* query = widened(C.data + group, columns, wide_q);
        A rate = rate_of(A_log[head]);
        A decay = std::exp(rate * dt[at]);
        if constexpr (tangents) {
          A of_decay = decay * (of_A_log[head] * dt[at] + of_dt[at]) * rate;
          for (int64_t p = 0; p < count; ++p) {
            of_taken[p] = of_dt[at] * mlxgen::widen(from[p]);
          }
          mlxgen::multiversion([&] {
            tangent_here<A>(
                count,
                columns,
                decay,
                of_decay,
                taken,
                of_taken,
                key,
                query,
                states.data(),
                now,
                product);
          });
          for (int64_t p = 0; p < count; ++p) {
            mlxgen::narrow(product[p], to[p]);
          }
        } else {
          mlxgen::multiversion([&] {
            step_here<A>(
                count, columns, decay, taken, key, query, now, product);
          });
          for (int64_t p = 0; p < count; ++p) {
            A past = D[head] * mlxgen::widen(from[p]);
            mlxgen::narrow(product[p] + past, to[p]);
          }
        }
      }
    }
  });
}

} // namespace ssm

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
    In<int32_t> cu_seqlens,
    Out<T> y,
    Out<accum_t<T>> last) {
  ssm::scan<false>(
      x, A_log, B, C, D, dt, state, mask, cu_seqlens, {}, {}, y, last);
}

/** Its tangent with respect to A_log and dt. */
template <typename T>
void ssm_scan_decay_jvp(
    In<T> x,
    In<accum_t<T>> A_log,
    In<T> B,
    In<T> C,
    In<accum_t<T>> dt,
    In<accum_t<T>> state,
    In<bool> mask,
    In<int32_t> cu_seqlens,
    In<accum_t<T>> of_A_log,
    In<accum_t<T>> of_dt,
    Out<T> y,
    Out<accum_t<T>> last) {
  ssm::scan<true>(
      x,
      A_log,
      B,
      C,
      {},
      dt,
      state,
      mask,
      cu_seqlens,
      of_A_log,
      of_dt,
      y,
      last);
}

MLXGEN_BEGIN_INLINED

/** Reads the steps of ssm_scan and writes their gradients. */
template <typename T>
struct SsmScan {
  using A = accum_t<T>;
  static constexpr bool corrects = false;
  static constexpr bool adds = false;
  struct Grads {
    Out<T> x;
    Out<A> A_log;
    Out<A> B;
    Out<A> C;
    Out<A> D;
    Out<A> dt;
  };

  In<T> x;
  In<A> A_log;
  In<T> B;
  In<T> C;
  In<A> D;
  In<A> dt;
  In<bool> mask;
  Sequences sequences;

  bool read(const DeltaPlace& place, DeltaStep<A>& to) const {
    if (mask && !mask[place.time]) {
      return false;
    }
    int64_t groups = B.dim(2), states = B.dim(3);
    int64_t group = place.head / (place.heads / groups);
    int64_t at = (place.time * groups + group) * states;
    widen_to(to.k, B.data + at, states);
    widen_to(to.r, C.data + at, states);
    to.beta = dt[place.at];
    const T* from = x.data + place.at * x.dim(3) + place.first;
    for (int64_t i = 0; i < place.rows; ++i) {
      to.v[i] = to.beta * mlxgen::widen(from[i]);
    }
    A rate = ssm::rate_of(A_log[place.head]);
    std::fill_n(to.w, states, std::exp(rate * to.beta));
    return true;
  }

  void write(
      const DeltaPlace& place,
      bool taken,
      const DeltaStep<A>& step,
      const DeltaSums<A>& sums,
      const Grads& to) const {
    int64_t states = B.dim(3);
    int64_t at = place.block * dt.size() + place.at;
    std::copy_n(sums.k, states, to.B.data + at * states);
    std::copy_n(sums.r, states, to.C.data + at * states);
    const T* value = x.data + place.at * x.dim(3) + place.first;
    T* grad = to.x.data + place.at * x.dim(3) + place.first;
    if (!taken) {
      std::fill_n(grad, place.rows, T(0));
      to.dt[at] = 0;
      return;
    }
    A of_dt = 0, of_D = 0;
    for (int64_t i = 0; i < place.rows; ++i) {
      of_dt += mlxgen::widen(value[i]) * sums.v[i];
      of_D += mlxgen::widen(value[i]) * step.grad_y[i];
      mlxgen::narrow(
          step.beta * sums.v[i] + D[place.head] * step.grad_y[i], grad[i]);
    }
    A of_decay = step.w[0] * sums.beta;
    A rate = ssm::rate_of(A_log[place.head]);
    to.dt[at] = of_dt + rate * of_decay;
    // A block's sums over the steps: no other block writes to them.
    at = (place.block * x.dim(0) + place.batch) * place.heads + place.head;
    to.A_log[at] += step.beta * of_decay * rate;
    to.D[at] += of_D;
  }
};

MLXGEN_END_INLINED

template <typename T>
void ssm_scan_vjp(
    In<T> x,
    In<accum_t<T>> A_log,
    In<T> B,
    In<T> C,
    In<accum_t<T>> D,
    In<accum_t<T>> dt,
    In<accum_t<T>> state,
    In<bool> mask,
    In<int32_t> cu_seqlens,
    In<T> grad_y,
    In<accum_t<T>> grad_last,
    int block,
    int chunk,
    Out<T> grad_x,
    Out<accum_t<T>> grad_A_log,
    Out<accum_t<T>> grad_B,
    Out<accum_t<T>> grad_C,
    Out<accum_t<T>> grad_D,
    Out<accum_t<T>> grad_dt,
    Out<accum_t<T>> grad_state,
    Out<accum_t<T>> states) {
  using A = accum_t<T>;
  std::fill_n(grad_A_log.data, grad_A_log.size(), A(0));
  std::fill_n(grad_D.data, grad_D.size(), A(0));
  Sequences sequences{cu_seqlens, x.dim(1)};
  delta_backward(
      SsmScan<T>{x, A_log, B, C, D, dt, mask, sequences},
      {grad_x, grad_A_log, grad_B, grad_C, grad_D, grad_dt},
      state,
      grad_y,
      grad_last,
      block,
      chunk,
      grad_state,
      states);
}

} // namespace mlxops::cpu
