"""Compute the coefficients of the Airy functions in `airy.h`; see minimax.py.

Numbers such as 9.7.5 are equations of https://dlmf.nist.gov. Throughout xi = 2/3 |x|^(3/2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Function, Precision, Table, limit, main, parts
from mpmath import mpf

GUARD = 30
"""Additional digits for the oscillating functions."""

SMALL = mpf(2)
"""The limit of |x| for polynomials in x; no function has two zeros below it."""

MIDDLE = mpf(5)
"""The limit of x up to which Bi is e^xi times a polynomial in x; above, in 1/xi."""

CENTRE = (SMALL + MIDDLE) / 2

with mp.workdps(DIGITS + GUARD):
    AIP_ZERO = mp.findroot(lambda x: mp.airyai(x, derivative=1), mpf("-1.0188"))
    BI_ZERO = mp.findroot(mp.airybi, mpf("-1.1737"))


def xi_of(x: mpf) -> mpf:
    """2/3 x^(3/2)"""
    return 2 * x * mp.sqrt(x) / 3


def x_of(xi: mpf) -> mpf:
    """The x with this xi."""
    return (3 * xi / 2) ** (mpf(2) / 3)


def term(k: int, derivative: int) -> mpf:
    """u_k or v_k; 9.7.1 and 9.7.2."""
    u = mpf(1)
    for j in range(1, k + 1):
        u *= mpf((6 * j - 5) * (6 * j - 3) * (6 * j - 1)) / ((2 * j - 1) * 216 * j)
    return u * (6 * k + 1) / (1 - 6 * k) if derivative else u


def ai_large(derivative: int) -> Function:
    """Ai(x) x^(1/4) e^xi, or -Ai'(x) x^(-1/4) e^xi, in 1/xi; 9.7.5 and 9.7.6."""

    def f(u: mpf) -> mpf:
        if u < mpf(1) / 160:
            terms = (term(k, derivative) * (-u) ** k for k in range(60))
            return mp.fsum(terms) / (2 * mp.sqrt(mp.pi))
        x = x_of(1 / u)
        root = mp.root(x, 4)
        y = mp.airyai(x, derivative=derivative) * mp.exp(1 / u)
        return -y / root if derivative else y * root

    return f


def scaled_bi(x: mpf, derivative: int) -> mpf:
    """Bi(x) x^(1/4) e^-xi, or Bi'(x) x^(-1/4) e^-xi."""
    root = mp.root(x, 4)
    y = mp.airybi(x, derivative=derivative) * mp.exp(-xi_of(x))
    return y / root if derivative else y * root


def bi_middle(derivative: int) -> Function:
    """Bi or Bi', scaled, in x - 3.5."""
    return lambda t: scaled_bi(CENTRE + t, derivative)


def bi_large(derivative: int) -> Function:
    """Bi or Bi', scaled, in 1/xi; 9.7.7 and 9.7.8."""

    def f(u: mpf) -> mpf:
        if u < mpf(1) / 160:
            terms = (term(k, derivative) * u**k for k in range(60))
            return mp.fsum(terms) / mp.sqrt(mp.pi)
        return scaled_bi(x_of(1 / u), derivative)

    return f


@cache
def turned(w: mpf, derivative: int) -> mpf:
    """sqrt(pi) x^(1/4) (Bi(-x) + i Ai(-x)) e^(-i (xi + pi/4)) at xi^2 = 1/w; 9.7.9 and 9.7.11.

    Or sqrt(pi) x^(-1/4) (Bi'(-x) + i Ai'(-x)) e^(-i (xi - pi/4)); 9.7.10 and 9.7.12.
    """
    with mp.workdps(DIGITS + GUARD):
        if w < mpf(1) / 40000:
            terms = (term(k, derivative) * (-mp.j * mp.sqrt(w)) ** k for k in range(60))
            return mp.fsum(terms)
        xi = 1 / mp.sqrt(w)
        x = x_of(xi)
        root = mp.sqrt(mp.pi) * mp.root(x, 4) ** (-1 if derivative else 1)
        y = mp.airybi(-x, derivative=derivative) + mp.j * mp.airyai(-x, derivative=derivative)
        return root * y * mp.exp(-mp.j * (xi + (-1 if derivative else 1) * mp.pi / 4))


def modulus(derivative: int) -> Function:
    """|Bi(-x) + i Ai(-x)| x^(1/4), or |Bi'(-x) + i Ai'(-x)| x^(-1/4), in 1/xi^2; 9.8.3, 9.8.7."""
    return lambda w: abs(turned(w, derivative)) / mp.sqrt(mp.pi)


def phase(derivative: int) -> Function:
    """The angle of that number less xi + pi/4 or xi - pi/4, times xi / pi, in 1/xi^2; 9.8.22."""
    return lambda w: (
        mp.arg(turned(w, derivative)) / (mp.sqrt(w) * mp.pi) if w else -term(1, derivative) / mp.pi
    )


UNIT = mpf(1)
LARGE = 1 / xi_of(SMALL)
HALF = (MIDDLE - SMALL) / 2

FITS = [
    Fit("ai_small", mp.airyai, -SMALL, SMALL, (25, 0), (17, 0), "Ai(x), |x| <= 2"),
    Fit(
        "aip_small",
        limit(lambda x: mp.airyai(x, derivative=1) / (x - AIP_ZERO), AIP_ZERO),
        -SMALL,
        SMALL,
        (25, 0),
        (16, 0),
        "Ai'(x) / (x - zero), |x| <= 2",
    ),
    Fit(
        "bi_small",
        limit(lambda x: mp.airybi(x) / (x - BI_ZERO), BI_ZERO),
        -SMALL,
        SMALL,
        (24, 0),
        (16, 0),
        "Bi(x) / (x - zero), |x| <= 2",
    ),
    Fit(
        "bip_small",
        lambda x: mp.airybi(x, derivative=1),
        -SMALL,
        SMALL,
        (25, 0),
        (17, 0),
        "Bi'(x), |x| <= 2",
    ),
    *(
        fit
        for derivative, prime in ((0, ""), (1, "p"))
        for fit in (
            Fit(
                f"ai{prime}_large",
                ai_large(derivative),
                0 * UNIT,
                LARGE,
                (7, 7),
                (4, 4),
                ("-Ai'(x) x^(-1/4)" if derivative else "Ai(x) x^(1/4)") + " e^xi in 1/xi, 2 <= x",
            ),
            Fit(
                f"bi{prime}_middle",
                bi_middle(derivative),
                -HALF,
                HALF,
                (20, 0),
                (13, 0),
                ("Bi'(x) x^(-1/4)" if derivative else "Bi(x) x^(1/4)")
                + " e^-xi in x - 7/2, 2 <= x <= 5",
            ),
            Fit(
                f"bi{prime}_large",
                bi_large(derivative),
                0 * UNIT,
                1 / xi_of(MIDDLE),
                (22, 0),
                (7, 0),
                "the same in 1/xi, 5 <= x",
            ),
            Fit(
                f"modulus{prime}",
                modulus(derivative),
                0 * UNIT,
                LARGE**2,
                (9, 9),
                (4, 4),
                ("|Bi'(-x) + i Ai'(-x)| x^(-1/4)" if derivative else "|Bi(-x) + i Ai(-x)| x^(1/4)")
                + " in 1/xi^2, 2 <= x",
            ),
            Fit(
                f"phase{prime}",
                phase(derivative),
                0 * UNIT,
                LARGE**2,
                (9, 9),
                (7, 7),
                f"its angle less xi, / pi, {'+' if derivative else '-'} 1/4, times xi, in 1/xi^2, "
                "2 <= x",
            ),
        )
    ),
]


def more(precision: Precision) -> Sequence[Table]:
    """Constants."""
    bits = 53 if precision == "full" else 24
    turns = 2 / (3 * mp.pi)
    tables = [
        Table("aip_zero", parts(AIP_ZERO, bits), "the first zero of Ai', in two parts"),
        Table("bi_zero", parts(BI_ZERO, bits), "the first zero of Bi, in two parts"),
        Table("two_thirds", parts(mpf(2) / 3, bits), "2/3, in two parts"),
    ]
    if precision == "full":
        tables.append(Table("turns", parts(turns, 53), "2 / (3 pi), in two parts"))
    else:
        first, rest = parts(turns, 24)
        second, third = parts(rest, 24)
        about = "2 / (3 pi), in three parts"
        tables.append(Table("turns", [first, second, third], about))
    return tables


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more))
