"""`vmap: batch`: formulas that stay valid with a batch axis in front of every array, and others.

Accepted formulas are also evaluated for all shapes of a grid, with and without a batch.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import time
from collections.abc import Callable

import pytest
from sample import project

from mlxgen.check.file import resolve
from mlxgen.diagnostics import Diagnostic, Diagnostics
from mlxgen.formula.source import parsed
from mlxgen.model.numbers import ArrayFacts, Impossible, evaluated
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Documents

Check = Callable[[str], list[Diagnostic]]
Codes = Callable[..., set[str]]

KERNEL = """
#include "mlxgen/kernel.h"
template <typename T>
void pair(
    mlxgen::In<T> x, mlxgen::In<T> y, int n, const std::vector<int>& sizes, mlxgen::Out<T> out) {}
"""
SEVERAL = """
#include "mlxgen/kernel.h"
template <typename T>
void several(
    const std::vector<mlxgen::In<T>>& xs, mlxgen::In<T> mask, int mode, double scale,
    mlxgen::Out<T> out) {}
"""
METAL = """
template <typename T, int N>
[[kernel]] void launched(
    device const T* x, device T* out, constant int& c, uint i [[thread_position_in_grid]]) {}
"""
FILES = {
    "csrc/pair.h": KERNEL,
    "csrc/several.h": SEVERAL,
    "kernels/metal/launched.metal": METAL,
}
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

SEVERAL_ENTRY = """
- signature: >-
    f(xs: list[array], mask: array | None = None, mode: Literal["a", "b"] = "a", scale: float = 1)
    -> array
  dispatch: {{cpu: several}}
  shape: "xs[0].shape"
  checks:
    - {{that: "len(xs) > 0", else: it must hold}}
    - {{that: "{that}", else: it must hold}}
  grad: none
  vmap: batch
"""
METAL_ENTRY = """
- signature: "f(x: array) -> array"
  dispatch:
    metal:
      kernel: launched
      template: {{N: {{of: "x.shape[-1]", values: [4, 8]}}}}
      constants: {{c: "{c}"}}
      grid: [c]
  shape: x.shape[:-1] + (1,)
  checks: [{{that: x.ndim >= 2, else: it must hold}}]
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
x.shape[:2] == y.shape[:2]
all(x.shape[-1 - i] == x.shape[-1] for i in range(n))
x.ndim * n >= 2
min(x.ndim, 2) == 2
x.size - y.size >= 0
x.size % 2 == 0
x.size + 1 == y.size + 1
x.size * n >= 4
x.shape[-n] == 3
x.shape[-2:] == y.shape[-2:]
x.shape[-1] in x.shape
all(a == b for a, b in zip(x.shape, y.shape))
""".strip().split("\n")  # the last ten follow from n > 0, or from arithmetic

MAY_NOT = """
not x.ndim > 2
(x.ndim > 2) == False
(x.ndim > 2) != True
-x.ndim >= -2
x.ndim <= 2
x.ndim == 2
x.ndim != 3
x.ndim * -1 >= -2
0 - x.ndim >= -2
2 - x.ndim >= 0
abs(x.ndim - 3) <= 1
x.ndim % 2 == 0
x.ndim in (1, 2)
x.ndim ** 2 < 5
x.ndim >= 1 and not x.ndim >= 3
x.ndim >= 2 and x.ndim <= 3
n == 1 or x.ndim < 3
x.size < 100
x.size == 4
-x.size >= -4
(x.size + 1) // y.size == 1
x.shape[0] == 3
x.shape[n] == 3
x.shape[x.ndim - 2] == 3
x.shape[y.ndim - 1] == 3
x.shape[:-1] == y.shape
x.shape[1:] == y.shape
x.shape[::-1] == y.shape
x.shape == (3, 4)
all(d > 2 for d in x.shape)
not any(d > 2 for d in x.shape)
min(x.shape) >= 2
sum([d for d in x.shape]) == 4
sum(x.shape) == 4
all(a.ndim == 2 for a in [x, y])
sizes[x.ndim - 1] == 1
sizes[:x.ndim] == [1]
len(sizes[x.ndim:]) == 1
[1, 2, 3][x.ndim - 1] == 1
(1 if x.ndim > 2 else 2) == 2
float(x.ndim) <= 2
int(-x.ndim) >= -2
broadcast_shapes(x.shape, y.shape) == x.shape
len(broadcast_shapes(x.shape, y.shape)) == 2
x.shape[-1] == 128 and x.shape[-2] == 64 and x.ndim == 2
x.ndim <= 5
x.size <= 1024
x.nbytes == 64
n == 7 and x.ndim < 3
x.shape[0] == n
len(sizes) == x.ndim
all(x.shape[i] == 3 for i in range(x.ndim))
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
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Return the messages about entries."""
    folder = tmp_path_factory.mktemp("batch")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    settings = project.settings(folder / "mlx_ops.yaml")
    sources = Sources(settings, Diagnostics(), None)

    def run(yaml: str) -> list[Diagnostic]:
        diags = Diagnostics(0)
        document = Documents.parse({"mlx_ops.yaml": yaml}, diags)
        assert document is not None
        resolve(document, settings, sources, diags)
        return diags.sorted()

    return run


@pytest.fixture(scope="module")
def codes(check: Check) -> Codes:
    """Return the codes of the errors in an entry with a condition and a shape."""
    return lambda that="n > 0", shape="x.shape": {
        item.code for item in check(ENTRY.format(that=that, shape=shape))
    }


# Conditions of an entry with a list, an optional array, a choice and a float, and a part of the
# message; None if they hold.
CONDITIONS = {
    "all(a.ndim == 2 for a in xs)": "holds for xs[0] (",
    "xs[0].shape[0] == xs[1].shape[-1]": "holds for xs[0] (",
    "mask is None or mask.ndim == 1": "holds for mask (",
    "mask is not None or xs[0].ndim < 3": " and mask = None, not for (",
    "mode == 'a' or xs[0].ndim < 4": " and mode = 'b', not for (",
    "scale < 7.5 or xs[0].ndim < 4": " and scale = 7.5, not for (",
    "all(a.ndim >= 2 for a in xs)": None,
    "len(xs) == 2 and xs[0].shape == xs[1].shape": None,
    "mask is None or mask.shape[-1:] == xs[0].shape[-1:]": None,
    "mode == 'a' or xs[0].ndim >= 2": None,
    "scale < 7.5 or xs[0].size >= 4": None,
}
LAUNCHES = {
    "x.shape[0]": "is 3 for x (3, 4), but 1 for (1, 3, 4)",
    "x.shape[1]": "is 4 for x (3, 4), but 3 for (1, 3, 4)",
    "min(x.shape[0], 8)": "is 3 for x (3, 4), but 1 for (1, 3, 4)",
    "out.shape[0]": "is 3 for x (3, 4), but 1 for (1, 3, 4)",
    "2 * x.ndim": "is 4 for x (3, 4), but 6 for (1, 3, 4)",
    "x.ndim if x.size > 4 else 3": "is 2 for x (3, 4), but 3 for (1, 3, 4)",
    "max(x.shape)": "is 0 for x (0, 0",
    "x.size": None,
    "x.ndim": None,
    "x.ndim + x.shape[-1]": None,
    "prod(x.shape[:-1])": None,
    "x.size // max(x.shape[-1], 1)": None,
    "min(x.size, 8) * N": None,
    "out.size": None,
}


def only(found: list[Diagnostic], part: str | None) -> None:
    """Check that there is one error, which contains a string, or none."""
    assert [item.code for item in found] == ["MG411"] * (part is not None), found
    assert part is None or part in found[0].message


@pytest.mark.parametrize("that", CONDITIONS)
def test_other_arguments(that: str, check: Check) -> None:
    only(check(SEVERAL_ENTRY.format(that=that)), CONDITIONS[that])


@pytest.mark.parametrize("text", LAUNCHES)
def test_launches(text: str, check: Check) -> None:
    """The formula is that of a constant; those that use the constant are not reported again."""
    only(check(METAL_ENTRY.format(c=text)), LAUNCHES[text])


@pytest.mark.parametrize(
    ("that", "shape", "part"),
    [
        ("x.shape == y.shape", "(n,)", " for x () and y () and n = "),
        ("n > 0", "x.shape[:-1] + (n,)", " for x () and n = "),
        ("x.shape[0] == 1", "x.shape", "holds for x (1"),  # also for a batch of 1
        ("x.shape[0] != 1", "x.shape", "not for (1, "),
        # A condition that no call of the default shapes meets, and one that none meets.
        ("x.shape[-1] == 77 and y.shape[:-1] == x.shape", "x.shape[1:] + (n,)", "but "),
        ("x.ndim == 2 and x.ndim == 3", "x.shape[1:]", None),
    ],
)
def test_counterexamples(that: str, shape: str, part: str | None, check: Check) -> None:
    only(check(ENTRY.format(that=that, shape=shape)), part)


def test_every_run_reports_the_same(check: Check) -> None:
    yaml = ENTRY.format(that="x.size < 100", shape="sizes")
    assert [item.message for item in check(yaml)] == [item.message for item in check(yaml)]


def test_samples_are_tried(check: Check) -> None:
    """Nothing else meets this condition."""
    yaml = ENTRY.format(that="x.shape[-1] == n * 30000 + 7", shape="x.shape[1:]")
    only(check(yaml), None)
    only(
        check(yaml + "  samples: [{x: {shape: [330007]}, n: 11}]\n"),
        "x (330007,), but (330007,) instead",
    )


@pytest.mark.parametrize(
    ("that", "shape"),
    [
        ("x.size < 9 ** 63 * 9 ** 63 * 9 ** 63", "x.shape"),
        ("x.size < 4611686018427387904", "x.shape"),
        ("x.ndim >= 0", "[1] * 2147483647"),
        ("x.ndim >= 0", "x.shape[:-1] + [0] * n * 2147483647"),
        ("all(i >= 0 for i in range(4611686018427387904))", "x.shape"),
        ("x.ndim >= 0", "[{}]"),
        ("{} > 0", "x.shape"),
        (" and ".join(["x.shape[-1] * 9 ** 63 > 0"] * 300), "x.shape"),
    ],
)
def test_hostile_formulas_take_no_time(that: str, shape: str, check: Check) -> None:
    loops = "1"
    for i in range(12):
        loops = f"sum([{loops} for a{i} in [1, 2, 3, 4, 5, 6, 7, 8]])"
    start = time.process_time()
    check(ENTRY.format(that=that.format(loops), shape=shape.format(loops)))
    assert time.process_time() - start < 3


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
def test_conditions_that_may_not_hold(that: str, check: Check) -> None:
    """The counterexample is one."""
    (found,) = check(ENTRY.format(that=that, shape="x.shape"))
    match = re.search(r"holds for (.+), not for (.+)", found.message)
    assert found.code == "MG411" and match
    arguments, shapes = (part.split(" and ") for part in match.groups())
    values = dict(text.split(" = ") for text in arguments if "=" in text)
    names = [text.partition(" ")[0] for text in arguments if "=" not in text]
    for given, held in ((arguments, True), (shapes, False)):
        arrays = {
            n: ast.literal_eval(s[s.index("(") :]) for n, s in zip(names, given, strict=False)
        }
        facts: dict[str, object] = {n: ArrayFacts(s, "float32") for n, s in arrays.items()}
        facts |= {name: ast.literal_eval(text) for name, text in values.items()}
        with contextlib.suppress(Impossible):
            assert bool(evaluated(parsed(that), facts, None)) is held


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
