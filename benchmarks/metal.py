"""What Metal kernels cost beside MLX's own, in instructions, as there is no GPU here.

`metal_ir` counts them for one thread in the middle of the work, that is on the way that nearly all
threads take; what it does once is shared among the elements that the thread has. The dispatches are
counted, too: of MLX's nearest operators, composed to do the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx
import numpy as np

from .measure import Options, Result
from .metal_ir import Argument, Counts, Kernels

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = Path(next(iter(mlx.__path__)), "include")
OURS = ROOT / "kernels" / "metal"
MLX = "mlx/backend/metal/kernels"

WIDTH = 4096
ROWS = 16
THREAD = 5
ADD = f"""
#include <metal_stdlib>
#include "{MLX}/defines.h"
#include "{MLX}/utils.h"
struct Add {{
  template <typename T>
  T operator()(T x, T y) {{ return x + y; }}
}};
#include "{MLX}/binary.h"
instantiate_kernel("vvfloat32", binary_vv, float, float, Add, 2)
instantiate_kernel("vvfloat16", binary_vv, half, half, Add, 4)
"""


@dataclass(frozen=True)
class Cost:
    """What an element costs in a thread, over all dispatches."""

    total: Counts
    elements: int
    dispatches: int = 1

    def moved(self, name: str) -> float:
        """Bytes that are loaded or stored for each element."""
        sizes: Counter[int] = getattr(self.total, name)
        return sum(size * n for size, n in sizes.items()) / self.elements

    def each(self, name: str) -> float:
        """Instructions of a kind for each element."""
        value = getattr(self.total, name)
        return (value if isinstance(value, int) else sum(value.values())) / self.elements

    @property
    def barriers(self) -> float:
        """For each element."""
        return self.total.calls["threadgroup_barrier"] / self.elements

    @property
    def atomics(self) -> float:
        """For each element."""
        atomics = (n for name, n in self.total.calls.items() if name.startswith("atomic_"))
        return sum(atomics) / self.elements

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other, on the same elements."""
        total = Counts()
        total.add(self.total, other.elements)
        total.add(other.total, self.elements)
        return Cost(total, self.elements * other.elements, self.dispatches + other.dispatches)

    def __str__(self) -> str:
        shown = {
            f"loads ({self.moved('loads'):.3g} bytes)": self.each("loads"),
            f"stores ({self.moved('stores'):.3g} bytes)": self.each("stores"),
            "of threadgroup memory": self.each("shared"),
            "arithmetic": self.each("arithmetic"),
            "of 64 bits": self.each("wide"),
            "branches": self.each("branches"),
            "barriers": self.barriers,
            "atomics": self.atomics,
        }
        numbers = ", ".join(f"{value:.3g} {what}" for what, value in shown.items() if value)
        return f"{numbers}; dispatches: {self.dispatches}"


def mlx_kernels(name: str) -> str | None:
    """A file of MLX's that is not in its wheels: from the folder MLX_SOURCE, if that is there."""
    path = Path(ROOT, os.environ.get("MLX_SOURCE", ""), MLX, name)
    return path.read_text(encoding="utf-8") if path.exists() else None


def ours(file: str) -> Kernels:
    """The kernels of one of our files."""
    return Kernels((OURS / file).read_text(encoding="utf-8"), [INCLUDE, OURS])


def rows(count: int, dtype: type) -> list[np.ndarray]:
    """Arrays of rows."""
    return list(np.zeros((count, ROWS, WIDTH), dtype))


def in_row(threads: int) -> list[Argument]:
    """The positions of our kernels of rows."""
    return [(0, 0, 0), (THREAD, 0, 0), (threads, 1, 1), THREAD, 0, threads // 32]


def norm(dtype: type) -> Cost:
    """rms_norm_residual, where each thread has four elements."""
    name = np.dtype(dtype).name
    numbers = (np.bool_(True), np.float32(1e-5), np.uint32(WIDTH))
    arguments = [*rows(5, dtype), *numbers, *in_row(WIDTH // 4)]
    return Cost(ours("normalization.metal").run(f"rms_norm_residual_{name}", arguments), 4)


def norm_vjp(dtype: type) -> Cost:
    """Its gradient, for 16 rows."""
    name = np.dtype(dtype).name
    sums = np.zeros(WIDTH, np.float32)
    numbers = (np.bool_(True), np.float32(1e-5), np.uint32(WIDTH), np.uint32(ROWS))
    arguments = [*rows(5, dtype), sums, *numbers, *in_row(WIDTH // 4)]
    kernels = ours("normalization.metal")
    return Cost(kernels.run(f"rms_norm_residual_vjp_{name}", arguments), 4 * ROWS)


def mlx_add(dtype: type) -> Cost:
    """MLX's add of two arrays without gaps."""
    arguments = [*rows(3, dtype), np.uint32(ROWS * WIDTH), THREAD]
    run = Kernels(ADD, [INCLUDE]).run(f"vv{np.dtype(dtype).name}", arguments)
    return Cost(run, 8 // np.dtype(dtype).itemsize)


def mlx_norm(source: str, dtype: type) -> Cost:
    """MLX's rms_norm of a sum."""
    x, w, out = rows(3, dtype)
    numbers = (np.float32(1e-5), np.uint32(WIDTH), np.uint32(1))
    run = Kernels(source, [INCLUDE]).run(
        f"rms{np.dtype(dtype).name}", [x, w, out, *numbers, 0, THREAD, THREAD, 0]
    )
    return mlx_add(dtype) + Cost(run, 4)


def mlx_norm_vjp(source: str, dtype: type) -> Cost:
    """The gradient of that; what flows into the sum is added to what comes from the norm."""
    numbers = (np.float32(1e-5), *map(np.uint32, (WIDTH, 1, ROWS, ROWS)))
    run = Kernels(source, [INCLUDE], {"has_w": "true"}).run(
        f"vjp_rms{np.dtype(dtype).name}", [*rows(5, dtype), *numbers, 0, THREAD, THREAD, 0]
    )
    return mlx_add(dtype) + Cost(run, 4 * ROWS)


def sample(kernel: str, channels: int) -> Cost:
    """grid_sample or its gradient, at a point inside of the image."""
    x = np.zeros((1, 20, 20, channels), np.float32)
    points = np.zeros((1, 5, 5, 2), np.float32)
    out = np.zeros((1, 5, 5, channels), np.float32)
    arrays = [x, points, out] if kernel == "grid_sample" else [x, points, out, x, points]
    numbers = (np.array(x.shape, np.int32), np.int32(0), np.int32(0), np.bool_(False))
    threads = min((channels + 3) // 4, 8)
    arguments: Sequence[Argument] = [*arrays, *numbers, (0, 3, 0), (threads, 25, 1)]
    run = ours("grid_sample.metal").run(f"{kernel}_float32", arguments)
    return Cost(run, -(-channels // threads))


def measure(options: Options) -> Iterator[Result]:
    """The results of this group."""
    options.progress("instructions of Metal kernels")
    source = mlx_kernels("rms_norm.metal")
    for dtype in (np.float32, np.float16):
        for what, mine, theirs in (
            ("rms_norm_residual", norm, mlx_norm),
            ("its gradient", norm_vjp, mlx_norm_vjp),
        ):
            other = theirs(source, dtype) if source else None
            yield beside(f"{what}, {np.dtype(dtype).name}, rows of {WIDTH}", mine(dtype), other)
    for channels in (3, 64):
        yield beside(f"grid_sample, float32, {channels} channels", sample("grid_sample", channels))
        yield beside("its gradient", sample("grid_sample_vjp", channels))
    kernels = ours("segment.metal")
    total = kernels.instructions("segment_sum_sorted_float32")
    yield Result(
        "metal",
        "segment_sum, float32: divisions in the whole kernel",
        str(sum(total.divisions.values())),
        "none of 64 bits",
        not total.divisions[64],
    )


def beside(what: str, mine: Cost, other: Cost | None = None) -> Result:
    """A line: ours, and MLX's, which is not to be exceeded."""
    value, aim = str(mine), "no division of 64 bits"
    met = not mine.total.divisions[64]
    if other is not None:
        value = f"{value}. MLX: {other}"
        aim += "; loads, stores, barriers and dispatches as MLX at most"
        kinds = ("loads", "stores")
        met &= all(mine.each(kind) <= other.each(kind) for kind in kinds)
        met &= all(mine.moved(kind) <= other.moved(kind) for kind in kinds)
        met &= mine.barriers <= other.barriers and mine.dispatches <= other.dispatches
    return Result("metal", what, value, aim, met)
