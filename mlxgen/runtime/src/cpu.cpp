// Elementwise kernels on the CPU, for all operators: reads and writes arrays of
// any strides in blocks, and shares large arrays between cores.

#include "mlxgen/cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>

#include "mlxgen/memory.h"
#include "mlxgen/threads.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

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

/** The memory of an output. */
struct Memory {
  explicit Memory(const array& out)
      : data(const_cast<char*>(out.data<char>())),
        bytes(out.data_size() * out.itemsize()),
        dtype(out.dtype()) {}

  /** All elements become NaN, or 0 if their dtype has no NaN. */
  void clear() const {
    if (!mx::issubdtype(dtype, mx::inexact)) {
      std::memset(data, 0, bytes);
      return;
    }
    auto fill = [&](auto nan) {
      std::fill_n(static_cast<decltype(nan)*>(data), bytes / sizeof(nan), nan);
    };
    if (dtype == mx::float16) {
      fill(uint16_t(0x7e00));
    } else if (dtype == mx::bfloat16) {
      fill(uint16_t(0x7fc0));
    } else if (dtype == mx::float64) {
      fill(std::numeric_limits<double>::quiet_NaN());
    } else { // float32, and the parts of complex64
      fill(std::numeric_limits<float>::quiet_NaN());
    }
  }

  void* data;
  size_t bytes;
  Dtype dtype;
};

} // namespace

void enqueue(
    mx::cpu::CommandEncoder& encoder,
    [[maybe_unused]] const Arrays& inputs,
    const Arrays& outputs,
    Task task,
    const char* op) {
#ifdef __SANITIZE_THREAD__
  // A task writes to a buffer only after MLX's use count shows that earlier
  // tasks are done. MLX is not compiled with ThreadSanitizer, which therefore
  // cannot see this order: the annotations here declare it.
  std::vector<void*> users;
  for (const auto& out : outputs) {
    users.push_back(out.buffer().ptr());
    __tsan_acquire(users.back());
  }
  for (const auto& in : inputs) {
    users.push_back(in.buffer().ptr());
  }
  task = [task = std::move(task), users = std::move(users)] {
    task();
    std::for_each(users.begin(), users.end(), __tsan_release);
  };
#endif
  // MLX raises the error of a task once, and then returns the memory as it is.
  mx::SmallVector<Memory, 4> results(outputs.begin(), outputs.end());
  encoder.dispatch([task = std::move(task), results = std::move(results), op] {
    try {
      task();
    } catch (const std::exception&) {
      for (const auto& result : results) {
        result.clear();
      }
      if (op == nullptr) {
        throw;
      }
      fail_in(op);
    }
  });
}

namespace {

// The number of bytes of an operand that are copied at a time: the blocks of
// all operands fit into the first-level cache. Transposed operands use tiles.
constexpr size_t block_bytes = 8192;
constexpr int64_t page = 4096;
constexpr int64_t tile_width = 512;
constexpr int64_t tile_height = 16;

// Several rows that are shorter than this are combined.
constexpr int64_t short_row = 128;

// The chunk of a thread, and the remaining time in microseconds that justifies
// waking other threads, which takes a few tens of microseconds.
constexpr int64_t chunk = 16 * block;
constexpr double worth_waking = 60;

int64_t padded(int64_t n) {
  return (n + strip - 1) / strip * strip;
}

///////////////////////////////////////////////////////////////////////////////
// Stored and computed types of elements
///////////////////////////////////////////////////////////////////////////////

template <int64_t N>
using Constant = std::integral_constant<int64_t, N>;

MLXGEN_BEGIN_INLINED

/** Rows of elements with any stride, in sequence. */
template <typename T, typename C>
MLXGEN_MULTIVERSION void read_all(
    const T* __restrict__ from,
    int64_t down,
    int64_t across,
    C* __restrict__ to,
    int64_t rows,
    int64_t columns) {
  // With sizes and strides that are known to it, the compiler uses vectors.
  auto read = [&](auto columns, auto across) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        to[i * columns + j] = widen(from[i * down + j * across]);
      }
    }
  };
  auto of_length = [&](auto across) {
    switch (columns) {
      case 4:
        return read(Constant<4>(), across);
      case 8:
        return read(Constant<8>(), across);
      case 16:
        return read(Constant<16>(), across);
      case strip:
        return read(Constant<strip>(), across);
      default:
        return read(columns, across);
    }
  };
  switch (across) {
    case 0:
      return of_length(Constant<0>());
    case 1:
      return of_length(Constant<1>());
    case 2:
      return read(columns, Constant<2>());
    case -1:
      return read(columns, Constant<-1>());
    default:
      return read(columns, across);
  }
}

template <typename T, typename C>
MLXGEN_MULTIVERSION void
write_all(const C* __restrict__ from, T* __restrict__ to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    narrow(from[i], to[i]);
  }
}

/**
 * A tile whose elements are contiguous along its height, and `stride` apart
 * along its width; rows of the result are tile_width apart.
 */
template <typename T, typename C>
MLXGEN_MULTIVERSION void transpose_all(
    const T* __restrict__ from,
    int64_t stride,
    C* __restrict__ to,
    int64_t height,
    int64_t width) {
  constexpr int64_t side = 4; // of squares that fit into registers
  int64_t high = height / side * side;
  int64_t wide = width / side * side;
  for (int64_t j = 0; j < wide; j += side) {
    for (int64_t i = 0; i < high; i += side) {
      C square[side][side];
      for (int64_t l = 0; l < side; ++l) {
        for (int64_t k = 0; k < side; ++k) {
          square[k][l] = widen(from[(j + l) * stride + i + k]);
        }
      }
      for (int64_t k = 0; k < side; ++k) {
        std::copy_n(square[k], side, to + (i + k) * tile_width + j);
      }
    }
  }
  for (int64_t j = 0; j < width; ++j) {
    for (int64_t i = j < wide ? high : 0; i < height; ++i) {
      to[i * tile_width + j] = widen(from[j * stride + i]);
    }
  }
}

MLXGEN_END_INLINED

struct Format {
  size_t stored; // bytes of an element in memory
  size_t computed; // bytes of an element in a block
  bool same; // true if both types are equal
  void (*read)(
      const char* from,
      int64_t down,
      int64_t across,
      char* to,
      int64_t rows,
      int64_t columns);
  void (*write)(const char* from, char* to, int64_t n);
  void (*transpose)(
      const char* from,
      int64_t stride,
      char* to,
      int64_t height,
      int64_t width);
};

template <typename T>
constexpr Format format = {
    sizeof(T),
    sizeof(accum_t<T>),
    std::is_same_v<T, accum_t<T>>,
    [](const char* from,
       int64_t down,
       int64_t across,
       char* to,
       int64_t rows,
       int64_t columns) {
      multiversion([&] {
        read_all(
            reinterpret_cast<const T*>(from),
            down,
            across,
            reinterpret_cast<accum_t<T>*>(to),
            rows,
            columns);
      });
    },
    [](const char* from, char* to, int64_t n) {
      multiversion([&] {
        write_all(
            reinterpret_cast<const accum_t<T>*>(from),
            reinterpret_cast<T*>(to),
            n);
      });
    },
    [](const char* from,
       int64_t stride,
       char* to,
       int64_t height,
       int64_t width) {
      multiversion([&] {
        transpose_all(
            reinterpret_cast<const T*>(from),
            stride,
            reinterpret_cast<accum_t<T>*>(to),
            height,
            width);
      });
    }};

/** The format of elements that are only moved, of any type. */
const Format& moved(size_t bytes) {
  switch (bytes) {
    case 1:
      return format<uint8_t>;
    case 2:
      return format<uint16_t>;
    case 4:
      return format<uint32_t>;
    default:
      return format<uint64_t>;
  }
}

const Format& format_of(Dtype dtype) {
  if (dtype == mx::float16) {
    return format<float16_t>;
  }
  if (dtype == mx::bfloat16) {
    return format<bfloat16_t>;
  }
  return moved(mx::size_of(dtype));
}

/**
 * Return true if a loop over n elements can use memory without a copy to a
 * block: the last elements are computed with preceding ones, as a complete
 * strip.
 */
bool in_place(const Format& format, int64_t n) {
  return format.same && n >= strip;
}

/** Extend a block to complete strips by repeating its first element. */
void pad(char* block, int64_t n, const Format& format) {
  if (!in_place(format, n) && n % strip != 0) {
    auto to = block + n * format.computed;
    moved(format.computed).read(block, 0, 0, to, 1, padded(n) - n);
  }
}

///////////////////////////////////////////////////////////////////////////////
// Locations of elements
///////////////////////////////////////////////////////////////////////////////

using Lengths = mx::Strides; // with inline storage

/** The location of an operand's elements. */
struct Place {
  const char* at;
  int64_t across; // as in Rows
};

/** Returns the elements of an array with any strides in row-major order. */
class Reader {
 public:
  template <typename Axes, typename Strides>
  Reader(
      const char* data,
      const Format& format,
      const Axes& shape,
      const Strides& strides)
      : data_(data), format_(&format), shape_(1, 1), strides_(1, 0) {
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1) {
        continue;
      }
      if (shape_.back() == 1 || strides_.back() == strides[i] * shape[i]) {
        shape_.back() *= shape[i];
      } else {
        shape_.push_back(shape[i]);
        strides_.push_back(0);
      }
      strides_.back() = strides[i];
    }
    position_ = Lengths(shape_.size(), 0);
    if (shape_.size() == 2 && strides_[0] == 0) {
      period_ = shape_[1] <= block_length() ? shape_[1] : 0;
    }
  }

  int64_t block_length() const {
    return static_cast<int64_t>(block_bytes / format_->computed);
  }

  /** Move to element n. */
  void skip(int64_t n) {
    if (n == 0 || period_ > 0) {
      at_ = n;
      return;
    }
    for (size_t i = position_.size(); i-- > 0;) {
      position_[i] = i > 0 ? n % shape_[i] : n;
      n /= shape_[i];
      at_ += position_[i] * strides_[i];
    }
  }

  /** Return the next elements: in place, or copied to `memory`, two blocks. */
  Place next(char* memory, int64_t n) {
    if (period_ > 0) {
      return {repeated(memory, n), 1};
    }
    size_t last = shape_.size() - 1;
    auto first = data_ + at_ * format_->stored;
    if (shape_[last] - position_[last] >= n) {
      if (strides_[last] == 0) {
        if (filled_ != at_) {
          format_->read(first, 0, 0, memory, 1, strip);
          filled_ = at_;
        }
        go(n, last);
        return {memory, 0};
      }
      if (strides_[last] == 1 && in_place(*format_, n)) {
        go(n, last);
        return {first, 1};
      }
    }
    filled_ = -1;
    auto to = memory;
    for (int64_t rest = n; rest > 0;) {
      int64_t rows = 1;
      int64_t columns = std::min(rest, shape_[last] - position_[last]);
      size_t axis = last;
      if (last > 0 && position_[last] == 0 && rest >= 2 * columns) {
        // Rows as long as possible, several at once.
        axis = last - 1;
        rows = std::min(rest / columns, shape_[axis] - position_[axis]);
      }
      format_->read(
          data_ + at_ * format_->stored,
          strides_[axis],
          strides_[last],
          to,
          rows,
          columns);
      to += rows * columns * format_->computed;
      rest -= rows * columns;
      go(axis == last ? columns : rows, axis);
    }
    pad(memory, n, *format_);
    return {memory, 1};
  }

 private:
  /** A few elements that repeat are copied once. */
  const char* repeated(char* memory, int64_t n) {
    if (filled_ < n) {
      filled_ = n;
      format_->read(data_, 0, strides_[1], memory, 1, period_);
      size_t all = (padded(n) + period_) * format_->computed;
      for (size_t have = period_ * format_->computed; have < all; have *= 2) {
        std::memcpy(memory + have, memory, std::min(have, all - have));
      }
    }
    auto first = memory + at_ % period_ * format_->computed;
    at_ += n;
    return first;
  }

  /** Move n elements along an axis, at most to its end. */
  void go(int64_t n, size_t axis) {
    at_ += n * strides_[axis];
    position_[axis] += n;
    for (; axis > 0 && position_[axis] == shape_[axis]; --axis) {
      at_ += strides_[axis - 1] - strides_[axis] * shape_[axis];
      position_[axis] = 0;
      ++position_[axis - 1];
    }
  }

  const char* data_;
  const Format* format_;
  Lengths shape_;
  Lengths strides_;
  Lengths position_;
  int64_t period_ = 0; // elements repeat after this number; 0: they do not
  int64_t at_ = 0;
  int64_t filled_ = -1; // contents of memory: a count, or the element's index
};

/** The working memory of a thread, which it keeps for the next task. */
struct Scratch {
  std::vector<const void*> in;
  std::vector<int64_t> across;
  std::vector<int64_t> down;
  std::vector<void*> out;

  static Scratch& get(size_t inputs, size_t outputs, size_t bytes) {
    static thread_local Scratch scratch;
    scratch.in.resize(inputs);
    scratch.across.resize(inputs);
    scratch.down.resize(inputs);
    scratch.out.resize(outputs);
    size_t all = (inputs + outputs) * bytes;
    if (scratch.size_ < all) {
      scratch.memory_.reset(
          static_cast<char*>(::operator new(all, std::align_val_t(64))));
      scratch.size_ = all;
    }
    scratch.bytes_ = bytes;
    return scratch;
  }

  /** The memory of an operand, inputs before outputs. */
  char* block(size_t i) const {
    return memory_.get() + i * bytes_;
  }

  char* result(size_t output) const {
    return block(in.size() + output);
  }

  /** Move n elements ahead in all inputs. */
  void go(int64_t n, size_t bytes) {
    for (size_t i = 0; i < in.size(); ++i) {
      auto at = static_cast<const char*>(in[i]);
      in[i] = at + n * across[i] * static_cast<int64_t>(bytes);
    }
  }

  void set(size_t input, const Place& place) {
    in[input] = place.at;
    across[input] = place.across;
  }

 private:
  struct Aligned {
    void operator()(char* memory) const {
      ::operator delete(memory, std::align_val_t(64));
    }
  };

  size_t size_ = 0;
  size_t bytes_ = 0;
  std::unique_ptr<char, Aligned> memory_;
};

///////////////////////////////////////////////////////////////////////////////
// Running
///////////////////////////////////////////////////////////////////////////////

using Pointers = std::vector<char*>;

/** An elementwise kernel and its results. */
struct Kernel {
  Loop loop;
  const Format* format;
  Pointers outputs;
  bool apart; // true if outputs have separate memory

  /** Run the loop for n elements, beginning with element `start`. */
  void run(Scratch& scratch, int64_t start, int64_t n) const {
    if (!in_place(*format, n)) {
      compute(scratch, -1, 1, padded(n));
      for (size_t i = 0; i < outputs.size(); ++i) {
        format->write(scratch.result(i), at(i, start), n);
      }
      return;
    }
    int64_t rest = apart ? 0 : n % strip;
    if (rest == 0) {
      return compute(scratch, start, 1, n);
    }
    // The last elements first, and to another place, because the loop
    // overwrites the inputs of this computation.
    scratch.go(n - strip, format->stored);
    compute(scratch, -1, 1, strip);
    scratch.go(strip - n, format->stored);
    if (n > rest) {
      compute(scratch, start, 1, n - rest);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto from = scratch.result(i) + (strip - rest) * format->stored;
      format->write(from, at(i, start + n - rest), rest);
    }
  }

  /** Run the loop; results begin at number `start`, or -1: in blocks. */
  void compute(Scratch& scratch, int64_t start, int64_t rows, int64_t count)
      const {
    for (size_t i = 0; i < outputs.size(); ++i) {
      scratch.out[i] = start < 0 ? scratch.result(i) : at(i, start);
    }
    loop(
        {scratch.in.data(),
         scratch.across.data(),
         scratch.down.data(),
         scratch.out.data(),
         rows,
         count});
  }

  char* at(size_t i, int64_t n) const {
    return outputs[i] + n * format->stored;
  }

  int64_t block_length() const {
    return static_cast<int64_t>(block_bytes / format->computed);
  }
};

/** A kernel over arrays whose elements have the same layout. */
struct Dense : Kernel {
  Pointers inputs;
  std::vector<bool> scalar; // true for operands of one element

  /** Compute elements start to stop; start is a multiple of a chunk. */
  void operator()(int64_t start, int64_t stop) const {
    auto most = std::min(padded(stop - start), block_length());
    auto& scratch =
        Scratch::get(inputs.size(), outputs.size(), most * format->computed);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (scalar[i]) {
        format->read(inputs[i], 0, 0, scratch.block(i), 1, strip);
        scratch.set(i, {scratch.block(i), 0});
      }
    }
    while (start < stop) {
      int64_t n = stop - start;
      bool there = in_place(*format, n);
      n = there ? n : std::min(n, block_length());
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (scalar[i]) {
          continue;
        }
        auto from = inputs[i] + start * format->stored;
        if (!there) {
          format->read(from, 0, 1, scratch.block(i), 1, n);
          pad(scratch.block(i), n, *format);
        }
        scratch.set(i, {there ? from : scratch.block(i), 1});
      }
      run(scratch, start, n);
      start += n;
    }
  }
};

/**
 * A kernel over rows that need no copy: in a row the elements of an input are
 * contiguous, or all equal.
 */
struct InRows : Kernel {
  Axes axes; // of the inputs and the first output
  Pointers inputs;

  /** Long rows are divided into pieces of a chunk; the last piece may be
   * larger. */
  int64_t pieces() const {
    return std::max<int64_t>(1, axes.shape.back() / chunk);
  }

  /** Compute pieces start to stop. */
  void operator()(int64_t start, int64_t stop) const {
    constexpr int64_t most = 32; // rows at once
    size_t bytes = std::max(most * strip * format->computed, 2 * block_bytes);
    auto& scratch = Scratch::get(inputs.size(), outputs.size(), bytes + page);
    size_t last = axes.shape.size() - 1;
    int64_t length = axes.shape[last];
    int64_t height = last == 0 ? 1 : axes.shape[last - 1];
    while (start < stop) {
      int64_t row = start / pieces();
      int64_t first = start % pieces() * chunk;
      int64_t count = start % pieces() + 1 < pieces() ? chunk : length - first;
      // Several rows at once, if each is one piece without special cases.
      int64_t rows = apart && pieces() == 1
          ? std::min({most, stop - start, height - row % height})
          : 1;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const auto& strides = axes.strides[k];
        int64_t offset = 0;
        for (int64_t i = last, left = row; i-- > 0; left /= axes.shape[i]) {
          offset += left % axes.shape[i] * strides[i];
        }
        auto from = inputs[k] + offset * format->stored;
        auto down = last == 0 ? 0 : strides[last - 1];
        scratch.down[k] = down;
        if (strides[last] != 0) {
          from += first * format->stored;
          if (down == 0 && rows > 1 && length * format->stored <= bytes) {
            // A row that is read repeatedly is copied to the same position in a
            // page as its results. Otherwise processors mistake a load for a
            // dependency on an earlier store to the same position of another
            // page.
            auto to = scratch.block(k);
            to += (at(0, row * length) - to) & (page - 1);
            format->read(from, 0, 1, to, 1, length);
            from = to;
          }
          scratch.set(k, {from, 1});
          continue;
        }
        // A strip for each row.
        auto strips = down == 0 ? 1 : rows;
        format->read(from, down, 0, scratch.block(k), strips, strip);
        scratch.down[k] = down == 0 ? 0 : strip;
        scratch.set(k, {scratch.block(k), 0});
      }
      if (rows > 1) {
        compute(scratch, row * length, rows, length);
      } else {
        run(scratch, row * length + first, count);
      }
      start += rows;
    }
  }
};

/** A kernel over elements in row-major order; other inputs are copied. */
struct InOrder : Kernel {
  std::vector<Reader> inputs;

  void operator()(int64_t start, int64_t stop) const {
    auto& scratch =
        Scratch::get(inputs.size(), outputs.size(), 2 * block_bytes);
    auto readers = inputs;
    for (auto& reader : readers) {
      reader.skip(start);
    }
    for (; start < stop; start += block_length()) {
      int64_t n = std::min(block_length(), stop - start);
      for (size_t i = 0; i < readers.size(); ++i) {
        scratch.set(i, readers[i].next(scratch.block(i), n));
      }
      run(scratch, start, n);
    }
  }
};

/**
 * A kernel with transposed inputs, in tiles. A tile of a transposed input is
 * read along the axis with contiguous elements.
 */
struct InTiles : Kernel {
  Axes axes; // of the inputs and the first output
  Pointers inputs;
  size_t
      high; // the axis along the height of tiles; the width is along the last

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
    auto& scratch = Scratch::get(
        inputs.size(),
        outputs.size(),
        tile_height * tile_width * format->computed);
    for (; start < stop; ++start) {
      tile(start, scratch);
    }
  }

  void tile(int64_t number, Scratch& scratch) const {
    size_t last = axes.shape.size() - 1;
    Lengths first(axes.strides.size(), 0);
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
    for (int64_t row = 0; row < height; ++row) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        auto across = axes.strides[i][last];
        auto down = axes.strides[i][high];
        auto from = inputs[i] + first[i] * format->stored;
        auto block = scratch.block(i);
        if (down == 1 && across != 1) {
          if (row == 0) {
            format->transpose(from, across, block, height, width);
          }
          block += row * tile_width * format->computed;
        } else if (row == 0 || down != 0) {
          from += row * down * format->stored;
          if (across == 0) {
            format->read(from, 0, 0, block, 1, strip);
            scratch.set(i, {block, 0});
            continue;
          }
          if (across == 1 && in_place(*format, width)) {
            scratch.set(i, {from, 1});
            continue;
          }
          format->read(from, 0, across, block, 1, width);
        } else {
          continue;
        }
        pad(block, width, *format);
        scratch.set(i, {block, 1});
      }
      run(scratch, first.back() + row * axes.strides.back()[high], width);
    }
  }
};

/**
 * Compute `size` units, on several threads if the first chunk takes so long
 * that this is faster.
 */
template <typename F>
void in_chunks(int64_t size, int64_t chunk, const F& part) {
  if (size <= 2 * chunk) {
    return part(0, size);
  }
  using Clock = std::chrono::steady_clock;
  auto start = Clock::now();
  part(0, chunk);
  std::chrono::duration<double, std::micro> taken = Clock::now() - start;
  int64_t chunks = (size - 1) / chunk;
  if (taken.count() * chunks < worth_waking) {
    return part(chunk, size);
  }
  Workers::get().run(chunks, [&](int64_t first, int64_t last) {
    part((first + 1) * chunk, std::min((last + 1) * chunk, size));
  });
}

/** The axis along the height of tiles, or none. */
std::optional<size_t> transposed(const Axes& axes) {
  size_t last = axes.shape.size() - 1;
  for (size_t i = 0; i + 1 < axes.strides.size(); ++i) {
    auto stride = axes.strides[i][last];
    if (stride == 0 || stride == 1 || axes.shape[last] < strip) {
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

/** Return true if a kernel can run over rows. */
bool has_rows(const Axes& axes, const Format& format) {
  auto row = axes.shape.back();
  auto in_place = [](const auto& strides) {
    return strides.back() == 0 || strides.back() == 1;
  };
  return format.same && row >= short_row &&
      std::all_of(axes.strides.begin(), axes.strides.end(), in_place);
}

/** Run a loop over allocated outputs; `dense`: all arrays have the same layout.
 */
void dispatch(
    mx::cpu::CommandEncoder& encoder,
    const Format& format,
    const Arrays& inputs,
    Arrays& outputs,
    bool dense,
    Loop loop) {
  Kernel kernel{std::move(loop), &format, {}, true};
  kernel.outputs.reserve(outputs.size());
  for (auto& out : outputs) {
    kernel.outputs.push_back(out.data<char>());
  }
  Pointers pointers;
  pointers.reserve(inputs.size());
  for (const auto& in : inputs) {
    pointers.push_back(const_cast<char*>(in.data<char>()));
    for (auto out : kernel.outputs) {
      kernel.apart = kernel.apart && out != pointers.back();
    }
  }
  int64_t size = outputs[0].size();
  if (size == 0) {
    return;
  }
  if (dense) {
    Dense task{std::move(kernel), std::move(pointers), {}};
    for (const auto& in : inputs) {
      task.scalar.push_back(in.data_size() == 1);
    }
    enqueue(encoder, inputs, outputs, [task = std::move(task), size] {
      in_chunks(size, chunk, task);
    });
    return;
  }
  auto in_order = [&](const auto& shape, auto strides) {
    InOrder task{std::move(kernel), {}};
    task.inputs.reserve(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      task.inputs.emplace_back(pointers[i], format, shape, strides(i));
    }
    enqueue(encoder, inputs, outputs, [task = std::move(task), size] {
      in_chunks(size, chunk, task);
    });
  };
  if (size <= kernel.block_length()) {
    // One block, for which the choice of a method would take too long.
    auto strides = [&](size_t i) -> const auto& { return inputs[i].strides(); };
    return in_order(outputs[0].shape(), strides);
  }
  auto all = inputs;
  all.push_back(outputs[0]);
  Axes axes(all, outputs[0].shape());
  if (auto high = transposed(axes)) {
    InTiles task{
        std::move(kernel), std::move(axes), std::move(pointers), *high};
    enqueue(encoder, inputs, outputs, [task = std::move(task)] {
      in_chunks(task.count(), 1, task);
    });
    return;
  }
  if (has_rows(axes, format)) {
    auto rows = size / axes.shape.back();
    auto many = std::max<int64_t>(1, chunk / axes.shape.back());
    InRows task{std::move(kernel), std::move(axes), std::move(pointers)};
    enqueue(encoder, inputs, outputs, [task = std::move(task), rows, many] {
      in_chunks(rows * task.pieces(), many, task);
    });
    return;
  }
  in_order(
      axes.shape, [&](size_t i) -> const auto& { return axes.strides[i]; });
}

} // namespace

void run_elementwise(
    const Stream& stream,
    const Arrays& inputs,
    Arrays& outputs,
    Loop loop) {
  bool dense = allocate_elementwise(inputs, outputs);
  auto& encoder = begin(stream, inputs, outputs);
  const auto& format = format_of(inputs[0].dtype());
  dispatch(encoder, format, inputs, outputs, dense, std::move(loop));
}

void copy(const Stream& stream, const array& from, array& to) {
  Arrays outputs{to};
  auto& encoder = begin(stream, {from}, outputs);
  auto bytes = from.itemsize();
  auto loop = [bytes](const Rows& rows) {
    for (int64_t row = 0; row < rows.rows; ++row) {
      auto source = static_cast<const char*>(rows.in[0]);
      auto target = static_cast<char*>(rows.out[0]) + row * rows.count * bytes;
      source += row * rows.down[0] * bytes;
      int64_t run = rows.across[0] == 0 ? strip : rows.count;
      for (int64_t start = 0; start < rows.count; start += run) {
        int64_t at = std::min(start, rows.count - run);
        std::memcpy(target + at * bytes, source, run * bytes);
      }
    }
  };
  dispatch(encoder, moved(bytes), {from}, outputs, false, loop);
}

} // namespace mlxgen::cpu
