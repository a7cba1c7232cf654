"""geglu against SciPy's erf and tanh, and its gradients against explicit derivatives."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw
from scipy.special import ndtr

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
each = pytest.mark.parametrize("approximate", ["none", "tanh"])


def gelu(g, approximate):
    if approximate == "none":
        return g * ndtr(g)
    return g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) / 2


def slope(g, approximate):
    if approximate == "none":
        return ndtr(g) + g * np.exp(-g * g / 2) / np.sqrt(2 * np.pi)
    tanh = np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * g**2)
    return (1 + tanh) / 2 + g * (1 - tanh**2) * inner / 2


def assert_near(got, exact, limit=4):
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


@each
def test_values(dtype, approximate):
    (x, xs), (gate, gates) = draw(dtype, (7, 90)), draw(dtype, (90,), -9, 9, seed=1)
    y = mlxops.nn.geglu(x, gate, approximate=approximate)
    assert y.dtype == dtype
    assert_near(y, xs * gelu(gates, approximate))


@each
def test_gradients(dtype, approximate):
    (x, xs), (gate, gates) = draw(dtype, (7, 90)), draw(dtype, (90,), -9, 9, seed=1)
    cotangent, values = draw(dtype, (7, 90), seed=2)
    fn = lambda x, gate: mlxops.nn.geglu(x, gate, approximate=approximate)  # noqa: E731
    grad_x, grad_gate = mx.vjp(fn, [x, gate], [cotangent])[1]
    assert grad_x.dtype == grad_gate.dtype == dtype
    assert_near(grad_x, values * gelu(gates, approximate))
    assert_near(grad_gate, (values * xs * slope(gates, approximate)).sum(axis=0), 16)


@each
def test_second_derivative(approximate):
    x, gate = mx.array([1.5, -2.0]), mx.array([0.3, -0.7])

    def inner(gate):
        return mx.grad(lambda g: mlxops.nn.geglu(x, g, approximate=approximate).sum())(gate)

    got = mx.grad(lambda g: (inner(g) ** 2).sum())(gate)
    h = 1e-6
    g, factor = to_numpy(gate), to_numpy(x)
    second = (slope(g + h, approximate) - slope(g - h, approximate)) / (2 * h)
    np.testing.assert_allclose(got, 2 * factor**2 * slope(g, approximate) * second, 1e-4)


@each
def test_far_out(dtype, approximate):
    gate = mx.array([-np.inf, -60.0, 60.0, np.inf], dtype=dtype)
    y = to_numpy(mlxops.nn.geglu(mx.array(1.0, dtype=dtype), gate, approximate=approximate))
    assert y[1:].tolist() == [0, 60, np.inf]
    slopes = mx.grad(lambda g: mlxops.nn.geglu(1.0, g, approximate=approximate).sum())(gate[1:3])
    np.testing.assert_allclose(to_numpy(slopes), [0, 1], 0, 1e-6)


@each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout, approximate):
    x = LAYOUTS[layout](draw(mx.float32, (4, 6))[0])
    y = mlxops.nn.geglu(x, x, approximate=approximate)
    assert_near(y, to_numpy(x) * gelu(to_numpy(x), approximate))
