// Sinkhorn's iteration in logarithms, and its gradient.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "mlxgen/kernel.h"

namespace mlx_ports::cpu {

/**
 * Subtract the logarithm of the sum of exponentials, along n lines. Numbers of
 * a line are `step` apart, and lines `line`.
 */
template <typename C>
void normalize(C* logs, int64_t n, int64_t line, int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    C* first = logs + i * line;
    C most = -std::numeric_limits<C>::infinity();
    for (int64_t j = 0; j < n; ++j) {
      most = std::max(most, first[j * step]);
    }
    C sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += std::exp(first[j * step] - most);
    }
    C shift = most + std::log(sum);
    for (int64_t j = 0; j < n; ++j) {
      first[j * step] -= shift;
    }
  }
}

/** The gradient of normalize(), from its result. */
template <typename C>
void normalize_vjp(
    const C* logs,
    C* grad,
    int64_t n,
    int64_t line,
    int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    C sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += grad[i * line + j * step];
    }
    for (int64_t j = 0; j < n; ++j) {
      int64_t at = i * line + j * step;
      grad[at] -= std::exp(logs[at]) * sum;
    }
  }
}

template <typename T>
void sinkhorn(In<T> x, int iterations, Out<T> out) {
  int64_t n = x.dim(-1);
  std::vector<accum_t<T>> logs(n * n);
  for (int64_t start = 0; start < x.size(); start += n * n) {
    for (int64_t i = 0; i < n * n; ++i) {
      logs[i] = x[start + i];
    }
    for (int i = 0; i < iterations; ++i) {
      normalize(logs.data(), n, n, int64_t(1));
      normalize(logs.data(), n, int64_t(1), n);
    }
    for (int64_t i = 0; i < n * n; ++i) {
      out[start + i] = static_cast<T>(std::exp(logs[i]));
    }
  }
}

template <typename T>
void sinkhorn_vjp(
    In<T> x,
    In<T> cotangent,
    int iterations,
    Out<T> out,
    Out<accum_t<T>> steps) {
  using C = accum_t<T>;
  int64_t n = x.dim(-1), each = n * n;
  std::vector<C> logs(each), grad(each);
  for (int64_t start = 0; start < x.size(); start += each) {
    C* kept = steps.data + start * 2 * iterations;
    for (int64_t i = 0; i < each; ++i) {
      logs[i] = x[start + i];
    }
    for (int i = 0; i < 2 * iterations; ++i) {
      bool rows = i % 2 == 0;
      normalize(logs.data(), n, rows ? n : 1, rows ? 1 : n);
      std::copy(logs.begin(), logs.end(), kept + i * each);
    }
    for (int64_t i = 0; i < each; ++i) {
      grad[i] = static_cast<C>(cotangent[start + i]) * std::exp(logs[i]);
    }
    for (int i = 2 * iterations - 1; i >= 0; --i) {
      bool rows = i % 2 == 0;
      normalize_vjp(
          kept + i * each, grad.data(), n, rows ? n : 1, rows ? 1 : n);
    }
    for (int64_t i = 0; i < each; ++i) {
      out[start + i] = static_cast<T>(grad[i]);
    }
  }
}

} // namespace mlx_ports::cpu
