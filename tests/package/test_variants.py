"""The variants `inplace` and `out`, compared with `x += y` of MLX, which means the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

import mlxgen

pytestmark = pytest.mark.extended

YAML = """
- name: plus
  signature: "plus(array x, array y, *, float scale=1) -> array"
  composite: x + scale * y
  variants: [function, method, inplace, out]
  aliases: [added]
- name: both
  signature: "both(x: array, n: int) -> (a: array, b: array)"
  composite: (x + n, x - n)
  module: sub
  variants: [function, out]
- signature: "times.Tensor(Tensor self, Tensor other) -> Tensor"
  composite: self * other
  variants: [function, method, inplace, out]
  aliases: [sub.scaled]
- signature: "times.Power(Tensor self, int n, *, str how) -> Tensor"
  composite: self ** n
  unused: {how: the test needs only an overload with another name}
  variants: [function, method, inplace]
  samples: {n: 2, how: a}
- signature: "times.Both(Tensor[] self) -> (Tensor a, Tensor b)"
  composite: (self[0], self[1])
  samples: {self: [{}, {}]}
- signature: "times.Pair(Tensor self, str how) -> (Tensor a, Tensor b)"
  composite: (self, 2 * self)
  unused: {how: the test needs only another kind}
  samples: {how: a}
"""


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return mlxgen.load(YAML)


def iadd(x: mx.array, y: mx.array) -> mx.array:
    """MLX's own."""
    x += y
    return x


def into(ops: ModuleType) -> Callable[[mx.array, mx.array], mx.array]:
    return lambda x, y: ops.plus(x, y, out=x)


@pytest.fixture(params=["plus_", "added_", "out", "method"])
def add(request: pytest.FixtureRequest, ops: ModuleType) -> Callable[..., mx.array]:
    """A variant that adds its second argument to its first one."""
    if request.param == "method":
        ops.install_methods()
        return lambda x, y: x.plus_(y)
    return into(ops) if request.param == "out" else getattr(ops, request.param)


Add = Callable[[mx.array, mx.array], mx.array]


def test_same_object(add: Add) -> None:
    for each in (iadd, add):
        x = mx.array([1.0, 2.0])
        alias, view, before = x, x[:1], x * 1
        assert each(x, mx.array([10.0, 20.0])) is x
        assert alias.tolist() == [11, 22] and view.tolist() == [1] and before.tolist() == [1, 2]


def test_dtype_and_shape_of_the_result(add: Add) -> None:
    for each in (iadd, add):
        x = mx.array([1, 2])
        each(x, mx.array([[0.5], [1.5]]))
        assert x.dtype == mx.float32 and x.tolist() == [[1.5, 2.5], [2.5, 3.5]]


def test_gradient(add: Add) -> None:
    def cost(each: Add, x: mx.array) -> mx.array:
        y = 2 * x
        each(y, x * x)
        each(x, y)  # the argument itself
        return (x * y).sum()

    x = mx.array([1.0, -3.0])
    wanted = mx.grad(lambda x: cost(iadd, x))(mx.array(x))
    assert mx.grad(lambda x: cost(add, x))(x).tolist() == wanted.tolist()
    assert x.tolist() == [1, -3]


def test_vmap_and_checkpoint(add: Add) -> None:
    x = mx.array([[1.0, 2.0], [3.0, 4.0]])
    assert mx.vmap(lambda x: add(2 * x, x))(x).tolist() == (3 * x).tolist()
    assert mx.checkpoint(lambda x: add(2 * x, x))(x).tolist() == (3 * x).tolist()


def test_compile(add: Add) -> None:
    """An argument stays as it was; captured outputs change at every call."""
    results = []
    for each in (iadd, add):
        state = [mx.array([1.0, 1.0])]

        def step(x: mx.array, each: Add = each, state: list[mx.array] = state) -> mx.array:
            each(x, x)
            each(state[0], x)
            return x * state[0]

        compiled = mx.compile(step, inputs=state, outputs=state)
        x = mx.array([1.0, 2.0])
        seen = [compiled(x).tolist() for _ in range(3)]
        results.append((seen, x.tolist(), state[0].tolist()))
    assert results[0] == results[1]


def test_several_outputs(ops: ModuleType) -> None:
    a, b = mx.array(0), mx.array(0)
    found = ops.sub.both(mx.array([1.0]), 2, out=(a, b))
    assert found[0] is a and found[1] is b and (a.tolist(), b.tolist()) == ([3], [-1])
    assert [x.tolist() for x in ops.sub.both(mx.array([1.0]), 2)] == [[3], [-1]]


def test_target_by_keyword(ops: ModuleType) -> None:
    x = mx.array([1.0])
    assert ops.plus_(y=2, x=x, scale=3) is x and x.tolist() == [7]


def test_overloads(ops: ModuleType) -> None:
    """The variant calls the overload that the function calls."""
    x = mx.array([2.0, 3.0])
    assert ops.times_(x, mx.array(2.0)) is x and x.tolist() == [4, 6]
    assert ops.times_(x, 2, how="a") is x and x.tolist() == [16, 36]
    assert ops.times_(self=x, other=0.25) is x and x.tolist() == [4, 9]
    assert ops.sub.scaled_(x, 2.0) is x and x.tolist() == [8, 18]
    y = mx.array(0)
    assert ops.times(x, 0.5, out=y) is y and y.tolist() == [4, 9]
    with pytest.raises(TypeError, match=r"\[times_\] This overload of times has no in-place"):
        ops.times_(x, "a")
    stub = Path(ops.__file__).with_name("_ext").joinpath("__init__.pyi").read_text()
    assert stub.count("@overload\ndef times_(self: array, ") == 2
    assert x.tolist() == [8, 18]


def test_one_method_for_all_overloads(ops: ModuleType) -> None:
    assert {"times", "times_"} <= {*ops.install_methods()}
    x = mx.array([2.0])
    assert x.times_(3.0) is x and x.times_(2, how="a") is x and x.tolist() == [36]


def test_mistakes(ops: ModuleType) -> None:
    a, x = mx.array(0), mx.array([1.0])
    target = "must be an mx.array, which gets the new value, not"
    for call, message in (
        (lambda: ops.plus_(1.0, x), rf"\[plus_\] x {target} float"),
        (lambda: ops.plus_([1.0], x), rf"\[plus_\] x {target} list"),
        (lambda: ops.plus(x, x, out=2), rf"\[plus\] out {target} int"),
        (lambda: ops.sub.both(x, 1, out=a), r"\[both\] out must be a tuple of 2 arrays"),
        (lambda: ops.sub.both(x, 1, out=(a,)), r"\[both\] out must be a tuple of 2 arrays"),
        (lambda: ops.sub.both(x, 1, out=(a, 3)), rf"each item of out {target} int"),
        (lambda: ops.plus_(x), r"plus\(\): incompatible function arguments"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    assert a.tolist() == 0 and x.tolist() == [1]


def test_generated_checks(ops: ModuleType) -> None:
    report = ops.check()
    assert report, report
