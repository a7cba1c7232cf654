"""The incomplete gamma and beta functions in mpmath: see reference.py.

mpmath's own gammainc and betainc lose accuracy in the tails and are slow for large parameters. This
module therefore sums series of positive terms, with additional digits for the difference from 1,
and integrates the density for large parameters.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import scipy.special
from mpmath import mp, mpf
from special.reference import Record, Region, linear, log, near, subnormal, union, values

LARGE = 20000
"""The parameter from which on integrals replace sums."""


def positive_sum(first, factor):
    """Return first (1 + factor(1) + factor(1) factor(2) + ...), up to negligible terms."""
    # In integers, which are many times faster: numbers in units of 2**-bits.
    bits = mp.prec + 20
    one = 1 << bits
    total = term = one
    for n in range(1, 10**7):
        numerator, denominator = factor(n)
        up, down = (int(mpmath.ldexp(v, bits)) for v in (numerator, denominator))
        term = term * up // down
        if term == 0:
            break
        total += term
    return first * mpmath.ldexp(mpf(total), -bits)


def outer_integral(exponent, width, limit):
    """Return the integral over t from 0 to limit of exp(exponent(t)), over several widths."""
    end = min(limit, 60 * width)
    points = [end * k / 4 for k in range(5)]
    return mpmath.quad(lambda t: mpmath.exp(exponent(t)), points, method="gauss-legendre")


def gamma_parts(a, x):
    """Return P(a, x) and Q(a, x) for a > 0, x > 0; DLMF 8.7.1 and 8.2.4."""
    distance = a * mpmath.log(a / x) + x - a
    if distance > 3000:
        return (mpf(0), mpf(1)) if x < a else (mpf(1), mpf(0))
    digits = 20 + int(2 * mpmath.log10(1 + a + 1 / a))
    if a > LARGE:
        with mp.workdps(mp.dps + 50):
            at = mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a)) / x
            slope = abs(1 - a / x)
            width = 1 / (slope + 1 / mpmath.sqrt(a))
            sign = -1 if x < a else 1
            limit = x if x < a else mpmath.inf
            part = at * outer_integral(
                lambda t: a * mpmath.log1p(sign * t / x) - mpmath.log1p(sign * t / x) - sign * t,
                width,
                limit,
            )
            return (part, 1 - part) if x < a else (1 - part, part)
    if x > a:
        digits += int(distance / 2.3)
    if a < 1:
        digits += int(x / 2.3)
    with mp.workdps(mp.dps + digits):
        first = mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + 1))
        below = positive_sum(first, lambda n: (x, a + n))
        return below, 1 - below


def beta_parts(a, b, x):
    """Return I_x(a, b) and 1 - I_x(a, b) for a > 0, b > 0, 0 < x < 1; DLMF 8.17.7 and 15.8.1."""
    with mp.workdps(3 * mp.dps + 400):
        y = 1 - x
    if x > 0.5:
        below, above = beta_parts_of_small(b, a, y, x)
        return above, below
    return beta_parts_of_small(a, b, x, y)


def beta_parts_of_small(a, b, x, y):
    s = a + b
    distance = -(a * mpmath.log(x * s / a) + b * mpmath.log(y * s / b))
    below = x * s < a
    if distance > 3000:
        return (mpf(0), mpf(1)) if below else (mpf(1), mpf(0))
    digits = 20 + int(2 * mpmath.log10(1 + s + 1 / min(a, b)))
    if a * b / s > LARGE:
        with mp.workdps(mp.dps + 50):
            log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(s)
            at = mpmath.exp(a * mpmath.log(x) + b * mpmath.log(y) - log_beta) / (x * y)
            width = 1 / (abs(a / x - b / y) + mpmath.sqrt(s / (x * y)))
            sign = -1 if below else 1
            part = at * outer_integral(
                lambda t: (
                    (a - 1) * mpmath.log1p(sign * t / x) + (b - 1) * mpmath.log1p(-sign * t / y)
                ),
                width,
                x if below else y,
            )
            return (part, 1 - part) if below else (1 - part, part)
    digits += int(max(distance, 0) / 2.3)
    with mp.workdps(mp.dps + digits):
        log_beta = mpmath.loggamma(a + 1) + mpmath.loggamma(b) - mpmath.loggamma(s)
        first = mpmath.exp(a * mpmath.log(x) + b * mpmath.log(y) - log_beta)
        part = positive_sum(first, lambda n: (x * (s + (n - 1)), a + n))
        return part, 1 - part


def gammainc(a, x):
    return gamma_parts(a, x)[0] if x > 0 else mpf(0)


def gammaincc(a, x):
    return gamma_parts(a, x)[1] if x > 0 else mpf(1)


def betainc(a, b, x):
    return beta_parts(a, b, x)[0] if 0 < x < 1 else x


def betaincc(a, b, x):
    return beta_parts(a, b, x)[1] if 0 < x < 1 else 1 - x


def quantile(x, p, below, tails, density, inner, outer):
    """Return the x at which a tail is p, by Newton's method for its logarithm in inner(x), from x.

    tails(x) returns the two parts, density(x) the derivative of the lower one in that variable.
    """
    u = inner(x)
    for _ in range(100):
        x = outer(u)
        part = tails(x)[0 if below else 1]
        step = part * mpmath.log(p / part) / density(x)
        u += step if below else -step
        if abs(step) < mpf(10) ** (5 - mp.dps) * (1 + abs(u)):
            return outer(u)
    raise ArithmeticError(f"no convergence at {x}")


def gamma_quantile(a, p, below):
    if not 0 < p < 1:
        return None
    if p > 0.5:
        with mp.workdps(2 * mp.dps + 20):
            p = 1 - p
        below = not below
    start = (scipy.special.gammaincinv if below else scipy.special.gammainccinv)(float(a), float(p))
    with mp.workdps(mp.dps + 15):
        if start < 1e-290:  # DLMF 8.7.1
            below_p = p if below else 1 - p
            start = mpmath.exp((mpmath.log(below_p) + mpmath.loggamma(a + 1)) / a)
        return quantile(
            mpf(start),
            p,
            below,
            lambda x: gamma_parts(a, x),
            lambda x: mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a)),
            mpmath.log,
            mpmath.exp,
        )


def beta_quantile(a, b, p, below):
    if not 0 < p < 1:
        return None
    if p > 0.5:
        with mp.workdps(2 * mp.dps + 20):
            p = 1 - p
        below = not below
    if not below:  # from the other end, which is accurate
        with mp.workdps(3 * mp.dps):
            return 1 - beta_quantile(b, a, p, True)
    start = scipy.special.betaincinv(float(a), float(b), float(p))
    if not 1e-290 < start < 1 - 1e-9:  # the middle; SciPy gives no start there
        start = float(a / (a + b))
    log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    with mp.workdps(mp.dps + 15):
        return quantile(
            mpf(start),
            p,
            True,
            lambda x: beta_parts(a, b, x),
            lambda x: mpmath.exp(a * mpmath.log(x) + b * mpmath.log1p(-x) - log_beta),
            lambda x: mpmath.log(x) - mpmath.log1p(-x),
            lambda u: 1 / (1 + mpmath.exp(-u)),
        )


def gammaincinv(a, p):
    return gamma_quantile(a, p, True)


def gammainccinv(a, q):
    return gamma_quantile(a, q, False)


def betaincinv(a, b, p):
    return beta_quantile(a, b, p, True)


def betainccinv(a, b, q):
    return beta_quantile(a, b, q, False)


# Points -------------------------------------------------------------------------------------------


def paired(low, high, x_of, share=1.0, seed=0):
    """Return a from low to high by logarithm, and x = x_of(a, u) for standard normal u.

    share: The fraction of the requested points, for slow exact values.
    """

    def points(count, format):
        count = int(count * share)
        random = np.random.default_rng(seed)
        high_here = max(low, min(high, format.max / 16))
        if high_here > format.max:
            return np.empty(0), np.empty(0)
        a = format.round(10 ** random.uniform(np.log10(low), np.log10(high_here), count))
        x = format.round(np.abs(x_of(a, random.normal(size=count))))
        keep = (a > 0) & (x > 0) & (a < format.max / 8) & (x < format.max / 8)
        return a[keep], x[keep]

    return points


def beta_points(low, high, spread, share=1.0, seed=0):
    """Return a and b from low to high by logarithm, and x near the middle of the distribution."""

    def points(count, format):
        count = int(count * share)
        random = np.random.default_rng(seed)
        high_here = max(low, min(high, format.max / 16))
        if high_here > format.max:
            return np.empty(0), np.empty(0), np.empty(0)
        exponents = random.uniform(np.log10(low), np.log10(high_here), (2, count))
        a, b = format.round(10**exponents)
        middle = a / (a + b)
        deviation = np.sqrt(middle * (1 - middle) / (a + b + 1))
        x = format.round(middle + spread * deviation * random.normal(size=count))
        keep = (a > 0) & (b > 0) & (x > 0) & (x < 1)
        return a[keep], b[keep], x[keep]

    return points


TAIL = "the result is a power of the arguments with large exponents"


def gamma_regions():
    return {
        "small": Region(log(1e-6, 12), log(1e-6, 20), conditioned=TAIL),
        "small a": Region(log(1e-3, 1), linear(0.5, 8), conditioned=TAIL),
        "tiny": Region(log(1e-30, 1e-3), log(1e-30, 1), conditioned=TAIL),
        "branches": Region(near(1, 2, 8, 12), near(1, 2, 3, 9, 12, 13), conditioned=TAIL),
        "middle": Region(paired(1, 5000, lambda a, u: a + 2 * np.sqrt(a) * u), conditioned=TAIL),
        "tails": Region(paired(0.01, 1000, lambda a, u: a * 10**u), conditioned=TAIL),
        "zeta 1": Region(
            paired(12, 200, lambda a, u: a * np.where(u < 0, 0.3017, 2.3577) * (1 + 1e-3 * u)),
            conditioned=TAIL,
        ),
        "large": Region(
            paired(3e4, 1e12, lambda a, u: a + 3 * np.sqrt(a) * u, 0.2), conditioned=TAIL
        ),
        "subnormal": Region(values(1e-3, 0.5, 1, 3), subnormal(), conditioned=TAIL),
    }


def beta_regions():
    return {
        "small": Region(log(1e-5, 8), log(1e-5, 8), linear(0.001, 0.999), conditioned=TAIL),
        "unequal": Region(log(0.01, 10), log(10, 5000), log(1e-5, 0.9), conditioned=TAIL),
        "small a": Region(log(1e-3, 1), log(3, 100), linear(0.01, 0.4), conditioned=TAIL),
        "ends": Region(
            log(0.01, 20),
            log(0.01, 20),
            union(log(1e-30, 0.1), linear(0.99, 0.9999)),
            conditioned=TAIL,
        ),
        "branches": Region(
            near(1, 8, 12), near(1, 2, 8, 12, 24), near(0.3, 0.5, 0.7), conditioned=TAIL
        ),
        "middle": Region(beta_points(1, 5000, 2), conditioned=TAIL),
        "tails": Region(beta_points(0.5, 500, 10), conditioned=TAIL),
        "large": Region(beta_points(1e5, 1e10, 3, 0.2), conditioned=TAIL),
    }


NOT_TWICE = ((0, 0),)
BETA_ONCE = ((0, 0), (0, 1), (1, 0), (1, 1))
GAMMA_SMOOTH = (linear(0.3, 30), linear(0.5, 40))
BETA_SMOOTH = (linear(0.5, 20), linear(0.5, 20), linear(0.05, 0.95))
BETA_SPECIAL = [
    (a, b, x)
    for a in (0.0, -0.0, 1.0, 2.5, -1.0, np.inf, np.nan)
    for b in (0.0, 1.0, 3.5, -1.0, np.inf, np.nan)
    for x in (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, np.nan)
]
NAN = "SciPy takes the limit before it looks at a NaN"
NAN_CORRECTIONS = [
    (point, np.nan, NAN) for point in BETA_SPECIAL if any(np.isnan(v) for v in point)
]
# In float32, formulas of MLX's log and digamma, whose difference cancels.
GRADIENT = {"float32": 1e-4, "float64": 2e-6}

STEEP = "the result is a power of the arguments"
PROBABILITY = union(log(1e-12, 0.5), linear(0.05, 0.99))


def gamma_quantiles():
    return {
        "small": Region(log(0.1, 12), PROBABILITY, conditioned=STEEP),
        "middle": Region(log(2, 1000), PROBABILITY, conditioned=STEEP),
        "tails": Region(log(0.5, 100), log(1e-30, 0.1), conditioned=STEEP),
        "large": Region(log(1e3, 1e4), linear(0.01, 0.9), conditioned=STEEP),
    }


def beta_quantiles():
    return {
        "small": Region(log(0.1, 8), log(0.1, 8), PROBABILITY, conditioned=STEEP),
        "middle": Region(log(1, 500), log(1, 500), PROBABILITY, conditioned=STEEP),
        "tails": Region(log(0.5, 50), log(0.5, 50), log(1e-30, 0.1), conditioned=STEEP),
    }


GAMMA_ENDS = [
    *((a, p) for a in (0.5, 2.0) for p in (0.0, 1.0, -0.5, 1.5, math.nan)),
    *((0.0, 0.5), (-1.0, 0.5), (math.inf, 0.5), (math.nan, 0.5)),
]
BETA_ENDS = [
    *((0.5, 2.0, p) for p in (0.0, 1.0, -0.5, 1.5, math.nan)),
    *((0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (-1.0, 1.0, 0.5), (math.nan, 1.0, 0.5)),
    *((math.inf, 1.0, 0.5), (1.0, math.inf, 0.5)),
]
QUANTILE_SMOOTH = (linear(0.5, 20), linear(0.05, 0.95))
# Above the mode, where the second derivative in p has a zero.
BETA_QUANTILE_SMOOTH = (linear(0.6, 15), linear(0.6, 15), linear(0.6, 0.95))

RECORDS = [
    Record(
        "gammainc",
        gammainc,
        gamma_regions(),
        scipy=scipy.special.gammainc,
        arity=2,
        smooth=GAMMA_SMOOTH,
        once=NOT_TWICE,
        gradient=GRADIENT,
    ),
    Record(
        "gammaincc",
        gammaincc,
        gamma_regions(),
        scipy=scipy.special.gammaincc,
        arity=2,
        smooth=GAMMA_SMOOTH,
        once=NOT_TWICE,
        gradient=GRADIENT,
    ),
    Record(
        "betainc",
        betainc,
        beta_regions(),
        scipy=scipy.special.betainc,
        arity=3,
        special=BETA_SPECIAL,
        corrections=NAN_CORRECTIONS,
        smooth=BETA_SMOOTH,
        once=BETA_ONCE,
        gradient=GRADIENT,
    ),
    Record(
        "betaincc",
        betaincc,
        beta_regions(),
        scipy=scipy.special.betaincc,
        arity=3,
        special=BETA_SPECIAL,
        corrections=NAN_CORRECTIONS,
        smooth=BETA_SMOOTH,
        once=BETA_ONCE,
        gradient=GRADIENT,
    ),
    Record(
        "gammaincinv",
        gammaincinv,
        gamma_quantiles(),
        scipy=scipy.special.gammaincinv,
        arity=2,
        special=GAMMA_ENDS,
        smooth=QUANTILE_SMOOTH,
        once=NOT_TWICE,
        gradient=GRADIENT,
    ),
    Record(
        "gammainccinv",
        gammainccinv,
        gamma_quantiles(),
        scipy=scipy.special.gammainccinv,
        arity=2,
        special=GAMMA_ENDS,
        smooth=QUANTILE_SMOOTH,
        once=NOT_TWICE,
        gradient=GRADIENT,
    ),
    Record(
        "betaincinv",
        betaincinv,
        beta_quantiles(),
        scipy=scipy.special.betaincinv,
        arity=3,
        special=BETA_ENDS,
        smooth=BETA_QUANTILE_SMOOTH,
        once=BETA_ONCE,
        gradient=GRADIENT,
    ),
    Record(
        "betainccinv",
        betainccinv,
        beta_quantiles(),
        scipy=scipy.special.betainccinv,
        arity=3,
        special=BETA_ENDS,
        smooth=BETA_QUANTILE_SMOOTH,
        once=BETA_ONCE,
        gradient=GRADIENT,
    ),
]
