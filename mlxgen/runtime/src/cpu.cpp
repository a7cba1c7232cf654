// Elementwise kernels on the CPU, once for all operators: reading and writing
// arrays of any strides in blocks, and sharing large ones between cores.

#include "mlxgen/cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

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

// What is copied of an operand at a time: so much that all stay in the
// first-level cache. Of one that is transposed, a tile.
constexpr size_t block_bytes = 8192;
constexpr int64_t tile_width = 512;
constexpr int64_t tile_height = 16;

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
  // Elements that follow each other downwards; rows of a tile are tile_width
  // apart.
  void (*transpose)(
      const char* from,
      int64_t stride,
      char* to,
      int64_t height,
      int64_t width);
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
        if (stride == 0) {
          std::fill_n(target, n, widen(*source));
          return;
        }
        for (int64_t i = 0; i < n; ++i) {
          target[i] = widen(source[i * stride]);
        }
      },
      [](const char* from, char* to, int64_t n) {
        narrow_all(
            reinterpret_cast<const C*>(from), reinterpret_cast<T*>(to), n);
      },
      [](const char* from,
         int64_t stride,
         char* to,
         int64_t height,
         int64_t width) {
        auto source = reinterpret_cast<const T*>(from);
        auto target = reinterpret_cast<C*>(to);
        for (int64_t j = 0; j < width; ++j) {
          for (int64_t i = 0; i < height; ++i) {
            target[i * tile_width + j] = widen(source[j * stride + i]);
          }
        }
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

int64_t padded(int64_t n) {
  return (n + lane - 1) / lane * lane;
}

/** Fill up a block of n elements with its first one. */
void pad(char* memory, int64_t n, const Format& format) {
  for (int64_t k = n; k < padded(n); ++k) {
    std::memcpy(memory + k * format.computed, memory, format.computed);
  }
}

///////////////////////////////////////////////////////////////////////////////
// Where elements are
///////////////////////////////////////////////////////////////////////////////

/** Gives an array of any strides in row-major order, a block at a time. */
class Reader {
 public:
  Reader(const array& a, bool dense, const Format& format)
      : data_(a.data<char>()),
        format_(format),
        axes_({a}, a.shape()),
        dense_(dense || a.flags().row_contiguous) {
    const auto& shape = axes_.shape;
    const auto& strides = axes_.strides[0];
    position_.resize(shape.size(), 0);
    if (strides[0] == 0 && shape.size() < 3) {
      int64_t length = shape.size() == 1 ? 1 : shape[1];
      period_ = length <= block_length() && shape[0] > 1 ? length : 0;
    }
  }

  /** Where element n of a dense array lies, if the loop takes it from there. */
  const char* dense_at(int64_t n) const {
    return dense_ && period_ == 0 && format_.same ? data_ + n * format_.stored
                                                  : nullptr;
  }

  /** Go to element n, from the first. */
  void skip(int64_t n) {
    if (dense_ || period_ > 0) {
      at_ = n;
      return;
    }
    for (size_t i = position_.size(); i-- > 0;) {
      position_[i] = i > 0 ? n % axes_.shape[i] : n;
      n /= axes_.shape[i];
      at_ += position_[i] * axes_.strides[0][i];
    }
  }

  /** The next elements: where they are, or else in `memory`, two blocks. */
  const void* next(char* memory, int64_t n) {
    if (period_ > 0) {
      return repeated(memory, n);
    }
    int64_t left = axes_.shape.back() - position_.back();
    bool together = dense_ || (axes_.strides[0].back() == 1 && left >= n);
    if (together && format_.same && n % lane == 0) {
      auto first = data_ + at_ * format_.stored;
      go(n);
      return first;
    }
    auto to = memory;
    for (int64_t rest = n; rest > 0;) {
      left = axes_.shape.back() - position_.back();
      int64_t run = dense_ ? rest : std::min(rest, left);
      format_.read(
          data_ + at_ * format_.stored,
          dense_ ? 1 : axes_.strides[0].back(),
          to,
          run);
      to += run * format_.computed;
      rest -= run;
      go(run);
    }
    pad(memory, n, format_);
    return memory;
  }

 private:
  int64_t block_length() const {
    return static_cast<int64_t>(block_bytes / format_.computed);
  }

  /** A few elements that come again and again are copied once. */
  const void* repeated(char* memory, int64_t n) {
    if (filled_ < n) {
      filled_ = n;
      format_.read(data_, axes_.strides[0].back(), memory, period_);
      size_t all = (padded(n) + period_) * format_.computed;
      for (size_t have = period_ * format_.computed; have < all; have *= 2) {
        std::memcpy(memory + have, memory, std::min(have, all - have));
      }
    }
    auto first = memory + at_ % period_ * format_.computed;
    at_ += n;
    return first;
  }

  /** Go n elements further, in the last axis at most to its end. */
  void go(int64_t n) {
    if (dense_) {
      at_ += n;
      return;
    }
    const auto& shape = axes_.shape;
    const auto& strides = axes_.strides[0];
    size_t last = shape.size() - 1;
    at_ += n * strides[last];
    position_[last] += n;
    for (size_t i = last; i > 0 && position_[i] == shape[i]; --i) {
      at_ += strides[i - 1] - strides[i] * shape[i];
      position_[i] = 0;
      ++position_[i - 1];
    }
  }

  const char* data_;
  Format format_;
  Axes axes_;
  bool dense_;
  int64_t period_ = 0; // after which elements come again; 0: they do not
  int64_t at_ = 0;
  int64_t filled_ = 0;
  std::vector<int64_t> position_;
};

/** Memory for the blocks of operands. */
class Blocks {
 public:
  Blocks(size_t count, size_t bytes)
      : bytes_(bytes),
        memory_(
            static_cast<char*>(
                ::operator new(count * bytes, std::align_val_t(64)))) {}

  char* operator[](size_t i) const {
    return memory_.get() + i * bytes_;
  }

 private:
  struct Aligned {
    void operator()(char* memory) const {
      ::operator delete(memory, std::align_val_t(64));
    }
  };

  size_t bytes_;
  std::unique_ptr<char, Aligned> memory_;
};

///////////////////////////////////////////////////////////////////////////////
// Running
///////////////////////////////////////////////////////////////////////////////

/** An elementwise kernel, and where its results go. */
struct Kernel {
  Loop loop;
  Format format;
  std::vector<char*> outputs;

  /**
   * Run the loop for n elements, of which the first result is number `start`;
   * blocks from number `block` on are free.
   */
  void run(
      const std::vector<const void*>& in,
      std::vector<void*>& out,
      int64_t start,
      int64_t n,
      const Blocks& blocks,
      size_t block) const {
    bool direct = format.same && n % lane == 0;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = direct ? at(i, start) : blocks[block + i];
    }
    loop(in.data(), out.data(), padded(n));
    for (size_t i = 0; !direct && i < out.size(); ++i) {
      format.write(blocks[block + i], at(i, start), n);
    }
  }

  char* at(size_t i, int64_t n) const {
    return outputs[i] + n * format.stored;
  }
};

/** A kernel over elements in row-major order, or in the order of them all. */
struct InOrder : Kernel {
  std::vector<Reader> inputs;

  /** Compute elements start to stop; start is a multiple of a portion. */
  void operator()(int64_t start, int64_t stop) const {
    std::vector<const void*> in(inputs.size());
    std::vector<void*> out(outputs.size());
    int64_t whole = (stop - start) / lane * lane;
    for (size_t i = 0; i < inputs.size(); ++i) {
      in[i] = inputs[i].dense_at(start);
      whole = in[i] == nullptr ? 0 : whole;
    }
    if (whole > 0) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        out[i] = at(i, start);
      }
      loop(in.data(), out.data(), whole);
      start += whole;
    }
    if (start == stop) {
      return;
    }
    Blocks blocks(in.size() + out.size(), 2 * block_bytes);
    auto step = static_cast<int64_t>(block_bytes / format.computed);
    auto readers = inputs;
    for (auto& reader : readers) {
      reader.skip(start);
    }
    for (; start < stop; start += step) {
      int64_t n = std::min(step, stop - start);
      for (size_t i = 0; i < in.size(); ++i) {
        in[i] = readers[i].next(blocks[i], n);
      }
      run(in, out, start, n, blocks, in.size());
    }
  }
};

/**
 * A kernel with inputs that are transposed, in tiles: of those a tile is read
 * along the axis in which their elements follow each other.
 */
struct InTiles : Kernel {
  Axes axes; // of the inputs and the first output
  std::vector<const char*> inputs;
  size_t
      high; // the axis along which tiles are high; they are wide along the last

  int64_t length(size_t axis) const {
    auto tile = axis == high            ? tile_height
        : axis + 1 == axes.shape.size() ? tile_width
                                        : 1;
    return (axes.shape[axis] + tile - 1) / tile;
  }

  int64_t count() const {
    int64_t all = 1;
    for (size_t axis = 0; axis < axes.shape.size(); ++axis) {
      all *= length(axis);
    }
    return all;
  }

  void operator()(int64_t start, int64_t stop) const {
    Blocks blocks(
        inputs.size() + outputs.size(),
        tile_height * tile_width * format.computed);
    for (; start < stop; ++start) {
      tile(start, blocks);
    }
  }

  void tile(int64_t number, const Blocks& blocks) const {
    size_t last = axes.shape.size() - 1;
    std::vector<int64_t> first(axes.strides.size(), 0);
    int64_t height = 0;
    int64_t width = 0;
    for (size_t axis = last + 1; axis-- > 0;) {
      int64_t position = number % length(axis);
      number /= length(axis);
      if (axis == high) {
        position *= tile_height;
        height = std::min(tile_height, axes.shape[axis] - position);
      } else if (axis == last) {
        position *= tile_width;
        width = std::min(tile_width, axes.shape[axis] - position);
      }
      for (size_t i = 0; i < first.size(); ++i) {
        first[i] += position * axes.strides[i][axis];
      }
    }
    std::vector<const void*> in(inputs.size());
    std::vector<void*> out(outputs.size());
    for (int64_t row = 0; row < height; ++row) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        auto stride = axes.strides[i][last];
        auto down = axes.strides[i][high];
        auto from = inputs[i] + first[i] * format.stored;
        auto block = blocks[i];
        if (down == 1 && stride != 1) {
          if (row == 0) {
            format.transpose(from, stride, block, height, width);
          }
          block += row * tile_width * format.computed;
        } else if (row == 0 || down != 0) {
          from += row * down * format.stored;
          if (stride == 1 && format.same && width % lane == 0) {
            in[i] = from;
            continue;
          }
          format.read(from, stride, block, width);
        } else {
          continue;
        }
        pad(block, width, format);
        in[i] = block;
      }
      auto at = first.back() + row * axes.strides.back()[high];
      run(in, out, at, width, blocks, inputs.size());
    }
  }
};

/**
 * Compute `size` units, on several threads where the first portion of them
 * takes so long that it is worth while.
 */
template <typename F>
void in_portions(int64_t size, int64_t portion, const F& part) {
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

/** The axis along which tiles are to be high, or none. */
std::optional<size_t> transposed(const Axes& axes) {
  size_t last = axes.shape.size() - 1;
  for (size_t i = 0; i + 1 < axes.strides.size(); ++i) {
    auto stride = axes.strides[i][last];
    if (stride == 0 || stride == 1 || axes.shape[last] < lane) {
      continue;
    }
    for (size_t axis = 0; axis < last; ++axis) {
      if (axes.strides[i][axis] == 1 && axes.shape[axis] >= tile_height / 2) {
        return axis;
      }
    }
  }
  return {};
}

} // namespace

void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    const Loop& loop) {
  bool dense = allocate_elementwise(inputs, outputs);
  auto& encoder = begin(stream, inputs, outputs);
  Kernel kernel{loop, format_of(inputs[0].dtype()), {}};
  for (auto& out : outputs) {
    kernel.outputs.push_back(out.data<char>());
  }
  if (!dense) {
    auto all = inputs;
    all.push_back(outputs[0]);
    Axes axes(all, outputs[0].shape());
    if (auto high = transposed(axes)) {
      InTiles task{std::move(kernel), std::move(axes), {}, *high};
      for (const auto& in : inputs) {
        task.inputs.push_back(in.data<char>());
      }
      encoder.dispatch(
          [task = std::move(task)] { in_portions(task.count(), 1, task); });
      return;
    }
  }
  InOrder task{std::move(kernel), {}};
  for (const auto& in : inputs) {
    task.inputs.emplace_back(in, dense, task.format);
  }
  int64_t size = outputs[0].size();
  encoder.dispatch(
      [task = std::move(task), size] { in_portions(size, portion, task); });
}

} // namespace mlxgen::cpu
