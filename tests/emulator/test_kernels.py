"""Our Metal kernels on the CPU, in every order of threads, against NumPy."""

import numpy as np
import pytest
from scipy import special

from mlxgen.emulator import SCHEDULES

WIDTHS = (1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025)


def spread(rng, shape, dtype=np.float32):
    """Numbers of very different sizes: an element that is missing or doubled then shows."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3, size=shape)).astype(dtype)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_residual(load, rng, schedule, width):
    library = load("normalization.metal")
    x, residual = spread(rng, (3, width)), spread(rng, (3, width))
    weight = spread(rng, width)
    y, h = np.empty_like(x), np.empty_like(x)
    threads = min(1024, (width + 31) // 32 * 32)
    library.run(
        "rms_norm_residual_float32",
        [x, residual, weight, y, h, np.bool_(True), np.float32(1e-5), np.int32(width)],
        grid=(threads, 3),
        threadgroup=(threads,),
        outputs=[3, 4],
        schedule=schedule,
        seed=width,
    )
    total = x.astype(np.float64) + residual
    expected = total / np.sqrt(np.square(total).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(h, total, rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("width", (1, 31, 32, 33, 64, 65))
def test_segment_sum(load, rng, schedule, width, dtype):
    library = load("segment.metal")
    rows, segments = 200, 7
    x = rng.normal(size=(rows, width)).astype(dtype)
    ids = rng.integers(0, segments - 1, rows).astype(np.int32)
    order = np.argsort(ids).astype(np.uint32)
    out = np.empty((segments, width), dtype)
    library.run(
        f"segment_sum_sorted_{np.dtype(dtype).name}",
        [x, ids, order, out, np.int32(rows), np.int32(width)],
        grid=((width + 31) // 32 * 32, 8 * segments),
        threadgroup=(32, 8),
        outputs=[3],
        schedule=schedule,
    )
    expected = np.zeros((segments, width))
    np.add.at(expected, ids, x)
    tolerance = 1e-5 if dtype == np.float32 else 2e-3
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("count", (1, 31, 32, 33, 1000))
def test_lgamma(load, rng, count):
    source = """
    #include "special/gamma.h"
    [[kernel]] void lgamma(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) { y[i] = mlxops::special::lgamma(x[i]); }
    """
    library = load("test.metal", text=source)
    x = rng.uniform(0.1, 50, count).astype(np.float32)
    y = np.empty_like(x)
    library.run("lgamma", [x, y], grid=(count,), threadgroup=(32,), outputs=[1])
    np.testing.assert_allclose(y, special.gammaln(x.astype(np.float64)), rtol=2e-6, atol=1e-6)
