"""Derivatives in float64 against central differences of order six, which have twelve digits.

MLX's exp, sigmoid and erf have seven or eight digits in float64, and formulas must not call them.
"""

import json
from importlib.resources import files

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from mlxops.checks.test_gradients import CASES

from mlxgen.testing.cases import Subject

LIMIT = 1e-11  # MLX's functions cause errors above 1e-9
STEP = 0.001
WEIGHTS = (3 / 4, -3 / 20, 1 / 60)
OPERATORS = ("softcap", "swiglu", "sincos", "rms_norm_residual")  # and those of mlxops.nn


def subjects():
    ops = json.loads(files(mlxops).joinpath("ops.json").read_text("utf-8"))["operators"]
    chosen = {
        op["python_name"]: op
        for op in ops
        if op["module"] == "nn" or (not op["module"] and op["name"] in OPERATORS)
    }
    for i, case in enumerate(CASES):
        op = chosen.get(case.function.__name__)
        if op and case.function is getattr(mlxops.nn if op["module"] else mlxops, op["name"]):
            subject = Subject(mlxops, op, case, i)
            # Sequences change no formula.
            packed = case.sample.get("cu_seqlens") is not None
            if not packed and subject.has_dtype("float64") and subject.differentiable:
                yield pytest.param(subject, id=f"{op['name']} {i}")


def slope(function):
    """Return the derivative at 0 of a function of a number, of all elements of its result."""
    terms = (w * (function(k * STEP) - function(-k * STEP)) for k, w in enumerate(WEIGHTS, 1))
    return sum(terms) / STEP


@pytest.mark.parametrize("subject", tuple(subjects()))
def test_derivatives(subject):
    """First derivatives in reverse and forward mode, and the derivative of the gradient."""
    rng = np.random.default_rng(0)
    given = subject.draw(mx.float64)
    chosen = subject.differentiable
    start = [given[i] for i in chosen]
    along = [mx.array(rng.uniform(-1, 1, a.shape), dtype=mx.float64) for a in start]

    def loss(*arrays):
        all_of = dict(enumerate(given)) | dict(zip(chosen, arrays, strict=True))
        found = subject.function(*all_of.values())
        floats = [y for y in found if y.dtype == mx.float64]
        return sum((y * (y + mx.array(i + 1.5, mx.float64))).sum() for i, y in enumerate(floats))

    def with_slope(function, arrays):
        """Return the value, and the derivative in the direction `along`."""
        one = [mx.array(1, mx.float64)]
        (value,), found = mx.vjp(lambda *arrays: [function(*arrays)], arrays, one)
        return value, sum((g * a).sum() for g, a in zip(found, along, strict=True))

    def directional(*arrays):
        return with_slope(loss, arrays)[1]

    def both_at(t):
        found = with_slope(loss, [a + t * d for a, d in zip(start, along, strict=True)])
        return np.array([y.item() for y in found])

    with mx.stream(mx.cpu):
        exact, second = slope(both_at)
        value, first = both_at(0)
        scale = max(abs(exact), abs(value))
        assert abs(first - exact) < LIMIT * scale
        (tangent,) = mx.jvp(lambda *arrays: [loss(*arrays)], start, along)[1]
        assert abs(tangent.item() - exact) < LIMIT * scale
        found = with_slope(directional, start)[1].item()
        assert abs(found - second) < LIMIT * max(abs(second), scale)
