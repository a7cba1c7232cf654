"""Results as a table for the terminal, and as the results page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from .measure import Result

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

TITLES = {
    "generation": "Generation",
    "rebuild": "Rebuild after an edit",
    "calls": "Call overhead",
    "kernels": "CPU kernels",
    "special": "Special functions",
    "cores": "Several cores",
    "emulation": "Emulated Metal kernels",
    "metal": "Instructions of Metal kernels",
    "lines": "Lines of code",
}


def table(results: Sequence[Result]) -> Table:
    """All results, one section per group."""
    out = Table("", "measured", "aim", "met")
    for i, result in enumerate(results):
        if i and result.group != results[i - 1].group:
            out.add_section()
        out.add_row(
            escape(result.what.replace("`", "")), escape(result.value), result.aim, _met(result)
        )
    return out


def _met(result: Result) -> str:
    return {True: "yes", False: "no", None: ""}[result.met]


def update_page(results: Sequence[Result], machine: Mapping[str, str]) -> None:
    """Write the page's tables of the groups that were measured, and leave the rest as it is."""
    text = PAGE.read_text(encoding="utf-8")
    for group in dict.fromkeys(result.group for result in results):
        rows = [result for result in results if result.group == group]
        lines = [
            f"`python -m benchmarks {group}` on: " + ", ".join(map(" ".join, machine.items())),
            "",
            "| | measured | aim | met |",
            "|---|---|---|---|",
            *(f"| {r.what} | {r.value} | {r.aim} | {_met(r)} |" for r in rows),
        ]
        begin, end = f"<!-- {group}: written by --write -->", f"<!-- {group}: end -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise LookupError(f"{PAGE} has no marks for '{group}'")
        text = "\n".join([before + begin, *lines, end + after])
    PAGE.write_text(text, encoding="utf-8")
