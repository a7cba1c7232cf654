"""gated_delta and wkv7: a matrix that changes at every step, beside the formulas in NumPy and MLX."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def accumulator(dtype):
    return mx.float64 if dtype == mx.float64 else mx.float32


def gated_delta(q, k, v, g, beta, state=None, mask=None, lib=np):
    """The formula, step by step, of NumPy's or MLX's functions."""
    batch, steps, heads, width = q.shape
    repeats = v.shape[2] // heads
    q, k = lib.repeat(q, repeats, axis=2), lib.repeat(k, repeats, axis=2)
    if g.ndim == 3:
        g = g[..., None]
    s = lib.zeros((batch, v.shape[2], v.shape[3], width), dtype=v.dtype) if state is None else state
    ys = []
    for t in range(steps):
        decayed = s * g[:, t, :, None, :]
        error = v[:, t] - (decayed * k[:, t, :, None, :]).sum(axis=-1)
        new = decayed + (beta[:, t, :, None] * error)[..., None] * k[:, t, :, None, :]
        y = (new * q[:, t, :, None, :]).sum(axis=-1)
        if mask is not None:
            new = lib.where(mask[:, t, None, None, None], new, s)
            y = lib.where(mask[:, t, None, None], y, lib.zeros_like(y))
        s = new
        ys.append(y)
    return (lib.stack(ys, axis=1) if ys else lib.zeros(v.shape, dtype=v.dtype)), s


def wkv7(r, w, k, v, a, b, state=None, lib=np):
    batch, steps, heads, width = r.shape
    s = lib.zeros((batch, heads, width, width), dtype=v.dtype) if state is None else state
    ys = []
    for t in range(steps):
        along = (s * a[:, t, :, None, :]).sum(axis=-1)
        s = (
            s * w[:, t, :, None, :]
            + along[..., None] * b[:, t, :, None, :]
            + v[:, t, :, :, None] * k[:, t, :, None, :]
        )
        ys.append((s * r[:, t, :, None, :]).sum(axis=-1))
    return (lib.stack(ys, axis=1) if ys else lib.zeros(v.shape, dtype=v.dtype)), s


def delta_inputs(
    dtype, batch=2, steps=9, heads=2, repeats=1, keys=5, values=7, channels=False, seed=0
):
    """q, k, v, g, beta and state, with keys that are about as long as models have them."""
    rng = np.random.default_rng(seed)
    both = heads * repeats
    q, k = (rng.normal(size=(batch, steps, heads, keys)) / np.sqrt(keys) for _ in range(2))
    v = rng.normal(size=(batch, steps, both, values))
    g = rng.uniform(0.6, 1, (batch, steps, both, keys) if channels else (batch, steps, both))
    beta = rng.uniform(0, 1, (batch, steps, both))
    state = rng.normal(size=(batch, both, values, keys))
    wide = accumulator(dtype)
    return [
        mx.array(x, dtype=d)
        for x, d in zip((q, k, v, g, beta, state), (dtype, dtype, dtype, wide, dtype, wide), strict=True)
    ]


def close(got, wanted, factor=40):
    """Equal, apart from rounding that grows with the largest numbers of a sum."""
    wanted = to_numpy(wanted) if isinstance(wanted, mx.array) else wanted
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, factor * EPSILON[got.dtype] * scale)


def gradients(fn, arrays):
    def loss(*args):
        y, last = fn(*args)
        return (y * mx.sin(y)).sum() + (last * last * last).sum()

    return mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


SIZES = [
    {},
    {"channels": True},
    {"repeats": 3, "heads": 1, "keys": 16, "values": 4},
    {"batch": 1, "steps": 1, "keys": 1, "values": 1},
    {"batch": 1, "steps": 23, "heads": 1, "keys": 70, "values": 66, "channels": True},
    {"batch": 1, "steps": 2, "heads": 1, "keys": 130, "values": 33},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gated_delta(dtype, sizes):
    arrays = delta_inputs(dtype, **sizes)
    for given in (arrays, arrays[:5]):
        wanted = gated_delta(*(to_numpy(a) for a in given))
        y, last = mlxops.nn.gated_delta(*given)
        assert (y.dtype, last.dtype) == (dtype, accumulator(dtype))
        close(y, wanted[0])
        close(last, wanted[1])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_of_gated_delta(dtype, sizes):
    arrays = delta_inputs(dtype, **sizes)
    wide = [a.astype(accumulator(dtype)) for a in arrays]
    for count in (5, 6):
        wanted = gradients(lambda *a: gated_delta(*a, lib=mx), wide[:count])
        got = gradients(mlxops.nn.gated_delta, arrays[:count])
        for g, w, a in zip(got, wanted, arrays[:count], strict=True):
            assert g.dtype == a.dtype
            close(g.astype(dtype), w, 200)


def wkv_inputs(dtype, batch=2, steps=9, heads=2, width=5, seed=0):
    """r, w, k, v, a, b and state as models have them: a = -u and b = c u, for u of length 1."""
    rng = np.random.default_rng(seed)
    shape = (batch, steps, heads, width)
    r, k, v, u = (rng.normal(size=shape) for _ in range(4))
    w = rng.uniform(0.6, 1, shape)
    u /= np.sqrt((u * u).sum(axis=-1, keepdims=True))
    b = u * rng.uniform(0, 1, shape)
    state = rng.normal(size=(batch, heads, width, width))
    wide = accumulator(dtype)
    dtypes = (dtype, wide, dtype, dtype, dtype, dtype, wide)
    arrays = (r / np.sqrt(width), w, k / np.sqrt(width), v, -u, b, state)
    return [mx.array(x, dtype=d) for x, d in zip(arrays, dtypes, strict=True)]


WKV_SIZES = [
    {},
    {"batch": 1, "steps": 1, "width": 1},
    {"batch": 1, "steps": 23, "heads": 1, "width": 70},
    {"batch": 1, "steps": 3, "heads": 1, "width": 130},
]


@pytest.mark.parametrize("sizes", WKV_SIZES, ids=str)
def test_wkv7(dtype, sizes):
    arrays = wkv_inputs(dtype, **sizes)
    for given in (arrays, arrays[:6]):
        wanted = wkv7(*(to_numpy(a) for a in given))
        y, last = mlxops.nn.wkv7(*given)
        assert (y.dtype, last.dtype) == (dtype, accumulator(dtype))
        close(y, wanted[0])
        close(last, wanted[1])


@pytest.mark.parametrize("sizes", WKV_SIZES, ids=str)
def test_gradients_of_wkv7(dtype, sizes):
    arrays = wkv_inputs(dtype, **sizes)
    wide = [a.astype(accumulator(dtype)) for a in arrays]
    for count in (6, 7):
        wanted = gradients(lambda *a: wkv7(*a, lib=mx), wide[:count])
        got = gradients(mlxops.nn.wkv7, arrays[:count])
        for g, w, a in zip(got, wanted, arrays[:count], strict=True):
            assert g.dtype == a.dtype
            close(g.astype(dtype), w, 200)
