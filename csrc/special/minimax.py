"""Best approximations, and the headers that hold them: shared by all families of special functions.

A family's script, `<family>_coefficients.py` beside this file, says which functions it approximates
where, as a list of `Fit`; this module finds the coefficients, with the Remez algorithm in multiple
precision, and writes `<family>_coefficients.h`. Nothing is copied from a library, and anyone can
repeat it:

    python csrc/special/gamma_coefficients.py           # rewrite the header
    python csrc/special/gamma_coefficients.py --check   # exit with 1 if that one is out of date

There are two sets: `full` for results in double, and `half` for results in float. The second serves
the CPU, which evaluates it in double, and Metal, which evaluates it in pairs of floats: its numbers
are written as such pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mpmath as mp  # type: ignore[import-untyped]
from mpmath import mpf

Function = Callable[[mpf], mpf]
Precision = Literal["full", "half"]

DIGITS = 50
"""Decimal digits of the computations."""


# --- Remez ----------------------------------------------------------------------------------------


def horner(coefficients: Sequence[mpf], x: mpf) -> mpf:
    """The polynomial with the given coefficients, lowest first."""
    return mp.polyval(list(coefficients)[::-1], x)


def remez(
    f: Function, low: mpf, high: mpf, m: int, n: int, scale: Function | None = None
) -> tuple[list[mpf], list[mpf], mpf]:
    """The p/q of degrees m and n whose largest error against f, relative to scale, is the least.

    Returns p, q (lowest coefficient first, q[0] = 1) and that error. By default scale is f itself;
    it must not vanish between low and high.
    """
    count = m + n + 2

    def chebyshev(i: int, of: int) -> mpf:
        return (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / of)

    grid = [chebyshev(i, 24 * count) for i in range(24 * count + 1)]
    values = [f(x) for x in grid]
    scales = values if scale is None else [scale(x) for x in grid]
    points = [chebyshev(i, count - 1) for i in range(count)]
    q = [mpf(1)] + [mpf(0)] * n
    for _ in range(40):
        # p = (f + s e w) q with alternating signs s and w = scale has unknowns p, q and e, and is
        # not linear in the last two together: Newton's method.
        level = mpf(0)
        exact = [f(x) for x in points]
        weights = exact if scale is None else [scale(x) for x in points]
        for _ in range(20):
            matrix = mp.matrix(count, count)
            right = mp.matrix(count, 1)
            for i, (x, y, w) in enumerate(zip(points, exact, weights, strict=True)):
                w *= (-1) ** i
                for k in range(m + 1):
                    matrix[i, k] = x**k
                for k in range(1, n + 1):
                    matrix[i, m + k] = -(y + w * level) * x**k
                matrix[i, count - 1] = -w * horner(q, x)
                right[i] = (y + w * level) - w * level * horner(q, x)
            solution = mp.lu_solve(matrix, right)
            p = [solution[k] for k in range(m + 1)]
            q = [mpf(1)] + [solution[m + k] for k in range(1, n + 1)]
            change, level = abs(solution[count - 1] - level), solution[count - 1]
            if change <= abs(level) * mpf("1e-8"):
                break
        errors = [
            (horner(p, x) / horner(q, x) - y) / w
            for x, y, w in zip(grid, values, scales, strict=True)
        ]
        worst = max(map(abs, errors))
        if worst <= abs(level) * mpf("1.001"):
            return p, q, worst
        points = exchange(grid, errors, count)
    raise ArithmeticError(f"no convergence for degrees {m}, {n}")


def exchange(grid: list[mpf], errors: list[mpf], count: int) -> list[mpf]:
    """The places of `count` successive extrema of alternating sign, the largest there are."""
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


def vertex(grid: list[mpf], errors: list[mpf], i: int) -> mpf:
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


# --- What a header holds --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """One approximation: a table `name` of its coefficients, or `name_p` and `name_q`.

    A zero of f between low and high, if any, belongs divided out of f, or in scale.
    """

    name: str
    f: Function
    low: mpf
    high: mpf
    full: tuple[int, int]
    """Degrees of numerator and denominator for double."""
    half: tuple[int, int]
    """The same for float."""
    about: str
    scale: Function | None = None
    """What the error is relative to; by default f."""

    def tables(self, precision: Precision) -> list[Table]:
        """The coefficients, lowest first; the last one of a denominator is 1."""
        m, n = self.full if precision == "full" else self.half
        p, q, error = remez(self.f, self.low, self.high, m, n, self.scale)
        about = f"{self.about}\nerror {mp.nstr(error, 2)}"
        if n == 0:
            return [Table(self.name, p, about)]
        return [
            Table(f"{self.name}_p", [c / q[n] for c in p], about),
            Table(f"{self.name}_q", [c / q[n] for c in q]),
        ]


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers to be written under a name. A constant is a table of one, `name[0]`."""

    name: str
    values: Sequence[mpf]
    about: str = ""


def rounded(x: mpf, bits: int) -> mpf:
    """The number of so many significant bits that is nearest to x."""
    with mp.workprec(bits):
        return +x


def parts(x: mpf, bits: int) -> list[mpf]:
    """x as the number of so many bits nearest to it, and the rest."""
    return [rounded(x, bits), x - rounded(x, bits)]


def number(x: mpf, precision: Precision) -> str:
    """x as C++ has it: a double, or a pair of floats."""
    if precision == "full":
        return repr(float(x))
    high, low = parts(x, 24)
    if not mpf(2) ** -126 <= abs(high) < mpf(2) ** 128 and high != 0:
        raise ArithmeticError(f"{mp.nstr(x)} is out of float's range")
    low = rounded(low, 24) if abs(low) >= mpf(2) ** -126 else 0
    texts = [f"{float(v):.9g}" for v in (high, low)]
    texts = [t if set(t) & set(".e") else f"{t}.0" for t in texts]
    return "MLXGEN_WIDE({}f, {}f)".format(*texts)


def declaration(table: Table, precision: Precision) -> str:
    """One table in C++, one number a line."""
    start = f"MLXGEN_TABLE({table.name}, {len(table.values)})"
    if precision == "full":
        start = f"inline constexpr double {table.name}[{len(table.values)}]"
    lines = [f"// {line}" for line in table.about.splitlines()]
    lines.append(f"{start} = {{")
    lines += [f"    {number(x, precision)}," for x in table.values]
    return "\n".join([*lines, "};"])


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
    family: str, fits: Sequence[Fit], more: Callable[[Precision], Sequence[Table]] | None
) -> str:
    """The text of a family's header: the tables of its fits, and more."""

    def text(precision: Precision) -> str:
        with mp.workdps(DIGITS):
            tables = [table for fit in fits for table in fit.tables(precision)]
            tables += more(precision) if more else []
            return "\n\n".join(declaration(table, precision) for table in tables)

    return HEADER.format(family=family, half=text("half"), full=text("full"))


def main(
    script: str,
    fits: Sequence[Fit],
    more: Callable[[Precision], Sequence[Table]] | None = None,
) -> int:
    """Write, or with --check compare, the header beside a family's script; the exit status."""
    parser = argparse.ArgumentParser(description="Compute coefficients and write their header.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    path = Path(script).with_suffix(".h")
    text = header(path.stem.removesuffix("_coefficients"), fits, more)
    if not check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        print(f"{path.name} is out of date: run {Path(script).name}")
        return 1
    return 0
