"""Values that a mask, an index or a padding excludes do not affect results or gradients.

Every operator is called with ordinary numbers, and again with NaN, infinities and large numbers in
the excluded places: nothing may change. attention and ssm_scan have such tests in their own files.
"""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import to_numpy

POISON = [np.nan, np.inf, -np.inf, 1e38]
DTYPES = [mx.float32, mx.bfloat16]


def same(call, arrays, cotangents, left_out):
    """Compare results and gradients before and after the `left_out` places are poisoned."""

    def run(arrays, cotangents):
        results, grads = mx.vjp(call, arrays, cotangents)
        return [*results, *grads]

    clean = [to_numpy(x) for x in run(arrays, cotangents)]
    assert all(np.isfinite(x).all() for x in clean)
    for poison in POISON:
        given = [mx.array(x) for x in (*arrays, *cotangents)]
        for number, place in left_out.items():
            given[number][place] = poison
        got = run(given[: len(arrays)], given[len(arrays) :])
        for x, wanted in zip(got, clean, strict=True):
            np.testing.assert_array_equal(to_numpy(x), wanted)


def draws(dtype, *shapes):
    return [draw(dtype, shape, -1, 1, seed=i)[0] for i, shape in enumerate(shapes)]


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


MASK = np.array([[0, 1, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 1, 0]], bool)
GATES = {"of heads": (2, 7, 4), "of channels": (2, 7, 4, 8)}


@pytest.mark.parametrize("gate", GATES)
def test_gated_delta(dtype, gate):
    q, k, v, beta, dy, state, last = draws(
        dtype,
        (2, 7, 2, 8),
        (2, 7, 2, 8),
        (2, 7, 4, 6),
        (2, 7, 4),
        (2, 7, 4, 6),
        *[(2, 4, 6, 8)] * 2,
    )
    state, last = (x.astype(mx.float32) for x in (state, last))
    g = mx.abs(draw(mx.float32, GATES[gate], -1, 1, seed=9)[0])

    def call(*arrays):
        return mlxops.nn.gated_delta(*arrays, mask=mx.array(MASK))

    masked = tuple(map(mx.array, np.nonzero(~MASK)))
    places = {i: masked for i in (0, 1, 2, 3, 4, 6)}  # all except the states
    same(call, [q, k, v, g, beta, state], [dy, last], places)


def test_gated_delta_beside_a_step_that_is_nan():
    """The gradients of masked steps are 0, also before a step with NaN."""
    arrays = draws(mx.float32, (1, 4, 1, 8), (1, 4, 1, 8), (1, 4, 1, 6), (1, 4, 1), (1, 4, 1))
    for array in arrays:
        array[:, 2] = mx.nan
    mask = mx.array([[True, False, True, False]])

    def call(*arrays):
        return mlxops.nn.gated_delta(*arrays, mask=mask)[0].sum()

    for grad in mx.grad(call, (0, 1, 2, 3, 4))(*arrays):
        np.testing.assert_array_equal(grad[:, 1::2], mx.zeros_like(grad[:, 1::2]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", ["kl_div_loss", "js_div_loss"])
def test_divergences(dtype, name, reduction):
    mask = mx.array([True, False, True, False, False])
    rows = (mx.array([1, 3, 4]),)
    logits, target, cotangent = draws(dtype, (5, 40), (5, 40), (5,) if reduction == "none" else ())
    places = {0: rows, 1: rows}
    if reduction == "none":
        places[2] = rows

    def call(logits, target):
        op = getattr(mlxops.nn, name)
        return op(logits, target, mask, temperature=2.0, reduction=reduction)

    same(call, [logits, target], [cotangent.astype(mx.float32)], places)


LOSSES = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.25, "z_loss": 0.125},
    "capped": {"logit_softcap": 2.0},
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("options", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(dtype, options, reduction, weighted):
    targets = mx.array([3, -100, 0, -100, 39])
    rows = (mx.array([1, 3]),)
    logits, cotangent = draws(dtype, (5, 40), (5,) if reduction == "none" else ())
    weight = mx.arange(1.0, 41.0) / 40 if weighted else None
    places = {0: rows, 1: rows} if reduction == "none" else {0: rows}

    def call(logits):
        return mlxops.nn.cross_entropy(
            logits, targets, weight, reduction=reduction, **LOSSES[options]
        )

    same(call, [logits], [cotangent.astype(mx.float32)], places)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("options", LOSSES)
def test_linear_cross_entropy(dtype, options, reduction):
    targets = mx.array([3, -100, 0, -100, 39])
    rows = (mx.array([1, 3]),)
    x, weight, bias, cotangent = draws(
        dtype, (5, 8), (40, 8), (40,), (5,) if reduction == "none" else ()
    )
    places = {0: rows, 3: rows} if reduction == "none" else {0: rows}

    def call(x, weight, bias):
        return mlxops.nn.linear_cross_entropy(
            x, weight, targets, bias, reduction=reduction, **LOSSES[options]
        )

    same(call, [x, weight, bias], [cotangent.astype(mx.float32)], places)


@pytest.mark.parametrize("shape", [(), (3,), (40,), (2, 3)], ids=str)
def test_segment_sum(dtype, shape):
    ids = mx.array([1, -1, 0, 4, 1, 99, 3])  # none in segment 2
    x, cotangent = draws(dtype, (7, *shape), (4, *shape))

    def call(x):
        return mlxops.segment_sum(x, ids, 4)

    same(call, [x], [cotangent], {0: (mx.array([1, 3, 5]),), 1: (mx.array([2]),)})


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
def test_embedding_bag(dtype, mode):
    """Rows that no bag uses, factors of missing rows, and the cotangents of empty bags."""
    indices = mx.array([0, 2, -1, 2, 5, 0, 7])
    offsets = mx.array([0, 2, 2, 5, 6])  # the second bag is empty, and the last has no row
    weight, factors, cotangent = draws(dtype, (5, 6), (7,), (5, 6))

    def call(weight, *factors):
        kind = "sum" if mode == "weighted" else mode
        return mlxops.nn.embedding_bag(weight, indices, offsets, *factors, mode=kind)

    empty = (mx.array([1, 4]),)
    unused = (mx.array([1, 3, 4]),)
    if mode == "weighted":
        same(
            call,
            [weight, factors],
            [cotangent],
            {0: unused, 1: (mx.array([2, 4, 6]),), 2: empty},
        )
    else:
        same(call, [weight], [cotangent], {0: unused, 1: empty})


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(dtype, mode):
    """Points outside of an image, and pixels far from all points."""
    x, cotangent = draws(dtype, (1, 4, 5, 3), (1, 1, 4, 3))
    grid = mx.array([[[[-3.0, 0.0], [-0.9, -0.7], [0.0, 2.5], [-1.1, -1.2]]]]).astype(dtype)

    def call(x, grid):
        return mlxops.grid_sample(x, grid, mode=mode)

    places = {0: (slice(None), slice(2, None)), 2: (slice(None), slice(None), mx.array([0, 2]))}
    same(call, [x, grid], [cotangent], places)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 8])
def test_causal_conv1d(dtype, taps):
    """A step affects as many steps as there are taps, and receives their cotangents."""
    shapes = ((2, 70, 3), (3, taps), (2, taps - 1, 3))
    x, weight, state, cotangent = draws(dtype, *shapes, (2, 70, 3))
    at = 60

    def call(x, state):
        return mlxops.nn.causal_conv1d(x, weight, state=state, activation="silu")[0]

    def outside(array, first, last):
        array = to_numpy(array)
        return array[0], np.delete(array[1], range(max(0, first), min(70, last)), 0)

    (clean,), (grad, _) = mx.vjp(call, [x, state], [cotangent])
    for poison in POISON:
        given, dy = mx.array(x), mx.array(cotangent)
        given[1, at] = dy[1, at] = poison
        got = outside(call(given, state), at, at + taps)
        for a, b in zip(got, outside(clean, at, at + taps), strict=True):
            np.testing.assert_array_equal(a, b)
        got = outside(mx.vjp(call, [x, state], [dy])[1][0], at + 1 - taps, at + 1)
        for a, b in zip(got, outside(grad, at + 1 - taps, at + 1), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("traditional", [False, True])
def test_rope(dtype, traditional):
    """Columns after those that are rotated."""
    x, cotangent = draws(dtype, (1, 2, 5, 10), (1, 2, 5, 10))

    def call(x):
        return mlxops.nn.rope(x, 6, traditional=traditional)

    (clean,), (grad,) = mx.vjp(call, [x], [cotangent])
    x[..., 6:] = cotangent[..., 6:] = mx.nan
    (y,), (got,) = mx.vjp(call, [x], [cotangent])
    np.testing.assert_array_equal(to_numpy(y)[..., :6], to_numpy(clean)[..., :6])
    np.testing.assert_array_equal(to_numpy(got)[..., :6], to_numpy(grad)[..., :6])
