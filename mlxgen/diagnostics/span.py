"""Places in files, as messages and editors count them."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_BREAK = re.compile(r"\r\n|\r|\n")
"""What ends a line for whoever makes spans: less than for ``str.splitlines``, as in editors."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a file: 1-based, columns in characters, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


COMMAND_LINE = Span("command line", 0, 0, 0, 0)
"""Where the names stand that options give."""
