"""The shared toolchain, for modules that the current process compiles and loads."""

from __future__ import annotations

import atexit
import functools
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ...package import compat, probe, toolchain
from ...package.cache import Cache, folder
from ...package.uses import Compiled


@functools.cache
def local_folder() -> Path:
    """Return a folder for this process, for use if the cache is not writable."""
    folder = Path(tempfile.mkdtemp(prefix="mlxgen-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def obtain(kind: str, key: str, about: str, make: Callable[[Path], Iterable[str]]) -> Path:
    """Return the folder of a cached item, or one of this process if the cache is not writable."""
    try:
        return Cache(folder()).obtain(kind, key, about, make)
    except OSError:
        return Cache(local_folder()).obtain(kind, key, about, make)


def _fetch(name: str, release: str, say: Callable[..., None]) -> Path:
    say(f"fetching {name} {release}, which matches the installed MLX")
    return toolchain.fetch(name, release, local_folder())


def found_toolchain(say: Callable[..., None]) -> compat.Toolchain:
    """Return MLX and the nanobind that matches it."""
    return compat.find(lambda name, release: _fetch(name, release, say))


def obtain_common(
    found: compat.Toolchain, say: Callable[..., None], precompile: bool, emulated: bool = False
) -> toolchain.Common:
    """Return the shared toolchain, built if necessary."""
    machine = probe.to_cmake(probe.of_machine(found))
    given = {"CMAKE_BUILD_TYPE": "Release"}
    if emulated:
        given["MLXGEN_EMULATE_METAL"] = "ON"
    once = functools.partial(say, once=True)
    return toolchain.obtain(
        found, machine, given, toolchain.tools, local_folder(), once, precompile=precompile
    )


def link(
    common: toolchain.Common,
    found: compat.Toolchain,
    objects: Iterable[str],
    used: Iterable[Compiled],
    made: Path,
) -> None:
    """Link the extension of the package in the folder ``made`` from objects and archives."""
    module = made / f"_ext{sysconfig.get_config_var('EXT_SUFFIX')}"
    of_used = [one.library for one in used if one.library]
    libraries = [*of_used, *sorted((found.mlx / "lib").glob("libmlx.*"))[:1]]
    toolchain.run(
        [
            *(*common.link, "-o", str(module), *objects),
            *map(str, libraries),
            f"-Wl,-rpath,{found.mlx_core.parent / 'lib'}",
            *(f"-Wl,-rpath,{library.parent}" for library in of_used),
        ]
    )
    compat.compare(found.mlx_core, module)
