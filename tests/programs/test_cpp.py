"""The example of docs/cpp.md, executed literally: a C++ program that uses mlxops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cpp.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [code for language, code in BLOCKS if language == "sh"]
(PRINTED,) = (code for language, code in BLOCKS if language == "text")


@pytest.mark.parametrize("commands", COMMANDS, ids=["cmake", "compiler"])
def test_program(tmp_path: Path, commands: str) -> None:
    for _, code in BLOCKS:
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
    assert done.stdout.endswith(PRINTED)
