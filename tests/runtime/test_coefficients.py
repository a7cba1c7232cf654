"""The headers in csrc/special are those that their scripts write, and their names do not clash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mlxgen

FOLDER = Path(__file__).parents[2] / "csrc" / "special"
SCRIPTS = sorted(FOLDER.glob("*_coefficients.py"))


def test_every_header_has_a_script():
    assert {path.stem for path in SCRIPTS} == {p.stem for p in FOLDER.glob("*_coefficients.h")}


@pytest.mark.extended
@pytest.mark.weekly
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_header_is_what_its_script_writes(script):
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_header_is_noticed(tmp_path):
    for path in FOLDER.glob("exp_log_coefficients.*"):
        text = path.read_text().replace("-0.5,", "-0.25,").replace("0.5f", "0.25f")
        (tmp_path / path.name).write_text(path.read_text() if path.suffix == ".py" else text)
    (tmp_path / "minimax.py").write_text((FOLDER / "minimax.py").read_text())
    command = [sys.executable, str(tmp_path / "exp_log_coefficients.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "exp_log_coefficients.h is out of date" in done.stdout


def test_headers_can_be_included_together(tmp_path):
    headers = sorted(FOLDER.glob("*.h"))
    lines = [f'#include "special/{path.name}"' for path in headers]
    source = tmp_path / "all.cpp"
    source.write_text("\n".join(lines) + "\n")
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    include = [f"-I{FOLDER.parent}", f"-I{Path(mlxgen.__file__).parent / 'runtime' / 'include'}"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *include, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(headers) > 10
