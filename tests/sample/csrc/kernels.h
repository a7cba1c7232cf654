// Kernels and functions of the sample project, one of every form.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/kernel.h"

namespace my {

namespace mx = mlx::core;

using mlxgen::In;
using mlxgen::Out;

///////////////////////////////////////////////////////////////////////////////
// Elementwise kernels
///////////////////////////////////////////////////////////////////////////////

template <typename T>
T square(T x) {
  return x * x;
}

template <typename T>
T scale(T x, T a) {
  return a * x;
}

template <typename T>
T plus(T x, T y) {
  return x + y;
}

template <typename T>
T scale2(T x, T a, T b) {
  return a * b * x;
}

template <typename T>
T blend(T x, T y, int n, bool flip, int mode) {
  return flip ? y : x + T(n + mode);
}

template <typename T>
void parts(T x, T a, T& low, T& high) {
  low = x - a;
  high = x + a;
}

// Overloads instead of a template.
inline float cube(float x) {
  return x * x * x;
}
inline double cube(double x) {
  return x * x * x;
}

inline float single(float x) {
  return x;
}

///////////////////////////////////////////////////////////////////////////////
// Kernels over whole arrays
///////////////////////////////////////////////////////////////////////////////

template <typename T>
void total(In<T> x, Out<T> out) {
  mlxgen::accum_t<T> sum = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    sum += x[i];
  }
  out[0] = sum;
}

template <typename T>
void halves(In<T> x, Out<T> low, Out<T> high) {}

template <typename T>
void join(const std::vector<In<T>>& xs, Out<T> out) {}

template <typename T>
void take_sum(In<T> x, In<int32_t> ids, Out<T> out) {}

template <typename T>
void segments(In<T> x, In<int32_t> ids, int count, Out<T> out) {}

template <typename T>
void norm(In<T> x, In<T> weight, float eps, Out<T> out, Out<float> scale) {}

template <typename T>
void carry(
    In<T> x,
    In<mlxgen::accum_t<T>> state,
    Out<T> out,
    Out<mlxgen::accum_t<T>> last) {}

// Every type of argument.
template <typename T>
void all_types(
    In<T> x,
    double a,
    int n,
    bool flag,
    const std::string& text,
    int mode,
    const std::vector<int>& list,
    const mx::Shape& shape,
    const std::optional<std::vector<int>>& axes,
    mx::Dtype dtype,
    std::optional<double> maybe,
    Out<T> out) {}

// `next` has the values of the donated array.
template <typename T>
void put(In<T> row, int place, double least, Out<T> next, Out<T> largest) {}

template <typename T>
void diagonal(Strided<T> x, Strided<T> weight, Out<T> out) {
  for (int64_t i = 0; i < out.size(); ++i) {
    out[i] = weight ? x(i, i) * weight(i) : x(i, i);
  }
}

// Without a template: one dtype.
inline void count_bits(In<int32_t> x, Out<int32_t> out) {}

///////////////////////////////////////////////////////////////////////////////
// C++ functions to bind, and gradients
///////////////////////////////////////////////////////////////////////////////

mx::array twice(const mx::array& x, mx::StreamOrDevice s = {});

std::vector<mx::array> scale2_vjp(
    const mx::array& x,
    double a,
    double b,
    const std::vector<mx::array>& cotangents,
    const std::vector<mx::array>& outputs,
    mx::StreamOrDevice s = {});

} // namespace my

namespace one {
template <typename T>
T twin(T x) {
  return x;
}
} // namespace one

namespace two {
template <typename T>
T twin(T x) {
  return x;
}
} // namespace two

// The function generated for an entry `generated(x: array) -> array`.
namespace ops {
mlx::core::array generated(
    const mlx::core::array& x,
    mlx::core::StreamOrDevice s = {});
} // namespace ops

// Without a namespace, and with the name of one of its arguments.
template <typename T>
T gain(T x, T gain) {
  return x * gain;
}

template <typename T>
void masked(mlxgen::In<T> x, int mask_mode, mlxgen::In<T> mask, double fill, mlxgen::Out<T> out) {
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = mask_mode == 1 ? static_cast<T>(fill) : mask ? x[i] * mask[i] : x[i];
  }
}

template <typename T>
void view_state(mlxgen::In<T> x, mlxgen::In<float> state, mlxgen::Out<T> out) {}
