// Metal kernels of scatter_reduce, with the meaning of csrc/reduce_into.h. They
// use no atomics: the ids of each line are sorted before the launch, and one
// thread reduces the elements for one result in their order.

#include <metal_stdlib>

#include "wide.h"

using namespace metal;

// The values of the argument `mode`.
enum ReduceMode {
  reduce_sum,
  reduce_prod,
  reduce_mean,
  reduce_max,
  reduce_min
};

/** The quotient; of integers, rounded down. The count of many bytes wraps
 * around, as in torch, and may be 0. */
template <typename A>
inline A mean_of(A sum, int count) {
  A n = A(count);
  return n == 0 ? A(0) : A(sum / n - A(sum % n != 0 && sum < 0 ? 1 : 0));
}
inline float mean_of(float sum, int count) {
  return sum / float(count);
}

/** NaN propagates through all reductions. */
template <typename A>
inline A reduced(A a, A b, int mode) {
  if (mode == reduce_prod) {
    return a * b;
  }
  if (mode == reduce_max) {
    return a > b || a != a ? a : b;
  }
  if (mode == reduce_min) {
    return a < b || a != a ? a : b;
  }
  return a + b;
}

/** A line along an axis: the offset of its first element, and the distance. */
struct Line {
  size_t start;
  size_t step;
};

/** The line of an element of an array with the shape `in`, in another array. */
inline Line line_of(
    size_t element,
    constant int* in,
    constant int* shape,
    int ndim,
    int axis) {
  Line line = {0, 1};
  size_t stride = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    if (i == axis) {
      line.step = stride;
    } else {
      line.start += element % size_t(in[i]) * stride;
    }
    element /= size_t(in[i]);
    stride *= size_t(shape[i]);
  }
  return line;
}

/** The coordinate of an element along an axis. */
inline int coordinate(size_t element, constant int* shape, int ndim, int axis) {
  for (int i = ndim - 1; i > axis; --i) {
    element /= size_t(shape[i]);
  }
  return int(element % size_t(shape[axis]));
}

/** Whether an index has the coordinates of an element, except along the axis.
 */
inline bool has_line(
    size_t element,
    constant int* in,
    constant int* shape,
    int ndim,
    int axis) {
  for (int i = ndim - 1; i >= 0; --i) {
    if (i != axis && int(element % size_t(in[i])) >= shape[i]) {
      return false;
    }
    element /= size_t(in[i]);
  }
  return true;
}

/** `order`: positions along the axis in which the ids of each line ascend. */
template <typename T>
[[kernel]] void reduce_into_sorted(
    device const T* x [[buffer(0)]],
    device const int* index [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const T* src [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant int* x_shape [[buffer(5)]],
    constant int* index_shape [[buffer(6)]],
    constant int* src_shape [[buffer(7)]],
    constant int& x_ndim [[buffer(8)]],
    constant int& axis [[buffer(9)]],
    constant int& mode [[buffer(10)]],
    constant bool& include_self [[buffer(11)]],
    uint element [[thread_position_in_grid]]) {
  typedef typename Wide<T>::type A;
  out[element] = x[element];
  if (!has_line(element, x_shape, index_shape, x_ndim, axis)) {
    return;
  }
  int id = coordinate(element, x_shape, x_ndim, axis);
  Line ids = line_of(element, x_shape, index_shape, x_ndim, axis);
  Line values = line_of(element, x_shape, src_shape, x_ndim, axis);
  index += ids.start;
  order += ids.start;
  src += values.start;
  int count = index_shape[axis];
  int low = 0;
  int high = count;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (index[order[middle * ids.step] * ids.step] < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  A sum = A(x[element]);
  int terms = include_self ? 1 : 0;
  for (; low < count; ++low) {
    uint at = order[low * ids.step];
    if (index[at * ids.step] != id) {
      break;
    }
    A value = A(src[at * values.step]);
    sum = terms > 0 ? reduced(sum, value, mode) : value;
    ++terms;
  }
  if (terms > 0) {
    out[element] = T(mode == reduce_mean ? mean_of(sum, terms) : sum);
  }
}

/** The elements of x that the index names, in the shape of src; others are 0.
 */
template <typename T>
[[kernel]] void take_into(
    device const T* x [[buffer(0)]],
    device const int* index [[buffer(1)]],
    device const T* src [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant int* x_shape [[buffer(4)]],
    constant int* index_shape [[buffer(5)]],
    constant int* src_shape [[buffer(6)]],
    constant int& x_ndim [[buffer(7)]],
    constant int& axis [[buffer(8)]],
    uint element [[thread_position_in_grid]]) {
  out[element] = T(0);
  int at = coordinate(element, src_shape, x_ndim, axis);
  if (at >= index_shape[axis] ||
      !has_line(element, src_shape, index_shape, x_ndim, axis)) {
    return;
  }
  Line ids = line_of(element, src_shape, index_shape, x_ndim, axis);
  Line from = line_of(element, src_shape, x_shape, x_ndim, axis);
  int id = index[ids.start + at * ids.step];
  if (id >= 0 && id < x_shape[axis]) {
    out[element] = x[from.start + id * from.step];
  }
}
