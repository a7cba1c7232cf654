"""Compute the coefficients of the gamma-function kernels and write them as headers.

Every approximation in `gamma.h` and `gamma.metal` is a minimax polynomial or rational function
found here, with the Remez algorithm in multiple precision. Nothing is copied from a library, and
anyone can repeat it:

    python csrc/coefficients.py           # rewrite the two headers
    python csrc/coefficients.py --check   # exit with 1 if they are not what this script computes

There are two sets: `full` for results in double, `half` for results in float. The second serves
the CPU, which evaluates it in double, and Metal, which has nothing but float.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp  # type: ignore[import-untyped]
from mpmath import mpf

ROOT = Path(__file__).resolve().parent.parent
CPU_HEADER = ROOT / "csrc" / "gamma_coefficients.h"
METAL_HEADER = ROOT / "kernels" / "metal" / "gamma_coefficients.h"

Function = Callable[[mpf], mpf]

DIGITS = 50
"""Decimal digits of the computations."""

LARGE = 6
"""Where the asymptotic expansions take over from the rational functions."""


# --- Remez ----------------------------------------------------------------------------------------


def horner(coefficients: list[mpf], x: mpf) -> mpf:
    """The polynomial with the given coefficients, lowest first."""
    return mp.polyval(coefficients[::-1], x)


def remez(f: Function, low: mpf, high: mpf, m: int, n: int) -> tuple[list[mpf], list[mpf], mpf]:
    """The p/q of degrees m and n whose largest relative error against f is the least.

    Returns p, q (lowest coefficient first, q[0] = 1) and that error. f must not vanish between
    low and high.
    """
    count = m + n + 2

    def chebyshev(i: int, of: int) -> mpf:
        return (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / of)

    grid = [chebyshev(i, 24 * count) for i in range(24 * count + 1)]
    values = [f(x) for x in grid]
    points = [(chebyshev(i, count - 1)) for i in range(count)]
    q = [mpf(1)] + [mpf(0)] * n
    for _ in range(40):
        # p = f (1 + s e) q with alternating signs s has unknowns p, q and e, and is not linear in
        # the last two together: Newton's method.
        level = mpf(0)
        exact = [f(x) for x in points]
        for _ in range(20):
            matrix = mp.matrix(count, count)
            right = mp.matrix(count, 1)
            for i, (x, y) in enumerate(zip(points, exact, strict=True)):
                sign = (-1) ** i
                for k in range(m + 1):
                    matrix[i, k] = x**k
                for k in range(1, n + 1):
                    matrix[i, m + k] = -y * (1 + sign * level) * x**k
                matrix[i, count - 1] = -y * sign * horner(q, x)
                right[i] = y * (1 + sign * level) - y * sign * level * horner(q, x)
            solution = mp.lu_solve(matrix, right)
            p = [solution[k] for k in range(m + 1)]
            q = [mpf(1)] + [solution[m + k] for k in range(1, n + 1)]
            change, level = abs(solution[count - 1] - level), solution[count - 1]
            if change <= abs(level) * mpf("1e-8"):
                break
        errors = [horner(p, x) / horner(q, x) / y - 1 for x, y in zip(grid, values, strict=True)]
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


# --- The functions that are approximated ----------------------------------------------------------

with mp.workdps(DIGITS):
    ROOT_OF_DIGAMMA = mp.findroot(mp.digamma, mpf("1.4616"))


def limit(f: Function, *removable: mpf) -> Function:
    """f, with its removable singularities (and their surroundings) taken as limits."""

    def filled(x: mpf) -> mpf:
        for point in removable:
            if abs(x - point) < mpf(10) ** (-DIGITS // 3):
                # The mean of f over a circle around the point: exact for an analytic function.
                circle = [point + mp.mpf("0.01") * mp.unitroots(24)[k] for k in range(24)]
                return mp.re(sum(f(z) for z in circle)) / 24
        return f(x)

    return filled


def lgamma_middle(z: mpf) -> mpf:
    """log Gamma without its zeros."""
    return mp.loggamma(z) / ((z - 1) * (z - 2))


def digamma_middle(z: mpf) -> mpf:
    """psi without its positive zero."""
    return mp.digamma(z) / (z - ROOT_OF_DIGAMMA)


def trigamma_middle(z: mpf) -> mpf:
    """psi'(z) without its pole at 0; DLMF 5.15.5."""
    return mp.polygamma(1, 1 + z)


def bernoulli_sum(w: mpf, term: Callable[[int], mpf]) -> mpf:
    """sum_k term(k) w^k, an asymptotic series: stopped at its smallest term."""
    total, previous = mpf(0), mp.inf
    for k in range(1000):
        value = term(k) * w**k
        if abs(value) > previous or abs(value) < mpf(10) ** -DIGITS:
            break
        total, previous = total + value, abs(value)
    return total


def lgamma_large(w: mpf) -> mpf:
    """z (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) at z^2 = 1/w; DLMF 5.11.1."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2) / ((2 * k + 2) * (2 * k + 1)))
    z = 1 / mp.sqrt(w)
    return z * (mp.loggamma(z) - (z - mpf(1) / 2) * mp.log(z) + z - mp.log(2 * mp.pi) / 2)


def digamma_large(w: mpf) -> mpf:
    """z^2 (log z - 1 / (2 z) - psi(z)) at z^2 = 1/w; DLMF 5.11.2."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2) / (2 * k + 2))
    z = 1 / mp.sqrt(w)
    return (mp.log(z) - 1 / (2 * z) - mp.digamma(z)) / w


def trigamma_large(w: mpf) -> mpf:
    """z^3 (psi'(z) - 1/z - 1 / (2 z^2)) at z^2 = 1/w; DLMF 5.15.8."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2))
    z = 1 / mp.sqrt(w)
    return z**3 * (mp.polygamma(1, z) - 1 / z - w / 2)


def logarithm(z: mpf) -> mpf:
    """(log((1 + f) / (1 - f)) - 2 f) / (f z) at f^2 = z; DLMF 4.6.6."""
    if z < mpf("1e-6"):
        return sum(2 * z**k / (2 * k + 3) for k in range(8))
    f = mp.sqrt(z)
    return (2 * mp.atanh(f) - 2 * f) / (f * z)


def sine(u: mpf) -> mpf:
    """sin(pi r) / (pi r) at r^2 = u."""
    return mp.sincpi(mp.sqrt(u))


def cotangent(u: mpf) -> mpf:
    """(1 - pi r cot(pi r)) / r^2 at r^2 = u."""
    if u == 0:
        return 2 * mp.zeta(2)
    r = mp.sqrt(u)
    return (1 - mp.pi * r * mp.cot(mp.pi * r)) / u


# --- The tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """One approximation: a table `name` of its coefficients, or `name_p` and `name_q`."""

    name: str
    f: Function
    low: mpf
    high: mpf
    full: tuple[int, int]
    """Degrees of numerator and denominator for double."""
    half: tuple[int, int]
    """The same for float."""
    about: str


FITS = [
    Fit(
        "lgamma_middle",
        limit(lgamma_middle, mpf(1), mpf(2)),
        mpf(1),
        mpf(LARGE),
        (8, 8),
        (5, 5),
        f"log Gamma(z) / ((z - 1) (z - 2)) on 1 <= z <= {LARGE}",
    ),
    Fit(
        "lgamma_large",
        lgamma_large,
        mpf(0),
        1 / mpf(LARGE) ** 2,
        (7, 0),
        (3, 0),
        f"(log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, {LARGE} <= z",
    ),
    Fit(
        "digamma_middle",
        limit(digamma_middle, ROOT_OF_DIGAMMA),
        mpf(1),
        mpf(LARGE),
        (7, 7),
        (5, 5),
        f"psi(z) / (z - root) on 1 <= z <= {LARGE}",
    ),
    Fit(
        "digamma_large",
        digamma_large,
        mpf(0),
        1 / mpf(LARGE) ** 2,
        (7, 0),
        (4, 0),
        f"(log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, {LARGE} <= z",
    ),
    Fit(
        "trigamma_middle",
        trigamma_middle,
        mpf(0),
        mpf(LARGE),
        (7, 8),
        (4, 5),
        f"psi'(1 + z) on 0 <= z <= {LARGE}",
    ),
    Fit(
        "trigamma_large",
        trigamma_large,
        mpf(0),
        1 / mpf(LARGE) ** 2,
        (7, 0),
        (3, 0),
        f"(psi'(z) - 1 / z - 1 / (2 z^2)) z^3 in 1/z^2, {LARGE} <= z",
    ),
    Fit(
        "logarithm",
        logarithm,
        mpf(0),
        (3 - 2 * mp.sqrt(2)) ** 2,
        (6, 0),
        (3, 0),
        "(log(m) / f - 2) / f^2 in f^2, f = (m - 1) / (m + 1), 1/2 <= m^2 <= 2",
    ),
    Fit(
        "sine",
        sine,
        mpf(0),
        mpf(1) / 4,
        (8, 0),
        (5, 0),
        "sin(pi r) / (pi r) in r^2, |r| <= 1/2",
    ),
    Fit(
        "cotangent",
        cotangent,
        mpf(0),
        mpf(1) / 4,
        (13, 0),
        (9, 0),
        "(1 - pi r cot(pi r)) / r^2 in r^2, |r| <= 1/2",
    ),
]


BERNOULLI_TERMS = {"full": 12, "half": 8}
"""Terms of the Euler-Maclaurin tail in polygamma."""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers to be written under a name; a single one becomes a scalar."""

    name: str
    values: list[mpf]
    about: str


def tables(precision: str) -> list[Table]:
    """Everything that one of the two sets, `full` or `half`, holds."""
    out = []
    terms = BERNOULLI_TERMS[precision]
    with mp.workdps(DIGITS):
        for fit in FITS:
            m, n = fit.full if precision == "full" else fit.half
            p, q, error = remez(fit.f, fit.low, fit.high, m, n)
            about = f"{fit.about}\nrelative error {mp.nstr(error, 2)}"
            if n == 0:
                out.append(Table(fit.name, p, about))
            else:
                p, q = [c / q[n] for c in p], [c / q[n] for c in q]
                out += [Table(f"{fit.name}_p", p, about), Table(f"{fit.name}_q", q, "")]
        out.append(
            Table(
                "bernoulli",
                [mp.bernoulli(2 * k) / mp.factorial(2 * k) for k in range(1, terms + 1)],
                "B_2k / (2k)!, k = 1, 2 and so on",
            )
        )
        root = ROOT_OF_DIGAMMA
        bits = 53 if precision == "full" else 24
        high = rounded(root, bits)
        log_2 = rounded(mp.log(2), 53 - 20)
        out += [
            Table("digamma_root", [high], "the positive zero of psi, in two parts"),
            Table("digamma_root_low", [root - high], ""),
            Table("log_2", [log_2], "log(2), in two parts; the first has 20 bits to spare"),
            Table("log_2_low", [mp.log(2) - log_2], ""),
            Table("lgamma_constant", [(mp.log(2 * mp.pi) - 1) / 2], "(log(2 pi) - 1) / 2"),
        ]
    return out


def rounded(x: mpf, bits: int) -> mpf:
    """The number of so many significant bits that is nearest to x."""
    with mp.workprec(bits):
        return +x


def declaration(table: Table, prefix: str, digits: int, suffix: str) -> str:
    """One constant in C++, one number a line."""
    numbers = [format(float(v), f".{digits}g") for v in table.values]
    numbers = [x if set(x) & set(".e") else x + ".0" for x in numbers]
    lines = [f"// {line}" for line in table.about.splitlines()]
    if len(numbers) == 1:
        lines.append(f"{prefix} {table.name} = {numbers[0]}{suffix};")
    else:
        lines.append(f"{prefix} {table.name}[{len(numbers)}] = {{")
        lines += [f"    {x}{suffix}," for x in numbers[:-1]] + [f"    {numbers[-1]}{suffix}}};"]
    return "\n".join(lines)


BANNER = """\
// Coefficients of the approximations in {user}.
// Written by csrc/coefficients.py, which says how they are found: do not edit.

// clang-format off

#pragma once
"""


def cpu_header() -> str:
    """The header with both sets, as members of two structs."""
    parts = [BANNER.format(user="gamma.h"), "namespace mlxops::cpu {\n"]
    for precision, about in (("full", "For results in double."), ("half", "For results in float.")):
        body = [declaration(t, "static constexpr double", 17, "") for t in tables(precision)]
        indented = "\n".join(body).replace("\n", "\n  ")
        name = f"{precision.capitalize()}Precision"
        parts.append(f"/** {about} */\nstruct {name} {{\n  {indented}\n}};\n")
    parts.append("} // namespace mlxops::cpu\n")
    return "\n".join(parts)


def metal_header() -> str:
    """The header with the smaller set, as constants in float."""
    unused = {"logarithm", "log_2", "log_2_low"}  # Metal has precise::log
    body = [
        declaration(t, "constexpr constant float", 9, "f")
        for t in tables("half")
        if t.name not in unused
    ]
    return "\n".join(
        [
            BANNER.format(user="gamma.metal"),
            "namespace gamma_coefficients {\n",
            "\n".join(body),
            "\n} // namespace gamma_coefficients\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    status = 0
    for path, text in ((CPU_HEADER, cpu_header()), (METAL_HEADER, metal_header())):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is out of date: run {Path(__file__).name}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
