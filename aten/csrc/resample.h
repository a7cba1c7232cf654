// CPU kernels of resampling and average pooling along one axis: sums of inputs
// with the weights of taps.h, and the transposed map, which is the gradient.

#pragma once

#include <algorithm>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"
#include "taps.h"

namespace mlx_aten {
namespace cpu {

/** The taps of all outputs of an axis, computed once for all rows. */
template <typename A>
struct TapTable {
  struct Tap {
    int input;
    int output;
    A weight;
  };
  std::vector<Tap> taps;

  explicit TapTable(const TapAxis<A>& axis) {
    for (int j = 0; j < axis.size; ++j) {
      Taps<A> found = axis.weighted(j);
      for (int k = 0; k < found.count; ++k) {
        taps.push_back({axis.input(found, k), j, axis.weight(found, k)});
      }
    }
  }

  /** Call each(i, j, weight) for every input i of every output j. */
  template <typename F>
  void for_each(F each) const {
    for (const Tap& tap : taps) {
      each(tap.input, tap.output, tap.weight);
    }
  }
};

/** to[k] += weight * from[k] */
template <typename T, typename A>
void add_scaled(const T* from, A weight, A* to, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    to[k] += weight * static_cast<A>(from[k]);
  }
}

/** Call part(row) for the rows of an array, whose outputs are zero-filled. */
template <typename A, typename F>
void for_rows(int64_t rows, int64_t cost, Out<A> out, F part) {
  int64_t width = rows > 0 ? out.size() / rows : 0;
  mlxgen::share(rows, cost, [&](int64_t first, int64_t last) {
    std::fill_n(out.data + first * width, (last - first) * width, A(0));
    for (int64_t row = first; row < last; ++row) {
      part(row);
    }
  });
}

template <typename T>
void resample(
    In<T> x,
    int size,
    int mode,
    double scale,
    bool align_corners,
    int kernel_size,
    int stride,
    int padding,
    Out<accum_t<T>> out) {
  using A = accum_t<T>;
  if (out.size() == 0) {
    return; // the table of a large size takes long
  }
  int64_t length = x.dim(-2);
  int64_t inner = x.dim(-1);
  TapTable<A> table(
      {mode,
       int(length),
       size,
       A(scale),
       align_corners,
       kernel_size,
       stride,
       padding});
  int64_t rows = x.size() / std::max<int64_t>(length * inner, 1);
  int64_t cost = 2 * table.taps.size() * inner;
  for_rows(rows, cost, out, [&](int64_t row) {
    const T* from = x.data + row * length * inner;
    A* to = out.data + row * size * inner;
    table.for_each([&](int i, int j, A weight) {
      add_scaled(from + i * inner, weight, to + j * inner, inner);
    });
  });
}

template <typename T>
void resample_transposed(
    In<T> x,
    int length,
    int mode,
    double scale,
    bool align_corners,
    int kernel_size,
    int stride,
    int padding,
    Out<accum_t<T>> out) {
  using A = accum_t<T>;
  if (out.size() == 0) {
    return;
  }
  int64_t size = x.dim(-2);
  int64_t inner = x.dim(-1);
  TapTable<A> table(
      {mode,
       length,
       int(size),
       A(scale),
       align_corners,
       kernel_size,
       stride,
       padding});
  int64_t rows = x.size() / std::max<int64_t>(size * inner, 1);
  int64_t cost = 2 * table.taps.size() * inner;
  for_rows(rows, cost, out, [&](int64_t row) {
    const T* from = x.data + row * size * inner;
    A* to = out.data + row * length * inner;
    table.for_each([&](int i, int j, A weight) {
      add_scaled(from + j * inner, weight, to + i * inner, inner);
    });
  });
}

/** Sums of consecutive bytes, rounded: see rounded_taps.h. */
inline void byte_sums(
    In<uint8_t> x,
    In<int32_t> firsts,
    In<int32_t> weights,
    In<int32_t> bits,
    Out<uint8_t> out) {
  int64_t length = x.dim(-2);
  int64_t inner = x.dim(-1);
  int64_t size = firsts.size();
  int64_t taps = weights.dim(-1);
  int64_t rows = inner > 0 ? out.size() / inner : 0;
  mlxgen::share(rows, 2 * taps * inner, [&](int64_t first, int64_t last) {
    std::vector<int32_t> sums(inner);
    for (int64_t row = first; row < last; ++row) {
      int64_t j = row % size;
      const uint8_t* from = x.data + (row / size * length + firsts[j]) * inner;
      std::fill_n(sums.data(), inner, 1 << bits[j] >> 1);
      for (int64_t k = 0; k < taps; ++k) {
        add_scaled(from + k * inner, weights[j * taps + k], sums.data(), inner);
      }
      for (int64_t i = 0; i < inner; ++i) {
        out[row * inner + i] = uint8_t(std::clamp(sums[i] >> bits[j], 0, 255));
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
