"""examples/kalman_filter.py finds the likelihood through PyTensor's MLX backend."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytensor", "3.3", reason="PyTensor needs Python 3.12")


def test_the_likelihood_is_right():
    done = subprocess.run(
        [sys.executable, "examples/kalman_filter.py"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("The likelihood and its gradient are right.\n")
