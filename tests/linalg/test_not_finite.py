"""NaN, infinities and singular matrices: no call ends the process, runs forever, or returns memory
that nothing wrote."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from evaluation import in_thread
from linalg import not_finite

from mlxgen.testing import metal_backend, to_numpy

ops = mlxops.linalg
NAMES = [name for name, _ in not_finite.cases()]
SECONDS = 300  # for all cases, which take a few


@pytest.fixture(scope="session")
def problems():
    """The problem of each case. A process that ends or runs forever is the problem of the last one;
    another process goes on with the next one."""
    found = {}
    while len(found) < len(NAMES):
        command = [sys.executable, "-m", "linalg.not_finite", str(len(found))]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
            output, end = done.stdout, f"the process ended: {done.stderr[-1000:]}"
        except subprocess.TimeoutExpired as error:
            output, end = (error.stdout or b"").decode(), "it did not return"
        lines = output.splitlines()
        found |= dict(zip(lines[::2], lines[1::2], strict=False))
        if len(found) < len(NAMES):
            found[NAMES[len(found)]] = end
    return found


@pytest.mark.parametrize("function", not_finite.FUNCTIONS)
def test_not_finite(function, problems):
    found = {name: text for name, text in problems.items() if f" of {function}, " in name and text}
    assert not found


# Functions that raise for a singular matrix, and its numbers of rows.
SINGULAR = {
    "inv": (ops.inv, (3, 40)),
    "tri_inv": (ops.tri_inv, (3, 40)),
    "solve": (lambda a: ops.solve(a, mx.ones((*a.shape[:-1], 2), a.dtype)), (3, 40)),
    "solve_triangular": (
        lambda a: ops.solve_triangular(a, mx.ones((*a.shape[:-1], 2), a.dtype)),
        (3, 40),
    ),
    "cholesky_inv": (ops.cholesky_inv, (3, 40)),
    "gradient of slogdet": (mx.grad(lambda a: ops.slogdet(a)[1].sum()), (3, 40)),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
@pytest.mark.parametrize("case", SINGULAR)
@in_thread
def test_result_of_singular_matrices(case, dtype):
    """It is NaN if it is read after the error. Many errors in a row all raise."""
    function, sizes = SINGULAR[case]
    if metal_backend() and dtype == mx.float32 and case in ("solve", "solve_triangular"):
        sizes = sizes[1:]  # Metal kernels cannot raise
    for n in sizes:
        a = np.stack([np.diag(np.arange(1.0, n + 1))] * 3)
        a[1, -1, -1] = 0
        for times in range(30):
            with mx.stream(mx.cpu):
                found = function(mx.array(a, dtype))
            with pytest.raises(RuntimeError, match="failed with error code"):
                mx.eval(found)
            if times == 0:
                assert np.isnan(to_numpy(found)).all()
