"""Groups of dtypes in a compiled package, compared with MLX's own promotion."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import mlx.core as mx
import pytest
from evaluation import in_thread

import mlxgen
from mlxgen.testing import check

pytestmark = pytest.mark.extended

YAML = """
- signature: "bounds(x: array, y: array, low: array, high: array) -> (first: array, second: array)"
  composite: (x + y, low + high)
  dtypes: [{"x, y": floating}, {"low, high": integer}]
- signature: >-
    third(a: array, b: array, x: array | None = None, ids: array | None = None) -> array
  composite: a * b if x is None or ids is None else take(x, ids, axis=0)
  dtypes: [{"a, b": floating}, {x: generic, ids: int32}]
- signature: "noise(low: array, high: array, n: int, key: array) -> array"
  composite: random.uniform(low, high, (n,), key=key)
  dtypes: [{"low, high": floating}, {key: uint32}]
  samples: {n: 3, key: {values: [0, 7]}, low: {values: -1}, high: {values: 1}}
- signature: "moved(x: array, y: array, ids: array) -> (a: array, b: array)"
  cpp: moved
  dtypes: [{"x, y": floating}, {"ids": integer}]
- signature: "own(x: array, y: array, ids: array, rows: array) -> array"
  composite: x * y + ids - rows
  dtypes: [{"x, y": floating}, {"ids, rows": integer}]
  grad: {x: grad * y, y: grad * x, "ids, rows": none}
- signature: "pairs(xs: list[array], ys: list[array]) -> (first: array, second: array)"
  composite: (sum(xs), sum(ys))
  dtypes: [{xs: floating}, {ys: integer}]
- signature: "kernel(x: array, y: array, ids: array, rows: array) -> array"
  dispatch: {cpu: kernel}
  shape: x.shape
  checks: [{that: x.size > 0, else: x must have elements}]
  vmap: batch
  dtypes: [{"x, y": floating}, {"ids, rows": int32}]
  grad: {"x, y": none}
  samples: {x: {shape: [3]}, y: {shape: [3]}, ids: {shape: [3]}, rows: {shape: [3]}}
- signature: "positive(x: array) -> (first: array, second: array)"
  dispatch: {cpu: positive}
  shape: x.shape
  dtype: {second: int32}
  grad: {x: none}
  samples: {x: {values: [1, 2, 3]}}
"""
CPP = """inline std::vector<mlx::core::array> moved(
    const mlx::core::array& x, const mlx::core::array& y, const mlx::core::array& ids,
    mlx::core::StreamOrDevice s) {
  namespace mx = mlx::core;
  return {mx::add(x, y, s), mx::add(ids, mx::array(1, ids.dtype()), s)};
}
template <typename T>
void kernel(
    mlxgen::In<T> x, mlxgen::In<T> y, mlxgen::In<int32_t> ids, mlxgen::In<int32_t> rows,
    mlxgen::Out<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = x[i] * y[i] + static_cast<T>(static_cast<float>(ids[i] - rows[i]));
  }
}
template <typename T>
void positive(mlxgen::In<T> x, mlxgen::Out<T> first, mlxgen::Out<int32_t> second) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(static_cast<float>(x[i]) > 0)) {
      throw std::domain_error("x must be positive.");
    }
    first[i] = x[i];
    second[i] = 1;
  }
}
"""
FLOATS = mx.float16, mx.bfloat16, mx.float32, mx.float64
WHOLE = mx.uint8, mx.uint32, mx.int16, mx.int32, mx.int64


@cache
def ops() -> ModuleType:
    return mlxgen.load(YAML, cpp=CPP)


def ones(dtype: mx.Dtype) -> mx.array:
    return mx.ones((2,), dtype)


def test_a_batch_without_elements() -> None:
    """The checks of the operator hold for each element, but not for the whole batch."""
    x, ids = mx.ones((2, 3)), mx.ones((2, 3), mx.int32)
    with mx.stream(mx.cpu):
        mapped = mx.vmap(ops().kernel)
        assert mapped(x, x, ids, ids).tolist() == x.tolist()
        assert mapped(x[:0], x[:0], ids[:0], ids[:0]).shape == (0, 3)


@pytest.mark.parametrize("floating", FLOATS)
@pytest.mark.parametrize("whole", WHOLE)
def test_scalars_have_the_dtype_of_their_own_group(floating: mx.Dtype, whole: mx.Dtype) -> None:
    x, ids = ones(floating), ones(whole)
    with mx.stream(mx.cpu):
        for found in (ops().bounds(x, 2, ids, 3), ops().bounds(2, x, 3, ids)):
            expected = x + 2, ids + 3
            assert [a.dtype for a in found] == [a.dtype for a in expected]
            assert [a.tolist() for a in found] == [a.tolist() for a in expected]
        first, second = ops().moved(x, 1.5, ids)
        assert (first.dtype, second.dtype) == ((x + 1.5).dtype, (ids + 1).dtype)
        first, second = ops().pairs([x, 2], [3, ids])
        assert (first.dtype, second.dtype) == ((x + 2).dtype, (ids + 3).dtype)


@pytest.mark.parametrize("x", FLOATS)
@pytest.mark.parametrize("y", FLOATS)
def test_arrays_are_promoted_by_mlx(x: mx.Dtype, y: mx.Dtype) -> None:
    with mx.stream(mx.cpu):
        first, second = ops().bounds(ones(x), ones(y), ones(mx.uint8), ones(mx.int64))
        assert (first.dtype, second.dtype) == ((ones(x) + ones(y)).dtype, mx.int64)


@pytest.mark.parametrize("dtype", FLOATS)
@in_thread
def test_outputs_after_an_error(dtype: mx.Dtype) -> None:
    """MLX raises once; later reads return NaN or 0, and no memory that nothing wrote."""
    with mx.stream(mx.cpu):
        first, second = ops().positive(mx.array([3, 2, -1], dtype))
        with pytest.raises(RuntimeError, match=r"\[positive\] x must be positive"):
            mx.eval(first, second)
        assert mx.isnan(first).tolist() == [True] * 3 and second.tolist() == [0] * 3


def test_optional_arrays_and_single_dtypes() -> None:
    half = ones(mx.float16)
    assert ops().third(half, 2).dtype == mx.float16
    assert ops().third(half, 2, mx.array([True, False]), 0).dtype == mx.bool_
    assert ops().third(half, 2, ones(mx.int8), mx.array([1], mx.int64)).dtype == mx.int8


def test_a_random_key_has_no_part_in_the_promotion() -> None:
    key = mx.random.key(3)
    assert ops().noise(0, 1, 4, key).dtype == mx.float32
    low, high = mx.array(0, mx.float16), 2
    expected = mx.random.uniform(low, mx.array(2, mx.float16), (4,), key=key)
    assert ops().noise(low, high, 4, key).dtype == expected.dtype
    assert ops().noise(0.0, 1.0, 4, key).tolist() == mx.random.uniform(0, 1, (4,), key=key).tolist()


def test_gradients_belong_to_the_floating_group() -> None:
    x, ids = mx.array([1.0, 2.0]), mx.array([3, 4])
    grads = mx.grad(lambda x, y: ops().own(x, y, ids, 1).sum(), argnums=(0, 1))(x, 3 * x)
    assert [g.tolist() for g in grads] == [[3, 6], [1, 2]]
    assert ops().own(x, 2, 3, ids).tolist() == (x * 2 + 3 - ids).tolist()


def test_kernels_cast_the_other_group() -> None:
    x = mx.array([1.5, 2.5], mx.float16)
    found = ops().kernel(x, x, mx.array([5, 6], mx.int64), mx.array([1, 2], mx.uint8))
    assert found.dtype == mx.float16
    assert found.tolist() == (x * x + 4).tolist()


@pytest.mark.parametrize(
    ("x", "low", "named"),
    [
        (ones(mx.float32), ones(mx.float32), "dtype float32 is not supported"),
        (ones(mx.complex64), ones(mx.int32), "dtype complex64 is not supported"),
        (1.5, 2.5, "dtype float32 is not supported"),
    ],
)
def test_other_dtypes_raise(x: mx.array | float, low: mx.array | float, named: str) -> None:
    with pytest.raises(ValueError, match=rf"\[bounds\] {named}"):
        ops().bounds(x, 1, low, 1)


def test_generated_checks_draw_arrays_of_each_group() -> None:
    report = check(ops())
    # MLX's own additions, in `moved` and of lists, keep a broadcast of a shapeless graph.
    known = {("moved", "shapeless"), ("pairs", "shapeless")}
    assert {(f.operator, f.check) for f in report.failures} <= known, str(report)
