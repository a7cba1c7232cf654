// Taps with rounded weights; see rounded_taps.h.

#include "rounded_taps.h"

#include <algorithm>
#include <cmath>

#include "taps.h"

namespace mlx_aten::functions {

std::vector<mx::array> rounded_taps(
    int length,
    int size,
    const std::string& mode,
    std::optional<double> factor,
    bool align_corners,
    mx::StreamOrDevice) {
  auto kind = mode == "linear"  ? linear_taps
      : mode == "cubic"         ? cubic_taps
      : mode == "smooth_linear" ? smooth_linear_taps
                                : smooth_cubic_taps;
  double scale = factor && *factor > 0 ? 1 / *factor : 0;
  TapAxis<double> axis(kind, length, size, scale, align_corners, 1, 1, 0);
  // Inputs beyond the ends are the outer ones, whose weights are added.
  std::vector<int> firsts;
  std::vector<std::vector<double>> sums;
  size_t most = 1;
  double largest = 0;
  for (int j = 0; j < size; ++j) {
    auto taps = axis.weighted(j);
    int first = axis.input(taps, 0);
    int last = axis.input(taps, taps.count - 1);
    auto& sum = sums.emplace_back(last - first + 1);
    for (int k = 0; k < taps.count; ++k) {
      sum[axis.input(taps, k) - first] += axis.weight(taps, k);
    }
    firsts.push_back(first);
    most = std::max(most, sum.size());
    largest = std::max(largest, *std::max_element(sum.begin(), sum.end()));
  }
  // As many bits as the largest weight can have in 16 bits with a sign.
  int bits = 0;
  while (bits < 22 && std::round(std::ldexp(largest, bits + 1)) < 1 << 15) {
    ++bits;
  }
  std::vector<int> weights(size * most);
  for (int j = 0; j < size; ++j) {
    int first = std::min(firsts[j], length - int(most)); // all are inputs
    for (size_t k = 0; k < sums[j].size(); ++k) {
      double weight = std::ldexp(sums[j][k], bits);
      weights[j * most + firsts[j] - first + k] = int(std::round(weight));
    }
    firsts[j] = first;
  }
  return {
      mx::array(firsts.data(), {size}),
      mx::array(weights.data(), {size, int(most)}),
      mx::full({size}, bits)};
}

} // namespace mlx_aten::functions
