"""The mutants of a formula, with one change each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

FACTOR = 1.001

_OTHER: Mapping[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_SIGNS: dict[type, str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_SIGNS |= {ast.Add: "+", ast.Sub: "-", ast.BitAnd: "&", ast.BitOr: "|"}
_SIGNS |= {ast.And: "and", ast.Or: "or"}
_FUNCTIONS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
_TERMS = (ast.Add, ast.Sub)


@dataclass(frozen=True)
class Mutant:
    """A formula with one change, and a description of the change."""

    name: str
    text: str


def mutants(text: str, alike: Collection[Collection[str]], joint: bool = False) -> list[Mutant]:
    """Return the formulas that differ from a formula in one place.

    Args:
        text: The formula.
        alike: Groups of names of the same kind, which can replace each other.
        joint: True for a formula of several gradients, each of which is also mutated as a whole.
    """
    tree = ast.parse(f"({text}\n)", mode="eval")
    plain = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        for what, new in _changes(node, node is tree.body and not joint, alike):
            changed = ast.unparse(_replaced(tree, node, new))
            if isinstance(node, ast.Name | ast.Constant) and node is not tree.body:
                what += f" in `{ast.unparse(parents[node])}`"
            if changed != plain:
                found.setdefault(changed, Mutant(what, changed))
    seen = Counter[str]()
    for changed, mutant in found.items():
        seen[mutant.name] += 1
        if seen[mutant.name] > 1:
            found[changed] = Mutant(f"{mutant.name} ({seen[mutant.name]})", changed)
    return list(found.values())


def _replaced(tree: ast.Expression, node: ast.AST, new: ast.AST) -> ast.Expression:
    """Return a copy of the tree with one node replaced."""

    class Replace(ast.NodeTransformer):
        def visit(self, at: ast.AST) -> ast.AST:
            return copy.deepcopy(new) if at is node else super().visit(at)

    # The transformer changes the tree that it visits; the original is restored from the copy.
    kept = copy.deepcopy(tree)
    pairs = dict(zip(map(id, ast.walk(tree)), ast.walk(kept), strict=True))
    node = pairs[id(node)]
    changed = Replace().visit(kept)
    assert isinstance(changed, ast.Expression)
    return ast.fix_missing_locations(changed)


def _changes(
    node: ast.AST, is_whole: bool, alike: Collection[Collection[str]]
) -> Iterator[tuple[str, ast.AST]]:
    """Yield the replacements of a part of a formula, described in words and as a tree."""
    if not isinstance(node, ast.expr):
        return
    here = f"`{ast.unparse(node)}`"
    if is_whole:
        yield f"the sign of {here}", ast.UnaryOp(ast.USub(), node)
        yield f"{FACTOR} times {here}", _times(node)
    match node:
        case ast.BinOp(left, op, right):
            if type(op) in _OTHER:
                yield _swap(op, here), ast.BinOp(left, _OTHER[type(op)](), right)
            if isinstance(op, _TERMS):
                yield f"without `{ast.unparse(right)}` in {here}", left
                rest = ast.UnaryOp(ast.USub(), right) if isinstance(op, ast.Sub) else right
                yield f"without `{ast.unparse(left)}` in {here}", rest
                yield f"{FACTOR} times `{ast.unparse(left)}`", ast.BinOp(_times(left), op, right)
                yield f"{FACTOR} times `{ast.unparse(right)}`", ast.BinOp(left, op, _times(right))
            elif isinstance(op, ast.Mult | ast.Div):
                yield f"without `{ast.unparse(right)}` in {here}", left
                if isinstance(op, ast.Mult):
                    yield f"without `{ast.unparse(left)}` in {here}", right
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield f"without the sign of {here}", operand
        case ast.BoolOp(op, values):
            yield _swap(op, here), ast.BoolOp(_OTHER[type(op)](), values)
        case ast.Compare(left, [op], right) if type(op) in _OTHER:
            yield _swap(op, here), ast.Compare(left, [_OTHER[type(op)]()], right)
        case ast.IfExp(_, body, orelse):
            yield f"`{ast.unparse(body)}` always, in {here}", body
            yield f"`{ast.unparse(orelse)}` always, in {here}", orelse
        case ast.Call(ast.Name(name), args, keywords) if name in _FUNCTIONS:
            other = _FUNCTIONS[name]
            yield f"{other} in {here}", ast.Call(ast.Name(other), args, keywords)
        case ast.Constant(bool(value)):
            yield f"{not value} for {value}", ast.Constant(not value)
        case ast.Constant(int(value)):
            yield f"{value + 1} for {value}", ast.Constant(value + 1)
        case ast.Constant(float(value)):
            yield f"{FACTOR} times {value}", ast.Constant(value * FACTOR)
        case ast.Name(name):
            for group in alike:
                for other in sorted(set(group) - {name}) if name in group else ():
                    yield f"`{other}` for `{name}`", ast.Name(other)


def _times(node: ast.expr) -> ast.expr:
    return ast.BinOp(ast.Constant(FACTOR), ast.Mult(), node)


def _swap(op: ast.AST, here: str) -> str:
    return f"{_SIGNS[_OTHER[type(op)]]} for {_SIGNS[type(op)]} in {here}"
