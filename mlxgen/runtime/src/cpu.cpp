// Elementwise kernels on the CPU, once for all operators: reading and writing
// arrays of any strides in blocks, and sharing large ones between cores.

#include "mlxgen/cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "mlxgen/memory.h"
#include "mlxgen/threads.h"

namespace mlxgen::cpu {

mx::cpu::CommandEncoder&
begin(const Stream& stream, const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream);
  for (const auto& in : inputs) {
    encoder.set_input_array(in);
  }
  for (auto& out : outputs) {
    if (out.data_shared_ptr() == nullptr) {
      out.set_data(allocate(out));
    }
    encoder.set_output_array(out);
  }
  return encoder;
}

namespace {

// Loops always run over a multiple of `lane` elements (padded if need be): an
// element's result then never depends on its place, as it would where a
// vectorised body and a scalar tail round differently.
constexpr int64_t lane = 64;
static_assert(block % lane == 0);

// What one thread takes at a time, and how many microseconds must be left for
// others to be woken: that takes them a few tens.
constexpr int64_t portion = 16 * block;
constexpr double worth_waking = 60;

///////////////////////////////////////////////////////////////////////////////
// How elements are stored and computed
///////////////////////////////////////////////////////////////////////////////

template <typename T, typename C>
MLXGEN_MULTIVERSION void widen_all(const T* from, C* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = widen(from[i]);
  }
}

template <typename T, typename C>
MLXGEN_MULTIVERSION void narrow_all(const C* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    narrow(from[i], to[i]);
  }
}

struct Format {
  size_t stored; // bytes of an element in memory
  size_t computed; // and in a block
  bool same; // whether both are the same type
  void (*read)(const char* from, int64_t stride, char* to, int64_t n);
  void (*write)(const char* from, char* to, int64_t n);
};

template <typename T>
Format format() {
  using C = accum_t<T>;
  return {
      sizeof(T),
      sizeof(C),
      std::is_same_v<T, C>,
      [](const char* from, int64_t stride, char* to, int64_t n) {
        auto source = reinterpret_cast<const T*>(from);
        auto target = reinterpret_cast<C*>(to);
        if (stride == 1) {
          return widen_all(source, target, n);
        }
        for (int64_t i = 0; i < n; ++i) {
          target[i] = widen(source[i * stride]);
        }
      },
      [](const char* from, char* to, int64_t n) {
        narrow_all(
            reinterpret_cast<const C*>(from), reinterpret_cast<T*>(to), n);
      }};
}

Format format_of(Dtype dtype) {
  if (dtype == mx::float16) {
    return format<float16_t>();
  }
  if (dtype == mx::bfloat16) {
    return format<bfloat16_t>();
  }
  // The others are only moved, whatever they mean.
  switch (mx::size_of(dtype)) {
    case 1:
      return format<uint8_t>();
    case 2:
      return format<uint16_t>();
    case 4:
      return format<uint32_t>();
    default:
      return format<uint64_t>();
  }
}

///////////////////////////////////////////////////////////////////////////////
// Reading
///////////////////////////////////////////////////////////////////////////////

/** Reads an array of any strides in row-major order, a block at a time. */
class Reader {
 public:
  Reader(const array& a, bool dense, const Format& format)
      : data_(a.data<char>()),
        format_(format),
        dense_(dense || a.flags().row_contiguous) {
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

  /** Where element n of a dense array lies. */
  const char* dense_at(int64_t n) const {
    return data_ + n * format_.stored;
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

  void read(char* to, int64_t n) {
    if (dense_) {
      format_.read(dense_at(at_), 1, to, n);
      at_ += n;
      return;
    }
    int last = static_cast<int>(shape_.size()) - 1;
    while (n > 0) {
      int64_t run = std::min(n, shape_[last] - position_[last]);
      format_.read(dense_at(at_), strides_[last], to, run);
      to += run * format_.computed;
      n -= run;
      at_ += run * strides_[last];
      position_[last] += run;
      for (int i = last; i > 0 && position_[i] == shape_[i]; --i) {
        at_ += strides_[i - 1] - strides_[i] * shape_[i];
        position_[i] = 0;
        ++position_[i - 1];
      }
    }
  }

 private:
  const char* data_;
  Format format_;
  bool dense_;
  int64_t at_ = 0;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  std::vector<int64_t> position_;
};

///////////////////////////////////////////////////////////////////////////////
// Running
///////////////////////////////////////////////////////////////////////////////

/** An elementwise kernel with its operands, for any part of the elements. */
struct Elementwise {
  Loop loop;
  Format format;
  bool dense;
  std::vector<Reader> inputs;
  std::vector<char*> outputs;

  /** Compute elements start to stop; start is a multiple of a portion. */
  void operator()(int64_t start, int64_t stop) const {
    std::vector<const void*> in(inputs.size());
    std::vector<void*> out(outputs.size());
    int64_t whole = dense && format.same ? (stop - start) / lane * lane : 0;
    if (whole > 0) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        in[i] = inputs[i].dense_at(start);
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        out[i] = outputs[i] + start * format.stored;
      }
      loop(in.data(), out.data(), whole);
      start += whole;
    }
    if (start < stop) {
      in_blocks(start, stop, in, out);
    }
  }

 private:
  struct Aligned {
    void operator()(char* memory) const {
      ::operator delete(memory, std::align_val_t(64));
    }
  };

  void in_blocks(
      int64_t start,
      int64_t stop,
      std::vector<const void*>& in,
      std::vector<void*>& out) const {
    size_t bytes = block * format.computed;
    size_t all = bytes * (in.size() + out.size());
    std::unique_ptr<char, Aligned> memory(
        static_cast<char*>(::operator new(all, std::align_val_t(64))));
    auto readers = inputs;
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = memory.get() + i * bytes;
      readers[i].skip(start);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = memory.get() + (in.size() + i) * bytes;
    }
    for (; start < stop; start += block) {
      int64_t n = std::min(block, stop - start);
      int64_t padded = (n + lane - 1) / lane * lane;
      for (size_t i = 0; i < in.size(); ++i) {
        auto first = memory.get() + i * bytes;
        readers[i].read(first, n);
        for (int64_t k = n; k < padded; ++k) {
          std::memcpy(first + k * format.computed, first, format.computed);
        }
      }
      loop(in.data(), out.data(), padded);
      for (size_t i = 0; i < out.size(); ++i) {
        format.write(
            static_cast<char*>(out[i]), outputs[i] + start * format.stored, n);
      }
    }
  }
};

/**
 * Compute all elements, on several threads where the first portion takes so
 * long that it is worth while.
 */
void in_portions(int64_t size, const Elementwise& part) {
  if (size <= 2 * portion) {
    return part(0, size);
  }
  using Clock = std::chrono::steady_clock;
  auto start = Clock::now();
  part(0, portion);
  std::chrono::duration<double, std::micro> taken = Clock::now() - start;
  int64_t portions = (size - 1) / portion;
  if (taken.count() * portions < worth_waking) {
    return part(portion, size);
  }
  Workers::get().run(portions, [&](int64_t i) {
    part((i + 1) * portion, std::min((i + 2) * portion, size));
  });
}

} // namespace

void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    const Loop& loop) {
  bool dense = allocate_elementwise(inputs, outputs);
  auto& encoder = begin(stream, inputs, outputs);
  Elementwise task{loop, format_of(inputs[0].dtype()), dense, {}, {}};
  for (const auto& in : inputs) {
    task.inputs.emplace_back(in, dense, task.format);
  }
  for (auto& out : outputs) {
    task.outputs.push_back(out.data<char>());
  }
  int64_t size = outputs[0].size();
  encoder.dispatch([task = std::move(task), size] { in_portions(size, task); });
}

} // namespace mlxgen::cpu
