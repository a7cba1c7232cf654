"""First and second derivatives of every function, against those of mpmath."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import combinations, combinations_with_replacement, product

import mlx.core as mx
import mlxops
import mpmath
import numpy as np
import pytest
from special.exact import derivative_at, smooth_points_of
from special.records import RECORDS
from special.reference import (
    DIGITS,
    FORMATS,
    RELATIVE,
    ULPS,
    Record,
    Region,
    both,
    errors_in_ulps,
    errors_relative,
    evaluate,
    linear,
    log,
    near,
    negative,
    sensitivity,
)

from mlxgen.testing import to_numpy

SMOOTH = [name for name, record in RECORDS.items() if record.smooth]
# Points are numbers of float32, so that both dtypes are tested at the same points.
CHECKED = ["float32", "float64"]


@pytest.fixture(params=CHECKED)
def format(request, device):
    """The dtypes in which derivatives are tested."""
    if request.param == "float64" and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    return FORMATS[request.param]


def derivative(function, i):
    """Return the derivative of a function by its i-th argument, element by element."""
    return mx.grad(lambda *x: function(*x).sum(), argnums=i)


def assert_right(record, format, got, points, orders):
    wanted = derivative_at(record, points, orders)
    limit = record.gradient[format.name]
    error = np.abs(to_numpy(got) - wanted) / (np.abs(wanted) + 1e-3)
    worst = int(np.nanargmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= limit, (
        f"the derivative {orders} of {record.id} at {[float(x[worst]) for x in points]} is "
        f"{wanted[worst]!r}, not {to_numpy(got)[worst]!r}: {error[worst]:.2g} off, "
        f"{limit:.2g} are allowed"
    )


@pytest.mark.parametrize("name", SMOOTH)
def test_first_derivatives(name, format):
    record = RECORDS[name]
    points = smooth_points_of(record)
    arrays = [format.array(x) for x in points]
    for i in range(record.arity):
        gradient = derivative(lambda *x: record.call(record.head, *x), i)
        if i in record.undifferentiable:
            with pytest.raises(ValueError, match=record.name):
                mx.eval(gradient(*arrays))
            continue
        orders = tuple(int(k == i) for k in range(record.arity))
        got = gradient(*arrays)
        assert got.dtype == format.dtype
        assert_right(record, format, got, points, orders)


@pytest.mark.parametrize("name", SMOOTH)
def test_forward_mode(name):
    record = RECORDS[name]
    arrays = [mx.array(x, dtype=mx.float32) for x in smooth_points_of(record)]
    function = lambda *x: record.call(record.head, *x)  # noqa: E731
    for i in set(range(record.arity)) - set(record.undifferentiable):
        one = lambda x, i=i: function(*arrays[:i], x, *arrays[i + 1 :])  # noqa: E731
        _, (forward,) = mx.jvp(one, [arrays[i]], [mx.ones_like(arrays[i])])
        backward = derivative(function, i)(*arrays)
        np.testing.assert_allclose(to_numpy(forward), to_numpy(backward), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives(name, format):
    record = RECORDS[name]
    points = smooth_points_of(record)
    arrays = [format.array(x) for x in points]
    arguments = [i for i in range(record.arity) if i not in record.undifferentiable]
    for i, j in product(arguments, repeat=2):
        twice = derivative(derivative(lambda *x: record.call(record.head, *x), i), j)
        if (i, j) in record.once:
            with pytest.raises(ValueError, match="Not differentiable"):
                mx.eval(twice(*arrays))
            continue
        orders = tuple(int(k == i) + int(k == j) for k in range(record.arity))
        assert_right(record, format, twice(*arrays), points, orders)


# Derivatives of quantiles are differences of products of other derivatives.
HALF_LIMIT = dict.fromkeys(["betaincinv", "betainccinv", "gammaincinv", "gammainccinv"], 64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SMOOTH)
def test_half_precision(name, dtype, device):
    """Derivatives up to the third are those in float32; each step of a formula is rounded."""
    record, format, single = RECORDS[name], FORMATS[dtype], FORMATS["float32"]
    points = [format.round(x) for x in smooth_points_of(record)]
    arguments = [i for i in range(record.arity) if i not in record.undifferentiable]
    for count in range(1, 1 + (2 if record.once else 3)):
        for order in combinations_with_replacement(arguments, count):
            if any(pair in record.once for pair in combinations(order, 2)):
                continue
            function = lambda *x: record.call(record.head, *x)  # noqa: E731
            for i in order:
                function = derivative(function, i)
            got = function(*map(format.array, points))
            assert got.dtype == format.dtype
            wanted = to_numpy(function(*map(single.array, points))).astype(float)
            with np.errstate(invalid="ignore"):
                error = np.abs(to_numpy(got).astype(float) - wanted) / (np.abs(wanted) + 1)
            inside = np.abs(wanted) < format.max / 2
            limit = HALF_LIMIT.get(record.name, 16) * format.eps
            worst = int(np.argmax(np.where(inside, np.nan_to_num(error, nan=np.inf), 0)))
            assert not inside[worst] or error[worst] <= limit, (
                f"the derivative by {order} of {record.id} at {[float(x[worst]) for x in points]} "
                f"is {got[worst].item()}, in float32 {wanted[worst]}"
            )


def test_gradients_of_betaln_do_not_cancel(device):
    """psi(a) - psi(a + b), also if b is much smaller than a."""
    random = np.random.default_rng(5)
    for name in FORMATS:
        format = FORMATS[name]
        if name == "float64" and device == mx.gpu:
            continue
        a, b = (format.round(np.exp(random.uniform(*np.log(r), 300))) for r in RANGES)
        with mpmath.workdps(60):
            psi = mpmath.digamma
            pairs = zip(map(mpmath.mpf, a), map(mpmath.mpf, b), strict=True)
            exact = np.array([float(psi(x) - psi(x + y)) for x, y in pairs])
        got = derivative(mlxops.special.betaln, 0)(format.array(a), format.array(b))
        rtol = {"float64": 2e-15, "float32": 1.3e-7}.get(name, 0.51 * format.eps)
        normal = np.abs(exact) > format.tiny
        np.testing.assert_allclose(to_numpy(got)[normal], exact[normal], rtol=rtol)


RANGES = (1e-3, 1e4), (1e-4, 1e4)


def rgamma_slope(x):
    if x <= 0 and x == mpmath.floor(x):
        return (-1) ** int(x) * mpmath.factorial(-x)
    return -mpmath.digamma(x) * mpmath.rgamma(x)


def rgamma_curvature(x):
    with mpmath.workdps(3 * DIGITS):
        return mpmath.diff(mpmath.rgamma, x, 2)


def erfcx_curvature(x):
    with mpmath.workdps(3 * DIGITS):
        if x > 40:  # DLMF 7.12.1, differentiated
            total = term = mpmath.mpf(1)
            for k in range(1, 60):
                term *= -(2 * k - 1) / (2 * x * x)
                total += (2 * k + 1) * (k + 1) * term
            return 2 * total / (x**3 * mpmath.sqrt(mpmath.pi))
        erfcx = mpmath.exp(x * x) * mpmath.erfc(x)
        return (2 + 4 * x * x) * erfcx - 4 * x / mpmath.sqrt(mpmath.pi)


# Derivatives with their own kernel, over the whole domain.
NEAR_ZERO = "it has zeros, and grows steeply"
KERNELS = {
    "rgamma": Record(
        "rgamma",
        rgamma_slope,
        {
            "positive": Region(linear(0.01, 30), conditioned=NEAR_ZERO),
            "negative": Region(negative(linear(0, 20)), conditioned=NEAR_ZERO),
            "poles": Region(near(0, -1, -2, -10), conditioned=NEAR_ZERO),
            "small": Region(both(log(None, 0.5))),
        },
    ),
    "rgamma twice": Record(
        "rgamma",
        rgamma_curvature,
        {
            "positive": Region(linear(0.01, 30), conditioned=NEAR_ZERO),
            "negative": Region(negative(linear(0, 20)), conditioned=NEAR_ZERO),
        },
        head=(2,),
    ),
    "erfcx twice": Record(
        "erfcx",
        erfcx_curvature,
        {
            "positive": Region(log(1e-6, 1e12)),
            "negative": Region(negative(log(1e-6, 9)), conditioned=NEAR_ZERO),
        },
        head=(2,),
    ),
}
KERNEL_CASES = [(name, region) for name, record in KERNELS.items() for region in record.regions]


@pytest.mark.parametrize(("name", "region"), KERNEL_CASES)
def test_kernels_of_derivatives(name, region, format):
    record = KERNELS[name]
    (points,) = record.points(region, format, 40)
    function = lambda x: record.call((), x)  # noqa: E731
    for _ in range(*record.head or (1,)):
        function = derivative(function, 0)
    got = to_numpy(function(format.array(points)))
    exact = evaluate(Record(name, record.exact, {}), (), [points])
    if format.name == "float32":
        errors, limit = errors_in_ulps(got, exact, format), ULPS
    else:
        errors, limit = errors_relative(got, exact, format), RELATIVE
        for i in np.flatnonzero(errors > limit) if record.regions[region].conditioned else ():
            change = sensitivity(Record(name, record.exact, {}), (), [points[i]])
            value = abs(exact.to_float64()[i])
            errors[i] = min(errors[i], limit * errors[i] * value / (format.eps * change))
    worst = int(np.argmax(errors))
    assert errors[worst] <= limit, (
        f"{name} at {float(points[worst])!r} is {exact.to_float64()[worst]!r}, not "
        f"{got[worst]!r}: {errors[worst]:.3g} off, {limit:.2g} are allowed"
    )


def test_every_derivative_is_tested():
    """Only functions without any derivative may lack points for them."""
    for op in json.loads((files("mlxops") / "ops.json").read_text(encoding="utf-8"))["operators"]:
        if op["module"] != "special" or "internal" in op["tags"]:
            continue
        none = op["grad"] and set(op["grad"].values()) == {"none"}
        for record in RECORDS.values():
            if record.name == op["python_name"]:
                assert none or record.smooth or record.variant, f"{record.id}: no points 'smooth'"
