"""After an edit only what was edited is looked at: all other entries give what they gave before.

So it is from one run of ``generate`` to the next, and from one keystroke to the next in an editor.

What an entry gives follows from its text, from what that names of other entries (``Outside``), and
from what all entries depend on (``base_hash``). So it is kept under a hash of the first two, as
long as the third stays the same. Names are compared among all entries, as always: any two may be
the same. An entry of which something is reported is not kept, so that the next look says it again;
where something is reported of a kernel, no entry is that was looked at.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ..check.file import resolve
from ..check.outside import Outside
from ..model.op import Op
from ..read.sources import Sources
from ..read.yaml import Document
from .inputs import digest
from .operators import check_metal

_DIRECTIVE = re.compile(r"^%.*", re.MULTILINE)  # which says how all entries are to be read


class Made(Protocol):
    """What an entry gave, which knows where the entry begins."""

    @property
    def line(self) -> int: ...

    def _replace(self, *, line: int) -> Any: ...


T = TypeVar("T", bound=Made)


class Memo(Generic[T]):
    """What the entries of a file gave, for as long as that stays the same."""

    def __init__(self, base: str = "", kept: Mapping[str, T] | None = None) -> None:
        self.base = base
        self.kept = dict(kept or {})  # by a hash of all that an entry depends on beside the base

    def look(self, base: str, document: Document, sources: Sources) -> list[Op]:
        """Resolve the entries of which nothing is kept."""
        if base != self.base:
            self.base, self.kept = base, {}
        self._document, self._sources = document, sources
        outside = Outside(document, sources)
        directives = "".join(_DIRECTIVE.findall(document.text))
        self._keys = [digest(e.key, outside.of(e), directives) for e in document.entries]
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
            value = value if value.line == entry.line else value._replace(line=entry.line)
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
