"""Generates the files of a project's package.

The manifest of the output folder caches the output of unchanged entries (memo.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..diagnostics import COMMAND_LINE, Diagnostics
from ..read.settings import Settings
from . import operators
from .inputs import base_hash, digest, kernel_files
from .write import Changes, Manifest, alone, reported, stranger, write

if TYPE_CHECKING:
    from ..model.op import Op


class Result(NamedTuple):
    """The result of ``generate``."""

    changes: Changes | None  # None: everything was up to date
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
        diags: Collects errors and warnings; after an error nothing is written.
        include: Names or ``tag:name`` to select; all if empty. Entries that they call are included.
        exclude: Names or ``tag:name`` to exclude.
        check: Only compare; write nothing.

    Returns:
        None if an error was reported.
    """
    written = (settings.yaml, settings.csrc, settings.metal, settings.python, *settings.tests)
    if other := stranger(output, written):
        message = f"cannot use this output folder, because of {os.path.relpath(other)}"
        diags.error("MG607", message, COMMAND_LINE, help="choose a separate folder")
        return None
    with reported(output, diags), nullcontext() if check else alone(output):
        selected = sorted(include), sorted(exclude)
        base = base_hash(settings, selected)
        yaml = settings.yaml.read_bytes() if settings.yaml.is_file() else b""
        after = Manifest(digest(base, yaml), base)
        before = Manifest.load(output)
        if not before.holds(output):
            before.base = ""
        elif before.key == after.key:
            return Result(None, 0)
        from ..render.files import package_files, sources_cmake
        from . import memo as memory

        document, sources = operators.read(settings, diags)
        if document is None:
            return None
        memo = memory.load(before.entries if before.base == base else "")
        as_before = before.files if memo.kept else ()
        if include or exclude:
            made = memory.chosen(document, sources, include, exclude)
        else:
            made = memory.edited(base, document, sources, memo)
        if not diags.ok:
            return None
        after.entries = memory.dump(memo)
        files = package_files(made, settings, sources.metal_text, as_before)
        if not diags.ok:
            return None
        if len(diags):
            after.key = ""  # the next run must repeat the warnings
        project = settings.root / "pyproject.toml"
        paths = [*[project] * project.is_file(), settings.yaml, *kernel_files(settings)]
        files["sources.cmake"] = sources_cmake(list(files), [str(p) for p in paths])
        changes = write(output, files, before, after, dry_run=check)
        return Result(changes, len(made))
    return None


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """Return the generated pages of the docs folder: reference and JSON Schema."""
    from ..read.keys import json_schema
    from ..render.files import pieces, reference

    return {
        "operators.md": reference((pieces(op, settings) for op in ops), settings),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
