// Included by every translated file of kernels: Metal's library, and the
// conversion of a launch's buffers and positions to a kernel's parameters.

#pragma once

#include "mlxgen_metal/matrix.h"

namespace mlxgen_metal {

// ------------------------------------------------------ parameters' types

template <typename T>
struct CodeOf {
  static constexpr Code value = other;
};
#define MLXGEN_CODE(type, code)         \
  template <>                           \
  struct CodeOf<type> {                 \
    static constexpr Code value = code; \
  };
MLXGEN_CODE(bool, boolean)
MLXGEN_CODE(signed char, int8)
MLXGEN_CODE(unsigned char, uint8)
MLXGEN_CODE(short, int16)
MLXGEN_CODE(unsigned short, uint16)
MLXGEN_CODE(int, int32)
MLXGEN_CODE(unsigned int, uint32)
MLXGEN_CODE(long, int64)
MLXGEN_CODE(unsigned long, uint64)
MLXGEN_CODE(long long, int64)
MLXGEN_CODE(unsigned long long, uint64)
MLXGEN_CODE(half, float16)
MLXGEN_CODE(bfloat, bfloat16)
MLXGEN_CODE(float, float32)
#undef MLXGEN_CODE
template <typename T>
struct CodeOf<metal::atomic<T>> : CodeOf<T> {};
template <typename T, int N>
struct CodeOf<metal::vec<T, N>> : CodeOf<T> {};
template <typename T, int N>
struct CodeOf<metal::packed_vec<T, N>> : CodeOf<T> {};

template <typename T>
constexpr int32_t size_of() {
  if constexpr (std::is_void_v<T>) {
    return 0;
  } else {
    return int32_t(sizeof(T));
  }
}

/** The facts about a parameter that the translator determines. */
struct Declared {
  const char* name;
  const char* type;
  int32_t kind;
  int32_t index;
};

template <typename P>
constexpr Parameter described(const Declared& d) {
  using Bare = std::remove_reference_t<P>;
  using Target =
      std::conditional_t<std::is_pointer_v<P>, std::remove_pointer_t<P>, Bare>;
  using Element = std::remove_cv_t<Target>;
  return {
      d.name,
      d.type,
      d.kind,
      d.index,
      CodeOf<Element>::value,
      size_of<Element>(),
      std::is_reference_v<P>,
      std::is_const_v<Target>,
      0};
}

template <typename P>
MLXGEN_UNWATCHED P argument(const Thread& thread, const Declared& d) {
  if constexpr (std::is_pointer_v<P>) {
    auto table = d.kind == threadgroup_memory ? thread.shared : thread.buffers;
    return static_cast<P>(table[d.index]);
  } else if constexpr (std::is_reference_v<P>) {
    auto table = d.kind == threadgroup_memory ? thread.shared : thread.buffers;
    return *static_cast<std::remove_reference_t<P>*>(table[d.index]);
  } else {
    const auto* p = thread.position[d.index];
    using T = std::remove_cv_t<P>;
    if constexpr (metal::vec_traits<T>::size == 2) {
      return T(p[0], p[1]);
    } else if constexpr (metal::vec_traits<T>::size == 3) {
      return T(p[0], p[1], p[2]);
    } else {
      static_assert(std::is_integral_v<T>, "a position is a uint or a vector");
      return static_cast<T>(p[0]);
    }
  }
}

template <int N>
struct Indices {};
template <int... I>
struct Sequence {};
template <int N, int... I>
struct MakeSequence : MakeSequence<N - 1, N - 1, I...> {};
template <int... I>
struct MakeSequence<0, I...> {
  using type = Sequence<I...>;
};

/** A kernel with the table of its parameters. */
template <auto Function, const Declared* Table>
struct Bound;
template <typename... P, void (*Function)(P...), const Declared* Table>
struct Bound<Function, Table> {
  static constexpr int count = int(sizeof...(P));
  template <int... I>
  MLXGEN_UNWATCHED static void call(const Thread& thread, Sequence<I...>) {
    Function(argument<P>(thread, Table[I])...);
  }
  MLXGEN_UNWATCHED static void run(const Thread& thread) {
    call(thread, typename MakeSequence<count>::type());
  }
  template <int... I>
  static const Parameter* table(Sequence<I...>) {
    static const Parameter parameters[] = {
        described<P>(Table[I])..., Parameter{}};
    return parameters;
  }
  static const Parameter* parameters() {
    return table(typename MakeSequence<count>::type());
  }
};

/** A threadgroup variable: one per threadgroup, filled with NaN bytes. */
template <typename T, int Id>
T& shared(const char* name) {
  static const char key = 0;
  return *static_cast<T*>(shared_storage(&key, sizeof(T), alignof(T), name));
}

} // namespace mlxgen_metal
