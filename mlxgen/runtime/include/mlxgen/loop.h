// The loop around a scalar function, written so that g++ and clang vectorize
// it: the function is completely inlined and compiled for several instruction
// sets. This file is independent of MLX, so that a test can compile the loop of
// every operator.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

// For the Metal emulation only compile time matters. With sanitizers, g++'s
// clones are not ready when the loader selects one.
#if defined(MLXGEN_EMULATE_METAL) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define MLXGEN_PLAIN_LOOPS
#endif

// The loop around a long scalar function is vectorized only if all functions
// that it calls are inlined. g++'s `flatten` on the loop does this; clang's
// applies to direct calls only. With clang the functions themselves are marked,
// between MLXGEN_BEGIN_INLINED and MLXGEN_END_INLINED, and calls of lambdas are
// marked.
#if defined(__clang__) && defined(__OPTIMIZE__) && \
    !defined(MLXGEN_EMULATE_METAL)
#define MLXGEN_PRAGMA(text) _Pragma(#text)
#define MLXGEN_BEGIN_INLINED                                         \
  MLXGEN_PRAGMA(clang diagnostic push)                               \
  MLXGEN_PRAGMA(clang diagnostic ignored "-Wpragma-clang-attribute") \
  MLXGEN_PRAGMA(                                                     \
      clang attribute push(                                          \
          __attribute__((always_inline)), apply_to = function))
#define MLXGEN_END_INLINED           \
  MLXGEN_PRAGMA(clang attribute pop) \
  MLXGEN_PRAGMA(clang diagnostic pop)
#else
#define MLXGEN_BEGIN_INLINED
#define MLXGEN_END_INLINED
#endif
#if defined(__clang__) && __clang_major__ >= 15
#define MLXGEN_INLINED_CALL [[clang::always_inline]]
#else
#define MLXGEN_INLINED_CALL
#endif

// A function that is compiled for several instruction sets. With g++ the loader
// selects one. clang's `target_clones` do not apply to templates; with clang
// the function becomes part of the functions in multiversion(), and must be
// called through it.
#if defined(__clang__)
#define MLXGEN_MULTIVERSION __attribute__((always_inline)) inline
#elif defined(MLXGEN_PLAIN_LOOPS)
#define MLXGEN_MULTIVERSION
#elif defined(__x86_64__) && defined(__linux__)
#define MLXGEN_MULTIVERSION \
  __attribute__((           \
      flatten, target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define MLXGEN_MULTIVERSION __attribute__((flatten))
#endif

// For a loop whose outputs may share memory with inputs, but only element for
// element. It computes two vectors at a time: most special functions are chains
// of dependent operations, so that the second vector can use the time in which
// the first one waits. This makes loops on x86-64 up to a fifth faster. On
// arm64, vectors hold two doubles, and clang would compute two elements of
// float at a time if it expects little gain from more; for erf's inverses,
// llvm-mca expects a third less time for four elements.
#if defined(MLXGEN_INDEPENDENT) // set by benchmarks
#elif defined(__clang__) && defined(__aarch64__)
#define MLXGEN_INDEPENDENT                           \
  _Pragma("clang loop interleave_count(2)") _Pragma( \
      "clang loop vectorize(assume_safety) vectorize_width(at_a_time<T>)")
#elif defined(__clang__)
#define MLXGEN_INDEPENDENT \
  _Pragma("clang loop vectorize(assume_safety) interleave_count(2)")
#elif defined(__GNUC__)
#define MLXGEN_INDEPENDENT _Pragma("GCC ivdep")
#else
#define MLXGEN_INDEPENDENT
#endif

namespace mlxgen {

// The instruction sets of MLXGEN_MULTIVERSION, for functions with a separate
// version for each, and tests of this processor for them.
#if defined(__x86_64__) && defined(__linux__) && !defined(MLXGEN_PLAIN_LOOPS)
#define MLXGEN_AVX2 "avx2,bmi,bmi2,fma"
#define MLXGEN_AVX512 MLXGEN_AVX2 ",avx512f,avx512bw,avx512cd,avx512dq,avx512vl"

namespace detail {

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

} // namespace detail
#endif

#if defined(__clang__) && defined(MLXGEN_AVX2)
namespace detail {

template <typename F>
__attribute__((target(MLXGEN_AVX2))) auto with_avx2(F f) {
  MLXGEN_INLINED_CALL return f();
}

template <typename F>
__attribute__((target(MLXGEN_AVX512))) auto with_avx512(F f) {
  MLXGEN_INLINED_CALL return f();
}

} // namespace detail
#endif

/** Call f(), which calls a MLXGEN_MULTIVERSION function, for this processor. */
template <typename F>
auto multiversion(F f) {
#if defined(__clang__) && defined(MLXGEN_AVX2)
  if (detail::has_avx512()) {
    return detail::with_avx512(f);
  }
  if (detail::has_avx2()) {
    return detail::with_avx2(f);
  }
#endif
  MLXGEN_INLINED_CALL return f();
}

/**
 * Makes gcc compute two vectors of double at a time, as clang does above. Call
 * it with the index in every iteration of a loop. gcc processes as many
 * iterations together as fill a vector of the smallest type in the loop, and
 * this function uses a type of four bytes. Loops over float are unchanged: many
 * compute in double, and thus in two vectors.
 */
template <typename T>
class Interleaved {
 public:
  void operator()(int64_t) {}
};

#if defined(__GNUC__) && !defined(__clang__)
template <>
class Interleaved<double> {
 public:
  void operator()(int64_t k) {
    seen_ ^= static_cast<int32_t>(k);
  }
  ~Interleaved() {
    asm volatile("" : : "r"(seen_)); // prevents removal as unused
  }

 private:
  int32_t seen_ = 0;
};
#endif

namespace cpu {

// Loops always process strips of this many elements. The result for an element
// therefore does not depend on its position. It would if a vectorized body and
// a scalar tail rounded differently.
constexpr int64_t strip = 64;

/**
 * The work of a loop: rows of elements, in the computing type. A row has at
 * least one strip of elements. The elements after its last complete strip are
 * computed as a strip that overlaps the previous one, so that some are computed
 * twice.
 */
struct Rows {
  const void* const* in;
  // For every input: the stride in a row, which is 1, or 0 if a strip of equal
  // elements represents the row; and the stride between rows.
  const int64_t* across;
  const int64_t* down;
  void* const* out; // one row after another
  int64_t rows;
  int64_t count; // number of elements in a row
};

/** Return true if all of these numbers are above 0. */
template <typename T>
MLXGEN_MULTIVERSION bool all_positive_here(const T* x, int64_t count) {
  int others = 0;
  for (int64_t k = 0; k < count; ++k) {
    others |= x[k] > 0 ? 0 : 1;
  }
  return others == 0;
}

template <typename T>
bool all_positive(const T* x, int64_t count) {
  return multiversion([&] { return all_positive_here(x, count); });
}

/** The number of elements in an arm64 vector. */
template <typename T>
constexpr int at_a_time = 16 / sizeof(T);

/** The loop around a scalar function. */
template <typename T, typename F, size_t... I, size_t... O>
MLXGEN_MULTIVERSION void each_here(
    F element,
    const Rows& rows,
    std::index_sequence<I...>,
    std::index_sequence<O...>) {
  const T* from[] = {static_cast<const T*>(rows.in[I])...};
  T* to[] = {static_cast<T*>(rows.out[O])...};
  const int64_t across[] = {rows.across[I]...};
  const int64_t count = rows.count;
  Interleaved<T> interleaved;
  for (int64_t row = 0; row < rows.rows; ++row) {
    for (int64_t start = 0; start < count; start += strip) {
      int64_t at = std::min(start, count - strip);
      const T* x[] = {(from[I] + at * across[I])...};
      T* y[] = {(to[O] + at)...};
      MLXGEN_INDEPENDENT
      for (int64_t k = 0; k < strip; ++k) {
        MLXGEN_INLINED_CALL element(x[I][k]..., y[O][k]...);
        interleaved(k);
      }
    }
    ((from[I] += rows.down[I]), ...);
    ((to[O] += count), ...);
  }
}

template <typename T, typename F, typename In, typename Out>
void each(F element, const Rows& rows, In in, Out out) {
  multiversion([&] { each_here<T>(element, rows, in, out); });
}

} // namespace cpu
} // namespace mlxgen
