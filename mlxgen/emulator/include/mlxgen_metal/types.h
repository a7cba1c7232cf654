// Metal's scalar and vector types and its type traits, in C++.

#pragma once

#include <stddef.h>
#include <stdint.h>

#include <type_traits>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Every operation rounds; some compilers need -fexcess-precision=16 for it.
typedef _Float16 half;

/**
 * Metal's bfloat. Every operation rounds to nearest even. Conversions from
 * integers, to float and to integers other than int are implicit. The others
 * are explicit, because Metal rejects them; that to int, because `c ? x : 0`
 * would be ambiguous.
 */
class bfloat {
 public:
  bfloat() = default;
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, half>)
  explicit(!std::is_integral_v<T>) constexpr bfloat(T value)
      : bits_(round(static_cast<float>(value))) {}

  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, half>)
  explicit(
      std::is_same_v<T, int> ||
      !(std::is_integral_v<T> || std::is_same_v<T, float>)) constexpr
  operator T() const {
    return static_cast<T>(__builtin_bit_cast(float, uint32_t(bits_) << 16));
  }

#define MLXGEN_BFLOAT_OPERATOR(op)                                 \
  friend constexpr bfloat operator op(bfloat a, bfloat b) {        \
    return bfloat(static_cast<float>(a) op static_cast<float>(b)); \
  }                                                                \
  template <typename T>                                            \
    requires std::is_integral_v<T>                                 \
  friend constexpr bfloat operator op(bfloat a, T b) {             \
    return a op bfloat(b);                                         \
  }                                                                \
  template <typename T>                                            \
    requires std::is_integral_v<T>                                 \
  friend constexpr bfloat operator op(T a, bfloat b) {             \
    return bfloat(a) op b;                                         \
  }                                                                \
  friend constexpr float operator op(bfloat a, float b) {          \
    return static_cast<float>(a) op b;                             \
  }                                                                \
  friend constexpr float operator op(float a, bfloat b) {          \
    return a op static_cast<float>(b);                             \
  }                                                                \
  template <typename T>                                            \
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, half>)   \
  friend constexpr T& operator op## = (T & a, bfloat b) {          \
    return a = static_cast<T>(a op static_cast<float>(b));         \
  }                                                                \
  template <typename T>                                            \
  constexpr bfloat& operator op## = (T b) {                        \
    return *this = bfloat(static_cast<float>(*this op b));         \
  }
  MLXGEN_BFLOAT_OPERATOR(+)
  MLXGEN_BFLOAT_OPERATOR(-)
  MLXGEN_BFLOAT_OPERATOR(*)
  MLXGEN_BFLOAT_OPERATOR(/)
#undef MLXGEN_BFLOAT_OPERATOR

#define MLXGEN_BFLOAT_COMPARE(op)                                \
  friend constexpr bool operator op(bfloat a, bfloat b) {        \
    return static_cast<float>(a) op static_cast<float>(b);       \
  }                                                              \
  template <typename T>                                          \
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, half>) \
  friend constexpr bool operator op(bfloat a, T b) {             \
    return static_cast<float>(a) op static_cast<float>(b);       \
  }                                                              \
  template <typename T>                                          \
    requires(std::is_arithmetic_v<T> || std::is_same_v<T, half>) \
  friend constexpr bool operator op(T a, bfloat b) {             \
    return static_cast<float>(a) op static_cast<float>(b);       \
  }
  MLXGEN_BFLOAT_COMPARE(==)
  MLXGEN_BFLOAT_COMPARE(!=)
  MLXGEN_BFLOAT_COMPARE(<)
  MLXGEN_BFLOAT_COMPARE(>)
  MLXGEN_BFLOAT_COMPARE(<=)
  MLXGEN_BFLOAT_COMPARE(>=)
#undef MLXGEN_BFLOAT_COMPARE

  constexpr bfloat operator-() const {
    bfloat out = *this;
    out.bits_ ^= 0x8000;
    return out;
  }
  constexpr bfloat operator+() const {
    return *this;
  }
  constexpr bfloat& operator++() {
    return *this += 1;
  }
  constexpr bfloat operator++(int) {
    bfloat out = *this;
    *this += 1;
    return out;
  }
  constexpr bfloat& operator--() {
    return *this -= 1;
  }
  constexpr bfloat operator--(int) {
    bfloat out = *this;
    *this -= 1;
    return out;
  }

 private:
  static constexpr uint16_t round(float value) {
    auto bits = __builtin_bit_cast(uint32_t, value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) {
      return uint16_t((bits >> 16) | 0x40);
    }
    return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }

  uint16_t bits_;
};

namespace mlxgen_metal {
template <int... I>
struct Swizzle {};
template <typename T>
struct Identity {
  using type = T;
};
/** A type of a parameter that is not deduced from the argument. */
template <typename T>
using Same = typename Identity<T>::type;
} // namespace mlxgen_metal

namespace metal {

// The names of types are global, and may be qualified.
using ::bfloat;
using ::half;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::ptrdiff_t;
using ::size_t;
using ::uchar;
using ::uint;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::ulong;
using ::ushort;

// ------------------------------------------------------------------ traits

using std::bool_constant;
using std::declval;
using std::false_type;
using std::integral_constant;
using std::true_type;

#define MLXGEN_TRAIT(name, suffix) \
  using std::name;                 \
  using std::name##suffix;
MLXGEN_TRAIT(alignment_of, _v)
MLXGEN_TRAIT(conjunction, _v)
MLXGEN_TRAIT(disjunction, _v)
MLXGEN_TRAIT(extent, _v)
MLXGEN_TRAIT(is_array, _v)
MLXGEN_TRAIT(is_assignable, _v)
MLXGEN_TRAIT(is_base_of, _v)
MLXGEN_TRAIT(is_class, _v)
MLXGEN_TRAIT(is_compound, _v)
MLXGEN_TRAIT(is_const, _v)
MLXGEN_TRAIT(is_constructible, _v)
MLXGEN_TRAIT(is_convertible, _v)
MLXGEN_TRAIT(is_copy_assignable, _v)
MLXGEN_TRAIT(is_copy_constructible, _v)
MLXGEN_TRAIT(is_default_constructible, _v)
MLXGEN_TRAIT(is_destructible, _v)
MLXGEN_TRAIT(is_enum, _v)
MLXGEN_TRAIT(is_final, _v)
MLXGEN_TRAIT(is_function, _v)
MLXGEN_TRAIT(is_fundamental, _v)
MLXGEN_TRAIT(is_integral, _v)
MLXGEN_TRAIT(is_invocable, _v)
MLXGEN_TRAIT(is_lvalue_reference, _v)
MLXGEN_TRAIT(is_member_pointer, _v)
MLXGEN_TRAIT(is_move_assignable, _v)
MLXGEN_TRAIT(is_move_constructible, _v)
MLXGEN_TRAIT(is_null_pointer, _v)
MLXGEN_TRAIT(is_object, _v)
MLXGEN_TRAIT(is_pointer, _v)
MLXGEN_TRAIT(is_reference, _v)
MLXGEN_TRAIT(is_rvalue_reference, _v)
MLXGEN_TRAIT(is_same, _v)
MLXGEN_TRAIT(is_signed, _v)
MLXGEN_TRAIT(is_standard_layout, _v)
MLXGEN_TRAIT(is_trivial, _v)
MLXGEN_TRAIT(is_trivially_copyable, _v)
MLXGEN_TRAIT(is_union, _v)
MLXGEN_TRAIT(is_unsigned, _v)
MLXGEN_TRAIT(is_void, _v)
MLXGEN_TRAIT(is_volatile, _v)
MLXGEN_TRAIT(negation, _v)
MLXGEN_TRAIT(rank, _v)
MLXGEN_TRAIT(add_const, _t)
MLXGEN_TRAIT(add_cv, _t)
MLXGEN_TRAIT(add_lvalue_reference, _t)
MLXGEN_TRAIT(add_pointer, _t)
MLXGEN_TRAIT(add_rvalue_reference, _t)
MLXGEN_TRAIT(add_volatile, _t)
MLXGEN_TRAIT(common_type, _t)
MLXGEN_TRAIT(conditional, _t)
MLXGEN_TRAIT(decay, _t)
MLXGEN_TRAIT(enable_if, _t)
MLXGEN_TRAIT(invoke_result, _t)
MLXGEN_TRAIT(make_signed, _t)
MLXGEN_TRAIT(make_unsigned, _t)
MLXGEN_TRAIT(remove_all_extents, _t)
MLXGEN_TRAIT(remove_const, _t)
MLXGEN_TRAIT(remove_cv, _t)
MLXGEN_TRAIT(remove_extent, _t)
MLXGEN_TRAIT(remove_pointer, _t)
MLXGEN_TRAIT(remove_reference, _t)
MLXGEN_TRAIT(remove_volatile, _t)
MLXGEN_TRAIT(underlying_type, _t)
#undef MLXGEN_TRAIT

template <typename T>
using remove_addrspace_t = T;
template <typename T>
struct remove_addrspace {
  using type = T;
};

template <typename... T>
using _disjunction = std::disjunction<T...>;

template <typename T>
constexpr bool is_floating_point_v =
    std::is_same_v<std::remove_cv_t<T>, float> ||
    std::is_same_v<std::remove_cv_t<T>, half> ||
    std::is_same_v<std::remove_cv_t<T>, bfloat>;
template <typename T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <typename T>
constexpr bool is_arithmetic_v = is_floating_point_v<T> || is_integral_v<T>;
template <typename T>
struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};

template <typename To, typename From>
  requires(sizeof(To) == sizeof(From))
constexpr To as_type(From value) {
  return __builtin_bit_cast(To, value);
}

template <typename T, size_t N>
struct array {
  T elements[N];
  constexpr T& operator[](size_t i) {
    return elements[i];
  }
  constexpr const T& operator[](size_t i) const {
    return elements[i];
  }
  constexpr size_t size() const {
    return N;
  }
};

/** A value that its author declares to be equal in all threads. */
template <typename T>
using uniform = T;
template <typename T>
constexpr T make_uniform(T value) {
  return value;
}

template <typename T>
struct numeric_limits;

#define MLXGEN_INTEGER_LIMITS(T)                                         \
  template <>                                                            \
  struct numeric_limits<T> {                                             \
    static constexpr bool is_signed = std::is_signed_v<T>;               \
    static constexpr bool is_integer = true;                             \
    static constexpr int digits = int(sizeof(T) * 8) - is_signed;        \
    static constexpr T max() {                                           \
      using U = std::make_unsigned_t<T>;                                 \
      return static_cast<T>(static_cast<U>(-1) >> (is_signed ? 1 : 0));  \
    }                                                                    \
    static constexpr T min() {                                           \
      return is_signed ? static_cast<T>(-max() - 1) : static_cast<T>(0); \
    }                                                                    \
    static constexpr T lowest() {                                        \
      return min();                                                      \
    }                                                                    \
  };
MLXGEN_INTEGER_LIMITS(char)
MLXGEN_INTEGER_LIMITS(signed char)
MLXGEN_INTEGER_LIMITS(unsigned char)
MLXGEN_INTEGER_LIMITS(short)
MLXGEN_INTEGER_LIMITS(unsigned short)
MLXGEN_INTEGER_LIMITS(int)
MLXGEN_INTEGER_LIMITS(unsigned int)
MLXGEN_INTEGER_LIMITS(long)
MLXGEN_INTEGER_LIMITS(unsigned long)
MLXGEN_INTEGER_LIMITS(long long)
MLXGEN_INTEGER_LIMITS(unsigned long long)
#undef MLXGEN_INTEGER_LIMITS
template <>
struct numeric_limits<bool> {
  static constexpr bool max() {
    return true;
  }
  static constexpr bool min() {
    return false;
  }
  static constexpr bool lowest() {
    return false;
  }
};

#define MLXGEN_FLOAT_LIMITS(T, Bits, digits_, max_, min_, eps, inf, nan) \
  template <>                                                            \
  struct numeric_limits<T> {                                             \
    static constexpr bool is_signed = true;                              \
    static constexpr bool is_integer = false;                            \
    static constexpr int digits = digits_;                               \
    static constexpr T of(Bits bits) {                                   \
      return __builtin_bit_cast(T, bits);                                \
    }                                                                    \
    static constexpr T max() {                                           \
      return of(max_);                                                   \
    }                                                                    \
    static constexpr T min() {                                           \
      return of(min_);                                                   \
    }                                                                    \
    static constexpr T lowest() {                                        \
      return -max();                                                     \
    }                                                                    \
    static constexpr T epsilon() {                                       \
      return of(eps);                                                    \
    }                                                                    \
    static constexpr T infinity() {                                      \
      return of(inf);                                                    \
    }                                                                    \
    static constexpr T quiet_NaN() {                                     \
      return of(nan);                                                    \
    }                                                                    \
  };
MLXGEN_FLOAT_LIMITS(
    float,
    uint32_t,
    24,
    0x7F7FFFFF,
    0x00800000,
    0x34000000,
    0x7F800000,
    0x7FC00000)
MLXGEN_FLOAT_LIMITS(half, uint16_t, 11, 0x7BFF, 0x0400, 0x1400, 0x7C00, 0x7E00)
MLXGEN_FLOAT_LIMITS(bfloat, uint16_t, 8, 0x7F7F, 0x0080, 0x3C00, 0x7F80, 0x7FC0)
#undef MLXGEN_FLOAT_LIMITS

/** An internal type of Metal's library, which MLX's older bfloat uses. */
template <typename T>
struct _fp_encoding_traits {
  static constexpr uint32_t inf_mask = 0x7F800000;
  static constexpr uint32_t sign_mask = 0x80000000;
};
template <>
struct _fp_encoding_traits<half> {
  static constexpr uint16_t inf_mask = 0x7C00;
  static constexpr uint16_t sign_mask = 0x8000;
};

// ------------------------------------------------------------------ vectors

template <typename T, int N>
struct vec;

template <typename T>
struct vec_traits {
  static constexpr int size = 0; // not a vector
};
template <typename T, int N>
struct vec_traits<vec<T, N>> {
  static constexpr int size = N;
};
template <typename T>
struct vec_elements : integral_constant<
                          int,
                          (vec_traits<T>::size > 0 ? vec_traits<T>::size : 1)> {
};
template <typename T>
constexpr bool is_vector_v = vec_traits<remove_cv_t<T>>::size > 0;
template <typename T>
struct is_vector : bool_constant<is_vector_v<T>> {};
template <typename T>
constexpr bool is_scalar_v = is_arithmetic_v<remove_cv_t<T>>;
template <typename T>
struct is_scalar : bool_constant<is_scalar_v<T>> {};
template <typename T, int N>
struct make_vector {
  using type = vec<T, N>;
};
template <typename T, int N>
using make_vector_t = vec<T, N>;
template <typename T>
struct make_scalar {
  using type = T;
};
template <typename T, int N>
struct make_scalar<vec<T, N>> {
  using type = T;
};
template <typename T>
using make_scalar_t = typename make_scalar<T>::type;

template <typename T, int N>
struct vec_data;
template <typename T>
struct alignas(2 * sizeof(T)) vec_data<T, 2> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
};
template <typename T>
struct alignas(4 * sizeof(T)) vec_data<T, 3> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
  union {
    T z, b;
  };
};
template <typename T>
struct alignas(4 * sizeof(T)) vec_data<T, 4> {
  union {
    T x, r;
  };
  union {
    T y, g;
  };
  union {
    T z, b;
  };
  union {
    T w, a;
  };
};

/** A swizzle on the left side of an assignment. */
template <typename V, typename R, int... I>
struct SwizzleReference {
  V& target;
  constexpr R operator=(R value) {
    int k = 0;
    ((target.set(I, value.get(k++))), ...);
    return value;
  }
#define MLXGEN_SWIZZLE_ASSIGN(op)                                      \
  template <typename T>                                                \
  constexpr R operator op## = (T value) {                              \
    return *this = target.swz(mlxgen_metal::Swizzle<I...>()) op value; \
  }
  MLXGEN_SWIZZLE_ASSIGN(+)
  MLXGEN_SWIZZLE_ASSIGN(-)
  MLXGEN_SWIZZLE_ASSIGN(*)
  MLXGEN_SWIZZLE_ASSIGN(/)
#undef MLXGEN_SWIZZLE_ASSIGN
};

template <typename T, int N>
struct vec : vec_data<T, N> {
  using value_type = T;
  vec() = default; // `vec()` and `{}` are zero
  constexpr vec(const vec&) = default;
  constexpr vec& operator=(const vec&) = default;
  template <typename S>
    requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)
  constexpr vec(S value) {
    for (int i = 0; i < N; ++i) {
      set(i, static_cast<T>(value));
    }
  }
  template <typename S>
    requires(
        vec_traits<S>::size == 0 && !std::is_convertible_v<S, T> &&
        requires(S s) { static_cast<T>(s); })
  explicit constexpr vec(S value) {
    for (int i = 0; i < N; ++i) {
      set(i, static_cast<T>(value));
    }
  }
  template <typename S>
    requires(!std::is_same_v<S, T>)
  explicit constexpr vec(const vec<S, N>& other) {
    for (int i = 0; i < N; ++i) {
      set(i, static_cast<T>(other.get(i)));
    }
  }
  // From scalars and shorter vectors with N components in total.
  template <typename A, typename B, typename... C>
  constexpr vec(const A& a, const B& b, const C&... c) {
    constexpr int given = parts<A>() + parts<B>() + (parts<C>() + ... + 0);
    static_assert(given == N, "too few or too many components of a vector");
    int k = 0;
    append(k, a);
    append(k, b);
    (append(k, c), ...);
  }

  constexpr T get(int i) const {
    if constexpr (N == 2) {
      return i == 0 ? this->x : this->y;
    } else if constexpr (N == 3) {
      return i == 0 ? this->x : i == 1 ? this->y : this->z;
    } else {
      return i == 0 ? this->x : i == 1 ? this->y : i == 2 ? this->z : this->w;
    }
  }
  constexpr void set(int i, T value) {
    (*this)[i] = value;
  }
  constexpr T& operator[](int i) {
    if constexpr (N == 2) {
      return i == 0 ? this->x : this->y;
    } else if constexpr (N == 3) {
      return i == 0 ? this->x : i == 1 ? this->y : this->z;
    } else {
      return i == 0 ? this->x : i == 1 ? this->y : i == 2 ? this->z : this->w;
    }
  }
  constexpr const T& operator[](int i) const {
    return const_cast<vec&>(*this)[i];
  }

  template <int... I>
  constexpr vec<T, int(sizeof...(I))> swz(mlxgen_metal::Swizzle<I...>) const {
    static_assert(((I < N) && ...), "the vector has no such component");
    return {get(I)...};
  }
  template <int... I>
  constexpr auto swz_to(mlxgen_metal::Swizzle<I...>) {
    static_assert(((I < N) && ...), "the vector has no such component");
    return SwizzleReference<vec, vec<T, int(sizeof...(I))>, I...>{*this};
  }

 private:
  template <typename A>
  static constexpr int parts() {
    return vec_traits<A>::size == 0 ? 1 : vec_traits<A>::size;
  }
  template <typename A>
  constexpr void append(int& k, const A& a) {
    if constexpr (vec_traits<A>::size == 0) {
      set(k++, static_cast<T>(a));
    } else {
      for (int i = 0; i < vec_traits<A>::size; ++i) {
        set(k++, static_cast<T>(a.get(i)));
      }
    }
  }
};

#define MLXGEN_VECTOR_OPERATOR(op)                                     \
  template <typename T, int N>                                         \
  constexpr auto operator op(const vec<T, N>& a, const vec<T, N>& b) { \
    vec<decltype(static_cast<T>(a.x op b.x)), N> out;                  \
    for (int i = 0; i < N; ++i) {                                      \
      out.set(i, static_cast<T>(a.get(i) op b.get(i)));                \
    }                                                                  \
    return out;                                                        \
  }                                                                    \
  template <typename T, int N, typename S>                             \
    requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)  \
  constexpr auto operator op(const vec<T, N>& a, const S& b) {         \
    return a op vec<T, N>(b);                                          \
  }                                                                    \
  template <typename T, int N, typename S>                             \
    requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)  \
  constexpr auto operator op(const S& a, const vec<T, N>& b) {         \
    return vec<T, N>(a) op b;                                          \
  }                                                                    \
  template <typename T, int N, typename S>                             \
  constexpr vec<T, N>& operator op## = (vec<T, N> & a, const S& b) {   \
    return a = a op b;                                                 \
  }
MLXGEN_VECTOR_OPERATOR(+)
MLXGEN_VECTOR_OPERATOR(-)
MLXGEN_VECTOR_OPERATOR(*)
MLXGEN_VECTOR_OPERATOR(/)
MLXGEN_VECTOR_OPERATOR(%)
MLXGEN_VECTOR_OPERATOR(&)
MLXGEN_VECTOR_OPERATOR(|)
MLXGEN_VECTOR_OPERATOR(^)
MLXGEN_VECTOR_OPERATOR(<<)
MLXGEN_VECTOR_OPERATOR(>>)
#undef MLXGEN_VECTOR_OPERATOR

#define MLXGEN_VECTOR_COMPARE(op)                                              \
  template <typename T, int N>                                                 \
  constexpr vec<bool, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
    vec<bool, N> out;                                                          \
    for (int i = 0; i < N; ++i) {                                              \
      out.set(i, a.get(i) op b.get(i));                                        \
    }                                                                          \
    return out;                                                                \
  }                                                                            \
  template <typename T, int N, typename S>                                     \
    requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)          \
  constexpr vec<bool, N> operator op(const vec<T, N>& a, const S& b) {         \
    return a op vec<T, N>(b);                                                  \
  }                                                                            \
  template <typename T, int N, typename S>                                     \
    requires(vec_traits<S>::size == 0 && std::is_convertible_v<S, T>)          \
  constexpr vec<bool, N> operator op(const S& a, const vec<T, N>& b) {         \
    return vec<T, N>(a) op b;                                                  \
  }
MLXGEN_VECTOR_COMPARE(==)
MLXGEN_VECTOR_COMPARE(!=)
MLXGEN_VECTOR_COMPARE(<)
MLXGEN_VECTOR_COMPARE(>)
MLXGEN_VECTOR_COMPARE(<=)
MLXGEN_VECTOR_COMPARE(>=)
MLXGEN_VECTOR_COMPARE(&&)
MLXGEN_VECTOR_COMPARE(||)
#undef MLXGEN_VECTOR_COMPARE

#define MLXGEN_VECTOR_UNARY(op)                         \
  template <typename T, int N>                          \
  constexpr vec<T, N> operator op(const vec<T, N>& a) { \
    vec<T, N> out;                                      \
    for (int i = 0; i < N; ++i) {                       \
      out.set(i, static_cast<T>(op a.get(i)));          \
    }                                                   \
    return out;                                         \
  }
MLXGEN_VECTOR_UNARY(-)
MLXGEN_VECTOR_UNARY(+)
MLXGEN_VECTOR_UNARY(~)
MLXGEN_VECTOR_UNARY(!)
#undef MLXGEN_VECTOR_UNARY

} // namespace metal

#define MLXGEN_VECTORS(T)        \
  using T##2 = metal::vec<T, 2>; \
  using T##3 = metal::vec<T, 3>; \
  using T##4 = metal::vec<T, 4>; \
  namespace metal {              \
  using ::T##2;                  \
  using ::T##3;                  \
  using ::T##4;                  \
  }
MLXGEN_VECTORS(bool)
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
#undef MLXGEN_VECTORS

using metal::as_type;
