// The neighbours of floating-point numbers, found in their bits: in the dtype
// that they have, which is not the type that kernels compute half precision in.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

/**
 * The bits of the number next to x in the direction of y, of numbers whose
 * significands have so many bits stored (10 in float16).
 */
template <typename T>
T next_bits(int mantissa, T x, T y) {
  // The sign bit and a magnitude, in the order of numbers.
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
