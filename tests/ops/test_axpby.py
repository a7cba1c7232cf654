"""axpby: attributes with defaults, promotion of integers."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import INTEGERS, draw, name


def close(got, exact, dtype):
    # alpha * x and beta * y may cancel: compare with the size of the terms.
    spacing = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
    np.testing.assert_allclose(np.array(got.astype(mx.float64)), exact, 0, 8 * spacing[dtype])


@pytest.fixture(autouse=True)
def cpu():
    with mx.stream(mx.cpu):
        yield


def test_values(dtype):
    a, x = draw(dtype)
    b, y = draw(dtype, seed=1)
    close(mlxops.examples.axpby(a, b), x + y, dtype)
    close(mlxops.examples.axpby(a, b, 2.0), 2 * x + y, dtype)
    close(mlxops.examples.axpby(a, b, 2.0, -0.5), 2 * x - 0.5 * y, dtype)
    close(mlxops.examples.axpby(x=a, y=b, beta=3), x + 3 * y, dtype)


def test_attributes_have_double_precision():
    # A `float` of torch's schema language is a double in C++.
    out = mlxops.examples.axpby(mx.array(1.0, dtype=mx.float64), 0.0, 0.1)
    assert out.item() == 0.1


@pytest.mark.parametrize("dtype", [mx.bool_, *INTEGERS], ids=name)
def test_integers_become_float32(dtype):
    out = mlxops.examples.axpby(
        mx.array([0, 1], dtype=dtype), mx.array([1, 1], dtype=dtype), 0.5, 2
    )
    assert out.dtype == mx.float32
    assert out.tolist() == [2.0, 2.5]


def test_complex_is_refused():
    with pytest.raises(ValueError, match=r"^\[axpby\] dtype complex64 is not supported"):
        mlxops.examples.axpby(mx.array(1j), 1.0)


def test_special_values(dtype):
    inf = mx.array([mx.inf, -mx.inf, mx.nan], dtype=dtype)
    assert str(mlxops.examples.axpby(inf, inf, 1.0, 1.0).tolist()) == "[inf, -inf, nan]"
    assert str(mlxops.examples.axpby(inf, inf, 1.0, -1.0).tolist()) == "[nan, nan, nan]"


def test_gradients():
    def loss(x, y):
        return (mlxops.examples.axpby(x, y, 2.0, -3.0) ** 2).sum()

    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 5.0])
    dx, dy = mx.grad(loss, argnums=(0, 1))(x, y)
    assert dx.tolist() == [-28.0, -44.0]
    assert dy.tolist() == [42.0, 66.0]
    second = mx.grad(lambda x: mx.grad(loss)(x, y).sum())(x)
    assert second.tolist() == [8.0, 8.0]
