"""ssm_scan against a loop over time, in NumPy and in MLX's ops."""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
NAMES = ("x", "A_log", "B", "C", "D", "dt", "state")
# Batch, time, heads, channels, groups, states: with and without remainders of vectors and lanes.
SIZES = [
    *((2, 9, 4, 8, 2, 16), (1, 1, 2, 64, 1, 128), (1, 7, 3, 5, 3, 3), (2, 5, 2, 1, 1, 1)),
    *((1, 3, 1, 33, 1, 70), (1, 2, 2, 70, 1, 256), (3, 20, 2, 18, 2, 40)),
]
EMPTY = [(2, 0, 2, 3, 1, 4), (0, 3, 2, 3, 1, 4), (2, 3, 2, 3, 1, 0), (2, 3, 2, 0, 1, 4)]


def inputs(dtype, size, seed=0):
    """Return the arrays; parameters and states are at least float32."""
    batch, time, heads, channels, groups, states = size
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    random = iter(range(100 * seed, 100 * seed + 100))

    def array(dtype, *shape, low=-1.0, high=1.0):
        return draw(dtype, shape, low, high, seed=next(random))[0]

    return {
        "x": array(dtype, batch, time, heads, channels),
        "A_log": array(wide, heads),
        "B": array(dtype, batch, time, groups, states),
        "C": array(dtype, batch, time, groups, states),
        "D": array(wide, heads),
        "dt": array(wide, batch, time, heads, low=0.05),
        "state": array(wide, batch, heads, channels, states),
    }


def holes(size, seed=5):
    """Return a mask with padding on the left and gaps."""
    there = np.random.default_rng(seed).uniform(size=size[:2]) < 0.7
    there[:1, : size[1] // 3] = False
    return mx.array(there)


def reference(x, A_log, B, C, D, dt, state=None, mask=None):
    x, A_log, B, C, D, dt = (to_numpy(a) for a in (x, A_log, B, C, D, dt))
    batch, time, heads, channels = x.shape
    share = heads // B.shape[2]
    S = np.zeros((batch, heads, channels, B.shape[3])) if state is None else to_numpy(state)
    S = S.astype(np.float64)
    y = np.zeros(x.shape)
    for b, t, h in np.ndindex(batch, time, heads):
        if mask is not None and not mask[b, t].item():
            continue
        S[b, h] *= np.exp(-np.exp(A_log[h]) * dt[b, t, h])
        S[b, h] += dt[b, t, h] * np.outer(x[b, t, h], B[b, t, h // share])
        y[b, t, h] = S[b, h] @ C[b, t, h // share] + D[h] * x[b, t, h]
    return y, S


def exp(x):
    """exp, accurate in float64, where MLX's has only float32's accuracy."""
    return mx.power(mx.array(np.e, mx.float64), x) if x.dtype == mx.float64 else mx.exp(x)


def composition(x, A_log, B, C, D, dt, state=None, mask=None):
    batch, time, heads, channels = x.shape
    B, C = (mx.repeat(a, heads // B.shape[2], axis=2) for a in (B, C))
    S = mx.zeros((batch, heads, channels, B.shape[3]), dt.dtype) if state is None else state
    ys = []
    for t in range(time):
        step = dt[:, t, :, None, None]
        new = exp(-exp(A_log)[:, None, None] * step) * S
        new = new + step * x[:, t, :, :, None] * B[:, t, :, None, :]
        y = (new * C[:, t, :, None, :]).sum(axis=-1) + D[:, None] * x[:, t]
        if mask is not None:
            there = mask[:, t, None, None]
            new = mx.where(there[..., None], new, S)
            y = mx.where(there, y, 0)
        S = new
        ys.append(y)
    return mx.stack(ys, axis=1), S


def close(got, exact, factor=8, scale=0):
    """Compare within this number of ulp of the largest number, or of `scale`."""
    assert got.shape == exact.shape
    exact = to_numpy(exact) if isinstance(exact, mx.array) else exact
    largest = max(np.abs(exact).max(initial=1e-3), np.abs(scale).max(initial=0))
    limit = factor * EPSILON[got.dtype] * largest
    np.testing.assert_allclose(to_numpy(got), exact, 0, limit)


@pytest.mark.parametrize("size", SIZES + EMPTY, ids=str)
def test_values(dtype, size):
    arrays = inputs(dtype, size)
    for mask in (None, holes(size)):
        for first in ({}, {"state": None}):
            given = arrays | {"mask": mask} | first
            y, state = mlxops.nn.ssm_scan(**given)
            assert y.dtype == dtype
            assert state.dtype == arrays["dt"].dtype
            wanted_y, wanted_state = reference(**given)
            close(y, wanted_y, 30)
            close(state, wanted_state, 30)


def gradients(fn, arrays, mask):
    """Return the gradients of a loss of both outputs, for every array."""
    names = [name for name in NAMES if arrays[name] is not None]

    def loss(*values):
        y, state = fn(**(arrays | dict(zip(names, values, strict=True))), mask=mask)
        weight = mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype)
        return (weight * y * (1 + 0.1 * y)).sum() + (state * state).sum()

    values = tuple(arrays[name] for name in names)
    return dict(zip(names, mx.grad(loss, argnums=tuple(range(len(names))))(*values), strict=True))


def widened(arrays):
    return {name: a if a is None else a.astype(mx.float64) for name, a in arrays.items()}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients(dtype, size, masked):
    """Compare with the composition in float64; the cotangent has the rounding of the output."""
    arrays = inputs(dtype, size)
    mask = holes(size) if masked else None
    for first in ({}, {"state": None}):
        given = arrays | first
        got = gradients(mlxops.nn.ssm_scan, given, mask)
        with mx.stream(mx.cpu):
            wanted = gradients(composition, widened(given), mask)
        for name, g in got.items():
            assert g.dtype == arrays[name].dtype
            limit = 300 if dtype in (mx.float32, mx.float64) else 30
            if g.dtype != dtype:  # of a parameter: only the cotangents are rounded
                limit *= EPSILON[dtype] / EPSILON[g.dtype]
            close(g, wanted[name], limit)


@pytest.mark.parametrize("size", EMPTY, ids=str)
def test_gradients_of_nothing(size):
    arrays = inputs(mx.float32, size)
    got = gradients(mlxops.nn.ssm_scan, arrays, holes(size))
    for name, g in got.items():
        assert g.shape == arrays[name].shape
        mx.eval(g)
    if size[1] == 0:
        np.testing.assert_allclose(got["state"], 2 * arrays["state"])


def test_masked_steps_may_hold_anything():
    """NaN and infinity in the padding affect neither results nor gradients."""
    size = (2, 9, 4, 8, 2, 16)
    arrays = inputs(mx.float32, size)
    grads = {"y": arrays["x"] + 1, "last": arrays["state"] + 1}
    for mask in (holes(size), mx.zeros(size[:2], mx.bool_)):

        def results(given, mask=mask):
            values = [given[name] for name in NAMES]
            call = lambda *a: mlxops.nn.ssm_scan(*a, mask)  # noqa: E731
            outputs, grads = mx.vjp(call, values, [given["y"], given["last"]])
            return [*outputs, *grads]

        wanted = results(arrays | grads)
        assert not to_numpy(wanted[0])[~np.array(mask)].any()
        for filling in (mx.nan, mx.inf, -mx.inf):
            dirty = arrays | grads
            for name in ("x", "B", "C", "dt", "y"):
                there = mask.reshape(mask.shape + (1,) * (dirty[name].ndim - 2))
                dirty[name] = mx.where(there, dirty[name], filling)
            if not mask.any():  # then no step reads the values
                dirty |= {name: mx.full(dirty[name].shape, filling) for name in ("A_log", "D")}
            for g, w in zip(results(dirty), wanted, strict=True):
                np.testing.assert_array_equal(g, w)


def test_step_by_step():
    """Decoding: single steps in sequence equal one call."""
    size = (2, 6, 4, 20, 2, 24)
    arrays = inputs(mx.float32, size)
    y, last = mlxops.nn.ssm_scan(**arrays)
    state = arrays["state"]
    for t in range(size[1]):
        given = {n: arrays[n][:, t : t + 1] for n in ("x", "B", "C", "dt")}
        got, state = mlxops.nn.ssm_scan(**(arrays | given | {"state": state}))
        close(got, y[:, t : t + 1])
    close(state, last)


def test_strong_and_weak_decay():
    """A state that vanishes immediately, and one that decays slowly; gradients of both."""
    size = (1, 50, 2, 4, 1, 8)
    arrays = inputs(mx.float32, size) | {"A_log": mx.array([6.0, -20.0])}
    y, state = mlxops.nn.ssm_scan(**arrays)
    wanted_y, wanted_state = reference(**arrays)
    close(y, wanted_y)
    close(state, wanted_state)
    with mx.stream(mx.cpu):
        wanted = gradients(composition, widened(arrays), None)
    for name, g in gradients(mlxops.nn.ssm_scan, arrays, None).items():
        close(g, wanted[name], 200)


RATES = (0.1, 1.0, 16.0)


def exact_gradients(arrays, grad_y, grad_last):
    """Return the gradients of A_log and dt by a backward loop over time, in float64."""
    x, A_log, B, C, _, dt, state = (to_numpy(a).astype(np.float64) for a in arrays.values())
    share = x.shape[2] // B.shape[2]
    B, C = (np.repeat(a, share, axis=2) for a in (B, C))
    rate = -np.exp(A_log)
    decay = np.exp(rate * dt)[..., None, None]
    states = [state]
    for t in range(x.shape[1]):
        taken = dt[:, t, :, None, None] * x[:, t, :, :, None] * B[:, t, :, None]
        states.append(decay[:, t] * states[-1] + taken)
    grad = to_numpy(grad_last).astype(np.float64)
    of_A_log, of_dt = np.zeros_like(A_log), np.zeros_like(dt)
    for t in reversed(range(x.shape[1])):
        grad = grad + grad_y[:, t, :, :, None] * C[:, t, :, None]
        of_log_decay = (grad * decay[:, t] * states[t]).sum((2, 3))
        taken = (grad * x[:, t, :, :, None] * B[:, t, :, None]).sum((2, 3))
        of_dt[:, t] = taken + rate * of_log_decay
        of_A_log += (rate * dt[:, t] * of_log_decay).sum(0)
        grad = decay[:, t] * grad
    return of_A_log, of_dt


@pytest.mark.parametrize("steps", [1, 5, 64, 200, 1000])
@pytest.mark.parametrize("largest", [0.001, 0.03, 0.3, 1.0, 3.0])
def test_gradients_of_decays(largest, steps):
    """Each head's gradient is accurate, for decays from almost 1 to exp(-48)."""
    size = (1, steps, len(RATES), 6, 1, 8)
    arrays = inputs(mx.float32, size) | {"A_log": mx.log(mx.array(RATES))}
    arrays["dt"] = largest * (0.7 + 0.3 * arrays["dt"])
    grad_y, grad_last = (draw(mx.float32, shape, -1, 1, seed=7)[0] for shape in (
        arrays["x"].shape, arrays["state"].shape))  # fmt: skip
    _, grads = mx.vjp(mlxops.nn.ssm_scan, list(arrays.values()), [grad_y, grad_last])
    of_A_log, of_dt = exact_gradients(arrays, to_numpy(grad_y), to_numpy(grad_last))
    np.testing.assert_allclose(grads[1], of_A_log, 1e-4)
    for head in range(len(RATES)):
        got, exact = to_numpy(grads[5])[..., head], of_dt[..., head]
        np.testing.assert_allclose(got, exact, 0, 1e-5 * np.abs(exact).max())


def test_many_steps():
    arrays = inputs(mx.float32, (2, 1500, 4, 12, 2, 24))
    got = gradients(mlxops.nn.ssm_scan, arrays, None)
    with mx.stream(mx.cpu):
        wanted = gradients(mlxops.nn.ssm_scan, widened(arrays), None)
    for name, g in got.items():
        close(g, wanted[name], 60)


SHAPES = [(3, 5, 4, 3, 2, 6), (1, 5, 4, 3, 2, 6), (2, 70, 4, 3, 2, 6), (2, 1, 4, 3, 2, 6)]
SHAPES += [(2, 5, 8, 3, 2, 6), (2, 5, 2, 3, 2, 6), (2, 5, 4, 70, 2, 6), (2, 5, 4, 1, 2, 6)]
SHAPES += [(2, 5, 4, 3, 4, 6), (2, 5, 4, 3, 1, 6), (2, 5, 4, 3, 2, 70), (2, 5, 4, 3, 2, 1)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("first", [(2, 5, 4, 3, 2, 6), (1, 1, 1, 1, 1, 1)], ids=str)
def test_compiled_for_any_shape(first, masked):
    def whole(*values):
        *values, mask = values

        def loss(*values):
            y, state = mlxops.nn.ssm_scan(*values, mask if masked else None)
            return (y * mx.sin(y)).sum() + (state * state).sum()

        results = mlxops.nn.ssm_scan(*values, mask if masked else None)
        return *results, *mx.grad(loss, argnums=tuple(range(7)))(*values)

    compiled = mx.compile(whole, shapeless=True)
    for size in (first, *SHAPES):
        given = *inputs(mx.float32, size).values(), holes(size)
        for g, w in zip(compiled(*given), whole(*given), strict=True):
            close(g, w, 30)


def test_compiled_for_any_shape_but_once():
    def gradient(*values):
        grads = mx.grad(lambda *a: mlxops.nn.ssm_scan(*a)[0].sum(), argnums=(1, 2))(*values)
        return sum(g.sum() for g in grads)

    given = list(inputs(mx.float32, (2, 5, 4, 3, 2, 6)).values())
    of_jvp = mx.grad(lambda *a: mx.jvp(mlxops.nn.ssm_scan, a, a)[1][0].sum())
    for twice in (mx.grad(gradient), of_jvp):
        with pytest.raises(ValueError, match=r"derivative of ssm_scan cannot be .* shapeless=True"):
            mx.compile(twice, shapeless=True)(*given)


@pytest.mark.parametrize("masked", [False, True])
def test_jvp_compiled_for_any_shape(masked):
    def both(*values):
        *values, mask = values
        mask = mask if masked else None
        tangents = [mx.sin(7 * a) for a in values]
        return mx.jvp(lambda *a: mlxops.nn.ssm_scan(*a, mask), values, tangents)[1]

    compiled = mx.compile(both, shapeless=True)
    for size in ((2, 5, 4, 3, 2, 6), *SHAPES):
        given = *inputs(mx.float32, size).values(), holes(size)
        for g, w in zip(compiled(*given), both(*given), strict=True):
            close(g, w, 30)


@pytest.mark.parametrize(("masked", "steps"), [(False, 4), (True, 4), (False, 70)])
def test_second_derivative(masked, steps):
    size = (1, steps, 2, 3, 1, 4)
    arrays = inputs(mx.float32, size)
    mask = holes(size) if masked else None

    def twice(fn):
        def loss(*values):
            grads = gradients(fn, dict(zip(NAMES, values, strict=True)), mask)
            return sum((g * g).sum() for g in grads.values())

        return mx.grad(loss, argnums=tuple(range(7)))(*(arrays[name] for name in NAMES))

    for g, w in zip(twice(mlxops.nn.ssm_scan), twice(composition), strict=True):
        close(g, w, 500)


@pytest.mark.parametrize(("half", "error"), [(mx.float16, 0.01), (mx.bfloat16, 0.06)])
def test_second_derivative_in_half_precision(half, error):
    """Compare with float32 for the same numbers, within about ten ulp."""
    arrays = {name: a.astype(half) for name, a in inputs(mx.float32, (1, 5, 2, 3, 1, 4)).items()}

    def twice(values):
        def loss(*values):
            grads = gradients(mlxops.nn.ssm_scan, dict(zip(NAMES, values, strict=True)), None)
            return sum((g * g).astype(mx.float32).sum() for g in grads.values())

        return mx.grad(loss, argnums=tuple(range(7)))(*values)

    got = twice([arrays[name] for name in NAMES])
    wanted = twice([arrays[name].astype(mx.float32) for name in NAMES])
    for name, g, w in zip(NAMES, got, wanted, strict=True):
        g, w = np.array(g.astype(mx.float32)), np.array(w)
        assert np.abs(g - w).max() <= error * np.abs(w).max(), name


# More rows and columns than a lane or a core's part, and heads that share groups.
TANGENTS = [(2, 5, 4, 3, 2, 6), (1, 9, 2, 37, 1, 70), (1, 3, 2, 5, 2, 1), (0, 3, 2, 3, 1, 4)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", TANGENTS, ids=str)
def test_jvp(dtype, size, masked):
    """Test each argument, and all of them together."""
    arrays, others = (inputs(dtype, size, seed) for seed in (1, 2))
    mask = holes(size) if masked else None

    def tangents(fn, asked, arrays, others):
        given = [arrays[name] for name in asked], [others[name] for name in asked]
        call = lambda *a: fn(**arrays | dict(zip(asked, a, strict=True)), mask=mask)  # noqa: E731
        return mx.jvp(call, *given)[1]

    for asked in (*([name] for name in NAMES), NAMES):
        got = tangents(mlxops.nn.ssm_scan, asked, arrays, others)
        with mx.stream(mx.cpu):
            wanted = tangents(composition, asked, widened(arrays), widened(others))
        assert [g.dtype for g in got] == [dtype, arrays["dt"].dtype]
        for g, w in zip(got, wanted, strict=True):
            close(g, w, 50)


def test_gradient_of_jvp():
    primals, tangents = (
        [*inputs(mx.float32, (2, 5, 4, 3, 2, 6), seed).values()] for seed in (1, 2)
    )
    got, wanted = (
        mx.grad(lambda *a, fn=fn: sum((t * t).sum() for t in mx.jvp(fn, a, tangents)[1]), range(7))(
            *primals
        )
        for fn in (mlxops.nn.ssm_scan, composition)
    )
    for g, w in zip(got, wanted, strict=True):
        close(g, w, 500)


def test_vmap():
    arrays = [
        inputs(mx.float32, (2, 5, 4, 3, 2, 6), seed)[name] for seed in (1, 2) for name in NAMES
    ]
    primals, tangents = arrays[:7], arrays[7:]
    batched = [mx.stack([a, b]) for a, b in zip(primals, tangents, strict=True)]
    batched[5] = mx.abs(batched[5])
    for g, *w in zip(
        mx.vmap(mlxops.nn.ssm_scan)(*batched),
        *(mlxops.nn.ssm_scan(*(a[i] for a in batched)) for i in (0, 1)),
        strict=True,
    ):
        close(g, mx.stack(w))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    arrays = inputs(mx.float32, (2, 5, 4, 3, 2, 6))
    strided = {name: LAYOUTS[layout](a) for name, a in arrays.items()}
    for g, w in zip(mlxops.nn.ssm_scan(**strided), reference(**strided), strict=True):
        close(g, w)


def test_errors():
    arrays = inputs(mx.float32, (2, 5, 4, 3, 2, 6))
    for wrong, message in [
        ({"x": mx.ones((5, 4, 3))}, r"x must be \(batch, time, heads, channels\)"),
        ({"B": mx.ones((2, 4, 2, 6))}, r"B must be \(batch, time, groups, states\)"),
        ({"C": mx.ones((2, 5, 1, 6))}, r"C must be \(batch, time, groups, states\), "),
        (
            {"B": mx.ones((2, 5, 3, 6)), "C": mx.ones((2, 5, 3, 6))},
            "heads must be a multiple of groups",
        ),
        (
            {"B": mx.ones((2, 5, 2, 257)), "C": mx.ones((2, 5, 2, 257)), "state": None},
            "heads have at most 256 channels and 256 states",
        ),
        ({"dt": mx.ones((2, 5))}, r"dt must be \(batch, time, heads\)"),
        ({"D": mx.ones((1,))}, r"D must be \(heads,\)"),
        ({"state": mx.ones((2, 4, 6, 3))}, r"state must be \(batch, heads, channels, states\)"),
        ({"mask": mx.ones((2, 4), mx.bool_)}, r"mask must be \(batch, time\)"),
    ]:
        with pytest.raises(ValueError, match=rf"^\[ssm_scan\] {message}"):
            mlxops.nn.ssm_scan(**(arrays | wrong))
