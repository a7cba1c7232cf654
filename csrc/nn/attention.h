// CPU kernels of attention that never store the whole matrix of scores.
//
// Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
// Partitioning" (2023), algorithms 1 and 2: scores are computed block by block,
// together with the running maximum and sum of exponentials, and again for the
// gradients. The gradients of queries and of keys are two kernels, here and on
// Metal, so that threads need not add to the same numbers.
//
// Queries ignore keys that they do not see, whatever values these have. Their
// scores are selected. The product of a probability of 0 with an infinite or
// NaN value would be NaN: sums that contain NaN are therefore computed again,
// without the products of pairs that do not see each other.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "matmul.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/simd_math.h"
#include "mlxgen/threads.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace flash {

constexpr int64_t query_block = 96;
constexpr int64_t key_block = 128;

// The keys of few queries are split among tasks, of this many keys or more.
constexpr int64_t split_keys = 512;
constexpr int64_t enough_tasks = 64;

template <typename A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

/** Return true if any of the numbers is NaN. */
template <typename A>
MLXGEN_MULTIVERSION bool any_nan_here(const A* x, int64_t count) {
  int found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= x[i] != x[i];
  }
  return found != 0;
}

template <typename A>
bool any_nan(const std::vector<A>& x, int64_t count) {
  return mlxgen::multiversion([&] { return any_nan_here(x.data(), count); });
}

/**
 * For each key of a query, from `first` on: `factor`, or 0 if its word is below
 * the threshold. The words are those of Philox4x32-10, four for each counter
 * (key / 4, query, head, batch): Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3" (2011), section 4.3.
 */
template <typename A>
MLXGEN_MULTIVERSION void draw(
    const uint32_t* random_key,
    uint32_t batch,
    uint32_t head,
    uint32_t query,
    int64_t first,
    int64_t count,
    uint32_t threshold,
    A factor,
    A* to) {
  constexpr int64_t most = 32; // counters at a time
  uint32_t words[4 * most];
  int64_t end = first + count;
  for (int64_t key = first / 4 * 4; key < end; key += 4 * most) {
    int64_t counters = std::min(most, (end - key + 3) / 4);
    for (int64_t j = 0; j < counters; ++j) {
      uint32_t a = static_cast<uint32_t>(key / 4 + j), b = query;
      uint32_t c = head, d = batch;
      uint32_t left = random_key[0], right = random_key[1];
      for (int round = 0; round < 10; ++round) {
        uint64_t from_a = static_cast<uint64_t>(a) * 0xD2511F53u;
        uint64_t from_c = static_cast<uint64_t>(c) * 0xCD9E8D57u;
        a = static_cast<uint32_t>(from_c >> 32) ^ b ^ left;
        b = static_cast<uint32_t>(from_c);
        c = static_cast<uint32_t>(from_a >> 32) ^ d ^ right;
        d = static_cast<uint32_t>(from_a);
        left += 0x9E3779B9u; // the golden ratio
        right += 0xBB67AE85u; // the square root of 3, minus 1
      }
      words[4 * j] = a;
      words[4 * j + 1] = b;
      words[4 * j + 2] = c;
      words[4 * j + 3] = d;
    }
    int64_t from = std::max(first, key);
    int64_t here = std::min(end, key + 4 * most) - from;
    for (int64_t j = 0; j < here; ++j) {
      to[from - first + j] = words[from - key + j] >= threshold ? factor : A(0);
    }
  }
}

/** The probabilities that remain, and their factor. */
template <typename A>
struct Dropout {
  const uint32_t* key; // null: all remain
  // Rounded as on Metal, so that the same pairs remain.
  float rate;
  A factor;

  Dropout(const In<uint32_t>& key_, double rate_)
      : key(key_ ? key_.data : nullptr),
        rate(static_cast<float>(rate_)),
        factor(rate < 1 ? static_cast<A>(1 / (1 - rate_)) : A(0)) {}

  /** The factors of m pairs: 0 for those that are dropped. */
  void factors(
      int64_t b,
      int64_t h,
      int64_t query,
      int64_t first,
      int64_t m,
      A* to) const {
    auto threshold = static_cast<uint32_t>(rate < 1 ? rate * 0x1p32f : 0);
    mlxgen::multiversion(
        [&] { draw<A>(key, b, h, query, first, m, threshold, factor, to); });
  }

  /** Multiply m numbers by factors. */
  static void apply(const A* factors, int64_t m, A* to) {
    for (int64_t j = 0; j < m; ++j) {
      to[j] *= factors[j];
    }
  }
};

/** The common part of the kernels: queries, keys, and the visible pairs. */
template <typename T>
struct Scores {
  using A = accum_t<T>;

  const In<T>& q; // (batch, heads, queries, size)
  const In<T>& k; // (batch, key heads, keys, size)
  const In<int32_t>&
      segments; // (3, queries): the first key, the one after the last, own()
  const In<T>& mask; // added to scores; its axes may have size 1
  const In<bool>& seen; // likewise, selects the visible pairs
  const In<A>& slopes; // (heads,): of distances, which are added
  A scale;
  A softcap; // 0: none
  bool causal;
  int64_t window; // 0: none

  int64_t batch = q.dim(0), heads = q.dim(1), queries = q.dim(2);
  int64_t key_heads = k.dim(1), keys = k.dim(2), size = q.dim(3);
  // Heads that share keys and have few queries are computed together, so that
  // each key is read once. Their queries are next to each other: from `queries`
  // on, the number of a query of head h is that of one of a later head.
  int64_t group = key_heads == 0 ? 0 : heads / key_heads;
  int64_t together =
      queries * group > product::few ? 1 : std::max<int64_t>(group, 1);
  int64_t height = together * queries;

  /** Row `at` of a head's matrix in an array like q; for k, by the head of k.
   */
  template <typename V>
  Matrix<T> rows(const V& array, int64_t b, int64_t h, int64_t at) const {
    int64_t head = array.dim(1) == heads ? h : h * key_heads / heads;
    int64_t row = (b * array.dim(1) + head) * array.dim(2) + at;
    return {array.data + row * array.dim(3), array.dim(3)};
  }

  /** The key at the position of the query. */
  int64_t own(int64_t query) const {
    return segments ? segments[2 * queries + query] : query + keys - queries;
  }
  /** The first key that a query sees. */
  int64_t first(int64_t query) const {
    int64_t from = window == 0 ? 0 : own(query) + 1 - window;
    return std::max<int64_t>({from, segments ? segments[query] : 0, 0});
  }
  /** The key after the last one that a query sees. */
  int64_t last(int64_t query) const {
    int64_t to = causal ? own(query) + 1
        : window == 0   ? keys
                        : own(query) + window;
    return std::min<int64_t>(
        {to, segments ? segments[queries + query] : keys, keys});
  }

  /** Return true if any of these queries sees any of these keys. */
  bool meet(int64_t query, int64_t n, int64_t key, int64_t m) const {
    for (int64_t i = query; i < query + n; ++i) {
      int64_t at = i % queries;
      if (std::max(first(at), key) < std::min(last(at), key + m)) {
        return true;
      }
    }
    return false;
  }

  /** Return true if this query sees this key. */
  bool sees(int64_t b, int64_t h, int64_t query, int64_t key) const {
    h += query / queries;
    query %= queries;
    return key >= first(query) && key < last(query) &&
        (!seen || *from(seen, b, h, query, key)) &&
        (!mask || *from(mask, b, h, query, key) != -kInfinity<A>);
  }

  /**
   * The scores of n queries and m keys of a head; -inf if a query does not see
   * a key. With a softcap, also their derivative with respect to the scaled
   * product.
   */
  void compute(
      int64_t b,
      int64_t h,
      int64_t query,
      int64_t n,
      int64_t key,
      int64_t m,
      A* to,
      A* slope = nullptr) const {
    auto keys_here = rows(k, b, h, key).transposed();
    multiply(n, size, m, rows(q, b, h, query), keys_here, to, m);
    for (int64_t i = 0; i < n; ++i) {
      int64_t head = h + (query + i) / queries;
      int64_t at = (query + i) % queries;
      auto added = mask ? from(mask, b, head, at, key) : nullptr;
      auto here = seen ? from(seen, b, head, at, key) : nullptr;
      int64_t start = std::clamp<int64_t>(first(at) - key, 0, m);
      int64_t end = std::clamp<int64_t>(last(at) - key, start, m);
      A* row = to + i * m;
      mlxgen::multiversion(
          [&] { finish_products(row, m, slope ? slope + i * m : nullptr); });
      if (slopes) {
        A distance = static_cast<A>(key - own(at));
        mlxgen::multiversion([&] { tilt(row, m, slopes[head], distance); });
      }
      if (added != nullptr || here != nullptr) {
        mlxgen::multiversion([&] { select(row, m, added, here); });
      }
      std::fill_n(row, start, -kInfinity<A>);
      std::fill_n(row + end, m - end, -kInfinity<A>);
    }
  }

 private:
  /** A mask's element. */
  template <typename M>
  static const M*
  from(const In<M>& mask, int64_t b, int64_t h, int64_t query, int64_t key) {
    auto index = [&](int axis, int64_t at) {
      return mask.dim(axis) == 1 ? 0 : at;
    };
    int64_t row = (index(0, b) * mask.dim(1) + index(1, h)) * mask.dim(2) +
        index(2, query);
    return mask.data + row * mask.dim(3) + index(3, key);
  }

  MLXGEN_MULTIVERSION void finish_products(A* to, int64_t m, A* slope) const {
    for (int64_t j = 0; j < m; ++j) {
      to[j] *= scale;
    }
    if (softcap != 0) {
      for (int64_t j = 0; j < m; ++j) {
        A share = mlxgen::math::tanh(to[j] / softcap);
        to[j] = softcap * share;
        if (slope != nullptr) {
          slope[j] = 1 - share * share;
        }
      }
    }
  }

  /** Add a slope times the distances, of which the first is given. */
  static MLXGEN_MULTIVERSION void tilt(A* to, int64_t m, A slope, A distance) {
    for (int64_t j = 0; j < m; ++j) {
      to[j] += slope * (distance + static_cast<A>(static_cast<int>(j)));
    }
  }

  MLXGEN_MULTIVERSION void
  select(A* to, int64_t m, const T* added, const bool* here) const {
    // Selected, not added, because the sum of NaN and -inf is NaN.
    if (added != nullptr) {
      int64_t across = mask.dim(3) == 1 ? 0 : 1;
      for (int64_t j = 0; j < m; ++j) {
        A one = static_cast<A>(mlxgen::widen(added[j * across]));
        to[j] = one == -kInfinity<A> ? one : to[j] + one;
      }
    }
    if (here != nullptr) {
      int64_t across = seen.dim(3) == 1 ? 0 : 1;
      for (int64_t j = 0; j < m; ++j) {
        to[j] = here[j * across] ? to[j] : -kInfinity<A>;
      }
    }
  }
};

/**
 * sums += factors rows, for factors of (n, m) and rows of (m, width); with
 * `seen_only`, without the products for which sees(i, j) is false.
 */
template <typename A, typename T, typename Sees>
void add_rows(
    int64_t n,
    int64_t m,
    int64_t width,
    Matrix<A> factors,
    Matrix<T> rows,
    std::vector<A>& sums,
    bool seen_only,
    const Sees& sees) {
  if (!seen_only) {
    multiply(n, m, width, factors, rows, sums.data(), width, true);
    return;
  }
  std::vector<A> copy(m * width);
  std::vector<int64_t> apart; // rows whose products with 0 are not 0
  for (int64_t j = 0; j < m; ++j) {
    A* row = copy.data() + j * width;
    bool finite = true;
    for (int64_t c = 0; c < width; ++c) {
      row[c] = static_cast<A>(mlxgen::widen(rows.data[j * rows.down + c]));
      finite = finite && std::isfinite(row[c]);
    }
    if (!finite) {
      std::fill_n(row, width, A(0));
      apart.push_back(j);
    }
  }
  Matrix<A> finite{copy.data(), width};
  multiply(n, m, width, factors, finite, sums.data(), width, true);
  for (int64_t j : apart) {
    for (int64_t i = 0; i < n; ++i) {
      if (sees(i, j)) {
        A factor = *factors.from(i, j).data;
        for (int64_t c = 0; c < width; ++c) {
          sums[i * width + c] += factor *
              static_cast<A>(mlxgen::widen(rows.data[j * rows.down + c]));
        }
      }
    }
  }
}

/**
 * Replace a row's scores by exponentials relative to the largest score so far.
 * Return the factor for earlier numbers.
 */
template <typename A>
MLXGEN_MULTIVERSION A exponentials(A* scores, int64_t m, A& largest, A& sum) {
  constexpr int lanes = 16;
  A most[lanes];
  std::fill_n(most, lanes, -kInfinity<A>);
  int64_t j = 0;
  for (; j + lanes <= m; j += lanes) {
    for (int i = 0; i < lanes; ++i) {
      most[i] = scores[j + i] > most[i] ? scores[j + i] : most[i];
    }
  }
  A found = largest;
  for (; j < m; ++j) {
    found = std::max(found, scores[j]);
  }
  for (A one : most) {
    found = std::max(found, one);
  }
  // If no key is visible, the base is 0, and exponentials are 0.
  A base = found == -kInfinity<A> ? A(0) : found;
  for (j = 0; j < m; ++j) {
    scores[j] = mlxgen::math::exp(scores[j] - base);
  }
  A parts[lanes] = {};
  for (j = 0; j + lanes <= m; j += lanes) {
    for (int i = 0; i < lanes; ++i) {
      parts[i] += scores[j + i];
    }
  }
  A total = 0;
  for (; j < m; ++j) {
    total += scores[j];
  }
  for (A part : parts) {
    total += part;
  }
  A before = std::exp(largest - base);
  largest = found;
  sum = sum * before + total;
  return before;
}

/**
 * Compute probabilities and the scores' cotangents, times scale, from scores
 * and the products of cotangents and values.
 */
template <typename A>
MLXGEN_MULTIVERSION void cotangents(
    A* scores,
    A* products,
    const A* slope,
    int64_t m,
    A lse,
    A delta,
    A scale) {
  if (slope != nullptr) {
    for (int64_t j = 0; j < m; ++j) {
      products[j] = (products[j] - delta) * slope[j];
    }
    delta = 0;
  }
  // Pairs that are not visible are 0, even if lse, products or slopes are NaN.
  for (int64_t j = 0; j < m; ++j) {
    A p = mlxgen::math::exp(scores[j] - lse);
    A ds = p * (products[j] - delta) * scale;
    bool seen = scores[j] != -kInfinity<A>;
    scores[j] = seen ? p : A(0);
    products[j] = seen ? ds : A(0);
  }
}

template <typename A, typename T>
void store(const std::vector<A>& from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    mlxgen::narrow(from[i], to[i]);
  }
}

/** The keys of each task, where each of `count` tasks would have all keys. */
inline int64_t keys_of_task(int64_t count, int64_t keys) {
  int64_t most =
      std::max<int64_t>(enough_tasks / std::max<int64_t>(count, 1), 1);
  int64_t splits = std::clamp<int64_t>(keys / split_keys, 1, most);
  int64_t blocks = (keys + key_block - 1) / key_block;
  return std::max<int64_t>((blocks + splits - 1) / splits, 1) * key_block;
}

/**
 * The sums of each query over parts of the keys, which are relative to the
 * largest score of the part.
 */
template <typename A>
class Partial {
 public:
  Partial(int64_t splits, int64_t rows, int64_t width)
      : splits_(splits), rows_(rows), width_(width) {
    if (splits > 1) {
      sums_.resize(splits * rows * width);
      largest_.resize(splits * rows);
      total_.resize(splits * rows);
    }
  }

  void set(
      int64_t split,
      int64_t row,
      int64_t n,
      const std::vector<A>& sums,
      const std::vector<A>& largest,
      const std::vector<A>& total) {
    int64_t at = split * rows_ + row;
    std::copy_n(sums.data(), n * width_, sums_.data() + at * width_);
    std::copy_n(largest.data(), n, largest_.data() + at);
    std::copy_n(total.data(), n, total_.data() + at);
  }

  template <typename T>
  void combine(const Out<T>& out, const Out<A>& lse) const {
    std::vector<A> sums(width_);
    for (int64_t row = 0; row < rows_; ++row) {
      A most = -kInfinity<A>, total = 0;
      for (int64_t at = row; at < splits_ * rows_; at += rows_) {
        most = std::max(most, largest_[at]);
      }
      A base = most == -kInfinity<A> ? A(0) : most;
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t at = row; at < splits_ * rows_; at += rows_) {
        A factor = std::exp(largest_[at] - base);
        total += factor * total_[at];
        for (int64_t c = 0; c < width_; ++c) {
          sums[c] += factor * sums_[at * width_ + c];
        }
      }
      for (A& sum : sums) {
        sum *= total == 0 ? A(0) : 1 / total;
      }
      lse[row] = most + std::log(total);
      store(sums, width_, out.data + row * width_);
    }
  }

 private:
  int64_t splits_, rows_, width_;
  std::vector<A> sums_, largest_, total_;
};

/**
 * Probabilities, after dropout, and scores' cotangents of a block of queries
 * and one of keys.
 */
template <typename T>
struct Backward {
  using A = accum_t<T>;

  const Scores<T>& scores;
  const In<T>& v;
  const In<T>& grad;
  const In<A>& lse;
  const In<A>& delta;
  Dropout<A> dropout;
  bool of_products = true; // of scores as products of q and k, not with masks
  std::vector<A> p = std::vector<A>(
      std::min(query_block, scores.height) * std::min(key_block, scores.keys));
  std::vector<A> ds = p;
  std::vector<A> slope =
      of_products && scores.softcap != 0 ? p : std::vector<A>();
  std::vector<A> factors =
      std::vector<A>(dropout.key ? std::min(key_block, scores.keys) : 0);

  void compute(
      int64_t b,
      int64_t h,
      int64_t query,
      int64_t n,
      int64_t key,
      int64_t m) {
    A* slopes = slope.empty() ? nullptr : slope.data();
    scores.compute(b, h, query, n, key, m, p.data(), slopes);
    auto values = scores.rows(v, b, h, key).transposed();
    multiply(
        n, v.dim(3), m, scores.rows(grad, b, h, query), values, ds.data(), m);
    for (int64_t i = 0; i < n; ++i) {
      int64_t row = (b * scores.heads + h) * scores.queries + query + i;
      if (dropout.key) {
        int64_t head = h + (query + i) / scores.queries;
        int64_t at = (query + i) % scores.queries;
        dropout.factors(b, head, at, key, m, factors.data());
        dropout.apply(factors.data(), m, ds.data() + i * m);
      }
      mlxgen::multiversion([&] {
        cotangents<A>(
            p.data() + i * m,
            ds.data() + i * m,
            slopes == nullptr ? nullptr : slopes + i * m,
            m,
            lse[row],
            delta[row],
            of_products ? scores.scale : A(1));
      });
      if (dropout.key) {
        dropout.apply(factors.data(), m, p.data() + i * m);
      }
    }
  }
};

} // namespace flash

/**
 * For each query, of its own sequence: the first key, the key after the last,
 * and the key at the query's position if the last query and key have the same
 * one. A query before the first sequence or after the last has no keys.
 * `key_starts` is `starts` if it is absent. Both must ascend; otherwise the
 * keys are unspecified, but the same as on Metal.
 */
template <typename T>
void attention_segments(
    In<int32_t> starts,
    In<int32_t> key_starts,
    In<T> q,
    In<T> k,
    Out<int32_t> out) {
  int64_t queries = q.dim(2), keys = k.dim(2);
  const int32_t* begin = starts.data;
  const int32_t* end = begin + starts.size();
  const int32_t* key_begin = key_starts ? key_starts.data : begin;
  for (int64_t i = 0; i < queries; ++i) {
    const int32_t* next = std::upper_bound(begin, end, i);
    bool inside = next != begin && next != end;
    const int32_t* next_key = key_begin + (next - begin);
    int64_t own = inside ? i - *next + *next_key : 0;
    out[i] = inside ? next_key[-1] : 0;
    out[queries + i] = inside ? *next_key : 0;
    out[2 * queries + i] =
        static_cast<int32_t>(std::clamp(own, -queries, keys));
  }
}

/** True for the pairs that remain, (batch, heads, queries, keys). */
template <typename T>
void attention_dropout_mask(
    In<T> q,
    In<T> k,
    In<uint32_t> key,
    double dropout,
    Out<bool> out) {
  flash::Dropout<bool> dropped(key, dropout);
  int64_t heads = q.dim(1), queries = q.dim(2), keys = k.dim(2);
  auto part = [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row) {
      int64_t h = row / queries % heads, b = row / queries / heads;
      dropped.factors(b, h, row % queries, 0, keys, out.data + row * keys);
    }
  };
  mlxgen::share(q.dim(0) * heads * queries, 4 * keys, part);
}

/**
 * out = softmax(scores) v, and lse, the logarithm of the sum of the scores'
 * exponentials; 0 and -inf if a query sees no key. The scores are scale q k^T.
 * If there is a softcap, they become softcap tanh(scores / softcap); then the
 * slope times the distance is added, and the mask. With dropout, the softmax is
 * multiplied by factors.
 */
template <typename T>
void attention_parts(
    In<T> q,
    In<T> k,
    In<T> v,
    In<int32_t> segments,
    In<T> mask,
    In<bool> seen,
    In<accum_t<T>> slopes,
    In<uint32_t> dropout_key,
    double scale,
    double softcap,
    bool causal,
    int window,
    double dropout,
    Out<T> out,
    Out<accum_t<T>> lse) {
  using namespace flash;
  using A = accum_t<T>;
  Scores<T> scores{
      q, k, segments, mask, seen, slopes, A(scale), A(softcap), causal, window};
  int64_t width = v.dim(3);
  int64_t blocks = (scores.height + query_block - 1) / query_block;
  int64_t groups = scores.heads / scores.together;
  int64_t count = scores.batch * groups * blocks;
  int64_t most = std::min(query_block, scores.height);
  int64_t span = keys_of_task(count, scores.keys);
  int64_t splits = std::max<int64_t>((scores.keys + span - 1) / span, 1);
  Partial<A> partial(
      splits, scores.batch * scores.heads * scores.queries, width);
  int64_t cost = most * std::min(span, scores.keys) * (scores.size + width);
  Dropout<A> dropped(dropout_key, dropout);
  auto part = [&](int64_t from, int64_t to) {
    std::vector<A> factors(dropped.key ? std::min(key_block, scores.keys) : 0);
    std::vector<A> p(most * std::min(key_block, scores.keys));
    std::vector<A> sums(most * width);
    std::vector<A> largest(most), total(most);
    for (int64_t task = from; task < to; ++task) {
      int64_t split = task % splits;
      int64_t query = task / splits % blocks * query_block;
      int64_t h = task / splits / blocks % groups * scores.together;
      int64_t b = task / splits / blocks / groups;
      int64_t n = std::min(query_block, scores.height - query);
      int64_t end = std::min((split + 1) * span, scores.keys);
      for (bool seen_only : {false, true}) {
        std::fill(sums.begin(), sums.end(), A(0));
        std::fill(largest.begin(), largest.end(), -kInfinity<A>);
        std::fill(total.begin(), total.end(), A(0));
        for (int64_t key = split * span; key < end; key += key_block) {
          int64_t m = std::min(key_block, end - key);
          if (!scores.meet(query, n, key, m)) {
            continue;
          }
          scores.compute(b, h, query, n, key, m, p.data());
          for (int64_t i = 0; i < n; ++i) {
            A before = mlxgen::multiversion([&] {
              return exponentials(p.data() + i * m, m, largest[i], total[i]);
            });
            A* sum = sums.data() + i * width;
            for (int64_t c = 0; c < width; ++c) {
              sum[c] *= before;
            }
            if (dropped.key) {
              int64_t head = h + (query + i) / scores.queries;
              int64_t at = (query + i) % scores.queries;
              dropped.factors(b, head, at, key, m, factors.data());
              dropped.apply(factors.data(), m, p.data() + i * m);
            }
          }
          add_rows(
              n,
              m,
              width,
              Matrix<A>{p.data(), m},
              scores.rows(v, b, h, key),
              sums,
              seen_only,
              [&](int64_t i, int64_t j) {
                return scores.sees(b, h, query + i, key + j);
              });
        }
        if (!any_nan(sums, n * width)) {
          break;
        }
      }
      int64_t row = (b * scores.heads + h) * scores.queries + query;
      if (splits > 1) {
        partial.set(split, row, n, sums, largest, total);
        continue;
      }
      for (int64_t i = 0; i < n; ++i) {
        A factor = total[i] == 0 ? A(0) : 1 / total[i];
        lse[row + i] = largest[i] + std::log(total[i]);
        for (int64_t c = 0; c < width; ++c) {
          sums[i * width + c] *= factor;
        }
      }
      store(sums, n * width, out.data + row * width);
    }
  };
  mlxgen::share(count * splits, cost, part);
  if (splits > 1) {
    partial.combine(out, lse);
  }
}

namespace flash {

/** x[0] y[0] + ... in interleaved sums, which form vectors. */
template <typename A, typename T>
MLXGEN_MULTIVERSION A dot_here(const T* x, const T* y, int64_t n) {
  constexpr int lanes = 16;
  A parts[lanes] = {};
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    for (int i = 0; i < lanes; ++i) {
      parts[i] += static_cast<A>(mlxgen::widen(x[j + i])) *
          static_cast<A>(mlxgen::widen(y[j + i]));
    }
  }
  A sum = 0;
  for (; j < n; ++j) {
    sum += static_cast<A>(mlxgen::widen(x[j])) *
        static_cast<A>(mlxgen::widen(y[j]));
  }
  for (A part : parts) {
    sum += part;
  }
  return sum;
}

} // namespace flash

/** out = sum(cotangent * y) - cotangent_lse, for each query. */
template <typename T>
void attention_delta(
    In<T> cotangent,
    In<T> y,
    In<accum_t<T>> cotangent_lse,
    Out<accum_t<T>> out) {
  using A = accum_t<T>;
  int64_t width = y.dim(3);
  auto part = [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row) {
      A sum = mlxgen::multiversion([&] {
        const T* x = cotangent.data + row * width;
        return flash::dot_here<A>(x, y.data + row * width, width);
      });
      out[row] = sum - cotangent_lse[row];
    }
  };
  mlxgen::share(out.size(), width, part);
}

/**
 * The gradient with respect to q. With p = exp(scores - lse) and delta =
 * sum(grad * out), the scores' cotangent is p * (factors * grad v^T - delta),
 * where the factors are those of dropout.
 */
template <typename T>
void attention_vjp_queries(
    In<T> q,
    In<T> k,
    In<T> v,
    In<int32_t> segments,
    In<T> mask,
    In<bool> seen,
    In<accum_t<T>> slopes,
    In<uint32_t> dropout_key,
    In<T> cotangent,
    In<accum_t<T>> lse,
    In<accum_t<T>> delta,
    double scale,
    double softcap,
    bool causal,
    int window,
    double dropout,
    Out<T> grad_q) {
  using namespace flash;
  using A = accum_t<T>;
  Scores<T> scores{
      q, k, segments, mask, seen, slopes, A(scale), A(softcap), causal, window};
  int64_t blocks = (scores.height + query_block - 1) / query_block;
  int64_t groups = scores.heads / scores.together;
  int64_t most = std::min(query_block, scores.height);
  int64_t cost = most * scores.keys * (2 * scores.size + v.dim(3));
  auto part = [&](int64_t from, int64_t to) {
    Backward<T> backward{
        scores, v, cotangent, lse, delta, {dropout_key, dropout}};
    std::vector<A> sums(most * scores.size);
    for (int64_t task = from; task < to; ++task) {
      int64_t query = task % blocks * query_block;
      int64_t h = task / blocks % groups * scores.together;
      int64_t b = task / blocks / groups;
      int64_t n = std::min(query_block, scores.height - query);
      for (bool seen_only : {false, true}) {
        std::fill(sums.begin(), sums.end(), A(0));
        for (int64_t key = 0; key < scores.keys; key += key_block) {
          int64_t m = std::min(key_block, scores.keys - key);
          if (!scores.meet(query, n, key, m)) {
            continue;
          }
          backward.compute(b, h, query, n, key, m);
          add_rows(
              n,
              m,
              scores.size,
              Matrix<A>{backward.ds.data(), m},
              scores.rows(k, b, h, key),
              sums,
              seen_only,
              [&](int64_t i, int64_t j) {
                return scores.sees(b, h, query + i, key + j);
              });
        }
        if (!any_nan(sums, n * scores.size)) {
          break;
        }
      }
      int64_t row = (b * scores.heads + h) * scores.queries + query;
      store(sums, n * scores.size, grad_q.data + row * scores.size);
    }
  };
  mlxgen::share(scores.batch * groups * blocks, cost, part);
}

/** The gradients with respect to k and v: sums over the queries of all heads
 * that share them. */
template <typename T>
void attention_vjp_keys(
    In<T> q,
    In<T> k,
    In<T> v,
    In<int32_t> segments,
    In<T> mask,
    In<bool> seen,
    In<accum_t<T>> slopes,
    In<uint32_t> dropout_key,
    In<T> cotangent,
    In<accum_t<T>> lse,
    In<accum_t<T>> delta,
    double scale,
    double softcap,
    bool causal,
    int window,
    double dropout,
    Out<T> grad_k,
    Out<T> grad_v) {
  using namespace flash;
  using A = accum_t<T>;
  Scores<T> scores{
      q, k, segments, mask, seen, slopes, A(scale), A(softcap), causal, window};
  int64_t width = v.dim(3);
  int64_t blocks = (scores.keys + key_block - 1) / key_block;
  int64_t most = std::min(key_block, scores.keys);
  int64_t group = scores.group;
  int64_t cost = most * group * scores.queries * 2 * (scores.size + width);
  auto part = [&](int64_t from, int64_t to) {
    Backward<T> backward{
        scores, v, cotangent, lse, delta, {dropout_key, dropout}};
    std::vector<A> sums_k(most * scores.size);
    std::vector<A> sums_v(most * width);
    for (int64_t task = from; task < to; ++task) {
      int64_t key = task % blocks * key_block;
      int64_t head = task / blocks % scores.key_heads;
      int64_t b = task / blocks / scores.key_heads;
      int64_t m = std::min(key_block, scores.keys - key);
      for (bool seen_only : {false, true}) {
        std::fill(sums_k.begin(), sums_k.end(), A(0));
        std::fill(sums_v.begin(), sums_v.end(), A(0));
        for (int64_t h = head * group; h < (head + 1) * group;
             h += scores.together) {
          for (int64_t query = 0; query < scores.height; query += query_block) {
            int64_t n = std::min(query_block, scores.height - query);
            if (!scores.meet(query, n, key, m)) {
              continue;
            }
            backward.compute(b, h, query, n, key, m);
            auto add = [&](const std::vector<A>& factors,
                           const In<T>& array,
                           std::vector<A>& sums) {
              add_rows(
                  m,
                  n,
                  array.dim(3),
                  Matrix<A>{factors.data(), m}.transposed(),
                  scores.rows(array, b, h, query),
                  sums,
                  seen_only,
                  [&](int64_t i, int64_t j) {
                    return scores.sees(b, h, query + j, key + i);
                  });
            };
            add(backward.p, cotangent, sums_v);
            add(backward.ds, q, sums_k);
          }
        }
        if (!any_nan(sums_k, m * scores.size) && !any_nan(sums_v, m * width)) {
          break;
        }
      }
      int64_t row = (b * scores.key_heads + head) * scores.keys + key;
      store(sums_k, m * scores.size, grad_k.data + row * scores.size);
      store(sums_v, m * width, grad_v.data + row * width);
    }
  };
  mlxgen::share(scores.batch * scores.key_heads * blocks, cost, part);
}

/**
 * The gradient with respect to an additive mask: the scores' cotangents, summed
 * over the axes along which the mask is broadcast. `out` is (parts, *mask);
 * each part sums over its share of the broadcast blocks. With `of_slopes`, the
 * gradient with respect to slopes, as of a mask (1, heads, 1, 1) that is
 * multiplied by the distances.
 */
template <typename T>
void attention_vjp_mask_parts(
    In<T> q,
    In<T> k,
    In<T> v,
    In<int32_t> segments,
    In<T> mask,
    In<bool> seen,
    In<accum_t<T>> slopes,
    In<uint32_t> dropout_key,
    In<T> cotangent,
    In<accum_t<T>> lse,
    In<accum_t<T>> delta,
    double scale,
    double softcap,
    bool causal,
    int window,
    double dropout,
    int parts,
    bool of_slopes,
    Out<accum_t<T>> out) {
  using namespace flash;
  using A = accum_t<T>;
  Scores<T> scores{
      q, k, segments, mask, seen, slopes, A(scale), A(softcap), causal, window};
  int64_t rows = out.dim(3), columns = out.dim(4);
  int64_t query_blocks = (scores.queries + query_block - 1) / query_block;
  int64_t key_blocks = (scores.keys + key_block - 1) / key_block;
  // All blocks, along axes of `out` or along those that are summed.
  int64_t all[] = {scores.batch, scores.heads, query_blocks, key_blocks};
  int64_t own[4], others[4], tiles = 1, count = 1;
  for (int i = 0; i < 4; ++i) {
    bool summed = out.dim(i + 1) == 1;
    own[i] = summed ? 1 : all[i];
    others[i] = summed ? all[i] : 1;
    tiles *= own[i];
    count *= others[i];
  }
  int64_t cost = std::min(query_block, scores.queries) *
      std::min(key_block, scores.keys) * (scores.size + v.dim(3)) *
      (count / parts + 1);
  auto part = [&](int64_t from, int64_t to) {
    Backward<T> backward{
        scores, v, cotangent, lse, delta, {dropout_key, dropout}, false};
    int64_t height = std::min(query_block, scores.queries);
    int64_t pitch = std::min(key_block, scores.keys);
    std::vector<A> sums(height * pitch);
    std::vector<A> row(columns == 1 ? 1 : pitch);
    for (int64_t task = from; task < to; ++task) {
      int64_t number = task / tiles;
      std::fill(sums.begin(), sums.end(), A(0));
      int64_t at[4]; // the block
      for (int64_t other = count * number / parts;
           other < count * (number + 1) / parts;
           ++other) {
        int64_t tile = task % tiles, rest = other;
        for (int i = 3; i >= 0; --i) {
          at[i] = tile % own[i] + rest % others[i];
          tile /= own[i];
          rest /= others[i];
        }
        int64_t query = at[2] * query_block, key = at[3] * key_block;
        int64_t n = std::min(query_block, scores.queries - query);
        int64_t m = std::min(key_block, scores.keys - key);
        if (!scores.meet(query, n, key, m)) {
          continue;
        }
        backward.compute(at[0], at[1], query, n, key, m);
        for (int64_t i = 0; i < n; ++i) {
          A distance = static_cast<A>(key - scores.own(query + i));
          for (int64_t j = 0; j < m; ++j) {
            A factor = of_slopes ? distance + static_cast<A>(j) : A(1);
            sums[i * pitch + j] += backward.ds[i * m + j] * factor;
          }
        }
      }
      int64_t tile = task % tiles;
      int64_t column = tile % own[3] * key_block;
      int64_t first = tile / own[3] % own[2] * query_block;
      int64_t head = tile / own[3] / own[2]; // of all elements of the batch
      int64_t width = std::min<int64_t>(row.size(), columns - column);
      for (int64_t i = 0; i < (rows == 1 ? 1 : std::min(height, rows - first));
           ++i) {
        std::fill(row.begin(), row.end(), A(0));
        for (int64_t line = i; line < (rows == 1 ? height : i + 1); ++line) {
          for (int64_t j = 0; j < pitch; ++j) {
            row[columns == 1 ? 0 : j] += sums[line * pitch + j];
          }
        }
        int64_t line = (number * own[0] * own[1] + head) * rows + first + i;
        std::copy_n(row.data(), width, out.data + line * columns + column);
      }
    }
  };
  mlxgen::share(parts * tiles, cost, part);
}

} // namespace mlxops::cpu
