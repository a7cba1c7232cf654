"""Formulas as syntax trees: substitution with simplification, and the union of several cases.

Trees are never changed: they share their parts. ``ast.unparse`` prints them, with parentheses only
where they are needed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

Term = ast.expr

NONE = ast.Constant(None)


class Undecided(Exception):
    """Raised if a condition cannot be decided."""


def number(value: float) -> Term:
    """Return a number; a negative one as the negation of a positive one."""
    if isinstance(value, float) and math.isnan(value):
        return ast.Name("nan", ast.Load())
    if not isinstance(value, bool) and (value < 0 or math.copysign(1.0, value) < 0):
        return ast.UnaryOp(ast.USub(), number(-value))
    if value == math.inf:
        return ast.Name("inf", ast.Load())
    return ast.Constant(value)


def name(text: str) -> Term:
    """Return a name, or the attribute of one: ``self.shape``."""
    found: Term = ast.parse(text, mode="eval").body
    return found


def same(a: ast.AST, b: ast.AST) -> bool:
    """Return whether two trees are equal."""
    return a is b or ast.dump(a) == ast.dump(b)


def text(term: Term) -> str:
    """Return the formula as text."""
    return ast.unparse(ast.fix_missing_locations(term))


def instantiate(term: Any, values: Mapping[str, Term]) -> Any:
    """Replace names by terms, decide the conditions that this decides, and simplify.

    Every name of the result is an argument that is not None.
    """
    match term:
        case list():
            return [instantiate(item, values) for item in term]
        case ast.Name(id=id):
            return values.get(id, term)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition = instantiate(test, values)
            try:
                chosen = body if decide(condition) else orelse
            except Undecided:
                parts = (instantiate(part, values) for part in (body, orelse))
                return ast.IfExp(condition, *parts)
            return instantiate(chosen, values)
        case ast.Call(func=ast.Name() as func, args=args, keywords=keywords):
            return ast.Call(func, *(instantiate(part, values) for part in (args, keywords)))
        case ast.AST():
            fields = {key: instantiate(value, values) for key, value in ast.iter_fields(term)}
            return _simplified(type(term)(**fields))
    return term


def decide(test: Term) -> bool:
    """Return the value of a condition; raise ``Undecided`` if it depends on the call."""
    match test:
        case ast.Constant(value=constant):
            return bool(constant)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return bool(items)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not decide(operand)
        case ast.BoolOp(op=op, values=values):
            stop = isinstance(op, ast.Or)
            undecided = False
            for value in values:
                try:
                    if decide(value) is stop:
                        return stop
                except Undecided:
                    undecided = True
            if undecided:
                raise Undecided
            return not stop
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=right)]):
            if isinstance(op, ast.Is | ast.IsNot) and right is None:
                return _is_none(left) is isinstance(op, ast.Is)
            if isinstance(left, ast.Constant) and isinstance(op, ast.Eq | ast.NotEq):
                return (left.value == right) is isinstance(op, ast.Eq)
    raise Undecided


def _is_none(term: Term) -> bool:
    return isinstance(term, ast.Constant) and term.value is None


def _is(term: ast.AST, value: int) -> bool:
    """Return whether a term is this int; a float would make floats of integers."""
    return isinstance(term, ast.Constant) and type(term.value) is int and term.value == value


def _simplified(term: Any) -> Any:
    """Remove neutral elements, and double signs."""
    match term:
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if _is(left, 1):
            return right
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right) if _is(right, 1):
            return left
        case ast.BinOp(left=left, op=ast.Add(), right=right) if _is(left, 0):
            return right
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right) if _is(right, 0):
            return left
        case ast.BinOp(left, ast.Add(), ast.UnaryOp(ast.USub(), right)):
            return ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left, ast.Sub(), ast.UnaryOp(ast.USub(), right)):
            return ast.BinOp(left, ast.Add(), right)
        case ast.Call(ast.Attribute(attr="broadcast_to"), [array, ast.Attribute(of, "shape")]) if (
            same(array, of)
        ):
            return array
        case ast.UnaryOp(ast.USub(), ast.UnaryOp(ast.USub(), operand)):
            return operand
        case ast.Compare(ast.Constant(None), [ast.Is()], [ast.Constant(None)]):
            return ast.Constant(True)
        case ast.UnaryOp(ast.Not(), ast.Constant(value)):
            return ast.Constant(not value)
    return term


def names(term: ast.AST) -> frozenset[str]:
    """Return the names of a tree."""
    return frozenset(node.id for node in ast.walk(term) if isinstance(node, ast.Name))


def calls(term: ast.AST) -> frozenset[str]:
    """Return the names of the functions that a tree calls."""
    called = (node.func for node in ast.walk(term) if isinstance(node, ast.Call))
    return frozenset(function.id for function in called if isinstance(function, ast.Name))


def size(term: ast.AST) -> int:
    """Return the number of names, constants, operations and calls of a tree."""
    return sum(isinstance(node, ast.expr) for node in ast.walk(term))


# -------------------------------------------------------------------------------------------------
# Cases
# -------------------------------------------------------------------------------------------------


def union(argument: Term, condition: Term, first: Term, second: Term) -> Term:
    """Return a term that is ``first`` if the condition holds, else ``second``.

    The condition is about an argument, and constants in the two terms that are its values become
    the argument itself. The condition moves to the only part that differs.
    """
    if same(first, second):
        return first
    if _values_of(argument, condition, first, second):
        return argument
    if isinstance(first, ast.IfExp) and same(first.test, argument) and same(first.orelse, second):
        return first  # None is false, too
    merged = _merged(argument, condition, first, second)
    return merged if merged is not None else ast.IfExp(condition, first, second)


def _values_of(argument: Term, condition: Term, first: Term, second: Term) -> bool:
    """Return whether two terms are the values of the argument in the two cases."""
    if same(condition, argument):  # a boolean
        return (_constant(first), _constant(second)) == ((True,), (False,))
    return same(first, argument) and _constant(second) == (None,)  # given, and not given


def _constant(term: Term) -> tuple[Any, ...]:
    return (term.value,) if isinstance(term, ast.Constant) else ()


def _merged(argument: Term, condition: Term, first: Any, second: Any) -> Any:
    """Return the union of two trees that differ in one part, or in values; else None."""
    if type(first) is not type(second) or isinstance(first, ast.Constant | ast.Name | ast.IfExp):
        return None
    if isinstance(first, ast.Call) and not same(first.func, second.func):
        return None
    fields = dict(ast.iter_fields(second))
    differing: list[str] = []
    parts: dict[str, Any] = {}
    for key, one in ast.iter_fields(first):
        other = fields[key]
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return None
            items = [_item(argument, condition, a, b) for a, b in zip(one, other, strict=True)]
            if None in [item for item, _ in items]:
                return None
            parts[key] = [item for item, _ in items]
            differing += [key for _, differs in items if differs]
        elif isinstance(one, ast.AST) and isinstance(other, ast.AST):
            part, differs = _item(argument, condition, one, other)
            if part is None:
                return None
            parts[key] = part
            differing += [key] if differs else []
        elif one != other:
            return None
        else:
            parts[key] = one
    return type(first)(**parts) if len(differing) <= 1 else None


def _item(argument: Term, condition: Term, one: Any, other: Any) -> tuple[Any, bool]:
    """Return the union of two parts, and whether it needs the condition."""
    if same(one, other):
        return one, False
    if isinstance(one, ast.keyword) and isinstance(other, ast.keyword):
        value, differs = _item(argument, condition, one.value, other.value)
        return (ast.keyword(one.arg, value) if one.arg == other.arg else None), differs
    if not (isinstance(one, ast.expr) and isinstance(other, ast.expr)):
        return None, False
    if _values_of(argument, condition, one, other):
        return argument, False
    merged = union(argument, condition, one, other)
    return merged, not _free(merged, condition)


def _free(term: Term, condition: Term) -> bool:
    """Return whether the condition occurs in no choice within the term."""
    return not any(
        isinstance(node, ast.IfExp) and same(node.test, condition) for node in ast.walk(term)
    )


# -------------------------------------------------------------------------------------------------
# Repeated parts
# -------------------------------------------------------------------------------------------------

_LEAST = 5  # size of a part that is worth a name
_OPERATORS = {
    ast.Add: "total",
    ast.Sub: "difference",
    ast.Mult: "product",
    ast.Div: "quotient",
    ast.Pow: "power",
    ast.MatMult: "product",
    ast.Gt: "above",
    ast.GtE: "above",
    ast.Lt: "below",
    ast.LtE: "below",
    ast.Eq: "equal",
    ast.NotEq: "unequal",
    ast.USub: "negative",
}
_FUNCTIONS = {
    "abs": "magnitude",
    "clip": "clipped",
    "exp": "exponential",
    "log": "logarithm",
    "log1p": "logarithm",
    "logsumexp": "log_total",
    "maximum": "larger",
    "minimum": "smaller",
    "reshape": "reshaped",
    "rsqrt": "scale",
    "sigmoid": "gate",
    "sqrt": "root",
    "square": "squares",
    "sum": "total",
    "tanh": "curve",
    "where": "chosen",
}


def named_parts(term: Term, taken: set[str], optional: set[str]) -> tuple[dict[str, Term], Term]:
    """Give names to the parts that a formula repeats; return them in order, and the rest.

    A part with an optional argument has no name, because its argument may be None outside of the
    condition around it.
    """
    parts: dict[str, Term] = {}
    while (part := _repeated(term, parts, optional)) is not None:
        label = _label(part, taken)
        taken.add(label)
        value = ast.Name(label, ast.Load())
        key = ast.dump(part)
        parts = {other: _replaced(each, key, value) for other, each in parts.items()}
        parts[label] = part
        term = _replaced(term, key, value)
    order = sorted(parts, key=lambda label: size(parts[label]))
    order = _by_use(parts, order)
    return {label: parts[label] for label in order}, term


def _by_use(parts: dict[str, Term], order: list[str]) -> list[str]:
    """Sort the names so that each one follows those in its term."""
    done: list[str] = []

    def add(label: str) -> None:
        for node in ast.walk(parts[label]):
            if isinstance(node, ast.Name) and node.id in parts and node.id not in done:
                add(node.id)
        if label not in done:
            done.append(label)

    for label in order:
        add(label)
    return done


def _repeated(term: Term, parts: dict[str, Term], optional: set[str]) -> Term | None:
    """Return the largest part that occurs twice."""
    counts: dict[str, int] = {}
    found: dict[str, Term] = {}
    for root in (term, *parts.values()):
        for node in ast.walk(root):
            usable = isinstance(node, ast.BinOp | ast.Call | ast.Compare | ast.UnaryOp)
            if usable and size(node) >= _LEAST:
                used = names(node)
                if used and not used & optional:
                    key = ast.dump(node)
                    counts[key] = counts.get(key, 0) + 1
                    found[key] = node  # type: ignore[assignment]
    repeated = [found[key] for key, count in counts.items() if count > 1]
    return max(repeated, key=size, default=None)


def _replaced(term: Any, key: str, value: Term) -> Any:
    if isinstance(term, list):
        return [_replaced(item, key, value) for item in term]
    if not isinstance(term, ast.AST):
        return term
    if isinstance(term, ast.expr) and ast.dump(term) == key:
        return value
    fields = {name: _replaced(part, key, value) for name, part in ast.iter_fields(term)}
    return type(term)(**fields)


def _label(part: Term, taken: set[str]) -> str:
    match part:
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.Compare(ops=[op]):
            label = _OPERATORS.get(type(op), "part")
        case ast.Call(func=ast.Attribute(attr=attr)) | ast.Call(func=ast.Name(id=attr)):
            label = _FUNCTIONS.get(attr, f"{attr}_value")
        case _:
            label = "part"
    numbers = (f"{label}{n}" for n in range(2, 100))
    return next(option for option in (label, *numbers) if option not in taken)
