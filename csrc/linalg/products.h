// Functions of linear algebra that formulas cannot express: they loop over
// matrices, or are not linear by their form.

#pragma once

#include <vector>

#include "mlx/mlx.h"

namespace mlxops::linalg {

namespace mx = mlx::core;

/** x / gap, and 0 where x is 0, whatever gap is. */
mx::array
quotient(const mx::array& x, const mx::array& gap, mx::StreamOrDevice s = {});

/** A square matrix to a power that is not negative, by squaring. */
mx::array power(const mx::array& a, int n, mx::StreamOrDevice s = {});

/** The product of matrices in the order with the fewest multiplications; the
 * first and the last may be vectors. */
mx::array multi_dot(
    const std::vector<mx::array>& arrays,
    mx::StreamOrDevice s = {});

} // namespace mlxops::linalg
