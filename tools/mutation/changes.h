// The functions that mutated C++ kernels call (cpp.py). One library contains
// all mutants; mlxgen_change selects the active one, and mlxgen_reached records
// the places that a test reaches.
//
// Numbers are passed by value: a reference to a constant would make a lambda
// capture it, and other sources with the same lambda do not.

#pragma once

#include <type_traits>

extern "C" {
__attribute__((visibility("default"))) inline int mlxgen_change = 0;
__attribute__((visibility("default"))) inline char mlxgen_reached[16384] = {};
}

namespace mlxgen_changes {

#define MLXGEN_CHANGES __attribute__((always_inline)) inline

MLXGEN_CHANGES bool is(int number) {
  mlxgen_reached[number] = 1;
  return number == mlxgen_change;
}

/** x or -x; unsigned values stay. */
template <typename X>
MLXGEN_CHANGES X sign(int number, X x) {
  if constexpr (requires { X(-x); } && !std::is_same_v<X, bool>) {
    return is(number) ? X(-x) : x;
  } else {
    return x;
  }
}

template <typename X>
MLXGEN_CHANGES X minus(int number, X x) {
  return is(number) ? X(x) : X(-x);
}

template <typename X>
MLXGEN_CHANGES X twice(int number, X x) {
  if constexpr (requires { X(x + x); }) {
    return is(number) ? X(x + x) : x;
  } else {
    return x;
  }
}

template <typename X>
MLXGEN_CHANGES auto next(int number, X x) {
  return x + is(number);
}

} // namespace mlxgen_changes
