/* The error handler, and every function for arrays with invalid arguments; test_kinds.py has the
 * output. */

#include "kinds_c.h"
#include <stdio.h>
#include <string.h>

static void note(const char* message, void* data) {
  printf("%s %s\n", (const char*)data, message);
}

static void freed(void* data) {
  printf("freed %s\n", (const char*)data);
}

static int fail(void) {
  mlx_array res = kinds_array_new(), x = kinds_array_new();
  int code = kinds_two(&res, &res, x, mlxgen_no_stream());
  printf("%d %s\n", code, res.ctx ? "made" : "none");
  return code;
}

static void replaced(const char* message, void* data) {
  (void)message;
  (void)data;
  kinds_set_error_handler(note, (void*)"inner", NULL);
}

int main(void) {
  int sizes[] = {2, -1}, one[] = {1};
  float number = 0.5f, copy;
  mlx_array x;
  printf("[%s]\n", kinds_last_error());
  fail(); /* to stderr */
  kinds_set_error_handler(note, (void*)"first %s%n", freed);
  fail();
  kinds_set_error_handler(replaced, NULL, NULL);
  fail();
  fail();
  kinds_set_error_handler(note, (void*)"last", freed);
  x = kinds_array_new_data(&number, sizes, 2, MLX_FLOAT32);
  x = kinds_array_new_data(NULL, one, 1, MLX_FLOAT32);
  x = kinds_array_new_data(&number, NULL, 1, MLX_FLOAT32);
  x = kinds_array_new_data(&number, one, -1, MLX_FLOAT32);
  x = kinds_array_new_data(&number, one, 1, (mlx_dtype)99);
  printf("%d\n", x.ctx == NULL);
  x = kinds_array_new_data(&number, NULL, 0, MLX_FLOAT32);
  printf("%d\n", kinds_array_copy(&copy, 3, x));
  printf("%d\n", kinds_array_copy(&copy, 4, x));
  printf("%d\n", copy == number);
  printf("%d\n", kinds_array_copy(NULL, 4, x));
  printf("%d\n", kinds_array_set(NULL, x));
  printf("%d %d\n", (int)kinds_array_ndim(x), (int)kinds_array_ndim(kinds_array_new()));
  printf("%d\n", kinds_array_shape(kinds_array_new()) == NULL);
  printf("%d\n", kinds_array_eval(kinds_array_new()));
  printf("%d\n", kinds_vector_array_get(&x, mlxgen_no_vector_array(), 0));
  {
    mlx_array null = kinds_array_new();
    mlx_vector_array list = kinds_vector_array_new_data(&x, 1);
    printf("%d\n", kinds_vector_array_get(&x, list, 1));
    printf("%d\n", kinds_vector_array_append_value(list, null));
    printf("%d\n", kinds_vector_array_new_data(&null, 1).ctx == NULL);
    printf("%d\n", (int)kinds_vector_array_size(list));
    kinds_vector_array_free(list);
  }
  printf("[%s]\n", kinds_last_error());
  printf("%d %d\n", kinds_array_free(x), kinds_array_free(kinds_array_new()));
  printf("%d\n", kinds_stream_free(mlxgen_no_stream()));
  kinds_set_error_handler(NULL, NULL, NULL);
  fail(); /* to stderr */
  return 0;
}
