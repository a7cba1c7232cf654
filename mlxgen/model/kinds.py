"""The kinds of arguments, and how C++, Python, MLX's own functions and kernels call each.

The one table of them: whoever needs a column takes it from ``KINDS``. Elements of arrays are in
dtypes.py.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class Kind(enum.Enum):
    """What an argument is; the value is how messages call it."""

    ARRAY = "array"
    ARRAYS = "list of arrays"
    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    STR = "string"
    ENUM = "enumerated string"
    INTS = "list of ints"
    SHAPE = "shape"
    AXES = "axes"
    DTYPE = "dtype"

    __hash__ = object.__hash__  # by identity: Enum's own is written in Python


class Spelling(NamedTuple):
    """What a kind is called. Kernels take the kinds that have ``scalars`` and ``metal``."""

    cpp: str  # in generated C++
    python: str  # in annotations; {}: the strings of an enumerated one
    slot: str  # in the table of MLX's functions
    by_value: bool = False  # how C++ passes it
    scalars: tuple[str, ...] = ()  # types of a CPU kernel's parameter; the first is the usual one
    metal: Mapping[str, str] = {}  # the same on Metal: type -> C++'s


# Metal's integers, and C++'s of the same width.
METAL_INTS: Mapping[str, str] = {
    **dict.fromkeys(("int", "int32_t"), "int"),
    **dict.fromkeys(("uint", "uint32_t"), "uint32_t"),
    **dict.fromkeys(("int64_t", "long"), "int64_t"),
    **dict.fromkeys(("size_t", "uint64_t", "ulong"), "uint64_t"),
}
_SIGNED = {metal: cpp for metal, cpp in METAL_INTS.items() if not cpp.startswith("u")}

KINDS: Mapping[Kind, Spelling] = {
    Kind.ARRAY: Spelling("mx::array", "array", "array"),
    Kind.ARRAYS: Spelling("std::vector<mx::array>", "list[array]", "arrays"),
    Kind.FLOAT: Spelling(
        "double", "float", "float", True, ("T", "float", "double"), {"float": "float"}
    ),
    Kind.INT: Spelling("int", "int", "int", True, ("int", "int64_t"), _SIGNED),
    Kind.BOOL: Spelling("bool", "bool", "bool", True, ("bool",), {"bool": "bool"}),
    Kind.STR: Spelling("std::string", "str", "str"),
    # Kernels get the index of the choice.
    Kind.ENUM: Spelling("std::string", "Literal[{}]", "str", False, ("int",), METAL_INTS),
    Kind.INTS: Spelling("std::vector<int>", "Sequence[int]", "ints"),
    Kind.SHAPE: Spelling("mx::Shape", "Sequence[int]", "shape"),
    Kind.AXES: Spelling("std::vector<int>", "int | Sequence[int]", "ints1"),
    Kind.DTYPE: Spelling("mx::Dtype", "Dtype", "dtype", True),
}

# The C++ types that are passed by value; all others by const reference.
BY_VALUE = frozenset({"float", "int64_t"} | {k.cpp for k in KINDS.values() if k.by_value})
