"""add: the smallest operator, in every dtype, against mx.add."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import DTYPES, INTEGERS, assert_close, draw, name

from mlxgen.testing import LAYOUTS, to_numpy


def test_floats(dtype):
    a, x = draw(dtype)
    b, y = draw(dtype, seed=1)
    assert_close(mlxops.examples.add(a, b), x + y, 0.5)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_integers_wrap_as_in_numpy(dtype):
    info = np.iinfo(name(dtype))
    x = np.array([info.max, info.min, 1, info.max], dtype=name(dtype))
    y = np.array([1, info.max, 2, info.max], dtype=name(dtype))
    out = mlxops.examples.add(mx.array(x), mx.array(y))
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.array(out), x + y)


def test_complex():
    a = mx.array([1 + 2j, -1j])
    assert mlxops.examples.add(a, 1).tolist() == [2 + 2j, 1 - 1j]
    assert mlxops.examples.add(1j, 2).item() == 2 + 1j


@pytest.mark.parametrize("left", [*DTYPES, mx.complex64], ids=name)
@pytest.mark.parametrize("right", [*DTYPES, mx.complex64], ids=name)
def test_promotion_is_mlx_own(left, right, device):
    if mx.float64 in (left, right) and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    a, b = mx.ones((2,), left), mx.ones((2,), right)
    wanted = mx.add(a, b)
    got = mlxops.examples.add(a, b)
    assert got.dtype == wanted.dtype
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "shapes",
    [((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (5, 1)), ((0, 3), (3,)), ((), ())],
    ids=str,
)
def test_broadcasting(shapes):
    a, x = draw(mx.float32, shapes[0])
    b, y = draw(mx.float32, shapes[1], seed=1)
    out = mlxops.examples.add(a, b)
    assert out.shape == (x + y).shape
    assert_close(out, x + y, 0.5)


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_strides(left, right):
    a, b = draw(mx.float32, (5, 6, 7))[0], draw(mx.float32, (5, 6, 7), seed=1)[0]
    a, b = LAYOUTS[left](a), LAYOUTS[right](b)
    assert_close(mlxops.examples.add(a, b), to_numpy(a) + to_numpy(b), 0.5)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 511, 512, 513, 1000, 4099])
def test_sizes_around_the_blocks_of_the_loop(size, dtype):
    a, x = draw(dtype, (size,))
    assert_close(mlxops.examples.add(a, a), 2 * x, 0.5)
    assert_close(mlxops.examples.add(a[::-1], a), x[::-1] + x, 0.5)


def test_special_values(dtype):
    values = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    x = np.repeat(values, 5)
    y = np.tile(values, 5)
    out = to_numpy(mlxops.examples.add(mx.array(x, dtype=dtype), mx.array(y, dtype=dtype)))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, x + y)
    zeros = to_numpy(mlxops.examples.add(mx.array(-0.0, dtype=dtype), mx.array(-0.0, dtype=dtype)))
    assert np.signbit(zeros)


def test_gradient():
    def loss(a, b):
        return mlxops.examples.add(a, b).sum()

    a, b = mx.ones((3, 4)), mx.ones((4,))
    da, db = mx.grad(loss, argnums=(0, 1))(a, b)
    assert da.tolist() == mx.ones((3, 4)).tolist()
    assert db.tolist() == [3, 3, 3, 3]
