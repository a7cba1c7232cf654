// Metal's packed vectors, its matrices, and colors packed into integers.

#pragma once

#include "mlxgen_metal/types.h"

namespace metal {

// ---------------------------------------------------------- packed vectors

/** A vector in memory, with the alignment of its components. */
template <typename T, int N>
struct packed_vec;
template <typename T, int N>
struct vec_traits<packed_vec<T, N>> {
  static constexpr int size = N;
};

template <typename T>
constexpr const T& unpacked(const T& a) {
  return a;
}
template <typename T, int N>
constexpr vec<T, N> unpacked(const packed_vec<T, N>& a) {
  return a;
}
template <typename T>
concept Packed =
    !std::is_same_v<decltype(unpacked(std::declval<T>())), const T&>;

template <typename T, int N>
struct packed_data;
template <typename T>
struct packed_data<T, 2> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
};
template <typename T>
struct packed_data<T, 3> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
  union {
    T z, b;
  };
};
template <typename T>
struct packed_data<T, 4> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
  union {
    T z, b;
  };
  union {
    T w, a;
  };
};

template <typename T, int N>
struct packed_vec : packed_data<T, N> {
  packed_vec() = default;
  constexpr packed_vec(const vec<T, N>& a) {
    *this = a;
  }
  template <typename... A>
    requires(sizeof...(A) > 1 && requires(A... a) { vec<T, N>(a...); })
  constexpr packed_vec(const A&... a) : packed_vec(vec<T, N>(a...)) {}
  template <typename A>
    requires(requires(A a) { vec<T, N>(a); })
  explicit constexpr packed_vec(const A& a) : packed_vec(vec<T, N>(a)) {}

  constexpr packed_vec& operator=(const vec<T, N>& a) {
    for (int i = 0; i < N; ++i) {
      (*this)[i] = a.get(i);
    }
    return *this;
  }
  template <typename S>
  explicit(!std::is_same_v<S, T>) constexpr operator vec<S, N>() const {
    vec<S, N> out;
    for (int i = 0; i < N; ++i) {
      out.set(i, static_cast<S>(get(i)));
    }
    return out;
  }

  constexpr T& operator[](int i) {
    return (&this->x)[i];
  }
  constexpr const T& operator[](int i) const {
    return (&this->x)[i];
  }
  constexpr T get(int i) const {
    return (*this)[i];
  }
  constexpr void set(int i, T value) {
    (*this)[i] = value;
  }
  template <int... I>
  constexpr auto swz(mlxgen_metal::Swizzle<I...> lanes) const {
    return vec<T, N>(*this).swz(lanes);
  }
  template <int... I>
  constexpr auto swz_to(mlxgen_metal::Swizzle<I...>) {
    using R = vec<T, int(sizeof...(I))>;
    return SwizzleReference<packed_vec, R, I...>{*this};
  }
};

#define MLXGEN_PACKED_OPERATOR(op)                     \
  template <typename A, typename B>                    \
    requires(Packed<A> || Packed<B>)                   \
  constexpr auto operator op(const A& a, const B& b) { \
    return unpacked(a) op unpacked(b);                 \
  }                                                    \
  template <typename T, int N, typename B>             \
  constexpr packed_vec<T, N>& operator op## =          \
      (packed_vec<T, N> & a, const B& b) {             \
    return a = unpacked(a) op unpacked(b);             \
  }
MLXGEN_PACKED_OPERATOR(+)
MLXGEN_PACKED_OPERATOR(-)
MLXGEN_PACKED_OPERATOR(*)
MLXGEN_PACKED_OPERATOR(/)
#undef MLXGEN_PACKED_OPERATOR
template <Packed P>
constexpr auto operator-(const P& a) {
  return -unpacked(a);
}

// ---------------------------------------------------------------- matrices

/** A matrix of C columns with R components each. */
template <typename T, int C, int R>
struct matrix {
  vec<T, R> columns[C];

  matrix() = default;
  explicit constexpr matrix(T diagonal) {
    for (int c = 0; c < C; ++c) {
      columns[c] = vec<T, R>(T(0));
      if (c < R) {
        columns[c][c] = diagonal;
      }
    }
  }
  template <typename... A>
    requires(sizeof...(A) == C && (std::is_convertible_v<A, vec<T, R>> && ...))
  constexpr matrix(const A&... a) : columns{vec<T, R>(a)...} {}
  template <typename... A>
    requires(sizeof...(A) == C * R && (std::is_convertible_v<A, T> && ...))
  constexpr matrix(const A&... a) {
    int k = 0;
    ((columns[k / R][k % R] = static_cast<T>(a), ++k), ...);
  }
  template <typename S>
    requires(!std::is_same_v<S, T>)
  explicit constexpr matrix(const matrix<S, C, R>& other) {
    for (int c = 0; c < C; ++c) {
      columns[c] = vec<T, R>(other[c]);
    }
  }

  constexpr vec<T, R>& operator[](int c) {
    return columns[c];
  }
  constexpr const vec<T, R>& operator[](int c) const {
    return columns[c];
  }
};

#define MLXGEN_MATRIX_OPERATOR(op)                          \
  template <typename T, int C, int R>                       \
  constexpr matrix<T, C, R> operator op(                    \
      const matrix<T, C, R>& a, const matrix<T, C, R>& b) { \
    matrix<T, C, R> out;                                    \
    for (int c = 0; c < C; ++c) {                           \
      out[c] = a[c] op b[c];                                \
    }                                                       \
    return out;                                             \
  }
MLXGEN_MATRIX_OPERATOR(+)
MLXGEN_MATRIX_OPERATOR(-)
#undef MLXGEN_MATRIX_OPERATOR
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator-(const matrix<T, C, R>& a) {
  return matrix<T, C, R>(T(0)) - a;
}
template <typename T, int C, int R, typename S>
  requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)
constexpr matrix<T, C, R> operator*(const matrix<T, C, R>& a, const S& b) {
  matrix<T, C, R> out;
  for (int c = 0; c < C; ++c) {
    out[c] = a[c] * static_cast<T>(b);
  }
  return out;
}
template <typename T, int C, int R, typename S>
  requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)
constexpr matrix<T, C, R> operator*(const S& a, const matrix<T, C, R>& b) {
  return b * a;
}
template <typename T, int C, int R, typename S>
  requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)
constexpr matrix<T, C, R> operator/(const matrix<T, C, R>& a, const S& b) {
  matrix<T, C, R> out;
  for (int c = 0; c < C; ++c) {
    out[c] = a[c] / static_cast<T>(b);
  }
  return out;
}
template <typename T, int C, int R>
constexpr vec<T, R> operator*(
    const matrix<T, C, R>& a,
    const mlxgen_metal::Same<vec<T, C>>& b) {
  vec<T, R> out = a[0] * b.get(0);
  for (int c = 1; c < C; ++c) {
    out += a[c] * b.get(c);
  }
  return out;
}
template <typename T, int C, int R>
constexpr vec<T, C> operator*(
    const mlxgen_metal::Same<vec<T, R>>& a,
    const matrix<T, C, R>& b) {
  vec<T, C> out;
  for (int c = 0; c < C; ++c) {
    T sum = a.get(0) * b[c].get(0);
    for (int r = 1; r < R; ++r) {
      sum += a.get(r) * b[c].get(r);
    }
    out.set(c, sum);
  }
  return out;
}
template <typename T, int K, int C, int R>
constexpr matrix<T, C, R> operator*(
    const matrix<T, K, R>& a,
    const matrix<T, C, K>& b) {
  matrix<T, C, R> out;
  for (int c = 0; c < C; ++c) {
    out[c] = a * b[c];
  }
  return out;
}
#define MLXGEN_MATRIX_ASSIGN(op)                  \
  template <typename T, int C, int R, typename S> \
  constexpr matrix<T, C, R>& operator op## =      \
      (matrix<T, C, R> & a, const S& b) {         \
    return a = a op b;                            \
  }
MLXGEN_MATRIX_ASSIGN(+)
MLXGEN_MATRIX_ASSIGN(-)
MLXGEN_MATRIX_ASSIGN(*)
#undef MLXGEN_MATRIX_ASSIGN

template <typename T, int C, int R>
constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& a) {
  matrix<T, R, C> out;
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      out[r][c] = a[c].get(r);
    }
  }
  return out;
}
/** The determinant, along the first column. */
template <typename T, int N>
constexpr T determinant(const matrix<T, N, N>& a) {
  if constexpr (N == 2) {
    return static_cast<T>(
        a[0].get(0) * a[1].get(1) - a[1].get(0) * a[0].get(1));
  } else {
    T out(0);
    for (int r = 0; r < N; ++r) {
      matrix<T, N - 1, N - 1> rest;
      for (int i = 0; i < (N - 1) * (N - 1); ++i) {
        int row = i % (N - 1);
        rest[i / (N - 1)][row] = a[i / (N - 1) + 1].get(row + (row >= r));
      }
      T term = static_cast<T>(a[0].get(r) * determinant(rest));
      out = static_cast<T>(r % 2 == 0 ? out + term : out - term);
    }
    return out;
  }
}

} // namespace metal

#define MLXGEN_PACKED_VECTORS(T)                 \
  using packed_##T##2 = metal::packed_vec<T, 2>; \
  using packed_##T##3 = metal::packed_vec<T, 3>; \
  using packed_##T##4 = metal::packed_vec<T, 4>; \
  namespace metal {                              \
  using ::packed_##T##2;                         \
  using ::packed_##T##3;                         \
  using ::packed_##T##4;                         \
  }
MLXGEN_PACKED_VECTORS(char)
MLXGEN_PACKED_VECTORS(uchar)
MLXGEN_PACKED_VECTORS(short)
MLXGEN_PACKED_VECTORS(ushort)
MLXGEN_PACKED_VECTORS(int)
MLXGEN_PACKED_VECTORS(uint)
MLXGEN_PACKED_VECTORS(long)
MLXGEN_PACKED_VECTORS(ulong)
MLXGEN_PACKED_VECTORS(half)
MLXGEN_PACKED_VECTORS(bfloat)
MLXGEN_PACKED_VECTORS(float)
#undef MLXGEN_PACKED_VECTORS

#define MLXGEN_MATRICES(T)               \
  using T##2x2 = metal::matrix<T, 2, 2>; \
  using T##2x3 = metal::matrix<T, 2, 3>; \
  using T##2x4 = metal::matrix<T, 2, 4>; \
  using T##3x2 = metal::matrix<T, 3, 2>; \
  using T##3x3 = metal::matrix<T, 3, 3>; \
  using T##3x4 = metal::matrix<T, 3, 4>; \
  using T##4x2 = metal::matrix<T, 4, 2>; \
  using T##4x3 = metal::matrix<T, 4, 3>; \
  using T##4x4 = metal::matrix<T, 4, 4>; \
  namespace metal {                      \
  using ::T##2x2;                        \
  using ::T##2x3;                        \
  using ::T##2x4;                        \
  using ::T##3x2;                        \
  using ::T##3x3;                        \
  using ::T##3x4;                        \
  using ::T##4x2;                        \
  using ::T##4x3;                        \
  using ::T##4x4;                        \
  }
MLXGEN_MATRICES(half)
MLXGEN_MATRICES(float)
#undef MLXGEN_MATRICES
