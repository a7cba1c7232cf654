"""linear_recurrence against a loop over time, in NumPy and in MLX's ops."""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Shape, axis: many or few steps or channels, or none; channels that fill tiles or do not.
CASES = [
    *(((2, 7, 3), 1), ((2, 7, 3), -1), ((2, 7, 3), 0), ((5,), 0), ((1000,), 0), ((100, 5), 1)),
    *(((2, 70, 4, 10), 1), ((70, 300), 0), ((3, 1, 5), 1), ((3, 200, 1), 1), ((1, 65, 17), -2)),
]
EMPTY = [((2, 0, 3), 1), ((0, 4, 3), 1), ((2, 4, 0), 1), ((3, 0), 1), ((0,), 0)]


def without(shape, axis):
    return tuple(np.delete(shape, axis))


def inputs(dtype, shape, axis):
    a, _ = draw(dtype, shape, -1, 1, seed=1)
    b, _ = draw(dtype, shape, -2, 2, seed=2)
    initial, _ = draw(dtype, without(shape, axis), seed=3)
    return a, b, initial


def reference(a, b, initial=None, axis=-2, reverse=False):
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    h = np.zeros(a.shape[1:]) if initial is None else initial
    out = np.zeros(a.shape)
    for t in range(len(a))[:: -1 if reverse else 1]:
        out[t] = h = a[t] * h + b[t]
    return np.moveaxis(out, 0, axis)


def composition(a, b, initial=None, axis=-2, reverse=False):
    a, b = mx.moveaxis(a, axis, 0), mx.moveaxis(b, axis, 0)
    h = mx.zeros(a.shape[1:], a.dtype) if initial is None else initial
    out = []
    for t in range(len(a))[:: -1 if reverse else 1]:
        h = a[t] * h + b[t]
        out.append(h)
    return mx.moveaxis(mx.stack(out[:: -1 if reverse else 1]), 0, axis)


def close(got, exact, factor=8):
    assert got.shape == exact.shape
    exact = to_numpy(exact) if isinstance(exact, mx.array) else exact
    limit = factor * EPSILON[got.dtype] * np.abs(exact).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES + EMPTY, ids=str)
def test_values(dtype, shape, axis, reverse):
    a, b, initial = inputs(dtype, shape, axis)
    for start in (None, initial):
        got = mlxops.nn.linear_recurrence(a, b, start, axis=axis, reverse=reverse)
        assert got.dtype == dtype
        values = (to_numpy(x) if x is not None else None for x in (a, b, start))
        close(got, reference(*values, axis, reverse))


def gradients(fn, a, b, initial, **kwargs):
    def loss(a, b, initial=None):
        h = fn(a, b, initial, **kwargs)
        return (h * mx.sin(h)).sum()

    arrays = (a, b) if initial is None else (a, b, initial)
    return mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [c for c in CASES if max(c[0]) < 300], ids=str)
def test_gradients(dtype, shape, axis, reverse):
    """Compare with the composition in float64; the cotangent has the rounding of the output."""
    a, b, initial = inputs(dtype, shape, axis)
    for start in (None, initial):
        got = gradients(mlxops.nn.linear_recurrence, a, b, start, axis=axis, reverse=reverse)
        with mx.stream(mx.cpu):
            wide = [x if x is None else x.astype(mx.float64) for x in (a, b, start)]
            wanted = gradients(composition, *wide, axis=axis, reverse=reverse)
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            assert g.dtype == dtype
            close(g, w, 30)


@pytest.mark.parametrize(("shape", "axis"), EMPTY, ids=str)
def test_gradients_of_nothing(shape, axis):
    arrays = inputs(mx.float32, shape, axis)
    for g, x in zip(
        gradients(mlxops.nn.linear_recurrence, *arrays, axis=axis), arrays, strict=True
    ):
        assert g.shape == x.shape
        assert not to_numpy(g).any()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_second_derivative(axis, reverse):
    def twice(fn):
        def loss(*arrays):
            grads = gradients(fn, *arrays, axis=axis, reverse=reverse)
            return sum((g * g).sum() for g in grads)

        return mx.grad(loss, argnums=(0, 1, 2))(*inputs(mx.float32, (2, 4, 3), axis))

    for g, w in zip(twice(mlxops.nn.linear_recurrence), twice(composition), strict=True):
        close(g, w, 100)


def test_jvp_and_vmap():
    a, b, initial = inputs(mx.float32, (3, 6, 4), 1)
    tangents = [mx.cos(x) for x in (a, b, initial)]
    _, (got,) = mx.jvp(mlxops.nn.linear_recurrence, (a, b, initial), tangents)
    _, (wanted,) = mx.jvp(lambda *x: composition(*x), (a, b, initial), tangents)
    close(got, wanted, 30)
    close(mx.vmap(mlxops.nn.linear_recurrence)(a, b, initial), composition(a, b, initial))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    a, b, initial = (LAYOUTS[layout](x) for x in inputs(mx.float32, (3, 6, 4), 1))
    got = mlxops.nn.linear_recurrence(a, b, initial)
    close(got, reference(*(to_numpy(x) for x in (a, b, initial))))


@pytest.mark.parametrize("axis", [0, 1])
def test_special_values(axis):
    """An overflowing product of factors has no effect; a NaN stays in its channel."""
    a = mx.full((160, 3), 1e30)
    b = mx.zeros((160, 3))
    b[150, 1] = 2.0
    a[151:, 1] = 0.5
    b[140, 2] = np.nan
    if axis:
        a, b = a.T, b.T
    h = to_numpy(mlxops.nn.linear_recurrence(a, b, axis=axis))
    h = h.T if axis else h
    assert not h[:, 0].any()
    assert not h[:150, 1].any()
    np.testing.assert_array_equal(h[150:, 1], 2.0 ** (1.0 - np.arange(10)))
    assert not h[:140, 2].any()
    assert np.isnan(h[140:, 2]).all()


def test_float16_adds_up_in_float32():
    """If it were rounded after every step, the sum would stay at 2048."""
    h = mlxops.nn.linear_recurrence(mx.ones((3000, 1), mx.float16), mx.ones((3000, 1), mx.float16))
    assert h[-1].item() == 3000


def test_errors():
    a = mx.ones((2, 5, 3))
    for args, kwargs, message in [
        ((a, a[:1]), {}, r"b must be \(\.\.\.\), as a is"),
        ((mx.array(1.0), mx.array(1.0)), {"axis": 0}, "axis is out of range for a"),
        ((a, a), {"axis": 3}, "axis is out of range for a"),
        ((a[0, 0], a[0, 0]), {}, "axis is out of range for a"),
        ((a, a, a[:, 0]), {"axis": 0}, "initial must have the shape of a without the axis"),
    ]:
        with pytest.raises(ValueError, match=rf"^\[linear_recurrence\] .*{message}"):
            mlxops.nn.linear_recurrence(*args, **kwargs)
