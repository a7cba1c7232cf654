"""Parses the text of a formula with Python's parser, and locates its parts.

A formula can have spaces around it, comments, and several lines. The parser receives it as one line
of equal length, so that offsets do not change. The parser counts in bytes.
"""

from __future__ import annotations

import ast
import re
import warnings
from functools import cached_property, lru_cache

from ..diagnostics.messages import table
from .explain import DATA, Wrong

LONGEST = 10_000  # characters of a formula

_STRING = r"'[^'\n]*'|\"[^\"\n]*\""
_BLANK = re.compile(rf"({_STRING})|#[^\n]*|\\\n|[\t\n\f\r]")

_WALRUS = re.compile(r"(?:\b\w+\ *)?:=")
# Text that Python may warn about: escapes, words after numbers, `is`, calls. Silencing is slow.
_WARNED = re.compile(r"\\|\d[A-Za-z]|\bis\b|[\])\d'\"]\s*[(\[]")

# Unsupported notations by name: message and pattern.
_SIGNS: dict[str, list[str]] = table(DATA / "signs.yaml")
_SIGN = re.compile("|".join(f"(?P<{name}>{form})" for name, (_, form) in _SIGNS.items()))


# The text of a formula, or the tree of one that mlxgen builds (trees.py).
Formula = str | ast.expr


@lru_cache(4096)
def parsed(text: str) -> ast.expr:
    """Return the syntax tree of a formula. It is shared and must not be changed."""
    return FormulaText(text).parse()


class FormulaText:
    """The text of a formula, and the line for the parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.line = _BLANK.sub(lambda m: m[1] or " " * len(m[0]), text[: LONGEST + 1])
        self.seen = self.line.strip(" ")
        self.shift = len(self.line) - len(self.line.lstrip(" "))

    @cached_property
    def plain(self) -> str:
        """The line with masked strings."""
        return re.sub(_STRING, lambda m: "_" * len(m[0]), self.line)

    def parse(self) -> ast.expr:
        """Parse the expression."""
        if len(self.text) > LONGEST:
            raise Wrong("too_long", limit=LONGEST)
        if not self.seen:
            raise Wrong("empty", (0, max(len(self.text), 1)))
        if not self.line.isprintable():
            i, char = next((i, c) for i, c in enumerate(self.line) if not c.isprintable())
            raise Wrong("bad_character", (i, i + 1), char=f"U+{ord(char):04X}")
        if ":=" in self.line and (found := _WALRUS.search(self.plain)):
            raise Wrong("statement", found.span(), "assign")
        try:
            if not _WARNED.search(self.seen):
                return ast.parse(self.seen, mode="eval").body
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.seen, mode="eval").body
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except MemoryError:
            raise RecursionError from None

    def span(self, at: object) -> tuple[int, int]:
        """Return the slice of the text of a part of the expression (None: of all)."""
        if isinstance(at, tuple):
            start, end = at
            return start, end
        if not isinstance(at, ast.expr | ast.keyword):
            return 0, len(self.text)
        columns, seen = (at.col_offset, at.end_col_offset or 0), self.seen.encode()  # in bytes
        start, end = [len(seen[:c].decode(errors="ignore")) + self.shift for c in columns]
        return start, max(end, start + 1)

    def _unreadable(self, error: SyntaxError) -> Wrong:
        """Return the error for invalid text, with our own message if one matches."""
        for found in _SIGN.finditer(self.plain):
            name, end = found.lastgroup or "", found.end()
            start = end - len(found[0].lstrip("; ") or ";")
            opened, closed = (sum(self.plain.count(c, 0, start) for c in s) for s in ("([{", ")]}"))
            if name not in ("assign", "equal") or opened <= closed:
                return Wrong(_SIGNS[name][0], (start, end), name, found[0].strip())
        message = error.msg.removeprefix("invalid syntax. ")
        if not error.offset:
            end = self.shift + len(self.seen)
            return Wrong("unfinished", (end - 1, end))
        start = min(error.offset - 1, len(self.seen) - 1) + self.shift
        length = max((error.end_offset or 0) - error.offset, 1)
        here = self.text[start : start + length]
        if message == "invalid syntax":
            return Wrong("syntax", (start, start + length), here)
        message = message[:1].lower() + message[1:]
        return Wrong("unreadable", (start, start + length), here, message=message)
