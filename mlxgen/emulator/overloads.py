"""Merges overloads and specializations that differ only by address spaces, which C++ lacks."""

from __future__ import annotations

import re

from tree_sitter import Node

from .source import Source

DROPPED = frozenset({"device", "thread", "threadgroup"})
SPACES = DROPPED | {"constant"}

_Seen = dict[str, tuple[int, str]]  # C++ signature -> first token and body of a function


class Overloads(Source):
    """Finds functions and classes with the same C++ signature, in the syntax tree.

    If the tree lacks a function, the duplicate remains and the compiler reports it.
    """

    def merge(self) -> None:
        """Remove the second of two definitions in a scope that have the same C++ signature."""
        pending: list[tuple[Node, _Seen]] = [(self.file.root, {})]
        while pending:
            node, seen = pending.pop()
            body = node.child_by_field_name("body")
            if node.type == "function_definition":
                if body or node.named_children[-1].type == "default_method_clause":
                    self._function(node, seen)
                continue
            name = node.child_by_field_name("name")
            if body and name and name.type == "template_type":  # of a specialized class
                self._found(node, name, seen)
            if node.type == "template_parameter_list" and not node.named_children:
                self._specialize(node)
            if node.type in ("declaration_list", "field_declaration_list"):
                seen = {}
            pending += [(child, seen) for child in reversed(node.named_children)]

    def _specialize(self, parameters: Node) -> None:
        """Remove the `template <>` of an explicit specialization in a class.

        gcc accepts these at namespace scope only; a non-template is preferred in C++, too.
        """
        node = parameters.parent
        if node and node.parent and node.parent.type == "field_declaration_list":
            i = self.at(parameters.start_byte)
            self.new[i - 1] = self.new[i] = self.new[i + 1] = ""

    def _function(self, node: Node, seen: _Seen) -> None:
        """Compare a function definition with the earlier ones."""
        declarator: Node | None = node.child_by_field_name("declarator")
        while declarator and not declarator.child_by_field_name("parameters"):
            declarator = next(reversed(declarator.named_children), None)
        parameters = declarator and declarator.child_by_field_name("parameters")
        if parameters:
            self._found(node, parameters, seen)

    def _found(self, node: Node, last: Node, seen: _Seen) -> None:
        """Compare a definition, whose signature ends with ``last``, with the earlier ones."""
        template = node
        while template.parent and template.parent.type == "template_declaration":
            template = template.parent
        before = template.prev_sibling
        start = self.at(before.end_byte if before else 0)
        tail, end = self.at(last.end_byte), self.at(template.end_byte)
        key = self._normal(start, tail)
        key = re.sub(r"^(?:(?:inline|static|constexpr) )*", "", key)
        key = re.sub(r"\bconst (\w+) & ", r"\1 ", key)  # calls of both would be ambiguous
        key += " const" if "const" in self.texts[tail : tail + 2] else ""
        rest = self._normal(tail, end)
        first, other = seen.setdefault(key, (start, rest))
        spaces = SPACES.intersection(self.texts[start : tail + 2])
        if first == start or not spaces:
            return  # the compiler reports its error
        if rest != other:
            raise self.error("same_in_cpp", start, other=self.where(first))
        self.skip(start, end)

    def _normal(self, start: int, stop: int) -> str:
        """Return the tokens as they will be in C++."""
        texts = self.texts
        new = (self.new.get(i, "" if texts[i] in SPACES else texts[i]) for i in range(start, stop))
        return " ".join(filter(None, new))
