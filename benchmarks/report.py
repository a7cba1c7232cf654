"""Shows results as tables in the terminal, and writes them to the results page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from rich.markup import escape
from rich.table import Table

from .measure import Result

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmark-results.md"

TITLES = {
    "generation": "Generation",
    "editor": "In the editor",
    "package": "One operator",
    "rebuild": "Rebuild after an edit",
    "calls": "Call overhead",
    "languages": "Languages",
    "kernels": "CPU kernels",
    "layouts": "Layouts",
    "special": "Special functions",
    "cores": "Several cores",
    "training": "Kernels for training",
    "small": "Small calls",
    "donation": "Donated arrays",
    "linalg": "Small matrices",
    "aten": "Operators of ATen",
    "aten_operators": "Operators of ATen against mlx.core",
    "aten_models": "Models of torch.export",
    "aten_quantized": "Quantized programs of torch.export",
    "emulation": "Emulated Metal kernels",
    "metal": "Instructions of Metal kernels",
    "apple": "Estimated for Apple's M1",
    "lines": "Lines of code",
}


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """Yield all results, one table for each group."""
    for title, rows in _groups(results):
        out = Table("", *_cells(rows[0]), title=TITLES[title])
        for result in rows:
            cells = (escape(cell.replace("**", "")) for cell in _cells(result).values())
            out.add_row(escape(result.what.replace("`", "")), *cells)
        yield out


def _groups(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for group in dict.fromkeys(result.group for result in results):
        yield group, [result for result in results if result.group == group]


def _cells(result: Result) -> dict[str, str]:
    """Return the cells after the name, by column."""
    met = {True: "yes", False: "no", None: ""}[result.met]
    return {**(result.cells or {"measured": result.value, "aim": result.aim}), "met": met}


def update_page(results: Sequence[Result], machine: Mapping[str, str]) -> None:
    """Write the page's tables of the measured groups; leave the other parts unchanged."""
    text = PAGE.read_text(encoding="utf-8")
    where = ", ".join(map(" ".join, machine.items()))
    for group, rows in _groups(results):
        columns = list(_cells(rows[0]))
        lines = [
            fill(f"`python -m benchmarks {group}` on: {where}", 100, break_on_hyphens=False),
            "",
            f"| | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
            *(f"| {r.what} | {' | '.join(_cells(r).values())} |" for r in rows),
        ]
        begin, end = f"<!-- {group}: written by --write -->", f"<!-- {group}: end -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise LookupError(f"{PAGE} has no markers for '{group}'")
        text = "\n".join([before + begin, *lines, end + after])
    PAGE.write_text(text, encoding="utf-8")
