// Running hand-written CPU kernels: the loop around scalar functions, and the
// switch from an array's dtype to the kernel's type.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

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

template <typename... Ts>
std::vector<Dtype> dtypes_of(Types<Ts...>) {
  return {dtype_of<Ts>()...};
}

/** The types of MLX's floating dtypes. */
using Floating = Types<float16_t, bfloat16_t, float, double>;

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

// Loops always run over lanes of so many elements (padded if need be): an
// element's result then never depends on its place, as it would where a
// vectorised body and a scalar tail round differently.
constexpr int64_t lane = 64;

// How many elements are taken at a time where they are looked at first: those
// of every operand stay in the first-level cache.
constexpr int64_t block = 512;
static_assert(block % lane == 0);

/** Allocate the outputs and tell the encoder what the next task uses. */
mx::cpu::CommandEncoder&
begin(const Stream& stream, const Arrays& inputs, Arrays& outputs);

/**
 * The generated loop around a scalar function: pointers to `count` elements of
 * every input and output, in the type in which they are computed. `steps` says
 * where the next lane of an input is: behind this one, or 0: this one again,
 * which holds one element everywhere.
 */
using Loop = std::function<void(
    const void* const* in,
    const int64_t* steps,
    void* const* out,
    int64_t count)>;

/**
 * Run a loop over all elements of arrays of one dtype, whatever their strides.
 * float16 and bfloat16 are converted to float and back, a block at a time.
 */
void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    Loop loop);

/** Copy an array of any strides to a row-contiguous one. */
void copy(const Stream& stream, const array& from, array& to);

/** Whether all of these numbers are above 0. */
template <typename T>
MLXGEN_MULTIVERSION bool all_positive(const T* x, int64_t count) {
  int others = 0;
  for (int64_t k = 0; k < count; ++k) {
    others |= x[k] > 0 ? 0 : 1;
  }
  return others == 0;
}

/** The loop around a scalar function. */
template <typename T, typename F, size_t... I, size_t... O>
MLXGEN_MULTIVERSION void each(
    F element,
    const void* const* in,
    const int64_t* steps,
    void* const* out,
    int64_t count,
    std::index_sequence<I...>,
    std::index_sequence<O...>) {
  const T* from[] = {static_cast<const T*>(in[I])...};
  T* to[] = {static_cast<T*>(out[O])...};
  Interleaved<T> interleaved;
  for (; count > 0; count -= lane) {
    MLXGEN_INDEPENDENT
    for (int64_t k = 0; k < lane; ++k) {
      element(from[I][k]..., to[O][k]...);
      interleaved(k);
    }
    ((from[I] += steps[I]), ...);
    ((to[O] += lane), ...);
  }
}

/** The loop around Op::element<T>(). */
template <typename T, typename Op>
Loop loop_of(const Op& op) {
  using In = std::make_index_sequence<Op::kInputs>;
  using Out = std::make_index_sequence<Op::kOutputs>;
  if constexpr (requires { op.template element<T, true>(); }) {
    // Compiled twice, and the one for positive inputs taken a block at a time.
    return [positive = op.template element<T, true>(),
            any = op.template element<T, false>()](
               const void* const* in,
               const int64_t* steps,
               void* const* out,
               int64_t count) {
      std::array<const void*, Op::kInputs> from;
      std::array<void*, Op::kOutputs> to;
      for (int64_t start = 0; start < count; start += block) {
        int64_t n = std::min(count - start, block);
        bool all = true;
        for (size_t i = 0; i < from.size(); ++i) {
          auto first = static_cast<const T*>(in[i]) + start / lane * steps[i];
          all = all && all_positive(first, steps[i] == 0 ? lane : n);
          from[i] = first;
        }
        for (size_t i = 0; i < to.size(); ++i) {
          to[i] = static_cast<T*>(out[i]) + start;
        }
        if (all) {
          each<T>(positive, from.data(), steps, to.data(), n, In(), Out());
        } else {
          each<T>(any, from.data(), steps, to.data(), n, In(), Out());
        }
      }
    };
  } else {
    return [element = op.template element<T>()](
               const void* const* in,
               const int64_t* steps,
               void* const* out,
               int64_t count) {
      each<T>(element, in, steps, out, count, In(), Out());
    };
  }
}

/** The CPU's row of an elementwise operator, for inputs of these types. */
template <typename Op, typename Inputs>
Row elementwise(const char* kernel) {
  auto launch = [](Primitive& self, const Arrays& inputs, Arrays& outputs) {
    for_dtype(Inputs(), inputs[0].dtype(), [&](auto tag) {
      using T = accum_t<typename decltype(tag)::type>;
      run_elementwise(
          self.stream(),
          inputs,
          outputs,
          loop_of<T>(static_cast<const Op&>(self)));
    });
  };
  return {Backend::cpu, kernel, dtypes_of(Inputs()), launch};
}

/** The CPU's row of an operator with a kernel over views: Op::task<T>(). */
template <typename Op, typename Inputs>
Row over_views(const char* kernel) {
  auto launch = [](Primitive& self, const Arrays& inputs, Arrays& outputs) {
    auto& op = static_cast<const Op&>(self);
    auto& encoder = begin(self.stream(), inputs, outputs);
    for_dtype(Inputs(), op.typed(inputs).dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      encoder.dispatch(op.template task<T>(inputs, outputs));
    });
  };
  return {Backend::cpu, kernel, dtypes_of(Inputs()), launch};
}

} // namespace cpu
} // namespace mlxgen
