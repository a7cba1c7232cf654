"""Builds and runs the programs of docs/cpp.md and docs/c.md with their commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = {
    page: re.findall(
        r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for page in ("cpp.md", "c.md")
}
COMMANDS = [
    (page, code) for page, blocks in BLOCKS.items() for language, code in blocks if language == "sh"
]


@pytest.mark.parametrize(
    ("page", "commands"),
    COMMANDS,
    ids=["C++ with CMake", "C++ with the compiler", "C with CMake", "C with pkg-config"],
)
def test_program(tmp_path: Path, page: str, commands: str) -> None:
    if "pkg-config" in commands and shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config")
    for _, code in BLOCKS[page]:
        if name := re.match(r"(?://|#) ([\w.]+)\n", code):
            (tmp_path / name[1]).write_text(code, encoding="utf-8")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (printed,) = (code for language, code in BLOCKS[page] if language == "text")
    assert done.stdout.endswith(printed)
