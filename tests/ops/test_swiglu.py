"""swiglu: a fused kernel against the composition that it replaces."""

import mlx.core as mx
import mlxops
import numpy as np
from ops.accuracy import assert_close, draw

from mlxgen.testing import to_numpy


def reference(x, gate):
    e = np.exp(-np.abs(gate))
    return x * gate * np.where(gate < 0, e, 1) / (1 + e)


def test_values(dtype):
    a, x = draw(dtype, (60, 60), -20, 20)
    b, gate = draw(dtype, (60, 60), -20, 20, seed=1)
    assert_close(mlxops.swiglu(a, b), reference(x, gate), 6)
    assert mlxops.swiglu(a, b).dtype == dtype


def test_rounds_once_in_half_precision():
    for dtype in (mx.float16, mx.bfloat16):
        a, x = draw(dtype, (60, 60))
        b, gate = draw(dtype, (60, 60), seed=1)
        assert_close(mlxops.swiglu(a, b), reference(x, gate), 0.51)


def test_tails():
    gate = mx.array([-80.0, -95.0, -1000.0, 100.0, -mx.inf, mx.inf, mx.nan])
    out = to_numpy(mlxops.swiglu(1e6, gate)) / 1e6
    # gate exp(gate) is small but not zero, although 1 / (1 + exp(-gate)) overflows.
    np.testing.assert_allclose(out[:2], [-80 * np.exp(-80.0), -95 * np.exp(-95.0)], 1e-5, 0)
    np.testing.assert_array_equal(out[2:], [0, 100, np.nan, np.inf, np.nan])


def test_broadcasts_and_promotes():
    out = mlxops.swiglu(mx.ones((2, 1), mx.float16), mx.ones((3,), mx.bfloat16))
    assert out.shape == (2, 3)
    assert out.dtype == mx.float32


def test_gradient_is_that_of_the_composition():
    def composition(x, gate):
        return x * gate * mx.sigmoid(gate)

    x, gate = draw(mx.float32)[0], draw(mx.float32, seed=1)[0]
    for argnum in (0, 1):
        got = mx.grad(lambda *a: mlxops.swiglu(*a).sum(), argnum)(x, gate)
        wanted = mx.grad(lambda *a: composition(*a).sum(), argnum)(x, gate)
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
