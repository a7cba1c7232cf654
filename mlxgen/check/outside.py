"""Dependencies of an entry on the rest of its file. Used for cache keys.

A resolved operator can be reused while all of these are unchanged: the entry's ``key``, the result
of ``Outside.of`` for the entry, mlxgen, the settings, and all hand-written files. ``Outside.of``
covers the other entries that the entry names: their names and signatures and, for gradients, their
composites, because linearity follows from these. A composite can name further entries.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ..model.op import camel
from ..read.sources import Sources
from ..read.yaml import Document, Entry
from .context import SIGNATURES

_NAMING = ("name", "python_name", "module", "tags", *SIGNATURES)
_WORD = re.compile(r"\w+")
_OF_MLX = re.compile(r"(::)?(mlx::core|mx)::")
_NAMESPACE = re.compile(r"namespace\s+([\w:]+)")


class Outside:
    """The entries of a file, as far as other entries can depend on them."""

    def __init__(self, document: Document, sources: Sources) -> None:
        first = reversed(document.entries)  # of two entries with one name, calls mean the first
        self.entries: Mapping[str, Entry] = {e.name: e for e in first if e.name}
        self.overloads: dict[str, list[str]] = {}  # entries by Python name without module, in order
        for entry in document.entries:
            if entry.name and entry.python_name:
                aliases = (alias.rpartition(".")[2] for alias in entry.words("aliases"))
                for name in {entry.python_name, *aliases}:
                    self.overloads.setdefault(name, []).append(entry.name)
        namespaces = {
            part
            for path in sources.cpp_files()
            if path.is_file()
            for name in _NAMESPACE.findall(path.read_text("utf-8", errors="replace"))
            for part in name.split("::")
        }
        classes = map(camel, self.entries)
        self.hidden = sorted(namespaces.intersection(classes))  # classes hide these namespaces

    def of(self, entry: Entry) -> str:
        """Return the dependencies of an entry as a string."""
        text = entry.key
        if "\\" in text or not text.isascii():  # YAML escapes; identifiers, which Python normalizes
            text = unicodedata.normalize("NFKC", "\n".join(_texts(entry.data)))
        linear = not {"grad", "jvp"}.isdisjoint(entry.keys)  # needs the linearity of others
        named: dict[str, list[str]] = {}
        pending = [f"{text} {entry.python_name}"]
        order = []  # which overload is tried first
        while pending:
            words = {*_WORD.findall(pending.pop())}
            for word in self.overloads.keys() & words:
                words.update(self.overloads[word])
                order.append(self.overloads[word])
            for word in self.entries.keys() & words:
                if word not in named:
                    other = self.entries[word]
                    named[word] = [str(other.words(key)) for key in _NAMING]
                    named[word].append(str(word in self.impure))
                    if linear:
                        texts = [other.words(key) for key in ("cpp", "jvp", "manual")]
                        named[word].append(f"{texts} {'dispatch' in other.keys}")
                        named[word].append(_composite(other))
                        pending.append(_composite(other))
        return f"{sorted(named.items())} {sorted(order)} {self.hidden}"

    @cached_property
    def impure(self) -> set[str]:
        """Entries that draw random numbers, or call csrc functions, which may do so."""
        callers: dict[str, list[str]] = {}
        draw: set[str] = set()
        for name, entry in self.entries.items():
            words = _WORD.findall(_composite(entry))
            for word in self.entries.keys() & words:
                callers.setdefault(word, []).append(name)
            if "random" in words:
                draw.add(name)
        bound = ((name, entry.words("cpp")) for name, entry in self.entries.items())
        found = draw | {name for name, texts in bound if not all(map(_OF_MLX.match, texts))}
        pending = list(found)
        while pending:
            new = {*callers.get(pending.pop(), ())} - found
            found |= new
            pending += new
        return found


def _composite(entry: Entry) -> str:
    lets = entry.data.get("let") if isinstance(entry.data, dict) else None
    texts = [*entry.words("composite"), *_texts(lets or [])]
    return unicodedata.normalize("NFKC", " ".join(texts))


def _texts(data: Any) -> Iterator[str]:
    """Yield keys and values at any depth."""
    if isinstance(data, dict):
        data = [*data, *data.values()]
    if not isinstance(data, list):
        yield str(data)
        return
    for item in data:
        yield from _texts(item)
