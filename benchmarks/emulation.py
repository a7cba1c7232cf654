"""Speed of emulated Metal kernels: elements per second on one core, in threadgroups of 256.

An elementwise kernel shows the cost of starting a thread, MLX's softmax that of barriers and
simdgroup operations, and a histogram that of atomics. The time includes copying the buffers between
their guard pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx
import numpy as np

from mlxgen.emulator import load_metal

from .measure import Options, Result, alternate

SOURCE = """
#include <metal_atomic>
#include <metal_simdgroup>
#include <metal_stdlib>
#include "mlx/backend/metal/kernels/defines.h"
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/softmax.h"
using namespace metal;

kernel void axpby(
    device const float* x, device const float* y, device float* out,
    constant float& alpha, constant float& beta, uint i [[thread_position_in_grid]]) {
  out[i] = alpha * x[i] + beta * y[i];
}

kernel void histogram(
    device const float* x, device atomic<int>* counts, uint i [[thread_position_in_grid]]) {
  int bin = clamp(int(32 * x[i] + 128), 0, 255);
  atomic_fetch_add_explicit(&counts[bin], 1, memory_order_relaxed);
}

instantiate_kernel("softmax", softmax_single_row, float)
"""
GROUP = 256
WIDTH = 4 * GROUP  # a row of softmax: four elements per thread
AIM = 4e6


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    options.progress("emulated kernels")
    size = 2**14 if options.quick else 2**20
    include = Path(next(iter(mlx.__path__)), "include")
    library = load_metal("benchmark.metal", [include], text=SOURCE)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, size)).astype(np.float32)
    out = np.empty_like(x)
    counts = np.zeros(256, np.int32)
    group = (GROUP,)

    def axpby() -> None:
        factors = [np.float32(2), np.float32(3)]
        library.run("axpby", [x, y, out, *factors], grid=(size,), threadgroup=group, outputs=[2])

    def softmax() -> None:
        library.run(
            "softmax",
            [x, out, np.int32(WIDTH)],
            grid=(size // WIDTH * GROUP,),
            threadgroup=group,
            outputs=[1],
        )

    def histogram() -> None:
        counts[:] = 0
        library.run(
            "histogram", [x, counts], grid=(size,), threadgroup=group, outputs=[1], fill=False
        )

    functions: dict[str, Callable[[], None]] = {
        "elementwise (axpby)": axpby,
        "softmax (MLX's, rows of 1024)": softmax,
        "atomics (a histogram)": histogram,
    }
    times = alternate(functions, rounds=3 if options.quick else 7)
    for i, name in enumerate(functions):
        speed = size / min(times.rounds[name])
        yield Result(
            "emulation",
            name,
            f"{speed / 1e6:.1f} million elements per second",
            f"{AIM / 1e6:.0f} million" if i == 0 else "",
            speed >= AIM if i == 0 else None,
            data={"elements_per_second": speed},
        )
