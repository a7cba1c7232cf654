"""From a project to the files of its package: ``generate``.

Of entries that are as before, what they gave is in the output folder's manifest (memo.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..diagnostics import COMMAND_LINE, Diagnostics
from ..read.settings import MAX_BYTES, Settings
from . import operators
from .inputs import base_hash, digest, kernel_files
from .write import Changes, Manifest, alone, reported, stranger, write

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.sources import Sources
    from ..read.yaml import Document
    from ..render.files import Pieces
    from .memo import Memo


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
        selected = sorted(include), sorted(exclude)
        after = Manifest(base=base_hash(settings, selected))
        after.key = digest(after.base, _bytes(settings.yaml))
        before = Manifest.load(output)
        if not before.holds(output):
            before.base = ""
        elif before.key == after.key:
            return Result(None, 0)
        from ..render.files import package_files, sources_cmake

        document, sources = operators.read(settings, diags)
        if document is None:
            return None
        memo = _memo(before, after.base)
        as_before = before.files if memo.kept else ()
        if include or exclude:
            made = _chosen(document, sources, include, exclude)
        else:
            made = _edited(document, sources, memo)
        if not diags.ok:
            return None
        kept = {key: p._replace(header="", source="") for key, p in memo.kept.items()}
        after.entries = json.dumps(kept, ensure_ascii=False)
        files = package_files(made, settings, sources.metal_text, as_before)
        if not diags.ok:
            return None
        if len(diags):
            after.key = ""  # the next run is to give the same warnings
        project = settings.root / "pyproject.toml"
        paths = [*[project] * project.is_file(), settings.yaml, *kernel_files(settings)]
        files["sources.cmake"] = sources_cmake(list(files), [str(p) for p in paths])
        changes = write(output, files, before, after, dry_run=check)
        return Result(changes, len(made))
    return None


def _bytes(path: Path) -> bytes:
    """What a file has, up to what any may have that is read."""
    if not path.is_file():
        return b""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


def _memo(before: Manifest, base: str) -> Memo[Pieces]:
    """What the run that wrote the folder made of the entries; their own files have its texts."""
    from ..render.files import Pieces
    from .memo import Memo

    kept: dict[str, Pieces] = {}
    if before.base == base:
        with suppress(ValueError, TypeError, AttributeError):
            kept = {key: Pieces(*values) for key, values in json.loads(before.entries).items()}
    return Memo(base, kept)


def _edited(document: Document, sources: Sources, memo: Memo[Pieces]) -> list[Pieces]:
    """The pieces of all entries, nothing if there is an error."""
    from ..render.files import pieces

    ops = memo.look(memo.base, document, sources)
    if not sources.diags.ok:
        return []
    return memo.keep(pieces(op, sources.settings) for op in ops)


def _chosen(
    document: Document, sources: Sources, include: Sequence[str], exclude: Sequence[str]
) -> list[Pieces]:
    """The pieces of entries that are chosen and of those that they call, nothing if there is an
    error."""
    from ..check.file import resolve
    from ..render.files import pieces

    settings, diags = sources.settings, sources.diags
    ops = resolve(document, settings, sources, diags)
    chosen = operators.select(ops, include, exclude, diags) if diags.ok else []
    operators.check_metal(chosen, sources, diags)
    wanted: set[str] = set()
    by_name, pending = {op.name: op for op in ops}, list(chosen)
    while pending:
        op = pending.pop()
        pending += [by_name[name] for name in op.calls if name not in wanted]
        wanted.add(op.name)
    return [pieces(op, settings) for op in ops if op.name in wanted] if diags.ok else []


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """The pages of the docs folder that follow from the operators and from mlxgen itself."""
    from ..read.keys import json_schema
    from ..render.files import pieces, reference

    return {
        "operators.md": reference(pieces(op, settings) for op in ops),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
