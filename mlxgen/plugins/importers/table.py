"""The tables of formulas: ATen's overloads, each with a formula or keys of an entry.

    abs: mx.abs(self)
    max_pool2d_with_indices:
      dispatch: {cpu: max_pool2d, metal: max_pool2d}
    nonzero: {reject: the shape of the result depends on values}

A formula is short for the key ``composite``. The names and signatures come from torch's schema.
``reject`` is a reason for the report why the overload cannot be an entry.

A key that is a signature, such as ``"summand(Tensor x) -> Tensor"``, is a helper: an internal entry
that formulas of others call. It is written if they do.

The base table (``torch/*.yaml``) uses MLX's functions only. Overrides have the same format and
precede it. The rows of ``torch/nodes.yaml`` are never entries: they are the formulas of nodes in
traced graphs, such as torch's primitives, and precede both there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ...diagnostics import Diagnostics, Span
from ...read import MESSAGES as READ
from ...read.compose import UNPRINTABLE, Limit, Loader, YamlText, explain
from ...read.places import extent
from ...read.validate import validate
from ...read.yaml import Document, Entry, read_text
from . import MESSAGES, terms

FOLDER = Path(__file__).parent / "torch"
NODES = FOLDER / "nodes.yaml"

# Keys that an entry has from torch's schema.
_FIXED = frozenset(
    {"name", "signature", "cpp_signature", "python_signature", "python_name", "module"}
)


class Origin(NamedTuple):
    """The source of a formula, for the report."""

    name: str  # of a file, or of a function of torch
    table: str = ""  # the kind of table

    def __str__(self) -> str:
        return f"{self.table} {self.name}".strip()

    @property
    def sentence(self) -> str:
        """The comment about it."""
        where = {"table": "base table", "override": "overrides"}.get(self.table)
        return f"From the {where}, {self.name}." if where else f"Derived from {self.name}."


class Formulas(NamedTuple):
    """The formulas of an overload."""

    keys: Mapping[str, Any]  # of the entry
    names: frozenset[str]  # of arguments and functions that they contain
    calls: frozenset[str]  # of functions that they call
    origin: Origin


class Row(NamedTuple):
    """One overload of a table."""

    overload: str
    origin: Origin
    keys: dict[str, Any]
    reject: str | None
    span: Span

    @property
    def helper(self) -> str:
        """The name of an entry that only formulas call; empty for an overload of ATen."""
        name, bracket, _ = self.overload.partition("(")
        return name if bracket else ""

    @property
    def formula(self) -> ast.expr | None:
        """The formula, if the entry consists of nothing else that computes."""
        text = self.keys.get("composite")
        if text is None or "dispatch" in self.keys or "manual" in self.keys:
            return None
        return _parse(str(text))

    @property
    def formulas(self) -> Formulas:
        """The keys of its entry."""
        trees = [_parse(text) for text in _texts(self.keys).values()]
        names, calls = (
            frozenset[str]().union(*map(of, trees)) for of in (terms.names, terms.calls)
        )
        return Formulas(self.keys, names, calls, self.origin)


def _texts(keys: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the formulas of an entry, by their place."""
    found: dict[tuple[str, ...], str] = {}
    for key in ("let", "composite", "grad"):
        value = keys.get(key)
        if isinstance(value, Mapping):
            found |= {(key, name): str(part) for name, part in value.items()}
        elif value is not None:
            found[key,] = str(value)
    return found


def _parse(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


Table = dict[str, Row]


def base_table(diags: Diagnostics) -> Table:
    """Read the base table."""
    return load(sorted(set(FOLDER.glob("*.yaml")) - {NODES}), "table", diags)


def node_table(diags: Diagnostics) -> Table:
    """Read the formulas of nodes."""
    return load([NODES], "table", diags)


def load(paths: Iterable[Path], kind: str, diags: Diagnostics) -> Table:
    """Read tables; an overload that two of them contain is an error."""
    table: Table = {}
    for path in paths:
        for row in _rows(path, Origin(path.name, kind), diags):
            if row.overload in table and table[row.overload].span.file != row.span.file:
                said = MESSAGES("formulas_twice", name=row.overload)
                diags.error(said, row.span, related=[table[row.overload].span])
            table[row.overload] = row
    return table


def _rows(path: Path, origin: Origin, diags: Diagnostics) -> Iterable[Row]:
    text = read_text(path, diags)
    if text is None:
        return
    document = Document(str(path), text.removeprefix("\ufeff"), diags)
    diags.add_source(document.path, document.text)
    root = compose_mapping(document)
    seen: dict[str, Span] = {}
    for key, value in root.value if root else ():
        span = document.at(key.start_mark.index, key.end_mark.index)
        name = str(key.value)
        if name in seen:
            diags.error(READ("key_twice", key=name), span, related=[seen[name]])
        seen[name] = span
        row = _row(document, name, value, span, origin)
        if row:
            yield row


def _row(document: Document, name: str, value: Node, span: Span, origin: Origin) -> Row | None:
    diags = document.diags
    if not isinstance(value, ScalarNode | MappingNode):
        diags.error(MESSAGES("no_formula", name=name), span)
        return None
    reject = None
    node = value
    if isinstance(value, ScalarNode):
        start = value.start_mark
        key = ScalarNode("tag:yaml.org,2002:str", "composite", start, start)
        node = MappingNode("tag:yaml.org,2002:map", [(key, value)], start, value.end_mark)
    else:
        pairs = [pair for pair in value.value if pair[0].value != "reject"]
        reasons = [pair[1].value for pair in value.value if pair[0].value == "reject"]
        reject = " ".join(str(reasons[0]).split()) if reasons else None
        node = MappingNode(value.tag, pairs, value.start_mark, value.end_mark)
    entry = Entry(document, node)
    before = len(diags)
    validate(entry, name, diags)
    for fixed in _FIXED.intersection(entry.data):
        diags.error(MESSAGES("fixed_key", key=fixed), entry.span((fixed,), key=True), op=name)
    _check_formulas(entry, name, diags)
    return Row(name, origin, entry.data, reject, span) if len(diags) == before else None


def _check_formulas(entry: Entry, name: str, diags: Diagnostics) -> None:
    for place, text in _texts(entry.data).items():
        try:
            _parse(text)
        except SyntaxError as error:
            about = {"text": text.strip(), "reason": error.msg}
            diags.error(MESSAGES("no_expression", **about), entry.span(place), op=name)


def compose_mapping(source: YamlText) -> MappingNode | None:
    """Return the root of a file that is one mapping; None if an error was reported."""
    text = source.text
    if found := UNPRINTABLE.search(text):
        source.lacks("bad_character", *found.span(), number=ord(found[0][0]))
        return None
    try:
        root = yaml.compose(text, Loader=Loader)
    except Limit as error:
        source.lacks(*error.args)
        return None
    except yaml.MarkedYAMLError as error:
        wrong, place, about = explain(error, text)
        source.lacks(wrong, place, place + 1, **about)
        return None
    if root is None or root.tag.endswith(":null"):
        return MappingNode("tag:yaml.org,2002:map", [])
    if isinstance(root, MappingNode):
        return root
    source.complete = False
    what = "a list" if isinstance(root, SequenceNode) else "a single value"
    span = source.first_line(extent(text, root)[0], len(text))
    source.diags.error(MESSAGES("file_not_mapping", what=what), span)
    return None
