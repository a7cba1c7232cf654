"""Forms of arguments and results in Python: `*arrays`, tuples, lists of lists, default keys."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen

pytestmark = pytest.mark.extended

ENTRIES = """
- signature: "total(scale: float, *arrays: array, shift: array = 0) -> array"
  composite: "shift + scale * sum(a for a in arrays) if len(arrays) > 0 else shift"
- signature: "use(a: array, b: array) -> array"
  composite: total(2.0, a, b, shift=array(1)) + total(1.0)
- signature: "as_list(*arrays: array) -> list[array]"
  composite: arrays
- signature: "as_tuple(*arrays: array) -> tuple[array, ...]"
  composite: arrays
- signature: "one_or_list(*arrays: array) -> array | list[array]"
  composite: arrays
- signature: "svd(a: array, compute_uv: bool = True) -> array | tuple[array, ...]"
  cpp: mlx::core::linalg::svd
- name: first_of
  python_name: kind
  signature: "kind(a: array, /) -> array"
  composite: a * 0 + 1
- name: kind
  signature: "kind(*arrays: array) -> array"
  composite: array(2)
  unused: {arrays: their number matters only}
- signature: "padded(a: array, width: list[list[int]] = [[1, 2], [0, 1]]) -> array"
  composite: mx.pad(a, width)
- signature: "dotted(a: array, b: array, axes: list[list[int]]) -> array"
  cpp: mlx::core::tensordot
- signature: "lengths(lists: list[list[int]]) -> array"
  composite: mx.zeros([len(one) + lists[0][0] for one in lists])
- signature: "blank(shape: shape) -> array"
  composite: mx.zeros(shape)
- signature: "draw(shape: shape, key: array | None = None) -> array"
  composite: mx.random.normal(shape, key=key)
- signature: "difference(shape: shape, key: array | None = None) -> array"
  composite: draw(shape, key) - draw(shape, key)
"""


@pytest.fixture(scope="module")
def ops() -> Any:
    loaded: ModuleType = mlxgen.load(ENTRIES)
    return loaded


def test_any_number_of_arrays(ops: Any) -> None:
    a, b = mx.array([1.0, 2.0]), mx.array([[10.0], [20.0]])
    assert np.array_equal(ops.total(2.0, a, b, a, shift=1), 2 * (2 * np.array(a) + np.array(b)) + 1)
    assert ops.total(2.0, a, 3).tolist() == [8, 10]  # numbers are arrays
    assert ops.total(2.0).item() == 0  # and there may be none
    assert ops.use(a, b).tolist() == (2 * (a + b) + 1).tolist()
    for wrong in (("text",), ([a],), (None,)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ops.total(1.0, a, *wrong)
    with pytest.raises(TypeError):
        ops.total(1.0, arrays=[a])


def test_differentiation_of_any_number(ops: Any) -> None:
    a, b = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    pull = mx.grad(lambda *given: ops.total(3.0, *given).sum(), argnums=(0, 1))
    assert [g.tolist() for g in pull(a, b)] == [[3, 3], [3, 3]]
    rows = mx.vmap(lambda x: ops.total(1.0, x, b))(mx.stack([a, b]))
    assert rows.tolist() == [[4, 6], [6, 8]]


def test_number_as_default_of_an_array(ops: Any) -> None:
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        assert ops.total(1.0, mx.zeros(2, dtype)).dtype == dtype  # the default is weakly typed
    with pytest.raises(TypeError):
        ops.total(1.0, shift=None)


def test_results(ops: Any) -> None:
    a, b = mx.zeros(1), mx.ones(2)
    assert type(ops.as_list(a, b)) is list and type(ops.as_list(a)) is list
    assert type(ops.as_tuple(a, b)) is tuple and type(ops.as_tuple(a)) is tuple
    assert type(ops.one_or_list(a, b)) is list and type(ops.one_or_list(a)) is mx.array
    assert ops.one_or_list() == []
    square = mx.array([[2.0, 0.0], [0.0, 3.0]])
    assert len(ops.svd(square, stream=mx.cpu)) == 3
    alone = ops.svd(square, False, stream=mx.cpu)
    assert type(alone) is mx.array and alone.tolist() == pytest.approx([3, 2])


def test_overload_before_any_number(ops: Any) -> None:
    a = mx.zeros(1)
    assert ops.kind(a).item() == 1 and ops.kind(a, a).item() == 2 and ops.kind().item() == 2


def test_lists_of_lists(ops: Any) -> None:
    a = mx.arange(6.0).reshape(2, 3)
    assert np.array_equal(ops.padded(a), np.pad(np.array(a), [(1, 2), (0, 1)]))
    assert np.array_equal(ops.padded(a, ((0, 0), [1, 1])), np.pad(np.array(a), [(0, 0), (1, 1)]))
    assert np.array_equal(ops.dotted(a, a, [[1], [1]]), np.array(a) @ np.array(a).T)
    assert ops.lengths([[4], [], [1, 2]]).shape == (5, 4, 6)
    with pytest.raises(ValueError, match="Expected 2 values, got 3"):
        ops.padded(a, [[1, 2, 3], [0, 0]])
    with pytest.raises(ValueError, match="Expected 2 values, got 1"):
        ops.dotted(a, a, [[1]])
    for wrong in ([1, 2], [[0.5]], [["a"]], None):
        with pytest.raises(TypeError):
            ops.padded(a, wrong)


@pytest.mark.parametrize("size", [2**31, -(2**31) - 1, 2**40])
def test_shapes_beyond_32_bits(ops: Any, size: int) -> None:
    with pytest.raises(OverflowError, match=rf"^\[blank\] shape must be .* got {size}\.$"):
        ops.blank([2, size])
    with pytest.raises(OverflowError, match=r"^\[blank\] shape must be"):
        ops.blank([2**70])


def test_default_keys_are_those_of_mlx(ops: Any) -> None:
    mx.random.seed(7)
    expected = [mx.random.normal((3,)), mx.random.normal((3,)), mx.random.uniform(shape=(2,))]
    mx.random.seed(7)
    found = [ops.draw((3,)), ops.draw((3,)), mx.random.uniform(shape=(2,))]
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]
    key = mx.random.key(3)
    assert ops.draw((3,), key).tolist() == mx.random.normal((3,), key=key).tolist()
    assert not mx.any(ops.difference((3,), key)).item()
    assert mx.all(ops.difference((3,)) != 0).item()  # each call draws another key


def test_default_keys_in_compiled_functions(ops: Any) -> None:
    state = mx.random.state
    ours = mx.compile(lambda: ops.draw((2,)), inputs=state, outputs=state)
    theirs = mx.compile(lambda: mx.random.normal((2,)), inputs=state, outputs=state)
    results = []
    for function in (ours, theirs):
        mx.random.seed(5)
        results.append([function().tolist(), function().tolist()])
    assert results[0] == results[1] and results[0][0] != results[0][1]


def test_default_keys_after_replacing_mlx_functions(
    ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx.random.seed(1)
    expected = mx.random.normal((2,)).tolist()
    monkeypatch.setattr(mx.random, "uniform", None)
    mx.random.seed(1)
    assert ops.draw((2,)).tolist() == expected


def test_stubs_and_signatures(ops: Any) -> None:
    text = ops.total.__doc__.splitlines()[0]
    assert text.startswith("total(scale: float, *arrays: scalar | array, shift: scalar | array = 0")
    assert "-> array | list[array]" in ops.one_or_list.__doc__
    assert Path(ops.__file__).exists()
