"""Functions of formulas that are not read off MLX's table.

``SPECIAL`` are functions of mlx.core that give no array (``result_type``, ``finfo``), or whose
result depends on a flag (``svd``). ``BUILTINS`` are Python's: on lists and numbers they do what
Python does; where MLX has a function of the same name (``sum``, ``max``, ``abs``), the first
argument decides.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from . import values
from .binding import (
    Args,
    absolute,
    arguments,
    bind,
    call_mlx,
    extreme,
    wrong_kind,
)
from .cpp_expr import Binary, Call, Node, Text
from .mlx import Param, table
from .values import K, Value

if TYPE_CHECKING:
    from .compile import Compiler

Builtin = Callable[["Compiler", ast.Call], "Value | None"]

# Functions of MLX that give no array, or take a mix of things


def _special_array(c: Compiler, args: Args) -> Value | None:
    """``array(2.0, dtype=float32)``, ``array([1, 2])``"""
    name = "val" if args.label == "array" else "a"
    params = [Param(name, "", "scalar | list"), Param("dtype", "", "Dtype | None", "None")]
    bound = bind(c, params, args)
    if bound is None:
        return None
    value, dtype = bound[name], bound.get("dtype")
    type_: Node | None = None
    if dtype is not None and dtype.kind is not K.NONE:
        type_ = values.fit(dtype, "dtype")
        if type_ is None:
            wrong_kind(c, args.label, "dtype", "Dtype | None", dtype)
            return None
    if c.stream(args.label, args.node) is None:
        return None
    if value.is_array:
        return c.mlx_call("astype", [value.node, type_], args.node) if type_ else value
    if value.is_number:
        if type_ is None:
            return Value(K.ARRAY, Call("mlxgen::scalar", [value.node]), args.node)
        return Value(K.ARRAY, Call("mx::array", [value.node, type_]), args.node)
    numbers = value.items
    if (
        value.kind is not K.TUPLE
        or not numbers
        or any(n.kind not in (K.INT, K.FLOAT) for n in numbers)
    ):
        wrong_kind(c, args.label, name, "scalar | list", value)
        return None
    if any(n.optional for n in numbers):
        c.may_be_none(next(n for n in numbers if n.optional))
        return None
    ints = all(n.kind is K.INT for n in numbers)
    listed = [values.narrow(n) if ints else values.as_double(n) for n in numbers]
    type_ = type_ or Text("mx::int32" if ints else "mx::float32")
    return Value(K.ARRAY, Call("mx::array", [Call("", listed, "{}"), type_]), args.node)


def _special_result_type(c: Compiler, args: Args) -> Value | None:
    """``result_type(x, float32)``"""
    given = args.positional
    if args.keywords or not given:
        c.error("MG306", "'result_type' takes arrays and dtypes", args.node)
        return None
    if args.star and len(given) == 1:
        listed = values.arrays(given[0])
        if listed is not None:
            return Value(K.DTYPE, Call("mx::result_type", [listed]), args.node)
    if len(given) in (2, 3) and all(v.is_array for v in given):
        return Value(K.DTYPE, Call("mx::result_type", [v.node for v in given]), args.node)
    out: Node | None = None
    for value in given:
        if value.optional:
            c.may_be_none(value)
            return None
        if value.kind not in (K.ARRAY, K.DTYPE):
            wrong_kind(c, args.label, "arrays_and_dtypes", "array | Dtype", value)
            return None
        dtype = c.dtype_of(value)
        out = dtype if out is None else Call("mx::promote_types", [out, dtype])
    return Value(K.DTYPE, out, args.node) if out is not None else None


def _special_broadcast_shapes(c: Compiler, args: Args) -> Value | None:
    """``broadcast_shapes(x.shape, y.shape)``"""
    if args.keywords or args.star or not args.positional:
        c.error("MG306", "'broadcast_shapes' takes shapes", args.node)
        return None
    out: Node | None = None
    for value in args.positional:
        node = values.shape(value) if value.is_ints else None
        if node is None:
            wrong_kind(c, args.label, "shapes", "Sequence[int]", value)
            return None
        out = node if out is None else Call("mx::broadcast_shapes", [out, node])
    return Value(K.SHAPE, out, args.node) if out is not None else None


def _special_issubdtype(c: Compiler, args: Args) -> Value | None:
    """``issubdtype(x.dtype, floating)``"""
    params = [Param("arg1", "/", "Dtype"), Param("arg2", "/", "Dtype")]
    bound = bind(c, params, args)
    if bound is None:
        return None
    for name, value in bound.items():
        if value.kind not in (K.DTYPE, K.CATEGORY) or value.optional:
            wrong_kind(c, args.label, name, "Dtype | DtypeCategory", value)
            return None
    nodes = [v.node for v in bound.values()]
    return Value(K.BOOL, Call("mx::issubdtype", nodes), args.node)


def _special_info(c: Compiler, args: Args) -> Value | None:
    """``finfo(x.dtype)``"""
    bound = bind(c, [Param("dtype", "/", "Dtype")], args)
    if bound is None:
        return None
    value = bound["dtype"]
    if value.kind is not K.DTYPE or value.optional:
        wrong_kind(c, args.label, "dtype", "Dtype", value)
        return None
    return Value(K.INFO, Text(""), args.node, const=args.label, items=[value])


def _flag(
    c: Compiler, args: Args, bound: Mapping[str, Value], name: str, otherwise: bool
) -> bool | None:
    """A flag that decides about the kind of the result, and so has to be written out."""
    value = bound.get(name)
    if value is None:
        return otherwise
    if value.kind is not K.BOOL or value.const is None:
        c.error(
            "MG307",
            f"'{name}' of '{args.label}' decides what the result is: write True or False",
            value.at,
        )
        return None
    return bool(value.const)


def _special_svd(c: Compiler, args: Args) -> Value | None:
    """``linalg.svd(a)``: three arrays, or the singular values only."""
    params = [Param("a", "", "array"), Param("compute_uv", "", "bool", "True")]
    bound = bind(c, params, args)
    stream = c.stream(args.label, args.node)
    if bound is None or stream is None:
        return None
    array = values.fit(bound["a"], "array")
    if array is None:
        wrong_kind(c, args.label, "a", "array", bound["a"])
        return None
    vectors = _flag(c, args, bound, "compute_uv", True)
    if vectors is None:
        return None
    c.mlx.add("linalg.svd")
    nodes = [array, Text("true" if vectors else "false"), stream]
    if not vectors:
        return Value(K.ARRAY, Call("mx::linalg::svd", nodes, post="[0]"), args.node)
    return Value(K.ARRAYS, Call("mx::linalg::svd", nodes), args.node, count=3)


def _special_unique(c: Compiler, args: Args) -> Value | None:
    """``unique(a, size)``: the values, and what the flags ask for."""
    flags = ("return_index", "return_inverse", "return_counts")
    params = [
        Param("a", "/", "array"),
        Param("size", "", "int"),
        *(Param(f, "", "bool", "False") for f in flags),
        Param("fill_value", "", "scalar | array | None", "None"),
    ]
    bound = bind(c, params, args)
    stream = c.stream(args.label, args.node)
    if bound is None or stream is None:
        return None
    nodes: list[Node] = []
    for name, slot in (("a", "array"), ("size", "int")):
        node = values.fit(bound[name], slot)
        if node is None:
            wrong_kind(c, args.label, name, slot, bound[name])
            return None
        nodes.append(node)
    count = 1
    for flag in flags:
        given = _flag(c, args, bound, flag, False)
        if given is None:
            return None
        count += given
        nodes.append(Text("true" if given else "false"))
    fill = bound.get("fill_value")
    if fill is None or fill.kind is K.NONE:
        nodes.append(Text("std::nullopt"))
    elif fill.is_number:
        nodes.append(Call("mlxgen::scalar", [fill.node, c.dtype_of(bound["a"])]))
    else:
        node = values.fit(fill, "array", True)
        if node is None:
            wrong_kind(c, args.label, "fill_value", "scalar | array | None", fill)
            return None
        nodes.append(node)
    c.mlx.add("unique")
    if count == 1:
        return Value(K.ARRAY, Call("mx::unique", [*nodes, stream], post="[0]"), args.node)
    return Value(K.ARRAYS, Call("mx::unique", [*nodes, stream]), args.node, count=count)


SPECIAL: dict[str, Callable[[Compiler, Args], Value | None]] = {
    "array": _special_array,
    "asarray": _special_array,
    "result_type": _special_result_type,
    "broadcast_shapes": _special_broadcast_shapes,
    "issubdtype": _special_issubdtype,
    "finfo": _special_info,
    "iinfo": _special_info,
    "linalg.svd": _special_svd,
    "unique": _special_unique,
}


# Python's builtins


def _one(c: Compiler, node: ast.Call, label: str) -> Value | None:
    """The only argument of a call."""
    args = arguments(c, node, label)
    if args is None:
        return None
    if len(args.positional) != 1 or args.keywords or args.star:
        c.error("MG306", f"'{label}' takes one argument", node)
        return None
    value = args.positional[0]
    if value.optional:
        c.may_be_none(value)
        return None
    return value


def _builtin_len(c: Compiler, node: ast.Call) -> Value | None:
    value = _one(c, node, "len")
    if value is None:
        return None
    if value.kind is K.TUPLE:
        return values.integer(len(value.items), node)
    if value.kind is K.ARRAYS:
        if value.count is not None:
            return values.integer(value.count, node)
        return Value(K.INT, Call("mlxgen::len", [value.node]), node)
    if value.kind is K.SHAPE and value.of is not None:
        return Value(K.INT, Call("mlxgen::ndim", [value.of.node]), node, of=value.of)
    if value.kind in (K.SHAPE, K.INTS, K.BOOLS, K.FLOATS):
        return Value(K.INT, Call("mlxgen::len", [value.node]), node)
    if value.kind is K.ARRAY:
        return Value(K.INT, Call("mlxgen::dim", [value.node, Text("0")]), node)
    c.error("MG307", f"len of {value.text}", value.at, "len is for lists, shapes and arrays")
    return None


def _builtin_int(c: Compiler, node: ast.Call) -> Value | None:
    value = _one(c, node, "int")
    if value is None:
        return None
    if value.kind is K.INT:
        return values.moved(value, node)
    if value.kind in (K.FLOAT, K.BOOL):
        return Value(K.INT, Call("mlxgen::to_int", [value.node]), node)
    _not_a_number(c, "int", value)
    return None


def _builtin_float(c: Compiler, node: ast.Call) -> Value | None:
    value = _one(c, node, "float")
    if value is None:
        return None
    if value.kind is K.FLOAT:
        return values.moved(value, node)
    if value.kind in (K.INT, K.BOOL):
        if value.kind is K.INT and value.const is not None:
            return values.floating(float(value.const), node)
        return Value(K.FLOAT, Call("static_cast<double>", [value.node]), node)
    if value.kind is K.STR:
        c.error("MG307", "float of a string", value.at, "write inf and nan as they are")
        return None
    _not_a_number(c, "float", value)
    return None


def _builtin_bool(c: Compiler, node: ast.Call) -> Value | None:
    value = _one(c, node, "bool")
    if value is None:
        return None
    if value.kind is K.BOOL:
        return values.moved(value, node)
    if value.kind in (K.INT, K.FLOAT):
        return Value(K.BOOL, Binary("!=", value.node, Text("0")), node)
    _not_a_number(c, "bool", value)
    return None


def _not_a_number(c: Compiler, label: str, value: Value) -> None:
    help = "the value of an array does not exist when the graph is built"
    if value.kind is K.ARRAY and label in ("int", "float"):
        help += f"; write x.astype({label}32) to change the dtype"
    c.error("MG307", f"{label} of {value.text}", value.at, help if value.kind is K.ARRAY else None)


def _mlx_or(name: str, otherwise: Callable[[Compiler, Args], Value | None]) -> Builtin:
    """A name that Python and MLX share: MLX's where the first argument is an array."""

    def handler(c: Compiler, node: ast.Call) -> Value | None:
        args = arguments(c, node, name)
        if args is None:
            return None
        first = args.positional[0] if args.positional else None
        function = table().function(name)
        if function is None or (first is not None and first.kind is not K.ARRAY):
            return otherwise(c, args)
        if name in ("min", "max") and any(v.kind is K.ARRAY for v in args.positional[1:]):
            c.error("MG307", f"'{name}' of several arrays", node, f"write {name}imum(a, b)")
            return None
        return call_mlx(c, function, args)

    return handler


def _reduced(c: Compiler, args: Args) -> Value | None:
    """The list that sum, prod, min, max, all or any work on."""
    if len(args.positional) != 1 or args.keywords or args.star:
        c.error("MG306", f"'{args.label}' of a list takes one argument", args.node)
        return None
    value = args.positional[0]
    if value.optional:
        c.may_be_none(value)
        return None
    return value


def _builtin_sum(c: Compiler, args: Args) -> Value | None:
    value = _reduced(c, args)
    if value is None:
        return None
    label = args.label
    if value.is_arrays and label == "sum":
        stream = c.stream(label, args.node)
        node = values.arrays(value)
        if stream is None or node is None:
            return None
        return Value(K.ARRAY, Call("mlxgen::sum", [node, stream]), args.node)
    if value.is_ints:
        node = values.shape(value)
        if node is not None:
            return Value(K.INT, Call(f"mlxgen::{label}", [node]), args.node, wide=True)
    if value.kind is K.FLOATS and label == "sum":
        return Value(K.FLOAT, Call("mlxgen::sum", [value.node]), args.node)
    _bad_list(c, label, value)
    return None


def _builtin_extreme(c: Compiler, args: Args) -> Value | None:
    label = args.label
    given = args.positional
    if len(given) > 1 and not args.keywords and not args.star:
        for value in given:
            if value.optional:
                c.may_be_none(value)
                return None
            if value.kind is K.ARRAY:
                c.error(
                    "MG307",
                    f"'{label}' of an array and a number",
                    args.node,
                    f"write {label}imum(a, b)",
                )
                return None
            if value.kind not in (K.INT, K.FLOAT):
                _bad_list(c, label, value)
                return None
        return extreme(f"std::{label}", given, args.node)
    reduced = _reduced(c, args)
    if reduced is None:
        return None
    if reduced.is_ints and (reduced.kind is not K.TUPLE or reduced.items):
        node = values.shape(reduced)
        if node is not None:
            return Value(K.INT, Call(f"mlxgen::{label}", [node]), args.node)
    if reduced.kind is K.FLOATS:
        return Value(K.FLOAT, Call(f"mlxgen::{label}", [reduced.node]), args.node)
    _bad_list(c, label, reduced)
    return None


def _builtin_all(c: Compiler, args: Args) -> Value | None:
    value = _reduced(c, args)
    if value is None:
        return None
    if value.kind is K.BOOLS:
        return Value(K.BOOL, Call(f"mlxgen::{args.label}", [value.node]), args.node)
    _bad_list(c, args.label, value)
    return None


def _builtin_abs(c: Compiler, args: Args) -> Value | None:
    value = _reduced(c, args)
    if value is None:
        return None
    if value.kind in (K.INT, K.FLOAT):
        return absolute(value, args.node)
    _bad_list(c, args.label, value)
    return None


def _bad_list(c: Compiler, label: str, value: Value) -> None:
    help = {
        "all": "write all(a.ndim == 2 for a in arrays)",
        "any": "write any(a.ndim == 2 for a in arrays)",
    }.get(label)
    c.error("MG307", f"'{label}' of {value.text}", value.at, help)


def _loop_only(name: str) -> Builtin:
    def handler(c: Compiler, node: ast.Call) -> Value | None:
        c.error("MG302", f"'{name}' stands in a comprehension only", node, f"write {LOOPS[name]}")
        return None

    return handler


# What stands in comprehensions only.
LOOPS = {
    "zip": "[a * b for a, b in zip(xs, ys)]",
    "enumerate": "[a * i for i, a in enumerate(xs)]",
    "range": "[x.shape[i] for i in range(2)]",
}

BUILTINS: dict[str, Builtin] = {
    "len": _builtin_len,
    "int": _builtin_int,
    "float": _builtin_float,
    "bool": _builtin_bool,
    "abs": _mlx_or("abs", _builtin_abs),
    "sum": _mlx_or("sum", _builtin_sum),
    "prod": _mlx_or("prod", _builtin_sum),
    "min": _mlx_or("min", _builtin_extreme),
    "max": _mlx_or("max", _builtin_extreme),
    "all": _mlx_or("all", _builtin_all),
    "any": _mlx_or("any", _builtin_all),
    "zip": _loop_only("zip"),
    "enumerate": _loop_only("enumerate"),
    "range": _loop_only("range"),
}
