"""Compute the coefficients of error_function.h.

Run it to write `error_function_coefficients.h`; minimax.py explains the method. Numbers such as
7.12.1 are equations of the Digital Library of Mathematical Functions, https://dlmf.nist.gov.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Narrow, Precision, Table, main
from mpmath import mpf

SMALL_ERF = 1
"""The limit up to which erf is a polynomial."""

SHIFT = 3
"""The k in erfcx's variable 1 - 2 k / (x + k); 3 and 4 need the fewest coefficients."""

SMALL_ERFINV = mpf(3) / 4
"""The limit up to which erfinv is rational in its argument."""

LARGEST_ROOT = mpf("27.3")
"""sqrt(-log p) of the smallest subnormal p, rounded up."""

LARGEST_LOGARITHM, LARGEST_OF_ERFINV = mpf(104), mpf(16)
"""-log(1 - y^2) for 1 - y the smallest subnormal float, and for y the largest float below 1,
rounded up."""

FOLD_OF_ERFCX, FOLD_OF_NDTR = 2, 3
"""The k in (x - k) / (x + k), the variable in which tails are fitted for float."""

TINY = mpf("1e-9")
"""Used instead of 0 if a limit would be needed."""


def erf_over_x(z: mpf) -> mpf:
    """erf(x) / x at x^2 = z."""
    if z == 0:
        return 2 / mp.sqrt(mp.pi)
    x = mp.sqrt(z)
    return mp.erf(x) / x


def erfcx(x: mpf) -> mpf:
    """exp(x^2) erfc(x)."""
    if x < 50:
        return mp.exp(x * x) * mp.erfc(x)
    total = term = mpf(1)  # 7.12.1
    for k in range(1, 60):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
        if abs(term) < mpf(10) ** -DIGITS:
            break
    return total / (x * mp.sqrt(mp.pi))


def erfcx_slope(x: mpf) -> mpf:
    """The derivative of erfcx."""
    if x < 50:
        return 2 * x * erfcx(x) - 2 / mp.sqrt(mp.pi)
    total = term = mpf(1)  # that of 7.12.1, term by term
    for k in range(1, 60):
        term *= -(2 * k - 1) / (2 * x * x)
        total += (2 * k + 1) * term
        if abs(term) < mpf(10) ** -DIGITS:
            break
    return -total / (x * x * mp.sqrt(mp.pi))


def erfcx_curvature(x: mpf) -> mpf:
    """The second derivative of erfcx."""
    if x < 50:
        return 2 * erfcx(x) + 2 * x * erfcx_slope(x)
    total = term = mpf(1)  # that of 7.12.1, term by term
    for k in range(1, 60):
        term *= -(2 * k - 1) / (2 * x * x)
        total += (2 * k + 1) * (k + 1) * term
        if abs(term) < mpf(10) ** -DIGITS:
            break
    return 2 * total / (x**3 * mp.sqrt(mp.pi))


def shifted_erfcx(t: mpf) -> mpf:
    """(x + k) erfcx(x) at 1 - 2 k / (x + k) = t: from k, at x = 0, down to 1 / sqrt(pi)."""
    if t == 1:
        return 1 / mp.sqrt(mp.pi)
    x = SHIFT * (1 + t) / (1 - t)
    return (x + SHIFT) * erfcx(x)


def shifted_slope(t: mpf) -> mpf:
    """(x + k)^2 times the derivative of erfcx, in the same variable."""
    if t == 1:
        return -1 / mp.sqrt(mp.pi)
    x = SHIFT * (1 + t) / (1 - t)
    return (x + SHIFT) ** 2 * erfcx_slope(x)


def shifted_curvature(t: mpf) -> mpf:
    """(x + k)^3 times the second derivative of erfcx, in the same variable."""
    if t == 1:
        return 2 / mp.sqrt(mp.pi)
    x = SHIFT * (1 + t) / (1 - t)
    return (x + SHIFT) ** 3 * erfcx_curvature(x)


def erfinv_over_y(z: mpf) -> mpf:
    """erfinv(y) / y at y^2 = z.

    Fitted around the middle of its range: the coefficients in powers of z alternate in sign, and
    most of their sum would cancel.
    """
    if z < mpf("1e-12"):  # 7.17.2
        return mp.sqrt(mp.pi) / 2 * (1 + mp.pi * z / 12 + 7 * mp.pi**2 * z**2 / 480)
    y = mp.sqrt(z)
    return mp.erfinv(y) / y


@functools.cache
def erfcinv_over_root(s: mpf) -> mpf:
    """x / s where erfc(x) = exp(-s^2): Newton's method for the logarithms."""
    x = mp.sqrt(s * s - mp.log(mp.sqrt(mp.pi) * s)) if s > 2 else s / 2
    for _ in range(60):
        erfc = mp.erfc(x)
        step = (mp.log(erfc) + s * s) * mp.sqrt(mp.pi) / 2 * mp.exp(x * x) * erfc
        x += step
        if abs(step) < mpf(10) ** -DIGITS * 100:
            return x / s
    raise ArithmeticError(f"no convergence at {s}")


def erfinv_of_logarithm(w: mpf) -> mpf:
    """erfinv(y) / y at y^2 = 1 - exp(-w)."""
    square = -mp.expm1(-w)
    if w < 1:
        return erfinv_over_y(square)
    y = mp.sqrt(square)
    s = mp.sqrt(-mp.log(-mp.expm1(mp.log1p(-mp.exp(-w)) / 2)))  # 1 - y = exp(-s^2)
    return s * erfcinv_over_root(s) / y


def rest_of_square(w: mpf) -> mpf:
    """1 - (erfinv(y)^2 / y^2 - pi / 4) / w at the same y: positive, and small for large w."""
    w = max(w, TINY)
    return 1 - (erfinv_of_logarithm(w) ** 2 - mp.pi / 4) / w


def folded_erfcx(t: mpf) -> mpf:
    """(x + 1/2) erfcx(x) at t = (x - k) / (x + k), which varies little."""
    if t == 1:
        return 1 / mp.sqrt(mp.pi)
    x = FOLD_OF_ERFCX * (1 + t) / (1 - t)
    return (x + mpf(1) / 2) * erfcx(x)


def folded_ndtr(t: mpf) -> mpf:
    """(x + 3/4) exp(x^2 / 2) ndtr(-x) in the same variable."""
    if t == 1:
        return 1 / mp.sqrt(2 * mp.pi)
    x = FOLD_OF_NDTR * (1 + t) / (1 - t)
    return (x + mpf(3) / 4) * erfcx(x / mp.sqrt(2)) / 2


FITS = [
    Fit(
        "erf_small",
        lambda z: erf_over_x(z) - 1,
        mpf(0),
        mpf(SMALL_ERF) ** 2,
        (11, 0),
        None,
        f"erf(x) / x - 1 in x^2, |x| <= {SMALL_ERF}, relative to erf(x) / x",
        erf_over_x,
    ),
    Fit(
        "erfcx",
        shifted_erfcx,
        mpf(-1),
        mpf(1),
        (23, 0),
        None,
        f"(x + {SHIFT}) erfcx(x) in 1 - 2 * {SHIFT} / (x + {SHIFT}), 0 <= x",
    ),
    Fit(
        "erfcx_slope",
        shifted_slope,
        mpf(-1),
        mpf(1),
        (24, 0),
        (14, 0),
        f"(x + {SHIFT})^2 erfcx'(x) in the same, 0 <= x",
    ),
    Fit(
        "erfcx_curvature",
        shifted_curvature,
        mpf(-1),
        mpf(1),
        (25, 0),
        (15, 0),
        f"(x + {SHIFT})^3 erfcx''(x) in the same, 0 <= x",
    ),
]


INVERSE_FITS = [
    Fit(
        "erfinv_small",
        lambda t: erfinv_over_y(t + SMALL_ERFINV**2 / 2),
        -(SMALL_ERFINV**2) / 2,
        SMALL_ERFINV**2 / 2,
        (6, 6),
        None,
        "erfinv(y) / y in y^2 - 9/32, |y| <= 3/4",
    ),
    Fit(
        "erfinv_large",
        erfcinv_over_root,
        mp.sqrt(-mp.log(1 - SMALL_ERFINV)),
        LARGEST_ROOT,
        (11, 11),
        None,
        "erfcinv(p) / s in s = sqrt(-log p), p <= 1/4",
    ),
]
"""For results in double only."""

# Tables for computations in float.
NARROW = [
    Narrow(
        "erf_small",
        lambda z: erf_over_x(z) - 1,
        mpf(0),
        mpf(SMALL_ERF) ** 2,
        (6, 0),
        f"erf(x) / x - 1 in x^2, |x| <= {SMALL_ERF}, relative to erf(x) / x",
        erf_over_x,
    ),
    Narrow(
        "erf_large",
        lambda x: -mp.log(mp.erfc(x)),
        mpf(SMALL_ERF),
        mpf(4),
        (6, 0),
        "-log(1 - erf(x)), 1 <= x <= 4, so that erf(x) has the relative error",
        lambda x: mp.erf(x) / mp.erfc(x),
    ),
    Narrow(
        "erfcx_small",
        erfcx,
        mpf(0),
        mpf(1) / 2,
        (7, 0),
        "erfcx(x), 0 <= x <= 1/2",
    ),
    Narrow(
        "erfcx_large",
        folded_erfcx,
        (mpf(1) / 2 - FOLD_OF_ERFCX) / (mpf(1) / 2 + FOLD_OF_ERFCX),
        mpf(1),
        (10, 0),
        f"(x + 1/2) erfcx(x) in (x - {FOLD_OF_ERFCX}) / (x + {FOLD_OF_ERFCX}), 1/2 <= x",
    ),
    Narrow(
        "ndtr_small",
        lambda z: erf_over_x(z / 2) / mp.sqrt(8),
        mpf(0),
        mpf(1),
        (5, 0),
        "(ndtr(x) - 1/2) / x in x^2, |x| <= 1",
    ),
    Narrow(
        "ndtr_tail",
        folded_ndtr,
        (mpf(1) / 2 - FOLD_OF_NDTR) / (mpf(1) / 2 + FOLD_OF_NDTR),
        mpf(1),
        (10, 0),
        f"(x + 3/4) exp(x^2 / 2) ndtr(-x) in (x - {FOLD_OF_NDTR}) / (x + {FOLD_OF_NDTR}), 1/2 <= x",
    ),
    Narrow(
        "log_ndtr_small",
        lambda x: mp.log(mp.ncdf(x)),
        mpf(-1),
        mpf(1) / 2,
        (9, 0),
        "log(ndtr(x)), -1 <= x <= 1/2",
    ),
    Narrow(
        "log_ndtr_large",
        lambda s: (-mp.log1p(-s) - s) / s**2 if s > mpf("1e-9") else mpf(1) / 2 + s / 3,
        mpf(0),
        mp.ncdf(mpf(-1) / 2),
        (5, 0),
        "(-log(1 - s) - s) / s^2, s <= ndtr(-1/2), relative to -log(1 - s)",
        lambda s: 1 / max(s, mpf("1e-2")),
    ),
    *(
        Narrow(
            name,
            rest_of_square,
            mpf(0),
            high,
            degrees,
            "1 - (erfinv(y)^2 / y^2 - pi / 4) / w in w = -log(1 - y^2), "
            f"0 <= w <= {mp.nstr(high)}, relative to (erfinv(y) / y)^2 / w",
            lambda w: erfinv_of_logarithm(w) ** 2 / max(w, TINY),
            fold=mpf(8),
        )
        for name, high, degrees in (
            ("erfinv", LARGEST_OF_ERFINV, (4, 5)),
            ("erfcinv", LARGEST_LOGARITHM, (7, 7)),
        )
    ),
]


def more(precision: Precision) -> Sequence[Table]:
    """The inverse, and constants."""
    inverse = [table for fit in INVERSE_FITS for table in fit.tables(precision)]
    return [
        *inverse,
        Table("sqrt_2", [mp.sqrt(2)]),
        Table("sqrt_half", [mp.sqrt(mpf(1) / 2)]),
        Table("quarter_pi", [mp.pi / 4], "pi / 4"),
        Table("normal_density_at_0", [1 / mp.sqrt(2 * mp.pi)]),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more, NARROW))
