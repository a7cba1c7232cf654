"""The error function and the normal distribution in mpmath: see reference.py."""

from __future__ import annotations

import math

import mpmath
import scipy.special
from mpmath import mpf
from special.reference import (
    Record,
    Region,
    both,
    crossing,
    linear,
    log,
    near,
    negative,
    subnormal,
    union,
)

ROOT_2 = mpmath.sqrt(2, dps=120)


def erfcx(x):
    if x < 60:
        with mpmath.workdps(mpmath.mp.dps + 20):
            return mpmath.exp(x * x) * mpmath.erfc(x)
    total = term = mpf(1)  # DLMF 7.12.1
    for k in range(1, 60):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
    return total / (x * mpmath.sqrt(mpmath.pi))


def erfc(x):
    return mpmath.exp(-x * x) * erfcx(x) if x > 60 else mpmath.erfc(x)


def erfcinv(p):
    """Newton's method for log(erfc(x)) = log(p), or mpmath where it is accurate."""
    if not 0 < p < 2:
        return None
    if p > 1:
        return -erfcinv(2 - p)
    if p > 0.1:
        return mpmath.erfinv(1 - p)
    w = -mpmath.log(p)
    x = mpmath.sqrt(w - mpmath.log(mpmath.sqrt(mpmath.pi * w)))
    for _ in range(60):
        y = erfc(x)
        step = (mpmath.log(y) + w) * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(x * x) * y
        x += step
        if abs(step) < mpf(10) ** (3 - mpmath.mp.dps):
            break
    return x


def erfinv(y):
    if y == 0 or abs(y) >= 1:
        return mpf(0) if y == 0 else None
    if abs(y) < mpf("1e-15"):  # DLMF 7.17.2
        return mpmath.sqrt(mpmath.pi) / 2 * (y + mpmath.pi * y**3 / 12)
    return mpmath.sign(y) * erfcinv(1 - abs(y))


def ndtr(x):
    return erfc(-x / ROOT_2) / 2


def log_ndtr(x):
    if x > -3:
        return mpmath.log1p(-ndtr(-x))
    return mpmath.log(erfcx(-x / ROOT_2) / 2) - x * x / 2


def ndtri(p):
    if not 0 < p < 1:
        return None
    # Near 1/2 the difference from 1/2 matters.
    return ROOT_2 * erfinv(2 * p - 1) if 0.1 < p < 0.9 else -ROOT_2 * erfcinv(2 * p)


ENDS = [(x,) for x in (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, math.inf, -math.inf, math.nan)]

RECORDS = [
    Record(
        "erf",
        mpmath.erf,
        {
            "all": Region(both(log())),
            "body": Region(linear(-6, 6)),
            "branch": Region(near(1, -1)),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.erf,
        smooth=(linear(-3, 3),),
    ),
    Record(
        "erfc",
        erfc,
        {
            "all": Region(both(log(1e-30, 27))),
            "body": Region(linear(-6, 6)),
            "tail": Region(linear(5, 28)),
            "branch": Region(near(0.5, -0.5, 1)),
            "underflow": Region(
                near(crossing(erfc, 1, 30, "tiny"), crossing(erfc, 1, 30, "smallest"))
            ),
        },
        scipy=scipy.special.erfc,
        smooth=(linear(-3, 3),),
    ),
    Record(
        "erfcx",
        erfcx,
        {
            "positive": Region(log()),
            "negative": Region(negative(log(1e-30, 26))),
            "body": Region(linear(-5, 20)),
            "zero": Region(near(0)),
            "branches": Region(near(0.5, -0.5)),
            "overflow": Region(near(crossing(erfcx, -1, -40))),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.erfcx,
        smooth=(union(linear(-3, 3), linear(3, 100)),),
    ),
    Record(
        "erfinv",
        erfinv,
        {
            "all": Region(both(log(high=0.99))),
            "body": Region(linear(-0.999, 0.999)),
            "ends": Region(near(1, -1), conditioned="infinite at both"),
            "branches": Region(near(0.75, -0.75)),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.erfinv,
        special=ENDS,
        corrections=[((-0.0,), -0.0, "erfinv is odd")],
        smooth=(linear(-0.95, 0.95),),
    ),
    Record(
        "erfcinv",
        erfcinv,
        {
            "small": Region(log(high=1)),
            "body": Region(linear(0.001, 1.999)),
            "zero": Region(near(1)),
            "two": Region(near(2), conditioned="infinite there"),
            "branches": Region(near(5.6e-8, 0.25, 1.75)),
            "subnormal": Region(subnormal()),
        },
        scipy=scipy.special.erfcinv,
        special=ENDS,
        corrections=[((1.0,), 0.0, "as SciPy's ndtri(0.5)")],
        smooth=(linear(0.05, 1.95),),
    ),
    Record(
        "ndtr",
        ndtr,
        {
            "all": Region(both(log(1e-30, 38))),
            "body": Region(linear(-8, 8)),
            "tail": Region(linear(-39, -8)),
            "branch": Region(near(0.7071067811865476, -0.7071067811865476, 1, -1)),
            "underflow": Region(
                near(crossing(ndtr, -1, -45, "tiny"), crossing(ndtr, -1, -45, "smallest"))
            ),
        },
        scipy=scipy.special.ndtr,
        smooth=(linear(-4, 4),),
    ),
    Record(
        "log_ndtr",
        log_ndtr,
        {
            "negative": Region(negative(log())),
            "positive": Region(log(high=38)),
            "body": Region(linear(-40, 10)),
            "zero": Region(near(0)),
            "branches": Region(near(-1, 0.5)),
            "overflow": Region(near(crossing(log_ndtr, -1, -1e300))),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.log_ndtr,
        corrections=[((math.inf,), 0.0, "as log(1)")],
        smooth=(union(linear(-30, -5), linear(-5, 5)),),
    ),
    Record(
        "ndtri",
        ndtri,
        {
            "small": Region(log(high=0.5)),
            "body": Region(linear(0.001, 0.999)),
            "zero": Region(near(0.5)),
            "one": Region(near(1), conditioned="infinite there"),
            "branches": Region(near(2.8e-8, 0.125, 0.875)),
            "subnormal": Region(subnormal()),
        },
        scipy=scipy.special.ndtri,
        special=ENDS,
        smooth=(linear(0.03, 0.97),),
    ),
]
