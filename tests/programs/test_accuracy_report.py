"""The accuracy report measures a function, caches mpmath's values, and writes its page and plot."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(cache: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.accuracy", *arguments]
    environment = {**os.environ, "MLXOPS_EXACT_CACHE": str(cache), "COLUMNS": "160"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_report_and_cache(tmp_path: Path) -> None:
    first = run(tmp_path, "digamma", "--points", "32", "--processes", "1")
    assert "│ digamma" in first and "│ lgamma" not in first
    assert "float32 is beyond 4 units in 0 regions" in first
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert len(kept) > 10
    assert run(tmp_path, "digamma", "--points", "32", "--processes", "1") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")} == kept


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("MLXOPS_EXACT_CACHE", str(tmp_path / "cache"))
    errors = importlib.import_module("benchmarks.errors")
    page = importlib.import_module("benchmarks.accuracy_page")
    tasks = errors.tasks(["lgamma"], 16, 10)
    page.write_page(list(errors.measure(tasks, 1, {})), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert (
        re.search(r"^\| \[lgamma\]\(#lgamma\) \| [0-3]\.\d", text, re.M) and "\n## lgamma\n" in text
    )
    assert (tmp_path / "page" / "lgamma.png").read_bytes().startswith(b"\x89PNG")
