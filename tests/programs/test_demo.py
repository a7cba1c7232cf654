"""The example of ``make demo`` runs, agrees with statsmodels, and writes a plot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_fits_agree_and_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    pytest.importorskip("matplotlib")
    plot = tmp_path / "new" / "plot.png"
    command = [sys.executable, "examples/negative_binomial.py", "--plot", str(plot)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The fits agree." in done.stdout
    assert "polygamma(n: int, x: array) ->" in done.stdout  # the rest is on the next line
    assert plot.read_bytes().startswith(b"\x89PNG")
