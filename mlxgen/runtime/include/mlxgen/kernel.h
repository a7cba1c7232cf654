// Included by hand-written CPU kernels: typed views of arrays, and conversions
// of 16-bit floats.
//
// A kernel that is not elementwise is a function over these views:
//
//   template <typename T>
//   void segment_sum(In<T> x, In<int32_t> segment_ids, int num_segments,
//                    Out<T> out);
//
// The generated code around it checks shapes and dtypes, makes every input
// row-contiguous, allocates the outputs (uninitialized), and runs the kernel on
// the stream's thread.

#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "mlx/array.h"

namespace mlxgen {

namespace mx = mlx::core;

using mx::bfloat16_t;
using mx::complex64_t;
using mx::Dtype;
using mx::float16_t;
using mx::Shape;

/** The accumulator type for values of type T. */
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

///////////////////////////////////////////////////////////////////////////////
// Storage type <-> computing type
///////////////////////////////////////////////////////////////////////////////

// float16 and bfloat16 are computed in float, a block at a time. The
// conversions use only selects and no branches, so that they vectorize.

/** The bits of a 16-bit float; g++ does not vectorize std::bit_cast of it. */
template <typename T>
uint16_t bits_of(const T& x) {
  uint16_t bits;
  static_assert(sizeof(x) == sizeof(bits));
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float widen(const bfloat16_t& x) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits_of(x)) << 16);
}

inline float widen(const float16_t& x) {
  uint32_t bits = bits_of(x);
  // After the shift the exponent is too small by 112. Multiplying by 2^112
  // corrects it and also normalizes subnormal numbers.
  float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  uint32_t wide = std::bit_cast<uint32_t>(magnitude);
  wide |= magnitude >= 65536.0f ? 0x7f800000u : 0u; // inf and NaN
  return std::bit_cast<float>(wide | ((bits & 0x8000u) << 16));
}

template <typename T>
T widen(T x) {
  return x;
}

inline void narrow(float x, bfloat16_t& out) {
  auto bits = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t nan = (bits >> 16) | 0x40u;
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out =
      std::bit_cast<bfloat16_t>(static_cast<uint16_t>(is_nan ? nan : rounded));
}

inline void narrow(float x, float16_t& out) {
  auto bits = std::bit_cast<uint32_t>(x);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t a = bits & 0x7fffffffu;
  // Round to nearest even at bit 13, after moving the exponent down by 112.
  uint32_t normal = (a - 0x38000000u + 0x0fffu + ((a >> 13) & 1u)) >> 13;
  // Below 2^-14, adding 0.5 shifts the mantissa, so that the addition rounds.
  uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  uint32_t h = a < 0x38800000u ? subnormal : normal;
  h = a >= 0x47800000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  out = std::bit_cast<float16_t>(static_cast<uint16_t>(h | sign));
}

template <typename T>
void narrow(T x, T& out) {
  out = x;
}

///////////////////////////////////////////////////////////////////////////////
// Views
///////////////////////////////////////////////////////////////////////////////

/** Raise an error: an array with `ndim` axes has no axis i. */
[[noreturn, gnu::noinline, gnu::cold]] inline void no_axis(int i, int ndim) {
  throw std::out_of_range(
      "Axis " + std::to_string(i) + " is out of range for an array with " +
      std::to_string(ndim) + " dimensions.");
}

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
  /** The size of axis i, which may be negative to count from the last. */
  int64_t dim(int i) const {
    int axis = i < 0 ? i + ndim() : i;
    if (axis < 0 || axis >= ndim()) {
      no_axis(i, ndim());
    }
    return shape[axis];
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

/** An array of T with any strides. An absent optional array has no data. */
template <typename T>
struct Strided : In<T> {
  mx::Strides strides; // in elements

  Strided() = default;
  explicit Strided(const mx::array& a) : In<T>(a), strides(a.strides()) {}

  const T& operator[](int64_t i) const = delete; // its elements have gaps

  /** The element at an index. */
  template <typename... Index>
  const T& operator()(Index... index) const {
    int64_t at = 0;
    int axis = 0;
    ((at += index * strides[axis++]), ...);
    return this->data[at];
  }
};

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

// Kernels are in namespaces of their packages, or in none, and call these
// functions without a namespace.
using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;
using mlxgen::Strided;
