"""Compute the coefficients of the elementary functions: writes elementary_coefficients.h."""

from __future__ import annotations

import sys

import mpmath as mp  # type: ignore[import-untyped]
from minimax import Fit, Precision, Table, main, parts
from mpmath import mpf


def logarithm(z: mpf) -> mpf:
    """(log((1 + f) / (1 - f)) - 2 f) / (f z) at f^2 = z; DLMF 4.6.6."""
    if z < mpf("1e-6"):
        return sum(2 * z**k / (2 * k + 3) for k in range(8))
    f = mp.sqrt(z)
    return (2 * mp.atanh(f) - 2 * f) / (f * z)


def exponential(r: mpf) -> mpf:
    """(exp(r) - 1 - r) / r^2; DLMF 4.2.19."""
    if abs(r) < mpf("1e-6"):
        return sum(r**k / mp.factorial(k + 2) for k in range(8))
    return (mp.exp(r) - 1 - r) / (r * r)


FITS = [
    Fit(
        "logarithm",
        logarithm,
        mpf(0),
        (3 - 2 * mp.sqrt(2)) ** 2,
        (6, 0),
        (5, 0),
        "(log(m) / f - 2) / f^2 in f^2, f = (m - 1) / (m + 1), 1/2 <= m^2 <= 2",
    ),
    Fit(
        "exponential",
        exponential,
        mpf("-0.35"),
        mpf("0.35"),
        (10, 0),
        (8, 0),
        "(exp(r) - 1 - r) / r^2, |r| <= 0.35",
    ),
]


def more(precision: Precision) -> list[Table]:
    """The tables that are not fits."""
    return [
        Table("log_2", parts(mp.log(2), 53 - 20), "log(2) in two parts, the first with 33 bits"),
        Table("inverse_log_2", [1 / mp.log(2)]),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more))
