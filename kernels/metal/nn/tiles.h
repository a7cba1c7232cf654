// Common code of kernels that multiply 8 x 8 matrices: the elements that a lane
// holds, as in MLX's own kernels, and operations on those of a row.

#pragma once

#include <metal_stdlib>

using namespace metal;

typedef simdgroup_matrix<float, 8, 8> Tile;

inline int tile_row(uint lane) {
  return (lane / 4 & 4) + lane / 2 % 4;
}

/** The first of two elements. */
inline int tile_column(uint lane) {
  return (lane / 4 & 2) * 2 + lane % 2 * 2;
}

/** The sum over a row, for the four lanes that hold parts of it. */
inline float row_sum(float x) {
  x += simd_shuffle_xor(x, 1);
  return x + simd_shuffle_xor(x, 8);
}

inline float row_max(float x) {
  x = max(x, simd_shuffle_xor(x, 1));
  return max(x, simd_shuffle_xor(x, 8));
}
