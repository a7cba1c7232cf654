#include <metal_stdlib>

#include "shared.h"

using namespace metal;

constexpr constant int width = 96;

[[kernel]] void scale(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup float tile[width][width];
  threadgroup half row[width];
  float* p = out;
  double y = x[i];
  try {
    p[i] = squared(y) * factorial(3);
  } catch (...) {
  }
}

[[kernel]] void many(
    constant int& n0 [[buffer(0)]],
    constant int& n1 [[buffer(1)]],
    constant int& n2 [[buffer(2)]],
    constant int& n3 [[buffer(3)]],
    constant int& n4 [[buffer(4)]],
    constant int& n5 [[buffer(5)]],
    constant int& n6 [[buffer(6)]],
    constant int& n7 [[buffer(7)]],
    constant int& n8 [[buffer(8)]],
    constant int& n9 [[buffer(9)]],
    constant int& n10 [[buffer(10)]],
    constant int& n11 [[buffer(11)]],
    constant int& n12 [[buffer(12)]],
    constant int& n13 [[buffer(13)]],
    constant int& n14 [[buffer(14)]],
    constant int& n15 [[buffer(15)]],
    constant int& n16 [[buffer(16)]],
    constant int& n17 [[buffer(17)]],
    constant int& n18 [[buffer(18)]],
    constant int& n19 [[buffer(19)]],
    constant int& n20 [[buffer(20)]],
    constant int& n21 [[buffer(21)]],
    constant int& n22 [[buffer(22)]],
    constant int& n23 [[buffer(23)]],
    constant int& n24 [[buffer(24)]],
    constant int& n25 [[buffer(25)]],
    constant int& n26 [[buffer(26)]],
    constant int& n27 [[buffer(27)]],
    constant int& n28 [[buffer(28)]],
    constant int& n29 [[buffer(29)]],
    constant int& n30 [[buffer(30)]],
    device float* out) {
  out[0] = n0;
}
