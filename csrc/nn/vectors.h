// Vectors of the processor's own size, for kernels with sums. A compiler may
// not change the order of a sum to vectorize a loop, and it vectorizes loops
// over parts of a sum inconsistently.
//
//   with_vectors([&]<int bytes>() { kernel<A, bytes>(...); });

#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "mlxgen/loop.h"

namespace mlxops::cpu {

// Rows padded to this many bytes consist of whole vectors on every processor.
constexpr int64_t vector_bytes = 64;

template <typename A, int bytes>
struct Vectors {
  static constexpr int64_t count = bytes / sizeof(A);
  typedef A type __attribute__((vector_size(bytes)));
  // Loaded from memory without alignment.
  typedef A loose
      __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
};

template <int bytes, typename A>
__attribute__((always_inline)) inline typename Vectors<A, bytes>::loose& vector(
    A* at) {
  return *reinterpret_cast<typename Vectors<A, bytes>::loose*>(at);
}

template <int bytes, typename A>
__attribute__((always_inline)) inline const typename Vectors<A, bytes>::loose&
vector(const A* at) {
  return *reinterpret_cast<const typename Vectors<A, bytes>::loose*>(at);
}

/** The sum of a vector's elements. */
template <typename A, int bytes>
__attribute__((always_inline)) inline A total(
    const typename Vectors<A, bytes>::type& x) {
  if constexpr (bytes > 16) {
    using Half = typename Vectors<A, bytes / 2>::type;
    auto halves = std::bit_cast<std::array<Half, 2>>(x);
    Half sum = halves[0] + halves[1];
    return total<A, bytes / 2>(sum);
  } else if constexpr (sizeof(A) == 8) {
    return x[0] + x[1];
  } else {
    return (x[0] + x[1]) + (x[2] + x[3]);
  }
}

/** The sums of the elements of 16 / sizeof(A) vectors, each as of total(). */
template <typename A, int bytes>
__attribute__((always_inline)) inline typename Vectors<A, 16>::type totals(
    const typename Vectors<A, bytes>::type* x) {
  constexpr int count = Vectors<A, 16>::count;
  if constexpr (bytes > 16) {
    using Half = typename Vectors<A, bytes / 2>::type;
    Half sums[count];
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      auto halves = std::bit_cast<std::array<Half, 2>>(x[i]);
      sums[i] = halves[0] + halves[1];
    }
    return totals<A, bytes / 2>(sums);
  } else if constexpr (count == 2) {
    return __builtin_shufflevector(x[0], x[1], 0, 2) +
        __builtin_shufflevector(x[0], x[1], 1, 3);
  } else {
    auto first = __builtin_shufflevector(x[0], x[1], 0, 4, 2, 6) +
        __builtin_shufflevector(x[0], x[1], 1, 5, 3, 7);
    auto second = __builtin_shufflevector(x[2], x[3], 0, 4, 2, 6) +
        __builtin_shufflevector(x[2], x[3], 1, 5, 3, 7);
    return __builtin_shufflevector(first, second, 0, 1, 4, 5) +
        __builtin_shufflevector(first, second, 2, 3, 6, 7);
  }
}

#ifdef MLXGEN_AVX2
namespace detail {

template <typename F>
__attribute__((target(MLXGEN_AVX512), flatten)) void with_64_bytes(const F& f) {
  MLXGEN_INLINED_CALL f.template operator()<64>();
}

template <typename F>
__attribute__((target(MLXGEN_AVX2), flatten)) void with_32_bytes(const F& f) {
  MLXGEN_INLINED_CALL f.template operator()<32>();
}

} // namespace detail
#endif

/** Call f<bytes>(), compiled for this processor's vectors. */
template <typename F>
void with_vectors(const F& f) {
#ifdef MLXGEN_AVX2
  if (mlxgen::detail::has_avx512()) {
    return detail::with_64_bytes(f);
  }
  if (mlxgen::detail::has_avx2()) {
    return detail::with_32_bytes(f);
  }
#endif
  f.template operator()<16>();
}

} // namespace mlxops::cpu
