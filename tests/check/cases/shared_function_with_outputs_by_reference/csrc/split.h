#pragma once

#include "mlxgen/scalar.h"

namespace my {

template <typename T>
void split(T x, T& whole, T& rest) {
  whole = mlxgen::math::floor(x);
  rest = x - whole;
}

} // namespace my
