// Sinkhorn's iteration in logarithms, and its gradient: a simdgroup per matrix,
// which is in threadgroup memory, with a lane per row or column.

#include <metal_stdlib>
using namespace metal;

// Subtracts the logarithm of the sum of exponentials, along n lines. Numbers of
// a line are `step` apart, and lines `line`.
inline void
normalize(threadgroup float* logs, int n, int line, int step, int lane) {
  for (int i = lane; i < n; i += 32) {
    threadgroup float* first = logs + i * line;
    float most = -INFINITY;
    for (int j = 0; j < n; ++j) {
      most = max(most, first[j * step]);
    }
    float sum = 0;
    for (int j = 0; j < n; ++j) {
      sum += exp(first[j * step] - most);
    }
    float shift = most + log(sum);
    for (int j = 0; j < n; ++j) {
      first[j * step] -= shift;
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

template <typename T, int N>
[[kernel]] void sinkhorn(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant int& iterations [[buffer(2)]],
    constant int& n [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  threadgroup float logs[N * N];
  int lane = position.x;
  size_t start = size_t(position.y) * n * n;
  for (int i = lane; i < n * n; i += 32) {
    logs[i] = float(x[start + i]);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < iterations; ++i) {
    normalize(logs, n, n, 1, lane);
    normalize(logs, n, 1, n, lane);
  }
  for (int i = lane; i < n * n; i += 32) {
    out[start + i] = T(exp(logs[i]));
  }
}

template <typename T, int N>
[[kernel]] void sinkhorn_vjp(
    device const T* x [[buffer(0)]],
    device const T* cotangent [[buffer(1)]],
    device T* out [[buffer(2)]],
    device float* steps [[buffer(3)]],
    constant int& iterations [[buffer(4)]],
    constant int& n [[buffer(5)]],
    uint2 position [[thread_position_in_grid]]) {
  threadgroup float logs[N * N]; // later the gradient
  int lane = position.x;
  size_t start = size_t(position.y) * n * n;
  device float* kept = steps + start * 2 * iterations;
  for (int i = lane; i < n * n; i += 32) {
    logs[i] = float(x[start + i]);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < 2 * iterations; ++i) {
    bool rows = i % 2 == 0;
    normalize(logs, n, rows ? n : 1, rows ? 1 : n, lane);
    for (int k = lane; k < n * n; k += 32) {
      kept[i * n * n + k] = logs[k];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  }
  for (int i = lane; i < n * n; i += 32) {
    logs[i] = float(cotangent[start + i]) * exp(logs[i]);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 2 * iterations - 1; i >= 0; --i) {
    int line = i % 2 == 0 ? n : 1, step = i % 2 == 0 ? 1 : n;
    for (int k = lane; k < n; k += 32) {
      float sum = 0;
      for (int j = 0; j < n; ++j) {
        sum += logs[k * line + j * step];
      }
      for (int j = 0; j < n; ++j) {
        int at = k * line + j * step;
        logs[at] -= exp(kept[i * n * n + at]) * sum;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int i = lane; i < n * n; i += 32) {
    out[start + i] = T(logs[i]);
  }
}
