"""Composes a YAML file into the nodes of its entries, and reports syntax errors.

Files whose size or depth could exhaust libyaml are rejected. syntax.yaml names our messages for
libyaml's syntax errors. A syntax error invalidates only its entry: the entry is masked, and the
rest of the file is parsed again.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..diagnostics import LINE_BREAK, Diagnostics, Span, Text
from ..diagnostics.messages import table
from . import MESSAGES
from .places import extent

# YAML's printable characters, without the line breaks that editors do not count as such.
UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]+"
)
MAX_VALUES = 150_000  # in a file, including keys
MAX_DEPTH = 60
_MAX_SYNTAX_ERRORS = 20
_ENTRY_START = re.compile(r"^-(?=\s)", re.MULTILINE)

_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_IMPLICIT = yaml.SafeLoader.yaml_implicit_resolvers


class YamlText(Text):
    """The text of a YAML file; ``complete`` if all of its entries are valid."""

    def __init__(self, path: str, text: str, diags: Diagnostics) -> None:
        super().__init__(path, text)
        self.diags = diags
        self.complete = True

    def lacks(
        self, wrong: str, start: int, end: int, *keys: str, op: str | None = None, **about: object
    ) -> None:
        """Report an error that invalidates an entry, or all of them."""
        self.complete = False
        about |= {"levels": MAX_DEPTH, "values": MAX_VALUES}
        self.diags.error(MESSAGES(wrong, *keys, **about), self.at(start, end), op=op)

    def first_line(self, start: int, end: int) -> Span:
        """Return the location of the first line of a slice."""
        line_end = LINE_BREAK.search(self.text, start, end)
        return self.at(start, line_end.start() if line_end else end)


class Limit(Exception):
    """Raised if the text exceeds a limit, with the name of the message, start and end."""


class _Limits:
    """Limits of a loader, which creates all nodes before it returns, and recurses in C."""

    depth = count = 0

    def descend_resolver(self, parent: Node | None, _: object) -> None:
        """Count a node at its beginning."""
        self.depth += 1
        self.count += 1
        if parent and (self.depth > MAX_DEPTH + 1 or self.count > MAX_VALUES):
            start = parent.start_mark.index
            wrong = "many_values" if self.count > MAX_VALUES else "deep_value"
            raise Limit(wrong, start, start + 1)

    def ascend_resolver(self) -> None:
        """Count the end of a node."""
        self.depth -= 1

    def resolve(self, kind: type[Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Return the same tag as PyYAML, in half of the time."""
        if kind is not ScalarNode:
            return _MAP if kind is MappingNode else _SEQ
        if implicit[0]:
            for tag, pattern in _IMPLICIT.get(value[:1], ()):
                if pattern.match(value):
                    return str(tag)
        return _STR


Loader: Any = type("Loader", (_Limits, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})

_SYNTAX = Path(__file__).with_name("syntax.yaml")


def compose(source: YamlText) -> tuple[str, list[Node]]:
    """Return the text with invalid entries masked, and the nodes of the valid entries."""
    text = source.text
    for match in UNPRINTABLE.finditer(text):
        source.lacks("bad_character", *match.span(), number=ord(match[0][0]))
    text = UNPRINTABLE.sub(lambda found: " " * len(found[0]), text)
    root: Node | None = None
    for attempt in range(_MAX_SYNTAX_ERRORS):
        try:
            root = yaml.compose(text, Loader=Loader)
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
    source.diags.error(MESSAGES("file_not_list", what=what), span)
    return text, []


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _borders(text: str) -> list[int]:
    """Return the offsets of the text's beginning and end, and of each entry."""
    return sorted({0, len(text)}.union(m.start() for m in _ENTRY_START.finditer(text)))


def _without_broken(source: YamlText, text: str) -> str:
    """Mask the entries that cannot be parsed by themselves, and report their errors."""
    pieces = []
    for begin, end in pairwise(_borders(text)):
        piece = text[begin:end]
        broken = UNPRINTABLE.search(source.text, begin, end) is not None  # reported above
        try:
            root = None if broken else yaml.compose(piece, Loader=Loader)
            if root and end < len(text) and not _ENTRY_START.match(piece):
                source.lacks("text_before_list", *extent(text, root))
                broken = True
        except Limit:
            pass  # composing the whole text reports it
        except yaml.MarkedYAMLError as error:
            broken = not re.search("undefined alias|duplicate|document", error.problem or "")
            if broken:
                wrong, place, about = explain(error, piece)
                source.lacks(wrong, begin + place, begin + place + 1, **about)
        pieces.append(_blank(piece) if broken else piece)
    return "".join(pieces)


def explain(error: Any, text: str) -> tuple[str, int, dict[str, Any]]:
    """Return the message for a syntax error: its name, its offset and its parameters."""
    mark, context = error.problem_mark or error.context_mark, error.context or ""
    place = min(mark.index, len(text.rstrip()))
    if text.startswith("\t", place) or "a tab" in error.problem:
        return "tab", place, {}
    if "while scanning" in context and error.context_mark:
        place = error.context_mark.index
    elif "flow" in context and error.context_mark.line < mark.line:
        place = error.context_mark.index
        return "bracket_left_open", place, {"bracket": text[place]}
    line = text[text.rfind("\n", 0, place) + 1 : place]
    problem = f"{error.problem} {context}"
    said = f"{problem}{'' if line.strip(' -') else ' line start'}"
    found = (name for pattern, name in table(_SYNTAX).items() if re.search(pattern, said))
    return next(found, "not_YAML"), place, {"at": text[place : place + 1], "problem": problem}


def _without_error(source: YamlText, text: str, error: Any) -> str:
    """Report a syntax error and mask its entry."""
    wrong, place, about = explain(error, text)
    masked = False
    if alias := re.compile(r"\*([\w-]+)").match(text, place):
        anchor = re.compile(rf"(?:^|[-:?,\[{{])\s*&{alias[1]}(?![\w-])", re.MULTILINE)
        # The anchor may be in an entry with an error, which is reported and masked.
        masked = anchor.search(source.text) is not None and anchor.search(text) is None
        if anchor.search(text, place):
            wrong, about = "alias_before_anchor", {"name": alias[1]}
    if not masked:
        source.lacks(wrong, place, place + 1, **about)
    if wrong == "second_document":
        return text[:place] + "   " + text[place + 3 :]
    borders = _borders(text)
    begin = max(at for at in borders if at <= place)
    end = min((at for at in borders if at > place), default=len(text))
    return text[:begin] + _blank(text[begin:end]) + text[end:]
