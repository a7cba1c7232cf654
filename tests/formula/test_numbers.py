"""Bounds of formulas of shapes, compared with the formulas' values."""

from __future__ import annotations

import random

import pytest

from mlxgen.formula.numbers import ArrayFacts, Impossible, bounds, evaluated
from mlxgen.formula.source import parsed

ATOMS = ["x.size", "x.ndim", "x.shape[0]", "len(x.shape)", "prod(x.shape)", "n", "k"]


def formula(choose: random.Random, depth: int) -> str:
    if depth == 0:
        return choose.choice([*ATOMS, "-3", "0", "1", "2", "5"])
    a, b = formula(choose, depth - 1), formula(choose, depth - 1)
    sign = choose.choice(["+", "-", "*", "//", "%", "**"])
    forms = [f"({a} {sign} {b})", f"-{a}", f"max({a}, {b})", f"min({a}, {b})"]
    return choose.choice([*forms, forms[0], f"({a} if n > 1 else {b})"])


def test_values_are_within_bounds() -> None:
    choose = random.Random(1)
    narrow = 0
    for _ in range(3000):
        text = formula(choose, 3)
        least, most = bounds(parsed(text), {"k": (2, 4)})
        narrow += most < 1 or least > 1
        for _ in range(20):
            shape = tuple(choose.choice([0, 1, 2, 7]) for _ in range(choose.randrange(4)))
            names = {"x": ArrayFacts(shape, None), "n": choose.randrange(-5, 9)}
            try:
                value = evaluated(parsed(text), names | {"k": choose.choice([2, 3, 4])}, None)
            except Impossible:
                continue
            assert value is None or least <= value <= most, (text, names)
    assert narrow > 100


@pytest.mark.parametrize("text", ["x.size * 0", "-x.size", "0", "min(n, 0)", "x.size % 1"])
def test_never_positive(text: str) -> None:
    assert bounds(parsed(text), {})[1] == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sum(range(1, x.ndim + 2))", 6),
        ("[i * 2 for i in range(n)]", (0, 2, 4)),
        ("x.nbytes // x.itemsize", 6),
        ("ceil(sqrt(x.size))", 3),
        # Too many steps.
        ("sum(range(10 ** 15))", None),
        ("sum([sum([sum([i for i in range(99)]) for j in range(99)]) for k in range(99)])", None),
    ],
)
def test_values(text: str, value: object) -> None:
    names = {"x": ArrayFacts((2, 3), "bfloat16"), "n": 3}
    assert evaluated(parsed(text), names, None) == value


@pytest.mark.parametrize(("dtype", "size"), [("bool_", 1), ("uint8", 1), ("complex64", 8)])
def test_sizes_of_elements(dtype: str, size: int) -> None:
    assert ArrayFacts((2, 3), dtype).itemsize == size
