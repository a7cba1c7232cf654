// Cutting and padding along an axis that is an argument, which formulas cannot
// index.

#pragma once

#include <optional>
#include <vector>

#include "mlx/mlx.h"

namespace mlx_aten::functions {

namespace mx = mlx::core;

/** `x[start:end:step]` along an axis, with Python's rules for bounds. */
mx::array slice_along(
    const mx::array& x,
    int dim,
    std::optional<int> start,
    std::optional<int> end,
    int step,
    mx::StreamOrDevice s = {});

/** `x` with `x[start:end:step]` along an axis replaced by `src`. */
mx::array slice_replaced(
    const mx::array& x,
    const mx::array& src,
    int dim,
    std::optional<int> start,
    std::optional<int> end,
    int step,
    mx::StreamOrDevice s = {});

/** `x` with pairs of widths added before and after its last axes; negative
 * widths cut. */
mx::array padded(
    const mx::array& x,
    const std::vector<int>& widths,
    const mx::array& value,
    mx::StreamOrDevice s = {});

/** `x` broadcast to a shape, where -1 keeps the length of an axis. */
mx::array
expanded(const mx::array& x, const mx::Shape& shape, mx::StreamOrDevice s = {});

/** The elements in reverse order along axes. */
mx::array flipped(
    const mx::array& x,
    const std::vector<int>& dims,
    mx::StreamOrDevice s = {});

/** The n-th differences along an axis. */
mx::array
differences(const mx::array& x, int n, int dim, mx::StreamOrDevice s = {});

/** The complex array of two real ones. */
mx::array complex_of(
    const mx::array& real,
    const mx::array& imag,
    mx::StreamOrDevice s = {});

} // namespace mlx_aten::functions
