"""The base of a formula's translation: errors, operations and calls.

``Translator`` translates calls of functions, methods and other entries. The visitor in compile.py
extends it and translates their arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..diagnostics import Report, did_you_mean
from ..model.op import STREAM, Fact, Length
from ..model.overloads import chosen
from ..model.signature import Arg, Kind, Signature, Type
from ..model.used import UsedOperator
from . import explain
from .explain import Wrong
from .facts import (
    NONLINEAR,
    OPAQUE,
    OPTIONS,
    combined,
    common_dtype,
    degree_of_all,
    dtype_of,
    each,
    operands,
    option,
)
from .mlx import (
    Args,
    MlxFunction,
    PythonParam,
    Table,
    bind,
    candidates,
    complete,
    effect,
    mismatch,
    select,
    table,
    unknown,
    usage,
)
from .rules import rules
from .source import Formula, FormulaText
from .values import (
    NOTHING,
    NUMBERS,
    PRESENT,
    Cpp,
    State,
    Value,
    call,
    constant,
    cpp,
    fit,
    fit_type,
    hole,
    named,
)

T = TypeVar("T")
R = TypeVar("R")
# Receives the errors: code, message, start and end offset in the text, help.

# What is known about optional names and unions: states, and whether the value is one of them.
Facts = Mapping[str, frozenset[tuple[frozenset[State], bool]]]

_PRESENT = frozenset([(frozenset[State]([PRESENT]), True)])

_UNKNOWN = ("unknown_name", "unknown_function", "unknown_method")
UNKNOWN_NAMES = (*_UNKNOWN, "omitted", "newer", "function", "no_cotangent")


# Functions of a list of numbers, and the operations on two of them.
PAIRWISE = {"sum": "add", "prod": "multiply", "min": "min", "max": "max"}


class Name(NamedTuple):
    """The meaning of an identifier of a formula."""

    type: Type
    length: int | None = None  # ARRAYS: the number of arrays, if known
    fact: Fact | list[Fact] | None = None  # as of a Value
    items: Sequence[str] = ()  # ARRAYS: names of the items, if any
    mode: str = ""  # of an array or string: the hole for the string
    present: bool = False  # of an optional array: it is never None, nor a string


def names_of(args: Iterable[Arg], facts: Mapping[str, Fact]) -> dict[str, Name]:
    """Return the names of an operator's arguments in formulas, with facts about arrays."""
    found, modes = dict[str, Name](), dict[str, str]()
    for arg in args:
        if arg.mode_of:
            modes[arg.mode_of] = arg.name
        else:
            type, mode = (arg.declared or arg).type, modes.get(arg.name, "")
            found[arg.name] = Name(type, fact=facts.get(arg.name), mode=mode)
    return found


def both(known: Facts, more: Facts) -> Facts:
    """Return the facts of two mappings."""
    names = {*known, *more}
    return {n: known.get(n, frozenset()) | more.get(n, frozenset()) for n in names}


class Let(NamedTuple):
    """A named subexpression of an entry."""

    text: str
    cpp: str  # name of its C++ variable
    words: frozenset[str] = frozenset()  # names that it uses, directly or through other ones
    depth: int = 0  # length of the chain of `let`s that it uses
    broken: bool = False  # its errors are reported


class Scope(NamedTuple):
    """The names that a formula may use."""

    names: Mapping[str, Name]  # arguments, grad, result, constants...
    ops: Mapping[str, Signature]  # other entries, by name
    namespace: str  # of their functions in C++
    overloads: Mapping[str, Sequence[str]] = {}  # entries that share a Python name, in order
    stream: bool = True  # without a stream, array operations are not allowed
    release: str | None = None  # MLX's release; None: the newest known
    lengths: Mapping[str, Length] = {}  # sizes of axes, by name
    # Facts about an entry's results, given the degrees of its arguments; none for kernels.
    degrees: Callable[[str, Mapping[str, int]], Sequence[Fact]] = lambda *_: ()
    # Returns whether an entry's results depend only on its arguments.
    pure: Callable[[str], bool] = lambda _: False
    lets: Mapping[str, Let] = {}  # later ones may use earlier ones
    let_report: Callable[..., None] = lambda *_: None  # as ``Report``, with the name in front
    only_elsewhere: frozenset[str] = frozenset()  # names that other formulas of the entry know
    variables: bool = True  # the place of the formula allows C++ variables
    shared: bool = False  # other formulas of the same C++ function have variables, too
    used: Mapping[str, Sequence[UsedOperator]] = {}  # overloads of other packages, by dotted name
    unsized: frozenset[str] = frozenset()  # axes whose sizes are unknown

    @property
    def packages(self) -> set[str]:
        """The names of these packages."""
        return {name.partition(".")[0] for name in self.used}

    @property
    def api(self) -> Table:
        """MLX's functions."""
        return table(self.release)


class Translator:
    """The translation of one formula; raises ``Wrong`` for an error."""

    def __init__(self, formula: Formula, scope: Scope, report: Report) -> None:
        self.built = None if isinstance(formula, str) else formula
        self.text = formula if isinstance(formula, str) else ast.unparse(formula)
        self.scope = scope
        self.report = report
        self.failed = False
        self.said: set[str] = set()
        self.used: list[tuple[str, str]] = []  # a field of ``Expr`` (names, ops, mlx), and a name
        self.locals: dict[str, Value] = {}
        # Facts about optional names and unions.
        self.known: Facts = {n: _PRESENT for n, name in scope.names.items() if name.present}
        self.depth = 0  # depth of the current part
        self.nonlinear: ast.AST | None = None  # the first part that is nonlinear in grad or tangent
        self.forks: list[Cpp] = []  # conditions that determine the degree of the result
        self.assumed: dict[Cpp, bool] = {}  # assumed outcomes of these conditions
        self.specializes = ["", ""]  # Expr.specializes and Expr.gradient_specializes
        self.hints = 0  # calls of `hint` around the current part
        self.always: set[str] = set()  # `let`s that are computed whenever the current part is
        self.inside: list[tuple[str, ast.expr, str, Report]] = []  # uses of `let`, outermost first

    def visit(self, node: ast.expr | ast.keyword) -> Value:
        """Return the value of a part of the formula."""
        raise NotImplementedError

    def facts(self, node: ast.expr, holds: bool) -> Facts:
        """Return what follows for optional names and unions if a condition is true (or false)."""
        raise NotImplementedError

    def drop(self, items: Iterable[Value], kept: Sequence[Value] = ()) -> None:
        """Remove the uses of items of a list that the formula does not keep."""
        needed = {i for item in kept for i in range(*item.used)}
        for i in {i for item in items for i in range(*item.used)} - needed:
            self.used[i] = ("", "")

    # Errors

    def error(self, wrong: Wrong) -> None:
        """Report an error, unless it was already reported."""
        self.failed = True
        if wrong.name:
            text, report = self.text, self.report
            if self.inside and (elsewhere := self.not_here(wrong)):  # the use is the mistake
                wrong, (_, _, text, report) = elsewhere, self.inside[0]
            start, end = FormulaText(text).span(None if self.built else wrong.at)
            said = wrong.written(text[start:end])
            if wrong.name in UNKNOWN_NAMES and said.text in self.said:
                return  # several uses of an unknown name are one mistake
            self.said.add(said.text)
            report(said, start, end)

    def not_here(self, wrong: Wrong) -> Wrong | None:
        """Return the error for a `let` that is right in other formulas of the entry only."""
        name, at, _, _ = self.inside[0]
        if wrong.name == "only_shapes":
            return Wrong("let_arrays", at, name=name)
        word = "grad" if wrong.name == "no_cotangent" else wrong.about.get("name")
        if wrong.name in UNKNOWN_NAMES and word in self.scope.only_elsewhere:
            return Wrong("let_elsewhere", at, name=name, word=word)
        return None

    def each(self, translate: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """Translate several parts, and report the errors of all before raising."""
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
        """Call several functions like ``each``."""
        return self.each(lambda part: part(), parts)

    # Shapeless traces

    def specialize(self, node: ast.AST) -> None:
        """Record that a shapeless trace keeps the value of a part, even if shapes change later."""
        if self.hints:
            return
        if self.built:
            text = ast.unparse(node)
        else:
            start, end = FormulaText(self.text).span(node)
            text = " ".join(self.text[start:end].split())
        self.specializes = [why or f"uses {text} as a number" for why in self.specializes]

    def traced(self, name: str, axis: bool = False) -> None:
        """Record the effect of a shapeless trace on an MLX function; ``axis``: an axis is given."""
        trace = effect(name).shapeless
        if trace == "axis":
            trace = "gradient" if axis else ""
        for i, wrong in enumerate((not trace, trace != "gradient")):
            self.specializes[i] = self.specializes[i] or f"calls {name}" * wrong

    # Operations

    def stream(self, at: ast.AST) -> Cpp:
        """Return the stream; raise if array operations are not allowed."""
        if not self.scope.stream:
            raise Wrong("only_shapes", at)
        return hole(STREAM)

    def rule(self, name: str, given: Sequence[Value], at: ast.expr) -> Value | None:
        """Apply the first rule of that name that accepts these operands."""
        kinds = ["none" if value.optional else value.kind for value in given]
        for rule, ways in rules(name, tuple(kinds)):
            parts: list[Any] = [way(value) for way, value in zip(ways, given, strict=True)]
            if None not in parts:
                stream = NOTHING
                if rule.mlx:
                    stream = self.stream(at)
                    self.used.append(("mlx", rule.mlx))
                    self.traced(rule.mlx)
                    self.scope.api.require(rule.mlx, at)
                value = rule.value(given, parts, stream, at)
                if rule.gives == "array":
                    among = given[:1] if name == "item" else given  # without the index
                    dtype = next((dtype_of(one) for one in given if one.kind == "dtype"), None)
                    called = "add" if rule.takes == ["arrays"] else name
                    self.note(value, called, among, dtype=dtype)
                elif rule.gives == "dtype" and value.of is None:
                    value.fact = Fact(dtype=common_dtype(given))
                    found = [one.promoted for one in given]
                    value.sources = frozenset().union(*found) if all(found) else frozenset()
                return value
        return None

    def note(
        self,
        value: Value,
        name: str,
        given: Sequence[Value],
        names: Iterable[str] = (),
        **options: Any,
    ) -> Value:
        """Store the facts about an array that is the result of a function.

        ``names`` are the parameters of the operands.
        """
        facts = [[*operands([one])] for one in given]
        of = [name for name, several in zip(names, facts, strict=False) for _ in several]
        flat = tuple(fact for several in facts for fact in several)
        try:
            value.fact = each(name, flat) or combined(name, flat, tuple(of), tuple(options.items()))
        except Wrong as wrong:
            wrong.at, wrong.keys = value.at, [name]
            raise
        self.note_nonlinear(value)
        return value

    def note_nonlinear(self, value: Value) -> None:
        """Record the first part that is nonlinear in ``grad`` or ``tangent``."""
        if self.nonlinear is None and any(fact.degree == NONLINEAR for fact in operands([value])):
            self.nonlinear = value.at

    def of_numbers(self, name: str, args: Args) -> Value | None:
        """Translate a function whose arguments are all numbers; None for other arguments."""
        given = args.positional
        if args.keywords or args.star or not {v.kind for v in given} <= {"int", "float", "scalar"}:
            return None
        return self.rule(name, given, args.node)

    # Calls

    def arguments(self, node: ast.Call, label: str) -> Args:
        """Translate the arguments of a call."""
        args, names = Args(node, label), [keyword.arg or "" for keyword in node.keywords]
        nodes = list(node.args)
        star = next((i for i, arg in enumerate(nodes) if isinstance(arg, ast.Starred)), None)
        if star is not None:
            rest = ast.Tuple(nodes[star:], ast.Load())
            nodes[star:] = [ast.copy_location(rest, nodes[star])]
            args.star = True
        parts: list[ast.expr | ast.keyword] = [*nodes, *node.keywords]
        values = self.each(self.visit, parts)
        for i, name in enumerate(names):
            if name in names[:i]:
                raise Wrong("keyword_twice", node.keywords[i], name=name)
        args.positional = values[: len(nodes)]
        args.keywords = dict(zip(names, values[len(nodes) :], strict=True))
        return args

    def call_mlx(self, function: MlxFunction, args: Args) -> Value:
        """Translate the call of an MLX function."""
        number = self.of_numbers(function.name, args)
        if number is not None:
            return number
        if function.stream:
            self.stream(args.node)
        listed = candidates(function, args)
        params, bound = listed[0]
        random = function.name.startswith("random.") and any(p.name == "key" for p in params)
        if random and "key" not in bound:
            raise Wrong("no_key", args.node, label=args.label)
        if random and isinstance(key := bound["key"].at, ast.Name):
            self.used.append(("keys", key.id))
        if random and bound["key"].optional:  # None draws another key in each call
            self.used.append(("impure", function.name))
        for params, bound in listed:
            every = complete(params, bound)
            written = select(function, every, hole(STREAM))
            if written is not None:
                break
        else:
            raise mismatch(function, *listed[0], args)
        if function.result == "bool":
            return Value("bool", written, args.node)
        self.used.append(("mlx", function.name))
        self.traced(function.name, axis="axis" in bound)
        options = {name: option(name, every[name]) for name in OPTIONS if name in every}
        names = [p.name for p in params if "array" in p.annotation and p.name in every]
        given = [every[name] for name in names]
        if function.result == "array":
            value = Value("array", written, args.node)
            return self.note(value, function.name, given, names, **options)
        count = function.count
        if function.name == "split":
            parts = every["indices_or_sections"]
            count = len(parts.items) + 1 if parts.kind == "tuple" else parts.const
            if count is not None and count < 1:
                raise Wrong("parts", parts.at, value=parts)
        elif function.name in ("broadcast_arrays", "meshgrid"):
            count = every["arrays"].length
        elif function.result == "flags":
            flags = [v for v in every.values() if v.kind == "bool"]
            known = all(flag.const is not None for flag in flags)
            count = 1 + sum(flag.const for flag in flags) * (count or 0) if known else None
            if count == 1:
                value = Value("array", cpp(written, "[0]"), args.node)
                return self.note(value, function.name, given, names)
        type_ = "tuple" if function.result == "tuple" else ""
        value = Value("arrays", written, args.node, count=count, type=type_)
        return self.note(value, function.name, given, names)

    def call_overload(self, name: str, args: Args) -> Value:
        """Translate the call of entries that share a Python name: of the one that Python calls."""
        names = self.scope.overloads[name]
        if not all(one in self.scope.ops for one in names):  # the errors in its entry are reported
            raise Wrong
        if len(names) == 1:
            return self.call_op(names[0], args)
        return self.call_op(choose(name, {one: self.scope.ops[one] for one in names}, args), args)

    def call_op(self, name: str, args: Args) -> Value:
        """Translate the call of another entry of the file."""
        self.used.append(("ops", name))
        cpp = f"{self.scope.namespace}::{name}"
        value, bound = self.call_function(name, self.scope.ops[name], cpp, args)
        return self.note_op(value, partial(self.scope.degrees, name), bound)

    def call_used(self, name: str, node: ast.Call) -> Value:
        """Translate the call of an operator of another package."""
        ops = {op.cpp_name: op for op in self.scope.used.get(name, ())}
        if not ops:
            package = name.partition(".")[0]
            near = did_you_mean(name, [*self.scope.used])
            raise Wrong("unknown_used", node.func, name=name, package=package, guess=near)
        args, (op, *others) = self.arguments(node, name), ops.values()
        if others:
            op = ops[choose(name, {one: op.signature for one, op in ops.items()}, args)]
        self.used.append(("headers", op.header))
        if not op.pure:
            self.used.append(("impure", name))
        value, bound = self.call_function(name, op.signature, f"::{op.cpp_name}", args)
        return self.note_op(value, op.degrees, bound)

    def call_function(
        self, name: str, signature: Signature, function: str, args: Args
    ) -> tuple[Value, dict[str, Value]]:
        """Translate the call of the C++ function of an operator; also return its arguments."""
        stream = self.stream(args.node)
        bound = bind([entry_param(arg) for arg in signature.declared], args)

        def given(arg: Arg) -> Sequence[str | Cpp]:
            value = bound.get(arg.name)
            if value is None and arg.type.variadic:
                value = Value("tuple", NOTHING, args.node)
            if value is None:
                defaults = (own.default for own in signature.args if (own.declared or own) is arg)
                return [default.cpp if default is not None else "" for default in defaults]
            if arg.type.is_union:
                return string_and_array(name, arg, value)
            fitted = fit_type(value, arg.type)
            if fitted is None:
                raise explain.argument(name, arg.name, arg.type.python, value)
            return [fitted]

        parts = self.each(given, signature.declared)
        called = call(function, *(part for parts_of in parts for part in parts_of), stream)
        count = len(signature.outputs)
        value = Value("arrays", called, args.node, count=count if count > 1 else None)
        if count == 1 and signature.outputs[0].type.kind is Kind.ARRAY:
            value.kind = "array"
        return value, bound

    def note_op(
        self,
        value: Value,
        degrees_of: Callable[[Mapping[str, int]], Sequence[Fact]],
        bound: Mapping[str, Value],
    ) -> Value:
        """Store the degrees of an operator's results in ``grad`` or ``tangent``.

        The results may depend on all arguments.
        """
        degrees = {arg: degree_of_all(operands([given])) for arg, given in bound.items()}
        uses = frozenset[str]().union(*(fact.uses for fact in operands(bound.values())))
        found: Sequence[Fact] = [Fact()]
        if max(degrees.values(), default=0) > 0:
            found = degrees_of(degrees) or [Fact(degree=OPAQUE)]
        known = [Fact(degree=fact.degree, uses=uses) for fact in found]
        one = Fact(degree=degree_of_all(known), uses=uses)
        value.fact = known if value.kind == "arrays" and len(known) == value.count else one
        self.note_nonlinear(value)
        return value

    def call_named(self, name: str, node: ast.Call) -> Value:
        """Translate the call of an MLX function by name."""
        function = self.scope.api.function(name)
        if function is None:
            others = [*self.scope.ops, *self.scope.overloads]
            raise unknown(name, node, others, self.scope.api)
        args = self.arguments(node, name)
        if not function.overloads:
            return self.call_rule(name, function.signatures[0], args)
        return self.call_mlx(function, args)

    def call_builtin(self, name: str, node: ast.Call, args: Args | None = None) -> Value:
        """Translate a Python function; for arrays, some of them are MLX functions.

        ``args``: its arguments, if they are already translated.
        """
        if name in self.scope.api.loops:
            raise Wrong("loop_only", node, name, name=name)
        if args is None:
            self.hints += name == "hint"
            args = self.arguments(node, name)
            self.hints -= name == "hint"
        given = args.positional
        function = self.scope.api.function(name)
        one, *more = self.scope.api.python[name]
        several = bool(more) and len(given) > 1
        if function is not None and (not given or given[0].kind == "array"):
            if several and any(value.kind == "array" for value in given[1:]):
                raise Wrong("several_arrays", node, label=name)
            return self.call_mlx(function, args)
        return self.call_rule(name, more[0] if several else one, args)

    def call_rule(self, name: str, params: Sequence[PythonParam], args: Args) -> Value:
        """Translate a function that the table defines by operations."""
        bound, at = bind(params, args), args.node
        given = [bound[param.name] for param in params if param.name in bound]
        value = given[0]
        if params[0].kind == "*":
            if not args.star:
                return self.folded(name, params[0], value.items, at)
            name = f"*{name}"
        elif given[-1].kind == "none":
            given = given[:1]
        elif name == "len" and value.length is not None:
            self.drop(value.items)
            return constant(value.length, at)
        if "array" in name:
            self.stream(at)
        if name == "len" and value.is_array:
            self.specialize(at)
        found = None if name in ("min", "max") and value.length == 0 else self.rule(name, given, at)
        if found is None and name in PAIRWISE and value.kind == "tuple" and value.items:
            found = self.pairwise(PAIRWISE[name], value.items, at)
        if found is None:
            last = len(given) - 1 if fit(given[-1], "dtype") is None else 0
            raise rejected(name, params[last], given[last])
        return found

    def pairwise(self, name: str, numbers: Sequence[Value], at: ast.expr) -> Value | None:
        """Apply an operation to several numbers; the kind of the result depends on all of them."""
        out: Value | None = numbers[0]
        for number in numbers[1:]:
            out = out and self.rule(name, [out, number], at)
        return out if out and out.kind in NUMBERS and out.kind != "bool" else None

    def folded(self, name: str, param: PythonParam, given: Sequence[Value], at: ast.expr) -> Value:
        """Translate a function of any number of operands: of all at once, or pairwise."""
        out = self.rule(name, given, at)
        if out is not None:
            return out
        for value in given:
            part = self.rule(f"{name}*", [value], at)
            if part is None:
                raise rejected(name, param, value)
            out = part if out is None else self.rule(name, [out, part], at)
        assert out is not None  # at least one operand exists
        return out


def rejected(name: str, param: PythonParam, value: Value) -> Wrong:
    """Return the error for an argument that a function's operations do not accept."""
    explain.require(value, *value.items)
    if not param.annotation:
        keys = (name, f"{name}({value.kind})", value.kind)
        return Wrong("builtin", value.at, *keys, label=name, value=value)
    return explain.argument(name, param.name, param.annotation, value)


def string_and_array(label: str, arg: Arg, value: Value) -> tuple[Cpp, Cpp]:
    """Return the C++ of the two arguments for an array or string."""
    name, type, nothing = arg.name, arg.type, named("std::nullopt")
    if None in value.states and not type.optional:
        raise Wrong("optional_name", value.at, name=value.name)
    strings: Iterable[State] = value.choices  # others are checked at run time
    if value.kind == "union":
        strings = [choice for choice in value.choices if choice in value.states]
    elif value.kind == "str" and value.const is not None:
        strings = [value.const]
    for string in strings:
        if string not in type.choices:
            raise explain.choice(constant(string, value.at), name, type.choices)
    if value.kind == "union":
        return value.mode, value.cpp
    slot = "str" if value.kind == "str" else "array"
    fitted = fit(value, slot, type.optional)
    if fitted is None:
        raise explain.argument(label, name, type.python, value)
    return (fitted, nothing) if slot == "str" else (nothing, fitted)


def choose(name: str, overloads: Mapping[str, Signature], args: Args) -> str:
    """Return the overload that Python calls."""
    positional = [kinds_of(value) for value in args.positional]
    keywords = {keyword: kinds_of(value) for keyword, value in args.keywords.items()}
    if not args.star and (one := chosen(overloads, positional, keywords)):
        return one
    params = ([*map(entry_param, signature.declared)] for signature in overloads.values())
    forms = [usage(each, name, False, True) for each in params]
    raise Wrong("no_overload", args.node, label=name, forms=forms)


def kinds_of(value: Value) -> frozenset[str]:
    """Return the kinds of Python values that a part of a formula can be."""
    if value.kind == "scalar":
        return frozenset({*NUMBERS} - {"scalar"} | ({"none"} if value.optional else set()))
    if value.kind == "union":
        kinds: dict[State, str] = {None: "none", PRESENT: "array"}
        return frozenset(kinds.get(state, "str") for state in value.states)
    kind = {"shape": "ints", "axes": "ints", "arrays": "arrays"}.get(value.kind, value.kind)
    if kind == "tuple":
        lists = all(item.kind == "tuple" for item in value.items)
        kind = "ints" if value.is_ints else "nested" if lists else "arrays"
        kind = kind if value.items else "empty"
    return frozenset({kind, "none"} if value.optional else {kind})


def entry_param(arg: Arg) -> PythonParam:
    """Convert an entry's argument to a parameter of a Python function."""
    default = arg.default.python if arg.default is not None else None
    default = "()" if arg.type.variadic else default  # any number of arrays, also none
    kind = "k" if arg.kw_only else "/" if arg.pos_only else "*" if arg.type.variadic else ""
    return PythonParam(arg.name, kind, arg.type.python, default)
