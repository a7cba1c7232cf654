"""Determines the facts that CMake needs to build a package: ``python -m mlxgen.package.probe``.

The module writes ``set(...)`` commands to ``probe.cmake``: the project's settings; the locations
of the installed MLX and nanobind, after checking that they match (compat.py); the functions of
glibc's libmvec that the compiler may call from vectorized loops; and the location of the shared
toolchain, which it builds if necessary (toolchain.py). One process computes all of this, because
each start of Python costs CMake more time than the computation.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..diagnostics import Diagnostics
from ..formula.mlx import table
from ..read import settings
from ..read.packages import check_requirements
from . import compat, toolchain
from .uses import Compiled, compiled

# C functions that may have vector variants, by number of arguments (include/mlxgen/simd_math.h).
UNARY = """exp exp2 expm1 log log2 log10 log1p cbrt erf erfc sin cos tan asin acos atan sinh cosh
    tanh asinh acosh atanh""".split()  # noqa: SIM905
BINARY = ("atan2", "hypot", "pow")

# The instruction sets for which GCC calls a vector variant on x86-64 (SSE, AVX, AVX2, AVX-512),
# with the number of doubles in a register. A function counts only if it has all variants, for float
# and double, because a loop is compiled for several instruction sets.
_ISAS = {"b": 2, "c": 4, "d": 4, "e": 8}


def vector_symbols() -> dict[str, list[str]]:
    """Return the C functions with vector variants on this machine, and their symbols."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return {}
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return {}
    found = {}
    for name in (*UNARY, *BINARY):
        arguments = "vv" if name in BINARY else "v"
        symbols = [
            f"_ZGV{isa}N{lanes * per_double}{arguments}_{name}{suffix}"
            for isa, lanes in _ISAS.items()
            for suffix, per_double in (("", 1), ("f", 2))
        ]
        if all(hasattr(library, symbol) for symbol in symbols):
            found[name] = symbols
    return found


def of_project(project: settings.Settings) -> dict[str, str | list[str]]:
    """Return the settings of a package, by CMake variable."""
    names = [project.relative(path) for path in project.files]
    return {
        "MLXGEN_NAME": project.name,
        "MLXGEN_NAMESPACE": project.namespace,
        "MLXGEN_VERSION": project.version,
        "MLXGEN_YAML": [str(path) for path in project.files],
        "MLXGEN_YAML_NAMES": names,
        "MLXGEN_YAML_SETTING": f"yaml = {json.dumps(names, ensure_ascii=False)}",
        "MLXGEN_CSRC": str(project.csrc),
        "MLXGEN_METAL": str(project.metal),
    }


def of_machine(found: compat.Toolchain) -> dict[str, str | list[str]]:
    """Return the facts about this machine, for any package. Raise ``compat.CompatError``."""
    release = found.mlx_version
    if found.mlx == found.mlx_core.parent:
        try:
            import mlx.core
        except ImportError as error:
            raise compat.CompatError(f"MLX {release} cannot be imported: {error}") from error
        # The module's own version: for a source build it is more exact than the distribution's.
        release = mlx.core.__dict__["__version__"]
    vector = vector_symbols()
    return {
        "MLXGEN_MLX_ROOT": str(found.mlx),
        "MLXGEN_MLX_CORE": str(found.mlx_core),
        "MLXGEN_MLX_VERSION": release,
        "MLXGEN_NANOBIND_ROOT": str(found.nanobind),
        "MLXGEN_NANOBIND_VERSION": found.nanobind_version,
        "MLXGEN_UNARY_FUNCTIONS": list(UNARY),
        "MLXGEN_BINARY_FUNCTIONS": list(BINARY),
        "MLXGEN_VECTOR_FUNCTIONS": list(vector),
        "MLXGEN_VECTOR_SYMBOLS": [symbol for symbols in vector.values() for symbol in symbols],
    }


def of_uses(used: Sequence[Compiled]) -> dict[str, str | list[str]]:
    """Return the files of the packages that a package uses."""
    linked = [one for one in used if one.library]
    return {
        "MLXGEN_USED_INCLUDES": [str(one.include) for one in used],
        "MLXGEN_USED_LIBRARIES": [str(one.library) for one in linked],
        "MLXGEN_USED_PLACES": [one.place for one in linked],
        "MLXGEN_USES": repr({one.name: one.version for one in used}),
        "MLXGEN_USES_SETTING": f"uses = {[one.name for one in used]}" if used else "",
    }


def to_cmake(variables: Mapping[str, str | list[str]]) -> str:
    """Return ``set`` commands; with bracket arguments, no character in a path needs escaping."""
    lines = []
    for name, value in variables.items():
        items = [value] if isinstance(value, str) else value
        lines.append(f"set({name} {' '.join(map(_bracketed, items))})\n")
    return "".join(lines)


def _bracketed(text: str) -> str:
    """Return a bracket argument that ends where the text ends."""
    equals = "="
    while f"]{equals}]" in f"{text}]":
        equals += "="
    return f"[{equals}[{text}]{equals}]"


def of_common(common: toolchain.Common) -> dict[str, str | list[str]]:
    """Return the locations of the shared toolchain."""
    return {
        "MLXGEN_COMMON_HEADERS": str(common.headers),
        "MLXGEN_COMMON_PRECOMPILED": str(common.precompiled),
        "MLXGEN_COMMON_RUNTIME": str(common.runtime),
        "MLXGEN_COMMON_NANOBIND": str(common.nanobind or ""),
    }


def of_releases(releases: Sequence[str], local: Path) -> dict[str, str | list[str]]:
    """Return the other releases to build for, and the folders that pip downloaded them to."""
    folders = [str(toolchain.fetch("mlx", release, local).parent) for release in releases]
    return {"MLXGEN_RELEASES": list(releases), "MLXGEN_RELEASE_FOLDERS": folders}


def main(arguments: Sequence[str]) -> int:
    """Write the commands; print the reason and return 1 if the package cannot be built here."""
    parser = argparse.ArgumentParser(prog="python -m mlxgen.package.probe", description=__doc__)
    parser.add_argument("--project", type=Path, default=Path(), help="folder of the pyproject.toml")
    parser.add_argument("--build", type=Path, required=True, help="CMake's build folder")
    parser.add_argument("--cmake", required=True, help="the command")
    parser.add_argument("--ninja", required=True, help="the command")
    parser.add_argument("--define", action="append", default=[], help="NAME=VALUE, for CMake")
    parser.add_argument("--all", action="store_true", help="build for all releases that it lists")
    options = parser.parse_args(arguments)
    diagnostics = Diagnostics()
    project = settings.load(options.project, diagnostics)
    if project is None:
        diagnostics.print(sys.stderr)
        return 1
    try:
        local = options.build / "common"
        found = compat.find(lambda name, release: toolchain.fetch(name, release, local))
        machine = of_machine(found)
        release = str(machine["MLXGEN_MLX_VERSION"])
        others = [other for other in project.releases if options.all and other != release]
        releases = of_releases(others, local)
        common = toolchain.obtain(
            found,
            to_cmake(machine),
            dict(text.split("=", 1) for text in options.define),
            lambda: toolchain.Tools([options.cmake], [options.ninja]),
            local,
            lambda text: print(f"mlxgen: {text}", file=sys.stderr, flush=True),
        )
    except (compat.CompatError, toolchain.BuildError, OSError) as error:
        print(f"mlxgen: {error}", file=sys.stderr)
        return 1
    check_requirements(project, diagnostics)
    used = compiled(project, release, diagnostics)
    diagnostics.print(sys.stderr)
    if not diagnostics.ok:
        return 1
    if project.releases and release not in project.releases:
        print(
            f"mlxgen: warning: {project.name} is for MLX {', '.join(project.releases)} but is "
            f"built for the installed {release}",
            file=sys.stderr,
        )
    newest = table().release
    if settings.numbers(release) > settings.numbers(newest):
        print(
            f"mlxgen: warning: this mlxgen knows MLX up to {newest} and treats {release} as equal; "
            "if it does not compile, install a newer mlxgen",
            file=sys.stderr,
        )
    package = {**of_project(project), **of_uses(used)}
    text = to_cmake({**package, **machine, **of_common(common), **releases})
    known = common.known.read_text(encoding="utf-8")
    (options.build / "probe.cmake").write_text(text + known, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
