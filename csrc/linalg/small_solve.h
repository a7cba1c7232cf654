// CPU kernels that solve small systems of equations.

#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "lanes.h"

namespace mlxops::cpu {

namespace lanes {

/** Raise an error: a pivot is 0. */
[[noreturn]] inline void raise_singular(int step) {
  throw std::runtime_error(
      "failed with error code " + std::to_string(step) +
      ": a matrix is singular, its pivot " + std::to_string(step) + " is 0.");
}

MLXGEN_BEGIN_INLINED

/** x = the solution of l x = x for `columns` columns; `unit`: ones on the
 * diagonal of l. */
template <typename V>
inline void
substitute_down(const V* l, int n, bool unit, V* __restrict x, int columns) {
  for (int k = 0; k < n; ++k) {
    V* solved = x + k * columns;
    for (int c = 0; c < columns && !unit; ++c) {
      solved[c] /= l[k * n + k];
    }
    for (int i = k + 1; i < n; ++i) {
      const V factor = l[i * n + k];
      for (int c = 0; c < columns; ++c) {
        x[i * columns + c] -= factor * solved[c];
      }
    }
  }
}

/** x = the solution of u x = x. */
template <typename V>
inline void substitute_up(const V* u, int n, V* __restrict x, int columns) {
  for (int k = n - 1; k >= 0; --k) {
    V* solved = x + k * columns;
    for (int c = 0; c < columns; ++c) {
      solved[c] /= u[k * n + k];
    }
    for (int i = 0; i < k; ++i) {
      const V factor = u[i * n + k];
      for (int c = 0; c < columns; ++c) {
        x[i * columns + c] -= factor * solved[c];
      }
    }
  }
}

/** The first diagonal element that is 0, counted from 1, or 0. */
template <typename T, typename V>
inline int first_zero(const V* a, int n) {
  for (int k = 0; k < n; ++k) {
    const T* pivot = reinterpret_cast<const T*>(a + k * n + k);
    for (int lane = 0; lane < width<T, V>; ++lane) {
      if (pivot[lane] == 0) {
        return k + 1;
      }
    }
  }
  return 0;
}

/**
 * The LU factorization in place, with the pivots of LAPACK. Row i of the
 * factors of a lane is row order[i * width + lane] of its matrix.
 */
template <typename T, typename V>
inline void factor(V* a, int n, int* order) {
  constexpr int w = width<T, V>;
  T* at = reinterpret_cast<T*>(a);
  for (int i = 0; i < n * w; ++i) {
    order[i] = i / w;
  }
  alignas(vector_bytes) T largest[w];
  int pivot[w];
  for (int k = 0; k < n; ++k) {
    for (int lane = 0; lane < w; ++lane) {
      largest[lane] = std::abs(at[(k * n + k) * w + lane]);
      pivot[lane] = k;
    }
    for (int i = k + 1; i < n; ++i) {
      for (int lane = 0; lane < w; ++lane) {
        T size = std::abs(at[(i * n + k) * w + lane]);
        bool larger = size > largest[lane];
        pivot[lane] = larger ? i : pivot[lane];
        largest[lane] = larger ? size : largest[lane];
      }
    }
    for (int lane = 0; lane < w; ++lane) {
      int p = pivot[lane];
      if (p != k) {
        std::swap(order[k * w + lane], order[p * w + lane]);
        T* one = at + k * n * w + lane;
        T* other = at + p * n * w + lane;
        for (int j = 0; j < n; ++j) {
          std::swap(one[j * w], other[j * w]);
        }
      }
    }
    const V* row = a + k * n;
    for (int i = k + 1; i < n; ++i) {
      V* __restrict below = a + i * n;
      const V quotient = below[k] / row[k];
      below[k] = quotient;
      for (int j = k + 1; j < n; ++j) {
        below[j] -= quotient * row[j];
      }
    }
  }
}

MLXGEN_END_INLINED

constexpr int block = 16; // columns of b at a time

template <typename T>
struct Triangle {
  const T* a;
  const T* b;
  T* to;
  int n;
  int columns;
  bool upper;
  std::atomic<int>* singular;

  template <typename V>
  void operator()(int64_t first, int64_t count) const {
    alignas(vector_bytes) V matrix[most * most], x[most * block];
    const int64_t size = int64_t(n) * n, size_b = int64_t(n) * columns;
    load<T>(a + first * size, count, size, n, 1, n, n, matrix);
    if (int found = first_zero<T>(matrix, n)) {
      singular->store(found);
      return;
    }
    for (int c = 0; c < columns; c += block) {
      const int some = std::min(block, columns - c);
      const int64_t start = first * size_b + c;
      load<T>(b + start, count, size_b, columns, 1, n, some, x);
      if (upper) {
        substitute_up(matrix, n, x, some);
      } else {
        substitute_down(matrix, n, false, x, some);
      }
      store<T>(x, count, size_b, columns, 1, n, some, to + start);
    }
  }
};

template <typename T>
struct Solve {
  const T* a;
  const T* b;
  T* to;
  int n;
  int columns;
  std::atomic<int>* singular;

  template <typename V>
  void operator()(int64_t first, int64_t count) const {
    constexpr int w = width<T, V>;
    alignas(vector_bytes) V matrix[most * most], x[most * block];
    int order[most * w];
    const int64_t size = int64_t(n) * n, size_b = int64_t(n) * columns;
    load<T>(a + first * size, count, size, n, 1, n, n, matrix);
    factor<T>(matrix, n, order);
    if (int found = first_zero<T>(matrix, n)) {
      singular->store(found);
      return;
    }
    T* at = reinterpret_cast<T*>(x);
    for (int c = 0; c < columns; c += block) {
      const int some = std::min(block, columns - c);
      const int64_t start = first * size_b + c;
      for (int lane = 0; lane < w; ++lane) {
        const T* from = b + start + (lane < count ? lane : 0) * size_b;
        for (int i = 0; i < n; ++i) {
          const T* row = from + int64_t(order[i * w + lane]) * columns;
          for (int j = 0; j < some; ++j) {
            at[(i * some + j) * w + lane] = row[j];
          }
        }
      }
      substitute_down(matrix, n, true, x, some);
      substitute_up(matrix, n, x, some);
      store<T>(x, count, size_b, columns, 1, n, some, to + start);
    }
  }
};

} // namespace lanes

/** The solution of a x = b, for triangular matrices a. */
template <typename T>
void solve_small_triangle(In<T> a, In<T> b, bool upper, Out<T> out) {
  int n = static_cast<int>(a.dim(-1)), columns = static_cast<int>(b.dim(-1));
  if (b.size() == 0) {
    return;
  }
  std::atomic<int> singular = 0;
  lanes::Triangle<T> kernel{
      a.data, b.data, out.data, n, columns, upper, &singular};
  lanes::share<T>(a.size() / (n * n), n * n * (columns + 2), kernel);
  if (singular != 0) {
    lanes::raise_singular(singular);
  }
}

/** The solution of a x = b. */
template <typename T>
void solve_small(In<T> a, In<T> b, Out<T> out) {
  int n = static_cast<int>(a.dim(-1)), columns = static_cast<int>(b.dim(-1));
  if (b.size() == 0) {
    return;
  }
  std::atomic<int> singular = 0;
  lanes::Solve<T> kernel{a.data, b.data, out.data, n, columns, &singular};
  lanes::share<T>(a.size() / (n * n), n * n * (n + 2 * columns + 4), kernel);
  if (singular != 0) {
    lanes::raise_singular(singular);
  }
}

} // namespace mlxops::cpu
