"""Composes the text of a YAML file into the nodes of its entries.

A text that libyaml would read without end is refused. A syntax error is libyaml's, in the words of
_SYNTAX. It costs the entry it stands in, not the file: that entry is blanked out, and the rest is
read again.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..diagnostics import LINE_BREAK, Diagnostics, Span, Text
from .places import extent

# YAML's printable characters, without the line breaks that editors do not count as such.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]+"
)
MAX_VALUES = 250_000  # of a file, its keys among them
MAX_DEPTH = 60
_MAX_SYNTAX_ERRORS = 20
_ENTRY_START = re.compile(r"^-(?=\s)", re.MULTILINE)

_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_IMPLICIT = yaml.SafeLoader.yaml_implicit_resolvers


class YamlText(Text):
    """A text that is read; ``complete``: all of its entries can be."""

    def __init__(self, path: str, text: str, diags: Diagnostics) -> None:
        super().__init__(path, text)
        self.diags = diags
        self.complete = True

    def lacks(self, code: str, message: str, start: int, end: int, **more: Any) -> None:
        """Report an error that costs an entry, or all of them."""
        self.complete = False
        self.diags.error(code, message, self.at(start, end), **more)

    def first_line(self, start: int, end: int) -> Span:
        """The place of the first line of a slice."""
        line_end = LINE_BREAK.search(self.text, start, end)
        return self.at(start, line_end.start() if line_end else end)


class Limit(Exception):
    """A text that stands for more than is read: code, message, start, end and help."""


class _Limits:
    """Of a loader, which makes all nodes of a file before it gives one, and recurses in C."""

    depth = count = 0

    def descend_resolver(self, parent: Node | None, _: object) -> None:
        """A node begins."""
        self.depth += 1
        self.count += 1
        if parent and (self.depth > MAX_DEPTH + 1 or self.count > MAX_VALUES):
            start = parent.start_mark.index
            said = ("MG015", MANY) if self.count > MAX_VALUES else ("MG008", DEEP)
            raise Limit(*said, start, start + 1)

    def ascend_resolver(self) -> None:
        """It ends."""
        self.depth -= 1

    def resolve(self, kind: type[Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Its tag: what PyYAML finds, in half of the time."""
        if kind is not ScalarNode:
            return _MAP if kind is MappingNode else _SEQ
        if implicit[0]:
            for tag, pattern in _IMPLICIT.get(value[:1], ()):
                if pattern.match(value):
                    return str(tag)
        return _STR


_Loader: Any = type("_Loader", (_Limits, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})

DEEP = f"nested more than {MAX_DEPTH} levels deep"
MANY = f"the file has more than {MAX_VALUES} values"

# libyaml's words (a regular expression, for PyYAML's own parser says it a little differently), and
# what is said instead: code, message and help. The first that fits counts; {at} is the character.
_SYNTAX = (
    ("another document", "MG005", "a second YAML document begins here", "remove the line"),
    ("undefined alias", "MG013", "a value that begins with '*' must be in quotes",
     "put the whole value in quotes"),
    ("duplicate anchor", "MG014", "an anchor of this name exists already", "rename one of them"),
    ("mapping values", "MG013", "a value that contains ': ' must be in quotes",
     "if a key begins here: keys stand in one column, each followed by ': '"),
    ("(escape|hexdecimal).*quoted", "MG001",
     "this is not an escape of YAML's double quotes",
     "use single quotes, in which a backslash is a backslash"),
    ("quoted", "MG001", "this quote is never closed", "write the same quote where the value ends"),
    ("block scalar", "MG013", "text after '{at}' begins in the next line",
     "put a value of one line in quotes"),
    ("simple key", "MG001", "this line is not a key, because no ':' follows",
     "write 'key: value', and indent a text of several lines further than its key"),
    ("flow node", "MG001", "a value or a closing bracket is missing here", "close the bracket"),
    ("expected ',' or", "MG013", "a ',' or a closing bracket is missing here",
     "put a value that contains brackets, quotes or ': ' in quotes"),
    ("cannot start|not allowed|node content|alias|anchor|tag", "MG013",
     "a value that begins with '{at}' must be in quotes", "put the whole value in quotes"),
    ("line start", "MG001", "this line continues nothing above it",
     "an entry begins with '- ', and its keys stand in one column"),
    ("expected", "MG013", "the value has ended before this",
     "put the whole value in single quotes, and write each ' within it twice"),
)  # fmt: skip


def compose(source: YamlText) -> tuple[str, list[Node]]:
    """A text without what has a syntax error, and the nodes of its entries, if it can be used."""
    text = source.text
    for match in _UNPRINTABLE.finditer(text):
        message = f"the character U+{ord(match[0][0]):04X} cannot stand in YAML"
        source.lacks("MG001", message, *match.span())
    text = _UNPRINTABLE.sub(lambda found: " " * len(found[0]), text)
    root: Node | None = None
    for attempt in range(_MAX_SYNTAX_ERRORS):
        try:
            root = yaml.compose(text, Loader=_Loader)
            break
        except Limit as error:
            source.lacks(*error.args)
            return text, []
        except yaml.MarkedYAMLError as error:
            better = text if attempt else _without_broken(source, text)
            text = _without_error(source, text, error) if better == text else better
    if root is None or root.tag.endswith(":null"):
        return text, []
    if isinstance(root, SequenceNode):
        return text, list(root.value)
    source.complete = False
    what = "a mapping" if isinstance(root, MappingNode) else "a single value"
    span = source.first_line(extent(text, root)[0], len(text))
    help = "begin each operator with '- name: ...' at the left margin"
    message = f"the file must be a list of entries, and is {what}"
    source.diags.error("MG004", message, span, help=help)
    return text, []


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _borders(text: str) -> list[int]:
    """Where entries begin, after the beginning of the text, and where it ends."""
    return sorted({0, len(text)}.union(m.start() for m in _ENTRY_START.finditer(text)))


def _without_broken(source: YamlText, text: str) -> str:
    """``text`` with those entries blanked out that cannot be read by themselves; says why."""
    pieces = []
    for begin, end in pairwise(_borders(text)):
        piece = text[begin:end]
        broken = _UNPRINTABLE.search(source.text, begin, end) is not None  # which is said
        try:
            root = None if broken else yaml.compose(piece, Loader=_Loader)
            if root and end < len(text) and not _ENTRY_START.match(piece):
                message = "the file must be a list of entries, and this stands before the first"
                source.lacks("MG004", message, *extent(text, root), help="write # before comments")
                broken = True
        except Limit:
            pass  # which composing all of it says
        except yaml.MarkedYAMLError as error:
            broken = not re.search("undefined alias|duplicate|document", error.problem or "")
            if broken:
                code, message, help, place = _explain(error, piece)
                source.lacks(code, message, begin + place, begin + place + 1, help=help)
        pieces.append(_blank(piece) if broken else piece)
    return "".join(pieces)


def _explain(error: Any, text: str) -> tuple[str, str, str | None, int]:
    """Code, message, help and place of a syntax error, in words for someone who writes entries."""
    mark, context = error.problem_mark or error.context_mark, error.context or ""
    place = min(mark.index, len(text.rstrip()))
    if text.startswith("\t", place) or "a tab" in error.problem:
        return "MG002", "a tab in the indentation, where YAML allows spaces only", None, place
    if "while scanning" in context and error.context_mark:
        place = error.context_mark.index
    elif "flow" in context and error.context_mark.line < mark.line:
        place = error.context_mark.index
        said = f"this '{text[place]}' is not closed"
        return "MG001", said, "close it where the value ends; a ',' ends each item", place
    line = text[text.rfind("\n", 0, place) + 1 : place]
    said = f"{error.problem} {context}{'' if line.strip(' -') else ' line start'}"
    for words, code, message, help in _SYNTAX:
        if re.search(words, said):
            return code, message.replace("{at}", text[place : place + 1]), help, place
    return "MG001", f"not valid YAML: {error.problem} {context}", None, place


def _without_error(source: YamlText, text: str, error: Any) -> str:
    """``text`` without the entry that a syntax error stands in, which is said."""
    code, message, help, place = _explain(error, text)
    alias = re.compile(r"\*([\w-]+)").match(text, place)
    if not alias or not re.search(rf"&{alias[1]}\b", source.text):
        source.lacks(code, message, place, place + 1, help=help)
    if code == "MG005":
        return text[:place] + "   " + text[place + 3 :]
    borders = _borders(text)
    begin = max(at for at in borders if at <= place)
    end = min((at for at in borders if at > place), default=len(text))
    return text[:begin] + _blank(text[begin:end]) + text[end:]
