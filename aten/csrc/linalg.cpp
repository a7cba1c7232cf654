// Linear algebra with loops; see linalg.h.

#include "linalg.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "mlx_aten/matrix_product.h"

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
        if (cost < least[first][last]) {
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
  auto columns = mx::add(mx::tril(v, -1, s), one, s);
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

std::vector<mx::array> reflections_of(
    const mx::array& A,
    mx::StreamOrDevice s) {
  int m = A.shape(-2), n = A.shape(-1), count = std::min(m, n);
  auto batch = A.shape();
  batch.resize(A.ndim() - 2);
  auto lengths = batch;
  lengths.push_back(count);
  if (A.size() == 0) {
    return {A, mx::zeros(lengths, A.dtype(), s)};
  }
  auto out = A;
  auto rows = mx::expand_dims(mx::arange(m, s), -1, s);
  auto columns = mx::arange(n, s);
  auto zero = mx::array(0, A.dtype()), one = mx::array(1, A.dtype());
  std::vector<mx::array> factors;
  for (int i = 0; i < count; ++i) {
    auto at = mx::array(i);
    auto column = mx::expand_dims(mx::take(out, at, -1, s), -1, s);
    auto first = mx::expand_dims(mx::take(column, at, -2, s), -2, s);
    auto below = mx::where(mx::greater(rows, at, s), column, zero, s);
    auto rest = mx::sum(mx::square(mx::abs(below, s), s), -2, true, s);
    bool is_complex = A.dtype() == mx::complex64;
    // Nothing is to be reflected where all elements below are 0, and the
    // diagonal is real.
    auto flat = mx::equal(rest, mx::array(0, rest.dtype()), s);
    if (is_complex) {
      flat = mx::logical_and(
          flat, mx::equal(mx::imag(first, s), mx::array(0.0f), s), s);
    }
    auto norm = mx::sqrt(mx::add(rest, mx::square(mx::abs(first, s), s), s), s);
    auto sign = is_complex ? mx::real(first, s) : first;
    auto beta = mx::astype(
        mx::where(
            mx::less(sign, mx::array(0, sign.dtype()), s),
            norm,
            mx::negative(norm, s),
            s),
        A.dtype(),
        s);
    auto head = mx::where(flat, one, mx::subtract(first, beta, s), s);
    auto tau = mx::where(
        flat,
        zero,
        mx::divide(mx::negative(head, s), mx::where(flat, one, beta, s), s),
        s);
    auto v =
        mx::where(mx::equal(rows, at, s), one, mx::divide(below, head, s), s);
    auto change = mx::multiply(
        mx::multiply(mx::conjugate(tau, s), v, s),
        mx::matmul(mx::conjugate(mx::swapaxes(v, -1, -2, s), s), out, s),
        s);
    // Columns to the left keep the reflections that are stored in them.
    auto reflected = mx::where(
        mx::greater(columns, at, s), mx::subtract(out, change, s), out, s);
    auto stored = mx::where(
        mx::greater(rows, at, s),
        v,
        mx::where(
            mx::equal(rows, at, s), mx::where(flat, first, beta, s), column, s),
        s);
    out = mx::where(mx::equal(columns, at, s), stored, reflected, s);
    factors.push_back(mx::squeeze(tau, {-2, -1}, s));
  }
  return {out, mx::stack(factors, -1, s)};
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
