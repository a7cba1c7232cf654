"""Bessel functions in mpmath: see reference.py."""

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


def digits(function):
    """Return the function, computed with additional digits for large arguments."""

    def exact(x):
        more = max(0, int(mpmath.log10(abs(x)))) if x else 0
        with mpmath.workdps(mpmath.mp.dps + more):
            return +function(x)

    return exact


def scaled(function, sign):
    """Return the function times e^|x| or e^-|x|."""
    return lambda x: function(x) * mpmath.exp(sign * abs(x))


def i(n):
    return lambda x: mpmath.besseli(n, x)


def integral(v, x):
    """e^x K_v(x) for x > 0, by the trapezoidal rule (DLMF 10.32.9): quicker than mpmath."""
    with mpmath.workdps(mpmath.mp.dps + 10):
        v = abs(v)
        # Its error is e^(-pi^2 / step), or e^(-2 pi^2 / (x step^2)) if that is larger.
        digits = mpmath.mp.dps * mpmath.log(10)
        step = min(mpmath.pi**2 / digits, mpmath.pi * mpmath.sqrt(2 / (digits * max(v, x, 1))))
        peak, small = mpmath.asinh(v / x), mpmath.eps
        total, t = mpmath.mpf("0.5"), step
        while True:
            term = mpmath.exp(-2 * x * mpmath.sinh(t / 2) ** 2) * mpmath.cosh(v * t)
            total += term
            if t > peak and term < small * total:
                return total * step
            t += step


def kve(v, x):
    if x > 0.5:
        return integral(v, x)
    return mpmath.besselk(v, x) * mpmath.exp(x) if x > 0 else None


def kv(v, x):
    return kve(v, x) * mpmath.exp(-x) if x > 0 else None


def k(n):
    return lambda x: kv(n, x)


def j(n):
    return digits(lambda x: mpmath.besselj(n, x))


def y(n):
    def exact(x):
        if x < 100:
            return mpmath.bessely(n, x) if x > 0 else None
        # DLMF 10.17.4, which mpmath sums slowly; the terms fall below 1e-80.
        term, total, k = mpmath.mpc(1), mpmath.mpc(1), 0
        while abs(term) > mpmath.eps:
            k += 1
            term *= mpmath.j * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * x)
            total += term
        angle = x - mpmath.pi / 4 - n * mpmath.pi / 2
        return mpmath.sqrt(2 / (mpmath.pi * x)) * mpmath.im(total * mpmath.expj(angle))

    return digits(exact)


J_ZEROS = {n: near(*(float(mpmath.besseljzero(n, m)) for m in (1, 2, 3, 10, 100))) for n in (0, 1)}
Y_ZEROS = {n: near(*(float(mpmath.besselyzero(n, m)) for m in (1, 2, 3, 10, 100))) for n in (0, 1)}
ZERO = "near the zeros"
OSCILLATING = "the zeros are everywhere"

# SciPy returns NaN there.
AT_INFINITY = "the limit"


def limits(negative, positive):
    """Corrections at both infinities."""
    return (((-math.inf,), negative, AT_INFINITY), ((math.inf,), positive, AT_INFINITY))


def modified_first(n):
    """Records of I_n and e^-|x| I_n."""
    edges = near(5, -5, 8, -8)
    odd = [((-0.0,), -0.0, "the function is odd")] if n else []
    return [
        Record(
            f"i{n}",
            i(n),
            {
                "middle": Region(linear(-40, 40)),
                "large": Region(both(log(1, 700))),
                "tiny": Region(both(log(None, 1))),
                "branches": Region(edges),
                "subnormal": Region(both(subnormal())),
                "overflow": Region(near(crossing(i(n), 10, 800))),
            },
            scipy=getattr(scipy.special, f"i{n}"),
            corrections=[*limits(math.inf if n == 0 else -math.inf, math.inf), *odd],
            smooth=(linear(-12, 12),),
        ),
        Record(
            f"i{n}e",
            scaled(i(n), -1),
            {
                "middle": Region(linear(-40, 40)),
                "large": Region(both(log(1))),
                "tiny": Region(both(log(None, 1))),
                "branches": Region(edges),
                "subnormal": Region(both(subnormal())),
            },
            scipy=getattr(scipy.special, f"i{n}e"),
            corrections=odd,
            smooth=(union(linear(-12, -0.1), linear(0.1, 12)),),
        ),
    ]


def modified_second(n):
    """Records of K_n and e^x K_n."""
    return [
        Record(
            f"k{n}",
            k(n),
            {
                "middle": Region(linear(0.01, 40)),
                "large": Region(log(1, 700)),
                "tiny": Region(log(None, 1)),
                "branches": Region(near(1)),
                "subnormal": Region(subnormal()),
                "underflow": Region(
                    near(*(crossing(k(n), 10, 800, e) for e in ("tiny", "smallest")))
                ),
            },
            scipy=getattr(scipy.special, f"k{n}"),
            smooth=(linear(0.2, 12),),
        ),
        Record(
            f"k{n}e",
            lambda x: scaled(k(n), 1)(x) if x > 0 else None,
            {
                "middle": Region(linear(0.01, 40)),
                "large": Region(log(1)),
                "tiny": Region(log(None, 1)),
                "branches": Region(near(1)),
                "subnormal": Region(subnormal()),
            },
            scipy=getattr(scipy.special, f"k{n}e"),
            smooth=(linear(0.2, 12),),
        ),
    ]


def first(n):
    """Record of J_n."""
    return Record(
        f"j{n}",
        j(n),
        {
            "middle": Region(linear(-40, 40), conditioned=ZERO),
            "large": Region(both(log(1)), conditioned=OSCILLATING),
            "tiny": Region(both(log(None, 1))),
            "zeros": Region(J_ZEROS[n], conditioned=ZERO),
            "branches": Region(near(3, -3)),
            "subnormal": Region(both(subnormal())),
        },
        scipy=getattr(scipy.special, f"j{n}"),
        corrections=limits(0.0 if n == 0 else -0.0, 0.0),
        smooth=(linear(-12, 12),),
    )


def second(n):
    """Record of Y_n."""
    return Record(
        f"y{n}",
        y(n),
        {
            "middle": Region(linear(0.01, 40), conditioned=ZERO),
            "large": Region(log(1), conditioned=OSCILLATING),
            "tiny": Region(log(None, 0.5)),
            "zeros": Region(Y_ZEROS[n], conditioned=ZERO),
            "branches": Region(near(3)),
            "subnormal": Region(subnormal()),
        },
        scipy=getattr(scipy.special, f"y{n}"),
        corrections=limits(math.nan, 0.0)[1:],
        smooth=(linear(0.3, 12),),
    )


def iv(v, x):
    return mpmath.besseli(v, x) if x > 0 or v == int(v) else None


def ive(v, x):
    value = iv(v, x)
    return None if value is None else value * mpmath.exp(-abs(x))


ORDER = "as much as the order's last digit changes"
GRID = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)
PLACES = [(v, x) for v in GRID for x in GRID] + [
    (v, x) for v in (0.5, -0.5, -1.5, 3.0, -2.0) for x in (0.0, -1.0, 2.0, math.inf, -math.inf)
]


def infinite_arguments(value):
    """Corrections of I_v(x) at infinite x, where it has a limit."""
    orders = [0.0, -0.0, 1.0, -1.0, 3.0, -2.0]
    return [
        *(((v, math.inf), value, AT_INFINITY) for v in [*orders, 0.5, -0.5, -1.5]),
        *(((v, -math.inf), -value if v % 2 else value, AT_INFINITY) for v in orders),
    ]


def of_orders(name, exact, corrections):
    """Record of a function of order and argument."""
    both_signs = {"negative argument": Region(integers(0, 20), negative(log(0.1, 50)))}
    return Record(
        name,
        exact,
        {
            "small order": Region(linear(0, 10), linear(0.1, 40), conditioned=ORDER),
            "order": Region(linear(0, 60), linear(0.1, 60), conditioned=ORDER),
            "small argument": Region(linear(0, 4), log(1e-6, 1), conditioned=ORDER),
            "large argument": Region(linear(0, 40), log(20, 1e4), conditioned=ORDER),
            "large": Region(log(1, 1e3), log(1, 1e3), conditioned=ORDER),
            "integers": Region(integers(0, 40), log(0.1, 100), conditioned=ORDER),
            "negative order": Region(linear(-40, 0), log(0.1, 60), conditioned=ORDER),
            "half orders": Region(near(0.5, 1.5, 2.5), linear(0.1, 10), conditioned=ORDER),
            "branches": Region(near(12, 30), near(2, 8, 14, 25), conditioned=ORDER),
            **(both_signs if name[0] == "i" else {}),
        },
        scipy=getattr(scipy.special, name),
        arity=2,
        special=PLACES,
        corrections=corrections,
        smooth=(linear(0, 12), linear(0.5, 12)),
        undifferentiable=(0,),
    )


LARGE_ORDER = "its limit for large orders"
UNKNOWN = "an argument is unknown"
RIGHT = "the limit from the right"

ORDERS = [
    of_orders("iv", iv, [*infinite_arguments(math.inf), ((-1.5, 0.0), -math.inf, RIGHT)]),
    of_orders(
        "ive",
        ive,
        [
            *infinite_arguments(0.0),
            *(
                ((v, x), 0.0, LARGE_ORDER)
                for v in (math.inf, -math.inf)
                for x in (0.0, -0.0, 1.0, -1.0)
            ),
            ((-0.5, 0.0), math.inf, RIGHT),
            ((-1.5, 0.0), -math.inf, RIGHT),
        ],
    ),
    of_orders(
        "kv",
        kv,
        [
            *(((v, 1.0), math.inf, LARGE_ORDER) for v in (math.inf, -math.inf)),
            *(((math.nan, x), math.nan, UNKNOWN) for x in (0.0, -0.0)),
        ],
    ),
    of_orders(
        "kve",
        kve,
        [
            *(((v, 1.0), math.inf, LARGE_ORDER) for v in (math.inf, -math.inf)),
            *(((math.nan, x), math.nan, UNKNOWN) for x in (0.0, -0.0)),
            *(
                ((v, math.inf), 0.0, AT_INFINITY)
                for v in (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, -1.5, 3.0, -2.0)
            ),
        ],
    ),
]

AIRY_ZEROS = [
    near(*(float(zero(m, derivative)) for m in (1, 2, 3, 10, 100)))
    for zero in (mpmath.airyaizero, mpmath.airybizero)
    for derivative in (0, 1)
]


def airy(output):
    """Record of Ai, Ai', Bi or Bi'."""
    function = mpmath.airyai if output < 2 else mpmath.airybi
    exact = digits(lambda x: function(x, derivative=output % 2))
    edges = {e: near(crossing(exact, 2, 120, e)) for e in ("max", "tiny", "smallest")}
    edge = edges["max"] if output >= 2 else union(edges["tiny"], edges["smallest"])
    return Record(
        "airy",
        exact,
        {
            "small": Region(linear(-2, 2), conditioned=ZERO),
            "positive": Region(linear(2, 25)),
            "large": Region(log(2, 100), conditioned="the argument of exp is as large as 700"),
            "negative": Region(linear(-40, -2), conditioned=ZERO),
            "far": Region(negative(log(2, 1e5)), conditioned=OSCILLATING),
            "zeros": Region(AIRY_ZEROS[output], conditioned=ZERO),
            "branches": Region(near(-2, 2, 5), conditioned=ZERO),
            "edge": Region(edge, conditioned="the argument of exp is as large as 700"),
            "subnormal": Region(both(subnormal())),
        },
        scipy=lambda x: scipy.special.airy(x)[output],
        output=output,
        corrections=[((math.inf,), (0.0, -0.0, math.inf, math.inf)[output], AT_INFINITY)],
        smooth=(union(linear(-6, -0.2), linear(0.2, 4)),),
    )


RECORDS = [
    *(record for n in (0, 1) for record in modified_first(n) + modified_second(n)),
    *(function(n) for n in (0, 1) for function in (first, second)),
    *ORDERS,
    *(airy(output) for output in range(4)),
]
