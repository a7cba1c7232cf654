"""Common properties of all special functions: shapes, dtypes, scalars, vmap, and SciPy's names."""

from __future__ import annotations

import importlib
import json
import math
from importlib.resources import files

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from mlxops import special
from special.exact import points_of
from special.records import FAMILIES, RECORDS
from special.reference import FORMATS, compute, pair

from mlxgen.testing import to_numpy


def sample(record, size, format=FORMATS["float32"]):
    """Return arguments from the first region, which contains no poles."""
    axes = record.smooth or next(iter(record.regions.values())).axes
    points = pair(axes, record.arity, format, size)
    return [np.resize(x, size) for x in points]


@pytest.fixture(params=RECORDS)
def record(request):
    return RECORDS[request.param]


def test_shapes_and_strides(record):
    arrays = [mx.array(x, dtype=mx.float32) for x in sample(record, 24)]
    flat = record.call(record.head, *arrays)
    assert flat.shape == (24,)
    cube = record.call(record.head, *(x.reshape(2, 3, 4) for x in arrays))
    assert cube.shape == (2, 3, 4)
    assert mx.array_equal(cube.flatten(), flat, equal_nan=True)
    views = [x.reshape(2, 3, 4).transpose(2, 0, 1) for x in arrays]
    transposed = record.call(record.head, *views)
    assert mx.array_equal(transposed, cube.transpose(2, 0, 1), equal_nan=True)
    reverse = record.call(record.head, *(x[::-2] for x in arrays))
    assert mx.array_equal(reverse, flat[::-2], equal_nan=True)


def test_zero_dimensional_and_empty(record):
    arrays = [mx.array(x, dtype=mx.float32) for x in sample(record, 3)]
    flat = record.call(record.head, *arrays)
    scalar = record.call(record.head, *(x[0] for x in arrays))
    assert scalar.shape == ()
    assert mx.array_equal(scalar, flat[0], equal_nan=True)
    empty = record.call(record.head, *(mx.zeros((2, 0), mx.float32) for _ in arrays))
    assert empty.shape == (2, 0) and empty.dtype == mx.float32


def test_broadcasting(record):
    arrays = [mx.array(x, dtype=mx.float32) for x in sample(record, 3)]
    if record.arity == 1:
        expanded = record.call(record.head, mx.broadcast_to(arrays[0], (2, 3)))
        assert mx.array_equal(expanded[1], record.call(record.head, arrays[0]), equal_nan=True)
        return
    column = [arrays[0][:, None], *arrays[1:]]
    table = record.call(record.head, *column)
    assert table.shape == (3, 3)
    for i in range(3):
        row = record.call(record.head, arrays[0][i], *arrays[1:])
        assert mx.array_equal(table[i], row, equal_nan=True)


def test_vmap(record):
    arrays = [mx.array(x, dtype=mx.float32).reshape(3, 4) for x in sample(record, 12)]
    whole = record.call(record.head, *arrays)
    mapped = mx.vmap(lambda *x: record.call(record.head, *x))(*arrays)
    assert mx.array_equal(mapped, whole, equal_nan=True)
    axes = tuple([1] + [None] * (record.arity - 1))
    mapped = mx.vmap(lambda *x: record.call(record.head, *x), in_axes=axes, out_axes=1)(
        arrays[0], *(x[:, 0] for x in arrays[1:])
    )
    wanted = [
        record.call(record.head, arrays[0][:, k], *(x[:, 0] for x in arrays[1:])) for k in range(4)
    ]
    assert mx.array_equal(mapped, mx.stack(wanted, axis=1), equal_nan=True)


def test_compiled(record):
    arrays = [mx.array(x, dtype=mx.float32) for x in sample(record, 12)]
    compiled = mx.compile(lambda *x: 2 * record.call(record.head, *x))
    plain = 2 * record.call(record.head, *arrays)
    np.testing.assert_allclose(to_numpy(compiled(*arrays)), to_numpy(plain), rtol=1e-6)


def test_dtypes(record, device):
    """Floating dtypes are kept, integers become float32, and the widest argument decides."""
    for format in FORMATS.values():
        if format.name == "float64" and device == mx.gpu:
            continue
        arrays = [mx.array(x, dtype=format.dtype) for x in sample(record, 3)]
        assert record.call(record.head, *arrays).dtype == format.dtype
    for dtype in (mx.bool_, mx.uint8, mx.int32, mx.int64):
        out = record.call(record.head, *(mx.ones((2,), dtype) for _ in range(record.arity)))
        assert out.dtype == mx.float32
        ones = record.call(record.head, *(mx.ones((2,)) for _ in range(record.arity)))
        assert mx.array_equal(out, ones, equal_nan=True)
    if record.arity > 1:
        arrays = [mx.ones((2,), mx.float16), *[mx.ones((2,))] * (record.arity - 1)]
        assert record.call(record.head, *arrays).dtype == mx.float32
        scalars = [2.0] * (record.arity - 1)
        assert record.call(record.head, arrays[0], *scalars).dtype == mx.float16


def test_scalars(record):
    point = [float(x[0]) for x in sample(record, 3)]
    out = record.call(record.head, *point)
    assert out.shape == () and out.dtype == mx.float32
    array = record.call(record.head, *(mx.array(x, dtype=mx.float32) for x in point))
    assert mx.array_equal(out, array, equal_nan=True)


def test_nan_in_nan_out(record):
    """NaN propagates, except where a record's correction or SciPy defines another value."""
    if record.arity > 1:
        return  # the special values test these
    out = record.call(record.head, mx.array([float("nan")]))
    assert np.isnan(to_numpy(out)).all()


def test_neighbours_do_not_matter(record, format):
    """If all arguments of a block are positive, another loop may compute the same results."""
    for region in record.regions:
        points = np.stack(points_of(record, region, format))
        head = record.head_of(region)
        positive = np.all(points > 0, axis=0)
        points = points[:, positive] if positive.any() else points
        # A number of the other sign in every block.
        where = np.arange(0, points.shape[1], 60)
        mixed = np.insert(points, where, -points[:, :1], axis=1)
        among = np.delete(compute(record, head, format, *mixed), where + np.arange(len(where)))
        alone = compute(record, head, format, *points)
        np.testing.assert_array_equal(among, alone)
        np.testing.assert_array_equal(np.signbit(among), np.signbit(alone))


def operators():
    text = (files("mlxops") / "ops.json").read_text(encoding="utf-8")
    every = json.loads(text)["operators"]
    return [op for op in every if op["module"] == "special" and "internal" not in op["tags"]]


def test_names_are_those_of_scipy():
    """Every record with a SciPy ufunc has its name; and each alias is the same function."""
    special = getattr(mlxops, "special", mlxops)
    for record in RECORDS.values():
        name = getattr(record.scipy, "__name__", None)
        if isinstance(record.scipy, np.ufunc):
            assert hasattr(special, name) or hasattr(mlxops, name), f"{record.id}: no {name}"
    for op in operators():
        for alias in op["aliases"]:
            assert getattr(special, alias) is not None


def test_names_that_are_promised():
    """The families' modules list the names that SciPy's users expect: ``NAMES``."""
    special = getattr(mlxops, "special", mlxops)
    promised = {
        name
        for family in FAMILIES
        for name in getattr(importlib.import_module(f"special.{family}"), "NAMES", ())
    }
    missing = [name for name in sorted(promised) if not hasattr(special, name)]
    assert not missing


def test_every_operator_is_documented_and_tagged():
    for op in operators():
        assert op["doc"], op["name"]
        assert {"special"} <= set(op["tags"]), op["name"]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64])
def test_log1mexp_of_positive_numbers(dtype):
    """They yield NaN, also if the exponential overflows all formats."""
    x = mx.array([1e-30, 1.0, 88.0, 713.0, 750.0, 1e10, 1e18, math.inf], dtype=dtype)
    if dtype == mx.float64 and mx.default_device() != mx.cpu:
        pytest.skip("float64 is on the CPU only")
    assert mx.isnan(special.log1mexp(x)).all()
    assert special.log1mexp(mx.array([0.0, -0.0], dtype=dtype)).tolist() == [-math.inf] * 2


def test_shapeless_gradient_of_expit():
    """Attention with sinks has it in shapeless graphs."""
    slope = mx.grad(lambda x: special.expit(x).sum())
    compiled = mx.compile(slope, shapeless=True)
    for n in (3, 5):
        x = mx.linspace(-80, 80, n)
        assert compiled(x).tolist() == slope(x).tolist()
