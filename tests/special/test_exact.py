"""Exact values are cached under all their inputs, and are loaded unchanged."""

from __future__ import annotations

from functools import cache

import mpmath
import numpy as np
import pytest
from special import exact
from special.reference import Record

POINTS = [np.array([0.5, 1e-300, 1e300])]


@pytest.fixture(autouse=True)
def device(monkeypatch, tmp_path):
    """These tests do not depend on a device; the cache is empty."""
    monkeypatch.setenv("MLXOPS_EXACT_CACHE", str(tmp_path))
    monkeypatch.setattr(exact, "SLOW", -1)


def scaled(factor):
    return lambda x: factor * mpmath.exp(-x)


@cache
def constant():
    return mpmath.mpf(2)


def test_names_follow_what_is_computed():
    def key(function, **more):
        return exact.key(Record("name", function, {}), (), POINTS, **more)

    assert key(scaled(2.0)) == key(scaled(2.0))
    assert key(scaled(2.0)) != key(scaled(3.0))
    assert key(lambda x: mpmath.exp(x)) != key(lambda x: mpmath.log(x))
    assert "mpf(2)" in exact.fingerprint(lambda x: x * constant())
    other = exact.key(Record("name", scaled(2.0), {}), (1,), POINTS)
    assert other != key(scaled(2.0))


def test_values_come_back(tmp_path, monkeypatch):
    record = Record("name", scaled(1.0), {})
    first = exact.exact_at(record, (), POINTS)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(exact, "evaluate", None)
    second = exact.exact_at(record, (), POINTS)
    for a, b in zip(vars(first).values(), vars(second).values(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert first.exponent[2] < -(2**29)  # e^(-1e300)
