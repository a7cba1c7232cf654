// Metal kernels of Mamba's selective scan: the formulas of
// csrc/nn/selective_scan.h.
//
// Several lanes of a simdgroup share a channel. Each holds every n-th element
// of its state, for n lanes, at most four, in registers from the first step to
// the last.

#include <metal_stdlib>

#include "../elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "sequences.h"

using namespace metal;

// The number of channels of a threadgroup, whose parts of the gradients with
// respect to B and C it adds up; as in csrc/nn/selective_scan.h.
static constant constexpr const uint width = 32;
static constant constexpr const uint most_lanes = 16;
static constant constexpr const uint most_states = most_lanes * per_thread;

/** The limit of the product of an infinite rate and its decay, 0, is 0. */
inline float4 finite_rate(float4 rate) {
  return select(rate, float4(-FLT_MAX), rate == -INFINITY);
}

/** A lane's elements of a row, and the operations of a step on them. */
struct Lane {
  uint states;
  uint lanes; // that share a channel, a power of two
  uint part; // index among these lanes

  template <typename T>
  float4 read(device const T* from, size_t step) const {
    float to[per_thread] = {0, 0, 0, 0};
    for (int i = 0; i < per_thread; ++i) {
      uint n = part + i * lanes;
      if (n < states) {
        to[i] = static_cast<float>(from[n * step]);
      }
    }
    return float4(to[0], to[1], to[2], to[3]);
  }

  template <typename P>
  void write(float4 from, P to, size_t step) const {
    float values[per_thread] = {from.x, from.y, from.z, from.w};
    for (int i = 0; i < per_thread; ++i) {
      uint n = part + i * lanes;
      if (n < states) {
        to[n * step] = values[i];
      }
    }
  }

  /** The sum over a channel's state, for all lanes that share it. */
  float over_states(float4 x) const {
    float total = sum(x);
    for (uint distance = 1; distance < lanes; distance *= 2) {
      total += simd_shuffle_xor(total, distance);
    }
    return total;
  }

  /** The sums over the channels of a simdgroup. */
  float4 over_channels(float4 x) const {
    for (uint distance = lanes; distance < 32; distance *= 2) {
      x += simd_shuffle_xor(x, distance);
    }
    return x;
  }
};

inline float sigmoid(float x) {
  float e = precise::exp(-fabs(x));
  return (x < 0 ? e : 1.0f) / (1 + e);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(512)]] void selective_scan(
    device const T* u [[buffer(0)]],
    device const float* delta [[buffer(1)]],
    device const float* A [[buffer(2)]],
    device const T* B [[buffer(3)]],
    device const T* C [[buffer(4)]],
    device const float* D [[buffer(5)]],
    device const T* z [[buffer(6)]],
    device const float* state [[buffer(7)]],
    device const int* cu_seqlens [[buffer(8)]],
    device T* y [[buffer(9)]],
    device float* last [[buffer(10)]],
    constant bool& has_D [[buffer(11)]],
    constant bool& has_z [[buffer(12)]],
    constant bool& has_state [[buffer(13)]],
    constant int64_t& cu_seqlens_size [[buffer(14)]],
    constant const int* u_shape [[buffer(15)]],
    constant uint& states [[buffer(16)]],
    constant uint& lanes [[buffer(17)]],
    uint3 position [[thread_position_in_grid]]) {
  uint steps = u_shape[1];
  uint channels = u_shape[2];
  uint channel = position.x >> ctz(lanes);
  bool is_there = channel < channels;
  channel = min(channel, channels - 1);
  Lane lane = {states, lanes, position.x & (lanes - 1)};
  size_t row = size_t(position.y) * channels + channel;
  size_t at = size_t(position.y) * steps * channels + channel;
  B += size_t(position.y) * steps * states;
  C += size_t(position.y) * steps * states;
  float4 rate = finite_rate(lane.read(A + size_t(channel) * states, 1));
  float skip = has_D ? D[channel] : 0.0f;
  float4 s = float4(0);
  if (has_state) {
    s = lane.read(state + row * states, 1);
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  for (uint t = 0; t < steps; ++t, at += channels, B += states, C += states) {
    Sequence sequence = sequences.of(t);
    if (!sequence.exists()) {
      if (is_there && lane.part == 0) {
        y[at] = static_cast<T>(0.0f);
      }
      continue;
    }
    if (sequence.starts_anew(t)) {
      s = float4(0);
    }
    float step = delta[at];
    float value = static_cast<float>(u[at]);
    s = precise::exp(step * rate) * s + step * value * lane.read(B, 1);
    float result = lane.over_states(s * lane.read(C, 1));
    if (is_there && lane.part == 0) {
      result = has_D ? result + skip * value : result;
      if (has_z) {
        float gate = static_cast<float>(z[at]);
        result *= gate * sigmoid(gate);
      }
      y[at] = static_cast<T>(result);
    }
  }
  if (is_there) {
    lane.write(s, last + row * states, 1);
  }
}

/** A threadgroup has `width` channels. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(512)]] void selective_scan_vjp(
    device const T* u [[buffer(0)]],
    device const float* delta [[buffer(1)]],
    device const float* A [[buffer(2)]],
    device const T* B [[buffer(3)]],
    device const T* C [[buffer(4)]],
    device const float* D [[buffer(5)]],
    device const T* z [[buffer(6)]],
    device const float* state [[buffer(7)]],
    device const int* cu_seqlens [[buffer(8)]],
    device const T* cotangent [[buffer(9)]],
    device const float* cotangent_last [[buffer(10)]],
    device T* grad_u [[buffer(11)]],
    device float* grad_delta [[buffer(12)]],
    device float* grad_A [[buffer(13)]],
    device float* grad_B [[buffer(14)]],
    device float* grad_C [[buffer(15)]],
    device float* grad_D [[buffer(16)]],
    device T* grad_z [[buffer(17)]],
    device float* grad_state [[buffer(18)]],
    device float* scratch [[buffer(19)]],
    constant bool& has_D [[buffer(20)]],
    constant bool& has_z [[buffer(21)]],
    constant bool& has_state [[buffer(22)]],
    constant int64_t& cu_seqlens_size [[buffer(23)]],
    constant const int* u_shape [[buffer(24)]],
    constant uint& states [[buffer(25)]],
    constant uint& lanes [[buffer(26)]],
    constant int& stretch [[buffer(27)]],
    uint3 position [[thread_position_in_grid]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint3 groups [[threadgroups_per_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // Steps use the two halves alternately: a thread may still add up the sums of
  // one step while others write those of the next step.
  threadgroup float sums[2 * 2 * most_lanes * most_states];
  uint steps = u_shape[1];
  uint channels = u_shape[2];
  uint channel = position.x >> ctz(lanes);
  bool is_there = channel < channels;
  channel = min(channel, channels - 1);
  Lane lane = {states, lanes, position.x & (lanes - 1)};
  size_t row = size_t(position.y) * channels + channel;
  size_t first = size_t(position.y) * steps * channels + channel;
  B += size_t(position.y) * steps * states;
  C += size_t(position.y) * steps * states;
  size_t block = size_t(position.y) * groups.x + group.x;
  grad_B += block * steps * states;
  grad_C += block * steps * states;
  size_t slot = size_t(states) * width; // of scratch, for the states of a block
  device float* starts =
      scratch + block * 2 * stretch * slot + (thread_in_group.x >> ctz(lanes));
  device float* kept = starts + stretch * slot;
  float4 rate = finite_rate(lane.read(A + size_t(channel) * states, 1));
  float skip = has_D ? D[channel] : 0.0f;
  float4 s = float4(0);
  if (has_state) {
    s = lane.read(state + row * states, 1);
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, steps);
  for (uint t = 0; t < steps; ++t) {
    if (t % stretch == 0) {
      lane.write(s, starts + t / stretch * slot, width);
    }
    Sequence sequence = sequences.of(t);
    if (!sequence.exists()) {
      continue;
    }
    if (sequence.starts_anew(t)) {
      s = float4(0);
    }
    size_t at = first + size_t(t) * channels;
    float step = delta[at];
    s = precise::exp(step * rate) * s +
        step * static_cast<float>(u[at]) * lane.read(B + size_t(t) * states, 1);
  }
  float4 carry = lane.read(cotangent_last + row * states, 1);
  float4 of_rate = float4(0);
  float of_skip = 0;
  for (uint last = steps; last > 0;) {
    uint start = (last - 1) / stretch * stretch;
    float4 at_start =
        lane.read((device const float*)starts + start / stretch * slot, width);
    s = at_start;
    for (uint t = start; t < last; ++t) {
      Sequence sequence = sequences.of(t);
      if (sequence.starts_anew(t)) {
        s = float4(0);
      }
      if (sequence.exists()) {
        size_t at = first + size_t(t) * channels;
        float step = delta[at];
        s = precise::exp(step * rate) * s +
            step * static_cast<float>(u[at]) *
                lane.read(B + size_t(t) * states, 1);
      }
      lane.write(s, kept + (t - start) * slot, width);
    }
    for (uint t = last; t-- > start;) {
      size_t at = first + size_t(t) * channels;
      Sequence sequence = sequences.of(t);
      if (!sequence.exists()) {
        if (is_there && lane.part == 0) {
          grad_u[at] = static_cast<T>(0.0f);
          grad_delta[at] = 0;
          if (has_z) {
            grad_z[at] = static_cast<T>(0.0f);
          }
        }
        for (uint i = thread_in_group.x; i < states; i += group_size.x) {
          grad_B[size_t(t) * states + i] = 0;
          grad_C[size_t(t) * states + i] = 0;
        }
        s = at_start;
        if (t > start) {
          s = lane.read(
              (device const float*)kept + (t - 1 - start) * slot, width);
        }
        continue;
      }
      float step = delta[at];
      float value = static_cast<float>(u[at]);
      float grad = is_there ? static_cast<float>(cotangent[at]) : 0.0f;
      float4 key = lane.read(B + size_t(t) * states, 1);
      float4 query = lane.read(C + size_t(t) * states, 1);
      if (has_z) {
        float gate = static_cast<float>(z[at]);
        float result = lane.over_states(s * query) + skip * value;
        float factor = sigmoid(gate);
        if (is_there && lane.part == 0) {
          grad_z[at] = static_cast<T>(
              grad * result * factor * (1 + gate * sigmoid(-gate)));
        }
        grad *= gate * factor;
      }
      float4 before = at_start;
      if (t > start) {
        before = lane.read(
            (device const float*)kept + (t - 1 - start) * slot, width);
      }
      float4 previous = before;
      if (sequence.starts_anew(t)) {
        before = float4(0);
      }
      float4 of_state = carry + grad * query;
      float4 next = precise::exp(step * rate) * of_state;
      float4 change = next * before;
      float taken = lane.over_states(of_state * key);
      float of_decay = lane.over_states(change * rate);
      of_rate += change * step;
      of_skip += value * grad;
      if (is_there && lane.part == 0) {
        grad_u[at] = static_cast<T>(taken * step + skip * grad);
        grad_delta[at] = taken * value + of_decay;
      }
      float4 of_key =
          lane.over_channels(is_there ? of_state * (step * value) : float4(0));
      float4 of_query = lane.over_channels(grad * s);
      threadgroup float* half_of_sums =
          sums + (t & 1) * 2 * most_lanes * most_states;
      if (thread_in_simdgroup < lanes) {
        threadgroup float* mine = half_of_sums + simdgroup * 2 * states;
        lane.write(of_key, mine, 1);
        lane.write(of_query, mine + states, 1);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = thread_in_group.x; i < 2 * states; i += group_size.x) {
        float total = 0;
        for (uint j = 0; j < simdgroups; ++j) {
          total += half_of_sums[j * 2 * states + i];
        }
        size_t to = size_t(t) * states;
        if (i < states) {
          grad_B[to + i] = total;
        } else {
          grad_C[to + i - states] = total;
        }
      }
      carry = sequence.starts_anew(t) ? float4(0) : next;
      s = previous;
    }
    last = start;
  }
  if (is_there) {
    lane.write(of_rate, grad_A + row * states, 1);
    lane.write(carry, grad_state + row * states, 1);
    if (lane.part == 0) {
      grad_D[row] = of_skip;
    }
  }
}
