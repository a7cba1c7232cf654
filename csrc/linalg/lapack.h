// MLX's functions that call LAPACK, for operators of mlxops. LAPACK may end the
// process, or never return, if a number is not finite: matrices with such
// numbers are not passed to it, and their results are NaN.

#pragma once

#include <vector>

#include "mlx/mlx.h"

namespace mlxops::linalg {

namespace mx = mlx::core;

/** The elements of a matrix that a function reads. */
enum class Read { all, lower, upper };

/** The matrices, apart from those with NaN and infinities, without a result. */
enum class Fails {
  never,
  not_positive, // Cholesky factors that end at a pivot: NaN
  singular, // inverses: MLX raises an error, and the result is NaN
  zero_on_diagonal, // inverses of triangles: an error, and the result is NaN
};

/**
 * Compute `outputs` with the primitive of `made`, which is an output of MLX's
 * function of the matrices `a`. Floating outputs of matrices without a result
 * are NaN, and integers are those of the identity. `op` begins messages.
 */
void by_lapack(
    const char* op,
    mx::array made,
    const mx::array& a,
    std::vector<mx::array>& outputs,
    Read read = Read::all,
    Fails fails = Fails::never);

} // namespace mlxops::linalg
