"""The values that the parts of a formula have, and how each becomes an argument in C++.

A ``Value`` is a typed piece of C++: its kind, its expression tree and, where the translation can
use it, more than the tree shows: a constant, the items of a list written in the formula, how many
arrays there are, whether it may be None. Kinds are fewer than those of signatures: axes are an
optional list of ints, an enumerated string is a string that knows its choices.

``fit`` is the one place where a value meets a C++ type. It gives the tree to write there, or None
when the value cannot stand there; it reports nothing, since the caller may have another overload to
try.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..model.signature import Kind, Type
from .cpp_expr import UNARY, Binary, Call, Node, Text, Unary

INT_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class K(enum.Enum):
    """What a value is; the text is how messages call it."""

    ARRAY = "an array"
    ARRAYS = "a list of arrays"
    FLOAT = "a float"
    INT = "an int"
    BOOL = "a bool"
    STR = "a string"
    INTS = "a list of ints"  # std::vector<int>
    SHAPE = "a shape"  # mx::Shape
    DTYPE = "a dtype"
    NONE = "None"
    TUPLE = "a tuple"  # written in the formula; its items are values
    CATEGORY = "a category of dtypes"
    INFO = "information on a dtype"  # mx::finfo and mx::iinfo
    FLOATS = "several floats"  # std::vector<double> and std::vector<bool>: of comprehensions
    BOOLS = "several bools"


# Names of optional arguments known to have a value, and names known to be None.
Facts = tuple[frozenset[str], frozenset[str]]
NOTHING: frozenset[str] = frozenset()

MODULES = ("linalg", "fft", "random", "fast")  # of mlx.core

NUMBERS = (K.INT, K.FLOAT, K.BOOL)

_KINDS = {
    Kind.ARRAY: K.ARRAY,
    Kind.ARRAYS: K.ARRAYS,
    Kind.FLOAT: K.FLOAT,
    Kind.INT: K.INT,
    Kind.BOOL: K.BOOL,
    Kind.STR: K.STR,
    Kind.ENUM: K.STR,
    Kind.INTS: K.INTS,
    Kind.SHAPE: K.SHAPE,
    Kind.AXES: K.INTS,
    Kind.DTYPE: K.DTYPE,
}

# Slot types (see mlx_api) of the kinds of a signature.
_SLOTS = {
    Kind.ARRAY: "array",
    Kind.ARRAYS: "arrays",
    Kind.FLOAT: "float",
    Kind.INT: "int",
    Kind.BOOL: "bool",
    Kind.STR: "str",
    Kind.ENUM: "str",
    Kind.INTS: "ints",
    Kind.SHAPE: "shape",
    Kind.AXES: "ints1",
    Kind.DTYPE: "dtype",
}


@dataclass(slots=True)
class Value:
    """A piece of a formula: what it is and its C++."""

    kind: K
    node: Node
    at: ast.expr
    optional: bool = False  # std::optional
    wide: bool = False  # INT: int64_t rather than int
    single: bool = False  # FLOAT: float rather than double
    const: Any = None  # a number, bool or string written in the formula
    items: list[Value] = field(default_factory=list)  # TUPLE
    count: int | None = None  # ARRAYS: how many, if known
    is_tuple: bool = False  # ARRAYS: std::pair or std::tuple rather than std::vector
    choices: tuple[str, ...] = ()  # STR: what it can be
    name: str | None = None  # the identifier that stands for it, if it is just that
    of: Value | None = None  # SHAPE, INT: the array whose shape, ndim or size it is

    @property
    def text(self) -> str:
        """How messages call it."""
        if self.optional:
            return f"{self.kind.value} or None"
        if self.kind is K.INT and self.const is not None:
            return f"the int {self.const}"
        if self.kind is K.STR and self.const is not None:
            return f"the string {self.const!r}"
        if self.kind is K.ARRAYS and self.count is not None:
            return f"{self.count} arrays"
        return self.kind.value

    @property
    def is_number(self) -> bool:
        """Whether it is an int, float or bool that is there for certain."""
        return self.kind in NUMBERS and not self.optional

    @property
    def is_array(self) -> bool:
        """Whether it is an array that is there for certain."""
        return self.kind is K.ARRAY and not self.optional

    @property
    def is_ints(self) -> bool:
        """Whether it is a sequence of ints in any form, there for certain."""
        if self.kind is K.TUPLE:
            return all(i.kind is K.INT and not i.optional for i in self.items)
        return self.kind in (K.SHAPE, K.INTS) and not self.optional

    @property
    def is_arrays(self) -> bool:
        """Whether it is a sequence of arrays in any form."""
        if self.kind is K.TUPLE:
            return bool(self.items) and all(i.is_array for i in self.items)
        return self.kind is K.ARRAYS and not self.optional


def of_type(type: Type, node: Node, at: ast.expr, name: str | None = None) -> Value:
    """The value of an argument."""
    return Value(
        _KINDS[type.kind],
        node,
        at,
        optional=type.optional,
        wide=type.int64,
        single=type.single,
        choices=type.choices,
        name=name,
    )


def none(at: ast.expr) -> Value:
    """Python's None."""
    return Value(K.NONE, Text("std::nullopt"), at)


def boolean(value: bool, at: ast.expr) -> Value:
    """True or False."""
    return Value(K.BOOL, Text("true" if value else "false"), at, const=value)


def integer(value: int, at: ast.expr) -> Value:
    """An int constant."""
    node = Text(str(value), UNARY) if value < 0 else Text(str(value))
    return Value(K.INT, node, at, wide=not -INT_MAX <= value <= INT_MAX, const=value)


def floating(value: float, at: ast.expr) -> Value:
    """A float constant."""
    text = repr(value).replace("e-0", "e-")
    if value != value or value in (float("inf"), float("-inf")):
        text = "mlxgen::nan" if value != value else text.replace("inf", "mlxgen::inf")
    node = Text(text, UNARY) if text.startswith("-") else Text(text)
    return Value(K.FLOAT, node, at, const=value)


def string(value: str, at: ast.expr) -> Value:
    """A string constant, which is printable ASCII."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return Value(K.STR, Text(f'"{escaped}"'), at, const=value)


def default(text: str, at: ast.expr) -> Value:
    """The default of a parameter in MLX's stubs."""
    if text == "None":
        return none(at)
    if text in ("True", "False"):
        return boolean(text == "True", at)
    if text.isidentifier():
        return Value(K.DTYPE, Text(f"mx::{text}"), at)
    return _constant(ast.literal_eval(text), at)


def _constant(value: Any, at: ast.expr) -> Value:
    if isinstance(value, bool):
        return boolean(value, at)
    if isinstance(value, int):
        return integer(value, at)
    if isinstance(value, float):
        return floating(value, at)
    if isinstance(value, str):
        return string(value, at)
    return Value(K.TUPLE, Text(""), at, items=[_constant(v, at) for v in value])


def narrow(value: Value) -> Node:
    """An INT as a C++ int."""
    return Call("mlxgen::to_int", [value.node]) if value.wide else value.node


def as_double(value: Value) -> Node:
    """A number as a C++ double, whatever it was."""
    if value.const is not None and value.kind is K.INT:
        return Text(f"{value.const}.0", value.node.prec)
    if value.kind is K.FLOAT and not value.single:
        return value.node
    return Call("static_cast<double>", [value.node])


def as_list(value: Value, head: str, convert: str) -> Node | None:
    """Ints as the C++ type ``head``, which the helper ``convert`` makes of other lists."""
    if value.kind is K.TUPLE:
        if not value.is_ints:
            return None
        wide = head == "mx::Strides"
        return Call(head, [i.node if wide else narrow(i) for i in value.items], "{}")
    if value.kind is K.SHAPE and head == "mx::Shape":
        return value.node
    if value.kind is K.INTS and head == "std::vector<int>":
        return value.node
    if value.kind in (K.SHAPE, K.INTS):
        return Call(f"mlxgen::{convert}", [value.node])
    return None


def shape(value: Value) -> Node | None:
    """Ints as an mx::Shape."""
    return as_list(value, "mx::Shape", "as_shape")


def arrays(value: Value) -> Node | None:
    """Arrays as a std::vector<mx::array>."""
    if value.kind is K.TUPLE and (value.is_arrays or not value.items):
        return Call("std::vector<mx::array>", [i.node for i in value.items], "{}")
    if value.kind is K.ARRAYS and not value.optional:
        return Call("mlxgen::as_arrays", [value.node]) if value.is_tuple else value.node
    return None


FFT_NORMS = {"backward": "Backward", "ortho": "Ortho", "forward": "Forward"}


def fit(value: Value, slot: str, optional: bool = False) -> Node | None:
    """``value`` as an argument of a slot type (see mlx_api), or None if it cannot stand there."""
    if value.kind is K.NONE:
        return value.node if optional else None
    if value.optional:
        return _fit_optional(value, slot) if optional else None
    kind = value.kind
    if slot in ("array", "weak", "value"):
        if kind is K.ARRAY:
            return value.node
        if kind not in NUMBERS or slot == "array":
            return None
        return value.node if slot == "weak" else Call("mlxgen::scalar", [value.node])
    if slot == "int":
        return narrow(value) if kind is K.INT else None
    if slot == "bool":
        return value.node if kind is K.BOOL else None
    if slot == "float":
        return value.node if kind in (K.FLOAT, K.INT) else None
    if slot == "dtype":
        return value.node if kind is K.DTYPE else None
    if slot == "str":
        return value.node if kind is K.STR else None
    if slot == "arrays":
        return arrays(value)
    if slot.startswith("ints"):
        if kind is K.INT and slot == "ints1":
            return Call("std::vector<int>", [narrow(value)], "{}")
        return as_list(value, "std::vector<int>", "as_ints")
    if slot.startswith("shape"):
        if kind is K.INT and slot == "shape1":
            return Call("mx::Shape", [narrow(value)], "{}")
        return shape(value)
    return _fit_rare(value, slot)


def _fit_rare(value: Value, slot: str) -> Node | None:
    kind = value.kind
    if slot == "double":
        return as_double(value) if kind in (K.FLOAT, K.INT) else None
    if slot == "size":
        negative = value.const is not None and kind is K.INT and value.const < 0
        return value.node if kind is K.INT and not negative else None
    if slot == "int64":
        return value.node if kind is K.INT else None
    if slot == "strides":
        return as_list(value, "mx::Strides", "as_strides")
    if slot.startswith("pair") and slot != "pairs":
        return _fixed(value, 2, "std::pair<int, int>", "as_pair", slot == "pair1")
    if slot.startswith("triple"):
        return _fixed(value, 3, "std::tuple<int, int, int>", "as_triple", slot == "triple1")
    if slot == "pairs":
        pairs = [_fixed(i, 2, "", "as_pair", False) for i in value.items]
        if kind is not K.TUPLE or not pairs:
            return None
        return (
            Call("std::vector<std::pair<int, int>>", [p for p in pairs if p], "{}")
            if all(pairs)
            else None
        )
    if slot == "fftnorm":
        if kind is not K.STR or value.const is None:
            return Call("mlxgen::fft_norm", [value.node]) if kind is K.STR else None
        norm = FFT_NORMS.get(value.const)
        return Text(f"mx::fft::FFTNorm::{norm}") if norm else None
    if slot.startswith("'"):
        return value.node if kind is K.STR and value.const == slot[1:-1] else None
    return None


def _fixed(value: Value, count: int, head: str, convert: str, one: bool) -> Node | None:
    """A pair or triple of ints."""
    if value.kind is K.TUPLE and len(value.items) == 1 and value.items[0].kind is K.TUPLE:
        value = value.items[0]
    if value.kind is K.INT and one:
        return Call(head, [narrow(value)] * count, "{}")
    if value.kind is K.TUPLE:
        if len(value.items) != count or not value.is_ints:
            return None
        return Call(head, [narrow(i) for i in value.items], "{}")
    return Call(f"mlxgen::{convert}", [value.node]) if value.kind in (K.SHAPE, K.INTS) else None


_OPTIONAL = {
    "array": (K.ARRAY,),
    "int": (K.INT,),
    "int64": (K.INT,),
    "bool": (K.BOOL,),
    "float": (K.FLOAT, K.INT),
    "dtype": (K.DTYPE,),
    "str": (K.STR,),
    "weak": (K.ARRAY, K.INT, K.FLOAT, K.BOOL),
}


def _fit_optional(value: Value, slot: str) -> Node | None:
    """A value that may be None where C++ has a std::optional."""
    if slot.startswith("ints") and value.kind in (K.INTS, K.SHAPE):
        return value.node if value.kind is K.INTS else Call("mlxgen::as_ints", [value.node])
    if slot.startswith("shape") and value.kind in (K.INTS, K.SHAPE):
        return value.node if value.kind is K.SHAPE else Call("mlxgen::as_shape", [value.node])
    if value.kind not in _OPTIONAL.get(slot, ()):
        return None
    if slot == "int" and value.wide:
        return Call("mlxgen::to_int", [value.node])
    return value.node


def fit_type(value: Value, type: Type) -> Node | None:
    """``value`` where an operator has an argument of ``type``."""
    slot = _SLOTS[type.kind]
    if type.kind is Kind.INT and type.int64:
        slot = "int64"
    if type.length is not None and value.kind is K.INT and not value.optional:
        return Call("std::vector<int>", [narrow(value)] * type.length, "{}")
    if type.length is not None and value.kind is K.TUPLE and len(value.items) != type.length:
        return None
    return fit(value, slot, type.optional)


def moved(value: Value, at: ast.expr) -> Value:
    """The same value, written elsewhere."""
    return replace(value, at=at)


_CPP_TYPES = {
    K.ARRAY: "mx::array",
    K.ARRAYS: "std::vector<mx::array>",
    K.FLOAT: "double",
    K.INT: "int",
    K.BOOL: "bool",
    K.STR: "std::string",
    K.INTS: "std::vector<int>",
    K.SHAPE: "mx::Shape",
    K.DTYPE: "mx::Dtype",
}


def optional_type(kind: K, wide: bool) -> str:
    """The std::optional of a kind."""
    return f"std::optional<{'int64_t' if kind is K.INT and wide else _CPP_TYPES[kind]}>"


def dereferenced(value: Value) -> Value:
    """An optional value that is known to be there."""
    node = value.node
    inner: Node = (
        Unary("*", node) if isinstance(node, Text) and node.prec > UNARY else Call("*", [node])
    )
    return replace(value, node=inner, optional=False)


def has_value(node: Node) -> Node:
    """The C++ condition that a std::optional holds something."""
    return Text(f"{node.flat}.has_value()")


def several(count: int, what: str = "array") -> str:
    """``1 array``, ``2 arrays``"""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def join(op: str, nodes: Sequence[Node]) -> Node:
    """``a op b op c`` in C++."""
    out = nodes[0]
    for node in nodes[1:]:
        out = Binary(op, out, node)
    return out


def member(node: Node, name: str) -> Node:
    """``x.name()`` of a name, else a helper: chains of members do not break well."""
    if isinstance(node, Text):
        return Call(f"{node.flat}.{name}", [])
    if isinstance(node, Unary) and node.op == "*":
        return Call(f"{node.operand.flat}->{name}", [])
    return Call(f"mlxgen::{name}", [node])
