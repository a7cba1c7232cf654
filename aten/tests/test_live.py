"""aten/tools/live.py without torch: `make aten` goes on, and a wrong --torch is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIVE = Path(__file__).resolve().parent.parent / "tools" / "live.py"


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
