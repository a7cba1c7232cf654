// CPU kernels of rotary position embeddings, alone and after a norm of every
// head. All heads share the sines and cosines of a position, which are computed
// from angles in double, because these comprise many turns.

#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "mlxgen/simd_math.h"
#include "nn/rows.h"

namespace mlxops::cpu {

// The number of heads that each row of a weight's gradient sums, as in
// kernels/metal/nn/rotary.metal.
constexpr int64_t heads_per_sum = 32;

namespace rotary {

MLXGEN_BEGIN_INLINED

/** Rotate pairs of neighbors, or of elements that are half of `turned` apart.
 */
template <typename From, typename To, typename A>
inline void turn(
    const From* from,
    To* __restrict to,
    const A* cosines,
    const A* sines,
    int64_t turned,
    int64_t size,
    bool traditional) {
  int64_t half = turned / 2;
  if (traditional) {
    for (int64_t i = 0; i < half; ++i) {
      A a = mlxgen::widen(from[2 * i]);
      A b = mlxgen::widen(from[2 * i + 1]);
      mlxgen::narrow(a * cosines[i] - b * sines[i], to[2 * i]);
      mlxgen::narrow(a * sines[i] + b * cosines[i], to[2 * i + 1]);
    }
  } else {
    const From* upper_from = from + half;
    rows::store(to, half, [=](int64_t i) {
      return mlxgen::widen(from[i]) * cosines[i] -
          mlxgen::widen(upper_from[i]) * sines[i];
    });
    rows::store(to + half, half, [=](int64_t i) {
      return mlxgen::widen(from[i]) * sines[i] +
          mlxgen::widen(upper_from[i]) * cosines[i];
    });
  }
  for (int64_t i = turned; i < size; ++i) {
    mlxgen::narrow(mlxgen::widen(from[i]), to[i]);
  }
}

/** The sines and cosines of a position. */
template <typename A>
class Turn {
 public:
  explicit Turn(const std::vector<double>& frequencies)
      : frequencies_(frequencies),
        angles_(2 * frequencies.size()),
        cosines(frequencies.size()),
        sines(frequencies.size()) {}

  inline void to(double position) {
    auto n = static_cast<int64_t>(cosines.size());
    double* s = angles_.data();
    double* c = s + n;
    rows::fill(s, n, [=, f = frequencies_.data()](int64_t i) {
      return position * f[i];
    });
    std::copy_n(s, n, c);
    rows::apply(s, n, [](double x) { return mlxgen::math::sin(x); });
    rows::apply(c, n, [](double x) { return mlxgen::math::cos(x); });
    rows::fill(sines.data(), n, [=](int64_t i) { return A(s[i]); });
    rows::fill(cosines.data(), n, [=](int64_t i) { return A(c[i]); });
  }

 private:
  const std::vector<double>& frequencies_;
  std::vector<double> angles_;

 public:
  std::vector<A> cosines;
  std::vector<A> sines;
};

MLXGEN_END_INLINED

/** The angle between consecutive positions, for each pair. */
template <typename A>
std::vector<double>
frequencies(int64_t turned, double base, double scale, In<A> freqs) {
  std::vector<double> to(turned / 2);
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = scale *
        (freqs ? 1 / static_cast<double>(freqs[i])
               : std::pow(base, -2 * static_cast<double>(i) / turned));
  }
  return to;
}

/** Positions for each step or for the first step, of all sequences or of each.
 */
class Positions {
 public:
  Positions(In<int32_t> offset, In<int32_t> positions, int64_t steps)
      : offset_(offset), positions_(positions), steps_(steps) {}

  double at(int64_t sequence, int64_t step) const {
    if (positions_) {
      return positions_
          [positions_.ndim() == 1 ? step : sequence * steps_ + step];
    }
    double first =
        offset_ ? offset_[offset_.size() == 1 ? 0 : sequence] : int32_t(0);
    return first + static_cast<double>(step);
  }

 private:
  In<int32_t> offset_;
  In<int32_t> positions_;
  int64_t steps_;
};

} // namespace rotary

/** x is (B, ..., T, D). */
template <typename T>
void rope(
    In<T> x,
    std::optional<int> dims,
    bool traditional,
    double base,
    double scale,
    In<int32_t> offset,
    In<int32_t> positions,
    In<accum_t<T>> freqs,
    Out<T> out) {
  using A = accum_t<T>;
  constexpr int64_t steps_at_a_time = 16;
  int64_t size = x.dim(-1);
  int64_t steps = x.dim(-2);
  int64_t sequences = x.ndim() == 2 ? 1 : x.dim(0);
  int64_t turned = dims.value_or(size);
  if (x.size() == 0) {
    return;
  }
  int64_t heads = x.size() / (sequences * steps * size);
  auto frequencies = rotary::frequencies(turned, base, scale, freqs);
  rotary::Positions place(offset, positions, steps);
  int64_t stretches = (steps + steps_at_a_time - 1) / steps_at_a_time;
  int64_t half = turned / 2;
  int64_t cost = std::min(steps, steps_at_a_time) * (heads * size + 8 * half);
  rows::share(
      sequences * stretches, cost, [&](int64_t first_item, int64_t last_item) {
        rotary::Turn<A> turn(frequencies);
        std::vector<A> cosines(steps_at_a_time * half);
        std::vector<A> sines(steps_at_a_time * half);
        for (int64_t item = first_item; item < last_item; ++item) {
          int64_t sequence = item / stretches;
          int64_t first = item % stretches * steps_at_a_time;
          int64_t last = std::min(first + steps_at_a_time, steps);
          for (int64_t t = first; t < last; ++t) {
            turn.to(place.at(sequence, t));
            std::copy_n(
                turn.cosines.data(), half, cosines.data() + (t - first) * half);
            std::copy_n(
                turn.sines.data(), half, sines.data() + (t - first) * half);
          }
          for (int64_t head = 0; head < heads; ++head) {
            for (int64_t t = first; t < last; ++t) {
              int64_t row = (sequence * heads + head) * steps + t;
              rotary::turn(
                  x.data + row * size,
                  out.data + row * size,
                  cosines.data() + (t - first) * half,
                  sines.data() + (t - first) * half,
                  turned,
                  size,
                  traditional);
            }
          }
        }
      });
}

/** rope(rms_norm(x) weight) of x (B, T, H, D). */
template <typename T>
void norm_rope(
    In<T> x,
    In<T> weight,
    std::optional<int> dims,
    bool traditional,
    double base,
    double scale,
    In<int32_t> offset,
    In<int32_t> positions,
    In<accum_t<T>> freqs,
    double eps,
    Out<T> out) {
  using A = accum_t<T>;
  int64_t size = x.dim(3);
  int64_t heads = x.dim(2);
  int64_t steps = x.dim(1);
  int64_t turned = dims.value_or(size);
  auto frequencies = rotary::frequencies(turned, base, scale, freqs);
  rotary::Positions place(offset, positions, steps);
  auto w = rows::weight_of(weight, size);
  rows::share(
      heads == 0 ? 0 : x.dim(0) * steps,
      heads * size + 4 * turned,
      [&](int64_t first, int64_t last) {
        rotary::Turn<A> turn(frequencies);
        std::vector<A> scratch(size);
        A* v = scratch.data();
        for (int64_t token = first; token < last; ++token) {
          turn.to(place.at(token / steps, token % steps));
          for (int64_t row = token * heads; row < (token + 1) * heads; ++row) {
            rows::load(x.data + row * size, v, size);
            A rms = rows::rms_scale(v, size, eps);
            for (int64_t i = 0; i < size; ++i) {
              v[i] *= rms * w[i];
            }
            rotary::turn(
                v,
                out.data + row * size,
                turn.cosines.data(),
                turn.sines.data(),
                turned,
                size,
                traditional);
          }
        }
      });
}

/** Gradients; the rows of grad_weight add up to the gradient with respect to
 * weight. */
template <typename T>
void norm_rope_vjp(
    In<T> x,
    In<T> weight,
    In<T> cotangent,
    std::optional<int> dims,
    bool traditional,
    double base,
    double scale,
    In<int32_t> offset,
    In<int32_t> positions,
    In<accum_t<T>> freqs,
    double eps,
    Out<T> grad_x,
    Out<accum_t<T>> grad_weight) {
  using A = accum_t<T>;
  int64_t size = x.dim(3);
  int64_t heads = x.dim(2);
  int64_t steps = x.dim(1);
  int64_t turned = dims.value_or(size);
  // The inverse rotation.
  auto frequencies = rotary::frequencies(turned, base, -scale, freqs);
  rotary::Positions place(offset, positions, steps);
  auto w = rows::weight_of(weight, size);
  int64_t count = x.dim(0) * steps * heads;
  rows::share(
      (count + heads_per_sum - 1) / heads_per_sum,
      heads_per_sum * (2 * size + 4 * turned / std::max<int64_t>(1, heads)),
      [&](int64_t first_sum, int64_t last_sum) {
        rotary::Turn<A> turn(frequencies);
        std::vector<A> scratch(2 * size);
        A* v = scratch.data();
        A* d = v + size;
        for (int64_t sum = first_sum; sum < last_sum; ++sum) {
          A* dw = grad_weight.data + sum * size;
          std::fill_n(dw, size, A(0));
          int64_t first = sum * heads_per_sum;
          int64_t last = std::min(first + heads_per_sum, count);
          for (int64_t row = first; row < last; ++row) {
            int64_t token = row / heads;
            if (row == first || row % heads == 0) {
              turn.to(place.at(token / steps, token % steps));
            }
            rotary::turn(
                cotangent.data + row * size,
                d,
                turn.cosines.data(),
                turn.sines.data(),
                turned,
                size,
                traditional);
            rows::load(x.data + row * size, v, size);
            A rms = rows::rms_scale(v, size, eps);
            rows::add(dw, size, [=](int64_t i) { return d[i] * v[i] * rms; });
            for (int64_t i = 0; i < size; ++i) {
              d[i] *= w[i];
            }
            A shift = rows::dot(d, v, size) / size * rms * rms;
            rows::store(grad_x.data + row * size, size, [=](int64_t i) {
              return rms * (d[i] - v[i] * shift);
            });
          }
        }
      });
}

} // namespace mlxops::cpu
