"""Applies all certain fixes to the file of operators, for `mlxgen check --fix`.

A fix can reveal another mistake. The text is therefore checked again until it has no certain fix
left, and written once. Each pass fixes at most one mistake of an entry, because two fixes may
contradict each other, for example if one key is misspelled twice.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..check.file import resolve
from ..diagnostics import Diagnostics, applied
from ..read.settings import MAX_BYTES, Settings
from ..read.sources import Sources, near
from ..read.yaml import Document
from .operators import mlx_include
from .write import replace_file


def fix_file(settings: Settings) -> int:
    """Apply all certain fixes to the project's file of operators; return their number."""
    path = Path(os.path.realpath(settings.yaml))
    raw = path.read_bytes()
    try:
        text = raw.decode() if len(raw) <= MAX_BYTES else ""
    except UnicodeDecodeError:
        return 0  # the check reports it
    mark = "\ufeff" * text.startswith("\ufeff")
    text, count, seen = text.removeprefix(mark), 0, set[str]()
    sources = Sources(settings, Diagnostics(), mlx_include())
    shown = near(settings.yaml)
    while text not in seen:  # ends if two fixes undo each other
        seen.add(text)
        diags = Diagnostics(0)
        document = Document.parse(text, shown, diags)
        if document is not None:
            resolve(document, settings, sources, diags)
        fixes = ((item.op, item.fix) for item in reversed(diags.sorted()))
        first = {op: fix for op, fix in fixes if fix and fix.certain and fix.span.file == shown}
        text, done = applied(shown, text, first.values())
        count += len(done)
    if count:
        replace_file(path, (mark + text).encode())
    return count
