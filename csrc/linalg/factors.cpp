// MLX's factorizations without a vmap of MLX's: primitives of mlxops that
// compute with those of MLX.

#include <cstdint>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/mlx.h"

// A build of selected operators may lack one of them, or both.
#if __has_include("mlxops/lu_rows.h")
#include "mlxops/lu_rows.h"
#define MLXOPS_LU_ROWS
#endif
#if __has_include("mlxops/qr_by_lapack.h")
#include "mlxops/qr_by_lapack.h"
#define MLXOPS_QR
#endif

namespace mlxops {

namespace mx = mlx::core;

namespace {

/** Allocate the outputs for a matrix without elements. */
[[maybe_unused]] void allocate(std::vector<mx::array>& outputs) {
  for (auto& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
}

} // namespace

// MLX's library does not export the classes of its primitives, but an array has
// its primitive. It computes all outputs, also those that a function of MLX
// does not return.

#ifdef MLXOPS_LU_ROWS
void LuRows::eval_cpu(
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs) {
  if (inputs[0].size() == 0) {
    allocate(outputs);
    auto& rows = outputs[2];
    auto count = static_cast<uint32_t>(rows.shape(-1));
    auto* to = rows.data<uint32_t>();
    for (size_t i = 0; i < rows.size(); ++i) {
      to[i] = static_cast<uint32_t>(i % count); // no rows were exchanged
    }
    return;
  }
  auto made = mx::linalg::lu_factor(inputs[0], stream()).first;
  made.primitive().eval_cpu(inputs, outputs);
}
#endif

#ifdef MLXOPS_QR
void QrByLapack::eval_cpu(
    const std::vector<mx::array>& inputs,
    std::vector<mx::array>& outputs) {
  if (inputs[0].size() == 0) {
    allocate(outputs);
    return;
  }
  auto made = mx::linalg::qr(inputs[0], stream()).first;
  made.primitive().eval_cpu(inputs, outputs);
}
#endif

} // namespace mlxops
