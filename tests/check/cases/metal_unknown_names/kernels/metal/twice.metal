#include <metal_stdlib>
using namespace metal;

struct Pair {
  float first;
  float of(int n) const { return first * n; }
};

template <typename T>
[[kernel, max_total_threads_per_group(64)]] void twice(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup flaot shared[32];
  [[unrol]] for (int k = 0; k < 32; ++k) {
    shared[k] = Pair{1}.of(k);
  }
  threadgroup_barier(mem_flags::mem_threadgroup);
  simdgroup_barrier(mem_flags::mem_none);
  auto add = [](float a, float b) { return a + b; };
  out[i] = T(add(x[i], metal::fast::expp(0.0f)) + simd_summ(as_type<float>(1)));
  threadgroup_barier(mem_flags::mem_threadgroup);
}

template <typename T>
[[kernel]] void large(
    device const T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup T tile[128][128];
  tile[0][0] = x[i];
  out[i] = tile[0][0];
}
