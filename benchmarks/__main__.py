"""The command line: ``python -m benchmarks [GROUP ...] [--quick] [--json] [--write]``.

When interrupted (Control-C, or SIGTERM), it reports the results so far and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console

from .measure import Options, Result, machine
from .report import TITLES, tables, update_page


def main() -> int:
    """Measure and report. The exit status does not depend on the aims."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure and report.")
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"all by default: {', '.join(TITLES)}"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="write docs/benchmark-results.md")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="only these special functions: lgamma,erf"
    )
    args = parser.parse_args()
    unknown = set(args.groups) - set(TITLES)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    if args.write and args.quick:
        parser.error("the page contains full sizes: --write cannot be combined with --quick")

    if args.write and args.only:
        parser.error("the page contains all functions: --write cannot be combined with --only")

    # One core, like MLX's CPU backend, NumPy and SciPy.
    os.environ.setdefault("MLXGEN_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: list[Result] = []
    complete = False
    progress = Console(stderr=True)
    with suppress(KeyboardInterrupt), progress.status("") as status:
        only = frozenset(filter(None, args.only.split(",")))
        options = Options(args.quick, progress=lambda what: status.update(what), only=only)
        for group in _selected(args.groups):
            module = importlib.import_module(f"{__package__}.{group}")
            for result in module.measure(options):
                results.append(result)
        complete = True
    if args.json:
        rows = [dataclasses.asdict(result) for result in results]
        print(json.dumps({"machine": machine(), "results": rows}, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 150)
        console.print(", ".join(f"{key} {value}" for key, value in machine().items()))
        for table in tables(results):
            console.print(table)
    if not complete:
        return 130
    if args.write:
        update_page(results, machine())
    return 0


def _selected(groups: Sequence[str]) -> list[str]:
    """Return the groups to run: all, or those named with their parts: `aten_models` of `aten`."""
    parts = [name for group in groups for name in TITLES if f"{name}_".startswith(f"{group}_")]
    return list(dict.fromkeys(parts)) or list(TITLES)


if __name__ == "__main__":
    sys.exit(main())
