"""Compiles many generated packages at once: one translation unit, checked by ``g++ -fsyntax-only``.

MLX's headers take seconds to parse and an operator milliseconds. The headers are therefore compiled
once, and the sources of all packages are included in sequence, each package in its own namespace.
The launches of Metal kernels are checked, too, against stubs/.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import mlxgen

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++")

_HEADERS = """#define _METAL_ 1
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlxgen/cpu.h"
#include "mlxgen/formula.h"
#include "mlxgen/metal.h"
#include "mlxgen/op.h"
#include "mlxgen/python.h"
"""


def _folder(package: str, *parts: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0], *parts))


class Compiler:
    """A C++ compiler with precompiled headers of generated code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A copy, so that editing a header does not affect the precompiled ones.
        shutil.copytree(Path(mlxgen.__file__).parent / "runtime" / "include", folder / "include")
        includes = [
            str(HERE / "stubs"),
            _folder("mlx", "include"),
            str(folder / "include"),
            _folder("nanobind", "include"),
            sysconfig.get_path("include"),
        ]
        self.command = [
            str(COMPILER),
            "-std=c++20",
            "-w",
            "-fmax-errors=0",
            "-fno-diagnostics-show-caret",
            *(f"-I{path}" for path in includes),
        ]
        header = folder / "headers.h"
        header.write_text(_HEADERS)
        subprocess.run(
            [*self.command, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True
        )

    def errors(self, packages: Iterable[Path], csrc: Iterable[Path] = ()) -> dict[str, list[str]]:
        """Compile the generated sources of packages.

        Args:
            packages: Their output folders, each named after the package.
            csrc: Folders of hand-written headers.

        Returns:
            The compiler's errors by the name of the package's folder; empty if all compile.
        """
        packages = list(packages)
        lines = ['#include "headers.h"']
        for package in packages:
            for source in sorted((package / "src").glob("*.cpp")):
                if source.name == "module.cpp":
                    continue  # one per process; it does not depend on the kinds of entries
                lines.append(f'#include "{source}"')
        unit = self.folder / "unit.cpp"
        unit.write_text("\n".join(lines) + "\n")
        includes = [f"-I{package / 'include'}" for package in packages]
        includes += [f"-I{folder}" for folder in csrc]
        run = subprocess.run(
            [*self.command, "-fsyntax-only", *includes, str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, list[str]] = {}
        if run.returncode == 0:
            return found
        context = ""
        for line in run.stderr.splitlines():
            for package in packages:
                if f"{package}/" in line:
                    context = package.name
            if ": error:" in line or ": fatal error:" in line:
                found.setdefault(context, []).append(line)
        return found or {"": [run.stderr[-2000:]]}
