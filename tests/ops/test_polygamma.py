"""polygamma: an int attribute before the array, and gradients that call the operator itself."""

import mlx.core as mx
import mlxops
import mpmath
import numpy as np
import pytest
import scipy.special
from ops.accuracy import LIMIT, assert_close, draw

from mlxgen.testing import to_numpy


def exact(n, x):
    with mpmath.workdps(40):
        return np.array([float(mpmath.polygamma(n, mpmath.mpf(float(v)))) for v in x])


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 20])
@pytest.mark.parametrize(("low", "high"), [(0.05, 2), (2, 50), (-6, 0)])
def test_values(n, low, high, dtype):
    a, x = draw(dtype, (40,), low, high)
    poles = (x <= 0) & (x == np.round(x))
    a, x = a[mx.array(np.flatnonzero(~poles))], x[~poles]
    wanted = exact(n, x)
    if dtype != mx.float64:
        assert_close(mlxops.polygamma(n, a), wanted, LIMIT[dtype] if n == 0 and low > 0 else 0.51)
    elif n == 0:
        np.testing.assert_allclose(to_numpy(mlxops.polygamma(n, a)), wanted, 3e-15, 4e-15)
    else:
        np.testing.assert_allclose(to_numpy(mlxops.polygamma(n, a)), wanted, 4e-14)


@pytest.mark.parametrize("n", range(4))
def test_special_values(n):
    x = [0.0, -1.0, -2.0, np.inf, -np.inf, np.nan]
    out = to_numpy(mlxops.polygamma(n, mx.array(x)))
    wanted = scipy.special.digamma(x) if n == 0 else scipy.special.polygamma(n, x)
    np.testing.assert_array_equal(out, wanted)


def test_order_zero_is_digamma():
    a, _ = draw(mx.float32)
    assert mx.array_equal(mlxops.polygamma(0, a), mlxops.digamma(a), equal_nan=True)


def test_high_derivatives():
    f = mlxops.lgamma
    for _ in range(5):
        f = (lambda g: lambda x: mx.grad(lambda y: g(y).sum())(x))(f)
    a, x = draw(mx.float32, low=0.5, high=4)
    np.testing.assert_allclose(f(a), scipy.special.polygamma(4, x), 1e-6)


def test_arguments():
    x = mx.array([1.5])
    assert mlxops.polygamma(x=x, n=2).item() == mlxops.polygamma(2, x).item()
    with pytest.raises(ValueError, match=r"^\[polygamma\] n must not be negative\."):
        mlxops.polygamma(-1, x)
    for n in (1.5, "1", None):
        with pytest.raises(TypeError):
            mlxops.polygamma(n, x)
