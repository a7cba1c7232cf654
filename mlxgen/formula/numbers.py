"""Formulas of shapes, dtypes and attributes, evaluated when generating.

Such a formula was translated to C++, so that it is harmless Python; here it is evaluated for known
shapes. What takes long, or is not known of a call, gives no result.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..model.dtypes import CATEGORIES, DTYPES
from .source import Source

_MANY = 100  # items of a range: some may be inside each other
_LONG = 10_000  # items of a list, bits of a number


class Impossible(Exception):
    """What a formula asks for cannot be had: C++ would throw as well."""


class _Unknown(Exception):
    """What a formula asks for is not known."""


@dataclass(frozen=True)
class ArrayFacts:
    """What formulas of shapes and dtypes know of an array."""

    shape: tuple[int, ...]
    known_dtype: str | None  # None where it is not known

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        if self.known_dtype is None:
            raise _Unknown
        return self.known_dtype

    def __len__(self) -> int:
        return self.shape[0]


def evaluated(text: str, names: Mapping[str, Any], unknown: Any) -> Any:
    """What a formula gives, or ``unknown``.

    Raises:
        Impossible: An index out of range, a division by zero, shapes that do not broadcast.
    """
    tree = ast.Expression(_Python().visit(Source(text).parse()))
    code = compile(ast.fix_missing_locations(tree), "<formula>", "eval")
    try:
        return eval(code, {**_NAMES, **names, "__builtins__": {}})
    except Impossible:
        raise
    except IndexError:
        raise Impossible("an index is out of range") from None
    except Exception:  # for example a function that is not known here
        return unknown


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that others broadcast to."""
    rank = max(map(len, shapes), default=0)
    out = []
    for extents in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        several = set(extents) - {1}
        if len(several) > 1:
            listed = ", ".join(str(tuple(shape)) for shape in shapes)
            raise Impossible(f"the shapes {listed} do not broadcast")
        out.append(several.pop() if several else 1)
    return tuple(out)


class _Python(ast.NodeTransformer):
    """Lists become tuples, as shapes are, and what may take long goes through ``_operate``."""

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.Tuple(node.elts, ast.Load())

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        self.generic_visit(node)
        items = ast.GeneratorExp(node.elt, node.generators)
        return ast.Call(ast.Name("tuple", ast.Load()), [items], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        sign = ast.Constant(type(node.op).__name__)
        called = ast.Name(" operate", ast.Load())  # no name of a formula
        return ast.Call(called, [sign, node.left, node.right], [])


def _power(a: Any, b: Any) -> Any:
    if abs(b) > 64 or (isinstance(a, int) and a.bit_length() * b > _LONG):
        raise _Unknown
    return a**b


def _times(a: Any, b: Any) -> Any:
    for many, few in ((a, b), (b, a)):
        if isinstance(few, tuple | str) and many * len(few) > _LONG:
            raise _Unknown
    return a * b


def _whole(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def divide(a: Any, b: Any) -> Any:
        if b == 0 and isinstance(a, int) and isinstance(b, int):
            raise Impossible("a division by zero")
        return operate(a, b)

    return divide


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mult": _times,
    "Div": lambda a, b: a / b,
    "Pow": _power,
    "FloorDiv": _whole(lambda a, b: a // b),
    "Mod": _whole(lambda a, b: a % b),
}


def _range(*limits: int) -> tuple[int, ...]:
    found = range(*limits)
    if len(found) > _MANY:
        raise _Unknown
    return tuple(found)


_MATH = """exp expm1 log log2 log10 log1p sqrt erf sin cos tan sinh cosh tanh floor ceil trunc pi e
    inf nan prod""".split()  # noqa: SIM905
_PYTHON = "abs all any bool enumerate float int len max min round sum tuple zip".split()  # noqa: SIM905
_NAMES: dict[str, Any] = {
    **{name: getattr(math, name) for name in _MATH},
    **{name: getattr(builtins, name) for name in _PYTHON},
    **{"range": _range, "minimum": min, "maximum": max, "broadcast_shapes": broadcast},
    **{name: name for name in DTYPES},
    **CATEGORIES,
    "issubdtype": lambda dtype, kind: dtype in kind if isinstance(kind, tuple) else dtype == kind,
    " operate": lambda sign, a, b: _OPERATORS[sign](a, b),
}
_NAMES["mx"] = SimpleNamespace(**_NAMES)
