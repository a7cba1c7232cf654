// Metal's library as declarations, few and permissive, so that kernels can be
// checked as OpenCL C++, whose compiler knows address spaces
// (emulator/spaces.py). None of this code is ever run.

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef double bfloat; // a distinct type

#include "../include/mlxgen_metal/limits.h"

namespace mlxgen_metal {

template <typename T>
T value();
template <typename A, typename... B>
struct Result {
  using type = decltype(value<A>() + value<typename Result<B...>::type>());
};
template <typename A>
struct Result<A> {
  using type = A;
};
template <typename T>
struct Identity {
  using type = T;
};
/** A vector from its components. */
template <typename V, typename... T>
V make(T...);
/** A threadgroup variable: a reference, because OpenCL allows variables only in
 * kernels. */
template <typename T>
__local T& shared();

} // namespace mlxgen_metal

namespace metal {

// ------------------------------------------------------------------ traits

template <typename T, T v>
struct integral_constant {
  static constexpr __constant T value = v;
};
template <bool v>
using bool_constant = integral_constant<bool, v>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

#define MLXGEN_TRAIT(name, ...)                            \
  template <typename T>                                    \
  inline constexpr __constant bool name##_v = __VA_ARGS__; \
  template <typename T>                                    \
  struct name : bool_constant<name##_v<T>> {};
template <typename A, typename B>
inline constexpr __constant bool is_same_v = __is_same(A, B);
template <typename A, typename B>
struct is_same : bool_constant<is_same_v<A, B>> {};
template <typename A, typename B>
inline constexpr __constant bool is_convertible_v = __is_convertible_to(A, B);
template <typename A, typename B>
struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
MLXGEN_TRAIT(is_integral, __is_integral(T))
MLXGEN_TRAIT(is_floating_point, __is_floating_point(T))
MLXGEN_TRAIT(is_arithmetic, __is_arithmetic(T))
MLXGEN_TRAIT(is_signed, __is_signed(T))
MLXGEN_TRAIT(is_unsigned, __is_unsigned(T))
MLXGEN_TRAIT(is_pointer, __is_pointer(T))
MLXGEN_TRAIT(is_const, __is_const(T))
MLXGEN_TRAIT(is_class, __is_class(T))
MLXGEN_TRAIT(is_enum, __is_enum(T))
#undef MLXGEN_TRAIT

template <bool c, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool c, typename T = void>
using enable_if_t = typename enable_if<c, T>::type;
template <bool c, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool c, typename A, typename B>
using conditional_t = typename conditional<c, A, B>::type;
template <typename... T>
struct disjunction : bool_constant<(T::value || ...)> {};
template <typename... T>
struct conjunction : bool_constant<(T::value && ...)> {};
template <typename... T>
using _disjunction = disjunction<T...>;
template <typename T>
struct negation : bool_constant<!T::value> {};
template <typename... T>
using void_t = void;
template <typename T>
T declval();

#define MLXGEN_TRANSFORM(name, builtin) \
  template <typename T>                 \
  struct name {                         \
    using type = builtin(T);            \
  };                                    \
  template <typename T>                 \
  using name##_t = builtin(T);
MLXGEN_TRANSFORM(remove_cv, __remove_cv)
MLXGEN_TRANSFORM(remove_const, __remove_const)
MLXGEN_TRANSFORM(remove_reference, __remove_reference_t)
MLXGEN_TRANSFORM(remove_pointer, __remove_pointer)
MLXGEN_TRANSFORM(decay, __decay)
MLXGEN_TRANSFORM(make_signed, __make_signed)
MLXGEN_TRANSFORM(make_unsigned, __make_unsigned)
#undef MLXGEN_TRANSFORM

template <typename T>
struct numeric_limits {
  static constexpr __constant bool is_signed = true;
  static constexpr __constant bool is_integer = __is_integral(T);
  static constexpr __constant int digits = 8;
#define MLXGEN_LIMIT(name)    \
  static constexpr T name() { \
    return T(1);              \
  }
  MLXGEN_LIMIT(max)
  MLXGEN_LIMIT(min)
  MLXGEN_LIMIT(lowest)
  MLXGEN_LIMIT(epsilon)
  MLXGEN_LIMIT(infinity)
  MLXGEN_LIMIT(quiet_NaN)
#undef MLXGEN_LIMIT
};

template <typename To, typename From>
To as_type(From);

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <typename T, size_t N>
struct array {
  T elements[N];
  constexpr T& operator[](size_t i) {
    return elements[i];
  }
  constexpr const T& operator[](size_t i) const {
    return elements[i];
  }
};
template <typename T>
using uniform = T;
template <typename T>
T make_uniform(T);

// --------------------------------------------------------------- functions

// clang-format off
#define MLXGEN_MATH(X)                                                         \
  X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(cos) X(cosh)    \
  X(cospi) X(exp) X(exp10) X(exp2) X(fabs) X(floor) X(fract) X(log) X(log10)   \
  X(log2) X(rint) X(round) X(rsqrt) X(sin) X(sinh) X(sinpi) X(sqrt) X(tan)     \
  X(tanh) X(tanpi) X(trunc) X(atan2) X(copysign) X(divide) X(fdim) X(fmax)     \
  X(fmin) X(fmod) X(nextafter) X(pow) X(powr) X(fma) X(fmax3) X(fmin3)         \
  X(fmedian3) X(ldexp) X(abs) X(min) X(max) X(min3) X(max3) X(median3)         \
  X(clamp) X(mix) X(saturate) X(sign) X(step) X(smoothstep) X(clz) X(ctz)      \
  X(popcount) X(reverse_bits) X(rotate) X(mulhi) X(madhi) X(mad24) X(mul24)    \
  X(absdiff) X(addsat) X(subsat) X(hadd) X(rhadd) X(extract_bits)              \
  X(insert_bits) X(cross) X(normalize)
// clang-format on
#define X(name)            \
  template <typename... T> \
  typename mlxgen_metal::Result<T...>::type name(T...);
MLXGEN_MATH(X)
namespace fast {
MLXGEN_MATH(X)
}
namespace precise {
MLXGEN_MATH(X)
}
#undef X

#define X(name)         \
  template <typename T> \
  bool name(T);
X(isnan)
X(isinf)
X(isfinite)
X(isnormal)
X(signbit)
X(any)
X(all)
#undef X
template <typename T>
int ilogb(T);
template <typename A, typename B, typename C>
typename mlxgen_metal::Result<A, B>::type select(A, B, C);
template <typename T>
T frexp(T, __private int&);
template <typename T>
T modf(T, __private T&);
template <typename T>
T sincos(T, __private T&);
template <typename T>
auto length(T v) -> decltype(v.x);
template <typename T>
auto length_squared(T v) -> decltype(v.x);
template <typename T>
auto distance(T v, T) -> decltype(v.x);
template <typename T>
auto dot(T v, T) -> decltype(v.x);

// ----------------------------------------------------------------- threads

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
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
void atomic_thread_fence(
    mem_flags,
    memory_order,
    thread_scope = thread_scope_device);

// clang-format off
#define MLXGEN_SIMD(X)                                                         \
  X(simd_sum) X(simd_product) X(simd_min) X(simd_max) X(simd_and) X(simd_or)   \
  X(simd_xor) X(simd_prefix_inclusive_sum) X(simd_prefix_exclusive_sum)        \
  X(simd_prefix_inclusive_product) X(simd_prefix_exclusive_product)            \
  X(simd_broadcast) X(simd_broadcast_first) X(simd_shuffle)                    \
  X(simd_shuffle_xor) X(simd_shuffle_down) X(simd_shuffle_up)                  \
  X(simd_shuffle_rotate_down) X(simd_shuffle_rotate_up)                        \
  X(simd_shuffle_and_fill_down) X(simd_shuffle_and_fill_up)                    \
  X(quad_broadcast) X(quad_shuffle) X(quad_shuffle_xor) X(quad_sum)
// clang-format on
#define X(name)                        \
  template <typename T, typename... A> \
  T name(T, A...);
MLXGEN_SIMD(X)
#undef X
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();
struct simd_vote {
  using vote_t = uint64_t;
  explicit simd_vote(vote_t = 0);
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();

template <typename T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "Metal has matrices of 8 x 8 only");
  using storage_type = vec<T, 2>;
  simdgroup_matrix();
  explicit simdgroup_matrix(T);
  __private storage_type& thread_elements();
};
using simdgroup_half8x8 = simdgroup_matrix<half, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8>;
using simdgroup_float8x8 = simdgroup_matrix<float, 8>;
template <typename T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(T);
template <typename T, int Cols, int Rows = Cols>
simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T);
#define MLXGEN_MATRIX(space)             \
  template <typename T>                  \
  void simdgroup_load(                   \
      __private simdgroup_matrix<T, 8>&, \
      const space T*,                    \
      ulong = 8,                         \
      vec<ulong, 2> = 0,                 \
      bool = false);                     \
  template <typename T>                  \
  void simdgroup_store(                  \
      simdgroup_matrix<T, 8>,            \
      space T*,                          \
      ulong = 8,                         \
      vec<ulong, 2> = 0,                 \
      bool = false);
MLXGEN_MATRIX(__global)
MLXGEN_MATRIX(__local)
template <typename D, typename A, typename B>
void simdgroup_multiply(
    __private simdgroup_matrix<D, 8>&,
    simdgroup_matrix<A, 8>,
    simdgroup_matrix<B, 8>);
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(
    __private simdgroup_matrix<D, 8>&,
    simdgroup_matrix<A, 8>,
    simdgroup_matrix<B, 8>,
    simdgroup_matrix<C, 8>);
template <typename T>
simdgroup_matrix<T, 8> operator*(
    simdgroup_matrix<T, 8>,
    simdgroup_matrix<T, 8>);

template <typename T>
struct atomic {
  T value;
};
template <typename T>
using same_t = typename mlxgen_metal::Identity<T>::type;
#define MLXGEN_ATOMIC(space)                                             \
  template <typename T>                                                  \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order); \
  template <typename T>                                                  \
  void atomic_store_explicit(                                            \
      volatile space atomic<T>*, same_t<T>, memory_order);               \
  template <typename T>                                                  \
  T atomic_exchange_explicit(                                            \
      volatile space atomic<T>*, same_t<T>, memory_order);               \
  template <typename T>                                                  \
  bool atomic_compare_exchange_weak_explicit(                            \
      volatile space atomic<T>*,                                         \
      __private T*,                                                      \
      same_t<T>,                                                         \
      memory_order,                                                      \
      memory_order);                                                     \
  MLXGEN_FETCH(space, add)                                               \
  MLXGEN_FETCH(space, sub)                                               \
  MLXGEN_FETCH(space, min)                                               \
  MLXGEN_FETCH(space, max)                                               \
  MLXGEN_FETCH(space, and)                                               \
  MLXGEN_FETCH(space, or)                                                \
  MLXGEN_FETCH(space, xor)
#define MLXGEN_FETCH(space, name)   \
  template <typename T>             \
  T atomic_fetch_##name##_explicit( \
      volatile space atomic<T>*, same_t<T>, memory_order);
MLXGEN_ATOMIC(__global)
MLXGEN_ATOMIC(__local)
using mlxgen_atomic_int = atomic<int>;
using mlxgen_atomic_uint = atomic<uint>;
using mlxgen_atomic_bool = atomic<bool>;
using mlxgen_atomic_float = atomic<float>;
using mlxgen_atomic_ulong = atomic<ulong>;

} // namespace metal

// A built-in below Metal's library, which MLX's bf16_math.h calls.
#define X(name)            \
  template <typename... T> \
  float __metal_##name(T...);
MLXGEN_MATH(X)
MLXGEN_SIMD(X)
X(frexp)
X(modf)
X(get_simdgroup_size)
#undef X

#define MLXGEN_VECTORS(T)        \
  using T##2 = metal::vec<T, 2>; \
  using T##3 = metal::vec<T, 3>; \
  using T##4 = metal::vec<T, 4>;
MLXGEN_VECTORS(char)
MLXGEN_VECTORS(uchar)
MLXGEN_VECTORS(short)
MLXGEN_VECTORS(ushort)
MLXGEN_VECTORS(int)
MLXGEN_VECTORS(uint)
MLXGEN_VECTORS(long)
MLXGEN_VECTORS(ulong)
MLXGEN_VECTORS(half)
MLXGEN_VECTORS(bfloat)
MLXGEN_VECTORS(float)
using bool2 = int2;
using bool3 = int3;
using bool4 = int4;

using metal::as_type;

#line 1 "kernels"
