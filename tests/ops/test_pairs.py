"""Pairs of transformations for every operator.

The second derivatives in forward and reverse mode are compared with each other; the generated
checks compare one of them with finite differences. vmap over some arguments of a derivative is
compared with a loop, and a checkpoint of all arguments with a plain call. Of the combinations of
derivatives and mapped arguments, a few of each sample are tested; the environment variable
ALL_PAIRS=1 tests more, which takes some minutes.
"""

import os
import re
import zlib
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from evaluation import in_thread
from mlxops.checks import test_gradients

from mlxgen.testing import is_float, metal_backend, require_same, to_numpy
from mlxgen.testing.cases import Subject, _operators, _resolve

ALL = "ALL_PAIRS" in os.environ
BATCH = 2

# Operators that docs/train-reference.md or docs/operators.md calls once differentiable.
ONCE = {"grid_sample", "gammainc", "gammaincc", "gammaincinv", "gammainccinv"}
ONCE |= {"betainc", "betaincc", "betaincinv", "betainccinv"}
# MLX's matmul has a wrong vmap of its jvp, and these operators are made of it: the reference says
# so, or their second derivatives do in addition.
PRODUCTS = {"linalg.multi_dot", "linalg.lstsq"}
RECURRENT = {f"nn.{name}" for name in ("gated_delta", "gated_linear_attention", "gru", "lstm")}
RECURRENT |= {"nn.wkv6", "nn.wkv7"}

pytestmark = pytest.mark.skipif(
    metal_backend() is not None, reason="the derivatives are in float64, on the CPU"
)


def test_exported_models_have_second_derivatives():
    """docs/exported.md says so of the functions that replace patterns."""
    page = Path(__file__).parents[2] / "docs" / "exported.md"
    used = set(re.findall(r"`mlxops\.([\w.]+)`", page.read_text(encoding="utf-8")))
    assert len(used) == 5 and not used & ONCE


class Transforms:
    """Derivatives of an operator in its differentiable arguments, as functions of arrays.

    Each takes the arguments and, if it has a tangent, tangents of the differentiable ones.
    """

    def __init__(self, subject):
        self.subject = subject
        self.chosen = subject.differentiable

    def plain(self, *args):
        """Return the floating outputs."""
        return [y for y in self.subject.function(*args) if is_float(y)]

    def _parts(self, values):
        """Return a function of the differentiable arguments, these, and the tangents."""
        count = len(self.subject.slots)
        args, tangents = list(values[:count]), list(values[count:])

        def with_chosen(fn):
            def call(*chosen):
                given = list(args)
                for i, a in zip(self.chosen, chosen, strict=True):
                    given[i] = a
                return fn(*given)

            return call

        return with_chosen, [args[i] for i in self.chosen], tangents

    def _gradient_of(self, fn, values):
        """Return the gradient of a weighted sum of the results of a function of all arguments."""
        with_chosen, chosen, tangents = self._parts(values)
        call = with_chosen(lambda *args: weighted(fn(*args, *tangents)))
        found = mx.grad(call, tuple(range(len(chosen))))(*chosen)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def _tangent_of(self, fn, values, *more):
        with_chosen, chosen, tangents = self._parts(values)
        return mx.jvp(with_chosen(lambda *args: fn(*args, *more)), chosen, tangents)[1]

    def gradient(self, *values):
        return self._gradient_of(self.plain, values)

    def tangent(self, *values):
        return self._tangent_of(self.plain, values)

    def reverse_over_reverse(self, *values):
        def slope(*values):
            _, _, tangents = self._parts(values)
            gradients = self.gradient(*values[: len(self.subject.slots)])
            return sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))

        with_chosen, chosen, tangents = self._parts(values)
        call = with_chosen(lambda *args: slope(*args, *tangents))
        found = mx.grad(call, tuple(range(len(chosen))))(*chosen)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def reverse_over_forward(self, *values):
        return self._gradient_of(self.tangent, values)

    def forward_over_reverse(self, *values):
        return self._tangent_of(self.gradient, values)

    def forward_over_forward(self, *values):
        _, _, tangents = self._parts(values)
        return self._tangent_of(self.tangent, values, *tangents)


FIRST = ("gradient", "tangent")
SECOND = (
    "reverse_over_reverse",
    "reverse_over_forward",
    "forward_over_reverse",
    "forward_over_forward",
)


def weighted(arrays):
    """Return a sum with a different weight for each element."""
    return sum(
        (a * mx.cos(mx.arange(a.size) + 1).reshape(a.shape).astype(a.dtype)).sum() for a in arrays
    )


@cache
def subjects():
    """Return the samples of all operators that have arrays with elements."""
    operators = {}
    for op in _operators(mlxops):
        operators.setdefault(id(_resolve(mlxops, op)), op)
    numbers, found = {}, {}
    for case in test_gradients.CASES:
        op = operators[id(case.function)]
        number = numbers.setdefault(op["name"], 0)
        numbers[op["name"]] += 1
        subject = Subject(mlxops, op, case, number)
        if subject.slots and all(0 not in slot.shape for slot in subject.slots):
            found[f"{subject.path}-{number}"] = subject
    return found


each = pytest.mark.parametrize("name", subjects())


def random_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def values_of(subject, count=1):
    """Return arguments, and tangents of the differentiable ones."""
    rng = np.random.default_rng(1)
    rows = []
    for seed in range(count):
        args = subject.draw(subject.dtype, seed)
        of = [args[i] for i in subject.differentiable]
        rows.append((args, [mx.array(rng.uniform(-1, 1, a.shape), a.dtype) for a in of]))
    return rows


def tolerance(subject):
    return 1e-6 if subject.dtype == mx.float64 else 1e-3


def is_declared(name, error):
    """Return true for the error of a gradient that is once differentiable."""
    op = subjects()[name].op["name"]
    return op in ONCE and "Not differentiable" in str(error) and op in str(error)


def second_derivatives(name, transforms, given):
    """Return the second derivatives that exist, by name."""
    found = {}
    for order in SECOND:
        try:
            found[order] = getattr(transforms, order)(*given)
        except ValueError as error:
            if not is_declared(name, error):
                raise
    return found


@each
def test_orders(name):
    """Forward over reverse mode and the other orders agree."""
    subject = subjects()[name]
    if not subject.differentiable:
        pytest.skip("no derivative")
    with mx.stream(mx.cpu):
        ((args, tangents),) = values_of(subject)
        transforms = Transforms(subject)
        if not transforms.plain(*args):
            pytest.skip("no floating output")
        found = second_derivatives(name, transforms, [*args, *tangents])
        twice = found.pop("forward_over_forward", None)
        if not found:
            return
        order, wanted = found.popitem()
        for other, got in found.items():
            require_same(got, wanted, subject.function, other, f"in {order}", tolerance(subject))
        if twice is not None:
            both = sum((w * t).sum() for w, t in zip(wanted, tangents, strict=True))
            what = "forward_over_forward"
            largest = sum(mx.abs(w * t).sum() for w, t in zip(wanted, tangents, strict=True))
            error = mx.abs(weighted(twice) - both) / (largest + 1e-3)
            assert error.item() < tolerance(subject), f"{what}: {weighted(twice)}, but {both}"


def choices(name, ranks):
    """Return some in_axes of arrays of these ranks: each one alone, all but each, and others."""
    count, rng = len(ranks), random_of(name)
    mapped = [{i} for i in range(count)] + [{*range(count)} - {i} for i in range(count)]
    chosen = {tuple(0 if i in m else None for i in range(count)) for m in mapped if m}
    chosen = sorted(chosen, key=str)
    if not ALL:
        chosen = [chosen[i] for i in rng.choice(len(chosen), min(2, len(chosen)), replace=False)]
    chosen.append(tuple(int(rng.integers(0, rank + 1)) for rank in ranks))
    return chosen


def in_loop(fn, axes, rows):
    """Return the results of a loop over the rows, which use the first row's unmapped arrays."""
    results = []
    for row in rows:
        results.append(fn(*(rows[0][i] if axis is None else row[i] for i, axis in enumerate(axes))))
    return [mx.stack(list(column)) for column in zip(*results, strict=True)]


@each
def test_vmap(name):
    """vmap over some arguments of a derivative is a loop."""
    subject = subjects()[name]
    path = name.rpartition("-")[0]
    if subject.op["vmap"] == "none" or not subject.differentiable:
        pytest.skip("no vmap or no derivative")
    with mx.stream(mx.cpu):
        rows = values_of(subject, BATCH)
        transforms = Transforms(subject)
        if not transforms.plain(*rows[0][0]):
            pytest.skip("no floating output")
        orders = [*FIRST, *SECOND]
        if path in PRODUCTS:
            orders = ["gradient", "reverse_over_reverse"]
        if path in RECURRENT:
            orders.remove("forward_over_forward")
        if not ALL:
            orders = [FIRST[len(name) % 2], orders[zlib.crc32(name.encode()) % len(orders)]]
        for order in dict.fromkeys(orders):
            fn = getattr(transforms, order)
            given = [[*a, *(t if order != "gradient" else [])] for a, t in rows]
            for axes in choices(f"{name} {order}", [a.ndim for a in given[0]]):
                try:
                    wanted = in_loop(fn, axes, given)
                except ValueError as error:
                    if is_declared(name, error):
                        break
                    raise
                stacked = [
                    given[0][i] if axis is None else mx.stack([row[i] for row in given], axis)
                    for i, axis in enumerate(axes)
                ]
                got = mx.vmap(lambda *v, fn=fn: fn(*v), in_axes=axes)(*stacked)
                what = f"vmap with in_axes={axes} of {order}"
                require_same(got, wanted, subject.function, what, "in a loop", tolerance(subject))


@pytest.mark.parametrize("name", [n for n in ("nn.gru-0", "nn.wkv6-0") if n in subjects()])
def test_vmap_over_second_axes(name):
    """Their own broadcasts avoid MLX's vmap of expand_dims, which is wrong for this axis."""
    subject = subjects()[name]
    with mx.stream(mx.cpu):
        given = [[*args, *tangents] for args, tangents in values_of(subject, BATCH)]
        axes = (1,) * len(given[0])
        stacked = [mx.stack(list(rows), 1) for rows in zip(*given, strict=True)]
        for order in ("tangent", "reverse_over_reverse"):
            fn = getattr(Transforms(subject), order)
            got = mx.vmap(lambda *v, fn=fn: fn(*v), in_axes=axes)(*stacked)
            wanted = in_loop(fn, axes, given)
            require_same(got, wanted, subject.function, order, "in a loop", tolerance(subject))


def constants(subject):
    """Return the arguments that are integers or bools in the sample."""
    return [i for i, a in enumerate(subject.draw(mx.float32)) if not is_float(a)]


WITH_INTEGERS = [name for name, s in subjects().items() if constants(s)]


@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_integers_have_zero_derivatives(name):
    """Masks, offsets, positions and indices do, as in MLX, also in a checkpoint and under vmap."""
    subject = subjects()[name]
    with mx.stream(mx.cpu):
        args = subject.draw(mx.float32)
        chosen = [*constants(subject), *subject.differentiable]

        def outputs(*values):
            given = list(args)
            for i, a in zip(chosen, values, strict=True):
                given[i] = a
            return [y for y in subject.function(*given) if is_float(y)]

        given = [args[i] for i in chosen]
        cotangents = [mx.ones_like(y) for y in outputs(*given)]
        if not cotangents:
            pytest.skip("no floating output")
        count = len(constants(subject))
        gradients = mx.vjp(outputs, given, cotangents)[1]
        for a, g in zip(given[:count], gradients, strict=False):
            assert g.shape == a.shape and not to_numpy(g).any()
        _, tangents = mx.jvp(outputs, given, [mx.ones_like(a) for a in given])
        _, plain = mx.jvp(
            lambda *v: outputs(*given[:count], *v),
            given[count:],
            [mx.ones_like(a) for a in given[count:]],
        )
        require_same(tangents, plain, subject.function, "jvp", "without integers", 0)
        again = mx.vjp(lambda *v: mx.checkpoint(outputs)(*v), given, cotangents)[1]
        require_same(again, gradients, subject.function, "a checkpoint", "without it", 1e-5)


@in_thread
def test_compiled():
    """mx.compile accepts derivatives in another order; a C++ compiler takes seconds."""
    subject = subjects()["nn.cross_entropy-1"]
    with mx.stream(mx.cpu):
        ((args, tangents),) = values_of(subject)
        fn = Transforms(subject).forward_over_reverse
        got = mx.compile(lambda *values: fn(*values))(*args, *tangents)
        wanted = fn(*args, *tangents)
        require_same(got, wanted, subject.function, "compiled", "plain", 1e-6)
