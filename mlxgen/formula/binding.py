"""Calls of MLX's functions: which C++ overload takes the arguments, and as what.

A call is bound as Python would bind it (positional-only and keyword-only parameters, defaults,
MLX's own overloads), then compared with the forms that ``mlx_api`` knows for the function, until
one takes all arguments. Where an argument may be None at run time and C++ decides by overload, both
calls are generated, with the decision between them. Numbers beside arrays go to the function of the
same name in ``mlxgen/formula.h``, which gives them the array's dtype.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..diagnostics import suggest
from . import operators, values
from .cpp_expr import Call, Node, Ternary, Text
from .mlx import Form, Function, Param, Slot
from .values import K, Value

if TYPE_CHECKING:
    from .compile import Compiler

# Functions of numbers, by MLX's name: they give a number, in double precision.
SCALAR = {
    "exp": "std::exp",
    "expm1": "std::expm1",
    "log": "std::log",
    "log2": "std::log2",
    "log10": "std::log10",
    "log1p": "std::log1p",
    "sqrt": "std::sqrt",
    "sin": "std::sin",
    "cos": "std::cos",
    "tan": "std::tan",
    "arcsin": "std::asin",
    "arccos": "std::acos",
    "arctan": "std::atan",
    "arctan2": "std::atan2",
    "sinh": "std::sinh",
    "cosh": "std::cosh",
    "tanh": "std::tanh",
    "arcsinh": "std::asinh",
    "arccosh": "std::acosh",
    "arctanh": "std::atanh",
    "erf": "std::erf",
    "floor": "std::floor",
    "ceil": "std::ceil",
    "trunc": "std::trunc",
    "round": "std::nearbyint",
    "power": "std::pow",
}


# Functions of numbers that are operators in C++ too.
OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "subtract": ast.Sub,
    "multiply": ast.Mult,
    "divide": ast.Div,
    "floor_divide": ast.FloorDiv,
    "remainder": ast.Mod,
    "power": ast.Pow,
}


@dataclass(slots=True)
class Args:
    """The arguments of a call, as values."""

    node: ast.Call
    label: str  # what messages call the function
    positional: list[Value]
    keywords: dict[str, Value]
    star: bool = False  # the last positional one is *args


def arguments(c: Compiler, node: ast.Call, label: str) -> Args | None:
    """The values of the arguments of a call."""
    out = Args(node, label, [], {})
    failed = False
    for i, arg in enumerate(node.args):
        if isinstance(arg, ast.Starred):
            display = ast.Tuple(node.args[i:], ast.Load())
            rest = c.visit(ast.copy_location(display, arg))
            if rest is None:
                return None
            out.positional.append(rest)
            out.star = True
            break
        value = c.visit(arg)
        failed |= value is None
        if value is not None:
            out.positional.append(value)
    for keyword in node.keywords:
        if keyword.arg is None:
            c.error("MG302", "a formula cannot contain **", keyword.value, "name the arguments")
            failed = True
        elif keyword.arg == "stream":
            c.error("MG306", "the stream is passed on by itself", keyword, "leave it out")
            failed = True
        else:
            if keyword.arg in out.keywords:
                c.error("MG306", f"'{keyword.arg}' is given twice", keyword, "leave one out")
            value = c.visit(keyword.value)
            failed |= value is None
            if value is not None:
                out.keywords[keyword.arg] = value
    return None if failed else out


def bind(
    c: Compiler, params: Sequence[Param], args: Args, quiet: bool = False
) -> dict[str, Value] | None:
    """The argument of each parameter that was given; those left to their defaults are not there."""

    def fail(message: str, at: ast.AST, help: str | None = None) -> None:
        if not quiet:
            c.error("MG306", message, at, help)

    label = args.label
    bound: dict[str, Value] = {}
    places = [p for p in params if p.kind in ("/", "")]
    rest = next((p for p in params if p.kind == "*"), None)
    if args.star and (rest is None or len(args.positional) <= len(places)):
        fail(f"'{label}' takes no *arguments here", args.node)
        return None
    for param, value in zip(places, args.positional, strict=False):
        bound[param.name] = value
    more = args.positional[len(places) :]
    if rest is not None:
        bound[rest.name] = more[0] if args.star else Value(K.TUPLE, Text(""), args.node, items=more)
    elif more:
        count = f"at most {len(places)}" if any(p.default for p in places) else f"{len(places)}"
        noun = "argument" if len(places) == 1 else "arguments"
        keyword = next((p.name for p in params if p.kind == "k"), None)
        help = f"write {keyword}=..." if keyword else None
        fail(
            f"'{label}' takes {count} positional {noun}, not {len(args.positional)}",
            more[0].at,
            help,
        )
        return None
    for name, value in args.keywords.items():
        if not any(p.name == name and p.kind in ("", "k") for p in params):
            where = next((k for k in args.node.keywords if k.arg == name), args.node)
            if any(p.name == name for p in params):
                fail(f"'{name}' of '{label}' is positional only", where, "leave out the name")
            else:
                names = [p.name for p in params if p.kind in ("", "k")]
                guess = suggest(name, names)
                fail(
                    f"'{label}' has no argument '{name}'"
                    + (f" (did you mean '{guess}'?)" if guess else ""),
                    where,
                    f"arguments by name: {', '.join(names)}" if names else None,
                )
            return None
        if name in bound:
            fail(f"'{name}' of '{label}' is given twice", value.at)
            return None
        bound[name] = value
    missing = [p.name for p in params if p.default is None and p.name not in bound]
    if missing:
        listed = ", ".join(f"'{m}'" for m in missing)
        fail(
            f"'{label}' needs {'an argument' if len(missing) == 1 else 'arguments'} {listed}",
            args.node,
        )
        return None
    return bound


def call_mlx(c: Compiler, function: Function, args: Args) -> Value | None:
    """A function of MLX with its arguments."""
    number = on_numbers(c, function.name, args)
    if number is not None:
        return number
    if c.scope.stream is None and function.stream:
        c.stream(args.label, args.node)
        return None
    params = function.signatures[0]
    bound = bind(c, params, args, quiet=len(function.signatures) > 1)
    for other in function.signatures[1:]:
        if bound is None:
            params = other
            bound = bind(c, params, args, quiet=other is not function.signatures[-1])
    if bound is None:
        return None
    if (
        "key" not in bound
        and function.name.startswith("random.")
        and any(p.name == "key" for p in params)
    ):
        c.error(
            "MG321",
            f"'{args.label}' needs a key in a formula",
            args.node,
            "MLX's default key belongs to Python; add an array argument `key`, and key=key here",
        )
        return None
    every = complete(params, bound, args.node)
    if not check_choices(c, params, bound):
        return None
    node = select(c, function, every)
    if node is None:
        explain(c, function, params, bound, args)
        return None
    c.mlx.add(function.name)
    if function.result == "array":
        return Value(K.ARRAY, node, args.node)
    count = function.count
    if function.name == "split":
        count = split_count(every["indices_or_sections"])
    elif function.name in ("broadcast_arrays", "meshgrid"):
        listed = every["arrays"]
        count = len(listed.items) if listed.kind is K.TUPLE else listed.count
    return Value(K.ARRAYS, node, args.node, count=count, is_tuple=function.result == "tuple")


def split_count(value: Value) -> int | None:
    """How many arrays split gives."""
    if value.kind is K.INT:
        return int(value.const) if value.const is not None else None
    return len(value.items) + 1 if value.kind is K.TUPLE else None


def complete(params: Sequence[Param], bound: Mapping[str, Value], at: ast.expr) -> dict[str, Value]:
    """All arguments, with defaults; None where it stands for the default becomes that."""
    every = dict(bound)
    for param in params:
        if param.default is None:
            continue
        given = bound.get(param.name)
        default = values.default(param.default, at)
        if given is None or (given.kind is K.NONE and not param.takes_none):
            every[param.name] = default
        elif given.optional and given.kind is K.DTYPE and not param.takes_none:
            either = Call(f"{given.node.flat}.value_or", [default.node])
            every[param.name] = Value(K.DTYPE, either, given.at)
    return every


def check_choices(c: Compiler, params: Sequence[Param], bound: Mapping[str, Value]) -> bool:
    """Whether string constants are among those that the parameter takes."""
    for param in params:
        value = bound.get(param.name)
        if value is None or value.const is None or value.kind is not K.STR:
            continue
        if param.annotation.startswith("Literal["):
            choices = ast.literal_eval(f"({param.annotation[8:-1]},)")
            if value.const not in choices:
                c.not_a_choice(value, param.name, choices)
                return False
    return True


def select(c: Compiler, function: Function, bound: Mapping[str, Value]) -> Node | None:
    """The call in C++ by the first form that takes all arguments."""
    for form in function.forms:
        node = apply(c, function, form, bound)
        if node is not None:
            return node
    # An argument that may be None where C++ tells by the overload: decide at run time.
    for name, value in bound.items():
        if value.optional and value.name is not None:
            given = select(c, function, {**bound, name: values.dereferenced(value)})
            if given is None:
                continue
            absent = select(c, function, {**bound, name: values.none(value.at)})
            if absent is not None:
                return Ternary(values.has_value(value.node), given, absent)
    return None


def apply(c: Compiler, function: Function, form: Form, bound: Mapping[str, Value]) -> Node | None:
    """One form with these arguments, or None if it does not take them."""
    if not form.params <= bound.keys():  # of another of the function's signatures
        return None
    if any(n not in form.params and v.kind is not K.NONE for n, v in bound.items()):
        return None
    nodes: list[Node] = []
    numbers = False
    for slot in form.slots:
        if slot.text:
            nodes.append(Text(slot.text))
            continue
        if not slot.type:  # taken, and of no use to this overload
            continue
        node = fit_slot(slot, bound)
        if node is None:
            return None
        if slot.type == "weak":
            numbers |= bound[slot.param].kind in values.NUMBERS
        nodes.append(node)
    if numbers and not has_array(form, bound):
        return None
    cpp = form.cpp.replace("mx::", "mlxgen::", 1) if numbers else form.cpp
    if function.stream:
        nodes.append(Text(c.scope.stream or ""))
    return Call(cpp, nodes)


def has_array(form: Form, bound: Mapping[str, Value]) -> bool:
    """Whether numbers have an array to take the dtype of (where can do without)."""
    if form.cpp == "mx::where":
        return True
    arrays = [s for s in form.slots if s.type in ("weak", "array")]
    return any(bound[s.param].is_array for s in arrays)


def fit_slot(slot: Slot, bound: Mapping[str, Value]) -> Node | None:
    """The argument of a slot as C++."""
    name, _, part = slot.param.partition(".")
    value = bound[name]
    if part:  # the first or second of two lists
        if value.kind is not K.TUPLE or len(value.items) != 2:
            return None
        return values.fit(value.items[int(part)], slot.type)
    if slot.type == "value@dtype":
        if value.is_number:
            dtype = values.fit(bound["dtype"], "dtype")
            return Call("mlxgen::scalar", [value.node, dtype]) if dtype is not None else None
        return values.fit(value, "array", slot.optional)
    return values.fit(value, slot.type, slot.optional)


def explain(
    c: Compiler,
    function: Function,
    params: Sequence[Param],
    bound: Mapping[str, Value],
    args: Args,
) -> None:
    """Report why no form takes the arguments: the first that none does, else all together."""
    for param in params:
        value = bound.get(param.name)
        if value is None:
            continue
        forms = [f for f in function.forms if f.params <= {p.name for p in params}]
        slots = [s for f in forms for s in f.slots if s.param.partition(".")[0] == param.name]
        unslotted = any(param.name not in f.params for f in forms)
        if value.kind is K.NONE and (unslotted or any(s.optional for s in slots)):
            continue
        if any(
            fit_slot(s, {**bound, "dtype": bound.get("dtype", value)}) is not None for s in slots
        ):
            continue
        if not slots and value.kind is K.NONE:
            continue
        wrong_kind(c, args.label, param.name, param.annotation, value)
        return
    numbers = [v for v in bound.values() if v.is_number]
    if numbers and not any(v.is_array for v in bound.values()):
        c.error(
            "MG307",
            f"'{args.label}' needs an array among its arguments",
            args.node,
            "write array(2.0), or use operators for numbers",
        )
        return
    c.error("MG307", f"'{args.label}' does not take these arguments together", args.node)


def wrong_kind(c: Compiler, label: str, name: str, annotation: str, value: Value) -> None:
    """Report an argument of the wrong kind, or the item that makes a list so."""
    wanted = K.ARRAY if "array" in annotation else K.INT
    if value.kind is K.TUPLE and re.search(r"(Sequence|list|tuple)\[", annotation):
        others = [i for i in value.items if i.optional or i.kind is not wanted]
        if len(others) < len(value.items) or any(i.optional for i in others):
            value = others[0] if others else value
    if value.optional:
        c.may_be_none(value)
        return
    help = None
    if value.is_number and "array" in annotation:
        help = f"write array({c.text[slice(*c.span(value.at))]}) for a constant array"
    elif value.kind is K.ARRAYS and "array" in annotation:
        help = "take one of them with [0]"
    elif value.kind is K.TUPLE and annotation == "array":
        help = "write array([...]) for a constant array"
    elif value.kind is K.FLOAT and "int" in annotation:
        help = "write // to divide ints, or int(...)"
    elif value.kind is K.ARRAY and "int" in annotation:
        help = "it has to be known when the graph is built: an int attribute, or a size"
    c.error(
        "MG307",
        f"'{name}' of '{label}' is `{annotation}`, and this is {value.text}",
        value.at,
        help,
    )


def on_numbers(c: Compiler, name: str, args: Args) -> Value | None:
    """A function of numbers, if that is what this is."""
    given = args.positional
    if args.keywords or args.star or not given or not all(v.is_number for v in given):
        return None
    if any(v.kind is K.BOOL for v in given):
        return None
    if name in OPERATORS and len(given) == 2:
        return operators.arithmetic(c, args.node, OPERATORS[name], *given)
    if name in ("maximum", "minimum") and len(given) == 2:
        return extreme("std::max" if name == "maximum" else "std::min", given, args.node)
    if name == "abs" and len(given) == 1:
        return absolute(given[0], args.node)
    if name == "square" and len(given) == 1:
        return operators.arithmetic(c, args.node, ast.Mult, given[0], given[0])
    cpp = SCALAR.get(name)
    if cpp is None or len(given) != (2 if name == "arctan2" else 1):
        return None
    return Value(K.FLOAT, Call(cpp, [values.as_double(v) for v in given]), args.node)


def absolute(value: Value, node: ast.expr) -> Value:
    """``abs(n)``"""
    cpp = Call("std::abs", [value.node])
    return Value(value.kind, cpp, node, wide=value.wide, single=value.single)


def extreme(cpp: str, given: Sequence[Value], node: ast.expr) -> Value:
    """The smallest or largest of numbers."""
    ints = all(v.kind is K.INT for v in given)
    wide = ints and any(v.wide for v in given)
    head = cpp if ints and not wide else f"{cpp}<{'int64_t' if ints else 'double'}>"
    out = given[0].node
    for value in given[1:]:
        out = Call(head, [out, value.node])
    return Value(K.INT if ints else K.FLOAT, out, node, wide=wide)
