"""digamma: values against mpmath and SciPy."""

import mlx.core as mx
import mlxops
import mpmath
import numpy as np
import pytest
import scipy.special
from ops.accuracy import LIMIT, assert_close, draw

from mlxgen.testing import to_numpy


@np.vectorize
def exact(x):
    with mpmath.workdps(40):
        return float(mpmath.digamma(mpmath.mpf(float(x))))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (1.4, 1.5), (1, 7), (7, 1000), (-1, 0), (-20, -1)]
)
def test_values(dtype, low, high):
    a, x = draw(dtype, (100,), low, high)
    poles = (x <= 0) & (x == np.round(x))
    a, x = a[mx.array(np.flatnonzero(~poles))], x[~poles]
    wanted = exact(x)
    if dtype == mx.float64:
        np.testing.assert_allclose(to_numpy(mlxops.digamma(a)), wanted, 3e-15, 4e-15)
    else:
        assert_close(mlxops.digamma(a), wanted, LIMIT[dtype] if low >= 0 else 0.51)


def test_special_values(dtype):
    x = [0.0, -0.0, -1.0, -2.0, -100.0, np.inf, -np.inf, np.nan]
    out = to_numpy(mlxops.digamma(mx.array(x, dtype=dtype)))
    np.testing.assert_array_equal(out, scipy.special.digamma(x))


def test_around_the_positive_zero():
    root = np.float32(1.4616321449683622)
    x = np.float32([np.nextafter(root, 0), root, np.nextafter(root, 2)])
    assert_close(mlxops.digamma(mx.array(x)), exact(x), LIMIT[mx.float32])


def test_positive():
    """One additional rounding would exceed the limit."""
    x = np.float32([0.79039669, 0.993209124, 1.05062604, 1.05264378])
    assert_close(mlxops.digamma(mx.array(x)), exact(x), LIMIT[mx.float32])


def test_far_below_0():
    """The logarithm and the cotangent cancel, so that only the third term remains."""
    x = np.float32([-85518.9141, -85518.9062, -1022.84003])
    assert_close(mlxops.digamma(mx.array(x)), exact(x), 0.51)


def test_known_values():
    euler = 0.5772156649015329
    out = mlxops.digamma(mx.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(out, [-euler, -euler - 2 * np.log(2), 1 - euler], 1e-7)
    assert mlxops.psi(1).item() == out[0].item()


def test_gradient_is_trigamma():
    a, x = draw(mx.float32, low=0.1, high=9)
    got = mx.grad(lambda a: mlxops.digamma(a).sum())(a)
    np.testing.assert_allclose(got, scipy.special.polygamma(1, x), 1e-6)
