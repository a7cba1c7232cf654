"""selective_scan against a loop over time, in NumPy and in MLX's ops."""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "state")
OPTIONAL = ("D", "z", "state")
# Batch, time, channels, states: with and without remainders of blocks, stretches and lanes.
SIZES = [
    (2, 9, 40, 16),
    (1, 1, 5, 16),
    (3, 17, 3, 1),
    (1, 20, 65, 5),
    (1, 4, 33, 64),
    (2, 2, 32, 20),
]
EMPTY = [(2, 0, 3, 4), (0, 3, 3, 4), (2, 3, 0, 4), (2, 3, 3, 0)]


def inputs(dtype, size, seed=0):
    """Return the arrays; parameters, steps and states are at least float32."""
    batch, time, channels, states = size
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    random = iter(range(100 * seed, 100 * seed + 100))

    def array(dtype, *shape, low=-1.0, high=1.0):
        return draw(dtype, shape, low, high, seed=next(random))[0]

    return {
        "u": array(dtype, batch, time, channels),
        "delta": array(wide, batch, time, channels, low=0.05),
        "A": array(wide, channels, states, low=-3.0, high=-0.1),
        "B": array(dtype, batch, time, states),
        "C": array(dtype, batch, time, states),
        "D": array(wide, channels),
        "z": array(dtype, batch, time, channels, low=-4.0, high=4.0),
        "state": array(wide, batch, channels, states),
    }


def exp(x):
    """exp, accurate in float64, where MLX's has only float32's accuracy."""
    return mx.power(mx.array(np.e, mx.float64), x) if x.dtype == mx.float64 else mx.exp(x)


def composition(u, delta, A, B, C, D=None, z=None, state=None):
    S = mx.zeros((u.shape[0], *A.shape), delta.dtype) if state is None else state
    ys = []
    for t in range(u.shape[1]):
        step = delta[:, t, :, None]
        S = exp(step * A) * S + step * u[:, t, :, None] * B[:, t, None, :]
        y = (S * C[:, t, None, :]).sum(axis=-1)
        y = y if D is None else y + D * u[:, t]
        ys.append(y if z is None else y * z[:, t] / (1 + exp(-z[:, t])))
    return mx.stack(ys, axis=1), S


def reference(u, delta, A, B, C, D=None, z=None, state=None):
    arrays = (u, delta, A, B, C, D, z, state)
    u, delta, A, B, C, D, z, state = (a if a is None else to_numpy(a) for a in arrays)
    S = np.zeros((u.shape[0], *A.shape)) if state is None else state
    y = np.zeros(u.shape)
    for t in range(u.shape[1]):
        taken = (delta[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        S = np.exp(delta[:, t, :, None] * A) * S + taken
        y[:, t] = np.einsum("bdn,bn->bd", S, C[:, t]) + (0 if D is None else D * u[:, t])
    return y if z is None else y * z / (1 + np.exp(-z)), S


def close(got, exact, factor=30):
    """Compare within this number of ulp of the largest number."""
    assert got.shape == exact.shape
    exact = to_numpy(exact) if isinstance(exact, mx.array) else exact
    limit = factor * EPSILON[got.dtype] * np.abs(exact).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit)


@pytest.mark.parametrize("size", SIZES + EMPTY, ids=str)
def test_values(dtype, size):
    arrays = inputs(dtype, size)
    for absent in (*OPTIONAL, None):
        given = arrays | ({absent: None} if absent else {})
        y, state = mlxops.nn.selective_scan(**given)
        assert y.dtype == dtype
        assert state.dtype == arrays["delta"].dtype
        for g, w in zip((y, state), reference(**given), strict=True):
            close(g, w)


def gradients(fn, arrays):
    """Return the gradients of a loss of both outputs, for every array."""
    names = [name for name in NAMES if arrays[name] is not None]

    def loss(*values):
        y, state = fn(**(arrays | dict(zip(names, values, strict=True))))
        weight = mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype)
        return (weight * y * (1 + 0.1 * y)).sum() + (state * state).sum()

    values = tuple(arrays[name] for name in names)
    return dict(zip(names, mx.grad(loss, argnums=tuple(range(len(names))))(*values), strict=True))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients(dtype, size):
    """Compare with the composition in float64; the cotangent has the rounding of the output."""
    arrays = inputs(dtype, size)
    for absent in (*OPTIONAL, None):
        given = arrays | ({absent: None} if absent else {})
        got = gradients(mlxops.nn.selective_scan, given)
        with mx.stream(mx.cpu):
            wide = {n: a if a is None else a.astype(mx.float64) for n, a in given.items()}
            wanted = gradients(composition, wide)
        for name, g in got.items():
            assert g.dtype == arrays[name].dtype
            # The gradient of a parameter is as accurate as the cotangents.
            close(g, wanted[name], 50 * EPSILON[dtype] / EPSILON[g.dtype])


@pytest.mark.parametrize("size", EMPTY, ids=str)
def test_gradients_of_nothing(size):
    arrays = inputs(mx.float32, size)
    got = gradients(mlxops.nn.selective_scan, arrays)
    for name, g in got.items():
        assert g.shape == arrays[name].shape
        mx.eval(g)
    if size[1] == 0:
        np.testing.assert_allclose(got["state"], 2 * arrays["state"])
        assert not to_numpy(got["A"]).any()


def test_step_by_step():
    """Decoding: single steps in sequence equal one call."""
    arrays = inputs(mx.float32, (2, 6, 35, 16))
    y, last = mlxops.nn.selective_scan(**arrays)
    state = arrays["state"]
    for t in range(6):
        given = {n: arrays[n][:, t : t + 1] for n in ("u", "delta", "B", "C", "z")}
        got, state = mlxops.nn.selective_scan(**(arrays | given | {"state": state}))
        close(got, y[:, t : t + 1])
    close(state, last)


def test_special_values():
    """A gate at infinity, a state that vanishes, and a NaN that stays in its channel."""
    arrays = inputs(mx.float32, (1, 4, 5, 3)) | {"z": None}
    arrays["delta"][:, 2, 1] = 1e4
    arrays["u"][:, 1, 4] = np.nan
    y, _ = mlxops.nn.selective_scan(**arrays)
    assert np.isnan(to_numpy(y)[0, 1:, 4]).all()
    assert np.isfinite(to_numpy(y)[0, :, :4]).all()
    close(y[..., :4], reference(**arrays)[0][..., :4])
    gate = mx.full((1, 4, 5), -np.inf)
    closed, _ = mlxops.nn.selective_scan(**(arrays | {"z": mx.full((1, 4, 5), -200.0)}))
    assert not to_numpy(closed)[..., :4].any()
    assert np.isnan(to_numpy(mlxops.nn.selective_scan(**(arrays | {"z": gate}))[0])).all()


def test_jvp_and_vmap():
    both = (inputs(mx.float32, (2, 5, 3, 6), seed) for seed in (1, 2))
    arrays = [a[name] for a in both for name in NAMES]
    batched = [mx.stack([a, b]) for a, b in zip(arrays[:8], arrays[8:], strict=True)]
    for g, *w in zip(
        mx.vmap(mlxops.nn.selective_scan)(*batched),
        *(mlxops.nn.selective_scan(*(a[i] for a in batched)) for i in (0, 1)),
        strict=True,
    ):
        close(g, mx.stack(w))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays = inputs(mx.float32, (2, 5, 4, 3))
    strided = {name: LAYOUTS[layout](a) for name, a in arrays.items()}
    for g, w in zip(mlxops.nn.selective_scan(**strided), reference(**strided), strict=True):
        close(g, w)


def test_errors():
    arrays = inputs(mx.float32, (2, 5, 4, 3))
    for wrong, message in [
        ({"u": mx.ones((5, 4))}, r"u must be \(batch, time, channels\)"),
        ({"delta": mx.ones((2, 5, 1))}, r"delta must be \(batch, time, channels\), as u is"),
        ({"B": mx.ones((2, 4, 3))}, r"B must be \(batch, time, states\)"),
        ({"C": mx.ones((2, 5, 1))}, r"C must be \(batch, time, states\)"),
        ({"A": mx.ones((3, 4))}, r"A must be \(channels, states\)"),
        (
            {
                **dict.fromkeys("BC", mx.ones((2, 5, 65))),
                "A": mx.ones((4, 65)),
                "state": None,
            },
            "a channel has at most 64 states",
        ),
        ({"D": mx.ones((1,))}, r"D must be \(channels,\)"),
        ({"z": mx.ones((2, 5, 1))}, r"z must be \(batch, time, channels\)"),
        ({"state": mx.ones((2, 3, 4))}, r"state must be \(batch, channels, states\)"),
    ]:
        with pytest.raises(ValueError, match=rf"^\[selective_scan\] {message}"):
            mlxops.nn.selective_scan(**(arrays | wrong))
