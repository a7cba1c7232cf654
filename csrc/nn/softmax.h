// Softmax over the words of a vocabulary, for CPU kernels of losses. Rows are
// so long that they are processed in blocks, in the computing type.

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

// The number of a row's elements that are widened at a time: they stay in the
// first-level cache.
constexpr int64_t block_of_row = 1024;

namespace block {

template <bool shifted, typename A, typename T>
MLXGEN_MULTIVERSION void widen_here(const T* from, int64_t n, A base, A* to) {
  for (int64_t i = 0; i < n; ++i) {
    A wide = static_cast<A>(mlxgen::widen(from[i]));
    to[i] = shifted ? wide - base : wide;
  }
}

template <typename A, typename T>
MLXGEN_MULTIVERSION void narrow_here(const A* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) {
    mlxgen::narrow(static_cast<mlxgen::accum_t<T>>(from[i]), to[i]);
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
MLXGEN_MULTIVERSION void
exp_here(const A* z, int64_t n, A shift, A factor, A* to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = mlxgen::math::exp((z[i] - shift) * factor);
  }
}

template <typename A>
MLXGEN_MULTIVERSION A sum_here(const A* z, int64_t n) {
  return sum_over<A>(n, [=](int64_t i) { return z[i]; });
}

template <typename A>
MLXGEN_MULTIVERSION A shifted_sum_here(const A* z, int64_t n, A shift) {
  return sum_over<A>(n, [=](int64_t i) { return z[i] - shift; });
}

template <typename A>
MLXGEN_MULTIVERSION A
shifted_dot_here(const A* z, const A* weight, int64_t n, A shift) {
  return sum_over<A>(n, [=](int64_t i) {
    // g++ 12 with AVX2 compiles `weight[i] != 0 ? ... : 0` to wrong numbers.
    A term = (z[i] - shift) * weight[i];
    return weight[i] == 0 ? A(0) : term;
  });
}

/** The count of ones, and the sum of the other numbers, all of which are
 * smaller. */
template <typename A>
struct OnesAndOthers {
  A ones = 0;
  A others = 0;
};

template <typename A>
MLXGEN_MULTIVERSION OnesAndOthers<A> ones_and_others_here(
    const A* e,
    int64_t n) {
  constexpr int lanes = 32;
  A ones[lanes] = {};
  A others[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) {
      A one = static_cast<A>(e[i + j] >= 1); // gcc compiles `?` to a branch
      ones[j] += one;
      others[j] += e[i + j] - one;
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    A one = static_cast<A>(e[i] >= 1);
    ones[j] += one;
    others[j] += e[i] - one;
  }
  OnesAndOthers<A> sum;
  for (int j = 0; j < lanes; ++j) {
    sum.ones += ones[j];
    sum.others += others[j];
  }
  return sum;
}

} // namespace block

/** to = from - base, in the type of `to`. */
template <typename A, typename T>
void widen_block(const T* from, int64_t n, A* to, A base = 0) {
  mlxgen::multiversion([&] {
    base != 0 ? block::widen_here<true>(from, n, base, to)
              : block::widen_here<false>(from, n, base, to);
  });
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

/** to = exp((z - shift) factor). */
template <typename A>
void exp_block(const A* z, int64_t n, A shift, A factor, A* to) {
  mlxgen::multiversion([&] { block::exp_here(z, n, shift, factor, to); });
}

template <typename A>
A sum_block(const A* z, int64_t n) {
  return mlxgen::multiversion([&] { return block::sum_here(z, n); });
}

/**
 * The sum of z - shift, each times its weight if there are weights. Elements
 * with the weight 0 may be -inf.
 */
template <typename A>
A shifted_sum(const A* z, const A* weight, int64_t n, A shift) {
  return mlxgen::multiversion([&] {
    return weight != nullptr ? block::shifted_dot_here(z, weight, n, shift)
                             : block::shifted_sum_here(z, n, shift);
  });
}

/**
 * The logarithm of the sum of exp(factor z), block by block: Milakov and
 * Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
 *
 * The largest element and the logarithm of the sum relative to it are separate,
 * because their sum would lose the accuracy of the second if elements are
 * large. The sum omits the largest element's own exponential, 1, because the
 * others may be far below it.
 */
template <typename A>
struct LogSumExp {
  A factor = 1;
  A most = -std::numeric_limits<A>::infinity();
  A others = -1; // the sum of exponentials, less 1 for the largest element

  /** The reference of exponents: the largest element, or 0 if all are -inf. */
  A shift() const {
    return most == -std::numeric_limits<A>::infinity() ? A(0) : most;
  }

  /** The sum of exponentials relative to shift(). */
  A sum() const {
    return 1 + others;
  }

  /** The logarithm of the sum relative to shift(). */
  A log_sum() const {
    return std::log1p(others);
  }

  /** The exponential of a smaller element relative to shift(). */
  A scale_of(A before) const {
    return std::exp((before - shift()) * factor);
  }

  /**
   * Add a block; afterwards `to`, which may be the same memory, contains the
   * exponentials relative to shift(). Returns the factor for earlier
   * exponentials.
   */
  A add(const A* z, int64_t n, A* to) {
    A largest = mlxgen::multiversion([&] { return block::largest_here(z, n); });
    bool raised = largest > most;
    A before = most;
    most = raised ? largest : most;
    exp_block(z, n, shift(), factor, to);
    auto of = mlxgen::multiversion(
        [&] { return block::ones_and_others_here(to, n); });
    if (!raised) {
      others += of.ones + of.others;
      return 1;
    }
    A scale = scale_of(before);
    others = sum() * scale + ((of.ones - 1) + of.others);
    return scale;
  }

  /** Add the results of another part. */
  void join(const LogSumExp& other) {
    bool raised = other.most > most;
    LogSumExp low = raised ? *this : other;
    *this = raised ? other : *this;
    others += low.sum() * scale_of(low.most);
  }
};

} // namespace mlxops::cpu
