// Products with sparse matrices in CSR form, and walks on graphs.

#include <metal_stdlib>
using namespace metal;

// A thread per nonzero number and column; the row is found by bisection.
[[kernel]] void csr_matmul(
    device const float* data [[buffer(0)]],
    device const int* indices [[buffer(1)]],
    device const int* indptr [[buffer(2)]],
    device const float* x [[buffer(3)]],
    device atomic<float>* out [[buffer(4)]],
    constant int& P [[buffer(5)]],
    constant int& D [[buffer(6)]],
    uint2 position [[thread_position_in_grid]]) {
  int k = position.y;
  int low = 0, high = P - 1;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (indptr[middle] <= k) {
      low = middle;
    } else {
      high = middle;
    }
  }
  float product = data[k] * x[size_t(indices[k]) * D + position.x];
  atomic_fetch_add_explicit(
      &out[size_t(low) * D + position.x], product, memory_order_relaxed);
}

[[kernel]] void random_walk(
    device const int64_t* indptr [[buffer(0)]],
    device const int64_t* indices [[buffer(1)]],
    device const int64_t* start [[buffer(2)]],
    device const float* numbers [[buffer(3)]],
    device int64_t* out [[buffer(4)]],
    constant int& L [[buffer(5)]],
    uint walk [[thread_position_in_grid]]) {
  int64_t node = start[walk];
  device int64_t* nodes = out + size_t(walk) * (L + 1);
  nodes[0] = node;
  for (int i = 0; i < L; ++i) {
    int64_t first = indptr[node];
    int64_t count = indptr[node + 1] - first;
    if (count > 0) {
      int64_t chosen = int64_t(numbers[size_t(walk) * L + i] * count);
      node = indices[first + min(chosen, count - 1)];
    }
    nodes[i + 1] = node;
  }
}
