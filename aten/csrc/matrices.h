// CPU kernels of factorizations and solutions that MLX does not have, or in
// which MLX raises an error for singular matrices while it evaluates.

#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <type_traits>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

/** The arithmetic of a dtype: std::complex for complex numbers. */
template <typename T>
using number_t = std::conditional_t<
    std::is_same_v<T, mlxgen::complex64_t>,
    std::complex<float>,
    T>;

template <typename N>
inline constexpr bool is_complex = !std::is_floating_point_v<N>;

template <typename N>
N conjugate(N x) {
  if constexpr (is_complex<N>) {
    return std::conj(x);
  } else {
    return x;
  }
}

/** Call part(k) for each matrix, on all cores if there is enough to do. */
template <typename Part>
void for_each_matrix(int64_t count, int64_t cost, const Part& part) {
  mlxgen::share(count, cost, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      part(k);
    }
  });
}

/** Factor a matrix in place, with the largest |re| + |im| as pivot, as LAPACK.
 * Pivots count from 1. */
template <typename N>
void eliminate(N* a, int64_t m, int64_t n, int32_t* pivots) {
  for (int64_t j = 0; j < std::min(m, n); ++j) {
    int64_t pivot = j;
    double most = -1;
    for (int64_t i = j; i < m; ++i) {
      N z = a[i * n + j];
      double size = std::abs(std::real(z)) + std::abs(std::imag(z));
      if (size > most) {
        most = size;
        pivot = i;
      }
    }
    pivots[j] = static_cast<int32_t>(pivot + 1);
    if (pivot != j) {
      std::swap_ranges(a + j * n, a + (j + 1) * n, a + pivot * n);
    }
    for (int64_t i = j + 1; most > 0 && i < m; ++i) {
      N factor = a[i * n + j] / a[j * n + j];
      a[i * n + j] = factor;
      for (int64_t c = j + 1; c < n; ++c) {
        a[i * n + c] -= factor * a[j * n + c];
      }
    }
  }
}

/** Solve for the columns of x from the first to the last, in place, with one
 * triangle of a. Its diagonal counts as ones if `unit`. */
template <typename N>
void substitute(
    const N* a,
    N* x,
    int64_t n,
    int64_t columns,
    int64_t first,
    int64_t last,
    bool upper,
    bool unit) {
  for (int64_t step = 0; step < n; ++step) {
    int64_t i = upper ? n - 1 - step : step;
    N* row = x + i * columns;
    for (int64_t j = upper ? i + 1 : 0; j < (upper ? n : i); ++j) {
      N factor = a[i * n + j];
      const N* known = x + j * columns;
      for (int64_t c = first; c < last; ++c) {
        row[c] -= factor * known[c];
      }
    }
    for (int64_t c = first; c < last && !unit; ++c) {
      row[c] /= a[i * n + i];
    }
  }
}

/** Factor copies of matrices, each with min(m, n) further numbers: call
 * factor(a, m, n, numbers), which takes about cost * m * n * min(m, n). */
template <typename T, typename V, typename Factor>
void factor_copies(
    In<T> x,
    Out<T> out,
    Out<V> numbers,
    int64_t cost,
    const Factor& factor) {
  int64_t m = x.dim(-2);
  int64_t n = x.dim(-1);
  int64_t count = std::min(m, n);
  std::copy_n(x.data, x.size(), out.data);
  int64_t batch = x.size() / std::max<int64_t>(m * n, 1);
  for_each_matrix(batch, cost * m * n * count, [&](int64_t k) {
    factor(
        reinterpret_cast<number_t<T>*>(out.data) + k * m * n,
        m,
        n,
        reinterpret_cast<number_t<V>*>(numbers.data) + k * count);
  });
}

/** The compact LU factors, and LAPACK's pivots. */
template <typename T>
void row_lu(In<T> x, Out<T> lu, Out<int32_t> pivots) {
  factor_copies(x, lu, pivots, 2, eliminate<number_t<T>>);
}

/** The solution of A X = B for small matrices. Singular ones give NaN and
 * infinities. */
template <typename T>
void small_solution(In<T> A, In<T> B, Out<T> out) {
  using N = number_t<T>;
  int64_t n = A.dim(-1);
  int64_t columns = B.dim(-1);
  std::copy_n(B.data, B.size(), out.data);
  int64_t batch = A.size() / std::max<int64_t>(n * n, 1);
  for_each_matrix(batch, n * n * (n + columns), [&](int64_t k) {
    const N* matrix = reinterpret_cast<const N*>(A.data) + k * n * n;
    std::vector<N> a(matrix, matrix + n * n);
    std::vector<int32_t> pivots(n);
    eliminate(a.data(), n, n, pivots.data());
    N* x = reinterpret_cast<N*>(out.data) + k * n * columns;
    for (int64_t i = 0; i < n; ++i) {
      N* other = x + (pivots[i] - 1) * columns;
      if (other != x + i * columns) {
        std::swap_ranges(other, other + columns, x + i * columns);
      }
    }
    substitute(a.data(), x, n, columns, 0, columns, false, true);
    substitute(a.data(), x, n, columns, 0, columns, true, false);
  });
}

/** The order of rows that LAPACK's pivots lead to: row i of the product is row
 * order[i] of the matrix. Pivots outside of the matrix exchange nothing. */
inline void row_order(In<int32_t> pivots, int n, Out<int32_t> order) {
  int64_t count = pivots.dim(-1);
  int64_t batch = order.size() / std::max(n, 1);
  for (int64_t k = 0; k < batch; ++k) {
    int32_t* rows = order.data + k * n;
    for (int32_t i = 0; i < n; ++i) {
      rows[i] = i;
    }
    for (int64_t i = 0; i < std::min<int64_t>(count, n); ++i) {
      int64_t other = pivots[k * count + i] - 1;
      if (other >= 0 && other < n) {
        std::swap(rows[i], rows[other]);
      }
    }
  }
}

/** Substitution with the upper or lower triangle of A. Zeros on its diagonal
 * give NaN and infinities. */
template <typename T>
void substituted(In<T> A, In<T> B, bool upper, bool unit, Out<T> out) {
  using N = number_t<T>;
  int64_t n = A.dim(-1);
  int64_t columns = B.dim(-1);
  std::copy_n(B.data, B.size(), out.data);
  // Blocks of columns are independent, and stay in the cache.
  constexpr int64_t kBlock = 64;
  int64_t blocks = (columns + kBlock - 1) / kBlock;
  int64_t batch = B.size() / std::max<int64_t>(n * columns, 1);
  for_each_matrix(batch * blocks, n * n * kBlock, [&](int64_t k) {
    int64_t matrix = k / blocks, first = k % blocks * kBlock;
    substitute(
        reinterpret_cast<const N*>(A.data) + matrix * n * n,
        reinterpret_cast<N*>(out.data) + matrix * n * columns,
        n,
        columns,
        first,
        std::min(first + kBlock, columns),
        upper,
        unit);
  });
}

/** The lower factor of complex matrices. A column without a positive square on
 * the diagonal, and those after it, stay as in A: as in LAPACK. */
template <typename T>
void complex_cholesky(In<T> A, Out<T> out) {
  using N = number_t<T>;
  int64_t n = A.dim(-1);
  int64_t batch = A.size() / std::max<int64_t>(n * n, 1);
  for_each_matrix(batch, n * n * n, [&](int64_t k) {
    const N* a = reinterpret_cast<const N*>(A.data) + k * n * n;
    N* l = reinterpret_cast<N*>(out.data) + k * n * n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        l[i * n + j] = j <= i ? a[i * n + j] : N(0);
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      auto rest = std::real(l[j * n + j]);
      for (int64_t c = 0; c < j; ++c) {
        rest -= std::norm(l[j * n + c]);
      }
      l[j * n + j] = rest;
      if (!(rest > 0)) {
        break;
      }
      auto root = std::sqrt(rest);
      l[j * n + j] = root;
      for (int64_t i = j + 1; i < n; ++i) {
        N sum = l[i * n + j];
        for (int64_t c = 0; c < j; ++c) {
          sum -= l[i * n + c] * std::conj(l[j * n + c]);
        }
        l[i * n + j] = sum / root;
      }
    }
  });
}

/** Reflect the columns of a matrix in place to R, with the vectors of the
 * reflections below its diagonal, and their factors. */
template <typename N>
void reflect(N* a, int64_t m, int64_t n, N* factors) {
  std::vector<N> products(n);
  for (int64_t j = 0; j < std::min(m, n); ++j) {
    N* head = a + j * n + j;
    // Scaled, so that squares neither overflow nor vanish.
    double most = 0;
    for (int64_t i = j; i < m; ++i) {
      most = std::max<double>(most, std::abs(a[i * n + j]));
    }
    double below = 0;
    for (int64_t i = j + 1; i < m; ++i) {
      double size = std::abs(a[i * n + j]) / most;
      below += size * size;
    }
    // Nothing is to be reflected where all elements below are 0, and the
    // diagonal is real.
    if (most == 0 || (below == 0 && std::imag(*head) == 0)) {
      factors[j] = 0;
      continue;
    }
    double first = std::abs(*head) / most;
    auto norm = most * std::sqrt(below + first * first);
    N beta = std::real(*head) < 0 ? norm : -norm;
    N factor = (beta - *head) / beta;
    N scale = *head - beta;
    factors[j] = factor;
    *head = beta;
    for (int64_t i = j + 1; i < m; ++i) {
      a[i * n + j] /= scale;
    }
    std::copy(head + 1, a + (j + 1) * n, products.begin() + j + 1);
    for (int64_t i = j + 1; i < m; ++i) {
      N v = conjugate(a[i * n + j]);
      for (int64_t c = j + 1; c < n; ++c) {
        products[c] += v * a[i * n + c];
      }
    }
    for (int64_t i = j; i < m; ++i) {
      N v = conjugate(factor) * (i == j ? N(1) : a[i * n + j]);
      for (int64_t c = j + 1; c < n; ++c) {
        a[i * n + c] -= v * products[c];
      }
    }
  }
}

/** A QR decomposition: R, and below its diagonal the vectors of the reflections
 * whose product is Q; and their factors tau, as LAPACK's geqrf. */
template <typename T>
void reflections_of(In<T> x, Out<T> out, Out<T> tau) {
  factor_copies(x, out, tau, 4, reflect<number_t<T>>);
}

} // namespace cpu
} // namespace mlx_aten
