// The evaluation of operators with MLX's functions that call LAPACK. MLX's
// library does not export the classes of its primitives, but an array has its
// primitive, which computes all outputs, also those that a function of MLX does
// not return.

#include <vector>

#include "linalg/lapack.h"

// A build of selected operators may lack some of them.
#if __has_include("mlxops/inv.h")
#include "mlxops/inv.h"
#define MLXOPS_INV
#endif
#if __has_include("mlxops/tri_inv.h")
#include "mlxops/tri_inv.h"
#define MLXOPS_TRI_INV
#endif
#if __has_include("mlxops/cholesky_lower.h")
#include "mlxops/cholesky_lower.h"
#define MLXOPS_CHOLESKY
#endif
#if __has_include("mlxops/qr_by_lapack.h")
#include "mlxops/qr_by_lapack.h"
#define MLXOPS_QR
#endif
#if __has_include("mlxops/lu_rows.h")
#include "mlxops/lu_rows.h"
#define MLXOPS_LU
#endif
#if __has_include("mlxops/all_singular_vectors.h")
#include "mlxops/all_singular_vectors.h"
#define MLXOPS_SVD
#endif
#if __has_include("mlxops/svdvals.h")
#include "mlxops/svdvals.h"
#define MLXOPS_SVDVALS
#endif
#if __has_include("mlxops/large_eigh.h")
#include "mlxops/large_eigh.h"
#define MLXOPS_EIGH
#endif
#if __has_include("mlxops/large_eigenvalues.h")
#include "mlxops/large_eigenvalues.h"
#define MLXOPS_EIGVALSH
#endif
#if __has_include("mlxops/eig_by_lapack.h")
#include "mlxops/eig_by_lapack.h"
#define MLXOPS_EIG
#endif

namespace mlxops {

namespace mx = mlx::core;
using linalg::by_lapack;
using linalg::Fails;
using linalg::Read;
using Arrays = std::vector<mx::array>;

#ifdef MLXOPS_INV
void Inv::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::inv(inputs[0], stream());
  by_lapack("inv", made, inputs[0], outputs, Read::all, Fails::singular);
}
#endif

#ifdef MLXOPS_TRI_INV
void TriInv::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::tri_inv(inputs[0], upper_, stream());
  auto read = upper_ ? Read::upper : Read::lower;
  by_lapack("tri_inv", made, inputs[0], outputs, read, Fails::zero_on_diagonal);
}
#endif

#ifdef MLXOPS_CHOLESKY
void CholeskyLower::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::cholesky(inputs[0], /* upper */ false, stream());
  by_lapack(
      "cholesky", made, inputs[0], outputs, Read::lower, Fails::not_positive);
}
#endif

#ifdef MLXOPS_QR
void QrByLapack::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::qr(inputs[0], stream()).first;
  by_lapack("qr", made, inputs[0], outputs);
}
#endif

#ifdef MLXOPS_LU
void LuRows::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::lu_factor(inputs[0], stream()).first;
  by_lapack("lu_factor", made, inputs[0], outputs);
}
#endif

#ifdef MLXOPS_SVD
void AllSingularVectors::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::svd(inputs[0], /* compute_uv */ true, stream())[0];
  by_lapack("svd", made, inputs[0], outputs);
}
#endif

#ifdef MLXOPS_SVDVALS
void Svdvals::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::svd(inputs[0], /* compute_uv */ false, stream())[0];
  by_lapack("svdvals", made, inputs[0], outputs);
}
#endif

#ifdef MLXOPS_EIGH
void LargeEigh::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::eigh(inputs[0], "L", stream()).first;
  by_lapack("eigh", made, inputs[0], outputs, Read::lower);
}
#endif

#ifdef MLXOPS_EIGVALSH
void LargeEigenvalues::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::eigvalsh(inputs[0], "L", stream());
  by_lapack("eigvalsh", made, inputs[0], outputs, Read::lower);
}
#endif

#ifdef MLXOPS_EIG
void EigByLapack::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto made = mx::linalg::eig(inputs[0], stream()).first;
  by_lapack("eig", made, inputs[0], outputs);
}
#endif

} // namespace mlxops
