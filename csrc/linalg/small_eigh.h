// CPU kernel of the eigenvalues and eigenvectors of small symmetric matrices:
// reduction to tridiagonal form, and the QL algorithm with implicit shifts.
// Bowdler, Martin, Reinsch and Wilkinson, "The QR and QL algorithms for
// symmetric matrices" (1968), and Martin and Wilkinson, "The implicit QL
// algorithm" (1968).

#pragma once

#include <utility>

#include "householder.h"

namespace mlxops::cpu {

namespace lanes {

MLXGEN_BEGIN_INLINED

/** The length of (a, b), without overflow. */
template <typename T, typename V>
inline void length(const V& a, const V& b, V& out) {
  V x = a, y = b, one;
  set<T>(one, T(1));
  absolute(x);
  absolute(y);
  V most = x > y ? x : y;
  V quotient = (x > y ? y : x) / (most == 0 ? one : most);
  out = one + quotient * quotient;
  square_root<T>(out);
  out *= most;
}

/**
 * Diagonal d and subdiagonal e of q.T a q. The matrix a, both triangles of
 * which are used, becomes q.T.
 */
template <typename T, typename V>
inline void tridiagonal(V* a, int n, V* d, V* e) {
  alignas(vector_bytes) V vectors[most * most], tau[most], w[most];
  V zero, one, half;
  set<T>(zero, T(0));
  set<T>(one, T(1));
  set<T>(half, T(0.5));
  for (int k = 0; k + 2 < n; ++k) {
    V* v = vectors + k * most;
    for (int i = k + 1; i < n; ++i) {
      v[i] = a[i * n + k];
    }
    reflection<T>(v, k + 1, n, e[k], tau[k]);
    // w = tau a v - (half of its component along v); a -= v w.T + w v.T
    for (int j = k + 1; j < n; ++j) {
      w[j] = v[k + 1] * a[(k + 1) * n + j];
    }
    for (int i = k + 2; i < n; ++i) {
      const V factor = v[i];
      for (int j = k + 1; j < n; ++j) {
        w[j] += factor * a[i * n + j];
      }
    }
    V along = zero;
    for (int j = k + 1; j < n; ++j) {
      w[j] *= tau[k];
      along += w[j] * v[j];
    }
    along *= half * tau[k];
    for (int j = k + 1; j < n; ++j) {
      w[j] -= along * v[j];
    }
    for (int i = k + 1; i < n; ++i) {
      const V left = v[i], right = w[i];
      V* row = a + i * n;
      for (int j = k + 1; j < n; ++j) {
        row[j] -= left * w[j] + right * v[j];
      }
    }
  }
  if (n > 1) {
    e[n - 2] = a[(n - 1) * n + n - 2];
  }
  e[n - 1] = zero;
  for (int i = 0; i < n; ++i) {
    d[i] = a[i * n + i];
    for (int j = 0; j < n; ++j) {
      a[i * n + j] = i == j ? one : zero;
    }
  }
  for (int k = n - 3; k >= 0; --k) {
    reflect(a, n, k + 1, n, k + 1, vectors + k * most, tau[k], w);
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) {
      std::swap(a[i * n + j], a[j * n + i]);
    }
  }
}

/**
 * Eigenvalues d and eigenvectors, the rows of z, of a tridiagonal matrix. The
 * matrices of a vector take the same steps: for each eigenvalue as many
 * iterations as the slowest one, each over the part of a matrix that is not
 * decoupled.
 */
template <typename T, typename V>
inline void implicit_ql(V* d, V* e, V* z, int n) {
  V zero, one, limit;
  set<T>(zero, T(0));
  set<T>(one, T(1));
  limit = zero;
  for (int i = 0; i < n; ++i) {
    V size = d[i], side = e[i];
    absolute(size);
    absolute(side);
    size += side;
    limit = size > limit ? size : limit;
  }
  V epsilon;
  set<T>(epsilon, std::numeric_limits<T>::epsilon());
  limit *= epsilon;
  for (int l = 0; l < n; ++l) {
    for (int iteration = 0; iteration < 50; ++iteration) {
      // The part from l to `end` (a number) is not decoupled.
      V end, last = d[n - 1], here;
      set<T>(end, T(n - 1));
      for (int i = n - 2; i >= l; --i) {
        V side = e[i];
        absolute(side);
        set<T>(here, T(i));
        end = side <= limit ? here : end;
        last = side <= limit ? d[i] : last;
      }
      int top = l;
      const T* ends = reinterpret_cast<const T*>(&end);
      for (int lane = 0; lane < width<T, V>; ++lane) {
        top = std::max(top, static_cast<int>(ends[lane]));
      }
      if (top == l) {
        break;
      }
      set<T>(here, T(l));
      const auto active = end > here;
      V g = (d[l + 1] - d[l]) / (active ? e[l] + e[l] : one), r;
      length<T>(g, one, r);
      r = g < 0 ? g - r : g + r;
      g = last - d[l] + e[l] / r;
      V s = one, c = one, p = zero;
      for (int i = top - 1; i >= l; --i) {
        set<T>(here, T(i));
        const auto inside = here < end;
        V f = s * e[i], b = c * e[i];
        length<T>(f, g, r);
        const auto none = r == zero;
        V inverse = one / (none ? one : r);
        V sine = f * inverse;
        V cosine = none ? one : g * inverse;
        V diagonal = d[i + 1] - p;
        V turned = (d[i] - diagonal) * sine + (cosine + cosine) * b;
        e[i + 1] = inside ? r : e[i + 1];
        p = inside ? sine * turned : p;
        d[i + 1] = inside ? diagonal + p : d[i + 1];
        g = inside ? cosine * turned - b : g;
        s = inside ? sine : s;
        c = inside ? cosine : c;
        sine = inside ? sine : zero;
        cosine = inside ? cosine : one;
        V* __restrict low = z + i * n;
        V* __restrict high = low + n;
        for (int j = 0; j < n; ++j) {
          const V x = low[j], y = high[j];
          high[j] = sine * x + cosine * y;
          low[j] = cosine * x - sine * y;
        }
      }
      d[l] = active ? d[l] - p : d[l];
      e[l] = active ? g : e[l];
      for (int i = l + 1; i <= top; ++i) {
        set<T>(here, T(i));
        e[i] = end == here ? zero : e[i];
      }
    }
  }
}

MLXGEN_END_INLINED

template <typename T>
struct Eigh {
  const T* from;
  T* to_w;
  T* to_v;
  int n;

  template <typename V>
  void operator()(int64_t first, int64_t count) const {
    constexpr int w = width<T, V>;
    alignas(vector_bytes) V a[most * most], d[most], e[most];
    V zero, bad, scale;
    set<T>(zero, T(0));
    const int64_t size = int64_t(n) * n;
    load<T>(from + first * size, count, size, n, 1, n, n, a);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < i; ++j) {
        a[j * n + i] = a[i * n + j];
      }
    }
    scale = bad = zero;
    survey<T>(a, n * n, scale, bad);
    const bool scaled = find_scale<T>(scale);
    for (int i = 0; i < n * n && scaled; ++i) {
      a[i] *= scale;
    }
    tridiagonal<T>(a, n, d, e);
    for (int i = 0; i < n; ++i) {
      d[i] = bad == zero ? d[i] : zero;
      e[i] = bad == zero ? e[i] : zero;
    }
    implicit_ql<T>(d, e, a, n);
    for (int i = 0; i < n && scaled; ++i) {
      d[i] /= scale;
    }
    const T* values = reinterpret_cast<const T*>(d);
    const T* vectors = reinterpret_cast<const T*>(a);
    const T* nan = reinterpret_cast<const T*>(&bad);
    for (int lane = 0; lane < count; ++lane) {
      int order[most];
      for (int i = 0; i < n; ++i) {
        int place = i;
        for (; place > 0 &&
             values[order[place - 1] * w + lane] > values[i * w + lane];
             --place) {
          order[place] = order[place - 1];
        }
        order[place] = i;
      }
      T* out_w = to_w + (first + lane) * n;
      T* out_v = to_v + (first + lane) * size;
      for (int j = 0; j < n; ++j) {
        out_w[j] = values[order[j] * w + lane] + nan[lane];
        for (int i = 0; i < n; ++i) {
          out_v[i * n + j] = vectors[(order[j] * n + i) * w + lane] + nan[lane];
        }
      }
    }
  }
};

} // namespace lanes

/** Eigenvalues, ascending, and eigenvectors, from the lower triangle. */
template <typename T>
void small_eigh(In<T> a, Out<T> w, Out<T> v) {
  int n = static_cast<int>(a.dim(-1));
  if (a.size() == 0) {
    return;
  }
  lanes::Eigh<T> kernel{a.data, w.data, v.data, n};
  lanes::share<T>(a.size() / (n * n), 10 * n * n * n, kernel);
}

} // namespace mlxops::cpu
