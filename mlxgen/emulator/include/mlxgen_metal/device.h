// Metal's operations between threads, in C++: barriers, simdgroups, atomics.
// Threads are fibers of one system thread, so that atomics are plain
// operations; races.h ignores them.

#pragma once

#include "mlxgen_metal/math.h"
#include "mlxgen_metal/runtime.h"

namespace metal {

// ---------------------------------------------------------------- barriers

enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(int(a) | int(b));
}
enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
};

#define MLXGEN_CALL mlxgen_metal::Call call = mlxgen_metal::Call::current()

inline void threadgroup_barrier(mem_flags, MLXGEN_CALL) {
  mlxgen_metal::barrier("threadgroup_barrier", true, call);
}
inline void simdgroup_barrier(mem_flags, MLXGEN_CALL) {
  char nothing = 0;
  mlxgen_metal::exchange(&nothing, 1, "simdgroup_barrier", call);
}
inline void atomic_thread_fence(
    mem_flags,
    memory_order,
    thread_scope = thread_scope_device) {}

// -------------------------------------------------------------- simdgroups

} // namespace metal

namespace mlxgen_metal {

/** The value of a lane; NaN bytes for an inactive lane. */
template <typename T>
MLXGEN_UNWATCHED T value_of(const Lanes& lanes, uint32_t lane) {
  T out;
  if (lane < simdgroup_size && (lanes.active >> lane & 1)) {
    __builtin_memcpy(&out, lanes.slots + 64 * lane, sizeof(T));
  } else {
    __builtin_memset(&out, 0xFF, sizeof(T));
  }
  return out;
}

template <typename T>
Lanes share(const T& value, const char* what, Call call) {
  static_assert(sizeof(T) <= 64, "too large for a simdgroup operation");
  return exchange(&value, sizeof(T), what, call);
}

/** Reduce the active lanes of a group of 32 lanes, or of 4 (a quadgroup). */
template <typename T, typename F>
T reduce(T value, F f, uint32_t group, const char* what, Call call) {
  auto lanes = share(value, what, call);
  bool first = true;
  T out = value;
  uint32_t base = lanes.lane / group * group;
  for (uint32_t i = base; i < base + group; ++i) {
    if (lanes.active >> i & 1) {
      T next = value_of<T>(lanes, i);
      out = first ? next : f(out, next);
      first = false;
    }
  }
  return out;
}

template <typename T, typename F>
T scan(
    T value,
    T start,
    bool inclusive,
    F f,
    uint32_t group,
    const char* what,
    Call call) {
  auto lanes = share(value, what, call);
  T out = start;
  uint32_t base = lanes.lane / group * group;
  for (uint32_t i = base; i < lanes.lane + inclusive; ++i) {
    if (lanes.active >> i & 1) {
      out = f(out, value_of<T>(lanes, i));
    }
  }
  return out;
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(metal::min(a, b));
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(metal::max(a, b));
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Metal has simdgroup operations for scalars and vectors of at most 32 bits. A
// bool is promoted to int, as for any overloaded function.
template <typename T>
using Lane = std::conditional_t<std::is_same_v<T, bool>, int, T>;
template <typename T>
struct Scalar {
  using type = T;
};
template <typename T, int N>
struct Scalar<metal::vec<T, N>> {
  using type = T;
};
template <typename T>
concept Simd = metal::is_arithmetic_v<typename Scalar<T>::type> &&
    sizeof(typename Scalar<T>::type) <= 4 &&
    (std::is_same_v<T, bool> ||
     !std::is_same_v<typename Scalar<T>::type, bool>) &&
    !std::is_same_v<typename Scalar<T>::type, bfloat>;

/** The first active lane of the group of the calling lane. */
inline uint32_t first_of(const Lanes& lanes, uint32_t group) {
  uint32_t base = lanes.lane / group * group;
  return base + uint32_t(__builtin_ctz(lanes.active >> base));
}

template <typename T>
T fill_down(
    T x,
    T filling,
    ushort n,
    ushort modulo,
    const char* what,
    Call call) {
  struct Both {
    T x, filling;
  } both{x, filling};
  auto lanes = share(both, what, call);
  uint32_t base = lanes.lane / modulo * modulo;
  uint32_t from = lanes.lane - base + n;
  return from < modulo ? value_of<Both>(lanes, base + from).x
                       : value_of<Both>(lanes, base + from - modulo).filling;
}

template <typename T>
T fill_up(
    T x,
    T filling,
    ushort n,
    ushort modulo,
    const char* what,
    Call call) {
  struct Both {
    T x, filling;
  } both{x, filling};
  auto lanes = share(both, what, call);
  uint32_t base = lanes.lane / modulo * modulo;
  uint32_t at = lanes.lane - base;
  return at >= n ? value_of<Both>(lanes, base + at - n).x
                 : value_of<Both>(lanes, base + modulo - n + at).filling;
}

/** The lanes of a group as bits. */
template <int N>
class Vote {
 public:
  using vote_t = uint64_t;
  explicit constexpr Vote(vote_t v = 0) : bits_(v) {}
  explicit constexpr operator vote_t() const {
    return bits_;
  }
  constexpr bool all() const {
    constexpr vote_t every = (vote_t(1) << N) - 1;
    return (bits_ & every) == every;
  }
  constexpr bool any() const {
    return bits_ != 0;
  }

 private:
  vote_t bits_;
};

} // namespace mlxgen_metal

namespace metal {

#define MLXGEN_SIMD_REDUCE(name, op)                        \
  template <mlxgen_metal::Simd T>                           \
  mlxgen_metal::Lane<T> simd_##name(T value, MLXGEN_CALL) { \
    mlxgen_metal::Lane<T> x = value;                        \
    return mlxgen_metal::reduce(                            \
        x, mlxgen_metal::op(), 32, "simd_" #name, call);    \
  }                                                         \
  template <mlxgen_metal::Simd T>                           \
  mlxgen_metal::Lane<T> quad_##name(T value, MLXGEN_CALL) { \
    mlxgen_metal::Lane<T> x = value;                        \
    return mlxgen_metal::reduce(                            \
        x, mlxgen_metal::op(), 4, "quad_" #name, call);     \
  }
MLXGEN_SIMD_REDUCE(sum, Sum)
MLXGEN_SIMD_REDUCE(product, Product)
MLXGEN_SIMD_REDUCE(min, Min)
MLXGEN_SIMD_REDUCE(max, Max)
MLXGEN_SIMD_REDUCE(and, And)
MLXGEN_SIMD_REDUCE(or, Or)
MLXGEN_SIMD_REDUCE(xor, Xor)
#undef MLXGEN_SIMD_REDUCE

#define MLXGEN_SCAN(group, lanes, name, start, inclusive, op)     \
  template <mlxgen_metal::Simd T>                                 \
  mlxgen_metal::Lane<T> group##_prefix_##name(T x, MLXGEN_CALL) { \
    using Lane = mlxgen_metal::Lane<T>;                           \
    return mlxgen_metal::scan(                                    \
        static_cast<Lane>(x),                                     \
        static_cast<Lane>(start),                                 \
        inclusive,                                                \
        mlxgen_metal::op(),                                       \
        lanes,                                                    \
        #group "_prefix_" #name,                                  \
        call);                                                    \
  }
#define MLXGEN_SIMD_SCAN(name, start, inclusive, op) \
  MLXGEN_SCAN(simd, 32, name, start, inclusive, op)  \
  MLXGEN_SCAN(quad, 4, name, start, inclusive, op)
MLXGEN_SIMD_SCAN(inclusive_sum, 0, true, Sum)
MLXGEN_SIMD_SCAN(exclusive_sum, 0, false, Sum)
MLXGEN_SIMD_SCAN(inclusive_product, 1, true, Product)
MLXGEN_SIMD_SCAN(exclusive_product, 1, false, Product)
#undef MLXGEN_SIMD_SCAN
#undef MLXGEN_SCAN

#define MLXGEN_SIMD_MOVE(name, from)                           \
  template <mlxgen_metal::Simd T>                              \
  mlxgen_metal::Lane<T> name(T value, ushort n, MLXGEN_CALL) { \
    mlxgen_metal::Lane<T> x = value;                           \
    auto lanes = mlxgen_metal::share(x, #name, call);          \
    [[maybe_unused]] uint32_t lane = lanes.lane;               \
    [[maybe_unused]] uint32_t base = lane & ~3u;               \
    return mlxgen_metal::value_of<decltype(x)>(lanes, from);   \
  }
MLXGEN_SIMD_MOVE(simd_broadcast, n)
MLXGEN_SIMD_MOVE(simd_shuffle, n)
MLXGEN_SIMD_MOVE(simd_shuffle_xor, lane ^ n)
MLXGEN_SIMD_MOVE(simd_shuffle_down, lane + n < 32 ? lane + n : lane)
MLXGEN_SIMD_MOVE(simd_shuffle_up, lane >= n ? lane - n : lane)
MLXGEN_SIMD_MOVE(simd_shuffle_rotate_down, (lane + n) % 32)
MLXGEN_SIMD_MOVE(simd_shuffle_rotate_up, (lane + 32 - n % 32) % 32)
MLXGEN_SIMD_MOVE(quad_broadcast, base + (n & 3))
MLXGEN_SIMD_MOVE(quad_shuffle, base + (n & 3))
MLXGEN_SIMD_MOVE(quad_shuffle_xor, lane ^ (n & 3))
MLXGEN_SIMD_MOVE(quad_shuffle_down, lane + n < base + 4 ? lane + n : lane)
MLXGEN_SIMD_MOVE(quad_shuffle_up, lane >= base + n ? lane - n : lane)
MLXGEN_SIMD_MOVE(quad_shuffle_rotate_down, base + (lane + n) % 4)
MLXGEN_SIMD_MOVE(quad_shuffle_rotate_up, base + (lane + 4 - n % 4) % 4)
#undef MLXGEN_SIMD_MOVE

// Per group: its operations on bools, votes, first lane and shuffles that fill.
#define MLXGEN_GROUP(group, lanes_)                                        \
  inline bool group##_any(bool x, MLXGEN_CALL) {                           \
    return mlxgen_metal::reduce(                                           \
        x, mlxgen_metal::Or(), lanes_, #group "_any", call);               \
  }                                                                        \
  inline bool group##_all(bool x, MLXGEN_CALL) {                           \
    return mlxgen_metal::reduce(                                           \
        x, mlxgen_metal::And(), lanes_, #group "_all", call);              \
  }                                                                        \
  using group##_vote = mlxgen_metal::Vote<lanes_>;                         \
  inline group##_vote group##_ballot(bool x, MLXGEN_CALL) {                \
    auto lanes = mlxgen_metal::share(x, #group "_ballot", call);           \
    uint64_t bits = 0;                                                     \
    uint32_t base = lanes.lane / lanes_ * lanes_;                          \
    for (uint32_t i = 0; i < lanes_; ++i) {                                \
      bool active = lanes.active >> (base + i) & 1;                        \
      bool set = active && mlxgen_metal::value_of<bool>(lanes, base + i);  \
      bits |= uint64_t(set) << i;                                          \
    }                                                                      \
    return group##_vote(bits);                                             \
  }                                                                        \
  inline group##_vote group##_active_threads_mask(MLXGEN_CALL) {           \
    return group##_ballot(true, call);                                     \
  }                                                                        \
  inline bool group##_is_helper_thread() {                                 \
    return false;                                                          \
  }                                                                        \
  inline bool group##_is_first(MLXGEN_CALL) {                              \
    auto lanes = mlxgen_metal::share(true, #group "_is_first", call);      \
    return mlxgen_metal::first_of(lanes, lanes_) == lanes.lane;            \
  }                                                                        \
  template <mlxgen_metal::Simd T>                                          \
  T group##_broadcast_first(T x, MLXGEN_CALL) {                            \
    auto what = #group "_broadcast_first";                                 \
    auto lanes = mlxgen_metal::share(x, what, call);                       \
    auto first = mlxgen_metal::first_of(lanes, lanes_);                    \
    return mlxgen_metal::value_of<T>(lanes, first);                        \
  }                                                                        \
  template <mlxgen_metal::Simd T>                                          \
  T group##_shuffle_and_fill_down(                                         \
      T x, T filling, ushort n, ushort modulo, MLXGEN_CALL) {              \
    auto what = #group "_shuffle_and_fill_down";                           \
    return mlxgen_metal::fill_down(x, filling, n, modulo, what, call);     \
  }                                                                        \
  template <mlxgen_metal::Simd T>                                          \
  T group##_shuffle_and_fill_down(T x, T filling, ushort n, MLXGEN_CALL) { \
    auto what = #group "_shuffle_and_fill_down";                           \
    return mlxgen_metal::fill_down(x, filling, n, lanes_, what, call);     \
  }                                                                        \
  template <mlxgen_metal::Simd T>                                          \
  T group##_shuffle_and_fill_up(                                           \
      T x, T filling, ushort n, ushort modulo, MLXGEN_CALL) {              \
    auto what = #group "_shuffle_and_fill_up";                             \
    return mlxgen_metal::fill_up(x, filling, n, modulo, what, call);       \
  }                                                                        \
  template <mlxgen_metal::Simd T>                                          \
  T group##_shuffle_and_fill_up(T x, T filling, ushort n, MLXGEN_CALL) {   \
    auto what = #group "_shuffle_and_fill_up";                             \
    return mlxgen_metal::fill_up(x, filling, n, lanes_, what, call);       \
  }
MLXGEN_GROUP(simd, 32)
MLXGEN_GROUP(quad, 4)
#undef MLXGEN_GROUP

// ----------------------------------------------------------------- atomics

template <typename T>
struct atomic {
  static_assert(
      is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, bool> ||
          is_same_v<T, float> || (is_integral_v<T> && sizeof(T) == 8),
      "Metal has no atomics of this type");
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_float = atomic<float>;
using atomic_ulong = atomic<ulong>;

// A value's type, `Same<T>`, is not deduced from it, because of
// `atomic_fetch_add_explicit(&n, 1, ...)`.

template <typename T>
MLXGEN_UNWATCHED T atomic_load_explicit(const atomic<T>* object, memory_order) {
  return object->value;
}
template <typename T>
MLXGEN_UNWATCHED void
atomic_store_explicit(atomic<T>* object, Same<T> x, memory_order) {
  object->value = x;
  mlxgen_metal::wrote(object, sizeof(T));
}
template <typename T>
MLXGEN_UNWATCHED T
atomic_exchange_explicit(atomic<T>* object, Same<T> x, memory_order) {
  T old = object->value;
  atomic_store_explicit<T>(object, x, memory_order_relaxed);
  return old;
}
template <typename T>
MLXGEN_UNWATCHED bool atomic_compare_exchange_weak_explicit(
    atomic<T>* object,
    T* expected,
    Same<T> desired,
    memory_order,
    memory_order) {
  if (__builtin_memcmp(&object->value, expected, sizeof(T)) == 0) {
    atomic_store_explicit<T>(object, desired, memory_order_relaxed);
    return true;
  }
  *expected = object->value;
  return false;
}
#define MLXGEN_ATOMIC(name, types, result)           \
  template <typename T>                              \
    requires(types)                                  \
  MLXGEN_UNWATCHED T atomic_fetch_##name##_explicit( \
      atomic<T>* object, Same<T> x, memory_order) {  \
    T old = object->value;                           \
    object->value = static_cast<T>(result);          \
    return old;                                      \
  }
MLXGEN_ATOMIC(add, (!is_same_v<T, bool>), old + x)
MLXGEN_ATOMIC(sub, (!is_same_v<T, bool>), old - x)
MLXGEN_ATOMIC(min, is_integral_v<T>, x < old ? x : old)
MLXGEN_ATOMIC(max, is_integral_v<T>, x > old ? x : old)
MLXGEN_ATOMIC(and, is_integral_v<T>, old& x)
MLXGEN_ATOMIC(or, is_integral_v<T>, old | x)
MLXGEN_ATOMIC(xor, is_integral_v<T>, old ^ x)
#undef MLXGEN_ATOMIC
inline void
atomic_min_explicit(atomic<ulong>* object, ulong x, memory_order order) {
  atomic_fetch_min_explicit(object, x, order);
}
inline void
atomic_max_explicit(atomic<ulong>* object, ulong x, memory_order order) {
  atomic_fetch_max_explicit(object, x, order);
}

} // namespace metal

// A built-in below <metal_simdgroup>, which MLX's bf16_math.h calls.
#define MLXGEN_SIMD_BUILTIN(name)      \
  template <typename T>                \
  T __metal_##name(T x, MLXGEN_CALL) { \
    return metal::name(x, call);       \
  }
MLXGEN_SIMD_BUILTIN(simd_sum)
MLXGEN_SIMD_BUILTIN(simd_product)
MLXGEN_SIMD_BUILTIN(simd_min)
MLXGEN_SIMD_BUILTIN(simd_max)
MLXGEN_SIMD_BUILTIN(simd_prefix_inclusive_sum)
MLXGEN_SIMD_BUILTIN(simd_prefix_exclusive_sum)
MLXGEN_SIMD_BUILTIN(simd_prefix_inclusive_product)
MLXGEN_SIMD_BUILTIN(simd_prefix_exclusive_product)
#undef MLXGEN_SIMD_BUILTIN
inline float __metal_simd_xor(float x) {
  mlxgen_metal::unsupported("simd_xor of a float");
  return x;
}
#define MLXGEN_SIMD_BUILTIN(name)                \
  template <typename T>                          \
  T __metal_##name(T x, ushort n, MLXGEN_CALL) { \
    return metal::name(x, n, call);              \
  }
MLXGEN_SIMD_BUILTIN(simd_broadcast)
MLXGEN_SIMD_BUILTIN(simd_shuffle)
MLXGEN_SIMD_BUILTIN(simd_shuffle_xor)
MLXGEN_SIMD_BUILTIN(simd_shuffle_down)
MLXGEN_SIMD_BUILTIN(simd_shuffle_up)
MLXGEN_SIMD_BUILTIN(simd_shuffle_rotate_down)
MLXGEN_SIMD_BUILTIN(simd_shuffle_rotate_up)
#undef MLXGEN_SIMD_BUILTIN
#define MLXGEN_SIMD_BUILTIN(name)                                          \
  template <typename T>                                                    \
  T __metal_##name(T x, T filling, ushort n, ushort modulo, MLXGEN_CALL) { \
    return metal::name(x, filling, n, modulo, call);                       \
  }
MLXGEN_SIMD_BUILTIN(simd_shuffle_and_fill_down)
MLXGEN_SIMD_BUILTIN(simd_shuffle_and_fill_up)
#undef MLXGEN_SIMD_BUILTIN
constexpr ushort __metal_get_simdgroup_size(ushort) {
  return 32;
}
