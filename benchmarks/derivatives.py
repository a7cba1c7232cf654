"""Measures first and second derivatives of the special functions, and scans them for NaN.

The exact derivatives are differences of mpmath's values with many digits. The points are drawn from
the regions in tests/special/reference_*.py. They are numbers of float32, the same for both dtypes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import mlx.core as mx
import mpmath
import numpy as np
from special.domains import defined, exponents
from special.records import RECORDS
from special.reference import FORMATS, SEED, Format, Record

from mlxgen.testing import to_numpy

CHECKED = [FORMATS["float32"], FORMATS["float64"]]
SIZES = 1e-10, 1e10  # of the arguments; the scan includes the ends of the range
STEP = 20  # decimal digits: the differences have a step of 10**-STEP times the argument
PRECISIONS = 120, 240, 480  # digits; more are used if the difference of the values is not resolved
HEADING = "## Derivatives"

INTRODUCTION = f"""{HEADING}

`make accuracy ACCURACY_ARGS='--derivatives --write'` writes this section. It compares the first and
second derivative by each argument with differences of mpmath's values at {PRECISIONS[0]} or more
digits. The points are drawn at random from the regions below; arguments are 0 or from 1e-10 to 1e10
in size. Points without a derivative, or beyond the range of the dtype, are omitted. Slow references
have fewer points.

- **Errors** are relative to the larger of two values: the derivative, and its change per relative
  change of the arguments. The second is larger near zeros of the derivative and for steep
  functions, where a rounded argument allows no better relative error. A correctly rounded result
  has an error of at most 6e-8 in float32 and 1.1e-16 in float64.
- **Cells** contain the largest error, and in parentheses the error that 99 % of the points do not
  exceed. *wrong* is NaN in place of a number; *none* marks a derivative that raises an error
  because it is not implemented.
- **NaN in the scan**, for functions of one argument, evaluates the function and both derivatives at
  a number of each exponent with both signs, subnormal numbers included, at both zeros, integers and
  halves up to 7.5, in both dtypes. NaN counts if the function or the derivative is defined there;
  the domain of `airy` starts at -1e12.

Known limits:

- Derivatives of `i0`, `i1` and `kv` may overflow in float32 when they are close to the largest
  number.
- Points without a derivative return NaN or infinities: poles, where derivatives of different
  directions differ, and `hypot` and `pseudo_huber` if both arguments are infinite. `binom` is NaN
  for negative integers `n`, with its derivatives. On Metal, its second derivative by `n` is 0 for
  `n` above 1e19.
- The derivative of `beta` by both arguments loses all digits if both are close to 0, and that of
  `poch` if `z` and `z + m` are.
- At the probabilities 0 and 1, second derivatives of `gammaincinv`, `gammainccinv`, `betaincinv`
  and `betainccinv` are NaN, unless the first one is finite and not 0.
"""
BEYOND = """### Derivatives beyond the limits

The tests allow a relative error of 1e-12 in float64 and 1e-5 in float32 (incomplete functions: 2e-6
and 1e-4). These derivatives have a larger scaled error at some points. The table has the number of
such points, and the arguments, result and exact value of the largest error:
"""


@dataclass(frozen=True)
class Cell:
    """The scaled errors of one derivative in one dtype, with the point and values of the largest.

    ``errors`` is None if the derivative is not implemented.
    """

    order: int
    format: str
    limit: float  # of the tests
    errors: np.ndarray | None = None
    at: str = ""
    ours: float = 0
    exact: float = 0

    def beyond(self) -> int:
        """The number of points with an error beyond the limit."""
        return 0 if self.errors is None else int(np.sum(self.errors > self.limit))


@dataclass(frozen=True)
class Row:
    """The derivatives of a function by one argument."""

    record: str
    argument: str
    points: int
    cells: tuple[Cell, ...]
    nan: int | None  # in the scan; None: not scanned
    scanned: int


@dataclass(frozen=True)
class Reference:
    """A derivative at a point, and the magnitude that its error is relative to."""

    value: float
    scale: float


def measure(names: Sequence[str], points: int, seconds: float) -> Iterator[Row]:
    """Measure the derivatives of functions.

    Args:
        names: Keys of ``RECORDS``.
        points: The number of points per argument.
        seconds: Time for mpmath per argument; slow references have fewer points.

    Returns:
        A row per differentiable argument.
    """
    with mx.stream(mx.cpu):
        for name in names:
            record = RECORDS[name]
            if not record.smooth:
                continue
            for i in range(record.arity):
                if i not in record.undifferentiable:
                    yield _row(record, i, points, seconds)


def _row(record: Record, i: int, count: int, seconds: float) -> Row:
    chosen: list[tuple[tuple[Any, ...], tuple[float, ...], tuple[Reference, Reference]]] = []
    end = time.process_time() + seconds
    for head, point in _points(record):
        found = _exact(record, head, point, i)
        if found is not None:
            chosen.append((head, point, found))
        if len(chosen) == count or time.process_time() > end:
            break
    cells = [
        _cell(record, i, order, format, [(h, p, found[order - 1]) for h, p, found in chosen])
        for order in (1, 2)
        for format in CHECKED
    ]
    nan, scanned = scan(record) if record.arity == 1 else (None, 0)
    argument = _arguments(record.name)[i]
    return Row(record.id, argument, len(chosen), tuple(cells), nan, scanned)


def _cell(
    record: Record,
    i: int,
    order: int,
    format: Format,
    rows: Sequence[tuple[tuple[Any, ...], tuple[float, ...], Reference]],
) -> Cell:
    cell = Cell(order, format.name, record.gradient[format.name])
    if order == 2 and (i, i) in record.once:
        return cell
    ours = np.empty(len(rows))
    for head in dict.fromkeys(h for h, _, _ in rows):
        of = [k for k, (h, _, _) in enumerate(rows) if h == head]
        ours[of] = _ours(record, head, i, order, format, np.array([rows[k][1] for k in of]))
    inside = [k for k, (_, _, exact) in enumerate(rows) if abs(exact.value) <= format.max]
    errors = _errors(ours[inside], [rows[k][2] for k in inside], format)
    if not inside:
        return replace(cell, errors=errors)
    head, point, exact = rows[inside[int(np.argmax(errors))]]
    at = ", ".join(f"{x:.9g}" for x in (*head, *point))
    return replace(
        cell,
        errors=errors,
        at=at,
        ours=float(ours[inside[int(np.argmax(errors))]]),
        exact=exact.value,
    )


@cache
def _operators() -> dict[str, list[str]]:
    """Return the names of the array arguments by function."""
    operators = json.loads((files("mlxops") / "ops.json").read_text(encoding="utf-8"))["operators"]
    return {
        op["python_name"]: [a["name"] for a in op["args"] if a["kind"] == "array"]
        for op in operators
        if op["module"] == "special"
    }


def _arguments(name: str) -> list[str]:
    return _operators()[name]


def _points(record: Record) -> list[tuple[tuple[Any, ...], tuple[float, ...]]]:
    """Return the heads and points of all regions, in random order; regions have equal shares."""
    random = np.random.default_rng(SEED)
    low, high = SIZES
    regions = []
    for region in record.regions:
        points = np.stack(record.points(region, CHECKED[0], 400), axis=1)
        sizes = np.abs(points)
        points = points[np.all((sizes == 0) | ((sizes >= low) & (sizes <= high)), axis=1)]
        head = record.head_of(region)
        regions.append([(head, tuple(map(float, p))) for p in random.permutation(points)])
    longest = max(map(len, regions))
    return [points[k] for k in range(longest) for points in regions if k < len(points)]


def _exact(
    record: Record, head: tuple[Any, ...], point: Sequence[float], i: int
) -> tuple[Reference, Reference] | None:
    """Return the first and second derivative by argument i; None if one of them does not exist."""
    for digits in PRECISIONS:
        with mpmath.workdps(digits):
            found = _differences(record, head, [mpmath.mpf(x) for x in point], i)
        if found is None or found[1]:
            break
    return None if found is None else found[0]


def _differences(
    record: Record, head: tuple[Any, ...], point: list[mpmath.mpf], i: int
) -> tuple[tuple[Reference, Reference], bool] | None:
    """Return the derivatives, and whether the values have enough digits for them."""
    relative = mpmath.mpf(10) ** -STEP
    h = (abs(point[i]) or 1) * relative

    def value(k: int, other: int | None = None) -> Any:
        shifted = list(point)
        shifted[i] += k * h
        if other is not None:
            shifted[other] *= 1 + relative
        found = record.exact(*head, *shifted)
        if not isinstance(found, (int, float, mpmath.mpf)) or not mpmath.isfinite(found):
            raise ValueError("the function has no value")
        return mpmath.mpf(found)

    try:
        a, b, c, d, e = (value(k) for k in (-2, -1, 0, 1, 2))
        derivatives = (d - b) / (2 * h), (d - 2 * c + b) / h**2
        third = (e - 2 * d + 2 * b - a) / (2 * h**3)
        changes = [abs(point[i] * derivatives[1]), abs(point[i] * third)]
        for other in range(len(point)):
            if other != i and point[other]:
                low, middle, high = (value(k, other) for k in (-1, 0, 1))
                mixed = (high - low) / (2 * h), (high - 2 * middle + low) / h**2
                for n in (0, 1):
                    changes[n] += abs(mixed[n] - derivatives[n]) / relative
    except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.NoConvergence):
        return None
    # At a kink the second differences of both sides, or of one side and the middle, differ.
    sides = a - 2 * b + c, d - 2 * c + b, c - 2 * d + e
    noise = mpmath.mpf(10) ** (10 - mpmath.mp.dps) * abs(c)
    if max(sides) - min(sides) > 1e-6 * max(*map(abs, sides), abs(d - b) * relative) + noise:
        return None
    resolved = abs(d - b) > noise and abs(sides[1]) > noise
    first, second = (
        Reference(float(x), float(max(abs(x), change)))
        for x, change in zip(derivatives, changes, strict=True)
    )
    return (first, second), resolved


def _ours(
    record: Record, head: tuple[Any, ...], i: int, order: int, format: Format, points: np.ndarray
) -> np.ndarray:
    """Return our derivative at the rows of an array."""

    def derivative(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        return mx.grad(lambda *x: function(*x).sum(), argnums=i)

    function: Callable[..., mx.array] = lambda *x: record.call(head, *x)  # noqa: E731
    for _ in range(order):
        function = derivative(function)
    return to_numpy(function(*(format.array(x) for x in points.T))).astype(np.float64)


def _errors(got: np.ndarray, exact: Sequence[Reference], format: Format) -> np.ndarray:
    """Return the scaled errors; infinity counts as the power of 2 after the largest number."""
    value = np.array([x.value for x in exact]) / 4  # the power of 2 must be finite
    scale = np.minimum([max(x.scale, format.tiny) for x in exact], FORMATS["float64"].max) / 4
    end = np.copysign(np.ldexp(1.0, format.emax - 1), got)
    got = np.where(np.isinf(got), end, got / 4)
    return np.where(np.isnan(got), np.inf, np.abs(got - value) / scale)


def scan(record: Record) -> tuple[int, int]:
    """Return how many results are NaN though they are defined, and the number of results."""
    nan = total = 0
    for format in CHECKED:
        x = exponents(format)
        for order in (0, 1, 2):
            at = x[defined(record.id, order, x)]
            got = _ours(record, record.head, 0, order, format, at[:, None])
            nan += int(np.isnan(got).sum())
            total += len(at)
    return nan, total


def section(rows: Sequence[Row]) -> str:
    """Return the section of docs/accuracy.md."""
    lines = [
        "| function | argument | points | first f32 | first f64 | second f32 | second f64 "
        "| NaN in the scan |",
        "|---" * 8 + "|",
    ]
    beyond = [
        "| function | argument | derivative | dtype | points | at | result | exact |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        cells = [cell_text(cell) for cell in row.cells]
        nan = "" if row.nan is None else f"{row.nan} of {row.scanned:,}"
        head = [f"`{row.record}`", f"`{row.argument}`"]
        lines.append("| " + " | ".join([*head, str(row.points), *cells, nan]) + " |")
        for cell in row.cells:
            if count := cell.beyond():
                values = [cell.at, f"{cell.ours:.6g}", f"{cell.exact:.6g}"]
                texts = [("first", "second")[cell.order - 1], cell.format, str(count), *values]
                beyond.append("| " + " | ".join([*head, *texts]) + " |")
    parts = [INTRODUCTION, *lines]
    if len(beyond) > 2:
        parts += ["", BEYOND, *beyond]
    return "\n".join([*parts, ""])


def cell_text(cell: Cell) -> str:
    """Format the largest error and the 99th percentile."""
    if cell.errors is None:
        return "none"
    if not len(cell.errors):
        return ""
    worst, most = (float(np.quantile(cell.errors, q, method="lower")) for q in (1, 0.99))
    texts = ("wrong" if np.isinf(x) else f"{x:.1e}" if x else "0" for x in (worst, most))
    return "{} ({})".format(*texts)


def section_of(page: str) -> str:
    """Return the page's section on derivatives, "" if it has none."""
    found = re.search(rf"^{HEADING}\n.*?\n(?=\n## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found[0] if found else ""
