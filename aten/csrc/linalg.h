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
 * `v` has the columns of geqrf's result: zeros above the diagonal and a one on
 * it. `reverse` is the transpose of the product.
 */
mx::array reflections(
    const mx::array& v,
    const mx::array& tau,
    const mx::array& x,
    bool left,
    bool reverse,
    mx::StreamOrDevice s = {});

/** A QR decomposition: R, and below its diagonal the vectors of the reflections
 * whose product is Q; and their factors tau, as LAPACK's geqrf. */
std::vector<mx::array> reflections_of(
    const mx::array& A,
    mx::StreamOrDevice s = {});

/** The permutation matrix of LAPACK's pivots, which count from 1. */
mx::array
permutation_of(const mx::array& pivots, int n, mx::StreamOrDevice s = {});

} // namespace mlx_aten::functions
