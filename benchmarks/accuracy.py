"""How exact the special functions are: ``python -m benchmarks.accuracy [FUNCTION ...]``.

The records of tests/special say what is right and where it is asked; this measures it with many
more points than the tests: the largest error and its argument per function, dtype and region, and
SciPy's error beside it. ``--write`` makes docs/accuracy.md of it, with a plot per function.

mpmath takes its time: two processes compute, and what they found is kept, as special/exact.py says.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from special.exact import key, load, store  # noqa: E402
from special.records import RECORDS  # noqa: E402
from special.reference import (  # noqa: E402
    FORMATS,
    ULPS,
    Exact,
    Record,
    compute,
    errors_in_ulps,
    evaluate,
)

SHARE = {"float16": 0.25, "bfloat16": 0.25, "float32": 1.0, "float64": 1.0}  # of the points
SMALL_FACTOR = 4  # times SciPy's error, or as many units: not worth a word


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
        """As a name in a file."""
        return f"{self.record}|{self.region}|{self.format}"


@dataclass(frozen=True)
class Measured:
    """The errors of a task in units in the last place, and where they are largest."""

    task: Task
    points: tuple[np.ndarray, ...]
    ours: np.ndarray
    scipy: np.ndarray | None
    metal: np.ndarray | None

    def worst(self) -> tuple[float, str]:
        """Our largest error and its arguments."""
        return largest(self.ours, self.points)


def largest(errors: np.ndarray, points: Sequence[np.ndarray]) -> tuple[float, str]:
    """The largest error, and the arguments it belongs to as text."""
    if not len(errors):
        return 0.0, ""
    worst = int(np.argmax(errors))
    return float(errors[worst]), ", ".join(f"{x[worst]:.9g}" for x in points)


# Exact values -------------------------------------------------------------------------------------


def exact_values(task: Task) -> tuple[tuple[np.ndarray, ...], Exact]:
    """The points of a task and the exact values there; from the cache if they are known.

    There are fewer points than asked for where the reference would need more than the task's time.
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
    if count > 16:  # how long a few take
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
    """All tasks of the functions."""
    return [
        Task(name, region, format, max(8, int(points * SHARE[format])), seconds)
        for name in names
        for region in RECORDS[name].regions
        for format in FORMATS
    ]


# Measuring ----------------------------------------------------------------------------------------


def scipy_results(record: Record, task: Task, points: Sequence[np.ndarray]) -> np.ndarray | None:
    """What SciPy computes in the same dtype; None where it has no function or no such dtype."""
    if record.scipy is None or task.format not in ("float32", "float64"):
        return None
    arrays = [x.astype(task.format) for x in points]
    try:
        out = record.scipy_call(record.head_of(task.region), *arrays)
    except TypeError:  # a function of float64 alone
        return None
    if np.iscomplexobj(out):
        return None
    # Some of SciPy's functions return float64 for float32: what the user of float32 gets of it.
    return FORMATS[task.format].round(out.astype(np.float64))


def measure(
    wanted: Sequence[Task], processes: int, metal: dict[str, np.ndarray]
) -> Iterator[Measured]:
    """The errors of each task, in their order."""
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


def write_results(wanted: Sequence[Task], path: Path) -> None:
    """This mlxops' results at the tasks' points; it is the emulated one for --metal."""
    results = {}
    for task in wanted:
        if task.format == "float64":
            continue
        record = RECORDS[task.record]
        points, _ = exact_values(task)
        head = record.head_of(task.region)
        results[task.key] = compute(record, head, FORMATS[task.format], *points)
    np.savez(path, **results)


def emulated_results(arguments: Sequence[str]) -> dict[str, np.ndarray]:
    """The results of the Metal kernels under the emulation that `mlxgen metal-test` built."""
    from mlxgen.diagnostics import Diagnostics
    from mlxgen.emulator.package import EmulatedPackage
    from mlxgen.read.settings import load as load_settings

    settings = load_settings(ROOT, Diagnostics())
    if settings is None:
        sys.exit("pyproject.toml has errors: see `mlxgen check`")
    package = EmulatedPackage(settings, ROOT / "build" / "metal", {})
    if not package.library.exists():
        sys.exit("The Metal kernels are not built for emulation: run `mlxgen metal-test` first")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.npz"
        command = [sys.executable, "-m", __spec__.name, *arguments, "--results", str(path)]
        subprocess.run(command, cwd=ROOT, env=package.environment(), check=True)
        with np.load(path) as file:
            return dict(file)


# The report ---------------------------------------------------------------------------------------


def number(error: float) -> str:
    """An error for people: 0.5, 12, 3e+05."""
    if math.isinf(error):
        return "wrong"
    return f"{error:.2f}" if error < 10 else f"{error:.3g}"


def compared(item: Measured) -> str:
    """Whether we are worse than SciPy, and what the record says of it."""
    if item.scipy is None or not len(item.ours):
        return ""
    ours, theirs = float(item.ours.max()), float(item.scipy.max())
    if ours <= max(SMALL_FACTOR * theirs, SMALL_FACTOR):
        return ""
    region = RECORDS[item.task.record].regions[item.task.region]
    return region.because or region.conditioned or "worse than SciPy"


def table(items: Sequence[Measured]) -> Table:
    """One line per function, region and dtype."""
    out = Table("function", "region", "dtype", "points", "largest error", "at", "SciPy", "Metal")
    for i, item in enumerate(items):
        if i and item.task.record != items[i - 1].task.record:
            out.add_section()
        error, at = item.worst()
        beside = [
            "" if e is None or not len(e) else number(e.max()) for e in (item.scipy, item.metal)
        ]
        note = f" ({compared(item)})" if compared(item) else ""
        out.add_row(
            escape(item.task.record),
            escape(item.task.region),
            item.task.format,
            str(len(item.ours)),
            number(error),
            at,
            escape(beside[0] + note),
            beside[1],
        )
    return out


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="all if none is given")
    parser.add_argument("--points", type=int, default=1000, help="per region (default 1000)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of mpmath per region and dtype (default 10)"
    )
    parser.add_argument("--processes", type=int, default=2, help="that compute (default 2)")
    parser.add_argument("--metal", action="store_true", help="the emulated Metal kernels as well")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md and its plots")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [name for name, r in RECORDS.items() if not args.functions or r.name in args.functions]
    unknown = set(args.functions) - {record.name for record in RECORDS.values()}
    if unknown:
        parser.error(f"no such function: {', '.join(sorted(unknown))}")
    if args.write and args.functions:
        parser.error("the page holds all functions: --write does not go with names")

    wanted = tasks(names, args.points, args.seconds)
    if args.results:
        write_results(wanted, args.results)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    progress = Console(stderr=True)
    asked = [*args.functions, "--points", str(args.points), "--seconds", str(args.seconds)]
    items = list(
        track(measure(wanted, args.processes, {}), "mpmath", len(wanted), console=progress)
    )
    if args.metal:  # their exact values are in the cache now
        items = list(measure(wanted, args.processes, emulated_results(asked)))
    console.print(table(items))
    if args.write:
        from .accuracy_page import write_page

        write_page(items)
    bad = [item for item in items if item.task.format == "float32" and item.worst()[0] > ULPS]
    console.print(
        f"{len(names)} functions, {sum(len(item.ours) for item in items):,} points; float32 is "
        f"beyond {ULPS:g} units in {len(bad)} regions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
