"""The text of a formula: read by Python's parser, with the places of its parts.

Users write a formula with blanks around it, comments in it, or over several lines. The parser sees
one line in which each part stands where it stood, and counts in bytes.
"""

from __future__ import annotations

import ast
import re
import warnings

from .explain import Wrong

LONGEST = 10_000  # characters of a formula

_STRING = r"'[^'\n]*'|\"[^\"\n]*\""
_BLANK = re.compile(rf"({_STRING})|#[^\n]*|\\\n|[\t\n\f\r]")

# What formulas do not have: statements, and signs of other languages. Its help has the name of the
# group as key, or the text itself.
_FOREIGN = re.compile(
    r"""(?P<word>^\ *(?:return|if|for|while|import|from|def|class|del|assert|raise|pass|with|try)\b)
    |(?P<assign>(?:^|;)\ *(?:\w+\ +)?[\w.]+(?:\[[^]]*\])?\ *
        (?::\ *\w+\ *)?(?:[-+/%&|^@]|//|\*\*?|<<|>>)?=(?![=!<>]))
    |(?P<several>;)
    |(?P<colons>\b(?:\w+::)+\w+(?=\()|\b(?:mx|mlx|std)::[\w:]+)
    |&&|\|\||->|=>|=<|<>|===|!==|!(?!\ *=)|/\*|\.[*/^]|[$\\`]
    |(?P<ternary>\?(?=[^?.].*:))|(?P<step>(?:\+\+|--)\ *$)
    |(?P<suffix>(?<![\w.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?[fFlLuU]{1,3}\b)
    |(?P<times>(?<![\w.])[1-9]\d*(?:\.\d+)?(?!(?:if|in|is|or|and|not|else)\b|[eE]\b|[eE][-+\d_])
        [A-Za-z]\w*)
    |(?P<transpose>(?<=[\w)\]])')|(?P<quote>['"])
    |(?P<equal>(?<![=!<>:])=(?!=))""",
    re.VERBOSE,
)


class Source:
    """A formula's text, and the line that the parser sees."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.line = self.plain = self.seen = ""
        self.shift = 0  # where the parser's line begins in the text

    def parse(self) -> ast.expr:
        """The syntax tree of the expression."""
        if len(self.text) > LONGEST:
            raise Wrong("too_long", limit=LONGEST)
        self.line = _BLANK.sub(lambda m: m[1] or " " * len(m[0]), self.text)
        self.seen = self.line.strip(" ")
        self.shift = len(self.line) - len(self.line.lstrip(" "))
        if not self.seen:
            raise Wrong("empty", (0, max(len(self.text), 1)))
        for i, char in enumerate(self.line):
            if not char.isprintable():
                raise Wrong("bad_character", (i, i + 1), char=f"U+{ord(char):04X}")
        self.plain = re.sub(_STRING, lambda m: "_" * len(m[0]), self.line)
        if found := re.search(r"(?:\b\w+\ *)?:=", self.plain):
            raise Wrong("statement", found.span(), "assign")
        try:
            with warnings.catch_warnings():  # of invalid escapes, numbers that run into words
                warnings.simplefilter("ignore")
                return ast.parse(self.seen, mode="eval").body
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except MemoryError:
            raise RecursionError from None

    def span(self, at: object) -> tuple[int, int]:
        """The slice of the text that a part of the expression stands for (None: all of it)."""
        if isinstance(at, tuple):
            start, end = at
            return start, end
        if not isinstance(at, ast.expr | ast.keyword):
            return 0, len(self.text)
        start, end = self._offset(at.col_offset), self._offset(at.end_col_offset or 0)
        return start, max(end, start + 1)

    def _offset(self, column: int) -> int:
        """The place in the text of the parser's column (in bytes)."""
        return len(self.seen.encode()[:column].decode(errors="ignore")) + self.shift

    def _unreadable(self, error: SyntaxError) -> Wrong:
        """What cannot be read, in our words where they are better than the parser's."""
        for found in _FOREIGN.finditer(self.plain):
            group, end = found.lastgroup or "", found.end()
            start = end - len(found[0].lstrip("; ") or ";")
            opened, closed = (sum(self.plain.count(c, 0, start) for c in s) for s in ("([{", ")]}"))
            if group not in ("assign", "equal") or opened <= closed:
                wrong = "quote" if group in ("transpose", "quote") else "syntax"
                wrong = "statement" if group in ("word", "assign", "several") else wrong
                return Wrong(wrong, (start, end), group, found[0].strip())
        message = error.msg.removeprefix("invalid syntax. ")
        if long := re.search(r"\d{4300,}", self.text):
            return Wrong("long_int", long.span())
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
