"""Normalization fused with a gate, a residual stream or a second norm, against NumPy and MLX."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
SHAPES = [(24,), (3, 5, 24), (2, 1), (40, 3), (2, 4101), (1, 8205)]


def rms(x, weight=None, eps=1e-5):
    unit = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return unit if weight is None else unit * weight


def logistic(x):
    return 1 / (1 + np.exp(-x))


def rms_norm_gate(x, gate, weight=None, eps=1e-5, activation="silu", norm_before_gate=True):
    a = gate * logistic(gate) if activation == "silu" else logistic(gate)
    return (rms(x, weight, eps) * a if norm_before_gate else rms(x * a, weight, eps),)


def norm_add_norm(x, residual, w1=None, w2=None, eps=1e-6):
    h = residual + rms(x, w1, eps)
    return rms(h, w2, eps), h


def layer_norm_residual(x, residual, weight=None, bias=None, eps=1e-5):
    h = x + residual
    centred = h - h.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, h


def mlx_rms(x, weight=None, eps=1e-5):
    unit = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    return unit if weight is None else unit * weight


def mlx_gate(x, gate, weight=None, eps=1e-5, activation="silu", norm_before_gate=True):
    a = (1 + mx.tanh(gate / 2)) / 2  # MLX's sigmoid in float64 has only float32's accuracy
    a = gate * a if activation == "silu" else a
    return mlx_rms(x, weight, eps) * a if norm_before_gate else mlx_rms(x * a, weight, eps)


def mlx_add(x, residual, w1=None, w2=None, eps=1e-6):
    h = residual + mlx_rms(x, w1, eps)
    return mlx_rms(h, w2, eps), h


def mlx_layer(x, residual, weight=None, bias=None, eps=1e-5):
    h = x + residual
    centred = h - mx.mean(h, axis=-1, keepdims=True)
    y = centred * mx.rsqrt(mx.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, h


# The operator, the reference, MLX's composition, the number of weights, and arguments.
GATE = (mlxops.nn.rms_norm_gate, rms_norm_gate, mlx_gate, 1)
CASES = {
    "gate": (*GATE, {}),
    "sigmoid": (*GATE, {"activation": "sigmoid", "eps": 0.1}),
    "gate-first": (*GATE, {"norm_before_gate": False}),
    "sigmoid-first": (*GATE, {"norm_before_gate": False, "activation": "sigmoid"}),
    "add": (mlxops.nn.norm_add_norm, norm_add_norm, mlx_add, 2, {}),
    "layer": (mlxops.nn.layer_norm_residual, layer_norm_residual, mlx_layer, 2, {"eps": 1e-3}),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_op = pytest.mark.parametrize(
    "case", [CASES[c] for c in ("gate", "add", "layer")], ids=["gate", "add", "layer"]
)


def inputs(dtype, weights, shape=(3, 5, 24)):
    shapes = [shape, shape] + [shape[-1:]] * weights
    return zip(*(draw(dtype, s, seed=i) for i, s in enumerate(shapes)), strict=True)


def assert_near(got, exact, limit=4):
    """Compare within this number of roundings relative to the largest number."""
    scale = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit * EPSILON[got.dtype] * scale)


def outputs(result):
    return result if isinstance(result, (tuple, list)) else (result,)


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(dtype, case, shape):
    op, reference, _, weights, arguments = case
    for given in (0, weights):
        arrays, values = inputs(dtype, given, shape)
        got = outputs(op(*arrays, **arguments))
        wanted = reference(*values, **arguments)
        if len(got) == 2:  # y is computed from h as stored
            assert_near(got[1], wanted[1])
            zero = np.zeros_like(values[0])
            if op is mlxops.nn.norm_add_norm:
                wanted = [rms(to_numpy(got[1]), *values[3:], eps=1e-6)]
            else:
                wanted = reference(to_numpy(got[1]), zero, *values[2:], **arguments)
        assert got[0].dtype == dtype
        assert_near(got[0], wanted[0])


def test_one_weight_of_two(dtype):
    (x, residual, w1, w2), values = inputs(dtype, 2, (4, 6))
    for name, given in (("w1", w1), ("w2", w2)):
        y, h = mlxops.nn.norm_add_norm(x, residual, **{name: given})
        wanted = norm_add_norm(*values[:2], **{name: to_numpy(given)})
        assert_near(h, wanted[1])
        assert_near(y, wanted[0], 8)
    y, _ = mlxops.nn.layer_norm_residual(x, residual, bias=w1)
    wanted, _ = layer_norm_residual(*values[:2], bias=to_numpy(w1))
    assert_near(y, wanted, 8)


def gradients(fn, arrays):
    def loss(*args):
        total = 0
        for i, out in enumerate(outputs(fn(*args))):
            total = total + mx.sin(out + i).sum()
        return total

    return mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


def assert_gradients(case, given, dtype, shape):
    op, _, composition, _, arguments = case
    arrays = list(next(inputs(dtype, given, shape)))
    got = gradients(lambda *args: op(*args, **arguments), arrays)
    with mx.stream(mx.cpu):
        wide = [a.astype(mx.float64) for a in arrays]
        wanted = gradients(lambda *args: composition(*args, **arguments), wide)
    for array, g, w in zip(arrays, got, wanted, strict=True):
        assert g.dtype == dtype
        assert g.shape == array.shape
        assert_near(g, to_numpy(w), 60)


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(dtype, case, shape):
    """Compare with MLX's composition, computed in float64."""
    for given in (0, case[3]):
        assert_gradients(case, given, dtype, shape)


@each_op
def test_gradients_on_all_cores(case):
    assert_gradients(case, case[3], mx.float32, (333, 129))


@each_op
def test_gradient_of_one_output_alone(case):
    op, _, composition, weights, arguments = case
    arrays = list(next(inputs(mx.float32, weights, (4, 6))))
    for i in range(len(outputs(op(*arrays)))):
        for argnum in range(len(arrays)):
            grads = [
                mx.grad(
                    lambda *args, f=f, i=i: (outputs(f(*args, **arguments))[i] ** 2).sum(), argnum
                )
                for f in (op, composition)
            ]
            np.testing.assert_allclose(grads[0](*arrays), grads[1](*arrays), 1e-4, 1e-4)


@each
def test_second_derivative(case):
    op, _, composition, weights, arguments = case
    arrays = list(next(inputs(mx.float32, weights, (2, 6))))

    def twice(fn):
        def loss(*args):
            return sum(mx.sin(out).sum() for out in outputs(fn(*args, **arguments)))

        inner = mx.grad(loss, argnums=tuple(range(len(arrays))))
        return mx.grad(
            lambda *args: sum((g**2).sum() for g in inner(*args)), argnums=tuple(range(len(arrays)))
        )(*arrays)

    for got, wanted in zip(twice(op), twice(composition), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-3, 2e-3)


@each_op
def test_jvp(case):
    op, _, composition, weights, arguments = case
    arrays = list(next(inputs(mx.float32, weights, (4, 6))))
    tangents = [mx.sin(a) for a in arrays]
    results = [
        mx.jvp(lambda *args, f=f: list(outputs(f(*args, **arguments))), arrays, tangents)[1]
        for f in (op, composition)
    ]
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


@each
@pytest.mark.parametrize("size", [0.002, 300.0])
def test_derivatives_of_small_and_large_rows(case, size):
    """In float16, squares of large rows and powers of the norm of small ones would overflow."""
    op, _, _, weights, arguments = case
    arrays = list(next(inputs(mx.float16, weights, (4, 24))))
    arrays[:2] = [a * size for a in arrays[:2]]
    tangents = [mx.sin(3 * a) for a in arrays]

    def derivatives(dtype):
        given, directions = ([a.astype(dtype) for a in arrays_] for arrays_ in (arrays, tangents))

        def call(*args):
            return list(outputs(op(*args, **arguments)))

        def along(*args):
            # In float32, so that the sums do not overflow.
            _, grads = mx.vjp(call, list(args), [mx.ones_like(given[0])] * len(call(*given)))
            return sum(
                (g * d).astype(mx.float32).sum() for g, d in zip(grads, directions, strict=True)
            )

        second = mx.grad(along, argnums=tuple(range(len(given))))(*given)
        return *mx.jvp(call, given, directions)[1], *second

    for got, wanted in zip(derivatives(mx.float16), derivatives(mx.float32), strict=True):
        assert got.dtype == mx.float16
        assert_near(got, to_numpy(wanted), 16)


@each_op
def test_vmap(case):
    op, _, _, weights, _ = case
    arrays = list(next(inputs(mx.float32, weights, (4, 3, 6))))
    axes = (0, 1) + (None,) * weights
    got = mx.vmap(op, in_axes=axes)(arrays[0], arrays[1].swapaxes(0, 1), *arrays[2:])
    for g, w in zip(outputs(got), outputs(op(*arrays)), strict=True):
        np.testing.assert_array_equal(g, w)


@each_op
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(case, layout):
    op, reference, _, weights, _ = case
    arrays = [LAYOUTS[layout](a) for a in next(inputs(mx.float32, weights))]
    wanted = reference(*(to_numpy(a) for a in arrays))
    for g, w in zip(outputs(op(*arrays)), wanted, strict=True):
        np.testing.assert_allclose(g, w, 1e-5, 1e-3)  # a row of equal elements has variance 0


@each_op
def test_promotion(case):
    op = case[0]
    for dtypes in ((mx.float16, mx.bfloat16), (mx.int32, mx.int32)):
        for out in outputs(op(*(mx.ones((2, 4), d) for d in dtypes))):
            assert out.dtype == mx.float32


@each_op
def test_special_values(case):
    op = case[0]
    x = mx.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1e-30, -1e-30]])
    y = to_numpy(outputs(op(x, mx.zeros_like(x)))[0])
    assert y[0].tolist() == [0, 0]
    assert np.isnan(y[1:3]).any(axis=-1).all()
    assert np.isfinite(y[3]).all()


def test_gates_far_out():
    gate = mx.array([[-200.0, -90.0, 90.0, 200.0]])
    x = mx.ones_like(gate)
    y = mlxops.nn.rms_norm_gate(x, gate, eps=0.0)
    np.testing.assert_allclose(y, [[0, 0, 90, 200]], 1e-6, 1e-30)
    slope = mx.grad(lambda g: mlxops.nn.rms_norm_gate(x, g, eps=0.0).sum())(gate)
    np.testing.assert_allclose(slope, [[0, 0, 1, 1]], 1e-6, 1e-30)


@each_op
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 4)], ids=str)
def test_empty(case, shape):
    op, _, _, weights, _ = case
    x = mx.zeros(shape)
    weight = mx.ones(shape[-1:])
    for out in outputs(op(x, x, *[weight] * weights)):
        assert out.shape == shape
        mx.eval(out)
    for out in outputs(mx.vmap(op, in_axes=(0, None))(mx.zeros((3, *shape)), x)):
        assert out.shape == (3, *shape)
        mx.eval(out)
    for given in range(2, 2 + weights):
        gradient = mx.grad(lambda *a: sum(o.sum() for o in outputs(op(*a))), argnums=given)
        assert gradient(x, x, *[weight] * weights).tolist() == [0.0] * shape[-1]


@each_op
def test_shapeless_compile(case):
    op, _, _, weights, _ = case
    compiled = mx.compile(lambda *args: op(*args), shapeless=True)
    for shape in ((2, 8), (5, 8), (3, 16), (7, 3)):
        arrays = next(inputs(mx.float32, weights, shape))
        for g, w in zip(outputs(compiled(*arrays)), outputs(op(*arrays)), strict=True):
            np.testing.assert_array_equal(g, w)


def test_errors():
    x = mx.ones((2, 4))
    with pytest.raises(ValueError, match=r"^\[rms_norm_gate\] gate must be \(\.\.\., D\), as x is"):
        mlxops.nn.rms_norm_gate(x, mx.ones((4,)))
    with pytest.raises(ValueError, match=r"^\[rms_norm_gate\] weight must be \(D,\)"):
        mlxops.nn.rms_norm_gate(x, x, mx.ones((5,)))
    with pytest.raises(ValueError, match="'silu', 'sigmoid'"):
        mlxops.nn.rms_norm_gate(x, x, activation="relu")
    with pytest.raises(ValueError, match=r"^\[norm_add_norm\] w2 must be \(D,\)"):
        mlxops.nn.norm_add_norm(x, x, None, mx.ones((5,)))
    with pytest.raises(ValueError, match=r"^\[layer_norm_residual\] bias must be \(D,\)"):
        mlxops.nn.layer_norm_residual(x, x, None, mx.ones((4, 1)))
    with pytest.raises(ValueError, match=r"^\[layer_norm_residual\] x must be \(\.\.\., D\)"):
        mlxops.nn.layer_norm_residual(mx.array(1.0), mx.array(1.0))
