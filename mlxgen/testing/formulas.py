"""Evaluates formulas of entries with Python."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import mlx.core as mx
import numpy as np


class _Shapes(ast.NodeTransformer):
    """Converts concatenated lists to tuples, because Python's ``x.shape`` is a tuple."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        node.left, node.right = (
            ast.Tuple(n.elts, n.ctx) if isinstance(n, ast.List) else n
            for n in (node.left, node.right)
        )
        return node


@cache
def formula_code(text: str, name: str = "<formula>") -> tuple[CodeType, set[str]]:
    """Compile a formula for evaluation with ``FORMULA_NAMES``; also return the names in it."""
    tree = _Shapes().visit(ast.parse(f"({text}\n)", name, "eval"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return compile(ast.fix_missing_locations(tree), name, "eval"), names


def is_known(text: str, names: Collection[str]) -> bool:
    """Return whether Python has all functions of a formula: MLX's C++ has more than `mlx.core`.

    ``names`` are the names without a dot that it may use.
    """
    nodes = [*ast.walk(ast.parse(f"({text}\n)", mode="eval"))]
    loops = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in names and node.id not in loops:
            return False
        match node:
            case ast.Attribute(ast.Name(name) | ast.Attribute(ast.Name("mx"), name), attribute):
                module = mx if name == "mx" else getattr(mx, name, None)
                if isinstance(module, ModuleType) and not hasattr(module, attribute):
                    return False
    return True


def lengths_of(places: Mapping[str, Sequence[Any]], values: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of axes, by the names that formulas use for them. ``places`` maps a name to
    an array and its axis."""
    return {name: values[array].shape[axis] for name, (array, axis, *_) in places.items()}


def _formula_function(name: str) -> Any:
    """Return a function as formulas use it: MLX's for arrays, Python's for numbers and lists."""
    of_arrays, of_lists = getattr(mx, name), getattr(builtins, name, None)
    of_numbers = getattr(np, name, math.erf)

    def call(*args: Any, **kwargs: Any) -> Any:
        if of_lists is not None and not isinstance(args[0], mx.array):
            return of_lists(*args, **kwargs)
        if args and all(isinstance(a, (bool, int, float)) for a in args):
            return np.asarray(of_numbers(*args)).item()
        return of_arrays(*args, **kwargs)

    return call


_NUMERIC = {n for n in dir(mx) if isinstance(getattr(np, n, None), np.ufunc)} | {"erf"}
_LISTS = {"abs", "all", "any", "max", "min", "prod", "sum"}
FORMULA_NAMES = {
    **{n: getattr(mx, n) for n in dir(mx) if not n.startswith("_")},
    **{n: _formula_function(n) for n in _NUMERIC | _LISTS},
    **{f.__name__: f for f in (bool, enumerate, float, int, len, range, zip)},
    "hint": lambda number: number,
    "mx": mx,
}
"""The names of formulas in addition to arguments and other entries."""
