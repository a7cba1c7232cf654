"""All losses: logits that are large, losses that are tiny, graphs for any shapes, wide targets."""

from itertools import product

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn import losses
from nn.test_divergence import reference as divergence
from nn.test_linear_cross_entropy import reference as linear

from mlxgen.testing import metal_backend, to_numpy

OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.1},
    "z": {"z_loss": 1e-4},
    "capped": {"logit_softcap": 30.0},
}


def assert_near(got, wanted, epsilon=1e-6):
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, epsilon * scale)


def values_and_grads(loss, *arrays):
    argnums = tuple(range(len(arrays)))

    def fn(*arrays):
        out = loss(*arrays)
        return out.sum(), out

    (_, out), gradients = mx.value_and_grad(fn, argnums=argnums)(*arrays)
    return out, [gradients] if len(arrays) == 1 else gradients


def rows_of(offset, words, seed=0):
    """Return float32 logits of four rows, each around a different number."""
    z = 3 * np.random.default_rng(seed).normal(size=(4, words))
    return np.float32(z + offset * np.array([[1], [-1], [0.5], [0]]))


@pytest.mark.parametrize("offset", [100.0, 1e4, 1e6])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("words", [7, 2500])
def test_cross_entropy_of_large_logits(words, options, offset):
    z, y = rows_of(offset, words), np.array([3, 0, 5, 1])
    weight = np.float32(np.linspace(0.5, 2, words)) if options != "plain" else None
    options = {**OPTIONS[options], "reduction": "none"}

    def loss(z):
        weights = None if weight is None else mx.array(weight)
        return mlxops.nn.cross_entropy(z, mx.array(y), weights, **options)

    out, (gradient,) = values_and_grads(loss, mx.array(z))
    wanted, of = losses.cross_entropy(z.astype(np.float64), y, weight, **options)
    assert_near(out, wanted)
    # Near the softcap, its derivative is a small difference.
    assert_near(gradient, of, 1e-6 if "logit_softcap" not in options else 2e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float64], ids=str)
@pytest.mark.parametrize("op", ["cross_entropy", "kl_div_loss", "js_div_loss"])
def test_large_logits_of_other_dtypes(op, dtype):
    z, x = (mx.array(rows_of(10000.0, 600, i)).astype(dtype) for i in range(2))
    y = np.array([3, 0, 5, 1])
    if op == "cross_entropy":
        out = mlxops.nn.cross_entropy(z, mx.array(y))
        wanted, _ = losses.cross_entropy(to_numpy(z), y)
    else:
        out = getattr(mlxops.nn, op)(z, x)
        wanted, _ = divergence(op, to_numpy(z), to_numpy(x))
    assert_near(out, wanted, 1e-6 if dtype != mx.float64 else 1e-12)


@pytest.mark.parametrize("offset", [100.0, 1e4, 1e6])
@pytest.mark.parametrize("options", OPTIONS)
def test_linear_cross_entropy_of_large_biases(options, offset):
    options = {**OPTIONS[options], "reduction": "none"}
    rng = np.random.default_rng(1)
    x, weight = (np.float32(rng.normal(size=s)) for s in ((4, 8), (2100, 8)))
    bias = np.float32(rng.normal(size=2100) + offset)
    bias[7] = -1e30
    y = np.array([3, 0, 2099, 1])

    def loss(x, weight, bias):
        return mlxops.nn.linear_cross_entropy(x, weight, mx.array(y), bias, **options)

    got = values_and_grads(loss, *(mx.array(a) for a in (x, weight, bias)))
    wanted, of = linear(*(a.astype(np.float64) for a in (x, weight)), y, bias * 1.0, **options)
    if "logit_softcap" in options:
        # The softcap applies to the whole logit, which is as large as the bias.
        assert_near(got[0], wanted, 1e-5)
        return
    assert_near(got[0], wanted)
    for gradient, w in zip(got[1], of, strict=True):
        assert_near(gradient, w, 4e-6)  # products are in float32


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("offsets", [(1e4, 1e4), (1e6, 0), (0, -1e6), (100, -1e4)])
@pytest.mark.parametrize("words", [7, 2500])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_divergences_of_large_logits(op, words, offsets, temperature):
    x, y = (rows_of(offset, words, i) for i, offset in enumerate(offsets))
    options = {"temperature": temperature, "reduction": "none"}
    out, gradients = values_and_grads(
        lambda x, y: getattr(mlxops.nn, op)(x, y, **options), mx.array(x), mx.array(y)
    )
    wanted, of = divergence(op, x.astype(np.float64), y.astype(np.float64), **options)
    assert_near(out, wanted)
    for gradient, w in zip(gradients, of, strict=True):
        np.testing.assert_allclose(gradient, w, 0, 1e-6 * wanted.max())


@pytest.mark.parametrize("apart", [3.0, 8.0, 20.0, 60.0])
def test_small_losses(apart):
    """Losses of nearly certain words are accurate, and so are their gradients."""
    for offset in (0.0, 1e4):
        z = np.float32(np.array([[0.5, apart, -1, 0.25], [apart, 0, 0, 0]]) + offset)
        y = np.array([1, 0])
        out, (gradient,) = values_and_grads(
            lambda z, y=y: mlxops.nn.cross_entropy(z, mx.array(y), reduction="none"), mx.array(z)
        )
        z = z.astype(np.float64) - z[[0, 1], y][:, None]
        others = np.where(np.arange(4) == y[:, None], 0, np.exp(z))
        rest = others.sum(axis=-1)
        np.testing.assert_allclose(out, np.log1p(rest), 1e-6)
        wanted = np.where(others == 0, -rest[:, None], others) / (1 + rest[:, None])
        np.testing.assert_allclose(gradient, wanted, 2e-6)


@pytest.mark.skipif(metal_backend() is not None, reason="Metal has no double")
@pytest.mark.parametrize("apart", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("op", ["kl_div_loss", "js_div_loss"])
def test_small_divergences(op, apart):
    """Divergences of nearly equal distributions are accurate, and so are their gradients."""
    x = rows_of(10.0, 1500)
    y = np.float32(x + apart * rows_of(0.0, 1500, 1) / 3)
    out, gradients = values_and_grads(
        lambda x, y: getattr(mlxops.nn, op)(x, y, reduction="none"), mx.array(x), mx.array(y)
    )
    # In extended precision, because float64 is not accurate enough.
    wanted, of = divergence(op, *(a.astype(np.longdouble) for a in (x, y)), reduction="none")
    np.testing.assert_allclose(out, wanted.astype(np.float64), 1e-6)
    for gradient, w in zip(gradients, of, strict=True):
        assert_near(gradient, w.astype(np.float64))


SMOOTH = {"label_smoothing": 0.2, "z_loss": 0.01}


def arrays_of(kind, rows, words, depth):
    rng = np.random.default_rng(rows * words + depth)
    draw = lambda *shape: mx.array(np.float32(rng.normal(size=shape)))  # noqa: E731
    y = mx.array(rng.integers(0, max(words, 1), rows).astype(np.int32))
    return {
        "logits": lambda: (draw(rows, words), y),
        "weights": lambda: (draw(rows, words), y, mx.abs(draw(words))),
        "linear": lambda: (draw(rows, depth), draw(words, depth), y, draw(words)),
        "linear weights": lambda: (
            draw(rows, depth),
            draw(words, depth),
            y,
            draw(words),
            mx.abs(draw(words)),
            mx.abs(draw(rows)),
        ),
        "pair": lambda: (draw(rows, words), draw(rows, words)),
    }[kind]()


def of_kind(kind, **options):
    smooth = SMOOTH if kind not in ("kl", "js") else {}
    if kind == "linear weights":

        def weighted(x, weight, y, bias, class_weight, row_weight):
            return mlxops.nn.linear_cross_entropy(
                x,
                weight,
                y,
                bias,
                class_weight=class_weight,
                row_weight=row_weight,
                **smooth,
                **options,
            )

        return weighted
    ops = {"linear": "linear_cross_entropy", "kl": "kl_div_loss", "js": "js_div_loss"}
    op = getattr(mlxops.nn, ops.get(kind, "cross_entropy"))
    return lambda *args: op(*args, **smooth, **options)


@pytest.mark.parametrize(
    ("kind", "reduction"),
    [
        *product(["logits", "weights", "linear", "kl", "js"], ["mean", "sum", "none"]),
        ("linear weights", "mean"),
    ],
)
def test_shapeless_graphs(kind, reduction):
    """The graph is compiled once for all shapes, and must not keep those of the first call."""
    argnums = {"linear": (0, 1, 3), "linear weights": (0, 1, 3), "kl": (0, 1), "js": (0, 1)}.get(
        kind, 0
    )
    loss = of_kind(kind, reduction=reduction)
    fns = [loss]
    if reduction != "none":
        fns.append(mx.grad(loss, argnums=argnums))
    compiled = [mx.compile(fn, shapeless=True) for fn in fns]
    for sizes in ((4, 5, 3), (6, 5, 3), (6, 9, 3), (6, 9, 2), (3, 2100, 3), (2, 1, 1)):
        args = arrays_of("pair" if kind in ("kl", "js") else kind, *sizes)
        for fn, same in zip(fns, compiled, strict=True):
            wanted, got = fn(*args), same(*args)
            wanted, got = ([a] if isinstance(a, mx.array) else a for a in (wanted, got))
            for g, w in zip(got, wanted, strict=True):
                assert g.shape == w.shape
                np.testing.assert_allclose(g, w, 1e-5, 1e-7, err_msg=str(sizes))


@pytest.mark.parametrize("kind", ["logits", "weights", "linear", "kl", "js"])
def test_shapeless_graphs_without_words(kind):
    """They are rejected at run time, as in a plain call, with and without gradients."""
    argnums = {"linear": (0, 1), "kl": (0, 1), "js": (0, 1)}.get(kind, 0)
    like = "pair" if kind in ("kl", "js") else kind
    for fn in (of_kind(kind), mx.grad(of_kind(kind), argnums=argnums)):
        compiled = mx.compile(fn, shapeless=True)
        compiled(*arrays_of(like, 4, 5, 3))
        none = arrays_of(like, 4, 0, 3)
        for call in (fn, compiled):
            with pytest.raises(ValueError, match="the number of words must not be 0"):
                mx.eval(call(*none))


WIDE = {
    mx.int64: [2**32 + 1, -(2**32) - 100, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)],
    mx.uint64: [2**32 + 1, 2**32 - 100, 2**31, 2**64 - 100, 2**64 - 1, 2**63],
    mx.uint32: [2**31, 2**32 - 100, 2**32 - 1],
}


@pytest.mark.parametrize("ignore_index", [-100, -1, 1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_targets_beyond_int32_are_no_words(dtype, ignore_index):
    """They are not ignored either, also under vmap."""
    wide = WIDE[dtype]
    y = mx.array(np.array([0, *wide, 2], np.uint64 if dtype != mx.int64 else np.int64)).astype(
        dtype
    )
    z = mx.array(rows_of(0.0, 3)[:1].repeat(y.size, axis=0))
    weight = mx.eye(3)

    def cross_entropy(z, y):
        return mlxops.nn.cross_entropy(z, y, reduction="none", ignore_index=ignore_index)

    def linear_cross_entropy(z, y):
        return mlxops.nn.linear_cross_entropy(
            z, weight, y, reduction="none", ignore_index=ignore_index
        )

    missing = [False, *([True] * len(wide)), False]
    for loss in (cross_entropy, linear_cross_entropy):
        out, (gradient,) = values_and_grads(lambda z, loss=loss: loss(z, y), z)
        assert np.isnan(out).tolist() == missing
        assert np.isnan(gradient).all(axis=1).tolist() == missing
        assert np.isnan(mx.vmap(loss)(z[None], y[None])[0]).tolist() == missing
    assert np.isnan(mlxops.nn.cross_entropy(z, y).item())


def test_ignored_targets_that_are_wide():
    z = mx.array(rows_of(0.0, 3))
    for ignored in (2**31 - 1, -(2**31)):
        y = mx.array(np.array([0, ignored, 1, ignored], np.int64))
        out = mlxops.nn.cross_entropy(z, y, reduction="none", ignore_index=ignored)
        assert (np.array(out) == 0).tolist() == [False, True, False, True]
    with pytest.raises(OverflowError, match="ignore_index must be from"):
        mlxops.nn.cross_entropy(z, y, ignore_index=2**31)
