"""Inserts the named subexpressions of an entry (`let`) into its formulas.

The compiler does not need this, because it knows the names. The analyses of shape formulas and the
generated checks read plain Python, in which the names have no meaning.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from .explain import Wrong
from .source import parsed

MOST = 20_000  # nodes of a formula with all `let`s inserted


def words(tree: ast.expr) -> frozenset[str]:
    """Return the names that a formula uses."""
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def size(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    """Return the number of nodes of a formula, given the sizes of the `let`s that it uses."""
    nodes = ast.walk(tree)
    return sum(sizes.get(node.id, 1) if isinstance(node, ast.Name) else 1 for node in nodes)


def expanded(text: str, lets: Mapping[str, str]) -> ast.expr:
    """Return a formula with the `let`s inserted; as it is if that is huge or a `let` is invalid.

    Raises:
        Wrong, RecursionError: The formula is invalid.
    """
    tree = parsed(text)
    if not lets or lets.keys().isdisjoint(words(tree)):
        return tree
    try:
        trees, sizes = dict[str, ast.expr](), dict[str, int]()
        for name, let in lets.items():
            if (count := size(parsed(let), sizes)) > MOST:
                return tree
            sizes[name] = count
            trees[name] = Insert(trees).visit(copy.deepcopy(parsed(let)))
        if size(tree, sizes) > MOST:
            return tree
        inserted: ast.expr = Insert(trees).visit(copy.deepcopy(tree))
        return inserted
    except (Wrong, RecursionError):
        return tree


class Insert(ast.NodeTransformer):
    """Replaces names by trees."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        self.trees = trees

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.trees.get(node.id, node)
