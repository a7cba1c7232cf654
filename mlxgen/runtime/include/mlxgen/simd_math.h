// Elementary functions for CPU kernels, in a form that vectorizes:
// mlxgen::math::exp(x) and others, for float and double.
//
// On Linux x86-64, a loop over these functions is 10 to 20 times faster than
// one over std::exp. glibc's libmvec contains SIMD variants of many functions
// of <cmath> (errors below 4 ulp). gcc calls them in a vectorized loop if the
// declaration of the function has the `simd` attribute. The available variants
// depend on the glibc. The build therefore links a loop over each function
// below, and defines MLXGEN_VEC_<NAME> for those that link. Without the macro,
// and on every other system, these are the functions of <cmath>.
//
// clang has its own lists of vector functions, which -fveclib selects: on Linux
// arm64 (glibc 2.40) all of these functions; on macOS all except erfc, exp2,
// expm1, hypot and the logarithms; on Linux x86-64 only sin, cos, tan, exp, log
// and pow. Loops over the others are scalar there. Functions that do not call
// <cmath>, such as mlxops' special functions, are not affected.
//
// A loop is vectorized only if its body is straight-line code: compute all
// alternatives and choose with `c ? a : b`. Compile with -fno-math-errno and
// -fno-trapping-math. With -ftrapping-math, gcc keeps such choices as branches,
// because the unused alternative could raise an exception.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

// libmvec has a function's variants for SSE2, AVX, AVX2 and AVX-512 or none.
// `notinbranch`: the masked variants do not exist.
#define MLXGEN_VEC_1(name)                                            \
  extern "C" {                                                        \
  __attribute__((simd("notinbranch"))) double name(double) noexcept;  \
  __attribute__((simd("notinbranch"))) float name##f(float) noexcept; \
  }
#define MLXGEN_VEC_2(name)                                                   \
  extern "C" {                                                               \
  __attribute__((simd("notinbranch"))) double name(double, double) noexcept; \
  __attribute__((simd("notinbranch"))) float name##f(float, float) noexcept; \
  }

#ifdef MLXGEN_VEC_ACOS
MLXGEN_VEC_1(acos)
#endif
#ifdef MLXGEN_VEC_ACOSH
MLXGEN_VEC_1(acosh)
#endif
#ifdef MLXGEN_VEC_ASIN
MLXGEN_VEC_1(asin)
#endif
#ifdef MLXGEN_VEC_ASINH
MLXGEN_VEC_1(asinh)
#endif
#ifdef MLXGEN_VEC_ATAN
MLXGEN_VEC_1(atan)
#endif
#ifdef MLXGEN_VEC_ATANH
MLXGEN_VEC_1(atanh)
#endif
#ifdef MLXGEN_VEC_CBRT
MLXGEN_VEC_1(cbrt)
#endif
#ifdef MLXGEN_VEC_COS
MLXGEN_VEC_1(cos)
#endif
#ifdef MLXGEN_VEC_COSH
MLXGEN_VEC_1(cosh)
#endif
#ifdef MLXGEN_VEC_ERF
MLXGEN_VEC_1(erf)
#endif
#ifdef MLXGEN_VEC_ERFC
MLXGEN_VEC_1(erfc)
#endif
#ifdef MLXGEN_VEC_EXP
MLXGEN_VEC_1(exp)
#endif
#ifdef MLXGEN_VEC_EXP2
MLXGEN_VEC_1(exp2)
#endif
#ifdef MLXGEN_VEC_EXPM1
MLXGEN_VEC_1(expm1)
#endif
#ifdef MLXGEN_VEC_LOG
MLXGEN_VEC_1(log)
#endif
#ifdef MLXGEN_VEC_LOG10
MLXGEN_VEC_1(log10)
#endif
#ifdef MLXGEN_VEC_LOG1P
MLXGEN_VEC_1(log1p)
#endif
#ifdef MLXGEN_VEC_LOG2
MLXGEN_VEC_1(log2)
#endif
#ifdef MLXGEN_VEC_SIN
MLXGEN_VEC_1(sin)
#endif
#ifdef MLXGEN_VEC_SINH
MLXGEN_VEC_1(sinh)
#endif
#ifdef MLXGEN_VEC_TAN
MLXGEN_VEC_1(tan)
#endif
#ifdef MLXGEN_VEC_TANH
MLXGEN_VEC_1(tanh)
#endif
#ifdef MLXGEN_VEC_ATAN2
MLXGEN_VEC_2(atan2)
#endif
#ifdef MLXGEN_VEC_HYPOT
MLXGEN_VEC_2(hypot)
#endif
#ifdef MLXGEN_VEC_POW
MLXGEN_VEC_2(pow)
#endif

#undef MLXGEN_VEC_1
#undef MLXGEN_VEC_2

namespace mlxgen::math {

#define MLXGEN_MATH_1(name)      \
  inline float name(float x) {   \
    return std::name(x);         \
  }                              \
  inline double name(double x) { \
    return std::name(x);         \
  }
#define MLXGEN_MATH_2(name)                \
  inline float name(float x, float y) {    \
    return std::name(x, y);                \
  }                                        \
  inline double name(double x, double y) { \
    return std::name(x, y);                \
  }

// Vectorized if libmvec has them.
MLXGEN_MATH_1(acos)
MLXGEN_MATH_1(acosh)
MLXGEN_MATH_1(asin)
MLXGEN_MATH_1(asinh)
MLXGEN_MATH_1(atan)
MLXGEN_MATH_1(atanh)
MLXGEN_MATH_1(cbrt)
MLXGEN_MATH_1(cos)
MLXGEN_MATH_1(cosh)
MLXGEN_MATH_1(erf)
MLXGEN_MATH_1(erfc)
MLXGEN_MATH_1(exp2)
MLXGEN_MATH_1(expm1)
MLXGEN_MATH_1(log)
MLXGEN_MATH_1(log10)
MLXGEN_MATH_1(log1p)
MLXGEN_MATH_1(log2)
MLXGEN_MATH_1(sin)
MLXGEN_MATH_1(sinh)
MLXGEN_MATH_1(tan)
MLXGEN_MATH_1(tanh)
MLXGEN_MATH_2(atan2)
MLXGEN_MATH_2(hypot)
MLXGEN_MATH_2(pow)

// Single instructions or short sequences on every system.
MLXGEN_MATH_1(ceil)
MLXGEN_MATH_1(fabs)
MLXGEN_MATH_1(floor)
MLXGEN_MATH_1(rint)
MLXGEN_MATH_1(sqrt)
MLXGEN_MATH_1(trunc)
MLXGEN_MATH_2(copysign)

#ifdef __clang__
/**
 * exp(x), to 1.1 ulp. clang knows no vector variant for AVX-512, and a call
 * saves all registers.
 */
template <typename T>
inline T inlined_exp(T x) {
  constexpr bool narrow = sizeof(T) == 4;
  using Bits = std::conditional_t<narrow, uint32_t, uint64_t>;
  constexpr int digits = narrow ? 23 : 52;
  constexpr int terms = narrow ? 7 : 13;
  // Beyond these limits the result is 0 or infinite. NaN remains NaN.
  constexpr T least = narrow ? -104 : -746;
  constexpr T most = narrow ? 89 : 710;
  T inside = x < least ? least : x > most ? most : x;
  // The last bits of a sum with it are the integer nearest to the number.
  constexpr T shift = T(1.5) * (Bits(1) << digits);
  T k = (inside * T(0x1.71547652b82fep0) + shift) - shift;
  // log 2 in two parts: the product with the first part is exact.
  T r = inside - k * (narrow ? T(0x1.62e4p-1) : T(0x1.62e42feep-1));
  r = r - k * (narrow ? T(0x1.7f7d1cp-20) : T(0x1.a39ef35793c76p-33));
  T factorial = narrow ? T(5040) : T(6227020800);
  T y = 1 / factorial;
  for (int n = terms; n > 2; --n) {
    factorial = factorial / n;
    y = y * r + 1 / factorial;
  }
  y = 1 + (r + r * r * y);
  // 2^k in two steps, since the result may be subnormal.
  auto power = [](T n) {
    Bits bits = std::bit_cast<Bits>(n + shift) << digits;
    return std::bit_cast<T>(bits + std::bit_cast<Bits>(T(1)));
  };
  T half = (T(0.5) * k + shift) - shift;
  return y * power(half) * power(k - half);
}
inline float exp(float x) {
  return inlined_exp(x);
}
inline double exp(double x) {
  return inlined_exp(x);
}
#else
MLXGEN_MATH_1(exp)
#endif

#undef MLXGEN_MATH_1
#undef MLXGEN_MATH_2

/** x rounded to the nearest integer, halves away from zero. */
template <typename T>
inline T round(T x) {
  // std::round is a library call on x86. If |x| is so large that adding a half
  // rounds, x is already an integer.
  T whole = trunc(x);
  T up = whole + copysign(T(1), x);
  return fabs(x - whole) >= T(0.5) ? up : whole;
}

/** The smaller of two numbers; if one is NaN, the other one. */
template <typename T>
inline T fmin(T x, T y) {
  return x < y || y != y ? x : y;
}

/** The larger of two numbers; if one is NaN, the other one. */
template <typename T>
inline T fmax(T x, T y) {
  return x > y || y != y ? x : y;
}

} // namespace mlxgen::math
