"""Places in files, as messages and editors count them."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# What ends a line for whoever makes spans: less than for ``str.splitlines``, as in editors.
LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Span(NamedTuple):
    """A place in a file: 1-based, columns in characters, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


# Where the names stand that options give.
COMMAND_LINE = Span("command line", 0, 0, 0, 0)


@dataclass(eq=False)
class Text:
    """A file's text, and the places of its parts."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return LINE_BREAK.split(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in LINE_BREAK.finditer(self.text))]

    def at(self, start: int, end: int) -> Span:
        """The place of a slice of the text."""
        line, end_line = bisect_right(self._starts, start), bisect_right(self._starts, end)
        column, end_column = start - self._starts[line - 1], end - self._starts[end_line - 1]
        return Span(self.path, line, column + 1, end_line, end_column + 1)

    def offset(self, line: int, column: int) -> int:
        """The character at a place; one beyond the text, where the text ends."""
        if not 1 <= line <= len(self.lines):
            return len(self.text)
        return self._starts[line - 1] + min(column - 1, len(self.lines[line - 1]))
