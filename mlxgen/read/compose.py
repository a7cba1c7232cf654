"""From the text of a YAML file to the nodes of its entries, with every mistake explained.

A text that libyaml would read without end is refused. A syntax error costs the entry it stands in,
not the file: that entry is blanked out, and the rest is read again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
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
_CLOSELY = 500  # entries in which slips are looked for
_MARKS = re.compile(
    r"^(?:(?P<begins><{7})|(?P<between>={7}|\|{7})|(?P<ends>>{7})|(?P<fence>```|~~~))(?![<=>|]).*",
    re.MULTILINE,
)
_ENTRY_START = re.compile(r"^-(?=\s)", re.MULTILINE)

_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_IMPLICIT = yaml.SafeLoader.yaml_implicit_resolvers


class Source(Text):
    """A text that is read; ``complete``: all of its entries can be."""

    def __init__(self, path: str, text: str, diags: Diagnostics) -> None:
        super().__init__(path, text)
        self.diags = diags
        self.complete = True
        self.closely = 0  # how many entries were looked at for slips

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


def compose(source: Source) -> tuple[str, list[Node]]:
    """A text without what has a syntax error, and the nodes of its entries, if it can be used."""
    text = source.text
    for match in _UNPRINTABLE.finditer(text):
        message = f"the character U+{ord(match[0][0]):04X} cannot stand in YAML"
        source.lacks("MG001", message, *match.span())
    text = _UNPRINTABLE.sub(lambda found: " " * len(found[0]), text)
    text = _without_marks(source, text)
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
            if better == text:
                code, message, help, place = _explain(error, text)
                alias = re.compile(r"\*([\w-]+)").match(text, place[0])
                if not alias or not re.search(rf"&{alias[1]}\b", source.text):
                    source.lacks(code, message, *place, help=help)
                better = _without_error(text, error, place[0])
            text = better
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


def _without_marks(source: Source, text: str) -> str:
    """``text`` without what Git and Markdown put around it; of a conflict, one side is left."""
    last: re.Match[str] | None = None
    pieces, kept = [], 0
    marked = any(mark in text for mark in ("<" * 7, "=" * 7, ">" * 7, "```", "~~~"))
    for mark in _MARKS.finditer(text) if marked else ():
        if mark["begins"] or not last:
            message, help = "a line of Markdown", "remove it"
            if not mark["fence"]:
                message = "a merge that is not finished"
                help = "keep one of both sides, and remove the lines that mark them"
            source.lacks("MG016", message, *mark.span(), help=help)
        begin = last.end() if mark["ends"] and last and last["between"] else mark.start()
        pieces += [text[kept:begin], _blank(text[begin : mark.end()])]
        kept, last = mark.end(), mark
    return "".join(pieces) + text[kept:]


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _borders(text: str) -> list[int]:
    """Where entries begin, after the beginning of the text, and where it ends."""
    return sorted({0, len(text)}.union(m.start() for m in _ENTRY_START.finditer(text)))


def _without_broken(source: Source, text: str) -> str:
    """``text`` with those entries blanked out that cannot be read by themselves; says why."""
    borders = _borders(text)
    entries = _ENTRY_START.search(text) is not None
    pieces = []
    for begin, end in pairwise(borders):
        piece = text[begin:end]
        reach, error = _readable(piece)
        broken = reach < inf and _UNPRINTABLE.search(source.text, begin, end) is not None
        if reach < inf and not broken and (entries or error):
            broken = slip(source, text, begin, end)
        if reach < 0 and entries and not broken and not _ENTRY_START.match(piece):
            message = "this stands before the first entry, and is no comment"
            found = re.compile(r"\s*(\S.*)").match(text)
            source.lacks("MG016", message, *(found.span(1) if found else (0, 0)))
            broken = True
        if error and not broken:
            line = source.at(begin, begin).line - 1
            code, message, help, place = _explain(error, piece, line)
            source.lacks(code, message, begin + place[0], begin + place[1], help=help)
            broken = True
        pieces.append(_blank(piece) if broken else piece)
    return "".join(pieces)


def _readable(text: str) -> tuple[float, Any]:
    """How many lines of the text of an entry can be read, infinity for all, and the error there."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except Limit:
        return inf, None
    except yaml.MarkedYAMLError as error:
        if re.search("undefined alias|duplicate|document", error.problem or ""):
            return inf, None  # what follows from other entries
        mark = error.problem_mark or error.context_mark
        return mark.line if mark else 0, error
    fine = isinstance(root, SequenceNode) and all(map(is_entry, root.value))
    return inf if root is None or fine else -1, None


def is_entry(node: Node, twice: int = 0) -> bool:
    """Whether a node has keys, all of them words, and at most so many twice."""
    if not isinstance(node, MappingNode) or any(type(k) is not ScalarNode for k, _ in node.value):
        return False
    keys = [key.value for key, _ in node.value]
    if all(isinstance(value, MappingNode) for _, value in node.value) and "<<" not in keys:
        return False
    words = "".join(keys).replace("<<", "").isidentifier()
    return words and len(keys) - len(set(keys)) <= twice


def slip(source: Source, text: str, begin: int, end: int) -> bool:
    """Report what is almost YAML in an entry that is none; whether there is something."""
    from .slips import find_slip

    source.closely += 1
    if source.closely > _CLOSELY:
        return False
    found = find_slip(text[begin:end].replace("\r\n", " \n"), lambda entry: _readable(entry)[0])
    if found:
        message, help, start, stop = found
        source.lacks("MG016", message, begin + start, begin + stop, help=help)
    return found is not None


@cache
def _rules() -> list[list[tuple[str, ...]]]:
    """What syntax.txt says, in two parts: code, message, libyaml's words, place and help."""
    text = (Path(__file__).parent / "syntax.txt").read_text(encoding="utf-8")
    rule = re.compile(r"^(MG\d{3}) (.*)\n  (.*)\n  (.*)\n(?:  (.*)\n)?", re.MULTILINE)
    return [rule.findall(part) for part in text.split("# Where")]


def _explain(
    error: Any, text: str, before: int = 0
) -> tuple[str, str, str | None, tuple[int, int]]:
    """Code, message, help and place of a syntax error, in words for someone who writes entries.

    ``before`` the text there are so many lines.
    """
    said = " ".join(filter(None, (error.problem, error.context)))
    mark = error.problem_mark or error.context_mark
    if re.search("end of stream while.*quoted|expected ':'", said):
        mark = error.context_mark
    place = min(mark.index, len(text))
    line = text.rfind("\n", 0, place) + 1
    for rules in _rules():
        for code, message, pattern, at, help in rules:
            in_line = at[0] == "^"
            found = (
                re.compile(at + r"\Z").match(text[line:place])
                if in_line
                else re.compile(at, re.DOTALL).match(text, place)
            )
            if found and re.search(pattern, said):
                start, end = place, place + 1
                if not in_line:
                    start, end = found.span()
                elif "at" in found.groupdict():
                    start, end = (line + index for index in found.span("at"))
                return code, message.replace("{at}", text[start:end]), help or None, (start, end)
        opening = _left_open(text, line, place)
        if opening is not None:
            message = f"this '{text[opening]}' is not closed"
            if mark.line < text.count("\n"):
                message += f" before line {before + mark.line + 1}"
            return "MG001", message, None, (opening, opening + 1)
    return "MG001", f"not valid YAML: {said}", None, (place, place + 1)


def _left_open(text: str, line: int, place: int) -> int | None:
    """The quote or bracket before a line that is closed only between its start and ``place``, or
    not at all."""
    opened: list[int] = []
    tokens: Any = yaml.scan(text, Loader=_Loader)
    with suppress(yaml.YAMLError):  # it is what is being explained
        for token in tokens:
            start, end = token.start_mark.index, token.end_mark.index
            if start >= place:
                break
            if token.id in ("[", "{"):
                opened.append(start)
            elif token.id in ("]", "}"):
                opened.pop()
            elif start < line <= end and getattr(token, "style", None) in ("'", '"'):
                return int(start)
    return opened[-1] if opened and opened[-1] < line else None


def _without_error(text: str, error: Any, start: int) -> str:
    """``text`` with the entries blanked out that a syntax error, reported at ``start``, touches."""
    if "another document" in error.problem:
        return text[:start] + "   " + text[start + 3 :]
    context = error.context_mark
    # A context in column 0 is the list of all entries; one further in is the entry that went wrong.
    first = min(start, context.index) if context and context.column else start
    borders = _borders(text)
    begin = max(at for at in borders if at <= first)
    end = min((at for at in borders if at > start), default=len(text))
    return text[:begin] + _blank(text[begin:end]) + text[end:]
