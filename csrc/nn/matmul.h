// A product of matrices for CPU kernels that multiply blocks in the cache:
// attention, and losses over a vocabulary. MLX's own product requires whole
// arrays.
//
// As in Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008), blocks of both matrices are copied in the order in
// which they are read, and a tile of the result is accumulated in registers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "vectors.h"

namespace mlxops::cpu {

/** Element (i, j) is data[i * down + j * across]. */
template <typename T>
struct Matrix {
  const T* data;
  int64_t down;
  int64_t across = 1;

  Matrix transposed() const {
    return {data, across, down};
  }
  Matrix from(int64_t row, int64_t column) const {
    return {data + row * down + column * across, down, across};
  }
};

namespace product {

constexpr int tile_rows = 6;
constexpr int64_t block_rows = 96;
constexpr int64_t block_inner = 256;
constexpr int64_t block_columns = 256;

/**
 * A tile of the product, `vectors` vectors of `bytes` bytes wide, from `inner`
 * columns of `count` rows of a, or fewer than a tile has, and from `inner`
 * contiguous rows of b.
 */
template <typename A, int bytes, int vectors>
__attribute__((always_inline)) inline void
tile(int64_t inner, int64_t count, Matrix<A> a, const A* b, A* to) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A))));
  constexpr int lanes = bytes / sizeof(A);
  Vector sums[tile_rows][vectors] = {};
  const A* rows[tile_rows]; // missing rows are the last one
#pragma GCC unroll 8
  for (int64_t i = 0; i < tile_rows; ++i) {
    rows[i] = a.from(std::min(i, count - 1), 0).data;
  }
  for (int64_t p = 0; p < inner; ++p) {
    Vector row[vectors];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) {
      row[j] = *reinterpret_cast<const Vector*>(b + j * lanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < tile_rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) {
        sums[i][j] += rows[i][p * a.across] * row[j];
      }
    }
    b += vectors * lanes;
  }
#pragma GCC unroll 8
  for (int i = 0; i < tile_rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < vectors; ++j) {
      *reinterpret_cast<Vector*>(to + (i * vectors + j) * lanes) = sums[i][j];
    }
  }
}

/** tile() and its number of columns. */
template <typename A>
struct Tile {
  void (*compute)(int64_t inner, int64_t count, Matrix<A> a, const A* b, A* to);
  int64_t columns;
};

// Vectors of the processor's own size; g++ splits larger vectors badly.
#ifdef MLXGEN_AVX2
template <typename A>
__attribute__((target(MLXGEN_AVX512))) void
tile_avx512(int64_t inner, int64_t count, Matrix<A> a, const A* b, A* to) {
  tile<A, 64, 2>(inner, count, a, b, to);
}

template <typename A>
__attribute__((target(MLXGEN_AVX2))) void
tile_avx2(int64_t inner, int64_t count, Matrix<A> a, const A* b, A* to) {
  tile<A, 32, 2>(inner, count, a, b, to);
}
#endif

#ifdef __aarch64__
constexpr int vectors = 4; // of 32 registers
#else
constexpr int vectors = 2; // of 16
#endif

template <typename A>
Tile<A> best_tile() {
#ifdef MLXGEN_AVX2
  if (mlxgen::detail::has_avx512()) {
    return {tile_avx512<A>, 128 / sizeof(A)};
  }
  if (mlxgen::detail::has_avx2()) {
    return {tile_avx2<A>, 64 / sizeof(A)};
  }
#endif
  return {tile<A, 16, vectors>, 16 * vectors / sizeof(A)};
}

/** Transpose a square that consists of vectors of 16 bytes. */
template <typename A>
__attribute__((always_inline)) inline void
transpose(const A* from, int64_t down, A* to, int64_t to_down) {
  using V = Vectors<A, 16>;
  constexpr int half = V::count / 2;
  typename V::type rows[V::count], mixed[V::count];
#pragma GCC unroll 4
  for (int i = 0; i < V::count; ++i) {
    rows[i] = vector<16>(from + i * down);
  }
#pragma GCC unroll 2
  for (int step = 1; step < V::count; step *= 2) {
#pragma GCC unroll 2
    for (int i = 0; i < half; ++i) {
      auto x = rows[i], y = rows[i + half];
      if constexpr (half == 1) {
        mixed[2 * i] = __builtin_shufflevector(x, y, 0, 2);
        mixed[2 * i + 1] = __builtin_shufflevector(x, y, 1, 3);
      } else {
        mixed[2 * i] = __builtin_shufflevector(x, y, 0, 4, 1, 5);
        mixed[2 * i + 1] = __builtin_shufflevector(x, y, 2, 6, 3, 7);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < V::count; ++i) {
      rows[i] = mixed[i];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < V::count; ++i) {
    vector<16>(to + i * to_down) = rows[i];
  }
}

/**
 * Copy `count` lines of `inner` elements each, `width` lines at a time, with
 * the elements of the same index next to each other; missing lines are zeros.
 */
template <typename A, typename T>
MLXGEN_MULTIVERSION void pack_lines(
    int64_t count,
    int64_t inner,
    int64_t width,
    Matrix<T> lines,
    A* to) {
  for (int64_t first = 0; first < count; first += width) {
    int64_t there = std::min(width, count - first);
    int64_t p = 0;
    if constexpr (std::is_same_v<A, T>) {
      constexpr int64_t square = 16 / sizeof(A);
      bool whole = there == width && width % square == 0 && lines.across == 1;
      for (; whole && p + square <= inner; p += square) {
        for (int64_t i = 0; i < width; i += square) {
          const T* from = lines.from(first + i, p).data;
          transpose(from, lines.down, to + i, width);
        }
        to += square * width;
      }
    }
    for (; p < inner; ++p) {
      const T* from = lines.data + first * lines.down + p * lines.across;
      if (lines.down == 1) {
        for (int64_t i = 0; i < there; ++i) {
          to[i] = static_cast<A>(mlxgen::widen(from[i]));
        }
      } else {
        for (int64_t i = 0; i < there; ++i) {
          to[i] = static_cast<A>(mlxgen::widen(from[i * lines.down]));
        }
      }
      for (int64_t i = there; i < width; ++i) {
        to[i] = 0;
      }
      to += width;
    }
  }
}

/**
 * Like pack_lines, into memory aligned to cache lines, because loading a vector
 * across two cache lines takes longer.
 */
template <typename A, typename T>
A* pack(
    int64_t count,
    int64_t inner,
    int64_t width,
    Matrix<T> lines,
    std::vector<A>& memory) {
  constexpr size_t line = 64;
  size_t size = (count + width - 1) / width * width * inner;
  memory.resize(std::max(memory.size(), size + line / sizeof(A)));
  void* start = memory.data();
  size_t space = memory.size() * sizeof(A);
  A* to = static_cast<A*>(std::align(line, 0, start, space));
  mlxgen::multiversion([&] { pack_lines(count, inner, width, lines, to); });
  return to;
}

// A product with few rows reads each element of b a few times, so that copying
// b would take longer than the product.
constexpr int64_t few = 16;

template <typename A, typename T>
MLXGEN_MULTIVERSION void
copy_rows(int64_t count, int64_t width, Matrix<T> rows, A* to, int64_t padded) {
  for (int64_t i = 0; i < count; ++i) {
    const T* from = rows.data + i * rows.down;
    if (rows.across == 1) {
      for (int64_t p = 0; p < width; ++p) {
        to[p] = static_cast<A>(mlxgen::widen(from[p]));
      }
    } else {
      for (int64_t p = 0; p < width; ++p) {
        to[p] = static_cast<A>(mlxgen::widen(from[p * rows.across]));
      }
    }
    for (int64_t p = width; p < padded; ++p) {
      to[p] = 0;
    }
    to += padded;
  }
}

/**
 * Return `count` rows of type A: a copy, unless they have it. With `whole`,
 * they consist of whole vectors, where necessary by zeros.
 */
template <typename A, typename T>
Matrix<A> rows_of_type(
    int64_t count,
    int64_t width,
    Matrix<T> rows,
    std::vector<A>& memory,
    bool whole = false) {
  constexpr int64_t lanes = vector_bytes / sizeof(A);
  if constexpr (std::is_same_v<A, T>) {
    if (!whole || (width % lanes == 0 && rows.across == 1)) {
      return rows;
    }
  }
  int64_t padded = (width + lanes - 1) / lanes * lanes;
  memory.resize(std::max<size_t>(memory.size(), count * padded));
  mlxgen::multiversion(
      [&] { copy_rows(count, width, rows, memory.data(), padded); });
  return {memory.data(), padded};
}

/**
 * c(i, j) = sum(a(i, :) * b(j, :)) for `rows` rows of a, and for rows of b from
 * j to `count`, `columns` of them at a time; return the first that is left.
 */
template <int bytes, int rows, int columns, typename A>
__attribute__((always_inline)) inline int64_t dot_rows(
    int64_t j,
    int64_t count,
    int64_t inner,
    Matrix<A> a,
    Matrix<A> b,
    A* c,
    int64_t stride,
    bool add) {
  using V = Vectors<A, bytes>;
  constexpr int all = rows * columns;
  constexpr int at_once = 16 / sizeof(A); // sums of vectors
  for (; j + columns <= count; j += columns) {
    typename V::type sums[all] = {};
    for (int64_t p = 0; p < inner; p += V::count) {
#pragma GCC unroll 4
      for (int k = 0; k < columns; ++k) {
        typename V::type row = vector<bytes>(b.data + (j + k) * b.down + p);
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) {
          sums[i * columns + k] += row * vector<bytes>(a.data + i * a.down + p);
        }
      }
    }
    A found[all];
    if constexpr (all % at_once == 0) {
#pragma GCC unroll 4
      for (int i = 0; i < all; i += at_once) {
        vector<16>(found + i) = totals<A, bytes>(sums + i);
      }
    } else {
      static_assert(all == 1);
      found[0] = total<A, bytes>(sums[0]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int k = 0; k < columns; ++k) {
        A* to = c + i * stride + j + k;
        *to = found[i * columns + k] + (add ? *to : A(0));
      }
    }
  }
  return j;
}

/**
 * c(i, :) = sum(a(i, p) * b(p, :)), for `rows` rows of a and `vectors` vectors
 * of the columns, of which c has `there`.
 */
template <int bytes, int rows, int vectors, typename A>
__attribute__((always_inline)) inline void sum_rows(
    int64_t inner,
    int64_t there,
    Matrix<A> a,
    Matrix<A> b,
    A* c,
    int64_t stride,
    bool add) {
  using V = Vectors<A, bytes>;
  typename V::type sums[rows][vectors] = {};
  for (int64_t p = 0; p < inner; ++p) {
    typename V::type row[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      row[j] = vector<bytes>(b.data + p * b.down + j * V::count);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) {
      A factor = *a.from(i, p).data;
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        sums[i][j] += factor * row[j];
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
    A* to = c + i * stride;
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      if ((j + 1) * V::count <= there) {
        auto& whole = vector<bytes>(to + j * V::count);
        whole = add ? whole + sums[i][j] : sums[i][j];
      } else {
        A* rest = to + j * V::count;
        for (int64_t k = 0; k < V::count && j * V::count + k < there; ++k) {
          rest[k] = add ? rest[k] + sums[i][j][k] : sums[i][j][k];
        }
      }
    }
  }
}

/** Call f<rows>(first) for all rows. */
template <typename F>
__attribute__((always_inline)) inline void each_rows(int64_t rows, const F& f) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    MLXGEN_INLINED_CALL f.template operator()<4>(i);
  }
  for (; i < rows; ++i) {
    MLXGEN_INLINED_CALL f.template operator()<1>(i);
  }
}

/** c = a b^T, or c += a b^T, for rows of whole vectors. */
template <typename A>
void few_dots(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<A> a,
    Matrix<A> b,
    A* c,
    int64_t stride,
    bool add) {
  with_vectors([&]<int bytes>() {
    each_rows(rows, [&]<int n>(int64_t i) {
      // Enough sums at a time to hide the latency of an addition.
      constexpr int together = n == 1 ? 4 : 2;
      A* to = c + i * stride;
      auto from = a.from(i, 0);
      int64_t j = 0;
      j = dot_rows<bytes, n, together>(
          j, columns, inner, from, b, to, stride, add);
      dot_rows<bytes, n, 1>(j, columns, inner, from, b, to, stride, add);
    });
  });
}

/** c = a b, or c += a b, for rows of b of whole vectors. */
template <typename A>
void few_sums(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<A> a,
    Matrix<A> b,
    A* c,
    int64_t stride,
    bool add) {
  with_vectors([&]<int bytes>() {
    each_rows(rows, [&]<int n>(int64_t i) {
      constexpr int vectors = n == 1 ? 4 : 2;
      constexpr int64_t lanes = bytes / sizeof(A);
      int64_t j = 0;
      for (; j + vectors * lanes <= columns; j += vectors * lanes) {
        A* to = c + i * stride + j;
        sum_rows<bytes, n, vectors>(
            inner, columns - j, a.from(i, 0), b.from(0, j), to, stride, add);
      }
      for (; j < columns; j += lanes) {
        A* to = c + i * stride + j;
        sum_rows<bytes, n, 1>(
            inner, columns - j, a.from(i, 0), b.from(0, j), to, stride, add);
      }
    });
  });
}

/** The product for few rows of a, and rows of b or its transpose in memory. */
template <typename A, typename TA, typename TB>
void multiply_few(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<TA> a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add) {
  thread_local std::vector<A> copy_a;
  thread_local std::vector<A> copy_b;
  constexpr int64_t together = 32; // rows of b that stay in the cache
  bool transposed = b.across != 1;
  Matrix<A> from_a = rows_of_type(rows, inner, a, copy_a, transposed);
  if (transposed) {
    for (int64_t j = 0; j < columns; j += together) {
      int64_t count = std::min(together, columns - j);
      auto lines = b.from(0, j).transposed();
      auto from_b = rows_of_type(count, inner, lines, copy_b, true);
      few_dots(rows, inner, count, from_a, from_b, c + j, stride, add);
    }
    return;
  }
  for (int64_t p = 0; p < inner; p += together) {
    int64_t deep = std::min(together, inner - p);
    auto from_b = rows_of_type(deep, columns, b.from(p, 0), copy_b, true);
    bool more = add || p > 0;
    few_sums(rows, deep, columns, from_a.from(0, p), from_b, c, stride, more);
  }
}

} // namespace product

/** multiply() for some types. */
template <typename A, typename TA, typename TB>
struct Product {
  static void compute(
      int64_t rows,
      int64_t inner,
      int64_t columns,
      Matrix<TA> a,
      Matrix<TB> b,
      A* c,
      int64_t stride,
      bool add);
};

template <typename A, typename TA, typename TB>
void Product<A, TA, TB>::compute(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<TA> a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add) {
  using namespace product;
  static const Tile<A> best = best_tile<A>();
  thread_local std::vector<A> packed_a;
  thread_local std::vector<A> packed_b;
  thread_local std::vector<A> columns_b;
  if (!add && inner == 0) {
    for (int64_t i = 0; i < rows; ++i) {
      std::fill_n(c + i * stride, columns, A(0));
    }
  }
  bool small = rows <= few || (b.across == 1 && inner <= few);
  if (small && (b.across == 1 || b.down == 1)) {
    return multiply_few(rows, inner, columns, a, b, c, stride, add);
  }
  for (int64_t p = 0; p < inner; p += block_inner) {
    int64_t deep = std::min(block_inner, inner - p);
    for (int64_t j = 0; j < columns; j += block_columns) {
      int64_t wide = std::min(block_columns, columns - j);
      // The columns of b are lines to copy.
      Matrix<TB> lines = b.from(p, j).transposed();
      const A* from_b = lines.across == 1
          ? pack(
                wide,
                deep,
                best.columns,
                rows_of_type(wide, deep, lines, columns_b),
                packed_b)
          : pack(wide, deep, best.columns, lines, packed_b);
      for (int64_t i = 0; i < rows; i += block_rows) {
        int64_t high = std::min(block_rows, rows - i);
        Matrix<A> from_a{nullptr, 0};
        bool near = a.down == 1 && a.across * sizeof(A) <= 1024;
        if (a.across == 1 || (near && std::is_same_v<A, TA>)) {
          from_a = rows_of_type(high, deep, a.from(i, p), packed_a);
        } else {
          const A* packed = pack(high, deep, high, a.from(i, p), packed_a);
          from_a = {packed, 1, high};
        }
        for (int64_t jj = 0; jj < wide; jj += best.columns) {
          for (int64_t ii = 0; ii < high; ii += tile_rows) {
            A part[tile_rows * 128 / sizeof(A)];
            int64_t there = std::min(best.columns, wide - jj);
            int64_t last = std::min<int64_t>(tile_rows, high - ii);
            best.compute(
                deep, last, from_a.from(ii, 0), from_b + jj * deep, part);
            for (int64_t r = 0; r < last; ++r) {
              A* to = c + (i + ii + r) * stride + j + jj;
              const A* from = part + r * best.columns;
              if (add || p > 0) {
                for (int64_t k = 0; k < there; ++k) {
                  to[k] += from[k];
                }
              } else {
                std::copy_n(from, there, to);
              }
            }
          }
        }
      }
    }
  }
}

// matmul.cpp compiles the product, because many kernels multiply. A build of
// selected operators without linear_rows compiles it in each kernel.
#if __has_include("mlxops/linear_rows.h")
#define MLXOPS_PRODUCT_APART
extern template struct Product<double, double, double>;
extern template struct Product<float, float, float>;
extern template struct Product<float, float, mlxgen::float16_t>;
extern template struct Product<float, float, mlxgen::bfloat16_t>;
extern template struct Product<float, mlxgen::float16_t, mlxgen::float16_t>;
extern template struct Product<float, mlxgen::bfloat16_t, mlxgen::bfloat16_t>;
#endif

/**
 * c = a b, or c += a b, for a of (rows, inner), b of (inner, columns) and c of
 * (rows, columns), whose rows are `stride` apart. It runs on one thread,
 * because kernels distribute blocks among threads.
 */
template <typename A, typename TA, typename TB>
void multiply(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<TA> a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add = false) {
  Product<A, TA, TB>::compute(rows, inner, columns, a, b, c, stride, add);
}

} // namespace mlxops::cpu
