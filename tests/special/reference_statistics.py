"""Logistic functions, entropies, power transformations and losses in mpmath: see reference.py."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import scipy.special
from mpmath import mpf
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

INF = math.inf
CANCELS = "a difference of its arguments, or of their logarithms"
POWERS = "a power: an error of lmbda log(x) is one of the result"


def precise(function):
    """Return the function, computed with additional digits for canceling terms."""

    def wrapped(*arguments):
        with mpmath.workdps(3 * mpmath.mp.dps):
            return function(*arguments)

    return wrapped


def expit(x):
    return 1 / (1 + mpmath.exp(-x))


@precise
def logit(p):
    return mpmath.log(p / (1 - p)) if 0 < p < 1 else None


def softplus(x):
    return mpmath.log1p(mpmath.exp(x)) if x < 100 else x + mpmath.exp(-x)


def log_expit(x):
    return -softplus(-x)


def log1mexp(x):
    if x >= 0:
        return None
    return mpmath.log(-mpmath.expm1(x)) if x > -1 else mpmath.log1p(-mpmath.exp(x))


def xlogy(x, y):
    return x * mpmath.log(y) if y > 0 else None


def xlog1py(x, y):
    return x * mpmath.log1p(y) if y > -1 else None


def entr(x):
    return -x * mpmath.log(x) if x > 0 else None


def positive(function):
    """Return the function, defined for two positive arguments only."""

    @precise
    def wrapped(x, y):
        return function(x, y) if x > 0 and y > 0 else None

    return wrapped


@positive
def rel_entr(x, y):
    return x * mpmath.log(x / y)


@positive
def kl_div(x, y):
    return x * mpmath.log(x / y) - x + y


@precise
def exprel(x):
    return mpmath.expm1(x) / x if x else mpf(1)


def sinc(x):
    return mpmath.sincpi(x)


@precise
def boxcox(x, lmbda):
    if x <= 0:
        return None
    return mpmath.expm1(lmbda * mpmath.log(x)) / lmbda if lmbda else mpmath.log(x)


@precise
def boxcox1p(x, lmbda):
    if x <= -1:
        return None
    return mpmath.expm1(lmbda * mpmath.log1p(x)) / lmbda if lmbda else mpmath.log1p(x)


@precise
def inv_boxcox(y, lmbda):
    if lmbda * y <= -1:
        return None
    return mpmath.exp(mpmath.log1p(lmbda * y) / lmbda if lmbda else y)


@precise
def inv_boxcox1p(y, lmbda):
    if lmbda * y <= -1:
        return None
    return mpmath.expm1(mpmath.log1p(lmbda * y) / lmbda if lmbda else y)


def huber(delta, r):
    r = abs(r)
    return r * r / 2 if r <= delta else delta * (r - delta / 2)


def pseudo_huber(delta, r):
    return delta * r * r / (delta + mpmath.hypot(delta, r))


@precise
def logaddexp2(x, y):
    x, y = max(x, y), min(x, y)
    return x + mpmath.log1p(mpmath.mpf(2) ** (y - x)) / mpmath.log(2)


def copysign(x, y):
    return abs(x) if y >= 0 else -abs(x)


@precise
def cosm1(x):
    return -2 * mpmath.sin(x / 2) ** 2


def close(count, format):
    """Return pairs of numbers that differ little."""
    x = log(1e-3, 1e3)(count, format)
    return x, format.round(x * (1 + np.geomspace(4 * format.eps, 0.9, len(x))))


LAMBDA = union(linear(-3, 3), both(log(1e-30, 1)), values(0))
MODEST = union(linear(0.01, 5), log(1e-6, 1e6))
PAIRS = list(product((0.0, -0.0, 1.0, 2.0, -1.0, INF, -INF, math.nan), repeat=2))

RECORDS = [
    Record(
        "expm1",
        mpmath.expm1,
        {
            "all": Region(both(log(high=700))),
            "body": Region(linear(-3, 3)),
            "branches": Region(near(0.34657359, -0.34657359, 1.0397)),
            "overflow": Region(near(crossing(mpmath.exp, 10, 1000))),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.expm1,
        smooth=(linear(-3, 3),),
    ),
    Record(
        "log1p",
        lambda x: mpmath.log1p(x) if x > -1 else None,
        {
            "positive": Region(log()),
            "body": Region(linear(-0.99, 3)),
            "negative": Region(negative(log(high=0.99))),
            "end": Region(near(-1)),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.log1p,
        smooth=(linear(-0.8, 3),),
    ),
    Record(
        "expit",
        expit,
        {
            "all": Region(both(log(high=700))),
            "body": Region(linear(-20, 20)),
            "underflow": Region(
                near(crossing(expit, -1, -800, "tiny"), crossing(expit, -1, -800, "smallest"))
            ),
        },
        scipy=scipy.special.expit,
        smooth=(linear(-5, 5),),
    ),
    Record(
        "logit",
        logit,
        {
            "small": Region(log(high=0.5)),
            "body": Region(linear(0.01, 0.99)),
            "zero": Region(near(0.5)),
            "one": Region(near(1), conditioned="infinite there"),
            "branches": Region(near(0.25, 0.625)),
            "subnormal": Region(subnormal()),
        },
        scipy=scipy.special.logit,
        corrections=[((-0.0,), -INF, "as at 0")],
        smooth=(linear(0.05, 0.95),),
    ),
    Record(
        "log_expit",
        log_expit,
        {
            "all": Region(both(log())),
            "body": Region(linear(-20, 20)),
            "underflow": Region(near(crossing(log_expit, 1, 800, "tiny"))),
        },
        scipy=scipy.special.log_expit,
        smooth=(linear(-5, 5),),
    ),
    Record(
        "softplus",
        softplus,
        {
            "all": Region(both(log())),
            "body": Region(linear(-20, 20)),
            "underflow": Region(near(crossing(softplus, -1, -800, "tiny"))),
        },
        scipy=lambda x: np.logaddexp(x, 0),
        smooth=(linear(-5, 5),),
    ),
    Record(
        "log1mexp",
        log1mexp,
        {
            "all": Region(negative(log(high=700))),
            "body": Region(linear(-5, -0.01)),
            "branch": Region(near(-0.6875)),
            "subnormal": Region(negative(subnormal())),
        },
        scipy=lambda x: np.where(x > 0, np.nan, np.log(-np.expm1(x))),
        smooth=(linear(-5, -0.1),),
    ),
    Record(
        "logaddexp2",
        logaddexp2,
        {
            "all": Region(both(log()), both(log())),
            "body": Region(linear(-20, 20), linear(-20, 20), conditioned=CANCELS),
        },
        scipy=np.logaddexp2,
        arity=2,
        smooth=(linear(-5, 5), linear(-4, 4)),
    ),
    Record(
        "xlogy",
        xlogy,
        {
            "all": Region(both(log(1e-20, 1e20)), log(1e-17, 1e17)),
            "body": Region(linear(-3, 3), linear(0.01, 3)),
            "zero": Region(linear(-3, 3), near(1)),
            "subnormal": Region(linear(1, 3), subnormal()),
        },
        scipy=scipy.special.xlogy,
        arity=2,
        special=PAIRS,
        smooth=(linear(-3, 3), linear(0.1, 3)),
    ),
    Record(
        "xlog1py",
        xlog1py,
        {
            "all": Region(both(log(1e-20, 1e20)), log(1e-17, 1e17)),
            "body": Region(linear(-3, 3), linear(-0.99, 3)),
            "subnormal": Region(linear(1, 3), both(subnormal())),
        },
        scipy=scipy.special.xlog1py,
        arity=2,
        special=PAIRS,
        smooth=(linear(-3, 3), linear(-0.8, 3)),
    ),
    Record(
        "entr",
        entr,
        {
            "all": Region(log(high=1e35)),
            "body": Region(linear(0.01, 3)),
            "zero": Region(near(1)),
            "subnormal": Region(subnormal()),
        },
        scipy=scipy.special.entr,
        corrections=[((-0.0,), 0.0, "as at 0")],
        smooth=(linear(0.1, 3),),
    ),
    Record(
        "rel_entr",
        rel_entr,
        {
            "all": Region(log(1e-17, 1e17), log(1e-17, 1e17)),
            "body": Region(linear(0.01, 3), linear(0.01, 3)),
            "equal": Region(close),
            "far": Region(log(high=1e30), log()),
        },
        scipy=scipy.special.rel_entr,
        arity=2,
        special=PAIRS,
        smooth=(linear(0.2, 3), linear(0.2, 3)),
    ),
    Record(
        "kl_div",
        kl_div,
        {
            "all": Region(log(1e-17, 1e17), log(1e-17, 1e17)),
            "body": Region(linear(0.01, 3), linear(0.01, 3)),
            "equal": Region(close),
            "far": Region(log(high=1e30), log(high=1e30)),
        },
        scipy=scipy.special.kl_div,
        arity=2,
        special=PAIRS,
        corrections=[((INF, y), INF, "as near infinity") for y in (1.0, 2.0)],
        smooth=(linear(0.2, 3), linear(0.2, 3)),
    ),
    Record(
        "sinc",
        sinc,
        {
            "all": Region(both(log(high=1e6))),
            "body": Region(linear(-5, 5)),
            "zeros": Region(near(1, 2, -3, 10)),
            "integers": Region(integers(1, 100)),
        },
        scipy=np.sinc,
        corrections=[
            ((1.0,), 0.0, "the zeros are exact"),
            ((-1.0,), 0.0, "the zeros are exact"),
        ],
        smooth=(union(linear(-2.3, 2.3), both(log(1e-6, 0.3))),),
    ),
    Record(
        "exprel",
        exprel,
        {
            "all": Region(both(log())),
            "body": Region(linear(-5, 5)),
            "branch": Region(near(80)),
            "overflow": Region(near(crossing(exprel, 10, 1000))),
            "subnormal": Region(both(subnormal())),
        },
        scipy=scipy.special.exprel,
        smooth=(union(linear(-60, 5), both(log(1e-6, 1))),),
    ),
    Record(
        "boxcox",
        boxcox,
        {
            "body": Region(MODEST, LAMBDA, conditioned=POWERS),
            "one": Region(near(1), linear(-3, 3)),
            "small lmbda": Region(MODEST, both(log(high=1e-6))),
        },
        scipy=scipy.special.boxcox,
        arity=2,
        special=PAIRS,
        smooth=(linear(0.2, 3), union(linear(-2, 2), both(log(1e-6, 0.1)), values(0))),
    ),
    Record(
        "boxcox1p",
        boxcox1p,
        {
            "body": Region(union(MODEST, linear(-0.9, 0.1)), LAMBDA, conditioned=POWERS),
            "zero": Region(near(0), linear(-3, 3)),
            "small lmbda": Region(MODEST, both(log(high=1e-6))),
        },
        scipy=scipy.special.boxcox1p,
        arity=2,
        special=PAIRS,
        smooth=(linear(-0.7, 3), union(linear(-2, 2), both(log(1e-6, 0.1)), values(0))),
    ),
    Record(
        "inv_boxcox",
        inv_boxcox,
        {
            "body": Region(linear(-5, 20), linear(-0.04, 3), conditioned=POWERS),
            "small lmbda": Region(linear(-20, 20), both(log(high=1e-6)), conditioned=POWERS),
        },
        scipy=scipy.special.inv_boxcox,
        arity=2,
        special=PAIRS,
        smooth=(linear(-0.4, 3), union(linear(0, 2), both(log(1e-6, 0.1)), values(0))),
    ),
    Record(
        "inv_boxcox1p",
        inv_boxcox1p,
        {
            "body": Region(linear(-5, 20), linear(-0.04, 3), conditioned=POWERS),
            "zero": Region(near(0), linear(-3, 3), conditioned=POWERS),
            "small lmbda": Region(linear(-20, 20), both(log(high=1e-6)), conditioned=POWERS),
        },
        scipy=scipy.special.inv_boxcox1p,
        arity=2,
        special=PAIRS,
        smooth=(linear(-0.4, 3), union(linear(0, 2), both(log(1e-6, 0.1)), values(0))),
    ),
    Record(
        "huber",
        huber,
        {
            "body": Region(linear(0, 3), linear(-5, 5)),
            "all": Region(log(1e-17, 1e17), both(log(1e-17, 1e17))),
        },
        scipy=scipy.special.huber,
        arity=2,
        special=PAIRS,
        smooth=(values(0.5, 1.5), values(-2.5, -1, -0.3, 0.1, 1.2, 3)),
    ),
    Record(
        "pseudo_huber",
        pseudo_huber,
        {
            "body": Region(linear(0.01, 3), linear(-5, 5)),
            "all": Region(log(1e-17, 1e17), both(log(1e-17, 1e17))),
            "far": Region(log(1e-150, 1e150), both(log(1e-150, 1e150))),
        },
        scipy=scipy.special.pseudo_huber,
        arity=2,
        special=PAIRS,
        corrections=[
            *(((INF, r), r * r / 2, "the limit") for r in (1.0, 2.0, -1.0)),
            *(((x, math.nan), math.nan, "NaN stays NaN") for x in (0.0, -0.0)),
            *(((math.nan, x), math.nan, "NaN stays NaN") for x in (0.0, -0.0)),
        ],
        smooth=(linear(0.3, 3), linear(-3, 3)),
    ),
    Record(
        "hypot",
        mpmath.hypot,
        {
            "all": Region(both(log()), log()),
            "body": Region(linear(-5, 5), linear(-5, 5)),
            "subnormal": Region(both(subnormal()), subnormal()),
        },
        scipy=np.hypot,
        arity=2,
        smooth=(linear(-3, 3), linear(0.5, 3)),
    ),
    Record(
        "copysign",
        copysign,
        {
            "all": Region(both(log()), both(log())),
            "subnormal": Region(both(subnormal()), both(subnormal())),
        },
        scipy=np.copysign,
        arity=2,
        smooth=(values(-3, -0.5, 0.7, 2), values(1, -2)),
    ),
    Record(
        "cosm1",
        cosm1,
        {
            "all": Region(both(log(1e-10, 1))),
            "body": Region(linear(-6, 6)),
            "large": Region(linear(10, 1000)),
        },
        scipy=scipy.special.cosm1,
        smooth=(linear(-3, 3),),
    ),
]
