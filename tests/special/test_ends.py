"""Functions and derivatives at the ends of the range of float64, and where terms cancel.

Numerical derivatives of mpmath's functions are the exact values. A scan of all exponents finds
results that are NaN where the function is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import mlx.core as mx
import mpmath
import numpy as np
import pytest
from special.domains import defined, exponents
from special.records import RECORDS
from special.reference import FORMATS, Record

from mlxgen.testing import metal_backend, to_numpy

RTOL = 1e-12  # of derivatives, in float64
DOUBLE, SINGLE = FORMATS["float64"], FORMATS["float32"]


@pytest.fixture(autouse=True)
def device():
    """The CPU, because only it has float64."""
    with mx.stream(mx.cpu):
        yield mx.cpu


# Points: a record, the arguments, the orders of the derivative; without orders, the function.
POINTS = [
    # underflow and overflow in a step, but not in the result
    ("boxcox", (143.136, 143.136), ()),
    ("boxcox", (143.136, 143.136), (0, 1)),
    ("boxcox", (143.136, 143.136), (1, 1)),
    ("boxcox", (1e-300, 1e-17), (0, 1)),
    ("boxcox1p", (1e-308, 1e-16), ()),
    ("boxcox1p", (1e-17, 1e17), (1, 0)),
    ("boxcox1p", (1e-17, 1e17), (1, 1)),
    ("boxcox1p", (3e-5, 2.38e7), (0, 1)),
    ("inv_boxcox", (1e200, 1e200), ()),
    ("inv_boxcox", (2e154, 0.5), (1, 0)),
    ("inv_boxcox1p", (1e200, 1e200), ()),
    ("inv_boxcox", (1e200, 2.0), (0, 2)),
    ("inv_boxcox", (1e120, 1e5), (0, 2)),
    ("inv_boxcox", (0.7, 0.9), (0, 2)),
    ("inv_boxcox1p", (1e308, 1e10), (0, 2)),
    ("inv_boxcox1p", (-1e-200, 1e-200), (0, 2)),
    ("boxcox1p", (8e-306, 1e308), ()),
    ("exprel", (712.0,), (1,)),
    ("exprel", (714.0,), (2,)),
    ("log1mexp", (-370.0,), (2,)),
    ("log1mexp", (-700.0,), (2,)),
    ("log_ndtr", (-1.5e154,), ()),
    ("log_ndtr", (27.0,), (2,)),
    ("log_ndtr", (-1e170,), (2,)),
    ("sinc", (1e308,), ()),
    ("sinc", (1e-3,), (3,)),
    ("sinc", (1e-5,), (4,)),
    ("sinc", (0.45,), (4,)),
    ("hypot", (1e200, 1e180), (2, 0)),
    ("hypot", (1e-200, 3e-200), (1, 1)),
    ("pseudo_huber", (1e-200, 1e-200), (1, 0)),
    ("xlogy", (1e-200, 1e-200), (0, 2)),
    ("xlog1py", (1e300, 1e200), (0, 2)),
    ("rel_entr", (1e-200, 1e-200), (0, 2)),
    ("kl_div", (1e-200, 1e-180), (0, 2)),
    ("kv", (0.3, 5e-324), ()),
    ("iv", (0.3, 5e-324), ()),
    ("iv", (0.7, 5e-324), ()),
    ("poch", (1e-300, 1e-31), ()),
    ("poch", (1e-310, -3e-311), ()),
    # canceling terms
    ("expm1", (-30.0,), (1,)),
    ("expm1", (-30.0,), (2,)),
    ("expit", (1e-9,), (2,)),
    ("logit", (0.5 - 2.0**-54,), (2,)),
    ("kl_div", (1e-20, 1.0), (0, 2)),
    ("hypot", (1e10, 1.0), (2, 0)),
    ("pseudo_huber", (1.0, 1e10), (0, 2)),
    ("pseudo_huber", (1e10, 1.0), (1, 1)),
    ("pseudo_huber", (1e10, 1.0), (2, 0)),
    ("inv_boxcox", (0.5, 1 + 1e-10), (2, 0)),
    ("inv_boxcox1p", (-1e8, 0.0), ()),
    ("inv_boxcox1p", (-50.0, 0.0), (1, 0)),
    ("inv_boxcox1p", (-0.5, 1.5), (1, 0)),
    ("cosm1", (1.3,), (1,)),
    ("cosm1", (3.0,), (2,)),
    ("j1", (1e-15,), (2,)),
    ("j1", (1e-3,), (2,)),
    ("j1", (7.3,), (2,)),
    ("j0", (1e-15,), (3,)),
    ("j0", (2.9,), (3,)),
    ("betaln", (-1.0704761241503945e8, 1.33e-7), (1, 0)),
    ("betaln", (-1.0704761241503945e8, 1.33e-7), (2, 0)),
    ("betaln", (-0.002590241614943822, -4.29e-29), (1, 0)),
    ("betaln", (-2.3, -4.1), (1, 0)),
    ("betaln", (-2.3, -4.1), (2, 0)),
    ("poch", (1e-15, -3.0), ()),
    ("poch", (1e-15, -3.0), (1, 0)),
    ("poch", (1e-15, -3.0), (0, 1)),
    ("poch", (-5.0000001, 1e-9), ()),
    ("poch", (-2.3, -1.2), (1, 0)),
    ("poch", (-2.3, 4.1), (1, 0)),
    ("poch", (-2.0, 4.1), (1, 0)),
    ("poch", (-2.0, -1.3), (1, 0)),
    ("poch", (-3.0, 2.0), (1, 0)),
    ("betaln", (1e-15, -3.3), (1, 0)),
    ("betaln", (-2.3, 4.1), (1, 0)),
    ("betaln", (-2.3, 4.1), (2, 0)),
    ("binom", (1e-12, 1.0), ()),
    ("binom", (1e-17, 1.0), ()),
    ("binom", (-1e-12, 2.0), ()),
    ("beta", (-2.3, 1.2), (1, 0)),
    ("beta", (-2.3, -1.2), (1, 0)),
    ("betaln", (1e10, 1.0), (2, 0)),
    ("betaln", (1e8, 1e-3), (2, 0)),
    *(
        (name, (x,), (n,))
        for name in ("i0e", "i1e", "k0e", "k1e")
        for x in (1e-5, 3.0, 30.0, 1e9)
        for n in (1, 2)
    ),
    *(
        (name, (2.5, x), (0, n))
        for name in ("ive", "kve")
        for x in (3.0, 30.0, 1e9)
        for n in (1, 2)
    ),
]


def difference(record: Record, point: list[mpmath.mpf], orders: tuple[int, ...]) -> mpmath.mpf:
    """Return the derivative at a point by central differences, with steps relative to it."""
    for i, n in enumerate(orders):
        if n:
            lower = (*orders[:i], n - 1, *orders[i + 1 :])
            step = (abs(point[i]) or 1) * mpmath.mpf(10) ** -25
            low, high = ([*point[:i], point[i] + s, *point[i + 1 :]] for s in (-step, step))
            return (difference(record, high, lower) - difference(record, low, lower)) / (2 * step)
    return record.exact(*record.head, *point)


def exact(name: str, point: tuple[float, ...], orders: tuple[int, ...]) -> float:
    """Return the exact value, with digits for the smallest argument and all differences."""
    size = max(abs(int(np.log10(abs(x)))) for x in point if x)
    with mpmath.workdps(60 + 30 * sum(orders) + (sum(orders) + 1) * size):
        return float(difference(RECORDS[name], [mpmath.mpf(x) for x in point], orders))


def derivative(function: Callable[..., mx.array], orders: tuple[int, ...]):
    """Return the derivative of a function of arrays, element by element."""
    for i, n in enumerate(orders):
        for _ in range(n):
            function = mx.grad(lambda *x, f=function: f(*x).sum(), argnums=i)
    return function


def values(name: str, orders: tuple[int, ...], points: np.ndarray, format=DOUBLE) -> np.ndarray:
    """Return our function or its derivative at the rows of an array."""
    record = RECORDS[name]
    function = derivative(lambda *x: record.call(record.head, *x), orders)
    return to_numpy(function(*(format.array(x) for x in points.T)))


@pytest.mark.parametrize(("name", "point", "orders"), POINTS)
def test_values(name, point, orders):
    (got,) = values(name, orders, np.array([point]))
    np.testing.assert_allclose(got, exact(name, point, orders), rtol=RTOL)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", ["i0e", "i1e", "k0e", "k1e", "ive", "kve"])
def test_expansions_do_not_diverge(name, n):
    """Hankel's expansion of a derivative is used from 14 on in float32, from 25 on in float64."""
    x = SINGLE.round(np.linspace(14, 30, 200))
    points, orders = x[:, None], (n,)
    if name in ("ive", "kve"):
        points, orders = np.stack([np.ones_like(x), x], axis=1), (0, n)
    got, double = (values(name, orders, points, format) for format in (SINGLE, DOUBLE))
    np.testing.assert_allclose(got, double, rtol=1e-6)
    wanted = [exact(name, tuple(p), orders) for p in points[x >= 25][::30]]
    np.testing.assert_allclose(double[x >= 25][::30], wanted, rtol=RTOL)


# Limits: where the formula of the derivative, or the function in mpmath, has none.
LIMITS = [
    ("zeta[Riemann]", (-1e-310,), (), -0.5),
    ("zeta", (1e30, 1e18), (), 0.0),
    ("kve", (0.0, 1.134e17), (), float(np.sqrt(np.pi / 2 / 1.134e17))),
    ("kv", (0.0, 5e-324), (), 744.5560034370395),  # log(2 / x) - euler
    ("poch", (0.0, 2.5), (1, 0), 1.329340388179137),  # gamma(2.5)
    ("poch", (-1.0, 0.5), (1, 0), 3.5449077018110318),  # -gamma(-0.5)
    ("poch", (-2.0, 3.0), (1, 0), 2.0),
    ("poch", (-5.0, 2.0), (1, 0), -9.0),
    ("beta", (-0.5, 0.5), (1, 0), -2 * np.pi),
    ("beta", (0.5, -1.5), (0, 1), -4 * np.pi / 3),
    ("beta", (-0.5, -0.5), (1, 0), -4 * np.pi),
    ("erf", (1e308,), (2,), 0.0),
    ("sinc", (-1e307,), (1,), -1e-307),
    ("rgamma", (np.inf,), (1,), 0.0),
    ("logaddexp2", (-np.inf, -np.inf), (1, 0), 0.5),
    ("logaddexp2", (np.inf, np.inf), (0, 1), 0.5),
    ("logaddexp2", (3.0, 3.0), (2, 0), np.log(2) / 4),
    ("logaddexp2", (np.inf, np.inf), (2, 0), np.log(2) / 4),
    ("logaddexp2", (-np.inf, -np.inf), (1, 1), -np.log(2) / 4),
    ("logaddexp2", (np.inf, -np.inf), (2, 0), 0.0),
    ("hypot", (np.inf, 2.0), (1, 0), 1.0),
    ("hypot", (-np.inf, 2.0), (1, 0), -1.0),
    ("hypot", (2.0, np.inf), (1, 0), 0.0),
    ("hypot", (2.0, np.inf), (2, 0), 0.0),
    ("hypot", (np.inf, 2.0), (1, 1), 0.0),
    ("hypot", (np.inf, np.inf), (1, 0), np.nan),  # depends on the direction
    ("pseudo_huber", (np.inf, 2.0), (1, 0), 0.0),
    ("pseudo_huber", (np.inf, -2.0), (0, 1), -2.0),
    ("pseudo_huber", (np.inf, 2.0), (0, 2), 1.0),
    ("pseudo_huber", (2.0, np.inf), (1, 0), np.inf),
    ("pseudo_huber", (2.0, -np.inf), (0, 1), -2.0),
    ("pseudo_huber", (2.0, np.inf), (2, 0), -2.0),
    ("pseudo_huber", (1e200, 1e-200), (0, 1), 1e-200),
    ("kl_div", (2.0, np.inf), (0, 1), 1.0),
    ("gammainc", (3.0, 0.0), (0, 2), 0.0),
    ("gammainc", (2.0, 0.0), (0, 2), 1.0),
    ("gammainc", (1.5, 0.0), (0, 2), np.inf),
    ("gammaincc", (1.0, 0.0), (0, 2), 1.0),
    ("gammaincc", (0.5, 0.0), (0, 2), np.inf),
    ("gammainc", (3.0, 1e-200), (0, 2), 1e-200),
    ("gammainc", (3.0, 0.0), (1, 1), 0.0),
    ("gammainc", (2.0, np.inf), (1, 1), 0.0),
    ("gammainc", (0.0, 1.0), (1, 1), np.exp(-1)),
    ("gammainc", (1e-300, 1.0), (1, 1), np.exp(-1)),
    ("gammainccinv", (1.0, 1.0), (0, 2), 1.0),
    ("betaincinv", (1.0, 2.0, 0.0), (0, 0, 2), 0.25),
    ("betainccinv", (2.0, 1.0, 0.0), (0, 0, 2), -0.25),
    ("erfinv", (1.0,), (2,), np.inf),
    ("erfcinv", (0.0,), (2,), np.inf),
    ("ndtri", (0.0,), (2,), -np.inf),
    ("sinc", (5e-324,), (2,), -(np.pi**2) / 3),
    ("k0", (-0.0,), (2,), np.inf),
    ("k1", (-0.0,), (1,), -np.inf),
    ("k1", (-0.0,), (2,), np.inf),
    ("entr", (-0.0,), (2,), -np.inf),
    ("logit", (-0.0,), (1,), np.inf),
    ("y0", (-0.0,), (2,), -np.inf),
    ("y1", (-0.0,), (1,), np.inf),
    ("zeta", (1e300, 1.5), (0, 2), 0.0),
    ("airy[0]", (200.0,), (1,), 0.0),
    ("airy[1]", (np.inf,), (1,), 0.0),
    ("airy[2]", (-2.0,), (1,), 0.2787951669211852),
]


@pytest.mark.parametrize(("name", "point", "orders", "wanted"), LIMITS)
def test_limits(name, point, orders, wanted):
    (got,) = values(name, orders, np.array([point]))
    np.testing.assert_allclose(got, wanted, rtol=RTOL)


def test_large_arguments_of_orders():
    """The continued fraction of K_v loses accuracy from 1e16 on."""
    x = np.geomspace(1e9, 1e19, 500)
    for v in (0.0, 0.3, 0.5, 1.0, 2.7):
        points = np.stack([np.full_like(x, v), x], axis=1)
        square = 4 * v * v
        wanted = np.sqrt(np.pi / (2 * x)) * (1 + (square - 1) / (8 * x))
        np.testing.assert_allclose(values("kve", (), points), wanted, rtol=1e-14)


# Zeros and poles of quotients of gamma functions, and points close to them, in both dtypes.
BOTH = ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2))
QUOTIENTS = [
    ("binom", (3.0, 15.0), BOTH),
    ("binom", (3.0, -2.0), BOTH),
    ("binom", (-2.5, 3.0), BOTH),
    ("binom", (-2.5, -3.0), BOTH),
    ("binom", (-2.5, -5.5), BOTH),
    ("binom", (2.5, 4.5), BOTH),
    ("binom", (0.5, 2.0**-100), BOTH),
    ("binom", (2.0**-100, 1.5), BOTH),
    ("binom", (-0.9375, 11758496.0), BOTH),
    ("binom", (0.375, -2465811.0), BOTH),
    ("binom", (2.0**100, 2.0), BOTH),
    ("beta", (-3.0, 2.0), ((1, 0), (2, 0))),
    ("beta", (-15.0, 1.0), ((1, 0), (2, 0))),
    ("beta", (-2.5, 1.0), BOTH),
    ("beta", (-1.5, 0.5), BOTH),
    ("beta", (-0.5, -1.5), BOTH),
    ("beta", (4.5, -6.5), BOTH),
    ("beta", (2.0**-100, 1.5), ((1, 1),)),
    ("beta", (2.0**-100, -1.5), ((1, 1),)),
    ("betaln", (-3.0, 2.0), ((1, 0), (2, 0))),
    ("betaln", (1.0, -1.0), ((0, 1), (0, 2))),
    ("poch", (-2.0, 0.5), ((1, 0), (2, 0), (1, 1))),
    ("poch", (-5.0, 2.0), ((1, 0), (2, 0))),
    ("poch", (0.0, 3.0), ((1, 0), (2, 0), (1, 1))),
    ("poch", (-2.5, -1.25), BOTH),
    ("poch", (-2.5, 4.5), BOTH),
    ("poch", (2.0**-100, 2.5), ((1, 0), (2, 0))),
    ("poch", (2.0**-100, -2.5), BOTH),
    ("poch", (8.13646603, -65766780.0), ((0, 2),)),
    ("poch", (1.02336726e-08, 25.6140347), ((2, 0),)),
]


@pytest.mark.parametrize(
    ("name", "point", "orders"), [(n, p, o) for n, p, orders in QUOTIENTS for o in orders]
)
def test_quotients_of_gamma_functions(name, point, orders):
    if metal_backend() and point[0] > 1e19 and orders == (2, 0):
        pytest.skip("1 / n**2 is 0 in the floats of Metal")
    point = tuple(SINGLE.round(point))
    wanted = exact(name, point, orders)
    for format, rtol in (SINGLE, 2e-5), (DOUBLE, RTOL):
        (got,) = values(name, orders, np.array([point]), format)
        with np.errstate(over="ignore"):
            expected = np.float32(wanted) if format is SINGLE else wanted
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-37, err_msg=format.name)


@pytest.mark.parametrize("format", [SINGLE, DOUBLE], ids=["float32", "float64"])
def test_binom_has_derivatives(format):
    """Except at negative integers n."""
    x = np.arange(-8, 9) / 2
    n = x[(x >= 0) | (x != np.rint(x))]
    points = np.array(list(product(n, [*x, 15, 1e-30, -1e6])))
    for orders in BOTH:
        got = values("binom", orders, points, format)
        assert np.isfinite(got).all(), f"{orders} at {points[~np.isfinite(got)][:5].tolist()}"


@pytest.mark.parametrize("name", ["beta", "poch", "binom"])
def test_third_derivatives(name):
    point = {"beta": (1.3, 2.6), "poch": (1.7, 2.4), "binom": (4.3, 1.6)}[name]
    for orders in (3, 0), (2, 1), (1, 2), (0, 3):
        (got,) = values(name, orders, np.array([point]))
        np.testing.assert_allclose(got, exact(name, point, orders), rtol=RTOL, err_msg=str(orders))


@pytest.mark.parametrize("format", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("a", "b", "q"),
    [(32.75, 1.125, 1e-10), (1.875, 0.375, 2.5e-7), (2.0, 0.25, 1e-4), (2.5, 0.5, 0.125)],
)
@pytest.mark.parametrize("name", ["betainccinv", "betaincinv"])
def test_quantiles_of_beta_near_1(name, a, b, q, format):
    """The quantile at q, or at 1 - q: most are close to 1, and have too few digits themselves."""
    complement = name == "betainccinv"
    p = float(format.round(q if complement else 1 - q))
    if p == 1:
        pytest.skip("1 - q is rounded to 1")
    q = p if complement else 1 - p

    def above(y, a, b):
        return mpmath.betainc(b, a, 0, y, regularized=True)

    with mpmath.workdps(40):
        start = min(mpmath.log(q * b * mpmath.beta(a, b)) / b, -0.01)
        log_y = mpmath.findroot(lambda t: mpmath.log(above(mpmath.exp(t), a, b) / q), start)
        y = mpmath.exp(log_y)
        density = y ** (b - 1) * (1 - y) ** (a - 1) / mpmath.beta(a, b)
        wanted = {
            (0, 0, 1): (-1 if complement else 1) / density,
            (0, 0, 2): -((a - 1) / (1 - y) - (b - 1) / y) / density**2,
            (1, 0, 0): mpmath.diff(lambda a: above(y, a, b), a) / density,
            (0, 1, 0): mpmath.diff(lambda b: above(y, a, b), b) / density,
        }
    for orders, value in wanted.items():
        (got,) = values(name, orders, np.array([(a, b, p)]), format)
        rtol = 1e-4 if format is SINGLE else 1e-10
        np.testing.assert_allclose(got, float(value), rtol=rtol, err_msg=str(orders))


ONE_ARGUMENT = [name for name, record in RECORDS.items() if record.arity == 1]


@pytest.mark.parametrize("format", [SINGLE, DOUBLE], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_nothing_is_nan(name, format):
    x = exponents(format)
    orders = (0, 1, 2) if RECORDS[name].smooth else (0,)
    for n in orders:
        at = x[defined(name, n, x)]
        got = values(name, (n,), at[:, None], format)
        assert not np.isnan(got).any(), f"derivative {n} at {at[np.isnan(got)][:5]}"


TWO_ARGUMENTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **dict.fromkeys(["logaddexp2", "huber", "pseudo_huber", "hypot"], lambda x, y: x == x),
    **dict.fromkeys(["xlogy", "rel_entr", "kl_div", "boxcox"], lambda x, y: (x > 0) & (y > 0)),
    "xlog1py": lambda x, y: y > -1,
    "boxcox1p": lambda x, y: x > -1,
    "inv_boxcox": lambda x, y: x * y > -1,
    "inv_boxcox1p": lambda x, y: x * y > -1,
    **dict.fromkeys(
        ["iv", "ive", "kv", "kve", "zeta"], lambda x, y: (abs(x) < 1e3) & (y > 0) & (x > 1)
    ),
    "betaln": lambda x, y: (x > 0) & (y > 0),
    # 1 / x must be finite.
    **dict.fromkeys(["beta", "poch"], lambda x, y: (x > DOUBLE.tiny) & (y > DOUBLE.tiny)),
    **dict.fromkeys(["gammainc", "gammaincc"], lambda x, y: (x > 0) & (y > 0)),
}


@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_nothing_is_nan_of_two_arguments(name):
    x = exponents(DOUBLE)[:: 61 if name in ("gammainc", "gammaincc") else 37]
    points = np.array(list(product(x, x)))
    with np.errstate(over="ignore", invalid="ignore"):
        points = points[TWO_ARGUMENTS[name](*points.T)]
    record = RECORDS[name]
    for orders in [(), (1, 0), (0, 1)]:
        if any(n and i in record.undifferentiable for i, n in enumerate(orders)):
            continue
        if name == "zeta" and orders == (1, 0):
            continue
        got = values(name, orders, points)
        wrong = points[np.isnan(got)]
        assert not len(wrong), f"{len(wrong)} are NaN, derivative {orders}, at {wrong[:5].tolist()}"
