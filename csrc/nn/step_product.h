// The product with the same matrix in every step of a recurrent network. Some
// rows of the batch are an item for a core, from the first step to the last,
// and the matrix is packed once. With a single step, the columns are shared
// among the cores, and each packs the columns that it multiplies next.
//
// Every element of a product is one chain of multiplications and additions, so
// that it is the same for all numbers of rows and steps.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

namespace product {

/** The largest number of vectors that are multiplied together. */
constexpr int most_rows = 6;

/**
 * Some rows of a product, for several panels of packed columns. Enough chains
 * of additions run at the same time to hide their latency. Of the panels, only
 * `there` exist; the last one is computed in place of the others.
 */
template <typename A, int bytes, int vectors, int rows>
__attribute__((always_inline)) inline void step_tile(
    int64_t inner,
    const A* a,
    const A* b,
    int64_t there,
    A* to,
    int64_t stride) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A))));
  constexpr int lanes = bytes / sizeof(A);
  constexpr int panels = rows == 1 ? 4 : rows == 2 ? 2 : 1;
  const A* from[panels];
  for (int64_t q = 0; q < panels; ++q) {
    from[q] = b + std::min(q, there - 1) * inner * vectors * lanes;
  }
  Vector sums[rows][panels * vectors] = {};
  for (int64_t p = 0; p < inner; ++p) {
#pragma GCC unroll 8
    for (int q = 0; q < panels; ++q) {
      Vector row[vectors];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; ++j) {
        row[j] = *reinterpret_cast<const Vector*>(
            from[q] + (p * vectors + j) * lanes);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; ++j) {
          sums[i][q * vectors + j] += a[i] * row[j];
        }
      }
    }
    a += rows;
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < panels * vectors; ++j) {
      *reinterpret_cast<Vector*>(to + i * stride + j * lanes) = sums[i][j];
    }
  }
}

#ifdef MLXGEN_AVX2
template <typename A, int rows>
__attribute__((target(MLXGEN_AVX512))) void step_tile_avx512(
    int64_t inner,
    const A* a,
    const A* b,
    int64_t there,
    A* to,
    int64_t stride) {
  step_tile<A, 64, 2, rows>(inner, a, b, there, to, stride);
}

template <typename A, int rows>
__attribute__((target(MLXGEN_AVX2))) void step_tile_avx2(
    int64_t inner,
    const A* a,
    const A* b,
    int64_t there,
    A* to,
    int64_t stride) {
  step_tile<A, 32, 2, rows>(inner, a, b, there, to, stride);
}
#endif

template <typename A>
using StepTile =
    void (*)(int64_t, const A*, const A*, int64_t, A*, int64_t stride);

template <typename A, int rows>
StepTile<A> best_step_tile() {
#ifdef MLXGEN_AVX2
  if (mlxgen::detail::has_avx512()) {
    return step_tile_avx512<A, rows>;
  }
  if (mlxgen::detail::has_avx2()) {
    return step_tile_avx2<A, rows>;
  }
#endif
  return step_tile<A, 16, vectors, rows>;
}

/**
 * Some columns of products with a matrix whose rows are contiguous and `down`
 * apart. It reads the matrix once, in the order of memory.
 */
template <typename T, typename A>
MLXGEN_MULTIVERSION void multiply_rows_here(
    int64_t count,
    int64_t inner,
    int64_t columns,
    const A* __restrict vectors, // element p of vector r: [p * count + r]
    const T* __restrict matrix,
    int64_t down,
    A* __restrict to, // zeros
    int64_t stride) {
  int64_t p = 0;
  for (; p + 4 <= inner; p += 4) {
    const T* from = matrix + p * down;
    for (int64_t r = 0; r < count; ++r) {
      const A* a = vectors + p * count + r;
      for (int64_t j = 0; j < columns; ++j) {
        A sum = to[r * stride + j];
        sum += a[0] * mlxgen::widen(from[j]);
        sum += a[count] * mlxgen::widen(from[down + j]);
        sum += a[2 * count] * mlxgen::widen(from[2 * down + j]);
        sum += a[3 * count] * mlxgen::widen(from[3 * down + j]);
        to[r * stride + j] = sum;
      }
    }
  }
  for (; p < inner; ++p) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        to[r * stride + j] +=
            vectors[p * count + r] * mlxgen::widen(matrix[p * down + j]);
      }
    }
  }
}

} // namespace product

/**
 * Vectors in the order in which StepProduct reads them: `rows()` of them at a
 * time, interleaved.
 */
template <typename A>
class StepVectors {
 public:
  StepVectors(int64_t count, int64_t inner)
      : count_(count),
        inner_(inner),
        rows_(rows_for(count)),
        data_((count + rows_ - 1) / std::max(rows_, 1) * rows_ * inner) {}

  int64_t count() const {
    return count_;
  }
  int rows() const {
    return rows_;
  }
  /** True for vectors that are a single tile without gaps. */
  bool is_compact() const {
    return count_ == rows_;
  }
  /** The vectors from the r-th on, for an r divisible by rows(). */
  const A* from(int64_t r) const {
    return data_.data() + r * inner_;
  }
  /** Set vector r to these elements, or to zeros. */
  template <typename T>
  void set(int64_t r, const T* values) {
    A* to = data_.data() + r / rows_ * rows_ * inner_ + r % rows_;
    for (int64_t k = 0; k < inner_; ++k) {
      to[k * rows_] = values ? A(mlxgen::widen(values[k])) : A(0);
    }
  }

 private:
  /** The smallest of 1, 2, 4 and 6 that needs as few tiles as possible. */
  static int rows_for(int64_t count) {
    constexpr int64_t most = product::most_rows;
    int64_t tiles = std::max<int64_t>((count + most - 1) / most, 1);
    int64_t each = (count + tiles - 1) / tiles;
    return each <= 1 ? 1 : each <= 2 ? 2 : each <= 4 ? 4 : 6;
  }

  int64_t count_;
  int64_t inner_;
  int rows_;
  std::vector<A> data_;
};

/** Products of vectors with a matrix of (inner, columns). */
template <typename T, typename A>
class StepProduct {
 public:
  StepProduct(Matrix<T> matrix, int64_t inner, int64_t columns)
      : matrix_(matrix),
        inner_(inner),
        columns_(columns),
        wide_(product::best_tile<A>().columns),
        panels_((columns + wide_ - 1) / wide_) {}

  StepProduct(const StepProduct&) = delete;
  StepProduct& operator=(const StepProduct&) = delete;

  int64_t columns() const {
    return columns_;
  }

  /** Pack the matrix, on all cores. */
  void pack() {
    memory_.resize(panels_ * wide_ * inner_ + line);
    packed_ = aligned(memory_);
    mlxgen::share(panels_, wide_ * inner_, [&](int64_t begin, int64_t end) {
      pack(begin, end, packed_ + begin * wide_ * inner_);
    });
  }

  /** The products, whose rows are `columns()` apart, with a packed matrix. */
  void operator()(const StepVectors<A>& vectors, A* to) const {
    compute(vectors, 0, panels_, packed_, to);
  }

  /** The products with a matrix that is not packed, on all cores. */
  void once(const StepVectors<A>& vectors, A* to) const {
    constexpr int64_t most = 4; // panels of a tile
    if (matrix_.across == 1 && vectors.is_compact()) {
      return in_order(vectors, to);
    }
    mlxgen::share(
        (panels_ + most - 1) / most,
        most * wide_ * inner_ * vectors.count(),
        [&](int64_t begin, int64_t end) {
          std::vector<A> memory(most * wide_ * inner_ + line);
          A* packed = aligned(memory);
          for (int64_t i = begin * most; i < end * most; i += most) {
            int64_t last = std::min(i + most, panels_);
            if (i < last) {
              pack(i, last, packed);
              compute(vectors, i, last, packed, to);
            }
          }
        });
  }

 private:
  static constexpr size_t line = 64 / sizeof(A);

  static A* aligned(std::vector<A>& memory) {
    void* start = memory.data();
    size_t space = memory.size() * sizeof(A);
    return static_cast<A*>(std::align(64, 0, start, space));
  }

  /** Like once(), for few vectors and contiguous rows of the matrix. */
  void in_order(const StepVectors<A>& vectors, A* to) const {
    std::fill_n(to, vectors.count() * columns_, A(0));
    constexpr int64_t most = 128; // columns
    mlxgen::share(
        (columns_ + most - 1) / most,
        most * inner_ * vectors.count(),
        [&](int64_t begin, int64_t end) {
          int64_t first = begin * most;
          mlxgen::multiversion([&] {
            product::multiply_rows_here(
                vectors.count(),
                inner_,
                std::min(end * most, columns_) - first,
                vectors.from(0),
                matrix_.data + first,
                matrix_.down,
                to + first,
                columns_);
          });
        });
  }

  void pack(int64_t begin, int64_t end, A* to) const {
    int64_t first = begin * wide_;
    mlxgen::multiversion([&] {
      product::pack_lines(
          std::min(end * wide_, columns_) - first,
          inner_,
          wide_,
          matrix_.from(0, first).transposed(),
          to);
    });
  }

  /** The columns of some panels, from their packed elements. */
  void compute(
      const StepVectors<A>& vectors,
      int64_t begin,
      int64_t end,
      const A* packed,
      A* to) const {
    static const product::StepTile<A> one = product::best_step_tile<A, 1>();
    static const product::StepTile<A> two = product::best_step_tile<A, 2>();
    static const product::StepTile<A> four = product::best_step_tile<A, 4>();
    static const product::StepTile<A> six = product::best_step_tile<A, 6>();
    int rows = vectors.rows();
    int64_t together = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    auto tile = rows == 1 ? one : rows == 2 ? two : rows == 4 ? four : six;
    for (int64_t i = begin; i < end; i += together) {
      int64_t there = std::min(together, end - i);
      const A* from = packed + (i - begin) * wide_ * inner_;
      for (int64_t r = 0; r < vectors.count(); r += rows) {
        A part[8 * 128 / sizeof(A)];
        int64_t stride = together * wide_;
        tile(inner_, vectors.from(r), from, there, part, stride);
        int64_t last = std::min<int64_t>(rows, vectors.count() - r);
        int64_t column = i * wide_;
        for (int64_t k = 0; k < last; ++k) {
          std::copy_n(
              part + k * stride,
              std::min(there * wide_, columns_ - column),
              to + (r + k) * columns_ + column);
        }
      }
    }
  }

  Matrix<T> matrix_;
  int64_t inner_;
  int64_t columns_;
  int64_t wide_; // columns of a panel
  int64_t panels_;
  std::vector<A> memory_;
  A* packed_ = nullptr; // in memory_
};

// step_product.cpp compiles these products, too (matmul.h).
#ifdef MLXOPS_PRODUCT_APART
extern template class StepProduct<double, double>;
extern template class StepProduct<float, float>;
extern template class StepProduct<mlxgen::float16_t, float>;
extern template class StepProduct<mlxgen::bfloat16_t, float>;
#endif

/**
 * Call each(first, count) for some rows of a batch at a time, on all cores.
 * A step of a row costs `cost` operations.
 */
template <typename F>
void share_rows(int64_t batch, int64_t cost, F each) {
  constexpr int64_t most = 16 * product::most_rows;
  int64_t threads = mlxgen::cpu::thread_count();
  int64_t groups = (batch + threads * most - 1) / (threads * most) * threads;
  groups = std::min(groups, batch);
  mlxgen::share(
      groups,
      batch / std::max<int64_t>(groups, 1) * cost,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          int64_t first = i * batch / groups;
          each(first, (i + 1) * batch / groups - first);
        }
      });
}

} // namespace mlxops::cpu
