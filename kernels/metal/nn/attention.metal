// Metal kernels of attention that never store the whole matrix of scores: the
// formulas of csrc/nn/attention.h.
//
// A threadgroup processes 32 rows, queries or keys, and loops over the other
// side, 32 at a time. Each of its four simdgroups computes 8 of the rows, with
// four 8 x 8 matrices of scores. Several threadgroups share more than 128
// columns of results, and all of them compute the scores, so that heads of any
// size fit into registers. As on the CPU, sums that contain NaN are computed
// again, without the products of pairs that do not see each other.

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/utils.h"
#include "nn/tiles.h"

using namespace metal;

static constant constexpr const int block = 32; // rows, and columns at a time
static constant constexpr const int pitch = block + 4; // avoids bank conflicts
static constant constexpr const int tiles = block / 8;
static constant constexpr const int results = 128; // columns of a threadgroup

/** The position of a thread in the launch. */
struct Thread {
  int index; // in the threadgroup
  int simdgroup;
  int lane;
  int row; // in the threadgroup
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

/** Copy the 32 columns from `first` on; missing columns are zeros. */
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

/** True if x is true for any thread of the threadgroup. */
inline bool any_thread(bool x, threadgroup float* to, Thread thread_) {
  bool any = simd_any(x);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_.lane == 0) {
    to[thread_.simdgroup] = any;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return to[0] + to[1] + to[2] + to[3] != 0;
}

/** True if any of a thread's sums is NaN. */
inline bool any_nan(thread Tile* sums) {
  bool found = false;
  for (int j = 0; j < results / 8; ++j) {
    found = found || isnan(sums[j].thread_elements()[0]) ||
        isnan(sums[j].thread_elements()[1]);
  }
  return found;
}

/** The location of a mask's elements; offsets are 0 along axes of size 1. */
struct Mask {
  bool given;
  int batch = 0;
  int head = 0;
  int query = 0;
  int key = 0;

  Mask(bool given_, constant const int* shape) : given(given_) {
    if (given) {
      key = shape[3] == 1 ? 0 : 1;
      query = shape[2] == 1 ? 0 : shape[3];
      head = shape[1] == 1 ? 0 : shape[2] * shape[3];
      batch = shape[0] == 1 ? 0 : shape[1] * shape[2] * shape[3];
    }
  }

  size_t at(int b, int h) const {
    return size_t(b) * batch + size_t(h) * head;
  }
  size_t within(int query_, int key_) const {
    return size_t(query_) * query + key_ * key;
  }
};

/**
 * The factors of probabilities: 0 for those that are dropped. Philox4x32-10;
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
 */
struct Dropout {
  float rate; // 0: none
  device const uint* random_key;
  int batch;
  int head;

  /** The words of the four keys from 4 * group on. */
  uint4 words(int query, int group) const {
    uint4 x = uint4(uint(group), uint(query), uint(head), uint(batch));
    uint left = random_key[0];
    uint right = random_key[1];
    for (int round = 0; round < 10; ++round) {
      x = uint4(
          mulhi(x.z, 0xCD9E8D57u) ^ x.y ^ left,
          x.z * 0xCD9E8D57u,
          mulhi(x.x, 0xD2511F53u) ^ x.w ^ right,
          x.x * 0xD2511F53u);
      left += 0x9E3779B9u;
      right += 0xBB67AE85u;
    }
    return x;
  }

  bool keeps(uint word) const {
    return rate < 1 && word >= uint(rate * 4294967296.0f);
  }

  float factor(uint word) const {
    return keeps(word) ? 1 / (1 - rate) : 0.0f;
  }

  /** Factors of a query's keys, `key` and the next one; the former is even. */
  float2 of_keys(int query, int key) const {
    uint4 x = words(query, key / 4);
    bool low = key % 4 == 0;
    return float2(factor(low ? x.x : x.z), factor(low ? x.y : x.w));
  }
  /** Factors of a key's queries, `query` and the next one. */
  float2 of_queries(int query, int key) const {
    return float2(
        factor(words(query, key / 4)[key % 4]),
        factor(words(query + 1, key / 4)[key % 4]));
  }
};

/** The visible pairs in a head, and their scores. */
template <typename T>
struct Scores {
  int queries;
  int keys;
  float scale;
  float softcap; // 0: none
  bool causal;
  int window; // 0: none, and at most queries + keys
  bool has_segments;
  device const int* segments;
  Mask mask_at;
  device const T* mask; // the head's
  Mask seen_at;
  device const bool* seen; // the head's
  float tilt; // the head's slope, of distances
  Dropout dropout;

  /** The key at the position of the query. */
  int own(int query) const {
    return has_segments && query < queries ? segments[2 * queries + query]
                                           : query + keys - queries;
  }
  /** The first key that a query sees. */
  int first(int query) const {
    int from = window == 0 ? 0 : own(query) + 1 - window;
    return max(from, has_segments && query < queries ? segments[query] : 0);
  }
  /** The key after the last one that a query sees; 0 for missing queries. */
  int last(int query) const {
    if (query >= queries) {
      return 0;
    }
    int to = causal ? own(query) + 1 : window == 0 ? keys : own(query) + window;
    to = has_segments ? min(to, segments[queries + query]) : to;
    return min(to, keys);
  }

  /** True, for all lanes, if any of 32 queries sees any of 32 keys. */
  bool meet(int query, int key, Thread thread_) const {
    int at = query + thread_.lane;
    return simd_any(max(first(at), key) < min(last(at), key + block));
  }

  /** The summand for a score; -inf if the query does not see the key. */
  float added(int query, int key) const {
    if (key < first(query) || key >= last(query) ||
        (seen_at.given && !seen[seen_at.within(query, key)])) {
      return -INFINITY;
    }
    return mask_at.given ? static_cast<float>(mask[mask_at.within(query, key)])
                         : 0.0f;
  }
  bool sees(int query, int key) const {
    return added(query, key) != -INFINITY;
  }

  /** The score, and its derivative by the scaled product. */
  float of(float product, int query, int key, thread float& slope) const {
    slope = 1;
    float more = added(query, key);
    if (more == -INFINITY) { // for any value of the product
      return more;
    }
    float score = product * scale;
    if (softcap != 0) {
      float share = precise::tanh(score / softcap);
      slope = 1 - share * share;
      score = softcap * share;
    }
    return score + tilt * (key - own(query)) + more;
  }
};

/**
 * sums += factors b, for the columns of b that this threadgroup computes; with
 * `seen_only`, without the products of rows that do not see each other.
 */
template <typename T>
inline void add_rows(
    thread Tile* sums,
    thread Tile* factors,
    Rows<T> b,
    int first,
    threadgroup float* a_block,
    threadgroup float* b_block,
    Thread thread_,
    bool seen_only,
    Scores<T> scores,
    int query,
    int key,
    bool transposed) {
  if (seen_only) { // a thread needs the factors of other threads in its row
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < tiles; ++i) {
      simdgroup_store(
          factors[i], a_block + thread_.simdgroup * 8 * pitch + i * 8, pitch);
    }
  }
  for (int part = 0; part < results / block; ++part) {
    int at = first + part * block;
    if (at < b.size) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      copy(b_block, b, at, thread_);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int other = 0; seen_only && other < block; ++other) {
        if (transposed ? scores.sees(query + other, key)
                       : scores.sees(query, key + other)) {
          float factor = a_block[thread_.row * pitch + other];
          threadgroup float* row = b_block + other * pitch + thread_.column;
          for (int j = 0; j < tiles; ++j) {
            for (int i = 0; i < 2; ++i) {
              sums[part * tiles + j].thread_elements()[i] +=
                  factor * row[j * 8 + i];
            }
          }
        }
      }
      for (int j = 0; !seen_only && j < tiles; ++j) {
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

/** For each query, of its own sequence: the first key, the key after the last,
 * and the key at its position. Empty outside of all sequences. */
template <typename T>
[[kernel]] void attention_segments(
    device const int* starts [[buffer(0)]],
    device const int* key_starts [[buffer(1)]],
    device const T* q [[buffer(2)]],
    device const T* k [[buffer(3)]],
    device int* out [[buffer(4)]],
    constant bool& has_key_starts [[buffer(5)]],
    constant int& N [[buffer(6)]],
    constant int& L [[buffer(7)]],
    constant int& Lk [[buffer(8)]],
    uint query [[thread_position_in_grid]]) {
  int from = 0; // number of sequences that begin at or before the query
  int to = N;
  while (from < to) {
    int middle = (from + to) / 2;
    if (starts[middle] <= int(query)) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  bool inside = from > 0 && from < N;
  device const int* of_keys = has_key_starts ? key_starts : starts;
  long own = inside ? long(query) - starts[from] + of_keys[from] : 0;
  out[query] = inside ? of_keys[from - 1] : 0;
  out[L + query] = inside ? of_keys[from] : 0;
  out[2 * L + query] = int(clamp(own, long(-L), long(Lk)));
}

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

/** For four keys of a query: true for those that are kept. */
template <typename T>
[[kernel]] void attention_dropout_mask(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const uint* key [[buffer(2)]],
    device bool* out [[buffer(3)]],
    constant float& dropout [[buffer(4)]],
    constant int& H [[buffer(5)]],
    constant int& Lq [[buffer(6)]],
    constant int& Lk [[buffer(7)]],
    uint3 at [[thread_position_in_grid]]) {
  Dropout dropped = {dropout, key, int(at.z) / H, int(at.z) % H};
  uint4 words = dropped.words(int(at.y), int(at.x));
  size_t row = size_t(at.z) * Lq + at.y;
  for (int i = 0; i < 4 && int(at.x) * 4 + i < Lk; ++i) {
    out[row * Lk + at.x * 4 + i] = dropped.keeps(words[i]);
  }
}

/** For 32 queries: y, and lse from the threadgroups of the first columns. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_parts(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* segments [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const bool* seen [[buffer(5)]],
    device const float* slopes [[buffer(6)]],
    device const uint* dropout_key [[buffer(7)]],
    device T* y [[buffer(8)]],
    device float* lse [[buffer(9)]],
    constant bool& has_segments [[buffer(10)]],
    constant bool& has_mask [[buffer(11)]],
    constant bool& has_seen [[buffer(12)]],
    constant bool& has_slopes [[buffer(13)]],
    constant float& scale [[buffer(14)]],
    constant float& softcap [[buffer(15)]],
    constant bool& causal [[buffer(16)]],
    constant int& window [[buffer(17)]],
    constant float& dropout [[buffer(18)]],
    constant int& queries [[buffer(19)]],
    constant int& keys [[buffer(20)]],
    constant int& size [[buffer(21)]],
    constant int& width [[buffer(22)]],
    constant int& heads [[buffer(23)]],
    constant int& key_heads [[buffer(24)]],
    constant const int* mask_shape [[buffer(25)]],
    constant const int* seen_shape [[buffer(26)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Mask mask_at(has_mask, mask_shape);
  Mask seen_at(has_seen, seen_shape);
  int query = int(group.y) * block;
  int h = int(group.z) % heads;
  int b = int(group.z) / heads;
  int key_head = h / (heads / key_heads);
  int column = int(group.x) * results;
  Scores<T> scores = {
      queries,
      keys,
      scale,
      softcap,
      causal,
      min(window, queries + keys),
      has_segments,
      segments,
      mask_at,
      mask + mask_at.at(b, h),
      seen_at,
      seen + seen_at.at(b, h),
      has_slopes ? slopes[h] : 0.0f,
      {dropout, dropout_key, b, h}};
  Rows<T> q_rows = rows(q, b, heads, h, queries, query, size);
  Tile sums[results / 8];
  float largest;
  float total;
  for (int attempt = 0; attempt < 2; ++attempt) {
    clear(sums);
    largest = -INFINITY;
    total = 0;
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
      // If no key is visible, the base is 0, and exponentials are 0.
      float base = found == -INFINITY ? 0.0f : found;
      float sum = 0;
      for (int j = 0; j < tiles; ++j) {
        for (int i = 0; i < 2; ++i) {
          float e = precise::exp(p[j].thread_elements()[i] - base);
          p[j].thread_elements()[i] = e;
          sum += e;
        }
      }
      if (dropout > 0) {
        for (int j = 0; j < tiles; ++j) {
          float2 factors = scores.dropout.of_keys(
              query + thread_.row, key + j * 8 + thread_.column);
          p[j].thread_elements()[0] *= factors.x;
          p[j].thread_elements()[1] *= factors.y;
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
          a_block,
          b_block,
          thread_,
          attempt > 0,
          scores,
          query + thread_.row,
          key,
          false);
    }
    if (!any_thread(any_nan(sums), a_block, thread_)) {
      break;
    }
  }
  size_t row = (size_t(b) * heads + h) * queries + query;
  float factor = total == 0 ? 0.0f : 1 / total;
  store(sums, factor, y + row * width, queries - query, width, column, thread_);
  if (column == 0 && thread_.column == 0 && query + thread_.row < queries) {
    lse[row + thread_.row] = largest + precise::log(total);
  }
}

/**
 * Compute probabilities, after dropout, and the scores' cotangents from scores
 * and the products of cotangents and values; with `of_products`, the cotangents
 * of q k^T.
 */
template <typename T>
inline void cotangents(
    thread Tile& p,
    thread Tile& ds,
    Scores<T> scores,
    int query,
    int key,
    bool transposed,
    bool of_products,
    device const float* lse,
    device const float* delta) {
  float2 factors = float2(1.0f, 1.0f);
  if (scores.dropout.rate > 0) {
    factors = transposed ? scores.dropout.of_queries(query, key)
                         : scores.dropout.of_keys(query, key);
  }
  for (int i = 0; i < 2; ++i) {
    int at = transposed ? query + i : query;
    float slope;
    float score = scores.of(
        p.thread_elements()[i], at, transposed ? key : key + i, slope);
    float e = 0;
    float d = 0;
    if (score != -INFINITY) {
      e = precise::exp(score - lse[at]);
      d = e * (ds.thread_elements()[i] * factors[i] - delta[at]);
      d = of_products ? d * scores.scale * slope : d;
      e *= factors[i];
    }
    p.thread_elements()[i] = e;
    ds.thread_elements()[i] = d;
  }
}

/** For 32 queries: the gradient with respect to q. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_vjp_queries(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* segments [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const bool* seen [[buffer(5)]],
    device const float* slopes [[buffer(6)]],
    device const uint* dropout_key [[buffer(7)]],
    device const T* cotangent [[buffer(8)]],
    device const float* lse [[buffer(9)]],
    device const float* delta [[buffer(10)]],
    device T* out [[buffer(11)]],
    constant bool& has_segments [[buffer(12)]],
    constant bool& has_mask [[buffer(13)]],
    constant bool& has_seen [[buffer(14)]],
    constant bool& has_slopes [[buffer(15)]],
    constant float& scale [[buffer(16)]],
    constant float& softcap [[buffer(17)]],
    constant bool& causal [[buffer(18)]],
    constant int& window [[buffer(19)]],
    constant float& dropout [[buffer(20)]],
    constant int& queries [[buffer(21)]],
    constant int& keys [[buffer(22)]],
    constant int& size [[buffer(23)]],
    constant int& width [[buffer(24)]],
    constant int& heads [[buffer(25)]],
    constant int& key_heads [[buffer(26)]],
    constant const int* mask_shape [[buffer(27)]],
    constant const int* seen_shape [[buffer(28)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Mask mask_at(has_mask, mask_shape);
  Mask seen_at(has_seen, seen_shape);
  int query = int(group.y) * block;
  int h = int(group.z) % heads;
  int b = int(group.z) / heads;
  int key_head = h / (heads / key_heads);
  int column = int(group.x) * results;
  size_t row = (size_t(b) * heads + h) * queries;
  Scores<T> scores = {
      queries,
      keys,
      scale,
      softcap,
      causal,
      min(window, queries + keys),
      has_segments,
      segments,
      mask_at,
      mask + mask_at.at(b, h),
      seen_at,
      seen + seen_at.at(b, h),
      has_slopes ? slopes[h] : 0.0f,
      {dropout, dropout_key, b, h}};
  Tile sums[results / 8];
  for (int attempt = 0; attempt < 2; ++attempt) {
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
            true,
            lse + row,
            delta + row);
      }
      add_rows(
          sums,
          ds,
          k_rows,
          column,
          a_block,
          b_block,
          thread_,
          attempt > 0,
          scores,
          query + thread_.row,
          key,
          false);
    }
    if (!any_thread(any_nan(sums), a_block, thread_)) {
      break;
    }
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

/** For 32 keys: the gradients with respect to k and v. */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_vjp_keys(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* segments [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const bool* seen [[buffer(5)]],
    device const float* slopes [[buffer(6)]],
    device const uint* dropout_key [[buffer(7)]],
    device const T* cotangent [[buffer(8)]],
    device const float* lse [[buffer(9)]],
    device const float* delta [[buffer(10)]],
    device T* grad_k [[buffer(11)]],
    device T* grad_v [[buffer(12)]],
    constant bool& has_segments [[buffer(13)]],
    constant bool& has_mask [[buffer(14)]],
    constant bool& has_seen [[buffer(15)]],
    constant bool& has_slopes [[buffer(16)]],
    constant float& scale [[buffer(17)]],
    constant float& softcap [[buffer(18)]],
    constant bool& causal [[buffer(19)]],
    constant int& window [[buffer(20)]],
    constant float& dropout [[buffer(21)]],
    constant int& queries [[buffer(22)]],
    constant int& keys [[buffer(23)]],
    constant int& size [[buffer(24)]],
    constant int& width [[buffer(25)]],
    constant int& heads [[buffer(26)]],
    constant int& key_heads [[buffer(27)]],
    constant const int* mask_shape [[buffer(28)]],
    constant const int* seen_shape [[buffer(29)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Mask mask_at(has_mask, mask_shape);
  Mask seen_at(has_seen, seen_shape);
  int key = int(group.y) * block;
  int key_head = int(group.z) % key_heads;
  int b = int(group.z) / key_heads;
  int column = int(group.x) * results;
  int of_each = heads / key_heads;
  Tile sums_k[results / 8];
  Tile sums_v[results / 8];
  for (int attempt = 0; attempt < 2; ++attempt) {
    clear(sums_k);
    clear(sums_v);
    for (int h = key_head * of_each; h < (key_head + 1) * of_each; ++h) {
      size_t row = (size_t(b) * heads + h) * queries;
      Scores<T> scores = {
          queries,
          keys,
          scale,
          softcap,
          causal,
          min(window, queries + keys),
          has_segments,
          segments,
          mask_at,
          mask + mask_at.at(b, h),
          seen_at,
          seen + seen_at.at(b, h),
          has_slopes ? slopes[h] : 0.0f,
          {dropout, dropout_key, b, h}};
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
              true,
              lse + row,
              delta + row);
        }
        add_rows(
            sums_k,
            ds,
            q_rows,
            column,
            a_block,
            b_block,
            thread_,
            attempt > 0,
            scores,
            query,
            key + thread_.row,
            true);
        add_rows(
            sums_v,
            p,
            cotangents_here,
            column,
            a_block,
            b_block,
            thread_,
            attempt > 0,
            scores,
            query,
            key + thread_.row,
            true);
      }
    }
    if (!any_thread(any_nan(sums_k) || any_nan(sums_v), a_block, thread_)) {
      break;
    }
  }
  size_t row = (size_t(b) * key_heads + key_head) * keys + key;
  store(sums_k, 1.0f, grad_k + row * size, keys - key, size, column, thread_);
  store(sums_v, 1.0f, grad_v + row * width, keys - key, width, column, thread_);
}

/**
 * For a block of the mask: the gradient with respect to an additive mask,
 * summed over a part of the blocks along axes that the mask is broadcast to.
 * `out` is (parts, Mb, Mh, Mq, Mk).
 */
template <typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_vjp_mask_parts(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const int* segments [[buffer(3)]],
    device const T* mask [[buffer(4)]],
    device const bool* seen [[buffer(5)]],
    device const float* slopes [[buffer(6)]],
    device const uint* dropout_key [[buffer(7)]],
    device const T* cotangent [[buffer(8)]],
    device const float* lse [[buffer(9)]],
    device const float* delta [[buffer(10)]],
    device float* out [[buffer(11)]],
    constant bool& has_segments [[buffer(12)]],
    constant bool& has_mask [[buffer(13)]],
    constant bool& has_seen [[buffer(14)]],
    constant bool& has_slopes [[buffer(15)]],
    constant float& scale [[buffer(16)]],
    constant float& softcap [[buffer(17)]],
    constant int& window [[buffer(18)]],
    constant float& dropout [[buffer(19)]],
    constant int& parts [[buffer(20)]],
    constant int& flags [[buffer(21)]],
    constant int& batch [[buffer(22)]],
    constant int& queries [[buffer(23)]],
    constant int& keys [[buffer(24)]],
    constant int& size [[buffer(25)]],
    constant int& width [[buffer(26)]],
    constant int& heads [[buffer(27)]],
    constant int& key_heads [[buffer(28)]],
    constant const int* mask_shape [[buffer(29)]],
    constant const int* seen_shape [[buffer(30)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  bool causal = flags % 2 == 1;
  bool of_slopes = flags >= 2;
  threadgroup float a_block[block * pitch];
  threadgroup float b_block[block * pitch];
  Thread thread_(index, simdgroup, lane);
  Mask mask_at(has_mask, mask_shape);
  Mask seen_at(has_seen, seen_shape);
  int shape[] = {1, heads, 1, 1}; // of a part
  // All blocks, along axes of `out` or along those that are summed.
  int all[] = {
      batch, heads, (queries + block - 1) / block, (keys + block - 1) / block};
  int own[4];
  int others[4];
  long count = 1;
  for (int i = 0; i < 4; ++i) {
    shape[i] = of_slopes ? shape[i] : mask_shape[i];
    own[i] = shape[i] == 1 ? 1 : all[i];
    others[i] = shape[i] == 1 ? all[i] : 1;
    count *= others[i];
  }
  int part = int(group.z);
  Tile sums[tiles];
  for (int j = 0; j < tiles; ++j) {
    sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (long other = count * part / parts; other < count * (part + 1) / parts;
       ++other) {
    int at[4]; // the block
    int tile = int(group.y);
    long rest = other;
    for (int i = 3; i >= 0; --i) {
      at[i] = tile % own[i] + int(rest % others[i]);
      tile /= own[i];
      rest /= others[i];
    }
    int b = at[0];
    int h = at[1];
    int query = at[2] * block;
    int key = at[3] * block;
    int key_head = h / (heads / key_heads);
    size_t row = (size_t(b) * heads + h) * queries;
    Scores<T> scores = {
        queries,
        keys,
        scale,
        softcap,
        causal,
        min(window, queries + keys),
        has_segments,
        segments,
        mask_at,
        mask + mask_at.at(b, h),
        seen_at,
        seen + seen_at.at(b, h),
        has_slopes ? slopes[h] : 0.0f,
        {dropout, dropout_key, b, h}};
    if (!scores.meet(query, key, thread_)) {
      continue;
    }
    Tile p[tiles];
    Tile ds[tiles];
    products(
        p,
        rows(q, b, heads, h, queries, query, size),
        rows(k, b, key_heads, key_head, keys, key, size),
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
          false,
          lse + row,
          delta + row);
      for (int i = 0; i < 2; ++i) {
        int distance =
            key + j * 8 + thread_.column + i - scores.own(query + thread_.row);
        sums[j].thread_elements()[i] +=
            ds[j].thread_elements()[i] * (of_slopes ? distance : 1);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int j = 0; j < tiles; ++j) {
    simdgroup_store(
        sums[j], a_block + thread_.simdgroup * 8 * pitch + j * 8, pitch);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int tile = int(group.y);
  int column = tile % own[3] * block;
  int row = tile / own[3] % own[2] * block;
  int head = tile / own[3] / own[2]; // of all elements of the batch
  int across = shape[3] == 1 ? block : 1; // elements of a sum
  int down = shape[2] == 1 ? block : 1;
  size_t to = (size_t(part) * own[0] * own[1] + head) * shape[2] + row;
  for (int i = thread_.index; i < block * block; i += 4 * 32) {
    int below = i / block;
    int beside = i % block;
    if (row + below < shape[2] && column + beside < shape[3]) {
      float sum = 0;
      for (int y = 0; y < down; ++y) {
        for (int x = 0; x < across; ++x) {
          sum += a_block[(below + y) * pitch + beside + x];
        }
      }
      out[(to + below) * shape[3] + column + beside] = sum;
    }
  }
}
