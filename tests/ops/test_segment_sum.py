"""segment_sum: a shape rule, indices of any integer dtype, an argument without gradient."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import INTEGERS, assert_close, draw, name

from mlxgen.testing import LAYOUTS, to_numpy


def reference(x, ids, count):
    out = np.zeros((count, *x.shape[1:]))
    for row, segment in zip(x, ids, strict=True):
        if 0 <= segment < count:
            out[segment] += row
    return out


IDS = np.array([3, 0, 0, 2, -1, 5, 3, 3, 0, 100])


@pytest.mark.parametrize("tail", [(), (1,), (7,), (2, 3)], ids=str)
def test_values(dtype, tail):
    a, x = draw(dtype, (10, *tail))
    out = mlxops.segment_sum(a, mx.array(IDS), 5)
    assert out.dtype == dtype
    # Half precision is accumulated in float32 and rounded once. Sums may cancel.
    scale = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
    wanted = reference(x, IDS, 5)
    np.testing.assert_allclose(to_numpy(out), wanted, scale[dtype], 8 * scale[mx.float32])
    assert (to_numpy(out)[1] == 0).all()
    assert (to_numpy(out)[4] == 0).all()


def test_sums_of_half_precision_do_not_stagnate():
    for dtype in (mx.float16, mx.bfloat16):
        out = mlxops.segment_sum(mx.ones((5000,), dtype), mx.zeros((5000,), mx.int32), 1)
        assert_close(out, [5000.0], 0.5)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_ids_of_any_integer_dtype(dtype):
    out = mlxops.segment_sum(mx.ones((3, 2)), mx.array([1, 0, 1], dtype=dtype), 2)
    assert out.tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32], ids=str)
@pytest.mark.parametrize("numpy", [True, False])
def test_ids_beyond_int32_do_not_wrap_around(dtype, numpy):
    limits = np.iinfo(dtype)
    ids = np.array([0, limits.max, limits.min, 2**31, 1, 2**32 - 1, 2**31 - 1], dtype)
    if limits.max > 2**32:
        ids[3:4], ids[5:6] = 2**40, 2**32
    x, count = np.arange(1.0, 8).astype(np.float32), 2
    ids_of = ids if numpy else mx.array(ids)
    assert (
        mlxops.segment_sum(mx.array(x), ids_of, count).tolist() == reference(x, ids, count).tolist()
    )
    rows = mx.vmap(lambda i: mlxops.segment_sum(mx.array(x), i, count))(mx.array(ids[None]))
    assert rows.tolist() == [reference(x, ids, count).tolist()]
    gradient = mx.grad(lambda x: mlxops.segment_sum(x, ids_of, count).sum())(mx.array(x))
    assert gradient.tolist() == [float(0 <= i < count) for i in ids.tolist()]


def test_integer_rows_become_float32():
    out = mlxops.segment_sum(mx.array([1, 2, 3]), mx.array([1, 0, 1]), 2)
    assert out.dtype == mx.float32
    assert out.tolist() == [2, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    a = LAYOUTS[layout](draw(mx.float32, (10, 4, 3))[0])
    ids = LAYOUTS[layout](mx.array(IDS))
    out = mlxops.segment_sum(a, ids, 5)
    np.testing.assert_allclose(out, reference(to_numpy(a), np.array(ids), 5), 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("shape", "count", "wanted"),
    [((0, 3), 2, (2, 3)), ((0,), 4, (4,)), ((4, 0), 2, (2, 0)), ((4, 3), 0, (0, 3))],
)
def test_empty(shape, count, wanted):
    out = mlxops.segment_sum(mx.ones(shape), mx.zeros(shape[:1], mx.int32), count)
    assert out.shape == wanted
    assert not np.array(out).any()


def test_special_values():
    out = mlxops.segment_sum(
        mx.array([np.inf, 1, np.nan, 1, -np.inf, np.inf]), mx.array([0, 0, 1, 1, 2, 2]), 4
    )
    np.testing.assert_array_equal(out, [np.inf, np.nan, np.nan, 0])
    # Excluded values are not even read.
    out = mlxops.segment_sum(mx.array([np.nan, 1.0]), mx.array([-1, 0]), 1)
    assert out.tolist() == [1]


def test_gradient_is_a_lookup():
    a = draw(mx.float32, (10, 2))[0]
    weights = mx.array(np.arange(10.0).reshape(5, 2), dtype=mx.float32)
    gradient = mx.grad(lambda a: (mlxops.segment_sum(a, mx.array(IDS), 5) * weights).sum())(a)
    wanted = [np.array(weights)[i] if 0 <= i < 5 else [0, 0] for i in IDS]
    np.testing.assert_array_equal(gradient, wanted)


def test_vmap_of_ids_and_rows():
    x = draw(mx.float32, (3, 10, 2))[0]
    ids = mx.array(np.stack([IDS, IDS[::-1], np.zeros(10, int)]))
    got = mx.vmap(lambda x, i: mlxops.segment_sum(x, i, 5))(x, ids)
    for b in range(3):
        np.testing.assert_allclose(
            got[b], reference(to_numpy(x[b]), np.array(ids[b]), 5), 1e-6, 1e-6
        )


def test_shapeless_compile():
    compiled = mx.compile(lambda x, i: mlxops.segment_sum(x, i, 3), shapeless=True)
    for shape in ((4, 2), (6, 2), (5, 7)):
        x, ids = mx.ones(shape), mx.arange(shape[0]) % 3
        np.testing.assert_array_equal(compiled(x, ids), mlxops.segment_sum(x, ids, 3))


def test_many_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 3)).astype(np.float32)
    ids = rng.integers(0, 1000, 100_000)
    out = mlxops.segment_sum(mx.array(x), mx.array(ids), 1000)
    wanted = np.stack([np.bincount(ids, c.astype(np.float64), 1000) for c in x.T], axis=1)
    np.testing.assert_allclose(out, wanted, 1e-4, 1e-4)


def test_errors():
    x = mx.ones((4, 3))
    ids = mx.zeros((4,), mx.int32)
    with pytest.raises(
        ValueError,
        match=r"^\[segment_sum\] segment_ids must be \(rows,\), where x is \(rows, \.\.\.\)\. "
        r"Got x: float32 \(4, 3\), segment_ids: int32 \(3,\)",
    ):
        mlxops.segment_sum(x, ids[:3], 2)
    with pytest.raises(ValueError, match=r"^\[segment_sum\] num_segments must not be negative"):
        mlxops.segment_sum(x, ids, -1)
    with pytest.raises(ValueError, match=r"^\[segment_sum\] x must be \(rows, \.\.\.\)"):
        mlxops.segment_sum(mx.array(1.0), ids, 2)
    with pytest.raises(ValueError, match=r"^\[segment_sum\] dtype float32 is not supported"):
        mlxops.segment_sum(x, mx.zeros((4,)), 2)
    with pytest.raises(TypeError):
        mlxops.segment_sum(x, ids)
