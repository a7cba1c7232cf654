"""Builds packages for tests, as pip would."""

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
    """Return an environment with this mlxgen and, before it, the modules in ``path``."""
    paths = [str(path)] if path else []
    return {
        # As outside of pytest-xdist, whose workers cannot start workers.
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
    """Return the output of a process; it must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(root: Path) -> Path:
    """Build the wheel of the project in a folder, in its ``dist``."""
    output(run("-c", BUILD, cwd=root))
    (wheel,) = (root / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel into a folder as pip does: next to MLX, where its libraries search for it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    if not (site / "mlx").exists():
        (site / "mlx").symlink_to(Path(mx.__file__).parent)
