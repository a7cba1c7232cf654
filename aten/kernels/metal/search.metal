// Metal kernel of searches in sorted rows: one thread per value.

#include <metal_stdlib>

using namespace metal;

template <typename T>
[[kernel]] void places_in(
    device const T* sorted [[buffer(0)]],
    device const T* values [[buffer(1)]],
    device int64_t* out [[buffer(2)]],
    constant int& length [[buffer(3)]],
    constant int& count [[buffer(4)]],
    constant bool& right [[buffer(5)]],
    uint3 position [[thread_position_in_grid]]) {
  size_t place = size_t(position.y) * count + position.x;
  sorted += size_t(position.y) * length;
  T value = values[place];
  int low = 0;
  int high = length;
  while (low < high) {
    int middle = low + (high - low) / 2;
    // As in torch, a comparison with NaN leads to the right.
    bool found = right ? sorted[middle] > value : sorted[middle] >= value;
    low = found ? low : middle + 1;
    high = found ? middle : high;
  }
  out[place] = low;
}
