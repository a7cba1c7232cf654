// Metal kernels of divergences between the distributions that two arrays of
// logits stand for: the formulas of csrc/nn/divergence.h. A thread reads four
// neighbouring logits at a time.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"

using namespace metal;

/** Logits times a scale; -inf for those that are not there. */
template <typename T>
inline float4 read_scaled(device const T* from, int left, float scale) {
  return present(read(from, left) * scale, left);
}

/**
 * p (log(p / m) - centre) for the probabilities p of x and their mixture with
 * those of another distribution, m = part p + (1 - part) other.
 */
inline float4 mixture_terms(
    float4 x,
    float4 other,
    float lse,
    float other_lse,
    float part,
    float centre) {
  float4 log_x = x - lse;
  float4 chance = exp(log_x);
  float4 apart = (other - other_lse) - log_x;
  float4 up = select(float4(0), apart, apart > 0);
  // Of the two probabilities the larger one is taken out of the logarithm.
  float4 ratio = exp(apart - 2 * up);
  float4 mixed =
      select(part + (1 - part) * ratio, part * ratio + (1 - part), apart > 0);
  float4 log_ratio = -up - log(mixed);
  return select(chance * (log_ratio - centre), float4(0), chance == 0);
}

/** One threadgroup per row, of whole simdgroups. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void kl_div_rows(
    device const T* logits [[buffer(0)]],
    device const T* target_logits [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device float* loss [[buffer(3)]],
    device float* lse [[buffer(4)]],
    device float* target_lse [[buffer(5)]],
    constant bool& has_mask [[buffer(6)]],
    constant float& scale [[buffer(7)]],
    constant uint& width [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 of_q[32];
  threadgroup float2 of_p[32];
  threadgroup float sums[32];
  uint row = group.y;
  if (has_mask && !mask[row]) {
    if (thread_in_group.x == 0) {
      loss[row] = lse[row] = target_lse[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  target_logits += size_t(row) * width;
  LogSumExp all_q;
  LogSumExp all_p;
  float total = 0; // of exp(p) (p - q)
  uint step = group_size.x * per_thread;
  for (uint i = thread_in_group.x * per_thread; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_scaled(logits + i, left, scale);
    float4 p = read_scaled(target_logits + i, left, scale);
    float4 e;
    float before = all_p.add(p, e);
    e = select(e * (p - q), float4(0), e == 0);
    total = (before == 0 ? 0.0f : total * before) + sum(e);
    all_q.add(q, e);
  }
  float before = all_p.join_threadgroup(of_p, lane, simdgroup, simdgroups);
  total = before == 0 ? 0.0f : total * before;
  all_q.join_threadgroup(of_q, lane, simdgroup, simdgroups);
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    lse[row] = all_q.value();
    target_lse[row] = all_p.value();
    loss[row] = total / all_p.sum - (all_p.value() - all_q.value());
  }
}

template <typename T>
[[kernel]] void kl_div_rows_vjp(
    device const T* logits [[buffer(0)]],
    device const T* target_logits [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device const float* loss [[buffer(3)]],
    device const float* lse [[buffer(4)]],
    device const float* target_lse [[buffer(5)]],
    device const float* cotangent [[buffer(6)]],
    device T* out [[buffer(7)]],
    constant bool& has_mask [[buffer(8)]],
    constant float& scale [[buffer(9)]],
    constant bool& of_target [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint2 thread_at [[thread_position_in_grid]]) {
  uint first = thread_at.x * per_thread;
  uint row = thread_at.y;
  int left = int(width - first);
  size_t start = size_t(row) * width + first;
  if (has_mask && !mask[row]) {
    write(float4(0), out + start, left);
    return;
  }
  float4 log_q = read_scaled(logits + start, left, scale) - lse[row];
  float4 log_p =
      read_scaled(target_logits + start, left, scale) - target_lse[row];
  float4 p = exp(log_p);
  float4 gradient = exp(log_q) - p;
  if (of_target) {
    gradient = select(p * (log_p - log_q - loss[row]), float4(0), p == 0);
  }
  write(gradient * (cotangent[row] * scale), out + start, left);
}

/** One threadgroup per row, of whole simdgroups. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void js_div_rows(
    device const T* logits [[buffer(0)]],
    device const T* target_logits [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device float* loss [[buffer(3)]],
    device float* lse [[buffer(4)]],
    device float* target_lse [[buffer(5)]],
    device float* part [[buffer(6)]],
    device float* target_part [[buffer(7)]],
    constant bool& has_mask [[buffer(8)]],
    constant float& beta [[buffer(9)]],
    constant float& scale [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 of_q[32];
  threadgroup float2 of_p[32];
  threadgroup float2 sums[32];
  uint row = group.y;
  if (has_mask && !mask[row]) {
    if (thread_in_group.x == 0) {
      loss[row] = lse[row] = target_lse[row] = 0;
      part[row] = target_part[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  target_logits += size_t(row) * width;
  LogSumExp all_q;
  LogSumExp all_p;
  uint begin = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  for (uint i = begin; i < width; i += step) {
    int left = int(width - i);
    float4 e;
    all_q.add(read_scaled(logits + i, left, scale), e);
    all_p.add(read_scaled(target_logits + i, left, scale), e);
  }
  all_q.join_threadgroup(of_q, lane, simdgroup, simdgroups);
  all_p.join_threadgroup(of_p, lane, simdgroup, simdgroups);
  float lse_q = all_q.value();
  float lse_p = all_p.value();
  float2 total = float2(0); // of Q and of P
  for (uint i = begin; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_scaled(logits + i, left, scale);
    float4 p = read_scaled(target_logits + i, left, scale);
    total += float2(
        sum(mixture_terms(q, p, lse_q, lse_p, 1 - beta, 0)),
        sum(mixture_terms(p, q, lse_p, lse_q, beta, 0)));
  }
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    lse[row] = lse_q;
    target_lse[row] = lse_p;
    part[row] = total.x;
    target_part[row] = total.y;
    loss[row] = beta * total.y + (1 - beta) * total.x;
  }
}

template <typename T>
[[kernel]] void js_div_rows_vjp(
    device const T* logits [[buffer(0)]],
    device const T* other [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device const float* lse [[buffer(3)]],
    device const float* other_lse [[buffer(4)]],
    device const float* part [[buffer(5)]],
    device const float* cotangent [[buffer(6)]],
    device T* out [[buffer(7)]],
    constant bool& has_mask [[buffer(8)]],
    constant float& beta [[buffer(9)]],
    constant float& scale [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint2 thread_at [[thread_position_in_grid]]) {
  uint first = thread_at.x * per_thread;
  uint row = thread_at.y;
  int left = int(width - first);
  size_t start = size_t(row) * width + first;
  if (has_mask && !mask[row]) {
    write(float4(0), out + start, left);
    return;
  }
  float4 terms = mixture_terms(
      read_scaled(logits + start, left, scale),
      read_scaled(other + start, left, scale),
      lse[row],
      other_lse[row],
      beta,
      part[row]);
  write(terms * (cotangent[row] * beta * scale), out + start, left);
}
