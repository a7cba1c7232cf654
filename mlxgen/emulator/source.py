"""Preprocessed Metal source: its tokens, its declarations, and how it is rewritten.

Kernels are rewritten token by token, because some Metal keywords have no node in a C++ syntax
tree. `read.cpp`, which parses the same text, finds the declarations.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ..diagnostics import Span
from ..model.signature import quoted
from ..read.cpp import METAL, Reader
from ..read.preprocess import SourceError
from .cxx import MESSAGES, preprocessed

Kind = Literal["name", "number", "string", "character", "punctuator"]


class Token(NamedTuple):
    """One token; `before` is the white space in front of it, shortened to "", " " or "\\n"."""

    kind: Kind
    text: str
    before: str
    offset: int

    @property
    def end(self) -> int:
        """The offset after the token."""
        return self.offset + len(self.text)


# The most frequent first. A name must not be the prefix of a literal (u8R"(...)"), so a name before
# a quotation mark is matched as `other`, after the literals. `>>` is two tokens, because it may
# close two lists of template arguments.
_TOKEN = re.compile(
    r"""[ \t\f\v]*(?:
      (?P<name>[^\W\d][\w$]*(?![\w$"']))
    | (?P<newline>(?:\n|\A)\s*(?:\#(?:[^\\\n]|\\[\s\S])*)?)
    | (?P<punctuator>[,;(){}\[\]]|\.\.\.|<=>|<<=|->\*|::|->|\+\+|--|&&|\|\||<<|\.\*
                    |[-+*%^&|!=<>/]=|[-+*%^&|~!=<>?:]|\.(?!\d)|/(?![/*]))
    | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    | (?P<comment>//(?:[^\\\n]|\\[\s\S]?)*|/\*[\s\S]*?\*/|\\\n)
    | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\([\s\S]*?\)(?P=delimiter)")
    | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\[\s\S])*")
    | (?P<character>(?:u8|[uUL])?'(?:[^'\\\n]|\\[\s\S])+')
    | (?P<other>[^\W\d]\w*)
    | (?P<unknown>\S)
    )""",
    re.VERBOSE,
)
_KINDS: dict[str, Kind] = {
    "name": "name",
    "other": "name",
    "punctuator": "punctuator",
    "unknown": "punctuator",
    "number": "number",
    "raw": "string",
    "string": "string",
    "character": "character",
}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ORIGIN = re.compile(r'# (\d+) "((?:[^"\\]|\\.)*)"')


def lex(text: str) -> list[Token]:
    """Return the tokens of C++ or Metal, without directives and comments."""
    tokens: list[Token] = []
    before = "\n"
    for match in _TOKEN.finditer(text):
        group = match.lastgroup or ""
        kind = _KINDS.get(group)
        if kind is None:
            before = "\n" if group == "newline" else before or " "
            continue
        offset = match.start(group)
        if not before and offset != match.start():
            before = " "
        tokens.append(Token(kind, match[group], before, offset))
        before = ""
    return tokens


class Source:
    """A Metal file, preprocessed.

    Everything works on indices of tokens.

    Attributes:
        unit, file: The declarations of the text.
        tokens: The tokens.
        texts: Their strings.
        partner: For each bracket, the index of the matching bracket.
        new: Replacements of tokens.
        after: Text to insert after a token.
        skipped: Removed ranges: from start to end.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        *,
        text: str | None = None,
        defines: Mapping[str, str] | None = None,
    ) -> None:
        path = os.fspath(path)
        folders = [os.fspath(folder) for folder in include_dirs]
        expanded = preprocessed(path, folders, text, {**METAL, **(defines or {})})
        self._origins = _origins(expanded)
        reader = Reader((), metal=True)
        reader.unsaved = {os.path.abspath(path): expanded}
        try:
            self.unit = reader.unit(path)
            self.file = self.unit.files[0]
            self.file.source.check_brackets()
        except SourceError as error:
            raise SourceError(error.said, self.place(error.span)) from None
        self.tokens = lex(self.file.source.text)
        self.texts = [token.text for token in self.tokens]
        self._offsets = [token.offset for token in self.tokens]
        self._lines = [match.start() for match in re.finditer("\n", self.file.source.text)]
        self.partner = [0] * len(self.texts)
        opened: list[int] = []
        for i, token in enumerate(self.texts):
            if token in _CLOSING:
                opened.append(i)
            elif token in (")", "]", "}"):
                start = opened.pop()
                self.partner[start], self.partner[i] = i, start
        self._angles: dict[int, int | None] = {}
        self.new: dict[int, str] = {}
        self.after: dict[int, str] = {}
        self.skipped: dict[int, int] = {}

    # -- locations

    def place(self, span: Span) -> Span:
        """Return the original line of a span in expanded text; macros have no columns."""
        file, line = self._origins[span.line - 1]
        return Span(file, line, 1, line, 1)

    def origin(self, i: int) -> tuple[str, int]:
        """Return the file and the line of token `i`."""
        return self._origins[bisect_right(self._lines, self._offsets[i])]

    def where(self, i: int) -> str:
        """Return the location of token `i` for messages."""
        return "{}:{}".format(*self.origin(i))

    def error(self, wrong: str, i: int, /, **about: object) -> SourceError:
        """Return an error at token `i`."""
        file, line = self.origin(min(i, len(self.tokens) - 1))
        return SourceError(MESSAGES(wrong, **about), Span(file, line, 1, line, 1))

    def at(self, offset: int) -> int:
        """Return the first token that begins at or after an offset of the text."""
        return bisect_left(self._offsets, offset)

    # -- tokens

    def text(self, i: int) -> str:
        """Return the text of token `i`, "" after the last."""
        return self.texts[i] if i < len(self.texts) else ""

    def is_name(self, i: int) -> bool:
        """Return true if token `i` is a name."""
        return self.tokens[i].kind == "name"

    def angle(self, i: int) -> int | None:
        """Return the index of the `>` that closes the `<` at `i`; None if it means less-than."""
        if i not in self._angles:
            j = i + 1
            while self.text(j) not in (">", ")", "]", "}", ";", ""):
                j = self.over(j)
            self._angles[i] = j if self.text(j) == ">" else None
        return self._angles[i]

    def over(self, i: int) -> int:
        """Return the index after the whole bracket or the single token at `i`."""
        if self.texts[i] in _CLOSING:
            return self.partner[i] + 1
        if self.texts[i] == "<" and self.is_name(i - 1) and self.texts[i - 1] != "operator":
            return (self.angle(i) or i) + 1
        return i + 1

    def find(self, i: int, stop: int, *texts: str) -> int:
        """Return the index of the first of `texts` at this level of brackets, or `stop`."""
        while i < stop and self.texts[i] not in texts:
            i = self.over(i)
        return min(i, stop)

    def split(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges between the commas from `start` to `stop`."""
        ranges = []
        while (comma := self.find(start, stop, ",")) < stop:
            ranges.append((start, comma))
            start = comma + 1
        return [*ranges, (start, stop)] if start < stop else ranges

    # -- rewriting

    def skip(self, start: int, stop: int) -> None:
        """Remove the tokens from `start` to `stop`."""
        self.skipped[start] = max(stop, self.skipped.get(start, 0))

    def written(self) -> str:
        """Return the rewritten source."""
        pieces: list[str] = []
        file, line = "", 0
        i = 0
        while i < len(self.tokens):
            if i in self.skipped:
                i = self.skipped[i]
                continue
            here, row = self.origin(i)
            if here == file and line < row <= line + 3:
                pieces.append("\n" * (row - line))
            elif (here, row) != (file, line):
                pieces.append(f"\n#line {row} {quoted(here)}\n")
            text = self.new.get(i, self.texts[i])
            if text:
                # `>>` and `>>=` come as two tokens
                before = self.tokens[i].before
                split = not before and text in (">", ">=") and self.texts[i - 1] == ">"
                pieces.append(text if split else " " + text)
            file, line = here, row + text.count("\n")
            if i in self.after:
                pieces.append(self.after[i])
            i += 1
        return "".join(pieces)


def _origins(expanded: str) -> list[tuple[str, int]]:
    """Return the file and the line of origin for each line of preprocessed text."""
    found = []
    file, line = "", 0
    for row in expanded.split("\n"):
        origin = _ORIGIN.match(row)
        if origin:
            file = os.path.normpath(re.sub(r"\\(.)", r"\1", origin[2]))
            line = int(origin[1]) - 1
        found.append((file, line))
        line += 1
    return found
