"""A run costs what was edited: all other entries give what they gave before.

What an entry gives follows from its text, from what that names of other entries (``Outside``), and
from what all entries depend on (``Manifest.base``: mlxgen, settings, kernels). So it is kept under
a hash of the first two, in a manifest that has the third. Names are compared among all entries, as
always: any two may be the same.

Where anything is wrong, a run over everything has the word. An entry that is warned of is not kept:
every run looks at it, and says the warning.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from ..check.file import resolve
from ..check.outside import Outside
from ..diagnostics import Diagnostics
from ..model.op import Op
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.yaml import Document
from ..render.files import Pieces, pieces
from .operators import check_metal, read, select
from .write import Manifest, digest

_DIRECTIVE = re.compile(r"^%.*", re.MULTILINE)  # which says how all entries are to be read

Found = tuple[Sources, list[Pieces]]


def everything(
    settings: Settings,
    diags: Diagnostics,
    include: Sequence[str],
    exclude: Sequence[str],
    after: Manifest,
) -> Found | None:
    """The pieces of all entries that are chosen, and of those that they call."""
    document, sources = read(settings, diags)
    ops = resolve(document, settings, sources, diags) if document is not None else []
    chosen = select(ops, include, exclude, diags) if diags.ok else []
    check_metal(chosen, sources, diags)
    if document is None or not diags.ok:
        return None
    wanted: dict[str, Op] = {}
    by_name, pending = {op.name: op for op in ops}, list(chosen)
    while pending:
        op = pending.pop()
        pending += [by_name[name] for name in op.calls if name not in wanted]
        wanted[op.name] = op
    made = [pieces(op, settings) for op in ops if op.name in wanted]
    keys = _keys(document, sources)
    if [p.name for p in made] == [*keys] and not (include or exclude):
        _keep(made, keys, sources, after, diags)
    return sources, made


def edited(
    settings: Settings, diags: Diagnostics, before: Manifest, after: Manifest
) -> Found | None:
    """The pieces of all entries; those that are as before have no text for files of their own.

    None, and nothing said, where a run over everything is needed.
    """
    if not before.base or before.base != after.base:
        return None
    said = Diagnostics()
    document, sources = read(settings, said)
    if document is None:
        return None
    keys = _keys(document, sources)
    try:
        kept = {key: Pieces(*values) for key, values in json.loads(before.entries).items()}
    except (ValueError, TypeError):
        return None
    wanted = {name for name, key in keys.items() if key not in kept}
    ops = resolve(document, settings, sources, said, wanted)
    check_metal(ops, sources, said)
    if not said.ok or {op.name for op in ops} != wanted:
        return None
    diags.add(said)
    new = {op.name: pieces(op, settings) for op in ops}
    made = [
        new.get(name) or kept[key]._replace(line=entry.line)
        for (name, key), entry in zip(keys.items(), document.entries, strict=True)
    ]
    _keep(made, keys, sources, after, diags)
    return sources, made


def entry_keys(document: Document, sources: Sources) -> list[str]:
    """For each entry, what stands for all that it depends on but ``Manifest.base``."""
    outside = Outside(document, sources)
    directives = "".join(_DIRECTIVE.findall(document.text))
    return [digest(entry.key, outside.of(entry), directives) for entry in document.entries]


def _keys(document: Document, sources: Sources) -> dict[str, str]:
    """The same by the entries' names."""
    names = (entry.name or "" for entry in document.entries)
    return dict(zip(names, entry_keys(document, sources), strict=True))


def _keep(
    made: Sequence[Pieces],
    keys: dict[str, str],
    sources: Sources,
    after: Manifest,
    diags: Diagnostics,
) -> None:
    """Note what each entry gave, if ``Manifest.base`` covers all files that were read."""
    warned = {item.op for item in diags.sorted()}
    folders = tuple(os.path.join(os.path.abspath(path), "") for path in sources.metal_includes)
    readers = (sources.cpp.reader, sources.metal.reader)
    read = {os.path.abspath(path) for reader in readers for path in reader.texts}
    if None in warned or not all(path.startswith(folders) for path in read):
        return
    entries = (p for p in made if p.name not in warned)
    kept = {keys[p.name]: p._replace(header="", source="") for p in entries}
    after.entries = json.dumps(kept, ensure_ascii=False)
