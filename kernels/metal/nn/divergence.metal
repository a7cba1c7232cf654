// Metal kernels of divergences between the distributions of two arrays of
// logits: the formulas of csrc/nn/divergence.h. A thread reads four neighboring
// logits at a time.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"

using namespace metal;

/** Logits; -inf for missing ones. */
template <typename T>
inline float4 read_logits(device const T* from, int left) {
  // If all four exist, they are not read one by one.
  float4 z = read(from, left);
  return left >= per_thread ? z : present(z, left);
}

/** Logarithms of probabilities: (x - most) factor - log_sum. */
struct Softmaxes {
  float factor;
  float most_q;
  float log_sum_q;
  float most_p;
  float log_sum_p;

  float4 log_q(float4 q) const {
    return (q - most_q) * factor - log_sum_q;
  }
  float4 log_p(float4 p) const {
    return (p - most_p) * factor - log_sum_p;
  }
  /** log(P / Q). */
  float4 apart(float4 q, float4 p) const {
    return ((p - most_p) - (q - most_q)) * factor + (log_sum_q - log_sum_p);
  }
};

/**
 * A distribution in a mixture M: log(own / M) of elements, relative to the own
 * largest element. As in csrc/nn/divergence.h.
 */
struct Mixture {
  float of_largest; // its log(own / M)
  float shift;
  float own; // fractions of M at the largest element
  float other;

  /**
   * For M = part own + rest other; `apart` is the logarithm of other / own at
   * the largest element.
   */
  Mixture(float apart, float part, float rest) {
    float more = rest * exp_minus_one(apart); // M / own - 1
    float log_of_sum =
        more < -0.5f ? log(part + rest * exp(apart)) : log_one_plus(more);
    of_largest = -log_of_sum;
    shift = log(rest) - log_of_sum;
    own = part * exp(-log_of_sum);
    other = exp(apart + shift);
  }

  /** For the logarithms of other / own at elements. */
  float4 operator()(float4 apart) const {
    // M / own, divided by its value at the largest element: own + exp(above)
    // or, if this exceeds 1, exp(above) (1 + own exp(-above)).
    float4 above = apart + shift;
    bool4 far = above > 0;
    float4 up = select(float4(0), above, far);
    float4 e = exp(above - 2 * up) * select(float4(1), float4(own), far);
    float4 sums = e + select(float4(own), float4(1), far);
    float4 more = e - select(float4(other), float4(0), far); // sums - 1
    float4 rounded = sums - 1;
    float4 logs = log(sums) * (more / rounded);
    return -up - select(logs, more, rounded == 0);
  }
};

/** The sums of exponentials of two rows. */
struct TwoRows {
  LogSumExp all_q;
  LogSumExp all_p;
  float q_0 = 0; // logit of Q at the largest logit of P
  float p_0 = 0; // logit of P at the largest logit of Q

  /** Add four elements; P's exponentials and the result are those of
   * LogSumExp::add. */
  float add(float4 q, float4 p, thread float4& e_p, float factor) {
    float before_q = all_q.most;
    float before_p = all_p.most;
    float4 e_q;
    all_q.add(q, e_q, factor);
    float scale = all_p.add(p, e_p, factor);
    p_0 = all_q.most > before_q ? beside(q, all_q.most, p) : p_0;
    q_0 = all_p.most > before_p ? beside(p, all_p.most, q) : q_0;
    return scale;
  }

  /** Combine the results of all threads, as LogSumExp::join_threadgroup does.
   */
  float join_threadgroup(
      threadgroup float4* parts,
      uint lane,
      uint simdgroup,
      uint simdgroups,
      float factor) {
    float before = all_p.most;
    join_simdgroup(factor);
    if (lane == 0) {
      parts[2 * simdgroup] = float4(all_q.most, all_q.others, p_0, 0);
      parts[2 * simdgroup + 1] = float4(all_p.most, all_p.others, q_0, 0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 none = float4(-INFINITY, -1, -INFINITY, 0);
    float4 of_q = lane < simdgroups ? float4(parts[2 * lane]) : none;
    float4 of_p = lane < simdgroups ? float4(parts[2 * lane + 1]) : none;
    all_q.most = of_q.x;
    all_q.others = of_q.y;
    p_0 = of_q.z;
    all_p.most = of_p.x;
    all_p.others = of_p.y;
    q_0 = of_p.z;
    join_simdgroup(factor);
    return exp((before - all_p.shift()) * factor);
  }

  Softmaxes softmaxes(float factor) const {
    return {
        factor, all_q.shift(), all_q.log_sum(), all_p.shift(), all_p.log_sum()};
  }

 private:
  /** The element of `other` at the largest element of x. */
  static float beside(float4 x, float most, float4 other) {
    return x.x == most ? other.x
        : x.y == most  ? other.y
        : x.z == most  ? other.z
                       : other.w;
  }

  void join_simdgroup(float factor) {
    float own_q = all_q.most;
    float own_p = all_p.most;
    all_q.join_simdgroup(factor);
    all_p.join_simdgroup(factor);
    p_0 = simd_max(own_q == all_q.most ? p_0 : -INFINITY);
    q_0 = simd_max(own_p == all_p.most ? q_0 : -INFINITY);
  }
};

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
    device float* target_beside [[buffer(8)]],
    device float* target_mean [[buffer(9)]],
    constant bool& has_mask [[buffer(10)]],
    constant float& scale [[buffer(11)]],
    constant uint& width [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float4 parts[64];
  threadgroup float sums[32];
  uint row = group.y;
  if (has_mask && !mask[row]) {
    if (thread_in_group.x == 0) {
      loss[row] = most[row] = log_sum[row] = 0;
      target_most[row] = target_log_sum[row] = 0;
      target_beside[row] = target_mean[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  target_logits += size_t(row) * width;
  TwoRows rows;
  float q_0 = 0; // rows.q_0, but 0 if that is infinite
  float total = 0; // of exp(p) times differences, relative to P's largest
  uint step = group_size.x * per_thread;
  for (uint i = thread_in_group.x * per_thread; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_logits(logits + i, left);
    float4 p = read_logits(target_logits + i, left);
    float4 e;
    float p_before = rows.all_p.shift();
    float q_before = q_0;
    float own = rows.all_p.sum();
    float before = rows.add(q, p, e, scale);
    q_0 = isfinite(rows.q_0) ? rows.q_0 : 0.0f;
    float apart = (p_before - rows.all_p.shift()) - (q_before - q_0);
    total = before == 0 ? 0.0f : (total + own * apart) * before;
    float4 difference = (p - rows.all_p.shift()) - (q - q_0);
    total += sum(select(e * difference, float4(0), e == 0));
  }
  float p_before = rows.all_p.shift();
  float q_before = q_0;
  float own = rows.all_p.sum();
  float before =
      rows.join_threadgroup(parts, lane, simdgroup, simdgroups, scale);
  q_0 = isfinite(rows.q_0) ? rows.q_0 : 0.0f;
  float apart = (p_before - rows.all_p.shift()) - (q_before - q_0);
  total = before == 0 ? 0.0f : (total + own * apart) * before;
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    Softmaxes of = rows.softmaxes(scale);
    float average = total / rows.all_p.sum() * scale;
    most[row] = of.most_q;
    log_sum[row] = of.log_sum_q;
    target_most[row] = of.most_p;
    target_log_sum[row] = of.log_sum_p;
    target_beside[row] = q_0;
    target_mean[row] = average;
    loss[row] = average + of.apart(float4(q_0), float4(of.most_p)).x;
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
    device const float* target_beside [[buffer(8)]],
    device const float* target_mean [[buffer(9)]],
    device const float* cotangent [[buffer(10)]],
    device T* out [[buffer(11)]],
    constant bool& has_mask [[buffer(12)]],
    constant float& scale [[buffer(13)]],
    constant bool& of_target [[buffer(14)]],
    constant uint& width [[buffer(15)]],
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
  Softmaxes of = {
      scale, most[row], log_sum[row], target_most[row], target_log_sum[row]};
  float factor = cotangent[row] * scale;
  // A difference of two numbers that may be nearly 1.
  float of_largest =
      exp_minus_one(-of.log_sum_q) - exp_minus_one(-of.log_sum_p);
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_logits(logits + start + i, left);
    float4 p = read_logits(target_logits + start + i, left);
    float4 chance = exp(of.log_p(p));
    float4 gradient;
    if (of_target) {
      float4 apart = ((p - of.most_p) - (q - target_beside[row])) * scale;
      gradient =
          select(chance * (apart - target_mean[row]), float4(0), chance == 0);
    } else {
      bool4 largest = (q == of.most_q) & (p == of.most_p);
      gradient = select(exp(of.log_q(q)) - chance, float4(of_largest), largest);
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
    device float* beside [[buffer(8)]],
    device float* target_beside [[buffer(9)]],
    device float* mean [[buffer(10)]],
    device float* target_mean [[buffer(11)]],
    constant bool& has_mask [[buffer(12)]],
    constant float& beta [[buffer(13)]],
    constant float& scale [[buffer(14)]],
    constant uint& width [[buffer(15)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float4 parts[64];
  threadgroup float2 sums[32];
  uint row = group.y;
  if (has_mask && !mask[row]) {
    if (thread_in_group.x == 0) {
      loss[row] = most[row] = log_sum[row] = 0;
      target_most[row] = target_log_sum[row] = 0;
      beside[row] = target_beside[row] = mean[row] = target_mean[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  target_logits += size_t(row) * width;
  TwoRows rows;
  uint begin = thread_in_group.x * per_thread;
  uint step = group_size.x * per_thread;
  for (uint i = begin; i < width; i += step) {
    int left = int(width - i);
    float4 e;
    rows.add(
        read_logits(logits + i, left),
        read_logits(target_logits + i, left),
        e,
        scale);
  }
  rows.join_threadgroup(parts, lane, simdgroup, simdgroups, scale);
  Softmaxes of = rows.softmaxes(scale);
  float at_q = of.apart(float4(of.most_q), float4(rows.p_0)).x;
  float at_p = of.apart(float4(rows.q_0), float4(of.most_p)).x;
  Mixture mix_q(at_q, 1 - beta, beta);
  Mixture mix_p(-at_p, beta, 1 - beta);
  float2 total = float2(0); // of Q and of P
  for (uint i = begin; i < width; i += step) {
    int left = int(width - i);
    float4 q = read_logits(logits + i, left);
    float4 p = read_logits(target_logits + i, left);
    float4 chance_q = exp(of.log_q(q));
    float4 chance_p = exp(of.log_p(p));
    float4 apart = of.apart(q, p);
    bool4 none_q = (chance_q == 0) | ((q == of.most_q) & (p == rows.p_0));
    bool4 none_p = (chance_p == 0) | ((p == of.most_p) & (q == rows.q_0));
    float4 terms_q = chance_q * mix_q(apart);
    float4 terms_p = chance_p * mix_p(-apart);
    total += float2(
        sum(select(terms_q, float4(0), none_q)),
        sum(select(terms_p, float4(0), none_p)));
  }
  total = threadgroup_sum(total, sums, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    most[row] = of.most_q;
    log_sum[row] = of.log_sum_q;
    target_most[row] = of.most_p;
    target_log_sum[row] = of.log_sum_p;
    beside[row] = rows.p_0;
    target_beside[row] = rows.q_0;
    mean[row] = total.x;
    target_mean[row] = total.y;
    loss[row] = beta * (total.y + mix_p.of_largest) +
        (1 - beta) * (total.x + mix_q.of_largest);
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
    device const float* beside [[buffer(8)]],
    device const float* mean [[buffer(9)]],
    device const float* cotangent [[buffer(10)]],
    device T* out [[buffer(11)]],
    constant bool& has_mask [[buffer(12)]],
    constant float& beta [[buffer(13)]],
    constant float& rest [[buffer(14)]],
    constant float& scale [[buffer(15)]],
    constant uint& width [[buffer(16)]],
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
  Softmaxes of = {
      scale, most[row], log_sum[row], other_most[row], other_log_sum[row]};
  float4 most_x = float4(of.most_q);
  float4 other_0 = float4(beside[row]);
  Mixture mix(of.apart(most_x, other_0).x, beta, rest);
  float factor = cotangent[row] * beta * scale;
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 x = read_logits(logits + start + i, left);
    float4 y = read_logits(other + start + i, left);
    float4 chance = exp(of.log_q(x));
    bool4 largest = (x == most_x) & (y == other_0);
    float4 term = select(mix(of.apart(x, y)), float4(0), largest) - mean[row];
    write(
        select(chance * term, float4(0), chance == 0) * factor,
        out + start + i,
        left);
  }
}
