"""Our Metal kernels on the CPU, under every schedule, against NumPy."""

import numpy as np
import pytest
from scipy import special

from mlxgen.emulator import SCHEDULES

# Widths around the four elements of a thread, those of a simdgroup and of a threadgroup of 1024
# threads, and twice these.
WIDTHS = (1, 3, 4, 5, 8, 9, 31, 127, 128, 129, 257, 1025, 4095, 4096, 4097, 8192, 8193)


def spread(rng, shape, dtype=np.float32):
    """Return numbers of very different sizes, which reveal missing and doubled elements."""
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3, size=shape)).astype(dtype)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


def rows_launch(width, threadgroups):
    """Return the launch of ops/nn.yaml: a thread per four columns."""
    threads = min(1024, (width + 127) // 128 * 32)
    return {"grid": (threads, threadgroups), "threadgroup": (threads,)}


@pytest.mark.parametrize("dtype, weighted", [(np.float32, True), (np.float16, False)])
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_residual(load, rng, schedule, width, weighted, dtype):
    library = load("normalization.metal")
    x, residual = spread(rng, (3, width), dtype), spread(rng, (3, width), dtype)
    weight = spread(rng, width, dtype)
    y, h = np.empty_like(x), np.empty_like(x)
    library.run(
        f"rms_norm_residual_{np.dtype(dtype).name}",
        [
            *(x, residual, weight if weighted else x, y, h),
            *(np.bool_(weighted), np.float32(1e-5), np.uint32(width)),
        ],
        **rows_launch(width, 3),
        outputs=[3, 4],
        schedule=schedule,
        seed=width,
    )
    total = x.astype(np.float64) + residual
    resolution = np.finfo(dtype).eps
    np.testing.assert_allclose(h, total, rtol=resolution, atol=0)
    wide = h.astype(np.float64)  # y is computed from h as stored
    expected = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5)
    expected *= weight if weighted else 1
    np.testing.assert_allclose(y, expected, rtol=max(2e-6, resolution), atol=1e-7)


@pytest.mark.extended
@pytest.mark.parametrize("dtype, weighted", [(np.float32, True), (np.float16, False)])
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_residual_vjp(load, rng, schedule, width, weighted, dtype):
    """With 16 rows per sum, narrow rows have more than one sum."""
    library = load("normalization.metal")
    rows = 35 if width < 100 else 17 if width < 2000 else 2
    h, grad_y, grad_h = (spread(rng, (rows, width), dtype) for _ in range(3))
    weight = spread(rng, width, dtype)
    grad_x = np.empty_like(h)
    grad_weight = np.empty(((rows + 15) // 16, width), np.float32)
    library.run(
        f"rms_norm_residual_vjp_{np.dtype(dtype).name}",
        [
            *(h, weight if weighted else h, grad_y, grad_h, grad_x, grad_weight),
            *(np.bool_(weighted), np.float32(1e-5), np.uint32(width), np.uint32(rows)),
        ],
        **rows_launch(width, len(grad_weight)),
        outputs=[4, 5],
        schedule=schedule,
        seed=width,
    )
    h, grad_y, grad_h = (a.astype(np.float64) for a in (h, grad_y, grad_h))
    d = grad_y * weight if weighted else grad_y
    scale = 1 / np.sqrt(np.square(h).mean(-1, keepdims=True) + 1e-5)
    shift = (h * d).mean(-1, keepdims=True) * scale**2
    terms = abs(grad_h) + scale * (
        abs(d) + abs(h) * (abs(h * d)).mean(-1, keepdims=True) * scale**2
    )
    error = abs(grad_x - (grad_h + scale * (d - h * shift)))
    assert (error <= max(1e-5, np.finfo(dtype).eps) * terms).all()
    parts = grad_y * h * scale
    starts = range(0, rows, 16)
    error = abs(grad_weight - np.add.reduceat(parts, starts))
    assert (error <= 1e-5 * np.add.reduceat(abs(parts), starts)).all()


@pytest.mark.parametrize("dtype, threads", [(np.float32, 32), (np.float16, 256)])
@pytest.mark.parametrize("width", (1, 3, 4, 5, 8, 31, 32, 33, 100))
def test_segment_sum(load, rng, schedule, width, threads, dtype):
    library = load("segment.metal")
    # From zero rows to more rows than threads, and rows before the first segment and after the last
    # one.
    lengths = np.array([3, 0, 1, 4, 33, 0, 300, 5, 31, 7])
    ids = np.repeat(np.arange(len(lengths)) - 1, lengths)
    segments = len(lengths) - 2
    ids = rng.permutation(ids).astype(np.int32)
    x = spread(rng, (len(ids), width), dtype)
    order = np.argsort(ids).astype(np.uint32)
    out = np.empty((segments, width), dtype)
    library.run(
        f"segment_sum_sorted_{np.dtype(dtype).name}",
        [x, ids, order, out, np.uint32(len(ids)), np.uint32(width)],
        grid=((width + 31) // 32 * threads, segments),
        threadgroup=(threads,),
        outputs=[3],
        schedule=schedule,
    )
    expected, terms = np.zeros((2, segments, width))
    inside = (ids >= 0) & (ids < segments)
    np.add.at(expected, ids[inside], x[inside])
    np.add.at(terms, ids[inside], abs(x[inside]))
    error = abs(out - expected)
    assert (error <= np.finfo(dtype).eps * abs(expected) + 1e-5 * terms).all()


@pytest.mark.parametrize("threads", (32, 256))
@pytest.mark.parametrize("rows", (0, 1, 2, 31, 32, 33, 64, 65, 1023, 1024, 1025, 1100, 40_000))
def test_rows_of_segments_are_found(load, rng, schedule, rows, threads):
    """Compare counts, which are exact, for every segment including empty ones."""
    library = load("segment.metal")
    segments = 60
    ids = (rng.integers(0, segments, rows) // 7 * 7).astype(np.int32)
    order = np.argsort(ids).astype(np.uint32)
    out = np.empty((segments, 1), np.float32)
    library.run(
        "segment_sum_sorted_float32",
        [np.ones(rows, np.float32), ids, order, out, np.uint32(rows), np.uint32(1)],
        grid=(threads, segments),
        threadgroup=(threads,),
        outputs=[3],
        schedule=schedule,
    )
    np.testing.assert_array_equal(out[:, 0], np.bincount(ids, minlength=segments))


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
