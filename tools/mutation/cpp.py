"""Mutants of C++ kernels for the CPU.

``changed`` inserts all mutants of some functions into their sources. Each mutated place calls a
function of ``changes.h``, which makes the change if its number is active, so that everything is
compiled once. tree-sitter finds the places. Compile-time constants, such as sizes and template
arguments, are not mutated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from .mutants import _unique

_PARSER = Parser(Language(tree_sitter_cpp.language()))
_MACRO = re.compile(rb"^[A-Z][A-Z0-9_]+$|\bMLXGEN_(MULTIVERSION|INLINED_CALL)\b", re.M)
_MOVED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
}
_PAIRS = (
    ("std::max", "std::min"),
    ("mx::maximum", "mx::minimum"),
    ("mx::add", "mx::subtract"),
    ("mx::multiply", "mx::divide"),
    ("mx::greater", "mx::greater_equal"),
    ("mx::less", "mx::less_equal"),
    ("mx::logical_and", "mx::logical_or"),
)
_CALLS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
# Compile-time constants, and conditions that end a loop.
_CONSTANT = {
    "template_argument_list",
    "template_parameter_list",
    "static_assert_declaration",
    "enumerator",
    "sizeof_expression",
    "decltype",
    "alignas_qualifier",
    "requires_clause",
    "attribute_specifier",
    "preproc_if",
    "preproc_def",
    "preproc_function_def",
}


@dataclass(slots=True)
class Changed:
    """Sources with all mutants, and the mutants' names: number n is names[n - 1].

    ``functions`` has the file, line and name of each mutant's function; a branch of
    ``if constexpr`` counts as a function of its own.
    """

    names: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)


def changed(sources: Mapping[Path, bytes], functions: Collection[str]) -> Changed:
    """Insert the mutants of these functions, and of all that they call, into the sources."""
    trees = {path: _parsed(source) for path, source in sources.items()}
    reached = _reached(trees, functions)
    result = Changed()
    for path, tree in trees.items():
        writer = _Writer(path, sources[path], reached, result)
        text = sources[path][: tree.start_byte].decode() + writer.text(tree)
        if text.encode() != sources[path]:
            result.texts[path] = text
    result.names = list(_unique(result.names))
    return result


def included(header: Path, folder: Path) -> dict[Path, bytes]:
    """Return a header and the headers of the folder that it includes, by path in the folder."""
    found: dict[Path, bytes] = {}
    pending = [header]
    while pending:
        path = pending.pop()
        if path in found or not (folder / path).is_file():
            continue
        found[path] = (folder / path).read_bytes()
        for node in _walk(_parsed(found[path])):
            if node.type == "preproc_include":
                name = _text(node.child_by_field_name("path")).strip('"')
                pending += [path.parent / name, Path(name)]
    return found


def _parsed(source: bytes) -> Node:
    """Return the tree of a source without the macros that tree-sitter cannot parse.

    It has `<=` for `<`, because `a < b && c > d` would be a template.
    """
    plain = _MACRO.sub(lambda macro: b" " * len(macro[0]), source)
    return _PARSER.parse(plain.replace(b" < ", b" <=")).root_node


def _reached(trees: Mapping[Path, Node], functions: Collection[str]) -> set[int]:
    """Return the ids of the definitions that are called, matched by name."""
    definitions = [
        (_name(node), _owner(node), node)
        for tree in trees.values()
        for node in _walk(tree)
        if node.type == "function_definition"
    ]
    wanted, found = set(functions), set[int]()
    grown = True
    while grown:
        grown = False
        for name, owner, node in definitions:
            if node.id not in found and (name in wanted or owner in wanted):
                found.add(node.id)
                wanted |= {_text(part) for part in _walk(node) if part.type.endswith("identifier")}
                grown = True
    return found


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _text(node: Node | None) -> str:
    return (node.text or b"").decode() if node else ""


def _name(node: Node) -> str:
    """Return the name of a function definition."""
    inner = node.child_by_field_name("declarator")
    while inner is not None and inner.type != "function_declarator":
        inner = inner.child_by_field_name("declarator") or next(iter(inner.named_children), None)
    named = inner.child_by_field_name("declarator") if inner else None
    return _text(named).rpartition("::")[2]


def _owner(node: Node) -> str:
    """Return the struct that defines a function, or ""."""
    at = node.parent
    while at is not None and at.type not in ("struct_specifier", "class_specifier"):
        at = at.parent
    return _text(at.child_by_field_name("name")) if at else ""


def _is_branch(node: Node) -> bool:
    """Return True for the branches of an ``if constexpr``."""
    parent = node.parent
    return (
        parent is not None
        and parent.type == "if_statement"
        and "constexpr" in map(_text, parent.children)
        and node != parent.child_by_field_name("condition")
    )


class _Writer:
    """Rewrites a source with the mutants of the reached functions."""

    def __init__(self, path: Path, source: bytes, reached: set[int], result: Changed) -> None:
        self.path = path
        self.source = source
        self.reached = reached
        self.result = result
        self.function = ""  # the current one; nothing outside of functions is mutated
        self.place = ""  # of this function

    def text(self, node: Node) -> str:
        """Return the text of a node with its mutants."""
        outside, place = self.function, self.place
        if node.type == "function_definition" and not outside and node.id in self.reached:
            constant = any(_text(child) == "constexpr" for child in node.children)
            self.function = "" if constant or node.has_error else _name(node)
            self.place = f"{self.path}:{node.start_point[0] + 1}: {self.function}"
        elif self.function and _is_branch(node):
            self.place = f"{self.path}:{node.start_point[0] + 1}: {self.function}, constexpr"
        if self.function and (node.type in _CONSTANT or self._is_constant(node)):
            written = self._own(node)
        else:
            written = self._changed(node)
        self.function, self.place = outside, place
        return written

    def _is_constant(self, node: Node) -> bool:
        parent = node.parent
        if node.type == "declaration":
            return any(_text(child) == "constexpr" for child in node.children)
        if parent is None:
            return False
        if parent.type == "array_declarator":
            return node == parent.child_by_field_name("size")
        if parent.type == "for_statement":
            return node == parent.child_by_field_name("update")
        return node.type == "condition_clause" and "constexpr" in map(_text, parent.children)

    def _own(self, node: Node | None) -> str:
        """Return the source of a node, which is not always the parsed text."""
        return self.source[node.start_byte : node.end_byte].decode().strip() if node else ""

    def _inside(self, node: Node) -> str:
        """Return the text of a node whose children have mutants."""
        written, at = "", node.start_byte
        for child in node.children:
            written += self.source[at : child.start_byte].decode() + self.text(child)
            at = child.end_byte
        return written + self.source[at : node.end_byte].decode()

    def _number(self, what: str, node: Node) -> int:
        line = self.source[: node.start_byte].rfind(b"\n") + 1
        end = self.source.find(b"\n", node.start_byte)
        shown = self.source[line:end].decode().split("//")[0].strip()
        self.result.names.append(f"{self.function}: {what} in `{shown}`")
        self.result.functions.append(self.place)
        return len(self.result.names)

    def _changed(self, node: Node) -> str:
        if not self.function:
            return self._inside(node)
        sign = self._own(node.child_by_field_name("operator"))
        left, right = (node.child_by_field_name(side) for side in ("left", "right"))
        if node.type in ("binary_expression", "assignment_expression") and left and right:
            return self._of_two(node, sign, left, right)
        if node.type == "unary_expression" and sign == "-":
            argument = node.child_by_field_name("argument")
            if argument and argument.type != "number_literal":
                number = self._number(f"without the sign of `{self._own(argument)}`", node)
                return f"mlxgen_changes::minus({number}, {self.text(argument)})"
        if node.type == "subscript_argument_list" and len(node.named_children) == 1:
            number = self._number(f"{self._own(node)} one higher", node)
            return f"[mlxgen_changes::next({number}, {self.text(node.named_children[0])})]"
        if node.type == "call_expression":
            called = _text(node.child_by_field_name("function"))
            given = node.child_by_field_name("arguments")
            if called in _CALLS and given:
                number, arguments = self._number(f"{_CALLS[called]}", node), self.text(given)
                return (
                    f"(mlxgen_changes::is({number}) ? {_CALLS[called]}{arguments} : "
                    f"{called}{arguments})"
                )
        return self._inside(node)

    def _of_two(self, node: Node, sign: str, left: Node, right: Node) -> str:
        shown = " ".join(self._own(right).split())
        if sign in ("+", "-", "+=", "-="):
            number = self._number(f"the other sign of `{shown}`", node)
            call = f"mlxgen_changes::sign({number}, {self.text(right)})"
            return f"{self.text(left)} {sign} {call}"
        if sign in ("*", "/", "*=", "/="):
            number = self._number(f"`{shown}` doubled", node)
            call = f"mlxgen_changes::twice({number}, {self.text(right)})"
            return f"{self.text(left)} {sign} {call}"
        if sign in _MOVED:
            number = self._number(f"{_MOVED[sign]} for {sign}", node)
            a, b = self.text(left), self.text(right)
            changed = f"({a}) {_MOVED[sign]} ({b})"
            return f"(mlxgen_changes::is({number}) ? {changed} : ({a}) {sign} ({b}))"
        return self._inside(node)
