"""lstm and gru against loops over time, in NumPy and in MLX's ops, and against mlx.nn's layers."""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from mlx import nn
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, metal_backend, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
OPS = {"lstm": mlxops.nn.lstm, "gru": mlxops.nn.gru}
OPTIONAL = {"lstm": ("hidden", "cell"), "gru": ("bias", "hidden")}
# Batch, time, units: with and without remainders of vectors, rows and simdgroups; for several
# cores; single steps.
SIZES = [
    *[(2, 5, 8), (1, 3, 1), (7, 7, 33), (13, 2, 5), (1, 2, 70), (8, 6, 64), (2, 13, 3)],
    *[(1, 1, 50), (2, 1, 9), (2, 1, 130), (9, 1, 20)],
]
EMPTY = [(2, 0, 3), (0, 3, 3), (2, 3, 0)]


def inputs(op, dtype, size, seed=0):
    batch, time, units = size
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    random = iter(range(100 * seed, 100 * seed + 100))
    gates = 4 if op == "lstm" else 3

    def array(dtype, *shape, low=-2.0, high=2.0):
        return draw(dtype, shape, low, high, seed=next(random))[0]

    limit = 2 / np.sqrt(units + 1)
    arrays = {
        "x": array(dtype, batch, time, gates * units),
        "weight": array(dtype, gates * units, units, low=-limit, high=limit),
        "hidden": array(dtype, batch, units, low=-1, high=1),
    }
    if op == "lstm":
        return arrays | {"cell": array(wide, batch, units)}
    return arrays | {"bias": array(dtype, units)}


def composition(op, x, weight, hidden=None, cell=None, bias=None, ops=mx):
    """Compute in MLX's or NumPy's ops. MLX's sigmoid in float64 has only float32's accuracy."""

    def sigmoid(x):
        return 0.5 * (1 + ops.tanh(0.5 * x))

    units = weight.shape[1]
    h = ops.zeros((x.shape[0], units), dtype=x.dtype) if hidden is None else hidden
    c = ops.zeros((x.shape[0], units), dtype=x.dtype) if cell is None else cell
    hs, cs = [h], [c]
    for t in range(x.shape[1]):
        p = h @ weight.T
        if op == "lstm":
            i, f, g, o = ops.split(x[:, t] + p, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * ops.tanh(g)
            h = sigmoid(o) * ops.tanh(c)
        else:
            (xr, xz, xn), (pr, pz, pn) = (ops.split(a, 3, axis=-1) for a in (x[:, t], p))
            n = ops.tanh(xn + sigmoid(xr + pr) * (pn if bias is None else pn + bias))
            z = sigmoid(xz + pz)
            h = (1 - z) * n + z * h
        hs.append(h)
        cs.append(c)
    out = tuple(ops.stack(a, axis=1)[:, 1:] for a in (hs, cs))
    return out if op == "lstm" else out[:1]


def run(op, **arrays):
    out = OPS[op](**arrays)
    return out if op == "lstm" else (out,)


def given(op, arrays):
    """Yield all arguments, and the arguments without each of the optional ones."""
    return [arrays, *({n: a for n, a in arrays.items() if n != absent} for absent in OPTIONAL[op])]


def close(got, exact, factor=30):
    """Compare within this number of ulp of the largest number."""
    assert got.shape == exact.shape
    exact = to_numpy(exact) if isinstance(exact, mx.array) else exact
    limit = factor * EPSILON[got.dtype] * np.abs(exact).max(initial=1e-3)
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", SIZES + EMPTY, ids=str)
def test_values(dtype, op, size):
    for arrays in given(op, inputs(op, dtype, size)):
        values = {n: to_numpy(a) for n, a in arrays.items()}
        got = run(op, **arrays)
        assert got[0].dtype == dtype
        for g, w in zip(got, composition(op, **values, ops=np), strict=True):
            # A cell state follows from the rounded hidden states.
            close(g, w, 30 * EPSILON[dtype] / EPSILON[g.dtype])


def gradients(op, fn, arrays):
    """Return the gradients of a loss of all outputs, for every array."""

    def loss(*values):
        total = 0
        for out in fn(op, **dict(zip(arrays, values, strict=True))):
            weight = mx.cos(mx.arange(out.size)).reshape(out.shape).astype(out.dtype)
            total = total + (weight * out * (1 + 0.1 * out)).sum()
        return total

    grads = mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays.values())
    return dict(zip(arrays, grads, strict=True))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients(dtype, op, size):
    check_gradients(op, dtype, size)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [(1, 2, 300), (1, 2, 530), (1, 17, 40)], ids=str)
def test_gradients_of_many_units(op, size):
    """`parts` is three or one on Metal, and then a thread of the CPU computes two blocks."""
    check_gradients(op, mx.float32, size)


def check_gradients(op, dtype, size):
    for arrays in given(op, inputs(op, dtype, size)):
        got = gradients(op, run, arrays)
        with mx.stream(mx.cpu):
            wide = {n: a.astype(mx.float64) for n, a in arrays.items()}
            wanted = gradients(op, composition, wide)
        for name, g in got.items():
            assert g.dtype == arrays[name].dtype
            close(g, wanted[name], 50 * EPSILON[dtype] / EPSILON[g.dtype])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", EMPTY, ids=str)
def test_gradients_of_nothing(op, size):
    arrays = inputs(op, mx.float32, size)
    for name, g in gradients(op, run, arrays).items():
        assert g.shape == arrays[name].shape
        assert not to_numpy(g).any()


def test_layers():
    """The results are those of mlx.nn's layers."""
    x = draw(mx.float32, (3, 6, 5))[0]
    layer = nn.LSTM(5, 8)
    out = mlxops.nn.lstm(mx.addmm(layer.bias, x, layer.Wx.T), layer.Wh)
    for g, w in zip(out, layer(x), strict=True):
        close(g, w)
    layer = nn.GRU(5, 8)
    # Without a hidden state, the first step of mlx.nn's layer omits the product, which is 0.
    close(mlxops.nn.gru(mx.addmm(layer.b, x, layer.Wx.T), layer.Wh, layer.bhn), layer(x))


@pytest.mark.parametrize("op", OPS)
def test_step_by_step(op):
    arrays = inputs(op, mx.float32, (2, 4, 9))
    whole = run(op, **arrays)
    state = {n: arrays[n] for n in ("hidden", "cell") if n in arrays}
    for t in range(4):
        out = run(op, **(arrays | state | {"x": arrays["x"][:, t : t + 1]}))
        state = dict(zip(("hidden", "cell"), (o[:, 0] for o in out), strict=False))
        for g, w in zip(out, whole, strict=True):
            close(g[:, 0], w[:, t])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("units", [5, 130])
@pytest.mark.parametrize("batch", [1, 2, 3, 6, 8, 25])
def test_rows_and_steps_do_not_matter(op, units, batch):
    """On the CPU, each row has the same bits alone, and so has a single step with its gradient."""
    if metal_backend() == "emulation":
        pytest.skip("the kernels of the CPU do not run")
    arrays = inputs(op, mx.float32, (batch, 3, units))
    shared = {n: arrays[n] for n in ("weight", "bias") if n in arrays}

    def run_and_grads(arrays):
        def loss(*values):
            outs = run(op, **dict(zip(arrays, values, strict=True)))
            return sum((out * (1 + out)).sum() for out in outs)

        with mx.stream(mx.cpu):
            grads = mx.grad(loss, tuple(range(len(arrays))))(*arrays.values())
            return run(op, **arrays), dict(zip(arrays, grads, strict=True))

    results, grads = run_and_grads(arrays)
    for r in {0, batch - 1}:
        row = {n: a if n in shared else a[r : r + 1] for n, a in arrays.items()}
        got, got_grads = run_and_grads(row)
        for g, w in zip(got, results, strict=True):
            np.testing.assert_array_equal(g[0], w[r])
        for name in arrays.keys() - shared:
            np.testing.assert_array_equal(got_grads[name][0], grads[name][r])
    # The last step alone continues the states after the second one, and its gradient is known.
    states = dict(zip(("hidden", "cell"), (out[:, 1] for out in results), strict=False))
    got, got_grads = run_and_grads({**arrays, **states, "x": arrays["x"][:, 2:]})
    for g, w in zip(got, results, strict=True):
        np.testing.assert_array_equal(g[:, 0], w[:, 2])
    np.testing.assert_array_equal(got_grads["x"][:, 0], grads["x"][:, 2])


@pytest.mark.parametrize("op", OPS)
def test_saturated_gates(op):
    """Gates beyond the range of exp, and a NaN that stays in its row of the batch."""
    arrays = inputs(op, mx.float32, (3, 3, 4))
    arrays["x"] = arrays["x"] * 1e30
    arrays["x"][1, 1, 0] = np.nan
    hidden = to_numpy(run(op, **arrays)[0])
    assert (np.abs(hidden[[0, 2]]) <= 1).all()
    assert np.isnan(hidden[1, 1:]).any()
    assert np.isfinite(hidden[1, 0]).all()
    grads = gradients(op, run, arrays)
    assert np.isfinite(to_numpy(grads["x"])[[0, 2]]).all()


@pytest.mark.parametrize("op", OPS)
def test_vmap(op):
    both = [list(inputs(op, mx.float32, (2, 3, 5), seed).items()) for seed in (1, 2)]
    names = [name for name, _ in both[0]]
    batched = [mx.stack([a, b]) for (_, a), (_, b) in zip(*both, strict=True)]
    got = mx.vmap(lambda *a: run(op, **dict(zip(names, a, strict=True))))(*batched)
    wanted = zip(*(run(op, **dict(pairs)) for pairs in both), strict=True)
    for g, w in zip(got, wanted, strict=True):
        close(g, mx.stack(w))


def weighted(arrays):
    """Return a sum whose derivatives of every order depend on all elements."""
    weights = [mx.sin(mx.arange(a.size) + 1).reshape(a.shape).astype(a.dtype) for a in arrays]
    return sum((w * a * (1 + 0.1 * a)).sum() for w, a in zip(weights, arrays, strict=True))


def derivative(op, fn, arrays, order):
    """Return the gradients of a gradient penalty (order 2), or of a penalty of its gradient."""
    every = tuple(range(len(arrays)))

    def loss(*values):
        return weighted(fn(op, **dict(zip(arrays, values, strict=True))))

    def penalty(loss):
        return lambda *values: weighted(mx.grad(loss, every)(*values))

    for _ in range(order - 1):
        loss = penalty(loss)
    return dict(zip(arrays, mx.grad(loss, every)(*arrays.values()), strict=True))


def wide_composition(op, arrays, order):
    with mx.stream(mx.cpu):
        wide = {n: a.astype(mx.float64) for n, a in arrays.items()}
        return derivative(op, composition, wide, order)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("size", "order"), [((2, 4, 3), 2), ((1, 1, 5), 2), ((2, 3, 2), 3), *((s, 2) for s in EMPTY)]
)
def test_further_derivatives(dtype, op, size, order):
    for arrays in given(op, inputs(op, dtype, size)):
        wanted = wide_composition(op, arrays, order)
        for name, g in derivative(op, run, arrays, order).items():
            assert g.dtype == arrays[name].dtype
            # The first derivatives, from which this one follows, are rounded to the dtype.
            close(g, wanted[name], 100 * EPSILON[dtype] / EPSILON[g.dtype])


@pytest.mark.parametrize("op", OPS)
def test_hessian_vector_products(op):
    """They are finite differences of the gradient, in float64."""
    arrays = inputs(op, mx.float64, (2, 3, 3))
    with mx.stream(mx.cpu):
        directions = [
            draw(mx.float64, a.shape, -1, 1, seed=50 + i)[0] for i, a in enumerate(arrays.values())
        ]

        def gradient(*values):
            every = tuple(range(len(values)))
            return mx.grad(
                lambda *v: weighted(run(op, **dict(zip(arrays, v, strict=True)))), every
            )(*values)

        def along(*values):
            return sum((g * d).sum() for g, d in zip(gradient(*values), directions, strict=True))

        got = mx.grad(along, tuple(range(len(arrays))))(*arrays.values())
        step = 1e-5
        ahead, back = (
            gradient(
                *(a + sign * step * d for a, d in zip(arrays.values(), directions, strict=True))
            )
            for sign in (1, -1)
        )
        for g, a, b in zip(got, ahead, back, strict=True):
            np.testing.assert_allclose(g, (a - b) / (2 * step), 1e-6, 1e-7)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [(2, 4, 3), (1, 1, 5)], ids=str)
def test_jvp(dtype, op, size):
    for arrays in given(op, inputs(op, dtype, size)):
        tangents = [
            draw(a.dtype, a.shape, -1, 1, seed=60 + i)[0] for i, a in enumerate(arrays.values())
        ]

        def tangent(fn, values, tangents, names=tuple(arrays)):
            return mx.jvp(lambda *v: fn(op, **dict(zip(names, v, strict=True))), values, tangents)[
                1
            ]

        got = tangent(run, list(arrays.values()), tangents)
        with mx.stream(mx.cpu):
            wide = [[a.astype(mx.float64) for a in x] for x in (arrays.values(), tangents)]
            wanted = tangent(composition, *wide)
        for g, w in zip(got, wanted, strict=True):
            close(g, w, 50 * EPSILON[dtype] / EPSILON[g.dtype])


@pytest.mark.parametrize("op", OPS)
def test_second_derivatives_under_transformations(op):
    both = [inputs(op, mx.float32, (2, 3, 4), seed) for seed in (1, 2)]
    names = list(both[0])

    def twice(*values):
        return list(derivative(op, run, dict(zip(names, values, strict=True)), 2).values())

    wanted = [twice(*arrays.values()) for arrays in both]
    batched = [mx.stack([both[0][n], both[1][n]]) for n in names]
    for g, *w in zip(mx.vmap(twice)(*batched), *wanted, strict=True):
        close(g, mx.stack(w))
    with pytest.raises(ValueError, match=rf"{op}.*shapeless=True"):
        mx.compile(twice, shapeless=True)(*both[0].values())


def test_compile_second_derivative():
    arrays = inputs("gru", mx.float32, (1, 2, 3))

    def penalty(x):
        return mx.grad(lambda x: mlxops.nn.gru(**(arrays | {"x": x})).sum())(x).sum()

    twice = mx.grad(penalty)
    close(mx.compile(twice)(arrays["x"]), twice(arrays["x"]))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(op, layout):
    arrays = {n: LAYOUTS[layout](a) for n, a in inputs(op, mx.float32, (2, 3, 5)).items()}
    values = {n: to_numpy(a) for n, a in arrays.items()}
    for g, w in zip(run(op, **arrays), composition(op, **values, ops=np), strict=True):
        close(g, w)


@pytest.mark.parametrize("op", OPS)
def test_errors(op):
    arrays = inputs(op, mx.float32, (2, 3, 4))
    gates = {"lstm": 4, "gru": 3}[op]
    for wrong, message in [
        ({"x": mx.ones((3, 4))}, r"x must be \(batch, steps, .\*width\)"),
        ({"weight": mx.ones((4, gates * 4))}, r"weight must be \(.\*width, width\)"),
        ({"x": mx.ones((2, 3, 4))}, rf"x must be \(batch, steps, {gates}\*width\), where weight"),
        ({"hidden": mx.ones((2, 5))}, r"hidden must be \(batch, width\)"),
        (
            {
                "weight": mx.ones((gates * 1025, 1025)),
                "x": mx.ones((2, 3, gates * 1025)),
                **dict.fromkeys(arrays.keys() - {"weight", "x"}),
            },
            "at most 1024 units",
        ),
        {
            "lstm": ({"cell": mx.ones((2, 5))}, r"cell must be \(batch, width\)"),
            "gru": ({"bias": mx.ones((5,))}, r"bias must be \(width,\)"),
        }[op],
    ]:
        with pytest.raises(ValueError, match=rf"^\[{op}\] {message}"):
            run(op, **(arrays | wrong))
