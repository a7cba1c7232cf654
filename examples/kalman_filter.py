"""A Kalman filter in PyTensor's MLX backend: the common level of four months' sea temperatures.

Four months of a year observe one level, which follows a random walk, with a factor and a noise of
each month. The filter computes the likelihood (Durbin and Koopman, "Time Series Analysis by State
Space Methods", 2012, sections 4.3 and 7.2). PyTensor derives its gradient, and MLX computes both,
with the ``exp`` of mlxops: MLX's own has seven correct digits in float64 on Linux.

The data, of the El Nino region, come with statsmodels, and SciPy maximizes the likelihood. The exit
status is 0 if the likelihood is that of SciPy's normal distribution of all observations at once.

    python examples/kalman_filter.py  # Python 3.12; pip install "mlxgen-ops[pytensor]" statsmodels
"""

from __future__ import annotations

import math
import sys

import mlxops.pytensor  # noqa: F401  (PyTensor's MLX backend then uses mlxops)
import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.optimize
import scipy.stats
import statsmodels.api as sm
from pytensor.compile.mode import MLX, Mode
from pytensor.link.mlx.linker import MLXLinker
from pytensor.tensor.linalg import cholesky, solve_triangular

MONTHS = ("MAR", "JUN", "SEP", "DEC")
# The logarithms of the deviations of the level's steps and of the noises, and the factors. The
# factor of the first month and the variance of the first level are 1.
START = {"step": -1.0, **{f"noise of {month}": 0.0 for month in MONTHS}}
START |= {f"factor of {month}": 1.0 for month in MONTHS[1:]}
# mx.compile would compile kernels for each year's formulas.
DIRECT = Mode(MLXLinker(use_compile=False), MLX.provided_optimizer)


def load() -> np.ndarray:
    """Return the differences of temperatures from their means in kelvins, of shape (years, 4)."""
    data = sm.datasets.elnino.load_pandas().data[list(MONTHS)].to_numpy()
    return data - data.mean(axis=0)


def loss(parameters: pt.TensorVariable, observed: np.ndarray) -> pt.TensorVariable:
    """Return minus the logarithm of the likelihood of observations, of shape (years, 4)."""
    step, *noises = [pt.exp(2 * parameters[i]) for i in range(5)]
    noise = pt.stack(noises) * np.eye(4)
    factors = pt.stack([1.0, *[parameters[i] for i in range(5, 8)]])
    level, variance = 0.0, 1.0
    total = observed.size / 2 * math.log(2 * math.pi)
    for year, y in enumerate(observed):
        if year:
            variance = variance + step
        lower = cholesky(variance * pt.outer(factors, factors) + noise)
        white = solve_triangular(lower, y - level * factors, lower=True, b_ndim=1)
        gain = solve_triangular(lower, variance * factors, lower=True, b_ndim=1)
        total += pt.sum(white**2) / 2 + sum(pt.log(lower[i, i]) for i in range(4))
        level, variance = level + gain @ white, variance - gain @ gain
    return total


def exact(parameters: np.ndarray, observed: np.ndarray) -> float:
    """Return the loss from the covariance of all observations."""
    years, factors = np.arange(len(observed)), np.append(1, parameters[5:])
    levels = 1 + math.exp(2 * parameters[0]) * np.minimum.outer(years, years)
    noise = np.diag(np.exp(2 * parameters[1:5]))
    cov = np.kron(levels, np.outer(factors, factors)) + np.kron(np.eye(years.size), noise)
    return -scipy.stats.multivariate_normal.logpdf(observed.ravel(), cov=cov)


def main() -> int:
    """Run the example; return 0 if the likelihood is right and the search has ended."""
    observed, start = load(), np.array([*START.values()])
    x = pt.vector("parameters", dtype="float64", shape=start.shape)
    value = loss(x, observed)
    value_and_gradient = pytensor.function([x], [value, pt.grad(value, x)], mode=DIRECT)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = map(np.array, value_and_gradient(parameters))
        return value.item(), gradient

    found = scipy.optimize.minimize(objective, start, jac=True, method="BFGS")
    print(f"{len(observed)} years. Minus the logarithm of the likelihood: {found.fun:.6f}")
    for name, best in zip(START, found.x, strict=True):
        print(f"{name:>14} {best:8.4f}")

    slopes = scipy.optimize.approx_fprime(start, exact, 1e-6, observed)
    near = np.allclose(objective(start)[1], slopes, rtol=1e-4, atol=1e-4)
    errors = [exact(at, observed) - objective(at)[0] for at in (start, found.x)]
    right = near and np.abs(errors).max() < 1e-9 and found.success
    print("The likelihood and its gradient are right." if right else "They are NOT right.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
