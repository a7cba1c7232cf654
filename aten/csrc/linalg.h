// Linear algebra that loops over matrices, columns or pivots, and is therefore
// no formula.

#pragma once

#include <vector>

#include "mlx/mlx.h"

namespace mlx_aten::functions {

namespace mx = mlx::core;

/** The product of matrices with the fewest multiplications; the first and the
 * last may be vectors. */
mx::array product_of(
    const std::vector<mx::array>& matrices,
    mx::StreamOrDevice s = {});

/** A matrix to a power that is not negative, by squaring. */
mx::array power_of(const mx::array& A, int n, mx::StreamOrDevice s = {});

/** The product of the reflections `I - tau[i] v[i] v[i]^T` with `x`, from the
 * left or from the right.
 *
 * `v` has the columns of geqrf's result below the diagonal, and zeros
 * elsewhere. `reverse` is the transpose of the product.
 */
mx::array reflections(
    const mx::array& v,
    const mx::array& tau,
    const mx::array& x,
    bool left,
    bool reverse,
    mx::StreamOrDevice s = {});

/** The solution of A X = B with one triangle of A, whose diagonal counts as
 * ones if `unit`. */
mx::array substitution(
    const mx::array& A,
    const mx::array& B,
    bool upper,
    bool unit,
    mx::StreamOrDevice s = {});

} // namespace mlx_aten::functions
