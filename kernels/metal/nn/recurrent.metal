// Metal kernels of recurrent networks over time: the formulas of
// csrc/nn/recurrent.h.
//
// A threadgroup computes one element of the batch, because each step depends on
// the whole previous step. A simdgroup computes one unit at a time, and its
// lanes share the rows of the unit's gates. The backward computes the gates
// again; then `parts` threads per unit share its column.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"

#include "sequences.h"

using namespace metal;

static constant constexpr const uint most_units = 1024;

inline float sigmoid(float x) {
  float e = precise::exp(-fabs(x));
  return (x < 0 ? e : 1.0f) / (1 + e);
}

/** The products of a hidden state with a unit's rows for i, f, g and o. */
template <typename T, typename H>
inline float4
lstm_products(device const T* weight, H h, uint unit, uint width, uint lane) {
  size_t gate = size_t(width) * width; // between the rows of two gates
  device const T* w = weight + size_t(unit) * width;
  float4 total = float4(0);
  for (uint k = lane; k < width; k += 32) {
    total += static_cast<float>(h[k]) *
        float4(static_cast<float>(w[k]),
               static_cast<float>(w[gate + k]),
               static_cast<float>(w[2 * gate + k]),
               static_cast<float>(w[3 * gate + k]));
  }
  return simd_sum(total);
}

/** The products of a hidden state with a unit's rows for r, z and n. */
template <typename T, typename H>
inline float3
gru_products(device const T* weight, H h, uint unit, uint width, uint lane) {
  size_t gate = size_t(width) * width; // between the rows of two gates
  device const T* w = weight + size_t(unit) * width;
  float3 total = float3(0);
  for (uint k = lane; k < width; k += 32) {
    total += static_cast<float>(h[k]) *
        float3(static_cast<float>(w[k]),
               static_cast<float>(w[gate + k]),
               static_cast<float>(w[2 * gate + k]));
  }
  return simd_sum(total);
}

/**
 * Element `unit` of grad times the weight, in the first of the unit's threads;
 * each of its `parts` threads processes the rows of some gates.
 */
template <typename T>
inline float back_through(
    device const T* weight,
    threadgroup const float* grad,
    threadgroup float* sums,
    uint gates,
    uint width,
    uint unit,
    uint units,
    uint part,
    uint parts) {
  float sum = 0;
  for (uint j = part; unit < width && j < gates; j += parts) {
    threadgroup const float* from = grad + j * width;
    device const T* w = weight + size_t(j) * width * width + unit;
    for (uint k = 0; k < width; ++k) {
      sum += from[k] * static_cast<float>(w[size_t(k) * width]);
    }
  }
  sums[part * units + unit] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 1; part == 0 && i < parts; ++i) {
    sum += sums[i * units + unit];
  }
  return sum;
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void lstm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* hidden [[buffer(2)]],
    device const float* cell [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device T* hidden_out [[buffer(5)]],
    device float* cell_out [[buffer(6)]],
    constant bool& has_hidden [[buffer(7)]],
    constant bool& has_cell [[buffer(8)]],
    constant int64_t& cu_seqlens_size [[buffer(9)]],
    constant uint& steps [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // The previous and the current step, alternately.
  threadgroup float state[2 * most_units];
  size_t row = size_t(group.y) * steps;
  x += row * 4 * width;
  hidden_out += row * width;
  cell_out += row * width;
  for (uint k = thread_in_group.x; k < width; k += group_size.x) {
    // The first step reads one of these, depending on where it is.
    state[k] = has_hidden
        ? static_cast<float>(hidden[size_t(group.y) * width + k])
        : 0.0f;
    state[most_units + k] = state[k];
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, int(steps));
  for (uint t = 0; t < steps; ++t) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* h = state + (t & 1) * most_units;
    threadgroup float* next = state + ((t + 1) & 1) * most_units;
    Sequence own = sequences.of(int(t));
    bool is_first = int(t) == own.first;
    bool is_zero = own.starts_anew(int(t));
    for (uint unit = simdgroup; unit < width; unit += simdgroups) {
      float4 total = float4(0);
      if (own.exists() && !is_zero) {
        total = lstm_products(weight, h, unit, width, lane);
      }
      if (lane == 0 && !own.exists()) {
        cell_out[unit] = 0;
        hidden_out[unit] = T(0);
      } else if (lane == 0) {
        float i = sigmoid(total.x + static_cast<float>(x[unit]));
        float f = sigmoid(total.y + static_cast<float>(x[width + unit]));
        float g =
            precise::tanh(total.z + static_cast<float>(x[2 * width + unit]));
        float o = sigmoid(total.w + static_cast<float>(x[3 * width + unit]));
        float before = 0;
        if (!is_first) {
          before = *(cell_out + unit - width);
        } else if (has_cell && !is_zero) {
          before = cell[size_t(group.y) * width + unit];
        }
        float c = f * before + i * g;
        T result = static_cast<T>(o * precise::tanh(c));
        cell_out[unit] = c;
        hidden_out[unit] = result;
        next[unit] = static_cast<float>(result); // as it is stored
      }
    }
    x += 4 * width;
    hidden_out += width;
    cell_out += width;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void lstm_vjp(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* hidden [[buffer(2)]],
    device const float* cell [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device const T* hidden_out [[buffer(5)]],
    device const float* cell_out [[buffer(6)]],
    device const T* cotangent [[buffer(7)]],
    device const float* cotangent_cell [[buffer(8)]],
    device T* grad_x [[buffer(9)]],
    device T* grad_hidden [[buffer(10)]],
    device float* grad_cell [[buffer(11)]],
    constant bool& has_hidden [[buffer(12)]],
    constant bool& has_cell [[buffer(13)]],
    constant int64_t& cu_seqlens_size [[buffer(14)]],
    constant uint& steps [[buffer(15)]],
    constant uint& width [[buffer(16)]],
    constant uint& units [[buffer(17)]],
    constant uint& parts [[buffer(18)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float gates[4 * most_units]; // and then their gradients
  threadgroup float sums[most_units];
  uint part = thread_in_group.x / units;
  uint unit = thread_in_group.x - part * units;
  bool is_mine = part == 0 && unit < width;
  size_t first = size_t(group.y) * width;
  float of_h = 0;
  float of_c = 0;
  if (is_mine) { // unless the first sequence has steps
    grad_hidden[first + unit] = T(0);
    grad_cell[first + unit] = 0;
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, int(steps));
  for (uint t = steps; t-- > 0;) {
    size_t row = size_t(group.y) * steps + t;
    Sequence own = sequences.of(int(t));
    bool is_first = int(t) == own.first;
    bool is_given = is_first && own.index == 0;
    if (!own.exists()) {
      for (uint j = 0; is_mine && j < 4; ++j) {
        grad_x[(row * 4 + j) * width + unit] = T(0);
      }
      continue;
    }
    device const T* from = x + row * 4 * width;
    for (uint i = simdgroup; i < width; i += simdgroups) {
      float4 total = float4(0);
      if (!is_first) {
        device const T* h = hidden_out + (row - 1) * width;
        total = lstm_products(weight, h, i, width, lane);
      } else if (is_given && has_hidden) {
        total = lstm_products(weight, hidden + first, i, width, lane);
      }
      if (lane == 0) {
        gates[i] = total.x + static_cast<float>(from[i]);
        gates[width + i] = total.y + static_cast<float>(from[width + i]);
        gates[2 * width + i] =
            total.z + static_cast<float>(from[2 * width + i]);
        gates[3 * width + i] =
            total.w + static_cast<float>(from[3 * width + i]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_mine) {
      size_t at = row * width + unit;
      float i = sigmoid(gates[unit]);
      float f = sigmoid(gates[width + unit]);
      float g = precise::tanh(gates[2 * width + unit]);
      float o = sigmoid(gates[3 * width + unit]);
      float before = 0;
      if (!is_first) {
        before = cell_out[at - width];
      } else if (is_given && has_cell) {
        before = cell[first + unit];
      }
      float shown = precise::tanh(cell_out[at]);
      float dh = static_cast<float>(cotangent[at]) + of_h;
      float dc = cotangent_cell[at] + of_c + dh * o * (1 - shown * shown);
      gates[unit] = dc * g * i * (1 - i);
      gates[width + unit] = dc * before * f * (1 - f);
      gates[2 * width + unit] = dc * i * (1 - g * g);
      gates[3 * width + unit] = dh * shown * o * (1 - o);
      device T* to = grad_x + row * 4 * width + unit;
      for (uint j = 0; j < 4; ++j) {
        to[j * width] = static_cast<T>(gates[j * width + unit]);
      }
      of_c = dc * f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    of_h =
        back_through(weight, gates, sums, 4, width, unit, units, part, parts);
    if (is_first) {
      if (is_mine && is_given) {
        grad_hidden[first + unit] = static_cast<T>(has_hidden ? of_h : 0.0f);
        grad_cell[first + unit] = of_c;
      }
      of_h = 0;
      of_c = 0;
    }
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void gru(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* hidden [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant bool& has_bias [[buffer(6)]],
    constant bool& has_hidden [[buffer(7)]],
    constant int64_t& cu_seqlens_size [[buffer(8)]],
    constant uint& steps [[buffer(9)]],
    constant uint& width [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint3 group_size [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  // The previous and the current step, alternately.
  threadgroup float state[2 * most_units];
  size_t row = size_t(group.y) * steps;
  x += row * 3 * width;
  out += row * width;
  for (uint k = thread_in_group.x; k < width; k += group_size.x) {
    // The first step reads one of these, depending on where it is.
    state[k] = has_hidden
        ? static_cast<float>(hidden[size_t(group.y) * width + k])
        : 0.0f;
    state[most_units + k] = state[k];
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, int(steps));
  for (uint t = 0; t < steps; ++t) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* h = state + (t & 1) * most_units;
    threadgroup float* next = state + ((t + 1) & 1) * most_units;
    Sequence own = sequences.of(int(t));
    bool is_zero = own.starts_anew(int(t));
    for (uint unit = simdgroup; unit < width; unit += simdgroups) {
      float3 total = float3(0);
      if (own.exists() && !is_zero) {
        total = gru_products(weight, h, unit, width, lane);
      }
      if (lane == 0 && !own.exists()) {
        out[unit] = T(0);
      } else if (lane == 0) {
        float r = sigmoid(static_cast<float>(x[unit]) + total.x);
        float z = sigmoid(static_cast<float>(x[width + unit]) + total.y);
        float gated =
            total.z + (has_bias ? static_cast<float>(bias[unit]) : 0.0f);
        float n =
            precise::tanh(static_cast<float>(x[2 * width + unit]) + r * gated);
        float before = is_zero ? 0.0f : h[unit];
        T result = static_cast<T>((1 - z) * n + z * before);
        out[unit] = result;
        next[unit] = static_cast<float>(result); // as it is stored
      }
    }
    x += 3 * width;
    out += width;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void gru_vjp(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* hidden [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]],
    device const T* states [[buffer(5)]],
    device const T* cotangent [[buffer(6)]],
    device T* grad_x [[buffer(7)]],
    device T* grad_gated [[buffer(8)]],
    device T* grad_hidden [[buffer(9)]],
    constant bool& has_bias [[buffer(10)]],
    constant bool& has_hidden [[buffer(11)]],
    constant int64_t& cu_seqlens_size [[buffer(12)]],
    constant uint& steps [[buffer(13)]],
    constant uint& width [[buffer(14)]],
    constant uint& units [[buffer(15)]],
    constant uint& parts [[buffer(16)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_in_group [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float gates[3 * most_units]; // products, and then gradients
  threadgroup float sums[most_units];
  uint part = thread_in_group.x / units;
  uint unit = thread_in_group.x - part * units;
  bool is_mine = part == 0 && unit < width;
  size_t first = size_t(group.y) * width;
  float of_n = has_bias && is_mine ? static_cast<float>(bias[unit]) : 0.0f;
  float of_h = 0;
  if (is_mine) { // unless the first sequence has steps
    grad_hidden[first + unit] = T(0);
  }
  Sequences sequences(cu_seqlens, cu_seqlens_size, int(steps));
  for (uint t = steps; t-- > 0;) {
    size_t row = size_t(group.y) * steps + t;
    Sequence own = sequences.of(int(t));
    bool is_first = int(t) == own.first;
    bool is_given = is_first && own.index == 0;
    if (!own.exists()) {
      for (uint j = 0; is_mine && j < 3; ++j) {
        grad_x[(row * 3 + j) * width + unit] = T(0);
      }
      if (is_mine) {
        grad_gated[row * width + unit] = T(0);
      }
      continue;
    }
    for (uint i = simdgroup; i < width; i += simdgroups) {
      float3 total = float3(0);
      if (!is_first) {
        device const T* h = states + (row - 1) * width;
        total = gru_products(weight, h, i, width, lane);
      } else if (is_given && has_hidden) {
        total = gru_products(weight, hidden + first, i, width, lane);
      }
      if (lane == 0) {
        gates[i] = total.x;
        gates[width + i] = total.y;
        gates[2 * width + i] = total.z;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_mine) {
      size_t at = row * width + unit;
      size_t gate = row * 3 * width + unit;
      float r = sigmoid(static_cast<float>(x[gate]) + gates[unit]);
      float z =
          sigmoid(static_cast<float>(x[gate + width]) + gates[width + unit]);
      float gated = gates[2 * width + unit] + of_n;
      float n =
          precise::tanh(static_cast<float>(x[gate + 2 * width]) + r * gated);
      float before = 0;
      if (!is_first) {
        before = static_cast<float>(states[at - width]);
      } else if (is_given && has_hidden) {
        before = static_cast<float>(hidden[first + unit]);
      }
      float dh = static_cast<float>(cotangent[at]) + of_h;
      float dn = dh * (1 - z) * (1 - n * n);
      float dr = dn * gated * r * (1 - r);
      float dz = dh * (before - n) * z * (1 - z);
      gates[unit] = dr;
      gates[width + unit] = dz;
      gates[2 * width + unit] = dn * r;
      grad_x[gate] = static_cast<T>(dr);
      grad_x[gate + width] = static_cast<T>(dz);
      grad_x[gate + 2 * width] = static_cast<T>(dn);
      grad_gated[at] = static_cast<T>(dn * r);
      of_h = dh * z;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    of_h +=
        back_through(weight, gates, sums, 3, width, unit, units, part, parts);
    if (is_first) {
      if (is_mine && is_given) {
        grad_hidden[first + unit] = static_cast<T>(has_hidden ? of_h : 0.0f);
      }
      of_h = 0;
    }
  }
}
