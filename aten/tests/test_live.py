"""aten/tools/live.py without torch: `make aten` goes on, and a wrong --torch is an error.

What changes from one torch to the next is found in samples.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import Array, Sample

LIVE = Path(__file__).resolve().parent.parent / "tools" / "live.py"
sys.path.insert(0, str(LIVE.parent))
from live import change  # noqa: E402

NAN = float("nan")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LIVE), *args], capture_output=True, text=True, check=False
    )


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose torch has another version."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 1.0.0\n")
    path.chmod(0o755)
    return path


def test_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "has no torch: torch 2.13 or 2.15 is needed" in done.stdout
    assert "make aten TORCH=python" in done.stdout


def test_another_version(python: Path) -> None:
    done = run("--torch", str(python))
    assert (done.returncode, done.stderr) == (1, "")
    assert "has torch 1.0.0: torch 2.13 or 2.15 is needed" in done.stdout


def test_no_python() -> None:
    done = run("--torch", "/nowhere/python")
    assert (done.returncode, done.stderr) == (1, "")
    assert "has no torch" in done.stdout


def array(*values: float, dtype: str = "float32", size: int = 0) -> Array:
    """Return a recorded array; with a size, some elements of a large one."""
    data = np.array(values, dtype)
    return Array(dtype, (size,), data, step=2) if size else Array(dtype, data.shape, data)


ONES = array(1, 1)
RECORDED = Sample("f", "a test", [ONES], {}, [array(3, NAN)], ["self"], {"self": ONES}, [ONES])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, ""),
        ({"out": [array(3.000001, NAN)]}, ""),
        ({"out": [array(3, 1)]}, "result: 1.0 instead of nan at [1]"),
        ({"out": [array(3, NAN, dtype="float64")]}, "dtypes float64"),
        ({"out": [array(3, NAN, 1)]}, "shape (3,) instead of (2,)"),
        ({"gradients": {"self": array(1, 2)}}, "gradient of self: 2.0 instead of 1.0"),
        ({"gradients": {"self": None}}, "gradient of self: 0.0 instead of 1.0"),
        ({"gradients": {}}, "gradients of nothing instead of self"),
        ({"raises": ("IndexError", "too far")}, "raises IndexError: too far"),
    ],
)
def test_change(found: dict[str, Any], text: str) -> None:
    changed = change(RECORDED, replace(RECORDED, **found))
    assert text in changed if text else not changed


def test_change_of_an_error() -> None:
    rejected = replace(RECORDED, raises=("IndexError", "too far"))
    assert change(rejected, RECORDED) == "raises nothing"
    assert not change(rejected, replace(RECORDED, raises=("ValueError", "not so far")))


def test_change_of_a_large_result() -> None:
    recorded = replace(RECORDED, out=[array(1, 2, size=4)], gradients={})
    assert not change(recorded, replace(recorded, out=[array(1, 2, size=4)]))
    assert "3.0 instead of 2.0" in change(recorded, replace(recorded, out=[array(1, 3, size=4)]))
