"""From a project to the files of its package: ``generate``.

A run over everything, or after an edit over what was edited (edit.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..diagnostics import COMMAND_LINE, Diagnostics
from ..read.settings import MAX_BYTES, Settings
from .operators import mlx_include
from .write import Changes, Manifest, alone, digest, reported, stranger, write

if TYPE_CHECKING:
    from ..model.op import Op

HERE = Path(__file__).parents[1]
_OWN = (
    "*.py",
    "*/*.py",
    "*/*.txt",
    "render/templates/*",
    "formula/data/*",
    "runtime/include/mlxgen/*.h",
)


def inputs_of(settings: Settings, extra: str) -> tuple[list[Path], Manifest]:
    """The project's files that generating reads, and hashes of all that the output depends on."""
    own = [path for pattern in _OWN for path in HERE.glob(pattern)]
    kernels = kernel_files(settings)
    mlx = (mlx_include() or Path()) / "mlx" / "version.h"
    texts = {str(path): _bytes(path) for path in (*sorted(own), *kernels, mlx)}
    about = (sys.version, settings, extra, *texts)
    base = digest(str(about), *texts.values())
    project = settings.root / "pyproject.toml"
    paths = [*[project] * project.is_file(), settings.yaml, *kernels]
    return paths, Manifest(digest(base, _bytes(settings.yaml)), base)


def kernel_files(settings: Settings) -> list[Path]:
    """The hand-written C++ and Metal."""
    found = {path for folder in (settings.csrc, settings.metal) for path in folder.rglob("*")}
    return sorted(path for path in found if path.suffix in (".h", ".cpp", ".metal"))


def _bytes(path: Path) -> bytes:
    """What a file has, up to what any may have that is read."""
    if not path.is_file():
        return b""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


class Result(NamedTuple):
    """What ``generate`` did."""

    changes: Changes | None  # None: nothing to do
    operators: int


def generate(
    settings: Settings,
    output: Path,
    diags: Diagnostics,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    check: bool = False,
) -> Result | None:
    """Write a package's generated files into ``output``.

    Args:
        settings: The project.
        output: Folder for the generated files.
        diags: Collects what is wrong; nothing is written when anything is.
        include: Names or ``tag:name`` to keep; all if empty. What they call is kept too.
        exclude: Names or ``tag:name`` to leave out.
        check: Write nothing, only compare.

    Returns:
        None when an error was reported.
    """
    written = (settings.yaml, settings.csrc, settings.metal, settings.python, *settings.tests)
    if other := stranger(output, written):
        message = f"this is no folder for generated files: there is {os.path.relpath(other)}"
        diags.error("MG607", message, COMMAND_LINE, help="choose a folder of its own")
        return None
    with reported(output, diags), nullcontext() if check else alone(output):
        paths, after = inputs_of(settings, str((sorted(include), sorted(exclude))))
        before = Manifest.load(output)
        if not before.holds(output):
            before.base = ""
        elif before.key == after.key:
            return Result(None, 0)
        from ..render.files import package_files, sources_cmake
        from .edit import edited, everything

        found = edited(settings, diags, before, after)
        as_before = before.files if found else ()
        found = found or everything(settings, diags, include, exclude, after)
        if found is None:
            return None
        sources, made = found
        files = package_files(made, settings, sources.metal_text, as_before)
        if not diags.ok:
            return None
        if len(diags):
            after.key = ""  # the next run is to give the same warnings
        files["sources.cmake"] = sources_cmake(list(files), [str(p) for p in paths])
        changes = write(output, files, before, after, dry_run=check)
        return Result(changes, len(made))
    return None


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """The pages of the docs folder that follow from the operators and from mlxgen itself."""
    from ..read.keys import json_schema
    from ..render.files import pieces, reference

    return {
        "operators.md": reference(pieces(op, settings) for op in ops),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
