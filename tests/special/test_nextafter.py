"""nextafter steps in the dtype of its arguments: compared bitwise with NumPy, and counted."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlxops import special

NUMPY = {np.float16: np.int16, np.float32: np.int32}


def pairs(dtype, bits):
    """Return all pairs of special numbers, and random ones."""
    info = np.finfo(dtype)
    notable = [
        0,
        -0.0,
        1,
        -1,
        2,
        -0.5,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        np.inf,
        -np.inf,
    ]
    notable = np.array([*notable, np.nan], dtype=dtype)
    random = np.random.default_rng(7)
    limits = np.iinfo(bits)
    anything = random.integers(limits.min, limits.max, 2000, dtype=bits).view(dtype)
    x, y = np.meshgrid(notable, notable)
    return np.append(x, anything), np.append(y, random.permutation(anything))


@pytest.mark.parametrize("dtype", NUMPY)
def test_as_numpy(dtype):
    x, y = pairs(dtype, NUMPY[dtype])
    got = np.array(special.nextafter(mx.array(x), mx.array(y)))
    with np.errstate(all="ignore"):
        wanted = np.nextafter(x, y)
    wanted = np.where(x == y, y, wanted)  # NumPy's float16 has the wrong zero
    number = ~np.isnan(wanted)
    bits = NUMPY[dtype]
    np.testing.assert_array_equal(got.view(bits)[number], wanted.view(bits)[number])
    assert np.isnan(got[~number]).all()


def test_float64():
    x, y = pairs(np.float64, np.int64)
    with mx.stream(mx.cpu):
        arrays = [mx.array(v, dtype=mx.float64) for v in (x, y)]
        got = np.array(special.nextafter(*arrays))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.nextafter(x, y))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_strides(dtype):
    large = 6e4 if dtype == "float16" else 3e38  # close to infinity
    with mx.stream(mx.cpu):
        x = mx.array([[1.0, -2, large], [3, 4, 5]]).astype(getattr(mx, dtype))
        y = mx.array([[2.0, -3, 0], [-3, 4, 9]]).astype(getattr(mx, dtype))
        wanted = special.nextafter(x, y)
        got = special.nextafter(mx.contiguous(x.T).T, y[:, ::-1][:, ::-1])
        assert mx.array_equal(got, wanted).item()
        assert mx.array_equal(got > x, y > x).item() and mx.array_equal(got < x, y < x).item()


def test_bfloat16_steps_through_all_numbers():
    one, two = (mx.array(x, dtype=mx.bfloat16) for x in (1.0, 2.0))
    x = one
    for step in range(1, 129):
        x = special.nextafter(x, two)
        assert x.item() == 1 + step / 128
    assert special.nextafter(mx.array(0.0, dtype=mx.bfloat16), one).view(mx.int16).item() == 1


def test_integers_become_float32():
    y = special.nextafter(mx.array([1, 2]), 3)
    assert y.dtype == mx.float32
    np.testing.assert_array_equal(np.array(y), np.nextafter(np.float32([1, 2]), np.float32(3)))


def test_no_gradient():
    with pytest.raises(ValueError, match="nextafter"):
        mx.eval(mx.grad(lambda x: special.nextafter(x, 2.0))(mx.array(1.0)))
