"""What every part of a formula's translation needs: its errors, operations and calls of functions.

``Translator`` knows functions, methods and other entries; how their arguments are translated it
leaves to the visitor of compile.py, which extends it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..model.signature import Arg, Kind, Signature, Type
from . import explain
from .explain import Wrong
from .mlx import (
    Args,
    Function,
    Param,
    bind,
    bind_any,
    choices,
    complete,
    misfit,
    select,
    table,
    unknown,
)
from .rules import RULES
from .source import Source
from .values import Value, constant, fit, fit_type

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[str, str, int, int, "str | None"], None]
"""What gets the errors: code, message, start and end offset in the text, help."""

# Functions of MLX that are rules: they give no array, or take any number of arguments.
DTYPE = Param("dtype", "", "Dtype | None", "None")
TYPED = {
    "array": (Param("val", "", "scalar | list"), DTYPE),
    "asarray": (Param("a", "", "scalar | list"), DTYPE),
    "finfo": (Param("dtype", "/", "Dtype"),),
    "iinfo": (Param("dtype", "/", "Dtype"),),
}
SPECIAL = (*TYPED, "result_type", "broadcast_shapes")
# Python's, of which some are MLX's if the first argument is an array.
LOOPS = ("zip", "enumerate", "range")
CONVERSIONS = ("len", "int", "float", "bool")
BUILTINS = (*LOOPS, *CONVERSIONS, "abs", "sum", "prod", "min", "max", "all", "any")


@dataclass(frozen=True, slots=True)
class Name:
    """What an identifier of a formula means and how it is spelled in C++."""

    type: Type
    cpp: str
    count: int | None = None  # ARRAYS: how many there are, if that is known


@dataclass(frozen=True, slots=True)
class Scope:
    """What a formula may refer to."""

    names: Mapping[str, Name]  # arguments, grad, result, constants...
    ops: Mapping[str, Signature]  # other entries, by Python name
    op_cpp: Mapping[str, str]  # their C++ names
    stream: str | None = "s"  # C++ of the stream; None: no array operation can stand here


def is_function(name: str) -> bool:
    """Whether a formula can call a function of that name."""
    return name in BUILTINS or name in SPECIAL or table().function(name) is not None


class Translator:
    """Translates one formula; what cannot be translated raises ``Wrong``."""

    def __init__(self, text: str, scope: Scope, report: Report) -> None:
        self.source = Source(text)
        self.scope = scope
        self.report = report
        self.failed = False
        self.names: set[str] = set()
        self.ops: set[str] = set()
        self.mlx: set[str] = set()
        self.locals: dict[str, Value] = {}
        self.depth = 0  # of the part that is visited

    def visit(self, node: ast.expr) -> Value:
        """The value of a part of the formula."""
        raise NotImplementedError

    # Errors

    def error(self, wrong: Wrong) -> None:
        """Report what is wrong, unless it is reported already."""
        self.failed = True
        if wrong.name:
            start, end = self.source.span(wrong.at)
            code, message, help = wrong.written(self.source.text[start:end])
            self.report(code, message, start, end, help)

    def each(self, translate: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """What several parts give; all of them are looked at even if one is wrong."""
        found, depth = [], self.depth
        for part in parts:
            try:
                found.append(translate(part))
            except Wrong as wrong:
                self.error(wrong)
                self.depth = depth
        if len(found) < len(parts):
            raise Wrong
        return found

    def all(self, *parts: Callable[[], Any]) -> list[Any]:
        """The same, of parts that have nothing in common."""
        return self.each(lambda part: part(), parts)

    # Operations

    def stream(self, function: str, at: ast.AST) -> str:
        """The stream, where array operations are possible at all."""
        if self.scope.stream is None:
            raise Wrong("only_shapes", at, name=function)
        return self.scope.stream

    def rule(self, name: str, given: Sequence[Value], at: ast.expr) -> Value | None:
        """What the first rule of that name gives that takes these operands."""
        for rule in RULES.get(name, ()):
            parts = rule.fit(given)
            if parts is not None:
                stream = ""
                if rule.mlx:
                    stream = self.stream(rule.mlx, at)
                    self.mlx.add(rule.mlx)
                return rule.value(given, parts, stream, at)
        return None

    def of_numbers(self, name: str, args: Args) -> Value | None:
        """A function of numbers, if that is what this is."""
        given = args.positional
        if args.keywords or args.star:
            return None
        for value in given:
            if value.kind not in ("int", "float") or value.optional:
                return None
        if name == "square" and len(given) == 1:
            name, given = "multiply", given * 2
        return self.arithmetic(name, given, args.node)

    def arithmetic(self, name: str, given: Sequence[Value], at: ast.expr) -> Value | None:
        """An operation on numbers; products of ints have 64 bits."""
        if name == "multiply" and [v.kind for v in given] == ["int", "int"]:
            known = [v.const for v in given]
            small = None not in known and constant(known[0] * known[1], at).type == ""
            if not small and not any(v.type for v in given):
                i = 1 if known[0] is not None and known[1] is None else 0
                wide = replace(given[i], cpp=f"int64_t({given[i].cpp})", type="int64_t")
                given = [*given[:i], wide, *given[i + 1 :]]
        return self.rule(name, given, at)

    def folded(self, name: str, given: Sequence[Value], at: ast.expr) -> Value:
        """An operation of two, on any number of operands."""
        out = given[0]
        for value in given[1:]:
            out = self.rule(name, [out, value], at) or out
        return out

    # Calls

    def arguments(self, node: ast.Call, label: str) -> Args:
        """The arguments of a call."""
        args, keywords = Args(node, label), {}
        nodes = list(node.args)
        stars = [i for i, arg in enumerate(nodes) if isinstance(arg, ast.Starred)]
        for star in stars[:1]:
            rest = ast.Tuple(nodes[star:], ast.Load())
            nodes[star:] = [ast.copy_location(rest, nodes[star])]
            args.star = True
        for keyword in node.keywords:
            name = keyword.arg
            if name is None:
                self.error(Wrong("two_stars", keyword.value))
            elif name == "stream":
                self.error(Wrong("stream_given", keyword))
            else:
                if name in keywords:
                    self.error(Wrong("keyword_twice", keyword, name=name))
                keywords[name] = keyword.value
        values = self.each(self.visit, [*nodes, *keywords.values()])
        if len(values) - len(nodes) < len({keyword.arg for keyword in node.keywords}):
            raise Wrong
        args.positional = values[: len(nodes)]
        args.keywords = dict(zip(keywords, values[len(nodes) :], strict=True))
        return args

    def call_mlx(self, function: Function, args: Args) -> Value:
        """A function of MLX with its arguments."""
        number = self.of_numbers(function.name, args)
        if number is not None:
            return number
        if function.stream:
            self.stream(args.label, args.node)
        params, bound = bind_any(function, args)
        random = function.name.startswith("random.") and any(p.name == "key" for p in params)
        if random and "key" not in bound:
            raise Wrong("no_key", args.node, label=args.label)
        for param in params:
            given = bound.get(param.name)
            if given is not None and given.kind == "str" and given.const is not None:
                known = choices(param)
                if known and given.const not in known:
                    raise explain.choice(given, param.name, known)
        every = complete(params, bound)
        cpp = select(function, every, self.scope.stream or "")
        if cpp is None:
            raise misfit(function, params, bound, args)
        if function.result == "bool":
            return Value("bool", cpp, args.node)
        self.mlx.add(function.name)
        if function.result == "array":
            return Value("array", cpp, args.node)
        count = function.count
        if function.name == "split":
            parts = every["indices_or_sections"]
            count = len(parts.items) + 1 if parts.kind == "tuple" else parts.const
        elif function.name in ("broadcast_arrays", "meshgrid"):
            count = every["arrays"].length
        elif function.result == "flags":
            count = 1 + sum(v.const is True for v in every.values()) * (count or 0)
            if count == 1:
                return Value("array", f"{cpp}[0]", args.node)
        type_ = "tuple" if function.result == "tuple" else ""
        return Value("arrays", cpp, args.node, count=count, type=type_)

    def call_op(self, name: str, args: Args) -> Value:
        """Another entry of the same file."""
        signature = self.scope.ops[name]
        stream = self.stream(name, args.node)
        bound = bind([entry_param(arg) for arg in signature.args], args)

        def part(arg: Arg) -> str:
            value = bound.get(arg.name)
            if value is None:
                return arg.default.cpp if arg.default is not None else ""
            known = arg.type.choices
            if value.kind == "str" and known and value.const not in (None, *known):
                raise explain.choice(value, arg.name, known)
            cpp = fit_type(value, arg.type)
            if cpp is None:
                raise explain.argument(name, arg.name, arg.type.python, value)
            return cpp

        parts = self.each(part, signature.args)
        self.ops.add(name)
        cpp = f"{self.scope.op_cpp[name]}({', '.join([*parts, stream])})"
        count = len(signature.outputs)
        if count == 1 and signature.outputs[0].type.kind is Kind.ARRAY:
            return Value("array", cpp, args.node)
        return Value("arrays", cpp, args.node, count=count if count > 1 else None)

    def call_named(self, name: str, node: ast.Call) -> Value:
        """A function of MLX by its name."""
        function = table().function(name)
        if name in TYPED:
            return self.call_typed(name, TYPED[name], self.arguments(node, name))
        if name in SPECIAL:
            return self.call_folded(name, self.arguments(node, name))
        if function is None:
            raise unknown(name, node, [*self.scope.ops, *BUILTINS, *SPECIAL])
        return self.call_mlx(function, self.arguments(node, name))

    def call_folded(self, name: str, args: Args) -> Value:
        """``result_type`` and ``broadcast_shapes`` of any number of arguments."""
        given, at = args.positional, args.node
        what, param, annotation = "shapes", "shapes", "Sequence[int]"
        if name == "result_type":
            what, param, annotation = "arrays and dtypes", "arrays_and_dtypes", "array | Dtype"
        if args.keywords or not given or (args.star and name != "result_type"):
            raise Wrong("takes", at, label=name, what=what)
        listed = fit(given[0], "arrays") if args.star and len(given) == 1 else None
        if listed is not None:
            return Value("dtype", f"mx::result_type({listed})", at)
        out = self.rule(name, given, at)
        if out is not None:
            return out
        parts = []
        for value in given:
            part = self.rule(name, [value], at)
            if part is None:
                raise explain.argument(name, param, annotation, value)
            parts.append(part)
        return self.folded(name, parts, at)

    def call_typed(self, name: str, params: Sequence[Param], args: Args) -> Value:
        """``array(...)`` and ``finfo(...)``"""
        bound = bind(params, args)
        given = [bound[p.name] for p in params if p.name in bound]
        if len(given) > 1 and given[1].kind == "none":
            given.pop()
        for param, value in zip(params, given, strict=False):
            if param.name == "dtype" and fit(value, "dtype") is None:
                raise explain.argument(name, "dtype", param.annotation, value)
        if "array" in name:
            self.stream(name, args.node)
        made = self.rule(name, given, args.node)
        if made is not None:
            return made
        if all(item.kind in ("int", "float") for item in given[0].items):
            explain.require(*given[0].items)
        raise explain.argument(name, params[0].name, params[0].annotation, given[0])

    def call_builtin(self, name: str, node: ast.Call) -> Value:
        """One of Python's functions, some of which are MLX's if the first argument is an array."""
        if name in LOOPS:
            raise Wrong("loop_only", node, name, name=name)
        args = self.arguments(node, name)
        given, plain = args.positional, not args.keywords and not args.star
        function = table().function(name)
        if function is not None and (not given or given[0].kind == "array"):
            if name in ("min", "max") and any(v.kind == "array" for v in given[1:]):
                raise Wrong("several_arrays", node, label=name)
            return self.call_mlx(function, args)
        if name in ("min", "max") and len(given) > 1 and plain:
            for value in given:
                if value.optional or value.kind not in ("int", "float"):
                    raise explain.builtin(name, value)
            return self.folded(name, given, node)
        if len(given) != 1 or not plain:
            raise Wrong("one_list" if function else "one_argument", node, label=name)
        return self.of_one(name, given[0], node)

    def of_one(self, name: str, value: Value, node: ast.Call) -> Value:
        """One of Python's functions of one argument."""
        if name == "len" and value.length is not None:
            return constant(value.length, node)
        if name == "float" and value.kind == "int" and value.const is not None:
            return constant(float(value.const), node)
        of_shape = name == "len" and value.kind == "shape"
        if of_shape and value.of is not None:
            name, value = ".ndim", value.of
        empty = name in ("min", "max") and value.length == 0
        found = None if empty or value.optional else self.rule(name, [value], node)
        if found is None:
            raise explain.builtin(name, value)
        return found


def entry_param(arg: Arg) -> Param:
    """An argument of an entry, as one of MLX's functions."""
    default = arg.default.python if arg.default is not None else None
    return Param(arg.name, "k" if arg.kw_only else "", arg.type.python, default)
