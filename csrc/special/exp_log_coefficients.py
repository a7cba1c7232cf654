"""Compute the coefficients of exp_log.h.

Run it to write `exp_log_coefficients.h`; minimax.py explains the method. Numbers such as 4.6.1 are
equations of the Digital Library of Mathematical Functions, https://dlmf.nist.gov.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Narrow, Precision, Table, main, rounded
from mpmath import mpf


def exp_series(r: mpf) -> mpf:
    """(exp(r) - 1) / r; DLMF 4.2.19."""
    return mp.expm1(r) / r if r else mpf(1)


def exp_tail(r: mpf) -> mpf:
    """(exp(r) - 1 - r) / r^2; DLMF 4.2.19."""
    if abs(r) < mpf("1e-6"):
        return sum(r**k / mp.factorial(k + 2) for k in range(9))
    return (mp.expm1(r) - r) / r**2


def log_series(g: mpf) -> mpf:
    """(log(1 + g) - g) / g^2; DLMF 4.6.1."""
    if abs(g) < mpf("1e-6"):
        return sum(-((-g) ** k) / (k + 2) for k in range(9))
    return (mp.log1p(g) - g) / g**2


def log_series_of_square(z: mpf) -> mpf:
    """(log((1 + f) / (1 - f)) - 2 f) / (f z) at f^2 = z; DLMF 4.6.6."""
    if z < mpf("1e-6"):
        return sum(2 * z**k / (2 * k + 3) for k in range(8))
    f = mp.sqrt(z)
    return (2 * mp.atanh(f) - 2 * f) / (f * z)


with mp.workdps(DIGITS):
    LOG_2 = mp.log(2)
    END = mp.sqrt(2) - 1
    FITS = [
        Fit(
            "exp_series",
            exp_series,
            -LOG_2 / 2,
            LOG_2 / 2,
            (10, 0),
            (6, 0),
            "(exp(r) - 1) / r, |r| <= log(2) / 2",
        ),
    ]
    LOG_SERIES: dict[Precision, Fit] = {
        "half": Fit(
            "log_series",
            log_series,
            mp.sqrt(mpf(1) / 2) - 1,
            END,
            (10, 0),
            (10, 0),
            "(log(1 + g) - g) / g^2, 1/2 <= (1 + g)^2 <= 2",
        ),
        "full": Fit(
            "log_series",
            log_series_of_square,
            mpf(0),
            (END / (END + 2)) ** 2,
            (6, 0),
            (6, 0),
            "(log(1 + g) / f - 2) / f^2 in f^2, f = g / (g + 2), 1/2 <= (1 + g)^2 <= 2",
        ),
    }

    NARROW = [
        Narrow(
            "exp_tail",
            exp_tail,
            -LOG_2 / 2,
            LOG_2 / 2,
            (4, 0),
            "(exp(r) - 1 - r) / r^2, |r| <= log(2) / 2, relative to exp(r)",
            lambda r: mp.exp(r) / max(r**2, mpf(1) / 256),
        ),
        Narrow(
            "log_series",
            log_series_of_square,
            mpf(0),
            (END / (END + 2)) ** 2,
            (2, 0),
            "(log(1 + g) / f - 2) / f^2 in f^2, f = g / (g + 2), 1/2 <= (1 + g)^2 <= 2, "
            "relative to log(1 + g) / f",
            lambda z: 2 / max(z, mpf("1e-3")),
        ),
    ]


def more(precision: Precision) -> Sequence[Table]:
    """The logarithm's series, for float two, log(2) in two parts, and constants of several files.

    The first part has 32 bits, so that its product with an exponent is exact.
    """
    if precision == "narrow":  # a product with the first part is exact, too
        high = rounded(LOG_2, 15)
        about = "log(2), as a number of 15 bits and the rest"
        return [
            Table("log_2_parts", [high, LOG_2 - high], about),
            Table("log_2_reciprocal", [1 / LOG_2], "1 / log(2)"),
            Table("log_2", [LOG_2]),
        ]
    high = rounded(LOG_2, 32)
    return [
        *LOG_SERIES[precision].tables(precision),
        Table("log_2_parts", [high, LOG_2 - high], "log(2), as a number of 32 bits and the rest"),
        Table("log_2_reciprocal", [1 / LOG_2], "1 / log(2)"),
        Table("pi", [+mp.pi]),
        Table("sqrt_two_pi", [mp.sqrt(2 * mp.pi)], "sqrt(2 pi)"),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more, NARROW))
