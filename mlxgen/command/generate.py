"""From a project to the files of its package: ``generate``.

A run over everything, or after an edit (edit.py) over what was edited.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostics, Span
from ..read.settings import Settings
from . import write as writer
from .operators import check_metal, load, load_settings, mlx_include, plain_settings, read, select

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.sources import Sources
    from ..read.yaml import Document
    from ..render.files import Pieces

__all__ = [
    "Result",
    "check_metal",
    "doc_pages",
    "generate",
    "load",
    "load_settings",
    "mlx_include",
    "plain_settings",
    "select",
]

HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that the output depends on, as bytes on disk."""

    paths: tuple[Path, ...]
    base: str  # of all but the YAML
    key: str


def inputs_of(settings: Settings, extra: str = "") -> Inputs:
    """The files that generating reads, and one hash over their contents."""
    parts_of_mlxgen = (
        *("*.py", "*/*.py", "render/templates/*", "formula/data/*"),
        "runtime/include/mlxgen/*.h",
    )
    own = sorted(path for pattern in parts_of_mlxgen for path in HERE.glob(pattern))
    kernels = []
    for folder, suffixes in ((settings.csrc, (".h", ".cpp")), (settings.metal, (".metal", ".h"))):
        if folder.is_dir():
            kernels += sorted(p for p in folder.rglob("*") if p.suffix in suffixes)
    mlx = mlx_include()
    parts = [sys.version.encode(), str(mlx).encode(), repr(settings).encode(), extra.encode()]
    for path in [*own, *kernels, *([mlx / "mlx" / "version.h"] if mlx else [])]:
        parts += [str(path).encode(), _bytes(path)]
    base = writer.digest(parts)
    key = writer.digest([base.encode(), _bytes(settings.yaml)])
    return Inputs((settings.root / "pyproject.toml", settings.yaml, *kernels), base, key)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@dataclass(frozen=True, slots=True)
class Result:
    """What ``generate`` did."""

    changes: writer.Changes | None  # None: nothing to do
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
        None when something was reported.
    """
    inputs = inputs_of(settings, repr((sorted(include), sorted(exclude))))
    before = writer.Manifest.load(output)
    same = before.holds(output)
    if same and before.key == inputs.key:
        return Result(None, 0)
    from ..read.yaml import no_garbage_collection
    from ..render.files import package_files, sources_cmake
    from .edit import keep

    after = writer.Manifest(inputs.key, base="" if include or exclude else inputs.base)
    with no_garbage_collection():
        found = None
        kernels_same = same and before.base != "" and before.base == after.base
        if kernels_same:
            found = _after_edit(settings, before)
        found = found or _everything(settings, diags, include, exclude)
        if found is None:
            return None
        document, sources, made = found
        as_before = before.files if kernels_same else ()
        files = package_files(made, settings, sources.metal_text, as_before)
        if not diags.ok:
            return None
        files["sources.cmake"] = sources_cmake(list(files), [str(p) for p in inputs.paths])
        if after.base:
            keep(after, document, made)
    try:
        changes = writer.write(output, files, before, after, dry_run=check)
    except OSError as error:
        where = Span(os.path.relpath(error.filename or output), 1, 1, 1, 1)
        diags.error("MG607", f"cannot write this: {error.strerror or error}", where)
        return None
    return Result(changes, len(made))


Found = tuple["Document", "Sources", "list[Pieces]"]


def _after_edit(settings: Settings, before: writer.Manifest) -> Found | None:
    """What is written after an edit without error; what is the same as before is left out."""
    from .edit import pieces_after_edit

    diags = Diagnostics()
    document, sources = read(settings, diags)
    if document is None or len(diags):
        return None
    made = pieces_after_edit(document, settings, sources, before, diags)
    return (document, sources, made) if made is not None else None


def _everything(
    settings: Settings, diags: Diagnostics, include: Sequence[str], exclude: Sequence[str]
) -> Found | None:
    """What is written of all entries that are chosen."""
    from ..check.file import resolve
    from ..render.files import pieces

    document, sources = read(settings, diags)
    ops = resolve(document, settings, sources, diags) if document is not None else []
    if document is None or not diags.ok:
        return None
    chosen = select(ops, include, exclude, diags)
    check_metal(chosen, sources, diags)
    if not diags.ok:
        return None
    wanted = {op.name for op in chosen}
    by_name = {op.name: op for op in ops}
    stack = list(wanted)
    while stack:
        for callee in by_name[stack.pop()].calls:
            if callee not in wanted:
                wanted.add(callee)
                stack.append(callee)
    return document, sources, [pieces(op, settings) for op in ops if op.name in wanted]


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """The pages of the docs folder that follow from the operators and from mlxgen itself."""
    from ..read.keys import json_schema
    from ..render.files import pieces, reference

    return {
        "operators.md": reference(pieces(op, settings) for op in ops),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
