"""The other entries of a file as one entry sees them; records each question and its answer.

The output of an entry is a function of its own text, of the inputs shared by all entries, and of
these answers. An incremental run (command/memo.py) therefore asks the recorded questions again, and
resolves the entry only if an answer changed. An entry asks nothing about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..model.op import Fact
from ..model.signature import Signature

Question = tuple[str | int, ...]  # a method of `Answers`, and its arguments
Reads = Mapping[Question, str]  # questions, and hashes of the answers

V = TypeVar("V")


class Others:
    """The questions of formulas and checks of the entry ``own`` about the other entries."""

    def __init__(self, own: str, ask: Callable[[Question], Any]) -> None:
        self.own, self._ask = own, ask
        self.questions: set[Question] = set()
        self.signatures: Mapping[str, Signature] = _Lookup(self, "signature")
        # Entries that share a Python name, in order.
        self.overloads: Mapping[str, Sequence[str]] = _Lookup(self, "overloads")

    def ask(self, *question: str | int) -> Any:
        """Return and record the answer to a question."""
        if question[1:2] != (self.own,) or question[0] == "overloads":
            self.questions.add(question)
        return self._ask(question)

    def degrees(self, name: str, given: Mapping[str, int]) -> Sequence[Fact]:
        """Return the facts about an entry's results, given the degrees of its arguments."""
        known: Sequence[Fact] = self.ask("degrees", name, *_flat(given))
        return known

    def pure(self, name: str) -> bool:
        """Return whether the results of an entry depend only on its arguments."""
        return bool(self.ask("pure", name))

    def hides(self, namespace: str) -> bool:
        """Return whether the class of an entry has the name of a namespace."""
        return bool(self.ask("hides", namespace))


class _Lookup(Mapping[str, V]):
    """The answers to one kind of question, by name. Iterating yields the names of all entries."""

    def __init__(self, others: Others, kind: str) -> None:
        self._others, self._kind = others, kind

    def __getitem__(self, name: str) -> V:
        found: V | None = self._others.ask(self._kind, name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._others.ask("names", self._kind)

    def __len__(self) -> int:
        return len(self._others.ask("names", self._kind))


def _flat(given: Mapping[str, int]) -> Iterator[str | int]:
    for name, degree in sorted(given.items()):
        yield from (name, degree)
