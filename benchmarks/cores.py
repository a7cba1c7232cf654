"""mlxops.special on all cores, against one core and against compositions of MLX's ops.

MLX's CPU backend computes on one thread per stream, also for compositions. The number of threads of
a process is fixed, so that each number has its own process: this module, run as a program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import mlx.core as mx

from .compositions import COMPOSITIONS
from .measure import Options, Result, alternate, duration, keep_memory, run_command
from .special import HUGE, RECORDS, TWENTYFOLD, inputs

ROUNDS = 7
BUDGET = 5  # seconds of rounds for a function and dtype
DTYPES = ("float32", "float64")


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    size = 2**16 if options.quick else 2**22
    names = [name for name in COMPOSITIONS if name not in HUGE]
    for name in names:
        for dtype in DTYPES:
            options.progress(f"time {name} of {dtype}")
            one, _ = _times(name, dtype, size, 1)
            all_cores, composition = _times(name, dtype, size, cores)
            faster = composition / all_cores
            yield Result(
                "cores",
                f"`{name}` {dtype}",
                f"{duration(all_cores)}, {one / all_cores:.1f}x the speed of one core; "
                f"composition {faster:.0f}x",
                f"composition {TWENTYFOLD}x",
                faster >= TWENTYFOLD,
                {"cores": cores, "seconds": all_cores, "one": one, "composition": composition},
            )


def _times(name: str, dtype: str, size: int, threads: int) -> tuple[float, float]:
    """Return wall seconds per number, and those of the composition."""
    command = [sys.executable, "-m", __name__, name, dtype, str(size)]
    ours, composition = json.loads(run_command(command, MLXGEN_NUM_THREADS=str(threads)))
    return ours / size, composition / size


def _run(name: str, dtype: str, size: int) -> list[float]:
    keep_memory()
    record = RECORDS[name]
    arrays = [mx.array(x, dtype=getattr(mx, dtype)) for x in inputs(record, dtype, size)]
    with mx.stream(mx.cpu):
        mx.eval(arrays)
        functions = {
            "ours": lambda: mx.eval(record.call(record.head, *arrays)),
            "composition": lambda: mx.eval(COMPOSITIONS[name](*arrays)),
        }
        times = alternate(functions, rounds=ROUNDS, budget=BUDGET)
    return [times.least(what) for what in functions]


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
