// Complex numbers for benchmarks/metal_ir.py, instead of MLX's, which OpenCL
// cannot compile. No counted kernel computes with them.

#pragma once

template <typename T>
struct complex_t {
  T real;
  T imag;
  complex_t() = default;
  complex_t(T real, T imag) : real(real), imag(imag) {}
};
using complex64_t = complex_t<float>;
template <typename T>
complex_t<T> operator+(complex_t<T>, complex_t<T>);
