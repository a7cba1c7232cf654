// CPU kernel of the matrix exponential: scaling and squaring with the Pade
// approximant of degree 13, as in Al-Mohy and Higham, "A new scaling and
// squaring algorithm for the matrix exponential" (2009). Norms of powers are
// exact here, since products of the small powers are needed anyway. float32 is
// computed in double.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"
#include "nn/matmul.h"

namespace mlxops::cpu {

using mlxgen::In;
using mlxgen::Out;

namespace exponential {

using Values = std::vector<double>; // a square matrix, by rows

constexpr double largest_norm = 5.371920351148152; // theta of degree 13

inline Values product(const Values& a, const Values& b, int64_t n) {
  Values c(a.size());
  multiply<double>(
      n,
      n,
      n,
      Matrix<double>{a.data(), n},
      Matrix<double>{b.data(), n},
      c.data(),
      n);
  return c;
}

/** The largest sum of absolute values in a column. */
inline double norm(const Values& a, int64_t n) {
  Values sums(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      sums[j] += std::abs(a[i * n + j]);
    }
  }
  return *std::max_element(sums.begin(), sums.end());
}

/** The norm of the 27th power of the absolute values, divided by that of a. */
inline double growth(const Values& a, int64_t n) {
  Values sums(n, 1.0);
  for (int power = 0; power < 27; ++power) {
    Values next(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        next[j] += sums[i] * std::abs(a[i * n + j]);
      }
    }
    sums = std::move(next);
  }
  return *std::max_element(sums.begin(), sums.end()) / norm(a, n);
}

/** Replace b by the solution of a x = b, by elimination with pivots. */
inline void solve(Values& a, Values& b, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) {
        pivot = i;
      }
    }
    if (pivot != k) {
      std::swap_ranges(&a[k * n], &a[k * n] + n, &a[pivot * n]);
      std::swap_ranges(&b[k * n], &b[k * n] + n, &b[pivot * n]);
    }
    for (int64_t i = k + 1; i < n; ++i) {
      double factor = a[i * n + k] / a[k * n + k];
      for (int64_t j = k + 1; j < n; ++j) {
        a[i * n + j] -= factor * a[k * n + j];
      }
      for (int64_t j = 0; j < n; ++j) {
        b[i * n + j] -= factor * b[k * n + j];
      }
    }
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    for (int64_t i = k + 1; i < n; ++i) {
      double factor = a[k * n + i];
      for (int64_t j = 0; j < n; ++j) {
        b[k * n + j] -= factor * b[i * n + j];
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      b[k * n + j] /= a[k * n + k];
    }
  }
}

/** The number of squarings: a is to be divided by 2 to this power. */
inline int
squarings(const Values& a, const Values& a4, const Values& a6, int64_t n) {
  double d6 = std::pow(norm(a6, n), 1.0 / 6);
  double d8 = std::pow(norm(product(a4, a4, n), n), 1.0 / 8);
  double d10 = std::pow(norm(product(a4, a6, n), n), 1.0 / 10);
  double size = std::min(std::max(d6, d8), std::max(d8, d10));
  int s = std::max(0, int(std::ceil(std::log2(size / largest_norm))));
  // The error of rounding, by the first term that the approximant lacks: its
  // coefficient is 1 / (26! / 13!^2 * 27!).
  Values scaled = a;
  for (auto& x : scaled) {
    x = std::ldexp(x, -s);
  }
  double first = growth(scaled, n) / 113250775606021113483283660800000000.0;
  double excess = std::log2(first / 0x1p-53) / 26;
  return s + (excess > 0 ? int(std::ceil(excess)) : 0);
}

/** The exponential of a finite matrix. */
inline Values compute(Values a, int64_t n) {
  // Powers do not overflow if the norm is at most 1.
  double size = norm(a, n);
  int before = size > 1 ? std::ilogb(size) + 1 : 0;
  Values unit = a;
  for (auto& x : unit) {
    x = std::ldexp(x, -before);
  }
  Values a2 = product(unit, unit, n);
  Values a4 = product(a2, a2, n);
  Values a6 = product(a2, a4, n);
  // The powers of a itself decide the scale.
  auto powers = [&](const Values& x, int exponent) {
    Values y = x;
    for (auto& value : y) {
      value = std::ldexp(value, exponent);
    }
    return y;
  };
  int s = before <= 100
      ? squarings(a, powers(a4, 4 * before), powers(a6, 6 * before), n)
      : before;
  Values x = powers(a, -s);
  a2 = powers(a2, 2 * (before - s));
  a4 = powers(a4, 4 * (before - s));
  a6 = powers(a6, 6 * (before - s));
  Values even(n * n), odd(n * n), even_high(n * n), odd_high(n * n);
  for (int64_t i = 0; i < n * n; ++i) {
    odd_high[i] = a6[i] + 16380 * a4[i] + 40840800 * a2[i];
    even_high[i] = 182 * a6[i] + 960960 * a4[i] + 1323241920 * a2[i];
    odd[i] =
        33522128640 * a6[i] + 10559470521600 * a4[i] + 1187353796428800 * a2[i];
    even[i] = 670442572800 * a6[i] + 129060195264000 * a4[i] +
        7771770303897600 * a2[i];
  }
  for (int64_t i = 0; i < n; ++i) {
    odd[i * n + i] += 32382376266240000;
    even[i * n + i] += 64764752532480000;
  }
  Values more = product(a6, odd_high, n);
  for (int64_t i = 0; i < n * n; ++i) {
    odd[i] += more[i];
  }
  odd = product(x, odd, n);
  more = product(a6, even_high, n);
  for (int64_t i = 0; i < n * n; ++i) {
    double v = even[i] + more[i];
    even[i] = v + odd[i];
    odd[i] = v - odd[i];
  }
  solve(odd, even, n);
  for (int i = 0; i < s; ++i) {
    even = product(even, even, n);
  }
  return even;
}

} // namespace exponential

template <typename T>
void matrix_exp(In<T> a, Out<T> out) {
  int64_t n = a.dim(-1);
  if (n == 0) {
    return;
  }
  int64_t size = n * n;
  mlxgen::share(
      a.size() / size, 40 * size * n, [&](int64_t first, int64_t last) {
        for (int64_t m = first; m < last; ++m) {
          const T* from = a.data + m * size;
          T* to = out.data + m * size;
          bool finite = std::all_of(
              from, from + size, [](T x) { return std::isfinite(x); });
          if (finite) {
            auto found = exponential::compute({from, from + size}, n);
            std::transform(found.begin(), found.end(), to, [](double x) {
              return static_cast<T>(x);
            });
          } else {
            std::fill_n(to, size, std::numeric_limits<T>::quiet_NaN());
          }
        }
      });
}

} // namespace mlxops::cpu
