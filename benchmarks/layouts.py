"""Elementwise kernels on operands with all common memory layouts.

The competitors are ``mx.add`` or a composition of MLX's ops, directly and through ``mx.compile``,
and NumPy or SciPy; ``kernels.py`` defines them for each operator. One process computes on one
thread, a second one on all cores.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from . import kernels
from .measure import Options, Result, alternate, keep_memory, run_command

# The shape (r, c) of an array, by the total number of elements.
SHAPES = {1: (1, 1), 1000: (20, 50), 100_000: (400, 250), 2**22: (2048, 2048)}
OPERATORS = ("add", "axpby", "swiglu", "lgamma")  # lgamma has one operand, the first
DTYPES = ("float32", "float16")
AT_SPEED = 1.1  # times the competitor's time: not slower, within the measurement's precision

BUDGET = 0.2  # seconds of rounds for an operator, dtype, layout and size
ROUNDS = 40
TOGETHER = 50_000  # numbers per call of mx.eval: small arrays are computed together

Make = Callable[..., Any]  # an array of this shape, of MLX or of NumPy
LAYOUTS: dict[str, Callable[[Make, int, int], tuple[Any, Any]]] = {
    "dense": lambda new, r, c: (new(r, c), new(r, c)),
    "scalar": lambda new, r, c: (new(r, c), 2.0),
    "row": lambda new, r, c: (new(r, c), new(c)),
    "column": lambda new, r, c: (new(r, c), new(r, 1)),
    "row and column": lambda new, r, c: (new(c), new(r, 1)),
    "middle axis": lambda new, r, c: (new(4, r // 4, c), new(4, 1, c)),
    "(n, 8) and (n, 1)": lambda new, r, c: (new(r * c // 8, 8), new(r * c // 8, 1)),
    "part of each row": lambda new, r, c: (new(r, 2 * c)[:, :c], new(r, c)),
    "every second column": lambda new, r, c: (new(r, 2 * c)[:, ::2], new(r, c)),
    "backwards": lambda new, r, c: (new(r, c)[:, ::-1], new(r, c)),
    "axes swapped": lambda new, r, c: (new(r, 2, c // 2).swapaxes(0, 1), new(2, r, c // 2)),
    "transposed": lambda new, r, c: (new(c, r).swapaxes(0, 1), new(r, c)),
    "transposed and scalar": lambda new, r, c: (new(c, r).swapaxes(0, 1), 2.0),
    "transposed and row": lambda new, r, c: (new(c, r).swapaxes(0, 1), new(c)),
}
# Layouts that depend on the second operand, or of which one array has none.
WITH_ONE_OPERAND = {"dense", *list(LAYOUTS)[7:12]}
SMALLEST = ("dense", "scalar")


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for threads in (1, cores):
        for size in SHAPES:
            # Small arrays use only one thread.
            if (options.quick and size == 2**22) or (threads > 1 and size < 100_000):
                continue
            number = f"{size:,}" if size < 2**20 else f"{size >> 20}M"
            on = f"{number} on {threads} threads" if threads > 1 else number
            options.progress(f"time layouts of {on}")
            command = [sys.executable, "-m", __name__, str(size)]
            command += ["0.05" if options.quick else str(BUDGET)]
            found = json.loads(run_command(command, MLXGEN_NUM_THREADS=str(threads)))
            for layout, times in found.items():
                yield _result(f"{on}: {layout}", times)


def _result(what: str, times: Mapping[str, Mapping[str, float]]) -> Result:
    """Return a row of the table from all times in seconds."""
    cells, data, all_met = {}, {}, True
    ranges: dict[str, list[float]] = {"composition": [], "NumPy": []}
    for dtype in DTYPES:
        for name in OPERATORS:
            column = name if dtype == DTYPES[0] else f"{name} {dtype}"
            cells[column] = ""
            taken = times.get(f"{name} {dtype}")
            if taken is None:
                continue
            faster = {other: seconds / taken["ours"] for other, seconds in taken.items()}
            aim = faster["composition" if name == "add" else "compiled"]
            met = aim >= 1 / AT_SPEED
            all_met = all_met and met
            cells[column] = f"{aim:.2g}" if met else f"**{aim:.2g}**"
            for other, all_ratios in ranges.items():
                all_ratios.append(faster[other])
            data.update({f"{column} {other}": seconds for other, seconds in taken.items()})
    for other, all_ratios in ranges.items():
        cells[other] = f"{min(all_ratios):.2g} to {max(all_ratios):.2g}"
    return Result("layouts", what, "", "", all_met, data, cells)


def _run(layout: str, size: int, budget: float) -> dict[str, dict[str, float]]:
    """Return each operator's time in seconds for a layout and size, by name and dtype."""
    random = np.random.default_rng(0)
    found = {}
    for dtype in DTYPES:

        def values(*shape: int, dtype: str = dtype) -> np.ndarray:
            return random.uniform(0.1, 20, shape).astype(dtype)

        theirs = LAYOUTS[layout](values, *SHAPES[size])
        ours = LAYOUTS[layout](lambda *shape, v=values: mx.array(v(*shape)), *SHAPES[size])
        mx.eval(*ours)
        for name in OPERATORS:
            operands = 1 if name == "lgamma" else 2
            if operands == 2 or layout in WITH_ONE_OPERAND:
                case = _cases()[name]
                times = _times(case, ours[:operands], theirs[:operands], size, budget)
                found[f"{name} {dtype}"] = times
    return found


@cache
def _cases() -> dict[str, kernels.Case]:
    return {case.name: case for case in kernels.cases(2**14)}


def _times(
    case: kernels.Case, ours: tuple[Any, ...], theirs: tuple[Any, ...], size: int, budget: float
) -> dict[str, float]:
    times = max(1, min(100, TOGETHER // size))

    def many(function: Callable[..., Any]) -> Callable[[], object]:
        return lambda: mx.eval([function(*ours) for _ in range(times)])

    functions = {
        "ours": many(case.ours),
        "composition": many(case.composition),
        "NumPy": lambda: [case.reference(*theirs) for _ in range(times)],
    }
    if case.name != "add":
        functions["compiled"] = many(mx.compile(case.composition))
    for function in functions.values():
        function()  # mx.compile runs a compiler on the first call
    # CPU time is less affected by other processes; it cannot be used with several threads.
    clock = time.process_time if thread_count() == 1 else time.perf_counter
    timings = alternate(functions, rounds=ROUNDS, budget=budget, clock=clock)
    return {name: timings.quartile(name) / times for name in functions}


def thread_count() -> int:
    """Return the number of threads on which this process computes."""
    return int(os.environ.get("MLXGEN_NUM_THREADS", "1"))


def main(size: int, budget: float) -> None:
    """Measure all layouts of a size, and print the seconds."""
    keep_memory()
    gc.freeze()  # existing objects are not scanned in every round
    with mx.stream(mx.cpu):
        layouts = LAYOUTS if size > 1 else SMALLEST
        print(json.dumps({layout: _run(layout, size, budget) for layout in layouts}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
