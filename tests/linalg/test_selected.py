"""Builds of selected operators: the hand-written C++ of linear algebra compiles without the others,
as in ``make demo``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.extended
@pytest.mark.parametrize("chosen", ["lgamma", "qr", "lu_rows"])
def test_sources_compile(chosen, tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    command = [sys.executable, "-m", "mlxgen", "generate", "-o", tmp_path, "--select", chosen]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    sources = sorted((REPOSITORY / "csrc").rglob("*.cpp"))
    assert sources
    includes = [tmp_path / "include", REPOSITORY / "csrc", REPOSITORY / "mlxgen/runtime/include"]
    mlx_headers = Path(mlx.core.__file__).parent / "include"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-isystem", mlx_headers]
    command += [f"-I{folder}" for folder in includes]
    # One run for all files: MLX's headers are read once.
    whole = tmp_path / "all.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    done = subprocess.run([*command, whole], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:5000]
