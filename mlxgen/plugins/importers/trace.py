"""Formulas from torch's decompositions.

An overload is traced for a series of calls (calls.py) down to operators that the tables have. The
graphs of a series must have the same nodes. Each node becomes the formula of its operator, and each
constant must be explained: it is equal in all calls, or an argument, or a size of an array. A graph
that differs between calls, or an unexplained constant, rejects the overload: a formula is never a
guess.
"""

from __future__ import annotations

import ast
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from ...diagnostics import Diagnostics
from . import calls, terms
from .calls import GIVEN, Call, Case
from .importer import Derive
from .overloads import DROPPED, Unsupported
from .schema import Argument, Overload, Schema
from .table import Formulas, Origin, Row, Table, node_table
from .terms import Term

_LONG = 60  # characters of a formula of a node that calls its entry instead
_LONGEST = 700  # characters of a formula
_MOST_NODES = 60
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "complex64")

Node = Any  # torch.fx.Node
Graph = Sequence[Node]


def deriver(
    names: Sequence[str], schema: Schema, table: Table, overrides: Table, diags: Diagnostics
) -> Derive:
    """Return the function that derives the formula of an overload."""
    tracer = _Tracer(frozenset(names), schema, node_table(diags), table | overrides)
    return tracer.derive


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress what torch says about example calls that fail or are deprecated."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


class _Different(Exception):
    """Raised if the graphs of a series differ, with the reason."""


class _Tracer:
    """Traces overloads down to the operators of the tables."""

    def __init__(self, names: frozenset[str], schema: Schema, nodes: Table, rows: Table) -> None:
        self.names = names
        self.schema = schema
        self.nodes = nodes
        self.rows = rows

    @cached_property
    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """torch's decompositions of all operators that the tables lack."""
        import torch
        import torch._inductor.decomposition
        import torch._refs
        import torch._refs.fft
        import torch._refs.linalg
        import torch._refs.nn.functional
        import torch._refs.special
        from torch._decomp import decomposition_table

        every = torch._inductor.decomposition.decompositions | decomposition_table
        known = self.nodes.keys() | self.rows.keys()
        return {
            target: function
            for target, function in every.items()
            if isinstance(target, torch._ops.OpOverload) and _name(target) not in known
        }

    def derive(self, overload: Overload) -> Formulas:
        """Return the formula of an overload, from its decomposition."""
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # no warnings of torch's C++ code
        import torch

        packet = getattr(torch.ops.aten, overload.base, None)
        target = getattr(packet, overload.overload or "default", None)
        if target is None:
            raise Unsupported("this torch does not contain it")
        with _silence():
            term = self._cases(overload, target, calls.cases(overload), {})
        names, called = terms.names(term), terms.calls(term)
        return Formulas(_keys(overload, term), names, called, self._origin(target))

    def _origin(self, target: Any) -> Origin:
        function = self.decompositions.get(target)
        function = getattr(function, "func", function)  # of functools.partial
        if function is None or "<locals>" in function.__qualname__:
            return Origin(f"torch.ops.aten.{_name(target)}")
        return Origin(f"{function.__module__}.{function.__qualname__}")

    def _cases(
        self, overload: Overload, target: Any, left: list[tuple[Argument, list[Any]]], case: Case
    ) -> Term:
        """Return the formula of the cases of the arguments that are left."""
        if not left:
            return self._case(overload, target, case)
        (arg, values), rest = left[0], left[1:]
        results = [
            self._cases(overload, target, rest, {**case, arg.name: value}) for value in values
        ]
        argument = terms.name(arg.name)
        term = results[-1]
        for value, result in list(zip(values, results, strict=True))[-2::-1]:
            term = terms.union(argument, _condition(argument, value), result, term)
        return term

    def _case(self, overload: Overload, target: Any, case: Case) -> Term:
        """Return the formula of one case, from the first kind of shapes that the operator has."""
        reasons: list[str] = []
        for series in calls.series(overload, case):
            traced: list[tuple[_Example, Graph]] = []
            for call in series:
                example = _Example(overload, call)
                try:
                    traced.append((example, self._graph(target, example)))
                except Exception as error:  # torch raises many kinds
                    reasons.append(_reason(error))
            if len(traced) >= 3:
                return self._explained(traced)
        raise Unsupported(f"no example call succeeds: {reasons[0]}" if reasons else "no arguments")

    def _explained(self, traced: list[tuple[_Example, Graph]]) -> Term:
        """Return the formula of a series; scalars may have one of their own."""
        try:
            return self._unified(traced)
        except _Different as error:
            arrays = [one for one in traced if one[0].call.rank > 0]
            if len(arrays) == len(traced) or len(arrays) < 3:
                raise Unsupported(str(error)) from error
        try:
            whole = self._unified(arrays)
            scalar = self._unified([one for one in traced if one[0].call.rank == 0] * 2)
        except _Different as error:
            raise Unsupported(str(error)) from error
        first = arrays[0][0].first
        return terms.union(first, terms.name(f"{terms.text(first)}.ndim"), whole, scalar)

    def _graph(self, target: Any, example: _Example) -> Graph:
        """Trace a call."""
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        def function(*arrays: Any) -> Any:
            return target(**example.arguments(arrays))

        pure = torch.func.functionalize(function, remove="mutations")
        module = make_fx(pure, decomposition_table=self.decompositions, tracing_mode="fake")(
            *example.arrays
        )
        module.graph.eliminate_dead_code()
        nodes = list(module.graph.nodes)
        for node in nodes:
            if node.op == "get_attr":
                node.meta["constant"] = getattr(module, node.target)
        if len(nodes) > _MOST_NODES:
            raise Unsupported(f"its decomposition has {len(nodes)} operations")
        return nodes

    def _unified(self, traced: list[tuple[_Example, Graph]]) -> Term:
        """Return the formula that all graphs share; raise ``_Different`` without one."""
        examples = [example for example, _ in traced]
        graphs = [graph for _, graph in traced]
        if len({len(graph) for graph in graphs}) > 1:
            raise _Different("its decomposition depends on shapes or values")
        found: dict[Node, Term] = {}
        placeholders = iter(examples[0].placeholders)
        for nodes in zip(*graphs, strict=True):
            first = nodes[0]
            if len({(node.op, str(node.target)) for node in nodes}) > 1 and first.op != "get_attr":
                raise _Different("its decomposition depends on shapes or values")
            if first.op == "placeholder":
                found[first] = next(placeholders)
            elif first.op == "get_attr":
                values = [node.meta["constant"] for node in nodes]
                if any(value.numel() != 1 for value in values):
                    raise _Different("its decomposition contains a constant array")
                found[first] = _explain(examples, [value.item() for value in values])
            elif first.op == "output":
                result = _value(examples, [node.args[0] for node in nodes], found)
                if isinstance(result, ast.List) and examples[0].several:
                    return ast.Tuple(result.elts, ast.Load())
                return result
            else:
                found[first] = self._node(examples, nodes, found)
        raise _Different("its decomposition has no result")

    def _node(
        self, examples: list[_Example], nodes: Sequence[Node], found: dict[Node, Term]
    ) -> Term:
        """Return the formula of a node."""
        target = nodes[0].target
        if len({(len(node.args), *node.kwargs) for node in nodes}) > 1:
            raise _Different("its decomposition depends on shapes or values")
        operands = [found[operand] for operand in nodes[0].all_input_nodes]
        examples[0].preferred = {
            each.id for term in operands for each in ast.walk(term) if isinstance(each, ast.Name)
        }
        args = [
            _value(examples, each, found) for each in zip(*(n.args for n in nodes), strict=True)
        ]
        if getattr(target, "__name__", "") == "getitem":
            return _item(args[0], nodes[0].args[1])
        keywords = {
            key: _value(examples, [node.kwargs[key] for node in nodes], found)
            for key in nodes[0].kwargs
        }
        name = _name(target)
        schema = target._schema.arguments
        values = {
            arg.name: _default(arg.default_value) for arg in schema if arg.has_default_value()
        }
        defaults = dict(values)
        values |= {arg.name: value for arg, value in zip(schema, args, strict=False)} | keywords
        row = self.nodes.get(name) or self.rows.get(name)
        if row is None:
            raise Unsupported(f"its decomposition needs {name}, which the tables lack")
        if row.reject:
            raise Unsupported(f"its decomposition needs {name}: {row.reject}")
        formula = row.formula
        lets = "let" in row.keys
        if formula is None or lets or (self._has_entry(row) and len(ast.unparse(formula)) > _LONG):
            return self._call(row, values)
        used = terms.names(formula)
        for argument, value in values.items():
            known = (
                argument in used or argument in DROPPED or argument in row.keys.get("unused", ())
            )
            plain = (terms.NONE, defaults.get(argument, terms.NONE))
            if not known and not any(terms.same(value, each) for each in plain):
                raise Unsupported(f"the formula of {name} ignores '{argument}'")
        made: Term = terms.instantiate(formula, values)
        return made

    def _has_entry(self, row: Row) -> bool:
        own = row.overload in self.rows
        return own and row.overload.partition(".")[0] in self.names

    def _call(self, row: Row, values: Mapping[str, Term]) -> Term:
        """Return a call of an operator's entry."""
        overload = self.schema.overloads.get(row.overload)
        if overload is None or not self._has_entry(row):
            raise Unsupported(f"its decomposition needs {row.overload}, which the list lacks")
        args: list[Term] = []
        keywords: list[ast.keyword] = []
        for arg in overload.args:
            value = values.get(arg.name)
            default = value is None or _is_default(value, arg)
            if arg.name in DROPPED or value is None:
                continue
            if arg.kw_only or keywords or default:
                keywords += [] if default else [ast.keyword(arg.name, value)]
            else:
                args.append(value)
        return ast.Call(ast.Name(overload.base, ast.Load()), args, keywords)


def _name(target: Any) -> str:
    """Return the name of an overload: ``add.Tensor``, ``prims.view_of``."""
    if not hasattr(target, "_schema"):
        return str(getattr(target, "__name__", target))
    space, _, base = target._schema.name.partition("::")
    overload = target._overloadname
    name = base if overload == "default" else f"{base}.{overload}"
    return name if space == "aten" else f"{space}.{name}"


def _reason(error: Exception) -> str:
    """Return the first line of an error of torch, without details of the call."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line[:120]


def _condition(argument: Term, value: Any) -> Term:
    if value is True:
        return argument
    if value is GIVEN:
        return ast.Compare(argument, [ast.IsNot()], [terms.NONE])
    op: ast.cmpop = ast.Is() if value is None else ast.Eq()
    return ast.Compare(argument, [op], [ast.Constant(value)])


def _default(value: Any) -> Term:
    import torch

    if isinstance(value, bool | int | float):
        return terms.number(value)
    if isinstance(value, list | tuple):
        return ast.List([_default(item) for item in value], ast.Load())
    if isinstance(value, str):
        return ast.Constant(value)
    if isinstance(value, torch.dtype):
        return _dtype([value])
    return terms.NONE


def _is_default(value: Term, arg: Argument) -> bool:
    return arg.default is not None and terms.text(value) == arg.default


def _item(term: Term, place: int) -> Term:
    """Return one result of several."""
    if isinstance(term, ast.Tuple):
        return term.elts[place]
    return ast.Subscript(term, ast.Constant(place), ast.Load())


def _keys(overload: Overload, term: Term) -> dict[str, Any]:
    """Return the keys of an entry with a formula."""
    optional = {arg.name for arg in overload.args if arg.optional}
    taken = {arg.name for arg in overload.args}
    used = terms.names(term)
    if terms.size(term) > 2000:
        raise Unsupported(f"its formula has {terms.size(term)} parts")
    parts, rest = terms.named_parts(term, taken | used, optional)
    texts = {label: terms.text(part) for label, part in parts.items()}
    length = sum(map(len, texts.values())) + len(terms.text(rest))
    if length > _LONGEST:
        raise Unsupported(f"its formula has {length} characters")
    keys: dict[str, Any] = {"let": texts} if texts else {}
    keys["composite"] = terms.text(rest)
    names = [arg.name for arg in overload.args if arg.name not in DROPPED]
    unused = [name for name in names if name not in used]
    if unused:
        keys["unused"] = dict.fromkeys(unused, "torch's decomposition does not use it")
    return keys


# -------------------------------------------------------------------------------------------------
# Constants
# -------------------------------------------------------------------------------------------------


class _Example:
    """A call with arrays of torch."""

    def __init__(self, overload: Overload, call: Call) -> None:
        import torch

        self.overload = overload
        self.call = call
        self.arrays: list[Any] = []
        self.placeholders: list[Term] = []
        self.lists: dict[str, list[int]] = {}  # positions of the arrays of a list
        self.preferred: set[str] = set()  # arrays of the current node, whose sizes it contains
        for name, shape in call.shapes.items():
            count = call.lists.get(name)
            for i in range(count or 1):
                if count:
                    self.lists.setdefault(name, []).append(len(self.arrays))
                self.placeholders.append(terms.name(f"{name}[{i}]" if count else name))
                self.arrays.append(torch.rand(tuple(shape)) * 0.8 + 0.1)

    @property
    def several(self) -> bool:
        """True if the operator has several results, which are not a list."""
        return len(self.overload.returns) > 1

    @property
    def first(self) -> Term:
        """The first array."""
        return self.placeholders[0]

    def arguments(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of the call."""
        import torch

        given: dict[str, Any] = {}
        rest = iter(arrays)
        for name in self.call.shapes:
            count = self.call.lists.get(name)
            given[name] = [next(rest) for _ in range(count)] if count else next(rest)
        for arg in self.overload.args:
            if arg.name in self.call.numbers:
                value = self.call.numbers[arg.name]
                is_dtype = arg.type.startswith("ScalarType")
                given[arg.name] = getattr(torch, value) if is_dtype else value
        return {**given, **self.call.fixed}


def _value(examples: list[_Example], values: Sequence[Any], found: dict[Node, Term]) -> Term:
    """Return the term of an argument of a node, from its values in all graphs."""
    import torch

    first = values[0]
    if isinstance(first, torch.fx.Node):
        return found[first]
    if isinstance(first, list | tuple):
        return _list(examples, values, found)
    if isinstance(first, torch.dtype):
        for name, value in examples[0].call.numbers.items():
            if isinstance(value, str) and _all(examples, name, map(_dtype_name, values)):
                return terms.name(name)
        return _dtype(values)
    if isinstance(first, str) or first is None:
        return ast.Constant(first)
    if isinstance(first, bool | int | float):
        return _explain(examples, values)
    if isinstance(first, torch.device | torch.layout | torch.memory_format):
        return terms.NONE
    raise _Different(f"its decomposition contains a {type(first).__name__}")


def _dtype_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _dtype(values: Sequence[Any]) -> Term:
    name = _dtype_name(values[0])
    if any(value != values[0] for value in values):
        raise _Different("its decomposition chooses dtypes by the call")
    if name == "bool":
        return terms.name("bool_")
    if name not in _DTYPES:
        raise Unsupported(f"its decomposition needs the dtype {name}")
    return terms.name(name)


def _all(examples: list[_Example], name: str, values: Any) -> bool:
    return all(e.call.numbers[name] == value for e, value in zip(examples, values, strict=True))


def _list(examples: list[_Example], values: Sequence[Any], found: dict[Node, Term]) -> Term:
    """Return the term of a list: an argument, a shape, or the list of its items' terms."""
    import torch

    lists = [list(value) for value in values]
    if lists[0] and all(isinstance(item, torch.fx.Node) for item in lists[0]):
        for name, places in examples[0].lists.items():
            own = [terms.text(found[item]) for item in lists[0]]
            if own == [f"{name}[{i}]" for i in range(len(places))]:
                return terms.name(name)
    for name, value in examples[0].call.numbers.items():
        if isinstance(value, list) and _all(examples, name, lists):
            return terms.name(name)
    for name in _by_preference(examples):
        if all(list(e.call.shapes[name]) == each for e, each in zip(examples, lists, strict=True)):
            return terms.name(f"{name}.shape")
    if len({len(each) for each in lists}) > 1:
        raise _Different("a list in its decomposition depends on the rank")
    items = [_value(examples, each, found) for each in zip(*lists, strict=True)]
    return ast.List(items, ast.Load())


def _explain(examples: list[_Example], values: Sequence[Any]) -> Term:
    """Return the term of a constant."""
    first = values[0]
    if all(type(value) is type(first) and _equal(value, first) for value in values):
        if isinstance(first, float) and abs(first) in _limits():
            raise _Different("its decomposition contains a limit of float32")
        return terms.number(first)
    for text, candidates in _candidates(examples, isinstance(first, int)):
        if all(_equal(a, b) for a, b in zip(candidates, values, strict=True)):
            return terms.name(text)
    raise _Different(f"no argument or size explains the constants {values[0]}, {values[1]}")


def _limits() -> set[float]:
    """Return constants that are those of a dtype, not of an operator."""
    import torch

    limits = torch.finfo(torch.float32)
    return {limits.max, limits.tiny, limits.eps}


def _equal(a: Any, b: Any) -> bool:
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return False
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12)


def _candidates(examples: list[_Example], whole: bool) -> Iterator[tuple[str, list[float]]]:
    """Yield explanations of a constant, and their values in all calls."""
    plain: list[tuple[str, list[float]]] = []
    for name, value in examples[0].call.numbers.items():
        if isinstance(value, int | float):
            plain.append((name, [e.call.numbers[name] for e in examples]))
        elif isinstance(value, list):
            shortest = min(len(e.call.numbers[name]) for e in examples)
            plain += [
                (f"{name}[{i}]", [e.call.numbers[name][i] for e in examples])
                for i in range(shortest)
            ]
    yield from plain
    axes = [name for name in ("dim", "axis") if name in examples[0].call.numbers]
    sizes = list(_sizes(examples, axes))
    yield from sizes
    for text, values in plain:
        if text not in axes:
            yield f"-{text}", [-v for v in values]
            yield f"1 / {text}", [1 / v if v else math.nan for v in values]
            yield f"{text} - 1", [v - 1 for v in values]
            yield f"{text} + 1", [v + 1 for v in values]
            yield f"1 - {text}", [1 - v for v in values]
            yield f"{text} ** 2", [v * v for v in values]
            yield f"{text} / 2", [v / 2 for v in values]
            yield f"2 * {text}", [2 * v for v in values]
    for text, values in sizes:
        yield f"{text} - 1", [v - 1 for v in values]
        yield f"{text} // 2", [v // 2 for v in values]
        if not whole:
            yield f"1 / {text}", [1 / v if v else math.nan for v in values]


def _by_preference(examples: list[_Example]) -> list[str]:
    """Return the names of the arrays, those of the current node first."""
    preferred = examples[0].preferred
    return sorted(examples[0].call.shapes, key=lambda name: name not in preferred)


def _sizes(examples: list[_Example], axes: list[str]) -> Iterator[tuple[str, list[float]]]:
    """Yield ranks and sizes of the arrays."""
    for name in _by_preference(examples):
        if name in examples[0].call.lists:
            continue
        shapes = [e.call.shapes[name] for e in examples]
        yield f"{name}.size", [math.prod(shape) for shape in shapes]
        if len({len(shape) for shape in shapes}) > 1:
            yield f"{name}.ndim", [len(shape) for shape in shapes]
        for axis in axes:
            if isinstance(examples[0].call.numbers[axis], int) and all(shapes):
                yield (
                    f"{name}.shape[{axis}]",
                    [
                        shape[e.call.numbers[axis]]
                        for e, shape in zip(examples, shapes, strict=True)
                    ],
                )
        least = min(map(len, shapes))
        for i in range(least):
            yield f"{name}.shape[{i}]", [shape[i] for shape in shapes]
        for i in range(1, least + 1):
            yield f"{name}.shape[-{i}]", [shape[-i] for shape in shapes]
