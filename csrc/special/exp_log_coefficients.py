"""Compute the coefficients of exp_log.h.

Run it to write `exp_log_coefficients.h`; minimax.py, which it stands on, says more. Numbers such as
4.6.1 are equations of the Digital Library of Mathematical Functions, https://dlmf.nist.gov.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mpmath as mp  # type: ignore[import-untyped]
from minimax import DIGITS, Fit, Precision, Table, main, rounded
from mpmath import mpf


def exp_series(r: mpf) -> mpf:
    """(exp(r) - 1) / r; DLMF 4.2.19."""
    return mp.expm1(r) / r if r else mpf(1)


def log_series(g: mpf) -> mpf:
    """(log(1 + g) - g) / g^2; DLMF 4.6.1."""
    if abs(g) < mpf("1e-6"):
        return sum(-((-g) ** k) / (k + 2) for k in range(9))
    return (mp.log1p(g) - g) / g**2


with mp.workdps(DIGITS):
    LOG_2 = mp.log(2)
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
        Fit(
            "log_series",
            log_series,
            mp.sqrt(mpf(1) / 2) - 1,
            mp.sqrt(2) - 1,
            (20, 0),
            (10, 0),
            "(log(1 + g) - g) / g^2, 1/2 <= (1 + g)^2 <= 2",
        ),
    ]


def more(precision: Precision) -> Sequence[Table]:
    """log(2) as the first 32 bits, whose product with an exponent is exact, and the rest."""
    high = rounded(LOG_2, 32)
    return [
        Table("log_2_parts", [high, LOG_2 - high], "log(2), as a number of 32 bits and the rest"),
        Table("log_2_reciprocal", [1 / LOG_2], "1 / log(2)"),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more))
