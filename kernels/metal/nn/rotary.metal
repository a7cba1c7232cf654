// Metal kernels of rotary position embeddings, alone and after a norm of every
// head: the formulas of csrc/nn/rotary.h. A thread rotates pairs of elements.

#include <metal_stdlib>

using namespace metal;

static constant constexpr const uint heads_per_thread = 4;
static constant constexpr const uint heads_per_sum = 32; // as on the CPU

/** The elements of a pair; elements after the rotated ones form pairs, too. */
struct Pair {
  uint first;
  uint second;
  bool turned;
};

inline Pair pair_at(uint i, uint turned, bool traditional) {
  uint half_turned = turned / 2;
  bool inside = i < half_turned;
  bool apart = inside && !traditional;
  Pair pair;
  pair.first = apart ? i : 2 * i;
  pair.second = apart ? i + half_turned : 2 * i + 1;
  pair.turned = inside;
  return pair;
}

/** Positions for each step or for the first step, of all sequences or of each.
 */
inline float position_at(
    device const int* offset,
    device const int* positions,
    bool has_offset,
    bool has_positions,
    uint offset_size,
    uint positions_ndim,
    uint steps,
    uint sequence,
    uint step) {
  if (has_positions) {
    size_t start = positions_ndim == 1 ? 0 : size_t(sequence) * steps;
    return float(positions[start + step]);
  }
  int first = has_offset ? offset[offset_size == 1 ? 0 : sequence] : 0;
  return float(first + int(step));
}

/** The cosine and the sine of a pair's angle. */
inline float2 turn_at(
    float position,
    uint i,
    uint turned,
    float base,
    float scale,
    device const float* freqs,
    bool has_freqs) {
  float frequency = has_freqs
      ? 1 / freqs[i]
      : precise::exp2(-2 * float(i) / turned * precise::log2(base));
  float angle = position * scale * frequency;
  return float2(precise::cos(angle), precise::sin(angle));
}

inline float2 turn(float2 pair, float2 by) {
  return float2(pair.x * by.x - pair.y * by.y, pair.x * by.y + pair.y * by.x);
}

/** One thread per pair and step, for several heads. */
template <typename T>
[[kernel]] void rope(
    device const T* x [[buffer(0)]],
    device const int* offset [[buffer(1)]],
    device const int* positions [[buffer(2)]],
    device const float* freqs [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant bool& traditional [[buffer(5)]],
    constant float& base [[buffer(6)]],
    constant float& scale [[buffer(7)]],
    constant bool& has_offset [[buffer(8)]],
    constant bool& has_positions [[buffer(9)]],
    constant bool& has_freqs [[buffer(10)]],
    constant uint& offset_size [[buffer(11)]],
    constant uint& positions_ndim [[buffer(12)]],
    constant uint& turned [[buffer(13)]],
    constant uint& size [[buffer(14)]],
    constant uint& steps [[buffer(15)]],
    constant uint& heads [[buffer(16)]],
    uint3 place [[thread_position_in_grid]]) {
  uint groups = (heads + heads_per_thread - 1) / heads_per_thread;
  uint sequence = place.z / groups;
  uint head = place.z % groups * heads_per_thread;
  uint last = min(head + heads_per_thread, heads);
  Pair pair = pair_at(place.x, turned, traditional);
  float2 by = float2(1, 0);
  if (pair.turned) {
    float position = position_at(
        offset,
        positions,
        has_offset,
        has_positions,
        offset_size,
        positions_ndim,
        steps,
        sequence,
        place.y);
    by = turn_at(position, place.x, turned, base, scale, freqs, has_freqs);
  }
  for (; head < last; ++head) {
    size_t row = (size_t(sequence) * heads + head) * steps + place.y;
    device const T* from = x + row * size;
    device T* to = out + row * size;
    bool both = pair.second < size;
    float2 value = float2(
        static_cast<float>(from[pair.first]),
        both ? static_cast<float>(from[pair.second]) : 0.0f);
    value = turn(value, by);
    to[pair.first] = static_cast<T>(value.x);
    if (both) {
      to[pair.second] = static_cast<T>(value.y);
    }
  }
}

/** A lane's part of a head of at most D elements. */
template <int D>
struct Part {
  float2 pairs[D / 64];
};

template <int D, typename T>
inline Part<D> read_part(
    device const T* from,
    uint size,
    uint turned,
    bool traditional,
    uint lane) {
  Part<D> part;
  for (uint j = 0; j < D / 64; ++j) {
    uint i = lane + 32 * j;
    part.pairs[j] = float2(0);
    if (2 * i < size) {
      Pair pair = pair_at(i, turned, traditional);
      part.pairs[j] = float2(
          static_cast<float>(from[pair.first]),
          static_cast<float>(from[pair.second]));
    }
  }
  return part;
}

template <int D, typename T>
inline void write_part(
    thread const Part<D>& part,
    device T* to,
    uint size,
    uint turned,
    bool traditional,
    uint lane) {
  for (uint j = 0; j < D / 64; ++j) {
    uint i = lane + 32 * j;
    if (2 * i < size) {
      Pair pair = pair_at(i, turned, traditional);
      to[pair.first] = static_cast<T>(part.pairs[j].x);
      to[pair.second] = static_cast<T>(part.pairs[j].y);
    }
  }
}

template <int D, typename T>
inline Part<D> weights_part(
    device const T* weight,
    bool given,
    uint size,
    uint turned,
    bool traditional,
    uint lane) {
  if (given) {
    return read_part<D>(weight, size, turned, traditional, lane);
  }
  Part<D> part;
  for (uint j = 0; j < D / 64; ++j) {
    part.pairs[j] = float2(1);
  }
  return part;
}

/** The sum of a b over a head. */
template <int D>
inline float dot_of(thread const Part<D>& a, thread const Part<D>& b) {
  float total = 0;
  for (uint j = 0; j < D / 64; ++j) {
    total += dot(a.pairs[j], b.pairs[j]);
  }
  return simd_sum(total);
}

/** Rotate a lane's pairs by a position. */
template <int D>
inline void turn_part(
    thread Part<D>& part,
    float position,
    uint turned,
    float base,
    float scale,
    device const float* freqs,
    bool has_freqs,
    uint lane) {
  for (uint j = 0; j < D / 64; ++j) {
    uint i = lane + 32 * j;
    if (2 * i < turned) {
      part.pairs[j] = turn(
          part.pairs[j],
          turn_at(position, i, turned, base, scale, freqs, has_freqs));
    }
  }
}

/** A simdgroup per head, in a grid of (heads of all steps, sequences). */
template <typename T, int D>
[[kernel]] void norm_rope(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* offset [[buffer(2)]],
    device const int* positions [[buffer(3)]],
    device const float* freqs [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant bool& traditional [[buffer(6)]],
    constant float& base [[buffer(7)]],
    constant float& scale [[buffer(8)]],
    constant float& eps [[buffer(9)]],
    constant bool& has_weight [[buffer(10)]],
    constant bool& has_offset [[buffer(11)]],
    constant bool& has_positions [[buffer(12)]],
    constant bool& has_freqs [[buffer(13)]],
    constant uint& offset_size [[buffer(14)]],
    constant uint& positions_ndim [[buffer(15)]],
    constant uint& turned [[buffer(16)]],
    constant uint& size [[buffer(17)]],
    constant uint& steps [[buffer(18)]],
    constant uint& heads [[buffer(19)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  size_t start = (size_t(place.z) * steps * heads + place.y) * size;
  Part<D> part = read_part<D>(x + start, size, turned, traditional, lane);
  Part<D> w =
      weights_part<D>(weight, has_weight, size, turned, traditional, lane);
  float rms = precise::rsqrt(dot_of(part, part) / size + eps);
  for (uint j = 0; j < D / 64; ++j) {
    part.pairs[j] *= rms * w.pairs[j];
  }
  float position = position_at(
      offset,
      positions,
      has_offset,
      has_positions,
      offset_size,
      positions_ndim,
      steps,
      place.z,
      place.y / heads);
  turn_part(part, position, turned, base, scale, freqs, has_freqs, lane);
  write_part(part, out + start, size, turned, traditional, lane);
}

/** One simdgroup per row of grad_weight, which sums heads_per_sum heads. */
template <typename T, int D>
[[kernel]] void norm_rope_vjp(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* cotangent [[buffer(2)]],
    device const int* offset [[buffer(3)]],
    device const int* positions [[buffer(4)]],
    device const float* freqs [[buffer(5)]],
    device T* grad_x [[buffer(6)]],
    device float* grad_weight [[buffer(7)]],
    constant bool& traditional [[buffer(8)]],
    constant float& base [[buffer(9)]],
    constant float& scale [[buffer(10)]],
    constant float& eps [[buffer(11)]],
    constant bool& has_weight [[buffer(12)]],
    constant bool& has_offset [[buffer(13)]],
    constant bool& has_positions [[buffer(14)]],
    constant bool& has_freqs [[buffer(15)]],
    constant uint& offset_size [[buffer(16)]],
    constant uint& positions_ndim [[buffer(17)]],
    constant uint& turned [[buffer(18)]],
    constant uint& size [[buffer(19)]],
    constant uint& steps [[buffer(20)]],
    constant uint& heads [[buffer(21)]],
    constant uint& rows [[buffer(22)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  Part<D> w =
      weights_part<D>(weight, has_weight, size, turned, traditional, lane);
  Part<D> total;
  for (uint j = 0; j < D / 64; ++j) {
    total.pairs[j] = float2(0);
  }
  uint first = place.y * heads_per_sum;
  uint last = min(first + heads_per_sum, rows);
  for (uint row = first; row < last; ++row) {
    uint token = row / heads;
    size_t start = size_t(row) * size;
    float position = position_at(
        offset,
        positions,
        has_offset,
        has_positions,
        offset_size,
        positions_ndim,
        steps,
        token / steps,
        token % steps);
    Part<D> d =
        read_part<D>(cotangent + start, size, turned, traditional, lane);
    turn_part(d, position, turned, base, -scale, freqs, has_freqs, lane);
    Part<D> v = read_part<D>(x + start, size, turned, traditional, lane);
    float rms = precise::rsqrt(dot_of(v, v) / size + eps);
    for (uint j = 0; j < D / 64; ++j) {
      total.pairs[j] += d.pairs[j] * v.pairs[j] * rms;
      d.pairs[j] *= w.pairs[j];
    }
    float shift = dot_of(d, v) / size * rms * rms;
    for (uint j = 0; j < D / 64; ++j) {
      d.pairs[j] = rms * (d.pairs[j] - v.pairs[j] * shift);
    }
    write_part(d, grad_x + start, size, turned, traditional, lane);
  }
  write_part(
      total,
      grad_weight + size_t(place.y) * size,
      size,
      turned,
      traditional,
      lane);
}
