// CPU kernels that do not match the entries that name them.

#pragma once

#include "mlxgen/kernel.h"

namespace mismatches {

using mlxgen::In;
using mlxgen::Out;

template <typename T>
T order(T y, T x) {
  return x - y;
}

template <typename T>
T types(T x, float n, int flag) {
  return x;
}

template <typename T>
void no_result(T x) {}

template <typename T>
T pointer(const T* x) {
  return *x;
}

template <typename T>
void values(T x, T a, T low, T high) {}

template <typename T, typename U>
T two_types(U x) {
  return x;
}

template <typename T>
T declared(T x);

template <typename T>
void view_order(In<int32_t> ids, In<T> x, int n, Out<T> out) {}

template <typename T>
void view_types(In<T> x, In<T> ids, bool n, Out<int> out) {}

void view_plain(In<float> x, Out<float> out) {}

template <typename T>
int view_result(In<T> x, Out<T> out) {
  return 0;
}

template <typename T>
void view_reference(In<T>& x, Out<T>& out) {}

template <typename T, bool positive = false>
T by_sign(T x) {
  return x;
}

template <typename T>
T int_as_element(T x, T n) {
  return x;
}

template <typename T>
T cuts_floats(T x, T a) {
  return a * x;
}

template <typename T>
void swapped(T from, T& high, T& low) {}

template <typename T>
void view_narrow(In<T> x, int n, Out<T> out) {}

template <typename T>
T defined_twice(T x) {
  return x;
}
inline float defined_twice(float x) {
  return x;
}

inline float overloads(float x, int64_t n) {
  return x;
}
inline double overloads(double x, int n) {
  return x;
}

template <std::integral T>
T for_integers(T x) {
  return x;
}

template <int N, typename T>
T counted(T x) {
  return x;
}

template <typename T>
void third_name(T x, T& high, T& other) {
  high = other = x;
}

float not_inline(float x) {
  return x;
}

template <typename T>
void with_overload(In<T> x, Out<T> out) {}
inline void with_overload(In<float> x, Out<float> out) {}

} // namespace mismatches
