"""A negative binomial regression of health insurance counts, fitted with MLX through mlxops.

``make demo`` runs this. How often did people in the RAND health insurance experiment see a doctor,
given their insurance and their health? The 20,190 yearly counts vary far more than a Poisson model
allows, so the usual model is the negative binomial with quadratic variance (NB2; Cameron and
Trivedi, "Regression Analysis of Count Data", 2013, section 3.3): ``y`` has mean
``mu = exp(X beta)`` and variance ``mu + alpha mu**2``.

Its likelihood contains the logarithm of the gamma function at ``1 / alpha``, and ``alpha`` is
fitted: the gradient and Hessian need digamma and trigamma. MLX lacks all three. Here
``mlxops.lgamma`` is the forward; the derivatives follow from the gradients that the entries of
``lgamma`` and ``digamma`` declare in ``ops/special.yaml``.

The data and the reference, statsmodels' own fit, come with statsmodels. The exit status is 0 if
both fits agree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writes a file without a window

import matplotlib.pyplot as plt
import mlx.core as mx
import mlxops
import numpy as np
import statsmodels.api as sm
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Differences between the two fits that count as rounding, in standard errors.
TOLERANCE = 1e-6
CONVERGED = 1e-10  # largest entry of the mean gradient


@dataclass(frozen=True)
class Fit:
    """Estimates with their standard errors: the coefficients, then alpha."""

    params: np.ndarray
    errors: np.ndarray
    log_likelihood: float
    iterations: int
    seconds: float


def load() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return regressors of shape (20190, 10), counts of shape (20190,), and parameter names."""
    data = sm.datasets.randhie.load()
    exog = sm.add_constant(data.exog.astype(float))
    return exog.to_numpy(), data.endog.to_numpy(dtype=float), [*exog.columns, "alpha"]


def exp(x: mx.array) -> mx.array:
    """exp in float64: MLX's own has 7 correct digits on Linux, power has all."""
    return mx.power(mx.array(math.e, dtype=x.dtype), x)


def log_probability(y: mx.array, mu: mx.array, alpha: mx.array) -> mx.array:
    """Logarithm of the NB2 probability of the counts ``y`` with mean ``mu``; all broadcast."""
    r = 1 / alpha
    return (
        mlxops.lgamma(y + r)
        - mlxops.lgamma(r)
        - mlxops.lgamma(y + 1)
        - r * mx.log1p(alpha * mu)
        + y * mx.log(alpha * mu / (1 + alpha * mu))
    )


def fit(
    x: np.ndarray,
    y: np.ndarray,
    progress: Callable[[int, float, float], None],
    total: Callable[[mx.array], mx.array] = lambda array: array,
) -> Fit:
    """Maximize the likelihood with Newton's method.

    Args:
        x: Regressors, shape (n, k), float64.
        y: Counts, shape (n,), float64.
        progress: Called with the iteration, the log-likelihood and the size of the gradient.
        total: If processes share the rows (distributed.py), returns the sum of an array over them.
            All processes then take the same steps.

    Returns:
        The estimates; standard errors are those of the observed information.
    """
    started = time.perf_counter()
    k = x.shape[1]
    sums = np.column_stack([np.ones_like(y), y, x, x * x]).sum(axis=0)
    sums = np.array(total(mx.array(sums, dtype=mx.float64)))
    n, sums = float(sums[0]), sums / sums[0]
    means, squares = np.split(sums[2:], 2)
    # Regressors of unit size make the Hessian well conditioned.
    scale = np.append(np.sqrt(squares), 1.0)
    design, counts = mx.array(x / scale[:k], dtype=mx.float64), mx.array(y, dtype=mx.float64)

    def loss(theta: mx.array) -> mx.array:
        """Return the contribution of these rows to minus the mean log-likelihood."""
        return -mx.sum(log_probability(counts, exp(design @ theta[:k]), exp(theta[k]))) / n

    def directional(theta: mx.array, direction: mx.array) -> mx.array:
        return mx.sum(mx.grad(loss)(theta) * direction)

    value_and_gradient = mx.value_and_grad(loss)
    # A gradient of a gradient, for all directions at once: through polygamma.
    hessian = mx.vmap(mx.grad(directional), in_axes=(None, 0))
    directions = mx.eye(k + 1, dtype=mx.float64)

    theta = np.zeros(k + 1)
    theta[np.argmin(squares - means**2)] = math.log(sums[1])  # the constant's coefficient
    for iteration in range(1, 101):
        point = mx.array(theta, dtype=mx.float64)
        value, gradient = (np.array(total(a)) for a in value_and_gradient(point))
        curvature = np.array(total(hessian(point, directions)))
        size = float(np.abs(gradient).max())
        progress(iteration, -n * float(value), size)
        if size < CONVERGED:
            break
        # Far from the optimum the Hessian may be indefinite: then absolute eigenvalues are used.
        eigenvalues, vectors = np.linalg.eigh(curvature)
        step = vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(eigenvalues), 1e-12))
        length = 1.0
        while length > 1e-6:
            trial = float(total(loss(mx.array(theta - length * step, dtype=mx.float64))).item())
            # The loss is a mean of thousands of terms: its last digits are rounding.
            if trial <= value - 1e-4 * length * (gradient @ step) + 1e-12 * abs(value):
                break
            length /= 2
        theta = theta - length * step
    else:
        raise RuntimeError("Newton's method did not converge in 100 iterations")
    errors = np.sqrt(np.diag(np.linalg.inv(n * curvature)))
    alpha = math.exp(theta[k])
    return Fit(
        params=np.append(theta[:k] / scale[:k], alpha),
        errors=np.append(errors[:k] / scale[:k], alpha * errors[k]),  # d alpha = alpha d log(alpha)
        log_likelihood=-n * float(value),
        iterations=iteration,
        seconds=time.perf_counter() - started,
    )


def fit_with_progress(x: np.ndarray, y: np.ndarray, console: Console) -> Fit:
    """Run ``fit`` with a progress bar that fills as the gradient decreases."""
    columns = (
        TextColumn("fitting"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("fit", total=1.0, state="")
        first: list[float] = []

        def progress(iteration: int, log_likelihood: float, size: float) -> None:
            first.append(size)
            done = math.log(first[0] / max(size, 1e-300)) / math.log(first[0] / CONVERGED)
            state = (
                f"iteration {iteration}, log-likelihood {log_likelihood:.6f}, gradient {size:.0e}"
            )
            bar.update(task, completed=min(max(done, 0.0), 1.0), state=state)

        return fit(x, y, progress)


def operators_table() -> Table:
    """Return a table of mlxops' operators, read from its generated ``ops.json``."""
    table = Table(
        "operator", "signature", "backends", "gradient", title="mlxops", title_justify="left"
    )
    for op in json.loads((files("mlxops") / "ops.json").read_text(encoding="utf-8"))["operators"]:
        if "internal" in op["tags"]:  # not public in Python
            continue
        backends = ", ".join(sorted(op["kernels"])) or f"all ({op['form']})"
        gradients = [f"{argument}: {text}" for argument, text in op["grad"].items()]
        if not gradients:
            gradients = ["that of the composition" if op["composite"] else "MLX's own"]
        name = f"{op['module']}.{op['python_name']}" if op["module"] else op["python_name"]
        table.add_row(name, escape(op["signature"]), backends, escape("\n".join(gradients)))
    return table


def comparison_table(names: list[str], ours: Fit, theirs: Fit) -> Table:
    """Return a table of the two fits."""
    table = Table(
        title="Negative binomial (NB2), mdvis: outpatient visits to a doctor", title_justify="left"
    )
    table.add_column("")
    for column in ("MLX + mlxops", "std. error", "statsmodels", "std. error", "z"):
        table.add_column(column, justify="right")
    for i, name in enumerate(names):
        table.add_row(
            name,
            f"{ours.params[i]:.8f}",
            f"{ours.errors[i]:.8f}",
            f"{theirs.params[i]:.8f}",
            f"{theirs.errors[i]:.8f}",
            f"{ours.params[i] / ours.errors[i]:.2f}",
        )
    table.add_section()
    table.add_row(
        "log-likelihood", f"{ours.log_likelihood:.6f}", "", f"{theirs.log_likelihood:.6f}", "", ""
    )
    return table


def plot(x: np.ndarray, y: np.ndarray, names: list[str], ours: Fit, path: Path) -> None:
    """Plot observed and fitted frequencies, and the coefficients with 95% intervals."""
    shown = np.arange(21)
    mu = exp(mx.array(x @ ours.params[:-1], dtype=mx.float64))
    support = mx.array(shown, dtype=mx.float64)[:, None]
    alpha = mx.array(ours.params[-1], dtype=mx.float64)
    negative_binomial = np.array(mx.mean(exp(log_probability(support, mu, alpha)), axis=1))
    log_poisson = support * mx.log(mu) - mu - mlxops.lgamma(support + 1)
    poisson = np.array(mx.mean(exp(log_poisson), axis=1))

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    observed = np.bincount(y.astype(int), minlength=21)[:21] / len(y)
    left.bar(shown, observed, color="0.8", label="observed")
    left.plot(shown, negative_binomial, "o-", ms=4, label="negative binomial (fitted)")
    left.plot(shown, poisson, "s--", ms=3, label="Poisson with the same means")
    left.set(xlabel="visits in a year", ylabel="share of person-years", xticks=shown[::2])
    left.legend(frameon=False)

    keep = [i for i, name in enumerate(names) if name != "const"]
    rows = np.arange(len(keep))[::-1]
    right.axvline(0, color="0.7", lw=1)
    right.errorbar(ours.params[keep], rows, xerr=1.96 * ours.errors[keep], fmt="o", ms=4, capsize=3)
    right.set_yticks(rows, [names[i] for i in keep])
    right.set_xlabel("estimate, 95% interval")
    figure.suptitle(f"RAND health insurance experiment, {len(y):,} person-years")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> int:
    """Run the example; return 0 if the fits agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path(__file__).resolve().parents[1] / "build" / "negative_binomial.png",
        help="path of the plot",
    )
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(operators_table())

    mx.set_default_device(mx.cpu)  # float64 exists on the CPU only, on every system
    x, y, names = load()
    console.print(
        f"\nRAND health insurance experiment: {len(y):,} rows, counts with mean {y.mean():.2f} "
        f"and variance {y.var():.1f}, {x.shape[1]} regressors"
    )

    ours = fit_with_progress(x, y, console)
    started = time.perf_counter()
    reference = sm.NegativeBinomial(y, x, loglike_method="nb2").fit(
        method="newton", maxiter=100, disp=0
    )
    theirs = Fit(
        params=np.asarray(reference.params),
        errors=np.asarray(reference.bse),
        log_likelihood=float(reference.llf),
        iterations=int(reference.mle_retvals["iterations"]),
        seconds=time.perf_counter() - started,
    )
    console.print(comparison_table(names, ours, theirs))
    console.print(
        f"Newton iterations: {ours.iterations} in {ours.seconds:.2f} s with MLX; "
        f"{theirs.iterations}, after a Poisson fit, in {theirs.seconds:.2f} s with statsmodels, "
        f"whose derivatives are written by hand"
    )

    coefficients = float(np.abs(ours.params - theirs.params).max())
    errors = float(np.abs(ours.errors - theirs.errors).max())
    relative = float(
        max(
            (np.abs(ours.params - theirs.params) / theirs.errors).max(),
            (np.abs(ours.errors - theirs.errors) / theirs.errors).max(),
        )
    )
    agree = relative < TOLERANCE
    console.print(
        f"Largest difference: {coefficients:.1e} in a coefficient, {errors:.1e} in a standard "
        f"error; {relative:.1e} standard errors, of {TOLERANCE:.0e} allowed"
    )
    console.print("[green]The fits agree." if agree else "[red]The fits do NOT agree.")

    plot(x, y, names, ours, args.plot)
    console.print(f"Plot: {args.plot}", soft_wrap=True)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
