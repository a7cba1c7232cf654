"""Operators, comparisons and conditions of formulas.

On arrays they are MLX's functions. On numbers, strings, dtypes and shapes they are C++ that gives
what Python gives: ``/`` is a division of floats, ``//`` and ``%`` round down, products of ints have
64 bits. Conditions are known when the graph is built; what they say about arguments that may be
None is kept while their branches are read (``Compiler.knowing``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import values
from .cpp_expr import Binary, Call, Node, Ternary, Text, Unary
from .values import NOTHING, Facts, K, Value

if TYPE_CHECKING:
    from .compile import Compiler

# Of arrays (MLX's function) and of numbers (C++'s, or one of ours).
BINARY: dict[type[ast.operator], tuple[str, str, str]] = {
    ast.Add: ("+", "add", "+"),
    ast.Sub: ("-", "subtract", "-"),
    ast.Mult: ("*", "multiply", "*"),
    ast.Div: ("/", "divide", "/"),
    ast.FloorDiv: ("//", "floor_divide", "mlxgen::floor_div"),
    ast.Mod: ("%", "remainder", "mlxgen::floor_mod"),
    ast.Pow: ("**", "power", "std::pow"),
    ast.MatMult: ("@", "matmul", ""),
    ast.BitAnd: ("&", "bitwise_and", ""),
    ast.BitOr: ("|", "bitwise_or", ""),
    ast.BitXor: ("^", "bitwise_xor", ""),
    ast.LShift: ("<<", "left_shift", ""),
    ast.RShift: (">>", "right_shift", ""),
}
COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "equal"),
    ast.NotEq: ("!=", "not_equal"),
    ast.Lt: ("<", "less"),
    ast.LtE: ("<=", "less_equal"),
    ast.Gt: (">", "greater"),
    ast.GtE: (">=", "greater_equal"),
}


def unary(c: Compiler, node: ast.UnaryOp) -> Value | None:
    value = c.visit(node.operand)
    if value is None:
        return None
    if isinstance(node.op, ast.Not):
        test = condition(c, value)
        return Value(K.BOOL, Unary("!", test), node) if test is not None else None
    if value.is_array:
        function = {ast.USub: "negative", ast.UAdd: "positive", ast.Invert: "bitwise_invert"}
        return c.mlx_call(function[type(node.op)], [value.node], node)
    if value.is_number and value.kind is not K.BOOL and not isinstance(node.op, ast.Invert):
        if isinstance(node.op, ast.UAdd):
            return values.moved(value, node)
        if value.const is not None:
            make = values.integer if value.kind is K.INT else values.floating
            return make(-value.const, node)
        negated = Unary("-", value.node)
        return Value(value.kind, negated, node, wide=value.wide, single=value.single)
    if value.optional:
        c.may_be_none(value)
        return None
    sign = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}[type(node.op)]
    help = "write `not`" if sign == "~" and value.kind is K.BOOL else None
    c.error("MG308", f"{sign} cannot be applied to {value.text}", node, help)
    return None


def binary(c: Compiler, node: ast.BinOp) -> Value | None:
    pair = c.visit_all([node.left, node.right])
    return operate(c, node, type(node.op), *pair) if pair is not None else None


def operate(
    c: Compiler, node: ast.expr, op: type[ast.operator], left: Value, right: Value
) -> Value | None:
    """``left op right``"""
    sign, function, number = BINARY[op]
    if left.is_array or right.is_array:
        other = right if left.is_array else left
        if other.is_array or (other.is_number and op is not ast.MatMult):
            prefix = "mx" if other.is_array else "mlxgen"
            return c.mlx_call(function, [left.node, right.node], node, prefix)
    elif left.is_number and right.is_number and K.BOOL not in (left.kind, right.kind):
        if number:
            return arithmetic(c, node, op, left, right)
    elif op is ast.Add and (
        (left.is_ints and right.is_ints) or (left.is_arrays and right.is_arrays)
    ):
        return concatenated(c, [left, right], node)
    elif op is ast.Mult and (left.is_ints or right.is_ints):
        ints, count = (left, right) if left.is_ints else (right, left)
        list_ = values.shape(ints)
        if count.kind is K.INT and not count.optional and list_ is not None:
            return Value(K.SHAPE, Call("mlxgen::repeat", [list_, values.narrow(count)]), node)
    bad_operands(c, node, sign, left, right)
    return None


def bad_operands(c: Compiler, node: ast.expr, sign: str, left: Value, right: Value) -> None:
    """Report operands that do not go together."""
    for value in (left, right):
        if value.optional:
            c.may_be_none(value)
            return
    help = None
    kinds = {left.kind, right.kind}
    if kinds == {K.ARRAY, K.TUPLE} and sign != "@":
        help = "write array([...]) for a constant array"
    elif sign == "@":
        help = "both sides have to be arrays"
    elif kinds <= {K.ARRAYS, K.ARRAY} or kinds <= {K.ARRAYS, K.INT, K.FLOAT}:
        help = "write [a * 2 for a in arrays], or take one with [0]"
    elif kinds == {K.BOOL} and sign in "&|":
        help = f"write `{'and' if sign == '&' else 'or'}`"
    elif K.BOOL in kinds and kinds <= {K.BOOL, K.INT, K.FLOAT}:
        help = "write int(flag) to count with a bool"
    elif kinds <= {K.INT, K.FLOAT}:
        help = "numbers have + - * / // % and **"
    c.error("MG308", f"{sign} cannot join {left.text} and {right.text}", node, help)


def arithmetic(
    c: Compiler, node: ast.expr, op: type[ast.operator], left: Value, right: Value
) -> Value:
    """Numbers as Python counts: / gives a float, // and % round down, products have 64 bits."""
    _, _, spelling = BINARY[op]
    ints = left.kind is K.INT and right.kind is K.INT
    wide = left.wide or right.wide
    single = all(v.single for v in (left, right) if v.kind is K.FLOAT)
    if op is ast.Div:
        dividend = values.as_double(left) if ints else left.node
        return Value(K.FLOAT, Binary("/", dividend, right.node), node, single=single and not ints)
    if op is ast.Pow:
        negative = right.const is not None and right.const < 0
        if ints and not negative:
            return Value(K.INT, Call("mlxgen::int_pow", [left.node, right.node]), node, wide=True)
        powers = [values.as_double(left), values.as_double(right)]
        return Value(K.FLOAT, Call("std::pow", powers), node)
    kind = K.INT if ints else K.FLOAT
    if op in (ast.FloorDiv, ast.Mod):
        return Value(kind, Call(spelling, [left.node, right.node]), node, wide=wide and ints)
    a, b = left.node, right.node
    if op is ast.Mult and ints and not wide:
        # Two ints of 32 bits: the product may need more.
        if left.const is None:
            a, wide = Call("int64_t", [a]), True
        elif right.const is None:
            b, wide = Call("int64_t", [b]), True
        else:
            wide = abs(left.const * right.const) > values.INT_MAX
            a = Call("int64_t", [a]) if wide else a
    return Value(kind, Binary(spelling, a, b), node, wide=wide and ints, single=single and not ints)


def concatenated(c: Compiler, parts: Sequence[Value], node: ast.expr) -> Value | None:
    """Lists of ints, or of arrays, one after the other."""
    if all(p.kind is K.TUPLE for p in parts):
        return Value(K.TUPLE, Text(""), node, items=[i for p in parts for i in p.items])
    ints = all(p.is_ints for p in parts)
    lists = [values.shape(p) if ints else values.arrays(p) for p in parts]
    nodes = [n for n in lists if n is not None]
    if len(nodes) != len(lists):
        return None
    counts = [len(p.items) if p.kind is K.TUPLE else p.count for p in parts]
    count = None if ints or None in counts else sum(c for c in counts if c is not None)
    kind = K.SHAPE if ints else K.ARRAYS
    return Value(kind, Call("mlxgen::concat", nodes), node, count=count)


def condition(c: Compiler, value: Value) -> Node | None:
    """A bool as C++, with an explanation of what is none."""
    if value.kind is K.BOOL and not value.optional:
        return value.node
    message, help = f"a condition is needed here, and this is {value.text}", None
    if value.is_array:
        message = "an array cannot be a condition: it has no value when the graph is built"
        help = "write where(condition, a, b), and & | ~ between conditions on arrays"
    elif value.kind is K.NONE or value.optional:
        help = "write `is not None`"
    elif value.kind in (K.INT, K.FLOAT):
        help = "compare it: n != 0"
    elif value.is_ints or value.is_arrays:
        help = "compare len(...) with 0"
    c.error("MG312", message, value.at, help)
    return None


def facts(c: Compiler, node: ast.expr, holds: bool) -> Facts:
    """What is known about optional names where the condition ``node`` holds (or does not)."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return facts(c, node.operand, not holds)
    if isinstance(node, ast.BoolOp):
        if isinstance(node.op, ast.And) is not holds:
            return NOTHING, NOTHING
        both = [facts(c, v, holds) for v in node.values]
        return NOTHING.union(*(f[0] for f in both)), NOTHING.union(*(f[1] for f in both))
    if (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Is | ast.IsNot)
        and isinstance(node.left, ast.Name)
        and is_none(node.comparators[0])
    ):
        name = frozenset([node.left.id])
        given = isinstance(node.ops[0], ast.IsNot) is holds
        return (name, NOTHING) if given else (NOTHING, name)
    return NOTHING, NOTHING


def boolean(c: Compiler, node: ast.BoolOp) -> Value | None:
    is_and = isinstance(node.op, ast.And)
    tests: list[Node | None] = []
    known: Facts = (NOTHING, NOTHING)
    for part in node.values:
        with c.knowing(known):
            value = c.visit(part)
        tests.append(condition(c, value) if value is not None else None)
        more = facts(c, part, is_and)
        known = known[0] | more[0], known[1] | more[1]
    nodes = [t for t in tests if t is not None]
    if len(nodes) != len(tests):
        return None
    return Value(K.BOOL, values.join("&&" if is_and else "||", nodes), node)


def choose(c: Compiler, node: ast.IfExp) -> Value | None:
    value = c.visit(node.test)
    test = condition(c, value) if value is not None else None
    with c.knowing(facts(c, node.test, True)):
        yes = c.visit(node.body)
    with c.knowing(facts(c, node.test, False)):
        no = c.visit(node.orelse)
    if test is None or yes is None or no is None:
        return None
    return branches(c, test, yes, no, node)


def branches(c: Compiler, test: Node, yes: Value, no: Value, node: ast.expr) -> Value | None:
    """``yes if test else no``, both as the same C++ type."""
    kind = yes.kind
    if yes.is_ints and no.is_ints and not (yes.kind is no.kind is K.INTS):
        a, b = values.shape(yes), values.shape(no)
        if a is not None and b is not None:
            return Value(K.SHAPE, Ternary(test, a, b), node)
    if yes.is_arrays and no.is_arrays:
        a, b = values.arrays(yes), values.arrays(no)
        if a is not None and b is not None:
            count = yes.count if yes.count == no.count else None
            return Value(K.ARRAYS, Ternary(test, a, b), node, count=count)
    if {yes.kind, no.kind} == {K.INT, K.FLOAT} and not (yes.optional or no.optional):
        return Value(K.FLOAT, Ternary(test, values.as_double(yes), values.as_double(no)), node)
    if K.NONE in (yes.kind, no.kind) and kind is not no.kind:
        kind = no.kind if yes.kind is K.NONE else yes.kind
    if kind is K.NONE:
        return values.none(node)
    if {yes.kind, no.kind} <= {kind, K.NONE} and kind not in (K.TUPLE, K.CATEGORY, K.INFO):
        return same_kind(c, kind, test, yes, no, node)
    help = None
    if {yes.kind, no.kind} <= {K.ARRAY, K.INT, K.FLOAT, K.BOOL}:
        help = "write full_like(x, 0) or zeros_like(x) for the number"
    c.error("MG312", f"one branch is {yes.text} and the other is {no.text}", node, help)
    return None


def same_kind(c: Compiler, kind: K, test: Node, yes: Value, no: Value, node: ast.expr) -> Value:
    """Branches of one kind, of which one or both may be None."""
    wide = yes.wide or no.wide
    a, b = yes.node, no.node
    optional = yes.optional or no.optional or K.NONE in (yes.kind, no.kind)
    if optional:
        cpp = values.optional_type(kind, wide)

        def wrapped(value: Value) -> Node:
            same = value.optional and value.wide == wide and kind is not K.FLOAT
            return value.node if same or value.kind is K.NONE else Call(cpp, [value.node])

        a, b = wrapped(yes), wrapped(no)
    elif kind is K.STR:
        a = Call("std::string", [a])
        b = Call("std::string", [b])
    elif kind is K.INT and wide:
        a = a if yes.wide else Call("int64_t", [a])
        b = b if no.wide else Call("int64_t", [b])
    return Value(
        kind,
        Ternary(test, a, b),
        node,
        optional=optional,
        wide=wide,
        choices=yes.choices if yes.choices == no.choices else (),
    )


def compare(c: Compiler, node: ast.Compare) -> Value | None:
    if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return compare_none(c, node)
    sides: list[Value | None] = []
    for part in (node.left, *node.comparators):
        sides.append(c.visit(part))
    found = [v for v in sides if v is not None]
    if len(found) != len(sides):
        return None
    if len(node.ops) > 1 and any(v.kind is K.ARRAY for v in found):
        c.error(
            "MG308",
            "comparisons of arrays cannot be chained",
            node,
            "write (a < b) & (b < c)",
        )
        return None
    tests = []
    for op, left, right in zip(node.ops, found, found[1:], strict=False):
        value = compare_two(c, node, op, left, right)
        if value is None:
            return None
        tests.append(value)
    if len(tests) == 1:
        return tests[0]
    return Value(K.BOOL, values.join("&&", [t.node for t in tests]), node)


def compare_two(
    c: Compiler, node: ast.Compare, op: ast.cmpop, left: Value, right: Value
) -> Value | None:
    """One comparison."""
    if isinstance(op, ast.In | ast.NotIn):
        return contained(c, node, isinstance(op, ast.In), left, right)
    sign, function = COMPARE[type(op)]
    if left.is_array or right.is_array:
        other = right if left.is_array else left
        if other.is_array or other.is_number:
            prefix = "mx" if other.is_array else "mlxgen"
            return c.mlx_call(function, [left.node, right.node], node, prefix)
    equality = sign in ("==", "!=")
    for value in (left, right):
        if value.optional:
            c.may_be_none(value)
            return None
    if left.is_number and right.is_number and (K.BOOL not in (left.kind, right.kind)):
        return Value(K.BOOL, Binary(sign, _count(left, right), _count(right, left)), node)
    if not equality:
        c.error("MG308", f"{sign} cannot compare {left.text} and {right.text}", node)
        return None
    if left.kind is right.kind and left.kind in (K.BOOL, K.DTYPE):
        return Value(K.BOOL, Binary(sign, left.node, right.node), node)
    if left.kind is K.STR and right.kind is K.STR:
        return compare_strings(c, node, sign, left, right)
    if left.is_ints and right.is_ints:
        a, b = values.shape(left), values.shape(right)
        if a is not None and b is not None:
            return Value(K.BOOL, Binary(sign, a, b), node)
    help = None
    if K.NONE in (left.kind, right.kind):
        help = "write `is None`"
    elif {left.kind, right.kind} == {K.DTYPE, K.CATEGORY}:
        help = "write issubdtype(x.dtype, floating)"
    c.error("MG308", f"{sign} cannot compare {left.text} and {right.text}", node, help)
    return None


def compare_strings(
    c: Compiler, node: ast.expr, sign: str, left: Value, right: Value
) -> Value | None:
    """Strings; a constant must be one of the choices of the other side."""
    if left.const is not None and right.const is not None:
        return values.boolean((left.const == right.const) is (sign == "=="), node)
    for value, other in ((left, right), (right, left)):
        if value.const is not None and other.choices and value.const not in other.choices:
            c.not_a_choice(value, other.name or "this", other.choices)
            return None
    return Value(K.BOOL, Binary(sign, left.node, right.node), node)


def contained(
    c: Compiler, node: ast.Compare, positive: bool, left: Value, right: Value
) -> Value | None:
    """``left in right``"""
    for value in (left, right):
        if value.optional:
            c.may_be_none(value)
            return None
    if right.kind is K.TUPLE and right.items:
        op = ast.Eq() if positive else ast.NotEq()
        tests = []
        for item in right.items:
            test = compare_two(c, node, op, left, item)
            if test is None:
                return None
            if test.kind is not K.BOOL:
                c.error("MG308", "`in` cannot compare arrays", node)
                return None
            tests.append(test.node)
        return Value(K.BOOL, values.join("||" if positive else "&&", tests), node)
    if left.kind is K.INT and right.is_ints and right.kind is not K.TUPLE:
        test_ = Call("mlxgen::contains", [right.node, values.narrow(left)])
        return Value(K.BOOL, test_ if positive else Unary("!", test_), node)
    c.error(
        "MG308",
        f"`in` cannot look for {left.text} in {right.text}",
        node,
        'write a tuple of values: mode in ("a", "b")',
    )
    return None


def compare_none(c: Compiler, node: ast.Compare) -> Value | None:
    """``x is None`` and ``x is not None``"""
    if len(node.ops) != 1 or not is_none(node.comparators[0]):
        c.error("MG308", "`is` compares with None only", node, "write == for anything else")
        return None
    positive = isinstance(node.ops[0], ast.Is)
    if isinstance(node.left, ast.Name) and node.left.id in c.scope.names:
        found = c.scope.names[node.left.id]
        if found.type.optional and node.left.id not in c.given | c.missing:
            c.names.add(node.left.id)
            test = values.has_value(Text(found.cpp))
            return Value(K.BOOL, Unary("!", test) if positive else test, node)
    value = c.visit(node.left)
    if value is None:
        return None
    if value.optional:
        c.error("MG319", "only a name can be compared with None", node.left)
        return None
    what = "is None" if value.kind is K.NONE else "is never None"
    c.error("MG319", f"{value.name or 'this'} {what} here", node, "remove the condition")
    return None


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _count(value: Value, other: Value) -> Node:
    """``x.ndim() == 2`` reads better than mlxgen::ndim(x) == 2, and is the same."""
    if value.of is not None and isinstance(value.of.node, Text | Unary):
        constant = other.kind is K.INT and other.const is not None and other.const >= 0
        name = value.node.head if isinstance(value.node, Call) else ""
        if constant and name in ("mlxgen::ndim", "mlxgen::size"):
            return values.member(value.of.node, name.removeprefix("mlxgen::"))
    return value.node
