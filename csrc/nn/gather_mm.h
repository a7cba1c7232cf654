// MLX's products with a matrix for each row, as formulas call them: arguments
// that are optional here are not optional in the stubs of all releases.

#pragma once

#include <optional>
#include <string>

#include "mlx/mlx.h"

namespace mlxops::experts {

namespace mx = mlx::core;

/** x[n] @ weight[indices[n]] for x of (N, 1, K). */
inline mx::array gather_mm(
    const mx::array& x,
    const mx::array& weight,
    const mx::array& indices,
    bool sorted_indices,
    mx::StreamOrDevice s) {
  return mx::gather_mm(x, weight, std::nullopt, indices, sorted_indices, s);
}

/** The same for quantized matrices, whose scales are numbers or codes. */
inline mx::array gather_qmm(
    const mx::array& x,
    const mx::array& weight,
    const std::optional<mx::array>& scales,
    const std::optional<mx::array>& biases,
    const std::optional<mx::array>& codes,
    const mx::array& indices,
    bool transpose,
    int group_size,
    int bits,
    const std::string& mode,
    bool sorted_indices,
    mx::StreamOrDevice s) {
  const auto& by = scales ? *scales : *codes;
  // Only some releases have an argument before `sorted_indices`.
  auto call = [&](auto no) {
    if constexpr (requires {
                    mx::gather_qmm(
                        x,
                        weight,
                        by,
                        biases,
                        no,
                        indices,
                        transpose,
                        group_size,
                        bits,
                        mode,
                        no,
                        false,
                        s);
                  }) {
      return mx::gather_qmm(
          x,
          weight,
          by,
          biases,
          no,
          indices,
          transpose,
          group_size,
          bits,
          mode,
          no,
          sorted_indices,
          s);
    } else {
      return mx::gather_qmm(
          x,
          weight,
          by,
          biases,
          no,
          indices,
          transpose,
          group_size,
          bits,
          mode,
          sorted_indices,
          s);
    }
  };
  return call(std::nullopt);
}

} // namespace mlxops::experts
