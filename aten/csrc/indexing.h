// Gathers and scatters with ATen's rules for shapes, which loop over axes and
// lists of indices and are therefore no formulas.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/mlx.h"

namespace mlx_aten::functions {

namespace mx = mlx::core;

/** The elements of `x` at `index` along an axis, where `index` may be smaller
 * in other axes. */
mx::array gather_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    mx::StreamOrDevice s = {});

/** `x` with the elements at `index` along an axis replaced by those of `src`,
 * of which only the leading ones are used. */
mx::array scatter_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& src,
    mx::StreamOrDevice s = {});

/** `x` plus the elements of `src` at `index` along an axis. */
mx::array scatter_add_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& src,
    mx::StreamOrDevice s = {});

/** `x` with the slices at `index` along an axis replaced. */
mx::array index_copy_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& source,
    mx::StreamOrDevice s = {});

/** `x` plus slices at `index` along an axis. */
mx::array index_add_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& source,
    mx::StreamOrDevice s = {});

/** NumPy's advanced indexing: `x[i, :, j]`, where an absent index is `:`. */
mx::array index_by(
    const mx::array& x,
    const std::vector<std::optional<mx::array>>& indices,
    mx::StreamOrDevice s = {});

/** `x` with the elements at `indices` replaced by `values`, or with `values`
 * added to them. */
mx::array index_put_by(
    const mx::array& x,
    const std::vector<std::optional<mx::array>>& indices,
    const mx::array& values,
    bool accumulate,
    mx::StreamOrDevice s = {});

} // namespace mlx_aten::functions
