"""linear_cross_entropy: the cross entropy of logits that are never all stored."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn import losses
from nn.losses import EPSILON
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, gradcheck, metal_backend, to_numpy

OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.25},
    "z": {"z_loss": 0.125},
    "capped": {"logit_softcap": 2.5},
    "all": {"label_smoothing": 0.1, "z_loss": 0.01, "logit_softcap": 4.0, "ignore_index": 1},
}


def reference(x, weight, targets, bias=None, class_weight=None, **options):
    """Return the loss, and the gradients of its sum with respect to x, weight and bias."""
    logits = x @ weight.T + (0 if bias is None else bias)
    loss, g = losses.cross_entropy(logits, targets, class_weight, **options)
    flat = g.reshape(-1, g.shape[-1])
    return loss, [g @ weight, flat.T @ x.reshape(-1, x.shape[-1]), flat.sum(axis=0)]


def inputs(dtype, rows=(3, 4), depth=6, words=9, seed=0, ignore_index=-100, **_):
    arrays = [
        draw(dtype, s, -1.5, 1.5, seed + i)
        for i, s in enumerate(((*rows, depth), (words, depth), (words,)))
    ]
    targets = np.random.default_rng(seed).integers(0, words, rows)
    targets.reshape(-1)[1::5] = ignore_index
    return [a for a, _ in arrays], [x for _, x in arrays], targets


def loss_and_grads(x, weight, targets, bias=None, **options):
    targets = targets if isinstance(targets, mx.array) else mx.array(targets)

    def loss(x, weight, bias=None):
        out = mlxops.nn.linear_cross_entropy(x, weight, targets, bias, **options)
        return out.sum(), out

    args = (x, weight) if bias is None else (x, weight, bias)
    (_, out), gradients = mx.value_and_grad(loss, argnums=tuple(range(len(args))))(*args)
    return out, gradients


def assert_near(got, wanted, epsilon):
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, epsilon * scale)


def check(dtype, arrays, values, targets, biased=True, epsilon=None, **options):
    (x, weight, bias), (x_, weight_, bias_) = arrays, values
    out, gradients = loss_and_grads(x, weight, targets, bias if biased else None, **options)
    loss, wanted = reference(x_, weight_, targets, bias_ if biased else None, **options)
    # Logits are float32, and not rounded.
    sums = epsilon or (1e-12 if dtype == mx.float64 else 4e-6)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert_near(out, loss, sums)
    assert len(gradients) == 2 + biased
    for gradient, w in zip(gradients, wanted, strict=False):
        assert gradient.dtype == dtype
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_values(dtype, options, biased, reduction):
    options = {**OPTIONS[options], "reduction": reduction}
    check(dtype, *inputs(dtype, **options), biased, **options)


def class_weights(words, seed=0):
    """Return weights of words, one of which is 0."""
    weights = np.random.default_rng(seed).uniform(0.25, 2, words).astype(np.float32)
    weights[1::7] = 0
    return mx.array(weights)


def row_weights(rows, seed=0):
    """Return weights of rows, some of which are 0."""
    weights = np.random.default_rng(seed).uniform(-0.5, 2, rows).astype(np.float32)
    return mx.array(np.maximum(weights, 0))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", ["classes", "rows", "both"])
@pytest.mark.parametrize("options", OPTIONS)
def test_weights(dtype, options, weights, reduction):
    options = {**OPTIONS[options], "reduction": reduction}
    drawn = inputs(dtype, **options)
    if weights != "rows":
        options["class_weight"] = class_weights(9)
    if weights != "classes":
        options["row_weight"] = row_weights((3, 4))
    check(dtype, *drawn, True, **options)
    check(dtype, *drawn, False, **options)


@pytest.mark.parametrize(("rows", "depth", "words"), [(5, 3, 2049), (1100, 3, 4200)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_of_more_than_a_block(rows, depth, words, smoothing):
    arrays, values, targets = inputs(mx.float32, (rows,), depth, words)
    scale = 4 / max(depth, 4)
    arrays[1], values[1] = arrays[1] * scale, to_numpy(arrays[1] * scale)
    weights = {"class_weight": class_weights(words), "row_weight": row_weights(rows)}
    options = {"label_smoothing": smoothing, "z_loss": smoothing / 10}
    check(mx.float32, arrays, values, targets, True, 2e-5, **weights, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_without_weight_are_left_out(reduction):
    """They are not read, as if their target were ignored, and a bool is a mask."""
    (x, weight, _), _, _ = inputs(mx.float32, (5,))
    x[1], x[4] = np.nan, np.inf
    targets = mx.array([3, 2, 0, 8, 99])
    kept = mx.array([True, False, True, True, False])
    given = [
        loss_and_grads(x, weight, targets, row_weight=kept, reduction=reduction),
        loss_and_grads(x, weight, targets, row_weight=kept.astype(mx.float16), reduction=reduction),
        loss_and_grads(x, weight, mx.where(kept, targets, -100), reduction=reduction),
        # The weight of an ignored row is not read either.
        loss_and_grads(
            x,
            weight,
            mx.where(kept, targets, -100),
            row_weight=mx.where(kept, 1, mx.nan),
            reduction=reduction,
        ),
    ]
    out, gradients = given[-1]
    for other, of_other in given[:-1]:
        assert mx.array_equal(out, other)
        assert all(mx.array_equal(a, b) for a, b in zip(gradients, of_other, strict=True))
    out, gradients = loss_and_grads(x, weight, targets, row_weight=mx.zeros(5), reduction=reduction)
    assert not out.any() and not gradients[0].any() and not gradients[1].any()


def test_weights_have_no_gradient():
    (x, weight, _), _, targets = inputs(mx.float32, (5,))
    for name, given in (("class_weight", mx.ones(9)), ("row_weight", mx.ones(5))):

        def loss(a, name=name):
            return mlxops.nn.linear_cross_entropy(x, weight, mx.array(targets), **{name: a})

        with pytest.raises(ValueError, match=f"Not differentiable with respect to '{name}'"):
            mx.grad(loss)(given)


@pytest.mark.parametrize(
    ("rows", "depth", "words"),
    [
        *((1, 1, 1), (5, 3, 255), (7, 16, 256), (2, 33, 257), (385, 5, 300), (3, 2, 2049)),
        *((17, 300, 600), (1100, 3, 4200), (2, 9000, 600)),
    ],
)
def test_more_than_a_block(rows, depth, words):
    """More than one block of rows, of words, and of both."""
    arrays, values, targets = inputs(mx.float32, (rows,), depth, words)
    scale = 4 / max(depth, 4)
    arrays[1], values[1] = arrays[1] * scale, to_numpy(arrays[1] * scale)
    options = {"label_smoothing": 0.1, "logit_softcap": 3.0} if rows < 100 else {}
    check(mx.float32, arrays, values, targets, True, 2e-5, **options)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_half_precision_of_more_than_a_block(dtype, device):
    check(dtype, *inputs(dtype, (400,), 40, 4500), True, 2e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("argnums", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1)], ids=str)
def test_gradients_that_are_asked_for(argnums, dtype):
    arrays, values, targets = inputs(dtype)

    def loss(x, weight, bias):
        return mlxops.nn.linear_cross_entropy(x, weight, mx.array(targets), bias)

    wanted = reference(values[0], values[1], targets, values[2])[1]
    gradients = mx.grad(loss, argnums=argnums)(*arrays)
    if len(argnums) == 1:
        gradients = [gradients]
    for argnum, gradient in zip(argnums, gradients, strict=True):
        assert gradient.shape == arrays[argnum].shape
        assert_near(gradient, wanted[argnum], EPSILON[dtype] + 4e-6)


def test_is_cross_entropy_of_the_logits():
    (x, weight, bias), _, targets = inputs(mx.float32)

    def composition(x, weight, bias):
        return mlxops.nn.cross_entropy(x @ weight.T + bias, mx.array(targets), z_loss=0.1)

    def fused(x, weight, bias):
        return mlxops.nn.linear_cross_entropy(x, weight, mx.array(targets), bias, z_loss=0.1)

    for g, w in zip(
        *(mx.grad(f, argnums=(0, 1, 2))(x, weight, bias) for f in (fused, composition)), strict=True
    ):
        np.testing.assert_allclose(g, w, 1e-4, 1e-6)


def test_large_bias():
    """The largest bias is subtracted from all of them: the logits are as accurate as without."""
    (x, weight, _), (x_, weight_, bias_), targets = inputs(mx.float32)
    bias_ = 4096 + np.round(512 * bias_) / 512  # exact in float32
    arrays = (x, weight, mx.array(bias_, mx.float32))
    check(mx.float32, arrays, (x_, weight_, bias_), targets)


@pytest.mark.parametrize("words", [9, 70, 2100])
def test_probabilities_of_nearly_one(words):
    """Losses far below epsilon have all their digits, wherever the target is."""
    places = [0, words // 2, words - 1]
    weight = np.zeros((words, 3))
    weight[places, range(3)] = 50
    args = mx.array(np.eye(3), mx.float32), mx.array(weight, mx.float32), mx.array(places)
    out = mlxops.nn.linear_cross_entropy(*args, reduction="none")
    np.testing.assert_allclose(to_numpy(out), (words - 1) * np.exp(-50.0), 2e-6)


def test_large_and_infinite_logits():
    x = mx.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    weight = mx.array([[200.0, -100.0], [0.0, 100.0], [-300.0, 0.0]])
    targets = np.array([0, 1, 2])
    out, gradients = loss_and_grads(x, weight, targets, reduction="none")
    wanted, of = reference(to_numpy(x), to_numpy(weight), targets, reduction="none")
    np.testing.assert_allclose(out, wanted, 1e-6, 1e-40)
    for g, w in zip(gradients, of, strict=False):
        np.testing.assert_allclose(g, w, 1e-5, 1e-6)
    # Words that are masked by their bias.
    bias = mx.array([-np.inf, 0.0, 1.0])
    out, (of_x, _, of_bias) = loss_and_grads(
        x * 0, weight, np.array([1, 2, 1]), bias, reduction="none"
    )
    np.testing.assert_allclose(out, [1.3132617, 0.3132617, 1.3132617], 1e-6)
    np.testing.assert_allclose(of_bias, [0, 3 * 0.26894143 - 2, 3 * 0.7310586 - 1], 1e-5, 1e-6)
    assert np.isfinite(of_x).all()
    out, _ = loss_and_grads(x * 0, weight, np.array([0, 2, 1]), bias, reduction="none")
    assert out[0].item() == np.inf


@pytest.mark.parametrize("options", OPTIONS)
def test_ignored_rows(options):
    """They do not affect any result, for any values."""
    options = {**OPTIONS[options], "ignore_index": 7}
    (x, weight, bias), (x_, weight_, bias_), _ = inputs(mx.float32, (5,))
    x[1], x[4] = np.nan, np.inf
    targets = np.array([3, 7, 0, 8, 7])
    out, gradients = loss_and_grads(x, weight, targets, bias, **options)
    kept = [0, 2, 3]
    loss, wanted = reference(x_[kept], weight_, targets[kept], bias_, **options)
    np.testing.assert_allclose(out, loss, 1e-5)
    of_x = to_numpy(gradients[0])
    assert (of_x[[1, 4]] == 0).all()
    np.testing.assert_allclose(of_x[kept], wanted[0], 1e-4, 1e-6)
    for g, w in zip(gradients[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-6)


@pytest.mark.parametrize("options", ["plain", "capped"])
def test_blocks_that_do_not_count(options):
    """Blocks of ignored rows, and of words with a probability of 0."""
    (x, weight, bias), (x_, weight_, bias_), targets = inputs(mx.float32, (200,), 5, 2300)
    ignored = np.zeros(200, bool)
    ignored[60:130] = True
    x[60:130] = np.nan
    targets = np.where(ignored, -100, 2048 + targets % 252)
    counts = targets != -100
    if options == "plain":
        bias[:2048], bias_[:2048] = -np.inf, -1000
    out, gradients = loss_and_grads(x, weight, targets, bias, **OPTIONS[options], reduction="sum")
    kept = (x_[counts], weight_, targets[counts], bias_)
    loss, wanted = reference(*kept, **OPTIONS[options], reduction="sum")
    np.testing.assert_allclose(out, loss, 1e-5)
    for g, w in zip(
        (gradients[0][mx.array(np.flatnonzero(counts))], *gradients[1:]), wanted, strict=True
    ):
        assert_near(g, w, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [0, 3])
def test_no_targets_at_all(dtype, rows, reduction):
    (x, weight, bias), _, _ = inputs(dtype, (rows,))
    out, gradients = loss_and_grads(x, weight, np.full(rows, -100), bias, reduction=reduction)
    assert out.item() == 0
    for gradient, a in zip(gradients, (x, weight, bias), strict=True):
        assert gradient.shape == a.shape
        assert not to_numpy(gradient).any()


def test_targets_that_are_no_words():
    (x, weight, _), _, _ = inputs(mx.float32, (5,), words=3)
    targets = np.array([0, -1, 3, 2**31 - 1, 2])
    out, (of_x, of_weight) = loss_and_grads(x, weight, targets, reduction="none")
    assert np.isnan(out).tolist() == [False, True, True, True, False]
    assert np.isnan(of_x).all(axis=1).tolist() == [False, True, True, True, False]
    assert np.isfinite(np.array(of_x)[[0, 4]]).all()
    assert np.isnan(of_weight).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays, _, targets = inputs(mx.float32)
    arrays = [LAYOUTS[layout](a) for a in arrays]
    ids = LAYOUTS[layout](mx.array(targets))
    out, gradients = loss_and_grads(*arrays[:2], ids, arrays[2])
    x, weight, bias = (to_numpy(a) for a in arrays)
    loss, wanted = reference(x, weight, np.array(ids), bias)
    np.testing.assert_allclose(out, loss, 1e-5)
    for gradient, w in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(gradient, w, 1e-4, 1e-6)


def test_mixed_dtypes():
    (x, weight, _), _, targets = inputs(mx.bfloat16)
    out = mlxops.nn.linear_cross_entropy(x, weight.astype(mx.float32), mx.array(targets))
    same = mlxops.nn.linear_cross_entropy(
        x.astype(mx.float32), weight.astype(mx.float32), mx.array(targets)
    )
    assert out.item() == same.item()


def test_vmap():
    (x, weight, bias), (x_, weight_, bias_), targets = inputs(mx.float32)

    def fn(x, t, bias):
        return mlxops.nn.linear_cross_entropy(x, weight, t, bias)

    wanted = [reference(row, weight_, t, bias_) for row, t in zip(x_, targets, strict=True)]
    got = mx.vmap(fn, in_axes=(0, 0, None))(x, mx.array(targets), bias)
    np.testing.assert_allclose(got, [loss for loss, _ in wanted], 1e-5)
    got = mx.vmap(mx.grad(fn), in_axes=(0, 0, None))(x, mx.array(targets), bias)
    np.testing.assert_allclose(got, np.stack([g[0] for _, g in wanted]), 1e-4, 1e-6)


def test_compile():
    compiled = mx.compile(
        lambda x, w, t: loss_and_grads(x, w, t, reduction="mean")[1], shapeless=True
    )
    for rows in ((2,), (5,), (3,)):
        (x, weight, _), _, targets = inputs(mx.float32, rows)
        for g, w in zip(
            compiled(x, weight, mx.array(targets)),
            loss_and_grads(x, weight, mx.array(targets))[1],
            strict=True,
        ):
            np.testing.assert_allclose(g, w, 1e-6, 1e-7)


@pytest.mark.skipif(metal_backend() is not None, reason="there blocks are MLX's arrays")
def test_memory():
    """In addition to arguments and gradients, less than a tenth of the logits."""
    rows, depth, words = 1000, 4, 60_000
    x, weight = mx.ones((rows, depth)), mx.ones((words, depth))
    targets = mx.zeros((rows,), mx.int32)
    mx.eval(x, weight, targets)
    gradient = mx.grad(lambda x, w: mlxops.nn.linear_cross_entropy(x, w, targets), argnums=(0, 1))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(gradient(x, weight))
    assert mx.get_peak_memory() - before < x.nbytes + weight.nbytes + 4 * rows * words / 10


@pytest.mark.skipif(metal_backend() is not None, reason="there blocks are MLX's arrays")
def test_memory_without_the_gradient_of_weights():
    x, weight, targets = mx.ones((8, 256)), mx.ones((20_000, 256)), mx.zeros((8,), mx.int32)
    mx.eval(x, weight, targets)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.grad(lambda x: mlxops.nn.linear_cross_entropy(x, weight, targets))(x))
    assert mx.get_peak_memory() - before < weight.nbytes / 10


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none", "z_loss": 0.3},
        {"label_smoothing": 0.2, "class_weight": mx.array([0.5, 2.0, 1.0, 0.0, 3.0])},
        {"logit_softcap": 2.0, "z_loss": 0.1, "label_smoothing": 0.1},
        {
            "row_weight": mx.array([0.5, 0.0, 2.0, 1.0]),
            "class_weight": mx.array([0.5, 2.0, 1.0, 0.0, 3.0]),
            "ignore_index": 0,
            "z_loss": 0.2,
        },
    ],
)
def test_second_derivatives(options):
    (x, weight, bias), _, _ = inputs(mx.float64, (4,), 3, 5)
    targets = mx.array([2, 0, -100, 4])
    if options.get("ignore_index") == 0:
        targets = mx.array([2, 0, 1, 4])

    def loss(x, weight, bias=None):
        return mlxops.nn.linear_cross_entropy(x, weight, targets, bias, **options)

    gradcheck(loss, x, weight, 3 + bias, checks=("second", "jvp"))
    gradcheck(lambda x: loss(x, weight), x, checks=("second", "jvp"))
    gradcheck(lambda weight: loss(x, weight), weight, checks=("second",))
    gradcheck(lambda bias: loss(x, weight, bias), bias, checks=("second",))


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_second_derivatives_of_one_gradient(argnum):
    arrays, _, targets = inputs(mx.float64, (4,), 3, 5)
    targets = mx.array(targets)

    def penalty(loss):
        return mx.grad(lambda *a: (mx.grad(loss, argnum)(*a) ** 2).sum(), (0, 1, 2))(*arrays)

    got = penalty(lambda x, w, b: mlxops.nn.linear_cross_entropy(x, w, targets, b))
    wanted = penalty(lambda x, w, b: mlxops.nn.cross_entropy(x @ w.T + b, targets))
    for g, w in zip(got, wanted, strict=True):
        assert_near(g, to_numpy(w), 1e-12)


def test_second_derivatives_of_one_row_and_of_axes(dtype):
    """The second derivatives are those of cross_entropy of the logits."""
    for rows in ((), (1,), (2, 3)):
        (x, weight, _), _, targets = inputs(dtype, rows, 3, 5)
        targets = mx.array(targets)

        def size(loss, x=x, weight=weight):
            def of_gradients(x, weight):
                return sum(mx.square(g).sum() for g in mx.grad(loss, argnums=(0, 1))(x, weight))

            return mx.grad(of_gradients, argnums=(0, 1))(x, weight)

        def wide(x, weight, targets=targets):
            up = mx.float64 if dtype == mx.float64 else mx.float32
            return mlxops.nn.cross_entropy(x.astype(up) @ weight.astype(up).T, targets)

        got = size(lambda x, w, targets=targets: mlxops.nn.linear_cross_entropy(x, w, targets))
        for g, w in zip(got, size(wide), strict=True):
            assert g.dtype == dtype
            assert_near(g, to_numpy(w), 8 * EPSILON[dtype] + 1e-12)


def test_second_derivatives_omit_infinite_rows():
    (x, weight, _), _, _ = inputs(mx.float64, (3,), 3, 5)
    infinite = mx.concatenate([x[:2], mx.full((1, 3), mx.inf, mx.float64)])

    def size(x, targets):
        def of_x(x, weight):
            return mlxops.nn.linear_cross_entropy(x, weight, mx.array(targets))

        def of_gradients(x, weight):
            return sum(mx.square(g).sum() for g in mx.grad(of_x, argnums=(0, 1))(x, weight))

        return [np.array(g) for g in mx.grad(of_gradients, argnums=(0, 1))(x, weight)]

    got, wanted = size(infinite, [1, 3, -100]), size(x[:2], [1, 3])
    np.testing.assert_allclose(got[0][:2], wanted[0], 1e-12)
    assert not got[0][2].any()
    np.testing.assert_allclose(got[1], wanted[1], 1e-12)
    assert np.isnan(size(x, [1, 7, 2])[0][1]).all()


def test_third_derivatives():
    (x, weight, bias), _, targets = inputs(mx.float64, (2,), 3, 4)

    def loss(*arrays):
        x, weight, bias = arrays
        return mlxops.nn.linear_cross_entropy(x, weight, mx.array(targets), bias, z_loss=0.25)

    gradcheck(mx.grad(loss, (0, 1, 2)), x, weight, bias, checks=("vjp", "jvp", "second"))


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
@pytest.mark.parametrize(("depth", "words"), [(1, 1), (17, 30), (300, 600)])
def test_few_rows(dtype, rows, depth, words):
    """Few rows are multiplied without copies of the weights."""
    arrays, values, targets = inputs(dtype, (rows,), depth, words)
    small = 1 / np.sqrt(depth)
    arrays[1], values[1] = draw(dtype, (words, depth), -small, small, 1)
    check(dtype, arrays, values, targets, epsilon=1e-5)
    check(dtype, arrays, values, targets, biased=False, epsilon=1e-5)


def test_errors():
    x, weight, targets = mx.ones((4, 3)), mx.ones((5, 3)), mx.zeros((4,), mx.int32)
    for args, options, message in (
        (
            (x, weight, targets[:3]),
            {},
            r"targets must be \(\.\.\.\), where x is \(\.\.\., D\)\. Got ",
        ),
        ((x, weight, targets.astype(mx.float32)), {}, "targets must be integers"),
        ((x, weight[0], targets), {}, r"weight must be \(V, D\), where x is \(\.\.\., D\)"),
        ((x, weight[:0], targets), {}, "the number of words must not be 0"),
        ((x, weight[:, :2], targets), {}, r"weight must be \(V, D\)"),
        (
            (x, weight, targets, mx.ones(4)),
            {},
            r"bias must be \(V,\), where weight is \(V, D\)",
        ),
        (
            (x, weight, targets),
            {"class_weight": mx.ones(4)},
            r"class_weight must be \(V,\), where weight is \(V, D\)",
        ),
        (
            (x, weight, targets),
            {"row_weight": mx.ones(5)},
            r"row_weight must be \(\.\.\.\), where x is \(\.\.\., D\)",
        ),
        (
            (x, weight, targets),
            {"label_smoothing": -0.5},
            "label_smoothing must be between 0 and 1",
        ),
        ((x, weight, targets), {"logit_softcap": -1.0}, "logit_softcap must not be negative"),
    ):
        with pytest.raises(ValueError, match=r"^\[linear_cross_entropy\] " + message):
            mlxops.nn.linear_cross_entropy(*args, **options)
