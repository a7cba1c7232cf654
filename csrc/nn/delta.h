// CPU kernels of the recurrences whose state is a matrix that accumulates outer
// products: gated_delta and wkv7, and the gradients of ssm_scan.
//
// Each row s of the state, with its elements of v and y, follows the same rule:
//
//   p = s . a
//   s <- s w + p b + v k          wkv7
//   s <- s w + beta (v - p) k     gated_delta, where a = w k
//   s <- s w + v k                ssm_scan, which does not read p
//   y = s . r                     (r is gated_delta's q)
//
// Rows are therefore independent of each other; w, a, b, k and r are common to
// all rows. GatedDelta, Wkv7 and SsmScan define how a step's numbers are read
// and where their gradients are written. A step may belong to a new sequence:
// it then begins with zeros in place of the state before it.
//
// The backward needs the states in reverse order. It receives only the inputs
// and computes the states three times: first the state before each stretch of
// n^2 steps, which it stores; then the states before each chunk of n steps in a
// stretch; then the states of a chunk, from the last to the first. With n the
// cube root of T this takes memory for 3 n states.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mlxgen/kernel.h"
#include "mlxgen/loop.h"
#include "mlxgen/threads.h"
#include "sequences.h"
#include "vectors.h"

namespace mlxops::cpu {

using mlxgen::accum_t;
using mlxgen::In;
using mlxgen::Out;

// Rows that are computed together, so that a row need not wait for its sums.
constexpr int64_t delta_rows = 4;

/** The numbers of a step, padded with zeros to whole vectors and rows. */
template <typename A>
struct DeltaStep {
  int64_t width; // of a row, a multiple of the vector size
  int64_t rows; // a multiple of delta_rows
  A* w;
  A* a;
  A* b;
  A* k;
  A* r;
  A* v; // of every row
  A* grad_y;
  A beta;
};

/** Their gradients. */
template <typename A>
struct DeltaSums {
  A* w;
  A* a;
  A* b;
  A* k;
  A* r;
  A* v;
  A beta;
};

MLXGEN_BEGIN_INLINED

template <typename T, typename A>
void widen_to(A* to, const T* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = mlxgen::widen(from[i]);
  }
}

template <typename T, typename A>
void narrow_to(T* to, const A* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    mlxgen::narrow(from[i], to[i]);
  }
}

/** True if a row is read at `a` before it changes. */
template <typename Rule>
constexpr bool reads = Rule::corrects || Rule::adds;

/** A step of all rows, with y if requested. The two states may be the same. */
template <typename Rule, int bytes, bool asked, typename A>
void advance(const DeltaStep<A>& step, const A* before, A* after, A* y) {
  using Vector = typename Vectors<A, bytes>::type;
  constexpr int64_t group = delta_rows;
  const int64_t width = step.width;
  for (int64_t row = 0; row < step.rows; row += group) {
    const A* from = before + row * width;
    A* to = after + row * width;
    Vector along[group] = {};
    if constexpr (reads<Rule>) {
      for (int64_t j = 0; j < width; j += Vectors<A, bytes>::count) {
        Vector a = vector<bytes>(step.a + j);
        for (int64_t i = 0; i < group; ++i) {
          along[i] += vector<bytes>(from + i * width + j) * a;
        }
      }
    }
    A p[group], u[group];
    Vector read[group] = {};
    for (int64_t i = 0; i < group; ++i) {
      p[i] = total<A, bytes>(along[i]);
      u[i] = step.v[row + i];
      if constexpr (Rule::corrects) {
        u[i] = step.beta * (u[i] - p[i]);
      }
    }
    for (int64_t j = 0; j < width; j += Vectors<A, bytes>::count) {
      Vector w = vector<bytes>(step.w + j);
      Vector k = vector<bytes>(step.k + j);
      Vector r = vector<bytes>(step.r + j);
      for (int64_t i = 0; i < group; ++i) {
        Vector s = vector<bytes>(from + i * width + j) * w + u[i] * k;
        if constexpr (Rule::adds) {
          s += p[i] * Vector(vector<bytes>(step.b + j));
        }
        vector<bytes>(to + i * width + j) = s;
        if constexpr (asked) {
          read[i] += s * r;
        }
      }
    }
    for (int64_t i = 0; asked && i < group; ++i) {
      y[row + i] = total<A, bytes>(read[i]);
    }
  }
}

/**
 * A backward step: from the gradient of the state after it to the gradient of
 * the state before it, and the sums over rows, which are the gradients of the
 * step.
 */
template <typename Rule, int bytes, typename A>
  requires reads<Rule>
void retreat(
    const DeltaStep<A>& step,
    const A* before,
    const A* after,
    A* grad,
    DeltaSums<A>& sums) {
  using Vector = typename Vectors<A, bytes>::type;
  constexpr int64_t group = delta_rows;
  const int64_t width = step.width;
  for (int64_t row = 0; row < step.rows; row += group) {
    const A* from = before + row * width;
    const A* to = after + row * width;
    A* g = grad + row * width;
    const A* dy = step.grad_y + row;
    Vector along[group] = {}, with_k[group] = {}, with_b[group] = {};
    for (int64_t j = 0; j < width; j += Vectors<A, bytes>::count) {
      Vector a = vector<bytes>(step.a + j);
      Vector k = vector<bytes>(step.k + j);
      Vector r = vector<bytes>(step.r + j);
      for (int64_t i = 0; i < group; ++i) {
        Vector d = vector<bytes>(g + i * width + j) + dy[i] * r;
        vector<bytes>(g + i * width + j) = d;
        along[i] += vector<bytes>(from + i * width + j) * a;
        with_k[i] += d * k;
        if constexpr (Rule::adds) {
          with_b[i] += d * Vector(vector<bytes>(step.b + j));
        }
      }
    }
    A p[group], u[group], grad_p[group];
    for (int64_t i = 0; i < group; ++i) {
      p[i] = total<A, bytes>(along[i]);
      A grad_u = total<A, bytes>(with_k[i]);
      u[i] = step.v[row + i];
      if constexpr (Rule::corrects) {
        A error = u[i] - p[i];
        u[i] = step.beta * error;
        sums.beta += grad_u * error;
        grad_u *= step.beta;
        grad_p[i] = -grad_u;
      } else {
        grad_p[i] = total<A, bytes>(with_b[i]);
      }
      sums.v[row + i] = grad_u;
    }
    for (int64_t j = 0; j < width; j += Vectors<A, bytes>::count) {
      Vector w = vector<bytes>(step.w + j);
      Vector a = vector<bytes>(step.a + j);
      Vector grad_w = vector<bytes>(sums.w + j);
      Vector grad_a = vector<bytes>(sums.a + j);
      Vector grad_k = vector<bytes>(sums.k + j);
      Vector grad_r = vector<bytes>(sums.r + j);
      Vector grad_b = {};
      if constexpr (Rule::adds) {
        grad_b = vector<bytes>(sums.b + j);
      }
      for (int64_t i = 0; i < group; ++i) {
        Vector s = vector<bytes>(from + i * width + j);
        Vector d = vector<bytes>(g + i * width + j);
        grad_w += d * s;
        grad_a += grad_p[i] * s;
        grad_k += u[i] * d;
        grad_r += dy[i] * vector<bytes>(to + i * width + j);
        if constexpr (Rule::adds) {
          grad_b += p[i] * d;
        }
        vector<bytes>(g + i * width + j) = d * w + grad_p[i] * a;
      }
      vector<bytes>(sums.w + j) = grad_w;
      vector<bytes>(sums.a + j) = grad_a;
      vector<bytes>(sums.k + j) = grad_k;
      vector<bytes>(sums.r + j) = grad_r;
      if constexpr (Rule::adds) {
        vector<bytes>(sums.b + j) = grad_b;
      }
    }
  }
}

/**
 * The same for rows that are not read and share one decay, whose gradient is in
 * sums.beta.
 */
template <typename Rule, int bytes, typename A>
  requires(!reads<Rule>)
void retreat(
    const DeltaStep<A>& step,
    const A* before,
    const A*,
    A* grad,
    DeltaSums<A>& sums) {
  using Vector = typename Vectors<A, bytes>::type;
  constexpr int64_t group = delta_rows;
  const int64_t width = step.width;
  const A decay = step.w[0];
  Vector of_decay = {};
  for (int64_t row = 0; row < step.rows; row += group) {
    const A* from = before + row * width;
    A* g = grad + row * width;
    const A* u = step.v + row;
    const A* dy = step.grad_y + row;
    A taken = 0; // factor of k in the gradient with respect to r
    for (int64_t i = 0; i < group; ++i) {
      taken += dy[i] * u[i];
    }
    Vector with_k[group] = {};
    for (int64_t j = 0; j < width; j += Vectors<A, bytes>::count) {
      Vector k = vector<bytes>(step.k + j);
      Vector r = vector<bytes>(step.r + j);
      Vector grad_k = vector<bytes>(sums.k + j);
      Vector read = {}, change = {};
      for (int64_t i = 0; i < group; ++i) {
        Vector s = vector<bytes>(from + i * width + j);
        Vector d = vector<bytes>(g + i * width + j) + dy[i] * r;
        with_k[i] += d * k;
        change += d * s;
        grad_k += u[i] * d;
        read += dy[i] * s;
        vector<bytes>(g + i * width + j) = decay * d;
      }
      of_decay += change;
      vector<bytes>(sums.k + j) = grad_k;
      vector<bytes>(sums.r + j) += decay * read + taken * k;
    }
    for (int64_t i = 0; i < group; ++i) {
      sums.v[row + i] = total<A, bytes>(with_k[i]);
    }
  }
  sums.beta = total<A, bytes>(of_decay);
}

/** Rows of a head's state, and one of their steps. */
struct DeltaPlace {
  int64_t index; // among all blocks of rows
  int64_t block; // of this head
  int64_t batch, head;
  int64_t first, rows, length; // of the state
  int64_t start; // element of the state
  int64_t steps, heads;
  int64_t step;
  int64_t time; // index of the step, and that of its head
  int64_t at;

  void go_to(int64_t t) {
    step = t;
    time = batch * steps + t;
    at = time * heads + head;
  }
};

constexpr int64_t round_up(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

/** The first aligned vector: a vector across two cache lines costs twice. */
template <typename A>
A* aligned(A* from) {
  constexpr uintptr_t unit = vector_bytes;
  return reinterpret_cast<A*>(
      (reinterpret_cast<uintptr_t>(from) + unit - 1) / unit * unit);
}

/** The numbers of a step, their gradients, and a state. */
template <typename A>
struct DeltaBuffer {
  DeltaStep<A> step;
  DeltaSums<A> sums;
  A* y;
  A* state;
  int64_t size; // of the state
  std::vector<A> memory;
  std::vector<A> zeros; // a state, if there are several sequences

  DeltaBuffer(const DeltaPlace& place, const Sequences& sequences) {
    step.rows = round_up(place.rows, delta_rows);
    step.width = round_up(place.length, vector_bytes / sizeof(A));
    size = step.rows * step.width;
    memory.resize(
        10 * step.width + 4 * step.rows + size + vector_bytes / sizeof(A));
    zeros.resize(sequences.starts ? size + vector_bytes / sizeof(A) : 0);
    A* next = aligned(memory.data());
    for (A** vector :
         {&step.w,
          &step.a,
          &step.b,
          &step.k,
          &step.r,
          &sums.w,
          &sums.a,
          &sums.b,
          &sums.k,
          &sums.r}) {
      *vector = next;
      next += step.width;
    }
    state = next;
    next += size;
    for (A** vector : {&step.v, &step.grad_y, &sums.v, &y}) {
      *vector = next;
      next += step.rows;
    }
  }
};

/** Copy rows of a state, or fill them with zeros. */
template <typename A>
void pad(In<A> from, const DeltaPlace& place, const DeltaStep<A>& step, A* to) {
  std::fill_n(to, step.rows * step.width, A(0));
  for (int64_t row = 0; from && row < place.rows; ++row) {
    std::copy_n(
        from.data + place.start + row * place.length,
        place.length,
        to + row * step.width);
  }
}

template <typename A>
void unpad(
    const A* from,
    const DeltaPlace& place,
    const DeltaStep<A>& step,
    Out<A> to) {
  for (int64_t row = 0; row < place.rows; ++row) {
    std::copy_n(
        from + row * step.width,
        place.length,
        to.data + place.start + row * place.length);
  }
}

/** The state with which a step begins: zeros if it is a sequence's first. */
template <typename A>
const A* begin_step(
    const Sequence& sequence,
    int64_t step,
    const A* before,
    DeltaBuffer<A>& buffer) {
  return sequence.starts_anew(step) ? aligned(buffer.zeros.data()) : before;
}

/** A step of all rows, unless it is masked or in no sequence. */
template <int bytes, bool asked, typename Rule, typename A>
bool forward(
    const Rule& rule,
    const DeltaPlace& place,
    DeltaBuffer<A>& buffer,
    const A* before,
    A* after) {
  Sequence sequence = rule.sequences.of(place.step);
  before = begin_step(sequence, place.step, before, buffer);
  bool taken = sequence.exists() && rule.read(place, buffer.step);
  if (taken) {
    advance<Rule, bytes, asked>(buffer.step, before, after, buffer.y);
  } else if (before != after) {
    std::copy_n(before, buffer.size, after);
  }
  return taken;
}

template <int bytes, typename Rule, typename T, typename A>
void forward_rows(
    const Rule& rule,
    In<A> state,
    Out<T> y,
    Out<A> last,
    DeltaPlace place) {
  DeltaBuffer<A> buffer(place, rule.sequences);
  pad(state, place, buffer.step, buffer.state);
  for (int64_t t = 0; t < place.steps; ++t) {
    place.go_to(t);
    T* to = y.data + place.at * y.dim(3) + place.first;
    if (forward<bytes, true>(rule, place, buffer, buffer.state, buffer.state)) {
      narrow_to(to, buffer.y, place.rows);
    } else {
      std::fill_n(to, place.rows, T(0));
    }
  }
  unpad(buffer.state, place, buffer.step, last);
}

template <int bytes, typename Rule, typename T, typename A>
void backward_rows(
    const Rule& rule,
    const typename Rule::Grads& grads,
    In<A> state,
    In<T> grad_y,
    In<A> grad_last,
    int64_t chunk,
    Out<A> grad_state,
    A* states,
    DeltaPlace place) {
  DeltaBuffer<A> buffer(place, rule.sequences);
  auto& [step, sums, y, grad, size, memory, zeros] = buffer;
  // The states before all stretches, before the chunks of a stretch except the
  // first, and after the steps of a chunk.
  int64_t chunks = (place.steps + chunk - 1) / chunk;
  int64_t stretches = (chunks + chunk - 1) / chunk;
  A* in_stretch = states + stretches * size;
  A* in_chunk = in_stretch + (chunk - 1) * size;
  // Steps first to last, of which every `every`-th state is stored.
  struct Run {
    int64_t first, last, every;
    A* from;
    A* kept;
  };
  pad(state, place, step, states);
  pad(grad_last, place, step, grad);
  for (int64_t c = chunks - 1; c >= 0; --c) {
    int64_t first = c * chunk;
    int64_t count = std::min(chunk, place.steps - first);
    int64_t within = c % chunk;
    A* stretch = states + c / chunk * size;
    A* start = within == 0 ? stretch : in_stretch + (within - 1) * size;
    auto before = [&](int64_t t) {
      return t == 0 ? start : in_chunk + (t - 1) * size;
    };
    bool at_end = c == chunks - 1;
    int64_t all = at_end ? (stretches - 1) * chunk * chunk : 0;
    int64_t begin = at_end || within == chunk - 1 ? within * chunk : 0;
    // In a loop, because the compiler inlines the steps at each call.
    for (const Run& run :
         {Run{0, all, chunk * chunk, states, states + size},
          Run{first - begin, first, chunk, stretch, in_stretch},
          Run{first, first + count, 1, start, in_chunk}}) {
      for (int64_t t = run.first; t < run.last; ++t) {
        int64_t done = t - run.first;
        A* next = run.kept + done / run.every * size;
        bool is_kept = done % run.every == 0;
        A* from = !is_kept ? next : done == 0 ? run.from : next - size;
        place.go_to(t);
        forward<bytes, false>(rule, place, buffer, from, next);
      }
    }
    for (int64_t t = count - 1; t >= 0; --t) {
      place.go_to(first + t);
      std::fill_n(sums.w, 5 * step.width, A(0));
      std::fill_n(sums.v, step.rows, A(0));
      sums.beta = 0;
      Sequence sequence = rule.sequences.of(place.step);
      bool taken = sequence.exists() && rule.read(place, step);
      if (taken) {
        const T* dy = grad_y.data + place.at * grad_y.dim(3) + place.first;
        widen_to(step.grad_y, dy, place.rows);
        const A* from = begin_step(sequence, place.step, before(t), buffer);
        retreat<Rule, bytes>(step, from, before(t + 1), grad, sums);
      } else { // clears values of another step, such as NaN
        std::fill_n(step.w, 5 * step.width, A(0));
      }
      rule.write(place, taken, step, sums, grads);
      if (sequence.starts_anew(place.step)) {
        std::fill_n(grad, size, A(0));
      }
    }
  }
  unpad(grad, place, step, grad_state);
}

MLXGEN_END_INLINED

/** Call f<bytes>(place) for all blocks of rows of all states, on all cores. */
template <typename A, typename F>
void each_block(Out<A> state, int64_t steps, int64_t block, const F& f) {
  int64_t heads = state.dim(1), values = state.dim(2), length = state.dim(3);
  int64_t blocks = (values + block - 1) / block;
  int64_t cost = (steps + 1) * std::min(values, block) * length;
  mlxgen::share(
      state.dim(0) * heads * blocks, cost, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          DeltaPlace place{};
          place.index = i;
          place.block = i % blocks;
          place.head = i / blocks % heads;
          place.batch = i / blocks / heads;
          place.first = place.block * block;
          place.rows = std::min(block, values - place.first);
          place.length = length;
          place.start = (i / blocks * values + place.first) * length;
          place.steps = steps;
          place.heads = heads;
          with_vectors([&]<int bytes>() {
            MLXGEN_INLINED_CALL f.template operator()<bytes>(place);
          });
        }
      });
}

/** The recurrence forward: y and the last state. */
template <typename Rule, typename T, typename A>
void delta_forward(const Rule& rule, In<A> state, Out<T> y, Out<A> last) {
  each_block(last, y.dim(1), 32, [&]<int bytes>(const DeltaPlace& place) {
    forward_rows<bytes>(rule, state, y, last, place);
  });
}

/**
 * The backward recurrence, with memory for the states of each block of rows.
 * Sums over rows are sums over the rows of a block.
 */
template <typename Rule, typename T, typename A>
void delta_backward(
    const Rule& rule,
    const typename Rule::Grads& grads,
    In<A> state,
    In<T> grad_y,
    In<A> grad_last,
    int64_t block,
    int64_t chunk,
    Out<A> grad_state,
    Out<A> states) {
  each_block(
      grad_state,
      grad_y.dim(1),
      block,
      [&]<int bytes>(const DeltaPlace& place) {
        backward_rows<bytes>(
            rule,
            grads,
            state,
            grad_y,
            grad_last,
            chunk,
            grad_state,
            aligned(states.data + place.index * states.dim(1)),
            place);
      });
}

} // namespace mlxops::cpu
