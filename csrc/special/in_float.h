// exp and log in float, for functions of this folder that are computed in float
// for results in float: a vector holds twice as many floats as doubles, and a
// GPU has no doubles.
//
// Errors are a few ulp, with and without fused multiply-adds. An argument that
// needs more digits is passed in two parts: exp(x + low).
//
// Exact operations are exact on every system: products of numbers with few
// bits, and sums of numbers whose larger one comes first. Numbers such as
// (4.6.6) are equations of https://dlmf.nist.gov.

#pragma once

#include "exp_log_coefficients.h"
#include "mlxgen/scalar.h"

// For a loop that must be unrolled, because otherwise the loop around it is not
// vectorized.
#if defined(__GNUC__) && !defined(__clang__)
#define MLXOPS_UNROLL _Pragma("GCC unroll 32")
#elif !defined(__METAL_VERSION__)
#define MLXOPS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLXOPS_UNROLL
#endif

namespace mlxops {
namespace special {
namespace in_float {

namespace math = mlxgen::math;

// The last bits of a sum with it are the integer nearest to the number.
MLXGEN_NUMBER float to_integer = 12582912.0f; // 1.5 2^23
MLXGEN_NUMBER uint32_t one = 0x3f800000u; // the bits of 1

/** 2^k for an integer k, |k| <= 126. */
inline float two_to_the(float k) {
  return mlxgen::float_of((mlxgen::bits_of(k + to_integer) << 23) + one);
}

/** x with the first half of its bits: a product of two such numbers is exact.
 */
inline float first_bits(float x) {
  return mlxgen::float_of(mlxgen::bits_of(x) & 0xfffff000u);
}

/** x 2^k for an integer k, |k| <= 252: the result may be subnormal. */
inline float scaled(float x, float k) {
  float part = (0.5f * k + to_integer) - to_integer;
  return x * two_to_the(part) * two_to_the(k - part);
}

/** The integer k nearest to x / log 2, and exp(x + low - k log 2) - 1. */
inline float expm1_without_powers(float x, float low, MLXGEN_OUT(float) k) {
  k = (x * log_2_reciprocal[0] + to_integer) - to_integer;
  float r = (x - k * log_2_parts[0]) + (low - k * log_2_parts[1]);
  return r + r * r * math::polynomial(exp_tail, r);
}

/** factor exp(x) for x between -110 and 110. */
inline float exp(float x, float factor) {
  float k;
  float y = expm1_without_powers(x, 0, k);
  return scaled(factor + factor * y, k);
}

/** factor exp(c z^2) for c z^2 between -110 and 110, c a power of 2. */
inline float exp_of_square(float z, float c, float factor) {
  float high = first_bits(z);
  float low = (z - high) * (z + high);
  float k;
  float y = expm1_without_powers(c * (high * high), c * low, k);
  return scaled(factor + factor * y, k);
}

/** log x = high + g + tail; high and g are exact, and tail is the smallest. */
struct Logarithm {
  float high;
  float g;
  float tail;
};

/** g and k with (1 + g) 2^k = 2^-shift x and sqrt(1/2) <= 1 + g < sqrt(2), for
 * x >= 2^-126.
 */
inline float mantissa_less_1(float x, int32_t shift, MLXGEN_OUT(float) k) {
  constexpr uint32_t sqrt_half = 0x3f3504f3u;
  uint32_t bits = mlxgen::bits_of(x);
  uint32_t exponent = (bits - sqrt_half + one) >> 23;
  k = static_cast<float>(static_cast<int32_t>(exponent) - (127 + shift));
  return mlxgen::float_of(bits - (exponent << 23) + one) - 1;
}

/** The parts of log(2^-shift x) for x >= 2^-126. */
inline Logarithm log_in_parts(float x, int32_t shift) {
  float k;
  float g = mantissa_less_1(x, shift, k);
  // (4.6.6) as in exp_log.h: a division takes less time than more terms.
  float f = g / (g + 2);
  float z = f * f;
  float square = 0.5f * g * g;
  float low = k * log_2_parts[1] - square;
  float tail = f * (square + z * math::polynomial(log_series, z)) + low;
  return {k * log_2_parts[0], g, tail};
}

/** log(2^-shift x) for x >= 2^-126, with an absolute or relative error of 1e-7.
 */
inline float short_log(float x, int32_t shift) {
  float k;
  float g = mantissa_less_1(x, shift, k);
  float f = g / (g + 2);
  float z = f * f;
  return k * log_2[0] + f * (2 + z * math::polynomial(log_series, z));
}

/**
 * -log(2^power x y) for 0 < x <= 1, which may be subnormal, and y near 1, with
 * an absolute or relative error of 1e-7.
 */
inline float minus_log_of_product(float x, float y, int32_t power) {
  return -short_log(x * 16777216.0f * y, 24 - power);
}

} // namespace in_float
} // namespace special
} // namespace mlxops
