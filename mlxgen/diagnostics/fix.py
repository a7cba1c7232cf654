"""Fixes: replacements for wrong text, as data.

People read the help of a message; programs use its ``Fix``. An editor offers every fix, and `mlxgen
check --fix` applies the certain ones. A fix is created from an ``Advice``, which comes from a key
``fix`` in a table of messages (messages.py), from a ``Guess``, or from the reporting code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .span import Span, Text


@dataclass(frozen=True, slots=True)
class Fix:
    """A replacement of the text at a location.

    A person must confirm a fix that is not certain, because it may change the meaning.
    """

    span: Span
    text: str
    certain: bool = True


class Advice(NamedTuple):
    """A help with its replacement text; ``certain`` if the replacement needs no confirmation."""

    text: str | None
    instead: str
    certain: bool = True

    def __str__(self) -> str:
        return self.text or ""


Help = str | Advice | None


@dataclass(frozen=True, slots=True)
class Guess:
    """The word that the user probably meant. As text `` (did you mean 'x'?)``, or empty.

    ``form`` is the spelling of the word in the user's text, such as ``mx.{}``.
    """

    word: str | None
    certain: bool = False
    form: str = "{}"

    def __str__(self) -> str:
        return f" (did you mean '{self.word}'?)" if self.word else ""

    def __bool__(self) -> bool:
        return bool(self.word)

    def advice(self, text: str | None) -> Help:
        """Return a help with the word, if any, as its fix."""
        if not self.word:
            return text
        return Advice(text, self.form.format(self.word), self.certain)


def applied(path: str, text: str, fixes: Iterable[Fix]) -> tuple[str, list[Fix]]:
    """Apply fixes to a file's text, skipping those that overlap an earlier one.

    Returns the new text and the applied fixes.
    """
    source = Text(path, text)
    done: list[Fix] = []
    places: list[tuple[int, int, str]] = []
    end = -1
    for fix in sorted(fixes, key=lambda fix: fix.span):
        span = fix.span
        start, stop = (
            source.offset(span.line, span.column),
            source.offset(span.end_line, span.end_column),
        )
        if start > end or start == stop == end:
            places.append((start, stop, fix.text))
            done.append(fix)
            end = stop
    for start, stop, new in reversed(places):
        text = text[:start] + new + text[stop:]
    return text, done
