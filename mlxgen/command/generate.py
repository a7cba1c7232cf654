"""Generates the files of a project's package.

The manifest of the output folder caches the output of unchanged entries (memo.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from ..diagnostics import COMMAND_LINE, Diagnostics, Span
from ..model.languages import language
from ..read.packages import find
from ..read.settings import Settings
from . import MESSAGES, operators
from .inputs import base_hash, digest, kernel_files, language_files
from .write import Changes, Manifest, alone, foreign, reported, write


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
    written = (*settings.files, settings.csrc, settings.metal, settings.python, *settings.tests)
    if other := foreign(output, written):
        diags.error(MESSAGES("foreign_folder", folder=os.path.relpath(other)), COMMAND_LINE)
        return None
    with reported(output, diags), nullcontext() if check else alone(output):
        selected = sorted(include), sorted(exclude)
        base = base_hash(settings, selected)
        files = {str(f): f.read_bytes() for f in settings.files if f.is_file()}
        after = Manifest(digest(base, files), base)
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
        public = {p.name: p for p in made if p.public}
        for of in settings.languages:
            given = [p.languages[of] for p in public.values()]
            for clash in language(of).renderer.clashes(given):
                at = public[clash.second]
                where = Span(at.file, at.line, 1, at.line, 2)
                diags.error(MESSAGES("clash", **vars(clash)), where)
        if not diags.ok:
            return None
        after.entries = memory.dump(memo)
        texts = package_files(made, settings, sources.metal_text, as_before)
        if not diags.ok:
            return None
        if len(diags) or not sources.covered:
            after.key = ""  # the next run must repeat the warnings, or read files elsewhere again
        project = settings.root / "pyproject.toml"
        paths = [*[project] * project.is_file(), *settings.files, *kernel_files(settings)]
        paths += language_files(settings)
        paths += [found.table for use in settings.uses if (found := find(use.name))]
        quick = (p for p in made if p.composite or p.elementwise)
        headers = sources.in_csrc(header for p in quick for header in p.headers)
        texts["sources.cmake"] = sources_cmake(
            made, settings, list(texts), [*map(str, paths)], headers
        )
        changes = write(output, texts, before, after, dry_run=check)
        return Result(changes, len(made))
    return None
