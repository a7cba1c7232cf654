#pragma once
#include "mlxgen/scalar.h"
template <typename T>
T thrice(T x) {
  return 3 * mlxgen::math::fabz(x);
}
template <typename T>
T library(T x) {
  return std::erf(x);
}
