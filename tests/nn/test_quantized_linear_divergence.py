"""Divergences of quantized layers against NumPy in float64, with the weights of mx.dequantize."""

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from nn.losses import EPSILON
from nn.test_linear_cross_entropy import row_weights
from nn.test_linear_divergence import CAPS, OPS, assert_near, biases_of, reference
from ops.accuracy import draw

from mlxgen.testing import gradcheck, metal_backend, to_numpy

MODES = {
    **{f"affine {bits}": {"bits": bits} for bits in (1, 2, 3, 5, 6, 8)},
    "affine 4": {"bits": 4, "group_size": 32},
    "affine": {},
    "mxfp4": {"mode": "mxfp4"},
    "mxfp8": {"mode": "mxfp8"},
    "nvfp4": {"mode": "nvfp4"},
}
SIDES = ["student", "teacher", "both"]
# The teacher's weight, if both are quantized.
OTHER = "nvfp4"
SHARED = {"temperature": 1.5}


def quantized(op):
    return getattr(mlxops.nn, f"quantized_linear_{op}")


def layer(dtype, mode, rows, depth, words, seed):
    """Return x, the weight and its parts, and the values of x and of the weight."""
    x, x_ = draw(dtype, (*rows, depth), -1.5, 1.5, seed)
    # MLX does not quantize float64.
    narrow = mx.float32 if mode is not None and dtype == mx.float64 else dtype
    weight, weight_ = draw(narrow, (words, depth), -0.5, 0.5, seed + 1)
    if mode is None:
        return [x, weight, None, None], [x_, weight_]
    parts = mx.quantize(weight, **MODES[mode])
    dense = to_numpy(mx.dequantize(*parts, **MODES[mode]))
    return [x, *parts, *[None] * (3 - len(parts))], [x_, dense]


def inputs(dtype, mode, side="both", rows=(3, 4), depth=64, target_depth=128, words=9):
    """Return the positional arguments, their values, and options."""
    modes = {"student": (mode, None), "teacher": (None, mode), "both": (mode, OTHER)}[side]
    own, own_ = layer(dtype, modes[0], rows, depth, words, 1)
    other, other_ = layer(dtype, modes[1], rows, target_depth, words, 3)
    options = dict(MODES[modes[0]]) if modes[0] else {}
    if modes[1]:
        options |= {f"target_{name}": value for name, value in MODES[modes[1]].items()}
    return own + other, own_ + other_, options


def differentiable(args):
    """Return the positions of the arrays that have gradients."""
    return [i for i in (0, 1, 4, 5) if args[i].dtype != mx.uint32]


def loss_and_grads(op, args, **options):
    """Return the loss, and the gradients of its sum by the arrays that have some, then biases."""
    at = differentiable(args)
    names = [name for name in ("bias", "target_bias") if name in options]

    def loss(*arrays):
        given, biases = list(args), dict(zip(names, arrays[len(at) :], strict=True))
        for i, a in zip(at, arrays, strict=False):
            given[i] = a
        out = quantized(op)(*given, **(options | biases))
        return out.sum(), out

    arrays = [args[i] for i in at] + [options[name] for name in names]
    (_, out), found = mx.value_and_grad(loss, argnums=tuple(range(len(arrays))))(*arrays)
    return out, found


def expected(op, args, values, **options):
    loss, grads = reference(op, *values, **options)
    kept = [g for i, g in zip((0, 1, 4, 5), grads, strict=False) if i in differentiable(args)]
    return loss, kept + grads[4:]


def check(dtype, op, mode, side, epsilon=None, sizes=(), mask=None, **options):
    args, values, kinds = inputs(dtype, mode, side, *sizes)
    given = None if mask is None else mx.array(mask)
    out, grads = loss_and_grads(op, args, mask=given, **options, **kinds)
    loss, wanted = expected(op, args, values, mask=mask, **options)
    sums = epsilon or (1e-12 if dtype == mx.float64 else 4e-6)
    assert out.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    assert_near(out, loss, sums)
    for gradient, w in zip(grads, wanted, strict=True):
        assert gradient.dtype == dtype and gradient.shape == w.shape
        assert_near(gradient, w, EPSILON[dtype] + sums)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPS)
def test_modes(dtype, op, mode):
    check(dtype, op, mode, SIDES[(len(op) + list(MODES).index(mode)) % 3], **SHARED)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("mode", ["affine 4", "mxfp8"])
@pytest.mark.parametrize("op", OPS)
def test_sides(op, mode, side):
    check(mx.float32, op, mode, side)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("op", "options"),
    [(OPS[0], {}), (OPS[0], {"temperature": 0.5}), (OPS[1], {}), (OPS[1], {"beta": 0.75})],
)
def test_options(op, options, side, masked, reduction):
    options = {**options, **CAPS, **biases_of(9), "reduction": reduction}
    if masked:
        mask = np.arange(12).reshape(3, 4) % 5 != 1
        options |= {"mask": mask, "row_weight": row_weights((3, 4))}
    check(mx.float32, op, "affine 4", side, **options)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "side", "sizes"),
    [
        ("affine 8", "student", ((20,), 16_384, 64, 300)),  # blocks of words
        ("mxfp4", "teacher", ((20,), 64, 16_384, 300)),
        ("affine 4", "both", ((130,), 32, 64, 33_000)),  # blocks of rows, too
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_more_than_a_block(op, mode, side, sizes):
    rows, _, _, words = sizes
    # Millions of logits take long to emulate.
    if words > 1000 and metal_backend() is not None and op != OPS[0]:
        pytest.skip("the same as the other divergence")
    mask = np.arange(rows[0]) % 7 != 3
    options = {**biases_of(words), **CAPS, "mask": mask, "row_weight": row_weights(rows)}
    check(mx.float32, op, mode, side, 3e-5, sizes, **options)


@pytest.mark.parametrize("op", OPS)
def test_gradients_that_are_asked_for(op):
    """Each of them alone is the same as all of them together."""
    args, _, kinds = inputs(mx.float32, "affine", "teacher")
    options = {**kinds, **CAPS}
    biases = list(biases_of(9).values())
    arrays = [*args[:2], args[4], *biases]

    def loss(x, weight, y, bias, target_bias):
        given = (x, weight, None, None, y, *args[5:])
        return quantized(op)(*given, bias=bias, target_bias=target_bias, **options)

    wanted = mx.grad(loss, argnums=tuple(range(5)))(*arrays)
    for chosen in ((0,), (1,), (2,), (3,), (4,), (0, 3), (1, 2)):
        found = mx.grad(loss, argnums=chosen)(*arrays)
        for i, gradient in zip(chosen, found if len(chosen) > 1 else [found], strict=True):
            np.testing.assert_array_equal(gradient, wanted[i])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("op", OPS)
def test_rows_that_are_left_out_are_not_read(op, side):
    args, _, kinds = inputs(mx.float32, "nvfp4", side, (5,))
    mask = mx.array([True, False, True, True, False])
    wanted = loss_and_grads(op, args, mask=mask, **kinds)
    args[0][1], args[4][4] = mx.nan, mx.inf
    found = loss_and_grads(op, args, mask=mask, **kinds)
    for got, same in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
        np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("op", OPS)
def test_no_rows_at_all(dtype, op, rows):
    args, _, kinds = inputs(dtype, "mxfp8", "student", (rows,))
    mask = mx.zeros((rows,), mx.bool_)
    options = {**kinds, **biases_of(9, dtype)}
    for given in ({"mask": mask}, {"row_weight": mx.zeros(rows)}):
        out, grads = loss_and_grads(op, args, **given, **options)
        assert out.item() == 0
        for gradient in grads:
            assert not to_numpy(gradient).any()


@pytest.mark.parametrize("op", OPS)
def test_mixed_dtypes(op):
    """A teacher in bfloat16 of a student in float32, and the reverse."""
    for dtypes in ((mx.float32, mx.bfloat16), (mx.bfloat16, mx.float32)):
        (x, weight, *_), own = layer(dtypes[0], None, (3, 4), 64, 9, 1)
        other, other_ = layer(dtypes[1], "affine 4", (3, 4), 64, 9, 3)
        kinds = {f"target_{name}": value for name, value in MODES["affine 4"].items()}
        args = [x, weight, None, None, *other]
        out, grads = loss_and_grads(op, args, **kinds)
        loss, wanted = expected(op, args, own + other_)
        assert out.dtype == mx.float32
        assert_near(out, loss, 4e-6)
        for gradient, w, i in zip(grads, wanted, (0, 0, 1), strict=True):
            assert gradient.dtype == dtypes[i]
            assert_near(gradient, w, EPSILON[dtypes[i]] + 4e-6)


@pytest.mark.parametrize("op", OPS)
def test_vmap_and_compile(op):
    args, values, kinds = inputs(mx.float32, "affine 4", "student")
    bias = biases_of(9)["bias"]

    def fn(x, y, target_weight, bias):
        return quantized(op)(x, *args[1:4], y, target_weight, None, None, bias=bias, **kinds)

    x_, weight_, y_, target_ = values
    wanted = [reference(op, x, weight_, y, target_, bias=bias) for x, y in zip(x_, y_, strict=True)]
    given = (args[0], args[4], args[5], bias)
    axes = (0, 0, None, None)
    np.testing.assert_allclose(
        mx.vmap(fn, in_axes=axes)(*given), [loss for loss, _ in wanted], 1e-5
    )
    every = (0, 1, 2, 3)
    found = mx.vmap(mx.grad(fn, argnums=every), in_axes=axes)(*given)
    for gradient, i in zip(found, (0, 2, 3, 4), strict=True):
        assert_near(gradient, np.stack([g[i] for _, g in wanted]), 1e-5)
    whole, of_whole = reference(op, *values, bias=bias)
    loss, found = mx.compile(mx.value_and_grad(fn, argnums=every))(*given)
    np.testing.assert_allclose(loss, whole, 1e-5)
    for gradient, i in zip(found, (0, 2, 3, 4), strict=True):
        assert_near(gradient, of_whole[i], 1e-5)


@pytest.mark.parametrize("op", OPS)
def test_a_batch_of_weights(op):
    """A layer for each element, as of an ensemble of teachers."""
    x, weights = mx.ones((2, 3, 64)) * 0.25, mx.random.normal((2, 9, 64), key=mx.random.key(0))
    parts = mx.quantize(weights)

    def fn(x, *parts):
        return quantized(op)(x, weights[0], None, None, x, *parts)

    found = mx.vmap(fn)(x, *parts)
    wanted = [fn(x[i], *(part[i] for part in parts)).item() for i in range(2)]
    np.testing.assert_allclose(found, wanted, 1e-6)


@pytest.mark.parametrize("op", OPS)
def test_shapeless_graphs(op):
    """They are rejected when the graph is traced, because mx.dequantize keeps the shapes."""
    args, _, kinds = inputs(mx.float32, "affine")
    with pytest.raises(ValueError, match="shapeless"):
        mx.compile(lambda x: quantized(op)(x, *args[1:], **kinds), shapeless=True)(args[0])


@pytest.mark.parametrize(("op", "side"), [(OPS[0], "student"), (OPS[1], "teacher")])
def test_finite_differences(op, side):
    args, _, kinds = inputs(mx.float64, "affine 8", side, (2,), words=5)
    options = {**kinds, **CAPS, **biases_of(5, mx.float64)}
    _, grads = loss_and_grads(op, args, **options)
    rng = np.random.default_rng(0)
    for at, gradient in zip([*differentiable(args), "bias", "target_bias"], grads, strict=True):
        values = []
        step = mx.array(rng.normal(size=gradient.shape) * 1e-5, mx.float64)
        for sign in (1, -1):
            given, named = list(args), dict(options)
            place = named if isinstance(at, str) else given
            place[at] = place[at] + sign * step
            values.append(quantized(op)(*given, **named).item())
        change = 2 * to_numpy((gradient * step).sum())
        np.testing.assert_allclose(values[0] - values[1], change, 1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("op", "side", "options"),
    [
        (OPS[0], "student", {"temperature": 2.0}),
        (OPS[0], "teacher", CAPS),
        (OPS[1], "both", {}),
        (OPS[1], "student", {"beta": 0.75, **CAPS}),
    ],
)
def test_second_derivatives(op, side, options):
    args, _, kinds = inputs(mx.float64, "affine 4", side, (3,), 32, 32, 4)
    at = differentiable(args)
    mask = mx.array([True, False, True])

    def fn(*arrays):
        given = list(args)
        for i, a in zip(at, arrays, strict=False):
            given[i] = a
        biases = {"bias": arrays[-2], "target_bias": arrays[-1]}
        return quantized(op)(*given, mask, **biases, **kinds, **options)

    arrays = [*(args[i] for i in at), *biases_of(4, mx.float64).values()]
    gradcheck(fn, *arrays, checks=("second", "jvp"), limit=4)


@pytest.mark.extended
@pytest.mark.skipif(metal_backend() is not None, reason="there blocks are MLX's arrays")
@pytest.mark.parametrize("op", OPS)
def test_memory(op):
    """A quarter of both dequantized weights if these are large, and a third of all logits."""
    for rows, depth, words in ((8, 512, 100_000), (2048, 32, 33_000)):
        x = mx.ones((rows, depth), mx.bfloat16)
        weight = mx.quantize(mx.ones((words, depth), mx.bfloat16), bits=4, group_size=32)
        mx.eval(x, weight)

        def loss(x, layer=weight, y=x):
            return quantized(op)(x, *layer, y, *layer, group_size=32, target_group_size=32)

        for call in (loss, mx.grad(loss)):
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            mx.eval(call(x))
            used = mx.get_peak_memory() - before
            assert used < 2 * words * max(2 * depth / 4, 4 * rows / 3)


def test_gradients_that_are_not_asked_for_cost_no_memory():
    """A dense layer that is not trained has no gradient of its own size."""
    words, depth = 100_000, 256
    x, dense = mx.ones((8, depth)), mx.ones((words, depth))
    weight = mx.quantize(dense)
    mx.eval(x, dense, weight)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.grad(lambda x: quantized(OPS[0])(x, dense, None, None, x, *weight))(x))
    assert mx.get_peak_memory() - before < dense.nbytes


@pytest.mark.parametrize("op", OPS)
def test_has_no_other_gradient(op):
    args, _, kinds = inputs(mx.float32, "affine", "both", (3,))
    for i, name in ((2, "scales"), (3, "biases")):

        def loss(part, i=i):
            return quantized(op)(*args[:i], part, *args[i + 1 :], **kinds)

        with pytest.raises(ValueError, match=f"Not differentiable with respect to '{name}'"):
            mx.grad(loss)(args[i])


@pytest.mark.parametrize("op", OPS)
def test_errors(op):
    args, _, _ = inputs(mx.float32, "affine", "student", (4,))
    x, weight, scales, biases, y, dense = args[:6]
    teacher = (y, dense, None, None)
    own = (x, weight, scales, biases)
    fits = "weight, scales and biases must be those of mx.quantize for V rows of D elements"
    required = "biases are required for the mode affine and for no other"
    other_fits = "target_weight, target_scales and target_biases must be those of mx.quantize"
    for given, options, message in (
        ((x, weight, scales, None, *teacher), {}, required),
        ((*own, *teacher), {"mode": "mxfp4"}, required),
        ((x, dense[:, :64], None, biases, *teacher), {}, required),
        ((*own, y, dense, None, biases), {}, f"target_{required}".replace("mode", "target_mode")),
        ((*own, *teacher), {"bits": 8}, fits),
        ((*own, *teacher), {"group_size": 32}, fits),
        ((x[:, :32], *own[1:], *teacher), {}, fits),
        ((x, weight, scales[:5], biases, *teacher), {}, fits),
        ((x, weight, scales, biases[:5], *teacher), {}, fits),
        ((x, dense, None, None, *teacher), {}, fits),
        ((*own, y[:, :64], dense, None, None), {}, other_fits),
        ((*own, *own[:3], biases[:, :0]), {}, other_fits),
        ((x, weight, None, None, *teacher), {}, "weight must be the uint32 array of mx.quantize"),
        (
            (x, weight.astype(mx.int32), scales, biases, *teacher),
            {},
            "weight must be the uint32 array of mx.quantize",
        ),
        ((*own, y, weight, None, None), {}, "target_weight must be the uint32 array"),
        ((*own, y, dense[:5], None, None), {}, r"target_weight must be \(V, Q\)"),
        ((*own, y[:3], dense, None, None), {}, r"target_x must be \(\.\.\., E\)"),
        ((*own, *teacher, mx.ones(4)), {}, "mask must be an array of bools"),
        ((*own, *teacher), {"bias": mx.ones(4)}, r"bias must be \(V,\)"),
        ((*own, *teacher), {"row_weight": mx.ones(3)}, r"row_weight must be \(\.\.\.\)"),
        ((*own, *teacher), {"temperature": 0.0}, "temperature must be positive"),
        ((*own, *teacher), {"target_logit_softcap": -1.0}, "target_logit_softcap must not be"),
        ((*own, *teacher), {"mode": "nf4"}, "mode must be one of"),
        ((x[:, :24], weight[:, :3], scales, biases, *teacher), {"group_size": 24}, fits),
        ((x[:, :32], weight[:, :7], scales, biases, *teacher), {"bits": 7, "group_size": 32}, fits),
        ((x, weight, scales, None, *teacher), {"mode": "mxfp8", "bits": 4, "group_size": 64}, fits),
    ):
        with pytest.raises(ValueError, match=rf"^\[quantized_linear_{op}\] {message}"):
            quantized(op)(*given, **options)


def test_a_layer_without_inputs():
    """The logits of the student are its bias."""
    x, weight, bias = mx.zeros((3, 0)), mx.zeros((5, 0)), mx.arange(5.0)
    target, target_weight = mx.ones((3, 2)), mx.arange(10.0).reshape(5, 2) / 4

    def loss(x, bias):
        student, teacher = (x, weight, None, None), (target, target_weight, None, None)
        return mlxops.nn.quantized_linear_kl_div_loss(*student, *teacher, bias=bias)

    got, (of_x, of_bias) = mx.value_and_grad(loss, argnums=(0, 1))(x, bias)
    logits = mx.broadcast_to(bias, (3, 5)), target @ target_weight.T
    wanted, of_logits = mx.value_and_grad(mlxops.nn.kl_div_loss)(*logits)
    assert of_x.shape == (3, 0)
    np.testing.assert_allclose(got, wanted, 1e-5)
    np.testing.assert_allclose(of_bias, of_logits.sum(0), 1e-5, 1e-6)
