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

Structure: this module reads names, operators, attributes, indices and comprehensions;
``formula_calls`` the calls; ``formula_values`` has the types and the conversions to C++ types;
``mlx_api`` knows MLX's functions; ``cpp_expr`` writes operators with their parentheses. The
generated C++ needs ``namespace mx = mlx::core;`` and ``#include "mlxgen/formula.h"``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..diagnostics import suggest
from ..model.dtypes import DTYPES
from ..model.op import Expr as Expr  # what compile_formula gives
from ..model.signature import Kind, Signature, Type
from . import calls, lists, operators, values
from .cpp_expr import UNARY, Call, Node, Text
from .mlx import table
from .values import MODULES, NOTHING, Facts, K, Value

Report = Callable[[str, str, int, int, "str | None"], None]
"""What gets the errors: code, message, start and end offset in the text, help."""

LONGEST = 10_000  # characters of a formula
DEEPEST = 100  # nodes inside each other
LARGEST = 40_000  # characters of C++


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
    stream: str | None = (
        "s"  # C++ expression of the stream; None: no array operation can stand here
    )


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
    except RecursionError:
        compiler.error("MG318", "the formula is nested too deeply", None)
        return None


CONSTANTS = {
    "pi": "std::numbers::pi",
    "e": "std::numbers::e",
    "euler_gamma": "std::numbers::egamma",
    "inf": "mlxgen::inf",
    "nan": "mlxgen::nan",
}
CATEGORIES = [
    "generic",
    "number",
    "integer",
    "signedinteger",
    "unsignedinteger",
    "inexact",
    "floating",
    "complexfloating",
]

# Parts of Python that formulas do not have: what they are, and what to write instead.
FOREIGN: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "write the expression out, or use a comprehension"),
    ast.Dict: ("a dict", "write a tuple or a list"),
    ast.Set: ("a set", "write a tuple or a list"),
    ast.DictComp: ("a dict comprehension", "write a list comprehension"),
    ast.SetComp: ("a set comprehension", "write a list comprehension"),
    ast.NamedExpr: ("an assignment", "write the expression where it is used"),
    ast.JoinedStr: ("an f-string", "write a plain string"),
    ast.Await: ("await", "write the call alone"),
    ast.Yield: ("yield", "write the expression alone"),
    ast.YieldFrom: ("yield", "write the expression alone"),
    ast.Starred: ("a star", "it stands in calls and in tuples only: (*x.shape[:-1], 1)"),
    ast.Slice: ("a slice", "it stands in an index only: x[1:]"),
}

# What a formula can have to give: the slot type it must fit, and how messages call it.
WANTED = {
    Kind.ARRAY: ("array", "an array"),
    Kind.SHAPE: ("shape", "a shape"),
    Kind.INT: ("int64", "an int"),
    Kind.BOOL: ("bool", "a condition"),
    Kind.FLOAT: ("float", "a number"),
    Kind.DTYPE: ("dtype", "a dtype"),
}
# What to write when it gives something else.
_NUMBER = "write full_like(x, 0) or zeros_like(x), with an array in the place of x"
RESULT_HELP = {
    (Kind.ARRAY, K.INT): _NUMBER,
    (Kind.ARRAY, K.FLOAT): _NUMBER,
    (Kind.ARRAY, K.BOOL): _NUMBER,
    (Kind.ARRAY, K.ARRAYS): "take one of them with [0]",
    (Kind.ARRAY, K.TUPLE): "write one expression",
    (Kind.SHAPE, K.INT): "a shape of one dimension is written (n,)",
    (Kind.INT, K.FLOAT): "write // to divide ints, or int(...)",
    (Kind.BOOL, K.ARRAY): "conditions are about shapes, dtypes and attributes: arrays have no "
    "values when the graph is built",
    (Kind.BOOL, K.INT): "compare it: n != 0",
}

ATTRIBUTES = ("shape", "ndim", "size", "dtype", "T", "mT", "itemsize", "nbytes", "real", "imag")


class Compiler:
    """Translates one formula.

    Methods give None after having reported an error, and ask no more of such a part.
    """

    def __init__(self, text: str, scope: Scope, report: Report) -> None:
        self.text = text.replace("\r", " ")
        self.source = self.text
        self.scope = scope
        self.report = report
        self.failed = False
        self.names: set[str] = set()
        self.ops: set[str] = set()
        self.mlx: set[str] = set()
        self.locals: dict[str, Value] = {}
        self.given: frozenset[str] = NOTHING  # optional names known to have a value here
        self.missing: frozenset[str] = NOTHING  # and those known to be None
        self.depth = 0
        self.shift = 0  # characters put before the text for parsing

    # Errors

    def error(self, code: str, message: str, node: ast.AST | None, help: str | None = None) -> None:
        """Report an error at a node (None: at the whole text)."""
        self.failed = True
        start, end = self.span(node) if node is not None else (0, len(self.text))
        self.report(code, message, start, max(end, start + 1), help)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The slice of the text that a node stands for."""
        start = self.offset(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
        end = self.offset(
            getattr(node, "end_lineno", None) or 1, getattr(node, "end_col_offset", None) or 0
        )
        return start, end

    def offset(self, line: int, column: int) -> int:
        """The place in the text of ast's line and column (in bytes)."""
        lines = self.source.split("\n")
        before = sum(len(part) + 1 for part in lines[: line - 1])
        at = lines[min(line, len(lines)) - 1].encode()[:column].decode(errors="ignore")
        return min(max(before + len(at) - self.shift, 0), len(self.text))

    # Parsing

    def parse(self) -> ast.expr | None:
        """The syntax tree of the text."""
        stripped = self.text.strip()
        if not stripped:
            self.error("MG301", "the formula is empty", None)
            return None
        if len(self.text) > LONGEST:
            self.error("MG318", f"the formula has more than {LONGEST} characters", None)
            return None
        # Over several lines an expression needs parentheses; a single line needs its blanks
        # stripped.
        several = "\n" in stripped
        self.shift = 1 if several else -(len(self.text) - len(self.text.lstrip()))
        self.source = f"({self.text}\n)" if several else stripped
        try:
            tree = _parse(self.source)
            if several and not _closed_at_end(self.source):
                self.error("MG301", "this is not a Python expression: unmatched ')'", None)
                return None
            return tree
        except SyntaxError as error:
            self.syntax_error(error)
        except (ValueError, MemoryError):
            self.error("MG301", "the formula is not a Python expression", None)
        return None

    def syntax_error(self, error: SyntaxError) -> None:
        """Report what Python's parser found."""
        message = (error.msg or "invalid syntax").removeprefix("invalid syntax. ")
        self.failed = True
        start, end = 0, len(self.text)
        if error.lineno is not None and error.offset:
            lines = self.source.split("\n")
            before = sum(len(part) + 1 for part in lines[: error.lineno - 1])
            start = min(max(before + error.offset - 1 - self.shift, 0), len(self.text) - 1)
            end = start + 1
            if error.end_lineno == error.lineno and (error.end_offset or 0) > error.offset:
                end = min(start + (error.end_offset or 0) - error.offset, len(self.text))
        help = None
        if self.text[start:end] == "=":
            help = "write == to compare"
        elif "&&" in self.text or "||" in self.text:
            help = "write `and` and `or`"
        elif "?" in self.text:
            help = "write `a if condition else b`"
        elif re.search(r"!(?!=)", self.text):
            help = "write `not`"
        self.report("MG301", f"this is not a Python expression: {message}", start, end, help)

    # The result

    def compile(self, want: Want) -> Expr | None:
        """The formula as an expression of the wanted kind."""
        tree = self.parse()
        if tree is None:
            return None
        value = self.visit(tree)
        if value is None:
            return None
        result = self.result(value, want)
        if result is None or self.failed:
            return None
        node, type_ = result
        if len(node.flat) > LARGEST:
            self.error(
                "MG318",
                "the formula becomes too large in C++",
                tree,
                "split it into several entries, or decide about arguments that may be None first",
            )
            return None
        names, ops, mlx = frozenset(self.names), frozenset(self.ops), frozenset(self.mlx)
        return Expr(type_, node.flat, names, ops, mlx)

    def result(self, value: Value, want: Want) -> tuple[Node, Type] | None:
        """The value as what is wanted."""
        kind = want.kind
        if kind is Kind.ARRAYS:
            return self.result_arrays(value, want.count)
        slot, wanted = WANTED[kind]
        node = values.fit(value, slot)
        if node is None:
            if value.optional:
                self.may_be_none(value)
            else:
                message = f"this is {value.text}, and {wanted} is needed here"
                self.error("MG313", message, value.at, RESULT_HELP.get((kind, value.kind)))
            return None
        return node, Type(kind, int64=kind is Kind.INT and value.wide)

    def result_arrays(self, value: Value, count: int | None) -> tuple[Node, Type] | None:
        """The value as a list of arrays."""
        node = values.arrays(value)
        has = len(value.items) if value.kind is K.TUPLE else value.count
        type_ = Type(Kind.ARRAYS)
        if node is None:
            if value.optional:
                self.may_be_none(value)
                return None
            for item in value.items:
                if not item.is_array:
                    self.error(
                        "MG313", f"this is {item.text}, and an array is needed here", item.at
                    )
                    return None
            wanted = f"{count} arrays are" if count is not None else "a list of arrays is"
            help = f"write a tuple of {count}: (a, b)" if count == 2 else None
            code = "MG314" if value.kind is K.ARRAY else "MG313"
            self.error(code, f"this is {value.text}, and {wanted} needed here", value.at, help)
            return None
        if count is None or has == count:
            return node, type_
        if has is None:  # known at run time only
            return Call("mlxgen::exactly", [node, Text(str(count))]), type_
        self.error(
            "MG314", f"this gives {values.several(has)}, and {count} are needed here", value.at
        )
        return None

    # Parts of the formula

    def visit(self, node: ast.expr) -> Value | None:
        """The value of a part of the formula, or None when something in it was reported."""
        handler = HANDLERS.get(type(node))
        if handler is None:
            what, help = FOREIGN.get(type(node), ("this", None))
            self.error("MG302", f"a formula cannot contain {what}", node, help)
            return None
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        value = handler(self, node)
        self.depth -= 1
        return value

    def visit_all(self, nodes: Sequence[ast.expr]) -> list[Value] | None:
        """The values of several parts; all of them are looked at even if one is wrong."""
        found = [self.visit(n) for n in nodes]
        return None if None in found else [v for v in found if v is not None]

    def constant(self, node: ast.Constant) -> Value | None:
        value = node.value
        if value is None:
            return values.none(node)
        if isinstance(value, bool):
            return values.boolean(value, node)
        if isinstance(value, int):
            if value > values.INT64_MAX:
                self.error("MG317", "this int does not fit into 64 bits", node)
                return None
            return values.integer(value, node)
        if isinstance(value, float):
            if value == float("inf"):
                self.error("MG317", "this float is too large", node, "write inf for infinity")
                return None
            return values.floating(value, node)
        if isinstance(value, str):
            if not (value.isascii() and value.isprintable()):
                self.error("MG317", "a string has printable ASCII characters only", node)
                return None
            return values.string(value, node)
        what = {"complex": "a complex number", "bytes": "bytes", "ellipsis": "an ellipsis"}
        help = "it stands in an index only: x[..., 0]" if value is Ellipsis else None
        self.error(
            "MG302",
            f"a formula cannot contain {what.get(type(value).__name__, 'this')}",
            node,
            help,
        )
        return None

    def name(self, node: ast.Name) -> Value | None:
        local = self.locals.get(node.id)
        if local is not None:
            return values.moved(local, node)
        found = self.scope.names.get(node.id)
        if found is not None:
            return self.argument(node, found)
        return self.constant_name(node.id, node)

    def argument(self, node: ast.Name, found: Name) -> Value:
        """A name of the scope; an optional one as far as it is known whether it has a value."""
        self.names.add(node.id)
        cpp = Text(found.cpp, UNARY) if found.cpp[0] in "*-!&" else Text(found.cpp)
        value = values.of_type(found.type, cpp, node, node.id)
        value.count = found.count
        if value.optional and node.id in self.given:
            return values.dereferenced(value)
        if value.optional and node.id in self.missing:
            return values.none(node)
        return value

    def constant_name(self, name: str, node: ast.expr) -> Value | None:
        """A name of mlx.core that is no function."""
        if name in CONSTANTS:
            return Value(K.FLOAT, Text(CONSTANTS[name]), node)
        if name in DTYPES:
            return Value(K.DTYPE, Text(f"mx::{name}"), node)
        if name in CATEGORIES:
            return Value(K.CATEGORY, Text(f"mx::{name}"), node)
        if name == "newaxis":
            return values.none(node)
        code, help = "MG303", None
        if name in MODULES or name == "mx":
            message = f"'{name}' is a module"
        elif name in ("bool", "int", "float"):
            message = f"'{name}' is a Python type"
            dtype = {"bool": "bool_", "int": "int32", "float": "float32"}[name]
            help = f"dtypes are named as in MLX: {dtype}"
        elif name in self.scope.ops or calls.is_function(name):
            message, help = f"'{name}' is a function", f"call it: {name}(x)"
        elif table().omitted.get(name):
            code, message = "MG305", f"'{name}' cannot be used in a formula"
            help = table().omitted[name]
        else:
            known = [*self.locals, *self.scope.names]
            guess = suggest(name, [*known, *CONSTANTS, *DTYPES])
            message = f"unknown name '{name}'" + (f" (did you mean '{guess}'?)" if guess else "")
            help = f"names here: {', '.join(known)}" if known else None
        self.error(code, message, node, help)
        return None

    def path(self, node: ast.expr) -> str | None:
        """``linalg.norm`` for mx.linalg.norm or linalg.norm; None for what is no name of MLX."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not parts:
            return None
        if node.id in self.locals or node.id in self.scope.names:
            return None
        if node.id in MODULES:
            parts.append(node.id)
        elif node.id != "mx":
            return None
        return ".".join(reversed(parts))

    # Arrays from MLX

    def mlx_call(
        self, function: str, args: Sequence[Node], node: ast.expr, prefix: str = "mx"
    ) -> Value | None:
        """An array from one of MLX's functions, which takes the stream last."""
        stream = self.stream(function, node)
        if stream is None:
            return None
        self.mlx.add(function)
        return Value(K.ARRAY, Call(f"{prefix}::{function}", [*args, stream]), node)

    def dtype_of(self, value: Value) -> Node:
        """The dtype of an array (or that dtype) in C++."""
        return values.member(value.node, "dtype") if value.kind is K.ARRAY else value.node

    def stream(self, function: str, node: ast.expr) -> Node | None:
        """The stream, where array operations are possible at all."""
        if self.scope.stream is not None:
            return Text(self.scope.stream)
        self.error(
            "MG315",
            f"'{function}' computes an array, and this formula cannot",
            node,
            "it is about shapes, dtypes and attributes: x.shape[-1], x.dtype, n",
        )
        return None

    # Arguments that may be None, and strings with choices

    @contextmanager
    def knowing(self, facts: Facts) -> Iterator[None]:
        """Inside, these optional names are known to have a value, or to be None."""
        before = self.given, self.missing
        self.given = self.given | facts[0]
        self.missing = self.missing | facts[1]
        yield
        self.given, self.missing = before

    def not_a_choice(self, value: Value, name: str, choices: Sequence[str]) -> None:
        """Report a string that is none of those possible."""
        guess = suggest(value.const, choices)
        all_ = ", ".join(repr(c) for c in choices)
        self.error(
            "MG316",
            f"'{name}' is never {value.const!r}" + (f" (did you mean {guess!r}?)" if guess else ""),
            value.at,
            f"it is one of {all_}",
        )

    def may_be_none(self, value: Value) -> None:
        """Report an optional value where one has to be there."""
        name = value.name
        help = f"write `... if {name} is not None else ...`" if name else "decide before with `if`"
        self.error(
            "MG311", f"'{name}' may be None here" if name else "this may be None", value.at, help
        )

    # Attributes

    def attribute(self, node: ast.Attribute) -> Value | None:
        path = self.path(node)
        if path is not None:
            return self.constant_name(path, node)
        value = self.visit(node.value)
        if value is None:
            return None
        if value.optional:
            self.may_be_none(value)
            return None
        return self.attribute_of(value, node)

    def attribute_of(self, value: Value, node: ast.Attribute) -> Value | None:
        """``x.shape`` and the like."""
        name = node.attr
        if value.kind is K.ARRAY:
            if name in ("T", "mT", "real", "imag"):
                function = {"T": "transpose", "mT": "matrix_transpose"}.get(name, name)
                return self.mlx_call(function, [value.node], node)
            if name == "shape":
                return Value(K.SHAPE, values.member(value.node, "shape"), node, of=value)
            if name == "dtype":
                return Value(K.DTYPE, values.member(value.node, "dtype"), node)
            if name == "ndim":
                return Value(K.INT, Call("mlxgen::ndim", [value.node]), node, of=value)
            if name == "size":
                return Value(K.INT, Call("mlxgen::size", [value.node]), node, wide=True, of=value)
            if name in ("itemsize", "nbytes"):
                wide = name == "nbytes"
                return Value(K.INT, Call(f"mlxgen::{name}", [value.node]), node, wide=wide)
        if value.kind is K.DTYPE and name == "size":
            return Value(K.INT, Call("int", [Call("mx::size_of", [value.node])]), node)
        if value.kind is K.INFO:
            floats = value.const == "finfo"
            known = ("min", "max", "eps", "smallest_normal") if floats else ("min", "max")
            if name in known:
                post = Call(f"mx::{value.const}", [value.items[0].node], post=f".{name}")
                if floats:
                    return Value(K.FLOAT, post, node)
                return Value(K.INT, Call("int64_t", [post]), node, wide=True)
            if name == "bits" and floats:
                return Value(K.INT, Call("mx::finfo", [value.items[0].node], post=".bits"), node)
        self.unknown_attribute(value, node)
        return None

    def unknown_attribute(self, value: Value, node: ast.Attribute) -> None:
        """Report an attribute that does not exist, or is no attribute."""
        name, help = node.attr, None
        if value.kind is K.ARRAY:
            methods = table().methods
            if name in methods:
                message, help = f"'{name}' is a method", f"call it: .{name}(...)"
            elif name == "at":
                message = "'at' stands in an update only"
                help = "write x.at[i].add(y)"
            else:
                guess = suggest(name, [*ATTRIBUTES, *methods])
                message = f"an array has no attribute '{name}'"
                message += f" (did you mean '{guess}'?)" if guess else ""
                help = f"attributes: {', '.join(ATTRIBUTES)}"
        else:
            message = f"{value.text} has no attribute '{name}'"
            if value.kind is K.ARRAYS:
                help = "take one of the arrays first, with [0]"
        self.error("MG309", message, node, help)


Handler = Callable[["Compiler", Any], "Value | None"]

HANDLERS: Mapping[type[ast.AST], Handler] = {
    ast.Constant: Compiler.constant,
    ast.Name: Compiler.name,
    ast.Attribute: Compiler.attribute,
    ast.UnaryOp: operators.unary,
    ast.BinOp: operators.binary,
    ast.BoolOp: operators.boolean,
    ast.Compare: operators.compare,
    ast.IfExp: operators.choose,
    ast.Call: calls.call,
    ast.Subscript: lists.subscript,
    ast.Tuple: lists.display,
    ast.List: lists.display,
    ast.ListComp: lists.comprehension,
    ast.GeneratorExp: lists.comprehension,
}


# What Python's parser warns about, on stderr: invalid escapes, and numbers that run into words.
_WARNED = re.compile(r"\\|\d(?:if|in|is|or|and|not|for|else)")


def _parse(source: str) -> ast.expr:
    """The syntax tree of an expression, without warnings."""
    if _WARNED.search(source) is None:
        return ast.parse(source, mode="eval").body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, mode="eval").body


def _closed_at_end(source: str) -> bool:
    """Whether the bracket that opens the text is closed by its last one."""
    depth = 0
    brackets = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.OP and token.string in "()[]{}"
    ]
    for bracket in brackets[:-1]:
        depth += 1 if bracket in "([{" else -1
        if depth == 0:
            return False
    return True
