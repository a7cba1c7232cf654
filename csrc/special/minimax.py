"""Best approximations and the headers that contain them, for all families of special functions.

A family's script, `<family>_coefficients.py` in this folder, lists the functions and the intervals
of their approximations as `Fit`s. This module finds the coefficients with the Remez algorithm in
multiple precision, and writes `<family>_coefficients.h`. No numbers are copied from a library, and
anyone can repeat the computation:

    python csrc/special/gamma_coefficients.py           # rewrite the header
    python csrc/special/gamma_coefficients.py --check   # exit with 1 if the header is out of date

There are two sets of coefficients: `full` for results in double, and `half` for results in float.
The second serves the CPU, which evaluates it in double, and Metal, which evaluates it in pairs of
floats; its numbers are written as such pairs. Approximations that every backend evaluates in float
have their own coefficients (`Narrow`): floats that are optimal together, because rounding each of
them separately costs more accuracy than the fit.
"""

from __future__ import annotations

import argparse
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import cache
from pathlib import Path
from typing import Literal

import mpmath as mp  # type: ignore[import-untyped]
from mpmath import mpf

Function = Callable[[mpf], mpf]
Sampled = Callable[[Decimal], Decimal]
Precision = Literal["full", "half", "narrow"]

DIGITS = 50
"""Decimal digits of the computations."""

SAMPLING = Decimal("1e-24")
"""Relative error of a polynomial that replaces a function: far below the errors of the fits."""


# --- Remez ----------------------------------------------------------------------------------------
# In decimal numbers of Python's library, which are ten times as fast as mpmath's.


def decimal(x: mpf) -> Decimal:
    """x as a Decimal."""
    return Decimal(mp.nstr(x, DIGITS + 10))


def horner(coefficients: Sequence[Decimal], x: Decimal) -> Decimal:
    """The polynomial with the given coefficients, lowest first."""
    y = Decimal(0)
    for c in reversed(coefficients):
        y = y * x + c
    return y


def chebyshev(low: mpf, high: mpf, count: int) -> list[Decimal]:
    """Numbers from low to high, closest together at the ends."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [decimal(middle - half * mp.cos(mp.pi * i / count)) for i in range(count + 1)]


@cache  # for both precisions
def sampled(
    f: Function, low: mpf, high: mpf, scale: Callable[[Decimal], Decimal] | None
) -> Sampled:
    """f, computed at few points: their interpolating polynomial, if it is accurate.

    It is compared with f at as many points between them, relative to scale, which is f by default.
    If f has a singularity close by, it is computed at every point.
    """
    known: dict[Decimal, Decimal] = {}

    def direct(x: Decimal) -> Decimal:
        if x not in known:
            known[x] = decimal(f(mpf(str(x))))
        return known[x]

    def through(nodes: list[Decimal]) -> Sampled:
        # The barycentric formula; Berrut and Trefethen (2004).
        values = {x: direct(x) for x in nodes}
        weights = [Decimal((-1) ** i) for i in range(len(nodes))]
        weights[0] /= 2
        weights[-1] /= 2
        terms = [(x, w, w * values[x]) for x, w in zip(nodes, weights, strict=True)]

        def value(x: Decimal) -> Decimal:
            if x not in values:
                above = below = Decimal(0)
                for node, weight, weighted in terms:
                    distance = x - node
                    above += weighted / distance
                    below += weight / distance
                values[x] = above / below
            return values[x]

        return value

    # Every second point of the doubled set is already known.
    nodes = chebyshev(low, high, 24)
    while len(nodes) < 200:
        coarse = through(nodes)
        finer = chebyshev(low, high, 2 * (len(nodes) - 1))
        finer[::2] = nodes
        between = finer[1::2]
        sizes = [direct(x) if scale is None else scale(x) for x in between]
        if all(
            abs(coarse(x) - direct(x)) <= abs(size) * SAMPLING
            for x, size in zip(between, sizes, strict=True)
        ):
            return through(finer)
        nodes = finer
    return direct


def solve(rows: list[list[Decimal]]) -> list[Decimal]:
    """The solution of linear equations, given as rows of coefficients and the right-hand side."""
    count = len(rows)
    for k in range(count):
        best = max(range(k, count), key=lambda i: abs(rows[i][k]))
        rows[k], rows[best] = rows[best], rows[k]
        pivot = rows[k]
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            if factor:
                for j in range(k + 1, count + 1):
                    row[j] -= factor * pivot[j]
    out = [Decimal(0)] * count
    for k in reversed(range(count)):
        rest = sum((rows[k][j] * out[j] for j in range(k + 1, count)), Decimal(0))
        out[k] = (rows[k][count] - rest) / rows[k][k]
    return out


def remez(
    f: Function, low: mpf, high: mpf, m: int, n: int, scale: Function | None = None
) -> tuple[list[mpf], list[mpf], mpf]:
    """The p/q of degrees m and n whose largest error against f, relative to scale, is the least.

    Returns p, q (lowest coefficient first, q[0] = 1) and that error. By default scale is f itself;
    it must not vanish between low and high.
    """
    with localcontext(Context(prec=DIGITS + 10)):
        weight = None if scale is None else sampled(scale, low, high, None)
        value = sampled(f, low, high, weight)
        p, q, error = exchanged(value, low, high, m, n, weight or value)
    return [mpf(str(c)) for c in p], [mpf(str(c)) for c in q], mpf(str(error))


def exchanged(
    f: Sampled, low: mpf, high: mpf, m: int, n: int, scale: Sampled
) -> tuple[list[Decimal], list[Decimal], Decimal]:
    """The result of remez."""
    count = m + n + 2
    grid = chebyshev(low, high, 24 * count)
    values = [f(x) for x in grid]
    scales = [scale(x) for x in grid]
    points = chebyshev(low, high, count - 1)
    q = [Decimal(1)] + [Decimal(0)] * n
    for _ in range(40):
        # p = (f + s e w) q with alternating signs s and w = scale has the unknowns p, q and e. It
        # is nonlinear in q and e together, hence Newton's method.
        level = Decimal(0)
        for _ in range(20 if n else 1):
            rows = []
            for i, x in enumerate(points):
                powers = [Decimal(1)]
                for _ in range(max(m, n)):
                    powers.append(powers[-1] * x)
                w = scale(x) * (-1) ** i
                y = f(x) + w * level
                row = [*powers[: m + 1], *(-y * power for power in powers[1 : n + 1])]
                rows.append([*row, -w * horner(q, x), y - w * level * horner(q, x)])
            solution = solve(rows)
            p = solution[: m + 1]
            q = [Decimal(1), *solution[m + 1 : m + n + 1]]
            change, level = abs(solution[-1] - level), solution[-1]
            if change <= abs(level) * Decimal("1e-8"):
                break
        errors = [
            (horner(p, x) / horner(q, x) - y) / w
            for x, y, w in zip(grid, values, scales, strict=True)
        ]
        worst = max(map(abs, errors))
        if worst <= abs(level) * Decimal("1.001"):
            return p, q, worst
        points = exchange(grid, errors, count)
    raise ArithmeticError(f"no convergence for degrees {m}, {n}")


def exchange(grid: list[Decimal], errors: list[Decimal], count: int) -> list[Decimal]:
    """The positions of `count` successive extrema of alternating sign, the largest ones."""
    runs: list[list[int]] = [[0]]
    for i in range(1, len(grid)):
        if errors[i] * errors[i - 1] < 0:
            runs.append([])
        runs[-1].append(i)
    peaks = [max(run, key=lambda i: abs(errors[i])) for run in runs]
    if len(peaks) < count:
        raise ArithmeticError("the error alternates too seldom; use fewer coefficients")
    while len(peaks) > count:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return [vertex(grid, errors, i) for i in peaks]


def vertex(grid: list[Decimal], errors: list[Decimal], i: int) -> Decimal:
    """The extremum of the parabola through the errors around grid point i."""
    if not 0 < i < len(grid) - 1:
        return grid[i]
    (x0, x1, x2), (y0, y1, y2) = grid[i - 1 : i + 2], errors[i - 1 : i + 2]
    slope = (y1 - y0) / (x1 - x0)
    curvature = ((y2 - y1) / (x2 - x1) - slope) / (x2 - x0)
    if curvature == 0:
        return x1
    return min(max((x0 + x1) / 2 - slope / (2 * curvature), x0), x2)


def limit(f: Function, *removable: mpf) -> Function:
    """f, with its removable singularities (and their surroundings) taken as limits."""

    def filled(x: mpf) -> mpf:
        for point in removable:
            if abs(x - point) < mpf(10) ** (-DIGITS // 3):
                # The mean of f over a circle around the point: exact for an analytic function.
                circle = [point + mpf("0.01") * root for root in mp.unitroots(24)]
                return mp.re(sum(f(z) for z in circle)) / 24
        return f(x)

    return filled


# --- The contents of a header ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """One approximation: a table `name` of its coefficients, or `name_p` and `name_q`.

    Divide a zero of f between low and high out of f, or include it in scale.
    """

    name: str
    f: Function
    low: mpf
    high: mpf
    full: tuple[int, int] | None
    """Degrees of numerator and denominator for double; None if only float needs it."""
    half: tuple[int, int] | None
    """The degrees for float; None if only double needs it."""
    about: str
    scale: Function | None = None
    """The error is relative to this; by default to f."""
    fold: mpf | None = None
    """As in Narrow."""

    def tables(self, precision: Precision) -> list[Table]:
        """The coefficients, lowest first; the last one of a denominator is 1."""
        degrees = self.full if precision == "full" else self.half
        if degrees is None:
            return []
        m, n = degrees
        p, q, error = folded_remez(self.f, self.low, self.high, m, n, self.scale, self.fold)
        about = f"{self.about}\nerror {mp.nstr(error, 2)}"
        if n == 0:
            return [Table(self.name, p, about)]
        return [
            Table(f"{self.name}_p", [c / q[n] for c in p], about),
            Table(f"{self.name}_q", [c / q[n] for c in q]),
        ]


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers to write under a name. A constant is a table of one, `name[0]`."""

    name: str
    values: Sequence[mpf]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Narrow:
    """One approximation that is evaluated in float, for low <= x <= high.

    For a wide range, `fold` selects the variable u = x / (x + fold) in which the coefficients are
    found; it maps all x >= 0 to 0 to 1.
    """

    name: str
    f: Function
    low: mpf
    high: mpf
    degrees: tuple[int, int]
    about: str
    scale: Function | None = None
    fold: mpf | None = None

    def tables(self) -> list[Table]:
        """The coefficients, lowest first; the first one of a denominator is 1."""
        m, n = self.degrees
        k = self.fold
        low, high = (x if k is None else x / (x + k) for x in (self.low, self.high))
        p, q, _ = folded_remez(self.f, self.low, self.high, m, n, self.scale, k)
        p, q = [c / q[0] for c in p], [c / q[0] for c in q]
        with localcontext(Context(prec=DIGITS + 10)):
            grid = [mpf(str(x)) for x in chebyshev(low, high, 24 * (m + n + 2))]
        at = [x if k is None else k * x / (1 - x) for x in grid]
        exact = [self.f(x) for x in at]
        scales = exact if self.scale is None else [self.scale(x) for x in at]
        values, error = in_floats(p, q[1:], at, exact, scales)
        about = f"{self.about}\nerror {error:.2g}"
        if n == 0:
            return [Table(self.name, values, about)]
        return [
            Table(f"{self.name}_p", values[: len(p)], about),
            Table(f"{self.name}_q", [mpf(1), *values[len(p) :]]),
        ]


def folded_remez(
    f: Function,
    low: mpf,
    high: mpf,
    m: int,
    n: int,
    scale: Function | None,
    fold: mpf | None,
) -> tuple[list[mpf], list[mpf], mpf]:
    """The result of remez, found in u = x / (x + fold)."""
    if fold is None:
        return remez(f, low, high, m, n, scale)
    k = fold

    def folded(f: Function) -> Function:
        # p(u) (x + k)^m and q(u) (x + k)^n are polynomials in x.
        return lambda u: f(k * u / (1 - u)) * (k / (1 - u)) ** (n - m)

    by = None if scale is None else folded(scale)
    p, q, error = remez(folded(f), low / (low + k), high / (high + k), m, n, by)
    return _in_powers(p, k), _in_powers(q, k), error


def _in_powers(coefficients: Sequence[mpf], fold: mpf) -> list[mpf]:
    """A polynomial in u = x / (x + fold), times (x + fold)^n with its degree n, in powers of x."""
    n = len(coefficients) - 1
    powers = [mpf(0)] * (n + 1)
    for i, c in enumerate(coefficients):
        for j in range(n - i + 1):
            powers[i + j] += c * mp.binomial(n - i, j) * fold ** (n - i - j)
    return powers


def in_floats(
    p: Sequence[mpf],
    q: Sequence[mpf],
    at: Sequence[mpf],
    exact: Sequence[mpf],
    scales: Sequence[mpf],
) -> tuple[list[mpf], float]:
    """The coefficients of p / (1 + x q) as floats, and the largest error relative to scales.

    Each is moved to the float above or below as long as this reduces the error.
    """

    points = [tuple(map(float, point)) for point in zip(at, exact, scales, strict=True)]

    def worst(c: list[float]) -> float:
        largest = 0.0
        above, below = c[len(p) - 1 :: -1], c[: len(p) - 1 : -1]
        for x, y, scale in points:
            numerator = denominator = 0.0
            for a in above:
                numerator = numerator * x + a
            for b in below:
                denominator = (denominator + b) * x
            error = abs((numerator / (1 + denominator) - y) / scale)
            largest = max(largest, error)
        return largest

    best = [_as_float(float(c)) for c in [*p, *q]]
    least = worst(best)
    moved = True
    while moved:
        moved = False
        for i in reversed(range(len(best))):
            for direction in (1, -1):
                trial = list(best)
                trial[i] = _next_float(best[i], direction)
                error = worst(trial)
                if error < least * 0.999:
                    best, least, moved = trial, error, True
                    break
    return [mpf(c) for c in best], least


def _as_float(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def _next_float(x: float, direction: int) -> float:
    return _as_float(x + direction * math.ldexp(1.0, math.frexp(x)[1] - 24))


def rounded(x: mpf, bits: int) -> mpf:
    """The nearest number to x with `bits` significant bits."""
    with mp.workprec(bits):
        return +x


def parts(x: mpf, bits: int) -> list[mpf]:
    """The nearest number to x with `bits` bits, and the rest."""
    return [rounded(x, bits), x - rounded(x, bits)]


def number(x: mpf, precision: Precision) -> str:
    """x in C++: a double, a pair of floats, or a float."""
    if precision == "full":
        return repr(float(x))
    high, low = parts(x, 24)
    if not mpf(2) ** -126 <= abs(high) < mpf(2) ** 128 and high != 0:
        raise ArithmeticError(f"{mp.nstr(x)} is out of float's range")
    low = rounded(low, 24) if abs(low) >= mpf(2) ** -126 else 0
    texts = [f"{float(v):.9g}" for v in (high, low)]
    texts = [t if set(t) & set(".e") else f"{t}.0" for t in texts]
    return f"{texts[0]}f" if precision == "narrow" else "MLXGEN_WIDE({}f, {}f)".format(*texts)


def declaration(table: Table, precision: Precision) -> str:
    """One table in C++, one number per line."""
    start = f"MLXGEN_TABLE({table.name}, {len(table.values)})"
    if precision == "full":
        start = f"inline constexpr double {table.name}[{len(table.values)}]"
    elif precision == "narrow":
        start = f"MLXGEN_NUMBER float {table.name}[{len(table.values)}]"
    lines = [f"// {line}" for line in table.about.splitlines()]
    lines.append(f"{start} = {{")
    lines += [f"    {number(x, precision)}," for x in table.values]
    return "\n".join([*lines, "};"])


NARROW = """
// For what is computed in float.
namespace in_float {{

{}

}} // namespace in_float
"""

HEADER = """\
// clang-format off

// Coefficients of the approximations in {family}.h.
// Written by {family}_coefficients.py, which says how they are found: do not edit.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {{
namespace special {{

// For results in float.
namespace for_float {{

{half}

}} // namespace for_float
{narrow}
#ifndef __METAL_VERSION__
// For results in double.
namespace for_double {{

{full}

}} // namespace for_double
#endif

}} // namespace special
}} // namespace mlxops
"""


def header(
    family: str,
    fits: Sequence[Fit],
    more: Callable[[Precision], Sequence[Table]] | None,
    narrow: Sequence[Narrow],
) -> str:
    """The text of a family's header: the tables of its fits, and more."""

    def text(precision: Precision) -> str:
        with mp.workdps(DIGITS):
            if precision == "narrow":
                tables = [table for fit in narrow for table in fit.tables()]
            else:
                tables = [table for fit in fits for table in fit.tables(precision)]
            tables += more(precision) if more else []
            return "\n\n".join(declaration(table, precision) for table in tables)

    floats = NARROW.format(text("narrow")) if narrow else ""
    return HEADER.format(family=family, half=text("half"), full=text("full"), narrow=floats)


def main(
    script: str,
    fits: Sequence[Fit],
    more: Callable[[Precision], Sequence[Table]] | None = None,
    narrow: Sequence[Narrow] = (),
) -> int:
    """Write the header of a family's script, or compare it (--check); return the exit status."""
    parser = argparse.ArgumentParser(description="Compute coefficients and write their header.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    path = Path(script).with_suffix(".h")
    text = header(path.stem.removesuffix("_coefficients"), fits, more, narrow)
    if not check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        print(f"{path.name} is out of date: run {Path(script).name}")
        return 1
    return 0
