// The loop around a scalar function, written so that g++ and clang vectorise
// it: the function is inlined to the bottom, and compiled for several
// instruction sets. Apart from MLX, so that a test can compile the loop of
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

// Where Metal is emulated only compile time matters; with sanitizers g++'s
// clones are not ready when the loader picks one.
#if defined(MLXGEN_EMULATE_METAL) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define MLXGEN_PLAIN_LOOPS
#endif

// Without inlining of all that a long scalar function calls, the loop around it
// is not vectorised. g++'s `flatten` says so of the loop; clang's holds for
// direct calls only, so there the functions themselves are marked, between
// MLXGEN_BEGIN_INLINED and MLXGEN_END_INLINED, and calls of lambdas.
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
// picks one; clang's `target_clones` are not for templates, so there it becomes
// part of the functions that multiversion() has, and must be called through it.
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

// Around a loop whose outputs may share memory with inputs, but only element
// for element. Two vectors at a time: most special functions are chains of
// dependent operations, and one vector has something to do while the other
// waits. On x86-64 that makes loops up to a fifth faster. On arm64 clang would
// take two elements of float at a time where it expects little of more, because
// vectors hold two numbers in double: of four llvm-mca expects a third less
// time in erf's inverses.
#if defined(MLXGEN_INDEPENDENT) // somebody compares
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

// The instruction sets of MLXGEN_MULTIVERSION, for functions that are written
// for each of them, and whether this processor has them.
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

/** f(), which calls a MLXGEN_MULTIVERSION function, for this processor. */
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
 * Makes gcc compute two vectors of double at a time, as clang is told above:
 * call it with the index in every iteration of a loop. gcc takes as many
 * iterations together as fill a vector of the smallest type in the loop, and
 * here that is one of four bytes. Loops over float are left alone: many compute
 * in double, and so in two vectors.
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
    asm volatile("" : : "r"(seen_)); // as if it was used
  }

 private:
  int32_t seen_ = 0;
};
#endif

namespace cpu {

// Loops always run over lanes of so many elements: an element's result then
// never depends on its place, as it would where a vectorised body and a scalar
// tail round differently.
constexpr int64_t lane = 64;

/**
 * What a loop computes: rows of elements, in the type in which they are
 * computed. A row has at least a lane of them; those behind its last whole lane
 * are computed together with some before, which so are computed twice.
 */
struct Rows {
  const void* const* in;
  // Of every input: 1 where the elements of a row follow each other, or 0 where
  // a lane of the same ones stands for it; and from row to row.
  const int64_t* across;
  const int64_t* down;
  void* const* out; // row after row
  int64_t rows;
  int64_t count; // of elements in a row
};

/** Whether all of these numbers are above 0. */
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

/** The elements of a vector of arm64. */
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
    for (int64_t start = 0; start < count; start += lane) {
      int64_t at = std::min(start, count - lane);
      const T* x[] = {(from[I] + at * across[I])...};
      T* y[] = {(to[O] + at)...};
      MLXGEN_INDEPENDENT
      for (int64_t k = 0; k < lane; ++k) {
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
