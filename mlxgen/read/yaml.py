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
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..diagnostics import Advice, Diagnostics, Help, Related, Span, Text, TooMany
from .compose import DEEP, MANY, MAX_DEPTH, MAX_VALUES, Limit, YamlText, compose
from .places import extent, in_flow, places
from .settings import MAX_BYTES

KeyPath = tuple[str | int, ...]

SIGNATURES = ("python_signature", "signature", "cpp_signature")
# Entry keys whose scalars are read as numbers and booleans; below all others they are text.
TYPED_KEYS = frozenset({"deprecated", "samples"})

_WORD_KEYS = frozenset({"grad", "integers", "jvp", "vmap"})  # which take none, not no

_TAG = "tag:yaml.org,2002:"
_STR, _NULL, _BOOL, _MERGE = (_TAG + name for name in ("str", "null", "bool", "merge"))
_STANDARD_TAGS = {
    _TAG + name
    for name in ("str", "null", "bool", "int", "float", "timestamp", "value", "merge", "seq", "map")
}
_NUMBER = re.compile(
    r"[-+]?((0|[1-9]\d{0,300})(\.\d*)?|\.\d+)(e[-+]?\d+)?|0x[0-9a-f]{1,16}|[-+]?\.inf|\.nan", re.I
)
_NAME_IN_TEXT = re.compile(r"\bname: *[\"']?(\w+)|signature: *[\"']?[^\n(]*?(\w+)\(")
_SIGNATURE_NAME = re.compile(r"(\w+)\s*\(")
# What a text does not say itself; no product, and no "*" of a signature.
_ALIAS = re.compile(r"\*(?<=[\s\[{,:]\*)[^\s*,()\[\]{}]")
_SHARED = re.compile(rf"{_ALIAS.pattern}|<<")

_PLACED = 100_000  # characters of a text in which the place of each is looked for


class Document(YamlText):
    """A file of entries: those that could be read, in order."""

    def __init__(self, path: str, text: str, diags: Diagnostics) -> None:
        super().__init__(path, text, diags)
        self.entries: list[Entry] = []
        self.read: dict[tuple[Node, bool], Any] = {}  # containers, which aliases repeat

    @classmethod
    def load(cls, path: str | Path, diags: Diagnostics) -> Document | None:
        """Read a file; what is wrong goes to ``diags``. None if nothing in it can be used."""
        shown, start = Text(str(path), ""), 0
        try:
            with open(path, "rb") as source:
                raw = source.read(MAX_BYTES + 1)
            if len(raw) <= MAX_BYTES:
                return cls.parse(raw.decode(), shown.path, diags)
            code, message = "MG015", f"the file has more than {MAX_BYTES // 10**6} MB"
        except OSError as error:
            code, message = "MG007", f"cannot read the file: {error.strerror or error}"
        except UnicodeDecodeError as error:
            shown.text = error.object.decode(errors="replace")
            code, message = "MG007", "the file is not encoded in UTF-8"
            start = len(error.object[: error.start].decode())
        diags.add_source(shown.path, shown.text)
        diags.error(code, message, shown.at(start, start + bool(shown.text)))
        return None

    @classmethod
    def parse(cls, text: str, path: str, diags: Diagnostics) -> Document | None:
        """The same for a text; ``path`` is what messages call it."""
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
                message = f"an entry must be a mapping, and this is {what}"
                help = "an entry is '- name: ...' with its other keys below 'name', indented alike"
                document.lacks("MG006", message, *extent(text, node), help=help)
            document.entries = document.whole()
        return document if document.entries or document.complete else None

    def whole(self) -> list[Entry]:
        """Its entries, without those that have a '-' before keys that belong to the one above."""
        torn: set[Entry] = set()
        above, keys = None, set[str]()
        for entry in self.entries:
            own = set(entry.keys)
            named = "name" in own or not own.isdisjoint(SIGNATURES)
            second = above and keys == {"name"} and "name" not in own and entry.name == above.name
            few = 1 in (len(own), len(keys)) or above in torn
            fits = few and (second or not named) and keys.isdisjoint(own) and own <= known_keys()
            if not (above and above.name and fits):
                above, keys = entry, own
                continue
            if above not in torn:
                begin = entry.node.start_mark.index
                what = "'-'" if self.text[:begin].rstrip()[-1:] == "-" else "bracket"
                start = self.text.rfind("-", 0, begin) if what == "'-'" else begin
                message = f"this {what} begins another entry, and its keys belong to the one above"
                where = "below" if what == "'-'" else "beside"
                help = f"one {what} begins an entry: write '{entry.keys[0]}' {where} its first key"
                self.lacks("MG016", message, start, start + 1, help=help)
            torn |= {above, entry}
            keys |= own
        return [entry for entry in self.entries if entry not in torn]

    def names(self) -> set[str]:
        """What looks like the name of an entry, of those too that could not be read."""
        return {found[1] or found[2] for found in _NAME_IN_TEXT.finditer(self.text)}


class Entry:
    """One operator's mapping, and the place of everything in it."""

    def __init__(self, document: Document, node: Node) -> None:
        self.document = document
        self.node = node
        self.renamed: dict[KeyPath, str] = {}  # keys that are misspelt, by what was meant

    @cached_property
    def data(self) -> dict[str, Any]:
        """Its keys and values; what is wrong in them is reported when they are asked for."""
        return _Reader(self).mapping(self.node, typed=False, top=True)

    @cached_property
    def name(self) -> str | None:
        """What messages call it, even if it is broken: its name, or its signature's."""
        nodes = self._values.items()
        texts = {key: node.value for key, node in nodes if isinstance(node, ScalarNode)}
        if texts.get("name"):
            return str(texts["name"])
        for key in SIGNATURES:
            found = _SIGNATURE_NAME.search(texts.get(key, ""))
            if found and found[1] not in ("array", "enum", "def"):
                return found[1]
        return None

    @cached_property
    def _values(self) -> dict[str, Node]:
        return {key.value: value for key, value in reversed(self.node.value) if key.tag == _STR}

    @property
    def keys(self) -> list[str]:
        """Its keys, in order."""
        return [key.value for key, _ in self.node.value if key.tag == _STR]

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

    @property
    def line(self) -> int:
        """Where it begins."""
        return int(self.node.start_mark.line) + 1

    def span(self, path: KeyPath = (), key: bool = False) -> Span:
        """The span of the value (or, with ``key``, of the key) at ``path``.

        Where nothing is at ``path``: the key of the nearest ancestor, or the first line of the
        entry or item.
        """
        text = self.document.text
        key_node, node, found = self._find(path)
        if found and not (key and key_node):
            return self.document.at(*extent(text, node))
        return self.document.first_line(*extent(text, key_node or node))

    def text_span(self, path: KeyPath, start: int, end: int, *, key: bool = False) -> Span:
        """The span of the characters ``start`` to ``end`` of the text that ``path`` leads to, or of
        its ``key``."""
        key_node, value, found = self._find(path)
        node = key_node if key else value
        if not (found and isinstance(node, ScalarNode)) or len(node.value) > _PLACED:
            return self.span(path, key)
        found_at = places(self.document.text, node)
        if not 0 <= start <= end < len(found_at):
            return self.span(path, key)
        first = found_at[start][0]
        return self.document.at(first, found_at[end - 1][1] if end > start else first)

    def _find(self, path: KeyPath) -> tuple[Node | None, Node, bool]:
        """Key and value at ``path`` or of the nearest ancestor, and whether it is ``path``'s.

        A short form stands for what is below it: ``cpu: f`` for ``cpu: {kernel: f}``, and one item
        for a list of one.
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


@cache
def known_keys() -> AbstractSet[str]:
    """All keys of entries."""
    from .keys import OpEntry

    return OpEntry.model_fields.keys()


def quoted(text: str) -> str:
    """A text in YAML's quotes, on one line."""
    text = " ".join(text.split())
    return "'{}'".format(text.replace("'", "''")) if re.search(r'["\\]', text) else f'"{text}"'


def _open(text: str) -> bool:
    """Whether brackets in a text are not closed."""
    return any(text.count(opening) > text.count(closing) for opening, closing in ("()", "[]"))


def _is_piece(key: Node, value: Node) -> bool:
    """Whether a key has no value, as what follows a comma between { and }."""
    return isinstance(key, ScalarNode) and value.tag == _NULL and not value.value


def _is_set(node: Node) -> bool:
    """Whether a mapping has no values at all."""
    return isinstance(node, MappingNode) and all(_is_piece(*pair) for pair in node.value)


def _expanded(document: Document, nodes: list[Node]) -> Iterator[Node]:
    """Entries with the keys that they merge, without those whose aliases stand for too much."""
    sizes: dict[Node, tuple[int, int]] = {}  # how many values, and how deep

    def require(holds: bool, node: Node, code: str, message: str) -> None:
        if not holds:
            raise Limit(code, message, *extent(document.text, node))

    def size(node: Node) -> tuple[int, int]:
        if isinstance(node, ScalarNode):
            return 1, 0
        if node not in sizes:
            sizes[node] = 0, 0  # while it is looked at
            for child in _children(node):
                size(child)
            for source in _merge(node) if isinstance(node, MappingNode) else ():
                is_mapping = isinstance(source, MappingNode)
                require(is_mapping, source, "MG014", "'<<' takes in mappings, and this is none")
            found = [(0, 0), *(size(child) for child in _children(node))]
            values, depth = 1 + sum(n for n, _ in found), 1 + max(deep for _, deep in found)
            sizes[node] = values, depth
            require(depth <= MAX_DEPTH, node, "MG008", DEEP)
            require(values <= MAX_VALUES, node, "MG015", many)
        require(sizes[node][0] > 0, node, "MG008", "an alias stands inside its own anchor")
        return sizes[node]

    total, many = 0, f"{MANY}, with what its aliases stand for"
    said = set[object]()
    for node in nodes:
        try:
            total += size(node)[0]
            require(total <= MAX_VALUES, node, "MG015", many)
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
    """Replace ``<<`` by the keys of its sources, the first having precedence; gives the sources."""
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
    """Turns entries' nodes into plain data, and reports on the way what YAML let pass."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.document = entry.document
        self.key = ""  # the entry's key that is read

    def value(self, node: Node, typed: bool) -> Any:
        """Plain data of any node; None is YAML's null."""
        if node.tag not in _STANDARD_TAGS:
            tag = node.tag.replace(_TAG, "!!")
            self.error("MG009", f"the tag '{tag}' has no meaning here", node, "remove the tag")
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
        stray = self.strays() if top else {}
        torn = self.torn(node) if in_flow(node) else {}
        pieces = {piece for rest in torn.values() for piece in rest}
        for key_node, value_node in node.value:
            if key_node in stray or key_node in pieces:
                continue
            odd = not isinstance(key_node, ScalarNode)
            text = self.document.text
            key = text[slice(*extent(text, key_node))] if odd else key_node.value
            if key in data:
                first = next(other for other, _ in node.value if other.value == key)
                related = [Related("first here", self.document.at(*extent(text, first)))]
                self.error("MG003", f"the key '{key}' is given twice", key_node, related=related)
                if top:
                    data[key] = None  # nobody knows which is meant
                continue
            if top:
                self.key = key
                typed = key in TYPED_KEYS
            if key_node.tag == _BOOL and not top:
                self.boolean(key_node, f"YAML reads the key {key} as a boolean")
            elif key_node.tag != _STR:
                if in_flow(node) and value_node.tag == _NULL:
                    self.no_value(value_node, f"'{key}'", in_braces=True)
                else:
                    self.error("MG011", "a key must be a text", key_node)
                continue
            if rest := torn.get(key_node):
                self.unquoted(key, value_node, rest[-1])
                data[key] = None
                continue
            if self.is_formula(key, top) and in_flow(value_node) and _is_set(value_node):
                begin, end = extent(self.document.text, value_node)
                inside = self.document.text[begin + 1 : end - 1].strip()
                formula = quoted(inside)
                help = Advice(f"write it without braces: {key}: {formula}", formula)
                self.error("MG102", f"the formula of '{key}' stands in braces", value_node, help)
                data[key] = None
                continue
            value = self.value(value_node, typed)
            if value is None and (top or not typed):
                parent = key_node in stray.values()
                self.no_value(value_node, f"'{key}'", in_braces=in_flow(node), parent=parent)
            data[key] = value
        return data

    def is_formula(self, key: str, top: bool) -> bool:
        """Whether a key that is read has a formula, and never a mapping."""
        return key == "composite" if top else self.key in ("grad", "jvp")

    def torn(self, node: Node) -> dict[Node, list[Node]]:
        """Keys whose values end at a comma inside brackets, with the pieces that follow: formulas
        between { and } without quotes."""
        found: dict[Node, list[Node]] = {}
        pairs = list(node.value)
        while pairs:
            key, value = pairs.pop(0)
            if not isinstance(value, ScalarNode) or value.style or not _open(value.value):
                continue
            text, rest = value.value, list[Node]()
            while _open(text) and pairs and _is_piece(*pairs[0]):
                rest.append(pairs.pop(0)[0])
                text += rest[-1].value
            if rest and not _open(text):
                found[key] = rest
        return found

    def unquoted(self, key: str, value: Node, last: Node) -> None:
        """Report a value that has commas outside of quotes."""
        start, end = value.start_mark.index, extent(self.document.text, last)[1]
        text = quoted(self.document.text[start:end])
        help = Advice(f"put the value in quotes: {key}: {text}", text)
        message = f"between {{ and }} a comma ends the value of '{key}'"
        span, op = self.document.at(start, end), self.entry.name
        self.document.diags.error("MG012", message, span, help=help, op=op)

    def strays(self) -> dict[Node, Node]:
        """Keys that no entry has, by the one without a value above, below which they should be."""
        found: dict[Node, Node] = {}
        empty = None
        for key, value in self.entry.node.value:
            if isinstance(key, ScalarNode) and key.value in known_keys():
                empty = key if value.tag == _NULL and not value.value else None
            elif empty:
                found[key] = empty
        return found

    def scalar(self, node: ScalarNode, typed: bool) -> Any:
        tag, text = node.tag, node.value
        if tag == _NULL:
            return None
        if node.style:  # quoted, or a block: text, whatever it looks like
            return text
        if tag == _BOOL:
            if typed:
                return text.lower() in ("true", "yes", "on")
            if text.lower() not in ("true", "false") and self.key not in _WORD_KEYS:
                self.boolean(node, f"YAML reads {text} as a boolean, and a text is wanted here")
        elif typed and _NUMBER.fullmatch(text):
            try:
                return int(text, 0)
            except ValueError:
                return float(re.sub(r"\.(?=[in])", "", text.lower()))
        return text

    def boolean(self, node: Node, message: str) -> None:
        quoted = f'"{node.value}"'
        self.error("MG010", message, node, Advice(f"put it in quotes: {quoted}", quoted))

    def no_value(
        self, node: Node, what: str, in_braces: bool = False, parent: bool = False
    ) -> None:
        if node.tag not in _STANDARD_TAGS:
            return  # which is said
        help = "give it a value, or leave it out"
        if in_braces and (glued := re.search(r"(\w+)[:=]", what)):
            help = f"write '{glued[1]}: ...', with a blank after the colon"
        elif in_braces and not node.value:
            help = "between { and } a comma ends the value: put a value that has commas in quotes"
        elif parent:
            help = f"if the lines below belong to {what}, indent them"
        elif self.key == "grad":
            help = "write 'none' where there is no gradient, 'zero' where it is zero"
        self.error("MG012", f"{what} has no value", node, help)

    def error(self, code: str, message: str, node: Node, help: Help = None, **more: Any) -> None:
        span = self.document.at(*extent(self.document.text, node))
        self.document.diags.error(code, message, span, help=help, op=self.entry.name, **more)
