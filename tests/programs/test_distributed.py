"""examples/distributed.py yields the same coefficients in two processes as in one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.extended
def test_two_processes_fit_as_one(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    pytest.importorskip("matplotlib")
    with socket.socket() as one, socket.socket() as two:
        for reserved in (one, two):
            reserved.bind(("127.0.0.1", 0))
        ports = [reserved.getsockname()[1] for reserved in (one, two)]
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]), encoding="utf-8")
    processes = [
        subprocess.Popen(
            [sys.executable, "examples/distributed.py"],
            cwd=ROOT,
            env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        first, second = (process.communicate(timeout=300)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], first + second
    assert "The fits agree." in first
    assert "Process 1 of 2, 10095 rows" in first
    assert "Process 2 of 2, 10095 rows" in second
