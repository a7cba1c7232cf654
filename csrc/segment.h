// CPU kernel of sums over segments.

#pragma once

#include <algorithm>
#include <vector>

#include "mlxgen/kernel.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

/**
 * out[s] = sum of the x[i] with segment_ids[i] == s, for 0 <= s < num_segments;
 * other ids are ignored. The rows are added in order.
 */
template <typename T>
void segment_sum(
    In<T> x,
    In<int32_t> segment_ids,
    int num_segments,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t rows = segment_ids.size();
  int64_t width = rows == 0 ? 0 : x.size() / rows;
  // In half precision a large sum would absorb small numbers: add in float,
  // then round once.
  std::vector<A> wide;
  A* sums;
  if constexpr (std::is_same_v<T, A>) {
    sums = out.data;
  } else {
    wide.resize(out.size());
    sums = wide.data();
  }
  std::fill_n(sums, out.size(), A(0));
  for (int64_t row = 0; row < rows; ++row) {
    int32_t segment = segment_ids[row];
    if (segment < 0 || segment >= num_segments) {
      continue;
    }
    const T* from = x.data + row * width;
    A* sum = sums + segment * width;
    for (int64_t i = 0; i < width; ++i) {
      sum[i] += static_cast<A>(from[i]);
    }
  }
  if constexpr (!std::is_same_v<T, A>) {
    std::transform(wide.begin(), wide.end(), out.data, [](A sum) {
      return static_cast<T>(sum);
    });
  }
}

/** The same with an order of the rows by their ids, which the CPU ignores. */
template <typename T>
void segment_sum_sorted(
    In<T> x,
    In<int32_t> segment_ids,
    In<uint32_t>,
    int num_segments,
    Out<T> out) {
  segment_sum<T>(x, segment_ids, num_segments, out);
}

} // namespace mlxops::cpu
