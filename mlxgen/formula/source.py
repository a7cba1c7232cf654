"""The text of a formula: read by Python's parser, with the places of its parts.

Users write a formula with blanks around it, or over several lines; the parser sees it stripped, or
in parentheses, and counts in bytes. All that is put right here.
"""

from __future__ import annotations

import ast
import re
import warnings

from .explain import Wrong

LONGEST = 10_000  # characters of a formula

# What Python's parser warns about, on stderr: invalid escapes, and numbers that run into words.
_WARNED = re.compile(r"\\|\d(?:if|in|is|or|and|not|for|else)")


class Source:
    """A formula's text, and the text that the parser sees."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r", " ")
        stripped = self.text.strip()
        # Over several lines an expression needs parentheses; on one line no blanks may precede it.
        self.several = "\n" in stripped
        self.shift = 1 if self.several else -(len(self.text) - len(self.text.lstrip()))
        self.seen = f"({self.text}\n)" if self.several else stripped

    def parse(self) -> ast.expr:
        """The syntax tree of the expression."""
        if not self.seen:
            raise Wrong("empty", (0, max(len(self.text), 1)))
        if len(self.text) > LONGEST:
            raise Wrong("too_long", limit=LONGEST)
        try:
            tree = _parse(self.seen)
            if self.several:  # the brackets added are a pair of their own
                _parse(f"[{self.text}\n]")
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except (ValueError, MemoryError):
            raise Wrong("unreadable") from None
        return tree

    def span(self, at: object) -> tuple[int, int]:
        """The slice of the text that a part of the expression stands for (None: all of it)."""
        if isinstance(at, tuple):
            start, end = at
            return start, end
        if not isinstance(at, ast.expr | ast.keyword):
            return 0, len(self.text)
        start = self._offset(at.lineno, at.col_offset)
        end = self._offset(at.end_lineno or at.lineno, at.end_col_offset or 0)
        return start, max(end, start + 1)

    def _offset(self, line: int, column: int) -> int:
        """The place in the text of the parser's line and column (in bytes)."""
        lines = self.seen.split("\n")
        before = sum(len(part) + 1 for part in lines[: line - 1])
        at = lines[line - 1].encode()[:column].decode(errors="ignore")
        return min(max(before + len(at) - self.shift, 0), len(self.text))

    def _unreadable(self, error: SyntaxError) -> Wrong:
        """What Python's parser found."""
        message = (error.msg or "invalid syntax").removeprefix("invalid syntax. ")
        start, end = 0, len(self.text)
        if error.lineno is not None and error.offset:
            before = sum(len(part) + 1 for part in self.seen.split("\n")[: error.lineno - 1])
            start = min(max(before + error.offset - 1 - self.shift, 0), len(self.text) - 1)
            end = start + 1
            if error.end_lineno == error.lineno and (error.end_offset or 0) > error.offset:
                end = min(start + (error.end_offset or 0) - error.offset, len(self.text))
        # What other languages write, where Python has a word.
        signs = re.findall(r"&&|\|\||\?|!(?!=)", self.text)
        signs.sort(key="&& || ? !".index)
        return Wrong("syntax", (start, end), self.text[start:end], *signs, message=message)


def _parse(source: str) -> ast.expr:
    """The syntax tree of an expression, without warnings."""
    if _WARNED.search(source) is None:
        return ast.parse(source, mode="eval").body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, mode="eval").body
