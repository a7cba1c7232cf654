// The type in which kernels compute with elements, float for 16-bit floats, and
// its least value.

#pragma once

#include <metal_stdlib>

using namespace metal;

template <typename T>
struct Wide {
  typedef T type;
};
template <>
struct Wide<half> {
  typedef float type;
};
template <>
struct Wide<bfloat> {
  typedef float type;
};

template <typename A>
struct Least {
  static constant constexpr A value = numeric_limits<A>::min();
};
template <>
struct Least<float> {
  static constant constexpr float value = -INFINITY;
};
