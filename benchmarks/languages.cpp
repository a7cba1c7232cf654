// Times calls in C++ and C, alternately: benchmarks/languages.py.
//
// A call builds a node of MLX's graph, which is dropped. The arguments are the
// number of rounds and of calls in a round; the output is a line of seconds per
// call for each round.

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mlxops/mlxops.h"
#include "mlxops_c.h"

namespace mx = mlx::core;

template <typename Call>
double seconds(int calls, Call call) {
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    call();
  }
  std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - start;
  return passed.count() / calls;
}

int main(int, char** arguments) {
  int rounds = std::atoi(arguments[1]), calls = std::atoi(arguments[2]);
  float one = 1, two = 2;
  auto x = mx::array(one, mx::float32), y = mx::array(two, mx::float32);
  auto a = mlxops_array_new_data(&one, nullptr, 0, MLX_FLOAT32);
  auto b = mlxops_array_new_data(&two, nullptr, 0, MLX_FLOAT32);
  for (int i = 0; i <= rounds; ++i) {
    double cpp = seconds(calls, [&] { mlxops::axpby(x, y, 2, 3); });
    double c = seconds(calls, [&] {
      auto res = mlxops_array_new();
      mlxops_axpby(&res, a, b, 2, 3, mlxgen_no_stream());
      mlxops_array_free(res);
    });
    if (i) { // the first round warms up
      std::printf("%.9g %.9g\n", cpp, c);
    }
  }
  mlxops_array_free(a);
  mlxops_array_free(b);
}
