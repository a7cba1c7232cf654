// Softmax over the words of a vocabulary, for kernels of losses.

#pragma once

#include <metal_stdlib>

using namespace metal;

/** A thread's elements of a row, with -inf for those that are not there. */
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

  /** What exponents are relative to: never infinite where they are not. */
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

  /**
   * Take in four elements; `e` has the exponentials afterwards, relative to
   * shift(). Returns what earlier ones are to be multiplied by.
   */
  float add(float4 z, thread float4& e) {
    float scale = raise(max(max(z.x, z.y), max(z.z, z.w)));
    e = exp(z - shift());
    sum += (e.x + e.y) + (e.z + e.w);
    return scale;
  }

  /** Make it that of all lanes of a simdgroup. */
  void join_simdgroup() {
    raise(simd_max(most));
    sum = simd_sum(sum);
  }

  /**
   * Make it that of all threads of a threadgroup, whose simdgroups have one of
   * `parts` each, behind one barrier. Returns what this thread's own
   * exponentials are to be multiplied by.
   */
  float join_threadgroup(
      threadgroup float2* parts,
      uint lane,
      uint simdgroup,
      uint simdgroups) {
    float before = most;
    join_simdgroup();
    if (lane == 0) {
      parts[simdgroup] = float2(most, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    bool there = lane < simdgroups;
    most = there ? float(parts[lane].x) : -INFINITY;
    sum = there ? float(parts[lane].y) : 0.0f;
    join_simdgroup();
    return exp(before - shift());
  }

  float value() const {
    return shift() + log(sum);
  }
};
