"""Tokens of hand-written C++ and Metal source, with their places.

The declarations that `cxx` and `metal` look for can stand behind macros, in comments or in
strings, where regular expressions over the text go wrong silently. So source is split into tokens
once, here, and everything else works on these.

Prominent characteristics:

* One compiled regular expression does the lexing.
* A token knows its file and offset (its line and column are found when asked for) and the white
  space before it, so that tokens can be written out again (`join`) or rewritten.
* `>>` is two tokens, so that template argument lists need no splitting.
* Whatever cannot be read is a `SourceError` with a position, and nothing else is ever raised.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, NoReturn

from ...diagnostics import Span
from ...read import preprocess

Kind = Literal["name", "number", "string", "character", "punctuator", "invalid"]


class SourceError(preprocess.SourceError):
    """Source text that cannot be read: what is wrong and where."""

    def __init__(self, message: str, span: Span, help: str | None = None) -> None:
        super().__init__(message, span, help)
        self.notes: tuple[str, ...] = ()  # the includes and macros that led there, innermost first


class Source:
    """The text of one file, which turns offsets into lines and columns."""

    __slots__ = ("_starts", "path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._starts: list[int] = []

    def span(self, start: int, end: int) -> Span:
        """The `Span` of the characters from `start` up to `end`."""
        if not self._starts:
            self._starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        line = bisect_right(self._starts, start)
        end_line = bisect_right(self._starts, end)
        column = start - self._starts[line - 1] + 1
        return Span(self.path, line, column, end_line, end - self._starts[end_line - 1] + 1)


_NOTHING: frozenset[str] = frozenset()


class Token(NamedTuple):
    """One token; `before` is the white space in front of it, shortened to "", " " or "\\n"."""

    kind: Kind
    text: str
    before: str
    source: Source
    offset: int
    hidden: frozenset[str] = _NOTHING  # macros that may not expand here any more

    @property
    def end(self) -> int:
        """The offset behind it, or behind the macro's name where a macro produced it."""
        text = self.source.text
        if text.startswith(self.text, self.offset):
            return self.offset + len(self.text)
        found = re.compile(r"\w+|.?", re.DOTALL).match(text, self.offset)
        return found.end() if found else self.offset

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.source.span(self.offset, self.end)


def made(
    kind: Kind, text: str, before: str, source: Source, offset: int, hidden: frozenset[str]
) -> Token:
    """A token, without a named tuple's slow constructor: most tokens come out of macros."""
    return tuple.__new__(Token, (kind, text, before, source, offset, hidden))


def join(tokens: Iterable[Token]) -> str:
    """The text of the tokens with their white space."""
    return "".join([token.before + token.text for token in tokens])


def between(first: Token, last: Token) -> Span:
    """The span from one token to another (of the first alone where macros moved them apart)."""
    if first.source is last.source and last.end >= first.offset:
        return first.source.span(first.offset, last.end)
    return first.span


# ------------------------------------------------------------------------------------- tokens

# The commonest first. A name must not be the prefix of a literal (u8R"(...)"), so a name in front
# of a quote is tried again as `other`, after the literals.
_TOKEN = re.compile(
    r"""[ \t\f\v]*(?:
      (?P<name>[^\W\d][\w$]*(?![\w$"']))
    | (?P<newline>\n\s*)
    | (?P<punctuator>[,;(){}\[\]]|\.\.\.|<=>|<<=|->\*|\#\#|::|->|\+\+|--|&&|\|\||<<|\.\*
                    |[-+*%^&|!=<>/]=|[-+*%^&|~!=<>?:\#]|\.(?!\d)|/(?![/*]))
    | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    | (?P<comment>//(?:[^\\\n]|\\[\s\S]?)*|/\*[\s\S]*?\*/|\\\n)
    | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\([\s\S]*?\)(?P=delimiter)")
    | (?P<unclosed>(?:u8|[uUL])?R"[^()\\\s]{0,16}\([\s\S]*)
    | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\[\s\S])*")
    | (?P<character>(?:u8|[uUL])?'(?:[^'\\\n]|\\[\s\S])+')
    | (?P<other>(?:[^\W\d]|\$)[\w$]*)
    | (?P<invalid>/\*[\s\S]*|"[^\n]*|'[^\n]*|[^\n])
    )""",
    re.VERBOSE,
)
_KIND_OF_GROUP: dict[str, Kind] = {
    "raw": "string",
    "unclosed": "invalid",
    "string": "string",
    "character": "character",
    "name": "name",
    "other": "name",
    "number": "number",
    "punctuator": "punctuator",
    "invalid": "invalid",
}
# by the group's number; None for white space and comments
_KINDS: list[Kind | None] = [None] * (_TOKEN.groups + 1)
for _name, _index in _TOKEN.groupindex.items():
    _KINDS[_index] = _KIND_OF_GROUP.get(_name)
_NEWLINE = _TOKEN.groupindex["newline"]


@dataclass(frozen=True, slots=True, eq=False)
class Lexed:
    """A file in tokens; `directives` are the ranges of those that make up a directive."""

    source: Source
    tokens: tuple[Token, ...]
    directives: tuple[tuple[int, int], ...]
    has_invalid: bool


@lru_cache(maxsize=512)
def lex(path: str, text: str) -> Lexed:
    """The tokens of a file's text.

    Characters that are no token become one of kind "invalid": they are an error only where the
    preprocessor keeps them, because text under `#if 0` need not be C++.
    """
    source = Source(path, text)
    tokens: list[Token] = []
    hashes: list[int] = []
    before = "\n"
    new, cls, append, kinds, nothing = tuple.__new__, Token, tokens.append, _KINDS, _NOTHING
    for match in _TOKEN.finditer(text):
        group = match.lastindex or 0
        kind = kinds[group]
        if kind is None:
            before = "\n" if group == _NEWLINE else before or " "
            continue
        spelled = match[group]
        offset = match.start(group)
        if not before and offset != match.start():
            before = " "
        elif spelled == "#" and before == "\n":
            hashes.append(len(tokens))
        # a named tuple made without its Python-level constructor: half the time of lexing
        append(new(cls, (kind, spelled, before, source, offset, nothing)))
        before = ""
    if "\\\n" in text:
        _refuse_spliced_words(tokens)
    directives = []
    for start in hashes:
        stop = start + 1
        while stop < len(tokens) and tokens[stop].before != "\n":
            stop += 1
        directives.append((start, stop))
    invalid = any(token.kind == "invalid" for token in tokens)
    return Lexed(source, tuple(tokens), tuple(directives), invalid)


def _refuse_spliced_words(tokens: list[Token]) -> None:
    """Mark words that a backslash at the line's end splits: to C++ they are one word."""
    for i in range(1, len(tokens)):
        left, right = tokens[i - 1], tokens[i]
        if (
            right.kind in ("name", "number")
            and left.kind in ("name", "number")
            and left.source.text[left.offset + len(left.text) : right.offset] == "\\\n"
        ):
            tokens[i] = right._replace(kind="invalid")


def refuse_invalid(token: Token) -> NoReturn:
    text = token.text
    if text.startswith("/*"):
        what = "this comment is never closed"
    elif '"' in text:
        what = "this string is never closed"
    elif text.startswith("'"):
        what = "this character literal is never closed"
    elif len(text) == 1 and not text.isalnum():
        what = f"unexpected character {text!r}"
    else:
        what = "a backslash at the end of a line splits this word"
    if text.startswith("/*") or '"' in text:
        raise SourceError(what, token.source.span(token.offset, token.offset + 2))
    raise SourceError(what, token.span)


def string_value(tokens: Sequence[Token]) -> str | None:
    """The value of adjacent string literals, or None where a token is no string literal."""
    value = []
    for token in tokens:
        if token.kind != "string":
            return None
        start = token.text.index('"')
        body = token.text[start + 1 : -1]
        if token.text[:start].endswith("R"):
            delimiter = body.index("(")
            value.append(body[delimiter + 1 : len(body) - delimiter - 1])
        else:
            body = body.replace("\\\n", "")
            value.append(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), body))
    return "".join(value) if value else None


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


# --------------------------------------------------------------------------------------- files


def read_source(path: str, at: Span | None = None) -> str:
    """A file's text with `\\n` line ends; `at` is where an unreadable file is reported."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SourceError(f"cannot read {path}: {reason}", at or Span(path, 1, 1, 1, 1)) from None
