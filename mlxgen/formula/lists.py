"""Tuples and lists, indices and slices, and comprehensions of formulas.

A tuple written in a formula stays a list of values until its use tells whether it is a shape, a
list of arrays, or something else. Indices of arrays go to ``mlxgen::index``, comprehensions to
``mlxgen::map`` with a lambda.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import operators, values
from .binding import Args, arguments, bind, wrong_kind
from .cpp_expr import Call, Lambda, Node, Text
from .mlx import Param
from .operators import is_none
from .values import MODULES, K, Value, several

if TYPE_CHECKING:
    from .compile import Compiler


def display(c: Compiler, node: ast.Tuple | ast.List) -> Value | None:
    """A tuple or list as written, with stars: ``(*x.shape[:-1], 1)``."""
    elements = node.elts
    if not any(isinstance(e, ast.Starred) for e in elements):
        items = c.visit_all(elements)
        return Value(K.TUPLE, Text(""), node, items=items) if items is not None else None
    parts: list[Value] = []
    failed = False
    for element in elements:
        star = isinstance(element, ast.Starred)
        value = c.visit(element.value if isinstance(element, ast.Starred) else element)
        if value is None:
            failed = True
        elif star and not (value.is_ints or value.is_arrays):
            c.error("MG308", f"a star cannot unpack {value.text}", element)
            failed = True
        elif star:
            parts.append(value)
        elif parts and parts[-1].kind is K.TUPLE:
            parts[-1] = Value(K.TUPLE, Text(""), node, items=[*parts[-1].items, value])
        else:
            parts.append(Value(K.TUPLE, Text(""), node, items=[value]))
    if failed:
        return None
    if all(p.is_ints for p in parts) or all(p.is_arrays for p in parts):
        return parts[0] if len(parts) == 1 else operators.concatenated(c, parts, node)
    c.error("MG308", "a list with stars holds ints only, or arrays only", node)
    return None


def subscript(c: Compiler, node: ast.Subscript) -> Value | None:
    value = c.visit(node.value)
    if value is None:
        return None
    if value.optional:
        c.may_be_none(value)
        return None
    if value.kind is K.ARRAY:
        return index_array(c, value, node)
    if value.kind in (K.TUPLE, K.SHAPE, K.INTS, K.ARRAYS):
        if isinstance(node.slice, ast.Slice):
            return slice_list(c, value, node.slice, node)
        return item(c, value, node)
    c.error("MG310", f"{value.text} cannot be indexed", node)
    return None


def item(c: Compiler, value: Value, node: ast.Subscript) -> Value | None:
    """``list[i]``"""
    index = c.visit(node.slice)
    if index is None:
        return None
    if index.kind is not K.INT or index.optional:
        c.error("MG310", f"the index of a list is an int, not {index.text}", node.slice)
        return None
    at = index.const
    count = len(value.items) if value.kind is K.TUPLE else value.count
    if at is not None and count is not None and not -count <= at < count:
        c.error("MG310", f"index {at} is out of range: there are {count}", node.slice)
        return None
    if value.kind is K.TUPLE:
        if at is not None:
            return values.moved(value.items[at], node)
        listed = values.shape(value) if value.is_ints else values.arrays(value)
        if listed is None:
            c.error("MG310", "the index into a tuple of several kinds is a constant", node)
            return None
        cpp = Call("mlxgen::item", [listed, values.narrow(index)])
        return Value(K.INT if value.is_ints else K.ARRAY, cpp, node)
    if value.kind is K.ARRAYS:
        if value.is_tuple and at is None:
            value = Value(K.ARRAYS, Call("mlxgen::as_arrays", [value.node]), node)
        return Value(K.ARRAY, _array_item(value, index), node)
    if value.of is not None:  # x.shape[i]
        # Not the member shape(i), whose error names neither axis nor array.
        return Value(K.INT, Call("mlxgen::dim", [value.of.node, values.narrow(index)]), node)
    return Value(K.INT, Call("mlxgen::item", [value.node, values.narrow(index)]), node)


def slice_parts(c: Compiler, node: ast.Slice) -> list[Node] | None:
    """Start, stop and step, without those omitted at the end."""
    parts: list[Node] = []
    last = 0
    for i, part in enumerate((node.lower, node.upper, node.step)):
        cpp: Node = Text("std::nullopt")
        if part is not None and not is_none(part):
            value = c.visit(part)
            if value is None:
                return None
            if value.kind is not K.INT:
                c.error("MG310", f"a slice is made of ints, and this is {value.text}", part)
                return None
            if value.optional:
                c.may_be_none(value)
                return None
            if i == 2 and value.const == 0:
                c.error("MG310", "the step of a slice cannot be zero", part)
                return None
            cpp, last = values.narrow(value), i + 1
        parts.append(cpp)
    return parts[:last]


def slice_list(c: Compiler, value: Value, slice_: ast.Slice, node: ast.expr) -> Value | None:
    """``list[1:]``"""
    parts = slice_parts(c, slice_)
    if parts is None:
        return None
    if value.kind is K.TUPLE:
        bounds = [_literal(p) for p in (slice_.lower, slice_.upper, slice_.step)]
        if all(b is not False for b in bounds):
            return Value(K.TUPLE, Text(""), node, items=value.items[slice(*bounds)])
    listed = values.shape(value) if value.is_ints else values.arrays(value)
    if listed is None:
        c.error("MG310", f"{value.text} cannot be sliced", node)
        return None
    kind = K.SHAPE if value.is_ints else K.ARRAYS
    return Value(kind, Call("mlxgen::slice", [listed, *(parts or [Text("std::nullopt")])]), node)


def index_array(c: Compiler, value: Value, node: ast.Subscript) -> Value | None:
    """``x[...]``"""
    index = indices(c, node.slice)
    stream = c.stream("indexing", node)
    if index is None or stream is None:
        return None
    c.mlx.add("slice")
    return Value(K.ARRAY, Call("mlxgen::index", [value.node, index, stream]), node)


def update_array(c: Compiler, at: ast.Subscript, node: ast.Call) -> Value | None:
    """``x.at[...].add(values)``: the adjoint of an index."""
    assert isinstance(node.func, ast.Attribute) and isinstance(at.value, ast.Attribute)
    name = node.func.attr
    value = c.visit(at.value.value)
    index = indices(c, at.slice, new_axes=False)
    args = arguments(c, node, name)
    stream = c.stream(name, node)
    if value is None or index is None or args is None or stream is None:
        return None
    if not value.is_array:
        wrong_kind(c, "at", "x", "array", value)
        return None
    if name not in UPDATES:
        c.error(
            "MG309", f".at[...] has no method '{name}'", node.func, f"it has {', '.join(UPDATES)}"
        )
        return None
    bound = bind(c, [Param("value", "/", "scalar | array")], args)
    updates = values.fit(bound["value"], "weak") if bound is not None else None
    if bound is None or updates is None:
        if bound is not None:
            wrong_kind(c, name, "value", "scalar | array", bound["value"])
        return None
    c.mlx.add("scatter")
    cpp = Call(f"mlxgen::at_{name}", [value.node, index, updates, stream])
    return Value(K.ARRAY, cpp, node)


UPDATES = ("add", "multiply", "maximum", "minimum")


def indices(c: Compiler, node: ast.expr, new_axes: bool = True) -> Node | None:
    """What stands between the brackets: one array of ints, or a braced list of ints and slices."""
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    parts: list[Node | None] = []
    ellipses = 0
    for element in elements:
        if isinstance(element, ast.Slice):
            bounds = slice_parts(c, element)
            parts.append(Call("mlxgen::Slice", bounds, "{}") if bounds is not None else None)
        elif isinstance(element, ast.Constant) and element.value is Ellipsis:
            ellipses += 1
            if ellipses > 1:
                c.error("MG310", "an index has one ellipsis only", element)
            parts.append(Text("mlxgen::ellipsis") if ellipses == 1 else None)
        else:
            index = c.visit(element)
            if index is not None and index.is_array and len(elements) == 1:
                return index.node
            parts.append(index_part(c, index, new_axes) if index is not None else None)
    found = [p for p in parts if p is not None]
    return Call("", found, "{}") if len(found) == len(parts) else None


def index_part(c: Compiler, value: Value, new_axes: bool) -> Node | None:
    """One index that is no slice."""
    if value.optional:
        c.may_be_none(value)
        return None
    if value.kind is K.INT:
        return values.narrow(value)
    if value.kind is K.NONE and new_axes:
        return Text("mlxgen::newaxis")
    help = None
    if value.kind is K.ARRAY:
        help = "index along one axis with take(x, indices, axis) or take_along_axis"
    elif value.kind is K.TUPLE:
        help = "write take(x, array([0, 1]), axis)"
    c.error("MG310", f"an index of an array cannot be {value.text} here", value.at, help)
    return None


def comprehension(c: Compiler, node: ast.ListComp | ast.GeneratorExp) -> Value | None:
    """``[f(a) for a in arrays]``, as a call of mlxgen::map with a lambda."""
    if len(node.generators) != 1:
        c.error("MG302", "a comprehension has one `for` only", node)
        return None
    loop = node.generators[0]
    lists = loop_lists(c, loop.iter)
    if lists is None:
        return None
    variables = loop_variables(c, loop.target, lists)
    if variables is None:
        return None
    before = dict(c.locals)
    params = []
    for (name, target), list_ in zip(variables, lists, strict=True):
        cpp = loop_name(c, name)
        is_array = list_.is_arrays
        params.append(f"const mx::array& {cpp}" if is_array else f"int {cpp}")
        c.locals[name] = Value(K.ARRAY if is_array else K.INT, Text(cpp), target)
    keep = [c.visit(test) for test in loop.ifs]
    tests = [operators.condition(c, k) if k is not None else None for k in keep]
    element = c.visit(node.elt)
    c.locals = before
    if element is None or None in tests:
        return None
    nodes = [_list_node(v) for v in lists]
    conditions = [t for t in tests if t is not None]
    if conditions:
        if len(lists) > 1:
            c.error("MG302", "a comprehension over several lists has no `if`", loop.ifs[0])
            return None
        test = Lambda(params, values.join("&&", conditions))
        nodes = [Call("mlxgen::filter", [*nodes, test])]
    return mapped(c, nodes, params, element, node)


def loop_lists(c: Compiler, node: ast.expr) -> list[Value] | None:
    """What a comprehension loops over: one list, or several side by side."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
    if isinstance(node, ast.Call) and name in ("zip", "enumerate", "range"):
        args = arguments(c, node, name)
        if args is None:
            return None
        if args.keywords or args.star:
            c.error("MG306", f"'{name}' takes positional arguments", node)
            return None
        if name == "range":
            counted = _range(c, args)
            return [counted] if counted is not None else None
        if len(args.positional) != (2 if name == "zip" else 1):
            count = "two lists" if name == "zip" else "one list"
            c.error("MG306", f"'{name}' takes {count} in a formula", node)
            return None
        lists = [_loop_list(c, v) for v in args.positional]
        if None in lists:
            return None
        found = [v for v in lists if v is not None]
        if name == "enumerate":
            count_ = Call("mlxgen::len", [_list_node(found[0])])
            index = Value(K.SHAPE, Call("mlxgen::range", [Text("0"), count_]), node)
            return [index, *found]
        return found
    value = c.visit(node)
    listed = _loop_list(c, value) if value is not None else None
    return [listed] if listed is not None else None


def _range(c: Compiler, args: Args) -> Value | None:
    bounds = args.positional
    if len(bounds) not in (1, 2):
        c.error("MG306", "'range' takes one or two ints in a formula", args.node)
        return None
    for value in bounds:
        if value.kind is not K.INT or value.optional:
            wrong_kind(c, "range", "bound", "int", value)
            return None
    nodes = [values.narrow(v) for v in bounds]
    if len(nodes) == 1:
        nodes.insert(0, Text("0"))
    return Value(K.SHAPE, Call("mlxgen::range", nodes), args.node)


def _loop_list(c: Compiler, value: Value) -> Value | None:
    if value.optional:
        c.may_be_none(value)
        return None
    if value.is_arrays or (value.is_ints and (value.kind is not K.TUPLE or value.items)):
        if value.is_tuple:
            return Value(K.ARRAYS, _list_node(value), value.at, count=value.count)
        return value
    c.error("MG308", f"a comprehension cannot loop over {value.text}", value.at)
    return None


def mapped(
    c: Compiler, lists: list[Node], params: list[str], element: Value, node: ast.expr
) -> Value | None:
    """The list of all elements."""
    if element.optional:
        c.may_be_none(element)
        return None
    kinds = {K.ARRAY: K.ARRAYS, K.INT: K.SHAPE, K.BOOL: K.BOOLS, K.FLOAT: K.FLOATS}
    kind = kinds.get(element.kind)
    if kind is None:
        c.error("MG308", f"a comprehension cannot collect {element.text}", element.at)
        return None
    body = element.node
    if kind is K.SHAPE:
        body = values.narrow(element)
    elif kind is K.FLOATS:
        body = values.as_double(element)
    return Value(kind, Call("mlxgen::map", [*lists, Lambda(params, body)]), node)


def loop_variables(
    c: Compiler, target: ast.expr, lists: Sequence[Value]
) -> list[tuple[str, ast.expr]] | None:
    """Names of the variables of a loop, one for each list."""
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    if len(targets) != len(lists):
        c.error(
            "MG302",
            f"the loop has {several(len(lists), 'value')} for {several(len(targets), 'name')}",
            target,
        )
        return None
    out: list[tuple[str, ast.expr]] = []
    for t in targets:
        if not isinstance(t, ast.Name):
            c.error("MG302", "a loop variable is a plain name", t)
            return None
        if t.id in c.scope.names or t.id in c.locals or t.id in ("mx", *MODULES):
            c.error("MG320", f"'{t.id}' has a meaning here already", t, "take another name")
            return None
        if t.id in [name for name, _ in out]:
            c.error("MG320", f"'{t.id}' is there twice", t, "take another name")
            return None
        out.append((t.id, t))
    return out


def loop_name(c: Compiler, name: str) -> str:
    """A C++ name for a loop variable: no keyword, and nothing that the body may use."""
    spellings = [n.cpp for n in c.scope.names.values()]
    spellings += [v.node.flat for v in c.locals.values()]
    taken = set(re.findall(r"\w+", " ".join([*spellings, c.scope.stream or ""])))
    if not name.isascii():
        name = "item"
    if len(name) > 1:  # only longer names can be keywords
        name += "_"
    while name in taken:
        name += "_"
    return name


def _literal(node: ast.expr | None) -> int | bool | None:
    """The int that a bound of a slice is, None for none, False for anything else."""
    if node is None or is_none(node):
        return None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return False
    return value if isinstance(value, int) and not isinstance(value, bool) else False


def _array_item(value: Value, index: Value) -> Node:
    """``arrays[i]``"""
    node, at = value.node, index.const
    if value.is_tuple:
        assert at is not None and value.count is not None
        at = at + value.count if at < 0 else at
        return Call(f"std::get<{at}>", [node])
    if at is not None and value.count is not None:
        at = at + value.count if at < 0 else at
        if isinstance(node, Text):
            return Text(f"{node.flat}[{at}]")
        if isinstance(node, Call):
            return Call(node.head, node.args, node.brackets, f"{node.post}[{at}]")
    return Call("mlxgen::item", [node, values.narrow(index)])


def _list_node(value: Value) -> Node:
    """A list to loop over."""
    node = values.arrays(value) if value.is_arrays else None
    if node is None:
        node = values.shape(value) if value.kind is K.TUPLE else value.node
    return node if node is not None else value.node
