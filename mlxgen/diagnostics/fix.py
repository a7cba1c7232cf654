"""Fixes: the text that would be right, in the place of what is wrong.

A help is for people, a ``Fix`` for programs: an editor offers it, a test applies it and expects
that nothing is wrong then. It is made where the message is made: by a line ``=> text`` of a table
of messages (messages.py), by a guess (``did_you_mean``), or as ``Advice`` by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .span import Span, Text


@dataclass(frozen=True, slots=True)
class Fix:
    """A replacement: this text for what is at this place."""

    span: Span
    text: str


class Advice(str):
    """A help, perhaps an empty one, with the text that replaces the place it is about."""

    instead: str | None

    def __new__(cls, text: str, instead: str | None = None) -> Advice:
        made = super().__new__(cls, text)
        made.instead = instead
        return made


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
