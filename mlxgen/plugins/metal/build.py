"""Compiles the node of MLX's graph (primitive.cpp), once per machine, and kernels, once each.

Both are in mlxgen's cache: the node under a hash of its source, MLX, Python and the compiler; a
kernel under a hash of its Metal source, the emulation, mlxgen, MLX and the compiler.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...command.inputs import MLXGEN, contents, digest, mlxgen_hash
from ...emulator import EmulationError, library, translate
from ...emulator.package import mlx_include
from ...package import compat, toolchain
from ...package.cache import Cache, folder
from ...read.preprocess import SourceError
from ..common import process

raised: set[str] = set()  # the messages of the errors that MLX has raised
EMULATOR = MLXGEN / "emulator"
# MLX puts this header before every kernel. The header includes Metal's library.
_UTILS = '#include "mlx/backend/metal/kernels/utils.h"\n'


@functools.cache
def extension() -> Any:
    """Return the module of primitive.cpp: `Kernel` and `take`.

    Raises:
        EmulationError: If it cannot be built.
    """
    core = compat.core_module()
    stat = core.stat() if core else None
    key = digest(
        *(mlxgen_hash(), sysconfig.get_config_var("EXT_SUFFIX"), str(core)),
        *((stat.st_size, stat.st_mtime_ns) if stat else ()),
        *contents(Path(__file__).parent, "*.cpp"),
        *contents(EMULATOR, "device.cpp", "include/**/*.h"),
    )
    place = Cache(folder()).find("metal-node", key) or _build(key)
    path = place / f"_ext{sysconfig.get_config_var('EXT_SUFFIX')}"
    spec = importlib.util.spec_from_file_location("mlxgen.plugins.metal._ext", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.raise_as(EmulationError, raised)
    return module


def _build(key: str) -> Path:
    def say(text: str, once: bool = False) -> None:
        print(f"mlxgen: {text}", file=sys.stderr, flush=True)

    def make(made: Path) -> Iterable[str]:
        say("compiling the emulation of metal_kernel, once for this machine")
        object = str(made / "primitive.o")
        # Before MLX's own headers: the substitute for its Metal device.
        compiler, *words = common.ext
        includes = [f"-I{path}" for path in (EMULATOR / "include", EMULATOR)]
        runtime = common.headers / "mlxgen" / "runtime" / "include"
        source = str(Path(__file__).with_name("primitive.cpp"))
        options = [f"-I{runtime}", '-DMLXGEN_METAL_COMPILER=""', "-O1", "-w"]
        toolchain.run([compiler, *includes, *words, *options, "-c", source, "-o", object])
        process.link(common, found, [object, str(common.nanobind), "-ldl"], (), made)
        return []

    try:
        found = process.found_toolchain(say)
        common = process.obtain_common(found, say, precompile=False)
        about = f"the emulation of metal_kernel for MLX {found.mlx_version}"
        return process.obtain("metal-node", key, about, make)
    except (compat.CompatError, toolchain.BuildError, OSError) as error:
        raise EmulationError(f"the emulation of metal_kernel cannot be built: {error}") from None


@functools.cache  # nodes refer to kernels, which must exist as long as the process
def loaded(name: str, source: str, whole: bool) -> Any:
    """Return a kernel, which can be called.

    Args:
        name: The kernel's name, for messages.
        source: Its Metal source, with `#line` directives for the user's parts.
        whole: Elements of outputs that no thread writes are an error.

    Raises:
        EmulationError: If it does not compile; the message has the line of the user's source.
    """
    places = library.cache_folder()
    key = digest(mlxgen_hash(), library.support(), compat.version("mlx"), source)
    path = places / f"kernel-{key}.so"
    if not path.exists():
        try:
            text = translate(f"{name}.metal", [mlx_include()], text=_UTILS + source).text
        except SourceError as error:
            raise EmulationError(str(error)) from None
        library.put(path, text, name)
    return extension().Kernel(name, str(path), whole)
