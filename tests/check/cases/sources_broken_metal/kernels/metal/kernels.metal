#include <metal_stdlib>

template <typename T>
T scale(T x, T a) {
  return a * x;
