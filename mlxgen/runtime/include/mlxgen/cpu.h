// Running hand-written CPU kernels: the loop around scalar functions, and the
// switch from an array's dtype to the kernel's type.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "mlx/backend/cpu/encoder.h"
#include "mlxgen/kernel.h"
#include "mlxgen/op.h"

namespace mlxgen {

///////////////////////////////////////////////////////////////////////////////
// dtype -> type
///////////////////////////////////////////////////////////////////////////////

template <typename... Ts>
struct Types {};

template <typename T>
struct Tag {
  using type = T;
};

/** The dtype of a type; MLX's own TypeToDtype says float32 of double. */
template <typename T>
Dtype dtype_of() {
  if constexpr (std::is_same_v<T, double>) {
    return mx::float64;
  } else {
    return mx::TypeToDtype<T>();
  }
}

/** Call f(Tag<T>) for the T among Types that `dtype` stands for. */
template <typename... Ts, typename F>
void for_dtype(Types<Ts...>, Dtype dtype, F&& f) {
  bool found =
      ((dtype == dtype_of<Ts>() ? (f(Tag<Ts>{}), true) : false) || ...);
  if (!found) {
    throw std::invalid_argument("No CPU kernel for " + show(dtype) + ".");
  }
}

///////////////////////////////////////////////////////////////////////////////
// Elementwise kernels
///////////////////////////////////////////////////////////////////////////////

namespace cpu {

// How many elements are taken at a time where they are looked at first: those
// of every operand stay in the first-level cache.
constexpr int64_t block = 512;

/** Allocate the outputs and tell the encoder what the next task uses. */
mx::cpu::CommandEncoder&
begin(const Stream& stream, const Arrays& inputs, Arrays& outputs);

/**
 * The generated loop around a scalar function: pointers to so many elements of
 * every input and output, in the type in which they are computed.
 */
using Loop =
    std::function<void(const void* const* in, void* const* out, int64_t count)>;

/**
 * Run a loop over all elements of arrays of one dtype, whatever their strides.
 * float16 and bfloat16 are converted to float and back, a block at a time.
 */
void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    const Loop& loop);

/** A loop over elements of type C, as `run_elementwise` wants it. */
template <typename C, size_t NIn, size_t NOut, typename F>
Loop loop_over(const F& loop) {
  return [loop](const void* const* in, void* const* out, int64_t count) {
    std::array<const C*, NIn> from;
    std::array<C*, NOut> to;
    for (size_t i = 0; i < NIn; ++i) {
      from[i] = static_cast<const C*>(in[i]);
    }
    for (size_t i = 0; i < NOut; ++i) {
      to[i] = static_cast<C*>(out[i]);
    }
    loop(from, to, count);
  };
}

/**
 * Run `loop(inputs, outputs, n)` over all elements. `loop` gets arrays of NIn
 * and NOut pointers to the computing type of the inputs' dtype.
 */
template <size_t NIn, size_t NOut, typename... Ts, typename F>
void elementwise(
    Types<Ts...> types,
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    const F& loop) {
  for_dtype(types, inputs[0].dtype(), [&](auto tag) {
    using C = accum_t<typename decltype(tag)::type>;
    run_elementwise(stream, inputs, outputs, loop_over<C, NIn, NOut>(loop));
  });
}

/** Whether all of these numbers are above 0. */
template <typename T>
MLXGEN_MULTIVERSION bool all_positive(const T* x, int64_t count) {
  int others = 0;
  for (int64_t k = 0; k < count; ++k) {
    others |= x[k] > 0 ? 0 : 1;
  }
  return others == 0;
}

/**
 * `elementwise` for loops that are compiled twice: `loop(inputs, outputs, n,
 * positive)` is called for blocks of elements, with a constant that tells
 * whether all of their inputs are above 0.
 */
template <size_t NIn, size_t NOut, typename... Ts, typename F>
void elementwise_by_sign(
    Types<Ts...> types,
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    const F& loop) {
  elementwise<NIn, NOut>(
      types, stream, inputs, outputs, [loop](auto in, auto out, int64_t count) {
        for (int64_t rest = count; rest > 0; rest -= block) {
          int64_t n = std::min(rest, block);
          bool positive = true;
          for (auto x : in) {
            positive = positive && all_positive(x, n);
          }
          if (positive) {
            loop(in, out, n, std::true_type());
          } else {
            loop(in, out, n, std::false_type());
          }
          for (auto& x : in) {
            x += n;
          }
          for (auto& x : out) {
            x += n;
          }
        }
      });
}

} // namespace cpu
} // namespace mlxgen
