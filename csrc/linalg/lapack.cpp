#include "linalg/lapack.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>

#include "linalg/singular.h"
#include "mlxgen/cpu.h"

namespace mlxops::linalg {

namespace {

using mx::complex64_t;
using Reals = mlxgen::Types<float, double>;
using Numbers = mlxgen::Types<float, double, complex64_t>;

/** Return true if the absolute values of these numbers are finite. */
template <typename T>
MLXGEN_MULTIVERSION bool finite_here(const T* x, int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  Bits others = 0;
  for (int64_t i = 0; i < count; ++i) {
    others |= std::abs(x[i]) <= std::numeric_limits<T>::max() ? 0 : 1;
  }
  return others == 0;
}

template <typename T>
bool finite(const T* x, int64_t count) {
  return mlxgen::multiversion([&] { return finite_here(x, count); });
}

bool finite(const complex64_t* x, int64_t count) {
  constexpr double most = std::numeric_limits<float>::max();
  int others = 0;
  for (int64_t i = 0; i < count; ++i) {
    double real = x[i].real(), imag = x[i].imag();
    others |= real * real + imag * imag <= most * most ? 0 : 1;
  }
  return others == 0;
}

/** An output with floating numbers, the parts of complex ones included. */
struct Target {
  explicit Target(mx::array& out, int64_t matrices)
      : data(out.data<void>()),
        bytes(static_cast<int64_t>(out.nbytes()) / matrices),
        wide(out.dtype() == mx::float64) {}

  /** Fill the part of a matrix with NaN. */
  void clear(int64_t index) const {
    auto fill = [&]<typename T>(T nan) {
      std::fill_n(static_cast<T*>(data) + index * size<T>(), size<T>(), nan);
    };
    if (wide) {
      fill(std::numeric_limits<double>::quiet_NaN());
    } else {
      fill(std::numeric_limits<float>::quiet_NaN());
    }
  }

  template <typename T>
  int64_t size() const {
    return bytes / static_cast<int64_t>(sizeof(T));
  }

  void* data;
  int64_t bytes; // of a matrix
  bool wide;
};

/** A batch of matrices of m rows and n columns. */
struct Matrices {
  int64_t count;
  int64_t m;
  int64_t n;
};

/** What the task before LAPACK's found out. */
struct Found {
  std::vector<int64_t> without_result; // indices of matrices
  int zero = 0; // the place of a zero on a diagonal, counted from 1
};

/** Return true if the elements that a function reads are finite. */
template <typename T>
bool finite(const T* x, const Matrices& shape, Read read) {
  const auto [count, m, n] = shape;
  if (read == Read::all) {
    return finite(x, count * m * n);
  }
  bool good = true;
  for (int64_t row = 0; row < count * m && good; ++row, x += n) {
    const int64_t i = row % m;
    good = read == Read::lower ? finite(x, i + 1) : finite(x + i, n - i);
  }
  return good;
}

/** Copy matrices; the identity replaces those that LAPACK must not see. */
template <typename T>
void prepare(
    const T* from,
    T* to,
    const Matrices& shape,
    Read read,
    bool triangle,
    Found& found) {
  const auto [count, m, n] = shape;
  for (int64_t index = 0; index < count; ++index) {
    std::copy_n(from, m * n, to);
    bool good = finite(to, {1, m, n}, read);
    for (int64_t i = 0; i < n && triangle && good; ++i) {
      if (to[i * n + i] == T(0)) {
        found.zero = static_cast<int>(i + 1);
        good = false;
      }
    }
    if (!good) {
      found.without_result.push_back(index);
      std::fill_n(to, m * n, T(0));
      for (int64_t i = 0; i < std::min(m, n); ++i) {
        to[i * n + i] = T(1);
      }
    }
    from += m * n;
    to += m * n;
  }
}

/**
 * Return false if MLX's function stopped at a singular matrix, and left its LU
 * factors, one of which has a zero on the diagonal. An inverse may also have
 * such zeros, but x a v is v for it.
 */
template <typename T>
bool is_inverse(const T* x, const T* a, int64_t n) {
  bool zero = false;
  T size_a = std::numeric_limits<T>::min(), size_x = size_a;
  for (int64_t i = 0; i < n; ++i) {
    zero = zero || x[i * n + i] == 0;
  }
  if (!zero) {
    return true;
  }
  for (int64_t i = 0; i < n * n; ++i) {
    size_a = std::max(size_a, std::abs(a[i]));
    size_x = std::max(size_x, std::abs(x[i]));
  }
  // Numbers are divided by the largest ones, so that products do not overflow.
  std::vector<T> v(n), product(n), bound(n);
  for (int64_t j = 0; j < n; ++j) {
    v[j] = 1 + T(j * 7919 % 101) / 101;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const T term = a[i * n + j] / size_a * v[j];
      product[i] += term;
      bound[i] += std::abs(term);
    }
  }
  const T tolerance = std::sqrt(std::numeric_limits<T>::epsilon());
  for (int64_t i = 0; i < n; ++i) {
    const T wanted = v[i] / std::max(size_a, size_x) / std::min(size_a, size_x);
    T found = 0, size = wanted;
    for (int64_t j = 0; j < n; ++j) {
      const T factor = x[i * n + j] / size_x;
      found += factor * product[j];
      size += std::abs(factor) * bound[j];
    }
    if (!(std::abs(found - wanted) <= tolerance * size)) {
      return false;
    }
  }
  return true;
}

/** Find further matrices without a result in the output of MLX's function. */
template <typename T>
void examine(
    const T* a,
    const T* result,
    const Matrices& shape,
    Fails fails,
    Found& found) {
  const int64_t n = shape.n;
  auto& bad = found.without_result;
  const std::vector<int64_t> known = bad; // in ascending order
  for (int64_t index = 0; index < shape.count; ++index) {
    if (std::binary_search(known.begin(), known.end(), index)) {
      continue;
    }
    const T* x = result + index * n * n;
    if (fails == Fails::singular) {
      if (!is_inverse(x, a + index * n * n, n)) {
        bad.resize(shape.count); // MLX has raised an error: no matrix has one
        std::iota(bad.begin(), bad.end(), 0);
        return;
      }
      continue;
    }
    bool positive = true;
    for (int64_t i = 0; i < n; ++i) {
      positive = positive && x[i * n + i] > 0;
    }
    if (!positive) {
      bad.push_back(index);
    }
  }
}

/** The results of matrices without elements are parts of the identity. */
void without_elements(std::vector<mx::array>& outputs) {
  for (auto& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    const int64_t n = out.shape(-1), size = out.size();
    if (out.dtype() == mx::uint32) { // rows, none of which were exchanged
      for (int64_t i = 0; i < size; ++i) {
        out.data<uint32_t>()[i] = static_cast<uint32_t>(i % n);
      }
      continue;
    }
    mlxgen::for_dtype(Numbers(), out.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < size; ++i) {
        out.data<T>()[i] = T(i / n % n == i % n ? 1 : 0);
      }
    });
  }
}

} // namespace

void by_lapack(
    const char* op,
    mx::array made,
    const mx::array& a,
    std::vector<mx::array>& outputs,
    Read read,
    Fails fails) {
  if (a.size() == 0) {
    return without_elements(outputs);
  }
  auto stream = made.primitive().stream();
  auto& encoder = mx::cpu::get_command_encoder(stream);
  const int64_t m = a.shape(-2), n = a.shape(-1);
  const Matrices shape{static_cast<int64_t>(a.size()) / (m * n), m, n};
  // If the numbers are known, only MLX's task remains. Two more tasks take as
  // long as the factors of a small matrix. array::is_available accepts results
  // of the current evaluation, which an earlier task may still compute.
  const bool known = a.status() == mx::array::Status::available;
  if (fails == Fails::never && a.flags().row_contiguous && known) {
    bool good = false;
    mlxgen::for_dtype(Numbers(), a.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      good = finite(a.data<T>(), shape, read);
    });
    if (good) {
      return made.primitive().eval_cpu({a}, outputs);
    }
  }
  auto rows = a; // row-contiguous
  if (!a.flags().row_contiguous) {
    rows = mx::array(a.shape(), a.dtype(), nullptr, {});
    mlxgen::cpu::copy(stream, a, rows);
    encoder.add_temporary(rows);
  }
  // MLX's function computes in this memory if nothing else refers to it.
  std::vector<mx::array> copies;
  copies.emplace_back(a.shape(), a.dtype(), nullptr, std::vector<mx::array>{});
  copies[0].set_data(mx::allocator::malloc(a.nbytes()));
  auto found = std::make_shared<Found>();
  mlxgen::for_dtype(Numbers(), a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    mlxgen::cpu::enqueue(
        encoder,
        {rows},
        copies,
        [from = rows.data<T>(),
         to = copies[0].data<T>(),
         shape,
         read,
         triangle = fails == Fails::zero_on_diagonal,
         found] { prepare(from, to, shape, read, triangle, *found); });
  });
  made.primitive().eval_cpu(copies, outputs);
  if (copies[0].data_shared_ptr().use_count() == 1) {
    encoder.add_temporary(std::move(copies[0]));
  }
  std::vector<Target> targets;
  for (auto& out : outputs) {
    if (out.dtype() != mx::uint32) {
      targets.emplace_back(out, shape.count);
    }
  }
  auto finish = [targets = std::move(targets), fails, found] {
    for (auto index : found->without_result) {
      for (const auto& target : targets) {
        target.clear(index);
      }
    }
    if (found->zero != 0) {
      raise_singular(found->zero);
    }
  };
  if (fails != Fails::singular && fails != Fails::not_positive) {
    mlxgen::cpu::enqueue(encoder, {}, outputs, std::move(finish), op);
    return;
  }
  mlxgen::for_dtype(Reals(), a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto task = [finish = std::move(finish),
                 from = rows.data<T>(),
                 result = outputs[0].data<T>(),
                 shape,
                 fails,
                 found] {
      examine(from, result, shape, fails, *found);
      finish();
    };
    mlxgen::cpu::enqueue(encoder, {rows}, outputs, std::move(task), op);
  });
}

} // namespace mlxops::linalg
