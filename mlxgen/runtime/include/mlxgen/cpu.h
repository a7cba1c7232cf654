// Runs hand-written CPU kernels: the loop around scalar functions, and the
// dispatch from an array's dtype to the kernel's type.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
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

/** The dtype of a type; MLX's own TypeToDtype maps double to float32. */
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

/** Call f(Tag<T>) for the T among Types whose dtype is `dtype`. */
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

// The number of elements that are computed at a time if their values are tested
// first: the blocks of all operands fit into the first-level cache.
constexpr int64_t block = 512;
static_assert(block % strip == 0);

/** Allocate the outputs and tell the encoder which arrays the next task uses.
 */
mx::cpu::CommandEncoder&
begin(const Stream& stream, const Arrays& inputs, Arrays& outputs);

/** A kernel with its arrays and attributes. */
using Task = std::function<void()>;

/**
 * Enqueue a task that reads the inputs and writes the outputs, on the encoder
 * that begin() returned. Errors of the task begin with the name `op`, and leave
 * outputs of NaN, or of 0 if their dtype has no NaN.
 */
void enqueue(
    mx::cpu::CommandEncoder& encoder,
    const Arrays& inputs,
    const Arrays& outputs,
    Task task,
    const char* op = nullptr);

/** The generated loop around a scalar function. */
using Loop = std::function<void(const Rows& rows)>;

/**
 * Run a loop over all elements of arrays of one dtype, with any strides.
 * float16 and bfloat16 are converted to float and back, a block at a time.
 */
void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    Loop loop);

/** Copy an array of any strides to a row-contiguous one. */
void copy(const Stream& stream, const array& from, array& to);

/** The loop around Op::element<T>(). */
template <typename T, typename Op>
Loop loop_of(const Op& op) {
  using In = std::make_index_sequence<Op::kInputs>;
  using Out = std::make_index_sequence<Op::kOutputs>;
  if constexpr (requires { op.template element<T, true>(); }) {
    // Compiled twice; the version for positive inputs is selected for each
    // block.
    return [positive = op.template element<T, true>(),
            any = op.template element<T, false>()](const Rows& rows) {
      std::array<const void*, Op::kInputs> from;
      std::array<void*, Op::kOutputs> to;
      int64_t blocks = (rows.count + block - 1) / block;
      for (int64_t i = 0; i < rows.rows * blocks; ++i) {
        int64_t row = i / blocks;
        int64_t start = std::min(i % blocks * block, rows.count - strip);
        int64_t n = std::min(rows.count - start, block);
        bool all = true;
        for (size_t k = 0; k < from.size(); ++k) {
          auto first = static_cast<const T*>(rows.in[k]) + row * rows.down[k] +
              start * rows.across[k];
          all = all && all_positive(first, rows.across[k] == 0 ? strip : n);
          from[k] = first;
        }
        for (size_t k = 0; k < to.size(); ++k) {
          to[k] = static_cast<T*>(rows.out[k]) + row * rows.count + start;
        }
        Rows part{from.data(), rows.across, rows.down, to.data(), 1, n};
        if (all) {
          each<T>(positive, part, In(), Out());
        } else {
          each<T>(any, part, In(), Out());
        }
      }
    };
  } else {
    return [element = op.template element<T>()](const Rows& rows) {
      each<T>(element, rows, In(), Out());
    };
  }
}

/** The CPU table entry of an elementwise operator, for inputs of these types.
 */
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

/** The CPU table entry of an operator with a kernel over views: Op::task<T>().
 */
template <typename Op, typename Inputs>
Row over_views(const char* kernel) {
  auto launch = [](Primitive& self, const Arrays& inputs, Arrays& outputs) {
    auto& op = static_cast<Op&>(self);
    if constexpr (requires { op.prepare(inputs, outputs, copy); }) {
      op.prepare(inputs, outputs, copy);
    }
    auto& encoder = begin(self.stream(), inputs, outputs);
    for_dtype(Inputs(), op.typed(inputs).dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      enqueue(
          encoder,
          inputs,
          outputs,
          op.template task<T>(inputs, outputs),
          Op::dispatch.op);
    });
  };
  return {Backend::cpu, kernel, dtypes_of(Inputs()), launch};
}

} // namespace cpu
} // namespace mlxgen
