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

#include "../reduce.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"

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
 * contiguous columns of a and rows of b.
 */
template <typename A, int bytes, int vectors>
__attribute__((always_inline)) inline void
tile(int64_t inner, const A* a, const A* b, A* to) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A))));
  constexpr int lanes = bytes / sizeof(A);
  Vector sums[tile_rows][vectors] = {};
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
        sums[i][j] += a[i] * row[j];
      }
    }
    a += tile_rows;
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
  void (*compute)(int64_t inner, const A* a, const A* b, A* to);
  int64_t columns;
};

// Vectors of the processor's own size; g++ splits larger vectors badly.
#ifdef MLXGEN_AVX2
template <typename A>
__attribute__((target(MLXGEN_AVX512))) void
tile_avx512(int64_t inner, const A* a, const A* b, A* to) {
  tile<A, 64, 2>(inner, a, b, to);
}

template <typename A>
__attribute__((target(MLXGEN_AVX2))) void
tile_avx2(int64_t inner, const A* a, const A* b, A* to) {
  tile<A, 32, 2>(inner, a, b, to);
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
    for (int64_t p = 0; p < inner; ++p) {
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

// The largest number of rows that are multiplied without copies of blocks.
constexpr int64_t few = 4;

/** c = a b, or c += a b, for contiguous rows of a and columns of b. */
template <typename A, typename TB>
MLXGEN_MULTIVERSION void few_by_columns(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    const A* a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add) {
  for (int64_t j = 0; j < columns; ++j) {
    const TB* column = b.data + j * b.across;
    for (int64_t i = 0; i < rows; ++i) {
      const A* row = a + i * inner;
      A sum = sum_over<A>(inner, [=](int64_t p) {
        return row[p] * static_cast<A>(mlxgen::widen(column[p]));
      });
      c[i * stride + j] = add ? c[i * stride + j] + sum : sum;
    }
  }
}

/**
 * c = a b for contiguous rows of b. With few rows, b is read once; otherwise c
 * is written once.
 */
template <typename A, typename TB>
MLXGEN_MULTIVERSION void few_by_rows(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<A> a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add) {
  for (int64_t k = 0; k < rows * inner; ++k) {
    int64_t i = rows <= few ? k % rows : k / inner;
    int64_t p = rows <= few ? k / rows : k % inner;
    A factor = a.data[i * a.down + p * a.across];
    const TB* from = b.data + p * b.down;
    A* to = c + i * stride;
    if (p == 0 && !add) {
      std::fill_n(to, columns, A(0));
    }
    for (int64_t j = 0; j < columns; ++j) {
      to[j] += factor * static_cast<A>(mlxgen::widen(from[j]));
    }
  }
}

} // namespace product

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
  using namespace product;
  static const Tile<A> best = best_tile<A>();
  thread_local std::vector<A> packed_a;
  thread_local std::vector<A> packed_b;
  if (!add && inner == 0) {
    for (int64_t i = 0; i < rows; ++i) {
      std::fill_n(c + i * stride, columns, A(0));
    }
  }
  for (int64_t p = 0; p < inner; p += block_inner) {
    int64_t deep = std::min(block_inner, inner - p);
    for (int64_t j = 0; j < columns; j += block_columns) {
      int64_t wide = std::min(block_columns, columns - j);
      const A* from_b =
          pack(wide, deep, best.columns, b.from(p, j).transposed(), packed_b);
      for (int64_t i = 0; i < rows; i += block_rows) {
        int64_t high = std::min(block_rows, rows - i);
        const A* from_a =
            pack(high, deep, int64_t(tile_rows), a.from(i, p), packed_a);
        for (int64_t jj = 0; jj < wide; jj += best.columns) {
          for (int64_t ii = 0; ii < high; ii += tile_rows) {
            A part[tile_rows * 128 / sizeof(A)];
            best.compute(deep, from_a + ii * deep, from_b + jj * deep, part);
            int64_t there = std::min(best.columns, wide - jj);
            int64_t last = std::min<int64_t>(tile_rows, high - ii);
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

/**
 * multiply() for one matrix that is much larger than the caches: with few rows,
 * or few columns of `a`, it takes as long as reading or writing this matrix.
 */
template <typename A, typename TA, typename TB>
void multiply_large(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrix<TA> a,
    Matrix<TB> b,
    A* c,
    int64_t stride,
    bool add = false) {
  using namespace product;
  thread_local std::vector<A> copy;
  if (rows <= few && b.down == 1) {
    copy.resize(std::max<size_t>(copy.size(), rows * inner));
    for (int64_t i = 0; i < rows * inner; ++i) {
      const TA* from = a.from(i / inner, i % inner).data;
      copy[i] = static_cast<A>(mlxgen::widen(*from));
    }
    mlxgen::multiversion([&] {
      few_by_columns(rows, inner, columns, copy.data(), b, c, stride, add);
    });
    return;
  }
  if constexpr (std::is_same_v<TA, A>) {
    if (b.across == 1 && inner > 0 && (rows <= few || inner <= few)) {
      mlxgen::multiversion(
          [&] { few_by_rows(rows, inner, columns, a, b, c, stride, add); });
      return;
    }
  }
  multiply(rows, inner, columns, a, b, c, stride, add);
}

} // namespace mlxops::cpu
