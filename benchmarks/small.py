"""Small calls of mlxops.nn on all cores, against MLX's functions and torch (optional).

A decode step, a few rows or one time step take some microseconds, most of them for the call. The
sides alternate in one process for each case: this module, run as a program. Each cell has the
shortest wall time of mlxops and those of the others as its multiples: of the results, and of the
gradients of all inputs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn
import mlxops.nn as ours
import numpy as np

from .measure import Options, Result, alternate, duration, factor, run_command

ROUNDS = 40
BUDGET = 4.0  # seconds of rounds for a cell
TURN = 0.005  # seconds for one side in a round
PAUSE = 0.03  # seconds before it: torch's threads wait awake for some milliseconds

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A computation and its inputs, which are arrays with gradients."""

    shapes: tuple[tuple[int, ...], ...]
    ours: Function
    theirs: Function  # of MLX
    torch: Function | None = None  # receives torch.nn.functional and tensors


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    random = np.random.default_rng(0)
    everything = {}
    for name, heads, key_heads, queries, keys, size in (
        ("1 query, 16 keys", 8, 8, 1, 16, 64),
        ("7 queries, 7 keys", 8, 8, 7, 7, 64),
        ("decode step, 1,024 keys", 16, 16, 1, 1024, 64),
        ("decode step, 4,096 keys, 32 and 8 heads", 32, 8, 1, 4096, 128),
        ("128 queries and keys", 8, 8, 128, 128, 64),
        ("1,024 queries and keys", 8, 8, 1024, 1024, 64),
    ):
        of_keys = (1, key_heads, keys, size)
        everything[f"`attention`, {name}"] = Case(
            ((1, heads, queries, size), of_keys, of_keys),
            partial(ours.attention, scale=size**-0.5),
            partial(mx.fast.scaled_dot_product_attention, scale=size**-0.5),
            lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        )
    for rows, words in ((1, 10), (32, 10), (1, 32000)):
        targets = random.integers(0, words, rows)
        everything[f"`cross_entropy`, {rows} x {words:,}"] = Case(
            ((rows, words),),
            partial(ours.cross_entropy, targets=mx.array(targets)),
            partial(mlx.nn.losses.cross_entropy, targets=mx.array(targets), reduction="mean"),
            lambda f, x, targets=targets: f.cross_entropy(x, _tensor(targets)),
        )
    for rows in (1, 16):
        targets = random.integers(0, 8000, rows)
        everything[f"`linear_cross_entropy`, {rows} of 512, 8,000 words"] = Case(
            ((rows, 512), (8000, 512)),
            partial(ours.linear_cross_entropy, targets=mx.array(targets)),
            lambda x, w, targets=targets: mlx.nn.losses.cross_entropy(
                x @ w.T, mx.array(targets), reduction="mean"
            ),
            lambda f, x, w, targets=targets: f.cross_entropy(x @ w.T, _tensor(targets)),
        )
    items = random.integers(0, 10000, (1, 50))
    everything["`embedding_bag`, 50 of 10,000 x 128"] = Case(
        ((10000, 128),),
        lambda w: ours.embedding_bag(w, mx.array(items)),
        lambda w: w[mx.array(items)].mean(axis=1),
        lambda f, w: f.embedding_bag(_tensor(items), w),
    )
    for batch, units in ((1, 256), (32, 512)):
        everything[f"`lstm`, one step, {batch} of {units} units"] = Case(
            ((batch, 1, 4 * units), (4 * units, units), (batch, units), (batch, units)),
            lambda x, w, h, c: ours.lstm(x, w, h, c)[0],
            _lstm_step,
        )
    for rows, size, outputs in ((1, 256, 1024), (16, 256, 1024), (256, 512, 512)):
        everything[f"`linear`, {rows} x {size} to {outputs:,}"] = Case(
            ((rows, size), (outputs, size), (outputs,)),
            ours.linear,
            lambda x, w, b: mx.addmm(b, x, w.T),
            lambda f, x, w, b: f.linear(x, w, b),
        )
    for rows, size in ((8, 256), (512, 1024)):
        everything[f"`layer_norm_residual`, {rows} x {size:,}"] = Case(
            ((rows, size), (rows, size), (size,), (size,)),
            lambda *x: ours.layer_norm_residual(*x)[0],
            lambda x, h, w, b: mx.fast.layer_norm(x + h, w, b, 1e-5),
            lambda f, x, h, w, b: f.layer_norm(x + h, w.shape, w, b),
        )
    everything["`geglu`, 64 x 512"] = Case(
        ((64, 512), (64, 512)),
        ours.geglu,
        lambda x, gate: x * mlx.nn.gelu(gate),
        lambda f, x, gate: x * f.gelu(gate),
    )
    return everything


def _lstm_step(x: mx.array, w: mx.array, h: mx.array, c: mx.array) -> mx.array:
    i, f, g, o = mx.split(x[:, 0] + h @ w.T, 4, axis=-1)
    c = mx.sigmoid(f) * c + mx.sigmoid(i) * mx.tanh(g)
    return mx.sigmoid(o) * mx.tanh(c)


def _tensor(a: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(a)


def measure(options: Options) -> Iterator[Result]:
    """Yield a row for each case and dtype, with a column for results and one for gradients."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for name in cases():
        options.progress(f"time {name}")
        command = [sys.executable, "-m", __name__, name, str(int(options.quick))]
        for row in json.loads(run_command(command, MLXGEN_NUM_THREADS=str(cores))):
            data = {
                f"{side}, {part}": seconds
                for part, times in row["times"].items()
                for side, seconds in times.items()
            }
            cells = {part: _cell(times) for part, times in row["times"].items()}
            met = all(data[f"mlxops, {part}"] <= data[f"MLX, {part}"] for part in cells)
            yield Result("small", row["what"], "", "as fast as MLX", met, data, cells)


def _rows(name: str, quick: bool) -> list[dict[str, Any]]:
    """Measure a case. A row has the seconds of each side, for results and for gradients."""
    try:
        import torch
    except ImportError:
        torch = None
    else:
        torch.set_num_threads(int(os.environ["MLXGEN_NUM_THREADS"]))
    case = cases()[name]
    random = np.random.default_rng(1)
    values = [random.normal(size=shape).astype("float32") for shape in case.shapes]
    rows = []
    with mx.stream(mx.cpu):
        for dtype in ("float32",) if quick else ("float32", "bfloat16"):
            results: dict[str, Callable[[], object]] = {}
            gradients: dict[str, Callable[[], object]] = {}
            arrays = [mx.array(x).astype(getattr(mx, dtype)) for x in values]
            mx.eval(arrays)
            every = tuple(range(len(arrays)))
            for side, function in (("mlxops", case.ours), ("MLX", case.theirs)):
                gradient = mx.grad(lambda *x, f=function: f(*x).sum(), argnums=every)
                results[side] = partial(_evaluate, function, arrays)
                gradients[side] = partial(_evaluate, gradient, arrays)
            if torch is not None and case.torch is not None:
                compute = partial(case.torch, torch.nn.functional)
                plain = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in values]
                tracked = [x.clone().requires_grad_() for x in plain]
                results["torch"] = partial(compute, *plain)
                gradients["torch"] = lambda f=compute, x=tracked: torch.autograd.grad(
                    f(*x).sum(), x
                )
            parts = {"results": results, "gradients": gradients}
            times = {part: _times(functions, quick) for part, functions in parts.items()}
            rows.append({"what": f"{name}, {dtype}", "times": times})
    return rows


def _evaluate(function: Function, arrays: list[mx.array]) -> None:
    mx.eval(function(*arrays))


def _times(functions: dict[str, Callable[[], object]], quick: bool) -> dict[str, float]:
    budget = BUDGET / 10 if quick else BUDGET
    times = alternate(functions, rounds=ROUNDS, budget=budget, turn=TURN, pause=PAUSE)
    return {side: times.least(side) for side in functions}


def _cell(times: dict[str, float]) -> str:
    first = times["mlxops"]
    others = [f"{side} {factor(t / first)}" for side, t in times.items() if side != "mlxops"]
    return ", ".join([duration(first), *others])


if __name__ == "__main__":
    print(json.dumps(_rows(sys.argv[1], sys.argv[2] == "1")))
