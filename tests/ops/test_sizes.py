"""Sizes at which threads of a GPU begin to share work, and adjacent sizes.

A simdgroup has 32 threads and a threadgroup at most 1024. The kernels use 8, 32, 256 or all of
them, with four elements each; emulated launches of elementwise operators use a grid of rows of
2048. Numbers have very different sizes, so that missing, doubled and misplaced elements are found.
"""

from functools import partial

import mlx.core as mx
import mlxops
import numpy as np
import pytest

from mlxgen.testing import to_numpy

SIZES = (1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025)
ROWS = (2047, 2048, 2049, 4096, 5000)
SPACING = 2.0**-23


def spread(shape, seed=0, reach=3):
    """Return float32 from 10**-reach to 10**reach in size, and the same numbers in float64."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1, 1], shape) * 10.0 ** rng.uniform(-reach, reach, shape)
    array = mx.array(x.astype(np.float32))
    return array, to_numpy(array)


def sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


# The function, and the size of its largest term, which bounds the rounding error.
ELEMENTWISE = {
    "add": (lambda x, y: x + y, lambda x, y: abs(x) + abs(y)),
    "axpby": (lambda x, y: 2 * x - 3 * y, lambda x, y: 2 * abs(x) + 3 * abs(y)),
    "swiglu": (lambda x, y: x * y * sigmoid(y), lambda x, y: abs(x * y)),
}


OPERATORS = {
    "add": mlxops.examples.add,
    "axpby": mlxops.examples.axpby,
    "swiglu": mlxops.swiglu,
}


@pytest.mark.parametrize("size", (*SIZES, *ROWS))
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op, size):
    attributes = {"alpha": 2.0, "beta": -3.0} if op == "axpby" else {}
    (a, x), (b, y) = spread(2 * size), spread(2 * size, seed=1)
    function, terms = ELEMENTWISE[op]
    for part in (slice(0, size), slice(None, None, 2), slice(None, None, -2)):
        out = to_numpy(OPERATORS[op](a[part], b[part], **attributes))
        error = abs(out - function(x[part], y[part]))
        assert (error <= 8 * SPACING * terms(x[part], y[part])).all()
    out = to_numpy(OPERATORS[op](a[:size], b[:1], **attributes))
    error = abs(out - function(x[:size], y[:1]))
    assert (error <= 8 * SPACING * terms(x[:size], y[:1])).all()


@pytest.mark.parametrize("size", (*SIZES, *ROWS))
def test_two_outputs(size):
    a, x = spread(2 * size)
    for part in (slice(0, size), slice(None, None, 2)):
        sin, cos = mlxops.sincos(a[part])
        np.testing.assert_allclose(sin, np.sin(x[part]), 0, 2 * SPACING)
        np.testing.assert_allclose(cos, np.cos(x[part]), 0, 2 * SPACING)


def segment_sums(x, ids, count):
    out = np.zeros((count, *x.shape[1:]))
    np.add.at(out, ids, x)
    return out


@pytest.mark.parametrize("rows", (96, 97))  # 16 for each segment, and more
@pytest.mark.parametrize("width", (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, *SIZES))
def test_columns_of_segments(width, rows):
    a, x = spread((rows, width))
    ids = np.random.default_rng(2).integers(0, 5, rows)
    out = to_numpy(mlxops.segment_sum(a, mx.array(ids), 6))
    terms = segment_sums(abs(x), ids, 6)
    assert (abs(out - segment_sums(x, ids, 6)) <= 4 * SPACING * terms).all()


@pytest.mark.parametrize("rows", SIZES)
def test_rows_of_a_segment(rows):
    before, after = 40, 5
    ids = np.repeat([0, 1, 2], [before, rows, after])
    a, x = spread((len(ids), 3))
    out = to_numpy(mlxops.segment_sum(a, mx.array(ids), 3))
    terms = segment_sums(abs(x), ids, 3)
    # each of up to 256 partial sums rounds once for each of its terms
    assert (abs(out - segment_sums(x, ids, 3)) <= (4 + rows / 8) * SPACING * terms).all()


def rms_norm(x, residual, weight):
    h = x + residual
    return h / np.sqrt(np.mean(h * h, -1, keepdims=True) + 1e-5) * weight, h


# Around the four elements of a thread, those of a simdgroup, and those of a threadgroup.
WIDTHS = (1, 2, 3, 4, 5, 8, 31, 127, 128, 129, 257, 1025, 4095, 4096, 4097, 9000)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", (1, 17))
def test_rms_norm_residual(width, rows):
    (a, x), (b, residual) = spread((rows, width)), spread((rows, width), seed=1)
    c, weight = spread(width, seed=2)
    y, h = mlxops.rms_norm_residual(a, b, c)
    wanted_y, wanted_h = rms_norm(x, residual, weight)
    np.testing.assert_allclose(h, wanted_h, 0, 4 * SPACING * abs(wanted_h).max())
    scale = abs(wanted_y / wanted_h).max(-1, keepdims=True) * (abs(x) + abs(residual))
    assert (abs(to_numpy(y) - wanted_y) <= 1e-5 * np.maximum(scale, abs(wanted_y))).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", (1, 15, 16, 17, 33))
def test_gradients_of_rms_norm_residual(width, rows):
    """Compare row sums of the norm and sums of the weight with the formula in float64."""
    a, b = (spread((rows, width), seed, 1)[0] for seed in (0, 1))
    (c, weight), (d, grad_y) = spread(width, 2, 1), spread((rows, width), 3, 1)
    e, grad_h = spread((rows, width), 4, 1)
    _, (dx, _, dw) = mx.vjp(mlxops.rms_norm_residual, [a, b, c], [d, e])
    h = to_numpy(a + b)
    scale = 1 / np.sqrt(np.mean(h * h, -1, keepdims=True) + 1e-5)
    along = np.mean(grad_y * weight * h, -1, keepdims=True) * scale**2
    wanted = grad_h + scale * (grad_y * weight - h * along)
    terms = abs(grad_h) + scale * (abs(grad_y * weight) + abs(h * along))
    assert (abs(to_numpy(dx) - wanted) <= 2e-5 * terms.max(-1, keepdims=True)).all()
    each = grad_y * h * scale
    assert (abs(to_numpy(dw) - each.sum(0)) <= 1e-5 * abs(each).sum(0)).all()


def bilinear(x, grid):
    """Interpolate images at inner points, with the outer pixels at -1 and 1; return the weights."""
    height, width = x.shape[1:3]
    column = (grid[..., 0] + 1) / 2 * (width - 1)
    row = (grid[..., 1] + 1) / 2 * (height - 1)
    rows = np.maximum(0, 1 - abs(row[..., None] - np.arange(height)))
    columns = np.maximum(0, 1 - abs(column[..., None] - np.arange(width)))
    weights = rows[..., :, None] * columns[..., None, :]
    return np.einsum("bijhw,bhwc->bijc", weights, x), weights


@pytest.mark.parametrize(
    "channels, shape",
    [(c, (1, 5, 7)) for c in (1, 3, 4, 5, 7, 8, 9, 12, 28, 29, 31, 32, 33, 64, 65)]
    + [(2, (2, 3, n)) for n in (1, 7, 31, 33, 85, 86)]
    + [(2, (2, n, 3)) for n in (1, 9, 33)]
    + [(5, (2, 1, n)) for n in (31, 32, 33, 65)],
)
def test_grid_sample(channels, shape):
    a, x = spread((shape[0], 6, 5, channels), 0, 1)
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (*shape, 2)).astype(np.float32)
    d, cotangent = spread((*shape, channels), 2, 1)
    arrays = [a, mx.array(points)]
    (out,), (dx, dg) = mx.vjp(partial(mlxops.grid_sample, align_corners=True), arrays, [d])
    wanted, weights = bilinear(x, points.astype(np.float64))
    np.testing.assert_allclose(out, wanted, 0, 1e-5 * abs(x).max())
    scale = abs(x).max() * abs(cotangent).max()
    np.testing.assert_allclose(
        dx, np.einsum("bijhw,bijc->bhwc", weights, cotangent), 0, 1e-5 * scale
    )
    # along a line between pixels the samples change linearly
    step = 2.0**-12
    for k, n in ((0, 5), (1, 6)):
        place = (points[..., k].astype(np.float64) + 1) / 2 * (n - 1)
        inside = abs(place - np.rint(place)) > 0.01
        moved = np.zeros(2)
        moved[k] = step
        slope = (bilinear(x, points + moved)[0] - bilinear(x, points - moved)[0]) / (2 * step)
        wanted = (slope * cotangent).sum(-1)
        got = to_numpy(dg)[..., k]
        bound = 1e-4 * scale * np.sqrt(channels)
        np.testing.assert_allclose(got[inside], wanted[inside], 0, bound)
