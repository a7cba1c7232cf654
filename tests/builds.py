"""Packages that tests build, as pip would."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import mlx.core as mx

import mlxgen

BUILD = "from mlxgen import build; build.build_wheel('dist')"


def environment(path: Path | None = None) -> dict[str, str]:
    """The environment of a process with this mlxgen and, before it, the modules in ``path``."""
    paths = [str(path)] if path else []
    return {
        # As outside of pytest-xdist, whose workers do not make workers.
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")},
        "PYTHONPATH": os.pathsep.join([*paths, str(Path(mlxgen.__file__).parents[1])]),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
    }


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with this mlxgen and, before it, the modules in ``path``."""
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment(path), capture_output=True, text=True
    )


def output(done: subprocess.CompletedProcess[str]) -> str:
    """What a process printed that ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(root: Path) -> Path:
    """The wheel of the project in a folder, in its ``dist``."""
    output(run("-c", BUILD, cwd=root))
    (wheel,) = (root / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel into a folder, as it is installed: beside MLX, where its libraries look."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    if not (site / "mlx").exists():
        (site / "mlx").symlink_to(Path(mx.__file__).parent)
