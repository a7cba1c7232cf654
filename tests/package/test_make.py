"""`make build`: after an edit of operators CMake builds and installs, else pip."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
# Each of the tools writes its name and first argument; cmake fails if the compiler would.
TOOL = """#!/bin/sh
echo "${0##*/} $*" >> calls
case "$*" in *importlib*) echo 1.2.3;; --build*) cat csrc/k.h >&2; ! grep -q error csrc/k.h;; esac
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with the Makefile, sources, and an environment of empty tools."""
    for name in ("mlx_ops.yaml", "csrc/k.h", "kernels/k.metal", "python/mlxops/layers.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("pyproject.toml", "mlxgen/pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("backend", "compat"):
        (tmp_path / "mlxgen" / "package").mkdir(exist_ok=True)
        (tmp_path / "mlxgen" / "package" / f"{name}.py").touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("mlxgen", "cmake", "python"):
        tool = tmp_path / ".venv" / "bin" / name
        tool.write_text(TOOL)
        tool.chmod(0o755)
    for name in (".venv/lib/python3.12/site-packages/mlxops/ops.json", "build/build.ninja"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    for age, name in ((2, ".ready"), (3, ".built")):
        (tmp_path / ".venv" / name).touch()
        os.utime(tmp_path / ".venv" / name, (age, age))
    return tmp_path


def calls(package: Path) -> list[str]:
    """Run `make build`; return the tools that it called, without their options."""
    done = subprocess.run(
        [str(MAKE), "-C", package, "build"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = package / "calls"
    lines = log.read_text().splitlines() if log.is_file() else []
    log.unlink(missing_ok=True)
    words = (line.split() for line in lines if "importlib" not in line)
    return [" ".join([*line[:1], "pip"] if "pip" in line else line[:2]) for line in words]


BY_CMAKE = ["mlxgen generate", "cmake --build", "cmake --install"]
BY_PIP = ["mlxgen generate", "python pip"]


@pytest.mark.skipif(MAKE is None, reason="needs make")
@pytest.mark.parametrize(
    ("edited", "wanted"),
    [
        ("", []),
        ("mlx_ops.yaml", BY_CMAKE),
        ("csrc/k.h", BY_CMAKE),
        ("kernels/k.metal", BY_CMAKE),
        ("python/mlxops/layers.py", BY_PIP),
        (".venv/.ready", BY_PIP),
    ],
)
def test_pip_is_called_if_it_is_needed(package: Path, edited: str, wanted: list[str]) -> None:
    for name in edited.split():
        (package / name).touch()
    assert calls(package) == wanted
    assert calls(package) == []


@pytest.mark.skipif(MAKE is None, reason="needs make")
@pytest.mark.parametrize("missing", ["build/build.ninja", ".venv/lib", ".venv/.built"])
def test_pip_is_called_if_something_is_missing(package: Path, missing: str) -> None:
    path = package / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (package / "csrc" / "k.h").touch()
    assert calls(package) == BY_PIP


@pytest.mark.skipif(MAKE is None, reason="needs make")
def test_no_file_of_a_removed_operator_is_left(package: Path) -> None:
    installed = next(package.glob(".venv/lib/*/site-packages/mlxops"))
    header = installed / "include" / "mlxops" / "gone.h"
    header.parent.mkdir(parents=True)
    header.touch()
    (package / "mlx_ops.yaml").touch()
    assert calls(package) == BY_CMAKE
    assert not header.exists()
    assert (installed / "ops.json").exists()


@pytest.mark.skipif(MAKE is None, reason="needs make")
def test_errors_of_the_compiler_are_shown(package: Path) -> None:
    (package / "csrc" / "k.h").write_text("error: expected ';'")
    command = [str(MAKE), "-C", package, "build"]
    for _ in range(2):  # nothing counts as built
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "error: expected ';'" in done.stdout
    (package / "csrc" / "k.h").write_text("")
    (package / "calls").unlink()
    assert calls(package) == BY_CMAKE
