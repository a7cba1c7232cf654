"""gated_linear_attention, wkv6 and rg_lru against loops over time.

The values are compared with loops in NumPy, written as in the papers, the gradients with those of
loops of MLX's operations, both in float64.
"""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from ops.accuracy import draw

from mlxgen.testing import LAYOUTS, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Batch, time, heads, channels of keys, channels of values
SIZES = [(2, 9, 3, 5, 5), (1, 1, 1, 1, 1), (2, 17, 1, 4, 33), (1, 20, 2, 33, 4), (1, 3, 1, 64, 256)]
EMPTY = [(2, 0, 3, 4, 2), (0, 3, 2, 4, 4)]
DECAYS = {"heads": 1, "steps": 3, "channels": 4}


def exp(x):
    """exp, accurate in float64, where MLX's has only float32's accuracy."""
    return mx.power(mx.array(np.e, mx.float64), x) if x.dtype == mx.float64 else mx.exp(x)


def arrays(dtype, shapes, wide=(), seed=0, **ranges):
    """Return arrays of the given shapes; those of ``wide`` are at least float32."""
    out = {}
    for i, (name, shape) in enumerate(shapes.items()):
        low, high = ranges.get(name, (-1.0, 1.0))
        own = mx.float64 if dtype == mx.float64 else mx.float32 if name in wide else dtype
        out[name] = draw(own, shape, low, high, seed=100 * seed + i)[0]
    return out


class GatedLinearAttention:
    """Inputs and references of gated_linear_attention."""

    sizes, empty = SIZES, EMPTY

    def __init__(self, decay="channels"):
        self.ndim = DECAYS[decay]

    def inputs(self, dtype, size, seed=0):
        B, T, H, Dk, Dv = size
        g = {1: (H,), 3: (B, T, H), 4: (B, T, H, Dk)}[self.ndim]
        shapes = {"q": (B, T, H, Dk), "k": (B, T, H, Dk), "v": (B, T, H, Dv), "g": g}
        shapes["state"] = (B, H, Dv, Dk)
        return arrays(dtype, shapes, ("g", "state"), seed, g=(-2.0, -0.01))

    @staticmethod
    def op(q, k, v, g, state=None):
        return mlxops.nn.gated_linear_attention(q, k, v, g, state, scale=0.5)

    @staticmethod
    def reference(q, k, v, g, state=None):
        B, T, H, Dk = q.shape
        S = np.zeros((B, H, v.shape[3], Dk)) if state is None else state.copy()
        y = np.zeros(v.shape)
        for b, t, h in np.ndindex(B, T, H):
            S[b, h] = S[b, h] @ np.diag(
                np.exp(np.broadcast_to(g[h] if g.ndim == 1 else g[b, t, h], Dk))
            )
            S[b, h] += np.outer(v[b, t, h], k[b, t, h])
            y[b, t, h] = S[b, h] @ (0.5 * q[b, t, h])
        return y, S

    @staticmethod
    def loop(q, k, v, g, state=None):
        B, T, H, Dk = q.shape
        g = g if g.ndim == 4 else (g[None, None] if g.ndim == 1 else g)[..., None]
        w = mx.broadcast_to(exp(g), q.shape)
        S = mx.zeros((B, H, v.shape[-1], Dk), g.dtype) if state is None else state
        ys = []
        for t in range(T):
            S = S * w[:, t, :, None] + v[:, t, :, :, None] * k[:, t, :, None]
            ys.append(0.5 * (S * q[:, t, :, None]).sum(axis=-1))
        return mx.stack(ys, axis=1), S


class Wkv6:
    """Inputs and references of wkv6."""

    sizes = ((2, 9, 3, 5, 5), (1, 1, 1, 1, 1), (1, 20, 2, 33, 33))
    empty = ((2, 0, 3, 4, 4), (0, 3, 2, 4, 4), (2, 3, 0, 4, 4))

    @staticmethod
    def inputs(dtype, size, seed=0):
        B, T, H, D, _ = size
        shapes = {name: (B, T, H, D) for name in "rwkv"} | {"u": (H, D), "state": (B, H, D, D)}
        return arrays(dtype, shapes, ("w", "state"), seed, w=(0.2, 1.0))

    @staticmethod
    def op(*values, **named):
        return mlxops.nn.wkv6(*values, **named)

    @staticmethod
    def reference(r, w, k, v, u, state=None):
        B, T, H, D = r.shape
        S = np.zeros((B, H, D, D)) if state is None else state.copy()
        y = np.zeros(v.shape)
        for b, t, h in np.ndindex(B, T, H):
            y[b, t, h] = (S[b, h] + np.outer(v[b, t, h], u[h] * k[b, t, h])) @ r[b, t, h]
            S[b, h] = S[b, h] @ np.diag(w[b, t, h]) + np.outer(v[b, t, h], k[b, t, h])
        return y, S

    @staticmethod
    def loop(r, w, k, v, u, state=None):
        B, T, H, D = r.shape
        S = mx.zeros((B, H, D, D), w.dtype) if state is None else state
        ys = []
        for t in range(T):
            own = v[:, t, :, :, None] * k[:, t, :, None]
            ys.append(((S + own * u[:, None]) * r[:, t, :, None]).sum(axis=-1))
            S = S * w[:, t, :, None] + own
        return mx.stack(ys, axis=1), S


class RgLru:
    """Inputs and references of rg_lru."""

    sizes = ((2, 9, 5), (1, 1, 1), (1, 261, 1), (1, 40, 33))
    empty = ((2, 0, 3), (0, 3, 2), (2, 3, 0))

    @staticmethod
    def inputs(dtype, size, seed=0):
        B, T, D = size
        shapes = dict.fromkeys(("x", "input_gate", "recurrence_gate"), (B, T, D))
        shapes |= {"param": (D,), "state": (B, D)}
        gates = dict.fromkeys(("input_gate", "recurrence_gate"), (0.05, 0.95))
        return arrays(dtype, shapes, ("recurrence_gate", "param", "state"), seed, **gates)

    @staticmethod
    def op(*values, **named):
        return mlxops.nn.rg_lru(*values, **named)

    @staticmethod
    def reference(x, input_gate, recurrence_gate, param, state=None):
        h, y = state, np.zeros(x.shape)
        sigmoid = 1 / (1 + np.exp(param))  # of -param; the paper's equation 3
        for t in range(x.shape[1]):
            a = sigmoid ** (8 * recurrence_gate[:, t])
            gated = input_gate[:, t] * x[:, t]
            h = gated if h is None else a * h + np.sqrt(1 - a**2) * gated
            y[:, t] = h
        return y, h

    @staticmethod
    def loop(x, input_gate, recurrence_gate, param, state=None):
        a = exp(-8 * recurrence_gate * mx.log1p(exp(param)))
        terms = x * input_gate * mx.sqrt(1 - a * a)
        h, ys = state, []
        for t in range(x.shape[1]):
            h = x[:, 0] * input_gate[:, 0] if h is None else a[:, t] * h + terms[:, t]
            ys.append(h)
        return mx.stack(ys, axis=1), h


CASES = {
    **{f"gated {name}": GatedLinearAttention(name) for name in DECAYS},
    "wkv6": Wkv6(),
    "rg_lru": RgLru(),
}
SIZED = [pytest.param(case, size, id=f"{name} {size}") for name, case in CASES.items()
         for size in case.sizes]  # fmt: skip
EMPTY_SIZED = [pytest.param(case, size, id=f"{name} {size}") for name, case in CASES.items()
               for size in case.empty]  # fmt: skip
EACH = [pytest.param(case, id=name) for name, case in CASES.items()]


def widened(given):
    return {name: a.astype(mx.float64) for name, a in given.items()}


def close(got, exact, factor, dtype):
    """Compare with an error of the dtype relative to the largest number."""
    got = to_numpy(got)
    exact = exact if isinstance(exact, np.ndarray) else to_numpy(exact)
    assert got.shape == exact.shape
    size = np.abs(exact).max(initial=1)
    np.testing.assert_allclose(got, exact, rtol=0, atol=factor * EPSILON[dtype] * size)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(("case", "size"), SIZED)
@pytest.mark.parametrize("stateful", [True, False], ids=["state", "no state"])
def test_values(case, size, dtype, stateful, device):
    if dtype == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    given = case.inputs(dtype, size)
    if not stateful:
        del given["state"]
    y, last = case.op(**given)
    exact = case.reference(**{name: to_numpy(a) for name, a in given.items()})
    first = next(iter(given.values()))
    assert y.dtype == first.dtype
    assert last.dtype == (mx.float64 if dtype == mx.float64 else mx.float32)
    close(y, exact[0], 20, dtype)
    close(last, exact[1], 20, last.dtype)  # not rounded to 16 bits


def gradients(fn, given, weights):
    def loss(*values):
        y, last = fn(**dict(zip(given, values, strict=True)))
        return (y * weights[0]).sum() + (last * weights[1]).sum()

    return mx.grad(loss, argnums=list(range(len(given))))(*given.values())


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(("case", "size"), SIZED)
@pytest.mark.parametrize("stateful", [True, False], ids=["state", "no state"])
def test_gradients(case, size, dtype, stateful, device):
    if dtype == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    given = case.inputs(dtype, size)
    if not stateful:
        del given["state"]
    outputs = case.op(**given)
    weights = [draw(o.dtype, o.shape, -1.0, 1.0, seed=70 + i)[0] for i, o in enumerate(outputs)]
    got = gradients(case.op, given, weights)
    with mx.stream(mx.cpu):
        wide = [w.astype(mx.float64) for w in weights]
        exact = gradients(case.loop, widened(given), wide)
    for name, g, e in zip(given, got, exact, strict=True):
        assert g.dtype == given[name].dtype
        close(g, e, 60, dtype)


@pytest.mark.parametrize(("case", "size"), EMPTY_SIZED)
def test_nothing(case, size):
    given = case.inputs(mx.float32, size)
    y, last = case.op(**given)
    assert last.shape == given["state"].shape
    if y.size == 0 and last.size:
        np.testing.assert_array_equal(to_numpy(last), to_numpy(given["state"]))
    got = gradients(case.op, given, [mx.ones_like(y), mx.ones_like(last)])
    for name, g in zip(given, got, strict=True):
        assert g.shape == given[name].shape
        assert np.isfinite(to_numpy(g)).all()
    del given["state"]
    y, last = case.op(**given)
    assert not np.any(to_numpy(last)) or y.size


@pytest.mark.parametrize("case", EACH)
def test_step_by_step(case):
    """Decoding: the state after one step is the next step's."""
    given = case.inputs(mx.float32, case.sizes[0])
    steps = [name for name, a in given.items() if a.ndim > 2 and name != "state"]
    whole, last = case.op(**given)
    state = given["state"]
    for t in range(whole.shape[1]):
        y, state = case.op(**given | {n: given[n][:, t : t + 1] for n in steps} | {"state": state})
        close(y, whole[:, t : t + 1], 8, mx.float32)
    close(state, last, 8, mx.float32)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("case", EACH)
def test_vectorized(case, axis):
    given = case.inputs(mx.float32, case.sizes[0])
    others = case.inputs(mx.float32, case.sizes[0], seed=1)
    pairs = [
        mx.stack([a, b], axis=axis) for a, b in zip(given.values(), others.values(), strict=True)
    ]
    mapped = mx.vmap(case.op, in_axes=axis)
    for call in (mapped, mx.compile(mapped)):
        results = call(*pairs)
        for i, one in enumerate((given, others)):
            for got, wanted in zip(results, case.op(**one), strict=True):
                close(got[i], wanted, 8, mx.float32)


@pytest.mark.parametrize("case", EACH)
def test_compiled(case):
    given = case.inputs(mx.float32, case.sizes[0])

    def call(*values):
        return gradients(case.op, dict(zip(given, values, strict=True)), (1, 1))

    for got, wanted in zip(mx.compile(call)(*given.values()), call(*given.values()), strict=True):
        close(got, wanted, 8, mx.float32)
    with pytest.raises(ValueError, match="shapeless=True"):  # and no graph for one shape only
        mx.compile(case.op, shapeless=True)(*given.values())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("case", EACH)
def test_strides(case, layout):
    given = {name: layout(a) for name, a in case.inputs(mx.float32, case.sizes[0]).items()}
    copies = {name: mx.array(np.array(a)) for name, a in given.items()}
    for got, wanted in zip(case.op(**given), case.op(**copies), strict=True):
        close(got, wanted, 1, mx.float32)


def test_one_gate_of_all_channels():
    given = RgLru.inputs(mx.float32, (1, 1, 261))
    given["recurrence_gate"] = mx.broadcast_to(mx.array(0.3), (1, 1, 261))
    exact = RgLru.reference(**{name: to_numpy(a) for name, a in given.items()})
    for got, wanted in zip(RgLru.op(**given), exact, strict=True):
        close(got, wanted, 20, mx.float32)


@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_later_steps_change_nothing(case, poison):
    """A NaN or an infinity reaches neither earlier steps nor another sequence."""
    given = case.inputs(mx.float32, case.sizes[0])
    whole, last = case.op(**given)
    for name, a in given.items():
        if a.ndim < 3 or name == "state":
            continue
        spoiled = mx.array(a)
        spoiled[0, 5] = poison
        y, end = case.op(**given | {name: spoiled})
        np.testing.assert_array_equal(to_numpy(y[0, :5]), to_numpy(whole[0, :5]))
        np.testing.assert_array_equal(to_numpy(y[1]), to_numpy(whole[1]))
        np.testing.assert_array_equal(to_numpy(end[1]), to_numpy(last[1]))
        if np.isnan(poison):
            assert np.isnan(to_numpy(y[0, 5:])).any()


HALF = [mx.float16, mx.bfloat16]


@pytest.mark.parametrize("half", HALF, ids=str)
@pytest.mark.parametrize("case", EACH)
def test_dtypes(case, half):
    """Parameters in float32 do not widen results; states are float32, also without any steps."""
    given = case.inputs(half, case.sizes[0])
    wide = {n: a.astype(mx.float32) if n in ("u", "param", "g") else a for n, a in given.items()}
    y, last = case.op(**wide | {"state": given["state"].astype(half)})
    assert (y.dtype, last.dtype) == (half, mx.float32)
    steps = [name for name, a in given.items() if a.ndim > 2 and name != "state"]
    nothing = given | {n: given[n][:, :0] for n in steps}
    y, last = case.op(**nothing | {"state": given["state"].astype(half)})
    assert (y.dtype, last.dtype) == (half, mx.float32)
    assert y.shape[1] == 0
    np.testing.assert_array_equal(to_numpy(last), to_numpy(given["state"].astype(half)))


def second(fn, given):
    """Return the gradients of the norm of the gradients."""

    def norm(*values):
        grads = gradients(fn, dict(zip(given, values, strict=True)), (1, 1))
        return sum((g * g).sum() for g in grads)

    return mx.grad(norm, argnums=list(range(len(given))))(*given.values())


@pytest.mark.parametrize("stateful", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("name", CASES)
def test_all_derivatives(name, stateful):
    case = CASES[name]
    given = case.inputs(
        mx.float32, {"rg_lru": (2, 4, 3)}.get(name, (2, 4, 2, 3, 3 if name == "wkv6" else 5))
    )
    if not stateful:
        del given["state"]
    with mx.stream(mx.cpu):
        exact = second(case.loop, widened(given))
    for got, wanted in zip(second(case.op, given), exact, strict=True):
        close(got, wanted, 500, mx.float32)
    tangents = [mx.sin(7 * a) for a in given.values()]
    _, got = mx.jvp(case.op, list(given.values()), tangents)
    with mx.stream(mx.cpu):
        wide = widened(given)
        _, exact = mx.jvp(case.loop, list(wide.values()), [t.astype(mx.float64) for t in tangents])
    for g, e in zip(got, exact, strict=True):
        close(g, e, 30, mx.float32)


def test_no_decay_and_full_decay():
    """Decays of 1 sum all steps; decays of 0 keep the last one."""
    case = GatedLinearAttention("channels")
    given = case.inputs(mx.float32, (1, 6, 1, 3, 3))
    y, _ = case.op(**given | {"g": mx.zeros_like(given["g"])})
    q, k, v, state = (to_numpy(given[n])[0, ..., :] for n in ("q", "k", "v", "state"))
    sums = state[0] + np.cumsum(v[:, 0, :, None] * k[:, 0, None, :], axis=0)
    close(y[0, :, 0], mx.array(0.5 * (sums @ q[:, 0, :, None])[..., 0]), 8, mx.float32)
    y, _ = case.op(**given | {"g": mx.full(given["g"].shape, -mx.inf)})
    close(y[0, :, 0], mx.array(0.5 * (k * q).sum(axis=-1) * v[:, 0]), 8, mx.float32)


def test_constant_decays_of_one():
    """The gradient exists at 0, where that of the logarithm of the rate does not."""
    case = GatedLinearAttention("heads")
    given = case.inputs(mx.float32, (2, 6, 3, 4, 5)) | {"g": mx.array([0.0, -1e-30, -0.2])}
    weights = [mx.ones_like(a) for a in case.op(**given)]
    with mx.stream(mx.cpu):
        exact = gradients(case.loop, widened(given), [w.astype(mx.float64) for w in weights])
    for got, wanted in zip(gradients(case.op, given, weights), exact, strict=True):
        close(got, wanted, 60, mx.float32)
    y, _ = case.op(**given | {"g": mx.array([0.0, 0.1, -0.2])})
    np.testing.assert_array_equal(np.isnan(to_numpy(y)).any(axis=(0, 1, 3)), [False, True, False])


def test_the_first_step():
    """Without a state the first input is not scaled by the square root, as it is after zeros."""
    case = CASES["rg_lru"]
    given = case.inputs(mx.float32, (2, 1, 3))
    x, gate = to_numpy(given["x"]), to_numpy(given["input_gate"])
    y, _ = case.op(**given | {"state": None})
    close(y, x * gate, 2, mx.float32)
    y, _ = case.op(**given | {"state": mx.zeros((2, 3))})
    a = (1 + np.exp(to_numpy(given["param"]))) ** (-8 * to_numpy(given["recurrence_gate"]))
    close(y, x * gate * np.sqrt(1 - a**2), 4, mx.float32)


def test_the_derivative_of_the_square_root_is_bounded():
    """Where a rounds to 1, ``sqrt(1 - a * a)`` has a derivative of 1000 in ``1 - a * a``."""
    x, param = mx.ones((1, 1, 1)), mx.zeros((1,))

    def result(gate):
        return mlxops.nn.rg_lru(x, x, gate, param, mx.zeros((1, 1)))[0].sum()

    rate = 16 * np.log(2)  # the derivative of 1 - a * a
    for gate, slope in ((0.0, 1000), (1e-9, 1000), (1e-4, 0.5 / np.sqrt(1e-4 * rate))):
        got = mx.grad(result)(mx.full((1, 1, 1), gate))
        np.testing.assert_allclose(to_numpy(got), [[[slope * rate]]], rtol=2e-3)


def test_gates_at_zero():
    """A closed recurrence gate keeps the state; gradients stay finite."""
    given = CASES["rg_lru"].inputs(mx.float32, (1, 4, 3))
    given["recurrence_gate"] = mx.zeros_like(given["recurrence_gate"])
    y, last = mlxops.nn.rg_lru(**given)
    np.testing.assert_array_equal(to_numpy(y[0]), np.tile(to_numpy(given["state"]), (4, 1)))
    for g in gradients(CASES["rg_lru"].op, given, (mx.ones_like(y), mx.ones_like(last))):
        assert np.isfinite(to_numpy(g)).all()


@pytest.mark.parametrize("half", HALF, ids=str)
def test_slow_decays_in_half_precision(half):
    """Decays between the numbers of 16 bits are not rounded, and neither are the states."""
    given = CASES["rg_lru"].inputs(half, (1, 40, 2))
    given |= {"recurrence_gate": mx.full((1, 40, 2), 1e-4, half), "state": mx.ones((1, 2))}
    given["param"] = given["param"].astype(half)
    _, last = mlxops.nn.rg_lru(**given)
    _, exact = CASES["rg_lru"].reference(**{name: to_numpy(a) for name, a in given.items()})
    np.testing.assert_allclose(to_numpy(last), exact, rtol=1e-5)


def test_errors():
    x = mx.zeros((2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"\[gated_linear_attention\] g must have the shape"):
        mlxops.nn.gated_linear_attention(x, x, x, mx.zeros((2, 3)))
    with pytest.raises(ValueError, match="q must have heads"):
        mlxops.nn.gated_linear_attention(x[:, :, :0], x[:, :, :0], x[:, :, :0], mx.zeros((0,)))
    wide = mx.zeros((1, 1, 1, 257))
    with pytest.raises(ValueError, match=r"q and v must have 1 to 256 channels"):
        mlxops.nn.gated_linear_attention(wide, wide, wide, mx.zeros((1,)))
    with pytest.raises(ValueError, match=r"\[wkv6\]"):
        mlxops.nn.wkv6(x, x, x, x, mx.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"\[rg_lru\]"):
        mlxops.nn.rg_lru(x[0], x[0], x[0], mx.zeros((4,)))
