// CPU kernels of the linear recurrence h_t = a_t h_{t-1} + b_t along an axis.
//
// Each step depends on the previous one. Channels are independent, so that
// vectors and cores process different channels. If neighbors in memory are
// steps rather than channels, a tile of both is first copied in the order of
// channels.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "sequences.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace recurrence {

// The number of channels computed together, and of steps in a copied tile.
constexpr int64_t block = 256;
constexpr int64_t tile_channels = 32;
constexpr int64_t tile_steps = 32;

/** Rows of channels: that of step t begins at data[t * stride]. */
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  Rows from(int64_t step) const {
    return {data + step * stride, stride};
  }
};

/** `state` is h before the first of these steps, then h after the last. */
template <typename T, typename A>
MLXGEN_MULTIVERSION void forward_here(
    int64_t steps,
    int64_t count,
    Rows<const T> a,
    Rows<const T> b,
    A* __restrict state,
    Rows<T> out) {
  for (int64_t t = 0; t < steps; ++t) {
    const T* __restrict factor = a.data + t * a.stride;
    const T* __restrict term = b.data + t * b.stride;
    T* __restrict to = out.data + t * out.stride;
    for (int64_t i = 0; i < count; ++i) {
      state[i] = mlxgen::widen(factor[i]) * state[i] + mlxgen::widen(term[i]);
      mlxgen::narrow(state[i], to[i]);
    }
  }
}

/**
 * Steps of the gradient, from the last to the first: `state` is a_{t+1} times
 * the gradient of the previous h_{t+1}, `before` contains h_{t-1}.
 */
template <typename T, typename A>
MLXGEN_MULTIVERSION void backward_here(
    int64_t steps,
    int64_t count,
    Rows<const T> a,
    Rows<const T> before,
    Rows<const T> grad,
    A* __restrict state,
    Rows<T> grad_a,
    Rows<T> grad_b) {
  for (int64_t t = 0; t < steps; ++t) {
    const T* __restrict factor = a.data + t * a.stride;
    const T* __restrict h = before.data + t * before.stride;
    const T* __restrict g = grad.data + t * grad.stride;
    T* __restrict to_a = grad_a.data + t * grad_a.stride;
    T* __restrict to_b = grad_b.data + t * grad_b.stride;
    for (int64_t i = 0; i < count; ++i) {
      A total = mlxgen::widen(g[i]) + state[i];
      mlxgen::narrow(total, to_b[i]);
      mlxgen::narrow(total * mlxgen::widen(h[i]), to_a[i]);
      state[i] = mlxgen::widen(factor[i]) * total;
    }
  }
}

/** The location of an array's channels and of their steps. */
struct Layout {
  int64_t steps;
  int64_t inner; // channels that are contiguous in memory
  int64_t channels;
  bool reverse;

  Layout(const mlxgen::Shape& shape, int axis, bool reverse)
      : inner(1), channels(1), reverse(reverse) {
    int ndim = static_cast<int>(shape.size());
    axis = axis < 0 ? axis + ndim : axis;
    steps = shape[axis];
    for (int i = 0; i < ndim; ++i) {
      channels *= i == axis ? 1 : shape[i];
      inner *= i > axis ? shape[i] : 1;
    }
  }

  /** The element of a channel's step. */
  int64_t at(int64_t channel, int64_t step) const {
    step = reverse ? steps - 1 - step : step;
    return (channel / inner * steps + step) * inner + channel % inner;
  }
  int64_t stride() const {
    return reverse ? -inner : inner;
  }

  /** The steps of contiguous channels. */
  template <typename T>
  Rows<T> rows(T* data, int64_t channel) const {
    return {data + (steps > 0 ? at(channel, 0) : 0), stride()};
  }

  /**
   * Call each(first, count) for blocks of channels, on all cores. The channels
   * of a block are contiguous in memory, or else fit into a tile.
   */
  template <typename F>
  void share(F each) const {
    int64_t most = in_tiles() ? tile_channels : block;
    int64_t together = in_tiles() ? channels : inner;
    int64_t blocks = channels == 0 ? 0 : (together + most - 1) / most;
    int64_t groups = channels == 0 ? 0 : channels / together;
    mlxgen::share(
        groups * blocks,
        4 * steps * std::min(most, together),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            int64_t first = i % blocks * most;
            each(
                i / blocks * together + first,
                std::min(most, together - first));
          }
        });
  }
  bool in_tiles() const {
    return inner < 16 && channels > inner;
  }
};

/** A copy of some steps of some channels. */
template <typename T>
struct Tile {
  T values[tile_channels * tile_steps];

  Rows<T> rows() {
    return {values, tile_channels};
  }
  Rows<const T> read(
      const Layout& layout,
      const T* from,
      int64_t channel,
      int64_t count,
      int64_t step,
      int64_t steps) {
    for (int64_t i = 0; i < count; ++i) {
      const T* x = from + layout.at(channel + i, step);
      for (int64_t t = 0; t < steps; ++t) {
        values[t * tile_channels + i] = x[t * layout.stride()];
      }
    }
    return {values, tile_channels};
  }
  void write(
      const Layout& layout,
      T* to,
      int64_t channel,
      int64_t count,
      int64_t step,
      int64_t steps) const {
    for (int64_t i = 0; i < count; ++i) {
      T* x = to + layout.at(channel + i, step);
      for (int64_t t = 0; t < steps; ++t) {
        x[t * layout.stride()] = values[t * tile_channels + i];
      }
    }
  }
};

/** Steps of one sequence, or of none, in the order of the computation. */
struct Run {
  int64_t first;
  int64_t count;
  bool exists;
  bool given; // the h before its first step

  int64_t end() const {
    return first + count;
  }
};

/**
 * All steps. The recurrence begins with the given h in the first sequence, or
 * with `reverse` in the last one; the computation runs `backward` in time.
 */
inline std::vector<Run>
runs_of(const Sequences& sequences, bool reverse, bool backward) {
  std::vector<Run> runs;
  int64_t last = sequences.last().end;
  for (int64_t t = 0; t < sequences.steps;) {
    Sequence own = sequences.of(t);
    int64_t end = own.exists() ? own.end : t + 1;
    bool given = reverse ? end == last : own.index == 0;
    runs.push_back({t, end - t, own.exists(), own.exists() && given});
    t = end;
  }
  if (backward) {
    std::reverse(runs.begin(), runs.end());
    for (Run& run : runs) {
      run.first = sequences.steps - run.end();
    }
  }
  return runs;
}

/** Call each(run, first, last) for the parts of the runs in some steps. */
template <typename F>
void each_run(const std::vector<Run>& runs, int64_t from, int64_t to, F each) {
  auto run = std::upper_bound(
      runs.begin(), runs.end(), from, [](int64_t step, const Run& run) {
        return step < run.end();
      });
  for (; run != runs.end() && run->first < to; ++run) {
    each(*run, std::max(run->first, from), std::min(run->end(), to));
  }
}

template <typename T>
void clear(Rows<T> rows, int64_t steps, int64_t count) {
  for (int64_t t = 0; t < steps; ++t) {
    std::fill_n(rows.data + t * rows.stride, count, T(0));
  }
}

} // namespace recurrence

/** h_t = a_t h_{t-1} + b_t; with `reverse` from the last step to the first. */
template <typename T>
void linear_recurrence(
    In<T> a,
    In<T> b,
    In<T> initial,
    In<int32_t> cu_seqlens,
    int axis,
    bool reverse,
    Out<T> out) {
  using namespace recurrence;
  using A = accum_t<T>;
  Layout layout(b.shape, axis, reverse);
  auto runs = runs_of({cu_seqlens, layout.steps}, reverse, reverse);
  layout.share([&](int64_t first, int64_t count) {
    A state[block] = {};
    const T zeros[block] = {};
    auto run_steps = [&](auto... args) {
      mlxgen::multiversion([&] { forward_here<T, A>(args...); });
    };
    // The steps from t to `end`, whose rows begin with that of t.
    auto go = [&](int64_t t,
                  int64_t end,
                  Rows<const T> factor,
                  Rows<const T> term,
                  Rows<T> to) {
      each_run(runs, t, end, [&](const Run& run, int64_t i, int64_t last) {
        if (i == run.first) {
          std::fill_n(state, count, A(0));
          if (run.given && initial) {
            std::copy_n(initial.data + first, count, state);
          }
        }
        if (!run.exists) {
          clear(to.from(i - t), last - i, count);
          return;
        }
        int64_t next = i;
        if (cu_seqlens && i == run.first && !(run.given && initial)) {
          // The factor belongs to a state of zeros.
          run_steps(
              int64_t(1),
              count,
              Rows<const T>{zeros, 0},
              term.from(i - t),
              state,
              to.from(i - t));
          ++next;
        }
        run_steps(
            last - next,
            count,
            factor.from(next - t),
            term.from(next - t),
            state,
            to.from(next - t));
      });
    };
    if (!layout.in_tiles()) {
      go(0,
         layout.steps,
         layout.rows(a.data, first),
         layout.rows(b.data, first),
         layout.rows(out.data, first));
      return;
    }
    Tile<T> factor, term, to;
    for (int64_t t = 0; t < layout.steps; t += tile_steps) {
      int64_t steps = std::min(tile_steps, layout.steps - t);
      go(t,
         t + steps,
         factor.read(layout, a.data, first, count, t, steps),
         term.read(layout, b.data, first, count, t, steps),
         to.rows());
      to.write(layout, out.data, first, count, t, steps);
    }
  });
}

/**
 * The gradients; `reverse` is that of the recurrence and `h` its result. Let
 * G_t be the gradient with respect to h_t including all later steps of the
 * sequence. Then
 *
 *   G_t = cotangent_t + a_{t+1} G_{t+1},  grad_b_t = G_t,
 *   grad_a_t = G_t h_{t-1}.
 */
template <typename T>
void linear_recurrence_vjp(
    In<T> a,
    In<T> h,
    In<T> initial,
    In<int32_t> cu_seqlens,
    In<T> cotangent,
    int axis,
    bool reverse,
    Out<T> grad_a,
    Out<T> grad_b,
    Out<T> grad_initial) {
  using namespace recurrence;
  using A = accum_t<T>;
  Layout layout(h.shape, axis, !reverse);
  auto runs = runs_of({cu_seqlens, layout.steps}, reverse, !reverse);
  layout.share([&](int64_t first, int64_t count) {
    A state[block] = {};
    T start[block] = {}; // h before the first step, which is the last one here
    if (initial) {
      std::copy_n(initial.data + first, count, start);
    }
    std::fill_n(grad_initial.data + first, count, T(0));
    auto run_steps = [&](auto... args) {
      mlxgen::multiversion([&] { backward_here<T, A>(args...); });
    };
    // The steps from t to `end`, whose rows begin with that of t; those of
    // `known` with the h of the next step.
    auto go = [&](int64_t t,
                  int64_t end,
                  Rows<const T> factor,
                  Rows<const T> known,
                  Rows<const T> g,
                  Rows<T> to_a,
                  Rows<T> to_b) {
      each_run(runs, t, end, [&](const Run& run, int64_t i, int64_t last) {
        if (i == run.first) {
          std::fill_n(state, count, A(0));
        }
        if (!run.exists) {
          clear(to_a.from(i - t), last - i, count);
          clear(to_b.from(i - t), last - i, count);
          return;
        }
        int64_t final = last == run.end() ? last - 1 : last;
        run_steps(
            final - i,
            count,
            factor.from(i - t),
            known.from(i - t),
            g.from(i - t),
            state,
            to_a.from(i - t),
            to_b.from(i - t));
        if (final == last) {
          return;
        }
        run_steps(
            int64_t(1),
            count,
            factor.from(final - t),
            Rows<const T>{start, 0},
            g.from(final - t),
            state,
            to_a.from(final - t),
            to_b.from(final - t));
        if (run.given) {
          std::transform(
              state, state + count, grad_initial.data + first, [](A x) {
                return static_cast<T>(x);
              });
        }
        if (cu_seqlens && !(run.given && initial)) {
          clear(to_a.from(final - t), 1, count);
        }
      });
    };
    if (!layout.in_tiles()) {
      go(0,
         layout.steps,
         layout.rows(a.data, first),
         layout.rows(h.data, first).from(1),
         layout.rows(cotangent.data, first),
         layout.rows(grad_a.data, first),
         layout.rows(grad_b.data, first));
      return;
    }
    Tile<T> factor, value, g, to_a, to_b;
    for (int64_t t = 0; t < layout.steps; t += tile_steps) {
      int64_t steps = std::min(tile_steps, layout.steps - t);
      int64_t known = std::min(steps, layout.steps - t - 1);
      if (known > 0) {
        value.read(layout, h.data, first, count, t + 1, known);
      }
      go(t,
         t + steps,
         factor.read(layout, a.data, first, count, t, steps),
         Rows<const T>{value.values, tile_channels},
         g.read(layout, cotangent.data, first, count, t, steps),
         to_a.rows(),
         to_b.rows());
      to_a.write(layout, grad_a.data, first, count, t, steps);
      to_b.write(layout, grad_b.data, first, count, t, steps);
    }
  });
}

} // namespace mlxops::cpu
