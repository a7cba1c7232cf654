"""Shapeless traces: MLX's functions behave as the table of functions specifies."""

from __future__ import annotations

import mlx.core as mx
import pytest

import mlxgen
from mlxgen.formula.mlx import effect, stored, table
from mlxgen.testing.cases import CHECKS
from mlxgen.testing.shapeless import check_shapeless, equal_axes, single_axes

X = mx.array([[0.25, 0.5, 0.125, 0.75], [0.5, 0.875, 0.25, 0.375], [0.75, 0.125, 0.625, 0.25]])
I = mx.array([[3, 5, 1, 2], [4, 6, 7, 1], [1, 2, 3, 4]])  # noqa: E741

# Calls of functions that do not take one or two arrays.
CALLS = {
    "transpose": lambda f: lambda x: f(x, (1, 0)),
    "permute_dims": lambda f: lambda x: f(x, (1, 0)),
    "swapaxes": lambda f: lambda x: f(x, 0, 1),
    "moveaxis": lambda f: lambda x: f(x, 0, 1),
    "expand_dims": lambda f: lambda x: f(x, 1),
    "squeeze": lambda f: lambda x: f(mx.expand_dims(x, 1), 1),
    "astype": lambda f: lambda x: x.astype(mx.float16).astype(mx.float32),
    "matmul": lambda f: lambda x: f(x, x.T),
    "concatenate": lambda f: lambda x: f([x, x], axis=1),
    "concat": lambda f: lambda x: f([x, x], axis=1),
    "stack": lambda f: lambda x: f([x, x], axis=1),
    "sort": lambda f: lambda x: f(x, axis=0),
    "argsort": lambda f: lambda x: f(x, axis=0),
    "cumsum": lambda f: lambda x: f(x, axis=0),
    "cumprod": lambda f: lambda x: f(x, axis=0),
    "argmax": lambda f: lambda x: f(x, axis=0),
    "argmin": lambda f: lambda x: f(x, axis=0),
    "softmax": lambda f: lambda x: f(x, axis=-1),
    "where": lambda f: lambda x: f(x > 0.3, x, -x),
    "ones": lambda f: lambda x: x + f((1, 1)),
    "zeros": lambda f: lambda x: x + f((1, 1)),
    "full": lambda f: lambda x: x + f((1, 1), 0.5),
}
WHOLE = {"left_shift", "right_shift", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert"}
RIGHT = {name for name in stored()["functions"] if effect(name).shapeless}
MLX = {name for name in RIGHT if table().function(name).overloads[0].cpp.startswith("mlxgen::")}


def _function(name: str):
    f = getattr(mx, name, None)
    if name in CALLS:
        return CALLS[name](f)
    for params in table().function(name).signatures:
        if [p.name for p in params if p.default is None] in (["a", "b"], ["a", "b", "/"]):
            return lambda x: f(x, x)
    return f


# MLX has these in C++ only.
CPP_ONLY = {"copy"}


@pytest.mark.parametrize("name", sorted(RIGHT - MLX - CPP_ONLY))
def test_function(name: str) -> None:
    """An allowed function is correct for other shapes; its gradient too, if the table says so."""
    f, x = _function(name), I if name in WHOLE else X
    others = [*single_axes([x], ["x"]), *equal_axes([x])]
    check_shapeless(f, [x], others)
    if effect(name).shapeless != "forward" and name not in WHOLE:
        gradient = mx.grad(lambda x: mx.square(f(x).astype(mx.float32)).sum())
        check_shapeless(gradient, [x], others)


YAML = """
- name: products
  signature: "products(array x, array y) -> array"
  composite: x * y + x / (1 + abs(y)) - maximum(x, y) + where(x > y, x, y) ** 2 + logaddexp(x, y)
- name: center
  signature: "center(array x) -> array"
  composite: x - x.mean(axis=0, keepdims=True)
- name: energy
  signature: "energy(array x) -> array"
  composite: square(x).sum(axis=(0, 1)) + sum(x) + x.sum(axis=-1).sum()
- name: extent
  signature: "extent(array x) -> array"
  composite: where(all(x > 0, axis=-1) | any(x < 0, axis=-1), x.max(axis=-1), x.min(axis=-1))
- name: first
  signature: "first(array x) -> array"
  composite: x[0]
- name: share
  signature: "share(array x) -> array"
  composite: x / x.shape[0]
- name: own
  signature: "own(array x) -> array"
  composite: x * 2
  grad: {x: grad * 2}
- name: hinted
  signature: "hinted(array x) -> array"
  composite: x + 0 * hint(x.shape[0])
- name: scaled
  signature: "scaled(array x, array y) -> array"
  dispatch: scaled
  grad: {x: grad * y, y: grad * x}
- name: rows
  signature: "rows(array x) -> array"
  dispatch: scaled_once
  grad: {x: grad * x.size / x.size}
"""
CPP = """
template <typename T>
T scaled(T x, T y) {
  return x * y;
}
template <typename T>
T scaled_once(T x) {
  return x;
}
"""


@pytest.fixture(scope="module")
def ops():
    """Composites of mlxgen's replacements for MLX functions."""
    return mlxgen.load(YAML, cpp=CPP)


@pytest.mark.extended
def test_generated(ops) -> None:
    """Composites and elementwise kernels are correct for changing broadcasts, or rejected."""
    checks = __import__(f"{ops.__name__}.checks.test_gradients", fromlist=["test_shapeless"])
    (cases,) = checks.test_shapeless.pytestmark
    for subject in cases.args[1]:
        CHECKS["shapeless"][0](subject)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("first", "its composite calls slice"),
        ("share", r"its composite uses x\.shape as a number"),
        ("own", "its composite has a gradient of its own"),
    ],
)
def test_refused(ops, name: str, why: str) -> None:
    """A formula that would keep the shapes of the first call raises in the trace."""
    f = getattr(ops, name)
    assert mx.compile(lambda x: f(x))(X).dtype == mx.float32
    with pytest.raises(ValueError, match=rf"^\[{name}\] Cannot be compiled with .*: {why}\."):
        mx.compile(lambda x: f(x), shapeless=True)(X)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("extent", "its composite calls"),
        ("rows", r"its gradient uses x\.size as a num"),
    ],
)
def test_refused_gradient(ops, name: str, why: str) -> None:
    """The forward is correct; its gradient raises, except that of a compiled function."""
    f = getattr(ops, name)
    forward = mx.compile(lambda x: f(x), shapeless=True)
    assert mx.array_equal(forward(X), f(X)) and mx.array_equal(forward(X[:, :1]), f(X[:, :1]))
    plain = mx.grad(lambda x: f(x).sum())
    assert mx.array_equal(mx.grad(lambda x: forward(x).sum())(X), plain(X))
    with pytest.raises(ValueError, match=rf"^\[{name}\] Cannot be compiled with .*: {why}"):
        mx.compile(plain, shapeless=True)(X)
