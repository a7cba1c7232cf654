"""Gradients where plain formulas have none: at the edges of domains, and far out in tails."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from mlxops import special

LIMITS = [
    ("xlogy", (0.0, 0.0), (-math.inf, 0.0)),
    ("xlogy", (0.0, 2.0), (math.log(2), 0.0)),
    ("xlog1py", (0.0, -1.0), (-math.inf, 0.0)),
    ("entr", (0.0,), (math.inf,)),
    ("logit", (0.0,), (math.inf,)),
    ("logit", (1.0,), (math.inf,)),
    ("hypot", (0.0, 0.0), (0.0, 0.0)),
    ("pseudo_huber", (0.0, 0.0), (0.0, 0.0)),
    ("huber", (1.0, -3.0), (2.0, -1.0)),
    ("sinc", (0.0,), (0.0,)),
    ("exprel", (0.0,), (0.5,)),
    ("boxcox", (3.0, 0.0), (1 / 3, math.log(3) ** 2 / 2)),
    # x**lmbda vanishes with its derivative, or outgrows everything.
    ("boxcox", (0.0, 2.0), (0.0, 0.25)),
    ("boxcox", (0.0, 0.5), (math.inf, 4.0)),
    ("boxcox", (0.0, 0.0), (math.inf, math.inf)),
    ("boxcox", (0.0, -1.0), (math.inf, math.inf)),
    ("boxcox", (math.inf, -2.0), (0.0, 0.25)),
    ("boxcox1p", (-1.0, 2.0), (0.0, 0.25)),
    ("boxcox1p", (-1.0, -2.0), (math.inf, math.inf)),
    ("inv_boxcox", (2.0, 0.0), (math.exp(2), -2 * math.exp(2))),
    ("erfinv", (1.0,), (math.inf,)),
    ("ndtri", (0.0,), (math.inf,)),
    ("copysign", (-2.0, -0.0), (1.0, 0.0)),
    # exp(x**2) overflows, and Mills' ratio is 1/x: DLMF 7.8.
    ("log_ndtr", (-1e10,), (1e10,)),
    ("log_ndtr", (50.0,), (0.0,)),
    ("erfcx", (1e6,), (-1 / (math.sqrt(math.pi) * 1e12),)),
    ("log_expit", (-1e5,), (1.0,)),
    ("kl_div", (1.0, 1.0 + 2**-20), (-math.log1p(2**-20), 2**-20 / (1 + 2**-20))),
]


@pytest.mark.parametrize(("name", "point", "wanted"), LIMITS)
def test_gradient(name, point, wanted):
    arrays = [mx.array(x, dtype=mx.float32) for x in point]
    function = getattr(special, name)
    got = [mx.grad(function, argnums=i)(*arrays).item() for i in range(len(point))]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


# Where the plain formula of the second derivative cancels.
SECOND = [
    ("erfcx", 0.0, 2.0),
    ("erfcx", 1e3, 2 / (math.sqrt(math.pi) * 1e9)),
    ("erfcx", 1e10, 2 / (math.sqrt(math.pi) * 1e30)),
]


@pytest.mark.parametrize(("name", "point", "wanted"), SECOND)
def test_second_derivative(name, point, wanted):
    second = mx.grad(mx.grad(getattr(special, name)))
    np.testing.assert_allclose(second(mx.array(point)).item(), wanted, rtol=1e-5)
