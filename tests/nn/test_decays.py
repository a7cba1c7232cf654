"""Recurrences with decays that are exactly 0, because their logarithms are infinite."""

import mlx.core as mx
import mlxops.nn
import numpy as np
import pytest
from nn import test_selective_scan, test_ssm_scan
from nn.test_gated_linear_attention import CASES, GatedLinearAttention

from mlxgen.testing import to_numpy


def derivatives(op, given, seed=0):
    """Return results, gradients, tangents, and second derivatives of all float arrays."""
    tangents = {
        n: mx.random.normal(a.shape, key=mx.random.key(seed)).astype(a.dtype)
        for n, a in given.items()
    }

    def fn(*arrays):
        return list(op(**dict(zip(given, arrays, strict=True))))

    def loss(*arrays):
        return sum(mx.square(y).sum() for y in fn(*arrays))

    def slope(*arrays):
        found = mx.grad(loss, tuple(range(len(given))))(*arrays)
        return sum((g * t).sum() for g, t in zip(found, tangents.values(), strict=True))

    arrays, along = list(given.values()), list(tangents.values())
    all_of = tuple(range(len(given)))
    return {
        "results": fn(*arrays),
        "gradients": mx.grad(loss, all_of)(*arrays),
        "tangents": mx.jvp(fn, arrays, along)[1],
        "second": mx.grad(slope, all_of)(*arrays),
    }


def far_decays():
    """Arrays of operators, and the array of decays with a decay that is exactly 0."""
    heads = GatedLinearAttention("heads").inputs(mx.float32, (2, 5, 2, 3, 4))
    yield "constant", mlxops.nn.gated_linear_attention, heads, "g", [-np.inf, -0.2], [-1e4, -0.2]
    steps = GatedLinearAttention("steps").inputs(mx.float32, (1, 4, 1, 3, 3))
    g = np.array([-0.5, -np.inf, -0.1, -np.inf]).reshape(1, 4, 1)
    yield "steps", mlxops.nn.gated_linear_attention, steps, "g", g, np.maximum(g, -1e4)
    scan = test_ssm_scan.inputs(mx.float32, (2, 5, 2, 3, 1, 4))
    yield "ssm_scan", mlxops.nn.ssm_scan, scan, "A_log", [np.inf, 0.1], [12.0, 0.1]
    selective = test_selective_scan.inputs(mx.float32, (1, 4, 2, 3))
    A = -np.array([[1, np.inf, 2], [np.inf, 3, np.inf]])
    yield "selective_scan", mlxops.nn.selective_scan, selective, "A", A, np.maximum(A, -1e5)
    lru = CASES["rg_lru"].inputs(mx.float32, (1, 4, 2))
    yield "rg_lru", mlxops.nn.rg_lru, lru, "param", [np.inf, 0.1], [1e4, 0.1]


@pytest.mark.parametrize("case", tuple(far_decays()), ids=lambda case: case[0])
def test_decays_of_exactly_0(case):
    """An infinite logarithm of a decay has the derivatives of one whose decay rounds to 0."""
    _, op, given, name, infinite, large = case
    got = derivatives(op, given | {name: mx.array(infinite, mx.float32)})
    wanted = derivatives(op, given | {name: mx.array(large, mx.float32)})
    for key, arrays in wanted.items():
        for g, w in zip(got[key], arrays, strict=True):
            assert np.isfinite(to_numpy(g)).all(), key
            np.testing.assert_allclose(g, w, 1e-5, 1e-6, err_msg=key)
