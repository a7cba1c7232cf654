// Scalar functions of the sample project that serve the CPU and Metal.

#pragma once

#include "mlxgen/scalar.h"

#ifndef __METAL_VERSION__
#include <vector>
#endif

namespace my {

namespace tables {

namespace for_float {
MLXGEN_TABLE(line, 2) = {MLXGEN_WIDE(0.5f, 0.0f), MLXGEN_WIDE(0.1f, -1.49011612e-09f)};
} // namespace for_float

#ifndef __METAL_VERSION__
namespace for_double {
inline constexpr double line[3] = {0.5, 0.1, 0.0};
} // namespace for_double
#endif

} // namespace tables

template <typename T, bool positive = false>
T bent(T x, float a) {
  using namespace tables;
  mlxgen::wide<T> z = x;
  z = a * mlxgen::math::polynomial(MLXGEN_COEFFICIENTS(T, line), z);
  return static_cast<T>(!positive && x < 0 ? -z : z);
}

template <typename T>
void powers(T x, MLXGEN_OUT(T) two, MLXGEN_OUT(T) three) {
  two = x * x;
  three = x * two;
}

} // namespace my
