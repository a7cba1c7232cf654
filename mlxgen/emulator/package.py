"""Builds a package's operators so that their Metal kernels run on the CPU, and runs its tests.

The operators' library is built a second time, with the substitute of MLX's Metal device
(`include/mlx`) in front of MLX's own. A copy of the installed package takes it in; tests that
import the package from there run the Metal kernels in place of the CPU's, through their generated
launchers. Nothing else of the package differs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..preprocess import OWN_INCLUDES
from ..settings import Settings
from ..tokens import SourceError
from .library import EmulationError, cache_folder
from .rules import check_rules

HERE = Path(__file__).resolve().parent


def installed(name: str) -> Path:
    """The folder of the installed package.

    Raises:
        EmulationError: where it is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise EmulationError(f"{name} is not installed here: install it first (pip install .)")
    return Path(found.origin).parent


def check_kernels(settings: Settings) -> list[SourceError]:
    """The rules of Metal that the project's kernels break (see `rules`)."""
    folders = [settings.metal, settings.csrc, Path(OWN_INCLUDES), mlx_include()]
    return [
        error
        for path in sorted(settings.metal.rglob("*.metal"))
        for error in check_rules(path, folders)
    ]


def mlx_include() -> Path:
    """The folder of the installed MLX's headers.

    Raises:
        EmulationError: where MLX is not installed.
    """
    found = importlib.util.find_spec("mlx")
    for folder in (found.submodule_search_locations or []) if found else []:
        if (Path(folder) / "include").is_dir():
            return Path(folder) / "include"
    raise EmulationError("MLX is not installed here")


def build_package(settings: Settings, folder: Path, jobs: int = 2) -> Path:
    """Build the operators for emulation in `folder`; the folder to put on PYTHONPATH.

    Raises:
        EmulationError: if the package is not installed, or does not build.
    """
    source = installed(settings.name)
    build = folder / "build"
    build.mkdir(parents=True, exist_ok=True)
    _run(
        [
            *_tool("cmake"),
            *("-S", str(HERE.parent / "cmake"), "-B", str(build), "-G", "Ninja"),
            f"-DMLXGEN_PROJECT={settings.root}",
            "-DMLXGEN_EMULATE_METAL=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
            # compiled once for tests: speed of the CPU kernels does not matter
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
        ],
        "configuring",
    )
    _run(
        [*_tool("cmake"), "--build", str(build), "--target", "mlxgen_ops", "-j", str(jobs)],
        "building",
    )
    described = build / "generated" / "python" / "ops.json"
    if described.read_bytes() != (source / "ops.json").read_bytes():
        raise EmulationError(
            f"the installed {settings.name} has other operators than {settings.yaml.name} now: "
            "install it again (pip install .)"
        )
    overlay = folder / "package"
    target = overlay / settings.name
    shutil.copytree(
        source,
        target,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", "include"),
    )
    for library in (build / "lib").iterdir():
        shutil.copy2(library, target / "lib" / library.name)
    return overlay


def environment(settings: Settings, overlay: Path) -> dict[str, str]:
    """The environment in which the package's Metal kernels run on the CPU."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = overlay / settings.name / "lib" / f"lib{settings.name}.{suffix}"
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "MLXGEN_METAL_EMULATION": "1",
        "MLXGEN_METAL_LIBRARY": str(library),
        "MLXGEN_METAL_CACHE": str(cache_folder()),
        "PYTHONPATH": os.pathsep.join([str(overlay), *([path] if path else [])]),
    }


def run_tests(settings: Settings, overlay: Path, arguments: Sequence[str]) -> int:
    """Run pytest over the package's tests with emulated Metal kernels; its exit status."""
    command = [sys.executable, "-m", "pytest", "-p", "mlxgen.emulator.plugin", *arguments]
    return subprocess.run(
        command, cwd=settings.root, env=environment(settings, overlay), check=False
    ).returncode


def _tool(name: str) -> list[str]:
    beside = Path(sys.executable).with_name(name)
    return [str(beside)] if beside.exists() else [name]


def _run(command: Sequence[str], what: str, env: Mapping[str, str] | None = None) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path, **(env or {})},
    )
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip()
        raise EmulationError(f"{what} the operators for emulation failed:\n{text[-4000:]}")
