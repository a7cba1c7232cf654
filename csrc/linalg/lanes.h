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
#include <cmath>
#include <cstdint>
#include <limits>

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
