"""examples/gaussian_process.py finds the likelihood and the period of the sun."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.extended
def test_example():
    run = subprocess.run(
        [sys.executable, "examples/gaussian_process.py"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "The likelihood and the period are right." in run.stdout
