"""The gamma function's family in mpmath: see reference.py."""

from __future__ import annotations

import math

import mpmath
import scipy.special
from special.reference import (
    Record,
    Region,
    both,
    crossing,
    integers,
    linear,
    log,
    near,
    negative,
    subnormal,
    union,
)


def pole(x):
    """Whether x is 0, -1, -2, ..."""
    return x <= 0 and x == mpmath.floor(x)


def lgamma(x):
    return None if pole(x) else mpmath.log(abs(mpmath.gamma(x)))


def digamma(x):
    return None if pole(x) else mpmath.digamma(x)


def polygamma(n, x):
    return None if pole(x) else mpmath.polygamma(n, x)


POLES = near(0, -1, -2, -3, -10, -50)
BETWEEN_POLES = "between two poles: as SciPy, the reflection formula cancels near the zeros"

RECORDS = [
    Record(
        "lgamma",
        lgamma,
        {
            "positive": Region(log()),
            "small": Region(linear(0.01, 20)),
            "zeros": Region(near(1, 2)),
            "branches": Region(near(0.5, 1.5, 2.5, 7, 8, 10)),
            "negative": Region(negative(log(1e-30, 300)), conditioned=BETWEEN_POLES),
            "poles": Region(POLES, conditioned=BETWEEN_POLES),
            "subnormal": Region(both(subnormal())),
            "overflow": Region(near(crossing(mpmath.loggamma, 10, 2.6e305))),
        },
        scipy=scipy.special.gammaln,
        special=[(x,) for x in (0.0, -0.0, -1.0, -2.0, -100.0, math.inf, -math.inf, math.nan)],
        smooth=(union(linear(0.1, 10), linear(-3.9, -3.1)),),
    ),
    Record(
        "digamma",
        digamma,
        {
            "positive": Region(log()),
            "small": Region(linear(0.01, 20)),
            "root": Region(near(1.4616321449683622), conditioned="its only positive zero"),
            "negative": Region(negative(log(1e-30, 300)), conditioned=BETWEEN_POLES),
            "poles": Region(POLES, conditioned=BETWEEN_POLES),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.digamma,
        smooth=(union(linear(0.1, 10), linear(-3.9, -3.1)),),
    ),
    Record(
        "polygamma",
        polygamma,
        {
            "trigamma": Region(log(), head=(1,)),
            "tetragamma": Region(log(1e-30, 1e30), head=(2,)),
            "order 7": Region(log(1e-5, 1e5), head=(7,)),
            "order 20": Region(linear(0.1, 50), head=(20,)),
            "integers": Region(integers(1, 100), head=(3,)),
            "negative": Region(negative(log(1e-10, 100)), conditioned=BETWEEN_POLES),
            "poles": Region(POLES, head=(2,), conditioned=BETWEEN_POLES),
        },
        scipy=scipy.special.polygamma,
        head=(1,),
        special=[(x,) for x in (0.0, -1.0, -2.0, math.inf, -math.inf, math.nan)],
        smooth=(union(linear(0.3, 10), linear(-3.8, -3.2)),),
    ),
]
