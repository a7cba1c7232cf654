// The product of a linear layer: on the CPU the kernels of mlxops, because
// MLX's product there is slow on Linux. On macOS MLX calls Accelerate, which is
// fast.

#pragma once

#include <optional>
#include <string_view>

#include "mlx/mlx.h"
#include "mlxgen/shapeless.h"
#include "mlxops/linear_rows.h"

namespace mlxops::linear {

namespace mx = mlx::core;

#ifdef __APPLE__
constexpr bool has_own_product = false;
#else
constexpr bool has_own_product = true;
#endif

/**
 * True if the transpose of a matrix is probably row-contiguous in memory. An
 * error costs only time, that of a copy.
 */
inline bool lies_transposed(const mx::array& a) {
  if (a.is_available()) {
    return !a.flags().row_contiguous && a.flags().col_contiguous;
  }
  return a.has_primitive() &&
      std::string_view(a.primitive().name()) == "Transpose";
}

/** x weight^T + bias. */
inline mx::array product(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& bias,
    mx::StreamOrDevice s) {
  if (has_own_product && mx::to_stream(s).device == mx::Device::cpu) {
    return lies_transposed(weight)
        ? linear_rows(x, mx::transpose(weight, s), bias, false, s)
        : linear_rows(x, weight, bias, true, s);
  }
  auto dtype = mx::result_type(x, weight);
  dtype = bias ? mx::promote_types(dtype, bias->dtype()) : dtype;
  if (!mx::issubdtype(dtype, mx::floating)) {
    dtype = mx::float32;
  }
  auto rows = mx::astype(x, dtype, s);
  auto matrix = mx::transpose(mx::astype(weight, dtype, s), s);
  if (!bias) {
    return mx::matmul(rows, matrix, s);
  }
  auto added = mx::astype(*bias, dtype, s);
  // In a shapeless graph, addmm keeps the shape of the first call.
  bool fused = x.size() > 0 && weight.size() > 0 && !mlxgen::is_shapeless();
  return fused ? mx::addmm(added, rows, matrix, 1.0f, 1.0f, s)
               : mlxgen::add(mx::matmul(rows, matrix, s), added, s);
}

} // namespace mlxops::linear
