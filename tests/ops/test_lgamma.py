"""lgamma: values against mpmath and SciPy, and a fit of counts, which MLX cannot do."""

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
        return float(mpmath.log(abs(mpmath.gamma(mpmath.mpf(float(x))))))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.9, 2.1), (2, 7), (7, 1000), (-1, 0), (-20, -1)]
)
def test_values(dtype, low, high):
    a, x = draw(dtype, (100,), low, high)
    poles = (x <= 0) & (x == np.round(x))
    a, x = a[mx.array(np.flatnonzero(~poles))], x[~poles]
    wanted = exact(x)
    if dtype == mx.float64:
        # Near its zeros on the negative axis lgamma cancels, as in SciPy.
        np.testing.assert_allclose(to_numpy(mlxops.lgamma(a)), wanted, 2e-15, 4e-15)
    else:
        assert_close(mlxops.lgamma(a), wanted, LIMIT[dtype] if low >= 0 else 0.51)


def test_zeros():
    assert mlxops.lgamma(mx.array([1.0, 2.0])).tolist() == [0, 0]
    x = np.nextafter(np.float32([1, 1, 2, 2]), np.float32([0, 2, 0, 3]))
    assert_close(mlxops.lgamma(mx.array(x)), exact(x), LIMIT[mx.float32])


def test_positive():
    """One additional rounding would exceed the limit."""
    x = np.float32([0.951664925, 2.43719673, 2.75595522, 2.77256823])
    assert_close(mlxops.lgamma(mx.array(x)), exact(x), LIMIT[mx.float32])


def test_special_values(dtype):
    x = [0.0, -0.0, -1.0, -2.0, -100.0, np.inf, -np.inf, np.nan]
    out = to_numpy(mlxops.lgamma(mx.array(x, dtype=dtype)))
    np.testing.assert_array_equal(out, scipy.special.gammaln(x))


def test_large_and_tiny():
    x = np.float32([1e-45, 1e-38, 1e-10, 1e10, 1e36, 3e38])
    out = mlxops.lgamma(mx.array(x))
    assert_close(out, exact(x), LIMIT[mx.float32])
    x = np.array([5e-324, 1e-300, 1e300, 1e305])
    with mx.stream(mx.cpu):
        out = mlxops.lgamma(mx.array(x, dtype=mx.float64))
        assert_close(out, exact(x), 4)


def test_gradients_are_digamma_and_trigamma():
    a, x = draw(mx.float32, low=0.1, high=9)
    first = mx.grad(lambda a: mlxops.lgamma(a).sum())
    second = mx.grad(lambda a: first(a).sum())
    np.testing.assert_allclose(first(a), scipy.special.digamma(x), 1e-6)
    np.testing.assert_allclose(second(a), scipy.special.polygamma(1, x), 1e-6)


def test_names():
    x = mx.array([3.5])
    assert mlxops.gammaln(x).item() == mlxops.lgamma(x).item()
