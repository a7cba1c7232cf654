"""mlxops.linalg on batches of small matrices, against mlx.core, NumPy and torch (optional).

The sides alternate in one process on one core: this module, run as a program for one function,
since OpenBLAS reads its number of threads at the start. Times are CPU times per matrix, and
medians; they include the call, which a small batch does not amortize. Each cell has the time of
mlxops and the times of the others as its multiples. NumPy has no function for triangular systems.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlxops import linalg

from .measure import Options, Result, alternate, duration, factor, keep_memory, run_command

SIZES = (2, 4, 8, 16, 32)
BATCHES = (1, 64, 512, 4096)
ROUNDS = 7
BUDGET = 0.4  # seconds of rounds for a cell
TURN = 0.005  # seconds for one side in a round

Function = Callable[..., Any]
# By name: the functions of MLX, NumPy and torch, and whether they have right-hand sides.
CASES: dict[str, tuple[Function, Function | None, str, bool]] = {
    "cholesky": (mx.linalg.cholesky, np.linalg.cholesky, "cholesky", False),
    "solve_triangular": (mx.linalg.solve_triangular, None, "solve_triangular", True),
    "solve": (mx.linalg.solve, np.linalg.solve, "solve", True),
    "qr": (mx.linalg.qr, np.linalg.qr, "qr", False),
    "eigh": (mx.linalg.eigh, np.linalg.eigh, "eigh", False),
}


def measure(options: Options) -> Iterator[Result]:
    """Yield a row for each function, dtype and size, with a column for each batch."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MLXGEN_NUM_THREADS"), "1")
    for name in CASES:
        options.progress(f"{name} of small matrices")
        command = [sys.executable, "-m", "benchmarks.linalg", name, str(int(options.quick))]
        for row in json.loads(run_command(command, **threads)):
            cells = {f"batch {batch:,}": _cell(times) for batch, times in row["times"]}
            data = {
                f"{side} {batch}": seconds
                for batch, times in row["times"]
                for side, seconds in times.items()
            }
            yield Result("linalg", row["what"], "", data=data, cells=cells)


def _rows(name: str, quick: bool) -> list[dict[str, Any]]:
    """Measure a function. A row has the seconds of each side by batch."""
    sizes, batches = ((4, 32), (1, 64)) if quick else (SIZES, BATCHES)
    try:
        import torch
    except ImportError:
        torch = None
    else:
        torch.set_num_threads(1)
    keep_memory()
    with mx.stream(mx.cpu):
        return [
            {
                "what": f"`{name}` {dtype}, {n} x {n}",
                "times": [(batch, _times(name, dtype, n, batch, torch)) for batch in batches],
            }
            for dtype in ("float32", "float64")
            for n in sizes
        ]


def _times(name: str, dtype: str, n: int, batch: int, torch: Any) -> dict[str, float]:
    """Return the seconds per matrix of each side."""
    random = np.random.default_rng(0)
    x = random.normal(size=(batch, n, n))
    matrices = (x @ np.swapaxes(x, 1, 2) / n + np.eye(n)).astype(dtype)
    sides = random.normal(size=(batch, n, 1)).astype(dtype)
    mlx_function, numpy_function, torch_name, has_sides = CASES[name]
    given = [matrices, sides] if has_sides else [matrices]
    arrays = [mx.array(a) if dtype == "float32" else mx.array(a, mx.float64) for a in given]
    mx.eval(arrays)

    def evaluate(function: Function) -> None:
        mx.eval(function(*arrays))

    functions: dict[str, Callable[[], object]] = {
        "mlxops": partial(evaluate, getattr(linalg, name)),
        "MLX": partial(evaluate, mlx_function),
    }
    if numpy_function is not None:
        functions["NumPy"] = partial(numpy_function, *given)
    if torch is not None:
        tensors = [torch.from_numpy(a) for a in given]
        more = {"upper": False} if name == "solve_triangular" else {}
        functions["torch"] = partial(getattr(torch.linalg, torch_name), *tensors, **more)
    times = alternate(functions, rounds=ROUNDS, budget=BUDGET, turn=TURN, clock=time.process_time)
    return {side: times.seconds(side) / batch for side in functions}


def _cell(times: dict[str, float]) -> str:
    ours = times["mlxops"]
    others = [f"{side} {factor(t / ours)}" for side, t in times.items() if side != "mlxops"]
    return ", ".join([duration(ours), *others])


if __name__ == "__main__":
    print(json.dumps(_rows(sys.argv[1], sys.argv[2] == "1")))
