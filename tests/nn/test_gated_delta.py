"""gated_delta and wkv7, whose state is a matrix, against the formulas step by step."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def accumulator(dtype):
    return mx.float64 if dtype == mx.float64 else mx.float32


def gated_delta(q, k, v, g, beta, state=None, mask=None, lib=np):
    """Compute the formula step by step, with NumPy's or MLX's functions."""
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
    """Return q, k, v, g, beta and state, with keys of about the norm that models use."""
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
        for x, d in zip(
            (q, k, v, g, beta, state), (dtype, dtype, dtype, wide, dtype, wide), strict=True
        )
    ]


def close(got, wanted, factor=40):
    """Compare up to rounding relative to the largest numbers of a sum."""
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
    {"repeats": 3, "keys": 16, "values": 4},
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
    """Return r, w, k, v, a, b and state as in models: a = -u and b = c u, with |u| = 1."""
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


@pytest.mark.parametrize("first", [0, 3], ids=["several", "one"])
def test_gradients_compiled_for_any_shape(first):
    for fn, draw, sizes in [
        (mlxops.nn.gated_delta, delta_inputs, [s for s in SIZES if "channels" not in s]),
        (mlxops.nn.wkv7, wkv_inputs, WKV_SIZES),
    ]:
        compiled = mx.compile(lambda *a, fn=fn: gradients(fn, a), shapeless=True)
        for size in (sizes[first % len(sizes)], *sizes):
            arrays = draw(mx.float32, **size)
            for g, w in zip(compiled(*arrays), gradients(fn, arrays), strict=True):
                close(g, w)


def random_mask(batch=2, steps=9):
    """Return a mask with padding on the left and right, and a masked step between."""
    mask = np.ones((batch, steps), bool)
    mask[0, :3] = mask[0, 5] = mask[1:, -2:] = False
    return mask


@pytest.mark.parametrize("channels", [False, True])
def test_mask(dtype, channels):
    """Masked steps are not read, and their gradients are zero."""
    mask = random_mask()
    arrays = delta_inputs(dtype, channels=channels)
    wide = [a.astype(accumulator(dtype)) for a in arrays]
    wanted = gated_delta(*(to_numpy(a) for a in arrays), mask=mask)
    grads = gradients(lambda *a: gated_delta(*a, mask=mx.array(mask), lib=mx), wide)
    poison = [
        mx.where(mx.array(mask).reshape(2, 9, *[1] * (a.ndim - 2)), a, mx.array(np.nan, a.dtype))
        for a in arrays[:5]
    ] + arrays[5:]

    def masked(*args):
        return mlxops.nn.gated_delta(*args, mask=mx.array(mask))

    for got, want in zip(masked(*poison), wanted, strict=True):
        close(got, want)
    for got, want in zip(gradients(masked, poison), grads, strict=True):
        close(got.astype(dtype), want, 200)
    y, last = mlxops.nn.gated_delta(*arrays, mask=mx.zeros((2, 9), mx.bool_))
    assert not to_numpy(y).any()
    np.testing.assert_array_equal(to_numpy(last), to_numpy(arrays[5]))


def test_in_pieces():
    """The last state continues the recurrence, also for single steps."""
    *arrays, state = delta_inputs(mx.float32, channels=True)
    y, last = mlxops.nn.gated_delta(*arrays, state)
    *wkv_arrays, wkv_state = wkv_inputs(mx.float32)
    wkv_y, wkv_last = mlxops.nn.wkv7(*wkv_arrays, wkv_state)
    for t, end in ((0, 4), (4, 5), (5, 6), (6, 6), (6, 9)):
        part, state = mlxops.nn.gated_delta(*(a[:, t:end] for a in arrays), state)
        close(part, y[:, t:end], 4)
        part, wkv_state = mlxops.nn.wkv7(*(a[:, t:end] for a in wkv_arrays), wkv_state)
        close(part, wkv_y[:, t:end], 4)
    close(state, last, 4)
    close(wkv_state, wkv_last, 4)


@pytest.mark.parametrize("steps", [8, 9, 64, 65, 300])
def test_long_gradients(steps):
    """Whole stretches and chunks of steps, and others of another length."""
    arrays = delta_inputs(mx.float32, 1, steps, 1, 1, 3, 2)
    mask = mx.array(np.random.default_rng(1).uniform(size=(1, steps)) < 0.8)
    wanted = gradients(lambda *a: gated_delta(*a, mask=mask, lib=mx), arrays)
    got = gradients(lambda *a: mlxops.nn.gated_delta(*a, mask=mask), arrays)
    for g, w in zip(got, wanted, strict=True):
        close(g, w, 100)
    arrays = wkv_inputs(mx.float32, 1, steps, 1, 3)
    wanted = gradients(lambda *a: wkv7(*a, lib=mx), arrays)
    for g, w in zip(gradients(mlxops.nn.wkv7, arrays), wanted, strict=True):
        close(g, w, 100)


@pytest.mark.parametrize(
    "sizes", [{"steps": 0}, {"batch": 0}, {"values": 0}, {"steps": 0, "values": 0}], ids=str
)
def test_empty(sizes):
    arrays = delta_inputs(mx.float32, **sizes)
    wanted = gated_delta(*(to_numpy(a) for a in arrays))
    for got, want in zip(mlxops.nn.gated_delta(*arrays), wanted, strict=True):
        close(got, want)
    mx.eval(mlxops.nn.gated_delta(*arrays[:5]))
    for got, a in zip(gradients(mlxops.nn.gated_delta, arrays), arrays, strict=True):
        assert got.shape == a.shape
        close(got, 3 * to_numpy(a) ** 2 if a is arrays[5] and "steps" in sizes else 0 * to_numpy(a))
    if "values" not in sizes:
        arrays = wkv_inputs(mx.float32, **sizes)
        y, last = mlxops.nn.wkv7(*arrays)
        assert y.size == 0
        np.testing.assert_array_equal(last, arrays[6])
        *grads, of_state = gradients(mlxops.nn.wkv7, arrays)
        assert [g.shape for g in grads] == [a.shape for a in arrays[:6]]
        close(of_state, 3 * to_numpy(arrays[6]) ** 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays = delta_inputs(mx.float32, channels=True)
    mask = LAYOUTS[layout](mx.array(random_mask()))
    moved = [LAYOUTS[layout](a) for a in arrays]
    wanted = gated_delta(*(to_numpy(a) for a in moved), mask=to_numpy(mask))
    for got, want in zip(mlxops.nn.gated_delta(*moved, mask), wanted, strict=True):
        close(got, want)
    grads = gradients(lambda *a: mlxops.nn.gated_delta(*a, mask), moved)
    for got, want in zip(
        grads, gradients(lambda *a: gated_delta(*a, mask=mask, lib=mx), moved), strict=True
    ):
        close(got, want, 200)
    moved = [LAYOUTS[layout](a) for a in wkv_inputs(mx.float32)]
    wanted = wkv7(*(to_numpy(a) for a in moved))
    for got, want in zip(mlxops.nn.wkv7(*moved), wanted, strict=True):
        close(got, want)


def test_vmap():
    arrays = [mx.stack([a, -a], axis=1) for a in delta_inputs(mx.float32)]
    got = mx.vmap(mlxops.nn.gated_delta, in_axes=(1, 1, 1, 1, None, 1), out_axes=2)(
        *arrays[:4], arrays[4][:, 0], arrays[5]
    )
    for i in range(2):
        one = [a[:, i] for a in arrays[:4]]
        wanted = mlxops.nn.gated_delta(*one, arrays[4][:, 0], arrays[5][:, i])
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(g[:, :, i], w)


def test_dtypes():
    """With a float32 decay and state, the other arrays stay in half precision."""
    arrays = delta_inputs(mx.bfloat16)
    y, last = mlxops.nn.gated_delta(*arrays)
    assert (y.dtype, last.dtype) == (mx.bfloat16, mx.float32)
    y, last = mlxops.nn.gated_delta(*(a.astype(mx.bfloat16) for a in arrays))
    assert (y.dtype, last.dtype) == (mx.bfloat16, mx.float32)
    y, last = mlxops.nn.gated_delta(arrays[0].astype(mx.float32), *arrays[1:])
    assert y.dtype == mx.float32


def test_another_head_keeps_its_numbers():
    arrays = delta_inputs(mx.float32)
    wanted = mlxops.nn.gated_delta(*arrays)
    arrays[0][:, :, 1] = np.inf
    arrays[2][:, :, 1] = np.nan
    y, last = mlxops.nn.gated_delta(*arrays)
    np.testing.assert_array_equal(y[:, :, 0], wanted[0][:, :, 0])
    np.testing.assert_array_equal(last[:, 0], wanted[1][:, 0])
    assert np.isnan(last[:, 1]).all()


@pytest.mark.parametrize(
    "sizes", [{"steps": 0}, {"batch": 0}, {"values": 0}, {"steps": 0, "values": 0}], ids=str
)
def test_second_derivative_of_nothing(sizes):
    """The gradient of the state is that of the cube of the last state, if there are no steps."""
    cases = [(mlxops.nn.gated_delta, delta_inputs(mx.float32, **sizes))]
    if "values" not in sizes:
        cases.append((mlxops.nn.wkv7, wkv_inputs(mx.float32, **sizes)))
    for fn, arrays in cases:
        got = mx.grad(lambda *a, fn=fn: sum(g.sum() for g in gradients(fn, a)), range(len(arrays)))
        for g, a in zip(got(*arrays), arrays, strict=True):
            wanted = 6 * to_numpy(a) if a is arrays[-1] and "steps" in sizes else 0 * to_numpy(a)
            close(g, wanted)


def test_errors():
    q, k, v, g, beta, state = delta_inputs(mx.float32, repeats=2)
    fn = mlxops.nn.gated_delta
    for bad, message in [
        (
            (q[0], k, v, g, beta),
            r"q must be \(B, T, Hk, Dk\)\. Got q: float32 \(9, 2, 5\)",
        ),
        ((q, k[..., :3], v, g, beta), r"k must be \(B, T, Hk, Dk\), as q is"),
        ((q, k, v[:, :4], g, beta), r"v must be \(B, T, Hv, Dv\), where q is"),
        ((q, k, v[:, :, :3], g[:, :, :3], beta[:, :, :3]), "Hv must be"),
        ((q, k, v, g, beta[..., :1]), r"beta must be \(B, T, Hv\)"),
        ((q, k, v, g[:, :, :, None], beta), r"g must be \(B, T, Hv\) or \(B, T, Hv, Dk\)"),
        ((q, k, v, g, beta, state[:1]), r"state must be \(B, Hv, Dv, Dk\)"),
        ((q, k, v, g, beta, state, mx.ones((9,), mx.bool_)), r"mask must be \(B, T\)"),
    ]:
        with pytest.raises(ValueError, match=rf"^\[gated_delta\] {message}"):
            fn(*bad)
    wide = [mx.zeros((1, 1, 1, 257))] * 2
    with pytest.raises(ValueError, match="Dk must be 1 to 256"):
        fn(*wide, mx.zeros((1, 1, 1, 1)), mx.ones((1, 1, 1)), mx.ones((1, 1, 1)))
    with pytest.raises(ValueError, match="D must be 1 to 256"):
        mlxops.nn.wkv7(*[wide[0]] * 6)
    r, w, k, v, a, b, state = wkv_inputs(mx.float32)
    for bad, message in [
        ((r, w[0], k, v, a, b), r"w must be \(B, T, H, D\), as r is"),
        ((r, w, k, v[..., :2], a, b), r"v must be \(B, T, H, D\), as r is"),
        ((r, w, k, v, a, b[:, 1:]), r"b must be \(B, T, H, D\), as r is"),
        ((r, w, k, v, a, b, state[..., 1:]), r"state must be \(B, H, D, D\)"),
    ]:
        with pytest.raises(ValueError, match=rf"^\[wkv7\] {message}"):
            mlxops.nn.wkv7(*bad)
