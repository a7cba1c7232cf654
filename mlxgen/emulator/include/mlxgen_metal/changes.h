// The functions that mutated kernels call (`tools/mutation`). One library
// contains all mutants; $MLXGEN_METAL_CHANGE selects the active one.
//
// `a < less(is_changed(7)) > b` means `a < b`, or `a <= b` in mutant 7. The two
// operators have the precedence of the one that they replace, so that any
// operands keep their meaning.

#pragma once

#include "mlxgen_metal/runtime.h"

namespace mlxgen_metal {

inline bool is_changed(int number) {
  return number == change;
}

enum class Order { less, greater };

template <Order order>
struct Comparison {
  bool or_equal;
};

template <Order order, typename T>
struct Compared {
  const T& value;
  bool or_equal;
};

inline Comparison<Order::less> less(bool changed) {
  return {changed};
}
inline Comparison<Order::less> at_most(bool changed) {
  return {!changed};
}
inline Comparison<Order::greater> greater(bool changed) {
  return {changed};
}
inline Comparison<Order::greater> at_least(bool changed) {
  return {!changed};
}

template <Order order, typename T>
Compared<order, T> operator<(const T& a, Comparison<order> comparison) {
  return {a, comparison.or_equal};
}
template <typename T, typename U>
auto operator>(Compared<Order::less, T> a, const U& b) {
  return a.or_equal ? a.value <= b : a.value < b;
}
template <typename T, typename U>
auto operator>(Compared<Order::greater, T> a, const U& b) {
  return a.or_equal ? a.value >= b : a.value > b;
}

} // namespace mlxgen_metal
