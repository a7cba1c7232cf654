"""linear_kl_div_loss and linear_js_div_loss: divergences of logits that are never all stored."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn.losses import EPSILON
from nn.test_divergence import reference as of_logits
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
OPS = ["kl_div_loss", "js_div_loss"]


def linear(op):
    return getattr(mlxops.nn, f"linear_{op}")


def reference(
    op,
    x,
    weight,
    target_x,
    target_weight,
    mask=None,
    bias=None,
    target_bias=None,
    logit_softcap=None,
    target_logit_softcap=None,
    **options,
):
    """Return the loss, and the gradients of its sum with respect to the arrays, then the biases."""

    def logits(x, weight, bias, cap):
        z = x @ weight.T + (0 if bias is None else to_numpy(bias))
        capped = cap * np.tanh(z / cap) if cap else z
        return capped, 1 - (capped / cap) ** 2 if cap else np.ones_like(z)

    q, slope_q = logits(x, weight, bias, logit_softcap)
    p, slope_p = logits(target_x, target_weight, target_bias, target_logit_softcap)
    loss, (of_q, of_p) = of_logits(op, q, p, mask, **options)
    grads, of_biases = [], []
    sides = (
        (of_q * slope_q, x, weight, bias),
        (of_p * slope_p, target_x, target_weight, target_bias),
    )
    for g, a, w, b in sides:
        flat = g.reshape(-1, g.shape[-1])
        grads += [g @ w, flat.T @ a.reshape(len(flat), a.shape[-1])]
        of_biases += [] if b is None else [flat.sum(axis=0)]
    return loss, grads + of_biases


def inputs(dtype, rows=(3, 4), depth=6, target_depth=5, words=9, seed=0):
    """Return the arrays and their values, with logits of about the same size for all depths."""
    shapes = (*rows, depth), (words, depth), (*rows, target_depth), (words, target_depth)
    size = [a for d in (depth, target_depth) for a in (1.5, min(1.5, 6 / max(d, 1) ** 0.5))]
    drawn = [
        draw(dtype, shape, -a, a, seed + i)
        for i, (shape, a) in enumerate(zip(shapes, size, strict=True))
    ]
    return [a for a, _ in drawn], [a for _, a in drawn]


def loss_and_grads(op, *arrays, **options):
    def loss(*arrays):
        out = linear(op)(*arrays, **options)
        return out.sum(), out

    (_, out), gradients = mx.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arrays)
    return out, gradients


def assert_near(got, wanted, epsilon):
    scale = np.abs(wanted).max(initial=0)
    # Of a single word, the reference itself is 0 only up to its rounding.
    np.testing.assert_allclose(to_numpy(got), wanted, 0, epsilon * scale + 1e-16)


def check(op, arrays, values, mask=None, epsilon=None, **options):
    given = None if mask is None else mx.array(mask)
    out, gradients = loss_and_grads(op, *arrays, mask=given, **options)
    loss, wanted = reference(op, *values, mask, **options)
    dtype = arrays[0].dtype
    # Logits are float32, and not rounded.
    sums = epsilon or (1e-12 if dtype == mx.float64 else 4e-6)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert_near(out, loss, sums)
    for gradient, w in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype and gradient.shape == w.shape
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_values(dtype, op, options, masked, reduction):
    mask = np.arange(12).reshape(3, 4) % 5 != 1 if masked else None
    check(op, *inputs(dtype), mask, reduction=reduction, **options)


def biases_of(words, dtype=mx.float32):
    bias, target_bias = (draw(dtype, (words,), -2, 2, 20 + i)[0] for i in range(2))
    return {"bias": bias, "target_bias": target_bias}


CAPS = {"logit_softcap": 2.5, "target_logit_softcap": 4.0}


@pytest.mark.parametrize("given", ["bias", "target_bias", *CAPS, "both", "all"])
@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_biases_and_softcaps(dtype, op, options, given):
    biases = biases_of(9, dtype)
    more = {"both": biases, "all": biases | CAPS}.get(given) or {given: (biases | CAPS)[given]}
    names = [name for name in biases if name in more]
    if given == "all":
        mask = np.arange(12).reshape(3, 4) % 5 != 1
        more |= {"mask": mx.array(mask), "row_weight": row_weights((3, 4)), "reduction": "sum"}
    arrays, values = inputs(dtype)
    options = more | options

    def loss(*arrays):
        layers, biases = arrays[:4], dict(zip(names, arrays[4:], strict=True))
        out = linear(op)(*layers, **(options | biases))
        return out.sum(), out

    given = [*arrays, *(more[name] for name in names)]
    (_, out), gradients = mx.value_and_grad(loss, argnums=tuple(range(len(given))))(*given)
    if "mask" in options:
        options = options | {"mask": mask}
    wanted_loss, wanted = reference(op, *values, **options)
    sums = 1e-12 if dtype == mx.float64 else 4e-6
    assert_near(out, wanted_loss, sums)
    for gradient, w in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype and gradient.shape == w.shape
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("op", OPS)
def test_large_biases(op):
    """Numbers that are added to all logits do not change divergences, nor their rounding."""
    arrays, _ = inputs(mx.float32)
    for name, base in {"bias": 2.0**20, "target_bias": -(2.0**22)}.items():
        bias = mx.arange(9) * 0.5
        wanted = loss_and_grads(op, *arrays, **{name: bias})
        found = loss_and_grads(op, *arrays, **{name: bias + base})
        for got, same in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
            np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("op", OPS)
def test_words_that_a_bias_excludes(op):
    arrays, values = inputs(mx.float32)
    bias = mx.array([0.0, 0.5] * 4 + [-mx.inf])
    out, gradients = loss_and_grads(op, *arrays, bias=bias, target_bias=bias)
    kept = [v if v.ndim == 3 else v[:8] for v in values]
    loss, wanted = reference(op, *kept, bias=bias[:8], target_bias=bias[:8])
    assert_near(out, loss, 4e-6)
    for gradient, w in zip(gradients, wanted[:4], strict=True):
        found = to_numpy(gradient)
        if w.ndim == 2:
            assert not found[8].any()
            found = found[:8]
        assert_near(mx.array(found), w, 5e-6)


@pytest.mark.parametrize("beta", [1e-9, 1e-3, 1 - 1e-9])
def test_mixtures_of_nearly_one(beta):
    arrays, _ = inputs(mx.float32)
    out, gradients = loss_and_grads("js_div_loss", *arrays, beta=beta)
    logits = arrays[0] @ arrays[1].T, arrays[2] @ arrays[3].T

    def loss(x, y):
        return mlxops.nn.js_div_loss(x, y, beta=beta)

    wanted, (of_x, of_y) = mx.value_and_grad(loss, argnums=(0, 1))(*logits)
    np.testing.assert_allclose(out.item(), wanted.item(), 1e-5)
    assert_near(gradients[0], to_numpy(of_x @ arrays[1]), 2e-5)
    assert_near(gradients[2], to_numpy(of_y @ arrays[3]), 2e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    "sizes",
    [
        *((1, 1, 1, 1), (5, 3, 2, 255), (7, 16, 300, 257), (49, 2, 3, 2049), (385, 5, 4, 300)),
        *((20, 9, 17_000, 300), (130, 2, 3, 33_000), (1100, 3, 4, 4200)),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_more_than_a_block(op, sizes):
    """More than one block of rows, of words, and of both."""
    rows, depth, target_depth, words = sizes
    # Only one of these has more blocks on Metal, where millions of logits take long to emulate.
    if rows * words > 2e6 and metal_backend() is not None and (rows, op) != (130, OPS[0]):
        pytest.skip("the same as a smaller one")
    arrays, values = inputs(mx.float32, (rows,), depth, target_depth, words)
    mask = np.arange(rows) % 7 != 3 if rows > 5 else None
    options = {"beta": 0.25} if op == "js_div_loss" else {}
    check(op, arrays, values, mask, 2e-5, temperature=1.5, **options)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_half_precision_of_more_than_a_block(op, dtype, device):
    """The words are converted a block at a time."""
    check(op, *inputs(dtype, (20,), 17_000, 33, 300), epsilon=2e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("argnums", [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (0, 3)], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_gradients_that_are_asked_for(op, argnums, dtype):
    arrays, values = inputs(dtype)
    wanted = reference(op, *values)[1]
    gradients = mx.grad(linear(op), argnums=argnums)(*arrays)
    if len(argnums) == 1:
        gradients = [gradients]
    for argnum, gradient in zip(argnums, gradients, strict=True):
        assert gradient.shape == arrays[argnum].shape
        assert_near(gradient, wanted[argnum], EPSILON[dtype] + 4e-6)


@pytest.mark.parametrize("op", OPS)
def test_equal_layers(op):
    (x, weight, _, _), _ = inputs(mx.float32)
    out, gradients = loss_and_grads(op, x, weight, x, weight, reduction="none")
    np.testing.assert_allclose(out, np.zeros((3, 4)), atol=1e-7)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, np.zeros(gradient.shape), atol=2e-6)


@pytest.mark.skipif(metal_backend() is not None, reason="Metal has no double")
@pytest.mark.parametrize("op", OPS)
def test_similar_layers(op):
    """The loss is that of the logits in float32, even if it is small."""
    (x, weight, _, _), _ = inputs(mx.float32)
    other = weight + 1e-3 * inputs(mx.float32, seed=5)[0][1]
    out = linear(op)(x, weight, x, other, reduction="none")
    wanted, _ = of_logits(
        op, *(to_numpy(x) @ to_numpy(w).T for w in (weight, other)), reduction="none"
    )
    assert wanted.max() < 1e-5
    assert_near(out, wanted, 1e-3)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_large_logits(op, options):
    """Nearly certain words, of both layers and of one of them."""
    x, y = np.eye(3), np.array([[1.0, 0], [0, 1], [1, 1]])
    weight = np.array([[200.0, -100, 3], [0, 100, 2], [-300, 0, 1]])
    target_weight = np.array([[30.0, -10], [-20, 40], [0, 0]])
    args = [x, weight, y, target_weight]
    out, gradients = loss_and_grads(op, *map(mx.array, args), reduction="none", **options)
    loss, wanted = reference(op, *args, reduction="none", **options)
    np.testing.assert_allclose(out, loss, 1e-6, 1e-6)
    for g, w in zip(gradients, wanted, strict=True):
        assert_near(g, w, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_rows_that_are_left_out_are_not_read(op, options, reduction):
    arrays, values = inputs(mx.float32, (5,))
    x, _, target_x, _ = arrays
    mask = np.array([True, False, True, False, True])
    clean = loss_and_grads(op, *arrays, mask=mx.array(mask), reduction=reduction, **options)
    x[1], x[3] = np.nan, np.inf
    target_x[1], target_x[3] = -np.inf, np.nan
    out, gradients = loss_and_grads(
        op, *arrays, mask=mx.array(mask), reduction=reduction, **options
    )
    for got, same in zip((out, *gradients), (clean[0], *clean[1]), strict=True):
        np.testing.assert_array_equal(got, same)
    kept = [values[0][mask], values[1], values[2][mask], values[3]]
    loss, wanted = reference(op, *kept, reduction=reduction, **options)
    out = to_numpy(out)
    assert_near(mx.array(out if reduction == "mean" else out[mask]), loss, 1e-5)
    for i, (g, w) in enumerate(zip(map(to_numpy, gradients), wanted, strict=True)):
        if i % 2 == 0:
            assert not g[~mask].any()
            g = g[mask]
        assert_near(mx.array(g), w, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("op", OPS)
def test_no_rows_at_all(dtype, op, rows, reduction):
    arrays, _ = inputs(dtype, (rows,))
    mask = mx.zeros((rows,), mx.bool_)
    for given in (mask, None) if rows == 0 else (mask,):
        out, gradients = loss_and_grads(op, *arrays, mask=given, reduction=reduction)
        assert out.item() == 0
        for gradient, a in zip(gradients, arrays, strict=True):
            assert gradient.shape == a.shape and not to_numpy(gradient).any()


@pytest.mark.parametrize("op", OPS)
def test_layers_without_width(op):
    """Logits of 0 are a uniform distribution."""
    (_, _, y, target_weight), (_, _, y_, target_weight_) = inputs(mx.float32)
    x, weight = np.zeros((3, 4, 0)), np.zeros((9, 0))
    out, gradients = loss_and_grads(op, mx.array(x), mx.array(weight), y, target_weight)
    loss, wanted = reference(op, x, weight, y_, target_weight_)
    np.testing.assert_allclose(out, loss, 1e-5)
    for g, w in zip(gradients, wanted, strict=True):
        assert g.shape == w.shape
        assert_near(g, w, 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_strides(op, layout):
    arrays = [LAYOUTS[layout](a) for a in inputs(mx.float32)[0]]
    mask = LAYOUTS[layout](mx.array(np.arange(12).reshape(3, 4) % 5 != 1))
    check(op, arrays, [to_numpy(a) for a in arrays], np.array(mask))


@pytest.mark.parametrize("op", OPS)
def test_mixed_dtypes(op):
    (x, weight, y, target_weight), _ = inputs(mx.bfloat16)
    wide = [a.astype(mx.float32) for a in (x, weight, y, target_weight)]
    out, gradients = loss_and_grads(op, wide[0], wide[1], y, target_weight)
    same, wanted = loss_and_grads(op, *wide)
    assert out.item() == same.item()
    for g, w, a in zip(gradients, wanted, (wide[0], wide[1], y, target_weight), strict=True):
        assert g.dtype == a.dtype
        assert_near(g, to_numpy(w), EPSILON[a.dtype] + 1e-7)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_vmap_and_compile(op, options):
    arrays, values = inputs(mx.float32)

    def fn(*args):
        return linear(op)(*args, **options)

    axes = (0, None, 0, None)
    x_, weight_, y_, target_weight_ = values
    wanted = [
        reference(op, x, weight_, y, target_weight_, **options) for x, y in zip(x_, y_, strict=True)
    ]
    np.testing.assert_allclose(
        mx.vmap(fn, in_axes=axes)(*arrays), [loss for loss, _ in wanted], 1e-5
    )
    gradients = mx.vmap(mx.grad(fn, argnums=(0, 1, 2, 3)), in_axes=axes)(*arrays)
    for i, gradient in enumerate(gradients):
        assert_near(gradient, np.stack([g[i] for _, g in wanted]), 1e-5)
    loss, gradients = mx.compile(mx.value_and_grad(fn, argnums=(0, 1, 2, 3)))(*arrays)
    whole = reference(op, *values, **options)
    np.testing.assert_allclose(loss, whole[0], 1e-5)
    for gradient, w in zip(gradients, whole[1], strict=True):
        assert_near(gradient, w, 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("op", OPS)
def test_shapeless_graphs(op, reduction, masked):
    """The graph is compiled once for all shapes, and must not keep those of the first call."""

    def fn(mask, *args):
        biases = {name: args[i].max(axis=1) for name, i in (("bias", 1), ("target_bias", 3))}
        more = biases | CAPS if masked else {}
        return loss_and_grads(op, *args, mask=mask, reduction=reduction, **more)

    compiled = mx.compile(fn, shapeless=True)
    for sizes in ((4, 3, 2, 5), (6, 3, 2, 5), (6, 3, 2, 9), (6, 2, 4, 9), (3, 3, 2, 2100)):
        arrays, _ = inputs(mx.float32, sizes[:1], *sizes[1:])
        mask = mx.array(np.arange(sizes[0]) != 1) if masked else None
        (out, gradients), (wanted, of) = compiled(mask, *arrays), fn(mask, *arrays)
        for g, w in zip((out, *gradients), (wanted, *of), strict=True):
            assert g.shape == w.shape
            np.testing.assert_allclose(g, w, 1e-5, 1e-7, err_msg=str(sizes))


@pytest.mark.parametrize("op", OPS)
def test_shapeless_second_derivatives(op):
    """They are rejected when the graph is traced, as those of the losses of logits."""
    (x, *others), _ = inputs(mx.float32)
    gradient = mx.grad(lambda x: linear(op)(x, *others))
    second = mx.grad(lambda x: (gradient(x) ** 2).sum())
    with pytest.raises(ValueError, match="shapeless"):
        mx.compile(second, shapeless=True)(x)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_finite_differences(op, options):
    arrays, _ = inputs(mx.float64, (2,), 3, 2, 5)
    _, gradients = loss_and_grads(op, *arrays, **options)
    rng = np.random.default_rng(0)
    for i, gradient in enumerate(gradients):
        step = mx.array(rng.normal(size=arrays[i].shape) * 1e-5, mx.float64)
        up, down = (
            linear(op)(*arrays[:i], a, *arrays[i + 1 :], **options).item()
            for a in (arrays[i] + step, arrays[i] - step)
        )
        np.testing.assert_allclose(up - down, 2 * to_numpy((gradient * step).sum()), 1e-6)


@pytest.mark.parametrize(("op", "options"), OPTIONS)
def test_second_derivatives(op, options):
    arrays, _ = inputs(mx.float64, (3,), 2, 3, 4)
    mask = mx.array([True, False, True])

    def fn(*arrays):
        return linear(op)(*arrays, mask, **options)

    gradcheck(fn, *arrays, checks=("second", "vmap"))


@pytest.mark.extended
@pytest.mark.parametrize(("op", "options"), [OPTIONS[1], OPTIONS[3], OPTIONS[4]])
def test_second_derivatives_with_biases_and_softcaps(op, options):
    arrays, _ = inputs(mx.float64, (3,), 2, 3, 4)
    weights = mx.array([0.5, 0.0, 2.0])

    def fn(*arrays):
        biases = {"bias": arrays[4], "target_bias": arrays[5]}
        return linear(op)(*arrays[:4], row_weight=weights, **biases, **CAPS, **options)

    gradcheck(fn, *arrays, *biases_of(4, mx.float64).values(), checks=("second", "jvp", "vmap"))


@pytest.mark.parametrize("argnums", [(0,), (3,), (1, 2)], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_second_derivatives_of_some_arguments(op, argnums):
    """They are those of the losses of logits, also in rows with NaN that are left out."""
    arrays, _ = inputs(mx.float32, (2, 3))
    mask = mx.array([[True, False, True], [True, True, False]])

    def composed(x, weight, y, target_weight):
        return getattr(mlxops.nn, op)(x @ weight.T, y @ target_weight.T, mask, temperature=2.0)

    def fused(*arrays):
        return linear(op)(*arrays, mask, temperature=2.0)

    def second(fn, arrays):
        def size(*arrays):
            return sum((g**2).sum() for g in mx.grad(fn, argnums=argnums)(*arrays))

        return mx.grad(size, argnums=(0, 1, 2, 3))(*arrays)

    wanted = second(composed, arrays)
    poisoned = [mx.array(a) for a in arrays]
    for i in (0, 2):
        poisoned[i][0, 1], poisoned[i][1, 2] = mx.nan, mx.inf
    for got in (second(fused, arrays), second(fused, poisoned)):
        for g, w in zip(got, wanted, strict=True):
            assert_near(g, to_numpy(w), 2e-5)


@pytest.mark.parametrize("op", OPS)
def test_jvp(op):
    arrays, _ = inputs(mx.float64, (3,))
    _, gradients = loss_and_grads(op, *arrays)
    tangents, _ = inputs(mx.float64, (3,), seed=9)
    _, (change,) = mx.jvp(linear(op), arrays, tangents)
    wanted = sum((g * t).sum().item() for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(change.item(), wanted, 1e-12)


@pytest.mark.extended
@pytest.mark.parametrize("op", OPS)
def test_third_derivatives(op):
    arrays, _ = inputs(mx.float64, (2,))
    gradcheck(mx.grad(linear(op), (0, 1, 2, 3)), *arrays, checks=("vjp", "second"))


@pytest.mark.extended
@pytest.mark.skipif(metal_backend() is not None, reason="there blocks are MLX's arrays")
@pytest.mark.parametrize("op", OPS)
def test_memory(op):
    """In addition to arguments and gradients, a fifth of the logits of one layer."""
    rows, depth, words = 500, 4, 60_000
    arrays = [mx.ones((rows, depth)), mx.ones((words, depth))] * 2
    mx.eval(arrays)
    size = sum(a.nbytes for a in arrays)
    for argnums in ((0,), (0, 1), (0, 1, 2, 3)):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(mx.value_and_grad(linear(op), argnums=argnums)(*arrays))
        assert mx.get_peak_memory() - before < size + 4 * rows * words / 5


@pytest.mark.parametrize("op", OPS)
def test_errors(op):
    x, weight, y, other = mx.ones((4, 3)), mx.ones((5, 3)), mx.ones((4, 2)), mx.ones((5, 2))
    shape = r"where x is \(\.\.\., D\)"
    cases = [
        ((x, weight[:, :2], y, other), {}, rf"weight must be \(V, D\), {shape}"),
        ((x, weight[0], y, other), {}, rf"weight must be \(V, D\), {shape}"),
        ((x, weight, y[:3], other), {}, rf"target_x must be \(\.\.\., E\), {shape}"),
        ((x, weight, y, other[:4]), {}, r"target_weight must be \(V, E\), where"),
        ((x, weight, y, weight), {}, r"target_weight must be \(V, E\), where"),
        ((x, weight[:0], y, other[:0]), {}, "the number of words must not be 0"),
        ((x, weight, y, other, mx.ones(3, mx.bool_)), {}, r"mask must be \(\.\.\.\), where"),
        ((x, weight, y, other, mx.ones(4)), {}, "mask must be an array of bools"),
        ((x, weight, y, other), {"temperature": 0.0}, "temperature must be positive"),
        ((x, weight, y, other), {"bias": mx.ones(4)}, r"bias must be \(V,\), where"),
        ((x, weight, y, other), {"target_bias": mx.ones(4)}, r"target_bias must be \(V,\), where"),
        ((x, weight, y, other), {"row_weight": mx.ones(5)}, r"row_weight must be \(\.\.\.\)"),
        ((x, weight, y, other), {"logit_softcap": -1.0}, "logit_softcap must not be negative"),
        (
            (x, weight, y, other),
            {"target_logit_softcap": -1.0},
            "target_logit_softcap must not be negative",
        ),
        ((x, weight, y, other), {"temperature": float("nan")}, "temperature must be positive"),
    ]
    if op == "js_div_loss":
        cases += [
            ((x, weight, y, other), {"beta": b}, "beta must be above 0 and below 1")
            for b in (0.0, 1.0)
        ]
    for args, options, message in cases:
        with pytest.raises(ValueError, match=rf"^\[linear_{op}\] {message}"):
            linear(op)(*args, **options)
