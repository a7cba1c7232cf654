"""Whether formulas of shapes hold with a batch axis in front of every array, as `vmap: batch` calls
the operator.

A value is the same then, or it differs in one of the ways below; what differs otherwise, such as
``x.shape[0]``, is the batch's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from ..formula.explain import Wrong
from ..formula.source import Source, parsed
from ..model.op import Length
from ..read.keys import KernelEntry
from .context import Context, Path
from .results import texts_by_output

SAME = "same"
FRONT = "front"  # a shape, with one length more in front
COUNT = "count"  # a number of axes: one more
TOTAL = "total"  # a number that grows with the batch, such as x.size
ARRAY, ARRAYS = "array", "arrays"

_OF_ARRAYS = {"shape": FRONT, "ndim": COUNT, "size": TOTAL, "nbytes": TOTAL}
_AT_LEAST = (ast.Gt, ast.GtE)
_AT_MOST = (ast.Lt, ast.LtE)


class _Varies(Exception):
    """A part that is another one with a batch; ``key`` of what to write instead."""

    def __init__(self, at: ast.expr, key: str = "") -> None:
        self.at, self.key = at, key


def check_batch(context: Context) -> None:
    """Report formulas that are wrong for a batch."""
    names = {p.name: ARRAYS if p.is_list else ARRAY for p in context.arrays}
    launch = {**names, **dict.fromkeys(context.output_names, ARRAY)}
    for path, text, allowed in _formulas(context):
        known = launch if path[0] == "dispatch" else names
        try:
            tree = parsed(text)
            kind = _Formula(known, context.axes.lengths).kind(tree)
            if kind not in allowed:
                raise _Varies(tree, "shape" if allowed == (FRONT,) else "")
        except _Varies as wrong:
            at = Source(text).span(wrong.at)
            context.error("vmap_formula", path, wrong.key, at=at)
        except (Wrong, RecursionError):
            continue  # which is reported


def _formulas(context: Context) -> Iterator[tuple[Path, str, Sequence[str]]]:
    """Formulas of shapes that the entry writes, and how their values may differ."""
    for key, allowed in (("shape", (FRONT,)), ("dtype", (SAME,))):
        given, keys = getattr(context.raw, key), context.keys(key)
        texts = texts_by_output(context, key)
        texts = dict(list(texts.items())[:1]) if isinstance(given, str) else texts
        for name, text in texts.items():
            if given is not None and (isinstance(given, str) or name in keys):
                yield ((key,) if isinstance(given, str) else (key, keys[name])), text, allowed
    for i, check in enumerate(context.raw.checks):
        yield ("checks", i, "that"), check.that, (SAME,)
    metal = context.raw.dispatch.get("metal") if isinstance(context.raw.dispatch, dict) else None
    for path, text in _launch(metal) if isinstance(metal, KernelEntry) else ():
        yield ("dispatch", "metal", *path), text, (SAME, COUNT, TOTAL)


def _launch(metal: KernelEntry) -> Iterator[tuple[Path, str]]:
    for key, texts in (("grid", metal.grid), ("threadgroup", metal.threadgroup)):
        yield from (((key, i), text) for i, text in enumerate(texts or ()))
    yield from ((("constants", name), text) for name, text in metal.constants.items())
    yield from ((("template", name, "of"), given.of) for name, given in metal.template.items())


class _Formula:
    """How the parts of a formula differ."""

    def __init__(self, names: Mapping[str, str], lengths: Mapping[str, Length]) -> None:
        self.names, self.lengths = dict(names), lengths

    def kind(self, node: ast.expr) -> str:
        """How a part differs with a batch."""
        match node:
            case ast.Name(name):
                if name in self.lengths and name not in self.names:
                    if self.lengths[name].axis >= 0:
                        raise _Varies(node)
                    return SAME
                return self.names.get(name, SAME)
            case ast.Attribute(value, name):
                return _OF_ARRAYS.get(name, SAME) if self.kind(value) == ARRAY else SAME
            case ast.Subscript():
                return self.item(node)
            case ast.BinOp():
                return self.joined(node)
            case ast.Compare():
                return self.compared(node)
            case ast.IfExp(test, yes, no):
                self.same(test)
                kinds = {self.kind(yes), self.kind(no)}
                return self.one_of(kinds, node)
            case ast.Tuple(items) | ast.List(items):
                return self.listed(items, node)
            case ast.ListComp() | ast.GeneratorExp():
                return self.comprehension(node)
            case ast.Call():
                return self.call(node)
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return self.one_of({self.kind(part) for part in parts}, node)

    def same(self, *nodes: ast.expr) -> None:
        """Hold that parts are the same with a batch."""
        for node in nodes:
            if self.kind(node) in (FRONT, COUNT, TOTAL):
                raise _Varies(node)

    def one_of(self, kinds: set[str], node: ast.expr) -> str:
        """How several numbers, or one of them, differ."""
        kinds = kinds - {SAME} if kinds <= {SAME, TOTAL} else kinds
        if len(kinds) > 1:
            raise _Varies(node)
        return kinds.pop() if kinds else SAME

    def from_end(self, node: ast.expr | None) -> bool:
        """Whether an index counts from the end."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.kind(node.operand) == SAME
        return node is not None and self.kind(node) == COUNT

    def item(self, node: ast.Subscript) -> str:
        """``x.shape[-1]``, ``x.shape[:-1]``"""
        listed, index = self.kind(node.value), node.slice
        if listed == ARRAYS:
            return ARRAYS if isinstance(index, ast.Slice) else ARRAY
        if listed != FRONT:
            if isinstance(index, ast.Slice):
                self.same(*(part for part in (index.lower, index.upper, index.step) if part))
            else:
                self.same(index)
            return listed
        if not isinstance(index, ast.Slice):
            if self.from_end(index):
                return SAME
            raise _Varies(node, "index")
        lower, upper = index.lower, index.upper
        begins = lower is None or (isinstance(lower, ast.Constant) and lower.value in (0, None))
        ends = upper is None or self.from_end(upper)
        if index.step is not None or not ends or not (begins or self.from_end(lower)):
            raise _Varies(node, "index")
        return FRONT if begins else SAME

    def joined(self, node: ast.BinOp) -> str:
        """``a + b`` and so on, of numbers and of lists."""
        a, b = self.kind(node.left), self.kind(node.right)
        plus, minus = isinstance(node.op, ast.Add), isinstance(node.op, ast.Sub)
        if a == FRONT and b == SAME and plus:
            return FRONT
        if a == b == COUNT and minus:
            return SAME
        if (a, b) == (COUNT, SAME) and (plus or minus):
            return COUNT
        if (a, b) == (SAME, COUNT) and plus:
            return COUNT
        if a == b == TOTAL and isinstance(node.op, ast.FloorDiv | ast.Div):
            return SAME
        if not {a, b} <= {SAME, TOTAL}:
            raise _Varies(node, "shape" if FRONT in (a, b) else "")
        return TOTAL if TOTAL in (a, b) else SAME

    def compared(self, node: ast.Compare) -> str:
        """``x.shape == y.shape``, ``x.ndim >= 2``"""
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return SAME
        sides = [node.left, *node.comparators]
        kinds = [self.kind(side) for side in sides]
        for op, a, b in zip(node.ops, kinds, kinds[1:], strict=False):
            alike = a == b and not isinstance(op, ast.In | ast.NotIn)
            lower = b == SAME and a in (COUNT, TOTAL) and isinstance(op, _AT_LEAST)
            upper = a == SAME and b in (COUNT, TOTAL) and isinstance(op, _AT_MOST)
            if not (alike or a == b == SAME or lower or upper):
                raise _Varies(node, "ndim" if COUNT in (a, b) else "")
        return SAME

    def listed(self, items: Sequence[ast.expr], node: ast.expr) -> str:
        """A tuple or list as written."""
        kinds = [self.kind(i.value if isinstance(i, ast.Starred) else i) for i in items]
        if kinds[:1] == [FRONT] and isinstance(items[0], ast.Starred):
            kinds[0] = SAME
            self.same(*(i.value if isinstance(i, ast.Starred) else i for i in items[1:]))
            return FRONT
        if {FRONT, COUNT} & set(kinds):
            raise _Varies(node)
        return self.one_of(set(kinds), node)

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> str:
        """``all(a.ndim == 2 for a in arrays)``"""
        loop, before = node.generators[0], dict(self.names)
        over = self.kind(loop.iter)
        each = {ARRAYS: ARRAY, FRONT: TOTAL, SAME: SAME, TOTAL: TOTAL}.get(over)
        if each is None:
            raise _Varies(loop.iter)
        try:
            for target in ast.walk(loop.target):
                if isinstance(target, ast.Name):
                    self.names[target.id] = each
            self.same(*loop.ifs)
            return self.kind(node.elt)
        finally:
            self.names = before

    def call(self, node: ast.Call) -> str:
        """``len(x.shape)``, ``prod(x.shape[:-1])``, ``max(n, 1)``"""
        function = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        function = node.func.id if isinstance(node.func, ast.Name) else function
        args = [arg.value if isinstance(arg, ast.Starred) else arg for arg in node.args]
        kinds = [self.kind(arg) for arg in [*args, *(keyword.value for keyword in node.keywords)]]
        if function == "len" and kinds[:1] in ([FRONT], [ARRAYS], [ARRAY]):
            if kinds == [ARRAY]:
                raise _Varies(node, "index")
            return COUNT if kinds == [FRONT] else SAME
        if function == "prod" and kinds == [FRONT]:
            return TOTAL
        if function == "broadcast_shapes" and FRONT in kinds and {*kinds} <= {FRONT, SAME}:
            return FRONT
        if function in ("result_type", "zip", "enumerate", "all", "any"):
            return ARRAYS if function in ("zip", "enumerate") and ARRAYS in kinds else SAME
        return self.one_of({SAME if kind in (ARRAY, ARRAYS) else kind for kind in kinds}, node)
