// CPU kernels of products whose matrix depends on the row: the expert of a
// token, or a segment of the inner axis of segmented_matmul.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/threads.h"

#include "matmul.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

namespace experts {

// A block of results that one thread computes, and the part of a quantized
// matrix that is decoded at a time. Groups and bytes of quantized elements do
// not extend across multiples of 256.
constexpr int64_t block_rows = 96;
constexpr int64_t block = 256;

/**
 * Blocks of results of (rows, columns), shared by the cores: compute(row, high,
 * column, wide, sums) adds to a block of zeros, which is then rounded to `to`.
 */
template <typename T, typename F>
void share_blocks(
    int64_t rows,
    int64_t inner,
    int64_t columns,
    T* to,
    F compute) {
  using A = accum_t<T>;
  int64_t across = (columns + block - 1) / block;
  int64_t count = (rows + block_rows - 1) / block_rows * across;
  int64_t cost = std::min(rows, block_rows) * std::min(columns, block) * inner;
  mlxgen::share(count, cost, [&](int64_t from, int64_t until) {
    std::vector<A> sums(block_rows * block);
    for (int64_t i = from; i < until; ++i) {
      int64_t row = i / across * block_rows;
      int64_t high = std::min(block_rows, rows - row);
      int64_t column = i % across * block;
      int64_t wide = std::min(block, columns - column);
      std::fill_n(sums.data(), high * wide, A(0));
      compute(row, high, column, wide, sums.data());
      for (int64_t r = 0; r < high; ++r) {
        for (int64_t j = 0; j < wide; ++j) {
          mlxgen::narrow(
              sums[r * wide + j], to[(row + r) * columns + column + j]);
        }
      }
    }
  });
}

/** Matrices (inner, columns), or their transposes (columns, inner). */
template <typename T>
struct Dense {
  const T* data;
  int64_t inner;
  int64_t columns;
  bool transposed;

  // The inner axis is not divided.
  int64_t deep() const {
    return std::max<int64_t>(inner, 1);
  }
  Matrix<T> at(int64_t i, int64_t p, int64_t, int64_t column, int64_t) const {
    const T* from = data + i * inner * columns;
    auto whole = transposed ? Matrix<T>{from, inner}.transposed()
                            : Matrix<T>{from, columns};
    return whole.from(p, column);
  }
};

/**
 * out = the sums of products of rows of x and matrices. parts(first, last, add)
 * calls add(begin, end, i) for rows from first to last that matrix i
 * multiplies.
 */
template <typename T, typename M, typename F>
void multiply_rows(In<T> x, const M& matrices, Out<T> out, F parts) {
  int64_t inner = x.dim(1);
  share_blocks(
      x.dim(0),
      inner,
      out.dim(1),
      out.data,
      [&](int64_t row, int64_t high, int64_t column, int64_t wide, auto* sums) {
        parts(row, row + high, [&](int64_t begin, int64_t end, int64_t i) {
          for (int64_t p = 0; p < inner; p += matrices.deep()) {
            int64_t deep = std::min(matrices.deep(), inner - p);
            multiply(
                end - begin,
                deep,
                wide,
                Matrix<T>{x.data + begin * inner + p, inner},
                matrices.at(i, p, deep, column, wide),
                sums + (begin - row) * wide,
                wide,
                true);
          }
        });
      });
}

/** Call add(begin, end, i) for neighboring rows of one index below `count`. */
template <typename F>
void runs(
    const uint32_t* indices,
    int64_t first,
    int64_t last,
    int64_t count,
    F add) {
  for (int64_t end = first; first < last; first = end) {
    while (end < last && indices[end] == indices[first]) {
      ++end;
    }
    if (indices[first] < count) {
      add(first, end, indices[first]);
    }
  }
}

// The values of the argument `mode`.
enum Mode { affine, mxfp4, nvfp4, mxfp8 };

/** A float with a sign, 4 bits of exponent and 3 of mantissa; no infinities. */
inline float e4m3(uint32_t code) {
  int exponent = code >> 3 & 15;
  int mantissa = code & 7;
  float size = exponent == 0 ? std::ldexp(float(mantissa), -9)
                             : std::ldexp(float(8 + mantissa), exponent - 10);
  size = (code & 127) == 127 ? std::numeric_limits<float>::quiet_NaN() : size;
  return code & 128 ? -size : size;
}

/** A float with a sign, 2 bits of exponent and 1 of mantissa. */
inline float e2m1(uint32_t code) {
  constexpr float sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

/** A power of two. */
inline float e8m0(uint32_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN()
                     : std::ldexp(1.0f, int(code) - 127);
}

inline std::array<float, 256> table(float (*value)(uint32_t)) {
  std::array<float, 256> values;
  for (uint32_t i = 0; i < 256; ++i) {
    values[i] = value(i);
  }
  return values;
}

/** The numbers of `bits` bits, from the lowest bit of the first byte on. */
template <int bits, typename A>
void unpack(const uint8_t* from, int64_t count, A* __restrict to) {
  for (int64_t j = 0; j < count; ++j) {
    int64_t at = j * bits;
    uint32_t code = from[at / 8];
    if (8 % bits != 0 && at % 8 + bits > 8) {
      code |= from[at / 8 + 1] << 8;
    }
    to[j] = static_cast<A>(code >> at % 8 & ((1 << bits) - 1));
  }
}

template <typename A>
void unpack(int bits, const uint8_t* from, int64_t count, A* to) {
  switch (bits) {
    case 1:
      return unpack<1>(from, count, to);
    case 2:
      return unpack<2>(from, count, to);
    case 3:
      return unpack<3>(from, count, to);
    case 4:
      return unpack<4>(from, count, to);
    case 5:
      return unpack<5>(from, count, to);
    case 6:
      return unpack<6>(from, count, to);
    default:
      return unpack<8>(from, count, to);
  }
}

/** Matrices as mx.quantize packs them: groups of the columns have a scale. */
template <typename T>
struct Quantized {
  using A = accum_t<T>;

  In<uint32_t> weight;
  In<T> scales;
  In<T> biases;
  In<uint8_t> codes; // of the scales, except for affine
  int group_size;
  int bits;
  int mode;
  bool transposed;

  int64_t deep() const {
    return block;
  }

  Matrix<A> at(int64_t i, int64_t p, int64_t deep, int64_t column, int64_t wide)
      const {
    thread_local std::vector<A> decoded;
    int64_t row = transposed ? column : p;
    int64_t high = transposed ? wide : deep;
    int64_t first = transposed ? p : column;
    int64_t count = transposed ? deep : wide;
    decoded.resize(block * block);
    for (int64_t r = 0; r < high; ++r) {
      decode(i * weight.dim(1) + row + r, first, count, &decoded[r * block]);
    }
    Matrix<A> part = {decoded.data(), block};
    return transposed ? part.transposed() : part;
  }

  /** Decode the columns from `first` on of a row of all matrices. */
  void decode(int64_t row, int64_t first, int64_t count, A* to) const {
    static const auto fp4 = table(e2m1);
    static const auto fp8 = table(e4m3);
    static const auto powers = table(e8m0);
    const auto* bytes =
        reinterpret_cast<const uint8_t*>(weight.data + row * weight.dim(2));
    unpack(bits, bytes + first * bits / 8, count, to);
    int64_t groups = weight.dim(2) * 32 / bits / group_size;
    int64_t group = row * groups + first / group_size;
    for (int64_t j = 0; j < count; j += group_size, ++group) {
      int64_t end = std::min<int64_t>(j + group_size, count);
      if (mode == affine) {
        A scale = mlxgen::widen(scales[group]);
        A bias = mlxgen::widen(biases[group]);
        for (int64_t k = j; k < end; ++k) {
          to[k] = scale * to[k] + bias;
        }
      } else {
        const auto& values = mode == mxfp8 ? fp8 : fp4;
        A scale = (mode == nvfp4 ? fp8 : powers)[codes[group]];
        for (int64_t k = j; k < end; ++k) {
          to[k] = scale * values[static_cast<int>(to[k])];
        }
      }
    }
  }
};

} // namespace experts

/** out[n] = weight[indices[n]] x[n]; 0 if the index is out of range. */
template <typename T>
void expert_matmul(
    In<T> x,
    In<T> weight,
    In<uint32_t> indices,
    bool transpose,
    bool,
    Out<T> out) {
  experts::Dense<T> matrices = {weight.data, x.dim(1), out.dim(1), transpose};
  experts::multiply_rows(
      x, matrices, out, [&](int64_t first, int64_t last, auto add) {
        experts::runs(indices.data, first, last, weight.dim(0), add);
      });
}

/** expert_matmul for quantized matrices. */
template <typename T>
void quantized_products(
    In<T> x,
    In<uint32_t> weight,
    In<T> scales,
    In<T> biases,
    In<uint8_t> codes,
    In<uint32_t> indices,
    bool transpose,
    int group_size,
    int bits,
    int mode,
    bool,
    Out<T> out) {
  experts::Quantized<T> matrices = {
      weight, scales, biases, codes, group_size, bits, mode, transpose};
  experts::multiply_rows(
      x, matrices, out, [&](int64_t first, int64_t last, auto add) {
        experts::runs(indices.data, first, last, weight.dim(0), add);
      });
}

/** out[n] = the sum of x[n] weight[s] over the segments s that contain n. */
template <typename T>
void segment_products(
    In<T> x,
    In<T> weight,
    In<uint32_t> segments,
    bool transpose,
    Out<T> out) {
  experts::Dense<T> matrices = {weight.data, x.dim(1), out.dim(1), transpose};
  experts::multiply_rows(
      x, matrices, out, [&](int64_t first, int64_t last, auto add) {
        for (int64_t s = 0; s < segments.dim(0); ++s) {
          int64_t begin = std::max<int64_t>(first, segments[2 * s]);
          int64_t end = std::min<int64_t>(last, segments[2 * s + 1]);
          if (begin < end) {
            add(begin, end, s);
          }
        }
      });
}

/** out[s] = a[:, start:end] b[start:end] for the segments of the inner axis. */
template <typename T>
void segmented_matmul(In<T> a, In<T> b, In<uint32_t> segments, Out<T> out) {
  int64_t inner = a.dim(1);
  int64_t rows = out.dim(1);
  int64_t columns = out.dim(2);
  for (int64_t s = 0; s < segments.dim(0); ++s) {
    int64_t begin = std::min<int64_t>(segments[2 * s], inner);
    int64_t end = std::min<int64_t>(segments[2 * s + 1], inner);
    int64_t size = std::max<int64_t>(end - begin, 0);
    experts::share_blocks(
        rows,
        size,
        columns,
        out.data + s * rows * columns,
        [&](int64_t row, int64_t high, int64_t column, int64_t wide, auto* to) {
          multiply(
              high,
              size,
              wide,
              Matrix<T>{a.data, inner}.from(row, begin),
              Matrix<T>{b.data, columns}.from(begin, column),
              to,
              wide,
              true);
        });
  }
}

} // namespace mlxops::cpu
