// Running hand-written CPU kernels: the loop around scalar functions, and the
// switch from an array's dtype to the kernel's type.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "mlx/backend/cpu/encoder.h"
#include "mlxgen/kernel.h"
#include "mlxgen/op.h"
#include "mlxgen/threads.h"

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

/** Allocate the outputs and tell the encoder what the next task uses. */
inline mx::cpu::CommandEncoder&
begin(const Stream& stream, const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream);
  for (const auto& in : inputs) {
    encoder.set_input_array(in);
  }
  for (auto& out : outputs) {
    if (out.data_shared_ptr() == nullptr) {
      out.set_data(mx::allocator::malloc(out.nbytes()));
    }
    encoder.set_output_array(out);
  }
  return encoder;
}

// A block of every operand stays in the first-level cache. Loops always run
// over a multiple of `lane` elements (padded if need be): an element's result
// then never depends on its place, as it would where a vectorised body and a
// scalar tail round differently.
constexpr int64_t block = 512;
constexpr int64_t lane = 64;

// What one thread takes at a time, and how many microseconds must be left for
// others to be woken: that takes them a few tens.
constexpr int64_t portion = 16 * block;
constexpr double worth_waking = 60;

/** Reads an array of any strides in row-major order, a block at a time. */
template <typename T>
class Reader {
 public:
  Reader(const array& a, bool dense)
      : data_(a.data<T>()), dense_(dense || a.flags().row_contiguous) {
    if (dense_) {
      return;
    }
    // Drop axes of length 1 and merge axes that follow each other in memory.
    for (size_t i = 0; i < a.ndim(); ++i) {
      int64_t length = a.shape(i);
      int64_t stride = a.strides()[i];
      if (length == 1) {
        continue;
      }
      if (!shape_.empty() && strides_.back() == stride * length) {
        shape_.back() *= length;
        strides_.back() = stride;
      } else {
        shape_.push_back(length);
        strides_.push_back(stride);
      }
    }
    if (shape_.empty()) {
      shape_.push_back(1);
      strides_.push_back(0);
    }
    position_.resize(shape_.size(), 0);
  }

  /** Go to element n, from the first. */
  void skip(int64_t n) {
    if (dense_) {
      at_ = n;
      return;
    }
    for (size_t i = shape_.size(); i-- > 0;) {
      position_[i] = i > 0 ? n % shape_[i] : n;
      n /= shape_[i];
      at_ += position_[i] * strides_[i];
    }
  }

  template <typename C>
  void read(C* to, int64_t n) {
    if (dense_) {
      widen_all(data_ + at_, to, n);
      at_ += n;
      return;
    }
    int last = static_cast<int>(shape_.size()) - 1;
    while (n > 0) {
      int64_t run = std::min(n, shape_[last] - position_[last]);
      const T* from = data_ + at_;
      int64_t stride = strides_[last];
      for (int64_t i = 0; i < run; ++i) {
        to[i] = widen(from[i * stride]);
      }
      to += run;
      n -= run;
      at_ += run * stride;
      position_[last] += run;
      for (int i = last; i > 0 && position_[i] == shape_[i]; --i) {
        at_ += strides_[i - 1] - strides_[i] * shape_[i];
        position_[i] = 0;
        ++position_[i - 1];
      }
    }
  }

 private:
  template <typename C>
  MLXGEN_MULTIVERSION static void widen_all(const T* from, C* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = widen(from[i]);
    }
  }

  const T* data_;
  bool dense_;
  int64_t at_ = 0;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  std::vector<int64_t> position_;
};

template <typename T, typename C>
MLXGEN_MULTIVERSION void narrow_all(const C* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    narrow(from[i], to[i]);
  }
}

/**
 * Call f(start, stop) for parts of 0 to size that are multiples of a portion
 * (but for the end), on several threads where the first one takes so long that
 * it is worth while.
 */
inline void in_portions(
    int64_t size,
    const std::function<void(int64_t, int64_t)>& f) {
  if (size <= 2 * portion) {
    f(int64_t(0), size);
    return;
  }
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  f(int64_t(0), portion);
  std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
  int64_t portions = (size - 1) / portion;
  if (taken.count() * portions < worth_waking) {
    f(portion, size);
    return;
  }
  Workers::get().run(portions, [&](int64_t i) {
    f((i + 1) * portion, std::min((i + 2) * portion, size));
  });
}

/**
 * Run `loop(inputs, outputs, n)` over all elements. `loop` gets arrays of NIn
 * and NOut pointers to the computing type of the inputs' dtype.
 */
template <size_t NIn, size_t NOut, typename... Ts, typename Loop>
void elementwise(
    Types<Ts...> types,
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    Loop loop) {
  bool dense = allocate_elementwise(inputs, outputs);
  auto& encoder = begin(stream, inputs, outputs);
  for_dtype(types, inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = accum_t<T>;
    std::vector<Reader<T>> readers;
    for (const auto& in : inputs) {
      readers.emplace_back(in, dense);
    }
    std::array<const T*, NIn> from;
    for (size_t i = 0; i < NIn; ++i) {
      from[i] = inputs[i].data<T>();
    }
    std::array<T*, NOut> to;
    for (size_t i = 0; i < NOut; ++i) {
      to[i] = outputs[i].data<T>();
    }
    auto part = [=](int64_t start, int64_t stop) {
      if constexpr (std::is_same_v<T, C>) {
        int64_t whole = dense ? (stop - start) / lane * lane : 0;
        if (whole > 0) {
          auto in = from;
          auto out = to;
          for (auto& pointer : in) {
            pointer += start;
          }
          for (auto& pointer : out) {
            pointer += start;
          }
          loop(in, out, whole);
          start += whole;
        }
      }
      if (start == stop) {
        return;
      }
      alignas(64) C in_blocks[NIn][block];
      alignas(64) C out_blocks[NOut][block];
      std::array<const C*, NIn> in;
      std::array<C*, NOut> out;
      auto at = readers;
      for (size_t i = 0; i < NIn; ++i) {
        in[i] = in_blocks[i];
        at[i].skip(start);
      }
      for (size_t i = 0; i < NOut; ++i) {
        out[i] = out_blocks[i];
      }
      for (; start < stop; start += block) {
        int64_t n = std::min(block, stop - start);
        int64_t padded = (n + lane - 1) / lane * lane;
        for (size_t i = 0; i < NIn; ++i) {
          at[i].read(in_blocks[i], n);
          std::fill(in_blocks[i] + n, in_blocks[i] + padded, in_blocks[i][0]);
        }
        loop(in, out, padded);
        for (size_t i = 0; i < NOut; ++i) {
          narrow_all(out_blocks[i], to[i] + start, n);
        }
      }
    };
    int64_t size = outputs[0].size();
    encoder.dispatch([part, size] { in_portions(size, part); });
  });
}

} // namespace cpu
} // namespace mlxgen
