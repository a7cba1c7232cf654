"""Operators that torch has, against its recorded results (data/torch_results.py)."""

import json
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest

from mlxgen.testing import to_numpy

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-26}
CASES = json.loads(Path(__file__).with_name("data").joinpath("torch_results.json").read_text())
each = pytest.mark.parametrize("case", CASES["cases"], ids=lambda c: f"{c['op']}-{c['case']}")


def stored(values, dtype):
    values = np.array(values)
    if values.dtype.kind == "i":
        return mx.array(values, mx.int32)
    if values.dtype.kind == "b":
        return mx.array(values)
    return mx.array(values.astype(np.float64), dtype)  # also from strings, for infinities


@each
def test_results_and_gradients(dtype, case):
    """Recorded numbers have 8 digits."""
    op, options = getattr(mlxops.nn, case["op"]), case.get("options", {})
    others = {name: stored(x, dtype) for name, x in case.get("others", {}).items()}
    arrays = {name: stored(x, dtype) for name, x in case["arrays"].items()}
    floats = [np.array(y).dtype.kind == "f" for y in case["results"]]

    def call(*values):
        out = op(**dict(zip(arrays, values, strict=True)), **others, **options)
        return out if isinstance(out, tuple) else (out,)

    def trained(*values):
        return [y for y, real in zip(call(*values), floats, strict=True) if real]

    primals = list(arrays.values())
    outputs = zip(case["cotangents"], trained(*primals), strict=True)
    cotangents = [stored(x, y.dtype) for x, y in outputs]
    _, gradients = mx.vjp(trained, primals, cotangents)
    for got, wanted, real in zip(call(*primals), case["results"], floats, strict=True):
        close(got, wanted, dtype if real else mx.float64)
    for name, got in zip(arrays, gradients, strict=True):
        assert got.dtype == dtype
        close(got, case["gradients"][name], dtype, name)


def close(got, wanted, dtype, name="result"):
    """Compare within some roundings relative to the largest number."""
    wanted = np.array(wanted)
    limit = 4 * EPSILON[dtype] * np.abs(wanted).max(initial=1)
    np.testing.assert_allclose(to_numpy(got), wanted, 0, limit, err_msg=name)
