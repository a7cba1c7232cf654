"""Operators over time with cu_seqlens, against calls with each sequence alone."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from evaluation import in_thread
from ops.accuracy import draw

from mlxgen.testing import metal_backend, to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}
# Sequences without steps, of one step, longer than a stretch of any kernel; steps outside of all.
STARTS = {
    "from the first to the last step": [0, 3, 7, 9],
    "of one step": [0, 1, 2, 3, 9],
    "with steps outside and empty": [2, 2, 5, 5, 6, 8],
    "first one before, last one after": [-2, 4, 7, 20],
    "one": [0, 9],
    "one of two steps": [5, 7],
    "last ones empty": [1, 4, 9, 9, 9],
    "none": [4],
    "all empty": [3, 3, 3],
    "behind the end": [12, 14],
    "before the first step": [-4, -2, 0],
}


@dataclass(frozen=True)
class Case:
    """An operator and the shapes of its arrays; time is axis 1, except that of shared arrays."""

    op: Callable[..., tuple[mx.array, mx.array]]
    state: tuple[int, ...]
    arrays: dict[str, tuple[int, ...]]
    shared: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    wide: tuple[str, ...] = ("A_log", "D", "dt", "g", "state", "w")  # with the accumulator's dtype
    shapeless: bool = True  # in shapeless graphs
    shapeless_gradients: bool = True
    twice: bool = False  # has second derivatives
    regroups: bool = False  # on Metal, where threads combine several steps
    has_last: bool = True

    def draw(self, dtype, steps):
        wide = mx.float64 if dtype == mx.float64 else mx.float32
        shapes = {name: (2, steps, *shape) for name, shape in self.arrays.items()} | self.shared
        arrays = {
            name: draw(
                wide if name in self.wide else dtype, shape, *self.ranges.get(name, (-1, 1)), seed=i
            )[0]
            for i, (name, shape) in enumerate(shapes.items())
        }
        state = (wide if "state" in self.wide else dtype, (2, *self.state), -1, 1, 20)
        return arrays, draw(*state)[0]

    def cotangents(self, results):
        return [draw(x.dtype, x.shape, -1, 1, 30 + i)[0] for i, x in enumerate(results)]


def recurrence(a, b, state=None, cu_seqlens=None):
    """linear_recurrence has no second result."""
    h = mlxops.nn.linear_recurrence(a, b, state, cu_seqlens, axis=1)
    return h, mx.zeros((2, *a.shape[2:]), h.dtype)


def lstm(x, weight, state=None, cu_seqlens=None):
    """The states after all steps; there is no second result."""
    first = (None, None) if state is None else (state, 2 * state)
    states = mlxops.nn.lstm(x, weight, *first, cu_seqlens=cu_seqlens)
    return mx.concatenate([a.astype(x.dtype) for a in states], -1), mx.zeros((2,), x.dtype)


def gru(x, weight, bias, state=None, cu_seqlens=None):
    h = mlxops.nn.gru(x, weight, bias, state, cu_seqlens)
    return h, mx.zeros((2,), h.dtype)


DELTA = {"q": (1, 5), "k": (1, 5), "v": (2, 3), "beta": (2,)}
WKV = {name: (2, 5) for name in ("r", "w", "k", "v")}
ATTENTION = {"q": (2, 5), "k": (2, 5), "v": (2, 3)}
GATES = {"input_gate": (5,), "recurrence_gate": (5,)}
LOGS = {"g": (-1, -0.1)}
CASES = {
    **{
        f"causal_conv1d {activation}": Case(
            partial(mlxops.nn.causal_conv1d, activation=activation),
            (3, 5),
            {"x": (5,)},
            {"weight": (5, 4), "bias": (5,)},
            wide=(),
            twice=True,
            shapeless_gradients=False,
        )
        for activation in ("none", "silu")
    },
    **{
        f"linear_recurrence of {shape}": Case(
            recurrence,
            shape,
            {"a": shape, "b": shape},
            wide=(),
            twice=True,
            has_last=False,
            regroups=True,
        )
        for shape in [(), (5,), (3, 20)]
    },
    **{
        f"gated_delta of {shape}": Case(
            mlxops.nn.gated_delta,
            (2, 3, 5),
            {**DELTA, "g": shape},
            ranges={"g": (0.5, 1)},
            twice=True,
        )
        for shape in [(2,), (2, 5)]
    },
    "wkv7": Case(
        mlxops.nn.wkv7,
        (2, 5, 5),
        {**WKV, "a": (2, 5), "b": (2, 5)},
        ranges={"w": (0.5, 1)},
        twice=True,
    ),
    "ssm_scan": Case(
        mlxops.nn.ssm_scan,
        (4, 3, 6),
        {"x": (4, 3), "B": (2, 6), "C": (2, 6), "dt": (4,)},
        {"A_log": (4,), "D": (4,)},
        ranges={"dt": (0.1, 1)},
        twice=True,
    ),
    **{
        f"selective_scan {name}": Case(
            mlxops.nn.selective_scan,
            (5, 6),
            {"u": (5,), "delta": (5,), "B": (6,), "C": (6,), **given},
            {"A": (5, 6), **shared},
            ranges={"delta": (0.1, 1), "A": (-2, -0.1)},
            wide=("A", "D", "delta", "state"),
            twice=True,
            shapeless_gradients=False,
        )
        for name, given, shared in [("", {}, {}), ("with D and z", {"z": (5,)}, {"D": (5,)})]
    },
    **{
        f"gated_linear_attention of {shape}": Case(
            mlxops.nn.gated_linear_attention,
            (2, 3, 5),
            {**ATTENTION, "g": shape},
            ranges=LOGS,
            twice=True,
            shapeless=False,
        )
        for shape in [(2,), (2, 5)]
    },
    "gated_linear_attention of constants": Case(
        mlxops.nn.gated_linear_attention,
        (2, 3, 5),
        ATTENTION,
        {"g": (2,)},
        ranges=LOGS,
        twice=True,
        shapeless=False,
    ),
    "wkv6": Case(
        mlxops.nn.wkv6,
        (2, 5, 5),
        WKV,
        {"u": (2, 5)},
        ranges={"w": (0.5, 1)},
        twice=True,
        shapeless=False,
    ),
    "rg_lru": Case(
        mlxops.nn.rg_lru,
        (5,),
        {"x": (5,), **GATES},
        {"param": (5,)},
        ranges=dict.fromkeys(GATES, (0.1, 0.9)),
        twice=True,
        regroups=True,
        shapeless=False,
    ),
    "lstm": Case(
        lstm,
        (5,),
        {"x": (20,)},
        {"weight": (20, 5)},
        wide=(),
        twice=True,
        shapeless_gradients=False,
        has_last=False,
    ),
    "gru": Case(
        gru,
        (5,),
        {"x": (15,)},
        {"weight": (15, 5), "bias": (5,)},
        wide=(),
        twice=True,
        shapeless_gradients=False,
        has_last=False,
    ),
}
TWICE = {name: case for name, case in CASES.items() if case.twice}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
twice = pytest.mark.parametrize("case", TWICE.values(), ids=TWICE)


def run(case, arrays, state, cotangents, cu_seqlens=None):
    """Return y, last, and the gradients by name."""
    given = arrays if state is None else arrays | {"state": state}
    starts = None if cu_seqlens is None else mx.array(cu_seqlens)

    def call(*values):
        return list(case.op(**dict(zip(given, values, strict=True)), cu_seqlens=starts))

    results, grads = mx.vjp(call, list(given.values()), cotangents)
    return [to_numpy(x) for x in results], {
        name: to_numpy(grad) for name, grad in zip(given, grads, strict=True)
    }


def run_twice(case, arrays, state, cotangents, cu_seqlens=None):
    """Return a jvp, and the derivatives of a function of the gradients by name."""
    given = arrays if state is None else arrays | {"state": state}
    starts = None if cu_seqlens is None else mx.array(cu_seqlens)
    dy, dlast = cotangents
    # Shapes of single sequences are shorter: the same numbers for each step.
    directions = [mx.sin(3 * x + 1) for x in given.values()]

    def call(*values):
        return list(case.op(**dict(zip(given, values, strict=True)), cu_seqlens=starts))

    def loss(*values):
        y, last = call(*values)
        return (mx.sin(y) * dy).sum() + (last * dlast).sum()

    def along(*values):
        grads = mx.grad(loss, tuple(range(len(values))))(*values)
        return sum((d * g).sum() for d, g in zip(directions, grads, strict=True))

    _, changes = mx.jvp(call, list(given.values()), directions)
    grads = mx.grad(along, tuple(range(len(given))))(*given.values())
    return [to_numpy(x) for x in changes], {
        name: to_numpy(grad) for name, grad in zip(given, grads, strict=True)
    }


def alone(case, arrays, state, cotangents, cu_seqlens, run=run):
    """Return the same from calls without cu_seqlens."""
    steps = next(iter(arrays.values())).shape[1]
    dy, dlast = cotangents
    ends = np.clip(cu_seqlens, 0, steps).tolist()
    pieces = [(i, a, b) for i, (a, b) in enumerate(pairwise(ends)) if a < b]
    y = np.zeros(dy.shape)
    last = to_numpy(state) if case.has_last and state is not None else np.zeros(dlast.shape)
    grads = {name: np.zeros(x.shape) for name, x in arrays.items()}
    if state is not None:
        grads["state"] = to_numpy(dlast) if case.has_last and not pieces else np.zeros(state.shape)
    for i, a, b in pieces:
        part = {n: x if n in case.shared else x[:, a:b] for n, x in arrays.items()}
        of_last = dlast if (i, a, b) == pieces[-1] else mx.zeros_like(dlast)
        results, found = run(case, part, state if i == 0 else None, [dy[:, a:b], of_last])
        y[:, a:b], last = results
        for name, grad in found.items():
            if name in case.shared:
                grads[name] += grad
            elif name == "state":
                grads[name] = grad
            else:
                grads[name][:, a:b] = grad
    return [y, last], grads


def assert_same(x, y, regroups, message=""):
    if regroups and metal_backend():
        np.testing.assert_allclose(x, y, 1e-5, 1e-5, err_msg=message)
    else:
        np.testing.assert_array_equal(x, y, err_msg=message)


def check(case, dtype, starts, steps=9, with_state=True):
    arrays, state = case.draw(dtype, steps)
    state = state if with_state else None
    cotangents = case.cotangents(case.op(**arrays, state=state))
    results, grads = run(case, arrays, state, cotangents, starts)
    wanted, wanted_grads = alone(case, arrays, state, cotangents, starts)
    for x, y in zip(results, wanted, strict=True):
        assert_same(x, y, case.regroups)
    for name, grad in grads.items():
        if name in case.shared:
            limit = 20 * EPSILON[dtype] * max(np.abs(wanted_grads[name]).max(), 1)
            np.testing.assert_allclose(grad, wanted_grads[name], 0, limit, err_msg=name)
        else:
            assert_same(grad, wanted_grads[name], case.regroups, name)


@cases
@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS)
def test_starts(case, starts, with_state):
    check(case, mx.float32, starts, with_state=with_state)


@cases
def test_dtypes(case, dtype):
    check(case, dtype, [1, 3, 4, 8])


@cases
def test_long(case):
    """The kernels divide time at other steps than without cu_seqlens."""
    check(case, mx.float32, [0, 5, 63, 64, 65, 130, 148], steps=150)


@cases
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(("first", "end"), [(3, 4), (4, 7), (7, 8), (0, 1), (8, 9)])
def test_other_sequences_do_not_matter(case, poison, first, end):
    starts = [1, 3, 4, 7, 8]
    arrays, state = case.draw(mx.float32, 9)
    cotangents = case.cotangents(case.op(**arrays, state=state))
    results, grads = run(case, arrays, state, cotangents, starts)
    for name, x in arrays.items():
        if name not in case.shared:
            x[:, first:end] = poison
    cotangents[0][:, first:end] = poison
    poisoned, poisoned_grads = run(case, arrays, state, cotangents, starts)
    others = [t for t in range(9) if not first <= t < end]
    np.testing.assert_array_equal(poisoned[0][:, others], results[0][:, others])
    for name in case.arrays:
        np.testing.assert_array_equal(
            poisoned_grads[name][:, others], grads[name][:, others], err_msg=name
        )
    np.testing.assert_array_equal(poisoned_grads["state"], grads["state"])
    if (first, end) != (7, 8):
        np.testing.assert_array_equal(poisoned[1], results[1])
    if first in (0, 8):  # outside of all sequences
        for name in case.shared:
            np.testing.assert_array_equal(poisoned_grads[name], grads[name], err_msg=name)
        for name in case.arrays:
            assert not np.any(poisoned_grads[name][:, first:end]), name


@pytest.mark.extended
@twice
@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("starts", ([0, 3, 7, 9], [2, 2, 5, 5, 6, 8], [-2, 1, 20], [1, 4, 9, 9]))
def test_second_derivatives(case, starts, with_state):
    arrays, state = case.draw(mx.float32, 9)
    state = state if with_state else None
    cotangents = case.cotangents(case.op(**arrays, state=state))
    results, grads = run_twice(case, arrays, state, cotangents, starts)
    wanted, wanted_grads = alone(case, arrays, state, cotangents, starts, run_twice)
    for x, y in zip(results, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, wanted_grads[name], 1e-3, 1e-4, err_msg=name)


@twice
@pytest.mark.parametrize(("first", "end"), [(4, 7), (7, 8), (0, 1), (8, 9)])
def test_other_sequences_do_not_matter_twice(case, first, end):
    starts = [1, 3, 4, 7, 8]
    arrays, state = case.draw(mx.float32, 9)
    cotangents = case.cotangents(case.op(**arrays, state=state))
    results, grads = run_twice(case, arrays, state, cotangents, starts)
    for name, x in arrays.items():
        if name not in case.shared:
            x[:, first:end] = mx.nan
    poisoned, poisoned_grads = run_twice(case, arrays, state, cotangents, starts)
    others = [t for t in range(9) if not first <= t < end]
    np.testing.assert_array_equal(poisoned[0][:, others], results[0][:, others])
    for name in case.arrays:
        np.testing.assert_array_equal(
            poisoned_grads[name][:, others], grads[name][:, others], err_msg=name
        )
    np.testing.assert_array_equal(poisoned_grads["state"], grads["state"])


@cases
def test_vmap(case):
    (arrays, state), starts = case.draw(mx.float32, 9), mx.array([[0, 3, 7, 9], [2, 4, 4, 8]])

    def call(state, starts):
        return case.op(**arrays, state=state, cu_seqlens=starts)

    states = mx.stack([state, 2 * state])
    for axes in ((0, 0), (0, None), (None, 0)):
        given = [x if axis == 0 else x[0] for x, axis in zip((states, starts), axes, strict=True)]
        got = mx.vmap(call, axes)(*given)
        for i in range(2):
            each = [x[i] if axis == 0 else x for x, axis in zip(given, axes, strict=True)]
            for x, y in zip(got, call(*each), strict=True):
                np.testing.assert_array_equal(x[i], y)


@cases
@pytest.mark.parametrize("gradients", [False, True])
def test_compile(case, gradients):
    def call(starts, *arrays):
        names = [*case.arrays, *case.shared, "state"]

        def loss(*arrays):
            y, last = case.op(**dict(zip(names, arrays, strict=True)), cu_seqlens=starts)
            return mx.square(y).sum() + last.sum(), y, last

        if not gradients:
            return loss(*arrays)
        results, grads = mx.value_and_grad(loss, tuple(range(len(names))))(*arrays)
        return *results, *grads

    shapeless = case.shapeless and (case.shapeless_gradients or not gradients)
    compiled = mx.compile(call, shapeless=shapeless)
    for steps, starts in ((9, [0, 3, 7, 9]), (12, [0, 3, 3, 7, 11]), (2, [1])):
        arrays, state = case.draw(mx.float32, steps)
        given = mx.array(starts), *arrays.values(), state
        for x, y in zip(compiled(*given), call(*given), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@cases
@in_thread
def test_errors(case):
    arrays, _ = case.draw(mx.float32, 9)
    with pytest.raises(ValueError, match="cu_seqlens must have at least one number"):
        case.op(**arrays, cu_seqlens=mx.array([], mx.int32))
    with pytest.raises(ValueError, match="cu_seqlens"):
        case.op(**arrays, cu_seqlens=mx.array([0.0, 3.0]))
    with pytest.raises(ValueError, match="cu_seqlens"):
        case.op(**arrays, cu_seqlens=mx.array([[0, 3]]))


@cases
def test_starts_that_do_not_ascend(case):
    arrays, state = case.draw(mx.float32, 9)
    for starts in ([5, 0, 7], [9, 0], [2**31 - 1, -(2**31), 5], [3, 8, 1, 9, 0, 4]):
        cotangents = case.cotangents(case.op(**arrays, state=state))
        results, _ = run(case, arrays, state, cotangents, starts)
        assert all(np.isfinite(x).all() for x in results)


@pytest.mark.parametrize(
    "starts", [[0, 3, 7, 9], [2, 2, 5, 5, 6, 8], [-2, 1, 20], [1, 4, 9, 9], [4]]
)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("with_initial", [True, False])
def test_reverse(starts, axis, with_initial):
    """The initial value is that of the last sequence with steps."""
    shape = [5, 3, 20]
    shape[axis] = 9
    a, b, dh = (mx.random.normal(shape, key=mx.random.key(i)) for i in range(3))
    initial = mx.random.normal([n for i, n in enumerate(shape) if i != axis], key=mx.random.key(3))

    def call(a, b, initial, starts):
        initial = initial if with_initial else None
        return mlxops.nn.linear_recurrence(a, b, initial, starts, axis=axis, reverse=True)

    def run(a, b, initial, dh, starts=None):
        h, grads = mx.vjp(lambda *x: [call(*x, starts)], [a, b, initial], [dh])
        return [*h, *grads]

    got = run(a, b, initial, dh, mx.array(starts))
    wanted = [mx.zeros_like(x) for x in (dh, a, b, initial)]
    ends = np.clip(starts, 0, 9).tolist()
    pieces = [(i, j) for i, j in pairwise(ends) if i < j]
    for i, j in pieces:
        steps = (slice(None),) * axis + (slice(i, j),)
        given = initial if (i, j) == pieces[-1] else mx.zeros_like(initial)
        found = run(a[steps], b[steps], given, dh[steps])
        for x, y in zip(wanted[:3], found[:3], strict=True):
            x[steps] = y
        wanted[3] = found[3]
        if (i, j) != pieces[-1]:
            wanted[1][(slice(None),) * axis + (j - 1,)] = 0
    for x, y in zip(got, wanted, strict=True):
        assert_same(x, y, regroups=True)


@pytest.mark.parametrize("op", ["gated_delta of (2,)", "gated_delta of (2, 5)", "ssm_scan"])
def test_masked_first_steps(op):
    """A masked step also ends the state of the previous sequence."""
    case, starts = CASES[op], [1, 3, 4, 7, 9]
    mask = mx.array([[1, 1, 1, 0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0, 1, 1, 1]]).astype(mx.bool_)
    arrays, state = case.draw(mx.float32, 9)
    cotangents = case.cotangents(case.op(**arrays, state=state))

    def masked(steps):
        return replace(case, op=partial(case.op, mask=mask[:, steps]))

    results, grads = run(masked(slice(9)), arrays, state, cotangents, starts)
    for i, (a, b) in enumerate(pairwise(starts)):
        part = {n: x if n in case.shared else x[:, a:b] for n, x in arrays.items()}
        of_last = cotangents[1] if b == 9 else mx.zeros_like(cotangents[1])
        given = [cotangents[0][:, a:b], of_last]
        found, of = run(masked(slice(a, b)), part, None if i else state, given)
        np.testing.assert_array_equal(results[0][:, a:b], found[0])
        for name in case.arrays:
            np.testing.assert_array_equal(grads[name][:, a:b], of[name], err_msg=name)
        if i == 0:
            np.testing.assert_array_equal(grads["state"], of["state"])
    np.testing.assert_array_equal(results[1], found[1])
