/* Threads whose calls fail while others set the error handler. */

#include "kinds_c.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void ignore(const char* message, void* data) {
  (void)message;
  (void)data;
}

static void* work(void* which) {
  const char* expected[] = {
      "[two] x must not be a null array.", "[checked] x must not be a null array."};
  long bad = 0, own = (long)which % 2;
  for (int i = 0; i < 2000; ++i) {
    mlx_array a = mlxgen_no_array(), b = mlxgen_no_array(), x = mlxgen_no_array();
    int code = own ? kinds_checked(&a, x, 1, mlxgen_no_stream())
                   : kinds_two(&a, &b, x, mlxgen_no_stream());
    bad += code != 1 || strcmp(kinds_last_error(), expected[own]) != 0;
    kinds_set_error_handler(ignore, NULL, NULL);
  }
  return (void*)bad;
}

int main(void) {
  pthread_t threads[4];
  long bad = 0;
  kinds_set_error_handler(ignore, NULL, NULL);
  for (long i = 0; i < 4; ++i) {
    pthread_create(&threads[i], NULL, work, (void*)i);
  }
  for (int i = 0; i < 4; ++i) {
    void* found;
    pthread_join(threads[i], &found);
    bad += (long)found;
  }
  printf("%ld\n", bad);
  return 0;
}
