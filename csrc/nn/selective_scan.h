// CPU kernels of Mamba's selective scan, in which each element of the state has
// its own decay.
//
// Channels are independent of each other: a block of them is an item for a
// core, and they fill the vectors. Exponentials take most of the time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/simd_math.h"
#include "mlxgen/threads.h"
#include "sequences.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace selective {

// Channels of a block, which share a part of the gradients with respect to B
// and C.
constexpr int64_t width = 32;

/** A number for each channel of a block, 0 for missing channels. */
template <typename A>
struct Row {
  A at[width] = {};
};

template <typename T, typename A>
void load(const T* from, int64_t count, Row<A>& to) {
  for (int64_t i = 0; i < count; ++i) {
    to.at[i] = mlxgen::widen(from[i]);
  }
}

template <typename T, typename A>
void store(const Row<A>& from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    mlxgen::narrow(from.at[i], to[i]);
  }
}

/** Some rows of a matrix of (channels, states), as rows of channels. */
template <typename A>
void load_columns(const A* from, int64_t count, int64_t states, Row<A>* to) {
  for (int64_t n = 0; n < states; ++n) {
    to[n] = {};
    for (int64_t i = 0; i < count; ++i) {
      to[n].at[i] = from[i * states + n];
    }
  }
}

template <typename A>
void store_columns(const Row<A>* from, int64_t count, int64_t states, A* to) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t n = 0; n < states; ++n) {
      to[i * states + n] = from[n].at[i];
    }
  }
}

/** The sum in a fixed order of vector elements, equal on every processor. */
template <typename A>
__attribute__((always_inline)) inline A sum(Row<A>& x) {
  for (int64_t half = width / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      x.at[i] += x.at[i + half];
    }
  }
  return x.at[0];
}

/** A step of the state: after = decay before + delta u B, and y = C after. */
template <typename A>
MLXGEN_MULTIVERSION void step_here(
    int64_t states,
    const Row<A>* __restrict rate,
    const Row<A>& delta,
    const Row<A>& u,
    const A* __restrict B,
    const A* __restrict C,
    const Row<A>* __restrict before,
    Row<A>* __restrict after,
    Row<A>* __restrict decays,
    Row<A>& y) {
  Row<A> total;
  for (int64_t n = 0; n < states; ++n) {
    A key = B[n];
    A query = C[n];
    for (int64_t i = 0; i < width; ++i) {
      A decay = mlxgen::math::exp(delta.at[i] * rate[n].at[i]);
      A s = decay * before[n].at[i] + delta.at[i] * u.at[i] * key;
      decays[n].at[i] = decay;
      after[n].at[i] = s;
      total.at[i] += s * query;
    }
  }
  y = total;
}

/** The factor of y and of its gradient: silu(z) and silu'(z). */
template <typename A>
MLXGEN_MULTIVERSION void
silu_here(const Row<A>& z, Row<A>& value, Row<A>& slope) {
  for (int64_t i = 0; i < width; ++i) {
    A x = z.at[i];
    A e = mlxgen::math::exp(-mlxgen::math::fabs(x));
    A sigmoid = (x < 0 ? e : A(1)) / (1 + e);
    A other = (x < 0 ? A(1) : e) / (1 + e);
    value.at[i] = x * sigmoid;
    slope.at[i] = sigmoid * (1 + x * other);
  }
}

template <typename A>
struct Gradients {
  Row<A> u;
  Row<A> delta;
  A* B;
  A* C;
};

/**
 * A step of the gradient. `carry` is the gradient with respect to the state
 * after the step, and then by the state before it.
 */
template <typename A>
MLXGEN_MULTIVERSION void back_here(
    int64_t states,
    const Row<A>* __restrict rate,
    const Row<A>& delta,
    const Row<A>& u,
    const A* __restrict B,
    const A* __restrict C,
    const Row<A>& grad,
    const Row<A>* __restrict before,
    const Row<A>* __restrict after,
    const Row<A>* __restrict decays,
    Row<A>* __restrict carry,
    Row<A>* __restrict grad_rate,
    Gradients<A>& to) {
  Row<A> taken, of_decay;
  for (int64_t n = 0; n < states; ++n) {
    A key = B[n];
    A query = C[n];
    Row<A> of_key, of_query;
    for (int64_t i = 0; i < width; ++i) {
      A s = carry[n].at[i] + grad.at[i] * query;
      A next = decays[n].at[i] * s;
      A change = next * before[n].at[i];
      of_query.at[i] = grad.at[i] * after[n].at[i];
      of_key.at[i] = s * delta.at[i] * u.at[i];
      taken.at[i] += s * key;
      of_decay.at[i] += change * rate[n].at[i];
      grad_rate[n].at[i] += change * delta.at[i];
      carry[n].at[i] = next;
    }
    to.B[n] = sum(of_key);
    to.C[n] = sum(of_query);
  }
  for (int64_t i = 0; i < width; ++i) {
    to.u.at[i] = taken.at[i] * delta.at[i];
    to.delta.at[i] = taken.at[i] * u.at[i] + of_decay.at[i];
  }
}

/** The inputs of some channels, step by step. */
template <typename T>
struct Block {
  using A = accum_t<T>;

  In<T> u_in;
  In<A> delta_in;
  In<T> B_in;
  In<T> C_in;
  In<A> D_in;
  In<T> z_in;
  In<int32_t> cu_seqlens;
  int64_t batch = 0; // index in the batch
  int64_t first = 0;
  int64_t count = 0;
  std::vector<Row<A>> rate{};
  Row<A> u{}, delta{}, skip{}, z{};
  Row<A> gate{}, slope{};
  std::vector<A> B{}, C{};
  std::vector<Row<A>> zeros{};

  int64_t steps() const {
    return u_in.dim(1);
  }
  int64_t channels() const {
    return u_in.dim(2);
  }
  int64_t states() const {
    return B_in.dim(2);
  }
  int64_t blocks() const {
    return (channels() + width - 1) / width;
  }
  Sequence sequence(int64_t t) const {
    return Sequences{cu_seqlens, steps()}.of(t);
  }
  /** The first element of the block, in arrays like u. */
  int64_t at(int64_t t) const {
    return (batch * steps() + t) * channels() + first;
  }
  /** The first element of the block, in a state. */
  int64_t state() const {
    return (batch * channels() + first) * states();
  }

  void enter(int64_t item, In<A> A_in) {
    batch = item / blocks();
    first = item % blocks() * width;
    count = std::min(width, channels() - first);
    rate.resize(states());
    B.resize(states());
    C.resize(states());
    zeros.resize(states());
    load_columns(A_in.data + first * states(), count, states(), rate.data());
    // The limit of the product of an infinite rate and its decay, 0, is 0.
    for (Row<A>& row : rate) {
      for (A& a : row.at) {
        a = std::max(a, std::numeric_limits<A>::lowest());
      }
    }
    u = delta = skip = z = {};
    if (D_in) {
      load(D_in.data + first, count, skip);
    }
  }
  void go_to(int64_t t) {
    load(u_in.data + at(t), count, u);
    load(delta_in.data + at(t), count, delta);
    for (int64_t n = 0; n < states(); ++n) {
      int64_t from = (batch * steps() + t) * states() + n;
      B[n] = mlxgen::widen(B_in[from]);
      C[n] = mlxgen::widen(C_in[from]);
    }
    if (z_in) {
      load(z_in.data + at(t), count, z);
      mlxgen::multiversion([&] { silu_here<A>(z, gate, slope); });
    }
  }
  /** The state with which a step begins: zeros if it is a sequence's first. */
  const Row<A>* begin_step(int64_t t, const Row<A>* before) const {
    return sequence(t).starts_anew(t) ? zeros.data() : before;
  }
  /** Step t, unless it is in no sequence: then the state is copied. */
  bool step(
      int64_t t,
      const Row<A>* before,
      Row<A>* after,
      Row<A>* decays,
      Row<A>& y) {
    if (!sequence(t).exists()) {
      std::copy_n(before, states(), after);
      return false;
    }
    go_to(t);
    before = begin_step(t, before);
    mlxgen::multiversion([&] {
      step_here<A>(
          states(),
          rate.data(),
          delta,
          u,
          B.data(),
          C.data(),
          before,
          after,
          decays,
          y);
    });
    if (D_in) {
      for (int64_t i = 0; i < width; ++i) {
        y.at[i] += skip.at[i] * u.at[i];
      }
    }
    return true;
  }
};

} // namespace selective

/** S_t = exp(delta A) S_{t-1} + delta u B, y = (C S_t + D u) silu(z). */
template <typename T>
void selective_scan(
    In<T> u,
    In<accum_t<T>> delta,
    In<accum_t<T>> A,
    In<T> B,
    In<T> C,
    In<accum_t<T>> D,
    In<T> z,
    In<accum_t<T>> state,
    In<int32_t> cu_seqlens,
    Out<T> y,
    Out<accum_t<T>> last) {
  using namespace selective;
  using Row = Row<accum_t<T>>;
  const Block<T> inputs{u, delta, B, C, D, z, cu_seqlens};
  int64_t steps = inputs.steps();
  int64_t states = inputs.states();
  mlxgen::share(
      inputs.blocks() * u.dim(0),
      (steps + 1) * width * states * 8,
      [&](int64_t begin, int64_t end) {
        Block<T> block = inputs;
        std::vector<Row> now(states), next(states), decays(states);
        Row result;
        for (int64_t item = begin; item < end; ++item) {
          block.enter(item, A);
          if (state) {
            load_columns(
                state.data + block.state(), block.count, states, now.data());
          } else {
            std::fill(now.begin(), now.end(), Row{});
          }
          for (int64_t t = 0; t < steps; ++t) {
            bool taken =
                block.step(t, now.data(), next.data(), decays.data(), result);
            std::swap(now, next);
            if (!taken) {
              result = {};
            } else if (z) {
              for (int64_t i = 0; i < width; ++i) {
                result.at[i] *= block.gate.at[i];
              }
            }
            store(result, block.count, y.data + block.at(t));
          }
          store_columns(
              now.data(), block.count, states, last.data + block.state());
        }
      });
}

/**
 * The gradients. `scratch` contains, for each block, the states at the
 * beginning of each stretch of steps, followed by those after each step of the
 * current stretch. grad_A and grad_D are sums over the steps; their sums over
 * the batch are the gradients. grad_B and grad_C are sums over the channels of
 * a block.
 */
template <typename T>
void selective_scan_vjp(
    In<T> u,
    In<accum_t<T>> delta,
    In<accum_t<T>> A,
    In<T> B,
    In<T> C,
    In<accum_t<T>> D,
    In<T> z,
    In<accum_t<T>> state,
    In<int32_t> cu_seqlens,
    In<T> cotangent,
    In<accum_t<T>> cotangent_last,
    int stretch,
    Out<T> grad_u,
    Out<accum_t<T>> grad_delta,
    Out<accum_t<T>> grad_A,
    Out<accum_t<T>> grad_B,
    Out<accum_t<T>> grad_C,
    Out<accum_t<T>> grad_D,
    Out<T> grad_z,
    Out<accum_t<T>> grad_state,
    Out<accum_t<T>> scratch) {
  using namespace selective;
  using Row = Row<accum_t<T>>;
  const Block<T> inputs{u, delta, B, C, D, z, cu_seqlens};
  int64_t steps = inputs.steps();
  int64_t states = inputs.states();
  mlxgen::share(
      inputs.blocks() * u.dim(0),
      (steps + 1) * width * states * 30,
      [&](int64_t begin, int64_t end) {
        Block<T> block = inputs;
        std::vector<Row> decays(stretch * states), unused(states);
        std::vector<Row> carry(states), of_rate(states), values(stretch);
        for (int64_t item = begin; item < end; ++item) {
          block.enter(item, A);
          auto* starts = reinterpret_cast<Row*>(
              scratch.data + item * 2 * stretch * states * width);
          auto* kept = starts + stretch * states;
          auto after = [&](int64_t t) { return kept + t % stretch * states; };
          auto before = [&](int64_t t) {
            return t % stretch == 0 ? starts + t / stretch * states
                                    : after(t - 1);
          };
          // The first pass uses the memory for the stretch's states, too.
          if (state) {
            load_columns(
                state.data + block.state(), block.count, states, starts);
          } else {
            std::fill_n(starts, states, Row{});
          }
          for (int64_t t = 0; t < steps; ++t) {
            block.step(t, before(t), after(t), unused.data(), values[0]);
            if ((t + 1) % stretch == 0 && t + 1 < steps) {
              std::copy_n(after(t), states, before(t + 1));
            }
          }
          load_columns(
              cotangent_last.data + block.state(),
              block.count,
              states,
              carry.data());
          std::fill(of_rate.begin(), of_rate.end(), Row{});
          Row of_skip, grad, of_z;
          Gradients<accum_t<T>> to;
          int64_t last = steps;
          while (last > 0) {
            int64_t start = (last - 1) / stretch * stretch;
            for (int64_t t = start; t < last; ++t) {
              block.step(
                  t,
                  before(t),
                  after(t),
                  decays.data() + (t - start) * states,
                  values[t - start]);
            }
            for (int64_t t = last - 1; t >= start; --t) {
              int64_t part = (item * steps + t) * states;
              to.B = grad_B.data + part;
              to.C = grad_C.data + part;
              if (!block.sequence(t).exists()) {
                std::fill_n(to.B, states, 0);
                std::fill_n(to.C, states, 0);
                if (z) {
                  store(Row{}, block.count, grad_z.data + block.at(t));
                }
                store(Row{}, block.count, grad_u.data + block.at(t));
                store(Row{}, block.count, grad_delta.data + block.at(t));
                continue;
              }
              block.go_to(t);
              load(cotangent.data + block.at(t), block.count, grad);
              if (z) {
                for (int64_t i = 0; i < width; ++i) {
                  of_z.at[i] =
                      grad.at[i] * values[t - start].at[i] * block.slope.at[i];
                  grad.at[i] *= block.gate.at[i];
                }
                store(of_z, block.count, grad_z.data + block.at(t));
              }
              mlxgen::multiversion([&] {
                back_here<accum_t<T>>(
                    states,
                    block.rate.data(),
                    block.delta,
                    block.u,
                    block.B.data(),
                    block.C.data(),
                    grad,
                    block.begin_step(t, before(t)),
                    after(t),
                    decays.data() + (t - start) * states,
                    carry.data(),
                    of_rate.data(),
                    to);
              });
              for (int64_t i = 0; i < width; ++i) {
                to.u.at[i] += block.skip.at[i] * grad.at[i];
                of_skip.at[i] += block.u.at[i] * grad.at[i];
              }
              store(to.u, block.count, grad_u.data + block.at(t));
              store(to.delta, block.count, grad_delta.data + block.at(t));
              if (block.sequence(t).starts_anew(t)) {
                std::fill(carry.begin(), carry.end(), Row{});
              }
            }
            last = start;
          }
          store_columns(
              of_rate.data(), block.count, states, grad_A.data + block.state());
          store_columns(
              carry.data(),
              block.count,
              states,
              grad_state.data + block.state());
          store(
              of_skip,
              block.count,
              grad_D.data + block.batch * block.channels() + block.first);
        }
      });
}

} // namespace mlxops::cpu
