"""Applies all certain fixes to the files of operators, for `mlxgen check --fix`.

A fix can reveal another mistake. All files are therefore checked again until they have no certain
fix left, and written once. Each pass fixes at most one mistake of an entry, because two fixes may
contradict each other, for example if one key is misspelled twice.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from ..check.file import resolve
from ..diagnostics import Diagnostics, applied
from ..read.settings import Settings
from ..read.sources import Sources, near
from ..read.yaml import Documents, read_text
from .operators import mlx_include
from .write import replace_file


def fix_files(settings: Settings) -> dict[Path, int]:
    """Apply all certain fixes to the project's files of operators; return their numbers."""
    paths = {near(path): Path(os.path.realpath(path)) for path in settings.files}
    found = {name: read_text(path, Diagnostics()) for name, path in paths.items()}
    before = {name: text for name, text in found.items() if text is not None}
    if len(before) < len(paths):
        before = {}  # the check reports the file that cannot be read
    texts = {name: text.removeprefix("\ufeff") for name, text in before.items()}
    counts, seen = Counter[str](), list[dict[str, str]]()
    sources = Sources(settings, Diagnostics(), mlx_include())
    while texts not in seen:  # ends if two fixes undo each other
        seen.append(texts)
        diags = Diagnostics(0)
        document = Documents.parse(texts, diags)
        if document is not None:
            resolve(document, settings, sources, diags)
        fixes = ((item.op, item.fix) for item in reversed(diags.sorted()))
        first = {op: fix for op, fix in fixes if fix and fix.certain and fix.span.file in texts}
        texts = dict(texts)
        for name in texts:
            own = (fix for fix in first.values() if fix.span.file == name)
            texts[name], done = applied(name, texts[name], own)
            counts[name] += len(done)
    for name in +counts:
        replace_file(
            paths[name], (before[name][: before[name].startswith("\ufeff")] + texts[name]).encode()
        )
    return {path: counts[near(path)] for path in settings.files}
