"""Results as a table for the terminal, and as the results page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from .measure import Result

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = (
    "<!-- results: begin (written by `python -m benchmarks --write`) -->",
    "<!-- results: end -->",
)

TITLES = {
    "generation": "Generation",
    "rebuild": "Rebuild after an edit",
    "calls": "Call overhead",
    "kernels": "CPU kernels, 4M elements, float32",
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


def update_page(results: Sequence[Result], machine: Mapping[str, str], command: str) -> None:
    """Write the results between the marks of the page, and leave the rest as it is."""
    lines = [
        "",
        ", ".join(f"{key} {value}" for key, value in machine.items()) + f". `{command}`",
        "",
    ]
    for group, title in TITLES.items():
        rows = [r for r in results if r.group == group]
        if rows:
            lines += [f"### {title}", "", "| | measured | aim | met |", "|---|---|---|---|"]
            lines += [f"| {r.what} | {r.value} | {r.aim} | {_met(r)} |" for r in rows]
            lines.append("")
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not (found and found_end):
        raise LookupError(f"{PAGE} has no marks between which results belong")
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + after, encoding="utf-8")
