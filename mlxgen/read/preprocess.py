"""Preprocesses hand-written C++ and Metal for tree-sitter: conditionals, includes, simple macros.

This is the part of a C preprocessor that declarations need. It selects the branches of a file's
conditionals. It expands macros without parameters (`#define REAL float`), those of address spaces
(`#define PTR(T) device T*`), attributes and kernels (`#define BUF(n) [[buffer(n)]]`), and mlxgen's
own (`MLXGEN_OUT(T)`), which occur in declarations of kernels. Macros that instantiate Metal kernels
are removed, because launchers do it; other macros are left to the compiler. Includes are not
inlined: each file is parsed by itself, once for each meaning of the macros that it has from the
including file.

An expansion has the location of the macro's call; all other text keeps its location.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from ..diagnostics import Span, Text
from ..diagnostics.messages import Rendered
from . import MESSAGES, unreadable

PARSER = Parser(Language(tree_sitter_cpp.language()))

MAX_SIZE = 5 << 20  # bytes of a file
MAX_EXPANSION = 4 << 20  # characters of all expansions in a file, plus 20 per call
MAX_BODY = 4000  # characters of a macro's expansion
MAX_DEPTH = 60  # of includes
MAX_CONDITION = 1000  # characters of an #if condition

Texts = Mapping[str, str]

# The folder of mlxgen's own headers.
OWN_INCLUDES = str(Path(__file__).parents[1] / "runtime" / "include")

# Only the macros of these headers are used, because they declare nothing of the project.
LIBRARIES = ("mlx/", "mlxgen/", "nanobind/")

LITERAL = r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
_NO_CODE = re.compile(
    rf'//[^\n]*|/\*.*?(?:\*/|\Z)|\bR"(\w*)\((?:.*?\)\1"|.*\Z)|\\\n|({LITERAL})', re.S
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(.*)", re.M)
_DEFINITION = re.compile(r"\s*(\w+)(?:\(([^)]*)\))?(.*)")
_INCLUDED = re.compile(r'[ \t]*("([^"]+)"|<([^>]+)>)')
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:\s]+)\{")
_BRACKET = re.compile(rf"{LITERAL}|[()\[\]{{}}]")
_WORD_OR_LITERAL = re.compile(rf"{LITERAL}|\b[A-Za-z_]\w*")
_GIVEN = re.compile(r"\s*\(((?:[^()]|\([^()]*\))*)\)")  # arguments of a macro
_COMMA = re.compile(r",(?![^()]*\))")  # outside of parentheses
_OPERATION = re.compile(r"(?<!#)#\s*(\w+)|\s*(##)\s*|\w+")  # of a macro's body
_DECLARES = re.compile(
    r"[^#;{}]*\b(?:device|constant|threadgroup|thread)\b[^#;{}]*|.*(?:\[\[|\bkernel\b).*"
)
_INSTANTIATES = re.compile(r"\btemplate\s*\[\[\s*host_name\b")
_REMOVED = " "  # the body of a macro whose calls are removed
# C's operators, except && and ||, and their values.
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    **{"|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq},
    **{"!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt},
    **{">=": operator.ge, "+": operator.add, "-": operator.sub, "*": operator.mul},
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "/": lambda a, b: _quotient(a, b),
    "%": lambda a, b: a - b * _quotient(a, b),
}
_UNARY: Mapping[str, Callable[[int], int]] = {
    **{"!": operator.not_, "not": operator.not_},
    **{"-": operator.neg, "+": operator.pos, "~": operator.invert},
}
_WORDS = ("and", "or", "not")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class SourceError(Exception):
    """An error in source text: a message, its location, and those of its note."""

    def __init__(self, said: Rendered, span: Span, *also: Span, missing: str = "") -> None:
        super().__init__(f"{span}: {said.text}")
        self.said, self.message, self.span = said, said.text, span
        self.missing = missing  # the name of an include that was not found
        self.related = also


class Include(NamedTuple):
    """The file name of an `#include`."""

    name: str
    angled: bool
    span: Span

    def find(self, folders: Sequence[str], needed: bool = True) -> str | None:
        """Return the path; None for a system header, or for a missing one if not ``needed``."""
        beside = os.path.dirname(self.span.file)
        for folder in folders if self.angled else (beside, *folders):
            path = os.path.normpath(os.path.join(folder, self.name))
            if os.path.isfile(path):
                return path
        if self.angled or not needed:
            return None
        raise SourceError(MESSAGES("no_include", name=self.name), self.span, missing=self.name)


class Macro(NamedTuple):
    """A macro to expand; ``parameters`` is None if it has no parameter list."""

    parameters: tuple[str, ...] | None
    body: str

    def called(self, arguments: Iterable[str]) -> str:
        """Return its expansion in a call."""
        given = dict(zip(self.parameters or (), arguments, strict=False))

        def replaced(word: re.Match[str]) -> str:
            if word[1] or word[2]:
                return f'"{given.get(word[1], word[1])}"' if word[1] else ""
            return given.get(word[0], word[0])

        return _OPERATION.sub(replaced, self.body)


Place = tuple[int, int, bool]  # slice of the original text, and whether it is unchanged


class Macros(dict[str, Macro | None]):
    """Macros by name; None for a macro that is not expanded."""

    def define(self, name: str, listed: str | None, body: str) -> None:
        """Add a macro; macros in its body are expanded now, so that expansion needs one pass."""
        named = listed and listed.replace("...", "__VA_ARGS__")
        parameters = None if named is None else tuple(map(str.strip, named.split(",")))
        used = filter(None, map(self.get, _WORD.findall(body)))
        if _INSTANTIATES.search(body) or any(macro.body == _REMOVED for macro in used):
            self[name] = Macro(parameters, _REMOVED)
            return
        body = body if len(body) > MAX_BODY else self.expand(body)
        known = listed is None or name.startswith("MLXGEN_") or _DECLARES.fullmatch(body)
        self[name] = Macro(parameters, body) if known and len(body) <= MAX_BODY else None

    def expand(self, text: str) -> str:
        """Return the text with its macros expanded."""
        return "".join(piece for piece, _ in self.pieces(text, 0, len(text)))

    def arguments(self, text: str, count: int) -> Iterator[str]:
        """Yield the arguments of a call; the last one is the rest of the text."""
        for i in range(count):
            comma = _COMMA.search(text) if i < count - 1 else None
            yield self.expand(text[: comma and comma.start()].strip())
            text = text[comma.end() :] if comma else ""

    def pieces(self, text: str, start: int, stop: int) -> Iterator[tuple[str, Place]]:
        """Yield a part of the text with its macros expanded, and the origin of each piece."""
        at = start
        known = not self.keys().isdisjoint(_WORD.findall(text, start, stop))
        while known and (found := _WORD_OR_LITERAL.search(text, at, stop)):
            at = found.end()
            macro = self.get(found[0])
            if macro is None:
                continue
            piece = macro.body
            if macro.parameters is not None:
                listed = _GIVEN.match(text, at, stop)
                if listed is None:
                    continue
                at = listed.end()
                piece = macro.called(self.arguments(listed[1], len(macro.parameters)))
            yield text[start : found.start()], (start, found.start(), True)
            yield piece, (found.start(), at, False)
            start = at
        yield text[start:stop], (start, stop, True)


def _quotient(a: int, b: int) -> int:
    """Divide as C, which rounds toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def calculated(text: str) -> int | None:
    """Return the value of an integer expression in C; None if it cannot be computed."""
    if len(text) > MAX_CONDITION:
        return None
    root = PARSER.parse(f"int x = {text};".encode()).root_node
    declarator = root.named_children[0].child_by_field_name("declarator")
    value = declarator.child_by_field_name("value") if declarator else None
    if root.has_error or len(root.named_children) > 1 or value is None:
        return None
    with suppress(ArithmeticError, ValueError, RecursionError):
        return _value(value)
    return None


def _value(node: Node) -> int:
    """Return the value of an expression; raises `ValueError` for one that is not of integers."""
    parts, operation = node.named_children, node.child_by_field_name("operator")
    sign = operation.type if operation else ""
    match node.type:
        case "number_literal":
            word = (node.text or b"").decode()
            octal = word[0] == "0" and word[1:].isdigit()
            return _wrapped(int(word, 8 if octal else 0))
        case "parenthesized_expression":
            return _value(parts[0])
        case "conditional_expression":
            return _value(parts[1] if _value(parts[0]) else parts[2])
        case "unary_expression" if sign in _UNARY:
            return _wrapped(_UNARY[sign](_value(parts[0])))
        case "binary_expression" if sign in ("&&", "and"):
            return int(_value(parts[0]) != 0 and _value(parts[1]) != 0)
        case "binary_expression" if sign in ("||", "or"):
            return int(_value(parts[0]) != 0 or _value(parts[1]) != 0)
        case "binary_expression" if sign in _BINARY:
            return _wrapped(_BINARY[sign](_value(parts[0]), _value(parts[1])))
    raise ValueError


def _wrapped(value: int) -> int:
    """Return the value in 64 bits, those of C's intmax_t."""
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)


def read_text(path: str | Path, unsaved: Texts | None = None) -> str:
    """Return a file's text, or its substitute in ``unsaved`` (by absolute path).

    Raises ``OSError`` or ``ValueError``, which ``unreadable`` explains.
    """
    if unsaved and (text := unsaved.get(os.path.abspath(path))) is not None:
        return text
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, path)
    if found.st_size > MAX_SIZE:
        raise OSError(errno.EFBIG, path)
    return Path(path).read_text(encoding="utf-8-sig")


class SourceText:
    """A file's text after preprocessing. A missing file is reported at ``at``.

    Attributes:
        path: the file.
        original: its text.
        plain: its text with comments replaced by spaces.
        text: the preprocessed text.
        macros: the macros that are defined at its end.
        given: the macros of the including file.
        own: its macros and those of its includes, except libraries and guards of includes.
        removed: slices of the original that are removed macros.
        includes: the direct includes, by name; None for system headers and skipped ones.
        namespaces: names of the namespaces in it and in its includes.
    """

    def __init__(self, path: str, at: Span | None = None, unsaved: Texts | None = None) -> None:
        try:
            self.original = read_text(path, unsaved)
        except (OSError, ValueError) as error:
            span = at or Span(path, 1, 1, 1, 1)
            said = MESSAGES("unreadable_source", path=path, **unreadable(error))
            raise SourceError(said, span) from None
        self.path = path
        self._file = Text(path, self.original)
        # Spaces replace comments and raw strings, so that locations do not change.
        self.plain = _NO_CODE.sub(lambda m: m[2] or " " * len(m[0]), self.original)
        self.macros = Macros()
        self.given: Mapping[str, Macro] = {}
        self.own: dict[str, Macro] = {}
        self.removed: list[tuple[int, int]] = []
        self.includes: dict[str, SourceText | None] = {}
        self.namespaces: set[str] = set()
        self._pieces: list[str] = []  # the parts of the text
        self._length = 0
        self._left = MAX_EXPANSION
        self._starts: list[int] = []  # their offsets in the text
        self._places: list[Place] = []  # their places in the original

    @cached_property
    def text(self) -> str:
        """The preprocessed text, once all of it was added."""
        return "".join(self._pieces)

    def directives(self) -> list[re.Match[str]]:
        """Return the directives: group 1 is the keyword, group 2 the rest of the line."""
        return list(_DIRECTIVE.finditer(self.plain))

    def include(self, line: re.Match[str]) -> Include | None:
        """Return the include of a line; None if a macro specifies the file."""
        found = _INCLUDED.match(self.plain, line.start(2))
        return found and Include(found[2] or found[3], not found[2], self.place(*found.span(1)))

    def add(self, start: int, stop: int) -> None:
        """Append a part of the plain text with its macros expanded."""
        for piece, place in self.macros.pieces(self.plain, start, stop):
            self._left -= 0 if place[2] else 20 + len(piece)
            if piece == _REMOVED and not place[2]:
                self.removed.append(place[:2])
            if self._left < 0:
                said = MESSAGES("long_expansion", most=MAX_EXPANSION >> 20)
                raise SourceError(said, self.place(*place[:2]))
            self._starts.append(self._length)
            self._places.append(place)
            self._pieces.append(piece)
            self._length += len(piece)

    def origin(self, start: int, stop: int) -> tuple[int, int]:
        """Return the slice of the original of a part of the preprocessed text."""
        return self._origin(start)[0], self._origin(stop - 1)[1]

    def span(self, start: int, stop: int) -> Span:
        """Return the location of a part of the preprocessed text."""
        return self.place(*self.origin(start, stop))

    def suits(self, given: Mapping[str, Macro]) -> bool:
        """Return whether it has the same meaning with these macros of the including file."""
        if not given and not self.given:
            return True
        sources = [self]
        for source in sources:  # grows in the loop
            sources += [one for one in source.includes.values() if one and one not in sources]
        changed = {n for n in {*given, *self.given} if given.get(n) != self.given.get(n)}
        return all(changed.isdisjoint(source.all_words) for source in sources)

    @cached_property
    def all_words(self) -> set[str]:
        """All words in the original, without comments."""
        return set(_WORD.findall(self.plain))

    def _origin(self, offset: int) -> tuple[int, int]:
        i = bisect_right(self._starts, offset) - 1
        start, stop, verbatim = self._places[i] if i >= 0 else (0, 0, False)
        at = start + offset - self._starts[i] if verbatim else start
        return at, at + 1 if verbatim else stop

    def place(self, start: int, stop: int) -> Span:
        """Return the location of a part of the original text."""
        return self._file.at(start, stop)

    @cached_property
    def words(self) -> set[str]:
        """All names in the text, and the names of its macros."""
        return {*_WORD.findall(self.text), *self.macros}

    def check_brackets(self) -> None:
        """Raise ``SourceError`` for the first unbalanced bracket."""
        opened: list[re.Match[str]] = []
        for found in _BRACKET.finditer(self.text):
            if found[0] in _CLOSING:
                opened.append(found)
            elif len(found[0]) == 1:  # not a literal
                if not opened:
                    said = MESSAGES("not_opened", bracket=found[0])
                    raise SourceError(said, self.span(*found.span()))
                other = opened.pop()
                if _CLOSING[other[0]] != found[0]:
                    said = MESSAGES("wrong_bracket", bracket=found[0], opened=other[0])
                    raise SourceError(said, self.span(*found.span()), self.span(*other.span()))
        if opened:
            span = self.span(*opened[-1].span())
            raise SourceError(MESSAGES("not_closed", bracket=opened[-1][0]), span)


class Preprocessor:
    """Preprocesses files, each once for the same macros of the including file.

    Args:
        folders: search path of includes, after the folder of the file.
        defines: predefined macros.
        unread: prefixes of includes that are skipped.
        inherits: included files use the macros of the including one.

    Attributes:
        texts: preprocessed files by path.
        unsaved: substitutes for the contents of files, by absolute path.
    """

    def __init__(
        self,
        folders: Sequence[str],
        defines: Mapping[str, str],
        unread: tuple[str, ...] = (),
        inherits: bool = False,
    ) -> None:
        self.folders = folders
        self.unread = unread
        self.inherits = inherits
        self.unsaved: Texts = {}
        self._defines = {name: Macro(None, body) for name, body in defines.items()}
        self.texts: dict[str, list[SourceText]] = {}
        self._depth = 0

    def read(
        self, path: str, at: Span | None = None, given: Mapping[str, Macro] = MappingProxyType({})
    ) -> SourceText:
        """Return a preprocessed file; raises ``SourceError``.

        ``given``: the macros of the including file.
        """
        known = self.texts.setdefault(path, [])
        if source := next((source for source in known if source.suits(given)), None):
            return source
        if at and self._depth > MAX_DEPTH:
            raise SourceError(MESSAGES("deep_includes", most=MAX_DEPTH), at)
        source = SourceText(path, at, self.unsaved)
        source.given = given
        source.macros.update({**given, **self._defines})
        known.append(source)  # first, because its includes may include it again
        self._depth += 1
        try:
            self._run(source)
        except SourceError:
            known.remove(source)
            raise
        finally:
            self._depth -= 1
        return source

    def _run(self, source: SourceText) -> None:
        at = 0
        # For each open condition: whether its branch is active (None: an earlier one was), and its
        # offset.
        opened: list[tuple[bool | None, int]] = [(True, 0)]
        for line in source.directives():
            word, rest = line.groups()
            reads, start = opened[-1]
            if reads:
                source.add(at, line.start())
            at = line.end()
            if word in ("if", "ifdef", "ifndef"):
                holds = self._holds(word, rest, source.macros) if reads else None
                opened.append((holds, line.start(1) - 1))
            elif word in ("else", "elif") and len(opened) > 1:
                holds = word == "else" or self._holds("if", rest, source.macros)
                opened[-1] = (holds if reads is False else None, start)
            elif word == "endif" and len(opened) > 1:
                opened.pop()
            elif reads:
                self._directive(source, line)
        if len(opened) > 1:
            start = opened[-1][1]
            raise SourceError(MESSAGES("no_endif"), source.place(start, start + 1))
        source.add(at, len(source.plain))
        source.namespaces |= set(_WORD.findall(" ".join(_NAMESPACE.findall(source.text))))

    def _directive(self, source: SourceText, line: re.Match[str]) -> None:
        word, rest = line.groups()
        if word == "define" and (found := _DEFINITION.match(rest)):
            source.macros.define(found[1], found[2], found[3].strip())
            macro = source.macros[found[1]]
            if macro and (macro.body or f"#ifndef {found[1]}" not in source.plain):
                source.own[found[1]] = macro
        elif word == "undef":
            source.macros.pop(rest.strip(), None)
            source.own.pop(rest.strip(), None)
        elif word == "include" and (include := source.include(line)):
            skipped = self.unread and include.name.startswith(self.unread)
            path = None if skipped else include.find(self.folders)
            source.includes[include.name] = None
            if path is not None:
                given = {**source.given, **source.own} if self.inherits else {}
                included = self.read(path, include.span, given)
                source.includes[include.name] = included
                source.macros |= included.macros
                if not include.name.startswith(LIBRARIES):
                    source.own |= included.own
                source.namespaces |= included.namespaces

    def _holds(self, word: str, rest: str, macros: Macros) -> bool:
        """Return whether a branch is active; a condition that cannot be computed counts as true."""
        if word != "if":
            return (rest.strip() in macros) == (word == "ifdef")
        if len(rest) > MAX_CONDITION:
            return True
        text = re.sub(r"\bdefined\b\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m[1] in macros)), rest)
        text = macros.expand(text)
        text = re.sub(r"\b(\d\w*?)[uUlL]*\b", r"\1", text)
        known = {**{word: word for word in _WORDS}, "true": "1"}
        text = re.sub(r"\b[A-Za-z_]\w*", lambda m: known.get(m[0], "0"), text)
        return calculated(text) != 0

    def closure(self, path: str, *, libraries: bool = False) -> list[SourceText]:
        """Return a file and all its direct and indirect includes, optionally of libraries too."""
        found = [self.read(path)]
        for source in found:  # grows in the loop
            for name, included in source.includes.items():
                if included and (libraries or not name.startswith(LIBRARIES)):
                    found += [included] * (included not in found)
        return found
