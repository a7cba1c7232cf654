// Metal's mathematical, integer, relational and geometric functions, in C++.
// They use the compiler's built-ins and not <cmath>, because kernels define
// functions with the global names of <cmath>. All variants of a function (fast,
// precise, default) are the same here, correctly rounded or nearly so: the
// emulation does not model fast math.

#pragma once

#include "mlxgen_metal/limits.h"
#include "mlxgen_metal/packed.h"

namespace mlxgen_metal {

inline float sinpi(float x) {
  double r = x - 2 * __builtin_rint(double(x) / 2);
  return float(__builtin_sin(3.14159265358979323846 * r));
}
inline float cospi(float x) {
  double r = x - 2 * __builtin_rint(double(x) / 2);
  return float(__builtin_cos(3.14159265358979323846 * r));
}
constexpr float median3(float a, float b, float c) {
  return __builtin_fmaxf(
      __builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c));
}
inline float fract(float x) {
  return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f);
}

} // namespace mlxgen_metal

// name, and its value for a float x (y, z)
#define MLXGEN_UNARY_FUNCTIONS(X)                           \
  X(acos, __builtin_acosf(x))                               \
  X(acosh, __builtin_acoshf(x))                             \
  X(asin, __builtin_asinf(x))                               \
  X(asinh, __builtin_asinhf(x))                             \
  X(atan, __builtin_atanf(x))                               \
  X(atanh, __builtin_atanhf(x))                             \
  X(ceil, __builtin_ceilf(x))                               \
  X(cos, __builtin_cosf(x))                                 \
  X(cosh, __builtin_coshf(x))                               \
  X(cospi, mlxgen_metal::cospi(x))                          \
  X(exp, __builtin_expf(x))                                 \
  X(exp10, float(__builtin_pow(10.0, double(x))))           \
  X(exp2, __builtin_exp2f(x))                               \
  X(fabs, __builtin_fabsf(x))                               \
  X(floor, __builtin_floorf(x))                             \
  X(fract, mlxgen_metal::fract(x))                          \
  X(log, __builtin_logf(x))                                 \
  X(log10, __builtin_log10f(x))                             \
  X(log2, __builtin_log2f(x))                               \
  X(rint, __builtin_rintf(x))                               \
  X(round, __builtin_roundf(x))                             \
  X(rsqrt, float(1.0 / __builtin_sqrt(double(x))))          \
  X(sin, __builtin_sinf(x))                                 \
  X(sinh, __builtin_sinhf(x))                               \
  X(sinpi, mlxgen_metal::sinpi(x))                          \
  X(sqrt, __builtin_sqrtf(x))                               \
  X(tan, __builtin_tanf(x))                                 \
  X(tanh, __builtin_tanhf(x))                               \
  X(tanpi, mlxgen_metal::sinpi(x) / mlxgen_metal::cospi(x)) \
  X(trunc, __builtin_truncf(x))

#define MLXGEN_BINARY_FUNCTIONS(X)         \
  X(atan2, __builtin_atan2f(x, y))         \
  X(copysign, __builtin_copysignf(x, y))   \
  X(divide, x / y)                         \
  X(fdim, __builtin_fdimf(x, y))           \
  X(fmax, __builtin_fmaxf(x, y))           \
  X(fmin, __builtin_fminf(x, y))           \
  X(fmod, __builtin_fmodf(x, y))           \
  X(nextafter, __builtin_nextafterf(x, y)) \
  X(pow, __builtin_powf(x, y))             \
  X(powr, __builtin_powf(x, y))

#define MLXGEN_TERNARY_FUNCTIONS(X)                   \
  X(fma, __builtin_fmaf(x, y, z))                     \
  X(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z))) \
  X(fmin3, __builtin_fminf(x, __builtin_fminf(y, z))) \
  X(fmedian3, mlxgen_metal::median3(x, y, z))

// A built-in below <metal_math>, which MLX's bf16_math.h calls.
#define X(name, value)                        \
  inline float __metal_##name(float x, int) { \
    return value;                             \
  }
MLXGEN_UNARY_FUNCTIONS(X)
#undef X
#define X(name, value)                                 \
  inline float __metal_##name(float x, float y, int) { \
    return value;                                      \
  }
MLXGEN_BINARY_FUNCTIONS(X)
#undef X
#define X(name, value)                                          \
  inline float __metal_##name(float x, float y, float z, int) { \
    return value;                                               \
  }
MLXGEN_TERNARY_FUNCTIONS(X)
#undef X
inline float __metal_ldexp(float x, int n, int) {
  return __builtin_ldexpf(x, n);
}
inline float __metal_frexp(float x, int* n, int) {
  return __builtin_frexpf(x, n);
}
inline float __metal_frexp(float x, int* n) {
  return __builtin_frexpf(x, n);
}
inline float __metal_nextafter(float x, float y) {
  return __builtin_nextafterf(x, y);
}
inline float __metal_modf(float x, float* whole, int) {
  return __builtin_modff(x, whole);
}
inline float __metal_fma(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}

namespace metal {

/** Apply a scalar function to each component. */
template <typename F, typename T, int N, typename... V>
constexpr auto each(F f, const vec<T, N>& a, const V&... rest) {
  vec<decltype(f(a.x, rest.x...)), N> out;
  for (int i = 0; i < N; ++i) {
    out.set(i, f(a.get(i), rest.get(i)...));
  }
  return out;
}

// A function of components, for vectors; a scalar next to a vector stands for a
// vector of it.
using mlxgen_metal::Same;
template <typename S>
concept Single = vec_traits<S>::size == 0;
#define MLXGEN_EACH(name)                                        \
  template <typename T, int N>                                   \
  constexpr vec<T, N> name(const vec<T, N>& a) {                 \
    return each([](T x) { return static_cast<T>(name(x)); }, a); \
  }
#define MLXGEN_EACH_2(name)                                                 \
  template <typename T, int N>                                              \
  constexpr vec<T, N> name(const vec<T, N>& a, const Same<vec<T, N>>& b) {  \
    return each([](T x, T y) { return static_cast<T>(name(x, y)); }, a, b); \
  }                                                                         \
  template <Single S, typename T, int N>                                    \
  constexpr vec<T, N> name(const S& a, const vec<T, N>& b) {                \
    return name(vec<T, N>(a), b);                                           \
  }
#define MLXGEN_EACH_3(name)                                                 \
  template <typename T, int N>                                              \
  constexpr vec<T, N> name(                                                 \
      const vec<T, N>& a,                                                   \
      const Same<vec<T, N>>& b,                                             \
      const Same<vec<T, N>>& c) {                                           \
    auto one = [](T x, T y, T z) { return static_cast<T>(name(x, y, z)); }; \
    return each(one, a, b, c);                                              \
  }                                                                         \
  template <Single S, typename T, int N>                                    \
  constexpr vec<T, N> name(                                                 \
      const S& a, const vec<T, N>& b, const Same<vec<T, N>>& c) {           \
    return name(vec<T, N>(a), b, c);                                        \
  }                                                                         \
  template <Single S, Single R, typename T, int N>                          \
  constexpr vec<T, N> name(const S& a, const R& b, const vec<T, N>& c) {    \
    return name(vec<T, N>(a), vec<T, N>(b), c);                             \
  }

#define MLXGEN_UNARY(name, value)    \
  inline float name(float x) {       \
    return value;                    \
  }                                  \
  inline half name(half h) {         \
    float x = h;                     \
    return static_cast<half>(value); \
  }                                  \
  MLXGEN_EACH(name)
#define MLXGEN_BINARY(name, value)      \
  inline float name(float x, float y) { \
    return value;                       \
  }                                     \
  inline half name(half h, half k) {    \
    float x = h;                        \
    float y = k;                        \
    return static_cast<half>(value);    \
  }                                     \
  MLXGEN_EACH_2(name)
#define MLXGEN_TERNARY(name, value)              \
  inline float name(float x, float y, float z) { \
    return value;                                \
  }                                              \
  inline half name(half h, half k, half l) {     \
    float x = h;                                 \
    float y = k;                                 \
    float z = l;                                 \
    return static_cast<half>(value);             \
  }                                              \
  MLXGEN_EACH_3(name)
#define MLXGEN_ALL_FUNCTIONS                                  \
  MLXGEN_UNARY_FUNCTIONS(MLXGEN_UNARY)                        \
  MLXGEN_BINARY_FUNCTIONS(MLXGEN_BINARY)                      \
  MLXGEN_TERNARY_FUNCTIONS(MLXGEN_TERNARY)                    \
  template <typename T>                                       \
    requires(is_floating_point_v<T> && !is_same_v<T, bfloat>) \
  constexpr T ldexp(T x, int n) {                             \
    return static_cast<T>(__builtin_ldexpf(x, n));            \
  }                                                           \
  template <typename T>                                       \
    requires(is_floating_point_v<T> && !is_same_v<T, bfloat>) \
  constexpr T frexp(T x, int& n) {                            \
    return static_cast<T>(__builtin_frexpf(x, &n));           \
  }                                                           \
  template <typename T>                                       \
    requires(is_floating_point_v<T> && !is_same_v<T, bfloat>) \
  constexpr T modf(T x, T& whole) {                           \
    float w = 0;                                              \
    float r = __builtin_modff(x, &w);                         \
    whole = static_cast<T>(w);                                \
    return static_cast<T>(r);                                 \
  }                                                           \
  template <typename T>                                       \
    requires(is_floating_point_v<T> && !is_same_v<T, bfloat>) \
  constexpr T sincos(T x, T& cosine) {                        \
    cosine = cos(x);                                          \
    return sin(x);                                            \
  }

MLXGEN_ALL_FUNCTIONS
namespace fast {
MLXGEN_ALL_FUNCTIONS
} // namespace fast
namespace precise {
MLXGEN_ALL_FUNCTIONS
} // namespace precise
#undef MLXGEN_UNARY
#undef MLXGEN_BINARY
#undef MLXGEN_TERNARY
#undef MLXGEN_ALL_FUNCTIONS

// ------------------------------------------------ for integers and floats

template <typename T>
  requires(is_integral_v<T>)
constexpr T abs(T x) {
  return x < 0 ? T(-x) : x;
}
constexpr float abs(float x) {
  return __builtin_fabsf(x);
}
constexpr half abs(half x) {
  return static_cast<half>(__builtin_fabsf(x));
}
MLXGEN_EACH(abs)

template <typename T>
  requires(is_integral_v<T>)
constexpr T min(T x, T y) {
  return y < x ? y : x;
}
template <typename T>
  requires(is_integral_v<T>)
constexpr T max(T x, T y) {
  return x < y ? y : x;
}
constexpr float min(float x, float y) {
  return __builtin_fminf(x, y);
}
constexpr float max(float x, float y) {
  return __builtin_fmaxf(x, y);
}
constexpr half min(half x, half y) {
  return static_cast<half>(__builtin_fminf(x, y));
}
constexpr half max(half x, half y) {
  return static_cast<half>(__builtin_fmaxf(x, y));
}
MLXGEN_EACH_2(min)
MLXGEN_EACH_2(max)
template <Single T>
constexpr T min3(T x, T y, T z) {
  return static_cast<T>(min(x, min(y, z)));
}
template <Single T>
constexpr T max3(T x, T y, T z) {
  return static_cast<T>(max(x, max(y, z)));
}
template <Single T>
constexpr T median3(T x, T y, T z) {
  return static_cast<T>(max(min(x, y), min(max(x, y), z)));
}
template <Single T>
constexpr T clamp(T x, Same<T> low, Same<T> high) {
  return static_cast<T>(min(max(x, low), high));
}
template <Single T>
constexpr T mix(T x, T y, T a) {
  return static_cast<T>(x + (y - x) * a);
}
template <Single T>
constexpr T saturate(T x) {
  return clamp(x, T(0), T(1));
}
template <Single T>
constexpr T sign(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x == x ? x : T(0);
}
template <Single T>
constexpr T step(T edge, T x) {
  return x < edge ? T(0) : T(1);
}
template <Single T>
constexpr T smoothstep(T low, T high, T x) {
  T t = saturate((x - low) / (high - low));
  return t * t * (T(3) - T(2) * t);
}
template <Single T>
constexpr T select(T a, T b, bool c) {
  return c ? b : a;
}
MLXGEN_EACH_3(min3)
MLXGEN_EACH_3(max3)
MLXGEN_EACH_3(median3)
MLXGEN_EACH_3(clamp)
MLXGEN_EACH_3(mix)
MLXGEN_EACH(saturate)
MLXGEN_EACH(sign)
MLXGEN_EACH_2(step)
MLXGEN_EACH_3(smoothstep)
template <typename T, int N>
constexpr vec<T, N>
select(const vec<T, N>& a, const Same<vec<T, N>>& b, const vec<bool, N>& c) {
  return each([](T x, T y, bool z) { return z ? y : x; }, a, b, c);
}
template <Single S, typename T, int N>
constexpr vec<T, N>
select(const S& a, const vec<T, N>& b, const vec<bool, N>& c) {
  return select(vec<T, N>(a), b, c);
}

#define MLXGEN_CLASSIFY(name, value)                \
  constexpr bool name(float x) {                    \
    return value;                                   \
  }                                                 \
  constexpr bool name(half h) {                     \
    float x = h;                                    \
    return value;                                   \
  }                                                 \
  template <typename T, int N>                      \
  constexpr vec<bool, N> name(const vec<T, N>& a) { \
    return each([](T x) { return name(x); }, a);    \
  }
MLXGEN_CLASSIFY(isnan, x != x)
MLXGEN_CLASSIFY(isinf, __builtin_isinf(x) != 0)
MLXGEN_CLASSIFY(isfinite, __builtin_isfinite(x) != 0)
MLXGEN_CLASSIFY(signbit, (__builtin_bit_cast(uint32_t, x) >> 31) != 0)
#undef MLXGEN_CLASSIFY
constexpr bool isnormal(float x) {
  return __builtin_isnormal(x) != 0;
}
inline int ilogb(float x) {
  return __builtin_ilogbf(x);
}
template <typename T>
constexpr auto isunordered(const T& x, const T& y) {
  return isnan(x) || isnan(y);
}
template <typename T>
constexpr auto isordered(const T& x, const T& y) {
  return !isunordered(x, y);
}

constexpr bool any(bool x) {
  return x;
}
constexpr bool all(bool x) {
  return x;
}
template <int N>
constexpr bool any(const vec<bool, N>& a) {
  bool out = false;
  for (int i = 0; i < N; ++i) {
    out = out || a.get(i);
  }
  return out;
}
template <int N>
constexpr bool all(const vec<bool, N>& a) {
  bool out = true;
  for (int i = 0; i < N; ++i) {
    out = out && a.get(i);
  }
  return out;
}

// ---------------------------------------------------------------- integers

template <Single T>
constexpr T popcount(T x) {
  return T(__builtin_popcountll(std::make_unsigned_t<T>(x)));
}
template <Single T>
constexpr T clz(T x) {
  using U = std::make_unsigned_t<T>;
  constexpr int bits = int(sizeof(T) * 8);
  return x == 0 ? T(bits) : T(__builtin_clzll(U(x)) - (64 - bits));
}
template <Single T>
constexpr T ctz(T x) {
  return x == 0 ? T(sizeof(T) * 8)
                : T(__builtin_ctzll(std::make_unsigned_t<T>(x)));
}
template <Single T>
constexpr T reverse_bits(T x) {
  using U = std::make_unsigned_t<T>;
  U in = U(x);
  U out = 0;
  for (size_t i = 0; i < sizeof(T) * 8; ++i) {
    out = U((out << 1) | ((in >> i) & 1));
  }
  return T(out);
}
template <Single T>
constexpr T rotate(T x, T n) {
  using U = std::make_unsigned_t<T>;
  constexpr int bits = int(sizeof(T) * 8);
  int k = int(n) & (bits - 1);
  return k == 0 ? x : T(U(U(x) << k) | U(U(x) >> (bits - k)));
}
template <Single T>
constexpr T mulhi(T x, T y) {
  using W =
      std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return T((W(x) * W(y)) >> (sizeof(T) * 8));
}
template <Single T>
constexpr T madhi(T x, T y, T z) {
  return T(mulhi(x, y) + z);
}
template <Single T>
constexpr T mad24(T x, T y, T z) {
  return T(x * y + z);
}
template <Single T>
constexpr T mul24(T x, T y) {
  return T(x * y);
}
template <Single T>
constexpr std::make_unsigned_t<T> absdiff(T x, T y) {
  using U = std::make_unsigned_t<T>;
  return x < y ? U(U(y) - U(x)) : U(U(x) - U(y));
}
template <Single T>
constexpr T addsat(T x, T y) {
  T out{};
  if (!__builtin_add_overflow(x, y, &out)) {
    return out;
  }
  return y < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <Single T>
constexpr T subsat(T x, T y) {
  T out{};
  if (!__builtin_sub_overflow(x, y, &out)) {
    return out;
  }
  return y > 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();
}
template <Single T>
constexpr T hadd(T x, T y) {
  return T((x & y) + ((x ^ y) >> 1));
}
template <Single T>
constexpr T rhadd(T x, T y) {
  return T((x | y) - ((x ^ y) >> 1));
}
template <Single T>
constexpr T madsat(T x, T y, T z) {
  using W =
      std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  W out = W(x) * W(y) + W(z);
  W most = numeric_limits<T>::max();
  W least = numeric_limits<T>::min();
  return T(out < least ? least : out > most ? most : out);
}
template <Single T>
constexpr T extract_bits(T x, uint offset, uint count) {
  using U = std::make_unsigned_t<T>;
  constexpr uint bits = sizeof(T) * 8;
  return count == 0 ? T(0)
                    : T(T(U(x) << (bits - offset - count)) >> (bits - count));
}
template <Single T>
constexpr T insert_bits(T base, T insert, uint offset, uint count) {
  using U = std::make_unsigned_t<T>;
  U mask = count == 0 ? U(0) : U(U(~U(0)) >> (sizeof(T) * 8 - count));
  mask = U(mask << offset);
  return T((U(base) & U(~mask)) | (U(U(insert) << offset) & mask));
}
MLXGEN_EACH(popcount)
MLXGEN_EACH(clz)
MLXGEN_EACH(ctz)
MLXGEN_EACH(reverse_bits)
MLXGEN_EACH_2(rotate)
MLXGEN_EACH_2(mulhi)
MLXGEN_EACH_2(mul24)
MLXGEN_EACH_2(addsat)
MLXGEN_EACH_2(subsat)
MLXGEN_EACH_2(hadd)
MLXGEN_EACH_2(rhadd)
MLXGEN_EACH_3(madhi)
MLXGEN_EACH_3(mad24)
MLXGEN_EACH_3(madsat)
template <typename T, int N>
constexpr auto absdiff(const vec<T, N>& a, const vec<T, N>& b) {
  return each([](T x, T y) { return absdiff(x, y); }, a, b);
}
template <typename T, int N>
constexpr auto extract_bits(const vec<T, N>& a, uint offset, uint count) {
  return each([=](T x) { return extract_bits(x, offset, count); }, a);
}
template <typename T, int N>
constexpr auto
insert_bits(const vec<T, N>& a, const vec<T, N>& b, uint offset, uint count) {
  auto one = [=](T x, T y) { return insert_bits(x, y, offset, count); };
  return each(one, a, b);
}

// ------------------------------------------------------------------ packing

} // namespace metal

namespace mlxgen_metal {

/** A number from 0 (or -1) to 1 as an integer of so many bits. */
inline uint32_t to_bits(float x, int bits, bool is_signed) {
  float most = float((uint64_t(1) << (bits - is_signed)) - 1);
  float least = is_signed ? -1.0f : 0.0f;
  float clamped = x != x ? 0.0f : __builtin_fminf(__builtin_fmaxf(x, least), 1);
  int64_t rounded = __builtin_llrintf(clamped * most);
  return uint32_t(uint64_t(rounded) & ((uint64_t(1) << bits) - 1));
}
inline float from_bits(uint32_t x, int bits, bool is_signed) {
  float most = float((uint64_t(1) << (bits - is_signed)) - 1);
  if (is_signed) {
    int32_t value = int32_t(x << (32 - bits)) >> (32 - bits);
    return __builtin_fmaxf(float(value) / most, -1.0f);
  }
  return float(uint32_t(x << (32 - bits)) >> (32 - bits)) / most;
}

/** Pack components, the first into the lowest bits. */
template <int... Bits, typename V>
uint32_t packed_bits(const V& x, bool is_signed) {
  uint32_t out = 0;
  int at = 0;
  int i = 0;
  ((out |= to_bits(float(x.get(i++)), Bits, is_signed) << at, at += Bits), ...);
  return out;
}
template <typename V, int... Bits>
V unpacked_bits(uint32_t x, bool is_signed) {
  V out;
  int at = 0;
  int i = 0;
  using T = typename V::value_type;
  ((out.set(i++, static_cast<T>(from_bits(x >> at, Bits, is_signed))),
    at += Bits),
   ...);
  return out;
}

inline float to_srgb(float x) {
  return x <= 0.0031308f ? 12.92f * x
                         : 1.055f * __builtin_powf(x, 1 / 2.4f) - 0.055f;
}
inline float from_srgb(float x) {
  return x <= 0.04045f ? x / 12.92f
                       : __builtin_powf((x + 0.055f) / 1.055f, 2.4f);
}
/** Convert red, green and blue, but not alpha. */
template <typename V>
V colors(V x, float (*f)(float)) {
  for (int i = 0; i < 3; ++i) {
    x.set(i, static_cast<typename V::value_type>(f(float(x.get(i)))));
  }
  return x;
}

} // namespace mlxgen_metal

namespace metal {

#define MLXGEN_PACK_AS(T, I, N, name, is_signed, ...)                       \
  inline I pack_##T##_to_##name(const vec<T, N>& x) {                       \
    return I(mlxgen_metal::packed_bits<__VA_ARGS__>(x, is_signed));         \
  }                                                                         \
  inline vec<T, N> unpack_##name##_to_##T(I x) {                            \
    using V = vec<T, N>;                                                    \
    return mlxgen_metal::unpacked_bits<V, __VA_ARGS__>(uint(x), is_signed); \
  }
#define MLXGEN_PACK(T)                                            \
  MLXGEN_PACK_AS(T, uint, 4, unorm4x8, false, 8, 8, 8, 8)         \
  MLXGEN_PACK_AS(T, uint, 4, snorm4x8, true, 8, 8, 8, 8)          \
  MLXGEN_PACK_AS(T, uint, 2, unorm2x16, false, 16, 16)            \
  MLXGEN_PACK_AS(T, uint, 2, snorm2x16, true, 16, 16)             \
  MLXGEN_PACK_AS(T, uint, 4, unorm10a2, false, 10, 10, 10, 2)     \
  MLXGEN_PACK_AS(T, ushort, 3, unorm565, false, 5, 6, 5)          \
  inline uint pack_##T##_to_srgb_unorm4x8(const vec<T, 4>& x) {   \
    vec<T, 4> light =                                             \
        mlxgen_metal::colors(saturate(x), mlxgen_metal::to_srgb); \
    return pack_##T##_to_unorm4x8(light);                         \
  }                                                               \
  inline vec<T, 4> unpack_unorm4x8_srgb_to_##T(uint x) {          \
    auto color = unpack_unorm4x8_to_##T(x);                       \
    return mlxgen_metal::colors(color, mlxgen_metal::from_srgb);  \
  }
MLXGEN_PACK(float)
MLXGEN_PACK(half)
#undef MLXGEN_PACK
#undef MLXGEN_PACK_AS

// ---------------------------------------------------------------- geometry

template <typename T, int N>
constexpr T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T out = a.x * b.x;
  for (int i = 1; i < N; ++i) {
    out = static_cast<T>(out + a.get(i) * b.get(i));
  }
  return out;
}
template <typename T>
constexpr vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
// A packed vector stands for a vector.
template <Packed P>
constexpr auto length(const P& a) {
  return length(unpacked(a));
}
template <Packed P>
constexpr auto length_squared(const P& a) {
  return length_squared(unpacked(a));
}
template <Packed P>
constexpr auto normalize(const P& a) {
  return normalize(unpacked(a));
}
#define MLXGEN_PACKED(name)                     \
  template <typename A, typename B>             \
    requires(Packed<A> || Packed<B>)            \
  constexpr auto name(const A& a, const B& b) { \
    return name(unpacked(a), unpacked(b));      \
  }
MLXGEN_PACKED(dot)
MLXGEN_PACKED(cross)
MLXGEN_PACKED(distance)
MLXGEN_PACKED(distance_squared)
#undef MLXGEN_PACKED

template <typename T, int N>
constexpr T length(const vec<T, N>& a) {
  return static_cast<T>(sqrt(dot(a, a)));
}
template <typename T, int N>
constexpr T length_squared(const vec<T, N>& a) {
  return dot(a, a);
}
template <typename T, int N>
constexpr T distance(const vec<T, N>& a, const vec<T, N>& b) {
  return length(a - b);
}
template <typename T, int N>
constexpr vec<T, N> normalize(const vec<T, N>& a) {
  return a * static_cast<T>(rsqrt(dot(a, a)));
}
template <typename T, int N>
constexpr T distance_squared(const vec<T, N>& a, const vec<T, N>& b) {
  return length_squared(a - b);
}
template <typename T, int N>
constexpr vec<T, N> faceforward(
    const vec<T, N>& n,
    const vec<T, N>& i,
    const vec<T, N>& reference) {
  return dot(i, reference) < 0 ? n : -n;
}
template <typename T, int N>
constexpr vec<T, N> reflect(const vec<T, N>& i, const vec<T, N>& n) {
  return i - n * static_cast<T>(2 * dot(n, i));
}
template <typename T, int N>
constexpr vec<T, N>
refract(const vec<T, N>& i, const vec<T, N>& n, Same<T> eta) {
  T along = dot(n, i);
  T k = static_cast<T>(1 - eta * eta * (1 - along * along));
  return k < 0 ? vec<T, N>(T(0))
               : i * eta - n * static_cast<T>(eta * along + sqrt(k));
}

// These have one precision here.
namespace fast {
using metal::abs, metal::min, metal::max, metal::clamp, metal::mix;
using metal::length, metal::distance, metal::normalize;
using metal::saturate, metal::sign, metal::step, metal::smoothstep;
} // namespace fast
namespace precise {
using namespace fast;
} // namespace precise

} // namespace metal
