// The functions that compiled formulas call in addition to MLX: Python's rules
// where C++ differs (scalars with arrays, floor division, negative indices,
// slices of shapes), and comprehensions over lists of arrays.

#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "mlx/einsum.h"
#include "mlx/fast.h"
#include "mlx/fft.h"
#include "mlx/linalg.h"
#include "mlx/ops.h"
#include "mlx/random.h"
#include "mlx/version.h"
#include "mlxgen/number.h"
#include "mlxgen/shapeless.h"

namespace mlxgen {

namespace mx = mlx::core;

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/** A named subexpression that only conditions use: computed at its first use.
 */
template <typename F>
class Lazy {
 public:
  explicit Lazy(F compute) : compute_(std::move(compute)) {}

  const std::invoke_result_t<F>& operator()() const {
    if (!value_) {
      value_.emplace(compute_());
    }
    return *value_;
  }

 private:
  F compute_;
  mutable std::optional<std::invoke_result_t<F>> value_;
};

/** A number of C++ or of Python. */
template <typename T>
concept AnyNumber = Number<T> || std::is_same_v<T, Scalar>;

///////////////////////////////////////////////////////////////////////////////
// Numbers
///////////////////////////////////////////////////////////////////////////////

/** Convert a Python number to an int of MLX's C++ API; truncate floats as
 * int().
 */
template <Number T>
int to_int(T value) {
  constexpr auto lo = std::numeric_limits<int>::min();
  constexpr auto hi = std::numeric_limits<int>::max();
  // Written so that NaN fails, too. Floats are compared as doubles, in which
  // both bounds are exact, and before truncation.
  bool fits;
  if constexpr (std::is_floating_point_v<T>) {
    fits = value > static_cast<double>(lo) - 1 &&
        value < static_cast<double>(hi) + 1;
  } else {
    fits = std::in_range<int>(static_cast<int64_t>(value));
  }
  if (!fits) {
    std::ostringstream os;
    os << "The number " << value << " does not fit into 32 bits.";
    throw std::overflow_error(os.str());
  }
  return static_cast<int>(value);
}

template <Number T>
std::optional<int> to_int(const std::optional<T>& value) {
  return value ? std::optional<int>(to_int(*value)) : std::nullopt;
}

/** Python's `a * b`, for products of more than two ints. */
template <Whole A, Whole B>
auto times(A a, B b) {
  std::common_type_t<A, B> out;
  if (__builtin_mul_overflow(a, b, &out)) {
    throw std::overflow_error(
        "A number does not fit into " + std::to_string(8 * sizeof(out)) +
        " bits.");
  }
  return out;
}

/** Python's `a // b`. */
template <Whole A, Whole B>
auto floor_div(A a, B b) {
  if (b == 0) {
    throw std::domain_error("Integer division by zero.");
  }
  if (b == -1) { // the smallest int has no negative
    return times(a, b);
  }
  auto q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

/** Python's `a % b`: the sign is that of b. */
template <Whole A, Whole B>
auto floor_mod(A a, B b) {
  if (b == 0) {
    throw std::domain_error("Integer modulo by zero.");
  }
  auto r = b == -1 ? 0 : a % b; // INT_MIN % -1 is undefined in C++
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

template <Number A, Number B>
double floor_mod(A a, B b) {
  double y = b;
  if (y == 0) {
    throw std::domain_error("Float modulo by zero.");
  }
  double r = std::fmod(static_cast<double>(a), y);
  return r == 0 ? std::copysign(0, y) : (r < 0) != (y < 0) ? r + y : r;
}

/** By the remainder, as Python: `1 // 0.1` is 9, although 1 / 0.1 is 10. */
template <Number A, Number B>
double floor_div(A a, B b) {
  double x = a;
  double y = b;
  if (y == 0) {
    throw std::domain_error("Float floor division by zero.");
  }
  double r = std::fmod(x, y);
  double q = (x - r) / y - (r != 0 && (r < 0) != (y < 0));
  return q == 0 ? std::copysign(0, x / y) : std::nearbyint(q);
}

/** `base ** exponent` of ints, for an exponent that is not negative. */
inline int64_t int_pow(int64_t base, int64_t exponent) {
  int64_t out = 1;
  while (true) {
    if (exponent & 1) {
      out = times(out, base);
    }
    exponent >>= 1;
    if (exponent == 0) {
      return out;
    }
    base = times(base, base);
  }
}

/** Python's `round(value)`, an int. */
template <Number T>
int round(T value) {
  return to_int(std::nearbyint(static_cast<double>(value)));
}

// The functions of numbers whose kind is known at run time only.

inline Scalar floor_div(Scalar a, Scalar b) {
  return Scalar::join(
      a, b, [](auto x, auto y) -> Scalar { return floor_div(x, y); });
}

inline Scalar floor_mod(Scalar a, Scalar b) {
  return Scalar::join(
      a, b, [](auto x, auto y) -> Scalar { return floor_mod(x, y); });
}

/** `base ** exponent`: an int if both are ints and the exponent is not
 * negative.
 */
inline Scalar pow(Scalar base, Scalar exponent) {
  if (base.is_float() || exponent.is_float() || exponent < 0) {
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  return int_pow(static_cast<int64_t>(base), static_cast<int64_t>(exponent));
}

inline Scalar abs(Scalar value) {
  return value < 0 ? -value : value + 0; // a bool becomes an int
}

inline Scalar min(Scalar a, Scalar b) {
  return b < a ? b : a;
}

inline Scalar max(Scalar a, Scalar b) {
  return b > a ? b : a;
}

// MLX's functions: ints stay ints.

inline Scalar floor(Scalar value) {
  return value.is_float() ? std::floor(static_cast<double>(value)) : value;
}

inline Scalar ceil(Scalar value) {
  return value.is_float() ? std::ceil(static_cast<double>(value)) : value;
}

inline Scalar trunc(Scalar value) {
  return value.is_float() ? std::trunc(static_cast<double>(value)) : value;
}

/** `int(value)` as an int of MLX's C++ API. */
inline int to_int(Scalar value) {
  return value.visit([](auto v) { return to_int(v); });
}

inline int round(Scalar value) {
  return value.visit([](auto v) { return round(v); });
}

///////////////////////////////////////////////////////////////////////////////
// Shapes and lists of ints
///////////////////////////////////////////////////////////////////////////////

inline int ndim(const mx::array& x) {
  return static_cast<int>(x.ndim());
}

inline int64_t size(const mx::array& x) {
  return static_cast<int64_t>(x.size());
}

inline int itemsize(const mx::array& x) {
  return static_cast<int>(x.itemsize());
}

inline int64_t nbytes(const mx::array& x) {
  return static_cast<int64_t>(x.nbytes());
}

// By value, because the function may be called on a temporary.
inline mx::Shape shape(const mx::array& x) {
  return x.shape();
}

inline mx::Dtype dtype(const mx::array& x) {
  return x.dtype();
}

template <typename List>
int len(const List& list) {
  return static_cast<int>(list.size());
}

template <typename List>
bool empty(const List& list) {
  return list.empty();
}

template <typename List>
mx::Shape sorted(const List& list) {
  mx::Shape out(list.begin(), list.end());
  std::sort(out.begin(), out.end());
  return out;
}

/** `list[i]` with a range check; negative i counts from the end. */
template <typename List>
const typename List::value_type& item(const List& list, int i) {
  int n = len(list);
  if (i < -n || i >= n) {
    throw std::out_of_range(
        "Index " + std::to_string(i) + " is out of range for a list of " +
        std::to_string(n) + ".");
  }
  return list.begin()[i < 0 ? i + n : i];
}

inline bool item(const std::vector<bool>& list, int i) {
  int n = len(list);
  if (i < -n || i >= n) {
    throw std::out_of_range(
        "Index " + std::to_string(i) + " is out of range for a list of " +
        std::to_string(n) + ".");
  }
  return list[i < 0 ? i + n : i];
}

/** `x.shape[axis]` */
inline int dim(const mx::array& x, int axis) {
  int n = ndim(x);
  if (axis < -n || axis >= n) {
    throw std::out_of_range(
        "Axis " + std::to_string(axis) + " is out of range for an array with " +
        std::to_string(n) + " dimensions.");
  }
  return x.shape(axis);
}

/** `list[start:stop:step]` */
template <typename List>
List slice(
    const List& list,
    std::optional<int> start,
    std::optional<int> stop = std::nullopt,
    std::optional<int> step = std::nullopt) {
  int n = len(list);
  int by = step.value_or(1);
  if (by == 0) {
    throw std::invalid_argument("The step of a slice cannot be zero.");
  }
  int lo = by < 0 ? -1 : 0;
  auto bound = [&](std::optional<int> i, int otherwise) {
    return i ? std::clamp(*i < 0 ? *i + n : *i, lo, n + lo) : otherwise;
  };
  int first = bound(start, by < 0 ? n - 1 : 0);
  int last = bound(stop, by < 0 ? -1 : n);
  List out;
  for (int64_t i = first; by < 0 ? i > last : i < last; i += by) {
    out.push_back(list.begin()[i]);
  }
  return out;
}

/** `a + b + ...` of lists. */
template <typename List, typename... Lists>
List concat(List out, const Lists&... lists) {
  (out.insert(out.end(), lists.begin(), lists.end()), ...);
  return out;
}

/** `list * n` */
template <typename List>
List repeat(const List& list, int n) {
  List out;
  for (int i = 0; i < n; ++i) {
    out.insert(out.end(), list.begin(), list.end());
  }
  return out;
}

template <typename List>
bool contains(const List& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename List>
mx::Shape as_shape(const List& list) {
  return mx::Shape(list.begin(), list.end());
}

template <typename List>
std::optional<mx::Shape> as_shape(const std::optional<List>& list) {
  return list ? std::optional<mx::Shape>(as_shape(*list)) : std::nullopt;
}

template <typename List>
std::vector<int> as_ints(const List& list) {
  return std::vector<int>(list.begin(), list.end());
}

template <typename List>
std::optional<std::vector<int>> as_ints(const std::optional<List>& list) {
  return list ? std::optional<std::vector<int>>(as_ints(*list)) : std::nullopt;
}

template <typename List>
mx::Strides as_strides(const List& list) {
  return mx::Strides(list.begin(), list.end());
}

template <typename List>
void expect_count(const List& list, int count) {
  if (len(list) != count) {
    throw std::invalid_argument(
        "Expected " + std::to_string(count) + " values, got " +
        std::to_string(len(list)) + ".");
  }
}

template <typename List>
std::pair<int, int> as_pair(const List& list) {
  expect_count(list, 2);
  return {list.begin()[0], list.begin()[1]};
}

inline std::vector<std::pair<int, int>> as_pairs(
    const std::vector<std::vector<int>>& lists) {
  std::vector<std::pair<int, int>> out;
  for (const auto& list : lists) {
    out.push_back(as_pair(list));
  }
  return out;
}

/** The first or second of two lists. */
inline const std::vector<int>& half(
    const std::vector<std::vector<int>>& lists,
    int i) {
  expect_count(lists, 2);
  return lists[i];
}

template <typename List>
std::tuple<int, int, int> as_triple(const List& list) {
  expect_count(list, 3);
  return {list.begin()[0], list.begin()[1], list.begin()[2]};
}

/** `range(start, stop, step)` */
inline mx::Shape range(int start, int stop, int step = 1) {
  if (step == 0) {
    throw std::invalid_argument("The step of a range cannot be zero.");
  }
  mx::Shape out;
  for (int64_t i = start; step < 0 ? i > stop : i < stop; i += step) {
    out.push_back(static_cast<int>(i));
  }
  return out;
}

///////////////////////////////////////////////////////////////////////////////
// Comprehensions
///////////////////////////////////////////////////////////////////////////////

/** Lists of ints become a Shape, other lists a vector. */
template <typename T>
using ListOf =
    std::conditional_t<std::is_same_v<T, int>, mx::Shape, std::vector<T>>;

/** `[fun(a) for a in list]` */
template <typename List, typename Fun>
auto map(const List& list, Fun fun) {
  ListOf<decltype(fun(*list.begin()))> out;
  for (const auto& a : list) {
    out.push_back(fun(a));
  }
  return out;
}

/** `[fun(a, b) for a, b in zip(list, other)]` */
template <typename List, typename Other, typename Fun>
auto map(const List& list, const Other& other, Fun fun) {
  ListOf<decltype(fun(*list.begin(), *other.begin()))> out;
  auto b = other.begin();
  for (auto a = list.begin(); a != list.end() && b != other.end(); ++a, ++b) {
    out.push_back(fun(*a, *b));
  }
  return out;
}

/** `[a for a in list if keep(a)]` */
template <typename List, typename Keep>
List filter(const List& list, Keep keep) {
  List out;
  for (const auto& a : list) {
    if (keep(a)) {
      out.push_back(a);
    }
  }
  return out;
}

inline int64_t sum(const mx::Shape& list) {
  int64_t out = 0;
  for (auto i : list) {
    out += i;
  }
  return out;
}

inline double sum(const std::vector<double>& list) {
  double out = 0;
  for (auto v : list) {
    out += v;
  }
  return out;
}

/** `sum(arrays)` */
inline mx::array sum(
    const std::vector<mx::array>& arrays,
    mx::StreamOrDevice s) {
  auto out = item(arrays, 0);
  for (size_t i = 1; i < arrays.size(); ++i) {
    out = mx::add(out, arrays[i], s);
  }
  return out;
}

inline int64_t prod(const mx::Shape& list) {
  int64_t out = 1;
  for (auto i : list) {
    out *= i;
  }
  return out;
}

template <typename List>
auto min(const List& list) {
  item(list, 0);
  return *std::min_element(list.begin(), list.end());
}

template <typename List>
auto max(const List& list) {
  item(list, 0);
  return *std::max_element(list.begin(), list.end());
}

inline bool all(const std::vector<bool>& list) {
  return std::find(list.begin(), list.end(), false) == list.end();
}

inline bool any(const std::vector<bool>& list) {
  return std::find(list.begin(), list.end(), true) != list.end();
}

///////////////////////////////////////////////////////////////////////////////
// Lists of arrays
///////////////////////////////////////////////////////////////////////////////

/** A pair or tuple of arrays as a vector. */
template <typename Tuple>
std::vector<mx::array> as_arrays(const Tuple& tuple) {
  return std::apply(
      [](const auto&... x) { return std::vector<mx::array>{x...}; }, tuple);
}

/** `arrays`, checked to contain `count` arrays. */
inline std::vector<mx::array> exactly(
    std::vector<mx::array> arrays,
    int count) {
  expect_count(arrays, count);
  return arrays;
}

///////////////////////////////////////////////////////////////////////////////
// Numbers as arrays
///////////////////////////////////////////////////////////////////////////////

/**
 * A scalar next to an array of dtype `like`, as mlx.core converts it: it takes
 * the array's dtype, but a float does not become an int, and an int does not
 * become a bool.
 */
template <Number T>
mx::array scalar(T value, mx::Dtype like) {
  if constexpr (std::is_same_v<T, bool>) {
    return mx::array(value, like);
  } else if constexpr (std::is_integral_v<T>) {
    if (like == mx::bool_) {
      like = mx::int32;
    }
    if (mx::issubdtype(like, mx::integer) && like.size() < 8) {
      auto info = mx::iinfo(like);
      if (std::cmp_less(value, info.min) || std::cmp_greater(value, info.max)) {
        std::ostringstream os;
        os << "Converting " << value << " to " << like
           << " would result in overflow.";
        throw std::invalid_argument(os.str());
      }
    }
    return mx::array(static_cast<int64_t>(value), like);
  } else {
    if (!mx::issubdtype(like, mx::floating)) {
      like = mx::float32;
    }
    return like == mx::float64 ? mx::array(static_cast<double>(value), like)
                               : mx::array(static_cast<float>(value), like);
  }
}

/** A scalar on its own: bool, int32 (int64 if too large) or float32. */
template <Number T>
mx::array scalar(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return scalar(value, mx::bool_);
  } else if constexpr (std::is_integral_v<T>) {
    return scalar(value, std::in_range<int>(value) ? mx::int32 : mx::int64);
  } else {
    return scalar(value, mx::float32);
  }
}

inline mx::array scalar(Scalar value, mx::Dtype like) {
  return value.visit([&](auto v) { return scalar(v, like); });
}

inline mx::array scalar(Scalar value) {
  return value.visit([](auto v) { return scalar(v); });
}

/** `array(value, dtype)` */
inline mx::array as_array(Scalar value, mx::Dtype dtype) {
  return value.visit([&](auto v) { return mx::array(v, dtype); });
}

/** An operand that may be a scalar: see the functions below. */
inline const mx::array& operand(const mx::array& value, mx::Dtype) {
  return value;
}

template <AnyNumber T>
mx::array operand(T value, mx::Dtype like) {
  return scalar(value, like);
}

inline std::nullopt_t operand(std::nullopt_t, mx::Dtype) {
  return std::nullopt;
}

template <typename T>
std::optional<mx::array> operand(
    const std::optional<T>& value,
    mx::Dtype like) {
  return value ? std::optional<mx::array>(operand(*value, like)) : std::nullopt;
}

// MLX's functions of two arrays, one of which may be a scalar.
#define MLXGEN_BINARY(name, result)                            \
  template <AnyNumber T>                                       \
  result name(const mx::array& a, T b, mx::StreamOrDevice s) { \
    return mx::name(a, scalar(b, a.dtype()), s);               \
  }                                                            \
  template <AnyNumber T>                                       \
  result name(T a, const mx::array& b, mx::StreamOrDevice s) { \
    return mx::name(scalar(a, b.dtype()), b, s);               \
  }

MLXGEN_BINARY(add, mx::array)
MLXGEN_BINARY(subtract, mx::array)
MLXGEN_BINARY(multiply, mx::array)
MLXGEN_BINARY(divide, mx::array)
MLXGEN_BINARY(divmod, std::vector<mx::array>)
MLXGEN_BINARY(floor_divide, mx::array)
MLXGEN_BINARY(remainder, mx::array)
MLXGEN_BINARY(minimum, mx::array)
MLXGEN_BINARY(maximum, mx::array)
MLXGEN_BINARY(arctan2, mx::array)
MLXGEN_BINARY(logaddexp, mx::array)
MLXGEN_BINARY(equal, mx::array)
MLXGEN_BINARY(not_equal, mx::array)
MLXGEN_BINARY(less, mx::array)
MLXGEN_BINARY(less_equal, mx::array)
MLXGEN_BINARY(greater, mx::array)
MLXGEN_BINARY(greater_equal, mx::array)
#if MLX_VERSION_NUMERIC >= 32000
MLXGEN_BINARY(logical_xor, mx::array)
#endif
MLXGEN_BINARY(bitwise_and, mx::array)
MLXGEN_BINARY(bitwise_or, mx::array)
MLXGEN_BINARY(bitwise_xor, mx::array)
MLXGEN_BINARY(left_shift, mx::array)
MLXGEN_BINARY(right_shift, mx::array)

#undef MLXGEN_BINARY

inline bool are_bools(const mx::array& a, const mx::array& b) {
  return a.dtype() == mx::bool_ && b.dtype() == mx::bool_;
}

// MLX 0.32.4's vmap of bitwise operations is wrong if only one side is mapped;
// that of the logical ones is right.
inline mx::array
bitwise_and(const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {
  return are_bools(a, b) ? mx::logical_and(a, b, s) : mx::bitwise_and(a, b, s);
}

inline mx::array
bitwise_or(const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {
  return are_bools(a, b) ? mx::logical_or(a, b, s) : mx::bitwise_or(a, b, s);
}

inline mx::array
bitwise_xor(const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {
  return are_bools(a, b) ? mx::not_equal(a, b, s) : mx::bitwise_xor(a, b, s);
}

template <Number T>
bool is_two(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return false;
  } else {
    return value == 2;
  }
}

inline bool is_two(Scalar value) {
  return value.visit([](auto v) { return is_two(v); });
}

/** MLX's power calls the C library for each number, and square does not. */
template <AnyNumber T>
mx::array power(const mx::array& a, T b, mx::StreamOrDevice s) {
  if (is_two(b) && mx::issubdtype(a.dtype(), mx::inexact)) {
    return mx::square(a, s);
  }
  return mx::power(a, scalar(b, a.dtype()), s);
}

template <AnyNumber T>
mx::array power(T a, const mx::array& b, mx::StreamOrDevice s) {
  return mx::power(scalar(a, b.dtype()), b, s);
}

template <AnyNumber T>
mx::array
array_equal(const mx::array& a, T b, bool equal_nan, mx::StreamOrDevice s) {
  return mx::array_equal(a, scalar(b, a.dtype()), equal_nan, s);
}

template <AnyNumber T>
mx::array
array_equal(T a, const mx::array& b, bool equal_nan, mx::StreamOrDevice s) {
  return mx::array_equal(scalar(a, b.dtype()), b, equal_nan, s);
}

template <AnyNumber T>
mx::array where(
    const mx::array& condition,
    const mx::array& x,
    T y,
    mx::StreamOrDevice s) {
  return mlxgen::where(condition, x, scalar(y, x.dtype()), s);
}

template <AnyNumber T>
mx::array where(
    const mx::array& condition,
    T x,
    const mx::array& y,
    mx::StreamOrDevice s) {
  return mlxgen::where(condition, scalar(x, y.dtype()), y, s);
}

template <AnyNumber T, AnyNumber U>
mx::array where(const mx::array& condition, T x, U y, mx::StreamOrDevice s) {
  return mlxgen::where(condition, scalar(x), scalar(y), s);
}

template <typename Low, typename High>
mx::array clip(
    const mx::array& a,
    const Low& low,
    const High& high,
    mx::StreamOrDevice s) {
  return mx::clip(a, operand(low, a.dtype()), operand(high, a.dtype()), s);
}

template <typename Width, AnyNumber T>
mx::array pad(
    const mx::array& a,
    const Width& width,
    T value,
    const std::string& mode,
    mx::StreamOrDevice s) {
  return mx::pad(a, width, scalar(value, a.dtype()), mode, s);
}

template <AnyNumber T>
mx::array full_like(const mx::array& a, T value, mx::StreamOrDevice s) {
  return mx::full_like(a, scalar(value, a.dtype()), a.dtype(), s);
}

///////////////////////////////////////////////////////////////////////////////
// Functions that only mlx.core's Python binding has
///////////////////////////////////////////////////////////////////////////////

inline mx::array take_along_axis(
    const mx::array& a,
    const mx::array& indices,
    mx::StreamOrDevice s) {
  return mx::take_along_axis(mx::flatten(a, s), indices, 0, s);
}

inline mx::array put_along_axis(
    const mx::array& a,
    const mx::array& indices,
    const mx::array& values,
    mx::StreamOrDevice s) {
  auto out = mx::put_along_axis(mx::flatten(a, s), indices, values, 0, s);
  return mx::reshape(out, a.shape(), s);
}

inline mx::array as_strided(
    const mx::array& a,
    const std::optional<mx::Shape>& shape,
    const std::optional<mx::Strides>& strides,
    size_t offset,
    mx::StreamOrDevice s) {
  auto sizes = shape.value_or(a.shape());
  mx::Strides steps(sizes.size(), 1);
  for (int i = len(sizes) - 1; i > 0; --i) {
    steps[i - 1] = sizes[i] * steps[i];
  }
  return mx::as_strided(a, sizes, strides.value_or(steps), offset, s);
}

#if MLX_VERSION_NUMERIC >= 31002
inline mx::fft::FFTNorm fft_norm(const std::string& name) {
  if (name == "backward") {
    return mx::fft::FFTNorm::Backward;
  }
  if (name == "ortho") {
    return mx::fft::FFTNorm::Ortho;
  }
  if (name == "forward") {
    return mx::fft::FFTNorm::Forward;
  }
  throw std::invalid_argument(
      "The norm must be 'backward', 'ortho' or 'forward', got '" + name + "'.");
}
#endif

///////////////////////////////////////////////////////////////////////////////
// Random keys
///////////////////////////////////////////////////////////////////////////////

/** Returns the key of a random function that is called without one. */
using KeySource = mx::array (*)();

/** Choose the source of keys; the default is that of MLX's C++ functions. */
void set_key_source(KeySource source);

/** Return the key, or without one the next key of the source. */
mx::array random_key(const std::optional<mx::array>& key);

///////////////////////////////////////////////////////////////////////////////
// Indexing
///////////////////////////////////////////////////////////////////////////////

/** `start:stop:step` */
struct Slice {
  std::optional<int> start = std::nullopt;
  std::optional<int> stop = std::nullopt;
  std::optional<int> step = std::nullopt;
};

/** `...` */
struct Ellipsis {};
inline constexpr Ellipsis ellipsis;

/** `None` as an index: a new axis. */
struct NewAxis {};
inline constexpr NewAxis newaxis;

using Index = std::variant<int, Slice, Ellipsis, NewAxis>;

/** The elements that indices select, in the form that mx::slice takes. */
struct Selection {
  mx::Shape start;
  mx::Shape stop;
  mx::Shape step;
  std::vector<int> dropped; // axes of integer indices, which the result lacks
  std::vector<int> added; // new axes in the result

  Selection(const mx::array& x, std::initializer_list<Index> indices)
      : start(x.ndim(), 0), stop(x.shape()), step(x.ndim(), 1) {
    int taken = 0;
    for (const auto& i : indices) {
      taken +=
          std::holds_alternative<int>(i) || std::holds_alternative<Slice>(i);
    }
    int rest = ndim(x) - taken;
    if (rest < 0) {
      throw std::invalid_argument(
          "Too many indices (" + std::to_string(taken) +
          ") for an array with " + std::to_string(ndim(x)) + " dimensions.");
    }
    int axis = 0; // of the array
    int position = 0; // of the result
    for (const auto& i : indices) {
      if (std::holds_alternative<NewAxis>(i)) {
        added.push_back(position++);
      } else if (std::holds_alternative<Ellipsis>(i)) {
        axis += rest;
        position += rest;
      } else if (auto at = std::get_if<int>(&i)) {
        dropped.push_back(axis);
        select(axis++, *at);
      } else {
        select(axis++, std::get<Slice>(i));
        ++position;
      }
    }
  }

 private:
  void select(int axis, int at) {
    int n = stop[axis];
    if (at < -n || at >= n) {
      throw std::out_of_range(
          "Index " + std::to_string(at) + " is out of range for axis " +
          std::to_string(axis) + " of size " + std::to_string(n) + ".");
    }
    start[axis] = at < 0 ? at + n : at;
    stop[axis] = start[axis] + 1;
  }

  void select(int axis, const Slice& slice) {
    int n = stop[axis];
    int by = slice.step.value_or(1);
    if (by == 0) {
      throw std::invalid_argument("The step of a slice cannot be zero.");
    }
    start[axis] = slice.start.value_or(by < 0 ? n - 1 : 0);
    stop[axis] = slice.stop.value_or(by < 0 ? -n - 1 : n);
    step[axis] = by;
  }
};

/**
 * Insert axes of size 1, in ascending order. MLX 0.32.4's vmap of several at
 * once is wrong if the batch axis is next to them.
 */
inline mx::array
with_axes(mx::array x, const std::vector<int>& axes, mx::StreamOrDevice s) {
  for (int axis : axes) {
    x = mx::expand_dims(x, axis, s);
  }
  return x;
}

/** `x[i, j:k, ..., None]` */
inline mx::array index(
    const mx::array& x,
    std::initializer_list<Index> indices,
    mx::StreamOrDevice s) {
  Selection at(x, indices);
  auto out = mx::slice(x, at.start, at.stop, at.step, s);
  if (!at.dropped.empty()) {
    out = mx::squeeze(out, at.dropped, s);
  }
  return with_axes(std::move(out), at.added, s);
}

/** `x[indices]` with an array of integers. */
inline mx::array
index(const mx::array& x, const mx::array& indices, mx::StreamOrDevice s) {
  if (indices.dtype() == mx::bool_) {
    throw std::invalid_argument("Boolean indices are not supported.");
  }
  return mx::take(x, indices, 0, s);
}

/** Consecutive axes. */
inline std::vector<int> axes_from(int first, size_t count) {
  std::vector<int> axes(count);
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

/** `x[i, j, ..]` with arrays of integers, which are broadcast together. */
inline mx::array index(
    const mx::array& x,
    const std::vector<mx::array>& indices,
    mx::StreamOrDevice s) {
  for (const auto& each : indices) {
    if (each.dtype() == mx::bool_) {
      throw std::invalid_argument("Boolean indices are not supported.");
    }
  }
  auto count = indices.size();
  auto sizes = x.shape();
  std::fill_n(sizes.begin(), std::min(sizes.size(), count), 1);
  auto out = mx::gather(x, indices, axes_from(0, count), sizes, s);
  return mx::squeeze(out, axes_from(ndim(out) - ndim(x), count), s);
}

/** `values` as the updates of `x.at[indices]`, for mx::slice_update_add. */
template <typename T>
mx::array updates(
    const mx::array& x,
    std::initializer_list<Index> indices,
    const T& values,
    mx::StreamOrDevice s) {
  auto out = operand(values, x.dtype());
  out = mx::broadcast_to(out, index(x, indices, s).shape(), s);
  Selection at(x, indices);
  return with_axes(std::move(out), at.dropped, s);
}

/**
 * Like the above with arrays of integers, for mx::scatter_add. Reshaped as in
 * mlx.core: MLX's vmap of a scatter is wrong for some other batch axes.
 */
template <typename T>
mx::array updates(
    const mx::array& x,
    const std::vector<mx::array>& indices,
    const T& values,
    mx::StreamOrDevice s) {
  auto shape = index(x, indices, s).shape();
  auto out = mx::broadcast_to(operand(values, x.dtype()), shape, s);
  auto others = ndim(x) - static_cast<int>(indices.size());
  shape.insert(shape.end() - others, indices.size(), 1);
  return mx::reshape(out, shape, s);
}

#if MLX_VERSION_NUMERIC >= 31002
#define MLXGEN_UPDATE(name, update) \
  mx::update(x, out, at.start, at.stop, at.step, s)
#else
#define MLXGEN_UPDATE(name, update)                                  \
  mx::slice_update(                                                  \
      x,                                                             \
      mx::name(mx::slice(x, at.start, at.stop, at.step, s), out, s), \
      at.start,                                                      \
      at.stop,                                                       \
      at.step,                                                       \
      s)
#endif

// `x.at[indices].name(values)`
#define MLXGEN_AT(name, update, scatter)                                  \
  template <typename T>                                                   \
  mx::array at_##name(                                                    \
      const mx::array& x,                                                 \
      std::initializer_list<Index> indices,                               \
      const T& values,                                                    \
      mx::StreamOrDevice s) {                                             \
    Selection at(x, indices);                                             \
    auto out = updates(x, indices, values, s);                            \
    return MLXGEN_UPDATE(name, update);                                   \
  }                                                                       \
  template <typename T>                                                   \
  mx::array at_##name(                                                    \
      const mx::array& x,                                                 \
      const std::vector<mx::array>& indices,                              \
      const T& values,                                                    \
      mx::StreamOrDevice s) {                                             \
    auto out = updates(x, indices, values, s);                            \
    return mx::scatter(x, indices, out, axes_from(0, indices.size()), s); \
  }                                                                       \
  template <typename T>                                                   \
  mx::array at_##name(                                                    \
      const mx::array& x,                                                 \
      const mx::array& indices,                                           \
      const T& values,                                                    \
      mx::StreamOrDevice s) {                                             \
    return at_##name(x, std::vector<mx::array>{indices}, values, s);      \
  }

MLXGEN_AT(add, slice_update_add, scatter_add)
MLXGEN_AT(multiply, slice_update_prod, scatter_prod)
MLXGEN_AT(maximum, slice_update_max, scatter_max)
MLXGEN_AT(minimum, slice_update_min, scatter_min)

#undef MLXGEN_AT
#undef MLXGEN_UPDATE

} // namespace mlxgen
