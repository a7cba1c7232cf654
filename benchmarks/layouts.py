"""Elementwise kernels on operands that lie in memory in every way people make them lie.

Against MLX: ``mx.add``, or the composition of MLX's ops that one would write and that composition
through ``mx.compile``; and against NumPy or SciPy. What these are for an operator says
``kernels.py``. One process computes on one thread, a second one on all cores.
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

# With an array of r rows of c numbers, and so many numbers in all.
SHAPES = {1: (1, 1), 1000: (20, 50), 100_000: (400, 250), 2**22: (2048, 2048)}
OPERATORS = ("add", "axpby", "swiglu", "lgamma")  # lgamma has one operand, the first
DTYPES = ("float32", "float16")
AT_SPEED = 1.1  # of what is compared with: no slower, within what the measurement can tell

BUDGET = 0.2  # seconds of rounds for an operator, dtype, layout and size
ROUNDS = 40
TOGETHER = 50_000  # numbers: of small arrays many are computed in one call of mx.eval

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
# Those in which the second operand is what matters, or one array has no layout.
WITH_ONE_OPERAND = {"dense", *list(LAYOUTS)[7:12]}
SMALLEST = ("dense", "scalar")


def measure(options: Options) -> Iterator[Result]:
    """The results of this group."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for threads in (1, cores):
        for size in SHAPES:
            # Few numbers are not worth more than one thread.
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
    """A row of the table, of the seconds that everything took."""
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
    """Seconds that each operator takes for arrays of a layout and size, by name and dtype."""
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
        function()  # mx.compile calls a compiler the first time
    # Of the processor, to which other processes add little; not where several threads share work.
    clock = time.process_time if thread_count() == 1 else time.perf_counter
    timings = alternate(functions, rounds=ROUNDS, budget=budget, clock=clock)
    return {name: timings.quartile(name) / times for name in functions}


def thread_count() -> int:
    """On how many threads this process computes."""
    return int(os.environ.get("MLXGEN_NUM_THREADS", "1"))


def main(size: int, budget: float) -> None:
    """Measure all layouts of a size, and print the seconds."""
    keep_memory()
    gc.freeze()  # what is there now need not be looked at in every round
    with mx.stream(mx.cpu):
        layouts = LAYOUTS if size > 1 else SMALLEST
        print(json.dumps({layout: _run(layout, size, budget) for layout in layouts}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
