// Metal kernel of the cross entropy of linear outputs, whose logits exist only
// in registers: Wijmans, Huval, Hertzberg, Koltun and Kraehenbuehl, "Cut Your
// Losses in Large-Vocabulary Language Models" (2024).
//
// A threadgroup computes 64 rows and a part of the words, 64 at a time; each of
// its four simdgroups computes 32 x 32 of them. A lane holds eight logits of
// each of four rows and adds them to its own sums; at the end, the sums of
// lanes and simdgroups are combined. csrc/nn/linear_cross_entropy_blocks.h
// computes the gradient in a different way and explains the reason.

#include <metal_stdlib>

#include "elements.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "nn/softmax.h"
#include "nn/tiles.h"

using namespace metal;

static constant constexpr const int side = 64; // rows, and words at a time
static constant constexpr const int deep = 16; // features at a time
static constant constexpr const int pitch = deep + 4; // avoids bank conflicts
static constant constexpr const int tiles = side / 2 / 8;
static constant constexpr const int part_words = 2048; // as in ops/nn.yaml

/** Rows of a matrix, from a given row on, with the same number of columns as x.
 */
template <typename T>
struct Rows {
  device const T* data;
  int count;
  int depth;

  /** Copy `deep` columns, eight per thread; missing columns are zeros. */
  void copy(threadgroup float4* to, int first, int index) const {
    int row = index / 2;
    int column = index % 2 * 8;
    int left = row < count ? depth - first - column : 0;
    device const T* from = data + size_t(row) * depth + first + column;
    to += (row * pitch + column) / 4;
    to[0] = read(from, left);
    to[1] = read(from + 4, left - 4);
  }
};

/** Products of the simdgroup's 32 rows of x and 32 words. */
template <typename T>
inline void products(
    thread Tile (&to)[tiles][tiles],
    Rows<T> x,
    Rows<T> weight,
    threadgroup float4* x_block,
    threadgroup float4* weight_block,
    int index,
    int row,
    int word) {
  for (int i = 0; i < tiles; ++i) {
    for (int j = 0; j < tiles; ++j) {
      to[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  threadgroup const float* left_rows = (threadgroup const float*)x_block;
  threadgroup const float* right_rows = (threadgroup const float*)weight_block;
  for (int first = 0; first < x.depth; first += deep) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x.copy(x_block, first, index);
    weight.copy(weight_block, first, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < deep; k += 8) {
      Tile right[tiles];
      for (int j = 0; j < tiles; ++j) {
        threadgroup const float* from = right_rows + (word + 8 * j) * pitch;
        simdgroup_load(right[j], from + k, pitch, ulong2(0), true);
      }
      for (int i = 0; i < tiles; ++i) {
        Tile left;
        simdgroup_load(left, left_rows + (row + 8 * i) * pitch + k, pitch);
        for (int j = 0; j < tiles; ++j) {
          simdgroup_multiply_accumulate(to[i][j], left, right[j], to[i][j]);
        }
      }
    }
  }
}

/** The largest bias, which is subtracted from all logits, as in
 * csrc/nn/linear_cross_entropy.h. One threadgroup. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void bias_base(
    device const T* bias [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant float& softcap [[buffer(2)]],
    constant int& V [[buffer(3)]],
    uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float parts[32];
  float most = -INFINITY;
  for (int i = int(index); i < V && softcap == 0; i += int(threads)) {
    most = max(most, static_cast<float>(bias[i]));
  }
  most = simd_max(most);
  if (lane == 0) {
    parts[simdgroup] = most;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  most = simd_max(lane < simdgroups ? float(parts[lane]) : -INFINITY);
  if (index == 0) {
    out[0] = isinf(most) ? 0.0f : most;
  }
}

/** Combine the results of all four lanes that hold parts of a row. */
inline void join_row(thread LogSumExp& all) {
  float before = all.most;
  all.most = row_max(before);
  bool has = before == all.most;
  float others = has ? all.others : all.sum() * exp(before - all.shift());
  all.others = row_sum(others) + (row_sum(has ? 1.0f : 0.0f) - 1);
}

/**
 * For each part of the words: the largest logit of a row, the sum of the other
 * exponentials, the target's logit if it is in the part, the sum of weighted
 * logits relative to the largest, the sum of the words' weights, and the number
 * of words.
 */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void
linear_cross_entropy_parts(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* targets [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device const float* class_weight [[buffer(4)]],
    device const float* base [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant bool& has_bias [[buffer(7)]],
    constant bool& has_class_weight [[buffer(8)]],
    constant float& softcap [[buffer(9)]],
    constant int& ignore_index [[buffer(10)]],
    constant bool& sums [[buffer(11)]],
    constant int& rows [[buffer(12)]],
    constant int& words [[buffer(13)]],
    constant int& depth [[buffer(14)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 x_block[side * pitch / 4];
  threadgroup float4 weight_block[side * pitch / 4];
  threadgroup float4 halves[side]; // results for rows, from half of the words
  threadgroup float weights[side];
  int first_row = int(group.x) * side;
  int first_word = int(group.y) * part_words;
  int last_word = min(first_word + part_words, words);
  int row = int(simdgroup) / 2 * 32; // first row of the simdgroup
  int word = int(simdgroup) % 2 * 32;
  int own_row = row + tile_row(lane);
  int own_word = word + tile_column(lane);
  bool counts = false;
  for (int i = int(lane); i < side; i += 32) {
    counts |= first_row + i < rows && targets[first_row + i] != ignore_index;
  }
  counts = simd_any(counts); // equal in all simdgroups
  int y[tiles];
  RowOfLogits of_rows[tiles];
  for (int i = 0; i < tiles; ++i) {
    int at = first_row + own_row + 8 * i;
    y[i] = at < rows ? targets[at] : ignore_index;
  }
  Rows<T> x_rows = {x + size_t(first_row) * depth, rows - first_row, depth};
  for (int at = first_word; counts && at < last_word; at += side) {
    Tile logits[tiles][tiles];
    products(
        logits,
        x_rows,
        {weight + size_t(at) * depth, words - at, depth},
        x_block,
        weight_block,
        int(index),
        row,
        word);
    for (int j = 0; j < tiles; j += 2) {
      int place[4]; // the lane's words in two adjacent tiles
      float4 shift = float4(0);
      float4 factor = float4(0);
      for (int k = 0; k < 4; ++k) {
        place[k] = at + own_word + 8 * (j + k / 2) + k % 2;
        if (has_bias && place[k] < words) {
          shift[k] = static_cast<float>(bias[place[k]]) - base[0];
        }
        if (sums && place[k] < words) {
          factor[k] = has_class_weight ? class_weight[place[k]] : 1.0f;
        }
      }
      for (int i = 0; i < tiles; ++i) {
        float4 z = float4(
            logits[i][j].thread_elements()[0],
            logits[i][j].thread_elements()[1],
            logits[i][j + 1].thread_elements()[0],
            logits[i][j + 1].thread_elements()[1]);
        z += shift;
        if (softcap != 0) {
          z = softcap * precise::tanh(z / softcap);
        }
        for (int k = 0; k < 4; ++k) {
          of_rows[i].target += place[k] == y[i] ? z[k] : 0.0f;
          z[k] = place[k] < words ? z[k] : -INFINITY;
        }
        float before = of_rows[i].all.shift();
        float4 e;
        of_rows[i].all.add(z, e);
        if (sums) {
          of_rows[i].move(before);
          for (int k = 0; k < 4; ++k) {
            // Else the logit may be infinite.
            bool counts = place[k] < words && factor[k] != 0;
            float relative = counts ? z[k] - of_rows[i].all.shift() : 0.0f;
            of_rows[i].weight += factor[k];
            of_rows[i].total += factor[k] * relative;
          }
        }
      }
    }
  }
  for (int i = 0; i < tiles; ++i) {
    float before = of_rows[i].all.shift();
    join_row(of_rows[i].all);
    of_rows[i].move(before);
    of_rows[i].weight = row_sum(of_rows[i].weight);
    of_rows[i].target = row_sum(of_rows[i].target);
    of_rows[i].total = row_sum(of_rows[i].total);
    if (word > 0 && tile_column(lane) == 0) {
      halves[own_row + 8 * i] = float4(
          of_rows[i].all.most,
          of_rows[i].all.others,
          of_rows[i].target,
          of_rows[i].total);
      weights[own_row + 8 * i] = of_rows[i].weight;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < tiles; ++i) {
    int at = first_row + own_row + 8 * i;
    if (word > 0 || tile_column(lane) != 0 || at >= rows) {
      continue;
    }
    RowOfLogits other;
    other.all.most = halves[own_row + 8 * i].x;
    other.all.others = halves[own_row + 8 * i].y;
    other.target = halves[own_row + 8 * i].z;
    other.total = halves[own_row + 8 * i].w;
    other.weight = weights[own_row + 8 * i];
    of_rows[i].join(other);
    device float* to = out + (size_t(at) * groups.y + group.y) * 6;
    to[0] = of_rows[i].all.most;
    to[1] = of_rows[i].all.others;
    to[2] = of_rows[i].target;
    to[3] = of_rows[i].total;
    to[4] = of_rows[i].weight;
    to[5] = last_word - first_word;
  }
}

/** The losses of rows, from the results for their parts. */
template <typename T>
[[kernel]] void linear_cross_entropy_joined(
    device const T* parts [[buffer(0)]],
    device const int* targets [[buffer(1)]],
    device const T* class_weight [[buffer(2)]],
    device const T* base [[buffer(3)]],
    device float* loss [[buffer(4)]],
    device float* counted [[buffer(5)]],
    device float* most [[buffer(6)]],
    device float* log_sum [[buffer(7)]],
    device float* extra [[buffer(8)]],
    constant bool& has_class_weight [[buffer(9)]],
    constant bool& has_base [[buffer(10)]],
    constant int& ignore_index [[buffer(11)]],
    constant float& label_smoothing [[buffer(12)]],
    constant float& z_loss [[buffer(13)]],
    constant int& P [[buffer(14)]],
    uint row [[thread_position_in_grid]]) {
  RowOutputs out = {loss, counted, most, log_sum, extra};
  int y = targets[row];
  if (y == ignore_index) {
    out.ignore(row);
    return;
  }
  RowOfLogits all;
  int words = 0;
  for (int i = 0; i < P; ++i) {
    device const T* from = parts + (size_t(row) * P + i) * 6;
    RowOfLogits part;
    part.all.most = from[0];
    part.all.others = from[1];
    part.target = from[2];
    part.total = from[3];
    part.weight = from[4];
    all.join(part);
    words += int(from[5]);
  }
  bool is_word = y >= 0 && y < words;
  if (!is_word) {
    all.target = NAN;
  }
  out.write(
      row,
      all,
      has_class_weight && is_word ? class_weight[y] : 1.0f,
      has_base ? base[0] : 0.0f,
      label_smoothing,
      z_loss,
      words);
}
