// What the C functions of packages share (docs/c.md): errors become a message
// and a return code, and arguments of C become those of operators. No exception
// leaves a C function. An invalid argument that can be detected is an error
// that names the operator and the argument.

#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlxgen/c_types.h"
#include "mlxgen/number.h"

namespace mlxgen::c {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;

/** The errors of a package's C functions: its handler, and last messages. */
class Errors {
 public:
  explicit Errors(const char* package) : package_(package) {}

  void set_handler(
      mlxgen_error_handler call,
      void* data,
      void (*dtor)(void*)) noexcept {
    guard([&] {
      auto owned = dtor ? std::shared_ptr<void>(data, dtor)
                        : std::shared_ptr<void>(data, [](void*) {});
      std::lock_guard lock(mutex_);
      call_ = call;
      data_.swap(owned); // the old data is freed without the lock
    });
  }

  /** The last message of this thread. */
  static std::string& last() {
    thread_local std::string message;
    return message;
  }

  /** Call `body` and return 0, or 1 if it throws. */
  template <typename Body>
  int guard(Body&& body) noexcept {
    try {
      body();
      return 0;
    } catch (...) {
      caught();
      return 1;
    }
  }

  /** Return the result of `body`, or `otherwise` if it throws. */
  template <typename Result, typename Body>
  Result guard_or(Result otherwise, Body&& body) noexcept {
    guard([&] { otherwise = body(); });
    return otherwise;
  }

 private:
  void caught() noexcept {
    try {
      throw;
    } catch (const std::exception& error) {
      report(error.what());
    } catch (...) {
      report("An unknown exception was thrown.");
    }
  }

  void report(const char* message) noexcept {
    try {
      last() = message;
    } catch (const std::bad_alloc&) {
      last().clear();
    }
    try {
      std::unique_lock lock(mutex_);
      auto call = call_;
      auto data = data_;
      lock.unlock(); // the handler may set another one
      if (call) {
        call(message, data.get());
      } else {
        std::fprintf(stderr, "%s: %s\n", package_, message);
      }
    } catch (...) { // an exception of a handler in C++
    }
  }

  const char* package_;
  std::mutex mutex_;
  mlxgen_error_handler call_ = nullptr;
  std::shared_ptr<void> data_;
};

/** One call: the name for messages, and the conversions of its arguments. */
struct Call {
  const char* op;

  [[noreturn]] void fail(const char* name, const std::string& what) const {
    throw std::invalid_argument(
        "[" + std::string(op) + "] " + name + " " + what);
  }

  void require(bool good, const char* name, const char* what) const {
    if (!good) {
      fail(name, what);
    }
  }

  template <typename Handle>
  void result(Handle* res, const char* name) const {
    require(res, name, "must not be NULL.");
  }

  mx::array& array(mlx_array a, const char* name) const {
    require(a.ctx, name, "must not be a null array.");
    return *static_cast<mx::array*>(a.ctx);
  }

  std::optional<mx::array> maybe_array(mlx_array a) const {
    return a.ctx ? std::optional(*static_cast<mx::array*>(a.ctx))
                 : std::nullopt;
  }

  Arrays& arrays(mlx_vector_array v, const char* name) const {
    require(v.ctx, name, "must not be a null list.");
    return *static_cast<Arrays*>(v.ctx);
  }

  std::vector<std::optional<mx::array>>
  optional_arrays(const mlx_array* items, size_t size, const char* name) const {
    check(items, size, name);
    std::vector<std::optional<mx::array>> found;
    for (size_t i = 0; i < size; ++i) {
      found.push_back(maybe_array(items[i]));
    }
    return found;
  }

  std::string text(const char* value, const char* name) const {
    require(value, name, "must not be NULL.");
    return value;
  }

  std::optional<std::string> maybe_text(const char* value) const {
    return value ? std::optional<std::string>(value) : std::nullopt;
  }

  /** A list, of which the pointer may only be null if it is empty. */
  template <typename List, typename T>
  List list(const T* items, size_t size, const char* name) const {
    check(items, size, name);
    return size ? List(items, items + size) : List();
  }

  template <typename List, typename T>
  std::optional<List> maybe_list(const T* items, size_t size, const char* name)
      const {
    check(items, size, name);
    return items ? std::optional(List(items, items + size)) : std::nullopt;
  }

  /** Lists one after the other, with their sizes. */
  std::vector<std::vector<int>> lists(
      const int* items,
      const size_t* sizes,
      size_t count,
      const char* name) const {
    check(sizes, count, name);
    std::vector<std::vector<int>> found;
    for (size_t i = 0; i < count; ++i) {
      found.push_back(list<std::vector<int>>(items, sizes[i], name));
      items = sizes[i] ? items + sizes[i] : items;
    }
    return found;
  }

  std::optional<std::vector<std::vector<int>>> maybe_lists(
      const int* items,
      const size_t* sizes,
      size_t count,
      const char* name) const {
    auto found = lists(items, sizes, count, name);
    return sizes ? std::optional(std::move(found)) : std::nullopt;
  }

  mx::Dtype dtype(mlx_dtype value, const char* name) const {
    static constexpr mx::Dtype all[] = {
        mx::bool_,
        mx::uint8,
        mx::uint16,
        mx::uint32,
        mx::uint64,
        mx::int8,
        mx::int16,
        mx::int32,
        mx::int64,
        mx::float16,
        mx::float32,
        mx::float64,
        mx::bfloat16,
        mx::complex64};
    auto i = static_cast<unsigned>(value);
    require(i < std::size(all), name, "must be a value of mlx_dtype.");
    return all[i];
  }

  Scalar number(const mlxgen_number& value, const char* name) const {
    switch (value.kind) {
      case MLXGEN_NUMBER_BOOL:
        return value.integer != 0;
      case MLXGEN_NUMBER_INT:
        return value.integer;
      case MLXGEN_NUMBER_FLOAT:
        return value.real;
      default:
        fail(name, "must have a kind of mlxgen_number_kind.");
    }
  }

  std::optional<mx::Dtype> maybe_dtype(mlx_optional_dtype of, const char* name)
      const {
    return of.has_value ? std::optional(dtype(of.value, name)) : std::nullopt;
  }

  std::optional<Scalar> maybe_number(
      const mlxgen_optional_number& of,
      const char* name) const {
    return of.has_value ? std::optional(number(of.value, name)) : std::nullopt;
  }

  /** A bool, an int or a float with `has_value`. */
  template <typename Optional>
  auto maybe(Optional of) const {
    return of.has_value ? std::optional(of.value) : std::nullopt;
  }

  mx::StreamOrDevice stream(mlx_stream s) const {
    return s.ctx ? mx::StreamOrDevice(*static_cast<mx::Stream*>(s.ctx))
                 : mx::StreamOrDevice();
  }

 private:
  void check(const void* items, size_t size, const char* name) const {
    require(
        items || !size, name, "must not be NULL, because its size is not 0.");
  }
};

/** Give the caller's handle a value. */
inline void set(mlx_array* res, mx::array&& value) {
  if (res->ctx) {
    *static_cast<mx::array*>(res->ctx) = std::move(value);
  } else {
    res->ctx = new mx::array(std::move(value));
  }
}

inline void set(mlx_vector_array* res, Arrays&& value) {
  if (res->ctx) {
    *static_cast<Arrays*>(res->ctx) = std::move(value);
  } else {
    res->ctx = new Arrays(std::move(value));
  }
}

} // namespace mlxgen::c
