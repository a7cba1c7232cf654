"""`vmap: batch`: formulas that stay valid with a batch axis in front of every array, and others.

The rule itself is also tested: accepted formulas are evaluated for shapes with and without a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from sample import project

from mlxgen.check.file import resolve
from mlxgen.diagnostics import Diagnostics
from mlxgen.formula.numbers import ArrayFacts, Impossible, evaluated
from mlxgen.formula.source import parsed
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Document

Codes = Callable[..., set[str]]

KERNEL = """
#include "mlxgen/kernel.h"
template <typename T>
void pair(
    mlxgen::In<T> x, mlxgen::In<T> y, int n, const std::vector<int>& sizes, mlxgen::Out<T> out) {}
"""
ENTRY = """
- signature: "f(x: array, y: array, n: int = 1, sizes: list[int] = [1]) -> array"
  dispatch: {{cpu: pair}}
  shape: "{shape}"
  checks:
    - {{that: "{that}", else: it must hold}}
    - {{that: "n > 0 and len(sizes) > 0", else: it must hold}}
  grad: none
  vmap: batch
"""

HOLD = """
x.ndim >= 2
x.ndim > n
2 < x.ndim
-x.ndim <= -2
not x.ndim < 2
not -x.ndim > -2
x.ndim >= y.ndim
x.ndim - y.ndim == 1
len(x.shape) + 1 >= n
x.ndim >= 1 and x.shape[-1] > 1
x.shape == y.shape
x.shape[-1] == y.shape[x.ndim - 1] or n > 1
x.shape[-1] == 3 and x.shape[:-1] == y.shape
x.ndim >= 2 and x.shape[-2:] == (3, 4)
x.size >= 4
x.size == y.size
x.size // y.size == 2
2 * x.size >= y.size + y.size
n - x.size < 4
x.size * x.size > 4
x.size // 2 >= 1
max(x.ndim, y.ndim) >= 2
max(x.ndim, n) >= 2
(x.ndim if n > 2 else y.ndim) > 1
any(d > 2 for d in x.shape)
not all(d > 2 for d in x.shape)
max(x.shape) >= 3
all(a.ndim >= 2 for a in [x, y])
all(d > 2 for d in sizes)
""".strip().split("\n")

MAY_NOT = """
not x.ndim > 2
(x.ndim > 2) == False
(x.ndim > 2) != True
-x.ndim >= -2
x.ndim <= 2
x.ndim == 2
x.ndim != 3
x.ndim * -1 >= -2
x.ndim * n >= 2
0 - x.ndim >= -2
2 - x.ndim >= 0
abs(x.ndim - 3) <= 1
x.ndim % 2 == 0
min(x.ndim, 2) == 2
x.ndim in (1, 2)
x.ndim ** 2 < 5
x.ndim >= 1 and not x.ndim >= 3
x.ndim >= 2 and x.ndim <= 3
n == 1 or x.ndim < 3
x.size < 100
x.size == 4
-x.size >= -4
x.size - y.size >= 0
x.size % 2 == 0
x.size + 1 == y.size + 1
(x.size + 1) // y.size == 1
x.size * n >= 4
x.shape[0] == 3
x.shape[n] == 3
x.shape[-n] == 3
x.shape[x.ndim - 2] == 3
x.shape[y.ndim - 1] == 3
x.shape[:-1] == y.shape
x.shape[-2:] == y.shape[-2:]
x.shape[1:] == y.shape
x.shape[::-1] == y.shape
x.shape == (3, 4)
x.shape[-1] in x.shape
all(d > 2 for d in x.shape)
not any(d > 2 for d in x.shape)
min(x.shape) >= 2
sum([d for d in x.shape]) == 4
sum(x.shape) == 4
all(a.ndim == 2 for a in [x, y])
all(a == b for a, b in zip(x.shape, y.shape))
sizes[x.ndim - 1] == 1
sizes[:x.ndim] == [1]
len(sizes[x.ndim:]) == 1
[1, 2, 3][x.ndim - 1] == 1
(1 if x.ndim > 2 else 2) == 2
float(x.ndim) <= 2
int(-x.ndim) >= -2
broadcast_shapes(x.shape, y.shape) == x.shape
len(broadcast_shapes(x.shape, y.shape)) == 2
""".strip().split("\n")

SHAPES_HOLD = """
x.shape
x.shape + (n,)
x.shape[:-1] + (x.shape[-1] // 2,)
(*x.shape[:-1], x.shape[-1] + 1)
x.shape if n > 1 else y.shape
x.shape[:x.ndim]
""".strip().split("\n")

SHAPES_MAY_NOT = """
x.shape[:-1] + (n,)
x.shape[:x.ndim - 1] + (n,)
x.shape if x.ndim > 2 else y.shape
x.shape if not x.ndim > 2 else (n,)
[d * 2 for d in x.shape]
(n,) + x.shape
[x.size]
x.shape[:-2] + (x.shape[-1],)
broadcast_shapes(x.shape, y.shape)
sizes
""".strip().split("\n")


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Codes:
    """Return the codes of the errors in an entry with a condition and a shape."""
    folder = tmp_path_factory.mktemp("batch")
    (folder / "csrc").mkdir()
    (folder / "csrc" / "pair.h").write_text(KERNEL)
    settings = project.settings(folder / "mlx_ops.yaml")
    sources = Sources(settings, Diagnostics(), None)

    def check(that: str = "n > 0", shape: str = "x.shape") -> set[str]:
        diags = Diagnostics(0)
        document = Document.parse(ENTRY.format(that=that, shape=shape), "mlx_ops.yaml", diags)
        assert document is not None
        resolve(document, settings, sources, diags)
        # The default arrays need not meet the condition.
        return {item.code for item in diags.sorted()} - {"MG130"}

    return check


@pytest.mark.parametrize("that", HOLD)
def test_conditions_that_hold(that: str, codes: Codes) -> None:
    assert codes(that) == set()
    for called, batched in calls():
        try:
            holds = evaluated(parsed(that), called, None)
        except Impossible:
            continue
        assert not holds or evaluated(parsed(that), batched, None), (called, batched)


@pytest.mark.parametrize("that", MAY_NOT)
def test_conditions_that_may_not_hold(that: str, codes: Codes) -> None:
    assert codes(that) == {"MG411"}


@pytest.mark.parametrize("shape", SHAPES_HOLD)
def test_shapes_that_hold(shape: str, codes: Codes) -> None:
    assert codes(shape=shape) == set()
    for called, batched in calls():
        try:
            given = tuple(evaluated(parsed(shape), called, None))
        except Impossible:
            continue
        assert tuple(evaluated(parsed(shape), batched, None)) == (5, *given)


@pytest.mark.parametrize("shape", SHAPES_MAY_NOT)
def test_shapes_that_may_not_hold(shape: str, codes: Codes) -> None:
    assert codes(shape=shape) == {"MG411"}


def calls() -> list[tuple[dict[str, object], dict[str, object]]]:
    """Return arguments of calls, without and with a batch of 5."""
    shapes = [s for rank in range(4) for s in itertools.product((1, 3, 4), repeat=rank)]
    found = []
    for x, y in itertools.product(shapes, shapes):
        for n in (1, 2, 4):
            plain = {"n": n, "sizes": (n, 1, 3)}
            one, many = (
                plain | {"x": ArrayFacts(b + x, "float32"), "y": ArrayFacts(b + y, "float32")}
                for b in ((), (5,))
            )
            found.append((one, many))
    return found
