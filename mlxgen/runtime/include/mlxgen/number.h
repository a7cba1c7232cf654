// A number that remembers whether it is a bool, an int or a float, as Python's
// numbers do. Next to an array it is weakly typed, and its kind decides the
// dtype of the result.

#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <variant>

namespace mlxgen {

template <typename T>
concept Number = std::is_arithmetic_v<T>;

template <typename T>
concept Whole = Number<T> && std::is_integral_v<T> && !std::is_same_v<T, bool>;

/** The type in which a Scalar stores a number. */
template <Number T>
using Stored = std::conditional_t<
    std::is_same_v<T, bool>,
    bool,
    std::conditional_t<std::is_integral_v<T>, int64_t, double>>;

/** A bool, an int or a float: `Scalar alpha = 1` is an int. */
class Scalar {
 public:
  template <Number T>
  constexpr Scalar(T value) : value_(static_cast<Stored<T>>(value)) {}

  constexpr bool is_bool() const {
    return std::holds_alternative<bool>(value_);
  }

  constexpr bool is_float() const {
    return std::holds_alternative<double>(value_);
  }

  /** The number as a type of C++, by the rules of C++. */
  template <Number T>
  explicit constexpr operator T() const {
    return visit([](auto v) { return static_cast<T>(v); });
  }

  /** Call `fun` with the number as a bool, int64_t or double. */
  template <typename Fun>
  constexpr auto visit(Fun fun) const {
    return std::visit(fun, value_);
  }

  /** Whether it is the same number of the same kind, unlike 1 == 1.0. */
  constexpr bool same(const Scalar& other) const {
    return value_ == other.value_;
  }

  /** Call `fun` with two ints, or with two floats if one number is a float. */
  template <typename Fun>
  static constexpr auto join(Scalar a, Scalar b, Fun fun) {
    return a.is_float() || b.is_float()
        ? fun(static_cast<double>(a), static_cast<double>(b))
        : fun(static_cast<int64_t>(a), static_cast<int64_t>(b));
  }

  // Comparisons and arithmetic are Python's: bools count as ints, ints stay
  // ints, and `/` gives a float.

  friend constexpr std::partial_ordering operator<=>(Scalar a, Scalar b) {
    return join(
        a, b, [](auto x, auto y) { return std::partial_ordering(x <=> y); });
  }

  friend constexpr bool operator==(Scalar a, Scalar b) {
    return (a <=> b) == 0;
  }

  friend Scalar operator+(Scalar a, Scalar b) {
    return join(a, b, [](auto x, auto y) -> Scalar {
      if constexpr (std::is_integral_v<decltype(x)>) {
        return checked(__builtin_add_overflow(x, y, &x), x);
      } else {
        return x + y;
      }
    });
  }

  friend Scalar operator-(Scalar a, Scalar b) {
    return join(a, b, [](auto x, auto y) -> Scalar {
      if constexpr (std::is_integral_v<decltype(x)>) {
        return checked(__builtin_sub_overflow(x, y, &x), x);
      } else {
        return x - y;
      }
    });
  }

  friend Scalar operator*(Scalar a, Scalar b) {
    return join(a, b, [](auto x, auto y) -> Scalar {
      if constexpr (std::is_integral_v<decltype(x)>) {
        return checked(__builtin_mul_overflow(x, y, &x), x);
      } else {
        return x * y;
      }
    });
  }

  friend double operator/(Scalar a, Scalar b) {
    return static_cast<double>(a) / static_cast<double>(b);
  }

  friend Scalar operator-(Scalar a) {
    // -0.0 differs from 0 - 0.0.
    return a.is_float() ? Scalar(-static_cast<double>(a)) : 0 - a;
  }

 private:
  // By reference: the test for overflow also computes the value.
  static Scalar checked(bool overflow, const int64_t& value) {
    if (overflow) {
      throw std::overflow_error("A number does not fit into 64 bits.");
    }
    return value;
  }

  std::variant<bool, int64_t, double> value_;
};

inline double to_float(const Scalar& value) {
  return static_cast<double>(value);
}

inline std::optional<double> to_float(const std::optional<Scalar>& value) {
  return value ? std::optional(to_float(*value)) : std::nullopt;
}

} // namespace mlxgen
