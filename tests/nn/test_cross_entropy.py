"""cross_entropy: one pass over the logits for the loss, and one for the gradient."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn import losses
from nn.losses import EPSILON
from ops.accuracy import INTEGERS, draw, name

from mlxgen.testing import LAYOUTS, gradcheck, to_numpy

OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.25},
    "z": {"z_loss": 0.125},
    "capped": {"logit_softcap": 2.5},
    "all": {"label_smoothing": 0.1, "z_loss": 0.01, "logit_softcap": 4.0, "ignore_index": 1},
}


def inputs(dtype, shape=(3, 4, 9), seed=0, ignore_index=-100, **_):
    logits, values = draw(dtype, shape, -6, 6, seed)
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, shape[-1], shape[:-1])
    targets.reshape(-1)[1::5] = ignore_index
    return logits, values, targets


def loss_and_grad(logits, *args, **options):
    def loss(x):
        out = mlxops.nn.cross_entropy(x, *args, **options)
        return out.sum(), out

    (_, out), gradient = mx.value_and_grad(loss)(logits)
    return out, gradient


def assert_near(got, wanted, epsilon):
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, epsilon * scale)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_values(dtype, options, weighted, reduction):
    options = {**OPTIONS[options], "reduction": reduction}
    logits, values, targets = inputs(dtype, **options)
    if weighted:
        of_rows = np.linspace(0, 2, targets.size).astype(np.float32).reshape(targets.shape)
        options["row_weight"] = mx.array(of_rows)
    weight = np.linspace(0.5, 2, 9).astype(np.float32) if weighted else None
    args = (None if weight is None else mx.array(weight),)
    out, gradient = loss_and_grad(logits, mx.array(targets), *args, **options)
    wanted, wanted_gradient = losses.cross_entropy(values, targets, weight, **options)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert gradient.dtype == dtype
    # Weights are float32, also as constants of formulas.
    assert_near(out, wanted, 2e-6 if dtype != mx.float64 else 1e-12)
    assert_near(
        gradient, wanted_gradient, max(2 * EPSILON[dtype], 1e-12) + 2e-6 * (dtype != mx.float64)
    )


@pytest.mark.parametrize("words", [1, 2, 4, 5, 127, 128, 129, 1024, 1025, 2500, 4097])
@pytest.mark.parametrize("options", ["smooth", "all"])
def test_rows_of_any_length(words, options):
    options = OPTIONS[options]
    _, values, targets = inputs(mx.float32, (3, words), words, **options)
    # Large logits after small ones, and small ones after large ones.
    ramp = np.linspace(-40, 40, words)
    values = np.float32(values + np.stack([ramp, ramp[::-1], 0 * ramp])).astype(np.float64)
    out, gradient = loss_and_grad(mx.array(values, mx.float32), mx.array(targets), **options)
    wanted, wanted_gradient = losses.cross_entropy(values, targets, **options)
    assert_near(out, wanted, 5e-6)
    assert_near(gradient, wanted_gradient, 1e-5)


@pytest.mark.parametrize("words", [9, 70, 1100])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
def test_probabilities_of_nearly_one(dtype, words):
    """Losses far below epsilon have all their digits, wherever the target is."""
    places = [0, words // 2, words - 1]
    z = np.zeros((3, words))
    z[range(3), places] = 50
    out = mlxops.nn.cross_entropy(mx.array(z, dtype), mx.array(places), reduction="none")
    np.testing.assert_allclose(to_numpy(out), (words - 1) * np.exp(-50.0), 2e-6)


def test_infinite_logits():
    """The results are those of torch 2.13.0."""
    inf = np.inf
    logits = mx.array([[-inf, 1, 2], [-inf, 0, -1], [-inf, -inf, -inf], [np.nan, 0, 1]])
    out, gradient = loss_and_grad(logits, mx.array([1, 0, 2, 2]), reduction="none")
    np.testing.assert_allclose(out, [1.3132617, inf, np.nan, np.nan], 1e-6)
    np.testing.assert_allclose(
        to_numpy(gradient)[:2], [[0, -0.7310586, 0.7310586], [-1, 0.7310586, 0.2689414]], 1e-6
    )
    assert np.isnan(to_numpy(gradient)[2:]).all()
    # The row begins with many infinite logits.
    row = np.full(3000, -inf)
    row[2500:] = np.linspace(-1, 1, 500)
    got = mlxops.nn.cross_entropy(mx.array(row, mx.float32), mx.array(2600))
    np.testing.assert_allclose(got.item(), -losses.log_softmax(row)[2600], 1e-5)
    # A softcap makes them finite.
    out, gradient = loss_and_grad(mx.array([[-inf, 1.0, inf]]), mx.array([0]), logit_softcap=3.0)
    z = np.array([-3, 3 * np.tanh(1 / 3), 3])
    np.testing.assert_allclose(out.item(), -losses.log_softmax(z)[0], 1e-6)
    assert to_numpy(gradient)[0, [0, 2]].tolist() == [0, 0]
    out, gradient = loss_and_grad(mx.array([[-inf, 1.0, 2.0]]), mx.array([1]), label_smoothing=0.1)
    assert out.item() == inf
    np.testing.assert_allclose(gradient, [[-0.1 / 3, -0.6643919, 0.6977253]], 1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_ignored_rows_are_not_read(options):
    options = {**OPTIONS[options], "ignore_index": 7}
    logits = mx.array([[np.nan, np.inf, 1], [1.0, 2.0, 3.0], [-np.inf, -np.inf, -np.inf]])
    targets = mx.array([7, 2, 7])
    out, gradient = loss_and_grad(logits, targets, **options)
    wanted, wanted_gradient = losses.cross_entropy(to_numpy(logits)[1:2], np.array([2]), **options)
    np.testing.assert_allclose(out, wanted, 1e-5)
    np.testing.assert_allclose(to_numpy(gradient)[1], wanted_gradient[0], 1e-5, 1e-6)
    assert (to_numpy(gradient)[[0, 2]] == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [0, 3])
def test_no_targets_at_all(rows, reduction):
    out, gradient = loss_and_grad(
        mx.ones((rows, 4)),
        mx.full((rows,), -100),
        mx.ones(4),
        label_smoothing=0.1,
        reduction=reduction,
    )
    assert out.item() == 0
    assert gradient.shape == (rows, 4)
    assert not np.array(gradient).any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(3,), (1, 3)], ids=str)
def test_weights_of_words_that_are_all_0(shape, smoothing):
    """torch divides by their sum, 0."""
    logits = mx.array([[1.0, 2.0, -1.0]] * 3).reshape(*shape, 3)
    for weight, targets in (([0, 0, 0], [0, 2, -100]), ([0, 1, 0], [0, 2, 2])):
        for row_weight in (None, mx.full(shape, 2.0)):
            out, gradient = loss_and_grad(
                logits,
                mx.array(targets).reshape(shape),
                mx.array(weight, mx.float32),
                row_weight=row_weight,
                label_smoothing=smoothing,
            )
            assert out.item() == 0
            assert not to_numpy(gradient).any()


@pytest.mark.parametrize("words", [4, 1500])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.25}, {"z_loss": 0.1}])
def test_words_of_weight_0_may_be_impossible(options, words):
    """As words that only fill a vocabulary: their logits are -inf."""
    rng = np.random.default_rng(0)
    z, weight = rng.normal(size=(3, words)), rng.uniform(0.5, 2, words)
    z[:, 1], weight[1] = -np.inf, 0
    targets = np.array([2, 1, 3])
    out, gradient = loss_and_grad(
        mx.array(z, mx.float32),
        mx.array(targets),
        mx.array(weight, mx.float32),
        reduction="none",
        **options,
    )
    finite = np.where(np.isfinite(z), z, -1e4)
    wanted, of = losses.cross_entropy(finite, targets, weight, **options, reduction="none")
    np.testing.assert_allclose(out, wanted, 1e-5)
    np.testing.assert_allclose(gradient, of, 1e-5, 1e-7)
    # The same logits, from a layer whose bias is -inf.
    x, layer = mx.array(z[:, [0, 2, 3]], mx.float32), mx.zeros((words, 3))
    bias = mx.where(mx.arange(words) == 1, -mx.inf, mx.zeros(words))
    got = mlxops.nn.linear_cross_entropy(
        x,
        layer,
        mx.array(targets),
        bias,
        class_weight=mx.array(weight, mx.float32),
        reduction="none",
        **options,
    )
    same = np.where(np.arange(words) == 1, -1e4, 0) * np.ones((3, 1))
    wanted, _ = losses.cross_entropy(same, targets, weight, **options, reduction="none")
    np.testing.assert_allclose(got, wanted, 1e-5)


def test_targets_that_are_no_words():
    logits = mx.zeros((5, 3))
    targets = mx.array([0, -1, 3, 2**31 - 1, 2])
    out, gradient = loss_and_grad(logits, targets, mx.ones(3), reduction="none")
    assert np.isnan(out).tolist() == [False, True, True, True, False]
    assert np.isnan(gradient).all(axis=1).tolist() == [False, True, True, True, False]
    assert np.isfinite(np.array(gradient)[[0, 4]]).all()
    assert np.isnan(mlxops.nn.cross_entropy(logits, targets).item())


def test_targets_of_python_and_numpy():
    """They are not converted to the dtype of the logits."""
    logits, values, _ = inputs(mx.float32, (3, 5))
    for dtype in (np.int32, np.int64, np.uint8):
        targets = np.array([4, 0, 2], dtype)
        out = mlxops.nn.cross_entropy(logits, targets, reduction="sum")
        np.testing.assert_allclose(
            out, losses.cross_entropy(values, targets, reduction="sum")[0], 1e-6
        )
    one = mlxops.nn.cross_entropy(logits[0], 4)
    assert one.item() == mlxops.nn.cross_entropy(logits[0], mx.array(4)).item()
    with pytest.raises(ValueError, match=r"Got logits: float32 \(3, 5\), targets: int32 \(\)"):
        mlxops.nn.cross_entropy(logits, 2)
    with pytest.raises(ValueError, match="targets must be integers"):
        mlxops.nn.cross_entropy(logits, np.array([4.0, 0.0, 2.0]))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_targets_of_any_integer_dtype(dtype):
    logits, values, _ = inputs(mx.float32, (3, 5))
    out = mlxops.nn.cross_entropy(logits, mx.array([4, 0, 2], dtype=dtype), reduction="sum")
    np.testing.assert_allclose(
        out, losses.cross_entropy(values, np.array([4, 0, 2]), reduction="sum")[0], 1e-6
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    logits, _, targets = inputs(mx.float32)
    args = [LAYOUTS[layout](a) for a in (logits, mx.array(targets), mx.linspace(0.5, 2, 9))]
    out, gradient = loss_and_grad(*args, label_smoothing=0.1)
    wanted, of_logits = losses.cross_entropy(
        *(np.array(a).astype(np.float64) if i != 1 else np.array(a) for i, a in enumerate(args)),
        label_smoothing=0.1,
    )
    np.testing.assert_allclose(out, wanted, 1e-5)
    np.testing.assert_allclose(gradient, of_logits, 1e-4, 1e-6)


def test_vmap():
    logits, values, targets = inputs(mx.float32)

    def fn(x, t):
        return mlxops.nn.cross_entropy(x, t, logit_softcap=3.0)

    wanted = [
        losses.cross_entropy(x, t, logit_softcap=3.0) for x, t in zip(values, targets, strict=True)
    ]
    got = mx.vmap(fn)(logits, mx.array(targets))
    np.testing.assert_allclose(got, [loss for loss, _ in wanted], 1e-5)
    got = mx.vmap(mx.grad(fn))(logits, mx.array(targets))
    np.testing.assert_allclose(got, np.stack([g for _, g in wanted]), 1e-4, 1e-6)


def test_compile():
    compiled = mx.compile(lambda *args: loss_and_grad(*args)[1], shapeless=True)
    for shape in ((2, 8), (5, 3)):
        logits, _, targets = inputs(mx.float32, shape)
        args = (logits, mx.array(targets))
        np.testing.assert_allclose(compiled(*args), loss_and_grad(*args)[1], 1e-6, 1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none", "z_loss": 0.3},
        {"label_smoothing": 0.2, "weight": mx.array([0.5, 2.0, 1.0, 0.0, 3.0])},
        {"logit_softcap": 2.0, "z_loss": 0.1, "label_smoothing": 0.1},
        {
            "row_weight": mx.array([0.5, 0.0, 2.0, 1.0]),
            "weight": mx.array([0.5, 2.0, 1.0, 0.0, 3.0]),
        },
    ],
)
def test_second_derivatives(options):
    logits, _, _ = inputs(mx.float64, (4, 5))
    targets = mx.array([2, 0, -100, 4])
    gradcheck(
        lambda x: mlxops.nn.cross_entropy(x, targets, **options), logits, checks=("second", "jvp")
    )


def test_second_derivatives_at_infinite_logits_and_other_targets():
    logits, _, _ = inputs(mx.float64, (2, 4))
    none = mx.full((2, 1), -mx.inf, mx.float64)
    wider = mx.concatenate([logits, none], axis=1)

    def second(x, targets):
        def size(x):
            return mx.square(mx.grad(mlxops.nn.cross_entropy)(x, mx.array(targets))).sum()

        return np.array(mx.grad(size)(x))

    got = second(wider, [1, 3])
    np.testing.assert_allclose(got[:, :4], second(logits, [1, 3]), 1e-12)
    assert not got[:, 4].any()
    assert np.isnan(second(logits, [1, 7])[1]).all()


@pytest.mark.parametrize("options", [{}, {"z_loss": 0.25, "logit_softcap": 2.0}], ids=str)
def test_third_derivatives(options):
    logits, _, targets = inputs(mx.float64, (2, 4))

    def loss(x):
        return mlxops.nn.cross_entropy(x, mx.array(targets), label_smoothing=0.125, **options)

    gradcheck(mx.grad(loss), logits, checks=("vjp", "jvp", "second"))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_have_no_gradient(smoothing):
    def of_weights(w):
        return mlxops.nn.cross_entropy(
            mx.ones((2, 3)), mx.array([0, 1]), w, label_smoothing=smoothing
        )

    with pytest.raises(ValueError, match="Not differentiable with respect to 'weight'"):
        mx.grad(of_weights)(mx.ones(3))


def test_errors():
    logits, targets = mx.ones((4, 3)), mx.zeros((4,), mx.int32)
    for args, options, message in (
        (
            (logits, targets[:3]),
            {},
            r"targets must be \(\.\.\.\), where logits is \(\.\.\., V\)\. Got logits: float32",
        ),
        ((logits, targets.astype(mx.float32)), {}, "targets must be integers"),
        (
            (logits, targets, mx.ones(4)),
            {},
            r"weight must be \(V,\), where logits is \(\.\.\., V\)",
        ),
        ((mx.ones((4, 0)), targets), {}, "the number of words must not be 0"),
        ((mx.array(1.0), mx.array(0)), {}, r"logits must be \(\.\.\., V\)"),
        ((logits, targets), {"label_smoothing": 1.5}, "label_smoothing must be between 0 and 1"),
        (
            (logits, targets),
            {"label_smoothing": float("nan")},
            "label_smoothing must be between 0 and 1",
        ),
        ((logits, targets), {"logit_softcap": -1.0}, "logit_softcap must not be negative"),
    ):
        with pytest.raises(ValueError, match=r"^\[cross_entropy\] " + message):
            mlxops.nn.cross_entropy(*args, **options)
    with pytest.raises(ValueError, match="reduction"):
        mlxops.nn.cross_entropy(logits, targets, reduction="max")
