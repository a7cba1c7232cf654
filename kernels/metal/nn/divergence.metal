// Metal kernels of divergences between the distributions that two arrays of
// logits stand for: the formulas of csrc/nn/divergence.h. A thread reads four
// neighbouring logits at a time.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"

using namespace metal;

/** Logits; -inf for those that are not there. */
template <typename T>
inline float4 read_logits(device const T* from, int left) {
  // All there: not four elements read one by one.
  float4 z = read(from, left);
  return left >= per_thread ? z : present(z, left);
}

/** Logarithms of probabilities: (x - most) factor - log_sum. */
struct LogSoftmax {
  float factor;
  float most;
  float log_sum;

  float4 operator()(float4 x) const {
    return (x - most) * factor - log_sum;
  }
};

/**
 * p (log(p / m) - centre) for the probabilities p and their mixture with those
 * of another distribution, m = part p + (1 - part) other.
 */
inline float4
mixture_terms(float4 log_x, float4 log_other, float part, float centre) {
  float4 chance = exp(log_x);
  float4 apart = log_other - log_x;
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
    device float* most [[buffer(4)]],
    device float* log_sum [[buffer(5)]],
    device float* target_most [[buffer(6)]],
    device float* target_log_sum [[buffer(7)]],
    constant bool& has_mask [[buffer(8)]],
    constant float& scale [[buffer(9)]],
    constant uint& width [[buffer(10)]],
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
      loss[row] = most[row] = log_sum[row] = 0;
      target_most[row] = target_log_sum[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  target_logits += size_t(row) * width;
  LogSumExp all_q;
  LogSumExp all_p;
  float total = 0; // of exp(p) (p - q), each relative to its largest
  uint step = group_size.x * per_thread;
  for (uint i = thread_in_group.x * per_thread; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_logits(logits + i, left);
    float4 p = read_logits(target_logits + i, left);
    float4 e_q;
    float4 e;
    float shift_q = all_q.shift();
    float shift_p = all_p.shift();
    float own = all_p.sum();
    float before = all_p.add(p, e, scale);
    all_q.add(q, e_q, scale);
    float apart = (shift_p - all_p.shift()) - (shift_q - all_q.shift());
    total = before == 0 ? 0.0f : (total + own * apart) * before;
    float4 difference = (p - all_p.shift()) - (q - all_q.shift());
    total += sum(select(e * difference, float4(0), e == 0));
  }
  float shift_q = all_q.shift();
  float shift_p = all_p.shift();
  float own = all_p.sum();
  float before =
      all_p.join_threadgroup(of_p, lane, simdgroup, simdgroups, scale);
  all_q.join_threadgroup(of_q, lane, simdgroup, simdgroups, scale);
  float apart = (shift_p - all_p.shift()) - (shift_q - all_q.shift());
  total = before == 0 ? 0.0f : (total + own * apart) * before;
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    most[row] = all_q.shift();
    log_sum[row] = all_q.log_sum();
    target_most[row] = all_p.shift();
    target_log_sum[row] = all_p.log_sum();
    loss[row] =
        total / all_p.sum() * scale - (all_p.log_sum() - all_q.log_sum());
  }
}

template <typename T>
[[kernel]] void kl_div_rows_vjp(
    device const T* logits [[buffer(0)]],
    device const T* target_logits [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device const float* loss [[buffer(3)]],
    device const float* most [[buffer(4)]],
    device const float* log_sum [[buffer(5)]],
    device const float* target_most [[buffer(6)]],
    device const float* target_log_sum [[buffer(7)]],
    device const float* cotangent [[buffer(8)]],
    device T* out [[buffer(9)]],
    constant bool& has_mask [[buffer(10)]],
    constant float& scale [[buffer(11)]],
    constant bool& of_target [[buffer(12)]],
    constant uint& width [[buffer(13)]],
    uint3 thread_at [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  uint first = thread_at.x * per_thread;
  uint step = threads.x * per_thread;
  uint row = thread_at.y;
  size_t start = size_t(row) * width;
  if (has_mask && !mask[row]) {
    for (uint i = first; i < width; i += step) {
      write(float4(0), out + start + i, int(width - i));
    }
    return;
  }
  LogSoftmax of_q = {scale, most[row], log_sum[row]};
  LogSoftmax of_p = {scale, target_most[row], target_log_sum[row]};
  float factor = cotangent[row] * scale;
  float centre = of_target ? loss[row] : 0.0f;
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 log_q = of_q(read_logits(logits + start + i, left));
    float4 log_p = of_p(read_logits(target_logits + start + i, left));
    float4 p = exp(log_p);
    float4 gradient = exp(log_q) - p;
    if (of_target) {
      gradient = select(p * (log_p - log_q - centre), float4(0), p == 0);
    }
    write(gradient * factor, out + start + i, left);
  }
}

/** One threadgroup per row, of whole simdgroups. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void js_div_rows(
    device const T* logits [[buffer(0)]],
    device const T* target_logits [[buffer(1)]],
    device const bool* mask [[buffer(2)]],
    device float* loss [[buffer(3)]],
    device float* most [[buffer(4)]],
    device float* log_sum [[buffer(5)]],
    device float* target_most [[buffer(6)]],
    device float* target_log_sum [[buffer(7)]],
    device float* part [[buffer(8)]],
    device float* target_part [[buffer(9)]],
    constant bool& has_mask [[buffer(10)]],
    constant float& beta [[buffer(11)]],
    constant float& scale [[buffer(12)]],
    constant uint& width [[buffer(13)]],
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
      loss[row] = most[row] = log_sum[row] = 0;
      target_most[row] = target_log_sum[row] = 0;
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
    all_q.add(read_logits(logits + i, left), e, scale);
    all_p.add(read_logits(target_logits + i, left), e, scale);
  }
  all_q.join_threadgroup(of_q, lane, simdgroup, simdgroups, scale);
  all_p.join_threadgroup(of_p, lane, simdgroup, simdgroups, scale);
  LogSoftmax softmax_q = {scale, all_q.shift(), all_q.log_sum()};
  LogSoftmax softmax_p = {scale, all_p.shift(), all_p.log_sum()};
  float2 total = float2(0); // of Q and of P
  for (uint i = begin; i < width; i += step) {
    int left = int(width - i);
    float4 log_q = softmax_q(read_logits(logits + i, left));
    float4 log_p = softmax_p(read_logits(target_logits + i, left));
    total += float2(
        sum(mixture_terms(log_q, log_p, 1 - beta, 0)),
        sum(mixture_terms(log_p, log_q, beta, 0)));
  }
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    most[row] = softmax_q.most;
    log_sum[row] = softmax_q.log_sum;
    target_most[row] = softmax_p.most;
    target_log_sum[row] = softmax_p.log_sum;
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
    device const float* loss [[buffer(3)]],
    device const float* most [[buffer(4)]],
    device const float* log_sum [[buffer(5)]],
    device const float* other_most [[buffer(6)]],
    device const float* other_log_sum [[buffer(7)]],
    device const float* part [[buffer(8)]],
    device const float* cotangent [[buffer(9)]],
    device T* out [[buffer(10)]],
    constant bool& has_mask [[buffer(11)]],
    constant float& beta [[buffer(12)]],
    constant float& scale [[buffer(13)]],
    constant uint& width [[buffer(14)]],
    uint3 thread_at [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  uint first = thread_at.x * per_thread;
  uint step = threads.x * per_thread;
  uint row = thread_at.y;
  size_t start = size_t(row) * width;
  if (has_mask && !mask[row]) {
    for (uint i = first; i < width; i += step) {
      write(float4(0), out + start + i, int(width - i));
    }
    return;
  }
  LogSoftmax of_x = {scale, most[row], log_sum[row]};
  LogSoftmax of_other = {scale, other_most[row], other_log_sum[row]};
  float factor = cotangent[row] * beta * scale;
  float centre = part[row];
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 terms = mixture_terms(
        of_x(read_logits(logits + start + i, left)),
        of_other(read_logits(other + start + i, left)),
        beta,
        centre);
    write(terms * factor, out + start + i, left);
  }
}
