// CPU kernels of scatter_reduce: elements of `src` are reduced into the
// elements of x that `index` names along an axis. The other coordinates are the
// same, so that index may be smaller than x and src along all other axes.
//
// An index outside of x takes no part.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

namespace mlx_aten {
namespace cpu {

// The values of the argument `mode`.
enum ReduceMode {
  reduce_sum,
  reduce_prod,
  reduce_mean,
  reduce_max,
  reduce_min
};

/** The lines of an index along an axis, and their places in other arrays. */
struct IndexLines {
  mlxgen::Shape shape; // of the index
  int axis;
  int64_t count = 1;

  IndexLines(mlxgen::Shape shape_, int axis_) : shape(shape_), axis(axis_) {
    for (int i = 0; i < int(shape.size()); ++i) {
      count *= i == axis ? 1 : shape[i];
    }
  }

  /** The offset of a line's first element in an array of another shape. */
  int64_t start(int64_t line, const mlxgen::Shape& in) const {
    int64_t offset = 0;
    int64_t stride = 1;
    for (int i = int(in.size()) - 1; i >= 0; --i) {
      if (i != axis) {
        offset += line % shape[i] * stride;
        line /= shape[i];
      }
      stride *= in[i];
    }
    return offset;
  }

  /** The distance of a line's elements. */
  int64_t step(const mlxgen::Shape& in) const {
    int64_t stride = 1;
    for (int i = int(in.size()) - 1; i > axis; --i) {
      stride *= in[i];
    }
    return stride;
  }
};

/** NaN propagates through all reductions. */
template <typename A>
A reduced(A a, A b, int mode) {
  switch (mode) {
    case reduce_prod:
      return a * b;
    case reduce_max:
      return a > b || a != a ? a : b;
    case reduce_min:
      return a < b || a != a ? a : b;
    default:
      return a + b;
  }
}

/** The quotient; of integers, rounded down. The count of many bytes wraps
 * around, as in torch, and may be 0. */
template <typename A>
A mean_of(A sum, int64_t count) {
  A n = static_cast<A>(count);
  if constexpr (std::numeric_limits<A>::is_integer) {
    return n == 0 ? A(0)
                  : static_cast<A>(sum / n - (sum % n != 0 && sum < 0 ? 1 : 0));
  } else {
    return sum / n;
  }
}

template <typename T>
void reduce_into(
    In<T> x,
    In<int32_t> index,
    In<T> src,
    int axis,
    int mode,
    bool include_self,
    Out<T> out) {
  using A = accum_t<T>;
  std::copy_n(x.data, x.size(), out.data);
  IndexLines lines(index.shape, axis);
  int64_t length = x.dim(axis);
  int64_t ids = index.dim(axis);
  int64_t step = lines.step(x.shape);
  int64_t index_step = lines.step(index.shape);
  int64_t src_step = lines.step(src.shape);
  mlxgen::share(
      lines.count, 4 * ids + length, [&](int64_t first, int64_t last) {
        std::vector<A> sums(length);
        std::vector<int64_t> counts(length);
        for (int64_t line = first; line < last; ++line) {
          T* to = out.data + lines.start(line, x.shape);
          const int32_t* id = index.data + lines.start(line, index.shape);
          const T* from = src.data + lines.start(line, src.shape);
          std::fill(counts.begin(), counts.end(), 0);
          for (int64_t i = 0; i < ids; ++i) {
            int64_t at = id[i * index_step];
            if (at < 0 || at >= length) {
              continue;
            }
            A value = static_cast<A>(from[i * src_step]);
            if (counts[at] == 0 && include_self) {
              sums[at] = static_cast<A>(to[at * step]);
              counts[at] = 1;
            }
            sums[at] = counts[at] > 0 ? reduced(sums[at], value, mode) : value;
            ++counts[at];
          }
          for (int64_t at = 0; at < length; ++at) {
            if (counts[at] > 0) {
              A mean = mode == reduce_mean ? mean_of(sums[at], counts[at])
                                           : sums[at];
              to[at * step] = static_cast<T>(mean);
            }
          }
        }
      });
}

/** The elements of x that the index names, in the shape of src; others are 0.
 */
template <typename T>
void take_into(In<T> x, In<int32_t> index, In<T> src, int axis, Out<T> out) {
  std::fill_n(out.data, out.size(), T(0));
  IndexLines lines(index.shape, axis);
  int64_t length = x.dim(axis);
  int64_t ids = index.dim(axis);
  int64_t step = lines.step(x.shape);
  int64_t index_step = lines.step(index.shape);
  int64_t src_step = lines.step(src.shape);
  mlxgen::share(lines.count, 2 * ids, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const T* from = x.data + lines.start(line, x.shape);
      const int32_t* id = index.data + lines.start(line, index.shape);
      T* to = out.data + lines.start(line, src.shape);
      for (int64_t i = 0; i < ids; ++i) {
        int64_t at = id[i * index_step];
        if (at >= 0 && at < length) {
          to[i * src_step] = from[at * step];
        }
      }
    }
  });
}

} // namespace cpu
} // namespace mlx_aten
