// Gathers and scatters with ATen's rules for shapes; see indexing.h.

#include "indexing.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace mlx_aten::functions {

namespace {

int axis_of(const mx::array& x, int dim) {
  int ndim = std::max<int>(x.ndim(), 1);
  if (dim < -ndim || dim >= ndim) {
    throw std::invalid_argument(
        "axis " + std::to_string(dim) + " is out of range for an array with " +
        std::to_string(x.ndim()) + " axes");
  }
  return dim < 0 ? dim + ndim : dim;
}

/** The leading block of `x` with the shape `shape`. */
mx::array
leading(const mx::array& x, const mx::Shape& shape, mx::StreamOrDevice s) {
  if (x.shape() == shape) {
    return x;
  }
  bool fits = x.ndim() == shape.size();
  for (int i = 0; fits && i < static_cast<int>(shape.size()); ++i) {
    fits = shape[i] <= x.shape(i);
  }
  if (!fits) {
    throw std::invalid_argument(
        "index must not be larger than the array along other axes");
  }
  return mx::slice(x, mx::Shape(x.ndim(), 0), shape, s);
}

/** For each axis of `index` the coordinates of its elements, with `index`
 * itself along `axis`. */
std::vector<mx::array>
coordinates(const mx::array& index, int axis, mx::StreamOrDevice s) {
  std::vector<mx::array> found;
  for (int i = 0; i < static_cast<int>(index.ndim()); ++i) {
    if (i == axis) {
      found.push_back(index);
      continue;
    }
    mx::Shape shape(index.ndim(), 1);
    shape[i] = index.shape(i);
    found.push_back(
        mx::broadcast_to(
            mx::reshape(mx::arange(index.shape(i), s), shape, s),
            index.shape(),
            s));
  }
  return found;
}

using Scatter = mx::array (*)(
    const mx::array&,
    const std::vector<mx::array>&,
    const mx::array&,
    const std::vector<int>&,
    mx::StreamOrDevice);

mx::array scattered(
    Scatter scatter,
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& src,
    mx::StreamOrDevice s) {
  if (x.ndim() == 0) { // as an array of one element
    auto one = [&](const mx::array& a) { return mx::reshape(a, {1}, s); };
    return mx::reshape(
        scattered(scatter, one(x), dim, one(index), one(src), s), {}, s);
  }
  if (index.size() == 0) {
    return x;
  }
  auto axis = axis_of(x, dim);
  auto updates = mx::astype(leading(src, index.shape(), s), x.dtype(), s);
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    if (i != axis && index.shape(i) > x.shape(i)) {
      throw std::invalid_argument(
          "index must not be larger than the array along other axes");
    }
  }
  auto shape = updates.shape();
  shape.resize(shape.size() + x.ndim(), 1);
  std::vector<int> axes(x.ndim());
  std::iota(axes.begin(), axes.end(), 0);
  return scatter(
      x, coordinates(index, axis, s), mx::reshape(updates, shape, s), axes, s);
}

mx::array replace(
    const mx::array& x,
    const std::vector<mx::array>& indices,
    const mx::array& updates,
    const std::vector<int>& axes,
    mx::StreamOrDevice s) {
  // MLX divides by the size of the updates.
  return updates.size() == 0 ? x : mx::scatter(x, indices, updates, axes, s);
}

mx::array add(
    const mx::array& x,
    const std::vector<mx::array>& indices,
    const mx::array& updates,
    const std::vector<int>& axes,
    mx::StreamOrDevice s) {
  return updates.size() == 0 ? x
                             : mx::scatter_add(x, indices, updates, axes, s);
}

mx::array by_slices(
    Scatter scatter,
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& source,
    mx::StreamOrDevice s) {
  auto flat = mx::flatten(index, s);
  if (x.ndim() == 0) {
    auto one = [&](const mx::array& a) { return mx::reshape(a, {1}, s); };
    return mx::reshape(
        by_slices(scatter, one(x), 0, flat, one(source), s), {}, s);
  }
  if (flat.size() == 0) {
    return x;
  }
  auto axis = axis_of(x, dim);
  auto rows = source.ndim() == 0
      ? mx::reshape(source, mx::Shape(x.ndim(), 1), s)
      : source;
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    if (rows.ndim() != x.ndim() ||
        rows.shape(i) !=
            (i == axis ? static_cast<int>(flat.size()) : x.shape(i))) {
      throw std::invalid_argument(
          "source must have the shape of the array, with the size of index along the axis");
    }
  }
  auto updates = mx::expand_dims(mx::moveaxis(rows, axis, 0, s), axis + 1, s);
  return scatter(x, {flat}, mx::astype(updates, x.dtype(), s), {axis}, s);
}

/** The indices that are present, broadcast against each other, and their axes.
 */
struct Indices {
  std::vector<mx::array> arrays;
  std::vector<int> axes;
  bool adjacent = true;
};

Indices present(
    const mx::array& x,
    const std::vector<std::optional<mx::array>>& indices,
    mx::StreamOrDevice s) {
  Indices found;
  for (int i = 0; i < static_cast<int>(indices.size()); ++i) {
    if (!indices[i]) {
      continue;
    }
    if (indices[i]->dtype() == mx::bool_) {
      throw std::invalid_argument(
          "[index] An index of bools selects a number of elements that depends on its values, "
          "which MLX's arrays cannot have. Use where() or integers.");
    }
    found.adjacent =
        found.adjacent && (found.axes.empty() || found.axes.back() == i - 1);
    found.arrays.push_back(*indices[i]);
    found.axes.push_back(i);
  }
  if (found.axes.size() > x.ndim()) {
    throw std::invalid_argument("[index] More indices than axes.");
  }
  found.arrays = mx::broadcast_arrays(found.arrays, s);
  return found;
}

/** Move the axes of the indices from the front to the place of the first one,
 * as NumPy does where the indices are adjacent. */
std::vector<int> placed(const Indices& found, int ndim) {
  int count = found.arrays[0].ndim(),
      first = found.adjacent ? found.axes[0] : 0;
  std::vector<int> order;
  for (int i = 0; i < first; ++i) {
    order.push_back(count + i);
  }
  for (int i = 0; i < count; ++i) {
    order.push_back(i);
  }
  for (int i = count + first; i < ndim; ++i) {
    order.push_back(i);
  }
  return order;
}

/** `x` with the elements replaced where a mask of its axes from `first` on is
 * true. Values may have an axis of the selected elements, in order. */
mx::array put_where(
    const mx::array& x,
    int first,
    const mx::array& mask,
    const mx::array& values,
    bool accumulate,
    mx::StreamOrDevice s) {
  int rest = static_cast<int>(x.ndim()) - first - static_cast<int>(mask.ndim());
  if (rest < 0 ||
      !std::equal(
          mask.shape().begin(),
          mask.shape().end(),
          x.shape().begin() + first)) {
    throw std::invalid_argument(
        "[index_put] A mask must have the sizes of the axes that it selects from.");
  }
  if (x.size() == 0 || values.size() == 0) { // MLX cannot take from nothing
    return x;
  }
  auto updates = mx::astype(
      values.size() == 1 ? mx::reshape(values, {}, s) : values, x.dtype(), s);
  int axis = static_cast<int>(updates.ndim()) - rest - 1;
  if (axis >= 0 && updates.shape(axis) == 1) {
    updates = mx::unflatten(updates, axis, mx::Shape(mask.ndim(), 1), s);
  } else if (axis >= 0) {
    auto count = mx::cumsum(
        mx::astype(mx::flatten(mask, s), mx::int32, s), 0, false, true, s);
    auto order = mx::clip(
        mx::subtract(count, mx::array(1), s),
        mx::array(0),
        mx::array(updates.shape(axis) - 1),
        s);
    updates =
        mx::unflatten(mx::take(updates, order, axis, s), axis, mask.shape(), s);
  }
  updates = mx::broadcast_to(updates, x.shape(), s);
  auto shape = mask.shape();
  shape.resize(shape.size() + rest, 1);
  return mx::where(
      mx::reshape(mask, shape, s),
      accumulate ? mx::add(x, updates, s) : updates,
      x,
      s);
}

} // namespace

mx::array gather_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    mx::StreamOrDevice s) {
  if (x.ndim() == 0) {
    return mx::broadcast_to(x, index.shape(), s);
  }
  auto axis = axis_of(x, dim);
  if (index.size() == 0) { // of any shape, as in torch
    return mx::zeros(index.shape(), x.dtype(), s);
  }
  if (index.ndim() == 0) {
    return mx::reshape(mx::take(x, index, axis, s), {}, s);
  }
  auto shape = index.shape();
  shape[axis] = x.shape(axis);
  return mx::take_along_axis(leading(x, shape, s), index, axis, s);
}

mx::array scatter_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& src,
    mx::StreamOrDevice s) {
  return scattered(replace, x, dim, index, src, s);
}

mx::array scatter_add_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& src,
    mx::StreamOrDevice s) {
  return scattered(add, x, dim, index, src, s);
}

mx::array index_copy_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& source,
    mx::StreamOrDevice s) {
  return by_slices(replace, x, dim, index, source, s);
}

mx::array index_add_along(
    const mx::array& x,
    int dim,
    const mx::array& index,
    const mx::array& source,
    mx::StreamOrDevice s) {
  return by_slices(add, x, dim, index, source, s);
}

mx::array index_by(
    const mx::array& x,
    const std::vector<std::optional<mx::array>>& indices,
    mx::StreamOrDevice s) {
  auto found = present(x, indices, s);
  if (found.arrays.empty()) {
    return x;
  }
  auto sizes = x.shape();
  for (int axis : found.axes) {
    sizes[axis] = 1;
  }
  // MLX divides by the size of the slices.
  auto out = mx::gather(
      x.size() == 0 ? mx::stop_gradient(x, s) : x,
      found.arrays,
      found.axes,
      sizes,
      s);
  std::vector<int> ones; // the axes of the indices in the slices, behind those
                         // of the index arrays
  for (int axis : found.axes) {
    ones.push_back(axis + found.arrays[0].ndim());
  }
  out = mx::squeeze(out, ones, s);
  return mx::transpose(out, placed(found, out.ndim()), s);
}

mx::array index_put_by(
    const mx::array& x,
    const std::vector<std::optional<mx::array>>& indices,
    const mx::array& values,
    bool accumulate,
    mx::StreamOrDevice s) {
  int only = -1, given = 0;
  for (int i = 0; i < static_cast<int>(indices.size()); ++i) {
    if (indices[i]) {
      only = i;
      ++given;
    }
  }
  if (given == 1 && indices[only]->dtype() == mx::bool_) {
    return put_where(x, only, *indices[only], values, accumulate, s);
  }
  auto found = present(x, indices, s);
  if (found.arrays.empty()) {
    auto value =
        mx::broadcast_to(mx::astype(values, x.dtype(), s), x.shape(), s);
    return accumulate ? mx::add(x, value, s) : value;
  }
  int count = found.arrays[0].ndim(),
      ndim = count + x.ndim() - found.axes.size();
  // The shape of x[indices], to which the values are broadcast, and its axes
  // with those of the indices in front.
  mx::Shape front = found.arrays[0].shape();
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    if (std::find(found.axes.begin(), found.axes.end(), i) ==
        found.axes.end()) {
      front.push_back(x.shape(i));
    }
  }
  auto order = placed(found, ndim);
  mx::Shape shape;
  std::vector<int> back(ndim);
  for (int i = 0; i < ndim; ++i) {
    shape.push_back(front[order[i]]);
    back[order[i]] = i;
  }
  auto updates = mx::broadcast_to(mx::astype(values, x.dtype(), s), shape, s);
  updates = mx::transpose(updates, back, s);
  auto slices = front;
  slices.resize(count);
  for (int i = 0; i < static_cast<int>(x.ndim()); ++i) {
    bool indexed =
        std::find(found.axes.begin(), found.axes.end(), i) != found.axes.end();
    slices.push_back(indexed ? 1 : x.shape(i));
  }
  updates = mx::reshape(updates, slices, s);
  auto scatter = accumulate ? add : replace;
  return scatter(x, found.arrays, updates, found.axes, s);
}

} // namespace mlx_aten::functions
