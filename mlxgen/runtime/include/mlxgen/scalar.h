// Included by scalar functions that serve every backend: the same source is
// compiled as C++ for the CPU and as Metal for the GPU.
//
//   #include "mlxgen/scalar.h"
//
//   template <typename T>
//   T log_square(T value) {
//     using W = mlxgen::wide<T>;
//     W x = value;
//     return static_cast<T>(2 * mlxgen::math::log(mlxgen::math::fabs(x)));
//   }
//
// The function is a template over the result dtype: float and double in C++,
// float in Metal. `wide<T>` is the type to compute in: double on the CPU. Metal
// lacks double and uses `twofold`, the sum of two floats, with about 48 bits of
// precision and the exponents of float. On both, a rounded result is in nearly
// all cases the float nearest to the exact value.
//
// The common subset of the two languages is C++14 without the standard library:
// no recursion, no <cmath>, no lambdas, no static variables.
//
//   MLXGEN_OUT(T) y                a parameter for one of several outputs
//   MLXGEN_TABLE(name, 2) = {      a table for results in float, at namespace
//       MLXGEN_WIDE(1.1f, 2e-8f),  scope: numbers as sums of two floats
//       MLXGEN_WIDE(3.0f, 0.0f)};
//   MLXGEN_COEFFICIENTS(T, name)   for_float::name or, for double, the table
//                                  for_double::name, which exists in C++ only
//
// Literals must be exact in float: 0.5f, but not 0.1f; use MLXGEN_WIDE for
// others. Metal may reject `? :` between a wide value and a wide variable,
// because the variable's type has an address space: write `c ? W(0) : W(x)`.
//
// A C++ test may define MLXGEN_TWOFOLD; then wide<float> is twofold there, too.

#pragma once

#ifdef __METAL_VERSION__

#include <metal_stdlib>

#define MLXGEN_OUT(T) thread T&
#define MLXGEN_IN_CONSTANT constant
#define MLXGEN_NUMBER constexpr constant
#define MLXGEN_TWOFOLD

#else

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mlxgen/simd_math.h"

#define MLXGEN_OUT(T) T&
#define MLXGEN_IN_CONSTANT
#define MLXGEN_NUMBER inline constexpr

#endif

#ifdef MLXGEN_TWOFOLD
#define MLXGEN_WIDE(hi, lo) (mlxgen::Pair{hi, lo})
#define MLXGEN_TABLE(name, n) MLXGEN_NUMBER mlxgen::Pair name[n]
#else
#define MLXGEN_WIDE(hi, lo) (static_cast<double>(hi) + static_cast<double>(lo))
#define MLXGEN_TABLE(name, n) MLXGEN_NUMBER double name[n]
#endif

#ifdef __METAL_VERSION__
#define MLXGEN_COEFFICIENTS(T, name) for_float::name
#else
#define MLXGEN_COEFFICIENTS(T, name) \
  mlxgen::table_for<T>(for_float::name, for_double::name)
#endif

namespace mlxgen {

#ifdef __METAL_VERSION__

inline uint bits_of(float x) {
  return as_type<uint>(x);
}
inline float float_of(uint bits) {
  return as_type<float>(bits);
}

#else

using uint = uint32_t;

inline uint bits_of(float x) {
  return std::bit_cast<uint>(x);
}
inline float float_of(uint bits) {
  return std::bit_cast<float>(bits);
}

#endif

///////////////////////////////////////////////////////////////////////////////
// twofold: the sum of two floats
///////////////////////////////////////////////////////////////////////////////

#ifdef MLXGEN_TWOFOLD

#ifdef __FAST_MATH__
#error "mlxgen/scalar.h needs exact sums of floats: compile without fast math"
#endif

/** A constant, the sum of two floats. */
struct Pair {
  float hi;
  float lo;
};

namespace native {
#ifdef __METAL_VERSION__
using metal::fabs;
using metal::floor;
using metal::fma;
using metal::rint;
using metal::trunc;
using metal::precise::sqrt;
#else
using std::fabs;
using std::floor;
using std::fma;
using std::rint;
using std::sqrt;
using std::trunc;
#endif
} // namespace native

/**
 * hi + lo, where hi is the float nearest to the sum. The relative error of an
 * operation is a few times 2^-48, unless lo is below the smallest float.
 *
 * Dekker, "A floating-point technique for extending the available precision"
 * (1971); Joldes, Muller and Popescu, "Tight and rigorous error bounds for
 * basic building blocks of double-word arithmetic" (2017).
 */
struct twofold {
  float hi;
  float lo;

  twofold() = default;
  constexpr twofold(float x) : hi(x), lo(0) {}
  constexpr twofold(float high, float low) : hi(high), lo(low) {}
  constexpr twofold(MLXGEN_IN_CONSTANT const Pair& x) : hi(x.hi), lo(x.lo) {}

  constexpr explicit operator float() const {
    return hi;
  }
  constexpr explicit operator int() const {
    // If hi is an integer above 2^24, lo contributes.
    return static_cast<int>(hi) + static_cast<int>(lo);
  }
};

/**
 * high + low for |high| >= |low|, or high = 0. An infinite or NaN high, and -0,
 * remain unchanged.
 */
inline twofold renormalized(float high, float low) {
  float sum = high + low;
  bool finite = native::fabs(sum) <= 3.402823466e38f;
  bool zero = high == 0 && low == 0;
  return finite && !zero ? twofold(sum, low - (sum - high))
                         : twofold(high, 0.0f);
}

inline twofold sum_of(float x, float y) {
  float sum = x + y;
  float part = sum - x;
  return twofold(sum, (x - (sum - part)) + (y - part));
}

inline twofold product_of(float x, float y) {
  float product = x * y;
  return twofold(product, native::fma(x, y, -product));
}

inline twofold operator-(twofold x) {
  return twofold(-x.hi, -x.lo);
}

inline twofold operator+(twofold x, twofold y) {
  twofold high = sum_of(x.hi, y.hi);
  twofold low = sum_of(x.lo, y.lo);
  twofold first = renormalized(high.hi, high.lo + low.hi);
  return renormalized(first.hi, low.lo + first.lo);
}
inline twofold operator+(twofold x, float y) {
  twofold high = sum_of(x.hi, y);
  return renormalized(high.hi, high.lo + x.lo);
}
inline twofold operator+(float x, twofold y) {
  return y + x;
}
inline twofold operator-(twofold x, twofold y) {
  return x + -y;
}
inline twofold operator-(twofold x, float y) {
  return x + -y;
}
inline twofold operator-(float x, twofold y) {
  return -y + x;
}

inline twofold operator*(twofold x, twofold y) {
  twofold high = product_of(x.hi, y.hi);
  float low = native::fma(x.hi, y.lo, x.lo * y.hi);
  return renormalized(high.hi, high.lo + low);
}
inline twofold operator*(twofold x, float y) {
  twofold high = product_of(x.hi, y);
  return renormalized(high.hi, native::fma(x.lo, y, high.lo));
}
inline twofold operator*(float x, twofold y) {
  return y * x;
}

inline twofold operator/(twofold x, twofold y) {
  float quotient = x.hi / y.hi;
  if (!(native::fabs(quotient) <= 3.402823466e38f) || quotient == 0) {
    return twofold(quotient);
  }
  twofold rest = x - y * quotient;
  return renormalized(quotient, rest.hi / y.hi);
}
inline twofold operator/(twofold x, float y) {
  return x / twofold(y);
}
inline twofold operator/(float x, twofold y) {
  return twofold(x) / y;
}

inline bool operator==(twofold x, twofold y) {
  return x.hi == y.hi && x.lo == y.lo;
}
inline bool operator!=(twofold x, twofold y) {
  return !(x == y);
}
inline bool operator<(twofold x, twofold y) {
  return x.hi < y.hi || (x.hi == y.hi && x.lo < y.lo);
}
inline bool operator>(twofold x, twofold y) {
  return y < x;
}
inline bool operator<=(twofold x, twofold y) {
  return x.hi < y.hi || (x.hi == y.hi && x.lo <= y.lo);
}
inline bool operator>=(twofold x, twofold y) {
  return y <= x;
}

// Macros instead of templates, so that the other operand may be a number.
#define MLXGEN_ASSIGN(op)                    \
  inline MLXGEN_OUT(twofold) operator op## = \
      (MLXGEN_OUT(twofold) x, twofold y) {   \
    x = x op y;                              \
    return x;                                \
  }
MLXGEN_ASSIGN(+)
MLXGEN_ASSIGN(-)
MLXGEN_ASSIGN(*)
MLXGEN_ASSIGN(/)
#undef MLXGEN_ASSIGN

#endif // MLXGEN_TWOFOLD

///////////////////////////////////////////////////////////////////////////////
// wide<T>: the type to compute in
///////////////////////////////////////////////////////////////////////////////

template <typename T>
struct Wide {
#ifdef __METAL_VERSION__
  using type = twofold;
#else
  using type = double;
#endif
};

#if defined(MLXGEN_TWOFOLD) && !defined(__METAL_VERSION__)
template <>
struct Wide<float> {
  using type = twofold;
};
#endif

template <typename T>
using wide = typename Wide<T>::type;

#ifndef __METAL_VERSION__

/** The table for results of type T. */
template <typename T, typename F, size_t N, size_t M>
constexpr const auto& table_for(const F (&narrow)[N], const double (&full)[M]) {
  if constexpr (std::is_same_v<T, float>) {
    return narrow;
  } else {
    return full;
  }
}

#endif

///////////////////////////////////////////////////////////////////////////////
// Functions of double and twofold
///////////////////////////////////////////////////////////////////////////////

namespace math {

#ifdef __METAL_VERSION__
inline float infinity() {
  return INFINITY;
}
inline float nan() {
  return NAN;
}

// For float, as in C++; the functions that Metal lacks are below.
#define MLXGEN_METAL(name, function) \
  inline float name(float x) {       \
    return function(x);              \
  }
MLXGEN_METAL(ceil, metal::ceil)
MLXGEN_METAL(cos, metal::precise::cos)
MLXGEN_METAL(exp, metal::precise::exp)
MLXGEN_METAL(fabs, metal::fabs)
MLXGEN_METAL(floor, metal::floor)
MLXGEN_METAL(log, metal::precise::log)
MLXGEN_METAL(rint, metal::rint)
MLXGEN_METAL(sin, metal::precise::sin)
MLXGEN_METAL(sqrt, metal::precise::sqrt)
MLXGEN_METAL(tanh, metal::precise::tanh)
MLXGEN_METAL(trunc, metal::trunc)
#undef MLXGEN_METAL
inline float copysign(float x, float y) {
  return metal::copysign(x, y);
}
inline float pow(float x, float y) {
  return metal::precise::pow(x, y);
}

/** c[0] + c[1] x + c[2] x^2 + ... */
template <int N>
inline float polynomial(MLXGEN_IN_CONSTANT const float (&c)[N], float x) {
  float y = c[N - 1];
  for (int i = N - 2; i >= 0; --i) {
    y = native::fma(y, x, c[i]);
  }
  return y;
}
#else
inline constexpr float infinity() {
  return std::numeric_limits<float>::infinity();
}
inline constexpr float nan() {
  return std::numeric_limits<float>::quiet_NaN();
}

namespace detail {

/** c[last] x^n + ... + c[last - n step], for the largest possible n. */
template <size_t last, size_t step, typename Real, size_t N>
inline Real polynomial(const Real (&c)[N], Real x) {
  Real y = c[last];
  // A loop around an inner loop is not vectorized; gcc unrolls up to 16 terms.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 64
#endif
  for (size_t i = last; i >= step; i -= step) {
    y = y * x + c[i - step];
  }
  return y;
}

/** c[0] + c[1] x + c[2] x^2 + ... */
template <typename Real, size_t N>
inline Real polynomial(const Real (&c)[N], Real x) {
#ifdef __aarch64__
  // Even and odd powers are separate sums, which do not wait for each other:
  // the vectors here are so short that the processor can compute several at a
  // time.
  if constexpr (N >= 6) {
    Real y = polynomial<N - 1, 2>(c, x * x);
    Real z = polynomial<N - 2, 2>(c, x * x);
    return N % 2 == 0 ? y * x + z : z * x + y;
  }
#endif
  return polynomial<N - 1, 1>(c, x);
}

} // namespace detail

/** c[0] + c[1] x + c[2] x^2 + ... */
template <size_t N>
inline double polynomial(const double (&c)[N], double x) {
  return detail::polynomial(c, x);
}
template <size_t N>
inline float polynomial(const float (&c)[N], float x) {
  return detail::polynomial(c, x);
}

inline double ldexp(double x, int n) {
  // In two steps, so that each factor is representable, and without a call.
  int half = n / 2;
  auto power = [](int k) {
    k = k < -1022 ? -1022 : k > 1023 ? 1023 : k;
    return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
  };
  return x * power(half) * power(n - half);
}

inline bool isnan(double x) {
  return x != x;
}
inline bool isinf(double x) {
  return fabs(x) == infinity();
}

namespace detail {

// sin(pi x) / x and cos(pi x) in x^2 (DLMF 4.19.1, 4.19.2)
inline constexpr double sinpi_series[10] = {
    3.1415926535897932385,
    -5.1677127800499700292,
    2.5501640398773454439,
    -0.59926452932079207689,
    0.082145886611128228799,
    -0.0073704309457143507773,
    0.00046630280576761256442,
    -0.000021915353447830215827,
    7.9520540014755127848e-7,
    -2.294842899726987311e-8};
inline constexpr double cospi_series[10] = {
    1.0,
    -4.9348022005446793094,
    4.0587121264167682182,
    -1.3352627688545894959,
    0.23533063035889320454,
    -0.025806891390014060013,
    0.0019295743094039230479,
    -0.00010463810492484570712,
    4.3030695870329470073e-6,
    -1.3878952462213772114e-7};

} // namespace detail

/** sin(pi x), exact at integers and halves. */
inline double sinpi(double x) {
  double part = x - 2 * rint(0.5 * x); // from -1 to 1
  double q = rint(2 * part);
  double r = part - q / 2;
  double s = r * polynomial(detail::sinpi_series, r * r);
  double c = polynomial(detail::cospi_series, r * r);
  // q from -2 to 2: a quarter turn exchanges s and c, a half turn the sign.
  double y = fabs(q) == 1 ? q * c : (1 - fabs(q)) * s;
  // 0 at integers, with the sign of x.
  return y == 0 ? copysign(0.0, x) : y;
}

/** cos(pi x), exact at integers and halves. */
inline double cospi(double x) {
  double part = x - 2 * rint(0.5 * x); // from -1 to 1
  double q = rint(2 * part);
  double r = part - q / 2;
  double s = r * polynomial(detail::sinpi_series, r * r);
  double c = polynomial(detail::cospi_series, r * r);
  double y = fabs(q) == 1 ? -q * s : (1 - fabs(q)) * c;
  return y == 0 ? 0.0 : y;
}
#endif

#ifdef MLXGEN_TWOFOLD

template <int N>
inline twofold polynomial(MLXGEN_IN_CONSTANT const Pair (&c)[N], twofold x) {
  twofold y(c[N - 1].hi, c[N - 1].lo);
  for (int i = N - 2; i >= 0; --i) {
    y = y * x + twofold(c[i].hi, c[i].lo);
  }
  return y;
}

inline bool isnan(twofold x) {
  return x.hi != x.hi;
}
inline bool isinf(twofold x) {
  return native::fabs(x.hi) == infinity();
}

inline twofold fabs(twofold x) {
  // Tests the sign bit, so that -0 becomes 0.
  return (bits_of(x.hi) >> 31) != 0 ? -x : twofold(x);
}

inline twofold copysign(twofold x, twofold y) {
  return ((bits_of(x.hi) ^ bits_of(y.hi)) >> 31) != 0 ? -x : twofold(x);
}

inline twofold floor(twofold x) {
  float whole = native::floor(x.hi);
  return whole == x.hi ? renormalized(whole, native::floor(x.lo))
                       : twofold(whole);
}

inline twofold ceil(twofold x) {
  return -floor(-x);
}

inline twofold trunc(twofold x) {
  return x.hi < 0 ? ceil(x) : floor(x);
}

/** The nearest integer; halves round to even. */
inline twofold rint(twofold x) {
  float whole = native::rint(x.hi);
  if (whole == x.hi) {
    return renormalized(whole, native::rint(x.lo));
  }
  // hi is halfway between two integers, so that the sign of lo decides.
  float down = native::floor(x.hi);
  if (x.hi - down == 0.5f && x.lo != 0) {
    whole = x.lo > 0 ? down + 1 : down;
  }
  return twofold(whole);
}

/** x 2^n. */
inline twofold ldexp(twofold x, int n) {
  for (int i = 0; i < 3 && n != 0; ++i) {
    int step = n < -126 ? -126 : n > 127 ? 127 : n;
    float power = float_of(static_cast<uint>(step + 127) << 23);
    x = twofold(x.hi * power, x.lo * power);
    n -= step;
  }
  return isinf(x) ? twofold(x.hi) : twofold(x);
}

inline twofold sqrt(twofold x) {
  float root = native::sqrt(x.hi);
  if (!(root > 0 && root < infinity())) {
    return twofold(root);
  }
  twofold rest = x - product_of(root, root);
  return renormalized(root, rest.hi / (2 * root));
}

namespace detail {

// Numbers as the nearest float and the nearest float to the remainder.

// 1 / n! for n = 1, 2, ... (DLMF 4.2.19)
MLXGEN_TABLE(exp_series, 10) = {
    MLXGEN_WIDE(1.0f, 0.0f),
    MLXGEN_WIDE(0.5f, 0.0f),
    MLXGEN_WIDE(0.166666672f, -4.96705388e-09f),
    MLXGEN_WIDE(0.0416666679f, -1.24176347e-09f),
    MLXGEN_WIDE(0.00833333377f, -4.34617203e-10f),
    MLXGEN_WIDE(0.00138888892f, -3.36310944e-11f),
    MLXGEN_WIDE(0.000198412701f, -2.72559687e-12f),
    MLXGEN_WIDE(2.48015876e-05f, -3.40699609e-13f),
    MLXGEN_WIDE(2.75573188e-06f, 3.79357122e-14f),
    MLXGEN_WIDE(2.755732e-07f, -7.57511221e-15f)};

// 2 / (2 k + 3) for k = 0, 1, ... (DLMF 4.6.6)
MLXGEN_TABLE(log_series, 10) = {
    MLXGEN_WIDE(0.666666687f, -1.98682155e-08f),
    MLXGEN_WIDE(0.400000006f, -5.96046457e-09f),
    MLXGEN_WIDE(0.285714298f, -1.2772424e-08f),
    MLXGEN_WIDE(0.222222224f, -1.65568459e-09f),
    MLXGEN_WIDE(0.181818187f, -5.41860423e-09f),
    MLXGEN_WIDE(0.15384616f, -5.73121595e-09f),
    MLXGEN_WIDE(0.13333334f, -6.95387525e-09f),
    MLXGEN_WIDE(0.117647059f, -4.38269449e-10f),
    MLXGEN_WIDE(0.105263159f, -7.84271648e-10f),
    MLXGEN_WIDE(0.095238097f, -1.77394777e-09f)};

// sin(pi x) / x in x^2 (DLMF 4.19.1)
MLXGEN_TABLE(twofold_sinpi, 9) = {
    MLXGEN_WIDE(3.14159274f, -8.74227766e-08f),
    MLXGEN_WIDE(-5.16771269f, -9.16039227e-08f),
    MLXGEN_WIDE(2.55016398f, 5.55786386e-08f),
    MLXGEN_WIDE(-0.599264503f, -2.67954618e-08f),
    MLXGEN_WIDE(0.0821458846f, 1.97806393e-09f),
    MLXGEN_WIDE(-0.00737043098f, 3.04380687e-11f),
    MLXGEN_WIDE(0.000466302794f, 1.18289458e-11f),
    MLXGEN_WIDE(-2.19153535e-05f, 5.21047913e-14f),
    MLXGEN_WIDE(7.95205381e-07f, 1.94927455e-14f)};

// cos(pi x) in x^2 (DLMF 4.19.2)
MLXGEN_TABLE(twofold_cospi, 9) = {
    MLXGEN_WIDE(1.0f, 0.0f),
    MLXGEN_WIDE(-4.93480206f, -1.45185794e-07f),
    MLXGEN_WIDE(4.05871201f, 1.20801531e-07f),
    MLXGEN_WIDE(-1.33526278f, 6.56655308e-09f),
    MLXGEN_WIDE(0.235330626f, 3.9903707e-09f),
    MLXGEN_WIDE(-0.0258068908f, -5.89418792e-10f),
    MLXGEN_WIDE(0.0019295743f, 1.25941904e-11f),
    MLXGEN_WIDE(-0.000104638108f, 2.66180632e-12f),
    MLXGEN_WIDE(4.30306955e-06f, 4.19022354e-14f)};

// The binary digits of 2 / pi, 32 per number.
MLXGEN_NUMBER uint two_over_pi[8] = {
    0xa2f9836eu,
    0x4e441529u,
    0xfc2757d1u,
    0xf534ddc0u,
    0xdb629599u,
    0x3c439041u,
    0xfe5163abu,
    0xdebbc561u};

/**
 * The terms of a series from `from` on, which are so small that float suffices.
 */
template <int N>
inline float rest_of(MLXGEN_IN_CONSTANT const Pair (&c)[N], int from, float x) {
  float y = c[N - 1].hi;
  for (int i = N - 2; i >= from; --i) {
    y = native::fma(y, x, c[i].hi);
  }
  return y;
}

/** A series whose first `full` terms are computed in both floats. */
template <int N>
inline twofold
series(MLXGEN_IN_CONSTANT const Pair (&c)[N], int full, twofold x) {
  twofold y(rest_of(c, full, x.hi));
  for (int i = full - 1; i >= 0; --i) {
    y = y * x + twofold(c[i].hi, c[i].lo);
  }
  return y;
}

inline twofold log_2() {
  return twofold(0.693147182f, -1.90465421e-09f);
}

/** exp(x) - 1 for |x| slightly above log(2) / 2 at most. */
inline twofold small_expm1(twofold x) {
  twofold r = twofold(x.hi * 0.25f, x.lo * 0.25f);
  twofold y = r * series(exp_series, 5, r);
  // exp(2 x) - 1 = (exp(x) - 1) (exp(x) + 1)
  y = y * (y + 2.0f);
  return y * (y + 2.0f);
}

/** The integer k nearest to x / log(2), and x - k log(2). */
inline twofold without_powers(twofold x, MLXGEN_OUT(float) k) {
  k = native::rint(x.hi * 1.44269502f);
  // log(2) in three parts; the first has 16 bits, so that its product with k is
  // exact.
  twofold r = x - k * 0.693145752f;
  return r - k * twofold(1.42860677e-06f, 5.49792315e-14f);
}

/** The mantissa of x > 0, from sqrt(1/2) to sqrt(2), and the power of two. */
inline twofold mantissa(twofold x, MLXGEN_OUT(int) exponent) {
  exponent = 0;
  if (x.hi < 1.17549435e-38f) {
    x = x * 16777216.0f;
    exponent = -24;
  }
  int power = static_cast<int>((bits_of(x.hi) - 0x3f3504f3u) >> 23);
  power = power >= 256 ? power - 512 : power;
  exponent += power;
  return ldexp(x, -power);
}

/** log(1 + 2 f / (1 - f)) = 2 atanh(f), for |f| < 0.18. */
inline twofold twice_atanh(twofold f) {
  twofold z = f * f;
  return 2.0f * f + f * (z * series(log_series, 5, z));
}

/** sin(pi r) and cos(pi r) for |r| <= 1/4. */
inline twofold small_sinpi(twofold r) {
  return r * series(twofold_sinpi, 5, r * r);
}
inline twofold small_cospi(twofold r) {
  return series(twofold_cospi, 5, r * r);
}

/**
 * x 2 / pi modulo 4, from -1/2 to 4, with 48 significant bits after the point.
 *
 * Payne and Hanek, "Radian reduction for trigonometric functions" (1983).
 */
inline twofold in_quarter_turns(float x) {
  uint bits = bits_of(x);
  int exponent = static_cast<int>((bits >> 23) & 255u) - 150;
  uint mantissa = (bits & 0x7fffffu) | 0x800000u;
  float sign = (bits >> 31) != 0 ? -1.0f : 1.0f;
  if (exponent < -26) {
    // Less than a quarter turn: all digits are needed.
    return x * twofold(0.636619747f, 2.5682553e-08f);
  }
  // The digits of 2 / pi whose products are multiples of 4 are skipped. The
  // product of the mantissa with the next 96 digits is correct modulo 4.
  int skip = exponent - 2;
  uint word[3];
  for (int i = 0; i < 3; ++i) {
    int at = skip + 32 * i;
    int index = at >= 0 ? at / 32 : -((31 - at) / 32);
    int shift = at - 32 * index;
    uint high = index >= 0 ? two_over_pi[index] : 0u;
    uint low = index + 1 >= 0 ? two_over_pi[index + 1] : 0u;
    word[i] = shift == 0 ? high : (high << shift) | (low >> (32 - shift));
  }
  uint64_t low = (static_cast<uint64_t>(mantissa) * word[2]) >> 32;
  uint64_t middle = static_cast<uint64_t>(mantissa) * word[1] + low;
  uint64_t top = (static_cast<uint64_t>(mantissa) * word[0] << 32) + middle;
  // 2 bits of quarter turns and 62 bits of fraction, rounded to the nearest
  // quarter turn, so that the remainder has a sign.
  uint64_t turns = (top + (static_cast<uint64_t>(1) << 61)) >> 62;
  int64_t rest = static_cast<int64_t>(top - (turns << 62));
  float high = static_cast<float>(rest >> 32) * 2.32830644e-10f * 4.0f;
  rest -= static_cast<int64_t>(high * 1073741824.0f) << 32;
  float small = static_cast<float>(rest) * 2.16840434e-19f;
  return sign * (renormalized(high, small) + static_cast<float>(turns & 3u));
}

/** sin(x) for 0, cos(x) for 1. */
inline twofold sine(twofold x, int quarter) {
  if (!(native::fabs(x.hi) <= 3.402823466e38f)) {
    return twofold(nan());
  }
  twofold q = in_quarter_turns(x.hi) + in_quarter_turns(x.lo);
  twofold whole = rint(q);
  twofold r = (q - whole) * 0.5f;
  int turn = (static_cast<int>(whole) + quarter) & 3;
  twofold y = (turn & 1) != 0 ? small_cospi(r) : small_sinpi(r);
  return (turn & 2) != 0 ? -y : twofold(y);
}

/** sin(pi x) for 0, cos(pi x) for 1. */
inline twofold sine_of_pi(twofold x, int quarter) {
  if (!(native::fabs(x.hi) <= 3.402823466e38f)) {
    return twofold(nan());
  }
  twofold even = 2.0f * rint(0.5f * x);
  twofold half_turns = x - even;
  twofold whole = rint(2.0f * half_turns);
  twofold r = half_turns - 0.5f * whole;
  int turn = (static_cast<int>(whole) + quarter) & 3;
  twofold y = (turn & 1) != 0 ? small_cospi(r) : small_sinpi(r);
  return (turn & 2) != 0 ? -y : twofold(y);
}

} // namespace detail

inline twofold exp(twofold x) {
  if (!(x.hi < 89.0f)) {
    return twofold(x.hi >= 89.0f ? infinity() : x.hi);
  }
  if (x.hi < -104.0f) {
    return twofold(0.0f);
  }
  float k;
  twofold r = detail::without_powers(x, k);
  return ldexp(detail::small_expm1(r) + 1.0f, static_cast<int>(k));
}

inline twofold expm1(twofold x) {
  if (!(x.hi < 89.0f)) {
    return twofold(x.hi >= 89.0f ? infinity() : x.hi);
  }
  if (x.hi < -40.0f) {
    return twofold(-1.0f);
  }
  if (x.hi == 0) {
    return x;
  }
  float k;
  twofold r = detail::without_powers(x, k);
  twofold y = detail::small_expm1(r);
  return k == 0 ? twofold(y) : ldexp(y + 1.0f, static_cast<int>(k)) - 1.0f;
}

inline twofold log(twofold x) {
  if (!(x.hi > 0 && x.hi < infinity())) {
    return twofold(x.hi == 0 ? -infinity() : x.hi > 0 ? x.hi : nan());
  }
  int exponent;
  twofold m = detail::mantissa(x, exponent);
  twofold y = detail::twice_atanh((m - 1.0f) / (m + 1.0f));
  float k = static_cast<float>(exponent);
  return k * 0.693145752f + (k * twofold(1.42860677e-06f, 5.49792315e-14f) + y);
}

inline twofold log1p(twofold x) {
  // Near 0, where log(1 + x) would lose accuracy.
  if (native::fabs(x.hi) < 0.25f) {
    return x.hi == 0 ? twofold(x) : detail::twice_atanh(x / (x + 2.0f));
  }
  return log(x + 1.0f);
}

/** sin(pi x), exact at integers and halves. */
inline twofold sinpi(twofold x) {
  twofold y = detail::sine_of_pi(x, 0);
  return y.hi == 0 ? copysign(twofold(0.0f), x) : twofold(y);
}

/** cos(pi x), exact at integers and halves. */
inline twofold cospi(twofold x) {
  twofold y = detail::sine_of_pi(x, 1);
  return y.hi == 0 ? twofold(0.0f) : twofold(y);
}

inline twofold sin(twofold x) {
  return x.hi == 0 ? twofold(x) : detail::sine(x, 0);
}

inline twofold cos(twofold x) {
  return detail::sine(x, 1);
}

/** x^y for x >= 0. */
inline twofold pow(twofold x, twofold y) {
  if (y.hi == 0 || (x.hi == 1 && x.lo == 0)) {
    return twofold(1.0f);
  }
  return exp(y * log(x));
}

#ifdef __METAL_VERSION__
inline float expm1(float x) {
  return static_cast<float>(expm1(twofold(x)));
}
inline float log1p(float x) {
  return static_cast<float>(log1p(twofold(x)));
}
#endif

#endif // MLXGEN_TWOFOLD

} // namespace math
} // namespace mlxgen
