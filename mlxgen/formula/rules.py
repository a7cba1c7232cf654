"""What formulas can do besides calling MLX: operators, attributes, Python's builtins, as a table.

A row: names, what it takes, what it gives, its C++. Names are those of MLX's functions where an
operator has one (``+`` is ``add``); ``.name`` is an attribute; comparisons have their sign. What a
row takes are slots of values.py, of which these are kinds of operands:

    number    an int or float            double    the same, as a C++ double
    int64     an int, of any width       int       an int, as a C++ int
    size      an int, not negative       real      a float
    shape     ints in any form           arrays    arrays in any form
    list      anything with a length     sequence  ints as they are
    bools, floats: of comprehensions

What it gives: a kind; ``common``: the C++ type that its numbers have in common; ``same``: what it
took; ``int64``: an int of 64 bits. In the C++ ``{0}`` is the first operand, ``{name}`` the name of
the row, ``{s}`` the stream. Operators are put into parentheses by precedence; ``{0}.f()`` is
``mlxgen::f({0})`` where the operand is no name.

The first row that takes the operands is used. Arrays beside arrays or numbers are MLX's functions,
and not here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .values import Value, binary, fit, member, unary

ROWS = [
    # Numbers, as Python counts: / gives a float, // and % round down.
    ("add", "number number", "common", "{0} + {1}"),
    ("subtract", "number number", "common", "{0} - {1}"),
    ("multiply", "number number", "common", "{0} * {1}"),  # of ints: 64 bits, see compile.py
    ("divide", "real number", "common", "{0} / {1}"),
    ("divide", "number real", "common", "{0} / {1}"),
    ("divide", "double int64", "float", "{0} / {1}"),
    ("floor_divide", "int64 int64", "common", "mlxgen::floor_div({0}, {1})"),
    ("floor_divide", "number number", "float", "mlxgen::floor_div({0}, {1})"),
    ("remainder", "int64 int64", "common", "mlxgen::floor_mod({0}, {1})"),
    ("remainder", "number number", "float", "mlxgen::floor_mod({0}, {1})"),
    ("power", "int64 size", "int64", "mlxgen::int_pow({0}, {1})"),
    ("power", "double double", "float", "std::pow({0}, {1})"),
    ("negative", "number", "common", "-{0}"),
    ("positive", "number", "same", "{0}"),
    # Functions of numbers, in double precision.
    ("exp expm1 log log2 log10 log1p sqrt erf", "double", "float", "std::{name}({0})"),
    ("sin cos tan sinh cosh tanh floor ceil trunc", "double", "float", "std::{name}({0})"),
    ("arcsin", "double", "float", "std::asin({0})"),
    ("arccos", "double", "float", "std::acos({0})"),
    ("arctan", "double", "float", "std::atan({0})"),
    ("arctan2", "double double", "float", "std::atan2({0}, {1})"),
    ("arcsinh", "double", "float", "std::asinh({0})"),
    ("arccosh", "double", "float", "std::acosh({0})"),
    ("arctanh", "double", "float", "std::atanh({0})"),
    ("round", "double", "float", "std::nearbyint({0})"),
    ("abs", "number", "common", "std::abs({0})"),
    # Comparisons.
    ("==", "number number", "bool", "{0} == {1}"),
    ("!=", "number number", "bool", "{0} != {1}"),
    ("<", "number number", "bool", "{0} < {1}"),
    ("<=", "number number", "bool", "{0} <= {1}"),
    (">", "number number", "bool", "{0} > {1}"),
    (">=", "number number", "bool", "{0} >= {1}"),
    ("==", "bool bool", "bool", "{0} == {1}"),
    ("!=", "bool bool", "bool", "{0} != {1}"),
    ("==", "dtype dtype", "bool", "{0} == {1}"),
    ("!=", "dtype dtype", "bool", "{0} != {1}"),
    ("==", "str str", "bool", "{0} == {1}"),
    ("!=", "str str", "bool", "{0} != {1}"),
    ("==", "shape shape", "bool", "{0} == {1}"),
    ("!=", "shape shape", "bool", "{0} != {1}"),
    ("in", "int sequence", "bool", "mlxgen::contains({1}, {0})"),
    # Lists.
    ("multiply", "shape int", "shape", "mlxgen::repeat({0}, {1})"),
    ("multiply", "int shape", "shape", "mlxgen::repeat({1}, {0})"),
    ("len", "list", "int", "mlxgen::len({0})"),
    ("len", "array", "int", "mlxgen::dim({0}, 0)"),
    ("sum", "arrays", "array", "mlxgen::sum({0}, {s})"),
    ("sum prod", "shape", "int64", "mlxgen::{name}({0})"),
    ("min max", "shape", "int", "mlxgen::{name}({0})"),
    ("sum min max", "floats", "float", "mlxgen::{name}({0})"),
    ("all any", "bools", "bool", "mlxgen::{name}({0})"),
    ("broadcast_shapes", "shape", "shape", "{0}"),
    ("broadcast_shapes", "shape shape", "shape", "mx::broadcast_shapes({0}, {1})"),
    # Conversions.
    ("int", "int64", "same", "{0}"),
    ("int", "real", "int", "mlxgen::to_int({0})"),
    ("int", "bool", "int", "mlxgen::to_int({0})"),
    ("float", "real", "same", "{0}"),
    ("float", "double", "float", "{0}"),
    ("float", "bool", "float", "static_cast<double>({0})"),
    ("bool", "bool", "same", "{0}"),
    ("bool", "number", "bool", "{0} != 0"),
    ("array asarray", "array", "same", "{0}"),
    ("array asarray", "array dtype", "array", "mx::astype({0}, {1}, {s})"),
    ("array asarray", "scalar", "array", "mlxgen::scalar({0})"),
    ("array asarray", "scalar dtype", "array", "mx::array({0}, {1})"),
    ("array asarray", "int_list", "array", "mx::array({0}, mx::int32)"),
    ("array asarray", "int_list dtype", "array", "mx::array({0}, {1})"),
    ("array asarray", "number_list", "array", "mx::array({0}, mx::float32)"),
    ("array asarray", "number_list dtype", "array", "mx::array({0}, {1})"),
    # Dtypes.
    ("result_type", "dtype", "same", "{0}"),
    ("result_type", "array", "dtype", "{0}.dtype()"),
    ("result_type", "dtype dtype", "dtype", "mx::promote_types({0}, {1})"),
    ("result_type", "array array", "dtype", "mx::result_type({0}, {1})"),
    ("result_type", "array array array", "dtype", "mx::result_type({0}, {1}, {2})"),
    ("finfo", "dtype", "finfo", "mx::finfo({0})"),
    ("iinfo", "dtype", "iinfo", "mx::iinfo({0})"),
    # Attributes.
    (".shape", "array", "shape", "{0}.shape()"),
    (".dtype", "array", "dtype", "{0}.dtype()"),
    (".ndim", "array", "int", "mlxgen::ndim({0})"),
    (".size", "array", "int64", "mlxgen::size({0})"),
    (".itemsize", "array", "int", "mlxgen::itemsize({0})"),
    (".nbytes", "array", "int64", "mlxgen::nbytes({0})"),
    (".T", "array", "array", "mx::transpose({0}, {s})"),
    (".mT", "array", "array", "mx::matrix_transpose({0}, {s})"),
    (".real", "array", "array", "mx::real({0}, {s})"),
    (".imag", "array", "array", "mx::imag({0}, {s})"),
    (".size", "dtype", "int", "int(mx::size_of({0}))"),
    (".min .max .eps .smallest_normal", "finfo", "float", "{0}{name}"),
    (".bits", "finfo", "int", "{0}{name}"),
    (".min .max", "iinfo", "int64", "int64_t({0}{name})"),
]

# C++'s types of numbers, each of which takes in those before.
RANKS = ("int", "int64_t", "float", "double")


@dataclass(frozen=True, slots=True)
class Rule:
    """A row, for one of its names."""

    name: str
    takes: Sequence[str]
    gives: str
    cpp: str
    sign: str  # of an operator, else empty
    mlx: str  # the function of MLX that it calls, if any

    @property
    def stream(self) -> bool:
        """Whether it needs one."""
        return "{s}" in self.cpp

    def fit(self, given: Sequence[Value]) -> list[str] | None:
        """The operands as C++, or None if it does not take them."""
        if len(given) != len(self.takes):
            return None
        parts = [fit(value, slot) for value, slot in zip(given, self.takes, strict=True)]
        found = [part for part in parts if part is not None]
        return found if len(found) == len(parts) else None

    def value(self, given: Sequence[Value], parts: list[str], s: str, at: ast.expr) -> Value:
        """What it gives for operands that fit."""
        if self.gives == "same":
            return replace(given[0], at=at)
        if self.sign and self.cpp.startswith(self.sign):
            cpp = unary(self.sign, parts[0])
        elif self.sign:
            cpp = binary(self.sign, parts[0], parts[1] if len(parts) > 1 else "0")
        elif self.cpp.startswith("{0}.") and self.cpp.endswith("()"):
            cpp = member(parts[0], self.cpp[4:-2])
        else:
            cpp = self.cpp.format(*parts, name=self.name, s=s)
        kind, type_ = self.gives, ""
        if kind == "int64":
            kind, type_ = "int", "int64_t"
        elif kind == "common":
            kind, type_ = common(given)
        of = given[0] if self.name[0] == "." else None
        return Value(kind, cpp, at, type=type_, of=of)


def common(numbers: Sequence[Value]) -> tuple[str, str]:
    """Kind and C++ type that numbers have in common."""
    usual = {"int": "int", "float": "double"}
    rank = max(RANKS.index(v.type or usual[v.kind]) for v in numbers)
    return ("int" if rank < 2 else "float"), (RANKS[rank] if rank in (1, 2) else "")


def _rules() -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for names, takes, gives, cpp in ROWS:
        sign = re.fullmatch(r"(?:\{0\} )?([^\w{: ]+) ?(?:\{[01]\}|0)", cpp)
        mlx = re.match(r"mx::(\w+)\(.*\{s\}", cpp)
        for name in names.split():
            rule = Rule(
                name, takes.split(), gives, cpp, sign[1] if sign else "", mlx[1] if mlx else ""
            )
            found.setdefault(name, []).append(rule)
    return found


RULES = _rules()
