"""Evaluates formulas of shapes, dtypes and attributes at generation time, for known shapes.

Such a formula was already translated to C++, so it contains only harmless Python. Operations that
can take long (powers, loops of many steps) and names without a known value make the result
unknown.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, SimpleNamespace
from typing import Any

from .dtypes import CATEGORIES, DTYPES

_STEPS = 1_000  # of all loops of a formula


class Impossible(Exception):
    """Raised if the formula fails for these values; the C++ would throw, too.

    ``reason`` is part of the name of a message about ``value``.
    """

    def __init__(self, reason: str, value: object = None) -> None:
        self.reason, self.value = reason, value


class ArrayFacts:
    """The properties of an array in formulas; without a dtype if it is unknown."""

    def __init__(self, shape: tuple[int, ...], dtype: str | None) -> None:
        self.shape, self.ndim, self.size = shape, len(shape), math.prod(shape)
        if dtype is not None:
            self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def itemsize(self) -> int:
        """The bytes of an element, which are part of a dtype's name, except for bool_."""
        return int("".join(filter(str.isdigit, self.dtype)) or 8) // 8

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize


def evaluated(tree: ast.expr, names: Mapping[str, Any], unknown: Any) -> Any:
    """Evaluate a formula; return ``unknown`` if its value is unknown.

    Raises:
        Impossible: An index is out of range, a divisor is zero, or shapes cannot be broadcast.
    """
    try:
        known = {**names, " steps": iter(range(_STEPS)), "__builtins__": _NAMES}
        return eval(_compiled(tree), known)
    except Impossible:
        raise
    except IndexError:
        raise Impossible("index") from None
    except Exception:  # for example a function that is unknown here
        return unknown


@lru_cache(1024)
def _compiled(tree: ast.expr) -> CodeType:
    python = ast.Expression(_Python().visit(copy.deepcopy(tree)))
    return compile(ast.fix_missing_locations(python), "<formula>", "eval")


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape that shapes broadcast to."""
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    extents = [set(column) - {1} or {1} for column in columns]
    if any(len(several) > 1 for several in extents):
        raise Impossible("shapes", shapes)
    return tuple(extent for (extent,) in extents)


def _loop(items: Iterable[Any], steps: Iterator[int]) -> Iterator[Any]:
    for item in items:
        next(steps)  # raises at the limit
        yield item


class _Python(ast.NodeTransformer):
    """Replaces lists by tuples, like shapes, and loops and operators by calls.

    The functions have a space in their names, so that formulas cannot contain these.
    """

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.Tuple(node.elts, ast.Load())

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        self.generic_visit(node)
        items = ast.GeneratorExp(node.elt, node.generators)
        return ast.Call(ast.Name("tuple", ast.Load()), [items], [])

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        loop, steps = (ast.Name(name, ast.Load()) for name in (" loop", " steps"))
        node.iter = ast.Call(loop, [node.iter, steps], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        operands = [ast.Constant(type(node.op).__name__), node.left, node.right]
        return ast.Call(ast.Name(" operate", ast.Load()), operands, [])


_OPERATORS = {"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv"}
_OPERATORS |= {"FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow"}


def _operate(sign: str, a: Any, b: Any) -> Any:
    if sign == "Mult" and not (isinstance(a, int | float) and isinstance(b, int | float)):
        raise LookupError  # a list, which could become very long
    if sign == "Pow" and not (isinstance(a, int) and abs(a) < 2**32 and b in range(64)):
        raise LookupError  # a slow computation, or a float
    if sign in ("FloorDiv", "Mod") and b == 0 and isinstance(a, int) and isinstance(b, int):
        raise Impossible("division")
    return getattr(operator, _OPERATORS[sign])(a, b)


_PYTHON = "abs all any bool enumerate float int len max min sum tuple zip".split()  # noqa: SIM905
_NAMES: dict[str, Any] = {
    **{name: getattr(builtins, name) for name in _PYTHON},
    **{name: getattr(math, name) for name in ("ceil", "exp", "floor", "log", "log2", "sqrt")},
    **{"minimum": min, "maximum": max, "prod": math.prod, "broadcast_shapes": broadcast},
    **{name: name for name in DTYPES},
    **CATEGORIES,
    "sorted": lambda numbers: tuple(sorted(numbers)),
    "range": lambda *ends: tuple(_loop(range(*ends), iter(range(_STEPS)))),
    "hint": lambda number: number,
    "issubdtype": lambda dtype, kind: dtype in kind if isinstance(kind, tuple) else dtype == kind,
    " operate": _operate,
    " loop": _loop,
}
_NAMES["mx"] = SimpleNamespace(**_NAMES)
