// Softmax over the words of a vocabulary, for CPU kernels of losses: rows are
// so long that they are gone through in blocks, of numbers in the type in which
// they are computed.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "../reduce.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/simd_math.h"

namespace mlxops::cpu {

// How many elements of a row are widened at a time: they stay in the
// first-level cache.
constexpr int64_t block_of_row = 1024;

namespace block {

template <typename A, typename T>
MLXGEN_MULTIVERSION void widen_here(const T* from, int64_t n, A scale, A* to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<A>(mlxgen::widen(from[i])) * scale;
  }
}

template <typename A, typename T>
MLXGEN_MULTIVERSION void narrow_here(const A* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) {
    mlxgen::narrow(from[i], to[i]);
  }
}

template <typename A>
MLXGEN_MULTIVERSION void softcap_here(A* z, int64_t n, A cap) {
  for (int64_t i = 0; i < n; ++i) {
    z[i] = cap * mlxgen::math::tanh(z[i] / cap);
  }
}

template <typename A>
MLXGEN_MULTIVERSION A largest_here(const A* z, int64_t n) {
  constexpr int lanes = 32;
  A largest[lanes];
  std::fill_n(largest, lanes, -std::numeric_limits<A>::infinity());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) {
      largest[j] = z[i + j] > largest[j] ? z[i + j] : largest[j];
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    largest[j] = std::max(largest[j], z[i]);
  }
  return *std::max_element(largest, largest + lanes);
}

template <typename A>
MLXGEN_MULTIVERSION void exp_here(const A* z, int64_t n, A shift, A* to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = mlxgen::math::exp(z[i] - shift);
  }
}

template <typename A>
MLXGEN_MULTIVERSION A sum_here(const A* z, int64_t n) {
  return sum_over<A>(n, [=](int64_t i) { return z[i]; });
}

template <typename A>
MLXGEN_MULTIVERSION A dot_here(const A* x, const A* y, int64_t n) {
  return sum_over<A>(n, [=](int64_t i) { return x[i] * y[i]; });
}

} // namespace block

/** to = scale * from, in the type of `to`. */
template <typename A, typename T>
void widen_block(const T* from, int64_t n, A* to, A scale = 1) {
  mlxgen::multiversion([&] { block::widen_here(from, n, scale, to); });
}

/** to = from, rounded to the type of `to`. */
template <typename A, typename T>
void narrow_block(const A* from, int64_t n, T* to) {
  mlxgen::multiversion([&] { block::narrow_here(from, n, to); });
}

/** z = cap tanh(z / cap), unless cap is 0. */
template <typename A>
void softcap_block(A* z, int64_t n, A cap) {
  if (cap != 0) {
    mlxgen::multiversion([&] { block::softcap_here(z, n, cap); });
  }
}

/** to = exp(z - shift). */
template <typename A>
void exp_block(const A* z, int64_t n, A shift, A* to) {
  mlxgen::multiversion([&] { block::exp_here(z, n, shift, to); });
}

template <typename A>
A sum_block(const A* z, int64_t n) {
  return mlxgen::multiversion([&] { return block::sum_here(z, n); });
}

template <typename A>
A dot_block(const A* x, const A* y, int64_t n) {
  return mlxgen::multiversion([&] { return block::dot_here(x, y, n); });
}

/**
 * The logarithm of a sum of exponentials, block by block: Milakov and
 * Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
 */
template <typename A>
struct LogSumExp {
  A most = -std::numeric_limits<A>::infinity();
  A sum = 0;

  /** What exponents are taken relative to: never infinite where they are not.
   */
  A shift() const {
    return most == -std::numeric_limits<A>::infinity() ? A(0) : most;
  }

  /**
   * Take in a block; `to`, which may be the same, has the exponentials
   * afterwards, relative to shift(). Returns what earlier ones are to be
   * multiplied by.
   */
  A add(const A* z, int64_t n, A* to) {
    A before = most;
    most = std::max(
        most, mlxgen::multiversion([&] { return block::largest_here(z, n); }));
    exp_block(z, n, shift(), to);
    A scale = std::exp(before - shift());
    sum = sum * scale + sum_block(to, n);
    return scale;
  }

  /** Take in what another one has. */
  void join(const LogSumExp& other) {
    A before = most;
    most = std::max(most, other.most);
    sum = sum * std::exp(before - shift()) +
        other.sum * std::exp(other.most - shift());
  }

  A value() const {
    return shift() + std::log(sum);
  }
};

} // namespace mlxops::cpu
