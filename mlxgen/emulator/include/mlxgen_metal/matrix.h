// Matrices of 8 by 8 elements. Each lane of a simdgroup holds two elements.
//
// Metal's specification does not define which two. MLX's kernels rely on the
// layout of Apple's GPUs, which this file uses. Products are accumulated in
// float and rounded once; the order of the sums may differ from the GPU's.

#pragma once

#include "mlxgen_metal/device.h"

namespace mlxgen_metal {

/** The first of a lane's two elements; the other one is to its right. */
struct Place {
  uint32_t row;
  uint32_t column;
};
inline Place place_of(uint32_t lane) {
  return {
      (lane / 16 * 4) + lane / 2 % 4,
      (lane / 8 % 2 * 4) + lane % 2 * 2,
  };
}

/** The lane that holds the element. */
inline uint32_t lane_of(uint32_t row, uint32_t column) {
  return row / 4 * 16 + column / 4 * 8 + row % 4 * 2 + column / 2 % 2;
}

template <typename T>
using Two = metal::vec<T, 2>;

/** Exchange the data of all lanes; all 32 must take part. */
template <typename V>
Lanes share_all(const V& value, const char* what, Call call) {
  auto lanes = share(value, what, call);
  if (lanes.active != 0xFFFFFFFFu) {
    unsupported("operation on simdgroup matrices by less than 32 threads");
  }
  return lanes;
}

/** The elements of a matrix, collected from the lanes. */
template <typename T>
T element_of(const Lanes& lanes, uint32_t row, uint32_t column) {
  return value_of<Two<T>>(lanes, lane_of(row, column)).get(column % 2);
}

/** The offsets in memory of a lane's elements. */
struct Offsets {
  ulong at[2];
};
inline Offsets offsets_of(
    uint32_t lane,
    ulong elements_per_row,
    ulong2 origin,
    bool transpose) {
  if (transpose && (origin.x != 0 || origin.y != 0)) {
    unsupported("origin of a transposed simdgroup matrix, in the emulation");
  }
  auto place = place_of(lane);
  Offsets out;
  for (uint32_t i = 0; i < 2; ++i) {
    ulong row = place.row;
    ulong column = place.column + i;
    out.at[i] = transpose
        ? column * elements_per_row + row
        : (origin.y + row) * elements_per_row + origin.x + column;
  }
  return out;
}

} // namespace mlxgen_metal

namespace metal {

template <typename T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup matrices are 8 by 8");
  using storage_type = vec<T, 2>;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal, MLXGEN_CALL) {
    auto lanes = mlxgen_metal::share_all(diagonal, "simdgroup_matrix", call);
    auto place = mlxgen_metal::place_of(lanes.lane);
    for (uint i = 0; i < 2; ++i) {
      elements.set(i, place.row == place.column + i ? diagonal : T(0));
    }
  }

  storage_type& thread_elements() {
    return elements;
  }
  const storage_type& thread_elements() const {
    return elements;
  }

 private:
  storage_type elements;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <typename T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(
    T value,
    MLXGEN_CALL) {
  return simdgroup_matrix<T, Cols, Rows>(value, call);
}
template <typename T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> out;
  out.thread_elements() = vec<T, 2>(value);
  return out;
}

template <typename T>
void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& to,
    const T* from,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0),
    bool transpose = false,
    MLXGEN_CALL) {
  auto lanes = mlxgen_metal::share_all('\0', "simdgroup_load", call);
  auto offsets =
      mlxgen_metal::offsets_of(lanes.lane, elements_per_row, origin, transpose);
  to.thread_elements() = vec<T, 2>(from[offsets.at[0]], from[offsets.at[1]]);
}

template <typename T>
void simdgroup_store(
    simdgroup_matrix<T, 8, 8> from,
    T* to,
    ulong elements_per_row = 8,
    ulong2 origin = ulong2(0),
    bool transpose = false,
    MLXGEN_CALL) {
  auto lanes = mlxgen_metal::share_all('\0', "simdgroup_store", call);
  auto offsets =
      mlxgen_metal::offsets_of(lanes.lane, elements_per_row, origin, transpose);
  to[offsets.at[0]] = from.thread_elements().get(0);
  to[offsets.at[1]] = from.thread_elements().get(1);
}

template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<C, 8, 8> c,
    MLXGEN_CALL) {
  const char* what = "simdgroup_multiply_accumulate";
  float left[8];
  auto lanes = mlxgen_metal::share_all(a.thread_elements(), what, call);
  auto place = mlxgen_metal::place_of(lanes.lane);
  for (uint k = 0; k < 8; ++k) {
    left[k] = float(mlxgen_metal::element_of<A>(lanes, place.row, k));
  }
  lanes = mlxgen_metal::share_all(b.thread_elements(), what, call);
  for (uint i = 0; i < 2; ++i) {
    float sum = float(c.thread_elements().get(i));
    for (uint k = 0; k < 8; ++k) {
      sum += left[k] *
          float(mlxgen_metal::element_of<B>(lanes, k, place.column + i));
    }
    d.thread_elements().set(i, D(sum));
  }
}

template <typename D, typename A, typename B>
void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    MLXGEN_CALL) {
  auto zero = make_filled_simdgroup_matrix<float, 8>(0.0f);
  simdgroup_multiply_accumulate(d, a, b, zero, call);
}

template <typename T>
simdgroup_matrix<T, 8, 8> operator*(
    simdgroup_matrix<T, 8, 8> a,
    simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

} // namespace metal
