"""After an edit only what was edited is looked at: all other entries give what they gave before.

So it is from one run of ``generate`` to the next, and from one keystroke to the next in an editor.

What an entry gives follows from its text, from what that names of other entries (``Outside``), and
from what all entries depend on (``base_hash``); so it is kept under a hash of the three. Names are
compared among all entries, as always: any two may be the same. An entry of which something is
reported is not kept, so that the next look says it again; where something is reported of a kernel,
no entry is that was looked at.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from ..check.file import resolve
from ..check.outside import Outside
from ..model.op import Op
from ..read.sources import Sources
from ..read.yaml import Document
from ..render.files import Pieces, pieces
from .inputs import digest
from .operators import check_metal, select

_DIRECTIVE = re.compile(r"^%.*", re.MULTILINE)  # which says how all entries are to be read

T = TypeVar("T", Op, Pieces)


class Memo(Generic[T]):
    """What the entries of a file gave, for as long as that stays the same."""

    def __init__(self, kept: dict[str, T] | None = None) -> None:
        self.kept: dict[str, T] = kept or {}  # by a hash of all that an entry depends on

    def look(self, base: str, document: Document, sources: Sources) -> list[Op]:
        """Resolve the entries of which nothing is kept."""
        self._document, self._sources = document, sources
        outside = Outside(document, sources)
        all_of = base, *_DIRECTIVE.findall(document.text)
        self._keys = [digest(all_of, e.key, outside.of(e)) for e in document.entries]
        entries = zip(document.entries, self._keys, strict=True)
        wanted = {entry.name for entry, key in entries if key not in self.kept}
        ops = resolve(document, sources.settings, sources, sources.diags, wanted)
        check_metal(ops, sources, sources.diags)
        return ops

    def keep(self, looked_at: Iterable[T]) -> list[T]:
        """What the entries give: as before, or as they were looked at."""
        said, entries = self._sources.diags.sorted(), self._document.entries
        lines = [entry.line for entry in entries]
        places = {bisect_right(lines, item.span.line) - 1 for item in said}
        names = {item.op for item in said}  # whose text may be another entry's, by an alias
        covered = all(item.span.file == self._document.path for item in said) and self._covered()
        new = {value.line: value for value in looked_at}
        given, before, self.kept = [], self.kept, {}
        for i, (entry, key) in enumerate(zip(entries, self._keys, strict=True)):
            if (value := before.get(key) or new.get(entry.line)) is None:
                continue
            value = value if value.line == entry.line else value.at_line(entry.line)
            given.append(value)
            if i not in places and entry.name not in names and (covered or key in before):
                self.kept[key] = value
        return given

    def _covered(self) -> bool:
        """Whether the base depends on all hand-written files that were read."""
        sources = self._sources
        folders = tuple(os.path.join(os.path.abspath(path), "") for path in sources.metal_includes)
        readers = (sources.cpp.reader, sources.metal.reader)
        read = {os.path.abspath(path) for reader in readers for path in reader.texts}
        return all(path.startswith(folders) for path in read)


def load(text: str) -> Memo[Pieces]:
    """What a manifest has of the entries; an empty one where it cannot be read."""
    try:
        kept = json.loads(text)
        return Memo({key: Pieces(*values) for key, values in kept.items()})
    except (ValueError, TypeError, AttributeError):
        return Memo()


def dump(memo: Memo[Pieces]) -> str:
    """The same for a manifest, without what is in files of an entry's own."""
    kept = {key: p._replace(header="", source="") for key, p in memo.kept.items()}
    return json.dumps(kept, ensure_ascii=False)


def edited(base: str, document: Document, sources: Sources, memo: Memo[Pieces]) -> list[Pieces]:
    """The pieces of all entries; none if there is an error."""
    ops = memo.look(base, document, sources)
    if not sources.diags.ok:
        return []
    return memo.keep(pieces(op, sources.settings) for op in ops)


def chosen(
    document: Document, sources: Sources, include: Sequence[str], exclude: Sequence[str]
) -> list[Pieces]:
    """The pieces of the chosen entries and of those that they call; none if there is an error."""
    settings, diags = sources.settings, sources.diags
    ops = resolve(document, settings, sources, diags)
    found = select(ops, include, exclude, diags) if diags.ok else []
    check_metal(found, sources, diags)
    wanted: set[str] = set()
    by_name, pending = {op.name: op for op in ops}, list(found)
    while pending:
        op = pending.pop()
        pending += [by_name[name] for name in op.calls if name not in wanted]
        wanted.add(op.name)
    return [pieces(op, settings) for op in ops if op.name in wanted] if diags.ok else []
