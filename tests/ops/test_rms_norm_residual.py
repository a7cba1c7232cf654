"""rms_norm_residual: an optional argument, two outputs, and a backward kernel for all gradients."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import assert_close, draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def reference(x, residual, weight=None, eps=1e-5):
    h = x + residual
    y = h / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + eps)
    return (y if weight is None else y * weight), h


def inputs(dtype, shape=(3, 5, 24)):
    arrays = [draw(dtype, s, seed=i) for i, s in enumerate((shape, shape, shape[-1:]))]
    return [a for a, _ in arrays], [x for _, x in arrays]


@pytest.mark.parametrize("shape", [(24,), (3, 5, 24), (2, 1), (4, 1000), (40, 3)], ids=str)
def test_values(dtype, shape):
    arrays, values = inputs(dtype, shape)
    y, h = mlxops.rms_norm_residual(*arrays)
    assert y.dtype == h.dtype == dtype
    assert_close(h, values[0] + values[1], 0.5)
    # y is computed from h as stored.
    zero = np.zeros_like(values[0])
    assert_close(y, reference(to_numpy(h), zero, values[2])[0], 4)
    y, _ = mlxops.rms_norm_residual(*arrays[:2], eps=0.5)
    assert_close(y, reference(to_numpy(h), zero, eps=0.5)[0], 4)


def test_it_is_fast_rms_norm_of_the_sum():
    (x, residual, weight), _ = inputs(mx.float32)
    y, _ = mlxops.rms_norm_residual(x, residual, weight, eps=1e-3)
    np.testing.assert_allclose(y, mx.fast.rms_norm(x + residual, weight, 1e-3), 1e-5, 1e-6)


def gradients(fn, arrays):
    def loss(*args):
        y, h = fn(*args)
        return (y * mx.sin(y)).sum() + (h * h * h).sum()

    return mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(24,), (3, 5, 24), (40, 3), (100, 7)], ids=str)
def test_gradients(dtype, weighted, shape):
    """Compare with MLX's composition, computed in float32 or wider."""

    def composition(x, residual, weight=None):
        h = x + residual
        y = h * mx.rsqrt(mx.mean(h * h, axis=-1, keepdims=True) + 1e-5)
        return (y if weight is None else y * weight), h

    arrays = inputs(dtype, shape)[0][: 2 + weighted]
    wide = [a.astype(mx.float32) if dtype != mx.float64 else a for a in arrays]
    wanted = gradients(composition, wide)
    for argnum, (g, w) in enumerate(
        zip(gradients(mlxops.rms_norm_residual, arrays), wanted, strict=True)
    ):
        assert g.dtype == dtype
        assert g.shape == arrays[argnum].shape
        scale = np.abs(to_numpy(w)).max()
        np.testing.assert_allclose(to_numpy(g), to_numpy(w), 0, 20 * EPSILON[dtype] * scale)


def test_gradient_of_one_output_alone():
    (x, residual, weight), _ = inputs(mx.float32, (4, 6))
    of_h = mx.grad(lambda x: (2 * mlxops.rms_norm_residual(x, residual, weight)[1]).sum())(x)
    np.testing.assert_allclose(of_h, np.full((4, 6), 2.0))
    of_y = mx.grad(lambda w: mlxops.rms_norm_residual(x, residual, w)[0].sum())(weight)
    unit = reference(to_numpy(x), to_numpy(residual))[0]
    np.testing.assert_allclose(of_y, unit.sum(axis=0), 1e-5, 1e-5)


def test_second_derivative():
    (x, residual, weight), _ = inputs(mx.float32, (2, 6))

    def twice(fn):
        def loss(x):
            y, h = fn(x, residual, weight)
            return (mx.sin(y) + h * h).sum()

        return mx.grad(lambda x: (mx.grad(loss)(x) ** 2).sum())(x)

    def composition(x, residual, weight):
        return mx.fast.rms_norm(x + residual, weight, 1e-5), x + residual

    np.testing.assert_allclose(twice(mlxops.rms_norm_residual), twice(composition), 1e-3, 1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays = [LAYOUTS[layout](a) for a in inputs(mx.float32)[0]]
    y, h = mlxops.rms_norm_residual(*arrays)
    wanted_y, wanted_h = reference(*(to_numpy(a) for a in arrays))
    np.testing.assert_allclose(y, wanted_y, 1e-5, 1e-6)
    np.testing.assert_allclose(h, wanted_h, 1e-6)


def test_promotion():
    x, residual = mx.ones((2, 4), mx.float16), mx.ones((2, 4), mx.bfloat16)
    for out in mlxops.rms_norm_residual(x, residual):
        assert out.dtype == mx.float32
    for out in mlxops.rms_norm_residual(mx.ones((2, 4), mx.int32), mx.ones((2, 4), mx.int32)):
        assert out.dtype == mx.float32
        assert out.shape == (2, 4)


def test_special_values():
    x = mx.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1e-30, 1e-30]])
    y, h = mlxops.rms_norm_residual(x, mx.zeros_like(x))
    np.testing.assert_array_equal(h, x)
    assert to_numpy(y)[0].tolist() == [0, 0]
    assert np.isnan(to_numpy(y)[1, 0])
    assert np.isnan(to_numpy(y)[2]).all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 4)], ids=str)
def test_empty(shape):
    x = mx.zeros(shape)
    for out in mlxops.rms_norm_residual(x, x, mx.ones(shape[-1:])):
        assert out.shape == shape
        mx.eval(out)
    gradient = mx.grad(
        lambda w: sum(o.sum() for o in mlxops.rms_norm_residual(x, x, w)), argnums=0
    )(mx.ones(shape[-1:]))
    assert gradient.tolist() == [0.0] * shape[-1]


def test_shapeless_compile():
    compiled = mx.compile(lambda *args: mlxops.rms_norm_residual(*args), shapeless=True)
    for shape in ((2, 8), (5, 8), (3, 16), (7, 3)):
        (x, residual, weight), _ = inputs(mx.float32, shape)
        got = compiled(x, residual, weight)
        for g, w in zip(got, mlxops.rms_norm_residual(x, residual, weight), strict=True):
            np.testing.assert_array_equal(g, w)


def test_errors():
    x = mx.ones((2, 4))
    with pytest.raises(
        ValueError,
        match=r"^\[rms_norm_residual\] residual must be \(\.\.\., D\), as x is\. "
        r"Got x: float32 \(2, 4\), residual: float32 \(4,\)",
    ):
        mlxops.rms_norm_residual(x, mx.ones((4,)))
    with pytest.raises(ValueError, match=r"^\[rms_norm_residual\] weight must be \(D,\)"):
        mlxops.rms_norm_residual(x, x, mx.ones((5,)))
    with pytest.raises(ValueError, match=r"^\[rms_norm_residual\] x must be \(\.\.\., D\)"):
        mlxops.rms_norm_residual(mx.array(1.0), mx.array(1.0))
