"""Values of formulas of shapes at generation time."""

from __future__ import annotations

import pytest

from mlxgen.formula.source import parsed
from mlxgen.model.numbers import ArrayFacts, evaluated


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
