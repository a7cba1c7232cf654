"""Builds formulas that the user did not write, as the syntax trees that others are parsed to."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

_LOAD = ast.Load()


def name(text: str) -> ast.expr:
    """Return a name."""
    return ast.Name(text, _LOAD)


def number(value: int) -> ast.expr:
    """Return an int; the tree of a negative one has a minus."""
    constant = ast.Constant(abs(value))
    return ast.UnaryOp(ast.USub(), constant) if value < 0 else constant


def attribute(array: str, of: str) -> ast.expr:
    """Return an attribute of an array, such as ``x.shape``."""
    return ast.Attribute(name(array), of, _LOAD)


def size(array: str, axis: int) -> ast.expr:
    """Return the size of an axis: ``x.shape[0]``."""
    return ast.Subscript(attribute(array, "shape"), number(axis), _LOAD)


def sizes(array: str, start: int, stop: int) -> ast.expr:
    """Return a part of a shape: ``x.shape[1:-2]``; 0 is the begin and the end."""
    bounds = [number(bound) if bound else None for bound in (start, stop)]
    shape = attribute(array, "shape")
    return ast.Subscript(shape, ast.Slice(*bounds), _LOAD) if start or stop else shape


def listed(items: Iterable[ast.expr]) -> ast.expr:
    """Return a list."""
    return ast.List([*items], _LOAD)


def added(first: ast.expr, *more: ast.expr) -> ast.expr:
    """Return a sum."""
    for one in more:
        first = ast.BinOp(first, ast.Add(), one)
    return first


def compared(left: ast.expr, sign: ast.cmpop, right: ast.expr) -> ast.expr:
    """Return a comparison."""
    return ast.Compare(left, [sign], [right])


def equal(left: ast.expr, right: ast.expr) -> ast.expr:
    """Return ``left == right``."""
    return compared(left, ast.Eq(), right)


def is_none(array: str) -> ast.expr:
    """Return ``x is None``."""
    return compared(name(array), ast.Is(), ast.Constant(None))


def joined(sign: ast.boolop, tests: Sequence[ast.expr]) -> ast.expr:
    """Return conditions joined by ``and`` or ``or``."""
    return ast.BoolOp(sign, [*tests]) if len(tests) > 1 else tests[0]
