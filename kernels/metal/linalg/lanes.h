// Small matrices in registers: N lanes of a simdgroup share a matrix of up to N
// rows and columns, and a simdgroup computes 32 / N matrices. Lanes without a
// matrix compute the last one, and do not write.

#pragma once

#include <metal_stdlib>
using namespace metal;

/** A lane and its matrix. */
template <int N>
struct Lane {
  uint matrix; // the index of the matrix to read
  bool used; // whether the lane writes
  int i; // the lane's row or column
  ushort base; // the first lane of the matrix

  Lane(uint position, uint lane, int count) {
    uint own = position / N;
    used = own < uint(count);
    matrix = used ? own : uint(count) - 1;
    i = position % N;
    base = lane - lane % N;
  }

  /** x of lane k of the matrix. */
  float from(float x, int k) const {
    return simd_shuffle(x, ushort(base + k));
  }

  /** Return true if `own` is true in all lanes of the matrix. */
  bool all(bool own) const {
    for (int apart = 1; apart < N; apart *= 2) {
      own = simd_shuffle_xor(int(own), ushort(apart)) != 0 && own;
    }
    return own;
  }
};
