// Attention of one query per sequence to keys and values in pages: a simdgroup
// per query, whose lanes have N channels each.

#include <metal_stdlib>
using namespace metal;

template <typename T, int N>
[[kernel]] void paged_attention(
    device const T* q [[buffer(0)]],
    device const T* keys [[buffer(1)]],
    device const T* values [[buffer(2)]],
    device const int* table [[buffer(3)]],
    device const int* lengths [[buffer(4)]],
    device T* out [[buffer(5)]],
    constant float& scale [[buffer(6)]],
    constant int& H [[buffer(7)]],
    constant int& G [[buffer(8)]],
    constant int& size [[buffer(9)]],
    constant int& D [[buffer(10)]],
    constant int& M [[buffer(11)]],
    uint3 position [[thread_position_in_grid]]) {
  int lane = position.x, head = position.y, sequence = position.z;
  size_t row = (size_t(sequence) * H + head) * D;
  int group = head / (H / G);
  float query[N], sums[N];
  for (int i = 0; i < N; ++i) {
    int channel = lane + 32 * i;
    query[i] = channel < D ? scale * float(q[row + channel]) : 0.0f;
    sums[i] = 0;
  }
  // The softmax of the tokens so far: its largest score and its denominator.
  float most = -INFINITY, denominator = 0;
  for (int token = 0; token < lengths[sequence]; ++token) {
    int page = table[sequence * M + token / size];
    size_t at = ((size_t(page) * G + group) * size + token % size) * D;
    float score = 0;
    for (int i = 0; i < N; ++i) {
      int channel = lane + 32 * i;
      score += channel < D ? query[i] * float(keys[at + channel]) : 0.0f;
    }
    score = simd_sum(score);
    float next = max(most, score);
    float before = exp(most - next);
    float weight = exp(score - next);
    denominator = denominator * before + weight;
    for (int i = 0; i < N; ++i) {
      int channel = lane + 32 * i;
      float value = channel < D ? float(values[at + channel]) : 0.0f;
      sums[i] = sums[i] * before + weight * value;
    }
    most = next;
  }
  for (int i = 0; i < N; ++i) {
    int channel = lane + 32 * i;
    if (channel < D) {
      out[row + channel] = T(sums[i] / denominator);
    }
  }
}
