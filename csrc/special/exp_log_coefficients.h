// clang-format off

// Coefficients of the approximations in exp_log.h.
// Written by exp_log_coefficients.py, which says how they are found: do not edit.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

// For results in float.
namespace for_float {

// (exp(r) - 1) / r, |r| <= log(2) / 2
// error 2.3e-10
MLXGEN_TABLE(exp_series, 7) = {
    MLXGEN_WIDE(1.0f, 3.11967292e-11f),
    MLXGEN_WIDE(0.5f, 4.66521266e-09f),
    MLXGEN_WIDE(0.166666657f, 5.76368286e-09f),
    MLXGEN_WIDE(0.041666355f, -5.34326638e-10f),
    MLXGEN_WIDE(0.00833340269f, 2.12220699e-10f),
    MLXGEN_WIDE(0.00139410049f, 5.23509925e-12f),
    MLXGEN_WIDE(0.000198412512f, 3.61503405e-12f),
};

// (log(1 + g) - g) / g^2, 1/2 <= (1 + g)^2 <= 2
// error 1.2e-9
MLXGEN_TABLE(log_series, 11) = {
    MLXGEN_WIDE(-0.5f, -5.73858516e-10f),
    MLXGEN_WIDE(0.333333343f, -1.39041987e-08f),
    MLXGEN_WIDE(-0.249999717f, 6.63676669e-09f),
    MLXGEN_WIDE(0.200000376f, -2.1498221e-09f),
    MLXGEN_WIDE(-0.166690335f, 2.28989849e-09f),
    MLXGEN_WIDE(0.142864004f, -3.19179483e-09f),
    MLXGEN_WIDE(-0.124323361f, 2.62065836e-09f),
    MLXGEN_WIDE(0.110263504f, -9.19265775e-10f),
    MLXGEN_WIDE(-0.107586011f, 4.73065476e-10f),
    MLXGEN_WIDE(0.106461689f, -2.47173226e-10f),
    MLXGEN_WIDE(-0.0610819608f, 9.21172097e-11f),
};

// log(2), as a number of 32 bits and the rest
MLXGEN_TABLE(log_2_parts, 2) = {
    MLXGEN_WIDE(0.693147182f, -1.86264515e-09f),
    MLXGEN_WIDE(-4.20091496e-11f, -1.09566049e-18f),
};

// 1 / log(2)
MLXGEN_TABLE(log_2_reciprocal, 1) = {
    MLXGEN_WIDE(1.44269502f, 1.92596303e-08f),
};

MLXGEN_TABLE(pi, 1) = {
    MLXGEN_WIDE(3.14159274f, -8.74227766e-08f),
};

// sqrt(2 pi)
MLXGEN_TABLE(sqrt_two_pi, 1) = {
    MLXGEN_WIDE(2.50662827f, -2.86602048e-10f),
};

} // namespace for_float

// For what is computed in float.
namespace in_float {

// (exp(r) - 1 - r) / r^2, |r| <= log(2) / 2, relative to exp(r)
// error 3.2e-09
MLXGEN_NUMBER float exp_tail[5] = {
    0.49999994f,
    0.166665211f,
    0.0416683331f,
    0.00836871471f,
    0.00138146116f,
};

// (log(1 + g) / f - 2) / f^2 in f^2, f = g / (g + 2), 1/2 <= (1 + g)^2 <= 2, relative to log(1 + g) / f
// error 8.2e-10
MLXGEN_NUMBER float log_series[3] = {
    0.666667759f,
    0.399775624f,
    0.29871735f,
};

// log(2), as a number of 15 bits and the rest
MLXGEN_NUMBER float log_2_parts[2] = {
    0.693145752f,
    1.42860677e-06f,
};

// 1 / log(2)
MLXGEN_NUMBER float log_2_reciprocal[1] = {
    1.44269502f,
};

MLXGEN_NUMBER float log_2[1] = {
    0.693147182f,
};

} // namespace in_float

#ifndef __METAL_VERSION__
// For results in double.
namespace for_double {

// (exp(r) - 1) / r, |r| <= log(2) / 2
// error 1.8e-17
inline constexpr double exp_series[11] = {
    1.0,
    0.5000000000000006,
    0.16666666666666563,
    0.041666666666573905,
    0.008333333333397832,
    0.0013888888932258893,
    0.000198412697074685,
    2.480150460212653e-05,
    2.7557414788340586e-06,
    2.7626262799016194e-07,
    2.505209696724485e-08,
};

// (log(1 + g) / f - 2) / f^2 in f^2, f = g / (g + 2), 1/2 <= (1 + g)^2 <= 2
// error 4.5e-16
inline constexpr double log_series[7] = {
    0.666666666666667,
    0.3999999999989918,
    0.2857142862610609,
    0.22222211115835477,
    0.18182890368918467,
    0.15331684010120875,
    0.14616875683547315,
};

// log(2), as a number of 32 bits and the rest
inline constexpr double log_2_parts[2] = {
    0.6931471806019545,
    -4.2009150726810846e-11,
};

// 1 / log(2)
inline constexpr double log_2_reciprocal[1] = {
    1.4426950408889634,
};

inline constexpr double pi[1] = {
    3.141592653589793,
};

// sqrt(2 pi)
inline constexpr double sqrt_two_pi[1] = {
    2.5066282746310007,
};

} // namespace for_double
#endif

} // namespace special
} // namespace mlxops
