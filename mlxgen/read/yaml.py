"""The YAML file as entries whose every piece knows its place.

``Document.load`` composes the file once with libyaml, which is nearly all that it costs: an entry
is read when somebody asks for its ``data``, plain values for pydantic. Then, too, is checked what
YAML lets pass (keys given twice, ``no`` read as false, a forgotten value). The node graph stays, so
that ``Entry.span`` finds the place of any key or value, and ``Entry.text_span`` that of a few
characters inside a formula, through quotes, escapes and block scalars.

Characteristics of this layer:

- Below every key of an entry but ``TYPED_KEYS`` scalars are text, as written: ``x: 0`` is the
  formula ``"0"``, never the number. Below those keys numbers are read as everybody expects
  (``1e-5`` is one, which YAML 1.1 denies).
- A syntax error costs the entry it stands in, not the file: that entry is blanked out, and the rest
  is read again.
"""

from __future__ import annotations

import gc
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.tokens import (
    FlowMappingEndToken,
    FlowMappingStartToken,
    FlowSequenceEndToken,
    FlowSequenceStartToken,
    ScalarToken,
)

from ..diagnostics import LINE_BREAK, Diagnostics, Span
from .places import extent, in_flow, places

KeyPath = tuple[str | int, ...]

TYPED_KEYS = frozenset({"deprecated", "samples"})
"""Entry keys whose scalars are read as numbers and booleans; below all others they are text."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_STR, _NULL, _BOOL, _MERGE = (_TAG + name for name in ("str", "null", "bool", "merge"))
_STANDARD_TAGS = frozenset(
    _TAG + name
    for name in ("str", "null", "bool", "int", "float", "timestamp", "value", "merge", "seq", "map")
)
_NUMBER = re.compile(r"[-+]?((0|[1-9]\d{0,300})(\.\d*)?|\.\d+)([eE][-+]?\d+)?|0x[0-9a-fA-F]{1,16}")
_NAME_IN_TEXT = re.compile(
    r"\bname: *[\"']?(?P<name>\w+)|signature: *[\"']?[^\n(]*?(?P<signature>\w+)\("
)
_SIGNATURE_NAME = re.compile(r"(\w+)\s*\(")
_ALIAS = re.compile(r"\*(?<=[\s\[{,:]\*)[^\s*]")  # or a product; what a text does not say itself
_NOT_FINITE = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}

# YAML's printable characters, without the line breaks that editors do not count as such.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_MAX_DEPTH = 60
# libyaml's composer recurses in C without a limit: such a text would end the interpreter.
_TOO_DEEP = (
    re.compile(rf"^ *(?:[-?] +){{{_MAX_DEPTH}}}", re.MULTILINE),
    re.compile(rf"[\[{{](?:[^\[\]{{}}]*[\[{{]){{{_MAX_DEPTH}}}"),
)
_MAX_SYNTAX_ERRORS = 20
_ENTRY_START = re.compile(r"^-(?=\s)", re.MULTILINE)


class Document:
    """A file of entries.

    ``entries`` are those that could be read, in order; ``complete``: that is all of them.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.root: Node | None = None
        self.entries: list[Entry] = []
        self.complete = True

    @classmethod
    def load(cls, path: str | Path, diags: Diagnostics) -> Document | None:
        """Read a file; what is wrong goes to ``diags``. None if nothing in it can be used."""
        file = str(path)
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            message = f"cannot read the file: {error.strerror or error}"
            diags.error("MG007", message, Span(file, 1, 1, 1, 1))
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text = raw.decode("utf-8", errors="replace")
            diags.add_source(file, text)
            start = len(raw[: error.start].decode())
            span = cls(file, text).at(start, start + 1)
            diags.error("MG007", "the file is not encoded in UTF-8", span)
            return None
        return cls.parse(text, file, diags)

    @classmethod
    def parse(cls, text: str, path: str, diags: Diagnostics) -> Document | None:
        """The same for a text; ``path`` is what messages call it."""
        text = text.removeprefix("\ufeff")
        document = cls(path, text)
        diags.add_source(path, text)
        with no_garbage_collection():
            document.root = _compose(document, diags)
            if document.root:
                reader = _Reader(document, diags)
                entries = map(reader.entry, document.root.value)
                document.entries = [entry for entry in entries if entry]
        return document if document.entries or document.complete else None

    def names(self) -> Iterator[str]:
        """Names of all entries, of those too that could not be read."""
        starts = [match.start() for match in _ENTRY_START.finditer(self.text)]
        for start, end in zip(starts, [*starts[1:], len(self.text)], strict=True):
            found = _NAME_IN_TEXT.search(self.text, start, end)
            if found:
                yield found["name"] or found["signature"]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file, without their ends."""
        return LINE_BREAK.split(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in LINE_BREAK.finditer(self.text))]

    def at(self, start: int, end: int) -> Span:
        """The span of a slice of ``text``."""
        starts = self._line_starts
        line, end_line = bisect_right(starts, start), bisect_right(starts, end)
        column, end_column = start - starts[line - 1] + 1, end - starts[end_line - 1] + 1
        return Span(self.path, line, column, end_line, end_column)


class Entry:
    """One operator's mapping, and the place of everything in it."""

    def __init__(self, document: Document, node: Node, reader: _Reader) -> None:
        self.document = document
        self.node = node
        self._reader = reader

    @cached_property
    def _read(self) -> tuple[dict[str, Any], bool]:
        return self._reader.read(self)

    @property
    def data(self) -> dict[str, Any]:
        """Its keys and values; what is wrong in them is reported when they are asked for."""
        return self._read[0]

    @property
    def clean(self) -> bool:
        """Whether its text had no error; ``data`` may else lack something."""
        return self._read[1]

    @cached_property
    def name(self) -> str | None:
        """What messages call it, even if it is broken: its name, or its signature's."""
        return name_of({key: value.value for key, value in self._values.items()})

    @cached_property
    def _values(self) -> dict[str, Node]:
        pairs = reversed([*_pairs(self.node)])  # what a merge brings does not hide its own
        return {key.value: value for key, value in pairs if key.tag == _STR}

    def words(self, key: str) -> list[str]:
        """The text at a key, or the texts in a list there; nothing else is read of the entry."""
        node = self._values.get(key)
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        return [n.value for n in nodes if isinstance(n, ScalarNode) and n.tag != _NULL]

    @cached_property
    def text(self) -> str:
        """The text that it is written as, up to the next one's."""
        return self.document.text[self.node.start_mark.index : self.node.end_mark.index]

    @cached_property
    def key(self) -> str:
        """A text that entries have in common only if they say the same."""
        # The column is what block scalars may count their indentation from.
        text = f"{self.node.start_mark.column} {self.text}"
        return f"{text}\n{self.data}" if _ALIAS.search(text) else text

    def span(self, path: KeyPath = (), key: bool = False) -> Span:
        """The span of the value (or, with ``key``, of the key) at ``path``.

        Where nothing is at ``path``: the key of the nearest ancestor, or the first line of the
        entry or item.
        """
        text = self.document.text
        key_node, node, found = self._find(path)
        if found and not (key and key_node):
            return self.document.at(*extent(text, node))
        start, end = extent(text, key_node or node)
        line_end = LINE_BREAK.search(text, start, end)
        return self.document.at(start, line_end.start() if line_end else end)

    def text_span(self, path: KeyPath, start: int, end: int) -> Span:
        """The span of the characters ``start`` to ``end`` of the text that ``path`` leads to."""
        _, node, found = self._find(path)
        if not (found and isinstance(node, ScalarNode)):
            return self.span(path)
        found_at = places(self.document.text, node)
        if not 0 <= start <= end < len(found_at):
            return self.span(path)
        first = found_at[start][0]
        return self.document.at(first, found_at[end - 1][1] if end > start else first)

    def _find(self, path: KeyPath) -> tuple[Node | None, Node, bool]:
        """Key and value at ``path`` or of the nearest ancestor, and whether it is ``path``'s.

        A short form stands for what is below it: ``cpu: f`` for ``cpu: {kernel: f}``, and one item
        for a list of one.
        """
        key_node, node = None, self.node
        for step in path:
            if isinstance(node, ScalarNode):
                break
            if isinstance(node, MappingNode) and isinstance(step, str):
                pair = next((pair for pair in _pairs(node) if pair[0].value == step), None)
                if pair is None:
                    return key_node, node, False
                key_node, node = pair
            elif isinstance(node, SequenceNode):
                if step not in range(len(node.value)):
                    return key_node, node, False
                key_node, node = None, node.value[step]
        return key_node, node, True


# -------------------------------------------------------------------------------------------------
# Text to nodes
# -------------------------------------------------------------------------------------------------


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For work that makes objects and no garbage: looking for some takes most of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compose(document: Document, diags: Diagnostics) -> SequenceNode | None:
    """The list of entries, without those that have a syntax error. None: empty or unusable."""
    text = document.text
    for match in _UNPRINTABLE.finditer(text):
        message = f"the character U+{ord(match[0]):04X} cannot stand in YAML"
        diags.error("MG001", message, document.at(*match.span()))
        document.complete = False
        text = f"{text[: match.start()]} {text[match.end() :]}"
    for pattern in _TOO_DEEP:
        if deep := pattern.search(text):
            message = f"nested more than {_MAX_DEPTH} levels deep"
            diags.error("MG008", message, document.at(deep.start(), deep.start() + 1))
            document.complete = False
            return None
    root: Node | None = None
    for _ in range(_MAX_SYNTAX_ERRORS):
        try:
            root = yaml.compose(text, Loader=_LOADER)
            break
        except yaml.MarkedYAMLError as error:
            document.complete = False
            code, message, help, (start, end) = _explain(error, text)
            diags.error(code, message, document.at(start, end), help=help)
            text = _without_error(text, error, start)
    if root is None or root.tag == _NULL or isinstance(root, SequenceNode):
        return root if isinstance(root, SequenceNode) else None
    document.complete = False
    what = "a mapping" if isinstance(root, MappingNode) else "a single value"
    start, _ = extent(text, root)
    line_end = LINE_BREAK.search(text, start)
    span = document.at(start, line_end.start() if line_end else len(text))
    help = "begin each operator with '- name: ...' at the left margin"
    diags.error("MG004", f"the file must be a list of entries, and is {what}", span, help=help)
    return None


def _explain(error: Any, text: str) -> tuple[str, str, str | None, tuple[int, int]]:
    """Code, message, help and place of a syntax error, in words for someone who writes entries."""
    help: str | None = None
    problem, context = error.problem or "", error.context or ""
    mark = error.problem_mark or error.context_mark
    place = min(mark.index, len(text))
    char = text[place : place + 1]
    if "another document" in problem:
        message = "a second YAML document begins here, and a file holds one list of entries"
        return "MG005", message, "remove the line", (place, place + 3)
    if char == "\t" and ("tab" in problem or "cannot start" in problem):
        tabs = len(text[place:]) - len(text[place:].lstrip("\t"))
        message = "a tab in the indentation, where YAML allows spaces only"
        return "MG002", message, None, (place, place + tabs)
    if "mapping values are not allowed" in problem:
        help = 'put the whole value in quotes: "f(x: array) -> array"'
        return "MG013", "a value with ': ' in it must stand in quotes", help, (place, place + 1)
    if "undefined alias" in problem or "cannot start any token" in problem:
        message = f"a value that begins with '{char}' must stand in quotes"
        help = "'*name' refers to an anchor '&name', and there is none" if char == "*" else None
        return "MG013", message, help, (place, place + 1)
    if "unexpected end of stream" in problem and "quoted" in context:
        place = error.context_mark.index
        return "MG001", "this quote is never closed", None, (place, place + 1)
    if "escape" in problem:
        help = "in single quotes a backslash is a backslash; in double quotes write it twice"
        return "MG001", "this is no escape of YAML's double quotes", help, (place, place + 2)
    if opening := _left_open(text, place):
        message = f"this {text[opening]} is not closed before line {mark.line + 1}"
        return "MG001", message, None, (opening, opening + 1)
    if "flow" in context:
        help = "between { } and [ ] put a value that has brackets or commas in quotes"
    elif "expected" in problem:
        help = "check the indentation of this line, and what stands before it"
    what = f"{problem} {context}" if context else problem
    return "MG001", f"not valid YAML: {what}", help, (place, place + 1)


def _left_open(text: str, place: int) -> int | None:
    """The quote or bracket, in a line before ``place``, that is closed only there or not at all."""
    brackets: list[Any] = []
    quote: Any = None
    try:
        for token in yaml.scan(text, Loader=_LOADER):
            if token.start_mark.index >= place:
                break
            if isinstance(token, FlowSequenceStartToken | FlowMappingStartToken):
                brackets.append(token)
            elif isinstance(token, FlowSequenceEndToken | FlowMappingEndToken):
                brackets.pop()
            elif isinstance(token, ScalarToken) and token.style in ("'", '"'):
                quote = token
    except yaml.YAMLError:
        pass
    if quote and LINE_BREAK.search(text, quote.end_mark.index, place):
        quote = None  # it was closed in a line before
    for token in (quote, *brackets[-1:]):
        if token and LINE_BREAK.search(text, token.start_mark.index, place):
            return int(token.start_mark.index)
    return None


def _without_error(text: str, error: Any, start: int) -> str:
    """``text`` with the entries blanked out that a syntax error, reported at ``start``, touches."""
    if "another document" in error.problem:
        return text[:start] + "   " + text[start + 3 :]
    context = error.context_mark
    # A context in column 0 is the list of all entries; one further in is the entry that went wrong.
    first = min(start, context.index) if context and context.column else start
    starts = [match.start() for match in _ENTRY_START.finditer(text)]
    before, after = bisect_right(starts, first) - 1, bisect_right(starts, start)
    begin = starts[before] if before >= 0 else 0
    end = starts[after] if after < len(starts) else len(text)
    return text[:begin] + re.sub(r"[^\r\n]", " ", text[begin:end]) + text[end:]


# -------------------------------------------------------------------------------------------------
# Nodes to data
# -------------------------------------------------------------------------------------------------


class _Reader:
    """Turns entries' nodes into plain data, and reports on the way what YAML let pass."""

    def __init__(self, document: Document, diags: Diagnostics) -> None:
        self.document = document
        self.diags = diags
        self.entry_read: Entry | None = None  # the entry that is read,
        self.key = ""  # its key that is read,
        self.clean = True  # and whether it has had no error so far
        self.open: set[Node] = set()  # the containers around the node that is read
        self.aliased: dict[tuple[Node, bool], Any] = {}  # what containers were read to

    def entry(self, node: Node) -> Entry | None:
        """The entry that a node is; None, and an error, if it cannot be one."""
        if isinstance(node, MappingNode):
            return Entry(self.document, node, self)
        what = "a list" if isinstance(node, SequenceNode) else f"the value {node.value!r}"
        help = "an entry is '- name: ...' with its other keys below 'name', indented alike"
        self.error("MG006", f"an entry must be a mapping, and this is {what}", node, help)
        self.document.complete = False
        return None

    def read(self, entry: Entry) -> tuple[dict[str, Any], bool]:
        """An entry's data, and whether there was no error in it."""
        self.entry_read, self.key, self.clean = entry, "", True
        return self.mapping(entry.node, typed=False, top=True), self.clean

    def value(self, node: Node, typed: bool) -> Any:
        """Plain data of any node; None is YAML's null."""
        if isinstance(node, ScalarNode):
            if node.tag == _STR and not typed:
                return node.value
            return self.scalar(node, typed)
        if (node, typed) not in self.aliased:
            if not self.enter(node):
                return ""
            read = self.mapping if isinstance(node, MappingNode) else self.sequence
            self.aliased[node, typed] = read(node, typed)
            self.open.remove(node)
        return self.aliased[node, typed]

    def enter(self, node: Node) -> bool:
        """Note that the walk is inside ``node``; false if that has no end."""
        if node in self.open:
            self.error("MG008", "an alias stands inside its own anchor", node)
        elif len(self.open) >= _MAX_DEPTH:
            self.error("MG008", f"nested more than {_MAX_DEPTH} levels deep", node)
        else:
            self.open.add(node)
            return True
        return False

    def sequence(self, node: Node, typed: bool) -> list[Any]:
        self.check_tag(node)
        data = [self.value(item, typed) for item in node.value]
        if not typed and None in data:
            self.no_value(node.value[data.index(None)], "this item")
        return data

    def mapping(self, node: Node, typed: bool, top: bool = False) -> dict[str, Any]:
        data: dict[str, Any] = {}
        self.check_tag(node)
        merged = _merged(node)  # what `<<: *source` adds
        for source in merged:
            if not isinstance(source, MappingNode):
                self.error("MG014", "'<<' takes in mappings, and this is none", source)
            elif source is node or source in self.open:
                self.error("MG008", "an alias stands inside its own anchor", source)
        for key_node, value_node in _pairs(node) if merged else node.value:
            key = key_node.value if key_node.tag == _STR else self.odd_key(key_node)
            if key in data:
                own = [other for other, _ in node.value if other.value == key]
                if key_node in own:
                    line = self.document.at(*extent(self.document.text, own[0])).line
                    message = f"the key '{key}' is given twice (first in line {line})"
                    self.error("MG003", message, key_node)
                continue
            if top:
                self.key = key
                typed = key in TYPED_KEYS
            value = self.value(value_node, typed)
            if value is None and (top or not typed):
                self.no_value(value_node, f"'{key}'", in_braces=in_flow(node))
            data[key] = value
        return data

    def scalar(self, node: ScalarNode, typed: bool) -> Any:
        tag, text = node.tag, node.value
        if tag == _NULL:
            return None
        self.check_tag(node)
        if node.style:  # quoted, or a block: text, whatever it looks like
            return text
        if tag == _BOOL:
            if typed:
                return text.lower() in ("true", "yes", "on")
            if text.lower() not in ("true", "false"):
                self.boolean(node, f"YAML reads {text} as a boolean, and a text is wanted here")
        elif typed and _NUMBER.fullmatch(text):
            is_int = text.startswith("0x") or text.lstrip("+-").isdigit()
            return int(text, 0) if is_int else float(text)
        elif typed and text.lower() in _NOT_FINITE:
            return float(_NOT_FINITE[text.lower()])
        return text

    def odd_key(self, node: Node) -> str:
        """A key that YAML does not read as text: reported, and given as text all the same."""
        if node.tag == _BOOL:
            self.boolean(node, f"YAML reads the key {node.value} as a boolean")
        else:
            self.error("MG011", "a key must be a text", node, "put it in quotes")
        start, end = extent(self.document.text, node)
        return node.value if isinstance(node, ScalarNode) else self.document.text[start:end]

    def boolean(self, node: Node, message: str) -> None:
        self.error("MG010", message, node, f'put it in quotes: "{node.value}"')

    def no_value(self, node: Node, what: str, in_braces: bool = False) -> None:
        help = "give it a value, or leave it out"
        if in_braces and not node.value:
            help = "between { and } a comma ends the value: put a value that has commas in quotes"
        elif self.key == "grad":
            help = "write 'none' where there is no gradient, 'zero' where it is zero"
        self.error("MG012", f"{what} has no value", node, help)

    def check_tag(self, node: Node) -> None:
        if node.tag not in _STANDARD_TAGS:
            tag = node.tag.replace(_TAG, "!!")
            self.error("MG009", f"the tag '{tag}' has no meaning here", node, "remove the tag")

    def error(self, code: str, message: str, node: Node, help: str | None = None) -> None:
        self.clean = False
        span = self.document.at(*extent(self.document.text, node))
        op = self.entry_read.name if self.entry_read else None
        self.diags.error(code, message, span, help=help, op=op)


def name_of(data: Mapping[Any, Any]) -> str | None:
    """What messages call an entry that may be broken: its name, or its signature's."""
    given = data.get("name")
    if isinstance(given, str) and given:
        return given
    for key in ("python_signature", "signature", "cpp_signature"):
        text = data.get(key)
        found = _SIGNATURE_NAME.search(text) if isinstance(text, str) else None
        if found and found[1] not in ("array", "enum", "def"):
            return found[1]
    return None


def _merged(node: Node) -> list[Node]:
    """What a mapping takes in by ``<<``, the first having precedence."""
    given = [value for key, value in node.value if key.tag == _MERGE]
    return [s for v in given for s in (v.value if isinstance(v, SequenceNode) else [v])]


def _pairs(node: Node, seen: frozenset[Node] = frozenset()) -> Iterator[tuple[Node, Node]]:
    """Keys and values of a mapping, its own before those it merges."""
    yield from ((key, value) for key, value in node.value if key.tag != _MERGE)
    seen |= {node}
    for source in _merged(node):
        if isinstance(source, MappingNode) and source not in seen:
            yield from _pairs(source, seen)
