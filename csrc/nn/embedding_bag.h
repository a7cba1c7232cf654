// CPU kernels of embedding_bag: rows of a table are summed for each bag.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "nn/rows.h"

namespace mlxops::cpu {

/** The items of each bag: a row of the indices, or a range between offsets. */
class Bags {
 public:
  Bags(In<int32_t> indices, In<int32_t> offsets)
      : offsets_(offsets),
        items_(indices.size()),
        count_(offsets ? offsets.size() : indices.dim(0)),
        length_(offsets ? 0 : indices.dim(1)) {}

  int64_t count() const {
    return count_;
  }
  int64_t items() const {
    return items_;
  }
  int64_t first(int64_t bag) const {
    if (!offsets_) {
      return bag * length_;
    }
    int64_t to = bag < count_ ? offsets_[bag] : items_;
    return std::clamp<int64_t>(to, 0, items_);
  }
  int64_t length(int64_t bag) const {
    return std::max<int64_t>(0, first(bag + 1) - first(bag));
  }
  /** The bag of an item; -1 for an item before the first bag. */
  int64_t of(int64_t item) const {
    if (!offsets_) {
      return item / length_;
    }
    const int32_t* begin = offsets_.data;
    return std::upper_bound(begin, begin + count_, item) - begin - 1;
  }

 private:
  In<int32_t> offsets_;
  int64_t items_;
  int64_t count_;
  int64_t length_;
};

/** Items whose index is not a row of the table are left out. */
template <typename T>
void embedding_bag_sum(
    In<T> weight,
    In<int32_t> indices,
    In<int32_t> offsets,
    In<T> per_sample_weights,
    bool mean,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t n = weight.dim(1);
  Bags bags(indices, offsets);
  int64_t cost = (bags.items() / std::max<int64_t>(1, bags.count()) + 1) * n;
  rows::share(bags.count(), cost, [&](int64_t first_bag, int64_t last_bag) {
    std::vector<A> scratch(n);
    A* total = scratch.data();
    for (int64_t bag = first_bag; bag < last_bag; ++bag) {
      int64_t first = bags.first(bag);
      int64_t length = bags.length(bag);
      std::fill_n(total, n, A(0));
      for (int64_t i = first; i < first + length; ++i) {
        if (indices[i] < 0 || indices[i] >= weight.dim(0)) {
          continue;
        }
        const T* row = weight.data + indices[i] * n;
        A factor =
            per_sample_weights ? A(mlxgen::widen(per_sample_weights[i])) : A(1);
        rows::add(total, n, [=](int64_t j) {
          return factor * mlxgen::widen(row[j]);
        });
      }
      A scale = mean && length > 0 ? 1 / A(length) : A(1);
      rows::store(
          out.data + bag * n, n, [=](int64_t j) { return total[j] * scale; });
    }
  });
}

/** Also returns the item of each maximum, -1 in an empty bag. */
template <typename T>
void embedding_bag_max(
    In<T> weight,
    In<int32_t> indices,
    In<int32_t> offsets,
    Out<T> out,
    Out<int32_t> places) {
  using A = accum_t<T>;
  int64_t n = weight.dim(1);
  Bags bags(indices, offsets);
  int64_t cost = (bags.items() / std::max<int64_t>(1, bags.count()) + 1) * n;
  rows::share(bags.count(), cost, [&](int64_t first_bag, int64_t last_bag) {
    std::vector<A> scratch(n);
    A* most = scratch.data();
    for (int64_t bag = first_bag; bag < last_bag; ++bag) {
      int64_t first = bags.first(bag);
      int32_t* place = places.data + bag * n;
      std::fill_n(most, n, A(0));
      std::fill_n(place, n, -1);
      bool is_first = true;
      for (int64_t i = first; i < first + bags.length(bag); ++i) {
        if (indices[i] < 0 || indices[i] >= weight.dim(0)) {
          continue;
        }
        const T* row = weight.data + indices[i] * n;
        if (is_first) {
          rows::load(row, most, n);
          std::fill_n(place, n, static_cast<int32_t>(i));
          is_first = false;
          continue;
        }
        for (int64_t j = 0; j < n; ++j) {
          A value = mlxgen::widen(row[j]);
          bool better = value > most[j];
          most[j] = better ? value : most[j];
          place[j] = better ? static_cast<int32_t>(i) : place[j];
        }
      }
      rows::store(out.data + bag * n, n, [=](int64_t j) { return most[j]; });
    }
  });
}

/**
 * The gradient with respect to the table. Items are sorted by index first, so
 * that every row is written once and by one thread. `places` are the items of
 * maxima, which alone contribute.
 */
template <typename T>
void embedding_bag_weight_vjp(
    In<T> cotangent,
    In<int32_t> indices,
    In<int32_t> offsets,
    In<T> per_sample_weights,
    In<int32_t> places,
    int rows,
    bool mean,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t n = cotangent.dim(1);
  Bags bags(indices, offsets);
  // The items of a row are order[starts[row]] to order[starts[row + 1] - 1];
  // until they are in order, starts[row + 1] is where the row's next one goes.
  std::vector<int64_t> starts(rows + 2);
  std::vector<int64_t> order(bags.items());
  for (int64_t i = 0; i < bags.items(); ++i) {
    if (indices[i] >= 0 && indices[i] < rows) {
      ++starts[indices[i] + 2];
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    starts[row + 2] += starts[row + 1];
  }
  for (int64_t i = 0; i < bags.items(); ++i) {
    if (indices[i] >= 0 && indices[i] < rows) {
      order[starts[indices[i] + 1]++] = i;
    }
  }
  int64_t cost = bags.items() * n / std::max(1, rows) + n / 8;
  rows::share(rows, cost, [&](int64_t first_row, int64_t last_row) {
    std::vector<A> scratch(n);
    A* total = scratch.data();
    for (int64_t row = first_row; row < last_row; ++row) {
      if (starts[row] == starts[row + 1]) {
        std::fill_n(out.data + row * n, n, T(0));
        continue;
      }
      std::fill_n(total, n, A(0));
      for (int64_t at = starts[row]; at < starts[row + 1]; ++at) {
        int64_t i = order[at];
        int64_t bag = bags.of(i);
        if (bag < 0) {
          continue;
        }
        const T* from = cotangent.data + bag * n;
        if (places) {
          const int32_t* place = places.data + bag * n;
          rows::add(total, n, [=](int64_t j) {
            A value = mlxgen::widen(from[j]);
            return place[j] == i ? value : A(0);
          });
          continue;
        }
        A factor =
            per_sample_weights ? A(mlxgen::widen(per_sample_weights[i])) : A(1);
        factor = mean ? factor / A(bags.length(bag)) : factor;
        rows::add(total, n, [=](int64_t j) {
          return factor * mlxgen::widen(from[j]);
        });
      }
      rows::store(out.data + row * n, n, [=](int64_t j) { return total[j]; });
    }
  });
}

/** The same; only the Metal kernel uses an order of the items. */
template <typename T>
void embedding_bag_sorted_vjp(
    In<T> cotangent,
    In<int32_t> indices,
    In<uint32_t>,
    In<int32_t> offsets,
    In<T> per_sample_weights,
    In<int32_t> places,
    int rows,
    bool mean,
    Out<T> out) {
  embedding_bag_weight_vjp(
      cotangent, indices, offsets, per_sample_weights, places, rows, mean, out);
}

/** The gradient with respect to per_sample_weights. */
template <typename T>
void embedding_bag_sample_vjp(
    In<T> cotangent,
    In<T> weight,
    In<int32_t> indices,
    In<int32_t> offsets,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t n = weight.dim(1);
  Bags bags(indices, offsets);
  rows::share(bags.items(), n, [&](int64_t first, int64_t last) {
    std::vector<A> scratch(2 * n);
    for (int64_t i = first; i < last; ++i) {
      int64_t bag = bags.of(i);
      A total = 0;
      if (bag >= 0 && indices[i] >= 0 && indices[i] < weight.dim(0)) {
        rows::load(cotangent.data + bag * n, scratch.data(), n);
        rows::load(weight.data + indices[i] * n, scratch.data() + n, n);
        total = rows::dot(scratch.data(), scratch.data() + n, n);
      }
      mlxgen::narrow(total, out[i]);
    }
  });
}

} // namespace mlxops::cpu
