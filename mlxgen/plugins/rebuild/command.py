"""The command ``mlxgen rebuild``: builds a package for a release of MLX that its wheel lacks.

A wheel has the sources of its operators. They are compiled for the installed MLX as in any build
(package/cmake/CMakeLists.txt), into the cache. `import` finds them there (package/rebuild.py).
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import rich_click as click

from ...command.inputs import MLXGEN
from ...diagnostics import install
from ...package import compat
from ...package.cache import Cache, folder
from ...package.rebuild import KIND, find, key


class RebuildError(Exception):
    """A package that cannot be built; the message says why, and what to run."""


@click.command("rebuild")
@click.argument("package")
def rebuild_command(package: str) -> None:
    """Build an installed PACKAGE for the installed MLX, if it has no build for that release.

    The package's sources are compiled into the cache, where importing the package finds them.
    """
    try:
        click.echo(rebuild(package))
    except RebuildError as error:
        raise click.ClickException(str(error)) from error


def rebuild(name: str) -> str:
    """Build an installed package for the installed MLX, and return a sentence about it.

    Raises:
        RebuildError: If it cannot be built.
    """
    package = _installed(name)
    mlx, release = _mlx()
    if release in _releases(package):
        return f"{name} has a build for MLX {release} already"
    if not (package / "sources").is_dir():
        raise RebuildError(f"{name} in {package} has no sources, of which it could be built")
    if find(package, release) is None:
        about, inputs = f"{name} for MLX {release}", key(package, release)
        try:
            Cache(folder()).obtain(
                KIND, inputs, about, lambda made: _build(package, name, mlx, made)
            )
        except OSError as error:
            raise RebuildError(f"the cache {folder()} cannot be written: {error}") from None
    return f"{name} is built for MLX {release}"


def _installed(name: str) -> Path:
    """Return the folder of a package, which is not imported: it would raise an error."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folders = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    for place in folders:
        if (place / "_build_info.py").is_file():
            return place
    if folders:
        raise RebuildError(f"{name} in {folders[0]} was not built by mlxgen")
    raise RebuildError(f"{name} is not installed for {sys.executable}")


def _mlx() -> tuple[Path, str]:
    """Return the folder of the installed MLX, and its release."""
    core = compat.core_module()
    if core is None:
        raise RebuildError(install.no_mlx())
    try:
        import mlx.core
    except ImportError as error:
        raise RebuildError(f"MLX cannot be imported: {error}: {install.mlx()}") from None
    return core.parent, str(mlx.core.__dict__["__version__"])


def _releases(package: Path) -> Iterator[str]:
    """Return the releases of MLX that a package has builds for."""
    yield runpy.run_path(str(package / "_build_info.py"))["MLX_VERSION"]
    yield from (place.name for place in (package / "releases").glob("*"))


def _build(package: Path, name: str, mlx: Path, made: Path) -> Iterable[str]:
    """Compile the sources of a package into an empty folder."""
    from ...package import toolchain

    try:
        cmake, ninja = toolchain.tools()
        variables = toolchain.compiler_variables()
    except toolchain.BuildError as error:
        raise RebuildError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as scratch:
        project, build = Path(scratch) / name, Path(scratch) / "build"
        shutil.copytree(package / "sources", project)
        defined = {
            "CMAKE_MAKE_PROGRAM": ninja[0],
            "Python_EXECUTABLE": sys.executable,
            "MLXGEN_PROJECT": str(project),
            "MLXGEN_MLX_PLACE": str(mlx),
        }
        given = [f"-D{key}={value}" for key, value in defined.items()]
        source = ["-S", str(MLXGEN / "package" / "cmake"), "-B", str(build), "-G", "Ninja"]
        _run([*cmake, *source, "--log-level=WARNING", *given], variables)
        _run([*cmake, "--build", str(build)])
        installed = ["--install", str(build), "--component", "binaries", "--prefix", str(made)]
        _run([*cmake, *installed, "--strip"])
    return []


def _run(command: list[str], variables: Mapping[str, str] | None = None) -> None:
    """Run a command, which prints what it does or why it fails."""
    environment = os.environ | (variables or {})
    done = subprocess.run(command, stdout=sys.stderr, check=False, env=environment)
    if status := done.returncode:
        raise RebuildError(f"the package was not built, for the reason above (status {status})")
