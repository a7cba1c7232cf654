"""Inserts the named subexpressions of an entry (`let`) into its formulas.

The compiler does not need this, because it knows the names. The analyses of shape formulas and the
generated checks read plain Python, in which the names have no meaning.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from functools import lru_cache

from .explain import Wrong
from .source import parsed

MOST = 20_000  # nodes of a formula with all `let`s inserted
DEEPEST = 100  # levels of such a formula; Python prints and copies trees by recursion
_LOOP = 30  # levels that a loop counts for, as the samples run loops: at most three are nested


def words(tree: ast.expr) -> frozenset[str]:
    """Return the names that a formula uses."""
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def size(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    """Return the number of nodes of a formula, given the sizes of the `let`s that it uses."""
    nodes = ast.walk(tree)
    return sum(sizes.get(node.id, 1) if isinstance(node, ast.Name) else 1 for node in nodes)


def depth(tree: ast.AST, depths: Mapping[str, int]) -> int:
    """Return the number of levels of a formula, given the depths of the `let`s that it uses."""
    if isinstance(tree, ast.Name):
        return depths.get(tree.id, 1)
    levels = _LOOP if isinstance(tree, ast.GeneratorExp | ast.ListComp) else 1
    return levels + max((depth(child, depths) for child in ast.iter_child_nodes(tree)), default=0)


def expanded(text: str, lets: Mapping[str, str]) -> ast.expr:
    """Return a formula with the `let`s inserted; as it is if that is too large, or one is invalid.

    Raises:
        Wrong, RecursionError: The formula is invalid.
    """
    tree = parsed(text)
    if not lets or lets.keys().isdisjoint(words(tree)):
        return tree
    try:
        trees, sizes, depths = _inserted(tuple(lets.items()))
        largest, deepest = max(sizes.values()), max(depths.values())
        if max(largest, size(tree, sizes)) > MOST or max(deepest, depth(tree, depths)) > DEEPEST:
            return tree
        inserted: ast.expr = Insert(trees).visit(copy.deepcopy(tree))
        return inserted
    except (Wrong, RecursionError):
        return tree


@lru_cache(64)  # all formulas of an entry have the same
def _inserted(
    lets: tuple[tuple[str, str], ...],
) -> tuple[Mapping[str, ast.expr], Mapping[str, int], Mapping[str, int]]:
    """Return the trees of `let`s with the earlier ones inserted, their sizes and their depths.

    The trees after one that is too large are missing.
    """
    trees, sizes, depths = dict[str, ast.expr](), dict[str, int](), dict[str, int]()
    for name, let in lets:
        sizes[name], depths[name] = size(parsed(let), sizes), depth(parsed(let), depths)
        if sizes[name] > MOST or depths[name] > DEEPEST:
            break
        trees[name] = Insert(trees).visit(copy.deepcopy(parsed(let)))
    return trees, sizes, depths


class Insert(ast.NodeTransformer):
    """Replaces names by trees."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        self.trees = trees

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.trees.get(node.id, node)
