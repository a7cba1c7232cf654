"""Checks that the installed nanobind matches the installed MLX.

An extension and ``mlx.core`` exchange arrays through nanobind's internal tables, which they share
only if both were compiled with the same version of these internals on the same platform ABI.
nanobind writes both into every extension as one tag: ``nanobind_system_libcpp_abi1_a1_v22``
(since 3.0) or ``v21_system_libcpp_abi1`` (before). With different tags the extension still imports,
but every call fails with a TypeError that shows the right types. This is the most reported problem
of MLX extensions. The module therefore reads the tag of the installed ``mlx.core`` before anything
is compiled, and compares it with the tag of the extension after linking.

``python -m mlxgen.package.compat`` compares the tags of two extension modules.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import install
from ..diagnostics.install import version as version
from ..read.settings import OLDEST_MLX, numbers

# NB_INTERNALS_VERSION of nanobind: the releases of MLX whose wheels use it, and of nanobind.
_RELEASES: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    16: ((), ("2.9.2",)),
    17: (("0.30.6", "0.31.0", "0.31.1"), ("2.10.2",)),
    18: ((), ("2.11.0",)),
    19: (("0.31.2",), ("2.12.0",)),
    20: (("0.32.0", "0.32.1"), ("2.13.0", "2.14.0")),
    21: (("0.32.2",), ("2.15.0",)),
    22: (("0.32.3", "0.32.4"), ("3.0.1", "3.1.0")),
}
# The last matching release is required.
NANOBIND = {internals: releases for internals, (_, releases) in _RELEASES.items()}
# For isolated builds, in which MLX is not installed yet.
MLX = {release: internals for internals, (those, _) in _RELEASES.items() for release in those}

_TAG = re.compile(rb"(?:nanobind|v\d+)_(?:system|mingw|gcc_cygwin|msvc)_\w+")
_INTERNALS = re.compile(r"(?:^|_)v(\d+)(?:_|$)")


class CompatError(Exception):
    """MLX or nanobind is missing, or they do not match; the message names the command to run."""


class Toolchain(NamedTuple):
    """The MLX and the nanobind with which an extension is built."""

    mlx_version: str  # of the distribution
    mlx: Path  # the folder with MLX's headers, libraries and CMake package, to build with
    mlx_core: Path  # the installed extension module mlx.core
    nanobind_version: str
    nanobind: Path
    tag: str


def abi_tag(module: Path) -> str:
    """Return the nanobind ABI tag of a compiled module; raise ``CompatError`` if it has none."""
    with module.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if match := _TAG.search(data):
            return match[0].decode()
    raise CompatError(f"{module} has no nanobind ABI tag: it was not built with nanobind")


def internals_version(tag: str) -> int:
    """Return the internals version of an ABI tag: 22 for ``nanobind_system_libcpp_abi1_a1_v22``."""
    if match := _INTERNALS.search(tag):
        return int(match[1])
    raise CompatError(f"no internals version in the nanobind ABI tag '{tag}'")


def nanobind_requirement(mlx_version: str | None) -> str:
    """Return the requirement on nanobind for a release of MLX: ``nanobind==3.1.0``.

    The tag of the installed ``mlx.core`` takes precedence over the table. A release that the table
    lacks is assumed to be newer than the table.
    """
    core = core_module()
    if core is not None and mlx_version in (None, version("mlx")):
        known = NANOBIND.get(internals_version(abi_tag(core)))
    else:
        known = NANOBIND.get(MLX.get(mlx_version or "", max(NANOBIND)))
    return f"nanobind=={known[-1]}" if known else "nanobind"


Fetch = Callable[[str, str], Path]  # the folder of a package, by its name and release


def find(fetch: Fetch | None = None) -> Toolchain:
    """Return the installed MLX and the nanobind that matches it.

    Args:
        fetch: Returns the folder of a release of nanobind, for use if the installed nanobind does
            not match, or of MLX. Raises ``CompatError`` with the reason if it cannot.

    Raises:
        CompatError: If they do not match. The message is one sentence.
    """
    core = core_module()
    mlx_version = version("mlx")
    if core is None or mlx_version is None:
        raise CompatError(install.no_mlx())
    if numbers(mlx_version) < numbers(OLDEST_MLX):
        raise CompatError(
            f"MLX {mlx_version} is too old: mlxgen needs {OLDEST_MLX} or newer; "
            f"{install.mlx(f'>={OLDEST_MLX}')}"
        )
    tag = abi_tag(core)
    wanted = internals_version(tag)
    mlx = _to_build_with(core.parent, mlx_version, fetch)
    spec = importlib.util.find_spec("nanobind")
    nanobind_version = version("nanobind")
    nanobind = Path(spec.origin).parent if spec is not None and spec.origin else None
    found = _source_internals(nanobind) if nanobind is not None and nanobind_version else None
    if nanobind is not None and nanobind_version is not None and found == wanted:
        return Toolchain(mlx_version, mlx, core, nanobind_version, nanobind, tag)
    if found is None:
        problem = (
            f"nanobind, which MLX {mlx_version} needs to share arrays with an extension, is not "
            f"installed for {sys.executable}"
        )
    else:
        problem = (
            f"nanobind {nanobind_version} does not match MLX {mlx_version}: the extension would "
            f"use version {found} of nanobind's internals, but MLX uses {wanted}, and no array "
            "could be passed between them"
        )
    if wanted not in NANOBIND:
        raise CompatError(f"{problem}; install the nanobind that MLX {mlx_version} was built with")
    release = NANOBIND[wanted][-1]
    why = ""
    if fetch is not None:
        try:
            fetched = fetch("nanobind", release)
            if _source_internals(fetched) != wanted:
                raise CompatError(f"the fetched release {release} does not match either")
            return Toolchain(mlx_version, mlx, core, release, fetched, tag)
        except CompatError as error:
            why = f" (it could not be fetched: {error})"
    raise CompatError(f"{problem}; run {install.pip(f'nanobind=={release}')}{why}")


def _to_build_with(mlx: Path, release: str, fetch: Fetch | None) -> Path:
    """Return the folder of the MLX to build with: the installed one, unless it is for CUDA.

    CMake finds that only together with NVIDIA's compiler, which no operator needs. The release for
    the CPU has the same headers, and a library with the same exported symbols. The headers in
    ``cccl`` are those that MLX needs itself to compile for CUDA.
    """
    if fetch is None or not (mlx / "include" / "cccl").is_dir():
        return mlx
    try:
        return fetch("mlx", release)
    except CompatError:
        return mlx  # compiled on this machine, where NVIDIA's compiler is


def compare(core: Path, extension: Path) -> None:
    """Raise ``CompatError`` if an extension module cannot share arrays with ``mlx.core``."""
    ours, theirs = abi_tag(extension), abi_tag(core)
    if ours != theirs:
        raise CompatError(
            f"{extension.name} has the nanobind ABI tag '{ours}' but mlx.core has '{theirs}': no "
            "array could be passed between them; build with the C++ standard library and the "
            "nanobind that MLX was built with"
        )


def core_module() -> Path | None:
    """Return the path of the extension module mlx.core without importing it."""
    spec = importlib.util.find_spec("mlx")
    folders = spec.submodule_search_locations or () if spec else ()
    found = [path for folder in folders for path in sorted(Path(folder).glob("core.*"))]
    return next((path for path in found if path.suffix in (".so", ".pyd")), None)


def _source_internals(nanobind: Path) -> int:
    """Return NB_INTERNALS_VERSION of the sources in a nanobind distribution."""
    headers = [nanobind / "src" / name for name in ("nb_internals.h", "nb_abi.h")]
    text = "".join(path.read_text(encoding="utf-8") for path in headers if path.is_file())
    if match := re.search(r"define\s+NB_INTERNALS_VERSION\s+(\d+)", text):
        return int(match[1])
    raise CompatError(f"unknown nanobind in {nanobind}: its sources define no internals version")


def main(arguments: Sequence[str]) -> int:
    """Compare two extension modules; return 1 if they do not match."""
    try:
        compare(*map(Path, arguments))
    except CompatError as error:
        print(f"mlxgen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
