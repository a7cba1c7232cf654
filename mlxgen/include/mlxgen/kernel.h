// What a hand-written CPU kernel sees: typed views of its arrays.
//
// A kernel that is not elementwise is a function over these views:
//
//   template <typename T>
//   void segment_sum(In<T> x, In<int32_t> segment_ids, int num_segments,
//                    Out<T> out);
//
// The generated code around it has checked shapes and dtypes, made every input
// row-contiguous, allocated the outputs (uninitialised) and runs it on the
// stream's thread.

#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "mlx/array.h"

namespace mlxgen {

namespace mx = mlx::core;

using mx::bfloat16_t;
using mx::complex64_t;
using mx::float16_t;
using mx::Shape;

/** The type in which a kernel should add up values of type T. */
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<float16_t> {
  using type = float;
};
template <>
struct Accumulator<bfloat16_t> {
  using type = float;
};
template <typename T>
using accum_t = typename Accumulator<std::remove_const_t<T>>::type;

/** A row-contiguous array of T. An absent optional array has no data. */
template <typename T>
struct View {
  T* data = nullptr;
  Shape shape;

  View() = default;

  template <
      typename Array,
      typename = std::enable_if_t<
          std::is_same_v<std::remove_const_t<Array>, mx::array>>>
  explicit View(Array& a)
      : data(a.template data<std::remove_const_t<T>>()), shape(a.shape()) {}

  explicit operator bool() const {
    return data != nullptr;
  }
  T& operator[](int64_t i) const {
    return data[i];
  }
  int ndim() const {
    return static_cast<int>(shape.size());
  }
  /** The length of axis i, which may be negative to count from the last. */
  int64_t dim(int i) const {
    return shape[i < 0 ? i + ndim() : i];
  }
  int64_t size() const {
    int64_t n = 1;
    for (auto d : shape) {
      n *= d;
    }
    return n;
  }
};

template <typename T>
using In = View<const T>;

template <typename T>
using Out = View<T>;

template <typename T>
In<T> optional_in(const std::optional<mx::array>& a) {
  return a ? In<T>(*a) : In<T>();
}

template <typename T>
std::vector<In<T>> list_in(const std::vector<mx::array>& arrays) {
  std::vector<In<T>> views;
  for (const auto& a : arrays) {
    views.emplace_back(a);
  }
  return views;
}

} // namespace mlxgen
