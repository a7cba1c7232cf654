// CPU kernels that solve small systems of equations.

#pragma once

#include <atomic>
#include <utility>

#include "lanes.h"
#include "singular.h"

namespace mlxops::cpu {

namespace lanes {

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

/** The first diagonal element that is 0, counted from 1, or 0. Matrices for
 * which `bad` is NaN do not count. */
template <typename T, typename V>
inline int first_zero(const V* a, int n, const V& bad) {
  const T* unknown = reinterpret_cast<const T*>(&bad);
  for (int k = 0; k < n; ++k) {
    const T* pivot = reinterpret_cast<const T*>(a + k * n + k);
    for (int lane = 0; lane < width<T, V>; ++lane) {
      if (pivot[lane] == 0 && unknown[lane] == 0) {
        return k + 1;
      }
    }
  }
  return 0;
}

constexpr int block = 16; // columns of b at a time

/** Powers of 2: those of the matrices a, and of columns of b. */
template <typename T, typename V>
struct Scales {
  V a;
  V first[block]; // the two factors of a column of the solution
  V second[block];
  bool a_scaled;
  bool scaled;

  /** Multiply the matrices, whose sums of absolute values are in a. */
  inline void scale(V* matrix, int count) {
    a_scaled = find_scale<T>(a);
    for (int i = 0; i < count && a_scaled; ++i) {
      matrix[i] *= a;
    }
  }

  /** Multiply columns of b, and find the factors of their solutions. */
  inline void scale_columns(V* x, int n, int columns) {
    for (int c = 0; c < columns; ++c) {
      set<T>(first[c], T(0));
    }
    for (int i = 0; i < n; ++i) {
      for (int c = 0; c < columns; ++c) {
        V number = x[i * columns + c];
        absolute(number);
        first[c] += number;
      }
    }
    scaled = a_scaled;
    for (int c = 0; c < columns; ++c) {
      scaled |= find_scale<T>(first[c]);
    }
    for (int i = 0; i < n && scaled; ++i) {
      for (int c = 0; c < columns; ++c) {
        x[i * columns + c] *= first[c];
      }
    }
    const T* up = reinterpret_cast<const T*>(&a);
    for (int c = 0; c < columns && scaled; ++c) {
      T* one = reinterpret_cast<T*>(first + c);
      T* other = reinterpret_cast<T*>(second + c);
      for (int lane = 0; lane < width<T, V>; ++lane) {
        const int power = exponent_of(up[lane]) - exponent_of(one[lane]);
        one[lane] = power_of_two<T>(power / 2);
        other[lane] = power_of_two<T>(power - power / 2);
      }
    }
  }

  /** Multiply the solutions; those of matrices that are not finite are NaN. */
  inline void finish(V* x, int n, int columns, const V& bad) const {
    const bool unknown = any<T>(bad);
    for (int i = 0; i < n && (scaled || unknown); ++i) {
      for (int c = 0; c < columns; ++c) {
        V& number = x[i * columns + c];
        number = (scaled ? number * first[c] * second[c] : number) + bad;
      }
    }
  }
};

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
    Scales<T, V> scales;
    V bad;
    set<T>(bad, T(0));
    scales.a = bad;
    for (int i = 0; i < n; ++i) { // the triangle that is read
      const V* row = matrix + i * n;
      survey<T>(upper ? row + i : row, upper ? n - i : i + 1, scales.a, bad);
    }
    if (int found = first_zero<T>(matrix, n, bad)) {
      singular->store(found);
      return;
    }
    scales.scale(matrix, n * n);
    for (int c = 0; c < columns; c += block) {
      const int some = std::min(block, columns - c);
      const int64_t start = first * size_b + c;
      load<T>(b + start, count, size_b, columns, 1, n, some, x);
      scales.scale_columns(x, n, some);
      if (upper) {
        substitute_up(matrix, n, x, some);
      } else {
        substitute_down(matrix, n, false, x, some);
      }
      scales.finish(x, n, some, bad);
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
    Scales<T, V> scales;
    V bad;
    set<T>(bad, T(0));
    scales.a = bad;
    survey<T>(matrix, n * n, scales.a, bad);
    scales.scale(matrix, n * n);
    factor<T>(matrix, n, order);
    if (int found = first_zero<T>(matrix, n, bad)) {
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
      scales.scale_columns(x, n, some);
      substitute_down(matrix, n, true, x, some);
      substitute_up(matrix, n, x, some);
      scales.finish(x, n, some, bad);
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
    linalg::raise_singular(singular);
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
    linalg::raise_singular(singular);
  }
}

} // namespace mlxops::cpu
