"""kl_div_loss and js_div_loss: divergences of logits, as in distillation."""

from functools import partial

import mlx.core as mx
import mlxops
import mpmath
import numpy as np
import pytest
from nn.losses import EPSILON, log_softmax
from nn.test_linear_cross_entropy import row_weights
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, gradcheck, metal_backend, to_numpy

OPTIONS = [
    ("kl_div_loss", {}),
    ("kl_div_loss", {"temperature": 2.5}),
    ("js_div_loss", {}),
    ("js_div_loss", {"beta": 0.125, "temperature": 0.5}),
    ("js_div_loss", {"beta": 0.75}),
]


def kl(log_p, log_q):
    with np.errstate(invalid="ignore"):
        return np.where(log_p == -np.inf, 0, np.exp(log_p) * (log_p - log_q)).sum(axis=-1)


def reference(op, x, y, mask=None, beta=0.5, temperature=1.0, reduction="mean", row_weight=None):
    """Return the loss, and the gradients of its sum with respect to x and y."""
    log_q, log_p = log_softmax(x / temperature), log_softmax(y / temperature)
    q, p = np.exp(log_q), np.exp(log_p)
    if op == "kl_div_loss":
        losses = kl(log_p, log_q)
        gradients = q - p, p * (log_p - log_q - losses[..., None])
    else:
        log_m = np.logaddexp(np.log(beta) + log_p, np.log(1 - beta) + log_q)
        of_p, of_q = kl(log_p, log_m)[..., None], kl(log_q, log_m)[..., None]
        losses = (beta * of_p + (1 - beta) * of_q)[..., 0]
        gradients = (1 - beta) * q * (log_q - log_m - of_q), beta * p * (log_p - log_m - of_p)
    mask = np.ones(losses.shape) if mask is None else mask
    weights = mask if row_weight is None else mask * to_numpy(row_weight)
    losses = losses * weights
    gradients = tuple(g / temperature * weights[..., None] for g in gradients)
    if reduction == "none":
        return losses, gradients
    count = weights.sum() + (not weights.any()) if reduction == "mean" else 1
    return losses.sum() / count, tuple(g / count for g in gradients)


def loss_and_grads(op, x, y, mask=None, **options):
    def loss(x, y):
        out = getattr(mlxops.nn, op)(x, y, mask, **options)
        return out.sum(), out

    (_, out), gradients = mx.value_and_grad(loss, argnums=(0, 1))(x, y)
    return out, gradients


def inputs(dtype, shape=(3, 4, 9), seed=0, size=4.0):
    x, x_ = draw(dtype, shape, -size, size, seed)
    y, y_ = draw(dtype, shape, -size, size, seed + 1)
    return (x, y), (x_, y_)


def assert_near(got, wanted, epsilon):
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, epsilon * scale)


def check(op, arrays, values, mask=None, epsilon=None, **options):
    out, gradients = loss_and_grads(
        op, *arrays, None if mask is None else mx.array(mask), **options
    )
    loss, wanted = reference(op, *values, mask, **options)
    dtype = arrays[0].dtype
    sums = epsilon or (1e-12 if dtype == mx.float64 else 4e-6)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert_near(out, loss, sums)
    for gradient, w in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_values(dtype, op, options, masked, reduction):
    mask = np.arange(12).reshape(3, 4) % 5 != 1 if masked else None
    check(op, *inputs(dtype), mask, reduction=reduction, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_row_weights(op, masked, reduction):
    mask = np.arange(12).reshape(3, 4) % 5 != 1 if masked else None
    weights = row_weights((3, 4))
    check(op, *inputs(mx.float32), mask, reduction=reduction, row_weight=weights)


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_rows_without_weight_are_not_read(op):
    (x, y), _ = inputs(mx.float32, (4, 9))
    mask, weights = mx.array([True, True, False, True]), mx.array([0.5, 0.0, 1.0, 2.0])
    wanted = loss_and_grads(op, x, y, mask, row_weight=weights)
    x[1], weights[2] = mx.nan, mx.nan
    out = loss_and_grads(op, x, y, mask, row_weight=weights)
    for got, same in zip((out[0], *out[1]), (wanted[0], *wanted[1]), strict=True):
        np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_row_weights_have_no_gradient_and_may_be_zero(op):
    (x, y), _ = inputs(mx.float32, (3, 5))
    with pytest.raises(ValueError, match="Not differentiable"):
        mx.grad(lambda w: getattr(mlxops.nn, op)(x, y, row_weight=w))(mx.ones(3))
    for mask, weights in ((mx.zeros(3, mx.bool_), mx.ones(3)), (None, mx.zeros(3))):
        assert getattr(mlxops.nn, op)(x, y, mask, row_weight=weights).item() == 0


@pytest.mark.parametrize("words", [1, 2, 5, 127, 129, 1024, 1025, 2500, 4097])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_rows_of_any_length(op, words):
    (_, y), (x_, y_) = inputs(mx.float32, (3, words), words)
    # Large logits after small ones, and small ones after large ones.
    ramp = np.linspace(-20, 20, words)
    x_ = np.float32(x_ + np.stack([ramp, ramp[::-1], 0 * ramp])).astype(np.float64)
    check(op, (mx.array(x_, mx.float32), y), (x_, y_), epsilon=2e-5)
    check(op, (y, mx.array(x_, mx.float32)), (y_, x_), epsilon=2e-5)


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_equal_distributions(op):
    (x, _), _ = inputs(mx.float32)
    out, gradients = loss_and_grads(op, x, x + 3.0, reduction="none")
    np.testing.assert_allclose(out, np.zeros((3, 4)), atol=1e-6)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, np.zeros(x.shape), atol=1e-6)


def exact(op, x, y, beta=0.5, temperature=1.0):
    """Return the losses of rows and their gradients by the definition, in 80 digits."""
    rows = []
    with mpmath.workdps(80):
        part, temperature = mpmath.mpf(beta), mpmath.mpf(temperature)
        for logits in zip(x, y, strict=True):
            q, p = ([mpmath.exp(mpmath.mpf(float(z)) / temperature) for z in a] for a in logits)
            q, p = ([e / sum(a) for e in a] for a in (q, p))
            m = [part * b + (1 - part) * a for a, b in zip(q, p, strict=True)]
            divergences, gradients = [], []
            for a, to in ((q, m), (p, q if op == "kl_div_loss" else m)):
                logs = [mpmath.log(e / f) for e, f in zip(a, to, strict=True)]
                of = sum(e * log for e, log in zip(a, logs, strict=True))
                divergences.append(of)
                gradients.append([e * (log - of) for e, log in zip(a, logs, strict=True)])
            if op == "kl_div_loss":
                loss, parts = divergences[1], (1, 1)
                gradients[0] = [a - b for a, b in zip(q, p, strict=True)]
            else:
                parts = (1 - part, part)
                loss = sum(f * of for f, of in zip(parts, divergences, strict=True))
            factors = [f / temperature for f in parts]
            scaled = ([float(f * g) for g in a] for f, a in zip(factors, gradients, strict=True))
            rows.append((float(loss), *scaled))
    return map(np.array, zip(*rows, strict=True))


def assert_exact(op, x, y, epsilon, **options):
    """Compare losses, and gradients relative to the largest element of a row."""
    x, y = np.float32(x), np.float32(y)
    out, gradients = loss_and_grads(op, mx.array(x), mx.array(y), reduction="none", **options)
    losses, *wanted = exact(op, x, y, **options)
    np.testing.assert_allclose(out, losses, epsilon, 1e-37)
    for gradient, w in zip(gradients, wanted, strict=True):
        # If all are smaller, they are subnormal.
        largest = np.maximum(np.abs(w).max(-1, keepdims=True), 1e-30)
        np.testing.assert_allclose(to_numpy(gradient) / largest, w / largest, 0, epsilon)


@pytest.mark.parametrize("certain", ["logits", "target", "both", "others", "all but one"])
@pytest.mark.parametrize(("op", "options"), [*OPTIONS, ("js_div_loss", {"beta": 1e-4})])
def test_distributions_that_are_nearly_certain(op, options, certain):
    """Both certain of one word or of different words, or one with a second word."""
    apart = np.array([5.0, 9.0, 12.0, 18.0, 25.0, 60.0])
    x, y = np.random.default_rng(1).normal(size=(2, 6, 70))
    words, rows = [3, 69, 0, 7, 7, 31], np.arange(6)
    if certain != "target":
        x[rows, words] = x.max(-1) + apart
    if certain != "logits":
        y[rows, np.roll(words, 1) if certain == "others" else words] = y.max(-1) + apart
    if certain == "all but one":
        x[:, 5] = -200.0
    # Metal has no double for distributions that are nearly equal.
    same = metal_backend() is not None and certain in ("both", "all but one")
    assert_exact(op, x, y, 1e-4 if same else 1e-5, **options)


@pytest.mark.parametrize("beta", [1e-12, 1e-6, 1e-3, 0.1, 0.9, 0.999, 1 - 1e-6])
def test_mixtures_of_nearly_one(beta):
    """Also for distributions that are far from each other."""
    apart = np.array([[1.0], [1.5], [5.0], [10.0], [30.0], [60.0]])
    x, y = apart * np.random.default_rng(5).normal(size=(2, 6, 20))
    assert_exact("js_div_loss", x, y, 1e-5, beta=beta)


@pytest.mark.parametrize("apart", [30.0, 200.0, 5000.0])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_distributions_that_are_far_apart(op, apart):
    x = np.array([[apart, 0, 1], [-apart, 2, 0], [0, 0, 0]])
    y = np.array([[-apart, 0, 1], [apart, 2, 0], [apart, 0, -apart]])
    out, gradients = loss_and_grads(op, mx.array(x), mx.array(y), reduction="none")
    loss, _ = reference(op, x, y, reduction="none")
    np.testing.assert_allclose(out, loss, 1e-5, 1e-6 * apart)
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_infinite_logits():
    """Words without probability in one distribution or in both."""
    inf = np.inf
    x = mx.array([[-inf, 1, 2], [-inf, 1, 2], [0, 1, 2], [-inf, -inf, -inf], [np.nan, 0, 0]])
    y = mx.array([[-inf, 2, 1], [0, 1, 2], [-inf, 2, 1], [0, 0, 0], [0, 0, 0]])
    out, (of_x, of_y) = loss_and_grads("kl_div_loss", x, y, reduction="none")
    two = reference("kl_div_loss", np.array([[1, 2]]), np.array([[2, 1]]), reduction="none")
    three = reference(
        "kl_div_loss", np.array([[0, 1, 2]]), np.array([[-1e9, 2, 1]]), reduction="none"
    )
    np.testing.assert_allclose(to_numpy(out)[[0, 2]], [two[0][0], three[0][0]], 1e-5)
    assert out[1].item() == inf
    assert np.isnan(np.array(out)[3:]).all()
    np.testing.assert_allclose(to_numpy(of_x)[0], [0, *two[1][0][0]], 1e-5, 1e-7)
    np.testing.assert_allclose(to_numpy(of_y)[0], [0, *two[1][1][0]], 1e-5, 1e-7)
    np.testing.assert_allclose(to_numpy(of_x)[2], three[1][0][0], 1e-5, 1e-7)
    out, (of_x, of_y) = loss_and_grads("js_div_loss", x, y, reduction="none")
    for row in range(3):
        finite = [np.maximum(to_numpy(a)[row : row + 1], -1e9) for a in (x, y)]
        loss, gradients = reference("js_div_loss", *finite, reduction="none")
        np.testing.assert_allclose(out[row].item(), loss[0], 1e-5)
        for g, w in zip((of_x, of_y), gradients, strict=True):
            np.testing.assert_allclose(to_numpy(g)[row], w[0], 1e-5, 1e-7)
    assert np.isnan(np.array(out)[3:]).all()


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_rows_that_are_left_out_are_not_read(op, options):
    (x, y), (x_, y_) = inputs(mx.float32, (4, 5))
    x[1], y[3] = np.nan, np.inf
    mask = np.array([True, False, True, False])
    out, gradients = loss_and_grads(op, x, y, mx.array(mask), **options)
    loss, wanted = reference(op, x_[::2], y_[::2], **options)
    np.testing.assert_allclose(out, loss, 1e-5)
    for g, w in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(to_numpy(g)[::2], w, 1e-4, 1e-6)
        assert (to_numpy(g)[1::2] == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_no_rows_at_all(op, rows, reduction):
    x = mx.ones((rows, 4))
    out, gradients = loss_and_grads(op, x, x, mx.zeros((rows,), mx.bool_), reduction=reduction)
    assert out.item() == 0
    for gradient in gradients:
        assert gradient.shape == (rows, 4)
        assert not np.array(gradient).any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_strides(op, layout):
    (x, y), _ = inputs(mx.float32)
    mask = LAYOUTS[layout](mx.array(np.arange(12).reshape(3, 4) % 5 != 1))
    x, y = LAYOUTS[layout](x), LAYOUTS[layout](y)
    out, gradients = loss_and_grads(op, x, y, mask)
    loss, wanted = reference(op, to_numpy(x), to_numpy(y), np.array(mask))
    np.testing.assert_allclose(out, loss, 1e-5, 1e-6)
    for g, w in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-6)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_transforms(op, options):
    (x, y), (x_, y_) = inputs(mx.float32)

    def fn(x, y):
        return getattr(mlxops.nn, op)(x, y, **options)

    wanted = [reference(op, *rows, **options) for rows in zip(x_, y_, strict=True)]
    np.testing.assert_allclose(mx.vmap(fn)(x, y), [loss for loss, _ in wanted], 1e-5)
    gradients = mx.vmap(mx.grad(fn, argnums=(0, 1)))(x, y)
    for i, gradient in enumerate(gradients):
        np.testing.assert_allclose(gradient, np.stack([g[i] for _, g in wanted]), 1e-4, 1e-6)
    compiled = mx.compile(mx.grad(fn), shapeless=True)
    for shape in ((2, 8), (5, 3)):
        (x, y), _ = inputs(mx.float32, shape)
        np.testing.assert_allclose(compiled(x, y), mx.grad(fn)(x, y), 1e-6, 1e-7)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_second_derivatives(op, options):
    (x, y), _ = inputs(mx.float64, (3, 5))
    mask = mx.array([True, False, True])

    def fn(x, y):
        return getattr(mlxops.nn, op)(x, y, mask, **options)

    gradcheck(fn, x, y, checks=("second", "vmap"))


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_second_derivatives_of_words_without_probability(op):
    """They are those of the other words alone."""
    (x, y), _ = inputs(mx.float64, (2, 4))
    u = mx.array([[1.0, -2.0, 0.5, 3.0]])

    def second(x, y, u):
        def change(x, y):
            of_x, of_y = mx.grad(getattr(mlxops.nn, op), argnums=(0, 1))(x, y)
            return (u * (of_x + 2 * of_y)).sum()

        return mx.grad(change, argnums=(0, 1))(x, y)

    none = mx.full((2, 1), -mx.inf, mx.float64)
    wider = second(
        *(mx.concatenate([a, none], axis=1) for a in (x, y)), mx.pad(u, [(0, 0), (0, 1)])
    )
    for got, wanted in zip(wider, second(x, y, u), strict=True):
        np.testing.assert_allclose(got[:, :4], wanted, 1e-12)
        assert not np.array(got[:, 4]).any()


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_third_derivatives(op):
    (x, y), _ = inputs(mx.float64, (2, 4))
    loss = partial(getattr(mlxops.nn, op), temperature=2.0)
    gradcheck(mx.grad(loss, (0, 1)), x, y, checks=("vjp", "jvp", "second"))


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_masks_of_numpy(op):
    (x, y), _ = inputs(mx.float32, (3, 4))
    mask = np.array([True, False, True])
    out = getattr(mlxops.nn, op)(x, y, mask)
    assert out.item() == getattr(mlxops.nn, op)(x, y, mx.array(mask)).item()


@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_errors(op):
    x = mx.ones((4, 3))
    shapes = r"target_logits must be \(\.\.\., V\), as logits is"
    cases = [
        ((x, x[:3]), {}, shapes),
        ((x, x[:, :2]), {}, shapes),
        ((x[:, :0], x[:, :0]), {}, "the number of words must not be 0"),
        ((mx.array(1.0), mx.array(1.0)), {}, r"logits must be \(\.\.\., V\)"),
        ((x, x, mx.ones(3, mx.bool_)), {}, r"mask must be \(\.\.\.\), where"),
        ((x, x, mx.ones(4)), {}, "mask must be an array of bools"),
        ((x, x), {"temperature": 0.0}, "temperature must be positive"),
        ((x, x), {"temperature": float("nan")}, "temperature must be positive"),
    ]
    if op == "js_div_loss":
        cases += [((x, x), {"beta": b}, "beta must be above 0 and below 1") for b in (0.0, 1.0)]
    for args, options, message in cases:
        with pytest.raises(ValueError, match=rf"^\[{op}\] {message}"):
            getattr(mlxops.nn, op)(*args, **options)
