"""Locations in files, in lines and columns."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Line ends of editors, which are fewer than those of ``str.splitlines``.
LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Span(NamedTuple):
    """A location in a file: 1-based, columns in characters, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


# The location of names from command-line options.
COMMAND_LINE = Span("command line", 0, 0, 0, 0)


@dataclass(eq=False)
class Text:
    """The text of a file, with conversion between offsets and locations."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without line ends."""
        return LINE_BREAK.split(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in LINE_BREAK.finditer(self.text))]

    def at(self, start: int, end: int) -> Span:
        """Return the location of a slice of the text."""
        line, end_line = bisect_right(self._starts, start), bisect_right(self._starts, end)
        column, end_column = start - self._starts[line - 1], end - self._starts[end_line - 1]
        return Span(self.path, line, column + 1, end_line, end_column + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a location; the end of the text for locations beyond it."""
        if not 1 <= line <= len(self.lines):
            return len(self.text)
        return self._starts[line - 1] + min(column - 1, len(self.lines[line - 1]))
