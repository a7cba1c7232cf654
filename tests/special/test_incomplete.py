"""Further tests of the incomplete functions: derivatives in parameters over the whole domain.

`test_derivatives.py` checks a few ordinary points through MLX's formulas. Derivatives in a and b
have their own kernels, which must be as accurate as the functions, also in the tails.
"""

from __future__ import annotations

import mlx.core as mx
import mlxops
import mpmath
import numpy as np
import pytest
from mpmath import mpf
from special.reference import DIGITS, FORMATS, errors_in_ulps, evaluate
from special.reference_incomplete import (
    Record,
    beta_points,
    betainc,
    gammainc,
    paired,
)

from mlxgen.testing import to_numpy

COUNT = 60


def difference(function, i):
    """Return the central difference by argument i, for mpmath, with half of the digits to spare."""

    def derivative(*x):
        with mpmath.workdps(3 * DIGITS):
            h = x[i] * mpf(10) ** -DIGITS
            low, high = ([*x[:i], x[i] + s, *x[i + 1 :]] for s in (-h, h))
            return (function(*high) - function(*low)) / (2 * h)

    return derivative


def gradient(function, i, arrays):
    return mx.grad(lambda *x: function(*x).sum(), argnums=i)(*arrays)


GAMMA = {
    "ordinary": paired(0.05, 20, lambda a, u: a * np.exp(u)),
    "small a": paired(1e-8, 1, lambda a, u: 10**u),
    "middle": paired(5, 3000, lambda a, u: a + 2 * np.sqrt(a) * u),
    "tails": paired(0.1, 300, lambda a, u: a * 10 ** (0.4 * u)),
}
BETA = {
    "ordinary": beta_points(0.1, 20, 1.5),
    "small": beta_points(1e-6, 2, 1),
    "middle": beta_points(5, 2000, 2),
    "tails": beta_points(1, 300, 8),
}
CASES = [
    (function, exact, i, name, points)
    for function, exact, arity, regions in (
        ("gammainc", gammainc, 1, GAMMA),
        ("betainc", betainc, 2, BETA),
    )
    for name, points in regions.items()
    for i in range(arity)
]


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "exact", "i", "region", "points"), CASES, ids=[f"{c[0]}-{c[2]}-{c[3]}" for c in CASES]
)
def test_derivatives_in_parameters(name, exact, i, region, points, dtype, device):
    if dtype == "float64" and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    format = FORMATS[dtype]
    arguments = points(COUNT, format)
    record = Record(name, difference(exact, i), {})
    wanted = evaluate(record, (), arguments)
    arrays = [format.array(x) for x in arguments]
    got = to_numpy(gradient(getattr(mlxops.special, name), i, arrays))
    errors = errors_in_ulps(got, wanted, format)
    if dtype == "float64":
        # Relative to the effect of rounding the arguments: each contributes at least the logarithm
        # of the power x^a exp(-x) or x^a (1-x)^b times its own size.
        size = np.maximum(np.abs(np.log(np.abs(wanted.to_float64()) + format.tiny)), 1)
        errors *= 4 / (450 * size)
    worst = int(np.argmax(errors))
    assert errors[worst] <= 4, (
        f"at {[float(x[worst]) for x in arguments]} the derivative is "
        f"{wanted.to_float64()[worst]!r}, not {got[worst]!r}"
    )


def test_complements_have_the_opposite_derivatives():
    a, x = mx.array([0.5, 3.0, 40.0]), mx.array([0.2, 5.0, 35.0])
    for i in range(2):
        below = gradient(mlxops.special.gammainc, i, [a, x])
        above = gradient(mlxops.special.gammaincc, i, [a, x])
        assert mx.array_equal(below, -above)
    z = mx.array([0.2, 0.7, 0.5])
    for i in range(3):
        below = gradient(mlxops.special.betainc, i, [a, x, z])
        above = gradient(mlxops.special.betaincc, i, [a, x, z])
        assert mx.array_equal(below, -above)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_argument_gives_a_result_soon(dtype, device):
    """No argument makes a series or fraction reach its limit, or a product overflow."""
    if dtype == "float64" and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    format = FORMATS[dtype]
    sizes = np.array([format.tiny, 1e-20, 1e-3, 0.5, 1, 7.99, 8, 11.99, 12, 1e3, 1e6, 1e20])
    sizes = np.concatenate([sizes, [format.max / 4, format.max]])
    a, x = (format.array(v.ravel()) for v in np.meshgrid(sizes, sizes))
    below, above = (to_numpy(f(a, x)) for f in (mlxops.special.gammainc, mlxops.special.gammaincc))
    assert np.all((below >= 0) & (below <= 1) & (above >= 0) & (above <= 1))
    np.testing.assert_allclose(below + above, 1, rtol=4 * format.eps)
    assert np.all(to_numpy(gradient(mlxops.special.gammainc, 0, [a, x])) <= 0)
    parts = np.array([format.tiny, 1e-20, 1e-3, 0.3, 0.5, 0.7, 0.999, 1 - format.eps])
    a, b, z = (format.array(v.ravel()) for v in np.meshgrid(sizes, sizes, parts))
    below, above = (to_numpy(f(a, b, z)) for f in (mlxops.special.betainc, mlxops.special.betaincc))
    assert np.all((below >= 0) & (below <= 1) & (above >= 0) & (above <= 1))
    np.testing.assert_allclose(below + above, 1, rtol=4 * format.eps)
    assert np.all(to_numpy(gradient(mlxops.special.betainc, 0, [a, b, z])) <= 0)
    assert np.all(to_numpy(gradient(mlxops.special.betainc, 1, [a, b, z])) >= 0)


def test_derivatives_in_huge_parameters(device):
    """1 / b^2 is below the smallest float."""
    b = np.array([1e22, 3e26, 1e30, 1e36, 3e38])
    a, ratio = np.array([1e-4, 0.7, 1.5, 7.0, 30.0]), np.array([0.3, 1.0, 2.5])
    a, b, ratio = (v.ravel() for v in np.meshgrid(a, b, ratio))
    format = FORMATS["float32"]
    arguments = [format.round(x) for x in (a, b, a * ratio / b + 2e-38)]
    wanted = evaluate(Record("betainc", difference(betainc, 1), {}), (), arguments)
    got = to_numpy(gradient(mlxops.special.betainc, 1, [format.array(x) for x in arguments]))
    ordinary = wanted.to_float64() > 1e-36
    assert np.count_nonzero(ordinary) > 30
    assert np.max(errors_in_ulps(got, wanted, format)[ordinary]) <= 4


def test_second_derivatives_in_parameters_are_refused():
    x = mx.array([0.5])
    first = mx.grad(lambda a: mlxops.special.gammainc(a, x).sum())
    with pytest.raises(ValueError, match="Not differentiable"):
        mx.grad(lambda a: first(a).sum())(mx.array([2.0]))


@pytest.mark.parametrize("format", ["float32", "float64"], indirect=True)
def test_quantiles_for_small_parameters(format):
    """A power series has one term, or the result is 0: failing searches took 200 steps."""
    special = mlxops.special
    a, b, p = mpf(2) ** -6, mpf(2) ** -5, mpf("0.375")
    wanted = [
        ("gammaincinv", (a, p), (p * mpmath.gamma(a + 1)) ** (1 / a)),
        ("gammainccinv", (a, 1 - p), (p * mpmath.gamma(a + 1)) ** (1 / a)),
        ("betaincinv", (a, b, p), (p * a * mpmath.beta(a, b)) ** (1 / a)),
        ("betainccinv", (a, b, 1 - p), (p * a * mpmath.beta(a, b)) ** (1 / a)),
        ("betaincinv", (b, a, 1 - p), mpf(1)),
        # Q(a, x) = a E1(x) for small a, and E1(x) = 1 there.
        ("gammainccinv", (mpf(2) ** -100, mpf(2) ** -100), mpf("0.2647370104515432")),
        ("gammainccinv", (mpf(2) ** -100, mpf(2) ** -10), mpf(0)),
        ("gammaincinv", (mpf(2) ** -14, mpf("0.75")), mpf(0)),
        ("betaincinv", (mpf(2) ** -14, mpf(2) ** -15, mpf("0.125")), mpf(0)),
    ]
    for function, arguments, value in wanted:
        got = getattr(special, function)(*(format.array([float(x)]) for x in arguments)).item()
        close = 4 * format.eps if format.name == "float32" else 1e-13
        assert abs(got - value) <= close * value, (function, arguments, got, value)
