// Replacements in Metal's library for benchmarks/metal_ir.py, in addition to
// the declarations of mlxgen/emulator/opencl/metal.h: operations that are not
// functions on a GPU, functions that determine the number of iterations, and
// pure functions.

#pragma once

namespace mlxgen_metal {

template <typename V, typename... T>
V make(T... x) {
  if constexpr (sizeof...(T) == 1) {
    return (V(x), ...);
  } else {
    return V{x...};
  }
}

} // namespace mlxgen_metal

namespace metal {

template <typename To, typename From>
To as_type(From from) {
  if constexpr (sizeof(To) == sizeof(From)) {
    return __builtin_bit_cast(To, from);
  } else { // bfloat, which is replaced by double
    return To(from);
  }
}

#define MLXGEN_CHOICE(T)                        \
  template <>                                   \
  T min(T a, T b) {                             \
    return b < a ? b : a;                       \
  }                                             \
  template <>                                   \
  T max(T a, T b) {                             \
    return a < b ? b : a;                       \
  }                                             \
  template <>                                   \
  T clamp(T x, T low, T high) {                 \
    return x < low ? low : high < x ? high : x; \
  }
MLXGEN_CHOICE(int)
MLXGEN_CHOICE(uint)
MLXGEN_CHOICE(long)
MLXGEN_CHOICE(ulong)
MLXGEN_CHOICE(float)
#undef MLXGEN_CHOICE

#define MLXGEN_PURE(name)  \
  template <typename... T> \
  __attribute__((const)) typename mlxgen_metal::Result<T...>::type name(T...);
#define X(name) MLXGEN_PURE(name)
MLXGEN_MATH(X)
namespace fast {
MLXGEN_MATH(X)
}
namespace precise {
MLXGEN_MATH(X)
}
#undef X
#undef MLXGEN_PURE

} // namespace metal
