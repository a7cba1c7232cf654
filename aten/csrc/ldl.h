// CPU kernels of factorizations A = L D L^T of symmetric or Hermitian matrices,
// which MLX does not have: Bunch and Kaufman, "Some stable methods for
// calculating inertia and solving symmetric linear systems" (1977), with the
// layout of LAPACK's sytrf and sytrs for the lower triangle.

#pragma once

#include "matrices.h"

namespace mlx_aten {
namespace cpu {

/** The adjoint of an element of a Hermitian matrix, or x of a symmetric one. */
template <typename N>
N mirrored(N x, bool hermitian) {
  return hermitian ? conjugate(x) : x;
}

template <typename N>
double size_of(N x) {
  return std::abs(std::real(x)) + std::abs(std::imag(x));
}

/** Exchange row and column `to` with those of `from`, which is smaller, in the
 * lower triangle without the columns before `from`. */
template <typename N>
void exchange(N* a, int64_t n, int64_t from, int64_t to, bool hermitian) {
  for (int64_t i = to + 1; i < n; ++i) {
    std::swap(a[i * n + from], a[i * n + to]);
  }
  for (int64_t i = from + 1; i < to; ++i) {
    N x = mirrored(a[i * n + from], hermitian);
    a[i * n + from] = mirrored(a[to * n + i], hermitian);
    a[to * n + i] = x;
  }
  a[to * n + from] = mirrored(a[to * n + from], hermitian);
  std::swap(a[from * n + from], a[to * n + to]);
}

/** Factor the lower triangle in place. Return 0, or the first row, counted from
 * 1, in which D is singular. */
template <typename N>
int32_t factor_ldl(N* a, int64_t n, bool hermitian, int32_t* pivots) {
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  int32_t info = 0;
  auto diagonal = [&](int64_t i) {
    return hermitian ? std::abs(std::real(a[i * n + i]))
                     : size_of(a[i * n + i]);
  };
  auto make_real = [&](int64_t i) {
    if (hermitian) {
      a[i * n + i] = std::real(a[i * n + i]);
    }
  };
  for (int64_t k = 0; k < n;) {
    // The largest elements of column k below the diagonal, and of its row.
    int64_t place = k;
    double most = 0;
    for (int64_t i = k + 1; i < n; ++i) {
      if (size_of(a[i * n + k]) > most) {
        most = size_of(a[i * n + k]);
        place = i;
      }
    }
    double own = diagonal(k);
    if (std::max(own, most) == 0 || std::isnan(own)) {
      info = info == 0 ? k + 1 : info;
      make_real(k);
      pivots[k] = k + 1;
      ++k;
      continue;
    }
    int64_t pivot = k, step = 1;
    if (own < alpha * most) {
      double row = 0;
      for (int64_t j = k; j < n; ++j) {
        if (j != place) {
          row = std::max(
              row, size_of(a[std::max(place, j) * n + std::min(place, j)]));
        }
      }
      if (own < alpha * most * (most / row)) {
        pivot = place;
        step = diagonal(place) >= alpha * row ? 1 : 2;
      }
    }
    int64_t last = k + step - 1;
    if (pivot != last) {
      exchange(a, n, last, pivot, hermitian);
      if (step == 2) {
        std::swap(a[last * n + k], a[pivot * n + k]);
      }
    }
    make_real(k);
    make_real(last);
    if (step == 1) {
      N inverse = N(1) / a[k * n + k];
      for (int64_t j = k + 1; j < n; ++j) {
        N factor = inverse * mirrored(a[j * n + k], hermitian);
        for (int64_t i = j; i < n; ++i) {
          a[i * n + j] -= a[i * n + k] * factor;
        }
        make_real(j);
      }
      for (int64_t i = k + 1; i < n; ++i) {
        a[i * n + k] *= inverse;
      }
      pivots[k] = pivot + 1;
    } else {
      // The inverse of the block on the diagonal, without its determinant,
      // which may overflow.
      N below = a[last * n + k], above = mirrored(below, hermitian);
      N first = a[k * n + k] / below, second = a[last * n + last] / above;
      N scale = N(1) / (first * second - N(1));
      for (int64_t j = k + 2; j < n; ++j) {
        N x = a[j * n + k], y = a[j * n + last];
        N left = scale * (second * x / below - y / above);
        N right = scale * (first * y / above - x / below);
        for (int64_t i = j; i < n; ++i) {
          a[i * n + j] -= a[i * n + k] * mirrored(left, hermitian) +
              a[i * n + last] * mirrored(right, hermitian);
        }
        a[j * n + k] = left;
        a[j * n + last] = right;
        make_real(j);
      }
      pivots[k] = pivots[last] = -(pivot + 1);
    }
    k += step;
  }
  return info;
}

/** The factors of the lower triangle, LAPACK's pivots, and for each matrix 0 or
 * the first row in which D is singular. */
template <typename T>
void row_ldl(
    In<T> A,
    bool hermitian,
    Out<T> ld,
    Out<int32_t> pivots,
    Out<int32_t> info) {
  int64_t n = A.dim(-1);
  std::copy_n(A.data, A.size(), ld.data);
  for_each_matrix(info.size(), n * n * n, [&](int64_t k) {
    auto a = reinterpret_cast<number_t<T>*>(ld.data) + k * n * n;
    for (int64_t i = 0; i < n; ++i) {
      std::fill(a + i * n + i + 1, a + (i + 1) * n, 0);
    }
    info[k] = factor_ldl(a, n, hermitian, pivots.data + k * n);
  });
}

/** The solution of A X = B with the factors of A. */
template <typename T>
void ldl_solution(
    In<T> LD,
    In<int32_t> pivots,
    In<T> B,
    bool hermitian,
    Out<T> out) {
  using N = number_t<T>;
  int64_t n = LD.dim(-1);
  int64_t columns = B.dim(-1);
  std::copy_n(B.data, B.size(), out.data);
  int64_t batch = B.size() / std::max<int64_t>(n * columns, 1);
  for_each_matrix(batch, 2 * n * n * columns, [&](int64_t k) {
    const N* a = reinterpret_cast<const N*>(LD.data) + k * n * n;
    const int32_t* places = pivots.data + k * n;
    N* x = reinterpret_cast<N*>(out.data) + k * n * columns;
    auto swap_rows = [&](int64_t i, int64_t other) {
      if (i != other && other >= 0 && other < n) {
        std::swap_ranges(
            x + i * columns, x + (i + 1) * columns, x + other * columns);
      }
    };
    auto subtract = [&](int64_t i, N factor, int64_t other) {
      for (int64_t c = 0; c < columns; ++c) {
        x[i * columns + c] -= factor * x[other * columns + c];
      }
    };
    // A negative pivot is that of a block of two rows.
    auto step = [&](int64_t i) { return places[i] < 0 && i + 1 < n ? 2 : 1; };
    for (int64_t i = 0; i < n; i += step(i)) {
      int64_t last = i + step(i) - 1;
      swap_rows(last, std::abs(places[i]) - 1);
      for (int64_t row = last + 1; row < n; ++row) {
        for (int64_t j = i; j <= last; ++j) {
          subtract(row, a[row * n + j], j);
        }
      }
      if (last == i) {
        for (int64_t c = 0; c < columns; ++c) {
          x[i * columns + c] /= a[i * n + i];
        }
        continue;
      }
      N below = a[last * n + i], above = mirrored(below, hermitian);
      N first = a[i * n + i] / above, second = a[last * n + last] / below;
      N rest = first * second - N(1);
      for (int64_t c = 0; c < columns; ++c) {
        N y = x[i * columns + c] / above, z = x[last * columns + c] / below;
        x[i * columns + c] = (second * y - z) / rest;
        x[last * columns + c] = (first * z - y) / rest;
      }
    }
    for (int64_t i = n - 1; i >= 0; --i) {
      int64_t last = i;
      i -= places[i] < 0 && i > 0 ? 1 : 0;
      for (int64_t j = i; j <= last; ++j) {
        for (int64_t row = last + 1; row < n; ++row) {
          subtract(j, mirrored(a[row * n + j], hermitian), row);
        }
      }
      swap_rows(last, std::abs(places[last]) - 1);
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
