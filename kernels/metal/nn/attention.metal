// Metal kernels of attention that never hold the whole matrix of scores: the
// formulas of csrc/nn/attention.h.
//
// A threadgroup has 32 rows, queries or keys, and goes over those of the other
// side 32 at a time. Each of its four simdgroups has 8 of the rows, and four 8
// x 8 matrices of scores. More than 128 columns of results are shared among
// threadgroups, which all compute the scores: so heads of any size fit into
// registers.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"
#include "nn/tiles.h"

using namespace metal;

static constant constexpr const int block = 32; // rows, and columns at a time
static constant constexpr const int pitch = block + 4; // avoids bank conflicts
static constant constexpr const int tiles = block / 8;
static constant constexpr const int results = 128; // columns of a threadgroup

/** A thread's place in the launch. */
struct Thread {
  int index; // in the threadgroup
  int simdgroup;
  int lane;
  int row; // among the threadgroup's
  int column; // the first of two, in each 8 x 8 matrix

  Thread(uint index_, uint simdgroup_, uint lane_)
      : index(index_), simdgroup(simdgroup_), lane(lane_) {
    row = simdgroup * 8 + tile_row(lane);
    column = tile_column(lane);
  }
};

/** Rows of a matrix whose rows have `size` elements. */
template <typename T>
struct Rows {
  device const T* data;
  int count;
  int size;
};

/** Copy the 32 columns from `first` on, with zeros where nothing is. */
template <typename T>
inline void
copy(threadgroup float* to, Rows<T> from, int first, Thread thread_) {
  for (int i = thread_.index; i < block * block; i += 4 * 32) {
    int row = i / block;
    int column = i % block;
    bool there = row < from.count && first + column < from.size;
    to[row * pitch + column] = there
        ? static_cast<float>(from.data[row * from.size + first + column])
        : 0.0f;
  }
}

/** a b^T, for the simdgroup's 8 rows of a and 32 of b. */
template <typename T>
inline void products(
    thread Tile* to,
    Rows<T> a,
    Rows<T> b,
    threadgroup float* a_block,
    threadgroup float* b_block,
    Thread thread_) {
  for (int j = 0; j < tiles; ++j) {
    to[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int at = 0; at < a.size; at += block) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    copy(a_block, a, at, thread_);
    copy(b_block, b, at, thread_);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < tiles; ++i) {
      Tile left;
      simdgroup_load(
          left, a_block + thread_.simdgroup * 8 * pitch + i * 8, pitch);
      for (int j = 0; j < tiles; ++j) {
        Tile right;
        simdgroup_load(
            right, b_block + j * 8 * pitch + i * 8, pitch, ulong2(0), true);
        simdgroup_multiply_accumulate(to[j], left, right, to[j]);
      }
    }
  }
}

/** sums += factors b, for those columns of b that this threadgroup has. */
template <typename T>
inline void add_rows(
    thread Tile* sums,
    thread Tile* factors,
    Rows<T> b,
    int first,
    threadgroup float* b_block,
    Thread thread_) {
  for (int part = 0; part < results / block; ++part) {
    int at = first + part * block;
    if (at < b.size) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      copy(b_block, b, at, thread_);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int j = 0; j < tiles; ++j) {
        for (int i = 0; i < tiles; ++i) {
          Tile right;
          simdgroup_load(right, b_block + i * 8 * pitch + j * 8, pitch);
          simdgroup_multiply_accumulate(
              sums[part * tiles + j],
              factors[i],
              right,
              sums[part * tiles + j]);
        }
      }
    }
  }
}

/** Write a thread's sums, times a factor. */
template <typename T>
inline void store(
    thread Tile* sums,
    float factor,
    device T* to,
    int rows,
    int size,
    int first,
    Thread thread_) {
  if (thread_.row >= rows) {
    return;
  }
  for (int j = 0; j < results / 8; ++j) {
    for (int i = 0; i < 2; ++i) {
      int column = first + j * 8 + thread_.column + i;
      if (column < size) {
        to[thread_.row * size + column] =
            static_cast<T>(sums[j].thread_elements()[i] * factor);
      }
    }
  }
}

inline void clear(thread Tile* sums) {
  for (int j = 0; j < results / 8; ++j) {
    sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

/** What all kernels are told; offsets of the mask are 0 along axes of length 1.
 */
struct Sizes {
  int queries;
  int keys;
  int size; // of queries and keys
  int width; // of values
  int heads;
  int key_heads;
  float scale;
  float softcap; // 0: none
  bool has_mask = false;
  int mask_batch = 0;
  int mask_head = 0;
  int mask_query = 0;
  int mask_key = 0;

  void set_mask(bool given, constant const int* shape) {
    if (!given) {
      return;
    }
    has_mask = true;
    mask_key = shape[3] == 1 ? 0 : 1;
    mask_query = shape[2] == 1 ? 0 : shape[3];
    mask_head = shape[1] == 1 ? 0 : shape[2] * shape[3];
    mask_batch = shape[0] == 1 ? 0 : shape[1] * shape[2] * shape[3];
  }

  /** Where a head's mask begins. */
  size_t mask_at(int b, int h) const {
    return size_t(b) * mask_batch + size_t(h) * mask_head;
  }
};

/** Who sees whom in a head, and scores. */
template <typename T>
struct Scores {
  Sizes sizes;
  device const int* ranges;
  device const T* mask; // the head's

  int first(int query) const {
    return query < sizes.queries ? max(ranges[query], 0) : 0;
  }
  int last(int query) const {
    return query < sizes.queries
        ? min(ranges[sizes.queries + query], sizes.keys)
        : 0;
  }

  /** Whether any of 32 queries sees any of 32 keys, for all lanes alike. */
  bool meet(int query, int key, Thread thread_) const {
    int at = query + thread_.lane;
    return simd_any(max(first(at), key) < min(last(at), key + block));
  }

  /** The score, and its derivative by the scaled product. */
  float of(float product, int query, int key, thread float& slope) const {
    slope = 1;
    if (key < first(query) || key >= last(query)) {
      return -INFINITY;
    }
    float score = product * sizes.scale;
    if (sizes.softcap != 0) {
      float share = precise::tanh(score / sizes.softcap);
      slope = 1 - share * share;
      score = sizes.softcap * share;
    }
    if (sizes.has_mask) {
      score += static_cast<float>(
          mask[size_t(query) * sizes.mask_query + key * sizes.mask_key]);
    }
    return score;
  }
};

/** Rows of a head, from `at` on, of an array (batch, heads, length, size). */
template <typename T>
inline Rows<T> rows(
    device const T* array,
    int b,
    int heads,
    int h,
    int length,
    int at,
    int size) {
  size_t row = (size_t(b) * heads + h) * length + at;
  return {array + row * size, length - at, size};
}

/** For 32 queries: y, and lse from the threadgroups of the first columns. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_parts(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* ranges [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device T* y [[buffer(5)]],
    device float* lse [[buffer(6)]],
    constant bool& has_mask [[buffer(7)]],
    constant float& scale [[buffer(8)]],
    constant float& softcap [[buffer(9)]],
    constant int& queries [[buffer(10)]],
    constant int& keys [[buffer(11)]],
    constant int& size [[buffer(12)]],
    constant int& width [[buffer(13)]],
    constant int& heads [[buffer(14)]],
    constant int& key_heads [[buffer(15)]],
    constant const int* mask_shape [[buffer(16)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Sizes sizes = {queries, keys, size, width, heads, key_heads, scale, softcap};
  sizes.set_mask(has_mask, mask_shape);
  int query = int(group.y) * block;
  int h = int(group.z) % heads;
  int b = int(group.z) / heads;
  int key_head = h / (heads / key_heads);
  int column = int(group.x) * results;
  Scores<T> scores = {sizes, ranges, mask + sizes.mask_at(b, h)};
  Rows<T> q_rows = rows(q, b, heads, h, queries, query, size);
  Tile sums[results / 8];
  clear(sums);
  float largest = -INFINITY;
  float total = 0;
  for (int key = 0; key < keys; key += block) {
    if (!scores.meet(query, key, thread_)) {
      continue;
    }
    Tile p[tiles];
    products(
        p,
        q_rows,
        rows(k, b, key_heads, key_head, keys, key, size),
        a_block,
        b_block,
        thread_);
    float found = largest;
    float slope;
    for (int j = 0; j < tiles; ++j) {
      for (int i = 0; i < 2; ++i) {
        float score = scores.of(
            p[j].thread_elements()[i],
            query + thread_.row,
            key + j * 8 + thread_.column + i,
            slope);
        p[j].thread_elements()[i] = score;
        found = max(found, score);
      }
    }
    found = row_max(found);
    // Where nothing is seen, all differences are to 0, and exponentials 0.
    float base = found == -INFINITY ? 0.0f : found;
    float sum = 0;
    for (int j = 0; j < tiles; ++j) {
      for (int i = 0; i < 2; ++i) {
        float e = precise::exp(p[j].thread_elements()[i] - base);
        p[j].thread_elements()[i] = e;
        sum += e;
      }
    }
    float before = precise::exp(largest - base);
    largest = found;
    total = total * before + row_sum(sum);
    for (int j = 0; j < results / 8; ++j) {
      sums[j].thread_elements()[0] *= before;
      sums[j].thread_elements()[1] *= before;
    }
    add_rows(
        sums,
        p,
        rows(v, b, key_heads, key_head, keys, key, width),
        column,
        b_block,
        thread_);
  }
  size_t row = (size_t(b) * heads + h) * queries + query;
  float factor = total == 0 ? 0.0f : 1 / total;
  store(sums, factor, y + row * width, queries - query, width, column, thread_);
  if (column == 0 && thread_.column == 0 && query + thread_.row < queries) {
    lse[row + thread_.row] = largest + precise::log(total);
  }
}

/**
 * From scores and the cotangents' products with values: probabilities, and the
 * scores' cotangents, times scale.
 */
template <typename T>
inline void cotangents(
    thread Tile& p,
    thread Tile& ds,
    Scores<T> scores,
    int query,
    int key,
    bool transposed,
    device const float* lse,
    device const float* delta) {
  for (int i = 0; i < 2; ++i) {
    int at = transposed ? query + i : query;
    float slope;
    float score = scores.of(
        p.thread_elements()[i], at, transposed ? key : key + i, slope);
    float e = 0;
    float d = 0;
    if (score != -INFINITY) {
      e = precise::exp(score - lse[at]);
      d = e * (ds.thread_elements()[i] - delta[at]) * scores.sizes.scale *
          slope;
    }
    p.thread_elements()[i] = e;
    ds.thread_elements()[i] = d;
  }
}

/** For 32 queries: the gradient in q. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_vjp_queries(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* ranges [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const T* cotangent [[buffer(5)]],
    device const float* lse [[buffer(6)]],
    device const float* delta [[buffer(7)]],
    device T* out [[buffer(8)]],
    constant bool& has_mask [[buffer(9)]],
    constant float& scale [[buffer(10)]],
    constant float& softcap [[buffer(11)]],
    constant int& queries [[buffer(12)]],
    constant int& keys [[buffer(13)]],
    constant int& size [[buffer(14)]],
    constant int& width [[buffer(15)]],
    constant int& heads [[buffer(16)]],
    constant int& key_heads [[buffer(17)]],
    constant const int* mask_shape [[buffer(18)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Sizes sizes = {queries, keys, size, width, heads, key_heads, scale, softcap};
  sizes.set_mask(has_mask, mask_shape);
  int query = int(group.y) * block;
  int h = int(group.z) % heads;
  int b = int(group.z) / heads;
  int key_head = h / (heads / key_heads);
  int column = int(group.x) * results;
  size_t row = (size_t(b) * heads + h) * queries;
  Scores<T> scores = {sizes, ranges, mask + sizes.mask_at(b, h)};
  Tile sums[results / 8];
  clear(sums);
  for (int key = 0; key < keys; key += block) {
    if (!scores.meet(query, key, thread_)) {
      continue;
    }
    Rows<T> k_rows = rows(k, b, key_heads, key_head, keys, key, size);
    Tile p[tiles];
    Tile ds[tiles];
    products(
        p,
        rows(q, b, heads, h, queries, query, size),
        k_rows,
        a_block,
        b_block,
        thread_);
    products(
        ds,
        rows(cotangent, b, heads, h, queries, query, width),
        rows(v, b, key_heads, key_head, keys, key, width),
        a_block,
        b_block,
        thread_);
    for (int j = 0; j < tiles; ++j) {
      cotangents(
          p[j],
          ds[j],
          scores,
          query + thread_.row,
          key + j * 8 + thread_.column,
          false,
          lse + row,
          delta + row);
    }
    add_rows(sums, ds, k_rows, column, b_block, thread_);
  }
  store(
      sums,
      1.0f,
      out + (row + query) * size,
      queries - query,
      size,
      column,
      thread_);
}

/** For 32 keys: the gradients in k and v. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_vjp_keys(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* ranges [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const T* cotangent [[buffer(5)]],
    device const float* lse [[buffer(6)]],
    device const float* delta [[buffer(7)]],
    device T* grad_k [[buffer(8)]],
    device T* grad_v [[buffer(9)]],
    constant bool& has_mask [[buffer(10)]],
    constant float& scale [[buffer(11)]],
    constant float& softcap [[buffer(12)]],
    constant int& queries [[buffer(13)]],
    constant int& keys [[buffer(14)]],
    constant int& size [[buffer(15)]],
    constant int& width [[buffer(16)]],
    constant int& heads [[buffer(17)]],
    constant int& key_heads [[buffer(18)]],
    constant const int* mask_shape [[buffer(19)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Sizes sizes = {queries, keys, size, width, heads, key_heads, scale, softcap};
  sizes.set_mask(has_mask, mask_shape);
  int key = int(group.y) * block;
  int key_head = int(group.z) % key_heads;
  int b = int(group.z) / key_heads;
  int column = int(group.x) * results;
  int of_each = heads / key_heads;
  Tile sums_k[results / 8];
  Tile sums_v[results / 8];
  clear(sums_k);
  clear(sums_v);
  for (int h = key_head * of_each; h < (key_head + 1) * of_each; ++h) {
    size_t row = (size_t(b) * heads + h) * queries;
    Scores<T> scores = {sizes, ranges, mask + sizes.mask_at(b, h)};
    for (int query = 0; query < queries; query += block) {
      if (!scores.meet(query, key, thread_)) {
        continue;
      }
      Rows<T> q_rows = rows(q, b, heads, h, queries, query, size);
      Rows<T> cotangents_here =
          rows(cotangent, b, heads, h, queries, query, width);
      Tile p[tiles];
      Tile ds[tiles];
      products(
          p,
          rows(k, b, key_heads, key_head, keys, key, size),
          q_rows,
          a_block,
          b_block,
          thread_);
      products(
          ds,
          rows(v, b, key_heads, key_head, keys, key, width),
          cotangents_here,
          a_block,
          b_block,
          thread_);
      for (int j = 0; j < tiles; ++j) {
        cotangents(
            p[j],
            ds[j],
            scores,
            query + j * 8 + thread_.column,
            key + thread_.row,
            true,
            lse + row,
            delta + row);
      }
      add_rows(sums_k, ds, q_rows, column, b_block, thread_);
      add_rows(sums_v, p, cotangents_here, column, b_block, thread_);
    }
  }
  size_t row = (size_t(b) * key_heads + key_head) * keys + key;
  store(sums_k, 1.0f, grad_k + row * size, keys - key, size, column, thread_);
  store(sums_v, 1.0f, grad_v + row * width, keys - key, width, column, thread_);
}
