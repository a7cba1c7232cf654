"""A run after an edit costs what was edited: all other entries give what they gave before.

What an entry gives follows from its text, from the signatures of the entries that it names, and
from what all entries depend on (``Inputs.base``: mlxgen, the settings, the kernels). So those are
resolved and rendered again whose text is new, or that name an entry whose signature is new, gone
or another. Names are compared among all entries, as always: any two may be the same.

Where anything is reported, a run over everything has the word: ``pieces_after_edit`` gives None.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from ..check.file import resolve
from ..diagnostics import Diagnostics
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.yaml import Document, Entry
from ..render.files import Pieces, pieces
from .operators import check_metal
from .write import Manifest, digest

_WORD = re.compile(r"\w+")
_DIRECTIVE = re.compile(r"^%.*", re.MULTILINE)
_SIGNATURE = ("name", "signature", "cpp_signature", "python_signature")


def keep(manifest: Manifest, document: Document, made: Sequence[Pieces]) -> None:
    """Note in the manifest what each entry gave, but for the files of its own."""
    keys = _keys(document)
    if [p.name for p in made] != [*keys]:
        manifest.base = ""  # a name that only resolving finds
        return
    kept = {keys[p.name]: astuple(replace(p, header="", source="")) for p in made}
    manifest.entries = json.dumps(kept, ensure_ascii=False)
    manifest.signatures = {entry.name or "": _signature(entry) for entry in document.entries}


def pieces_after_edit(
    document: Document, settings: Settings, sources: Sources, before: Manifest, diags: Diagnostics
) -> list[Pieces] | None:
    """The pieces of all entries; what is the same as before has no text for files of its own."""
    named = {entry.name or "": entry for entry in document.entries}
    signatures = {name: _signature(entry) for name, entry in named.items()}
    changed = {_folded(name) for name, _ in signatures.items() ^ before.signatures.items()}
    keys = _keys(document)
    try:
        kept = {key: Pieces(*values) for key, values in json.loads(before.entries).items()}
    except (ValueError, TypeError):
        return None
    wanted = {
        name
        for name, entry in named.items()
        if keys[name] not in kept or (changed and not changed.isdisjoint(_words(entry.data)))
    }
    ops = resolve(document, settings, sources, diags, wanted)
    check_metal(ops, sources, diags)
    if len(diags) or {op.name for op in ops} != wanted:
        return None
    new = {op.name: pieces(op, settings) for op in ops}
    return [
        new.get(name) or replace(kept[keys[name]], line=entry.span().line)
        for name, entry in named.items()
    ]


def _keys(document: Document) -> dict[str, str]:
    """What stands for the text of each entry, by its name."""
    # A directive (%TAG) says how all entries are to be read.
    directives = [line.encode() for line in _DIRECTIVE.findall(document.text)]
    return {
        entry.name or "": digest([entry.key.encode(), *directives]) for entry in document.entries
    }


def _signature(entry: Entry) -> str:
    return "\n".join(str(entry.data.get(key, "")) for key in _SIGNATURE)


def _words(data: Any) -> set[str]:
    """All words in an entry, among them the entries that its formulas call, and their classes."""
    if isinstance(data, dict):
        return _words([*data, *data.values()])
    if isinstance(data, list):
        return set().union(*map(_words, data))
    text = unicodedata.normalize("NFKC", str(data))  # as Python reads names
    return {_folded(word) for word in _WORD.findall(text)}


def _folded(name: str) -> str:
    """What an entry's name and its class's name have in common."""
    return name.replace("_", "").lower()
