// Metal kernels of expert_routing: the formulas of csrc/nn/routing.h. A
// simdgroup computes a token, and lane j its j-th expert.

#include <metal_stdlib>

#include "nn/activations.h"

using namespace metal;

static constant constexpr const int routing_by_softmax = 0;

static constant constexpr const int no_expert = 0x7fffffff;

// The number of experts whose keys a lane stores; other keys are recomputed.
static constant constexpr const int kept_keys = 8;

/** The next expert after the last one found, among the given experts. */
struct NextExpert {
  float last_key;
  int last;
  float key;
  int found;

  void look_at(float here, int i) {
    bool behind = here < last_key || (here == last_key && i > last);
    if (behind && (here > key || found == no_expert)) {
      key = here;
      found = i;
    }
  }
};

/**
 * The terms of the scores of a token's experts: exponentials relative to `most`
 * for a softmax, and sigmoids relative to exp(most), divided by `total`.
 */
struct Scores {
  int kind;
  float most;
  float total;

  float relative(float logit) const {
    bool rises = kind == routing_by_softmax || logit < 0;
    float e = rises ? precise::exp(logit - most) : 1.0f;
    return kind == routing_by_softmax ? e
                                      : e / (1 + precise::exp(-fabs(logit)));
  }
  float of(float logit) const {
    return relative(logit) / total;
  }
};

template <typename T>
inline Scores
scores_of(device const T* logits, uint experts, int kind, uint lane) {
  Scores scores = {kind, 0, 1};
  if (kind == routing_by_softmax) {
    scores.most = -INFINITY;
    scores.total = 0;
    for (uint i = lane; i < experts; i += 32) {
      scores.most = max(scores.most, static_cast<float>(logits[i]));
    }
    scores.most = simd_max(scores.most);
    for (uint i = lane; i < experts; i += 32) {
      scores.total += precise::exp(static_cast<float>(logits[i]) - scores.most);
    }
    scores.total = simd_sum(scores.total);
  }
  return scores;
}

/**
 * The terms for scores of the chosen experts, one per lane, divided by their
 * sum. Sigmoids are relative to the largest one if that is small, because all
 * of them could be 0.
 */
inline Scores scores_of_chosen(float logit, bool has_one, int kind) {
  Scores scores = {kind, simd_max(has_one ? logit : -INFINITY), 1};
  if (kind != routing_by_softmax) {
    scores.most = scores.most == -INFINITY ? 0 : min(scores.most, 0.0f);
  }
  float total = simd_sum(has_one ? scores.relative(logit) : 0.0f);
  bool none = kind != routing_by_softmax && total == 0; // all logits are -inf
  scores.total = none ? 1 : total;
  return scores;
}

/** The sort key of an expert. */
template <typename T>
inline float key_of(
    device const T* logits,
    device const T* bias,
    bool has_bias,
    Scores scores,
    uint i) {
  float key = static_cast<float>(logits[i]);
  if (has_bias) {
    key = scores.of(key) + static_cast<float>(bias[i]);
  }
  return isnan(key) ? INFINITY : key;
}

template <typename T>
[[kernel]] void expert_routing(
    device const T* logits [[buffer(0)]],
    device const T* bias [[buffer(1)]],
    device T* weights [[buffer(2)]],
    device uint* indices [[buffer(3)]],
    constant bool& has_bias [[buffer(4)]],
    constant int& k [[buffer(5)]],
    constant int& score [[buffer(6)]],
    constant bool& normalize [[buffer(7)]],
    constant uint& experts [[buffer(8)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  logits += size_t(place.y) * experts;
  Scores scores = {score, 0, 1};
  if (has_bias || !normalize) {
    scores = scores_of(logits, experts, score, lane);
  }
  float keys[kept_keys];
  for (int j = 0; j < kept_keys; ++j) {
    uint i = lane + 32 * j;
    keys[j] = i < experts ? key_of(logits, bias, has_bias, scores, i) : 0.0f;
  }
  float last_key = INFINITY;
  int last = -1;
  int own = 0;
  for (int round = 0; round < k; ++round) {
    NextExpert next = {last_key, last, -INFINITY, no_expert};
    for (int j = 0; j < kept_keys; ++j) {
      uint i = lane + 32 * j;
      if (i < experts) {
        next.look_at(keys[j], int(i));
      }
    }
    for (uint i = lane + 32 * kept_keys; i < experts; i += 32) {
      next.look_at(key_of(logits, bias, has_bias, scores, i), int(i));
    }
    last_key = simd_max(next.key);
    last = simd_min(next.key == last_key ? next.found : no_expert);
    if (int(lane) == round) {
      own = last;
    }
  }
  bool has_one = int(lane) < k;
  float logit = has_one ? static_cast<float>(logits[own]) : 0.0f;
  if (normalize) {
    scores = scores_of_chosen(logit, has_one, score);
  }
  if (has_one) {
    weights[size_t(place.y) * k + lane] = static_cast<T>(scores.of(logit));
    indices[size_t(place.y) * k + lane] = uint(own);
  }
}

template <typename T>
[[kernel]] void expert_routing_vjp(
    device const T* logits [[buffer(0)]],
    device const uint* indices [[buffer(1)]],
    device const T* cotangent [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant int& score [[buffer(4)]],
    constant bool& normalize [[buffer(5)]],
    constant uint& experts [[buffer(6)]],
    constant uint& k [[buffer(7)]],
    uint3 place [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  logits += size_t(place.y) * experts;
  out += size_t(place.y) * experts;
  bool has_one = lane < k;
  size_t at = size_t(place.y) * k + lane;
  uint own = has_one ? indices[at] : 0;
  float slope = has_one ? static_cast<float>(cotangent[at]) : 0;
  float logit = static_cast<float>(logits[own]);
  bool dense = score == routing_by_softmax && !normalize;
  Scores scores;
  if (normalize) {
    scores = scores_of_chosen(logit, has_one, score);
  } else {
    scores = scores_of(logits, experts, score, lane);
  }
  float weight = has_one ? scores.of(logit) : 0;
  float shift = 0;
  if (normalize || dense) {
    shift = simd_sum(slope * weight);
  }
  slope = dense ? slope * weight : (slope - shift) * weight;
  if (score != routing_by_softmax) {
    slope *= logistic(-logit);
  }
  for (uint start = 0; start < experts; start += 32) {
    uint i = start + lane;
    float total = 0;
    if (dense && i < experts) {
      total = -shift * scores.of(static_cast<float>(logits[i]));
    }
    for (uint j = 0; j < k; ++j) {
      uint expert = simd_broadcast(own, ushort(j));
      float part = simd_broadcast(slope, ushort(j));
      total += expert == i ? part : 0.0f;
    }
    if (i < experts) {
      out[i] = static_cast<T>(total);
    }
  }
}
