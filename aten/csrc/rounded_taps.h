// The taps of taps.h with rounded weights, with which ATen resamples bytes.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/mlx.h"

namespace mlx_aten::functions {

namespace mx = mlx::core;

/** The first input of each output, the weights of as many inputs for all, and
 * the bits of their fractions. */
std::vector<mx::array> rounded_taps(
    int length,
    int size,
    const std::string& mode,
    std::optional<double> factor,
    bool align_corners,
    mx::StreamOrDevice s = {});

} // namespace mlx_aten::functions
