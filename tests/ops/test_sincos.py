"""sincos: one kernel with two named outputs."""

import mlx.core as mx
import mlxops
import numpy as np
from ops.accuracy import assert_close, draw

from mlxgen.testing import to_numpy


def test_values(dtype):
    a, x = draw(dtype, (50, 50), -40, 40)
    out = mlxops.sincos(a)
    assert isinstance(out, tuple)
    sin, cos = out
    assert sin.dtype == cos.dtype == dtype
    assert_close(sin, np.sin(x), 4)
    assert_close(cos, np.cos(x), 4)


def test_special_values(dtype):
    x = mx.array([0.0, -0.0, mx.inf, -mx.inf, mx.nan], dtype=dtype)
    sin, cos = (to_numpy(out) for out in mlxops.sincos(x))
    np.testing.assert_array_equal(sin, [0, 0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(cos, [1, 1, np.nan, np.nan, np.nan])
    assert np.signbit(sin).tolist()[:2] == [False, True]


def test_either_output_may_be_unused():
    a, x = draw(mx.float32)
    assert_close(mlxops.sincos(a)[0], np.sin(x), 4)
    assert_close(mlxops.sincos(a)[1], np.cos(x), 4)
    gradient = mx.grad(lambda a: mlxops.sincos(a)[1].sum())(a)
    np.testing.assert_allclose(gradient, -np.sin(x), 1e-5, 1e-6)


def test_both_outputs_in_a_gradient():
    def length(x):
        sin, cos = mlxops.sincos(x)
        return (sin * sin + 3 * cos * cos).sum()

    a, x = draw(mx.float32)
    np.testing.assert_allclose(mx.grad(length)(a), -2 * np.sin(2 * x), 1e-4, 1e-5)


def test_integers_become_float32():
    sin, cos = mlxops.sincos(mx.array([0, 1]))
    assert sin.dtype == cos.dtype == mx.float32
    assert_close(sin, np.sin([0.0, 1.0]), 2)
    assert_close(mlxops.sincos(2)[1], np.cos(2.0), 2)


def test_derivatives_repeat_after_four():
    def f(x):
        return mlxops.sincos(x)[0]

    for _ in range(4):
        f = (lambda g: lambda x: mx.grad(lambda y: g(y).sum())(x))(f)
    a, x = draw(mx.float32)
    np.testing.assert_allclose(f(a), np.sin(x), 1e-5, 1e-5)
