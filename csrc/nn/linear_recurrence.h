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

} // namespace recurrence

/** h_t = a_t h_{t-1} + b_t; with `reverse` from the last step to the first. */
template <typename T>
void linear_recurrence(
    In<T> a,
    In<T> b,
    In<T> initial,
    int axis,
    bool reverse,
    Out<T> out) {
  using namespace recurrence;
  using A = accum_t<T>;
  Layout layout(b.shape, axis, reverse);
  auto run = [](auto... args) {
    mlxgen::multiversion([&] { forward_here<T, A>(args...); });
  };
  layout.share([&](int64_t first, int64_t count) {
    A state[block] = {};
    if (initial) {
      std::copy_n(initial.data + first, count, state);
    }
    if (!layout.in_tiles()) {
      run(layout.steps,
          count,
          layout.rows(a.data, first),
          layout.rows(b.data, first),
          state,
          layout.rows(out.data, first));
      return;
    }
    Tile<T> factor, term, to;
    for (int64_t t = 0; t < layout.steps; t += tile_steps) {
      int64_t steps = std::min(tile_steps, layout.steps - t);
      run(steps,
          count,
          factor.read(layout, a.data, first, count, t, steps),
          term.read(layout, b.data, first, count, t, steps),
          state,
          to.rows());
      to.write(layout, out.data, first, count, t, steps);
    }
  });
}

/**
 * The gradients; `reverse` is that of the recurrence and `h` its result. Let
 * G_t be the gradient with respect to h_t including all later steps. Then
 *
 *   G_t = cotangent_t + a_{t+1} G_{t+1},  grad_b_t = G_t,
 *   grad_a_t = G_t h_{t-1}.
 */
template <typename T>
void linear_recurrence_vjp(
    In<T> a,
    In<T> h,
    In<T> initial,
    In<T> cotangent,
    int axis,
    bool reverse,
    Out<T> grad_a,
    Out<T> grad_b,
    Out<T> grad_initial) {
  using namespace recurrence;
  using A = accum_t<T>;
  Layout layout(h.shape, axis, !reverse);
  auto run = [](auto... args) {
    mlxgen::multiversion([&] { backward_here<T, A>(args...); });
  };
  layout.share([&](int64_t first, int64_t count) {
    A state[block] = {};
    T start[block] = {}; // h before the first step, which is the last one here
    if (initial) {
      std::copy_n(initial.data + first, count, start);
    }
    Rows<const T> at_start{start, 0};
    if (!layout.in_tiles()) {
      int64_t most = layout.steps - 1;
      auto factor = layout.rows(a.data, first);
      auto known = layout.rows(h.data, first);
      auto g = layout.rows(cotangent.data, first);
      auto to_a = layout.rows(grad_a.data, first);
      auto to_b = layout.rows(grad_b.data, first);
      if (most >= 0) {
        run(most, count, factor, known.from(1), g, state, to_a, to_b);
        run(int64_t(1),
            count,
            factor.from(most),
            at_start,
            g.from(most),
            state,
            to_a.from(most),
            to_b.from(most));
      }
    } else {
      Tile<T> factor, value, g, to_a, to_b;
      for (int64_t t = 0; t < layout.steps; t += tile_steps) {
        int64_t steps = std::min(tile_steps, layout.steps - t);
        int64_t known = std::min(steps, layout.steps - t - 1);
        if (known > 0) {
          value.read(layout, h.data, first, count, t + 1, known);
        }
        if (known < steps) {
          std::copy_n(start, count, value.rows().from(known).data);
        }
        run(steps,
            count,
            factor.read(layout, a.data, first, count, t, steps),
            Rows<const T>{value.values, tile_channels},
            g.read(layout, cotangent.data, first, count, t, steps),
            state,
            to_a.rows(),
            to_b.rows());
        to_a.write(layout, grad_a.data, first, count, t, steps);
        to_b.write(layout, grad_b.data, first, count, t, steps);
      }
    }
    std::transform(state, state + count, grad_initial.data + first, [](A x) {
      return static_cast<T>(x);
    });
  });
}

} // namespace mlxops::cpu
