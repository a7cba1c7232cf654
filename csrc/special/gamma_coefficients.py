"""Compute the coefficients of the gamma function and its relatives: writes gamma_coefficients.h.

`minimax.py` explains the method. Numbers such as 5.11.1 are equations of the Digital Library of
Mathematical Functions, https://dlmf.nist.gov.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Function, Narrow, Precision, Table, limit, main, parts, rounded
from mpmath import mpf

LARGE = 6
"""The start of the asymptotic expansions, which replace the rational functions."""

END_OF_RESTS = 1000000
"""The limit up to which the rests, rational functions of positive numbers, are not negligible."""

with mp.workdps(DIGITS):
    ROOT_OF_DIGAMMA = mp.findroot(mp.digamma, mpf("1.4616"))

# --- The functions that are approximated ----------------------------------------------------------


def lgamma_middle(z: mpf) -> mpf:
    """log Gamma without its zeros."""
    return mp.loggamma(z) / ((z - 1) * (z - 2))


def digamma_middle(z: mpf) -> mpf:
    """psi without its positive zero."""
    return mp.digamma(z) / (z - ROOT_OF_DIGAMMA)


def trigamma_middle(z: mpf) -> mpf:
    """psi'(z) without its pole at 0; 5.15.5."""
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
    """z (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) at z^2 = 1/w; 5.11.1."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2) / ((2 * k + 2) * (2 * k + 1)))
    z = 1 / mp.sqrt(w)
    return z * (mp.loggamma(z) - (z - mpf(1) / 2) * mp.log(z) + z - mp.log(2 * mp.pi) / 2)


def digamma_large(w: mpf) -> mpf:
    """z^2 (log z - 1 / (2 z) - psi(z)) at z^2 = 1/w; 5.11.2."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2) / (2 * k + 2))
    z = 1 / mp.sqrt(w)
    return (mp.log(z) - 1 / (2 * z) - mp.digamma(z)) / w


def trigamma_large(w: mpf) -> mpf:
    """z^3 (psi'(z) - 1/z - 1 / (2 z^2)) at z^2 = 1/w; 5.15.8."""
    if w < mpf(1) / 400:
        return bernoulli_sum(w, lambda k: mp.bernoulli(2 * k + 2))
    z = 1 / mp.sqrt(w)
    return z**3 * (mp.polygamma(1, z) - 1 / z - w / 2)


def lgamma_rest(z: mpf) -> mpf:
    """log Gamma(3 + z) - y (log y - 1) - log(2 pi) / 2, y = z + 5/2; near -1 / (24 y)."""
    with mp.workdps(2 * DIGITS):
        y = z + mpf(5) / 2
        return mp.loggamma(z + 3) - y * (mp.log(y) - 1) - mp.log(2 * mp.pi) / 2


def digamma_rest(z: mpf) -> mpf:
    """psi(3 + z) - log(z + 5/2), its derivative."""
    with mp.workdps(2 * DIGITS):
        return mp.digamma(z + 3) - mp.log(z + mpf(5) / 2)


def cotangent(u: mpf) -> mpf:
    """(1 - pi r cot(pi r)) / r^2 at r^2 = u."""
    if u == 0:
        return 2 * mp.zeta(2)
    r = mp.sqrt(u)
    return (1 - mp.pi * r * mp.cot(mp.pi * r)) / u


def sine(u: mpf) -> mpf:
    """sin(pi r) / (pi r) at r^2 = u."""
    return mp.sincpi(mp.sqrt(u))


def gamma_large(u: mpf) -> mpf:
    """Gamma(z) / (sqrt(2 pi) z^(z - 1/2) exp(-z)) at z = 1/u; 5.11.3."""
    return mp.exp(u * lgamma_large(u * u)) if u else mpf(1)


# --- The tables -----------------------------------------------------------------------------------

FITS = [
    Fit(
        "lgamma_middle",
        limit(lgamma_middle, mpf(1), mpf(2)),
        mpf(1),
        mpf(LARGE),
        (8, 8),
        (7, 7),
        f"log Gamma(z) / ((z - 1) (z - 2)) on 1 <= z <= {LARGE}",
    ),
    Fit(
        "lgamma_large",
        lgamma_large,
        mpf(0),
        1 / mpf(LARGE) ** 2,
        (7, 0),
        (4, 0),
        f"(log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, {LARGE} <= z",
    ),
    Fit(
        "gamma_large",
        gamma_large,
        mpf(0),
        1 / mpf(LARGE),
        (9, 0),
        (5, 0),
        f"Gamma(z) / (sqrt(2 pi) z^(z - 1/2) exp(-z)) in 1/z, {LARGE} <= z",
    ),
    Fit(
        "factorial",
        gamma_large,
        mpf(0),
        mpf(1) / 2,
        (14, 0),
        (7, 0),
        "n! / (sqrt(2 pi n) (n / e)^n) in 1/n, 2 <= n",
    ),
    Fit(
        "digamma_middle",
        limit(digamma_middle, ROOT_OF_DIGAMMA),
        mpf(1),
        mpf(LARGE),
        (7, 7),
        (7, 6),
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
    *(
        Fit(
            name,
            f,
            mpf(0),
            mpf(END_OF_RESTS),
            None,
            degrees,
            f"{about} on 0 <= z <= {END_OF_RESTS}, error absolute",
            lambda z: mpf(1),
            fold=mpf(4),
        )
        for name, f, degrees, about in (
            ("lgamma_rest", lgamma_rest, (5, 6), "log Gamma(3 + z) less Stirling's formula"),
            ("digamma_rest", digamma_rest, (4, 6), "psi(3 + z) - log(z + 5/2)"),
        )
    ),
    Fit(
        "sine",
        sine,
        mpf(0),
        mpf(1) / 4,
        (8, 0),
        (7, 0),
        "sin(pi r) / (pi r) in r^2, |r| <= 1/2",
    ),
    Fit(
        "cotangent",
        cotangent,
        mpf(0),
        mpf(1) / 4,
        (13, 0),
        (12, 0),
        "(1 - pi r cot(pi r)) / r^2 in r^2, |r| <= 1/2",
    ),
]

TINY = mpf("1e-9")
"""Used instead of 0 if a limit would be needed."""

MIDDLE = mpf(5) / 4
"""The z - 1 of 1 to 3 around which log Gamma(z) without its zeros is treated as a line: errors
count more where it is smaller than at 1."""

lgamma_without_zeros = limit(lambda t: lgamma_middle(1 + t), mpf(0), mpf(1))
digamma_without_zero = limit(lambda t: digamma_middle(ROOT_OF_DIGAMMA + t), mpf(0))


def slope(f: Function, x: mpf, y: mpf) -> mpf:
    """(f(y) - f(x)) / (y - x)."""
    y = y if abs(y - x) > TINY else x + TINY
    return (f(y) - f(x)) / (y - x)


NARROW = [
    Narrow(
        "lgamma_middle",
        lambda z: 2 * slope(lgamma_without_zeros, MIDDLE, z - 1),
        mpf(1),
        mpf(3),
        (3, 4),
        "(2 log Gamma(z) / ((z - 1) (z - 2)) - the same at 9/4) / (z - 9/4) on 1 <= z <= 3, "
        "relative to log Gamma(z)",
        lambda z: 2 * lgamma_without_zeros(z - 1) / max(abs(z - 1 - MIDDLE), TINY),
    ),
    Narrow(
        "lgamma_large",
        lgamma_large,
        mpf(0),
        1 / mpf(3) ** 2,
        (2, 0),
        "(log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, 3 <= z, "
        "relative to z log Gamma(z)",
        lambda w: mp.loggamma(1 / mp.sqrt(w)) / mp.sqrt(w) if w > mpf("1e-6") else mpf("1e7"),
    ),
    Narrow(
        "digamma_middle",
        lambda z: slope(digamma_without_zero, mpf(0), z - ROOT_OF_DIGAMMA),
        mpf(1),
        mpf(2),
        (2, 3),
        "(psi(z) / (z - root) - psi'(root)) / (z - root) on 1 <= z <= 2, relative to psi(z)",
        lambda z: digamma_without_zero(z - ROOT_OF_DIGAMMA) / max(abs(z - ROOT_OF_DIGAMMA), TINY),
    ),
    Narrow(
        "digamma_large",
        digamma_large,
        mpf(0),
        1 / mpf(2) ** 2,
        (4, 0),
        "(log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, 2 <= z, relative to z^2 psi(z)",
        lambda w: mp.digamma(1 / mp.sqrt(w)) / w if w > mpf("1e-6") else mpf("1e7"),
    ),
]

BERNOULLI_TERMS: dict[Precision, int] = {"full": 16, "half": 10}
"""Number of terms in the Euler-Maclaurin tail of the zeta function."""


def more(precision: Precision) -> list[Table]:
    """The tables that are not fits."""
    if precision == "narrow":
        root = rounded(ROOT_OF_DIGAMMA - 1, 24)
        about = "the positive zero of psi less 1, in two parts"
        return [
            Table("digamma_root", [root, ROOT_OF_DIGAMMA - 1 - root], about),
            Table("digamma_slope", [mp.polygamma(1, ROOT_OF_DIGAMMA) - 1], "psi' there, less 1"),
            Table(
                "lgamma_slope",
                [2 * lgamma_without_zeros(MIDDLE) - 1],
                "2 log Gamma(z) / ((z - 1) (z - 2)) - 1 at 9/4",
            ),
            Table("stirling", [(mp.log(2 * mp.pi) - 1) / 2], "(log(2 pi) - 1) / 2"),
        ]
    terms = range(1, BERNOULLI_TERMS[precision] + 1)
    half = [Table("half_log_half_pi", [mp.log(mp.pi / 2) / 2])] if precision == "half" else []
    return [
        Table(
            "bernoulli",
            [mp.bernoulli(2 * k) / mp.factorial(2 * k) for k in terms],
            "B_2k / (2k)!, k = 1, 2 and so on",
        ),
        Table(
            "digamma_root",
            parts(ROOT_OF_DIGAMMA, 53 if precision == "full" else 24),
            "the positive zero of psi, in two parts",
        ),
        Table("inverse_e", [mp.exp(-1)], "1 / e"),
        Table("log_2_pi", [mp.log(2 * mp.pi)]),
        *half,
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more, NARROW))
