// Cutting and padding; see shape.h.

#include "shape.h"

#include <algorithm>
#include <complex>
#include <stdexcept>
#include <string>

namespace mlx_aten::functions {

namespace {

/** A slice of one axis, with bounds inside of the array. */
struct Bounds {
  mx::Shape start, stop, step;
};

int axis_of(const mx::array& x, int dim) {
  int ndim = x.ndim();
  if (dim < -ndim || dim >= ndim) {
    throw std::invalid_argument(
        "axis " + std::to_string(dim) + " is out of range for an array with " +
        std::to_string(ndim) + " axes");
  }
  return dim < 0 ? dim + ndim : dim;
}

Bounds bounds(
    const mx::array& x,
    int dim,
    std::optional<int> start,
    std::optional<int> end,
    int step) {
  if (step < 1) {
    throw std::invalid_argument("[slice] step must be positive.");
  }
  int axis = axis_of(x, dim), n = x.shape(axis);
  auto inside = [n](int place) {
    return std::clamp(place < 0 ? place + n : place, 0, n);
  };
  Bounds found{mx::Shape(x.ndim(), 0), x.shape(), mx::Shape(x.ndim(), 1)};
  found.start[axis] = inside(start.value_or(0));
  found.stop[axis] = std::max(inside(end.value_or(n)), found.start[axis]);
  found.step[axis] = step;
  return found;
}

} // namespace

mx::array slice_along(
    const mx::array& x,
    int dim,
    std::optional<int> start,
    std::optional<int> end,
    int step,
    mx::StreamOrDevice s) {
  auto found = bounds(x, dim, start, end, step);
  return mx::slice(x, found.start, found.stop, found.step, s);
}

mx::array slice_replaced(
    const mx::array& x,
    const mx::array& src,
    int dim,
    std::optional<int> start,
    std::optional<int> end,
    int step,
    mx::StreamOrDevice s) {
  auto found = bounds(x, dim, start, end, step);
  auto typed = mx::astype(src, x.dtype(), s);
  return mx::slice_update(x, typed, found.start, found.stop, found.step, s);
}

mx::array padded(
    const mx::array& x,
    const std::vector<int>& widths,
    const mx::array& value,
    mx::StreamOrDevice s) {
  if (widths.size() % 2 != 0 || widths.size() / 2 > x.ndim()) {
    throw std::invalid_argument(
        "[constant_pad_nd] pad must have two widths for each of the last axes.");
  }
  auto out = x;
  std::vector<int> axes;
  mx::Shape low, high;
  for (size_t i = 0; i < widths.size() / 2; ++i) {
    int axis = x.ndim() - 1 - i, before = widths[2 * i],
        after = widths[2 * i + 1];
    if (before < 0 || after < 0) {
      int n = x.shape(axis);
      out = slice_along(
          out, axis, std::max(-before, 0), n - std::max(-after, 0), 1, s);
    }
    axes.push_back(axis);
    low.push_back(std::max(before, 0));
    high.push_back(std::max(after, 0));
  }
  return mx::pad(
      out, axes, low, high, mx::astype(value, x.dtype(), s), "constant", s);
}

mx::array
expanded(const mx::array& x, const mx::Shape& shape, mx::StreamOrDevice s) {
  auto wanted = shape;
  int more = static_cast<int>(shape.size()) - static_cast<int>(x.ndim());
  for (int i = std::max(more, 0); i < static_cast<int>(shape.size()); ++i) {
    wanted[i] = shape[i] == -1 ? x.shape(i - more) : shape[i];
  }
  return mx::broadcast_to(x, wanted, s);
}

mx::array flipped(
    const mx::array& x,
    const std::vector<int>& dims,
    mx::StreamOrDevice s) {
  if (x.ndim() == 0) { // a number has the axis 0, as in torch
    return x;
  }
  auto start = mx::Shape(x.ndim(), 0), stop = x.shape(),
       step = mx::Shape(x.ndim(), 1);
  for (int dim : dims) {
    int axis = axis_of(x, dim), n = x.shape(axis);
    start[axis] = n - 1;
    stop[axis] = -n - 1; // before the first element
    step[axis] = -1;
  }
  return dims.empty() ? x : mx::slice(x, start, stop, step, s);
}

mx::array
differences(const mx::array& x, int n, int dim, mx::StreamOrDevice s) {
  auto out = x;
  for (int i = 0; i < n && out.shape(axis_of(out, dim)) > 0; ++i) {
    int count = out.shape(axis_of(out, dim));
    auto after = slice_along(out, dim, 1, count, 1, s);
    auto before = slice_along(out, dim, 0, count - 1, 1, s);
    out = x.dtype() == mx::bool_ ? mx::not_equal(after, before, s)
                                 : mx::subtract(after, before, s);
  }
  return out;
}

mx::array
complex_of(const mx::array& real, const mx::array& imag, mx::StreamOrDevice s) {
  auto i = mx::array(std::complex<float>(0.0f, 1.0f));
  return mx::add(real, mx::multiply(imag, i, s), s);
}

} // namespace mlx_aten::functions
