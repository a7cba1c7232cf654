"""quantized_linear_cross_entropy against NumPy in float64, with the weights of mx.dequantize."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn.losses import EPSILON
from nn.test_linear_cross_entropy import (
    OPTIONS,
    assert_near,
    class_weights,
    reference,
    row_weights,
)
from ops.accuracy import draw

from mlxgen.testing import gradcheck, metal_backend, to_numpy

MODES = {
    "affine 4": {"bits": 4, "group_size": 32},
    "affine 8": {"bits": 8},
    "affine 3": {"bits": 3},
    "affine 1": {"bits": 1},
    "affine": {},
    "mxfp4": {"mode": "mxfp4"},
    "mxfp8": {"mode": "mxfp8"},
    "nvfp4": {"mode": "nvfp4"},
}


def inputs(dtype, mode, rows=(3, 4), depth=64, words=9, ignore_index=-100, **_):
    """Return arrays, the parts of the quantized weights, the values of all, and targets."""
    x, x_ = draw(dtype, (*rows, depth), -1.5, 1.5, 1)
    bias, bias_ = draw(dtype, (words,), -1.5, 1.5, 2)
    # MLX does not quantize float64.
    dense = draw(mx.float32 if dtype == mx.float64 else dtype, (words, depth), -0.5, 0.5, 3)[0]
    parts = mx.quantize(dense, **MODES[mode])
    weight_ = to_numpy(mx.dequantize(*parts, **MODES[mode]))
    weight = [*parts, *[None] * (3 - len(parts))]
    targets = np.random.default_rng(1).integers(0, words, rows)
    targets.reshape(-1)[1::5] = ignore_index
    edge = 2**20 // depth  # the first word of the second block
    if words > edge:
        targets.reshape(-1)[[0, 2, 3, 4]] = edge - 2, edge - 1, edge, words - 1
    return (x, weight, bias), (x_, weight_, bias_), targets


def loss_and_grads(x, weight, targets, bias=None, **options):
    targets = mx.array(targets)

    def loss(x, bias=None):
        out = mlxops.nn.quantized_linear_cross_entropy(x, *weight, targets, bias, **options)
        return out.sum(), out

    args = (x,) if bias is None else (x, bias)
    (_, out), gradients = mx.value_and_grad(loss, argnums=tuple(range(len(args))))(*args)
    return out, [gradients] if bias is None else gradients


def check(dtype, mode, biased, epsilon=None, sizes=(), **options):
    (x, weight, bias), (x_, weight_, bias_), targets = inputs(dtype, mode, *sizes, **options)
    given = {**options, **MODES[mode]}
    out, gradients = loss_and_grads(x, weight, targets, bias if biased else None, **given)
    loss, (of_x, _, of_bias) = reference(x_, weight_, targets, bias_ if biased else None, **options)
    sums = epsilon or (1e-12 if dtype == mx.float64 else 4e-6)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert_near(out, loss, sums)
    for gradient, w in zip(gradients, (of_x, of_bias)[: 1 + biased], strict=True):
        assert gradient.dtype == dtype and gradient.shape == w.shape
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_modes(dtype, mode, biased):
    check(dtype, mode, biased)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_options(dtype, options, weighted, reduction):
    options = {**OPTIONS[options], "reduction": reduction}
    if weighted:
        options |= {"class_weight": class_weights(9), "row_weight": row_weights((3, 4))}
    check(dtype, "affine 4", True, **options)


@pytest.mark.parametrize(
    ("mode", "rows", "depth", "words"),
    [
        ("affine 8", 9, 2048, 1100),  # three blocks of words
        ("mxfp4", 40, 32, 33_000),  # two, each in several parts
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_more_than_a_block(mode, rows, depth, words, weighted, device):
    options = {}
    if weighted:
        weights = {"class_weight": class_weights(words), "row_weight": row_weights(rows)}
        options = {**weights, "label_smoothing": 0.1, "z_loss": 0.01, "logit_softcap": 3.0}
    check(mx.float32, mode, True, 2e-5, ((rows,), depth, words), **options)


def test_targets_that_are_no_words():
    (x, weight, bias), _, _ = inputs(mx.float32, "mxfp8", (5,), words=3)
    targets = np.array([0, -1, 3, 2**31 - 1, 2])
    out, (of_x, _) = loss_and_grads(x, weight, targets, bias, mode="mxfp8", reduction="none")
    wrong = [False, True, True, True, False]
    assert np.isnan(out).tolist() == wrong
    assert np.isnan(of_x).all(axis=1).tolist() == wrong
    assert np.isfinite(np.array(of_x)[[0, 4]]).all()


def test_ignored_rows_are_not_read():
    (x, weight, bias), (x_, weight_, bias_), _ = inputs(mx.float32, "nvfp4", (5,))
    x[1], x[4] = np.nan, np.inf
    targets = np.array([3, -100, 0, 8, -100])
    kept = [0, 2, 3]
    out, (of_x, of_bias) = loss_and_grads(x, weight, targets, bias, mode="nvfp4")
    loss, wanted = reference(x_[kept], weight_, targets[kept], bias_)
    np.testing.assert_allclose(out, loss, 1e-5)
    assert not of_x[mx.array([1, 4])].any()
    assert_near(of_x[mx.array(kept)], wanted[0], 1e-5)
    assert_near(of_bias, wanted[2], 1e-5)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_targets_at_all(dtype, rows):
    (x, weight, bias), _, _ = inputs(dtype, "affine", (rows,))
    out, gradients = loss_and_grads(x, weight, np.full(rows, -100), bias)
    assert out.item() == 0
    for gradient, a in zip(gradients, (x, bias), strict=True):
        assert gradient.shape == a.shape and not to_numpy(gradient).any()


def test_vmap_and_compile():
    (x, weight, bias), (x_, weight_, bias_), targets = inputs(mx.float32, "affine 4")
    options = MODES["affine 4"]

    def fn(x, targets, bias):
        return mlxops.nn.quantized_linear_cross_entropy(x, *weight, targets, bias, **options)

    wanted = [reference(row, weight_, t, bias_) for row, t in zip(x_, targets, strict=True)]
    args = (x, mx.array(targets), bias)
    got = mx.vmap(fn, in_axes=(0, 0, None))(*args)
    np.testing.assert_allclose(got, [loss for loss, _ in wanted], 1e-5)
    got = mx.vmap(mx.grad(fn), in_axes=(0, 0, None))(*args)
    assert_near(got, np.stack([g[0] for _, g in wanted]), 1e-5)
    loss, gradient = mx.compile(mx.value_and_grad(fn))(*args)
    wanted = reference(x_, weight_, targets, bias_)
    np.testing.assert_allclose(loss, wanted[0], 1e-5)
    assert_near(gradient, wanted[1][0], 1e-5)
    with pytest.raises(ValueError, match="shapeless"):
        mx.compile(fn, shapeless=True)(*args)


def test_finite_differences():
    (x, weight, bias), _, targets = inputs(mx.float64, "affine 8", (2,), words=5)
    options = {"label_smoothing": 0.1, "z_loss": 0.1, "class_weight": class_weights(5)}
    _, (of_x, of_bias) = loss_and_grads(x, weight, targets, bias, **MODES["affine 8"], **options)

    def loss(x, bias):
        return loss_and_grads(x, weight, targets, bias, **MODES["affine 8"], **options)[0].item()

    rng = np.random.default_rng(0)
    for _ in range(3):
        step = mx.array(rng.normal(size=x.shape) * 1e-5, mx.float64)
        up, down = loss(x + step, bias), loss(x - step, bias)
        np.testing.assert_allclose(up - down, 2 * to_numpy((of_x * step).sum()), 1e-6)
        step = mx.array(rng.normal(size=bias.shape) * 1e-5, mx.float64)
        up, down = loss(x, bias + step), loss(x, bias - step)
        np.testing.assert_allclose(up - down, 2 * to_numpy((of_bias * step).sum()), 1e-6)


@pytest.mark.skipif(metal_backend() is not None, reason="there blocks are MLX's arrays")
@pytest.mark.parametrize("mode", ["mxfp8", "affine 8"])
def test_memory(mode):
    """Less than half of the dequantized weights if these are large, and a quarter of the logits."""
    for rows, depth, words in ((8, 512, 65_536), (1024, 64, 32_768)):
        x = mx.ones((rows, depth), mx.bfloat16)
        weight = mx.quantize(mx.ones((words, depth), mx.bfloat16), **MODES[mode])
        weight = [*weight, *[None] * (3 - len(weight))]
        targets = mx.zeros((rows,), mx.int32)
        mx.eval(x, weight, targets)

        def loss(x, weight=weight, targets=targets):
            return mlxops.nn.quantized_linear_cross_entropy(x, *weight, targets, **MODES[mode])

        for call in (loss, mx.grad(loss)):
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            mx.eval(call(x))
            used = mx.get_peak_memory() - before
            assert used < words * max(2 * depth / 2, 4 * rows / 4)


def test_has_no_other_gradient():
    (x, weight, _), _, targets = inputs(mx.float32, "affine", (3,))

    def loss(scales):
        args = (x, weight[0], scales, weight[2], mx.array(targets))
        return mlxops.nn.quantized_linear_cross_entropy(*args)

    with pytest.raises(ValueError, match="Not differentiable with respect to 'scales'"):
        mx.grad(loss)(weight[1])


def test_errors():
    (x, (weight, scales, biases), _), _, _ = inputs(mx.float32, "affine", (4,))
    targets = mx.zeros(4, mx.int32)
    fits = "weight and scales must be those of rows of D elements"
    for args, options, message in (
        ((x, weight, scales, None, targets), {}, "biases are required for the mode affine"),
        (
            (x, weight, scales, biases, targets),
            {"mode": "mxfp4"},
            "biases are required for the mode affine and for no other",
        ),
        ((x, weight, scales, biases, targets), {"bits": 8}, fits),
        ((x, weight, scales, biases, targets), {"group_size": 32}, fits),
        ((x[:, :32], weight, scales, biases, targets), {}, fits),
        ((x, weight.astype(mx.int32), scales, biases, targets), {}, "weight must be the uint32"),
        ((x, weight, scales[:5], biases, targets), {}, r"scales must be \(V, G\)"),
        ((x, weight, scales, biases, targets[:3]), {}, r"targets must be \(\.\.\.\)"),
        ((x, weight, scales, biases, targets, mx.ones(4)), {}, r"bias must be \(V,\)"),
        (
            (x, weight, scales, biases, targets),
            {"class_weight": mx.ones(4)},
            r"class_weight must be \(V,\)",
        ),
        ((x, weight, scales, biases, targets.astype(mx.float32)), {}, "targets must be integers"),
    ):
        with pytest.raises(ValueError, match=r"^\[quantized_linear_cross_entropy\] " + message):
            mlxops.nn.quantized_linear_cross_entropy(*args, **options)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["affine 4", "mxfp4"])
@pytest.mark.parametrize(
    "options",
    [{}, {"z_loss": 0.1, "label_smoothing": 0.1, "logit_softcap": 2.0, "reduction": "none"}],
)
def test_second_derivatives(mode, options):
    (x, weight, bias), _, _ = inputs(mx.float64, mode, (3,), 32, 5)
    targets = mx.array([2, -100, 4])
    options = {**options, **MODES[mode], "class_weight": mx.array([0.5, 2.0, 1.0, 0.0, 3.0])}

    def loss(x, bias=None):
        return mlxops.nn.quantized_linear_cross_entropy(x, *weight, targets, bias, **options)

    gradcheck(loss, x, bias, checks=("second", "jvp"), limit=4)
    gradcheck(loss, x, checks=("second",), limit=4)
