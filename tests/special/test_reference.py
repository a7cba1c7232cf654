"""The records' own functions: points are numbers of the format, and errors are right."""

from __future__ import annotations

import math

import mlx.core as mx
import mpmath
import numpy as np
import pytest
from special.records import RECORDS
from special.reference import (
    FORMATS,
    Exact,
    Record,
    Region,
    both,
    crossing,
    errors_in_ulps,
    errors_relative,
    evaluate,
    linear,
    log,
    near,
    pair,
    sensitivity,
    split,
    subnormal,
)

from mlxgen.testing import to_numpy


@pytest.fixture(autouse=True)
def device():
    """These tests do not depend on a device."""
    with mx.stream(mx.cpu):
        yield mx.cpu


def exactly(*numbers):
    with mpmath.workdps(40):
        high, low, exponent, known = zip(*(split(x) for x in numbers), strict=True)
    return Exact(np.array(high), np.array(low), np.array(exponent), np.array(known))


@pytest.mark.parametrize("name", RECORDS)
def test_points_are_numbers_of_the_format(name, format):
    record = RECORDS[name]
    for region in record.regions:
        points = record.points(region, format, 40)
        assert len(points) == record.arity
        for x in points:
            assert np.all(np.isfinite(x)) and len(x) < 200, region
            np.testing.assert_array_equal(to_numpy(format.array(x)), x)


def test_rounding_and_neighbours_are_those_of_mlx(format):
    x = np.concatenate([np.geomspace(1e-50, 1e45, 999), [0.0, np.inf, np.nan, 65520, 65519.9]])
    np.testing.assert_array_equal(to_numpy(format.array(x)), format.round(x))
    assert format.next(1.0, True) == 1 + format.eps
    assert format.next(1.0, False) == 1 - format.eps / 2
    assert format.next(-1.0, True) == -1 + format.eps / 2
    assert format.next(0.0, False) == -format.smallest
    assert format.next(format.tiny, False) == format.tiny - format.smallest
    assert format.max == to_numpy(mx.array(mx.finfo(format.dtype).max, dtype=format.dtype))


def test_axes():
    single = FORMATS["float32"]
    x = log(1e-3, 1e3)(50, single)
    assert x[0] == np.float32(1e-3) and x[-1] == np.float32(1e3) and np.all(np.diff(x) > 0)
    assert log()(50, single)[-1] == single.max
    x = near(3.0)(40, single)
    assert np.nextafter(np.float32(3), np.float32(4)) in x and 3.0 in x and 2.25 in x
    assert np.all(subnormal()(20, single) < single.tiny)
    assert set(both(linear(1, 2))(10, single)) == {
        *linear(1, 2)(5, single),
        *-linear(1, 2)(5, single),
    }
    edge = crossing(mpmath.exp, 0, 1000)
    assert abs(edge(single) - math.log(single.max)) < 1e-12
    assert crossing(mpmath.exp, 0, 1)(single) is None
    a, b = pair((log(1, 9), linear(0, 1)), 2, single, 30)
    assert len(a) == len(b) == 30 and abs(np.corrcoef(a, b)[0, 1]) < 0.5


def test_errors():
    single = FORMATS["float32"]
    exact = exactly(1, 1, mpmath.mpf(1) / 3, 2.0**-149, 0, 0, mpmath.inf, mpmath.nan, None)
    third = float(np.float32(1 / 3))
    got = np.array([1, 1 + single.eps, third, 2.0**-148, 0, 2.0**-149, np.inf, np.nan, 17])
    errors = errors_in_ulps(got, exact, single)
    np.testing.assert_allclose(errors, [0, 1, 1 / 3, 1, 0, 1, 0, 0, 0], rtol=1e-6)
    got = np.array([np.nan, -1, np.inf, np.inf, np.nan, np.inf, -np.inf, np.inf, np.nan])
    errors = errors_in_ulps(got, exact, single)
    assert np.all(np.isinf(errors[[0, 4, 5, 6, 7]])) and np.all(errors[[1, 2, 3]] > 1e6)
    # At the edge of overflow, a neighbor of infinity is one ulp away.
    exact = exactly(single.max, 2.0**128, 1e60, -1e60, single.max, single.max)
    got = np.array([np.inf, single.max, np.inf, np.inf, -np.inf, single.max])
    errors = errors_in_ulps(got, exact, single)
    np.testing.assert_allclose(errors[[0, 1, 2, 5]], [1, 0.5, 0, 0], rtol=1e-6)
    assert np.all(errors[[3, 4]] > 1e6)


def test_errors_beyond_float64():
    double = FORMATS["float64"]
    with mpmath.workdps(40):
        third = mpmath.mpf(1) / 3
    exact = exactly(mpmath.mpf(2) ** 1024, mpmath.mpf(10) ** -330, third)
    got = np.array([double.max, 0.0, 1 / 3])
    np.testing.assert_allclose(
        errors_in_ulps(got, exact, double), [0.5, 2e-7, 1 / 3], rtol=0.1, atol=0
    )
    assert errors_relative(np.array([1.0 + 1e-10]), exactly(1), double) == pytest.approx(1e-10)
    assert errors_relative(np.array([1.9 + 1e-10]), exactly(1.9), double) == pytest.approx(
        1e-10 / 1.9
    )


def test_sensitivity_is_the_condition():
    record = Record("exp", mpmath.exp, {})
    assert sensitivity(record, (), [100.0]) == pytest.approx(100 * math.exp(100))
    both_arguments = Record("product", lambda x, y: x * y, {}, arity=2)
    assert sensitivity(both_arguments, (), [2.0, 3.0]) == pytest.approx(12)
    assert evaluate(both_arguments, (), [np.array([2.0]), np.array([3.0])]).to_float64() == 6


def test_wide_limits_need_reasons():
    with pytest.raises(AssertionError, match="reason"):
        Region(log(), ulps=5)
    assert Region(log(), ulps=5, because="why").ulps == 5
