// Metal kernels of the scan of Mamba-2: the formulas of csrc/nn/ssm_scan.h.
//
// In the forward, several lanes of a simdgroup share four rows of a head's
// state. Each holds every n-th column of them, for n lanes, at most eight, in
// registers from the first step to the last. The lanes add up the rows'
// products and need no data of others.

#include <metal_stdlib>

#include "../elements.h"
#include "delta.h"
#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

static constant constexpr const int columns_per_lane = 8;

/**
 * exp(A_log); finite, because the limit of its product with a decay of 0 is 0.
 */
inline float rate_of(float A_log) {
  float rate = precise::exp(A_log);
  return rate == INFINITY ? FLT_MAX : rate;
}

/** The sizes of a scan, and a thread's position in it. */
struct Scan {
  uint steps;
  uint heads;
  uint rows;
  uint columns;
  uint lanes; // that share rows, a power of two
  uint batch;
  uint head;
  uint first_row;
  uint part; // index among the lanes that share rows

  Scan(
      uint3 position,
      uint lane,
      uint steps,
      uint heads,
      uint rows,
      uint columns,
      uint lanes)
      : steps(steps),
        heads(heads),
        rows(rows),
        columns(columns),
        lanes(lanes),
        batch(position.z),
        head(position.y),
        first_row((position.x >> ctz(lanes)) * per_thread),
        part(lane & (lanes - 1)) {}

  /** The first step of an array of (batch, steps, own, width). */
  size_t start(uint own, uint width) const {
    uint of = own == heads ? head : own == 1 ? 0 : head / (heads / own);
    return (size_t(batch) * steps * own + of) * width;
  }

  /**
   * S_t = decay_t S_{t-1} + dt_t x_t B_t^T and y_t = S_t C_t + D x_t; or the
   * tangents of S and of y with respect to A_log and dt.
   */
  template <bool tangents, typename T>
  void run(
      device const T* x,
      float rate,
      device const T* B,
      device const T* C,
      uint groups,
      float D,
      device const float* dt,
      device const float* initial,
      bool has_initial,
      device const bool* mask,
      bool has_mask,
      thread const Sequences& sequences,
      float of_A_log,
      device const float* of_dt,
      device T* y,
      device float* last) const {
    int left = int(rows) - int(first_row); // negative in lanes without rows
    x += start(heads, rows) + first_row;
    y += start(heads, rows) + first_row;
    B += start(groups, columns);
    C += start(groups, columns);
    dt += start(heads, 1);
    of_dt += start(heads, 1);
    size_t state =
        ((size_t(batch) * heads + head) * rows + first_row) * columns;
    float4 kept[columns_per_lane];
    float4 tangent[columns_per_lane];
    for (int i = 0; i < columns_per_lane; ++i) {
      kept[i] = float4(0);
      tangent[i] = float4(0);
      uint n = part + i * lanes;
      if (has_initial && n < columns) {
        kept[i] = column(initial + state + n, left);
      }
    }
    for (uint t = 0; t < steps; ++t) {
      size_t at = size_t(t) * heads * rows;
      Sequence sequence = sequences.of(t);
      if (sequence.starts_anew(t)) {
        for (int i = 0; i < columns_per_lane; ++i) {
          kept[i] = float4(0);
          tangent[i] = float4(0);
        }
      }
      if (!sequence.exists() ||
          (has_mask && !mask[size_t(batch) * steps + t])) {
        if (part == 0) {
          write(float4(0), y + at, left);
        }
        continue;
      }
      float step = dt[size_t(t) * heads];
      float decay = precise::exp(-rate * step);
      float4 value = read(x + at, left);
      float4 taken = step * value;
      float4 of_taken = float4(0);
      float of_decay = 0;
      if (tangents) {
        float of_step = of_dt[size_t(t) * heads];
        of_taken = of_step * value;
        of_decay = -decay * (of_A_log * step + of_step) * rate;
      }
      device const T* key = B + size_t(t) * groups * columns;
      device const T* query = C + size_t(t) * groups * columns;
      float4 product = float4(0);
      for (int i = 0; i < columns_per_lane; ++i) {
        uint n = part + i * lanes;
        if (n < columns) {
          float k = static_cast<float>(key[n]);
          if (tangents) {
            tangent[i] = decay * tangent[i] + of_decay * kept[i] + of_taken * k;
          }
          kept[i] = decay * kept[i] + taken * k;
          product +=
              (tangents ? tangent[i] : kept[i]) * static_cast<float>(query[n]);
        }
      }
      for (uint distance = 1; distance < lanes; distance *= 2) {
        product += simd_shuffle_xor(product, distance);
      }
      if (part == 0) {
        write(tangents ? product : product + D * value, y + at, left);
      }
    }
    for (int i = 0; i < columns_per_lane; ++i) {
      uint n = part + i * lanes;
      if (n < columns) {
        write_column(tangents ? tangent[i] : kept[i], last + state + n, left);
      }
    }
  }

  float4 column(device const float* from, int left) const {
    float to[per_thread] = {0, 0, 0, 0};
    for (int i = 0; i < per_thread; ++i) {
      if (i < left) {
        to[i] = from[i * columns];
      }
    }
    return float4(to[0], to[1], to[2], to[3]);
  }

  void write_column(float4 from, device float* to, int left) const {
    float values[per_thread] = {from.x, from.y, from.z, from.w};
    for (int i = 0; i < per_thread; ++i) {
      if (i < left) {
        to[i * columns] = values[i];
      }
    }
  }
};

template <typename T>
[[kernel]] void ssm_scan(
    device const T* x [[buffer(0)]],
    device const float* A_log [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device const T* C [[buffer(3)]],
    device const float* D [[buffer(4)]],
    device const float* dt [[buffer(5)]],
    device const float* state [[buffer(6)]],
    device const bool* mask [[buffer(7)]],
    device const int* cu_seqlens [[buffer(8)]],
    device T* y [[buffer(9)]],
    device float* last [[buffer(10)]],
    constant bool& has_state [[buffer(11)]],
    constant bool& has_mask [[buffer(12)]],
    constant int64_t& cu_seqlens_size [[buffer(13)]],
    constant const int* x_shape [[buffer(14)]],
    constant const int* B_shape [[buffer(15)]],
    constant uint& lanes [[buffer(16)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  Scan scan(
      position, lane, x_shape[1], x_shape[2], x_shape[3], B_shape[3], lanes);
  scan.run<false>(
      x,
      rate_of(A_log[scan.head]),
      B,
      C,
      B_shape[2],
      D[scan.head],
      dt,
      state,
      has_state,
      mask,
      has_mask,
      Sequences(cu_seqlens, cu_seqlens_size, x_shape[1]),
      0,
      dt,
      y,
      last);
}

template <typename T>
[[kernel]] void ssm_scan_decay_jvp(
    device const T* x [[buffer(0)]],
    device const float* A_log [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device const T* C [[buffer(3)]],
    device const float* dt [[buffer(4)]],
    device const float* state [[buffer(5)]],
    device const bool* mask [[buffer(6)]],
    device const int* cu_seqlens [[buffer(7)]],
    device const float* of_A_log [[buffer(8)]],
    device const float* of_dt [[buffer(9)]],
    device T* y [[buffer(10)]],
    device float* last [[buffer(11)]],
    constant bool& has_state [[buffer(12)]],
    constant bool& has_mask [[buffer(13)]],
    constant int64_t& cu_seqlens_size [[buffer(14)]],
    constant const int* x_shape [[buffer(15)]],
    constant const int* B_shape [[buffer(16)]],
    constant uint& lanes [[buffer(17)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  Scan scan(
      position, lane, x_shape[1], x_shape[2], x_shape[3], B_shape[3], lanes);
  float rate = rate_of(A_log[scan.head]);
  scan.run<true>(
      x,
      rate,
      B,
      C,
      B_shape[2],
      0,
      dt,
      state,
      has_state,
      mask,
      has_mask,
      Sequences(cu_seqlens, cu_seqlens_size, x_shape[1]),
      of_A_log[scan.head],
      of_dt,
      y,
      last);
}

/** Reads the steps of ssm_scan and writes their gradients. */
template <typename T>
struct SsmScan {
  static constant constexpr const bool corrects = false;
  static constant constexpr const bool adds = false;

  device const T* x;
  device const T* B;
  device const T* C;
  device const float* dt;
  device const bool* mask;
  bool has_mask;
  Sequences sequences;
  float rate; // of the place's head
  float D;
  uint groups;
  uint group;
  // The gradients' destinations, for a block of rows and for its sums over
  // time.
  device float* grad_A_log;
  device float* grad_B;
  device float* grad_C;
  device float* grad_D;
  device float* grad_dt;

  template <int N>
  bool read(thread const DeltaPlace& place, uint t, thread DeltaStep<N>& to)
      const {
    uint width = place.width;
    size_t time = size_t(place.batch) * place.steps + t;
    if (has_mask && !mask[time]) {
      return false;
    }
    size_t key = (time * groups + group) * width;
    read_lane<N>(C + key, place.lane, width, to.r);
    read_lane<N>(B + key, place.lane, width, to.k);
    read_rows(x + place.at(t) * place.values + place.first, place, to.x);
    to.beta = dt[place.at(t)];
    for (int i = 0; i < int(rows_per_simdgroup); ++i) {
      to.v[i] = to.beta * to.x[i];
    }
    float decay = precise::exp(rate * to.beta);
    for (int n = 0; n < N; ++n) {
      to.w[n] = decay;
    }
    return true;
  }

  /** The number of sums per step: of C, B, dt, A_log and D. */
  uint columns(thread const DeltaPlace& place) const {
    return 2 * place.width + 3;
  }

  template <int N>
  void share(
      thread const DeltaPlace& place,
      thread const DeltaStep<N>& step,
      thread DeltaStep<N>& sums,
      threadgroup float* to) const {
    uint lane = place.lane;
    uint width = place.width;
    float decay = 0;
    for (int n = 0; n < N; ++n) {
      uint j = lane + 32 * n;
      if (j < width) {
        to[j] = sums.r[n];
        to[width + j] = sums.k[n];
        decay += step.w[n] * sums.w[n];
      }
    }
    decay = simd_sum(decay);
    float of_dt = rate * decay;
    float of_D = 0;
    for (int i = 0; i < int(rows_per_simdgroup); ++i) {
      of_dt += step.x[i] * sums.v[i];
      of_D += step.x[i] * step.grad_y[i];
      sums.v[i] = step.beta * sums.v[i] + D * step.grad_y[i];
    }
    if (lane == 0) {
      to[2 * width] = of_dt;
      to[2 * width + 1] = step.beta * decay * rate;
      to[2 * width + 2] = of_D;
    }
  }

  void write(thread const DeltaPlace& place, uint t, uint i, float total)
      const {
    uint width = place.width;
    size_t at = place.at(t);
    size_t own = size_t(place.batch) * place.heads + place.head;
    if (i < width) {
      grad_C[at * width + i] = total;
    } else if (i < 2 * width) {
      grad_B[at * width + i - width] = total;
    } else if (i == 2 * width) {
      grad_dt[at] = total;
    } else if (i == 2 * width + 1) {
      grad_A_log[own] += total;
    } else {
      grad_D[own] += total;
    }
  }
};

/** A threadgroup per head and block of rows. */
template <typename T, int Width>
[[kernel, max_total_threads_per_threadgroup(512)]] void ssm_scan_vjp(
    device const T* x [[buffer(0)]],
    device const float* A_log [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device const T* C [[buffer(3)]],
    device const float* D [[buffer(4)]],
    device const float* dt [[buffer(5)]],
    device const float* state [[buffer(6)]],
    device const bool* mask [[buffer(7)]],
    device const int* cu_seqlens [[buffer(8)]],
    device const T* cotangent [[buffer(9)]],
    device const float* cotangent_last [[buffer(10)]],
    device T* x_part [[buffer(11)]],
    device float* A_log_part [[buffer(12)]],
    device float* B_part [[buffer(13)]],
    device float* C_part [[buffer(14)]],
    device float* D_part [[buffer(15)]],
    device float* dt_part [[buffer(16)]],
    device float* state_part [[buffer(17)]],
    device float* kept [[buffer(18)]],
    constant bool& has_state [[buffer(19)]],
    constant bool& has_mask [[buffer(20)]],
    constant int64_t& cu_seqlens_size [[buffer(21)]],
    constant const int* x_shape [[buffer(22)]],
    constant const int* B_shape [[buffer(23)]],
    constant int& block [[buffer(24)]],
    constant int& chunk [[buffer(25)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  // One simdgroup for every four rows of a block.
  threadgroup float shared[(Width > 128 ? 8 : 16) * (2 * Width + 3)];
  DeltaPlace place =
      delta_place(x_shape, B_shape[3], block, group, lane, simdgroup);
  size_t own = size_t(group.x) * x_shape[0] * x_shape[2];
  size_t sums = own * x_shape[1];
  uint shares = B_shape[2];
  SsmScan<T> rule = {
      x,
      B,
      C,
      dt,
      mask,
      has_mask,
      Sequences(cu_seqlens, cu_seqlens_size, x_shape[1]),
      -rate_of(A_log[place.head]),
      D[place.head],
      shares,
      shares == place.heads ? place.head : place.head / (place.heads / shares),
      A_log_part + own,
      B_part + sums * place.width,
      C_part + sums * place.width,
      D_part + own,
      dt_part + sums};
  DeltaBackward<T> to = {
      state,
      has_state,
      cotangent,
      cotangent_last,
      x_part,
      state_part,
      kept,
      shared,
      uint(chunk),
      uint(block),
      groups.x};
  delta_backward<Width / 32>(rule, place, to);
}
