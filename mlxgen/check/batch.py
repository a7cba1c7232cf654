"""Checks that formulas of shapes stay valid if `vmap: batch` adds an axis in front of every array.

The operator was first called without the batch, so a formula may rely on the checks and on indices
that were in range. With a batch, the value of a formula is the same or changes in one of the ways
below. A formula is rejected unless its change is known: for example `x.shape[0]`, which becomes the
size of the batch, and conditions that may become false. In formulas of the launch, sizes count as
unchanged, because a launch always uses the sizes of whole arrays.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from ..formula.explain import Wrong
from ..formula.source import Formula, FormulaText, parsed
from ..model.op import Arguments, Parameter
from ..read.keys import KernelEntry
from .context import Context, Path
from .results import by_output

SAME = "same"
FRONT = "front"  # a shape that gets a leading axis
COUNT = "count"  # a rank: it increases by one
TOTAL = "total"  # a number such as x.size, which is multiplied by the size of the batch
MORE = "more"  # a number that does not decrease, or a condition that stays true
LESS = "less"  # a number that does not increase, or a condition that stays false
ARRAY, ARRAYS = "array", "arrays"

_OF_ARRAYS = {"shape": FRONT, "ndim": COUNT, "size": TOTAL, "nbytes": TOTAL}
_OF_ARRAYS |= {"dtype": SAME, "itemsize": SAME}
_TRENDS = {SAME: 0, COUNT: 1, TOTAL: 1, MORE: 1, LESS: -1}
_RISING = {0: SAME, 1: MORE, -1: LESS}


class _Varies(Exception):
    """Raised for a part whose value may change with a batch; ``key`` selects the help."""

    def __init__(self, at: ast.expr, key: str = "", condition: str = "") -> None:
        self.at, self.key, self.condition = at, key, condition


def check_batch(context: Context, arguments: Arguments) -> None:
    """Report formulas whose values may be wrong with a batch."""
    formula = _Formula(context, arguments.arrays)
    for path, text, allowed in _formulas(context):
        formula.in_launch = path[0] == "dispatch"
        formula.kinds.clear()
        try:
            tree = context.expanded(text)
            kind = formula.kind(tree)
            if kind not in allowed:
                raise _Varies(tree, {"shape": "shape", "checks": "ndim"}.get(str(path[0]), ""))
        except _Varies as wrong:
            whole = tree is not parsed(text)  # the part may be in a `let`
            at, kind = FormulaText(text).span(None if whole else wrong.at), SAME
            key = "" if wrong.key == "ndim" and path[0] != "checks" else wrong.key
            context.error("vmap_formula", path, key, at=at, condition=wrong.condition)
        except (Wrong, RecursionError):
            continue  # reported elsewhere
        if path[2:3] == ("constants",):
            formula.names[str(path[3])] = kind


def _formulas(context: Context) -> Iterator[tuple[Path, str, Sequence[str]]]:
    """Yield the entry's formulas of shapes, and the changes that each allows."""
    for key, allowed in (("shape", (FRONT,)), ("dtype", (SAME,))):
        given, keys = getattr(context.raw, key), context.keys(key)
        if isinstance(given, str):
            yield (key,), given, allowed
        else:
            yield from (((key, of), given[of], allowed) for of in keys.values())
    for i, check in enumerate(context.raw.checks):
        yield ("checks", i, "that"), check.that, (SAME, MORE)
    metal = context.raw.dispatch.get("metal") if isinstance(context.raw.dispatch, dict) else None
    for path, text in _launch(metal) if isinstance(metal, KernelEntry) else ():
        yield ("dispatch", "metal", *path), text, (SAME, COUNT)


def _launch(metal: KernelEntry) -> Iterator[tuple[Path, str]]:
    """Yield the formulas of the launch, the constants that others use first."""
    yield from ((("constants", name), text) for name, text in metal.constants.items())
    for key, texts in (("grid", metal.grid), ("threadgroup", metal.threadgroup)):
        yield from (((key, i), text) for i, text in enumerate(texts or ()))
    yield from ((("template", name, "of"), given.of) for name, given in metal.template.items())


class _Formula:
    """The analysis of an entry's formulas: how the value of each part changes with a batch."""

    def __init__(self, context: Context, arrays: Sequence[Parameter]) -> None:
        self.names = {p.name: ARRAYS if p.is_list else ARRAY for p in arrays}
        self.names |= dict.fromkeys(context.output_names, ARRAY)
        self.optional = {p.name for p in arrays if p.type.optional}
        self.lengths = context.axes.lengths
        self.in_launch = False
        self.kinds: dict[ast.expr, str] = {}  # of the parts of one formula, which may share parts
        # The minimum rank of each array.
        self.ranks: defaultdict[str, int] = defaultdict(int)
        for name, several in context.axes.of.items():
            self.ranks[name] = min(len(axes.names) - 1 for axes in several)
        checks = [_tree(context, check.that) for check in context.raw.checks]
        given = by_output(context, "shape").items()
        shapes = {name: _tree(context, formula) for name, formula in given}
        found = [*map(_least, checks), *map(_needed, shapes.values())]
        for name, least in chain.from_iterable(found):
            self.ranks[name] = max(self.ranks[name], least)
        for name, shape in shapes.items():
            self.ranks[name] = max(self.ranks[name], self.length(shape))

    def kind(self, node: ast.expr) -> str:
        """Return how the value of a part changes with a batch."""
        if node not in self.kinds:
            self.kinds[node] = self._kind(node)
        return self.kinds[node]

    def _kind(self, node: ast.expr) -> str:
        match node:
            case ast.Name(name):
                if name in self.lengths and name not in self.names:
                    if self.lengths[name].axis >= 0:
                        raise _Varies(node)
                    return SAME
                return self.names.get(name, SAME)
            case ast.Attribute(value, name) if self.kind(value) == ARRAY and name in _OF_ARRAYS:
                return SAME if self.in_launch and _OF_ARRAYS[name] == TOTAL else _OF_ARRAYS[name]
            case ast.Subscript():
                return self.item(node)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand) if not isinstance(
                operand, ast.Constant
            ):
                return _RISING[-self.trend(operand)]
            case ast.BoolOp(_, values):
                return self.joint(values, node)
            case ast.BinOp():
                return self.joined(node)
            case ast.Compare():
                return self.compared(node)
            case ast.IfExp(test, yes, no):
                self.same(test)
                kinds = {self.kind(yes), self.kind(no)}
                return kinds.pop() if len(kinds) == 1 else self.joint([yes, no], node)
            case ast.Tuple(items) | ast.List(items):
                return self.listed(items)
            case ast.ListComp() | ast.GeneratorExp():
                over, each = self.comprehension(node)
                if over == FRONT or each not in (SAME, ARRAY):
                    raise _Varies(node)
                return ARRAYS if each == ARRAY else SAME
            case ast.Call():
                return self.call(node)
        self.same(*(part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)))
        return SAME

    def same(self, *nodes: ast.expr) -> None:
        """Require that the values of parts do not change with a batch."""
        for node in nodes:
            if self.kind(node) != SAME:
                raise _Varies(node)

    def trend(self, node: ast.expr) -> int:
        """Return 1 for a number that may increase, -1 for one that may decrease, else 0."""
        kind = self.kind(node)
        if kind not in _TRENDS:
            raise _Varies(node)
        return _TRENDS[kind]

    def joint(self, nodes: Sequence[ast.expr], at: ast.expr) -> str:
        """Return how a sum, a maximum or one of several numbers changes."""
        trends = {self.trend(node) for node in nodes} - {0}
        if len(trends) > 1:
            raise _Varies(at)
        return _RISING[trends.pop() if trends else 0]

    def least(self, node: ast.expr) -> float:
        """Return a lower bound of a rank."""
        match node:
            case ast.Constant(int(number)):
                return number
            case ast.Attribute(value, "ndim"):
                return self.ranks[ast.unparse(value)]
            case ast.Call(ast.Name("len"), [shape]):
                return self.length(shape)
            case ast.BinOp(a, ast.Add(), b):
                return self.least(a) + self.least(b)
            case ast.BinOp(a, ast.Sub(), ast.Constant(int(number))):
                return self.least(a) - number
        return -math.inf

    def length(self, shape: ast.expr) -> int:
        """Return a lower bound of a shape's length."""
        match shape:
            case ast.Attribute(value, "shape"):
                return self.ranks[ast.unparse(value)]
            case ast.BinOp(a, ast.Add(), b):
                return self.length(a) + self.length(b)
            case ast.Tuple(items) | ast.List(items):
                stars = [self.length(i.value) - 1 for i in items if isinstance(i, ast.Starred)]
                return len(items) + sum(stars)
            case ast.Subscript(whole, ast.Slice(None, ast.expr() as upper, None)):
                number = _from_end(upper)
                return max(self.length(whole) - number, 0) if number else 0
        return 0

    def from_end(self, index: ast.expr, shape: ast.expr, bound: bool) -> bool:
        """Return whether an index, or the bound of a slice, counts from the end of a shape."""
        array = ast.unparse(shape).removesuffix(".shape")
        if number := _from_end(index):
            if bound and self.length(shape) < number:
                condition = f"{array}.ndim >= {number}"
                if array in self.optional:
                    condition = f"{array} is None or {condition}"
                known = array.partition("[")[0] in self.names and isinstance(shape, ast.Attribute)
                raise _Varies(index, "least" if known else "index", condition)
            return True
        if self.kind(index) != COUNT:
            return False
        # Without axes, indexing the last one is an error, but a slice up to it is valid.
        return self.least(index) >= 0 or (ast.unparse(index) == f"{array}.ndim - 1" and not bound)

    def item(self, node: ast.Subscript) -> str:
        """Return the change of ``x.shape[-1]`` or ``x.shape[:-1]``."""
        listed, index = self.kind(node.value), node.slice
        if listed != FRONT:
            if isinstance(index, ast.Slice):
                self.same(*(part for part in (index.lower, index.upper, index.step) if part))
            else:
                self.same(index)
            if listed not in (SAME, ARRAYS):
                raise _Varies(node, "index")
            return ARRAY if listed == ARRAYS and not isinstance(index, ast.Slice) else listed
        if not isinstance(index, ast.Slice):
            if self.from_end(index, node.value, False):
                return SAME
            raise _Varies(node, "index")
        lower, upper = index.lower, index.upper
        begins = lower is None or (isinstance(lower, ast.Constant) and lower.value in (0, None))
        for bound in (None if begins else lower, upper):
            if bound is not None and not self.from_end(bound, node.value, True):
                raise _Varies(node, "index")
        if index.step is not None:
            raise _Varies(node, "index")
        return FRONT if begins else SAME

    def joined(self, node: ast.BinOp) -> str:
        """Return the change of ``a + b`` and other operators on numbers or lists."""
        a, b = kinds = self.kind(node.left), self.kind(node.right)
        match node.op:
            case ast.Add() if kinds == (FRONT, SAME):
                return FRONT
            case ast.Sub() if kinds == (COUNT, COUNT):
                return SAME
            case ast.Add() | ast.Sub() if kinds == (COUNT, SAME):
                return COUNT
            case ast.Add() if kinds in ((SAME, COUNT), (TOTAL, TOTAL)):
                return b
            case ast.Add() if FRONT not in kinds:
                return self.joint([node.left, node.right], node)
            case ast.Sub() if FRONT not in kinds and a != TOTAL != b:
                return self.joint([node.left, ast.UnaryOp(ast.USub(), node.right)], node)
            case ast.Sub() if kinds == (TOTAL, SAME):
                return MORE
            case ast.Sub() if kinds == (SAME, TOTAL):
                return LESS
            case ast.FloorDiv() | ast.Div() if kinds == (TOTAL, TOTAL):
                return SAME
            case ast.Mult() if a == SAME != b and self.positive(node.left):
                return b if b == TOTAL else _RISING[self.trend(node.right)]
            case ast.Mult() if b == SAME != a and self.positive(node.right):
                return a if a == TOTAL else _RISING[self.trend(node.left)]
            case ast.Mult() if kinds == (TOTAL, TOTAL):
                return MORE
            case ast.FloorDiv() | ast.Div() if b == SAME and self.positive(node.right):
                return _RISING[self.trend(node.left)]
        if kinds != (SAME, SAME):
            raise _Varies(node, "shape" if FRONT in kinds else "")
        return SAME

    def positive(self, node: ast.expr) -> bool:
        """Return whether a number is known not to be negative, such as the size of an axis."""
        match node:
            case ast.Constant(value):
                return isinstance(value, int | float) and value >= 0
            case ast.Name(name):
                return name in self.lengths and name not in self.names
            case ast.Attribute(_, name):
                return name in ("size", "ndim", "nbytes", "itemsize")
            case ast.Subscript(shape) | ast.Call(ast.Name("prod"), [shape]):
                return self._is_shape(shape)
            case ast.BinOp(a, ast.Add() | ast.Mult() | ast.FloorDiv(), b):
                return self.positive(a) and self.positive(b)
            case ast.Call(ast.Name("max"), several):
                return any(map(self.positive, several))
        return False

    def _is_shape(self, node: ast.expr) -> bool:
        """Return whether the node is the shape of an array, or a slice of it."""
        match node:
            case ast.Attribute(value, "shape"):
                return self.kind(value) == ARRAY
            case ast.Subscript(shape, ast.Slice()):
                return self._is_shape(shape)
        return False

    def compared(self, node: ast.Compare) -> str:
        """Return the change of ``x.shape == y.shape`` or ``x.ndim >= 2``."""
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return SAME
        found = {0}
        sides = [node.left, *node.comparators]
        kinds = [self.kind(side) for side in sides]
        for op, left, right, a, b in zip(
            node.ops, sides, sides[1:], kinds, kinds[1:], strict=False
        ):
            if isinstance(op, ast.In | ast.NotIn):
                self.same(left, right)
            elif a == b and a in (SAME, FRONT, COUNT, TOTAL):
                found.add(0)
            elif isinstance(op, ast.Eq | ast.NotEq) or not {a, b} <= _TRENDS.keys():
                raise _Varies(node, "ndim" if COUNT in (a, b) else "")
            else:
                sign = 1 if isinstance(op, ast.Gt | ast.GtE) else -1
                found |= {sign * _TRENDS[a], -sign * _TRENDS[b]}
        if len(found - {0}) > 1:
            raise _Varies(node)
        return _RISING[max(found, key=abs)]

    def listed(self, items: Sequence[ast.expr]) -> str:
        """Return the change of a tuple or list."""
        parts = [i.value if isinstance(i, ast.Starred) else i for i in items]
        kinds = {self.kind(part) for part in parts}
        if kinds == {ARRAY}:
            return ARRAYS
        front = items and isinstance(items[0], ast.Starred) and self.kind(parts[0]) == FRONT
        self.same(*parts[bool(front) :])
        return FRONT if front else SAME

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> tuple[str, str]:
        """Return the changes of ``arrays`` and of the items in ``[f(a) for a in arrays]``."""
        loop, before = node.generators[0], dict(self.names)
        over = self.kind(loop.iter)
        if over not in (ARRAYS, FRONT, SAME):
            raise _Varies(loop.iter)
        try:
            for target in ast.walk(loop.target):
                if isinstance(target, ast.Name):
                    self.names[target.id] = ARRAY if over == ARRAYS else SAME
            self.same(*loop.ifs)
            each = self.kind(node.elt)
            if over == FRONT and each != SAME:
                raise _Varies(node)
            return over, each
        finally:
            self.names = before

    def call(self, node: ast.Call) -> str:
        """Return the change of ``len(x.shape)``, ``prod(x.shape[:-1])`` or ``max(n, 1)``."""
        function = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        function = node.func.id if isinstance(node.func, ast.Name) else function
        args = [arg.value if isinstance(arg, ast.Starred) else arg for arg in node.args]
        args += [keyword.value for keyword in node.keywords]
        match function, args:
            case "all" | "any" | "max" | "min" | "sum", [
                ast.ListComp() | ast.GeneratorExp() as one
            ]:
                over, each = self.comprehension(one)
                if each not in _TRENDS or (over == FRONT and function not in ("all", "any")):
                    raise _Varies(node)
                rising = {"any": MORE, "all": LESS} if over == FRONT else {}
                return rising.get(function, _RISING[_TRENDS[each]])
        kinds = [self.kind(arg) for arg in args]
        match function, kinds:
            case "len", ["array"]:
                raise _Varies(node, "index")
            case "len", ["front"]:
                return COUNT
            case "len", ["arrays"]:
                return SAME
            case "prod", ["front"]:
                return SAME if self.in_launch else TOTAL
            case "sum" | "max", ["front"]:
                return MORE
            case "min", ["front"]:
                return LESS
            case "max" | "min" | "maximum" | "minimum", [kind, _, *_]:
                alike = {*kinds} in ({COUNT}, {TOTAL})
                return kind if alike else self.joint(args, node)
            case "int" | "float" | "hint", [kind] if kind in _TRENDS:
                return kind
            case "result_type" | "issubdtype", _ if {*kinds} <= {SAME, ARRAY, ARRAYS}:
                return SAME
            case "zip" | "enumerate", _ if {*kinds} <= {SAME, ARRAYS}:
                return ARRAYS if ARRAYS in kinds else SAME
            case "zip", _ if {*kinds} == {FRONT}:
                return FRONT
        self.same(*args)
        if isinstance(node.func, ast.Attribute):
            self.same(node.func.value)
        return SAME


def _from_end(index: ast.AST) -> int | None:
    """Return n for the constant index -n, else None."""
    match index:
        case ast.UnaryOp(ast.USub(), ast.Constant(int(number))):
            return number
    return None


def _tree(context: Context, formula: Formula) -> ast.expr:
    """Return the tree of a formula; an invalid one, which is reported elsewhere, counts as None."""
    try:
        return context.expanded(formula) if isinstance(formula, str) else formula
    except (Wrong, RecursionError):
        return ast.Constant(None)


def _least(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield lower bounds of ranks, by array, that follow from a true condition."""
    match node:
        case ast.BoolOp(ast.And(), values):
            for value in values:
                yield from _least(value)
        case ast.BoolOp(ast.Or(), [ast.Compare(ast.Name(name), [ast.Is()]), value]):
            yield from (found for found in _least(value) if found[0] == name)
        case ast.Compare(ast.Attribute(value, "ndim"), [op], [ast.Constant(int(number))]):
            if isinstance(op, ast.Gt | ast.GtE | ast.Eq):
                yield ast.unparse(value), number + isinstance(op, ast.Gt)
        case _:
            yield from _needed(node)


def _needed(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield lower bounds of ranks, by array, that follow from indices that are always computed."""
    match node:
        case ast.Subscript(ast.Attribute(value, "shape"), index) if number := _from_end(index):
            yield ast.unparse(value), number
        case ast.BoolOp(_, [first, *_]) | ast.IfExp(first):
            yield from _needed(first)
        case ast.Compare(left, _, [right, *_]):
            yield from _needed(left)
            yield from _needed(right)
        case ast.ListComp() | ast.GeneratorExp():
            return
        case _:
            for part in ast.iter_child_nodes(node):
                yield from _needed(part)
