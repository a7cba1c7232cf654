"""Compute the coefficients of the Bessel functions in `bessel.h`; see minimax.py.

Numbers such as 10.17.5 are equations of https://dlmf.nist.gov.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Function, Narrow, Precision, Table, limit, main, parts
from mpmath import mpf

GUARD = 30
"""Additional digits for functions whose definitions cancel."""

I_SPLIT = mpf(8)
"""The x at which I changes from a polynomial in x^2 to one in 1/x."""

FLOAT_SPLIT = mpf(5)
"""The same for I in float: up to 8, the rounding error of x^2 would be several times that of the
result."""

K_SPLIT = mpf(1)
"""The x at which K changes in the same way."""

J_SPLIT = mpf(3)
"""The x at which J and Y change to modulus and phase: none of them has two zeros below it."""

DEBYE = {"full": 12, "half": 8}
"""Number of terms in the expansions for large orders, without the first."""

WORDS = {"full": 47, "half": 10}
"""Numbers of 24 bits that contain as much of 1/pi as the reduction of any argument needs."""

with mp.workdps(DIGITS + GUARD):
    J0_ZERO = mp.besseljzero(0, 1)
    Y0_ZERO = mp.besselyzero(0, 1)
    Y1_ZERO = mp.besselyzero(1, 1)


def hankel_term(n: int, k: int) -> mpf:
    """a_k(n), of the expansions for large arguments; 10.17.1."""
    product = mpf(1)
    for j in range(1, k + 1):
        product *= mpf(4 * n * n - (2 * j - 1) ** 2) / (8 * j)
    return product


# K and Y take most of the time, especially for order 1. Both are needed several times for the same
# arguments.


@cache
def besselk(n: int, x: mpf, digits: int) -> mpf:
    """K_n(x) for n = 0 and 1, the latter from 10.28.2."""
    with mp.workdps(digits):
        if n == 0:
            return mp.besselk(0, x)
        return (1 / x - mp.besseli(1, x) * besselk(0, x, digits)) / mp.besseli(0, x)


@cache
def bessely(n: int, x: mpf) -> mpf:
    """Y_n(x) for n = 0 and 1, the latter from 10.5.2."""
    with mp.workdps(DIGITS + 2 * GUARD):
        if n == 0:
            return mp.bessely(0, x)
        return (mp.besselj(1, x) * bessely(0, x) - 2 / (mp.pi * x)) / mp.besselj(0, x)


# --- I and K --------------------------------------------------------------------------------------


def i_small(n: int) -> Function:
    """I_n(x) / x^n in x^2."""

    def f(w: mpf) -> mpf:
        x = mp.sqrt(w)
        return mp.besseli(n, x) / x**n if w else mpf(1) / 2**n

    return f


def i_large(n: int) -> Function:
    """sqrt(x) e^-x I_n(x) in 1/x; 10.40.1 where that is tiny."""

    def f(u: mpf) -> mpf:
        if u < mpf(1) / 400:
            terms = (hankel_term(n, k) * (-u) ** k for k in range(60))
            return mp.fsum(terms) / mp.sqrt(2 * mp.pi)
        return mp.besseli(n, 1 / u) * mp.exp(-1 / u) / mp.sqrt(u)

    return f


def k0_small(w: mpf) -> mpf:
    """K_0(x) + log(x) I_0(x) in x^2; 10.31.2."""
    if w == 0:
        return mp.log(2) - mp.euler
    x = mp.sqrt(w)
    return besselk(0, x, DIGITS) + mp.log(x) * mp.besseli(0, x)


def k1_small(w: mpf) -> mpf:
    """(K_1(x) - 1/x - log(x) I_1(x)) / x in x^2; 10.31.1."""
    if w < mpf(10) ** -GUARD:
        return (2 * mp.euler - 1 - 2 * mp.log(2)) / 4
    with mp.workdps(DIGITS + 2 * GUARD):
        x = mp.sqrt(w)
        return (besselk(1, x, mp.mp.dps) - 1 / x - mp.log(x) * mp.besseli(1, x)) / x


def k_large(n: int) -> Function:
    """sqrt(x) e^x K_n(x) in 1/x; 10.40.2 where that is tiny."""

    def f(u: mpf) -> mpf:
        if u < mpf(1) / 200:
            terms = (hankel_term(n, k) * u**k for k in range(60))
            return mp.fsum(terms) * mp.sqrt(mp.pi / 2)
        return besselk(n, 1 / u, DIGITS) * mp.exp(1 / u) / mp.sqrt(u)

    return f


# --- J and Y --------------------------------------------------------------------------------------


def j0_small(w: mpf) -> mpf:
    """J_0(x) / (x^2 - z^2) in x^2, with its zero z."""
    return mp.besselj(0, mp.sqrt(w)) / (w - J0_ZERO**2)


def j1_small(w: mpf) -> mpf:
    """J_1(x) / x in x^2."""
    return mp.besselj(1, mp.sqrt(w)) / mp.sqrt(w) if w else mpf(1) / 2


def y_small(n: int, zero: mpf) -> Function:
    """x^n (Y_n(x) - 2/pi log(x/z) J_n(x)) / (x^2 - z^2) in x^2, with its zero z; 10.8.1."""

    def f(w: mpf) -> mpf:
        with mp.workdps(DIGITS + 2 * GUARD):
            w = max(w, mpf(10) ** -(DIGITS + GUARD))
            x = mp.sqrt(w)
            y = bessely(n, x) - 2 / mp.pi * mp.log(x / zero) * mp.besselj(n, x)
            return x**n * y / (w - zero**2)

    return limit(f, zero**2)


@cache
def hankel(n: int, w: mpf) -> mpf:
    """sqrt(pi x / 2) e^(-i(x - pi/4 - n pi/2)) (J_n(x) + i Y_n(x)) at x^2 = 1/w; 10.17.5."""
    with mp.workdps(DIGITS + GUARD):
        if w < mpf(1) / 40000:
            terms = (hankel_term(n, k) * (mp.j * mp.sqrt(w)) ** k for k in range(60))
            return mp.fsum(terms)
        x = 1 / mp.sqrt(w)
        turned = mp.exp(-mp.j * (x - mp.pi / 4 - n * mp.pi / 2))
        return (mp.besselj(n, x) + mp.j * bessely(n, x)) * turned * mp.sqrt(mp.pi * x / 2)


def modulus(n: int) -> Function:
    """sqrt(x) |J_n(x) + i Y_n(x)| in 1/x^2; 10.18.4."""
    return lambda w: abs(hankel(n, w)) * mp.sqrt(2 / mp.pi)


def phase(n: int) -> Function:
    """x (theta(x) - x + pi/4 + n pi/2) / pi in 1/x^2, theta the angle of J_n + i Y_n; 10.18.4."""
    return lambda w: mp.arg(hankel(n, w)) / (mp.sqrt(w) * mp.pi) if w else hankel_term(n, 1) / mp.pi


# --- Real orders ----------------------------------------------------------------------------------


def temme_1(w: mpf) -> mpf:
    """(1 / Gamma(1 - m) - 1 / Gamma(1 + m)) / (2 m) in m^2."""
    if w == 0:
        return -mp.euler
    m = mp.sqrt(w)
    return (mp.rgamma(1 - m) - mp.rgamma(1 + m)) / (2 * m)


def temme_2(w: mpf) -> mpf:
    """(1 / Gamma(1 - m) + 1 / Gamma(1 + m)) / 2 in m^2."""
    m = mp.sqrt(w)
    return (mp.rgamma(1 - m) + mp.rgamma(1 + m)) / 2


def debye(count: int) -> list[mpf]:
    """The coefficients of U_k(p) / p^k in p^2, k = 1 to count, in sequence; 10.41.9."""
    out: list[mpf] = []
    u = [mpf(1)]  # in p
    for _ in range(count):
        # U' p^2 (1 - p^2) / 2 + 1/8 the integral of (1 - 5 t^2) U from 0 to p
        following = [mpf(0)] * (len(u) + 3)
        for i, c in enumerate(u):
            following[i + 1] += c * i / 2 + c / (8 * (i + 1))
            following[i + 3] -= c * i / 2 + 5 * c / (8 * (i + 3))
        u = following
        out += [c for c in u if c != 0]
    return out


# --- The tables -----------------------------------------------------------------------------------

UNIT = mpf(1)
SQUARE = I_SPLIT**2
TAIL = 1 / J_SPLIT**2
SMALL = J_SPLIT**2

FITS = [
    Fit("i0_small", i_small(0), 0 * UNIT, SQUARE, (15, 0), None, "I_0(x) in x^2, x <= 8"),
    Fit("i1_small", i_small(1), 0 * UNIT, SQUARE, (15, 0), None, "I_1(x) / x in x^2, x <= 8"),
    Fit(
        "i0_large",
        i_large(0),
        0 * UNIT,
        1 / I_SPLIT,
        (21, 0),
        None,
        "sqrt(x) e^-x I_0(x) in 1/x, 8 <= x",
    ),
    Fit(
        "i1_large",
        i_large(1),
        0 * UNIT,
        1 / I_SPLIT,
        (21, 0),
        None,
        "sqrt(x) e^-x I_1(x) in 1/x, 8 <= x",
    ),
    Fit("i0_unit", i_small(0), 0 * UNIT, K_SPLIT, (7, 0), (4, 0), "I_0(x) in x^2, x <= 1"),
    Fit("i1_unit", i_small(1), 0 * UNIT, K_SPLIT, (7, 0), (4, 0), "I_1(x) / x in x^2, x <= 1"),
    Fit(
        "k0_small",
        k0_small,
        0 * UNIT,
        K_SPLIT,
        (7, 0),
        (5, 0),
        "K_0(x) + log(x) I_0(x) in x^2, x <= 1",
    ),
    Fit(
        "k1_small",
        k1_small,
        0 * UNIT,
        K_SPLIT,
        (7, 0),
        (5, 0),
        "(K_1(x) - 1/x - log(x) I_1(x)) / x in x^2, x <= 1",
    ),
    Fit(
        "k0_large",
        k_large(0),
        0 * UNIT,
        1 / K_SPLIT,
        (8, 8),
        (4, 4),
        "sqrt(x) e^x K_0(x) in 1/x, 1 <= x",
    ),
    Fit(
        "k1_large",
        k_large(1),
        0 * UNIT,
        1 / K_SPLIT,
        (8, 8),
        (4, 4),
        "sqrt(x) e^x K_1(x) in 1/x, 1 <= x",
    ),
    Fit(
        "j0_small",
        limit(j0_small, J0_ZERO**2),
        0 * UNIT,
        SMALL,
        (9, 0),
        (6, 0),
        "J_0(x) / (x^2 - zero^2) in x^2, x <= 3",
    ),
    Fit("j1_small", j1_small, 0 * UNIT, SMALL, (10, 0), (6, 0), "J_1(x) / x in x^2, x <= 3"),
    Fit(
        "y0_small",
        y_small(0, Y0_ZERO),
        0 * UNIT,
        SMALL,
        (9, 0),
        (6, 0),
        "(Y_0(x) - 2/pi log(x / zero) J_0(x)) / (x^2 - zero^2) in x^2, x <= 3",
    ),
    Fit(
        "y1_small",
        y_small(1, Y1_ZERO),
        0 * UNIT,
        SMALL,
        (10, 0),
        (7, 0),
        "x (Y_1(x) - 2/pi log(x / zero) J_1(x)) / (x^2 - zero^2) in x^2, x <= 3",
    ),
    *(
        fit
        for n in (0, 1)
        for fit in (
            Fit(
                f"modulus_{n}",
                modulus(n),
                0 * UNIT,
                TAIL,
                (8, 8),
                (3, 3),
                f"sqrt(x) |J_{n}(x) + i Y_{n}(x)| in 1/x^2, 3 <= x",
            ),
            Fit(
                f"phase_{n}",
                phase(n),
                0 * UNIT,
                TAIL,
                (8, 8),
                (6, 6),
                f"its angle less x, / pi, + {2 * n + 1}/4, times x, in 1/x^2, 3 <= x",
            ),
        )
    ),
    Fit(
        "temme_1",
        temme_1,
        0 * UNIT,
        UNIT / 4,
        (7, 0),
        (4, 0),
        "(1 / Gamma(1 - m) - 1 / Gamma(1 + m)) / (2 m) in m^2, |m| <= 1/2",
    ),
    Fit(
        "temme_2",
        temme_2,
        0 * UNIT,
        UNIT / 4,
        (7, 0),
        (4, 0),
        "(1 / Gamma(1 - m) + 1 / Gamma(1 + m)) / 2 in m^2, |m| <= 1/2",
    ),
]


# Tables for computations in float.
NARROW = [
    Narrow(name, f, 0 * UNIT, high, (degree, 0), about)
    for name, f, high, degree, about in (
        ("i0_small", i_small(0), FLOAT_SPLIT**2, 8, "I_0(x) in x^2, x <= 5"),
        ("i1_small", i_small(1), FLOAT_SPLIT**2, 8, "I_1(x) / x in x^2, x <= 5"),
        ("i0_large", i_large(0), 1 / FLOAT_SPLIT, 7, "sqrt(x) e^-x I_0(x) in 1/x, 5 <= x"),
        ("i1_large", i_large(1), 1 / FLOAT_SPLIT, 7, "sqrt(x) e^-x I_1(x) in 1/x, 5 <= x"),
    )
]


def more(precision: Precision) -> Sequence[Table]:
    """Constants, and tables with a closed form."""
    if precision == "narrow":
        return []
    bits = 53 if precision == "full" else 24
    with mp.workprec(24 * (WORDS[precision] + 4)):
        digits = [mp.floor(mp.ldexp(1 / mp.pi, 24 * i)) for i in range(WORDS[precision])]
        words = [d - mp.ldexp(digits[i - 1], 24) if i else d for i, d in enumerate(digits)]
    tables = [
        Table("debye", debye(DEBYE[precision]), "U_k(p) / p^k in p^2, k = 1, 2, ..."),
        Table("words", words, "1/pi = sum of words[i] 2^(-24 i)"),
    ]
    if precision == "full":
        first, rest = parts(1 / mp.pi, 26)
        about = "1/pi, in three parts; the first two have 26 bits"
        tables.append(Table("reciprocal_pi", [first, *parts(rest, 26)], about))
    for name, value in (("j0", J0_ZERO), ("y0", Y0_ZERO), ("y1", Y1_ZERO)):
        about = f"the least positive zero of {name[0].upper()}_{name[1]}, in two parts"
        tables.append(Table(f"{name}_zero", parts(value, bits), about))
        if name[0] == "y":
            tables.append(Table(f"log_{name}_zero", [mp.log(value)], "its logarithm"))
    for name, value, about in (
        ("two_over_pi", 2 / mp.pi, "2/pi"),
        ("sqrt_half_pi", mp.sqrt(mp.pi / 2), "sqrt(pi/2)"),
    ):
        tables.append(Table(name, [value], about))
    return tables


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more, NARROW))
