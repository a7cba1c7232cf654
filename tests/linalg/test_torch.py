"""Results and gradients, against those of torch (data/torch_results.py)."""

import json
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
from linalg.functions import call

from mlxgen.testing import to_numpy

CASES = json.loads(Path(__file__).with_name("data").joinpath("torch_results.json").read_text())
each = pytest.mark.parametrize(
    "case", CASES["cases"], ids=lambda c: f"{c['op']}-{c['options']}-{c['arrays'][0]['shape']}"
)


def stored(record):
    values = np.array(record["values"], np.float64)
    if record["kind"] == "complex":
        values = values.reshape(-1, 2) @ [1, 1j]
    return values.reshape(record["shape"])


@each
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
def test_results_and_gradients(case, dtype):
    """MLX has no complex128, and computes eigenvalues of float64 in complex64."""
    whole = any(x["kind"] == "complex" for x in case["arrays"])
    if whole and dtype == mx.float64:
        pytest.skip("MLX has no complex128")
    single = dtype == mx.float32 or case["op"] in ("eig", "eigvals")
    options = {k: float(v) if v in ("inf", "-inf") else v for k, v in case["options"].items()}
    arrays = [mx.array(stored(x), mx.complex64 if whole else dtype) for x in case["arrays"]]
    results = [stored(x) for x in case["results"]]

    def function(*arrays):
        return call(mlxops.linalg, case["op"], *arrays, **options)

    got = function(*arrays)
    cotangents = [
        mx.array(stored(c), y.dtype) for c, y in zip(case["cotangents"], got, strict=True)
    ]
    _, gradients = mx.vjp(function, arrays, cotangents)
    for y, wanted in zip(got, results, strict=True):
        close(y, wanted, single, "result")
    for a, g, wanted in zip(arrays, gradients, case["gradients"], strict=True):
        assert g.dtype == a.dtype
        close(g, stored(wanted), single, "gradient")


def close(got, wanted, single, name):
    """Compare relative to the largest number: the condition numbers of the cases are below 1000."""
    limit = (2e-4 if single else 1e-11) * np.abs(wanted).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, limit, err_msg=name)
