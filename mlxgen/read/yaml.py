"""Parses YAML files to entries with the source location of every key and value.

``Document`` composes a file once with libyaml, which takes nearly all of the time. An entry
is converted to plain values when its ``data`` is first accessed. The conversion also reports
mistakes that YAML accepts: duplicate keys, ``no`` as false, missing values. The node graph is kept:
``Entry.span`` returns the location of a key or value, and ``Entry.text_span`` the location of a
slice inside a formula, despite quotes, escapes and block scalars.

Scalars are strings, except below ``TYPED_KEYS``: ``x: 0`` is the formula ``"0"``, never the number.
Below ``TYPED_KEYS``, numbers include ``1e-5``, which is a string in YAML 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..diagnostics import Advice, Diagnostics, Rendered, Span, Text, TooMany
from . import MESSAGES
from .compose import MAX_DEPTH, MAX_VALUES, Limit, YamlText, compose
from .names import overload
from .places import extent, in_flow, places
from .settings import MAX_BYTES

KeyPath = tuple[str | int, ...]

SIGNATURES = ("python_signature", "signature", "cpp_signature")
# Entry keys whose scalars are numbers and booleans; below all others they are strings.
TYPED_KEYS = frozenset({"deprecated", "samples"})

_WORD_KEYS = frozenset({"grad", "integers", "jvp", "vmap"})  # these accept `none`, not `no`

_TAG = "tag:yaml.org,2002:"
_STR, _NULL, _BOOL, _MERGE = (_TAG + name for name in ("str", "null", "bool", "merge"))
_STANDARD_TAGS = {
    _TAG + name
    for name in ("str", "null", "bool", "int", "float", "timestamp", "value", "merge", "seq", "map")
}
_NUMBER = re.compile(
    r"[-+]?((0|[1-9]\d{0,300})(\.\d*)?|\.\d+)(e[-+]?\d+)?|0x[0-9a-f]{1,16}|[-+]?\.inf|\.nan", re.I
)
# A signature may begin on the next line, also after ">-".
_NAME_IN_TEXT = re.compile(
    r"\bname: *[\"']?(\w+)|signature:\s*(?:[>|][-+\d]*\s)?[^\n(]{0,250}(?<![\w.])([\w.]+)\("
)
_SIGNATURE_NAME = re.compile(r"(?<![\w.])([\w.]+)\s*\(")
# A YAML alias; not a product, and not the "*" of a signature.
_ALIAS = re.compile(r"\*(?<=[\s\[{,:]\*)[^\s*,()\[\]{}]")
_SHARED = re.compile(rf"{_ALIAS.pattern}|<<")

_PLACED = 100_000  # the longest scalar whose characters are located


def read_text(path: str | Path, diags: Diagnostics) -> str | None:
    """Read a file; return None if it is unreadable, too large or not UTF-8, which is reported."""
    shown, start, what = Text(str(path), ""), 0, ""
    try:
        with open(path, "rb") as source:
            raw = source.read(MAX_BYTES + 1)
        if len(raw) <= MAX_BYTES:
            return raw.decode()
        wrong, what = "large_file", f"{MAX_BYTES // 10**6} MB"
    except OSError as error:
        wrong, what = "unreadable_file", error.strerror or str(error)
    except UnicodeDecodeError as error:
        shown.text = error.object.decode(errors="replace")
        wrong = "not_UTF-8"
        start = len(error.object[: error.start].decode())
    diags.add_source(shown.path, shown.text)
    diags.error(MESSAGES(wrong, what=what), shown.at(start, start + bool(shown.text)))
    return None


class Document(YamlText):
    """A file of entries. ``entries`` contains the valid ones, in order."""

    def __init__(self, path: str, text: str, diags: Diagnostics) -> None:
        super().__init__(path, text, diags)
        self.entries: list[Entry] = []
        self.read: dict[tuple[Node, bool], Any] = {}  # containers, which aliases share

    @classmethod
    def parse(cls, text: str, path: str, diags: Diagnostics) -> Document:
        """Parse a string; messages refer to it as ``path``."""
        text = text.removeprefix("\ufeff")
        document = cls(path, text, diags)
        diags.add_source(path, text)
        with suppress(TooMany):
            text, nodes = compose(document)
            for node in _expanded(document, nodes) if _SHARED.search(text) else nodes:
                if isinstance(node, MappingNode):
                    document.entries.append(Entry(document, node))
                    continue
                what = (
                    "a list" if isinstance(node, SequenceNode) else f"the value {node.value!r:.60}"
                )
                document.lacks("no_mapping", *extent(text, node), what=what)
        return document

    def names(self) -> set[str]:
        """Return all strings that look like the name of an entry, including invalid entries."""
        found = (match[1] or match[2] for match in _NAME_IN_TEXT.finditer(self.text))
        return {_names_of(name)[0] for name in found}


class Documents:
    """The files of entries of a project, in order."""

    def __init__(self, parts: Sequence[Document]) -> None:
        self.parts = parts
        self.entries = [entry for part in parts for entry in part.entries]
        self.complete = all(part.complete for part in parts)

    @classmethod
    def load(cls, paths: Sequence[str], diags: Diagnostics) -> Documents | None:
        """Read files and report errors to ``diags``; return None if one cannot be read."""
        texts = {path: text for path in paths if (text := read_text(path, diags)) is not None}
        return cls.parse(texts, diags) if len(texts) == len(paths) else None

    @classmethod
    def parse(cls, texts: Mapping[str, str], diags: Diagnostics) -> Documents | None:
        """Parse strings, by the path of their file; return None if one has no readable entry."""
        parts = [Document.parse(text, path, diags) for path, text in texts.items()]
        usable = all(part.entries or part.complete or part.names() for part in parts)
        return cls(parts) if usable else None

    def names(self) -> set[str]:
        """Return all strings that look like the name of an entry, including invalid entries."""
        return set[str]().union(*(part.names() for part in self.parts))


class Entry:
    """The mapping of one operator, with the location of every key and value."""

    def __init__(self, document: Document, node: Node) -> None:
        self.document = document
        self.node = node
        self.renamed: dict[KeyPath, str] = {}  # misspelled keys by the correct key

    @cached_property
    def data(self) -> dict[str, Any]:
        """The keys and values; the first access reports errors in them."""
        return _Reader(self).mapping(self.node, typed=False, top=True)

    @property
    def name(self) -> str | None:
        """The entry's name for messages, from its name or signature; also if it is invalid."""
        return self._names[0]

    @property
    def python_name(self) -> str | None:
        """The entry's name in Python, without its module; also if it is invalid."""
        return self._names[1]

    @cached_property
    def _names(self) -> tuple[str | None, str | None]:
        nodes = self._values.items()
        texts = {key: node.value for key, node in nodes if isinstance(node, ScalarNode)}
        found = (_SIGNATURE_NAME.search(texts.get(key, "")) for key in SIGNATURES)
        names = (match[1] for match in found if match)
        written = next((n for n in names if n not in ("array", "enum", "def")), None)
        name, in_python = _names_of(written) if written else (None, None)
        if own := texts.get("name"):
            in_python = own if in_python == name else in_python
            name = str(own)
        return name, texts.get("python_name") or in_python

    @cached_property
    def _values(self) -> dict[str, Node]:
        return {key.value: value for key, value in reversed(self.node.value) if key.tag == _STR}

    @property
    def keys(self) -> list[str]:
        """The keys, in order."""
        return [key.value for key, _ in self.node.value if key.tag == _STR]

    def words(self, key: str) -> list[str]:
        """Return the string at a key, or the strings in a list there, without reading ``data``."""
        node = self._values.get(key)
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        return [n.value for n in nodes if isinstance(n, ScalarNode) and n.tag != _NULL]

    @cached_property
    def text(self) -> str:
        """The source text of the entry."""
        return self.document.text[self.node.start_mark.index : self.node.end_mark.index]

    @cached_property
    def key(self) -> str:
        """A string that is equal for two entries only if their contents are equal."""
        # Block scalars may count their indentation from the column.
        text = f"{self.node.start_mark.column} {self.text}"
        return f"{text}\n{self.data}" if _ALIAS.search(text) else text

    @property
    def line(self) -> int:
        """The line of its beginning."""
        return int(self.node.start_mark.line) + 1

    @property
    def start(self) -> tuple[int, int]:
        """The line and column of its beginning."""
        return self.line, int(self.node.start_mark.column) + 1

    def span(self, path: KeyPath = (), key: bool = False) -> Span:
        """Return the location of the value (or, with ``key``, of the key) at ``path``.

        If nothing is at ``path``: of the key of the nearest ancestor, or of the first line of the
        entry or item.
        """
        text = self.document.text
        key_node, node, found = self._find(path)
        if found and not (key and key_node):
            return self.document.at(*extent(text, node))
        return self.document.first_line(*extent(text, key_node or node))

    def text_span(self, path: KeyPath, start: int, end: int, *, key: bool = False) -> Span:
        """Return the location of the characters ``start`` to ``end`` of the string at ``path``.

        With ``key``: of its key.
        """
        key_node, value, found = self._find(path)
        node = key_node if key else value
        if not (found and isinstance(node, ScalarNode)) or len(node.value) > _PLACED:
            return self.span(path, key)
        found_at = places(self.document.text, node)
        if not 0 <= start <= end < len(found_at):
            return self.span(path, key)
        first = found_at[start][0]
        return self.document.at(first, found_at[end - 1][1] if end > start else first)

    def quoted_in(self, path: KeyPath, said: Rendered, *, key: bool = False) -> Rendered:
        """Return a message whose fix has the quotes of the string at ``path`` escaped."""
        key_node, value, found = self._find(path)
        node, help = key_node if key else value, said.help
        if not (found and isinstance(help, Advice) and isinstance(node, ScalarNode)):
            return said
        return said._replace(help=help._replace(instead=_escaped(help.instead, node.style)))

    def _find(self, path: KeyPath) -> tuple[Node | None, Node, bool]:
        """Return key and value at ``path``, or at its nearest ancestor; and if ``path`` exists.

        A short form counts as the long one: ``cpu: f`` as ``cpu: {kernel: f}``, and an item as a
        list of one item.
        """
        key_node, node = None, self.node
        for i, step in enumerate(path):
            if isinstance(node, ScalarNode):
                break
            step = self.renamed.get(path[: i + 1], step)
            if isinstance(node, MappingNode) and isinstance(step, str):
                pair = next((pair for pair in node.value if pair[0].value == step), None)
                if pair is None:
                    return key_node, node, False
                key_node, node = pair
            elif isinstance(node, SequenceNode):
                if step not in range(len(node.value)):
                    return key_node, node, False
                key_node, node = None, node.value[step]
        return key_node, node, True


def _names_of(written: str) -> tuple[str, str]:
    """Return the names in C++ and Python that a signature contains."""
    last = written.rpartition(".")[2]
    return overload(written) or (last, last)


def _escaped(text: str, style: str | None) -> str:
    """Return a part of a string as YAML writes it in these quotes."""
    if style == "'":
        return text.replace("'", "''")
    return re.sub(r'(["\\])', r"\\\1", text) if style == '"' else text


def _expanded(document: Document, nodes: list[Node]) -> Iterator[Node]:
    """Merge keys into entries (``<<``), and drop entries whose aliases expand to too much."""
    sizes: dict[Node, tuple[int, int]] = {}  # number of values, depth
    merged = 0  # values

    def require(holds: bool, node: Node, wrong: str) -> None:
        if not holds:
            raise Limit(wrong, *extent(document.text, node))

    def size(node: Node) -> tuple[int, int]:
        nonlocal merged
        if isinstance(node, ScalarNode):
            return 1, 0
        if node not in sizes:
            sizes[node] = 0, 0  # detects an alias inside its own anchor
            for child in _children(node):
                size(child)
            if isinstance(node, MappingNode):
                before = len(node.value)
                for source in _merge(node):
                    is_mapping = isinstance(source, MappingNode)
                    require(is_mapping, source, "merged_value")
                merged += 2 * max(len(node.value) - before, 0)
                require(merged <= MAX_VALUES, node, "many_expanded")
            found = [(0, 0), *(size(child) for child in _children(node))]
            values, depth = 1 + sum(n for n, _ in found), 1 + max(deep for _, deep in found)
            sizes[node] = values, depth
            require(depth <= MAX_DEPTH, node, "deep_value")
            require(values <= MAX_VALUES, node, "many_expanded")
        require(sizes[node][0] > 0, node, "alias_in_anchor")
        return sizes[node]

    total = 0
    said = set[object]()
    for node in nodes:
        try:
            total += size(node)[0]
            require(total <= MAX_VALUES, node, "many_expanded")
            yield node
        except Limit as error:
            if error.args not in said:
                name = Entry(document, node).name if isinstance(node, MappingNode) else None
                document.lacks(*error.args, op=name)
            said.add(error.args)
            if total > MAX_VALUES:
                return


def _children(node: Node) -> list[Node]:
    pairs = isinstance(node, MappingNode)
    return [child for pair in node.value for child in pair] if pairs else node.value


def _merge(node: MappingNode) -> list[Node]:
    """Replace ``<<`` by the keys of its sources, of which the first wins; return the sources."""
    merged = [value for key, value in node.value if key.tag == _MERGE]
    sources = [s for v in merged for s in (v.value if isinstance(v, SequenceNode) else [v])]
    if merged:
        node.value = [pair for pair in node.value if pair[0].tag != _MERGE]
        known = {str(key.value) for key, _ in node.value}
        for source in dict.fromkeys(sources):
            for pair in source.value if isinstance(source, MappingNode) else ():
                if str(pair[0].value) not in known:
                    known.add(str(pair[0].value))
                    node.value.append(pair)
    return sources


# -------------------------------------------------------------------------------------------------
# Nodes to data
# -------------------------------------------------------------------------------------------------


class _Reader:
    """Converts an entry's nodes to plain data, and reports mistakes that YAML accepts."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.document = entry.document
        self.key = ""  # the current key of the entry

    def value(self, node: Node, typed: bool) -> Any:
        """Return the plain data of a node; None is YAML's null."""
        if node.tag not in _STANDARD_TAGS:
            self.error("tag", node, tag=node.tag.replace(_TAG, "!!"))
            return None
        if isinstance(node, ScalarNode):
            if node.tag == _STR and not typed:
                return node.value
            return self.scalar(node, typed)
        read = self.document.read
        if (node, typed) not in read:
            kind = self.mapping if isinstance(node, MappingNode) else self.sequence
            read[node, typed] = kind(node, typed)
        return read[node, typed]

    def sequence(self, node: Node, typed: bool) -> list[Any]:
        data = [self.value(item, typed) for item in node.value]
        if not typed and None in data:
            self.no_value(node.value[data.index(None)], "this item")
        return data

    def mapping(self, node: Node, typed: bool, top: bool = False) -> dict[str, Any]:
        data: dict[str, Any] = {}
        in_braces = in_flow(node)
        for key_node, value_node in node.value:
            odd = not isinstance(key_node, ScalarNode)
            text = self.document.text
            key = text[slice(*extent(text, key_node))] if odd else key_node.value
            # `{x: where(c, x, 0)}` without quotes repeats a name: its mistake is the missing value.
            by_comma = in_braces and not (top or typed) and value_node.tag == _NULL
            if key in data and not by_comma:
                first = next(other for other, _ in node.value if other.value == key)
                related = [self.document.at(*extent(text, first))]
                self.error("key_twice", key_node, key=key, related=related)
                if top:
                    data[key] = None  # neither value is certain
                continue
            if top:
                self.key = key
                typed = key in TYPED_KEYS
            if key_node.tag == _BOOL and not top:
                self.boolean("boolean_key", key_node)
            elif key_node.tag != _STR and not (in_braces and value_node.tag == _NULL):
                self.error("key_not_string", key_node)
                continue
            value = self.value(value_node, typed)
            is_missing = value is None and (top or not typed)
            if is_missing and not (in_braces and None in data.values()):  # else the same mistake
                self.no_value(value_node, f"'{key}'", in_braces)
            data[key] = value
        return data

    def scalar(self, node: ScalarNode, typed: bool) -> Any:
        tag, text = node.tag, node.value
        if tag == _NULL:
            return None
        if node.style:  # quotes and blocks are always strings
            return text
        if tag == _BOOL:
            if typed:
                return text.lower() in ("true", "yes", "on")
            if text.lower() not in ("true", "false") and self.key not in _WORD_KEYS:
                self.boolean("boolean", node)
        elif typed and _NUMBER.fullmatch(text):
            try:
                return int(text, 0)
            except ValueError:
                return float(re.sub(r"\.(?=[in])", "", text.lower()))
        return text

    def boolean(self, wrong: str, node: Node) -> None:
        self.error(wrong, node, text=node.value)

    def no_value(self, node: Node, what: str, in_braces: bool = False) -> None:
        if node.tag not in _STANDARD_TAGS:
            return  # reported elsewhere
        key, name = "grad" if self.key == "grad" else "", ""
        if in_braces and (glued := re.search(r"(\w+)[:=]", what)):
            key, name = "glued", glued[1]
        elif in_braces and not node.value:
            key = "comma"
        self.error("no_value", node, key, what=what, name=name)

    def error(
        self, wrong: str, node: Node, *keys: str, related: Sequence[Span] = (), **about: object
    ) -> None:
        span = self.document.at(*extent(self.document.text, node))
        said = MESSAGES(wrong, *keys, **about)
        self.document.diags.error(said, span, op=self.entry.name, related=related)
