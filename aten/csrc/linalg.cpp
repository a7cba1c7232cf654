// Linear algebra with loops; see linalg.h.

#include "linalg.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "mlx_aten/matrix_product.h"
#include "mlx_aten/substituted.h"

namespace mlx_aten::functions {

mx::array product_of(
    const std::vector<mx::array>& matrices,
    mx::StreamOrDevice s) {
  if (matrices.empty()) {
    throw std::invalid_argument(
        "[chain_matmul] At least one matrix is needed.");
  }
  int count = matrices.size();
  for (int i = 0; i < count; ++i) {
    bool end = i == 0 || i == count - 1;
    if (matrices[i].ndim() != 2 && !(end && matrices[i].ndim() == 1)) {
      throw std::invalid_argument(
          "[chain_matmul] The factors must be matrices; the first and the last may be vectors.");
    }
  }
  // The rows of each matrix, and the columns of the last one.
  std::vector<double> sizes;
  for (int i = 0; i < count; ++i) {
    bool row = i == 0 && matrices[i].ndim() == 1 && count > 1;
    sizes.push_back(row ? 1 : matrices[i].shape(0));
  }
  sizes.push_back(
      matrices[count - 1].ndim() == 1 ? 1 : matrices[count - 1].shape(1));
  // The fewest multiplications of the factors first to last, and where the last
  // product splits them.
  std::vector<std::vector<double>> least(count, std::vector<double>(count));
  std::vector<std::vector<int>> split(count, std::vector<int>(count));
  for (int length = 1; length < count; ++length) {
    for (int first = 0; first + length < count; ++first) {
      int last = first + length;
      least[first][last] = std::numeric_limits<double>::infinity();
      for (int middle = first; middle < last; ++middle) {
        double cost = least[first][middle] + least[middle + 1][last] +
            sizes[first] * sizes[middle + 1] * sizes[last + 1];
        // Of three matrices, torch multiplies the first two if either product
        // costs as much; of more, the last ones.
        if (cost < least[first][last] ||
            (count == 3 && length == 2 && cost == least[first][last])) {
          least[first][last] = cost;
          split[first][last] = middle;
        }
      }
    }
  }
  std::function<mx::array(int, int)> multiplied = [&](int first, int last) {
    if (first == last) {
      return matrices[first];
    }
    int middle = split[first][last];
    return matrix_product(
        multiplied(first, middle), multiplied(middle + 1, last), s);
  };
  return multiplied(0, count - 1);
}

mx::array power_of(const mx::array& A, int n, mx::StreamOrDevice s) {
  auto out = mx::broadcast_to(mx::eye(A.shape(-1), A.dtype(), s), A.shape(), s);
  bool first = true;
  for (auto square = A; n > 0; n >>= 1) {
    if (n & 1) {
      out = first ? square : matrix_product(out, square, s);
      first = false;
    }
    if (n > 1) {
      square = matrix_product(square, square, s);
    }
  }
  return out;
}

mx::array reflections(
    const mx::array& v,
    const mx::array& tau,
    const mx::array& x,
    bool left,
    bool reverse,
    mx::StreamOrDevice s) {
  if (x.size() == 0) {
    return x;
  }
  int rows = v.shape(-2), count = tau.shape(-1);
  auto one = mx::eye(rows, v.shape(-1), 0, v.dtype(), s);
  auto columns = mx::add(v, one, s);
  auto out = x;
  for (int step = 0; step < count; ++step) {
    // The last factor of the product is applied first from the left, and last
    // from the right.
    int i = left != reverse ? count - 1 - step : step;
    auto index = mx::array(i);
    auto column = mx::expand_dims(mx::take(columns, index, -1, s), -1, s);
    auto row = mx::conjugate(mx::swapaxes(column, -1, -2, s), s);
    auto factor = mx::take(tau, index, -1, s);
    auto scale = mx::expand_dims(
        reverse ? mx::conjugate(factor, s) : factor, {-2, -1}, s);
    auto change = left ? mx::matmul(column, mx::matmul(row, out, s), s)
                       : mx::matmul(mx::matmul(out, column, s), row, s);
    out = mx::subtract(out, mx::multiply(scale, change, s), s);
  }
  return out;
}

mx::array substitution(
    const mx::array& A,
    const mx::array& B,
    bool upper,
    bool unit,
    mx::StreamOrDevice s) {
  int n = A.shape(-1);
  if (n <= 128) {
    return substituted(A, B, upper, unit, s);
  }
  // Products of blocks are faster than substitution.
  int half = n / 2;
  auto part = [&](const mx::array& x, int axis, bool second) {
    mx::Shape start(x.ndim(), 0), stop = x.shape();
    (second ? start : stop)[x.ndim() + axis] = half;
    return mx::slice(x, start, stop, s);
  };
  auto known = substitution(
      part(part(A, -2, upper), -1, upper), part(B, -2, upper), upper, unit, s);
  auto factors = part(part(A, -2, !upper), -1, upper);
  auto rest =
      mx::subtract(part(B, -2, !upper), mx::matmul(factors, known, s), s);
  auto found =
      substitution(part(part(A, -2, !upper), -1, !upper), rest, upper, unit, s);
  return mx::concatenate(
      upper ? std::vector<mx::array>{found, known}
            : std::vector<mx::array>{known, found},
      -2,
      s);
}

} // namespace mlx_aten::functions
