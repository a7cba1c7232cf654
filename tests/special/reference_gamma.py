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


def gamma(x):
    return None if pole(x) else mpmath.gamma(x)


def gammasgn(x):
    return None if pole(x) else mpmath.sign(mpmath.rgamma(x))


def zeta(x, q):
    # mpmath's error is absolute.
    with mpmath.workdps(120):
        return None if x <= 1 else mpmath.zeta(x, q)


def beta(a, b):
    with mpmath.workdps(400):
        return None if pole(a) or pole(b) else mpmath.beta(a, b)


def betaln(a, b):
    if pole(a) or pole(b) or pole(a + b):
        return None
    with mpmath.workdps(400):
        return mpmath.re(mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b))


STEEP = "steep: an argument's last digit changes the result by more"
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
    Record(
        "gamma",
        gamma,
        {
            "positive": Region(linear(0.01, 30), conditioned=STEEP),
            "small": Region(both(log(None, 1))),
            "integers": Region(integers(1, 30)),
            "overflow": Region(near(crossing(mpmath.gamma, 3, 200)), conditioned=STEEP),
            "negative": Region(negative(linear(0.01, 30)), conditioned=STEEP),
            "poles": Region(POLES, conditioned=STEEP),
        },
        scipy=scipy.special.gamma,
        special=[(x,) for x in (0.0, -0.0, -1.0, -2.0, -100.0, math.inf, -math.inf, math.nan)],
        smooth=(union(linear(0.3, 10), linear(-3.8, -3.2)),),
    ),
    Record(
        "rgamma",
        mpmath.rgamma,
        {
            "positive": Region(linear(0.01, 30), conditioned=STEEP),
            "small": Region(both(log(None, 1))),
            "negative": Region(negative(linear(0.01, 30)), conditioned=STEEP),
            "poles": Region(POLES, conditioned=STEEP),
        },
        scipy=scipy.special.rgamma,
        special=[(x,) for x in (0.0, -0.0, -1.0, -2.0, -100.0, math.inf, -math.inf, math.nan)],
        smooth=(linear(-3.8, 10),),
    ),
    Record(
        "gammasgn",
        gammasgn,
        {"all": Region(union(linear(-20, 20), POLES))},
        scipy=scipy.special.gammasgn,
        special=[(x,) for x in (0.0, -0.0, -1.0, -2.0, -100.0, math.inf, -math.inf, math.nan)],
        smooth=(linear(0.5, 10),),
    ),
    Record(
        "zeta",
        zeta,
        {
            "small": Region(linear(1.01, 12), linear(0.1, 30)),
            "large": Region(linear(1.5, 6), log(1, 1e4), conditioned=STEEP),
        },
        scipy=scipy.special.zeta,
        arity=2,
        special=[
            *((1.0, 2.0), (0.5, 2.0), (2.0, 0.0), (3.0, -1.0), (2.5, -1.5), (math.nan, 2.0)),
            *((2.0, math.inf), (2.0, math.nan), (math.inf, 1.0), (math.inf, 0.5)),
        ],
        smooth=(linear(2, 6), linear(0.5, 5)),
        undifferentiable=(0,),
    ),
    Record(
        "beta",
        beta,
        {
            "small": Region(log(1e-4, 6), log(1e-4, 6), conditioned=STEEP),
            "large": Region(log(0.1, 60), log(0.1, 60), conditioned=STEEP),
            "negative": Region(linear(-9.7, -0.2), linear(-8.3, 9.1), conditioned=STEEP),
        },
        scipy=scipy.special.beta,
        arity=2,
        special=[(0.0, 2.0), (-5.0, 2.0), (-5.0, 6.0), (-2.5, 1.5), (math.nan, 1.0)],
        corrections=[
            ((-5.0, 6.0), -math.inf, "the sign depends on the side of the pole"),
            ((-2.5, 1.5), 0.0, "the sign depends on the side of the pole of gamma(a + b)"),
        ],
        smooth=(linear(0.5, 4), linear(0.5, 4)),
    ),
    Record(
        "betaln",
        betaln,
        {
            "small": Region(log(1e-4, 6), log(1e-4, 6), conditioned="zero where beta is 1"),
            "large": Region(log(0.1, 1e4), log(6, 1e4), conditioned="zero where beta is 1"),
            "far": Region(log(1e-3, 1e3), log(1e6, 1e30), conditioned="zero where beta is 1"),
        },
        scipy=scipy.special.betaln,
        arity=2,
        special=[(0.0, 2.0), (-5.0, 2.0), (math.inf, 2.0), (math.nan, 1.0)],
        smooth=(linear(0.5, 4), linear(0.5, 4)),
    ),
]
