"""The cost of Metal kernels by column of the page, and our kernels.

`metal_ir` counts instructions of one thread; they are divided by its number of elements.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx
import numpy as np

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.op import Op
from mlxgen.read.settings import load as load_settings

from .measure import Result
from .metal_ir import Counts, Kernels

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = Path(next(iter(mlx.__path__)), "include")
OURS = ROOT / "kernels" / "metal"
MLX = "mlx/backend/metal/kernels"

# Columns in which our number must not exceed MLX's.
BOUNDED = ("loads", "bytes", "stores", "bytes stored", "divisions", "barriers", "dispatches")


WIDTH = 4096
ROWS = 16
THREAD = 5
BINARY = f'#include "{MLX}/binary.h"'
ADD = f"""
#include <metal_stdlib>
#include "{MLX}/defines.h"
#include "{MLX}/utils.h"
struct Add {{
  template <typename T>
  T operator()(T x, T y) {{ return x + y; }}
}};
{BINARY}
instantiate_kernel("vvfloat32", binary_vv, float, float, Add, 2)
instantiate_kernel("vvfloat16", binary_vv, half, half, Add, 4)
"""


def rows(count: int, dtype: type) -> list[np.ndarray]:
    """Return arrays of rows."""
    return list(np.zeros((count, ROWS, WIDTH), dtype))


@dataclass(frozen=True)
class Cost:
    """The cost per element in a thread, over all dispatches."""

    total: Counts
    elements: int
    dispatches: int = 1

    def moved(self, name: str) -> float:
        """Return the bytes that are loaded or stored per element."""
        sizes: Counter[int] = getattr(self.total, name)
        return sum(size * n for size, n in sizes.items()) / self.elements

    def each(self, name: str) -> float:
        """Return the instructions of a kind per element."""
        value = getattr(self.total, name)
        return (value if isinstance(value, int) else sum(value.values())) / self.elements

    @property
    def barriers(self) -> float:
        """Barriers per element."""
        return self.total.calls["threadgroup_barrier"] / self.elements

    @property
    def atomics(self) -> float:
        """Atomic operations per element."""
        atomics = (n for name, n in self.total.calls.items() if name.startswith("atomic_"))
        return sum(atomics) / self.elements

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both in sequence, on the same elements."""
        total = Counts()
        total.add(self.total, other.elements)
        total.add(other.total, self.elements)
        return Cost(total, self.elements * other.elements, self.dispatches + other.dispatches)

    def numbers(self) -> dict[str, float]:
        """Return all costs per element, by column of the page."""
        return {
            "loads": self.each("loads"),
            "bytes": self.moved("loads"),
            "stores": self.each("stores"),
            "bytes stored": self.moved("stores"),
            "threadgroup memory": self.each("shared"),
            "arithmetic": self.each("arithmetic"),
            "of 64 bits": self.each("wide"),
            "divisions": self.each("divisions"),
            "branches": self.each("branches"),
            "barriers": self.barriers,
            "atomics": self.atomics,
            "dispatches": self.dispatches,
        }


def mlx_kernels(name: str) -> str | None:
    """Return an MLX file that its wheels lack, from the folder MLX_SOURCE, if it exists."""
    path = Path(ROOT, os.environ.get("MLX_SOURCE", ""), MLX, name)
    return path.read_text(encoding="utf-8") if path.exists() else None


@cache
def operators() -> Sequence[Op]:
    """Return all operators of mlxops."""
    settings = load_settings(ROOT, diags := Diagnostics())
    assert settings is not None
    return load(settings, diags)[0]


@cache
def ours(file: str) -> Kernels:
    """Return the kernels of one of our files, instantiated as by their launchers."""
    text = (OURS / file).read_text(encoding="utf-8") + f'#include "{MLX}/defines.h"\n'
    for kernel in (op.forward.kernel("metal") for op in operators()):
        for name, arguments in (
            kernel.variants if kernel and kernel.include == file else {}
        ).items():
            if "bfloat" not in arguments[0]:
                text += f'instantiate_kernel("{name}", {kernel.function}, {", ".join(arguments)})\n'
    return Kernels(text, [INCLUDE, (OURS / file).parent, OURS])


def mlx_add(dtype: type) -> Cost:
    """Return the cost of MLX's add of two arrays without gaps."""
    arguments = [*rows(3, dtype), np.uint32(ROWS * WIDTH), THREAD]
    run = Kernels(ADD, [INCLUDE]).run(f"vv{np.dtype(dtype).name}", arguments)
    return Cost(run, 8 // np.dtype(dtype).itemsize)


def beside(what: str, mine: Cost, other: Cost | None = None) -> Result:
    """Return a result: ours, with MLX's as the limit; 64-bit divisions are not allowed either."""
    met = not mine.total.divisions[64]
    cells = {}
    theirs = other.numbers() if other else {}
    for name, number in mine.numbers().items():
        shown = f"{number:.3g} / {theirs[name]:.3g}" if theirs else f"{number:.3g}"
        cells[name] = shown if number or theirs.get(name) else ""
        if theirs and name in BOUNDED:
            met &= number <= theirs[name]
    return Result("metal", what, "", "", met, cells=cells)
