// Functions of linear algebra that formulas cannot express; see products.h.

#include "linalg/products.h"

#include <cstdint>
#include <limits>

#include "mlxgen/shapeless.h"

namespace mlxops::linalg {

mx::array
quotient(const mx::array& x, const mx::array& gap, mx::StreamOrDevice s) {
  auto zero = mx::equal(x, mx::array(0, x.dtype()), s);
  return mx::where(zero, mx::zeros_like(x, s), mx::divide(x, gap, s), s);
}

mx::array power(const mx::array& a, int n, mx::StreamOrDevice s) {
  if (n == 0) {
    return mx::broadcast_to(mx::eye(a.shape(-1), a.dtype(), s), a.shape(), s);
  }
  auto square = a;
  while (n % 2 == 0) {
    square = mx::matmul(square, square, s);
    n /= 2;
  }
  auto out = square;
  while (n /= 2) {
    square = mx::matmul(square, square, s);
    if (n % 2) {
      out = mx::matmul(out, square, s);
    }
  }
  return out;
}

namespace {

/** The costs of products of arrays i to j, and where to divide them. */
struct Plan {
  explicit Plan(size_t n)
      : cost(n, std::vector<double>(n)), split(n, std::vector<size_t>(n)) {}

  std::vector<std::vector<double>> cost;
  std::vector<std::vector<size_t>> split;
};

mx::array product(
    const std::vector<mx::array>& arrays,
    const Plan& plan,
    size_t first,
    size_t last,
    mx::StreamOrDevice s) {
  if (first == last) {
    return arrays[first];
  }
  auto middle = plan.split[first][last];
  return mx::matmul(
      product(arrays, plan, first, middle, s),
      product(arrays, plan, middle + 1, last, s),
      s);
}

} // namespace

mx::array multi_dot(
    const std::vector<mx::array>& arrays,
    mx::StreamOrDevice s) {
  mlxgen::refuse_shapeless("multi_dot", "it orders products by shapes");
  auto n = arrays.size();
  // Array i is a matrix of sizes[i] x sizes[i + 1]. The first vector is a row,
  // and the last one a column.
  std::vector<double> sizes;
  sizes.push_back(arrays[0].ndim() == 1 ? 1 : arrays[0].shape(0));
  for (const auto& a : arrays) {
    sizes.push_back(a.shape(-1));
  }
  if (arrays.back().ndim() == 1) {
    sizes[n - 1] = arrays.back().shape(0);
    sizes[n] = 1;
  }
  Plan plan(n);
  for (size_t length = 1; length < n; ++length) {
    for (size_t i = 0; i + length < n; ++i) {
      auto j = i + length;
      plan.cost[i][j] = std::numeric_limits<double>::infinity();
      for (size_t k = i; k < j; ++k) {
        double cost = plan.cost[i][k] + plan.cost[k + 1][j] +
            sizes[i] * sizes[k + 1] * sizes[j + 1];
        if (cost < plan.cost[i][j]) {
          plan.cost[i][j] = cost;
          plan.split[i][j] = k;
        }
      }
    }
  }
  return product(arrays, plan, 0, n - 1, s);
}

} // namespace mlxops::linalg
