/* The types of the C interface of packages made with mlxgen (docs/c.md): C99
 * and C++.
 *
 * The handles, dtypes and optional values are those of mlx-c. If mlx-c is in
 * the include path, they come from its headers, which can then also be included
 * before or after this one. Else this header defines the same types. */

#ifndef MLXGEN_C_TYPES_H
#define MLXGEN_C_TYPES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* MLXGEN_WITHOUT_MLX_C: never include headers of mlx-c. */
#if defined(__has_include) && !defined(MLXGEN_WITHOUT_MLX_C)
#if __has_include("mlx/c/array.h") && __has_include("mlx/c/vector.h")
#include "mlx/c/array.h"
#include "mlx/c/optional.h"
#include "mlx/c/stream.h"
#include "mlx/c/vector.h"
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MLX_ARRAY_H

/** An array: a pointer to an mlx::core::array, or NULL. */
typedef struct mlx_array_ {
  void* ctx;
} mlx_array;

/** The type of an array's elements. */
#ifdef __cplusplus
typedef enum mlx_dtype_ : unsigned int {
#else
typedef enum mlx_dtype_ {
#endif
  MLX_BOOL,
  MLX_UINT8,
  MLX_UINT16,
  MLX_UINT32,
  MLX_UINT64,
  MLX_INT8,
  MLX_INT16,
  MLX_INT32,
  MLX_INT64,
  MLX_FLOAT16,
  MLX_FLOAT32,
  MLX_FLOAT64,
  MLX_BFLOAT16,
  MLX_COMPLEX64
} mlx_dtype;

/** A list of arrays: a pointer to a std::vector<mlx::core::array>. */
typedef struct mlx_vector_array_ {
  void* ctx;
} mlx_vector_array;

/** A stream: a pointer to an mlx::core::Stream; NULL is the default one. */
typedef struct mlx_stream_ {
  void* ctx;
} mlx_stream;

typedef struct mlx_optional_int_ {
  int value;
  bool has_value;
} mlx_optional_int;

typedef struct mlx_optional_float_ {
  float value;
  bool has_value;
} mlx_optional_float;

typedef struct mlx_optional_dtype_ {
  mlx_dtype value;
  bool has_value;
} mlx_optional_dtype;

#endif /* MLX_ARRAY_H */

typedef struct mlxgen_optional_bool_ {
  bool value;
  bool has_value;
} mlxgen_optional_bool;

typedef struct mlxgen_optional_int64_ {
  int64_t value;
  bool has_value;
} mlxgen_optional_int64;

typedef struct mlxgen_optional_double_ {
  double value;
  bool has_value;
} mlxgen_optional_double;

/** The kinds of numbers, which decide the dtype of a result. */
typedef enum mlxgen_number_kind_ {
  MLXGEN_NUMBER_BOOL,
  MLXGEN_NUMBER_INT,
  MLXGEN_NUMBER_FLOAT
} mlxgen_number_kind;

/** A number that is a bool, an int or a float. */
typedef struct mlxgen_number_ {
  int kind; /* mlxgen_number_kind */
  int64_t integer; /* of a bool or an int */
  double real; /* of a float */
} mlxgen_number;

typedef struct mlxgen_optional_number_ {
  mlxgen_number value;
  bool has_value;
} mlxgen_optional_number;

/** The attribute of functions of deprecated operators. */
#define MLXGEN_DEPRECATED(text) __attribute__((deprecated(text)))

/** Receives the message of an error, which is valid during the call. */
typedef void (*mlxgen_error_handler)(const char* message, void* data);

/* Functions that make these values. */

static inline mlxgen_number mlxgen_bool(bool value) {
  mlxgen_number made = {MLXGEN_NUMBER_BOOL, value, 0};
  return made;
}

static inline mlxgen_number mlxgen_int(int64_t value) {
  mlxgen_number made = {MLXGEN_NUMBER_INT, value, 0};
  return made;
}

static inline mlxgen_number mlxgen_float(double value) {
  mlxgen_number made = {MLXGEN_NUMBER_FLOAT, 0, value};
  return made;
}

static inline mlx_array mlxgen_no_array(void) {
  mlx_array made = {NULL};
  return made;
}

static inline mlx_vector_array mlxgen_no_vector_array(void) {
  mlx_vector_array made = {NULL};
  return made;
}

static inline mlx_stream mlxgen_no_stream(void) {
  mlx_stream made = {NULL};
  return made;
}

static inline mlx_optional_int mlxgen_some_int(int value) {
  mlx_optional_int made = {value, true};
  return made;
}

static inline mlx_optional_int mlxgen_no_int(void) {
  mlx_optional_int made = {0, false};
  return made;
}

static inline mlx_optional_float mlxgen_some_float(float value) {
  mlx_optional_float made = {value, true};
  return made;
}

static inline mlx_optional_float mlxgen_no_float(void) {
  mlx_optional_float made = {0, false};
  return made;
}

static inline mlx_optional_dtype mlxgen_some_dtype(mlx_dtype value) {
  mlx_optional_dtype made = {value, true};
  return made;
}

static inline mlx_optional_dtype mlxgen_no_dtype(void) {
  mlx_optional_dtype made = {MLX_BOOL, false};
  return made;
}

static inline mlxgen_optional_bool mlxgen_some_bool(bool value) {
  mlxgen_optional_bool made = {value, true};
  return made;
}

static inline mlxgen_optional_bool mlxgen_no_bool(void) {
  mlxgen_optional_bool made = {false, false};
  return made;
}

static inline mlxgen_optional_int64 mlxgen_some_int64(int64_t value) {
  mlxgen_optional_int64 made = {value, true};
  return made;
}

static inline mlxgen_optional_int64 mlxgen_no_int64(void) {
  mlxgen_optional_int64 made = {0, false};
  return made;
}

static inline mlxgen_optional_double mlxgen_some_double(double value) {
  mlxgen_optional_double made = {value, true};
  return made;
}

static inline mlxgen_optional_double mlxgen_no_double(void) {
  mlxgen_optional_double made = {0, false};
  return made;
}

static inline mlxgen_optional_number mlxgen_some_number(mlxgen_number value) {
  mlxgen_optional_number made = {value, true};
  return made;
}

static inline mlxgen_optional_number mlxgen_no_number(void) {
  mlxgen_optional_number made = {{MLXGEN_NUMBER_INT, 0, 0}, false};
  return made;
}

#ifdef __cplusplus
}
#endif

#endif /* MLXGEN_C_TYPES_H */
