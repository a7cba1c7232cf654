"""Scalars and promotion: operators accept the arguments of mx.add, and return its dtypes."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import DTYPES, FLOATS, name

SCALARS = {
    "bool": True,
    "int": 3,
    "negative int": -3,
    "wide int": 2**40,
    "float": 1.5,
    "inf": float("inf"),
    "complex": 1 + 2j,
}
FOREIGN = {
    "np.float32": np.float32(2),
    "np.float64": np.float64(2),
    "np.int64": np.int64(2),
    "np.uint8": np.uint8(2),
    "np.bool": np.bool_(True),
    "np.float16 array": np.ones((3,), np.float16),
    "np.float64 array": np.ones((3,)),
    "np.int32 array": np.ones((3,), np.int32),
}


def outcome(fn, *args):
    """Return dtype, shape and values, or the kind of error."""
    try:
        out = fn(*args)
        return out.dtype, out.shape, str(out.tolist())
    except (ValueError, RuntimeError, TypeError):
        return "error"


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("dtype", [*DTYPES, mx.complex64], ids=name)
def test_beside_an_array(dtype, scalar, device):
    if dtype == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    a, value = mx.ones((3,), dtype), SCALARS[scalar]
    if dtype == mx.bool_ and scalar == "wide int":
        # mx.add converts it to an int32, which silently truncates it.
        assert outcome(mlxops.examples.add, a, value) == "error"
        return
    assert outcome(mlxops.examples.add, a, value) == outcome(mx.add, a, value)
    assert outcome(mlxops.examples.add, value, a) == outcome(mx.add, value, a)


@pytest.mark.parametrize("left", SCALARS)
@pytest.mark.parametrize("right", SCALARS)
def test_two_scalars(left, right):
    args = SCALARS[left], SCALARS[right]
    assert outcome(mlxops.examples.add, *args) == outcome(mx.add, *args)


@pytest.mark.parametrize("value", FOREIGN)
@pytest.mark.parametrize("dtype", [mx.float16, mx.float32, mx.int8], ids=name)
def test_numpy_arrays_and_scalars(dtype, value):
    a, value = mx.ones((3,), dtype), FOREIGN[value]
    assert outcome(mlxops.examples.add, a, value) == outcome(mx.add, a, value)
    assert outcome(mlxops.examples.add, value, a) == outcome(mx.add, value, a)


def test_objects_with_mlx_array():
    class Wrapped:
        def __mlx_array__(self):
            return mx.array([1.0, 2.0])

    assert mlxops.examples.add(Wrapped(), 1).tolist() == [2, 3]
    assert mlxops.lgamma(Wrapped()).tolist() == [0, 0]


@pytest.mark.parametrize(
    "value", [None, "1", [1.0, 2.0], {}, pytest.param(object(), id="object")], ids=str
)
def test_what_is_no_array(value):
    with pytest.raises(TypeError, match=r"^add\(\): incompatible function arguments"):
        mlxops.examples.add(value, mx.array(1.0))


def test_integers_out_of_range():
    for value in (300, -1, 2**70):
        a = mx.array([1], dtype=mx.uint8)
        assert outcome(mlxops.examples.add, a, value) == outcome(mx.add, a, value) == "error"


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_scalars_are_weak_in_every_operator(dtype, device):
    if dtype == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    x = mx.array([0.5, 1.5], dtype=dtype)
    for out in (
        mlxops.examples.axpby(x, 2),
        mlxops.examples.axpby(True, x),
        mlxops.swiglu(x, 0.5),
        mlxops.swiglu(2, x),
        mlxops.lgamma(x),
        mlxops.softcap(x, 3),
    ):
        assert out.dtype == dtype


@pytest.mark.parametrize("value", [True, 2, 2.0])
def test_scalars_alone_become_float32(value):
    for op in (mlxops.lgamma, mlxops.digamma, mlxops.softcap):
        out = op(value)
        assert out.dtype == mx.float32
        assert out.shape == ()


def test_a_float64_scalar_keeps_its_digits():
    with mx.stream(mx.cpu):
        x = mx.array(0.0, dtype=mx.float64)
        assert mlxops.examples.axpby(x, 0.1).item() == 0.1
        assert mlxops.examples.add(x, 0.1).item() == mx.add(x, 0.1).item()


def test_lists_of_arrays_take_scalars():
    out = mlxops.block_diag([mx.ones((1, 1), mx.float16), 2.0])
    assert out.dtype == mx.float16
    assert out.tolist() == [[1, 0], [0, 2]]


def test_numpys_bools_stay_bools():
    """A mask from NumPy does not become an array of floats."""
    q = mx.random.normal((1, 2, 5, 8), key=mx.random.key(0))
    mask = np.random.default_rng(0).random((5, 5)) < 0.6
    mask |= np.eye(5, dtype=bool)
    expected = mlxops.nn.attention(q, q, q, mask=mx.array(mask), scale=0.3)
    assert mx.array_equal(mlxops.nn.attention(q, q, q, mask=mask, scale=0.3), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_numpys_integers_stay_integers(dtype):
    logits = mx.random.normal((4, 7), key=mx.random.key(0))
    targets = np.array([0, 6, 3, 2], dtype)
    expected = mlxops.nn.cross_entropy(logits, mx.array(targets))
    assert mx.array_equal(mlxops.nn.cross_entropy(logits, targets), expected)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**70])
def test_ints_that_are_too_long(value):
    logits, targets = mx.zeros((2, 3)), mx.array([0, 1])
    with pytest.raises(OverflowError, match=r"^\[cross_entropy\] ignore_index must be from -2147"):
        mlxops.nn.cross_entropy(logits, targets, ignore_index=value)
    with pytest.raises(TypeError):
        mlxops.nn.cross_entropy(logits, targets, ignore_index=1.0)
