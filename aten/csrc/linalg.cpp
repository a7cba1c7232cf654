// Linear algebra with loops; see linalg.h.

#include "linalg.h"

#include <stdexcept>

namespace mlx_aten::functions {

namespace {

/** A product with a matrix. MLX multiplies floats only; integers are summed. */
mx::array
product(const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {
  auto dtype = mx::result_type(a, b);
  if (mx::issubdtype(dtype, mx::inexact)) {
    return mx::matmul(a, b, s);
  }
  if (b.ndim() < 2) {
    return mx::astype(mx::sum(mx::multiply(a, b, s), -1, false, s), dtype, s);
  }
  auto products = mx::multiply(mx::expand_dims(a, -1, s), b, s);
  return mx::astype(mx::sum(products, -2, false, s), dtype, s);
}

} // namespace

mx::array product_of(
    const std::vector<mx::array>& matrices,
    mx::StreamOrDevice s) {
  if (matrices.empty()) {
    throw std::invalid_argument(
        "[chain_matmul] At least one matrix is needed.");
  }
  auto out = matrices[0];
  for (size_t i = 1; i < matrices.size(); ++i) {
    out = product(out, matrices[i], s);
  }
  return out;
}

mx::array power_of(const mx::array& A, int n, mx::StreamOrDevice s) {
  auto out = mx::broadcast_to(mx::eye(A.shape(-1), A.dtype(), s), A.shape(), s);
  bool first = true;
  for (auto square = A; n > 0; n >>= 1) {
    if (n & 1) {
      out = first ? square : mx::matmul(out, square, s);
      first = false;
    }
    if (n > 1) {
      square = mx::matmul(square, square, s);
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
  auto columns = mx::add(mx::tril(v, -1, s), one, s);
  auto out = x;
  for (int step = 0; step < count; ++step) {
    // The last factor of the product is applied first from the left, and last
    // from the right.
    int i = left != reverse ? count - 1 - step : step;
    auto index = mx::array(i);
    auto column = mx::expand_dims(mx::take(columns, index, -1, s), -1, s);
    auto row = mx::swapaxes(column, -1, -2, s);
    auto scale = mx::expand_dims(mx::take(tau, index, -1, s), {-2, -1}, s);
    auto change = left ? mx::matmul(column, mx::matmul(row, out, s), s)
                       : mx::matmul(mx::matmul(out, column, s), row, s);
    out = mx::subtract(out, mx::multiply(scale, change, s), s);
  }
  return out;
}

mx::array permutation_of(const mx::array& pivots, int n, mx::StreamOrDevice s) {
  auto shape = pivots.shape();
  int count = shape.back();
  shape.back() = n;
  auto places = mx::arange(n, s);
  auto rows = mx::broadcast_to(places, shape, s);
  for (int i = 0; i < count; ++i) { // swap row i with that of its pivot
    auto other = mx::subtract(
        mx::slice(
            pivots,
            [&] {
              mx::Shape start(pivots.ndim(), 0);
              start.back() = i;
              return start;
            }(),
            [&] {
              auto stop = pivots.shape();
              stop.back() = i + 1;
              return stop;
            }(),
            s),
        mx::array(1, pivots.dtype()),
        s);
    auto source = mx::where(
        mx::equal(places, mx::array(i), s),
        mx::astype(other, mx::int32, s),
        mx::where(mx::equal(places, other, s), mx::array(i), places, s),
        s);
    rows = mx::take_along_axis(rows, mx::broadcast_to(source, shape, s), -1, s);
  }
  return mx::equal(
      mx::expand_dims(places, -1, s), mx::expand_dims(rows, -2, s), s);
}

} // namespace mlx_aten::functions
