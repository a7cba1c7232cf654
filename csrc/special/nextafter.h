// The neighbors of floating-point numbers, by their bits. They depend on the
// array's own dtype, not on the type in which kernels compute half precision.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

/**
 * The bits of the number next to x in the direction of y, for numbers with this
 * many stored significand bits (10 in float16).
 */
template <typename T>
T next_bits(int mantissa, T x, T y) {
  // The sign bit and a magnitude, in the order of the numbers.
  T sign = static_cast<T>(static_cast<T>(1) << (8 * sizeof(T) - 1));
  T magnitude = static_cast<T>(x & ~sign);
  T other = static_cast<T>(y & ~sign);
  T exponents = static_cast<T>(8 * sizeof(T) - 1 - mantissa);
  T infinity =
      static_cast<T>(((static_cast<T>(1) << exponents) - 1) << mantissa);
  if (magnitude > infinity || other > infinity) {
    return magnitude > infinity ? x : y; // NaN
  }
  T from = static_cast<T>(x < 0 ? -magnitude : magnitude);
  T to = static_cast<T>(y < 0 ? -other : other);
  if (from == to) {
    return y;
  }
  if (magnitude == 0) {
    return static_cast<T>((y & sign) | 1);
  }
  bool outward = (to > from) == (x >= 0);
  return static_cast<T>(outward ? x + 1 : x - 1);
}

} // namespace special
} // namespace mlxops
