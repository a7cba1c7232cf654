"""The gamma function's family in mpmath: see reference.py."""

from __future__ import annotations

import math
from itertools import product

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
    values,
)


def pole(x):
    """Return true if x is 0, -1, -2, ..."""
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
    if x <= 1 or pole(q) or (q < 0 and x != mpmath.floor(x)):
        return None
    # mpmath's error is absolute, and terms of both signs cancel.
    with mpmath.workdps(120):
        steps = int(max(mpmath.ceil(-q), 0))
        terms = [(q + k) ** -x for k in range(steps)]
        return mpmath.fsum(terms) + mpmath.zeta(x, q + steps)


def riemann_zeta(x):
    # Near the zeros the error is absolute, too.
    with mpmath.workdps(120):
        return None if x == 1 else mpmath.zeta(x)


def beta(a, b):
    with mpmath.workdps(400):
        return None if pole(a) or pole(b) else mpmath.beta(a, b)


def betaln(a, b):
    if pole(a) or pole(b) or pole(a + b):
        return None
    with mpmath.workdps(400):
        return mpmath.re(mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b))


def poch(z, m):
    if pole(z) or pole(z + m):
        return None
    with mpmath.workdps(mpmath.mp.dps + 60):
        return mpmath.gammaprod([z + m], [z])


def binom(n, k):
    if pole(n + 1):
        return None
    with mpmath.workdps(mpmath.mp.dps + 60):
        return mpmath.gammaprod([n + 1], [k + 1, n - k + 1])


STEEP = "steep: an argument's last digit changes the result by more"
ZETA_ZEROS = "there are zeros between, near which terms cancel"
POLES = near(0, -1, -2, -3, -10, -50)
BETWEEN_POLES = "between two poles: as SciPy, the reflection formula cancels near the zeros"
# Zeros on the negative axis, first where both canceling terms are rational, then where one is a
# series.
ROOTS_OF_LGAMMA = near(-2.4570247382208, -2.7476826467274, -3.9552942848586, -6.0013852944532)
ROOTS_OF_DIGAMMA = near(-0.5040830082645, -1.5734984731624, -6.6784182130734, -20.745616863608)
ROOTS_OF_TETRAGAMMA = near(-0.49571567691304, -1.4987861940098, -3.499683980605, -6.4998957702454)
CLOSE = (
    "a float is so close to -0.4957157 that 27 of the 48 bits that Metal has cancel; on CPUs: 1 ulp"
)
# Arguments of beta for which they or their sum may be poles of gamma.
AT_POLES = [
    *product([*range(-6, 8), -0.0], repeat=2),
    *product([i + 0.5 for i in range(-5, 5)], repeat=2),
    *product([-5.0, -2.0, 0.0], [-3.5, -0.25, 0.5]),
    *product([-3.5, -0.25, 0.5], [-5.0, -2.0, 0.0]),
    *[(-2.25, 0.25), (0.75, -9.75), (-100.5, 0.5), (-201.0, 3.0)],
]

WHOLE = [*range(-5, 7), -0.0, 20.0]
MIXED = [-3.5, -0.25, 0.5, 2.5, *WHOLE]

RECORDS = [
    Record(
        "lgamma",
        lgamma,
        {
            "positive": Region(log()),
            "small": Region(linear(0.01, 20)),
            "zeros": Region(near(1, 2)),
            "branches": Region(near(0.5, 1.5, 2.5, 3, 6, 7, 8, 10)),
            "negative": Region(negative(log(1e-30, 300)), conditioned=BETWEEN_POLES),
            "roots": Region(ROOTS_OF_LGAMMA, conditioned=BETWEEN_POLES),
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
            "branches": Region(near(1, 2, 6)),
            "negative": Region(negative(log(1e-30, 300)), conditioned=BETWEEN_POLES),
            "roots": Region(ROOTS_OF_DIGAMMA, conditioned=BETWEEN_POLES),
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
            "roots": Region(
                ROOTS_OF_TETRAGAMMA, head=(2,), ulps=20, because=CLOSE, conditioned=BETWEEN_POLES
            ),
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
            "beside one": Region(values(1.000001, 1.01, 1.5), log(), conditioned=STEEP),
            "negative": Region(integers(2, 9), negative(linear(0.02, 12)), conditioned=ZETA_ZEROS),
            "zeros": Region(
                values(3), ROOTS_OF_TETRAGAMMA, ulps=20, because=CLOSE, conditioned=ZETA_ZEROS
            ),
            "poles": Region(values(2, 3, 5, 8), near(0, -1, -2, -7), conditioned=ZETA_ZEROS),
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
        "zeta",
        riemann_zeta,
        {
            "right": Region(linear(1.01, 12)),
            "large": Region(log(10, 1e6)),
            "pole": Region(near(1)),
            "strip": Region(linear(0, 0.99)),
            "zero": Region(both(log(1e-30, 0.5))),
            "negative": Region(negative(linear(0, 30)), conditioned=ZETA_ZEROS),
            "zeros": Region(near(-2, -4, -10, -30), conditioned=ZETA_ZEROS),
            "far negative": Region(negative(linear(30, 275)), conditioned=STEEP),
        },
        scipy=scipy.special.zeta,
        variant="Riemann",
        special=[(x,) for x in (0.0, -0.0, 1.0, -2.0, -4.0, math.inf, -math.inf, math.nan)],
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
        special=[*AT_POLES, (math.nan, 1.0), (1.0, math.nan)],
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
        special=[*AT_POLES, (math.inf, 2.0), (math.nan, 1.0)],
        smooth=(linear(0.5, 4), linear(0.5, 4)),
    ),
    Record(
        "poch",
        poch,
        {
            "small": Region(linear(0.05, 12), linear(-8, 8), conditioned=STEEP),
            "negative": Region(linear(-9.7, -0.2), linear(-8.3, 9.1), conditioned=STEEP),
            "whole": Region(integers(1, 20), integers(0, 12)),
            "large": Region(log(20, 1e6), linear(-5, 5), conditioned=STEEP),
            "tiny": Region(linear(0.5, 20), both(log(1e-30, 1)), conditioned=STEEP),
            "scales": Region(log(high=1e-3), linear(20, 300), conditioned=STEEP),
            "far below": Region(linear(0.05, 12), negative(log(150, 1e30))),
        },
        scipy=scipy.special.poch,
        arity=2,
        special=[*product(MIXED, repeat=2), (math.inf, 1.0), (2.5, math.inf), (math.nan, 1.0)],
        smooth=(linear(0.5, 4), linear(0.5, 3)),
    ),
    Record(
        "binom",
        binom,
        {
            "small": Region(linear(0.05, 12), linear(-3, 14), conditioned=STEEP),
            "negative": Region(linear(-9.7, -0.2), linear(-8.3, 9.1), conditioned=STEEP),
            "whole": Region(integers(0, 40), integers(0, 20)),
            "large": Region(log(20, 1e5), linear(0, 9), conditioned=STEEP),
            "far": Region(linear(-0.95, 5), both(log(1e3, 1e30))),
            "far, whole": Region(integers(0, 40), both(log(1e3, 1e30))),
        },
        scipy=scipy.special.binom,
        arity=2,
        special=[
            *[p for p in product(MIXED, repeat=2) if scipy.special.binom(*p) != 0],
            *((5.0, 8.0), (3.0, -2.0), (math.inf, 1.0), (math.nan, 1.0), (2.0, 3.0)),
        ],
        smooth=(linear(1, 6), linear(0.5, 1.5)),
    ),
]
