// Metal kernels of the cross entropy of logits with words as targets: the
// formulas of csrc/nn/cross_entropy.h. A thread reads four neighbouring logits
// at a time.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"

using namespace metal;

/** Logits after the softcap; -inf for those that are not there. */
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
    device float* lse [[buffer(3)]],
    device float* target [[buffer(4)]],
    device float* total [[buffer(5)]],
    constant bool& has_weight [[buffer(6)]],
    constant float& softcap [[buffer(7)]],
    constant int& ignore_index [[buffer(8)]],
    constant bool& sums [[buffer(9)]],
    constant uint& width [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float2 parts[32];
  threadgroup float sums_of_rows[32];
  uint row = group.y;
  int y = targets[row];
  if (y == ignore_index) {
    if (thread_in_group.x == 0) {
      lse[row] = target[row] = total[row] = 0;
    }
    return;
  }
  logits += size_t(row) * width;
  LogSumExp all;
  float sum_of_row = 0;
  uint step = group_size.x * per_thread;
  for (uint i = thread_in_group.x * per_thread; i < width; i += step) {
    int left = int(width - i);
    float4 z = read_logits(logits + i, left, softcap);
    float4 e;
    all.add(z, e);
    if (sums) {
      float4 factor = has_weight ? read(weight + i, left) : float4(1);
      // What is not there is infinite.
      for (int k = 0; k < per_thread; ++k) {
        sum_of_row += k < left ? z[k] * factor[k] : 0.0f;
      }
    }
  }
  all.join_threadgroup(parts, lane, simdgroup, simdgroups);
  sum_of_row =
      threadgroup_sum(sum_of_row, sums_of_rows, lane, simdgroup, simdgroups);
  if (thread_in_group.x == 0) {
    lse[row] = all.value();
    total[row] = sum_of_row;
    target[row] = NAN;
    if (y >= 0 && uint(y) < width) {
      target[row] = read_logits(logits + y, 1, softcap).x;
    }
  }
}

/** A thread has some fours of elements of a row, as far apart as they are many.
 */
template <typename T>
[[kernel]] void cross_entropy_rows_vjp(
    device const T* logits [[buffer(0)]],
    device const int* targets [[buffer(1)]],
    device const float* weight [[buffer(2)]],
    device const float* lse [[buffer(3)]],
    device const float* grad_lse [[buffer(4)]],
    device const float* grad_target [[buffer(5)]],
    device const float* grad_total [[buffer(6)]],
    device T* out [[buffer(7)]],
    constant bool& has_weight [[buffer(8)]],
    constant float& softcap [[buffer(9)]],
    constant int& ignore_index [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 thread_at [[thread_position_in_grid]],
    uint3 threads [[threads_per_grid]]) {
  uint first = thread_at.x * per_thread;
  uint step = threads.x * per_thread;
  uint row = thread_at.y;
  int y = targets[row];
  logits += size_t(row) * width;
  out += size_t(row) * width;
  if (y == ignore_index || y < 0 || uint(y) >= width) {
    for (uint i = first; i < width; i += step) {
      write(float4(y == ignore_index ? 0 : NAN), out + i, int(width - i));
    }
    return;
  }
  float shift = lse[row];
  float of_lse = grad_lse[row];
  float of_total = grad_total[row];
  for (uint i = first; i < width; i += step) {
    int left = int(width - i);
    float4 z = read_logits(logits + i, left, softcap);
    float4 factor = has_weight ? read(weight + i, left) : float4(1);
    float4 gradient = exp(z - shift) * of_lse + factor * of_total;
    if (uint(y) - i < uint(per_thread)) {
      for (int k = 0; k < per_thread; ++k) {
        gradient[k] += int(i) + k == y ? grad_target[row] : 0.0f;
      }
    }
    if (softcap != 0) {
      float4 tanh = z / softcap;
      gradient *= 1 - tanh * tanh;
    }
    write(gradient, out + i, left);
  }
}
