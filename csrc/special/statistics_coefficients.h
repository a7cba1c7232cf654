// clang-format off

// Coefficients of the approximations in statistics.h.
// Written by statistics_coefficients.py, which says how they are found: do not edit.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

// For results in float.
namespace for_float {

// ((1 + d) log(1 + d) - d) / d^2, -1/2 <= d <= 1
// error 5.4e-10
MLXGEN_TABLE(divergence_p, 5) = {
    MLXGEN_WIDE(21.8774853f, 6.98446598e-08f),
    MLXGEN_WIDE(36.4112053f, -1.66621373e-06f),
    MLXGEN_WIDE(18.0843201f, -8.56629015e-07f),
    MLXGEN_WIDE(2.60016942f, 5.43043743e-09f),
    MLXGEN_WIDE(0.0315781273f, -1.06278941e-09f),
};

MLXGEN_TABLE(divergence_q, 5) = {
    MLXGEN_WIDE(43.7549706f, 1.43747357e-07f),
    MLXGEN_WIDE(87.4073944f, 2.78110542e-06f),
    MLXGEN_WIDE(58.01194f, 1.68056545e-06f),
    MLXGEN_WIDE(14.3452578f, 3.51095707e-07f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

MLXGEN_TABLE(log_of_2, 1) = {
    MLXGEN_WIDE(0.693147182f, -1.90465421e-09f),
};

MLXGEN_TABLE(exp_32, 1) = {
    MLXGEN_WIDE(7.8962957e+13f, 3222936.75f),
};

} // namespace for_float

#ifndef __METAL_VERSION__
// For results in double.
namespace for_double {

// ((1 + d) log(1 + d) - d) / d^2, -1/2 <= d <= 1
// error 2.4e-17
inline constexpr double divergence_p[9] = {
    288.0528139594198,
    971.4105198448644,
    1291.1800557615695,
    855.7272835811743,
    293.81312599464394,
    48.7475399399,
    3.079207975217518,
    0.02367865565627194,
    -0.00027605986039770625,
};

inline constexpr double divergence_q[8] = {
    576.1056279188396,
    2134.8562489960086,
    3197.961256535332,
    2479.2428406333283,
    1056.1255724829887,
    241.2357743188437,
    26.36089931857989,
    1.0,
};

inline constexpr double log_of_2[1] = {
    0.6931471805599453,
};

inline constexpr double exp_32[1] = {
    78962960182680.69,
};

} // namespace for_double
#endif

} // namespace special
} // namespace mlxops
