// Metal kernels of a state that decays and takes up outer products: the scans
// of csrc/nn/outer_scan.h.
//
// Some lanes of a simdgroup share four rows of a head's state: each has every
// so manieth column of them, at most eight, in registers from the first step to
// the last. They add up the rows' products, and need nothing of others.

#include <metal_stdlib>

#include "../elements.h"
#include "mlx/backend/metal/kernels/utils.h"

using namespace metal;

static constant constexpr const int columns_per_lane = 8;

/** How a head goes from step to step. */
struct Step {
  float decay;
  float weight; // of what is taken up
  bool is_there; // or else the state stays
};

/** Of Mamba-2: the decay is exp(-exp(A_log) dt), the weight dt. */
struct TimeSteps {
  float rate;
  device const float* dt;
  device const bool* mask;
  bool has_mask;
  uint heads;

  Step operator()(uint t) const {
    if (has_mask && !mask[t]) {
      return {1, 0, false};
    }
    float step = dt[size_t(t) * heads];
    return {precise::exp(-rate * step), step, true};
  }
};

struct GivenSteps {
  device const float* log_decay;
  device const float* weight;
  bool has_weight;
  uint heads;

  Step operator()(uint t) const {
    size_t at = size_t(t) * heads;
    return {precise::exp(log_decay[at]), has_weight ? weight[at] : 1.0f, true};
  }
};

/** Sizes of a scan, and a thread's place in it. */
struct Scan {
  uint steps;
  uint heads;
  uint rows;
  uint columns;
  uint lanes; // that share rows, a power of two
  bool reverse;
  uint batch;
  uint head;
  uint first_row;
  uint part; // of the lanes that share rows

  Scan(
      uint3 position,
      uint lane,
      uint steps,
      uint heads,
      uint rows,
      uint columns,
      uint lanes,
      bool reverse)
      : steps(steps),
        heads(heads),
        rows(rows),
        columns(columns),
        lanes(lanes),
        reverse(reverse),
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
   * S_t = decay_t S_{t-1} + weight_t v_t k_t^T and y_t = S_t q_t + skip v_t.
   * With `reverse` from the last step to the first, and there the decay
   * follows.
   */
  template <typename T, typename Y, typename Steps>
  void run(
      device const T* v,
      uint v_heads,
      device const T* k,
      uint k_heads,
      device const T* q,
      uint q_heads,
      thread const Steps& steps_of,
      float skip,
      device const float* initial,
      bool has_initial,
      device Y* y,
      device float* last) const {
    int left = int(rows) - int(first_row); // negative in lanes without rows
    v += start(v_heads, rows) + first_row;
    k += start(k_heads, columns);
    q += start(q_heads, columns);
    y += start(heads, rows) + first_row;
    size_t state =
        ((size_t(batch) * heads + head) * rows + first_row) * columns;
    float4 kept[columns_per_lane];
    for (int i = 0; i < columns_per_lane; ++i) {
      kept[i] = float4(0);
      uint n = part + i * lanes;
      if (has_initial && n < columns) {
        kept[i] = column(initial + state + n, left);
      }
    }
    float pending = 1; // the decay that follows, in reverse
    for (uint j = 0; j < steps; ++j) {
      uint t = reverse ? steps - 1 - j : j;
      Step step = steps_of(t);
      size_t at = size_t(t) * heads * rows;
      if (!step.is_there) {
        if (part == 0) {
          write(float4(0), y + at, left);
        }
        continue;
      }
      float decay = reverse ? pending : step.decay;
      pending = step.decay;
      float4 value = read(v + size_t(t) * v_heads * rows, left);
      float4 taken = step.weight * value;
      device const T* key = k + size_t(t) * k_heads * columns;
      device const T* query = q + size_t(t) * q_heads * columns;
      float4 product = float4(0);
      for (int i = 0; i < columns_per_lane; ++i) {
        uint n = part + i * lanes;
        if (n < columns) {
          kept[i] = decay * kept[i] + taken * static_cast<float>(key[n]);
          product += kept[i] * static_cast<float>(query[n]);
        }
      }
      for (uint distance = 1; distance < lanes; distance *= 2) {
        product += simd_shuffle_xor(product, distance);
      }
      if (part == 0) {
        write(skip == 0 ? product : product + skip * value, y + at, left);
      }
    }
    float after = reverse ? pending : 1.0f;
    for (int i = 0; i < columns_per_lane; ++i) {
      uint n = part + i * lanes;
      if (n < columns) {
        write_column(after * kept[i], last + state + n, left);
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
    device T* y [[buffer(8)]],
    device float* last [[buffer(9)]],
    constant bool& has_state [[buffer(10)]],
    constant bool& has_mask [[buffer(11)]],
    constant const int* x_shape [[buffer(12)]],
    constant const int* B_shape [[buffer(13)]],
    constant uint& lanes [[buffer(14)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  uint steps = x_shape[1];
  uint heads = x_shape[2];
  uint groups = B_shape[2];
  Scan scan(position, lane, steps, heads, x_shape[3], B_shape[3], lanes, false);
  TimeSteps steps_of = {
      precise::exp(A_log[scan.head]),
      dt + scan.start(heads, 1),
      mask + (has_mask ? size_t(scan.batch) * steps : 0),
      has_mask,
      heads};
  scan.run(
      x,
      heads,
      B,
      groups,
      C,
      groups,
      steps_of,
      D[scan.head],
      state,
      has_state,
      y,
      last);
}

template <typename T>
[[kernel]] void outer_scan(
    device const T* v [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* q [[buffer(2)]],
    device const float* log_decay [[buffer(3)]],
    device const float* weight [[buffer(4)]],
    device const float* state [[buffer(5)]],
    device float* y [[buffer(6)]],
    device float* last [[buffer(7)]],
    constant bool& has_weight [[buffer(8)]],
    constant bool& has_state [[buffer(9)]],
    constant bool& reverse [[buffer(10)]],
    constant const int* y_shape [[buffer(11)]],
    constant const int* v_shape [[buffer(12)]],
    constant const int* k_shape [[buffer(13)]],
    constant const int* q_shape [[buffer(14)]],
    constant uint& lanes [[buffer(15)]],
    uint3 position [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  uint heads = y_shape[2];
  Scan scan(
      position,
      lane,
      y_shape[1],
      heads,
      y_shape[3],
      k_shape[3],
      lanes,
      reverse);
  size_t start = scan.start(heads, 1);
  GivenSteps steps_of = {
      log_decay + start, weight + (has_weight ? start : 0), has_weight, heads};
  scan.run(
      v,
      v_shape[2],
      k,
      k_shape[2],
      q,
      q_shape[2],
      steps_of,
      0.0f,
      state,
      has_state,
      y,
      last);
}
