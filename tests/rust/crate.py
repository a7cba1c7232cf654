"""Crates in a folder of a test, and cargo's commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")


def cargo(crate: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run cargo offline in the folder of a crate."""
    variables = {"CARGO_TERM_COLOR": "never", "RUST_BACKTRACE": "0", **variables}
    return subprocess.run(
        ["cargo", *arguments, "--offline"],
        cwd=crate,
        env={**os.environ, "CARGO_TARGET_DIR": str(crate / "target"), **variables},
        capture_output=True,
        text=True,
    )


def passed(done: subprocess.CompletedProcess[str]) -> list[int]:
    """Return the number of tests that passed, by target; all must pass."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^test result: ok\. (\d+) passed; 0 failed", done.stdout, re.MULTILINE)
    return [int(number) for number in found if number != "0"]


def require_format(crate: Path) -> None:
    """Check the layout, if rustfmt is installed."""
    if shutil.which("rustfmt"):
        style = ["rustfmt", "--check", "--edition=2024", "--config-path=rustfmt.toml"]
        done = subprocess.run(
            [*style, "src/lib.rs", "build.rs"], cwd=crate, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def require_style(crate: Path, **variables: str) -> None:
    """Check the layout, the compiler's warnings and clippy's, if it is installed."""
    require_format(crate)
    command = ["clippy"] if shutil.which("cargo-clippy") else ["check"]
    done = cargo(crate, *command, RUSTFLAGS="-D warnings", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
