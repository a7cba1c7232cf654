// Metal kernels of the cross entropy of logits with words as targets: the
// formulas of csrc/nn/cross_entropy.h. A thread reads four neighboring logits
// at a time.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"

using namespace metal;

/** Logits after the softcap; -inf for missing ones. */
template <typename T>
inline float4 read_logits(device const T* from, int left, float cap) {
  float4 z = read(from, left);
  if (cap != 0) {
    z = cap * precise::tanh(z / cap);
  }
  return present(z, left);
}

/** One threadgroup per row, of whole simdgroups. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void cross_entropy_rows(
    device const T* logits [[buffer(0)]],
    device const int* targets [[buffer(1)]],
    device const float* weight [[buffer(2)]],
    device float* loss [[buffer(3)]],
    device float* counted [[buffer(4)]],
    device float* most [[buffer(5)]],
    device float* log_sum [[buffer(6)]],
    device float* extra [[buffer(7)]],
    constant bool& has_weight [[buffer(8)]],
    constant float& softcap [[buffer(9)]],
    constant int& ignore_index [[buffer(10)]],
    constant float& label_smoothing [[buffer(11)]],
    constant float& z_loss [[buffer(12)]],
    constant uint& width [[buffer(13)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 parts[32];
  threadgroup float2 sums_of_rows[32];
  RowOutputs out = {loss, counted, most, log_sum, extra};
  uint row = group.y;
  int y = targets[row];
  if (y == ignore_index) {
    if (thread_in_group.x == 0) {
      out.ignore(row);
    }
    return;
  }
  bool sums = label_smoothing != 0;
  logits += size_t(row) * width;
  RowOfLogits all;
  uint step = group_size.x * per_thread;
  for (uint i = thread_in_group.x * per_thread; i < width; i += step) {
    int left = int(width - i);
    float4 z = read_logits(logits + i, left, softcap);
    float4 factor = sums && has_weight ? read(weight + i, left) : float4(1);
    all.add(z, left, factor, sums);
  }
  float before = all.all.shift();
  all.all.join_threadgroup(parts, lane, simdgroup, simdgroups);
  if (sums) {
    all.move(before);
    float2 sum = threadgroup_sum(
        float2(all.weight, all.total),
        sums_of_rows,
        lane,
        simdgroup,
        simdgroups);
    all.weight = sum.x;
    all.total = sum.y;
  }
  if (thread_in_group.x == 0) {
    bool is_word = y >= 0 && uint(y) < width;
    all.target = is_word ? read_logits(logits + y, 1, softcap).x : NAN;
    out.write(
        row,
        all,
        has_weight && is_word ? weight[y] : 1.0f,
        0,
        label_smoothing,
        z_loss,
        width);
  }
}

/** A thread computes several groups of four elements of a row, at a fixed
 * distance.
 */
template <typename T>
[[kernel]] void cross_entropy_rows_vjp(
    device const T* logits [[buffer(0)]],
    device const int* targets [[buffer(1)]],
    device const float* weight [[buffer(2)]],
    device const float* counted [[buffer(3)]],
    device const float* most [[buffer(4)]],
    device const float* log_sum [[buffer(5)]],
    device const float* extra [[buffer(6)]],
    device const float* cotangent [[buffer(7)]],
    device T* out [[buffer(8)]],
    constant bool& has_weight [[buffer(9)]],
    constant float& softcap [[buffer(10)]],
    constant int& ignore_index [[buffer(11)]],
    constant float& label_smoothing [[buffer(12)]],
    constant float& z_loss [[buffer(13)]],
    constant int& words [[buffer(14)]],
    constant uint& width [[buffer(15)]],
    uint3 thread_at [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  uint first = thread_at.x * per_thread;
  uint step = threads.x * per_thread;
  uint row = thread_at.y;
  int y = targets[row];
  logits += size_t(row) * width;
  out += size_t(row) * width;
  if (y == ignore_index || (words == 0 && (y < 0 || uint(y) >= width))) {
    for (uint i = first; i < width; i += step) {
      write(float4(y == ignore_index ? 0 : NAN), out + i, int(width - i));
    }
    return;
  }
  float shift = most[row];
  float log_of_sum = log_sum[row];
  float of_loss = cotangent[row];
  float of_target = of_loss * (1 - label_smoothing);
  if (has_weight) {
    of_target *= counted[row]; // the target may be in another part
  }
  float of_all = 0;
  float share = 0;
  if (label_smoothing != 0 || z_loss != 0) {
    of_all = of_loss * extra[row];
    share = of_loss * label_smoothing / float(words != 0 ? uint(words) : width);
  }
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 z = read_logits(logits + i, left, softcap);
    float4 factor =
        share != 0 && has_weight ? read(weight + i, left) : float4(1);
    float4 log_p = (z - shift) - log_of_sum;
    float4 p = exp(log_p);
    float4 gradient = p * (of_target + of_all) - factor * share;
    if (uint(y) - i < uint(per_thread)) {
      for (int k = 0; k < per_thread; ++k) {
        if (int(i) + k == y) {
          // Not p - 1, which is inaccurate if the target is nearly certain.
          gradient[k] = of_target * exp_minus_one(log_p[k]) + of_all * p[k] -
              factor[k] * share;
        }
      }
    }
    if (softcap != 0) {
      float4 tanh = z / softcap;
      gradient *= 1 - tanh * tanh;
    }
    write(gradient, out + i, left);
  }
}
