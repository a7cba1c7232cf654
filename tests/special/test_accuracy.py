"""Every function of mlxops.special against mpmath: each dtype, each region of its record.

float64 may have a relative error of 1e-13, or the change by its argument's last digit where a
region allows it; float32 may have 4 ulp. float16 and bfloat16 are computed in float32: their error
is half an ulp of rounding plus float32's error. The records contain wider limits with reasons.
``make accuracy`` measures the same with more points.
"""

from __future__ import annotations

import json
from importlib.resources import files

import mlx.core as mx
import numpy as np
import pytest
from special.exact import exact_at, points_of
from special.records import RECORDS
from special.reference import (
    FORMATS,
    compute,
    errors_in_ulps,
    errors_relative,
    sensitivity,
)

from mlxgen.testing import to_numpy

CASES = [(name, region) for name, record in RECORDS.items() for region in record.regions]
FLUSHES = mx.metal.is_available()  # Apple's GPUs flush subnormal numbers to zero


def test_every_function_has_a_record():
    operators = json.loads((files("mlxops") / "ops.json").read_text(encoding="utf-8"))["operators"]
    special = {
        op["python_name"]
        for op in operators
        if op["module"] == "special" and "internal" not in op["tags"]
    }
    missing = special - {record.name for record in RECORDS.values()}
    missing -= {"nextafter"}  # its result depends on the dtype: test_nextafter.py
    assert not missing, f"no record in tests/special/reference_*.py: {', '.join(sorted(missing))}"


@pytest.mark.parametrize(("name", "region"), CASES)
def test_accuracy(name, region, format):
    record = RECORDS[name]
    limits, head = record.regions[region], record.head_of(region)
    points = points_of(record, region, format)
    if FLUSHES and format.digits < 53:
        normal = np.all([(x == 0) | (np.abs(x) >= format.tiny) for x in points], axis=0)
        points = tuple(x[normal] for x in points)
    exact = exact_at(record, head, points)
    got = compute(record, head, format, *points)
    if format.name == "float64":
        errors, limit, unit = errors_relative(got, exact, format), limits.relative, ""
        if limits.conditioned:
            for i in np.flatnonzero(errors > limit):
                with np.errstate(all="ignore"):
                    value = abs(exact.to_float64()[i])
                    change = sensitivity(record, head, [x[i] for x in points])
                    errors[i] = min(errors[i], limit * errors[i] * value / (format.eps * change))
    else:
        errors, unit = errors_in_ulps(got, exact, format), " ulp"
        limit = limits.ulps
        if format.digits < 24:
            limit = 0.5 + limits.ulps * 2.0 ** (format.digits - 24)
    if FLUSHES:
        errors[(got == 0) & (np.abs(exact.to_float64()) < format.tiny)] = 0
    worst = int(np.argmax(errors)) if len(errors) else -1
    assert worst < 0 or errors[worst] <= limit, (
        f"{name}{(*head, *(float(x[worst]) for x in points))} is "
        f"{exact.to_float64()[worst]!r}, not {got[worst]!r}: {errors[worst]:.3g}{unit} off, "
        f"{limit:.3g} are allowed; {np.sum(errors > limit)} of {len(errors)} points are off"
    )


@pytest.mark.parametrize("name", RECORDS)
def test_special_values(name, format):
    record = RECORDS[name]
    points = record.special_points()
    got = compute(record, record.head, format, *points.T)
    corrections = {repr(tuple(map(float, p))): value for p, value, _ in record.corrections}
    if record.scipy is not None:
        wanted = record.scipy_call(record.head, *points.T).astype(float)
    else:
        wanted = np.full(len(points), np.nan)
        given = [repr(tuple(map(float, p))) in corrections for p in points]
        assert all(given), f"{name}: without SciPy every special value must be in 'corrections'"
    for i, point in enumerate(points):
        wanted[i] = corrections.pop(repr(tuple(map(float, point))), wanted[i])
    assert not corrections, f"corrections that are not special points: {', '.join(corrections)}"
    wanted = format.round(wanted)
    with np.errstate(invalid="ignore"):
        # Finite nonzero values are compared only roughly here; the regions are exact.
        equal = np.isclose(got, wanted, rtol=8 * format.eps + 1e-10, atol=0, equal_nan=True)
    equal &= (wanted != 0) | (np.signbit(got) == np.signbit(wanted))
    wrong = np.flatnonzero(~equal)
    assert not len(wrong), "\n".join(
        f"{name}{(*record.head, *map(float, points[i]))} is {got[i]!r}, {wanted[i]!r} is right"
        for i in wrong
    )


@pytest.mark.parametrize("name", RECORDS)
def test_half_precision_is_float32_rounded(name, format):
    if format.digits >= 24:
        return  # float32 and float64 have their own tests
    record = RECORDS[name]
    region = next(iter(record.regions))
    points = record.points(region, format, 400)
    head = record.head_of(region)
    single = record.call(head, *(FORMATS["float32"].array(x) for x in points))
    half = record.call(head, *(format.array(x) for x in points))
    assert half.dtype == format.dtype
    np.testing.assert_array_equal(to_numpy(half), to_numpy(single.astype(format.dtype)))
