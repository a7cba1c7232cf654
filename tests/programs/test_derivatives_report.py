"""The report on derivatives: errors of a right and a wrong function, its table and its section."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from special.records import RECORDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that measures derivatives."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.derivatives")


def table(text: str, number: int = 0) -> list[list[str]]:
    """Return the rows below the head of one of the section's tables."""
    blocks = [b for b in text.split("\n\n") if b.startswith("|")]
    lines = [line.strip("|").split("|") for line in blocks[number].splitlines()]
    assert {len(line) for line in lines} == {8}
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_section_has_a_row_per_argument(report: Any) -> None:
    rows = list(report.measure(["expm1", "hypot", "gammainc"], 4, 0.05))
    text = report.section(rows)
    expm1, x, y, a, *_ = table(text)
    assert [expm1[:3], x[:2], y[:2]] == [
        ["`expm1`", "`x`", "4"],
        ["`hypot`", "`x`"],
        ["`hypot`", "`y`"],
    ]
    for row in (expm1, x, y):
        for cell, limit in zip(row[3:7], (1e-6, 1e-15) * 2, strict=True):
            worst, most = map(float, cell.rstrip(")").split(" ("))
            assert most <= worst < limit
    assert expm1[7] == "0 of 14,442" and not x[7]
    assert a[:2] == ["`gammainc`", "`a`"] and a[5:7] == ["none", "none"]
    assert report.BEYOND not in text


def test_wrong_derivatives_are_found(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong reference is as far off as a wrong function; NaN below 0 counts in the scan."""
    right = RECORDS["expm1"]
    wrong = replace(right, exact=lambda x: 1.001 * right.exact(x))
    monkeypatch.setitem(report.RECORDS, "expm1", wrong)
    rows = list(report.measure(["expm1"], 4, 1))
    beyond = table(report.section(rows), 1)
    assert [row[2:4] for row in beyond] == [
        [order, dtype] for order in ("first", "second") for dtype in ("float32", "float64")
    ]
    for row in beyond:
        assert 1 <= int(row[4]) <= 4 and float(row[7]) / float(row[6]) == pytest.approx(1.001, 1e-4)
    monkeypatch.setattr("special.reference.Record.call", lambda _, head, x: mx.sqrt(x))
    with mx.stream(mx.cpu):
        nan, total = report.scan(wrong)
    assert (nan, total) == (7215, 14442)


def test_kinks_are_omitted_and_infinity_is_beyond_the_largest_number(report: Any) -> None:
    assert report._exact(RECORDS["huber"], (), (1.0, 1.0), 1) is None
    first, second = report._exact(RECORDS["huber"], (), (1.0, 0.5), 1)
    assert (first.value, second.value) == (0.5, 1.0)
    double = report.FORMATS["float64"]
    exact = [report.Reference(double.max, double.max)] * 3
    errors = report._errors(np.array([np.inf, -np.inf, np.nan]), exact, double)
    assert errors[0] < 1e-15 and errors[1] == pytest.approx(2) and np.isinf(errors[2])


def test_only_the_section_is_written(report: Any, tmp_path: Path) -> None:
    page = importlib.import_module("benchmarks.accuracy_page")
    path = tmp_path / "page.md"
    path.write_text("# A\n\n## Derivatives\n\nold\n\n### B\n\nold\n\n## i0\n\nrest\n")
    page.write_derivatives([], path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# A\n\n## Derivatives\n\n`make") and "old" not in text
    assert text.endswith("\n\n## i0\n\nrest\n")
    again = report.section_of(text)
    assert again == report.section([])
