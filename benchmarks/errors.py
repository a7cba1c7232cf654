"""Measures the errors of the special functions, at the points of tests/special.

mpmath is slow: several processes compute the exact values, which are cached (special/exact.py).
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from special.exact import key, load, store
from special.records import RECORDS
from special.reference import (
    FORMATS,
    Exact,
    Record,
    compute,
    errors_in_ulps,
    evaluate,
)

SHARE = {"float16": 0.25, "bfloat16": 0.25, "float32": 1.0, "float64": 1.0}  # of the points
SMALL_FACTOR = 4  # times SciPy's error, or this many ulp: not reported


@dataclass(frozen=True)
class Task:
    """One region of one function in one dtype."""

    record: str
    region: str
    format: str
    points: int
    seconds: float

    @property
    def key(self) -> str:
        """The task as a file name."""
        return f"{self.record}|{self.region}|{self.format}"


@dataclass(frozen=True)
class Measured:
    """The errors of a task in ulp, and the arguments of the largest errors."""

    task: Task
    points: tuple[np.ndarray, ...]
    ours: np.ndarray
    scipy: np.ndarray | None
    metal: np.ndarray | None

    def worst(self) -> tuple[float, str]:
        """Our largest error and its arguments."""
        return largest(self.ours, self.points)


def largest(errors: np.ndarray, points: Sequence[np.ndarray]) -> tuple[float, str]:
    """Return the largest error, and its arguments as text."""
    if not len(errors):
        return 0.0, ""
    worst = int(np.argmax(errors))
    return float(errors[worst]), ", ".join(f"{x[worst]:.9g}" for x in points)


# Exact values -------------------------------------------------------------------------------------


def exact_values(task: Task) -> tuple[tuple[np.ndarray, ...], Exact]:
    """Return the points of a task and their exact values, cached if they are known.

    There are fewer points than requested if the reference would exceed the task's time.
    """
    record, head = RECORDS[task.record], RECORDS[task.record].head_of(task.region)
    points = record.points(task.region, FORMATS[task.format], task.points)
    name = key(record, head, points, task.seconds)
    kept = load(name)
    if kept is not None:
        exact = Exact(*(kept[part] for part in ("high", "low", "exponent", "known")))
        return tuple(x[kept["chosen"]] for x in points), exact
    count = len(points[0])
    chosen = np.arange(count)
    if count > 16:  # measures the time for a few points
        few = chosen[:: count // 8]
        start = time.perf_counter()
        evaluate(record, head, [x[few] for x in points])
        each = (time.perf_counter() - start) / len(few)
        fits = max(8, int(task.seconds / max(each, 1e-9)))
        if fits < count:
            chosen = np.unique(np.linspace(0, count - 1, fits).astype(int))
    points = tuple(x[chosen] for x in points)
    exact = evaluate(record, head, points)
    store(name, chosen=chosen, **vars(exact))
    return points, exact


def tasks(names: Sequence[str], points: int, seconds: float) -> list[Task]:
    """Return all tasks of the functions."""
    return [
        Task(name, region, format, max(8, int(points * SHARE[format])), seconds)
        for name in names
        for region in RECORDS[name].regions
        for format in FORMATS
    ]


# Measuring ----------------------------------------------------------------------------------------


def scipy_results(record: Record, task: Task, points: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return SciPy's results in the same dtype; None if it lacks the function or the dtype."""
    if record.scipy is None or task.format not in ("float32", "float64"):
        return None
    arrays = [x.astype(task.format) for x in points]
    try:
        out = record.scipy_call(record.head_of(task.region), *arrays)
    except TypeError:  # a function of float64 only
        return None
    if np.iscomplexobj(out):
        return None
    # Some of SciPy's functions return float64 for float32; users of float32 round the result.
    return FORMATS[task.format].round(out.astype(np.float64))


def measure(
    wanted: Sequence[Task], processes: int, metal: dict[str, np.ndarray]
) -> Iterator[Measured]:
    """Return the errors of each task, in order."""
    with mx.stream(mx.cpu), ExitStack() as stack:
        found: Iterator[tuple[tuple[np.ndarray, ...], Exact]]
        if processes > 1:
            context = multiprocessing.get_context("spawn")  # MLX's threads do not survive a fork
            pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=context))
            found = pool.map(exact_values, wanted)
        else:
            found = map(exact_values, wanted)
        for task, (points, exact) in zip(wanted, found, strict=True):
            record, format = RECORDS[task.record], FORMATS[task.format]
            ours = compute(record, record.head_of(task.region), format, *points)
            theirs = scipy_results(record, task, points)
            emulated = metal.get(task.key)
            yield Measured(
                task,
                points,
                errors_in_ulps(ours, exact, format),
                None if theirs is None else errors_in_ulps(theirs, exact, format),
                None if emulated is None else errors_in_ulps(emulated, exact, format),
            )


def number(error: float) -> str:
    """Format an error: 0.5, 12, 3e+05."""
    if math.isinf(error):
        return "wrong"
    return f"{error:.2f}" if error < 10 else f"{error:.3g}"


def compared(item: Measured) -> str:
    """Return the record's reason if the error is worse than SciPy's, else ""."""
    if item.scipy is None or not len(item.ours):
        return ""
    ours, theirs = float(item.ours.max()), float(item.scipy.max())
    if ours <= max(SMALL_FACTOR * theirs, SMALL_FACTOR):
        return ""
    region = RECORDS[item.task.record].regions[item.task.region]
    return region.because or region.conditioned or "worse than SciPy"
