"""Hostile calls of every operator raise an exception or return a right result; they never crash.

hostile.py calls the operators from mlxops in other processes, so that a crash or hang is an
ordinary failure that names the call.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hostile.py")
PARTS = ("calls", "transforms", "patterns", "memory", "threads", "interrupt", "leave")


def run(part: str) -> None:
    command = [sys.executable, str(PROGRAM), part]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode()
        pytest.fail(f"hangs: {printed.strip().rpartition(chr(10))[2]}")
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"exit status {done.returncode}, last: {last}\n{done.stderr}"


@pytest.mark.extended
@pytest.mark.parametrize("part", PARTS)
def test_hostile_calls(part: str) -> None:
    run(part)


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="macOS overcommits any memory, and forks less")
@pytest.mark.parametrize("part", ["limits", "forks"])
def test_limits_of_the_system(part: str) -> None:
    if part == "limits" and "san.so" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("sanitizers need more memory than the limit")
    run(part)


@pytest.mark.skipif("TEST_LARGE" not in os.environ, reason="takes 3 GB: `make sanitize` runs it")
def test_more_than_32_bits_of_elements() -> None:
    run("large")
