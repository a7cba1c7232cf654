"""Second derivatives of operators whose first gradients are kernels.

In float64 they are compared with finite differences of the first gradients, which other tests
compare with references. A gradient penalty in float32 is compared with the one in float64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from evaluation import in_thread
from ops.accuracy import draw

from mlxgen.testing import to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def derivatives(fn, arrays):
    found = mx.grad(fn, tuple(range(len(arrays))))(*arrays)
    return found if isinstance(found, tuple) else (found,)


@dataclass(frozen=True)
class Case:
    """An operator, and the shapes and ranges of its differentiable arrays."""

    op: Callable[..., object]
    shapes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    wide: tuple[str, ...] = ()  # with the accumulator's dtype
    shapeless: str | None = "shapeless=True"  # error of a second derivative for any shape

    def arrays(self, dtype=mx.float64, seed=0):
        wide = mx.float64 if dtype == mx.float64 else mx.float32
        return [
            draw(
                wide if name in self.wide else dtype,
                shape,
                *self.ranges.get(name, (-1, 1)),
                seed=100 * seed + i,
            )[0]
            for i, (name, shape) in enumerate(self.shapes.items())
        ]

    def __call__(self, *arrays):
        results = self.op(**dict(zip(self.shapes, arrays, strict=True)))
        results = results if isinstance(results, (tuple, list)) else [results]
        return [y for y in results if mx.issubdtype(y.dtype, mx.floating)]

    def loss(self, *arrays):
        """Return a number that depends on all results, and not linearly."""
        return sum(
            (y * (y + mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype))).sum()
            for y in self(*arrays)
        )

    def gradients(self, *arrays):
        return derivatives(self.loss, arrays)


def delta(values=(2, 4, 4, 3), channels=False, **given):
    B, T, H, _ = values
    shapes = {
        "q": (B, T, 2, 5),
        "k": (B, T, 2, 5),
        "v": values,
        "g": (B, T, H, 5) if channels else (B, T, H),
        "beta": (B, T, H),
        "state": (B, H, values[-1], 5),
    }
    ranges = {"g": (0.3, 1.0), "beta": (0.0, 1.0)}
    return Case(partial(mlxops.nn.gated_delta, **given), shapes, ranges, ("g", "state"))


def without(case, *names):
    shapes = {name: shape for name, shape in case.shapes.items() if name not in names}
    return Case(case.op, shapes, case.ranges, case.wide, case.shapeless)


MASK = mx.array([[True, False, True, True], [False, True, True, False]])
STARTS = mx.array([0, 1, 4])
WKV = {name: (2, 4, 2, 3) for name in "rwkvab"}
DECAYS = {"w": (0.3, 1.0)}
WIDE = ("w", "state")
GATED = {"q": (2, 4, 2, 3), "k": (2, 4, 2, 3), "v": (2, 4, 2, 4), "g": (2, 4, 2)}
SCAN = {
    "u": (2, 4, 3),
    "delta": (2, 4, 3),
    "A": (3, 2),
    "B": (2, 4, 2),
    "C": (2, 4, 2),
    "D": (3,),
    "z": (2, 4, 3),
    "state": (2, 3, 2),
}
SCAN_RANGES = {"delta": (0.1, 1.0), "A": (-2.0, -0.1)}
SCAN_WIDE = ("delta", "A", "D", "state")
CONV = {"x": (2, 7, 3), "weight": (3, 4), "bias": (3,), "state": (2, 3, 3)}

CASES = {
    "gated_delta": delta(),
    "gated_delta of channels": delta(channels=True),
    "gated_delta with a mask": delta(mask=MASK),
    "gated_delta of channels with a mask and sequences": delta(
        channels=True, mask=MASK, cu_seqlens=STARTS
    ),
    "gated_delta without a state": without(delta(), "state"),
    "gated_delta with two blocks of rows": delta((1, 2, 2, 68)),
    "wkv7": Case(mlxops.nn.wkv7, WKV | {"state": (2, 2, 3, 3)}, DECAYS, WIDE),
    "wkv7 without a state": Case(mlxops.nn.wkv7, WKV, DECAYS, WIDE),
    "wkv7 with sequences": Case(
        partial(mlxops.nn.wkv7, cu_seqlens=STARTS), WKV | {"state": (2, 2, 3, 3)}, DECAYS, WIDE
    ),
    "wkv6": Case(
        mlxops.nn.wkv6,
        {n: (2, 4, 2, 3) for n in "rwkv"} | {"u": (2, 3), "state": (2, 2, 3, 3)},
        DECAYS,
        WIDE,
    ),
    "gated_linear_attention": Case(
        partial(mlxops.nn.gated_linear_attention, scale=0.5),
        GATED | {"state": (2, 2, 4, 3)},
        {"g": (-1.0, -0.1)},
        ("g", "state"),
    ),
    "gated_linear_attention of channels": Case(
        mlxops.nn.gated_linear_attention,
        GATED | {"g": (2, 4, 2, 3)},
        {"g": (-1.0, -0.1)},
        ("g", "state"),
    ),
    "selective_scan": Case(mlxops.nn.selective_scan, SCAN, SCAN_RANGES, SCAN_WIDE),
    "selective_scan without D, z and a state": Case(
        mlxops.nn.selective_scan,
        {n: s for n, s in SCAN.items() if n not in ("D", "z", "state")},
        SCAN_RANGES,
        SCAN_WIDE,
    ),
    "selective_scan with sequences": Case(
        partial(mlxops.nn.selective_scan, cu_seqlens=STARTS), SCAN, SCAN_RANGES, SCAN_WIDE
    ),
    "causal_conv1d": Case(mlxops.nn.causal_conv1d, CONV),
    "causal_conv1d with silu": Case(partial(mlxops.nn.causal_conv1d, activation="silu"), CONV),
    "causal_conv1d without bias and state": Case(
        partial(mlxops.nn.causal_conv1d, activation="silu"), {"x": (1, 70, 2), "weight": (2, 4)}
    ),
    "causal_conv1d of one tap": Case(
        partial(mlxops.nn.causal_conv1d, activation="silu"), {"x": (2, 3, 2), "weight": (2, 1)}
    ),
    "causal_conv1d with sequences": Case(
        partial(mlxops.nn.causal_conv1d, activation="silu", cu_seqlens=mx.array([1, 3, 3, 6])),
        CONV,
    ),
    **{
        f"expert_routing by {score}, {'' if normalize else 'not '}normalized": Case(
            partial(mlxops.nn.expert_routing, k=3, score=score, normalize=normalize),
            {"logits": (4, 6)},
            {"logits": (-3, 3)},
            shapeless=None,
        )
        for score in ("softmax", "sigmoid")
        for normalize in (True, False)
    },
    "expert_routing by small sigmoids": Case(
        partial(mlxops.nn.expert_routing, k=3, score="sigmoid"),
        {"logits": (4, 6)},
        {"logits": (-63, -57)},
        shapeless=None,
    ),
}
COMPILED = ["gated_delta without a state", "causal_conv1d of one tap"]  # a compiler takes seconds
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def near(got, wanted, limit, largest=0):
    """Compare relative to the largest number."""
    assert got.shape == wanted.shape
    got, wanted = to_numpy(got), to_numpy(wanted)
    np.testing.assert_allclose(
        got, wanted, 0, limit * max(np.abs(wanted).max(initial=1e-3), largest)
    )


def directions(arrays):
    return [mx.sin(3 * a + i + 1) for i, a in enumerate(arrays)]


@pytest.fixture
def cpu():
    """The GPU has no float64."""
    with mx.stream(mx.cpu):
        yield


@cases
@pytest.mark.usefixtures("cpu")
def test_hessian(case):
    """The products with a vector, in reverse over reverse, equal central differences."""
    arrays = case.arrays()
    along = directions(arrays)
    step = 1e-5
    upper, lower = (
        case.gradients(*(a + s * d for a, d in zip(arrays, along, strict=True)))
        for s in (step, -step)
    )

    def slope(*arrays):
        return sum((g * d).sum() for g, d in zip(case.gradients(*arrays), along, strict=True))

    for got, up, low in zip(derivatives(slope, arrays), upper, lower, strict=True):
        near(got, (up - low) / (2 * step), 1e-7)


@cases
@pytest.mark.usefixtures("cpu")
def test_jvp(case):
    """The tangents of results and of gradients equal central differences."""
    arrays = case.arrays(seed=1)
    along = directions(arrays)
    step = 1e-5
    for fn in (case, case.gradients):
        upper, lower = (
            fn(*(a + s * d for a, d in zip(arrays, along, strict=True))) for s in (step, -step)
        )
        _, tangents = mx.jvp(fn, arrays, along)
        for got, up, low in zip(tangents, upper, lower, strict=True):
            near(got, (up - low) / (2 * step), 1e-7)


def penalty(case, *arrays):
    return sum(mx.square(g).astype(mx.float32).sum() for g in case.gradients(*arrays))


@cases
@pytest.mark.parametrize(("dtype", "limit"), [(mx.float32, 1e-5), (mx.bfloat16, 0.06)])
def test_gradient_penalty(case, dtype, limit):
    """bfloat16 is compared within about ten ulp with the same numbers in float64."""
    arrays = case.arrays(dtype)
    got = derivatives(partial(penalty, case), arrays)
    with mx.stream(mx.cpu):
        wide = [a.astype(mx.float64) for a in arrays]

        def exact(*arrays):
            return sum(mx.square(g).sum() for g in case.gradients(*arrays))

        wanted = derivatives(exact, wide)
    # The rounding of cotangents affects all gradients alike.
    largest = max(np.abs(to_numpy(w)).max() for w in wanted)
    for a, g, w in zip(arrays, got, wanted, strict=True):
        assert g.dtype == a.dtype
        near(g.astype(mx.float32), w, limit, largest)


@cases
@pytest.mark.usefixtures("cpu")
def test_third_derivative(case):
    """A tangent of the second derivative equals central differences of it."""
    arrays = case.arrays(seed=2)
    along = directions(arrays)
    step = 1e-5

    def second(*arrays):
        def exact(*arrays):
            return sum(mx.square(g).sum() for g in case.gradients(*arrays))

        return derivatives(exact, arrays)

    upper, lower = (
        second(*(a + s * d for a, d in zip(arrays, along, strict=True))) for s in (step, -step)
    )
    wanted = sum(
        ((up - low) / (2 * step) * d).sum() for up, low, d in zip(upper, lower, along, strict=True)
    )

    def slope(*arrays):
        return sum((g * d).sum() for g, d in zip(second(*arrays), along, strict=True))

    third = derivatives(slope, arrays)
    near(sum((g * d).sum() for g, d in zip(third, along, strict=True)), wanted, 1e-6)


def poisoned(a):
    return mx.where(MASK.reshape(2, 4, *[1] * (a.ndim - 2)), a, mx.array(np.nan, a.dtype))


@pytest.mark.parametrize("name", [name for name in CASES if "mask" in name])
def test_masked_steps_are_not_read(name):
    case = CASES[name]
    *arrays, state = case.arrays(mx.float32)
    wanted = derivatives(partial(penalty, case), [*arrays, state])
    got = derivatives(partial(penalty, case), [*map(poisoned, arrays), state])
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)
    for g in got[:-1]:
        assert not to_numpy(g)[~np.array(MASK)].any()


@pytest.mark.parametrize("name", COMPILED)
@in_thread
def test_compiled(name):
    """mx.compile accepts the second derivative; a graph for any shape is an error."""
    case = CASES[name]
    arrays = case.arrays(mx.float32)

    def second(*arrays):
        return derivatives(partial(penalty, case), arrays)

    for got, wanted in zip(mx.compile(second)(*arrays), second(*arrays), strict=True):
        near(got, wanted, 1e-5)
    if case.shapeless:
        with pytest.raises(ValueError, match=case.shapeless):
            mx.compile(second, shapeless=True)(*arrays)


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("size", [(0, 4, 3, 2), (2, 0, 3, 2), (2, 4, 0, 2), (2, 0, 3, 1)], ids=str)
@pytest.mark.parametrize("op", ["selective_scan", "causal_conv1d", "gated_delta"])
def test_no_elements(op, size, sequences):
    """Derivatives of empty arrays; MLX cannot select from no elements."""
    batch, steps, channels, states = size
    at = (batch, steps, channels)
    shapes = {
        "selective_scan": {
            "u": at,
            "delta": at,
            "A": (channels, states),
            "B": (batch, steps, states),
            "C": (batch, steps, states),
        },
        "causal_conv1d": {"x": at, "weight": (channels, states)},
        "gated_delta": {
            "q": (batch, steps, 2, states),
            "k": (batch, steps, 2, states),
            "v": (batch, steps, 2, channels),
            "g": (batch, steps, 2),
            "beta": (batch, steps, 2),
        },
    }[op]
    given = {"cu_seqlens": mx.array([0, steps, steps])} if sequences else {}
    case = Case(partial(getattr(mlxops.nn, op), **given), shapes)
    arrays = case.arrays(mx.float32)
    results, tangents = mx.jvp(case, arrays, arrays)
    assert [t.shape for t in tangents] == [y.shape for y in results]
    gradients = derivatives(partial(penalty, case), arrays)
    mx.eval(results, tangents, gradients)
    for got, array in zip(gradients, arrays, strict=True):
        assert got.shape == array.shape and not mx.any(got)
