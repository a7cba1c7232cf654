"""Gradients where plain formulas fail: at the edges of domains, and far out in tails."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import yaml
from mlxops import special

KNOWN = yaml.safe_load((Path(__file__).parents[1] / "formulas.yaml").read_text(encoding="utf-8"))


# Internal operators have no name in Python: tools.formulas compares their gradients.
POINTS = [point for point in KNOWN["points"] if hasattr(special, point["op"])]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point["op"])
def test_gradient(point):
    arrays = [mx.array(x, dtype=mx.float32) for x in point["at"]]
    function = getattr(special, point["op"])
    got = [mx.grad(function, argnums=i)(*arrays).item() for i in range(len(arrays))]
    np.testing.assert_allclose(got, point["gradient"], rtol=1e-5)


# The plain formula of the second derivative cancels here.
SECOND = [
    ("erfcx", 0.0, 2.0),
    ("erfcx", 1e3, 2 / (math.sqrt(math.pi) * 1e9)),
    ("erfcx", 1e10, 2 / (math.sqrt(math.pi) * 1e30)),
]


@pytest.mark.parametrize(("name", "point", "wanted"), SECOND)
def test_second_derivative(name, point, wanted):
    second = mx.grad(mx.grad(getattr(special, name)))
    np.testing.assert_allclose(second(mx.array(point)).item(), wanted, rtol=1e-5)
