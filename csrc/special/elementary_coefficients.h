// clang-format off

// Coefficients of the approximations in elementary.h.
// Written by elementary_coefficients.py, which says how they are found: do not edit.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

// For results in float.
namespace for_float {

// (log(m) / f - 2) / f^2 in f^2, f = (m - 1) / (m + 1), 1/2 <= m^2 <= 2
// error 6.9e-14
MLXGEN_TABLE(logarithm, 6) = {
    MLXGEN_WIDE(0.666666687f, -1.98682617e-08f),
    MLXGEN_WIDE(0.400000006f, -5.84806736e-09f),
    MLXGEN_WIDE(0.285714239f, 2.41068188e-09f),
    MLXGEN_WIDE(0.222228631f, 4.55891297e-11f),
    MLXGEN_WIDE(0.181401595f, 7.41925321e-09f),
    MLXGEN_WIDE(0.166222736f, -6.45784981e-09f),
};

// (exp(r) - 1 - r) / r^2, |r| <= 0.35
// error 1.5e-14
MLXGEN_TABLE(exponential, 9) = {
    MLXGEN_WIDE(0.5f, -6.73540694e-16f),
    MLXGEN_WIDE(0.166666672f, -4.9672515e-09f),
    MLXGEN_WIDE(0.0416666679f, -1.24160371e-09f),
    MLXGEN_WIDE(0.00833333377f, -4.13060058e-10f),
    MLXGEN_WIDE(0.00138888892f, -3.90312296e-11f),
    MLXGEN_WIDE(0.000198412061f, 3.27115527e-12f),
    MLXGEN_WIDE(2.48016277e-05f, 8.34227381e-13f),
    MLXGEN_WIDE(2.76263995e-06f, 4.40672279e-15f),
    MLXGEN_WIDE(2.75764791e-07f, 4.41255503e-15f),
};

// log(2) in two parts, the first with 33 bits
MLXGEN_TABLE(log_2, 2) = {
    MLXGEN_WIDE(0.693147182f, -1.86264515e-09f),
    MLXGEN_WIDE(-4.20091496e-11f, -1.09566049e-18f),
};

MLXGEN_TABLE(inverse_log_2, 1) = {
    MLXGEN_WIDE(1.44269502f, 1.92596303e-08f),
};

} // namespace for_float

#ifndef __METAL_VERSION__
// For results in double.
namespace for_double {

// (log(m) / f - 2) / f^2 in f^2, f = (m - 1) / (m + 1), 1/2 <= m^2 <= 2
// error 4.5e-16
inline constexpr double logarithm[7] = {
    0.666666666666667,
    0.3999999999989918,
    0.2857142862610609,
    0.22222211115835477,
    0.18182890368918467,
    0.15331684010120875,
    0.14616875683547312,
};

// (exp(r) - 1 - r) / r^2, |r| <= 0.35
// error 3.0e-18
inline constexpr double exponential[11] = {
    0.5,
    0.1666666666666667,
    0.041666666666666616,
    0.00833333333332558,
    0.0013888888888920336,
    0.0001984126987675416,
    2.4801587242348656e-05,
    2.7557252957219005e-06,
    2.7557350838219486e-07,
    2.510622849160105e-08,
    2.0889625092986133e-09,
};

// log(2) in two parts, the first with 33 bits
inline constexpr double log_2[2] = {
    0.6931471806019545,
    -4.2009150726810846e-11,
};

inline constexpr double inverse_log_2[1] = {
    1.4426950408889634,
};

} // namespace for_double
#endif

} // namespace special
} // namespace mlxops
