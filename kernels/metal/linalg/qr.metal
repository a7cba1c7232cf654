// Metal kernel of the QR decompositions of small matrices.

#include <metal_stdlib>

#include "lanes.h"

using namespace metal;

/**
 * A lane per column: Householder's reflections with the signs of LAPACK. The
 * lane of a column keeps its reflection, as in csrc/linalg/householder.h.
 */
template <typename T, int N>
[[kernel]] void small_qr(
    device const T* a [[buffer(0)]],
    device T* q [[buffer(1)]],
    device T* r [[buffer(2)]],
    constant int& m [[buffer(3)]],
    constant int& n [[buffer(4)]],
    constant int& count [[buffer(5)]],
    uint position [[thread_position_in_grid]],
    uint thread_in_simdgroup [[thread_index_in_simdgroup]]) {
  Lane<N> lane(position, thread_in_simdgroup, count);
  int j = lane.i;
  int steps = min(m, n);
  a += size_t(lane.matrix) * m * n;
  q += size_t(lane.matrix) * m * steps;
  r += size_t(lane.matrix) * steps * n;
  float column[N];
  bool finite = true;
  for (int i = 0; i < N; ++i) {
    column[i] = i < m && j < n ? float(a[i * n + j]) : 0;
    finite = finite && isfinite(column[i]);
  }
  finite = lane.all(finite);
  float own_tau = 0;
  for (int k = 0; k < N; ++k) {
    if (k < steps) { // for all lanes
      float head = column[k];
      float scale = abs(head), rest = 0;
      for (int i = k + 1; i < N; ++i) {
        scale = max(scale, abs(column[i]));
        rest += abs(column[i]);
      }
      bool flat = rest == 0;
      scale = flat ? 1 : scale;
      // Scaled, so that squares are in range and tiny columns keep their
      // digits.
      float first = head / scale;
      float sum = first * first;
      for (int i = k + 1; i < N; ++i) {
        sum += (column[i] / scale) * (column[i] / scale);
      }
      float norm = -copysign(sqrt(sum), head);
      float divisor = flat ? 1 : first - norm;
      own_tau = j == k ? (flat ? 0 : (norm - first) / norm) : own_tau;
      float tau = lane.from(own_tau, k);
      float v[N];
      sum = head;
      for (int i = k + 1; i < N; ++i) {
        v[i] = lane.from(column[i] / scale / divisor, k);
        sum += v[i] * column[i];
      }
      sum *= tau;
      for (int i = k + 1; i < N; ++i) {
        column[i] =
            j == k ? v[i] : (j > k ? column[i] - v[i] * sum : column[i]);
      }
      column[k] =
          j == k ? (flat ? head : norm * scale) : (j > k ? head - sum : head);
    }
  }
  if (lane.used && j < n) {
    for (int i = 0; i < N; ++i) {
      if (i < steps) {
        r[i * n + j] = T(finite ? (i <= j ? column[i] : 0) : NAN);
      }
    }
  }
  float unit[N];
  for (int i = 0; i < N; ++i) {
    unit[i] = float(i == j);
  }
  for (int k = N - 1; k >= 0; --k) {
    if (k < steps) {
      float v[N];
      float sum = unit[k];
      for (int i = k + 1; i < N; ++i) {
        v[i] = lane.from(column[i], k);
        sum += v[i] * unit[i];
      }
      sum *= lane.from(own_tau, k);
      unit[k] -= sum;
      for (int i = k + 1; i < N; ++i) {
        unit[i] -= v[i] * sum;
      }
    }
  }
  if (lane.used && j < steps) {
    for (int i = 0; i < N; ++i) {
      if (i < m) {
        q[i * steps + j] = T(finite ? unit[i] : NAN);
      }
    }
  }
}
