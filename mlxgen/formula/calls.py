"""Calls in formulas: MLX's functions, methods of arrays, other entries, Python's builtins."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..diagnostics import suggest
from ..model.signature import Arg, Kind, Signature
from . import lists, values
from .binding import Args, arguments, bind, call_mlx, wrong_kind
from .builtins import BUILTINS, SPECIAL
from .cpp_expr import Call, Node, Text
from .mlx import Function, Param, table
from .values import K, Value

if TYPE_CHECKING:
    from .compile import Compiler


def is_function(name: str) -> bool:
    """Whether a formula can call a function of that name."""
    return name in BUILTINS or name in SPECIAL or table().function(name) is not None


PYTHON = {
    "tuple": "write the tuple or list itself",
    "list": "write the tuple or list itself",
    "isinstance": "types of arguments are known from the signature",
    "reversed": "write x[::-1]",
    "sorted": "use sort",
    "map": "use a comprehension",
    "filter": "use a comprehension",
    "str": "strings are for comparing with and passing on",
    "print": "a formula computes one value",
}


def call(c: Compiler, node: ast.Call) -> Value | None:
    """A call of anything."""
    function = node.func
    if isinstance(function, ast.Name):
        name = function.id
        if name in c.locals or name in c.scope.names:
            help = f"write mx.{name}(...) for MLX's function" if is_function(name) else None
            c.error("MG320", f"'{name}' is an argument here, not a function", function, help)
            return None
        if name in c.scope.ops:
            args = arguments(c, node, name)
            return call_op(c, c.scope.ops[name], name, args) if args is not None else None
        if name in BUILTINS:
            return BUILTINS[name](c, node)
        return call_named(c, name, node)
    if isinstance(function, ast.Attribute):
        path = c.path(function)
        if path is not None:
            return call_named(c, path, node)
        return call_method(c, function, node)
    c.error("MG302", "only functions and methods can be called", function)
    return None


def call_named(c: Compiler, name: str, node: ast.Call) -> Value | None:
    """A function of MLX."""
    if name in SPECIAL:
        args = arguments(c, node, name)
        return SPECIAL[name](c, args) if args is not None else None
    function = table().function(name)
    if function is None:
        unknown_function(c, name, node)
        return None
    args = arguments(c, node, name)
    return call_mlx(c, function, args) if args is not None else None


def unknown_function(c: Compiler, name: str, node: ast.Call) -> None:
    """Report a function that does not exist, or cannot be had."""
    api = table()
    reason = api.omitted.get(name)
    if reason is not None:
        c.error("MG305", f"'{name}' cannot be used in a formula: {reason}", node.func)
        return
    names = [*SPECIAL, *api.names]
    inside = [n for n in names if n.partition(".")[2] == name]
    message, help = f"unknown function '{name}'", PYTHON.get(name)
    if inside:
        help = f"write {inside[0]}(...)"
    elif help is None:
        guess = suggest(name, [*c.scope.ops, *BUILTINS, *names])
        message += f" (did you mean '{guess}'?)" if guess else ""
    c.error("MG304", message, node.func, help)


def call_method(c: Compiler, function: ast.Attribute, node: ast.Call) -> Value | None:
    """``x.sum(axis=-1)``"""
    at = function.value
    if (
        isinstance(at, ast.Subscript)
        and isinstance(at.value, ast.Attribute)
        and at.value.attr == "at"
    ):
        return lists.update_array(c, at, node)
    receiver = c.visit(function.value)
    name = function.attr
    args = arguments(c, node, name)
    if receiver is None or args is None:
        return None
    if receiver.optional:
        c.may_be_none(receiver)
        return None
    if receiver.kind is not K.ARRAY:
        c.error("MG309", f"{receiver.text} has no methods", function)
        return None
    method = table().method(name)
    if method is None:
        unknown_method(c, name, function)
        return None
    star = next((p for p in method.signatures[0] if p.kind == "*"), None)
    args.positional.insert(0, receiver)
    if star is not None:  # x.reshape(2, -1) or x.reshape((2, -1))
        rest = args.positional[1:]
        if len(rest) == 1 and rest[0].kind is not K.INT:
            listed = rest[0]
        else:
            listed = Value(K.TUPLE, Text(""), node, items=rest)
        if not rest:
            listed = values.none(node)
        if args.keywords:
            c.error("MG306", f"'{name}' takes no arguments by name", node)
            return None
        params = (method.signatures[0][0], Param(star.name, "", "Sequence[int]"))
        method = Function(name, (params,), method.forms, "array", None, True)
        args = Args(node, name, [receiver, listed], {})
    return call_mlx(c, method, args)


def unknown_method(c: Compiler, name: str, function: ast.Attribute) -> None:
    """Report a method that does not exist."""
    help = None
    if name in ("item", "tolist"):
        message = (
            f"'{name}' needs the value of an array, which does not exist when the graph is built"
        )
    elif table().function(name) is not None:
        message, help = f"arrays have no method '{name}'", f"write {name}(x, ...)"
    else:
        guess = suggest(name, table().methods)
        message = f"arrays have no method '{name}'" + (
            f" (did you mean '{guess}'?)" if guess else ""
        )
    c.error("MG309", message, function, help)


def call_op(c: Compiler, signature: Signature, name: str, args: Args) -> Value | None:
    """Another entry of the same file."""
    stream = c.stream(name, args.node)
    if stream is None:
        return None
    params = [_param(a) for a in signature.args]
    bound = bind(c, params, args)
    if bound is None:
        return None
    nodes: list[Node] = []
    failed = False
    for arg in signature.args:
        value = bound.get(arg.name)
        if value is None:
            nodes.append(Text(arg.default.cpp if arg.default is not None else ""))
            continue
        node = values.fit_type(value, arg.type)
        choices = arg.type.choices
        if value.kind is K.STR and choices and value.const not in (None, *choices):
            c.not_a_choice(value, arg.name, choices)
            failed = True
            continue
        if node is None:
            wrong_kind(c, name, arg.name, arg.type.python, value)
            failed = True
            continue
        nodes.append(node)
    if failed:
        return None
    c.ops.add(name)
    cpp = Call(c.scope.op_cpp[name], [*nodes, stream])
    outputs = signature.outputs
    if len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY:
        return Value(K.ARRAY, cpp, args.node)
    several = len(outputs) > 1
    return Value(K.ARRAYS, cpp, args.node, count=len(outputs) if several else None)


def _param(arg: Arg) -> Param:
    """An argument of an entry, as one of MLX's functions."""
    kind = "k" if arg.kw_only else ""
    return Param(
        arg.name, kind, arg.type.python, arg.default.python if arg.default is not None else None
    )
