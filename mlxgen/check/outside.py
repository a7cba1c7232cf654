"""What an entry depends on outside of its own text, for whoever keeps what was found out about it.

An operator stays as it is while its entry's ``key`` and ``Outside.of`` stay the same, and mlxgen
and the settings with them: whatever its formulas, kernels and hand-written parts refer to, the
entry names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..read.sources import Sources, last_name
from ..read.yaml import Document, Entry
from .context import camel

_WORD = re.compile(r"\w+")
_SIGNATURE = ("name", "signature", "cpp_signature", "python_signature")


class Outside:
    """The entries of a file and the functions of a project, by the words that name them."""

    def __init__(self, document: Document, sources: Sources) -> None:
        self.sources = sources
        self.entries = {entry.name: entry for entry in document.entries if entry.name}
        self.class_names = {camel(name) for name in self.entries}
        self.known = {*self.entries, *sources.functions_by_name, *sources.metal_by_name}
        self.texts: dict[str, str] = {}

    def of(self, entry: Entry) -> str:
        """What the words of an entry name, as text."""
        words = sorted(self.known.intersection(_WORD.findall(entry.key)))
        for word in words:
            if word not in self.texts:
                self.texts[word] = "\n".join(self._named(word))
        # A kernel for every backend is read as Metal with all that its header includes.
        header = [self._header(name) for name in entry.words("dispatch")]
        return "\n".join([*(self.texts[word] for word in words), *header])

    def _named(self, word: str) -> Iterator[str]:
        """The entry's signature, the functions and the kernels of that name."""
        if word in self.entries:
            yield f"{word} {[self.entries[word].words(key) for key in _SIGNATURE]}"
        for function in self.sources.functions_by_name.get(word, ()):
            hidden = function.qualified_name.split("::")[0] in self.class_names
            yield f"{function} {self.sources.header_of(function)} {hidden}"
        for path, file, function in self.sources.metal_by_name.get(word, ()):
            made = [i for i in file.instantiations if last_name(i.function) == word]
            hosts = [i for i in file.instantiations if i.host_name.startswith(word)]
            yield f"{path} {function} {made} {hosts}"

    def _header(self, name: str) -> str:
        """Whether the headers that declare a function can be read as Metal."""
        found = self.sources.find(name)
        headers = {header for f in found if (header := self.sources.header_of(f))}
        return str([(header, self.sources.unreadable(header)) for header in sorted(headers)])
