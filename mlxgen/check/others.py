"""The other entries of a file, as one entry sees them. Records what the entry reads of them.

The output of an entry is a function of its own text, of the inputs shared by all entries, and of
what it reads here. An incremental run (command/memo.py) therefore resolves an entry again only if
one of these changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..model.op import Fact
from ..model.signature import Signature

Item = tuple[str, str]  # a part of the file, and the name of the entry: see `File.text`

V = TypeVar("V")


class Reads(NamedTuple):
    """The parts of others that a resolved entry read, and its own facts that others read."""

    items: Sequence[Item]
    digest: str  # of these parts of the file
    pure: Mapping[str, bool]  # whether the results of these entries depend only on the arguments
    draws: bool  # whether its own formula draws random numbers, or calls a function that may do so
    calls: Sequence[str]  # the entries that its formula calls


class File:
    """The entries of a file, for a single entry that is read without a file: none."""

    def signature(self, name: str) -> Signature | None:
        """Return the signature of an entry; None if there is none, or it is invalid."""
        return None

    def overload(self, name: str) -> Sequence[str] | None:
        """Return the entries that share a Python name, in order; None if calls need no choice."""
        return None

    def has_class(self, name: str) -> bool:
        """Return whether an entry has a class of this name in C++."""
        return False

    def degrees(self, name: str, given: Mapping[str, int]) -> tuple[Sequence[Fact], Others]:
        """Return facts about an entry's results, given the degrees of its arguments.

        Also return what these facts depend on.
        """
        return (), Others(self)

    def pure(self, name: str) -> bool | None:
        """Return whether results depend only on the arguments; None if the entry has errors."""
        return None

    def names(self, part: str) -> Sequence[str]:
        """Return the names of all entries, or of all overloads."""
        return ()


class Others:
    """The other entries of a file, as formulas and checks of one entry see them."""

    def __init__(self, file: File) -> None:
        self.items: set[Item] = set()
        self.purity: dict[str, bool | None] = {}
        self.signatures: Mapping[str, Signature] = _Part(self, "signature", file.signature)
        # Entries that share a Python name, in order, by this name.
        self.overloads: Mapping[str, Sequence[str]] = _Part(self, "overload", file.overload)
        self.file = file

    def degrees(self, name: str, given: Mapping[str, int]) -> Sequence[Fact]:
        """Return the facts about an entry's results, given the degrees of its arguments."""
        facts, inner = self.file.degrees(name, given)
        self.items |= inner.items | {("composite", name)}
        return facts

    def pure(self, name: str) -> bool:
        """Return whether the results of an entry depend only on its arguments."""
        self.purity[name] = self.file.pure(name)
        return bool(self.purity[name])

    def hides(self, namespace: str) -> bool:
        """Return whether the class of an entry has the name of a namespace."""
        self.items.add(("class", namespace))
        return self.file.has_class(namespace)


class _Part(Mapping[str, V]):
    """A part of the entries, by name. Messages list all names, which is not recorded."""

    def __init__(self, others: Others, part: str, read: Callable[[str], V | None]) -> None:
        self._others, self._part, self._read = others, part, read

    def __getitem__(self, name: str) -> V:
        self._others.items.add((self._part, name))
        found = self._read(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._others.file.names(self._part))

    def __len__(self) -> int:
        return len(self._others.file.names(self._part))
