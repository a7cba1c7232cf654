"""Incremental checks: after an edit, only the entries that changed are resolved.

``generate`` uses this between runs, and the editor between keystrokes.

The output of an entry depends on its own text and file, on the inputs shared by all entries
(``base_hash``), and on what it read of other entries. It is cached under a hash of the first three,
together with the last (``check.others.Reads``). Names are still compared among all entries, because
any two may clash. An entry with a diagnostic is not cached, so that the next run repeats the
diagnostic. If a hand-written file has a diagnostic, none of the newly resolved entries is cached.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..check.file import resolve, resolve_changed
from ..check.others import Reads
from ..model.op import Op
from ..read.sources import Sources
from ..read.yaml import Documents
from ..render.files import Pieces, pieces
from .inputs import digest
from .operators import check_metal, select

_DIRECTIVE = re.compile(r"^%.*", re.MULTILINE)  # YAML directives affect all entries

T = TypeVar("T", Op, Pieces)


@dataclass(frozen=True)
class Cached(Generic[T]):
    """The output of an entry, and what it read of others."""

    reads: Reads
    value: T
    line: str = ""  # of the manifest that it was loaded from


class Memo(Generic[T]):
    """The cached output of a project's entries."""

    def __init__(self, kept: dict[str, Cached[T]] | None = None) -> None:
        self.kept: dict[str, Cached[T]] = kept or {}  # by the hash of an entry's text and `base`

    def look(self, base: str, document: Documents, sources: Sources) -> list[Op]:
        """Resolve the entries that are not cached."""
        self._document, self._sources = document, sources
        all_of = base, *(d for part in document.parts for d in _DIRECTIVE.findall(part.text))
        files = {part.path: os.path.realpath(part.path) for part in document.parts}
        self._keys = [digest(all_of, files[e.document.path], e.key) for e in document.entries]
        number = Counter(entry.name for entry in document.entries)
        reads = {
            entry.name: self.kept[key].reads
            for entry, key in zip(document.entries, self._keys, strict=True)
            if entry.name and number[entry.name] == 1 and key in self.kept
        }
        ops, self._reads = resolve_changed(document, sources, reads)
        check_metal(ops, sources, sources.diags)
        return ops

    def keep(self, resolved: Iterable[T]) -> list[T]:
        """Return the output of all entries, cached or new; cache the new output."""
        sources, entries = self._sources, self._document.entries
        said = sources.diags.sorted()
        starts = sorted((e.document.path, e.start, i) for i, e in enumerate(entries))
        spans = [(at.file, (at.line, at.column), len(entries)) for at in (i.span for i in said)]
        places = {starts[bisect_right(starts, span) - 1][2] for span in spans if starts}
        names = {item.op for item in said}  # by a YAML alias, the location may be in another entry
        files = {part.path for part in self._document.parts}
        covered = sources.covered and all(item.span.file in files for item in said)
        new = {value.name: value for value in resolved}
        given, before, self.kept = [], self.kept, {}
        for i, (entry, key) in enumerate(zip(entries, self._keys, strict=True)):
            name = entry.name or ""
            if name not in new and name not in self._reads:
                continue
            value = new[name] if name in new else before[key].value
            value = value if value.line == entry.line else value.at_line(entry.line)
            given.append(value)
            reported = i in places or name in names
            if name in self._reads and not reported and (covered or name not in new):
                known, reads = before.get(key), self._reads[name]
                same = known is not None and known.value is value and known.reads == reads
                self.kept[key] = known if known and same else Cached(reads, value)
        return given


def load(lines: str) -> Memo[Pieces]:
    """Load the cache from a manifest; return an empty one if it is invalid."""
    kept = dict[str, Cached[Pieces]]()
    try:
        for line in filter(None, lines.split("\n")):
            key, reads, value = json.loads(line)
            kept[key] = Cached(_reads(*reads), Pieces(*value), line)
        return Memo(kept)
    except (ValueError, TypeError, AttributeError):
        return Memo()


def _reads(items: Iterable[Iterable[str]], *others: Any) -> Reads:
    return Reads([(part, name) for part, name in items], *others)


def dump(memo: Memo[Pieces]) -> str:
    """Return the cache for a manifest, without the text that is in an entry's own files."""
    return "\n".join(one.line or _line(key, one) for key, one in memo.kept.items())


def _line(key: str, cached: Cached[Pieces]) -> str:
    value = cached.value._replace(header="", source="")
    return json.dumps([key, cached.reads, value], ensure_ascii=False)


def edited(base: str, document: Documents, sources: Sources, memo: Memo[Pieces]) -> list[Pieces]:
    """Render all entries incrementally; return an empty list if an error was reported."""
    ops = memo.look(base, document, sources)
    if not sources.diags.ok:
        return []
    return memo.keep(pieces(op, sources.settings) for op in ops)


def chosen(
    document: Documents, sources: Sources, include: Sequence[str], exclude: Sequence[str]
) -> list[Pieces]:
    """Render the selected entries and those that they call; an empty list after an error.

    Hand-written headers of an entry call the entries whose generated headers they include.
    """
    settings, diags = sources.settings, sources.diags
    ops = resolve(document, settings, sources, diags)
    found = select(ops, include, exclude, diags) if diags.ok else []
    check_metal(found, sources, diags)
    by_name, wanted = {op.name: op for op in ops}, {op.name for op in found}
    for op in found:  # grows in the loop
        included = (sources.entries_of(header) for header in op.headers)
        more = (op.calls.union(*included) & by_name.keys()) - wanted
        wanted |= more
        found += map(by_name.__getitem__, more)
    return [pieces(op, settings) for op in ops if op.name in wanted] if diags.ok else []
