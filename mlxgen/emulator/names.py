"""Finds unknown functions, types and attributes in Metal source (MG808).

Names are looked up without scopes, in a file and everything that it includes. A name is unknown if
it is not part of Metal (metal.yaml) and occurs only as a call or as a type. Code that the parser
does not understand counts as a declaration, so that correct source is never rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tree_sitter import Node

from ..check.metal import METAL
from ..diagnostics import did_you_mean
from ..read.cpp import LINE, LISTED, File, Reader, Unit
from ..read.preprocess import SourceError
from .cxx import MESSAGES

FUNCTIONS, TYPES = METAL["functions"], METAL["types"]
_OWN = frozenset([*FUNCTIONS, *TYPES])
# An attribute and its arguments; compiler-specific attributes have a namespace.
_ATTRIBUTE = re.compile(r"([A-Za-z_]\w*)(\s*::\s*\w+)?\s*(\((?:[^()]|\([^()]*\))*\))?")
# Declarations in code that the parser may not understand.
_DECLARED = re.compile(r"(?:#\s*define|\b(?:struct|class|union|enum|void))\s+(\w+)")
_WORD = re.compile(r"[A-Za-z_]\w*")
# Nodes that declare the name of a type.
_DECLARING = {
    *("class_specifier", "struct_specifier", "union_specifier", "enum_specifier"),
    *("alias_declaration", "type_definition", "concept_definition", "namespace_alias_definition"),
    *("type_parameter_declaration", "optional_type_parameter_declaration"),
    *("variadic_type_parameter_declaration", "template_template_parameter_declaration"),
}


class Used(NamedTuple):
    """A name in a file's text, its location, and its scope: `x` in `x::name`."""

    scope: str
    name: str
    place: tuple[int, int]


class WordsOf(NamedTuple):
    """The names in a file: called functions, used types, and all others.

    Names in unparsed text are among the others.
    """

    calls: list[Used]
    types: list[Used]
    others: set[str]


@lru_cache(256)  # several kernels include the same headers
def names(file: File) -> WordsOf:
    """Return the names in a file's text, including bodies of functions."""
    found = WordsOf([], [], set())
    called: dict[int, str] = {}  # nodes of called functions, with their scopes
    pending: list[tuple[Node, Node | None, bool]] = [(file.root, None, False)]
    while pending:
        node, parent, unclear = pending.pop()
        kind = node.type
        if kind == "call_expression" and not unclear:
            scope, name = _called(node.child_by_field_name("function"))
            if name is not None:
                called[name.id] = scope
        elif kind in ("identifier", "field_identifier", "type_identifier"):
            used = Used(called.get(node.id, ""), _text(node), (node.start_byte, node.end_byte))
            if node.id in called:
                found.calls.append(used)
            elif kind != "type_identifier" or unclear or _declares(node, parent):
                found.others.add(used.name)
            else:
                scope = _scope(parent) if parent else ""
                found.types.append(used._replace(scope=scope))
        unclear = unclear or kind == "ERROR"
        pending += [(child, node, unclear) for child in reversed(node.named_children)]
    return found


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _scope(node: Node) -> str:
    """Return the namespace or class of a qualified name, or ""."""
    scope = node.child_by_field_name("scope") if node.type == "qualified_identifier" else None
    return _text(scope) if scope else ""


def _called(node: Node | None) -> tuple[str, Node | None]:
    """Return the scope and the name of a called function; None if it is an expression."""
    scope = ""
    while node is not None and node.type in ("qualified_identifier", "template_function"):
        scope = _scope(node) or scope
        node = node.child_by_field_name("name")
    return scope, node if node is not None and node.type == "identifier" else None


def _declares(node: Node, parent: Node | None) -> bool:
    """Return whether the node is the name in a type's declaration."""
    if parent is None or parent.type not in _DECLARING:
        return parent is not None and parent.type.endswith("_declarator")  # `typedef int* name`
    if parent.type == "alias_declaration":
        return parent.child_by_field_name("name") == node
    return parent.type != "type_definition" or parent.child_by_field_name("type") != node


def unknown_names(reader: Reader, unit: Unit, shared: bool) -> Iterator[SourceError]:
    """Yield the unknown attributes, functions and types of a file and its project's headers.

    ``shared``: the file is also compiled as C++.
    """
    for file in unit.files:
        yield from _attributes(file)
    read = reader.closure(unit.files[0].source.path, libraries=True)
    own = {file.source.path for file in unit.files}
    headers = {name: path for source in read for name, path in source.includes.items()}
    if any(
        path is None and not name.startswith(("metal", "simd")) for name, path in headers.items()
    ):
        return  # an unknown header may declare anything
    if any("##" in source.plain for source in read if source.path in own):
        return  # so may macros
    known = set(_OWN).union(*(names(file).others for file in unit.files))
    known |= {function.name for function in unit.functions}
    for file in unit.files:  # macros may define functions
        for call in LINE.finditer(file.source.text):
            if file.source.macros.get(call[1], call) is None:
                known |= set(_WORD.findall(call[0]))
        known |= set(_DECLARED.findall(file.source.plain))
    for source in read:
        known |= source.macros.keys() if source.path in own else source.words
    wrong = "unknown_name_shared" if shared else "unknown_name"
    for file in unit.files:
        for what, used in (("function", names(file).calls), ("type", names(file).types)):
            for scope, name, place in used:
                if "<" in scope or (what == "type" and scope and scope not in METAL["namespaces"]):
                    continue  # a member of a class
                if name in known or name.startswith("_"):
                    continue
                known.add(name)  # report it once
                meant = TYPES
                if what == "function":
                    declared = (
                        f.name for source in read for f in reader.declared(source).functions
                    )
                    meant = [*FUNCTIONS, *declared]
                near = did_you_mean(name, meant)
                said = MESSAGES(wrong, "" if near else what, what=what, name=name, near=near)
                yield SourceError(said, file.source.span(*place))


def _attributes(file: File) -> Iterator[SourceError]:
    text = file.source.text
    for listed in re.finditer(LISTED, text) if "[[" in text else ():
        for found in _ATTRIBUTE.finditer(text, *listed.span(1)):
            name = found[1]
            if not found[2] and name not in METAL["attributes"]:
                near = did_you_mean(name, METAL["attributes"])
                said = MESSAGES("unknown_attribute", name=name, near=near)
                yield SourceError(said, file.source.span(*found.span(1)))
