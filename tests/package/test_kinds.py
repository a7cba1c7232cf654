"""The kinds of arguments in a compiled package: calls from Python, formulas and kernels."""

import math

import mlx.core as mx
import numpy as np
import pytest

import mlxgen

YAML = """
- name: scaled
  signature: "scaled(Tensor self_, Scalar alpha=1, *, Scalar? most=None) -> Tensor"
  composite: clip(self_ * alpha, None, most) if most is not None else self_ * alpha
- name: rescaled
  signature: "rescaled(x: array, value: int | float) -> array"
  checks: [{that: value < 100, else: value must be less than 100}]
  composite: scaled(x, -value) + scaled(x, alpha=2, most=value) if value != 0 else scaled(x)
- name: leaky
  signature: "array leaky(array x, Scalar slope = 0.25)"
  dispatch: {cpu: leaky, metal: leaky_metal}
  composite: where(x > 0, x, slope * x)
  grad: {x: "where(x > 0, grad, slope * grad)"}
- name: filled
  signature: "filled(x: array, value: int | float) -> array"
  dispatch: {cpu: filled}
  shape: x.shape
  dtypes: [float32, int32]
  composite: mx.full_like(x, value)
  grad: {x: zero}
- name: pooled
  signature: "pooled(Tensor x, int[2] kernel_size, int[2] stride=[]) -> Tensor"
  composite: x[::1] * prod(stride if stride else kernel_size) + len(stride)
- name: summed
  signature: >-
    summed(Tensor x, int[1] dim=[], float[]? weights=None, bool[2] mask=[True, False]) -> Tensor
  composite: >-
    sum(x, axis=dim if dim else None) * (sum(weights) if weights is not None else 1) * int(mask[0])
- name: present
  signature: "present(Tensor?[] arrays) -> Tensor"
  composite: sum([a for a in arrays if a is not None]) + len(arrays)
  samples: [{arrays: [{}, null, {low: 1}]}, {arrays: [{shape: [2]}]}]
- name: kept
  signature: "kept(x: array, mask: array) -> array"
  composite: where(mask, x, 0.0)
  samples: {mask: {dtype: bool, low: 0, high: 1}}
- name: all_present
  signature: "all_present(Tensor x, Tensor?[] arrays) -> Tensor"
  composite: present(arrays) * x
"""
CPP = """
template <typename T>
T leaky(T x, T slope) {
  return x > 0 ? x : slope * x;
}
template <typename T>
void filled(mlxgen::In<T> x, double value, mlxgen::Out<T> out) {
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = static_cast<T>(value);
  }
}
"""
METAL = """
template <typename T>
T leaky_metal(T x, T slope) {
  return x > 0 ? x : slope * x;
}
"""


@pytest.fixture(scope="module")
def ops():
    """One operator for each kind, as a composite and with kernels."""
    return mlxgen.load(YAML, cpp=CPP, metal=METAL)


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.float16, mx.float32, mx.bool_])
@pytest.mark.parametrize("value", [True, 2, 2.0, 0.5, np.float32(0.5), np.int64(2)])
def test_a_number_is_weakly_typed(ops, dtype, value) -> None:
    x, number = mx.array([0, 1, 3]).astype(dtype), value if isinstance(value, bool) else +value
    plain = number.item() if isinstance(number, np.generic) else number
    for got, expected in (
        (ops.scaled(x, value), x * plain),
        (ops.scaled(x, True, most=value), mx.clip(x * True, None, plain)),
    ):
        assert got.dtype == expected.dtype and got.tolist() == expected.tolist()


def test_a_number_in_formulas(ops) -> None:
    x = mx.array([1, 2, 3])
    assert ops.scaled(x).dtype == mx.int32
    assert ops.rescaled(x, 3).tolist() == [-1, -3, -6] and ops.rescaled(x, 3).dtype == mx.int32
    assert ops.rescaled(x, 0.0).tolist() == [1, 2, 3]
    assert ops.rescaled(x, 2.5).tolist() == [-0.5, -2.5, -5.0]


def test_a_number_in_checks(ops) -> None:
    for value, shown in ((100, "100"), (100.5, "100.5")):
        with pytest.raises(ValueError, match=rf"must be less than 100. Got value: {shown}\.$"):
            ops.rescaled(mx.array(1.0), value)


@pytest.mark.parametrize("value", [1j, "1", None, mx.array(1.0), [1], np.ones(1), np.complex64(1)])
def test_no_number(ops, value) -> None:
    with pytest.raises(TypeError, match=r"alpha: int \| float = 1"):
        ops.scaled(mx.array(1.0), value)


def test_no_number_without_builtins(ops) -> None:
    names = {
        "scaled": ops.scaled,
        "x": mx.array(1.0),
        "text": "a",
        "half": np.float32(0.5),
        "__builtins__": {},
    }
    with pytest.raises(TypeError, match=r"alpha: int \| float = 1"):
        eval("scaled(x, text)", names)
    assert eval("scaled(x, half)", names).item() == 0.5


def test_a_number_beyond_64_bits(ops) -> None:
    with pytest.raises(OverflowError, match=r"\[scaled\] alpha must be an int of 64 bits"):
        ops.scaled(mx.array(1.0), 2**64)


def test_a_number_in_kernels(ops) -> None:
    x = mx.array([-2.0, 3.0])
    with mx.stream(mx.cpu):
        assert ops.leaky(x).tolist() == [-0.5, 3.0]
        assert ops.leaky(x, 2).tolist() == [-4.0, 3.0]
        assert ops.leaky(x, math.inf).tolist() == [-math.inf, 3.0]
        assert mx.grad(lambda x: ops.leaky(x, 3).sum())(x).tolist() == [3.0, 1.0]
        assert ops.filled(mx.array([1, 2]), 7).tolist() == [7, 7]
        # Primitives with 1 and 1.0 differ, and equal ones are computed once.
        both = mx.compile(lambda x: [ops.leaky(x, 1), ops.leaky(x, 1.0), ops.leaky(x, 1)])
        assert [out.tolist() for out in both(x)] == [[-2.0, 3.0]] * 3


def test_lists_of_ints(ops) -> None:
    x = mx.array([1.0, 2.0])
    for size in (3, [3], [3, 3], (3, 3)):
        assert ops.pooled(x, size).tolist() == [9.0, 18.0]
        assert ops.pooled(x, 1, size).tolist() == [11.0, 20.0]
    with pytest.raises(ValueError, match=r"\[pooled\] kernel_size must have 2 integers"):
        ops.pooled(x, [1, 2, 3])
    with pytest.raises(ValueError, match="kernel_size must have 2 integers"):
        ops.pooled(x, [])
    m = mx.array([[1.0, 2.0], [3.0, 4.0]])
    for dim, expected in ((0, [4, 6]), ([1], [3, 7]), ([0, 1], 10), ([], 10), ((-1,), [3, 7])):
        assert ops.summed(m, dim).tolist() == expected
    assert ops.summed(m).item() == 10


def test_lists_of_floats_bools_and_arrays(ops) -> None:
    x = mx.array([1.0, 2.0])
    assert ops.summed(x, weights=[0.5, 2]).item() == 7.5
    assert ops.summed(x, mask=(False, True)).item() == 0
    assert ops.present([None, x, None, 2]).tolist() == [7.0, 8.0]
    assert mx.grad(lambda a: ops.present([None, a]).sum())(x).tolist() == [1.0, 1.0]
    assert ops.all_present(x, [x, None]).tolist() == [3.0, 8.0]
    with pytest.raises(TypeError, match=r"arrays: Sequence\[array \| None\]"):
        ops.present(["a"])


def test_where_of_a_number_in_a_shapeless_graph(ops) -> None:
    """A size of the first call is none of later ones, also in the gradient."""
    gradient = mx.grad(lambda x, mask: (3 * ops.kept(x, mask)).sum())
    compiled = mx.compile(gradient, shapeless=True)
    for n in (4, 5, 1):
        x = mx.arange(1.0, n + 1)
        assert compiled(x, x > 2).tolist() == gradient(x, x > 2).tolist() == (3 * (x > 2)).tolist()


def test_checks(ops) -> None:
    with mx.stream(mx.cpu):
        report = ops.check()
    # MLX's own additions of lists keep a broadcast of a shapeless graph.
    assert {(f.operator, f.check) for f in report.failures} <= {("present", "shapeless")}, report
    assert report.passed > 10
