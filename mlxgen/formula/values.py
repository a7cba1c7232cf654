"""Values of a formula's parts, and their conversion to C++ types.

A ``Value`` has a kind and its C++ on one line. ``Cpp`` consists of strings and of holes for names,
which are filled at the use of the formula; nothing searches in it. Kinds are those of signatures,
and those of formulas only: tuples, None, categories of dtypes. A value also stores C++ distinctions
that determine conversions: ``int`` and ``int64_t``, ``float`` and ``double``, ``std::vector<int>``
(ints) and ``mx::Shape`` (shape).

All conversions go through ``fit``. Its targets are the slots of the table of MLX's functions;
``SLOTS`` defines which kinds a slot accepts, and the C++ of each conversion.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

from ..model.kinds import KINDS, Kind, ValueKind
from ..model.op import Fact, Hole
from ..model.signature import Type, quoted

INT_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# The values that an optional name or a union can still have: None, a string, or PRESENT, which is
# any value of an optional name, and the array of a union.
State = str | bool | None
PRESENT = True

# Descriptions of kinds in messages.
TEXTS = {
    **{spelling.slot: f"a {kind.label}" for kind, spelling in KINDS.items()},
    **{"array": "an array", "int": "an int", "none": "None", "str": "a string"},
    "tuple": "a tuple",  # written in the formula; its items are values
    "union": "an array or a string",
    "category": "a category of dtypes",
    "truth": "one of several lists",  # of `and` and `or`, in conditions only
    **dict.fromkeys(("finfo", "iinfo"), "information on a dtype"),
    "pairs": "pairs of ints",  # std::vector<std::pair<int, int>>, of comprehensions
}
LISTS = ("arrays", "optionals", "shape", "ints", "floats", "bools", "pairs", "nested")
NUMBERS = ("int", "float", "bool", "scalar")  # scalar: its kind is known at run time only
CPP_TYPES = {spelling.slot: str(spelling.cpp) for spelling in KINDS.values()}

# Precedence of C++ operators, from loosest to tightest.
LEVELS = ("?", "||", "&&", "== !=", "< <= > >=", "+ -", "* /", "unary", "call", "name")
LEVEL = {sign: level for level, signs in enumerate(LEVELS) for sign in signs.split()}
WARNED = {(LEVEL["||"], LEVEL["&&"]), (LEVEL["=="], LEVEL["<"])}  # gcc warns without parentheses
CHAINED = {LEVEL[sign] for sign in ("||", "&&", "+", "*")}  # a + b + c needs no parentheses


class Cpp(NamedTuple):
    """C++ on one line: strings, with a hole for each name."""

    parts: tuple[str | Hole, ...]  # no two strings are adjacent
    size: int  # characters
    level: int  # the precedence of its outermost operator
    sign: str = ""  # its prefix operator, in front of ...
    operand: Cpp | None = None  # ... this part


def cpp(*pieces: str | Cpp, like: str = "call", sign: str = "", operand: Cpp | None = None) -> Cpp:
    """Join C++; it has the precedence of ``like``: an operator, "unary", "call" or "name"."""
    parts: list[str | Hole] = []
    size = 0
    text = ""  # not yet in `parts`
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            size += len(piece)
            continue
        for part in piece.parts:
            if isinstance(part, str):
                text += part
                continue
            if text:
                parts.append(text)
                text = ""
            parts.append(part)
        size += piece.size
    if text:
        parts.append(text)
    return Cpp(tuple(parts), size, LEVEL[like], sign, operand)


def listed(start: str, items: Iterable[str | Cpp], end: str) -> Cpp:
    """Return items between two strings, separated by commas."""
    pieces: list[str | Cpp] = [start]
    for item in items:
        pieces += (item, ", ")
    return cpp(*pieces[:-1] if len(pieces) > 1 else pieces, end)


def call(function: str, *arguments: str | Cpp) -> Cpp:
    """Return ``f(a, b)``."""
    return listed(f"{function}(", arguments, ")")


def braces(type: str, *items: str | Cpp) -> Cpp:
    """Return ``T{a, b}``; without a type, ``{a, b}``."""
    return listed(f"{type}{{", items, "}")


@cache
def named(text: str) -> Cpp:
    """Return a name, or other C++ that never needs parentheses."""
    return cpp(text, like="name")


@cache
def hole(name: str) -> Cpp:
    """Return the hole for a name."""
    return Cpp((Hole(name),), len(name), LEVEL["name"])


NOTHING = named("")  # of a value that has no C++ of its own


def unwritten(items: Iterable[Value]) -> Cpp:
    """Return the C++ of a tuple: none of its own, but with the size of its items."""
    return NOTHING._replace(size=sum([item.cpp.size + 1 for item in items]))


def operand(part: Cpp, outer: int, right: bool) -> Cpp:
    """Add parentheses if C++ needs them, or gcc warns without."""
    inner = part.level
    bare = inner > outer or (inner == outer and not right and outer in CHAINED)
    return part if bare and (outer, inner) not in WARNED else cpp("(", part, ")")


def binary(sign: str, *operands: Cpp) -> Cpp:
    """Return ``a + b`` for two or more operands."""
    out, outer = operands[0], LEVEL[sign]
    for right in operands[1:]:
        out = cpp(operand(out, outer, False), f" {sign} ", operand(right, outer, True), like=sign)
    return out


def unary(sign: str, part: Cpp) -> Cpp:
    """Return ``!x`` or ``-x``."""
    bare = part.level >= LEVEL["unary"] and part.sign != "-"
    return cpp(sign, *[part] if bare else ["(", part, ")"], like="unary", sign=sign, operand=part)


def ternary(test: Cpp, yes: Cpp, no: Cpp) -> Cpp:
    """Return ``test ? yes : no``."""
    test, yes, no = [operand(part, LEVEL["?"], True) for part in (test, yes, no)]
    return cpp(test, " ? ", yes, " : ", no, like="?")


def present(of: Cpp) -> Cpp:
    """Return the test that an optional is not empty."""
    return cpp(operand(of, LEVEL["unary"], True), ".has_value()")


@dataclass(slots=True)
class Value:
    """A part of a formula: its kind, its C++ and facts about it."""

    kind: ValueKind
    cpp: Cpp
    at: ast.expr
    optional: bool = False  # std::optional
    type: str = ""  # if not the usual type of the kind: int64_t, float, tuple (of arrays)
    const: Any = None  # the value of a literal number, bool or string
    items: Sequence[Value] = ()  # items of a tuple
    count: int | None = None  # number of arrays, if known
    choices: tuple[str, ...] = ()  # possible values of a string
    name: str | None = None  # the identifier, if the part is one
    of: Value | None = None  # the array whose shape, ndim or size it is
    fact: Fact | list[Fact] | None = None  # of an array; of each array of a list, or of all
    cases: tuple[Cpp, Value, Value] | None = None  # a conditional value: test, and both values
    used: tuple[int, int] = (0, 0)  # for an item of a list: its part of Translator.used
    mode: Cpp = NOTHING  # of a union, or its array: the optional string
    states: frozenset[State] = frozenset()  # of a union, whose `cpp` is its optional array
    sources: frozenset[str] | None = None  # of a common dtype: ``promoted``

    @property
    def text(self) -> str:
        """The description of the value in messages."""
        if self.optional:
            return f"{TEXTS[self.kind]} or None"
        if self.const is not None and self.kind in ("int", "str"):
            return f"the {'int' if self.kind == 'int' else 'string'} {cut(repr(self.const))}"
        if self.kind == "arrays" and self.count is not None:
            return f"{self.count} array{'s' * (self.count != 1)}"
        return TEXTS[self.kind]

    @property
    def promoted(self) -> frozenset[str]:
        """The value of ``Expr.promoted``."""
        if self.kind not in ("dtype", "array") or self.optional:
            return frozenset()
        if self.sources is not None:
            return self.sources
        name = self.const or self.name or (self.of and self.of.name)
        return frozenset([name] if name else [])

    @property
    def is_array(self) -> bool:
        """True for an array that is not optional."""
        return self.kind == "array" and not self.optional

    @property
    def is_ints(self) -> bool:
        """True for a sequence of ints in any form that is not optional."""
        if self.kind == "tuple":
            return all(i.kind == "int" and not i.optional for i in self.items)
        return self.kind in ("shape", "ints") and not self.optional

    @property
    def is_arrays(self) -> bool:
        """True for a sequence of arrays in any form."""
        if self.kind == "tuple":
            return bool(self.items) and all(i.is_array for i in self.items)
        return self.kind == "arrays" and not self.optional

    @property
    def length(self) -> int | None:
        """The number of items, if known."""
        return len(self.items) if self.kind == "tuple" else self.count


def cut(text: str) -> str:
    """Shorten a long quotation in a message."""
    return text if len(text) <= 200 else f"{text[:200]}..."


_KINDS: Mapping[Kind, ValueKind] = {
    kind: "ints" if row.slot == "ints1" else row.slot for kind, row in KINDS.items()
}
_LITERALS: Mapping[type, ValueKind] = {bool: "bool", int: "int", float: "float", str: "str"}


def argument(
    type: Type,
    at: ast.expr,
    name: str,
    count: int | None,
    fact: Fact | list[Fact] | None,
    mode: str = "",
) -> Value:
    """Return the value of a name of the scope; ``mode`` is the hole for the string of a union."""
    if type.is_union:
        states = frozenset({*type.choices, PRESENT, *([None] if type.optional else [])})
        found = Value("union", hole(name), at, choices=type.choices, name=name, fact=fact)
        return replace(found, mode=hole(mode), states=states)
    kind = _KINDS[type.kind]
    width = "int64_t" if type.int64 else "float" if type.single else ""
    return Value(
        kind,
        hole(name),
        at,
        type.optional,
        width,
        count=count,
        choices=type.choices,
        name=name,
        fact=fact,
    )


def constant(value: Any, at: ast.expr) -> Value:
    """Return the value of a Python literal: None, bool, number, string, tuple or list."""
    if value is None:
        return Value("none", named("std::nullopt"), at)
    if isinstance(value, tuple | list):
        return Value("tuple", NOTHING, at, items=[constant(v, at) for v in value])
    kind, text = _LITERALS[type(value)], repr(value)
    width = "int64_t" if kind == "int" and not -INT_MAX <= value <= INT_MAX else ""
    if kind == "bool":
        text = text.lower()
    elif kind == "str":
        text = quoted(value)
    elif kind == "float":
        text = text.replace("e-0", "e-").replace("inf", "mlxgen::inf").replace("nan", "mlxgen::nan")
    return Value(kind, _number(text), at, type=width, const=value)


def _number(text: str) -> Cpp:
    """Return the C++ of a literal."""
    negative = text.startswith("-")
    return cpp(text, like="unary", sign="-") if negative else named(text)


def dereferenced(value: Value) -> Value:
    """Dereference an optional value that is known to be present."""
    if value.cpp.level == LEVEL["name"]:
        found = cpp("*", value.cpp, like="unary", sign="*", operand=value.cpp)
    else:
        found = cpp("*(", value.cpp, ")")
    return replace(value, cpp=found, optional=False)


def remaining(value: Value, states: frozenset[State]) -> Value:
    """Return a union of which only ``states`` are left."""
    strings = tuple(choice for choice in value.choices if choice in states)
    if strings and PRESENT in states:
        return replace(value, states=states)
    if not strings and PRESENT in states:
        array = replace(value, kind="array", optional=True, states=frozenset())
        return array if None in states else dereferenced(array)
    if not strings:
        return constant(None, value.at)
    if strings[1:] or None in states:
        string = Value("str", value.mode, value.at, True, choices=strings, name=value.name)
        return string if None in states else dereferenced(string)
    return constant(strings[0], value.at)


def member(of: Cpp, name: str) -> Cpp:
    """Return ``x.name()`` for a name, else ``mlxgen::name(x)``, which reads better than a chain."""
    if of.level == LEVEL["name"]:
        return cpp(of, f".{name}()")
    if of.sign == "*" and of.operand is not None:
        return cpp(of.operand, f"->{name}()")
    return call(f"mlxgen::{name}", of)


# Conversions. Each returns the C++ for a value of a kind that it accepts, or None.

as_is = attrgetter("cpp")


def narrow(value: Value) -> Cpp:
    """Convert an int to a C++ int."""
    return call("mlxgen::to_int", value.cpp) if value.type == "int64_t" else value.cpp


def as_double(value: Value) -> Cpp:
    """Convert any number to a C++ double."""
    if value.const is not None and value.kind == "int":
        return _number(f"{value.const}.0")
    if value.kind == "scalar" and value.cases is not None:  # of numbers of known kinds
        test, yes, no = value.cases
        return ternary(test, as_double(yes), as_double(no))
    plain = value.kind == "float" and value.type != "float"
    return value.cpp if plain else call("static_cast<double>", value.cpp)


def to_float(value: Value) -> Cpp:
    """Convert a number of unknown kind, which may be optional, to a C++ double."""
    if value.cases is not None and not value.optional:
        return as_double(value)
    return call("mlxgen::to_float", value.cpp)


def wide(value: Value) -> Cpp | None:
    """Convert a C++ int to 64 bits; None for constants whose products are small."""
    small = value.const is not None and abs(value.const) < 2**15
    return None if value.type or small else call("int64_t", value.cpp)


def not_negative(value: Value) -> Cpp | None:
    """Accept an int that is not known to be negative."""
    return None if value.const is not None and value.const < 0 else value.cpp


def natural(value: Value) -> Cpp | None:
    """Accept a literal int that is not negative."""
    return None if value.const is None else not_negative(value)


def random_key(value: Value) -> Cpp:
    """Return a key; if there may be none, the next default one in its place."""
    return call("mlxgen::random_key", value.cpp) if value.optional else value.cpp


def fft_norm(value: Value) -> Cpp | None:
    """Convert the normalization mode of a Fourier transform."""
    if value.const is None:
        return call("mlxgen::fft_norm", value.cpp)
    known = value.const in ("backward", "ortho", "forward")
    return cpp(f"mx::fft::FFTNorm::{value.const.title()}") if known else None


# Lists of ints: C++ type, kind with this type, conversion function for other kinds, length.
INT_LISTS: Mapping[str, tuple[str, str, str, int | None]] = {
    "ints": ("std::vector<int>", "ints", "as_ints", None),
    "shape": ("mx::Shape", "shape", "as_shape", None),
    "strides": ("mx::Strides", "", "as_strides", None),
    "pair": ("std::pair<int, int>", "", "as_pair", 2),
    "triple": ("std::tuple<int, int, int>", "", "as_triple", 3),
}


def int_list(slot: str, value: Value, typed: bool = True) -> Cpp | None:
    """Convert ints to one of the types of ``INT_LISTS``; ``typed``: braces name the type."""
    head, same, convert, count = INT_LISTS[slot]
    if value.kind in ("shape", "ints"):
        return value.cpp if value.kind == same else call(f"mlxgen::{convert}", value.cpp)
    if value.kind == "int":  # repeated for all items
        value = Value("tuple", NOTHING, value.at, items=[value] * (count or 1))
    items = value.items
    if count is not None and len(items) == 1 and items[0].kind == "tuple":
        value, items = items[0], items[0].items
    if not value.is_ints or count not in (None, len(items)):
        return None
    return braces(
        head if typed else "", *[i.cpp if slot == "strides" else narrow(i) for i in items]
    )


def pairs(value: Value) -> Cpp | None:
    """Convert a tuple of pairs of ints."""
    items = [v for v in value.items if v.kind in SLOTS["pair"] and not v.optional]
    found = [part for v in items if (part := int_list("pair", v, typed=False)) is not None]
    if not found or len(found) != len(value.items):
        return None
    return braces("std::vector<std::pair<int, int>>", *found)


def constants(slot: str, value: Value) -> Cpp | None:
    """Convert nested lists of numbers to the items of a constant array, and its shape."""
    items, shape = value.items, [len(value.items)]
    while items and all(item.kind == "tuple" for item in items):
        shape.append(len(items[0].items))
        if any(len(item.items) != shape[-1] for item in items):
            return None
        items = [part for item in items for part in item.items]
    found = fit_all(items, slot)
    if not found:
        return None
    extents = [braces("mx::Shape", *map(str, shape))] if shape[1:] else []
    return listed("", [braces("", *found), *extents], "")


def arrays(value: Value) -> Cpp | None:
    """Convert arrays to a std::vector<mx::array>."""
    if value.kind == "arrays":
        return call("mlxgen::as_arrays", value.cpp) if value.type == "tuple" else value.cpp
    if not value.is_arrays and value.items:
        return None
    return braces("std::vector<mx::array>", *[i.cpp for i in value.items])


def vector(slot: str, type: str, value: Value) -> Cpp | None:
    """Convert a tuple to a std::vector of a C++ type, each item as an argument of ``slot``."""
    found = fit_all(value.items, slot)
    return braces(f"std::vector<{type}>", *found) if found is not None else None


def reals(value: Value) -> Cpp | None:
    """Convert floats, but no ints, to a std::vector<double>."""
    only = all(item.kind == "float" for item in value.items)
    return vector("double", "double", value) if only else None


Conversion = Callable[[Value], "Cpp | None"]
Conversions = dict[str, Conversion]


def _lists(slot: str) -> dict[str, Conversions]:
    ways: Conversions = dict.fromkeys(("tuple", "shape", "ints"), partial(int_list, slot))
    return {slot: ways, f"{slot}1": {**ways, "int": ways["tuple"]}}


# The kinds that a slot accepts, with their conversions.
SLOTS: Mapping[str, Conversions] = {
    **{row.slot: {row.slot: as_is} for row in KINDS.values()},
    "floats": {"floats": as_is, "tuple": partial(vector, "double", "double")},
    "reals": {"floats": as_is, "tuple": reals},
    **{slot: {slot: as_is} for slot in ("finfo", "iinfo")},
    "weak": dict.fromkeys(("array", *NUMBERS), as_is),
    "value": {
        "array": as_is,
        **dict.fromkeys(NUMBERS, lambda value: call("mlxgen::scalar", value.cpp)),
    },
    "scalar": dict.fromkeys(NUMBERS, as_is),
    "bits": {"int": as_is, "bool": as_is},
    "number": {"int": as_is, "float": as_is},
    "dynamic": {"scalar": as_is},
    "float": {"int": as_is, "float": as_is, "scalar": to_float},
    "double": dict.fromkeys(("int", "float", "scalar"), as_double),
    "exact": dict.fromkeys(("int", "float"), as_double),
    "real": {"float": as_is},
    "int": {"int": narrow},
    "int32": {"int": lambda value: None if value.type else value.cpp},
    "int64": {"int": as_is},
    "size": {"int": not_negative},
    "natural": {"int": natural},
    "wide": {"int": wide},
    "flag": {"bool": as_is},
    "category": {"dtype": as_is, "category": as_is},
    "fftnorm": {"str": fft_norm},
    "key": {"array": random_key},
    **{name: ways for slot in INT_LISTS for name, ways in _lists(slot).items()},
    **{f"{of}_list": {"tuple": partial(constants, of)} for of in ("bool", "int")},
    "double_list": {"tuple": partial(constants, "exact")},
    "nested": {"nested": as_is, "tuple": partial(vector, "ints", "std::vector<int>")},
    "pairs": {
        **{"tuple": pairs, "pairs": as_is},
        "nested": lambda value: call("mlxgen::as_pairs", value.cpp),
    },
    "arrays": {"tuple": arrays, "arrays": arrays},
    "sequence": {"shape": as_is, "ints": as_is},
    "list": dict.fromkeys(LISTS, as_is),
}
# Slots that are a std::optional if MLX accepts None.
OPTIONAL = {"weak", "int64", *(row.slot for row in KINDS.values())} - {"arrays", "ints1"}


def fit(value: Value, slot: str, optional: bool = False) -> Cpp | None:
    """Convert a value to an argument of a slot; return None if the slot does not accept it."""
    kind = value.kind
    if kind == "none":
        return value.cpp if optional else None
    if value.optional and slot != "key":
        slot = slot.rstrip("1")  # the overload decides between one int and several
        if not optional or slot not in OPTIONAL:
            return None
    way = SLOTS[slot].get(kind)
    return way(value) if way is not None else None


def fit_all(values: Sequence[Value], slot: str) -> list[Cpp] | None:
    """Convert several values; return None if the slot does not accept all."""
    found = [part for value in values if (part := fit(value, slot)) is not None]
    return found if len(found) == len(values) else None


def fit_type(value: Value, type: Type) -> Cpp | None:
    """Convert a value to an operator's argument of ``type``."""
    slot = "int64" if type.int64 else KINDS[type.kind].slot
    if type.length is not None and not value.optional:
        if value.kind == "int":
            return braces("std::vector<int>", *[narrow(value)] * type.length)
        if value.kind == "tuple" and len(value.items) == 1:
            value = replace(value, items=list(value.items) * type.length)
        wrong = value.kind == "tuple" and len(value.items) != type.length > 1
        if wrong and not (type.empty and not value.items):
            return None
    return fit(value, slot, type.optional)
