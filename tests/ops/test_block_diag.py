"""block_diag: a list of arrays, of several ranks and dtypes."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
import scipy.linalg
from ops.accuracy import INTEGERS, draw, name

from mlxgen.testing import LAYOUTS, to_numpy

SHAPES = [(2, 3), (1, 1), (4,), (), (3, 1), (0, 2), (2, 0)]


def arrays(dtype, shapes=SHAPES):
    drawn = [draw(dtype, shape, seed=i) for i, shape in enumerate(shapes)]
    return [a for a, _ in drawn], [x for _, x in drawn]


def test_values(dtype):
    a, x = arrays(dtype)
    out = mlxops.block_diag(a)
    assert out.dtype == dtype
    np.testing.assert_array_equal(to_numpy(out), scipy.linalg.block_diag(*x))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_integers_stay(dtype):
    blocks = [np.array([[1, 2], [3, 4]]), np.array([[5]])]
    out = mlxops.block_diag([mx.array(b, dtype=dtype) for b in blocks])
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, scipy.linalg.block_diag(*blocks))


def test_bool_and_complex():
    out = mlxops.block_diag([mx.array(True), mx.array([[False, True]])])
    assert out.dtype == mx.bool_
    assert out.tolist() == [[True, False, False], [False, False, True]]
    assert mlxops.block_diag([mx.array(1j), 2.0]).tolist() == [[1j, 0], [0, 2]]


def test_one_and_many():
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(mlxops.block_diag([mx.array(x)]), x)
    many = [np.full((1, 2), i, np.float32) for i in range(100)]
    out = mlxops.block_diag([mx.array(m) for m in many])
    np.testing.assert_array_equal(out, scipy.linalg.block_diag(*many))
    assert mlxops.block_diag((mx.array(1.0), mx.array(2.0))).tolist() == [[1, 0], [0, 2]]


def test_an_array_is_the_list_of_its_rows():
    out = mlxops.block_diag(mx.array([[1.0, 2.0], [3.0, 4.0]]))
    assert out.tolist() == [[1, 2, 0, 0], [0, 0, 3, 4]]


def test_the_same_array_twice():
    x = mx.array([[1.0, 2.0]])
    assert mlxops.block_diag([x, x]).tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]
    gradient = mx.grad(lambda x: (mlxops.block_diag([x, 3 * x, x]) ** 2).sum())(x)
    assert gradient.tolist() == [[22, 44]]


def test_dtypes_are_promoted():
    out = mlxops.block_diag([mx.array([[1]], dtype=mx.int32), mx.array([[2.5]], dtype=mx.float16)])
    assert out.dtype == mx.float16
    assert out.tolist() == [[1, 0], [0, 2.5]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    a = [LAYOUTS[layout](m) for m in arrays(mx.float32)[0]]
    wanted = scipy.linalg.block_diag(*(to_numpy(m) for m in a))
    np.testing.assert_array_equal(to_numpy(mlxops.block_diag(a)), wanted)


def test_gradients():
    a, _ = arrays(mx.float32)
    cotangent = draw(mx.float32, mlxops.block_diag(a).shape, seed=9)[0]
    _, gradients = mx.vjp(lambda *a: mlxops.block_diag(list(a)), a, [cotangent])
    row = column = 0
    for block, gradient in zip(a, gradients, strict=True):
        rows, columns = np.atleast_2d(np.array(block)).shape
        part = np.array(cotangent)[row : row + rows, column : column + columns]
        np.testing.assert_array_equal(np.array(gradient), part.reshape(block.shape))
        row, column = row + rows, column + columns


def test_gradient_of_one_of_them():
    a, _ = arrays(mx.float32, [(2, 2), (1, 3)])
    gradient = mx.grad(lambda x: (mlxops.block_diag([a[0], x]) ** 2).sum())(a[1])
    np.testing.assert_allclose(gradient, 2 * np.array(a[1]))


def test_jvp_and_vmap():
    a, _ = arrays(mx.float32, [(2, 2), (1, 3)])
    _, (tangent,) = mx.jvp(lambda *a: mlxops.block_diag(list(a)), a, a)
    assert mx.array_equal(tangent, mlxops.block_diag(a))
    batch = [mx.stack([m, 2 * m]) for m in a]
    got = mx.vmap(lambda *a: mlxops.block_diag(list(a)))(*batch)
    assert mx.array_equal(got, mx.stack([tangent, 2 * tangent]))
    got = mx.vmap(lambda *a: mlxops.block_diag(list(a)), in_axes=(None, 0))(a[0], batch[1])
    assert mx.array_equal(got[1], mlxops.block_diag([a[0], 2 * a[1]]))


def test_common_subexpressions_look_at_the_number():
    compiled = mx.compile(lambda x: mlxops.block_diag([x, x]).sum() + mlxops.block_diag([x]).sum())
    assert compiled(mx.array([[2.0]])).item() == 6


def test_errors():
    with pytest.raises(ValueError, match=r"^\[block_diag\] [Aa]t least one array is needed"):
        mlxops.block_diag([])
    with pytest.raises(
        ValueError,
        match=r"^\[block_diag\] the arrays must have at most 2 axes\..*\(1, 1, 1\)",
    ):
        mlxops.block_diag([mx.ones((1,)), mx.ones((1, 1, 1))])
    for wrong in (None, [None], 1.0):
        with pytest.raises(TypeError):
            mlxops.block_diag(wrong)
