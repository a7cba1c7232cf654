// Metal kernels of embedding_bag: the formulas of csrc/nn/embedding_bag.h. A
// thread computes several neighboring columns.

#include <metal_stdlib>

#include "elements.h"
#include "sorted.h"

using namespace metal;

/** The range of a bag's items. */
inline uint bag_start(
    device const int* offsets,
    bool has_offsets,
    uint bag,
    uint bags,
    uint items) {
  if (has_offsets) {
    return bag < bags ? uint(clamp(offsets[bag], 0, int(items))) : items;
  }
  return bag * (items / bags);
}

inline uint bag_end(
    device const int* offsets,
    bool has_offsets,
    uint bag,
    uint bags,
    uint items) {
  return max(
      bag_start(offsets, has_offsets, bag, bags, items),
      bag_start(offsets, has_offsets, bag + 1, bags, items));
}

/** The bag of an item; -1 for an item before the first bag. */
inline int bag_of(
    device const int* offsets,
    bool has_offsets,
    uint item,
    uint bags,
    uint items) {
  if (!has_offsets) {
    return int(item / (items / bags));
  }
  uint first = 0;
  uint last = bags;
  while (first < last) {
    uint middle = (first + last) / 2;
    if (offsets[middle] <= int(item)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return int(first) - 1;
}

/** A thread per bag and four columns. */
template <typename T>
[[kernel]] void embedding_bag_sum(
    device const T* weight [[buffer(0)]],
    device const int* indices [[buffer(1)]],
    device const int* offsets [[buffer(2)]],
    device const T* per_sample_weights [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant bool& has_offsets [[buffer(5)]],
    constant bool& has_per_sample_weights [[buffer(6)]],
    constant bool& mean [[buffer(7)]],
    constant const int* out_shape [[buffer(8)]],
    constant uint& indices_size [[buffer(9)]],
    constant uint& rows [[buffer(10)]],
    constant uint& width [[buffer(11)]],
    uint3 place [[thread_position_in_grid]]) {
  uint bags = out_shape[0];
  uint column = place.x * per_thread;
  int left = int(width) - int(column);
  uint first = bag_start(offsets, has_offsets, place.y, bags, indices_size);
  uint last = bag_end(offsets, has_offsets, place.y, bags, indices_size);
  float4 total = float4(0);
  for (uint i = first; i < last; ++i) {
    uint row = uint(indices[i]);
    if (row < rows) {
      float factor = has_per_sample_weights
          ? static_cast<float>(per_sample_weights[i])
          : 1;
      total += factor * read(weight + size_t(row) * width + column, left);
    }
  }
  if (mean && last > first) {
    total /= float(last - first);
  }
  write(total, out + size_t(place.y) * width + column, left);
}

/** A thread per bag and column. */
template <typename T>
[[kernel]] void embedding_bag_max(
    device const T* weight [[buffer(0)]],
    device const int* indices [[buffer(1)]],
    device const int* offsets [[buffer(2)]],
    device T* most [[buffer(3)]],
    device int* places [[buffer(4)]],
    constant bool& has_offsets [[buffer(5)]],
    constant const int* most_shape [[buffer(6)]],
    constant uint& indices_size [[buffer(7)]],
    constant uint& rows [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    uint3 place [[thread_position_in_grid]]) {
  uint bags = most_shape[0];
  uint first = bag_start(offsets, has_offsets, place.y, bags, indices_size);
  uint last = bag_end(offsets, has_offsets, place.y, bags, indices_size);
  T best = T(0);
  int found = -1;
  for (uint i = first; i < last; ++i) {
    uint row = uint(indices[i]);
    if (row < rows) {
      T value = weight[size_t(row) * width + place.x];
      if (found < 0 || value > best) {
        best = value;
        found = int(i);
      }
    }
  }
  size_t at = size_t(place.y) * width + place.x;
  most[at] = best;
  places[at] = found;
}

/** A simdgroup per row of the table. */
template <typename T>
[[kernel]] void embedding_bag_sorted_vjp(
    device const T* cotangent [[buffer(0)]],
    device const int* indices [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const int* offsets [[buffer(3)]],
    device const T* per_sample_weights [[buffer(4)]],
    device const int* places [[buffer(5)]],
    device T* out [[buffer(6)]],
    constant bool& has_offsets [[buffer(7)]],
    constant bool& has_per_sample_weights [[buffer(8)]],
    constant bool& has_places [[buffer(9)]],
    constant bool& mean [[buffer(10)]],
    constant uint& bags [[buffer(11)]],
    constant uint& items [[buffer(12)]],
    constant uint& width [[buffer(13)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  int row = int(place.y);
  uint first = count_below(indices, order, items, row, lane);
  uint last = count_below(indices, order, items, row + 1, lane);
  out += size_t(row) * width;
  for (uint column = lane * per_thread; column < width;
       column += 32 * per_thread) {
    int left = int(width - column);
    float4 total = float4(0);
    for (uint at = first; at < last; ++at) {
      uint i = order[at];
      int bag = bag_of(offsets, has_offsets, i, bags, items);
      if (bag < 0) {
        continue;
      }
      size_t start = size_t(bag) * width + column;
      float4 value = read(cotangent + start, left);
      if (has_places) {
        for (int c = 0; c < per_thread; ++c) {
          bool here = c < left && places[start + c] == int(i);
          value[c] = here ? value[c] : 0;
        }
      }
      float factor = has_per_sample_weights
          ? static_cast<float>(per_sample_weights[i])
          : 1;
      if (mean) {
        factor /= float(
            bag_end(offsets, has_offsets, bag, bags, items) -
            bag_start(offsets, has_offsets, bag, bags, items));
      }
      total += factor * value;
    }
    write(total, out + column, left);
  }
}

/** A simdgroup per item. */
template <typename T>
[[kernel]] void embedding_bag_sample_vjp(
    device const T* cotangent [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* indices [[buffer(2)]],
    device const int* offsets [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant bool& has_offsets [[buffer(5)]],
    constant uint& bags [[buffer(6)]],
    constant uint& indices_size [[buffer(7)]],
    constant uint& rows [[buffer(8)]],
    constant uint& width [[buffer(9)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  uint item = place.y;
  int bag = bag_of(offsets, has_offsets, item, bags, indices_size);
  uint row = uint(indices[item]);
  float total = 0;
  if (bag >= 0 && row < rows) {
    device const T* g = cotangent + size_t(bag) * width;
    device const T* w = weight + size_t(row) * width;
    for (uint column = lane * per_thread; column < width;
         column += 32 * per_thread) {
      int left = int(width - column);
      total += sum(read(g + column, left) * read(w + column, left));
    }
  }
  total = simd_sum(total);
  if (lane == 0) {
    out[item] = static_cast<T>(total);
  }
}
