"""mlxops in PyTensor's MLX backend: values and gradients of functions, and of a model of PyMC.

The reference is PyTensor's Python backend: SciPy's functions, and PyTensor's formulas of gradients.
"""

from __future__ import annotations

import importlib
import sys

import mlx.core as mx
import numpy as np
import pytest

REASON = "PyTensor needs Python 3.12" if sys.version_info < (3, 12) else "PyTensor is not installed"
pytensor = pytest.importorskip("pytensor", "3.3", reason=REASON)

import pytensor.tensor as pt  # noqa: E402
import scipy.special  # noqa: E402
from pytensor.compile.mode import MLX, Mode  # noqa: E402
from pytensor.link.mlx.dispatch import mlx_funcify  # noqa: E402
from pytensor.link.mlx.linker import MLXLinker  # noqa: E402
from pytensor.tensor import special  # noqa: E402

PYTHON = Mode("py", "fast_compile")
# mx.compile takes seconds for each graph.
DIRECT = Mode(MLXLinker(use_compile=False), MLX.provided_optimizer)

BELOW_ONE = [0.07, 0.31, 0.5, 0.88]
POSITIVE = [0.3, 1.2, 4.5, 31.0]
OTHER = [0.8, 2.5, 6.0, 27.0]
REAL = [-3.3, -0.4, 0.6, 5.2]

# Each function, its arguments, and the arguments by which PyTensor differentiates.
CASES = {
    "betainc": ((POSITIVE, OTHER, BELOW_ONE), (0, 1, 2)),
    "betaincinv": ((POSITIVE, OTHER, BELOW_ONE), (2,)),
    "cos": (([-3.3, -0.4, 3.1, 50.2, np.pi / 2, 1.5 * np.pi, 1e5],), (0,)),
    "erf": ((REAL,), (0,)),
    "erfc": ((REAL,), (0,)),
    "erfcinv": (([0.1, 0.7, 1.2, 1.9],), (0,)),
    "erfcx": ((REAL,), (0,)),
    "erfinv": (([-0.9, -0.1, 0.5, 0.99],), (0,)),
    "exp": (([-745.0, -710.0, -700.0, -0.4, 1e-20, 700.0],), (0,)),
    "gamma": ((REAL,), (0,)),
    "gammainc": ((POSITIVE, OTHER), (0, 1)),
    "gammaincc": ((POSITIVE, OTHER), (0, 1)),
    "gammainccinv": ((OTHER, BELOW_ONE), ()),
    "gammaincinv": ((OTHER, BELOW_ONE), ()),
    "gammaln": ((REAL,), (0,)),
    "i0": ((REAL,), (0,)),
    "i1": ((REAL,), (0,)),
    "ive": (([0.0, 1.5, 2.0, 7.0], POSITIVE), (1,)),
    "j0": ((REAL,), (0,)),
    "j1": ((REAL,), (0,)),
    "kv": (([0.0, 1.5, 2.0, 7.0], POSITIVE), (1,)),
    "kve": (([0.0, 1.5, 2.0, 7.0], POSITIVE), (1,)),
    "log1mexp": (([-1e-9, -0.3, -2.0, -40.0],), (0,)),
    "ndtri_exp": (([-1e-20, -0.7, -49.9, -1e5],), ()),
    "psi": ((REAL,), (0,)),
    "sin": (([-3.3, -1e-9, 3.1, 50.2, np.pi, 2 * np.pi, 1e5],), (0,)),
    "sigmoid": ((REAL,), (0,)),
    "softplus": ((REAL,), (0,)),
    "tri_gamma": ((POSITIVE,), (0,)),
}


# Edges of domains: the results of PyTensor's Python backend, which are SciPy's. docs/pytensor.md
# lists the differences.
ENDS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -30.0, 1e-300, np.inf, -np.inf, np.nan]
ORDERS = [0.0, 1.0, -1.0, 0.5, -2.5, 30.0]
AT_ENDS = {
    **{
        name: [[*ENDS, 713.0]]
        for name in (
            *("cos", "sin", "exp", "erf", "erfc", "erfcx", "erfinv", "erfcinv", "gamma", "gammaln"),
            *("psi", "tri_gamma", "sigmoid", "softplus", "log1mexp", "i0", "i1", "j0", "j1"),
        )
    },
    "betainc": [[0.5, 1.0, 2.5, np.inf, -1.0, np.nan]] * 2 + [[0.0, 0.3, 1.0, -1.0, np.nan]],
    "betaincinv": [[0.5, 1.0, 2.5, np.inf, -1.0, np.nan]] * 2 + [[0.0, 0.3, 1.0, -1.0, np.nan]],
    "gammainc": [[0.0, 0.5, 30.0, -1.0, np.inf, np.nan]] * 2,
    "gammaincc": [[0.0, 0.5, 30.0, -1.0, np.inf, np.nan]] * 2,
    "gammaincinv": [[0.5, 30.0, -1.0, np.inf, np.nan], [0.0, 0.3, 1.0, -1.0, np.nan]],
    "gammainccinv": [[0.5, 30.0, -1.0, np.inf, np.nan], [0.0, 0.3, 1.0, -1.0, np.nan]],
    "ive": [ORDERS, [x for x in ENDS if x != 1e-300]],
    "kv": [ORDERS, [x for x in ENDS if x != 1e-300]],
    "kve": [ORDERS, [x for x in ENDS if x != 1e-300]],
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """float64 exists on the CPU only."""
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    importlib.import_module("mlxops.pytensor")
    yield
    mx.set_default_device(device)


def both(inputs, outputs, values, mode=DIRECT):
    """Return the results of the two backends."""
    functions = [pytensor.function(inputs, outputs, mode=mode) for mode in (mode, PYTHON)]
    return [[np.array(result) for result in function(*values)] for function in functions]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_functions(name: str, dtype: str) -> None:
    values, differentiable = CASES[name]
    inputs = [pt.vector(str(place), dtype=dtype) for place in range(len(values))]
    result = getattr(pt, name)(*inputs)
    outputs = [result, *(pt.grad(result.sum(), inputs[place]) for place in differentiable)]
    ours, theirs = both(inputs, outputs, [np.array(value, dtype) for value in values])
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.dtype == reference.dtype
        # PyTensor's formulas of gradients lose some digits; its loops stop at 1e-10.
        np.testing.assert_allclose(mine, reference, rtol=1e-9 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("name", AT_ENDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ends(name: str, dtype: str) -> None:
    inputs = [pt.vector(str(place), dtype=dtype) for place in range(len(AT_ENDS[name]))]
    grid = [axis.ravel().astype(dtype) for axis in np.meshgrid(*AT_ENDS[name])]
    mine, reference = both(inputs, [getattr(pt, name)(*inputs)], grid)
    tolerance = {"rtol": 1e-9} if dtype == "float64" else {"rtol": 1e-4, "atol": 1e-36}
    np.testing.assert_allclose(mine[0], reference[0], **tolerance)


def test_subnormal_powers() -> None:
    order, x = pt.vectors("order", "x")
    mine, reference = both([order, x], [pt.kv(order, x)], [np.array([1000.0]), np.array([713.0])])
    np.testing.assert_allclose(mine[0], reference[0], rtol=1e-9)
    assert mine[0] > 1e-40


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_softmax_of_float64(axis: int | None) -> None:
    x = pt.matrix("x")
    values = np.random.default_rng(0).normal(size=(5, 7)) * 20
    outputs = [special.softmax(x, axis=axis), special.log_softmax(x, axis=axis)]
    for mine, reference in zip(*both([x], outputs, [values]), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-14)


def test_orders_that_are_not_passed() -> None:
    """PyTensor's own tests call the function of a node with a constant order in this way."""
    node = pt.ive(2.5, pt.vector("x", dtype="float64")).owner
    x = mx.array(POSITIVE, mx.float64)
    found = mlx_funcify(node.op.scalar_op, node=node)(None, x)
    np.testing.assert_allclose(np.array(found), scipy.special.ive(2.5, POSITIVE), rtol=1e-12)


def test_model() -> None:
    """The log density of a model with truncated and censored data, and its gradient."""
    pm = pytest.importorskip("pymc")
    rng = np.random.default_rng(7)
    with pm.Model() as model:
        a, b = pm.Gamma("a", 2, 1), pm.HalfNormal("b", 2)
        mu = pm.Normal("mu")
        pm.NegativeBinomial("counts", mu=pm.math.exp(mu), alpha=a, observed=rng.poisson(3, 9))
        pm.BetaBinomial("successes", n=10, alpha=a, beta=b, observed=rng.integers(0, 10, 9))
        pm.VonMises("angles", mu=mu, kappa=b, observed=rng.uniform(-3, 3, 9))
        times = np.minimum(rng.gamma(2, 1, 9), 2)
        pm.Censored("times", pm.Gamma.dist(a, b), lower=None, upper=2, observed=times)
        shares = rng.uniform(0.25, 0.85, 9)
        pm.Truncated("shares", pm.Beta.dist(a, b), lower=0.2, upper=0.9, observed=shares)
    point = model.initial_point()
    ours, theirs = (
        [
            np.array(f(point))
            for f in (model.compile_logp(mode=mode), model.compile_dlogp(mode=mode))
        ]
        for mode in (DIRECT, PYTHON)
    )
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-9)


def test_orders_that_are_constant_or_not() -> None:
    order, x = pt.lvector("order"), pt.vector("x")
    values = [np.arange(4), np.array(POSITIVE)]
    outputs = [pt.polygamma(order, x), pt.polygamma(3, x), pt.polygamma(np.arange(4), x)]
    for mine, reference in zip(*both([order, x], outputs, values), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-12)


def test_second_derivatives() -> None:
    a, x = pt.vectors("a", "x")
    slope = pt.grad(pt.gammainc(a, x).sum(), x).sum()
    values = [np.array(POSITIVE), np.array(OTHER)]
    ours, theirs = both([a, x], pt.grad(slope, [a, x]), values, mode="MLX")
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_other_backends_compute_what_they_did() -> None:
    a, b, x = pt.vectors("a", "b", "x")
    outputs = [pt.grad(pt.betainc(a, b, x).sum(), v) for v in (a, b)]
    function = pytensor.function([a, b, x], outputs, mode=PYTHON)
    ops = {type(node.op.scalar_op).__name__ for node in function.maker.fgraph.apply_nodes}
    assert "ScalarLoop" in ops
    assert "Derivative" not in ops
