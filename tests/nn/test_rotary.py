"""rope and qk_norm_rope: complex numbers in NumPy, mx.fast.rope, and gradients of compositions."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, metal_backend, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Shapes (B, ..., T, D), and arguments.
CASES = {
    "plain": ((2, 3, 5, 8), {}),
    "neighbours": ((2, 9, 5, 6), {"traditional": True, "base": 100.0}),
    "part": ((2, 3, 7), {"dims": 4, "scale": 0.25}),
    "part-neighbours": ((1, 1, 4, 66), {"dims": 62, "traditional": True, "offset": 3}),
    "offsets": ((3, 2, 2, 4), {"offset": mx.array([5, 0, -2]), "scale": 2.0}),
    "positions": ((2, 4, 3, 4), {"positions": mx.array([4, 0, 1])}),
    "of-each": ((2, 4, 3, 4), {"positions": mx.array([[4, 0, 1], [2, 2, 9]])}),
    "freqs": ((2, 2, 20, 6), {"freqs": mx.array([1.0, 5.0, 20.0])}),
    "one-step": ((2, 3, 1, 8), {"offset": 100}),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def angles(x, dims, base, scale, offset, positions, freqs):
    """Return the angles of every sequence, step and pair."""
    steps = np.arange(x.shape[-2])
    if positions is not None:
        places = np.broadcast_to(np.array(positions), (x.shape[0], len(steps)))
    else:
        places = np.broadcast_to(
            np.reshape(np.array(offset), (-1, 1)) + steps, (x.shape[0], len(steps))
        )
    growth = base ** (-np.arange(0, dims, 2) / dims) if freqs is None else 1 / to_numpy(freqs)
    return scale * places[..., None] * growth


def reference(
    x, dims=None, traditional=False, base=1e4, scale=1.0, offset=0, positions=None, freqs=None
):
    dims = x.shape[-1] if dims is None else dims
    angle = angles(x, dims, base, scale, offset, positions, freqs)
    angle = angle.reshape(angle.shape[:1] + (1,) * (x.ndim - 3) + angle.shape[1:])
    half = dims // 2
    first = slice(0, dims, 2) if traditional else slice(0, half)
    second = slice(1, dims, 2) if traditional else slice(half, dims)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)
    y = x.copy()
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


def assert_near(got, exact, limit=4):
    """Compare within this number of roundings, plus those of angles with several turns."""
    scale = np.abs(exact).max(initial=1)
    if got.dtype == mx.float64 or (got.dtype == mx.float32 and metal_backend()):
        limit = max(limit, 200)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


@each
def test_rope(dtype, case):
    shape, arguments = case
    x, values = draw(dtype, shape)
    y = mlxops.nn.rope(x, **arguments)
    assert y.dtype == dtype
    assert_near(y, reference(values, **arguments))


def test_heads_in_parts(dtype):
    x, values = draw(dtype, (2, 2, 3, 17, 4))
    assert_near(mlxops.nn.rope(x), reference(values))


@each
def test_rope_is_that_of_mlx(case):
    shape, arguments = case
    if "positions" in arguments:
        pytest.skip("mx.fast.rope has offsets only")
    x, _ = draw(mx.float32, shape)
    arguments = {"dims": shape[-1], "traditional": False, "scale": 1.0, "offset": 0, **arguments}
    arguments.setdefault("base", None if "freqs" in arguments else 1e4)
    wanted = mx.fast.rope(x, arguments.pop("dims"), **arguments)
    np.testing.assert_allclose(mlxops.nn.rope(x, **case[1]), wanted, 1e-4, 1e-4)


@each
def test_gradient_turns_back(dtype, case):
    shape, arguments = case
    x, _ = draw(dtype, shape)
    cotangent, values = draw(dtype, shape, seed=1)
    got = mx.vjp(lambda x: mlxops.nn.rope(x, **arguments), [x], [cotangent])[1][0]
    assert got.dtype == dtype
    assert_near(got, reference(values, **{**arguments, "scale": -arguments.get("scale", 1.0)}))


def test_second_derivative_and_jvp():
    x, values = draw(mx.float32, (1, 2, 3, 4))
    inner = mx.grad(lambda x: (mlxops.nn.rope(x) ** 3).sum())
    got = mx.grad(lambda x: (inner(x) ** 2).sum())(x)
    # A rotation keeps lengths: the inner gradient has the length of 3 y**2.
    wanted = reference(36 * reference(values) ** 3, scale=-1.0)
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-2)
    tangent, values = draw(mx.float32, (1, 2, 3, 4), seed=1)
    np.testing.assert_allclose(
        mx.jvp(mlxops.nn.rope, [x], [tangent])[1][0], reference(values), 1e-4, 1e-5
    )


def test_large_positions_on_the_cpu(device):
    if metal_backend() or device != mx.cpu:
        pytest.skip("Metal's angles are in float32")
    x, values = draw(mx.float32, (1, 2, 4, 64))
    assert_near(mlxops.nn.rope(x, offset=1_000_000), reference(values, offset=1_000_000))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    x = LAYOUTS[layout](draw(mx.float32, (2, 4, 4, 4))[0])
    assert_near(mlxops.nn.rope(x), reference(to_numpy(x)))


def test_vmap():
    x, _ = draw(mx.float32, (3, 2, 2, 4, 6))
    offsets = mx.array([0, 5, 9])
    got = mx.vmap(lambda x, n: mlxops.nn.rope(x, offset=n))(x, offsets)
    for i in range(3):
        np.testing.assert_array_equal(got[i], mlxops.nn.rope(x[i], offset=offsets[i]))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)], ids=str)
def test_empty(shape):
    assert mlxops.nn.rope(mx.zeros(shape)).shape == shape
    q = mx.zeros(shape)
    weight = mx.ones((4,))
    got = mx.grad(lambda w: sum(y.sum() for y in mlxops.nn.qk_norm_rope(q, q, w, w)))(weight)
    assert got.tolist() == [0, 0, 0, 0]


def rms(x, weight, eps):
    unit = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return unit if weight is None else unit * weight


NORM_CASES = {
    "plain": ((2, 3, 4, 8), 2, {}),
    "wide": ((1, 2, 3, 512), 1, {"scale": 0.5}),
    "of-200": ((1, 2, 3, 200), 1, {}),
    "beyond-kernels-of-metal": ((1, 2, 3, 600), 1, {}),
    "neighbours": ((2, 20, 2, 66), 1, {"traditional": True, "base": 100.0, "eps": 0.1}),
    "part": ((2, 3, 5, 8), 1, {"dims": 4, "offset": mx.array([3, 0])}),
    "positions": ((2, 3, 9, 6), 3, {"positions": mx.array([[4, 0, 1], [2, 2, 9]])}),
    "freqs": ((1, 2, 3, 6), 3, {"freqs": mx.array([1.0, 5.0, 20.0])}),
    "no-steps": ((2, 0, 3, 4), 1, {}),
}
each_norm = pytest.mark.parametrize("case", NORM_CASES.values(), ids=NORM_CASES)


def norm_inputs(dtype, shape, key_heads):
    keys = (*shape[:2], key_heads, shape[3])
    return zip(
        *(draw(dtype, s, seed=i) for i, s in enumerate((shape, keys, shape[3:], shape[3:]))),
        strict=True,
    )


@each_norm
def test_norm(dtype, case):
    shape, key_heads, arguments = case
    arrays, values = norm_inputs(dtype, shape, key_heads)
    turns = {name: value for name, value in arguments.items() if name != "eps"}
    for given in (2, 4):
        got = mlxops.nn.qk_norm_rope(*arrays[:given], **arguments)
        for i in range(2):
            weight = values[2 + i] if given == 4 else None
            normal = rms(values[i], weight, arguments.get("eps", 1e-6))
            wanted = reference(normal.swapaxes(1, 2), **turns).swapaxes(1, 2)
            assert got[i].dtype == dtype
            assert_near(got[i], wanted)


@each_norm
def test_norm_gradients(dtype, case):
    shape, key_heads, arguments = case
    arrays, _ = norm_inputs(dtype, shape, key_heads)
    turns = {name: value for name, value in arguments.items() if name != "eps"}

    def composition(q, k, q_weight=None, k_weight=None):
        results = []
        for x, weight in ((q, q_weight), (k, k_weight)):
            squares = mx.mean(x * x, axis=-1, keepdims=True)
            x = x * mx.rsqrt(squares + arguments.get("eps", 1e-6))
            x = x if weight is None else x * weight
            results.append(mlxops.nn.rope(x.swapaxes(1, 2), **turns).swapaxes(1, 2))
        return results

    def gradients(fn, arrays):
        return mx.grad(
            lambda *args: sum(mx.sin(y).sum() for y in fn(*args)),
            argnums=tuple(range(len(arrays))),
        )(*arrays)

    for given in (2, 4):
        got = gradients(lambda *a: mlxops.nn.qk_norm_rope(*a, **arguments), arrays[:given])
        with mx.stream(mx.cpu):
            wanted = gradients(composition, [a.astype(mx.float64) for a in arrays[:given]])
        for array, g, w in zip(arrays, got, wanted, strict=False):
            assert g.dtype == dtype
            assert g.shape == array.shape
            assert_near(g, to_numpy(w), 60)


def test_norm_gradient_on_all_cores():
    (q, k, w, _), _ = norm_inputs(mx.float32, (2, 300, 3, 32), 1)
    got = mx.grad(lambda w: mx.sin(mlxops.nn.qk_norm_rope(q, k, w)[0]).sum())(w)

    def composition(w):
        return mx.sin(mlxops.nn.rope(mx.fast.rms_norm(q, w, 1e-6).swapaxes(1, 2))).sum()

    np.testing.assert_allclose(got, mx.grad(composition)(w), 1e-3, 1e-3)


def test_errors():
    x = mx.ones((2, 3, 4, 6))
    rope, norm = mlxops.nn.rope, mlxops.nn.qk_norm_rope
    for message, call in {
        r"\[rope\] x must be \(batch, \.\.\., steps, size\)": lambda: rope(x[0, 0]),
        r"\[rope\] dims must be even": lambda: rope(x, 8),
        r"\[rope\] offset must be \(\) or \(batch,\)": lambda: rope(x, offset=mx.array([1, 2, 3])),
        r"\[rope\] offset and positions exclude": lambda: rope(x, offset=1, positions=mx.arange(4)),
        r"\[rope\] positions must be \(steps,\) or": lambda: rope(x, positions=mx.arange(3)),
        r"\[rope\] freqs must be \(dims / 2,\)": lambda: rope(x, freqs=mx.ones((2,))),
        r"\[qk_norm_rope\] q must be \(batch, steps, heads, size\)": lambda: norm(x[0], x),
        r"\[qk_norm_rope\] k must be \(batch, steps, key_heads, size\), where": lambda: norm(
            x, x[:, :2]
        ),
        r"\[qk_norm_rope\] the size of heads must be even": lambda: norm(x[..., :5], x[..., :5]),
        r"\[qk_norm_rope\] k_weight must be \(size,\)": lambda: norm(x, x, None, mx.ones((5,))),
        r"\[qk_norm_rope\] positions must be \(steps,\) or \(batch, steps\)": lambda: norm(
            x, x, positions=mx.arange(4)
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_positions_have_zero_derivatives():
    x = mx.ones((2, 3, 4, 6))
    for name, p in {"positions": mx.arange(4), "offset": mx.array(4)}.items():
        found = mx.grad(lambda p, name=name: mlxops.nn.rope(x, **{name: p}).sum())(p)
        assert found.dtype == p.dtype and mx.array_equal(found, mx.zeros_like(p))
