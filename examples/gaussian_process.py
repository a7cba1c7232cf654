"""A Gaussian process of the yearly number of sunspots, with learned parameters of its kernel.

The logarithm of the likelihood contains the determinant and the inverse of the covariance matrix.
``cholesky`` and ``solve_triangular`` of ``mlxops.linalg`` give both, with the gradients that MLX
lacks. Their second derivatives give standard errors (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, sections 2.2 and 5.4).

The data come with statsmodels, and SciPy minimizes the loss. The exit status is 0 if the likelihood
is that of SciPy's normal distribution, and 11 years are within two standard errors of the period.

    python examples/gaussian_process.py
"""

from __future__ import annotations

import math
import sys

import mlx.core as mx
import mlxops
import numpy as np
import scipy.optimize
import scipy.stats
import statsmodels.api as sm
from mlxops import linalg

# The parameters at the start. Numbers of sunspots are divided by their standard deviation.
START = {"scale": 1.0, "decay": 30.0, "period": 10.5, "roughness": 1.0, "noise": 0.3}
E = mx.array(math.e, mx.float64)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return the years since 1800, and the numbers of sunspots in units of their deviation."""
    data = sm.datasets.sunspots.load_pandas().data.to_numpy()
    years, numbers = data[data[:, 0] >= 1800].T
    return years, (numbers - numbers.mean()) / numbers.std()


def covariance(parameters: mx.array, x: mx.array, y: mx.array) -> mx.array:
    """Return the covariance at x with that at y, by a periodic kernel that decays.

    Args:
        parameters: The logarithms of the parameters, in the order of ``START``.
        x: Years, of shape (m).
        y: Years, of shape (n).

    Returns:
        The matrix, of shape (m, n).
    """
    # MLX's exp and sin have 7 correct digits in float64 on Linux.
    scale, decay, period, roughness, _ = mx.power(E, parameters)
    distance = x[:, None] - y[None, :]
    waves = mlxops.sincos(math.pi * distance / period)[0] / roughness
    exponent = 2 * mx.square(waves) + mx.square(distance / decay) / 2
    return mx.square(scale) * mx.power(E, -exponent)


def factor(parameters: mx.array, x: mx.array) -> mx.array:
    """Return the Cholesky factor of the covariance of observations at x."""
    noise = mx.power(E, 2 * parameters[-1]) * mx.eye(x.size, dtype=mx.float64)
    return linalg.cholesky(covariance(parameters, x, x) + noise)


def loss(parameters: mx.array, x: mx.array, y: mx.array) -> mx.array:
    """Return minus the logarithm of the likelihood of observations y at x."""
    lower = factor(parameters, x)
    white = linalg.solve_triangular(lower, y)
    size = mx.sum(mx.log(mx.diagonal(lower)))  # half of the logarithm of the determinant
    return mx.sum(mx.square(white)) / 2 + size + y.size / 2 * math.log(2 * math.pi)


def fit(x: mx.array, y: mx.array) -> tuple[mx.array, np.ndarray, float]:
    """Return the logarithms of the best parameters, their standard errors, and the loss."""
    value_and_gradient = mx.value_and_grad(loss)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(mx.array(parameters, mx.float64), x, y)
        return value.item(), np.array(gradient)

    start = np.log(list(START.values()))
    found = scipy.optimize.minimize(objective, start, jac=True, method="BFGS")
    best = mx.array(found.x, mx.float64)

    def slope(parameters: mx.array, direction: mx.array) -> mx.array:
        return mx.sum(mx.grad(loss)(parameters, x, y) * direction)

    rows = [mx.grad(slope)(best, e) for e in mx.eye(best.size, dtype=mx.float64)]
    errors = mx.sqrt(mx.diagonal(linalg.inv(mx.stack(rows))))
    return best, np.array(errors), found.fun


def predict(
    parameters: mx.array, x: mx.array, y: mx.array, new: mx.array
) -> tuple[mx.array, mx.array]:
    """Return mean and standard deviation of the process at new years, of shape (n)."""
    lower, between = factor(parameters, x), covariance(parameters, x, new)
    white = linalg.solve_triangular(lower, between)
    mean = white.T @ linalg.solve_triangular(lower, y)
    prior = mx.diagonal(covariance(parameters, new, new))
    return mean, mx.sqrt(prior - mx.sum(mx.square(white), axis=0))


def main() -> int:
    """Run the example; return 0 if the likelihood and the period are right."""
    mx.set_default_device(mx.cpu)  # float64 exists on the CPU only
    years, numbers = load()
    x, y = mx.array(years, mx.float64), mx.array(numbers, mx.float64)
    best, errors, least = fit(x, y)
    print(f"{years.size} years. Minus the logarithm of the likelihood: {least:.6f}")
    for name, value, error in zip(START, np.exp(np.array(best)), errors, strict=True):
        print(f"{name:>10} {value:8.4f} +- {value * error:.4f}")
    ahead = mx.array(years[-1] + np.arange(1, 12), mx.float64)
    mean, deviation = predict(best, x, y, ahead)
    for year, m, d in zip(ahead.tolist(), mean.tolist(), deviation.tolist(), strict=True):
        print(f"{year:>10.0f} {m:8.4f} +- {d:.4f}")

    lower = np.array(factor(best, x))
    exact = -scipy.stats.multivariate_normal.logpdf(numbers, cov=lower @ lower.T)
    period = np.array(best)[2]
    right = abs(exact - least) < 1e-8 and abs(period - math.log(11)) < 2 * errors[2]
    print("The likelihood and the period are right." if right else "They are NOT right.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
