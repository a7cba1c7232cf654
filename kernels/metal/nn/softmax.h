// Softmax over the words of a vocabulary, for kernels of losses.

#pragma once

#include <metal_stdlib>

using namespace metal;

/** A thread's four elements of a row, with -inf for those that are not there.
 */
inline float4 present(float4 z, int left) {
  return float4(
      z.x,
      left > 1 ? z.y : -INFINITY,
      left > 2 ? z.z : -INFINITY,
      left > 3 ? z.w : -INFINITY);
}

/**
 * The logarithm of a sum of exponentials, some at a time: Milakov and
 * Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
 */
struct LogSumExp {
  float most = -INFINITY;
  float sum = 0;

  /** What exponents are taken relative to: never infinite where they are not.
   */
  float shift() const {
    return most == -INFINITY ? 0.0f : most;
  }

  /** Returns what earlier sums of exponentials are to be multiplied by. */
  float raise(float to) {
    float before = most;
    most = max(most, to);
    float scale = exp(before - shift());
    sum *= scale;
    return scale;
  }

  /** Take in four elements. */
  void add(float4 z) {
    raise(max(max(z.x, z.y), max(z.z, z.w)));
    float4 e = exp(z - shift());
    sum += (e.x + e.y) + (e.z + e.w);
  }

  /**
   * Make it that of all lanes of a simdgroup. Returns what this lane's own sums
   * are to be multiplied by.
   */
  float join_simdgroup() {
    float scale = raise(simd_max(most));
    sum = simd_sum(sum);
    return scale;
  }

  float value() const {
    return shift() + log(sum);
  }
};
