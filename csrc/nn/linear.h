// CPU kernels of linear layers: products of all rows of x with a matrix, and
// the sums of products of rows that are the gradient of the matrix.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace linear {

/** The number of elements along the axes from `first` to before `last`. */
template <typename T>
int64_t count(const In<T>& x, int first, int last) {
  int64_t n = 1;
  for (int i = first; i < last; ++i) {
    n *= x.dim(i);
  }
  return n;
}

/**
 * The size of a block of results. A thread copies the columns of b that its
 * block needs, so that blocks have as many rows as possible, but there are
 * enough of them for many threads. It is the same for all numbers of threads,
 * so that sums are.
 */
struct Block {
  int64_t rows;
  int64_t columns;

  Block(
      int64_t batch,
      int64_t all_rows,
      int64_t all_columns,
      int64_t fewest_columns) {
    constexpr int64_t wanted = 32;
    auto parts = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
    columns = std::min(all_columns, product::block_columns);
    int64_t there = batch * parts(all_columns, columns);
    int64_t most = parts(all_rows, product::block_rows);
    int64_t down = std::clamp<int64_t>(parts(wanted, there), 1, most);
    // Whole tiles.
    constexpr int64_t tile = product::tile_rows;
    rows = parts(parts(all_rows, down), tile) * tile;
    for (there *= down; there < wanted && columns > fewest_columns;) {
      columns = parts(columns / 2, fewest_columns) * fewest_columns;
      there *= 2;
    }
  }
};

template <typename A, typename T>
MLXGEN_MULTIVERSION void
round_rows(int64_t rows, int64_t columns, const A* from, T* to, int64_t down) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      mlxgen::narrow(from[i * columns + j], to[i * down + j]);
    }
  }
}

template <typename A, typename T>
MLXGEN_MULTIVERSION void
widen_rows(int64_t rows, int64_t columns, Matrix<T> from, A* to, int64_t down) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      to[i * down + j] = mlxgen::widen(*from.from(i, j).data);
    }
  }
}

/** Matrices of a batch, which are `next` elements apart. */
template <typename T>
struct Matrices {
  Matrix<T> first;
  int64_t next;

  Matrices transposed() const {
    return {first.transposed(), next};
  }
  Matrix<T> at(int64_t i, int64_t row, int64_t column) const {
    auto own = first;
    own.data += i * next;
    return own.from(row, column);
  }
};

/**
 * out = a b + bias, for each matrix of a batch, on all cores. Element (row,
 * column) of bias is added; it has no data if there is none.
 */
template <typename T>
void products(
    int64_t batch,
    int64_t rows,
    int64_t inner,
    int64_t columns,
    Matrices<T> a,
    Matrices<T> b,
    Matrices<T> bias,
    T* out) {
  using A = accum_t<T>;
  if (batch * rows * columns == 0) {
    return;
  }
  if (columns == 1 && rows > 1) { // a row has vectors of columns
    return products(
        batch,
        columns,
        inner,
        rows,
        b.transposed(),
        a.transposed(),
        bias.transposed(),
        out);
  }
  if (columns == 1 && b.first.down == 1) {
    b.first.across = inner + 1; // a line, not rows of one element
  }
  // Short parts of rows take longer to read.
  Block block(batch, rows, columns, b.first.across == 1 ? 128 : 32);
  int64_t across = (columns + block.columns - 1) / block.columns;
  int64_t down = (rows + block.rows - 1) / block.rows;
  int64_t cost = std::min(block.rows, rows) * block.columns * (inner + 1);
  mlxgen::share(batch * down * across, cost, [&](int64_t begin, int64_t end) {
    thread_local std::vector<A> memory;
    for (int64_t i = begin; i < end; ++i) {
      int64_t n = i / (down * across);
      int64_t row = i / across % down * block.rows;
      int64_t column = i % across * block.columns;
      int64_t high = std::min(block.rows, rows - row);
      int64_t wide = std::min(block.columns, columns - column);
      T* to = out + (n * rows + row) * columns + column;
      A* sums;
      int64_t stride;
      if constexpr (std::is_same_v<A, T>) {
        sums = to;
        stride = columns;
      } else {
        memory.resize(std::max<size_t>(memory.size(), high * wide));
        sums = memory.data();
        stride = wide;
      }
      bool add = bias.first.data != nullptr;
      if (add) {
        auto first = bias.at(n, row, column);
        mlxgen::multiversion(
            [&] { widen_rows(high, wide, first, sums, stride); });
      }
      multiply(
          high,
          inner,
          wide,
          a.at(n, row, 0),
          b.at(n, 0, column),
          sums,
          stride,
          add);
      if constexpr (!std::is_same_v<A, T>) {
        mlxgen::multiversion(
            [&] { round_rows(high, wide, sums, to, columns); });
      }
    }
  });
}

} // namespace linear

/**
 * x W + bias, or with `transpose` x W^T + bias, for all rows of x. The leading
 * axes of W are also those of x and of bias.
 */
template <typename T>
void linear_rows(
    In<T> x,
    In<T> weight,
    In<T> bias,
    bool transpose,
    Out<T> out) {
  int axes = weight.ndim() - 2;
  int64_t inner = x.dim(-1);
  int64_t columns = out.dim(-1);
  int64_t rows = linear::count(x, axes, x.ndim() - 1);
  auto matrix = transpose ? Matrix<T>{weight.data, inner}.transposed()
                          : Matrix<T>{weight.data, columns};
  linear::products<T>(
      linear::count(weight, 0, axes),
      rows,
      inner,
      columns,
      {{x.data, inner}, rows * inner},
      {matrix, inner * columns},
      {{bias.data, 0}, columns},
      out.data);
}

/** The sums of the products of rows of a and b, and the sums of rows of a. */
template <typename T>
void linear_sums(
    In<T> a,
    In<T> b,
    int axes,
    Out<T> out_products,
    Out<T> out_sums) {
  int64_t batch = linear::count(a, 0, axes);
  int64_t inner = linear::count(a, axes, a.ndim() - 1);
  int64_t rows = a.dim(-1);
  int64_t columns = b.dim(-1);
  linear::Matrices<T> from_a = {{a.data, rows}, inner * rows};
  linear::products<T>(
      batch,
      rows,
      inner,
      columns,
      from_a.transposed(),
      {{b.data, columns}, inner * columns},
      {},
      out_products.data);
  const T one = static_cast<T>(1.0f);
  linear::products<T>(
      batch, 1, inner, rows, {{&one, 0, 0}, 0}, from_a, {}, out_sums.data);
}

} // namespace mlxops::cpu
