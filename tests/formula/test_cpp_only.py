"""MLX's functions that only C++ has, in formulas and bound, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from formula import formula_samples as samples

import mlxgen
from mlxgen.formula.compile import Expr, Name, Need, Want, compile_formula
from mlxgen.formula.mlx import table
from mlxgen.model.op import Fact
from mlxgen.model.signature import Kind

YAML = """
- signature: "add_rows(x: array, rows: array, updates: array) -> array"
  composite: scatter_add(x, [rows], expand_dims(updates, 1), (0,))
- signature: "add_along(x: array, rows: array, updates: array) -> array"
  composite: "scatter_add(x, indices=rows, updates=updates[:, None], axis=0)"
- signature: "set_points(x: array, rows: array, columns: array, updates: array) -> array"
  composite: scatter(x, [rows, columns], updates.reshape(-1, 1, 1), (0, 1))
- signature: "largest(x: array, rows: array, updates: array) -> array"
  composite: scatter_max(x, rows, expand_dims(updates, 1), 0)
- signature: "smallest(x: array, rows: array, updates: array) -> array"
  composite: scatter_min(x, rows, expand_dims(updates, 1), 0)
- signature: "multiplied(x: array, rows: array, updates: array) -> array"
  composite: scatter_prod(x, rows, expand_dims(updates, 1), 0)
- signature: "scatter_add_axis(array a, array indices, array values, int axis) -> array"
- signature: "windows(x: array, rows: array) -> array"
  composite: gather(x, [rows], (0,), (1, x.shape[1] - 1))
- signature: "masked_scatter(a: array, mask: array, src: array) -> array"
- signature: "part(x: array, start: list[int]) -> array"
  composite: slice(x, start, x.shape, (1, 2))
- signature: "with_part(x: array, update: array) -> array"
  composite: slice_update(x, update, (1, 0), (3, x.shape[1]), (1, 2))
- signature: "with_more(x: array, update: array) -> array"
  composite: slice_update_add(x, update, (1, 0), (3, 2))
- name: add_into
  signature: "add_into(array src, array update, int[] start, int[] stop) -> array"
  cpp: mlx::core::slice_update_add
- signature: "count(x: array) -> array"
  composite: number_of_elements(x, (0, -1), False, float32)
- signature: "draw(key: array) -> array"
  composite: random.bits((3,), key=key)
"""
ROWS = np.array([2, 0, 2], np.int32)


@pytest.fixture(scope="module")
def ops() -> Any:
    return mlxgen.load(YAML)


def array(*shape: int) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def with_rows(update: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return NumPy's update of some rows."""

    def updated(x: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = x.copy()
        update(out, ROWS, updates)
        return out

    return updated


@pytest.mark.extended
def test_scatters(ops: Any) -> None:
    x, updates, rows = array(4, 3), array(3, 3), mx.array(ROWS)
    for name, ufunc in (
        ("add_rows", np.add),
        ("add_along", np.add),
        ("largest", np.maximum),
        ("smallest", np.minimum),
        ("multiplied", np.multiply),
    ):
        with mx.stream(mx.cpu):
            found = getattr(ops, name)(mx.array(x), rows, mx.array(updates))
        assert np.allclose(found, with_rows(ufunc.at)(x, updates)), name
    columns, points = np.array([1, 1, 0]), array(3)
    wanted = x.copy()
    wanted[ROWS, columns] = points
    with mx.stream(mx.cpu):
        found = ops.set_points(mx.array(x), rows, mx.array(columns), mx.array(points))
        assert np.allclose(found, wanted)
        along = np.zeros((4, 3), np.float32)
        np.add.at(along, (ROWS[:, None], np.arange(3)[None]), updates)
        indices = mx.broadcast_to(rows[:, None], (3, 3))
        found = ops.scatter_add_axis(mx.zeros((4, 3)), indices, mx.array(updates), 0)
        assert np.allclose(found, along)
        mask = x > 0
        wanted = x.copy()
        wanted[mask] = array(20)[: mask.sum()]
        assert np.allclose(
            ops.masked_scatter(mx.array(x), mx.array(mask), mx.array(array(20))), wanted
        )


@pytest.mark.extended
def test_gather_and_slices(ops: Any) -> None:
    x, update = array(4, 3), array(2, 2)
    with mx.stream(mx.cpu):
        assert np.allclose(ops.windows(mx.array(x), mx.array(ROWS)), x[ROWS][:, None, :2])
        assert np.allclose(ops.part(mx.array(x), [1, 0]), x[1:, ::2])
        wanted = x.copy()
        wanted[1:3, ::2] = update
        assert np.allclose(ops.with_part(mx.array(x), mx.array(update)), wanted)
        wanted = x.copy()
        wanted[1:3, :2] += update
        assert np.allclose(ops.with_more(mx.array(x), mx.array(update)), wanted)
        found = ops.add_into(mx.array(x), mx.array(update), [1, 0], [3, 2])
        assert np.allclose(found, wanted)
        assert ops.count(mx.array(x)).item() == 12.0
        key = mx.random.key(1)
        assert ops.draw(key).dtype == mx.uint32
        assert ops.draw(key).tolist() == ops.draw(key).tolist()


@pytest.mark.extended
def test_gradients(ops: Any) -> None:
    """The adjoints of linear functions, by their definition: <grad, dx> = <factor, f(dx)>."""
    rows, x = mx.array(ROWS), mx.array(array(4, 3))
    cases: list[tuple[Callable[..., mx.array], list[tuple[int, ...]]]] = [
        (lambda a, u: ops.add_rows(a, rows, u), [(4, 3), (3, 3)]),
        (lambda a: ops.windows(a, rows), [(4, 3)]),
        (lambda a: ops.part(a, [1, 0]), [(4, 3)]),
        (ops.with_part, [(4, 3), (2, 2)]),
        (ops.with_more, [(4, 3), (2, 2)]),
        (
            lambda a, v: ops.scatter_add_axis(a, mx.broadcast_to(rows[:, None], (3, 3)), v, 0),
            [(4, 3), (3, 3)],
        ),
    ]
    with mx.stream(mx.cpu):
        for function, shapes in cases:
            given = [mx.array(array(*shape)) for shape in shapes]
            factor = mx.array(array(*function(*given).shape))

            def total(*arrays: mx.array, f: Any = function, factor: mx.array = factor) -> mx.array:
                return (f(*arrays) * factor).sum()

            found = mx.grad(total, list(range(len(given))))(*given)
            found = found if len(given) > 1 else [found]
            ways = [mx.array(array(*shape)) + 1 for shape in shapes]
            along = sum((g * way).sum().item() for g, way in zip(found, ways, strict=True))
            assert np.isclose(along, total(*ways).item(), atol=1e-4)
        grads = mx.grad(lambda a: ops.count(a) * a.sum())(x)
        assert np.allclose(grads, 12)


def compiled(text: str, linear: str = "", release: str | None = None) -> Expr | None:
    """Compile a formula of which an array is the cotangent."""
    types = {"x": 2, "y": 2, "rows": 1}
    names = {
        name: Name(samples.NAMES["x"].type, fact=Fact(("", rank), "float32", int(name in linear)))
        for name, rank in types.items()
    }
    scope = samples.SCOPE._replace(names=names, release=release)
    need = Need("gradient", "x", linear=["`grad`"]) if linear else Need("output", "x")
    return compile_formula(text, scope, Want(Kind.ARRAY, None, [need]), lambda *_: None)


def test_facts() -> None:
    assert compiled("scatter_add(x, [rows], y, (0,))", linear="xy")
    assert compiled("scatter_add(zeros_like(x), [rows], y, (0,))", linear="y")
    assert not compiled("scatter_add(x, [rows], y, (0,))", linear="y")  # plus a constant
    assert not compiled("scatter_max(x, [rows], y, (0,))", linear="xy")
    assert compiled("gather(x, [rows], (0,), (1, 2))", linear="x")
    assert compiled("slice_update(zeros_like(x), y, (0, 0), (1, 1))", linear="y")
    expr = compiled("scatter(x, rows, y, 0)")
    assert expr is not None and expr.facts[0].rank == ("", 2)


def test_releases() -> None:
    """MLX has some of them since 0.31.2."""
    assert table("0.31.1").function("slice_update_add") is None
    assert table("0.31.1").newer["slice_update_add"]["release"] == "0.31.1"
    for release in ("0.31.0", "0.31.2", None):
        for name in ("scatter_add", "gather", "masked_scatter", "slice", "number_of_elements"):
            assert table(release).function(name) is not None
    assert compiled("slice_update_add(x, y, (0, 0), (1, 1))", release="0.31.2")
    assert not compiled("slice_update_add(x, y, (0, 0), (1, 1))", release="0.31.1")
