"""causal_conv1d against a loop over time in NumPy and the same sums in MLX, and step by step."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Sequences, steps, channels, taps.
SIZES = [(2, 5, 3, 4), (1, 1, 4, 4), (2, 2, 3, 8), (3, 4, 2, 1), (1, 200, 5, 3), (2, 0, 3, 4)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def reference(x, weight, bias=None, state=None, activation="none"):
    sequences, steps, channels = x.shape
    taps = weight.shape[1]
    if state is None:
        state = np.zeros((sequences, taps - 1, channels))
    inputs = np.concatenate([state, x], axis=1)
    y = np.zeros(x.shape)
    for t in range(steps):
        for k in range(taps):
            y[:, t] += weight[:, k] * inputs[:, t + k]
    y = y if bias is None else y + bias
    return (y / (1 + np.exp(-y)) if activation == "silu" else y), inputs[:, steps:]


def composition(x, weight, bias=None, state=None, activation="none"):
    steps, taps = x.shape[1], weight.shape[1]
    if state is None:
        state = mx.zeros((x.shape[0], taps - 1, x.shape[2]), x.dtype)
    inputs = mx.concatenate([state, x], axis=1)
    y = sum(weight[:, k] * inputs[:, k : k + steps] for k in range(taps))
    y = y if bias is None else y + bias
    # MLX's sigmoid in float64 is accurate to float32 only.
    y = y * (1 + mx.tanh(y / 2)) / 2 if activation == "silu" else y
    return y, inputs[:, steps:]


def inputs(dtype, size):
    b, t, c, k = size
    shapes = [(b, t, c), (c, k), (c,), (b, k - 1, c)]
    return zip(*(draw(dtype, s, seed=i, low=-2, high=2) for i, s in enumerate(shapes)), strict=True)


def assert_near(got, exact, limit=4):
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


@sizes
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_values(dtype, size, activation):
    arrays, values = inputs(dtype, size)
    for given in (2, 3, 4):
        got = mlxops.nn.causal_conv1d(*arrays[:given], activation=activation)
        wanted = reference(*values[:given], activation=activation)
        for g, w in zip(got, wanted, strict=True):
            assert g.dtype == dtype
            assert_near(g, w)


def test_state_without_bias():
    (x, weight, _, state), (a, b, _, d) = inputs(mx.float32, (2, 5, 3, 4))
    y, _ = mlxops.nn.causal_conv1d(x, weight, state=state)
    assert_near(y, reference(a, b, None, d)[0])


def gradients(fn, arrays, activation):
    def loss(*args):
        y, state = fn(*args, activation=activation)
        return mx.sin(y).sum() + (state * mx.cos(state)).sum()

    return mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


def assert_gradients(dtype, size, activation, given=4):
    arrays = list(next(inputs(dtype, size)))[:given]
    got = gradients(mlxops.nn.causal_conv1d, arrays, activation)
    with mx.stream(mx.cpu):
        wide = [a.astype(mx.float64) for a in arrays]
        wanted = gradients(composition, wide, activation)
    for array, g, w in zip(arrays, got, wanted, strict=True):
        assert g.dtype == dtype
        assert g.shape == array.shape
        assert_near(g, to_numpy(w), 20)


@sizes
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_gradients(dtype, size, activation):
    for given in (2, 3, 4):
        assert_gradients(dtype, size, activation, given)


@pytest.mark.parametrize("size", [(3, 150, 40, 4), (1, 3, 600, 4)], ids=str)
def test_gradients_on_all_cores(size):
    assert_gradients(mx.float32, size, "silu")


def test_one_step_at_a_time(dtype):
    (x, weight, bias, state), _ = inputs(dtype, (2, 7, 3, 4))
    together, last = mlxops.nn.causal_conv1d(x, weight, bias, state, activation="silu")
    for t in range(x.shape[1]):
        step = x[:, t : t + 1]
        y, state = mlxops.nn.causal_conv1d(step, weight, bias, state, activation="silu")
        np.testing.assert_array_equal(to_numpy(y[:, 0]), to_numpy(together[:, t]))
    np.testing.assert_array_equal(to_numpy(state), to_numpy(last))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays = [LAYOUTS[layout](a) for a in next(inputs(mx.float32, (2, 9, 4, 3)))]
    b, t, c = arrays[0].shape
    arrays = [arrays[0], *next(inputs(mx.float32, (b, t, c, 3)))[1:]]
    y, _ = mlxops.nn.causal_conv1d(*arrays)
    assert_near(y, reference(*(to_numpy(a) for a in arrays))[0])


def test_special_values_reach_only_what_they_are_in():
    x = mx.zeros((1, 20, 1))
    x[0, 3] = mx.inf
    y, _ = mlxops.nn.causal_conv1d(x, mx.ones((1, 3)), activation="silu")
    assert np.isfinite(to_numpy(y)[0, :, 0]).tolist() == [t not in (3, 4, 5) for t in range(20)]
    slope = mx.grad(lambda w: mlxops.nn.causal_conv1d(x[:, :3], w)[0].sum())(mx.ones((1, 3)))
    assert slope.tolist() == [[0, 0, 0]]
    last = mx.grad(lambda w: mlxops.nn.causal_conv1d(x[:, :4], w)[0].sum())(mx.ones((1, 3)))
    assert last.tolist() == [[0, 0, np.inf]]


def test_vmap():
    arrays = next(inputs(mx.float32, (4, 5, 3, 4)))
    x, state = arrays[0][:, None], arrays[3][:, None]
    got = mx.vmap(mlxops.nn.causal_conv1d, in_axes=(0, None, None, 0))(x, *arrays[1:3], state)
    for g, w in zip(got, mlxops.nn.causal_conv1d(*arrays), strict=True):
        np.testing.assert_array_equal(g[:, 0], w)


def test_errors():
    x, weight = mx.ones((2, 5, 3)), mx.ones((3, 4))
    op = mlxops.nn.causal_conv1d
    with pytest.raises(
        ValueError, match=r"^\[causal_conv1d\] x must be \(batch, steps, channels\)"
    ):
        op(x[0], weight)
    with pytest.raises(ValueError, match=r"^\[causal_conv1d\] weight must be \(channels, taps\)"):
        op(x, weight.T)
    with pytest.raises(ValueError, match=r"^\[causal_conv1d\] weight must have 1 to 8 taps"):
        op(x, mx.ones((3, 9)))
    with pytest.raises(ValueError, match=r"^\[causal_conv1d\] bias must be \(channels,\)"):
        op(x, weight, mx.ones((4,)))
    with pytest.raises(
        ValueError, match=r"^\[causal_conv1d\] state must be \(batch, taps-1, channels\)"
    ):
        op(x, weight, state=mx.ones((2, 4, 3)))
