"""A file of operators while it is edited: checked after every keystroke, as ``mlxgen check`` would.

An entry of which nothing is reported gives the same operator until something changes that it
depends on (see check/outside.py), so that only the others are looked at again. What all entries
depend on, the settings and hand-written sources, changes rarely: then all are.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

from ..check.file import resolve
from ..command import operators
from ..command.edit import entry_keys
from ..command.generate import kernel_files
from ..diagnostics import Diagnostic, Diagnostics, TooMany
from ..model.op import Op
from ..read.preprocess import UNSAVED
from ..read.settings import Settings
from ..read.sources import Sources, near
from ..read.yaml import Document


class Project:
    """A file of operators; its parts are those of the last ``check``."""

    def __init__(self, yaml: Path) -> None:
        self.yaml = yaml
        self.settings: Settings | None = None
        self.document: Document | None = None
        self.sources: Sources | None = None
        self.ops: dict[str, Op] = {}  # by name; of a broken entry, what it was before
        self.diagnostics: list[Diagnostic] = []
        self._base: object = None  # what all entries depend on
        self._kept: dict[str, Op] = {}  # by all that the entry depends on besides

    @property
    def release(self) -> str | None:
        """Of MLX, that the entries are for."""
        return self.settings.mlx if self.settings else None

    def check(self, text: str) -> None:
        """Look at a text of the file: ``diagnostics`` are those of ``mlxgen check``."""
        diags = Diagnostics()
        with suppress(TooMany):
            self._check(text, diags)
        self.diagnostics = diags.sorted()

    def _check(self, text: str, diags: Diagnostics) -> None:
        settings = operators.settings_of(None, self.yaml, diags)
        if settings is None:
            return
        document = Document.parse(text, near(self.yaml), diags)
        sources = Sources(settings, diags, operators.mlx_include())
        self.settings, self.sources = settings, sources
        base = settings, sources.mlx_include, [_state(path) for path in kernel_files(settings)]
        if base != self._base:
            self._base, self._kept = base, {}
        if document is None:
            return
        self.document = document
        keys = entry_keys(document, sources)
        entries = list(zip(document.entries, keys, strict=True))
        wanted = {entry.name for entry, key in entries if key not in self._kept}
        ops = resolve(document, settings, sources, diags, wanted)
        operators.check_metal(ops, sources, diags)
        self.ops |= {op.name: op for op in ops}
        said = diags.sorted()
        fine = all(item.span.file == document.path for item in said)  # no kernel that is broken
        new = {op.line: op for op in ops} if fine else {}
        lines = [entry.line for entry in document.entries]
        reported = {bisect_right(lines, item.span.line) - 1 for item in said}
        self._kept = {
            key: op
            for i, (entry, key) in enumerate(entries)
            if i not in reported and (op := self._kept.get(key) or new.get(entry.line))
        }


def _state(path: Path) -> object:
    """What changes when a file does."""
    with suppress(OSError):
        stat = path.stat()
        return path, UNSAVED.get(os.path.abspath(path)), stat.st_size, stat.st_mtime_ns
    return path
