"""Fixes: what would be right, as data.

A help is for people, a ``Fix`` for programs: an editor offers it, and `mlxgen check --fix` applies
those that are certain. It comes from ``Advice``, which is made where the message is made: by a line
``=> text`` of a table of messages (messages.py), by a ``Guess``, or by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .span import Span, Text


@dataclass(frozen=True, slots=True)
class Fix:
    """A replacement: this text for what is at this place. One that is not certain has to be seen
    by somebody, as it may mean something else."""

    span: Span
    text: str
    certain: bool = True


class Advice(NamedTuple):
    """A help with the text that replaces the place it is about, and whether that is certain."""

    text: str | None
    instead: str
    certain: bool = True

    def __str__(self) -> str:
        return self.text or ""


Help = str | Advice | None


@dataclass(frozen=True, slots=True)
class Guess:
    """A word that was probably meant; its text is `` (did you mean 'x'?)`` or, without one, empty.

    ``form`` is how the word stands in the place that the message is about, such as ``mx.{}``.
    """

    word: str | None
    certain: bool = False
    form: str = "{}"

    def __str__(self) -> str:
        return f" (did you mean '{self.word}'?)" if self.word else ""

    def __bool__(self) -> bool:
        return bool(self.word)

    def advice(self, text: str | None, certain: bool = True) -> Help:
        """A help with the word as its fix, if there is one."""
        if not self.word:
            return text
        return Advice(text, self.form.format(self.word), certain and self.certain)


def applied(path: str, text: str, fixes: Iterable[Fix]) -> tuple[str, list[Fix]]:
    """A file's text with fixes applied, and those of them: where two overlap, the first alone."""
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
