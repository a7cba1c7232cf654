// CPU kernels of expert_routing: they select the experts of each token and
// compute their weights.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nn/activations.h"
#include "nn/rows.h"

namespace mlxops::cpu {

namespace routing {

// A value of expert_routing's argument `score`.
constexpr int by_softmax = 0;

/** A sort key: the score, or inf for NaN, so that all scores are ordered. */
template <typename A>
A key_of(A score) {
  return std::isnan(score) ? std::numeric_limits<A>::infinity() : score;
}

/** The scores of all experts. */
template <typename A>
void scores_of(const A* logits, int64_t experts, int score, A* to) {
  std::copy_n(logits, experts, to);
  if (score == by_softmax) {
    A most = *std::max_element(logits, logits + experts);
    rows::apply(to, experts, [=](A x) { return mlxgen::math::exp(x - most); });
    A total = rows::sum(to, experts);
    rows::apply(to, experts, [=](A x) { return x / total; });
  } else {
    rows::apply(to, experts, [](A x) { return sigmoid(x); });
  }
}

/**
 * The scores of the chosen experts divided by their sum, from their k logits;
 * 0 if all sigmoids are those of -inf. Sigmoids of negative logits are divided
 * by exp of the largest one, because all of them could be 0 in A.
 */
template <typename A>
void normalized(const A* logits, int64_t k, int score, A* to) {
  if (score == by_softmax) {
    scores_of(logits, k, score, to);
    return;
  }
  A most = *std::max_element(logits, logits + k);
  if (most < 0 && std::isfinite(most)) {
    A factor = std::exp(most);
    std::copy_n(logits, k, to);
    rows::apply(to, k, [=](A x) {
      A e = mlxgen::math::exp(x - most);
      return e / (1 + e * factor);
    });
  } else {
    scores_of(logits, k, score, to);
  }
  A sum = rows::sum(to, k);
  A total = sum == 0 ? A(1) : sum;
  rows::apply(to, k, [=](A x) { return x / total; });
}

} // namespace routing

/**
 * The k experts with the largest score + bias, in this order; ties go to the
 * first. The bias does not affect the weights.
 */
template <typename T>
void expert_routing(
    In<T> logits,
    int k,
    int score,
    bool normalize,
    In<T> bias,
    Out<T> weights,
    Out<uint32_t> indices) {
  using A = accum_t<T>;
  int64_t experts = logits.dim(-1);
  auto added = rows::weight_of(bias, experts, A(0));
  rows::share(
      rows::count(logits.shape), 2 * experts, [&](int64_t first, int64_t last) {
        std::vector<A> scratch(3 * experts + 2 * k);
        A* logit = scratch.data();
        A* scores = logit + experts;
        A* keys = scores + experts;
        A* chosen = keys + experts;
        A* weight = chosen + k;
        for (int64_t token = first; token < last; ++token) {
          uint32_t* order = indices.data + token * k;
          rows::load(logits.data + token * experts, logit, experts);
          if (bias || !normalize) {
            routing::scores_of(logit, experts, score, scores);
          }
          // Without a bias, scores have the order of the logits.
          rows::fill(keys, experts, [&](int64_t i) {
            return routing::key_of(bias ? scores[i] + added[i] : logit[i]);
          });
          int64_t found = 0;
          for (int64_t i = 0; i < experts; ++i) {
            if (found == k && !(keys[i] > keys[order[k - 1]])) {
              continue;
            }
            int64_t place = found < k ? found++ : k - 1;
            for (; place > 0 && keys[i] > keys[order[place - 1]]; --place) {
              order[place] = order[place - 1];
            }
            order[place] = static_cast<uint32_t>(i);
          }
          for (int64_t j = 0; j < k; ++j) {
            weight[j] = scores[order[j]];
            chosen[j] = logit[order[j]];
          }
          if (normalize) {
            routing::normalized(chosen, k, score, weight);
          }
          rows::store(weights.data + token * k, k, [=](int64_t j) {
            return weight[j];
          });
        }
      });
}

/** The gradient with respect to the logits. */
template <typename T>
void expert_routing_vjp(
    In<T> logits,
    In<uint32_t> indices,
    In<T> cotangent,
    int score,
    bool normalize,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t experts = logits.dim(-1);
  int64_t k = indices.dim(-1);
  rows::share(
      rows::count(logits.shape), 2 * experts, [&](int64_t first, int64_t last) {
        std::vector<A> scratch(2 * experts + 3 * k);
        A* logit = scratch.data();
        A* scores = logit + experts; // then the gradient
        A* chosen = scores + experts;
        A* weight = chosen + k;
        A* slope = weight + k;
        bool dense = score == routing::by_softmax && !normalize;
        for (int64_t token = first; token < last; ++token) {
          const uint32_t* order = indices.data + token * k;
          rows::load(logits.data + token * experts, logit, experts);
          rows::load(cotangent.data + token * k, slope, k);
          for (int64_t j = 0; j < k; ++j) {
            chosen[j] = logit[order[j]];
          }
          if (dense) {
            routing::scores_of(logit, experts, score, scores);
            for (int64_t j = 0; j < k; ++j) {
              weight[j] = scores[order[j]];
            }
            A shift = rows::dot(slope, weight, k);
            rows::apply(scores, experts, [=](A s) { return -s * shift; });
            for (int64_t j = 0; j < k; ++j) {
              scores[order[j]] += weight[j] * slope[j];
            }
          } else {
            std::fill_n(scores, experts, A(0));
            if (normalize) {
              routing::normalized(chosen, k, score, weight);
              A shift = rows::dot(slope, weight, k);
              rows::apply(slope, k, [=](A g) { return g - shift; });
            } else {
              routing::scores_of(chosen, k, score, weight);
            }
            if (score != routing::by_softmax) {
              rows::apply(chosen, k, [](A x) { return sigmoid(-x); });
            }
            for (int64_t j = 0; j < k; ++j) {
              A factor = score == routing::by_softmax ? A(1) : chosen[j];
              scores[order[j]] = slope[j] * weight[j] * factor;
            }
          }
          rows::store(out.data + token * experts, experts, [=](int64_t i) {
            return scores[i];
          });
        }
      });
}

} // namespace mlxops::cpu
