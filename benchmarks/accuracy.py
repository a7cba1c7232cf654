"""Measures the accuracy of the special functions: ``python -m benchmarks.accuracy [FUNCTION ...]``.

The records of tests/special define the exact values and the regions. This program uses many more
points than the tests. It reports the largest error and its argument per function, dtype and region,
and SciPy's error for comparison. ``--derivatives`` measures derivatives instead, and scans them for
NaN. ``--write`` writes docs/accuracy.md, with a plot per function; with ``--derivatives``, only the
section on derivatives, which a later ``--write`` keeps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from special.records import RECORDS
from special.reference import FORMATS, ULPS, compute

from . import derivatives
from .errors import Measured, Task, compared, exact_values, measure, number, tasks

ROOT = Path(__file__).resolve().parents[1]


def write_results(wanted: Sequence[Task], path: Path) -> None:
    """Write the results of this mlxops (the emulated one for --metal) at the tasks' points."""
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
    """Return the results of the Metal kernels in the emulation that `mlxgen metal-test` built."""
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


def table(items: Sequence[Measured]) -> Table:
    """Return a table with one row per function, region and dtype."""
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


def derivatives_table(rows: Sequence[derivatives.Row]) -> Table:
    """Return a table with one row per differentiable argument."""
    out = Table("function", "argument", "points", "1st f32", "1st f64", "2nd f32", "2nd f64", "NaN")
    for row in rows:
        cells = map(derivatives.cell_text, row.cells)
        nan = "" if row.nan is None else f"{row.nan} of {row.scanned}"
        out.add_row(escape(row.record), row.argument, str(row.points), *cells, nan)
    return out


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="all by default")
    parser.add_argument(
        "--derivatives", action="store_true", help="measure derivatives instead of values"
    )
    parser.add_argument(
        "--points", type=int, help="per region (default 1000); of derivatives: per argument (60)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=10,
        help="for mpmath, per region and dtype, or per derivative's argument (default 10)",
    )
    parser.add_argument("--processes", type=int, default=2, help="number of processes (default 2)")
    parser.add_argument("--metal", action="store_true", help="also measure emulated Metal kernels")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md and its plots")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = [name for name, r in RECORDS.items() if not args.functions or r.name in args.functions]
    unknown = set(args.functions) - {record.name for record in RECORDS.values()}
    if unknown:
        parser.error(f"no such function: {', '.join(sorted(unknown))}")
    if args.write and args.functions:
        parser.error("the page contains all functions: --write cannot be combined with names")

    console = Console(width=None if sys.stdout.isatty() else 160)
    progress = Console(stderr=True)
    if args.derivatives:
        found = (derivatives.measure([n], args.points or 60, args.seconds) for n in names)
        rows = [
            row for part in track(found, "mpmath", len(names), console=progress) for row in part
        ]
        console.print(derivatives_table(rows))
        if args.write:
            from .accuracy_page import write_derivatives

            write_derivatives(rows)
        return 0
    points = args.points or 1000
    wanted = tasks(names, points, args.seconds)
    if args.results:
        write_results(wanted, args.results)
        return 0
    asked = [*args.functions, "--points", str(points), "--seconds", str(args.seconds)]
    items = list(
        track(measure(wanted, args.processes, {}), "mpmath", len(wanted), console=progress)
    )
    if args.metal:  # the exact values are cached now
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
