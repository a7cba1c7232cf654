// Batches of linear layers.

#include <utility>
#include <vector>

#include "mlx/mlx.h"

// A build of selected operators may lack them.
#if __has_include("mlxops/linear_rows.h")
#include "mlxops/linear_rows.h"
#include "mlxops/linear_sums.h"

namespace mlxops {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;

/** A batch of x alone consists of more rows. */
std::pair<Arrays, std::vector<int>> LinearRows::vmap(
    const Arrays& inputs,
    const std::vector<int>& axes) {
  bool rows_only = true;
  for (size_t i = 1; i < inputs.size(); ++i) {
    rows_only = rows_only && axes[i] < 0;
  }
  if (!rows_only) {
    return {apply(mlxgen::batch_in_front(inputs, axes, stream())), {0}};
  }
  auto all = inputs;
  int front = static_cast<int>(inputs[1].ndim()) - 2;
  all[0] = mx::moveaxis(inputs[0], axes[0], front, stream());
  return {apply(all), {front}};
}

std::pair<Arrays, std::vector<int>> LinearSums::vmap(
    const Arrays& inputs,
    const std::vector<int>& axes) {
  auto all = mlxgen::batch_in_front(inputs, axes, stream());
  return {linear_sums(all[0], all[1], axes_ + 1, stream()), {0, 0}};
}

} // namespace mlxops
#endif
