"""Compute the coefficients of statistics.h.

Run it to write `statistics_coefficients.h`; minimax.py explains the method.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mpmath as mp  # type: ignore[import-untyped]
from minimax import Fit, Precision, Table, main
from mpmath import mpf


def divergence(d: mpf) -> mpf:
    """((1 + d) log(1 + d) - d) / d^2."""
    if abs(d) < mpf("1e-4"):
        return sum((-d) ** k / ((k + 1) * (k + 2)) for k in range(13))
    return ((1 + d) * mp.log1p(d) - d) / d**2


FITS = [
    Fit(
        "divergence",
        divergence,
        mpf("-0.51"),
        mpf("1.02"),
        (8, 7),
        (4, 4),
        "((1 + d) log(1 + d) - d) / d^2, -1/2 <= d <= 1",
    ),
]


def more(_: Precision) -> Sequence[Table]:
    """Constants."""
    return [
        Table("log_of_2", [mp.log(2)]),
        Table("exp_32", [mp.exp(32)]),
    ]


if __name__ == "__main__":
    sys.exit(main(__file__, FITS, more))
