// Many small matrices at once: an element of a vector belongs to one matrix, so
// that an algorithm for a matrix, written for a type V of numbers, computes as
// many matrices as a vector has elements. A single matrix is computed with
// V = T, where the loops over rows vectorize.
//
//   template <typename T>
//   struct Kernel {
//     template <typename V>
//     void operator()(int64_t first, int64_t count) const;
//   };
//   share_lanes<T>(matrices, cost, kernel);

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "nn/vectors.h"

namespace mlxops::cpu {

using mlxgen::In;
using mlxgen::Out;

namespace lanes {

constexpr int most = 32; // rows and columns of the matrices

MLXGEN_BEGIN_INLINED

/** The number of matrices that V computes. */
template <typename T, typename V>
constexpr int width = sizeof(V) / sizeof(T);

template <typename T, typename V>
inline void square_root(V& x) {
  T* at = reinterpret_cast<T*>(&x);
  for (int i = 0; i < width<T, V>; ++i) {
    at[i] = std::sqrt(at[i]);
  }
}

/** All elements of x are `value`. */
template <typename T, typename V>
inline void set(V& x, T value) {
  x = V{} + value;
}

/** Whether a matrix has a number that is not 0 in x. */
template <typename T, typename V>
inline bool any(const V& x) {
  const T* at = reinterpret_cast<const T*>(&x);
  bool found = false;
  for (int i = 0; i < width<T, V>; ++i) {
    found |= at[i] != 0;
  }
  return found;
}

// Powers of 2 by their exponents: products with them are exact.

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
constexpr int bias = std::numeric_limits<T>::max_exponent - 1;

/** The exponent of x; -bias for 0 and subnormal numbers. */
template <typename T>
inline int exponent_of(T x) {
  constexpr int digits = std::numeric_limits<T>::digits - 1;
  auto bits = std::bit_cast<BitsOf<T>>(x) >> digits;
  return static_cast<int>(bits & (2 * bias<T> + 1)) - bias<T>;
}

/** 2 to a power from 1 - bias to bias. */
template <typename T>
inline T power_of_two(int power) {
  constexpr int digits = std::numeric_limits<T>::digits - 1;
  return std::bit_cast<T>(BitsOf<T>(power + bias<T>) << digits);
}

/** x = a power of 2 close to 1 / x. */
template <typename T, typename V>
inline void reciprocal_power(V& x) {
  T* at = reinterpret_cast<T*>(&x);
  for (int lane = 0; lane < width<T, V>; ++lane) {
    at[lane] = power_of_two<T>(std::max(-exponent_of(at[lane]), 1 - bias<T>));
  }
}

constexpr int margin = 16; // of exponents, for sums

/**
 * x = powers of 2 to multiply numbers of the size of x with. Return true if one
 * of them is not 1. Tiny numbers, which lose digits in products, become about
 * 1. Numbers close to the largest one become smaller, so that sums do not
 * overflow, but not by much, so that smaller numbers next to them stay
 * accurate.
 */
template <typename T, typename V>
inline bool find_scale(V& x) {
  T* at = reinterpret_cast<T*>(&x);
  bool needed = false;
  for (int lane = 0; lane < width<T, V>; ++lane) {
    const int size = exponent_of(at[lane]);
    const int up = size < -bias<T> / 3 ? -size : 0;
    const int power = size > bias<T> - margin ? -margin : up;
    needed |= power != 0;
    at[lane] = power_of_two<T>(power);
  }
  return needed;
}

template <typename V>
inline void absolute(V& x) {
  x = x < 0 ? -x : x;
}

/** bad += 0 for each of `count` numbers that is finite, NaN for others. */
template <typename T, typename V>
inline void find_bad(const V* x, int64_t count, V& bad) {
  for (int64_t i = 0; i < count; ++i) {
    bad += x[i] - x[i];
  }
}

/**
 * Add the absolute values of `count` numbers to `size`, which may overflow.
 * `bad` becomes NaN if a number is not finite.
 */
template <typename T, typename V>
inline void survey(const V* x, int count, V& size, V& bad) {
  constexpr int several = width<T, V> == 1 ? 16 : 4; // sums at a time
  V sums[several] = {};
  int i = 0;
  for (; i + several <= count; i += several) {
    for (int k = 0; k < several; ++k) {
      V number = x[i + k];
      absolute(number);
      sums[k] += number;
    }
  }
  for (; i < count; ++i) {
    V number = x[i];
    absolute(number);
    size += number;
  }
  for (int k = 0; k < several; ++k) {
    size += sums[k];
  }
  V excess = size - size;
  if (any<T>(excess)) {
    find_bad<T>(x, count, bad);
  }
}

/**
 * to[i * columns + j] = the elements (i, j) of `count` matrices, which are at
 * from + lane * size + i * row + j * column. The first matrix fills lanes that
 * have none.
 */
template <typename T, typename V>
inline void load(
    const T* from,
    int64_t count,
    int64_t size,
    int64_t row,
    int64_t column,
    int rows,
    int columns,
    V* to) {
  constexpr int w = width<T, V>;
  T* at = reinterpret_cast<T*>(to);
  for (int lane = 0; lane < w; ++lane) {
    const T* matrix = from + (lane < count ? lane : 0) * size;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        at[(int64_t(i) * columns + j) * w + lane] =
            matrix[i * row + j * column];
      }
    }
  }
}

/** The inverse of load. */
template <typename T, typename V>
inline void store(
    const V* from,
    int64_t count,
    int64_t size,
    int64_t row,
    int64_t column,
    int rows,
    int columns,
    T* to) {
  constexpr int w = width<T, V>;
  const T* at = reinterpret_cast<const T*>(from);
  for (int lane = 0; lane < count; ++lane) {
    T* matrix = to + lane * size;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        matrix[i * row + j * column] =
            at[(int64_t(i) * columns + j) * w + lane];
      }
    }
  }
}

/** Call kernel<V>(first, count) for matrices [first, last), few at a time. */
template <typename T, int bytes, typename F>
inline void groups(const F& kernel, int64_t first, int64_t last) {
  using V = typename Vectors<T, bytes>::type;
  constexpr int64_t w = width<T, V>;
  for (; last - first > w / 4; first += w) {
    MLXGEN_INLINED_CALL kernel.template operator()<V>(
        first, std::min(w, last - first));
  }
  for (; first < last; ++first) {
    MLXGEN_INLINED_CALL kernel.template operator()<T>(first, 1);
  }
}

MLXGEN_END_INLINED

/** Call kernel<V>(first, count) for all matrices, on all cores. */
template <typename T, typename F>
void share(int64_t matrices, int64_t cost, const F& kernel) {
  constexpr int64_t chunk = vector_bytes / sizeof(T);
  mlxgen::share(
      (matrices + chunk - 1) / chunk,
      cost * chunk,
      [&](int64_t first, int64_t last) {
        with_vectors([&]<int bytes>() {
          MLXGEN_INLINED_CALL groups<T, bytes>(
              kernel, first * chunk, std::min(last * chunk, matrices));
        });
      });
}

} // namespace lanes
} // namespace mlxops::cpu
