/* What the C programs of the tests share: arrays from a file, and results and errors to another.
 * PACKAGE(name) is a function of the tested package. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *given, *written;

static void stop(const char* why) {
  fprintf(stderr, "calls: %s\n", why);
  exit(2);
}

static void read_bytes(void* to, size_t size) {
  if (size && fread(to, 1, size, given) != size) {
    stop("the file of arrays is too short");
  }
}

static void write_bytes(const void* from, size_t size) {
  if (size && fwrite(from, 1, size, written) != size) {
    stop("the file of results cannot be written");
  }
}

static int read_int(void) {
  int value;
  read_bytes(&value, sizeof value);
  return value;
}

static void write_int(int value) {
  write_bytes(&value, sizeof value);
}

/* The next array of the file: dtype, number of axes, their sizes, number of bytes, elements. */
static mlx_array take(void) {
  int dtype = read_int(), dim = read_int(), shape[8], nbytes;
  void* data;
  mlx_array made;
  read_bytes(shape, dim * sizeof(int));
  nbytes = read_int();
  data = malloc(nbytes + 1);
  read_bytes(data, nbytes);
  made = PACKAGE(array_new_data)(data, shape, dim, (mlx_dtype)dtype);
  free(data);
  if (!made.ctx) {
    stop(PACKAGE(last_error)());
  }
  return made;
}

static mlx_vector_array take_list(int size) {
  mlx_vector_array made = PACKAGE(vector_array_new)();
  for (int i = 0; i < size; ++i) {
    mlx_array item = take();
    if (PACKAGE(vector_array_append_value)(made, item)) {
      stop(PACKAGE(last_error)());
    }
    PACKAGE(array_free)(item);
  }
  return made;
}

static void put_error(void) {
  const char* message = PACKAGE(last_error)();
  write_int(-1);
  write_int((int)strlen(message));
  write_bytes(message, strlen(message));
}

/* Write a result in the form of `take`, or the error of its computation. */
static void put(mlx_array from) {
  size_t nbytes = PACKAGE(array_nbytes)(from), ndim = PACKAGE(array_ndim)(from);
  void* data = malloc(nbytes + 1);
  if (PACKAGE(array_copy)(data, nbytes, from)) {
    put_error();
  } else {
    write_int((int)PACKAGE(array_dtype)(from));
    write_int((int)ndim);
    write_bytes(PACKAGE(array_shape)(from), ndim * sizeof(int));
    write_int((int)nbytes);
    write_bytes(data, nbytes);
  }
  free(data);
}

/* A list: its number of arrays, negative as no dtype is, then the arrays. */
static void put_list(mlx_vector_array from) {
  size_t size = PACKAGE(vector_array_size)(from);
  write_int(-2 - (int)size);
  for (size_t i = 0; i < size; ++i) {
    mlx_array item = PACKAGE(array_new)();
    if (PACKAGE(vector_array_get)(&item, from, i)) {
      stop(PACKAGE(last_error)());
    }
    put(item);
    PACKAGE(array_free)(item);
  }
}

static void open_files(int count, char** names) {
  if (count != 3 || !(given = fopen(names[1], "rb")) || !(written = fopen(names[2], "wb"))) {
    stop("expected the file of arrays and the file of results");
  }
}

static void close_files(void) {
  if (fgetc(given) != EOF || fclose(given) || fclose(written)) {
    stop("the files cannot be closed, or arrays are left");
  }
}

static int error_count;

static void count_error(const char* message, void* data) {
  (void)message;
  ++*(int*)data;
}
