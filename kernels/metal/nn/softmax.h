// Softmax over the words of a vocabulary, for kernels of losses.

#pragma once

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

/** A thread's elements of a row; -inf for missing ones. */
inline float4 present(float4 z, int left) {
  return float4(
      z.x,
      left > 1 ? z.y : -INFINITY,
      left > 2 ? z.z : -INFINITY,
      left > 3 ? z.w : -INFINITY);
}

/** log(1 + x), accurate for small x. */
inline float log_one_plus(float x) {
  float above = 1 + x;
  return above == 1 || isinf(above) ? x : log(above) * (x / (above - 1));
}

/** exp(x) - 1, accurate for small x. */
inline float exp_minus_one(float x) {
  float above = exp(x);
  float difference = above - 1;
  return above == 1                      ? x
      : difference == -1 || isinf(above) ? difference
                                         : difference * (x / log(above));
}

/**
 * The logarithm of a sum of exponentials, several at a time: Milakov and
 * Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
 * As in csrc/nn/softmax.h, the largest element and the logarithm are separate.
 */
struct LogSumExp {
  float most = -INFINITY;
  float others = -1; // the sum of exponentials, less 1 for the largest element

  /** The reference of exponents: the largest element, or 0 if all are -inf. */
  float shift() const {
    return most == -INFINITY ? 0.0f : most;
  }

  /** The sum of exponentials relative to shift(). */
  float sum() const {
    return 1 + others;
  }

  /** The logarithm of the sum relative to shift(). */
  float log_sum() const {
    return log_one_plus(others);
  }

  /**
   * Add four elements, times a factor; afterwards `e` contains the exponentials
   * relative to shift(). Returns the factor for earlier exponentials.
   */
  float add(float4 z, thread float4& e, float factor = 1) {
    float before = most;
    most = max(most, max(max(z.x, z.y), max(z.z, z.w)));
    float scale = exp((before - shift()) * factor);
    e = exp((z - shift()) * factor);
    float4 ones = select(float4(0), float4(1), e == 1);
    float4 rest = select(e, float4(0), e == 1);
    float count = (ones.x + ones.y) + (ones.z + ones.w);
    float added = (rest.x + rest.y) + (rest.z + rest.w);
    others = most > before ? sum() * scale + ((count - 1) + added)
                           : others + (count + added);
    return scale;
  }

  /** Add the results of another part. */
  void join(LogSumExp other, float factor = 1) {
    bool raised = other.most > most;
    LogSumExp low = *this;
    if (raised) {
      *this = other;
    } else {
      low = other;
    }
    others += low.sum() * exp((low.most - shift()) * factor);
  }

  /** Combine the results of all lanes of a simdgroup. */
  void join_simdgroup(float factor = 1) {
    float before = most;
    most = simd_max(most);
    // The largest element's own 1 is omitted once, not in each lane.
    bool has = before == most;
    others = has ? others : sum() * exp((before - shift()) * factor);
    others = simd_sum(others) + (simd_sum(has ? 1.0f : 0.0f) - 1);
  }

  /**
   * Combine the results of all threads of a threadgroup, with one element of
   * `parts` per simdgroup and one barrier. Returns the factor for this thread's
   * own exponentials.
   */
  float join_threadgroup(
      threadgroup float2* parts,
      uint lane,
      uint simdgroup,
      uint simdgroups,
      float factor = 1) {
    float before = most;
    join_simdgroup(factor);
    if (lane == 0) {
      parts[simdgroup] = float2(most, others);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    bool there = lane < simdgroups;
    most = there ? float(parts[lane].x) : -INFINITY;
    others = there ? float(parts[lane].y) : -1.0f;
    join_simdgroup(factor);
    return exp((before - shift()) * factor);
  }
};

/** The intermediate results for a row's loss, as in csrc/nn/cross_entropy.h. */
struct RowOfLogits {
  LogSumExp all;
  float target = 0; // its logit, if found
  float weight = 0; // of the words so far
  float total = 0; // of weight times logit, relative to all.shift()

  /** Make `total` relative to all.shift(); it was relative to `before`. */
  void move(float before) {
    if (weight != 0) {
      total += weight * (before - all.shift());
    }
  }

  /** Add four logits with these weights; only `left` of the logits exist. */
  void add(float4 z, int left, float4 weights, bool sums) {
    float before = all.shift();
    float4 e;
    all.add(z, e);
    if (sums) {
      move(before);
      for (int k = 0; k < per_thread; ++k) {
        // A missing logit is infinite, and one with the weight 0 may be.
        bool counts = k < left && weights[k] != 0;
        weight += counts ? weights[k] : 0.0f;
        total += counts ? weights[k] * (z[k] - all.shift()) : 0.0f;
      }
    }
  }

  /** Add the results for another part of the row. */
  void join(RowOfLogits other) {
    float before = all.shift();
    float other_before = other.all.shift();
    all.join(other.all);
    other.all = all;
    move(before);
    other.move(other_before);
    weight += other.weight;
    total += other.total;
    target += other.target;
  }
};

/** The outputs of a row: its loss and the terms of its gradient. */
struct RowOutputs {
  device float* loss;
  device float* counted;
  device float* most;
  device float* log_sum;
  device float* extra;

  void ignore(size_t row) const {
    loss[row] = counted[row] = most[row] = log_sum[row] = extra[row] = 0;
  }

  /** As in csrc/nn/cross_entropy.h. */
  void write(
      size_t row,
      RowOfLogits of,
      float weight,
      float base,
      float smoothing,
      float z_loss,
      float words) const {
    float shift = of.all.shift();
    float log_of_sum = of.all.log_sum();
    float lse = shift + log_of_sum + base;
    float value = 0;
    float slope = 0;
    if (weight != 0) { // else the target's logit may be -inf
      value = weight * (1 - smoothing) * (log_of_sum - (of.target - shift));
    }
    if (z_loss != 0) {
      value += weight * z_loss * lse * lse;
      slope += 2 * weight * z_loss * lse;
    }
    if (smoothing != 0) {
      float share = smoothing / words;
      value += share * (of.weight * log_of_sum - of.total);
      slope += share * of.weight;
    }
    loss[row] = value;
    counted[row] = weight;
    most[row] = shift;
    log_sum[row] = log_of_sum;
    extra[row] = slope;
  }
};
