// The p-norm of differences and its gradient. The CPU and Metal kernels share
// this header.

#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#else
#include <cmath>
#endif

namespace mlx_aten {

#ifdef __METAL_VERSION__
namespace functions = metal;
#else
namespace functions = std;
#endif

/** The norm of a sequence of numbers: `add` each, then take the `result`. */
template <typename A>
struct Norm {
  A p;
  A sum; // or maximum, for infinite p

  void add(A x) {
    A size = functions::fabs(x);
    if (p == 0) {
      sum += x == 0 ? A(0) : x == x ? A(1) : x;
    } else if (p == 1) {
      sum += size;
    } else if (p == 2) {
      sum += x * x;
    } else if (p > 1e38f) {
      sum = size > sum || x != x ? size : sum;
    } else {
      sum += functions::pow(size, p);
    }
  }

  A result() const {
    if (p == 0 || p == 1 || p > 1e38f) {
      return sum;
    }
    return p == 2 ? functions::sqrt(sum) : functions::pow(sum, 1 / p);
  }

  /** The derivative of the norm with respect to x, where `sum` is the norm. */
  A slope(A x) const {
    A size = functions::fabs(x);
    A sign = x > 0 ? A(1) : x < 0 ? A(-1) : A(0);
    if (p == 0 || sum == 0) {
      return A(0);
    }
    if (p == 1) {
      return sign;
    }
    if (p == 2) {
      return x / sum;
    }
    if (p > 1e38f) {
      return size == sum ? sign : A(0);
    }
    if (x == 0) {
      return A(0); // also for p < 1, where the derivative is infinite
    }
    return sign * functions::pow(size / sum, p - 1);
  }
};

} // namespace mlx_aten
