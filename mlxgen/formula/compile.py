"""Formulas: gradients, composites, shapes and launch geometry, compiled from Python expressions to
C++.

A formula is a Python expression over an operator's arguments, read with ``ast``, checked node by
node and translated to calls of MLX's C++ API::

    grad * (1 - result * result)      ->   mx::multiply( cotangents[0], mlxgen::subtract(1,
    mx::multiply(outputs[0], outputs[0], s), s), s)

What a formula means is what Python would compute with ``from mlx.core import *``, and whatever
passes compiles: these two are the contract, and the tests prove both (the text is evaluated by
Python, the translation by a C++ compiler). Anything else is an error with the place in the text and
what to write instead; all errors of a formula are reported.

The language:

- arrays: operators, comparisons, ``@``, calls of MLX's functions (``exp(x)``, ``mx.exp(x)``,
  ``linalg.norm(x)``), their methods (``x.sum(axis=-1)``), ``.shape .ndim .size .dtype .T``, indices
  and slices; calls of other entries
- numbers, bools, strings, dtypes, shapes: attributes of the operator and what Python does with them
  at run time. On numbers, ``sqrt``, ``exp``, ``maximum`` and the like give numbers. A number beside
  an array takes the array's dtype
- lists of arrays or ints: ``len``, ``sum``, ``min``, ``max``, ``all``, ``any``, comprehensions with
  ``zip``, ``enumerate`` and ``range``
- ``a if condition else b``, ``and``, ``or``, ``not`` on conditions known when the graph is built;
  after ``w is not None`` the optional ``w`` counts as given

Structure: this module visits the syntax tree; ``translator`` has the calls, ``rules`` the table of
operations, ``mlx`` MLX's functions, ``values`` the conversions to C++ types, ``explain`` the
messages, ``source`` the text. The generated C++ needs ``namespace mx = mlx::core;`` and ``#include
"mlxgen/formula.h"``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..model.dtypes import DTYPES
from ..model.kinds import KINDS
from ..model.op import Expr as Expr  # what compile_formula gives
from ..model.signature import Kind, Type
from . import explain
from .explain import Wrong, require
from .mlx import MODULES, Args, Param, bind, table
from .source import Unreadable
from .translator import BUILTINS, SHARED, Report, Translator, is_function
from .translator import Name as Name
from .translator import Scope as Scope
from .values import (
    CPP_TYPES,
    INT64_MAX,
    LEVEL,
    Cpp,
    Value,
    argument,
    as_double,
    binary,
    constant,
    dereferenced,
    fit,
    level,
    member,
    narrow,
    several,
    ternary,
    unary,
)

LARGEST = 40_000  # characters of C++
DEEPEST = 100  # nodes inside each other


@dataclass(frozen=True, slots=True)
class Want:
    """What a formula has to give."""

    kind: Kind
    count: int | None = None  # ARRAYS: how many; None: any number

    @classmethod
    def array(cls) -> Want:
        """One array."""
        return cls(Kind.ARRAY)

    @classmethod
    def arrays(cls, count: int | None) -> Want:
        """Several arrays, as a std::vector: a tuple of ``count``, or a list of any length."""
        return cls(Kind.ARRAYS, count)

    @classmethod
    def shape(cls) -> Want:
        """A tuple of ints, as an mx::Shape."""
        return cls(Kind.SHAPE)

    @classmethod
    def int(cls) -> Want:
        """An int; the compiled ``Expr.type.int64`` tells its C++ type."""
        return cls(Kind.INT)

    @classmethod
    def bool(cls) -> Want:
        """A condition."""
        return cls(Kind.BOOL)

    @classmethod
    def float(cls) -> Want:
        """A number."""
        return cls(Kind.FLOAT)

    @classmethod
    def dtype(cls) -> Want:
        """A dtype."""
        return cls(Kind.DTYPE)


def compile_formula(text: str, scope: Scope, want: Want, report: Report) -> Expr | None:
    """The formula ``text`` as C++ that gives what is wanted, or None if anything was reported."""
    compiler = Compiler(text, scope, report)
    try:
        return compiler.compile(want)
    except Unreadable as error:
        report(*error.args)
    except Wrong as wrong:
        compiler.error(wrong)
    except RecursionError:
        compiler.error(Wrong("MG318", "the formula is nested too deeply"))
    return None


CONSTANTS = {
    "pi": "std::numbers::pi",
    "e": "std::numbers::e",
    "euler_gamma": "std::numbers::egamma",
    "inf": "mlxgen::inf",
    "nan": "mlxgen::nan",
}
CATEGORIES = (
    *("generic", "number", "integer", "signedinteger", "unsignedinteger"),
    *("inexact", "floating", "complexfloating"),
)
# Operators: how they are written, and their name in the table of rules and in MLX.
OPERATORS = {
    "Add": ("+", "add"),
    "Sub": ("-", "subtract"),
    "Mult": ("*", "multiply"),
    "Div": ("/", "divide"),
    "FloorDiv": ("//", "floor_divide"),
    "Mod": ("%", "remainder"),
    "Pow": ("**", "power"),
    "MatMult": ("@", "matmul"),
    "BitAnd": ("&", "bitwise_and"),
    "BitOr": ("|", "bitwise_or"),
    "BitXor": ("^", "bitwise_xor"),
    "LShift": ("<<", "left_shift"),
    "RShift": (">>", "right_shift"),
    "USub": ("-", "negative"),
    "UAdd": ("+", "positive"),
    "Invert": ("~", "bitwise_invert"),
    "Eq": ("==", "equal"),
    "NotEq": ("!=", "not_equal"),
    "Lt": ("<", "less"),
    "LtE": ("<=", "less_equal"),
    "Gt": (">", "greater"),
    "GtE": (">=", "greater_equal"),
}
UPDATES = ("add", "multiply", "maximum", "minimum")

# What comprehensions give, by what their elements are.
COLLECTED = {"array": "arrays", "int": "shape", "bool": "bools", "float": "floats"}

Facts = dict[str, bool]
"""Names of optional arguments that are known to have a value, or to be None."""


class Compiler(Translator):
    """Visits the parts of one formula."""

    def __init__(self, text: str, scope: Scope, report: Report) -> None:
        super().__init__(text, scope, report)
        self.known: Facts = {}
        self.depth = 0

    def compile(self, want: Want) -> Expr | None:
        """The formula as an expression of the wanted kind."""
        tree = self.source.parse()
        value = self.visit(tree)
        slot = "int64" if want.kind is Kind.INT else KINDS[want.kind].slot
        if want.kind is Kind.ARRAYS:
            cpp: str | None = self.wanted_arrays(value, want.count)
        else:
            cpp = fit(value, slot)
        if cpp is None:
            raise explain.result(value, slot)
        if self.failed:
            return None
        if len(cpp) > LARGEST:
            help = "split it into several entries, or decide about arguments that may be None first"
            raise Wrong("MG318", "the formula becomes too large in C++", tree, help)
        type_ = Type(want.kind, int64=want.kind is Kind.INT and value.type == "int64_t")
        names, ops, mlx = frozenset(self.names), frozenset(self.ops), frozenset(self.mlx)
        return Expr(type_, str(cpp), names, ops, mlx)

    def wanted_arrays(self, value: Value, count: int | None) -> str:
        """The value as a list of so many arrays."""
        cpp = fit(value, "arrays")
        if cpp is None:
            raise explain.result_arrays(value, count)
        if count is None or value.length == count:
            return cpp
        if value.length is None:  # known at run time only
            return f"mlxgen::exactly({cpp}, {count})"
        message = f"this gives {several(value.length, 'array')}, and {count} are needed here"
        raise Wrong("MG314", message, value.at)

    def visit(self, node: ast.expr) -> Value:
        """The value of a part of the formula."""
        handler = getattr(self, f"visit_{type(node).__name__}", None)
        if handler is None:
            raise explain.foreign(node, node)
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        try:
            value: Value = handler(node)
        finally:
            self.depth -= 1
        return value

    # Constants and names

    def visit_Constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is not None and not isinstance(value, bool | int | float | str):
            raise explain.foreign(value, node)
        if isinstance(value, int) and value > INT64_MAX:
            raise Wrong("MG317", "this int does not fit into 64 bits", node)
        if value == float("inf"):
            raise Wrong("MG317", "this float is too large", node, "write inf for infinity")
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise Wrong("MG317", "a string has printable ASCII characters only", node)
        return constant(value, node)

    def visit_Name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self.locals:
            return replace(self.locals[name], at=node)
        found = self.scope.names.get(name)
        if found is None:
            return self.constant_name(name, node)
        self.names.add(name)
        value = argument(found.type, found.cpp, node, name, found.count)
        if value.optional and name in self.known:
            return dereferenced(value) if self.known[name] else constant(None, node)
        return value

    def constant_name(self, name: str, node: ast.expr) -> Value:
        """A name of mlx.core that is no function."""
        if name in CONSTANTS:
            return Value("float", Cpp(CONSTANTS[name], "name"), node)
        if name in DTYPES or name in CATEGORIES:
            return Value(
                "dtype" if name in DTYPES else "category", Cpp(f"mx::{name}", "name"), node
            )
        if name == "newaxis":
            return constant(None, node)
        raise self.unknown_name(name, node)

    def unknown_name(self, name: str, node: ast.expr) -> Wrong:
        """A name that means nothing, or something else than a value."""
        code, help = "MG303", None
        if name in MODULES or name == "mx":
            message = f"'{name}' is a module"
        elif name in ("bool", "int", "float"):
            message = f"'{name}' is a Python type"
            dtype = {"bool": "bool_", "int": "int32", "float": "float32"}[name]
            help = f"dtypes are named as in MLX: {dtype}"
        elif name in self.scope.ops or is_function(name):
            message, help = f"'{name}' is a function", f"call it: {name}(x)"
        elif name in table().omitted:
            code, message = "MG305", f"'{name}' cannot be used in a formula"
            help = table().omitted[name]
        else:
            known = [*self.locals, *self.scope.names]
            message = explain.guessed(f"unknown name '{name}'", name, [*known, *CONSTANTS, *DTYPES])
            help = f"names here: {', '.join(known)}" if known else None
        return Wrong(code, message, node, help)

    def path(self, node: ast.expr) -> str | None:
        """``linalg.norm`` for mx.linalg.norm or linalg.norm; None for what is no name of MLX."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not parts or not isinstance(node, ast.Name):
            return None
        if node.id in self.locals or node.id in self.scope.names:
            return None
        if node.id in MODULES:
            parts.append(node.id)
        elif node.id != "mx":
            return None
        return ".".join(reversed(parts))

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        path = self.path(node)
        if path is not None:
            return self.constant_name(path, node)
        value = self.visit(node.value)
        require(value)
        found = self.rule(f".{node.attr}", [value], node)
        if found is None:
            raise explain.attribute(value, node, table().methods)
        return found

    # Operators

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return Value("bool", unary("!", self.condition(value).cpp), node)
        sign, name = OPERATORS[type(node.op).__name__]
        if name == "negative" and value.const is not None and value.kind in ("int", "float"):
            return constant(-value.const, node)
        found = self.of_arrays(name, [value], node) or self.rule(name, [value], node)
        if found is None:
            require(value)
            help = "write `not`" if sign == "~" and value.kind == "bool" else None
            raise Wrong("MG308", f"{sign} cannot be applied to {value.text}", node, help)
        return found

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        sign, name = OPERATORS[type(node.op).__name__]
        pair = self.visit_all([node.left, node.right])
        if any(v.is_array for v in pair):
            found = self.of_arrays(name, pair, node)
        elif name == "add" and (all(v.is_ints for v in pair) or all(v.is_arrays for v in pair)):
            found = concatenated(pair, node)
        else:
            found = self.arithmetic(name, pair, node)
        if found is None:
            raise explain.operands(sign, pair, node)
        return found

    # Conditions

    def condition(self, value: Value) -> Value:
        """A value that is a condition."""
        if value.kind != "bool" or value.optional:
            raise explain.condition(value)
        return value

    def visit_knowing(self, node: ast.expr, more: Facts, condition: bool = False) -> Value:
        """The value of a part where more is known of optional arguments."""
        before, self.known = self.known, {**self.known, **more}
        try:
            value = self.visit(node)
        finally:
            self.known = before
        return self.condition(value) if condition else value

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        is_and = isinstance(node.op, ast.And)
        known: Facts = {}
        parts = []
        for part in node.values:
            parts.append(partial(self.visit_knowing, part, known, True))
            known = {**known, **facts(part, is_and)}
        tests = [test.cpp for test in self.each(*parts)]
        return Value("bool", binary("&&" if is_and else "||", *tests), node)

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        test, yes, no = self.each(
            partial(self.visit_knowing, node.test, {}, True),
            partial(self.visit_knowing, node.body, facts(node.test, True)),
            partial(self.visit_knowing, node.orelse, facts(node.test, False)),
        )
        for slot in ("shape", "arrays"):
            a, b = fit(yes, slot), fit(no, slot)
            if a is not None and b is not None and not yes.kind == no.kind == "ints":
                count = yes.count if yes.count == no.count else None
                return Value(slot, ternary(test.cpp, a, b), node, count=count)
        kinds = {yes.kind, no.kind}
        optional = yes.optional or no.optional or "none" in kinds
        if kinds == {"int", "float"} and not optional:
            return Value("float", ternary(test.cpp, as_double(yes), as_double(no)), node)
        kinds.discard("none")
        if not kinds:
            return constant(None, node)
        kind = kinds.pop()
        if kinds or (optional and kind not in CPP_TYPES) or kind in ("tuple", "category", "finfo"):
            help = None
            if {yes.kind, no.kind} <= {"array", "int", "float", "bool"}:
                help = "write full_like(x, 0) or zeros_like(x) for the number"
            message = f"one branch is {yes.text} and the other is {no.text}"
            raise Wrong("MG312", message, node, help)
        return self.branches(kind, optional, test, yes, no, node)

    def branches(
        self, kind: str, optional: bool, test: Value, yes: Value, no: Value, at: ast.expr
    ) -> Value:
        """``yes if test else no`` of one kind, of which one or both may be None."""
        type_ = "int64_t" if "int64_t" in (yes.type, no.type) else ""
        head = f"std::optional<{type_ or CPP_TYPES[kind]}>" if optional else type_
        if kind == "str" and not optional:
            head = "std::string"

        def part(value: Value) -> str:
            same = value.optional == optional and value.type == type_
            if kind == "float" or (kind == "str" and not optional):
                same = False
            plain = same or not head or value.kind == "none"
            return value.cpp if plain else f"{head}({value.cpp})"

        cpp = ternary(test.cpp, part(yes), part(no))
        choices = yes.choices if yes.choices == no.choices else ()
        return Value(kind, cpp, at, optional, type_, choices=choices)

    # Comparisons

    def visit_Compare(self, node: ast.Compare) -> Value:
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return self.compare_none(node)
        sides = self.visit_all([node.left, *node.comparators])
        if len(node.ops) > 1 and any(v.kind == "array" for v in sides):
            message = "comparisons of arrays cannot be chained"
            raise Wrong("MG308", message, node, "write (a < b) & (b < c)")
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        tests = [self.compare(type(op).__name__, a, b, node) for op, a, b in pairs]
        return tests[0] if len(tests) == 1 else all_of("&&", tests, node)

    def compare(self, op: str, left: Value, right: Value, node: ast.expr) -> Value:
        """One comparison."""
        if op in ("In", "NotIn"):
            return self.contained(op == "In", left, right, node)
        sign, name = OPERATORS[op]
        found = self.of_arrays(name, [left, right], node)
        if found is not None:
            return found
        if left.kind == right.kind == "str" and sign in ("==", "!="):
            require(left, right)
            if left.const is not None and right.const is not None:
                return constant((left.const == right.const) is (sign == "=="), node)
            for value, other in ((left, right), (right, left)):
                if value.const is not None and other.choices and value.const not in other.choices:
                    raise explain.not_a_choice(value, other.name or "this", other.choices)
        found = self.rule(sign, [counted(left, right), counted(right, left)], node)
        if found is None:
            raise explain.comparison(sign, left, right, node)
        return found

    def contained(self, positive: bool, left: Value, right: Value, node: ast.expr) -> Value:
        """``left in right``"""
        require(left, right)
        if right.kind == "tuple" and right.items:
            op = "Eq" if positive else "NotEq"
            tests = [self.compare(op, left, item, node) for item in right.items]
            if any(test.kind != "bool" for test in tests):
                raise Wrong("MG308", "`in` cannot compare arrays", node)
            return all_of("||" if positive else "&&", tests, node)
        found = self.rule("in", [left, right], node)
        if found is None:
            message = f"`in` cannot look for {left.text} in {right.text}"
            raise Wrong("MG308", message, node, 'write a tuple of values: mode in ("a", "b")')
        return found if positive else replace(found, cpp=unary("!", found.cpp))

    def compare_none(self, node: ast.Compare) -> Value:
        """``x is None`` and ``x is not None``"""
        if len(node.ops) != 1 or not is_none(node.comparators[0]):
            message = "`is` compares with None only"
            raise Wrong("MG308", message, node, "write == for anything else")
        value = self.visit(node.left)
        if value.optional and value.name is None:
            raise Wrong("MG319", "only a name can be compared with None", node.left)
        if not value.optional:
            what = "is None" if value.kind == "none" else "is never None"
            name = value.name or "this"
            raise Wrong("MG319", f"{name} {what} here", node, "remove the condition")
        test = f"{value.cpp}.has_value()"
        return Value("bool", unary("!", test) if isinstance(node.ops[0], ast.Is) else test, node)

    # Lists

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> Value:
        """A tuple or list as written, with stars: ``(*x.shape[:-1], 1)``."""
        if not any(isinstance(element, ast.Starred) for element in node.elts):
            return Value("tuple", "", node, items=self.visit_all(node.elts))

        def part(element: ast.expr) -> Value:
            if not isinstance(element, ast.Starred):
                return Value("tuple", "", node, items=[self.visit(element)])
            value = self.visit(element.value)
            if not (value.is_ints or value.is_arrays):
                raise Wrong("MG308", f"a star cannot unpack {value.text}", element)
            return value

        parts: list[Value] = []
        for value in self.each(*(partial(part, element) for element in node.elts)):
            if parts and parts[-1].kind == value.kind == "tuple":
                value = Value("tuple", "", node, items=[*parts.pop().items, *value.items])
            parts.append(value)
        if not (all(p.is_ints for p in parts) or all(p.is_arrays for p in parts)):
            raise Wrong("MG308", "a list with stars holds ints only, or arrays only", node)
        return parts[0] if len(parts) == 1 else concatenated(parts, node)

    visit_List = visit_Tuple

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        value = self.visit(node.value)
        require(value)
        if value.kind == "array":
            return self.index_array(value, node)
        if value.kind not in ("tuple", "shape", "ints", "arrays"):
            raise Wrong("MG310", f"{value.text} cannot be indexed", node)
        if isinstance(node.slice, ast.Slice):
            return self.slice_list(value, node.slice, node)
        return self.item(value, self.visit(node.slice), node)

    def item(self, value: Value, index: Value, node: ast.Subscript) -> Value:
        """``list[i]``"""
        if index.kind != "int" or index.optional:
            message = f"the index of a list is an int, not {index.text}"
            raise Wrong("MG310", message, node.slice)
        count = value.length
        if index.const is not None and count is not None:
            at: int = index.const
            if not -count <= at < count:
                message = f"index {at} is out of range: there are {count}"
                raise Wrong("MG310", message, node.slice)
            at %= count
            if value.kind == "tuple":
                return replace(value.items[at], at=node)
            if value.type == "tuple":
                return Value("array", f"std::get<{at}>({value.cpp})", node)
            like = "name" if level(value.cpp) == LEVEL["name"] else "call"
            if level(value.cpp) >= LEVEL["call"]:
                return Value("array", Cpp(f"{value.cpp}[{at}]", like), node)
        if value.kind == "shape" and value.of is not None:
            # Not the member shape(i), whose error names neither axis nor array.
            return Value("int", f"mlxgen::dim({value.of.cpp}, {narrow(index)})", node)
        ints = value.is_ints
        listed = value.cpp if value.kind == "ints" else fit(value, "shape" if ints else "arrays")
        if listed is None:
            message = "the index into a tuple of several kinds is a constant"
            raise Wrong("MG310", message, node)
        return Value("int" if ints else "array", f"mlxgen::item({listed}, {narrow(index)})", node)

    def slice_list(self, value: Value, slice_: ast.Slice, node: ast.expr) -> Value:
        """``list[1:]``"""
        bounds = self.bounds(slice_)
        if value.kind == "tuple" and all(b is None or b.const is not None for b in bounds):
            known = [None if bound is None else int(bound.const) for bound in bounds]
            return Value("tuple", "", node, items=value.items[slice(*known)])
        kind = "shape" if value.is_ints else "arrays"
        listed = fit(value, kind)
        if listed is None:
            raise Wrong("MG310", f"{value.text} cannot be sliced", node)
        written = written_bounds(bounds) or "std::nullopt"
        return Value(kind, f"mlxgen::slice({listed}, {written})", node)

    def bounds(self, node: ast.Slice) -> list[Value | None]:
        """Start, stop and step of a slice."""
        out: list[Value | None] = []
        for part in (node.lower, node.upper, node.step):
            if part is None or is_none(part):
                out.append(None)
                continue
            value = self.visit(part)
            if value.kind != "int":
                raise Wrong("MG310", f"a slice is made of ints, and this is {value.text}", part)
            require(value)
            if part is node.step and value.const == 0:
                raise Wrong("MG310", "the step of a slice cannot be zero", part)
            out.append(value)
        return out

    # Indices of arrays

    def index_array(self, value: Value, node: ast.Subscript) -> Value:
        """``x[...]``"""
        index, stream = self.each(
            partial(self.indices, node.slice), partial(self.stream, "indexing", node)
        )
        self.mlx.add("slice")
        return Value("array", f"mlxgen::index({value.cpp}, {index}, {stream})", node)

    def indices(self, node: ast.expr, new_axes: bool = True) -> str:
        """What stands between the brackets: an array of ints, or a list in braces."""
        elements = node.elts if isinstance(node, ast.Tuple) else [node]
        ellipses = [e for e in elements if isinstance(e, ast.Constant) and e.value is Ellipsis]

        def part(element: ast.expr) -> Value:
            if isinstance(element, ast.Slice):
                bounds = written_bounds(self.bounds(element))
                return Value("slice", f"mlxgen::Slice{{{bounds}}}", element)
            if element in ellipses:
                if element is not ellipses[0]:
                    raise Wrong("MG310", "an index has one ellipsis only", element)
                return Value("ellipsis", "mlxgen::ellipsis", element)
            value = self.visit(element)
            if value.is_array and len(elements) == 1:
                return value
            if value.kind == "int" and not value.optional:
                return replace(value, cpp=narrow(value))
            if value.kind == "none" and new_axes:
                return replace(value, cpp="mlxgen::newaxis")
            raise explain.index(value)

        parts = self.each(*(partial(part, element) for element in elements))
        text = ", ".join([part.cpp for part in parts])
        return text if parts[0].kind == "array" else f"{{{text}}}"

    def update_array(self, at: ast.Subscript, node: ast.Call) -> Value:
        """``x.at[...].add(values)``: the adjoint of an index."""
        assert isinstance(node.func, ast.Attribute) and isinstance(at.value, ast.Attribute)
        name = node.func.attr
        value, index, args, stream = self.each(
            partial(self.visit, at.value.value),
            partial(self.indices, at.slice, new_axes=False),
            partial(self.arguments, node, name),
            partial(self.stream, name, node),
        )
        if not value.is_array:
            raise explain.argument("at", "x", "array", value)
        if name not in UPDATES:
            message, help = f".at[...] has no method '{name}'", f"it has {', '.join(UPDATES)}"
            raise Wrong("MG309", message, node.func, help)
        updates = bind([Param("value", "/", "scalar | array")], args)["value"]
        cpp = fit(updates, "weak")
        if cpp is None:
            raise explain.argument(name, "value", "scalar | array", updates)
        self.mlx.add("scatter")
        return Value("array", f"mlxgen::at_{name}({value.cpp}, {index}, {cpp}, {stream})", node)

    # Comprehensions

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> Value:
        """``[f(a) for a in arrays]``, as a call of mlxgen::map with a lambda."""
        if len(node.generators) != 1:
            raise Wrong("MG302", "a comprehension has one `for` only", node)
        loop = node.generators[0]
        lists = self.loop_lists(loop.iter)
        names = self.loop_names(loop.target, lists)
        before, params = dict(self.locals), []
        for target, list_ in zip(names, lists, strict=True):
            cpp = self.loop_cpp(target.id)
            kind = "array" if list_.is_arrays else "int"
            params.append(f"{'const mx::array&' if kind == 'array' else 'int'} {cpp}")
            self.locals[target.id] = Value(kind, Cpp(cpp, "name"), target)
        try:
            element, *tests = self.each(
                partial(self.visit, node.elt),
                *(partial(self.visit_knowing, test, {}, True) for test in loop.ifs),
            )
        finally:
            self.locals = before
        head = f"[&]({', '.join(params)})"
        parts = [value.cpp for value in lists]
        if tests:
            if len(lists) > 1:
                message = "a comprehension over several lists has no `if`"
                raise Wrong("MG302", message, loop.ifs[0])
            test = all_of("&&", tests, node).cpp
            parts = [f"mlxgen::filter({parts[0]}, {head} {{ return {test}; }})"]
        require(element)
        if element.kind not in COLLECTED:
            raise Wrong("MG308", f"a comprehension cannot collect {element.text}", element.at)
        body = fit(element, {"int": "int", "float": "double"}.get(element.kind, element.kind))
        cpp = f"mlxgen::map({', '.join(parts)}, {head} {{ return {body}; }})"
        return Value(COLLECTED[element.kind], cpp, node)

    visit_GeneratorExp = visit_ListComp

    def loop_lists(self, node: ast.expr) -> list[Value]:
        """What a comprehension loops over: one list, or several side by side."""
        name = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if not isinstance(node, ast.Call) or name not in explain.LOOPS:
            return [loop_list(self.visit(node))]
        args = self.arguments(node, name)
        given = args.positional
        if args.keywords or args.star:
            raise Wrong("MG306", f"'{name}' takes positional arguments", node)
        wanted, what = {
            "zip": ((2,), "two lists"),
            "enumerate": ((1,), "one list"),
            "range": ((1, 2), "one or two ints"),
        }[name]
        if len(given) not in wanted:
            raise Wrong("MG306", f"'{name}' takes {what} in a formula", node)
        if name == "range":
            for value in given:
                if fit(value, "int") is None:
                    raise explain.argument("range", "bound", "int", value)
            return [counter([narrow(value) for value in given], node)]
        lists = self.each(*(partial(loop_list, value) for value in given))
        if name == "enumerate":
            lists.insert(0, counter([f"mlxgen::len({lists[0].cpp})"], node))
        return lists

    def loop_names(self, target: ast.expr, lists: Sequence[Value]) -> list[ast.Name]:
        """The variables of a loop, one for each list."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(targets) != len(lists):
            wanted, given = several(len(lists), "value"), several(len(targets), "name")
            raise Wrong("MG302", f"the loop has {wanted} for {given}", target)
        found: dict[str, ast.Name] = {}
        for t in targets:
            if not isinstance(t, ast.Name):
                raise Wrong("MG302", "a loop variable is a plain name", t)
            taken = t.id in self.scope.names or t.id in self.locals or t.id in ("mx", *MODULES)
            if taken or t.id in found:
                what = "has a meaning here already" if taken else "is there twice"
                raise Wrong("MG320", f"'{t.id}' {what}", t, "take another name")
            found[t.id] = t
        return list(found.values())

    def loop_cpp(self, name: str) -> str:
        """A C++ name for a loop variable: no keyword, and nothing that the body may use."""
        spellings = [n.cpp for n in self.scope.names.values()]
        spellings += [v.cpp for v in self.locals.values()]
        taken = set(re.findall(r"\w+", " ".join([*spellings, self.scope.stream or ""])))
        if not name.isascii():
            name = "item"
        if len(name) > 1:  # only longer names can be keywords
            name += "_"
        while name in taken:
            name += "_"
        return name

    # Calls

    def visit_Call(self, node: ast.Call) -> Value:
        function = node.func
        if isinstance(function, ast.Name):
            return self.call_name(function.id, node)
        if not isinstance(function, ast.Attribute):
            raise Wrong("MG302", "only functions and methods can be called", function)
        path = self.path(function)
        if path is not None:
            return self.call_named(path, node)
        at = function.value
        update = isinstance(at, ast.Subscript) and getattr(at.value, "attr", "") == "at"
        if update and isinstance(at, ast.Subscript):
            return self.update_array(at, node)
        return self.call_method(function, node)

    def call_name(self, name: str, node: ast.Call) -> Value:
        """A function by its bare name: of the file, Python's or MLX's."""
        if name in self.locals or name in self.scope.names:
            help = f"write mx.{name}(...) for MLX's function" if is_function(name) else None
            message = f"'{name}' is an argument here, not a function"
            raise Wrong("MG320", message, node.func, help)
        if name in self.scope.ops:
            return self.call_op(name, self.arguments(node, name))
        if name in BUILTINS or name in SHARED:
            return self.call_builtin(name, node)
        return self.call_named(name, node)

    def call_method(self, function: ast.Attribute, node: ast.Call) -> Value:
        """``x.sum(axis=-1)``"""
        name = function.attr
        receiver, args = self.each(
            partial(self.visit, function.value), partial(self.arguments, node, name)
        )
        require(receiver)
        if receiver.kind != "array":
            raise Wrong("MG309", f"{receiver.text} has no methods", function)
        method = table().method(name)
        if method is None:
            raise explain.method(function, table().methods, table().function(name) is not None)
        first, *others = method.signatures[0]
        args.positional.insert(0, receiver)
        if others and others[0].kind == "*":  # x.reshape(2, -1) or x.reshape((2, -1))
            if args.keywords:
                raise Wrong("MG306", f"'{name}' takes no arguments by name", node)
            rest = args.positional[1:]
            listed = Value("tuple", "", node, items=rest) if rest else constant(None, node)
            if len(rest) == 1 and rest[0].kind != "int":
                listed = rest[0]
            params = (first, Param(others[0].name, "", "Sequence[int]"))
            method = replace(method, signatures=(params,))
            args = Args(node, name, [receiver, listed])
        return self.call_mlx(method, args)


def is_none(node: ast.expr) -> bool:
    """Whether that is None, as written."""
    return isinstance(node, ast.Constant) and node.value is None


def facts(node: ast.expr, holds: bool) -> Facts:
    """What is known about optional names where the condition ``node`` holds (or does not)."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return facts(node.operand, not holds)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) is holds:
        return {name: known for part in node.values for name, known in facts(part, holds).items()}
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name):
        op = node.ops[0]
        if isinstance(op, ast.Is | ast.IsNot) and is_none(node.comparators[0]):
            return {node.left.id: isinstance(op, ast.IsNot) is holds}
    return {}


def all_of(sign: str, tests: Sequence[Value], node: ast.expr) -> Value:
    """Conditions joined by ``&&`` or ``||``."""
    return Value("bool", binary(sign, *(test.cpp for test in tests)), node)


def counted(value: Value, other: Value) -> Value:
    """``x.ndim() == 2`` reads better than mlxgen::ndim(x) == 2, and is the same."""
    of = value.of
    if of is not None and other.kind == "int" and other.const is not None and other.const >= 0:
        for name in ("ndim", "size"):
            short = member(of.cpp, name)
            if value.cpp == f"mlxgen::{name}({of.cpp})" != short:
                return replace(value, cpp=short)
    return value


def concatenated(parts: Sequence[Value], node: ast.expr) -> Value:
    """Lists of ints, or of arrays, one after the other."""
    if all(p.kind == "tuple" for p in parts):
        return Value("tuple", "", node, items=[i for p in parts for i in p.items])
    kind = "shape" if all(p.is_ints for p in parts) else "arrays"
    counts = [p.length for p in parts]
    known = [count for count in counts if count is not None]
    count = sum(known) if kind == "arrays" and len(known) == len(counts) else None
    lists = [fit(p, kind) or "" for p in parts]
    return Value(kind, f"mlxgen::concat({', '.join(lists)})", node, count=count)


def written_bounds(bounds: Sequence[Value | None]) -> str:
    """Start, stop and step of a slice in C++, without those omitted at the end."""
    texts = ["std::nullopt" if bound is None else narrow(bound) for bound in bounds]
    while bounds and bounds[-1] is None:
        bounds = bounds[:-1]
    return ", ".join(texts[: len(bounds)])


def loop_list(value: Value) -> Value:
    """A list to loop over."""
    require(value)
    kind = "arrays" if value.is_arrays else value.kind if value.kind != "tuple" else "shape"
    cpp = fit(value, kind) if kind in ("arrays", "shape", "ints") else None
    if cpp is None or value.length == 0:
        message = f"a comprehension cannot loop over {value.text}"
        raise Wrong("MG308", message, value.at)
    return Value(kind, cpp, value.at, count=value.count)


def counter(bounds: Sequence[str], node: ast.expr) -> Value:
    """``range(...)``"""
    start = ["0"] if len(bounds) == 1 else []
    return Value("shape", f"mlxgen::range({', '.join([*start, *bounds])})", node)
