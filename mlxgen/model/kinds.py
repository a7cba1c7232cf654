"""The kinds of arguments, and their types in C++, Python, MLX's functions and kernels.

``KINDS`` is the only table of these types. dtypes.py has the types of array elements.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from .cpp import ARRAY, ARRAYS, BOOL, DOUBLE, ELEMENT, FLOAT, INT, INT64, NUMBER, CppType


class Kind(enum.Enum):
    """The kind of an argument; the value is its name in messages."""

    ARRAY = "array"
    ARRAYS = "list of arrays"
    OPTIONALS = "list of optional arrays"
    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    NUMBER = "number"
    STR = "string"
    ENUM = "enumerated string"
    INTS = "list of ints"
    FLOATS = "list of floats"
    BOOLS = "list of bools"
    NESTED = "list of lists of ints"
    SHAPE = "shape"
    AXES = "axes"
    DTYPE = "dtype"

    __hash__ = object.__hash__  # by identity: Enum's own is written in Python


class Spelling(NamedTuple):
    """The types of a kind. Kernels support kinds with ``scalars`` and ``metal``."""

    cpp: CppType
    python: str  # in annotations; {}: the strings of an enumerated string
    slot: str  # in the table of MLX's functions
    by_value: bool = False  # C++ passes it by value
    scalars: tuple[CppType, ...] = ()  # for parameters of CPU kernels; the first is the usual one
    metal: tuple[CppType, ...] = ()  # for parameters of Metal kernels


# For each kind, the other kinds that accept all of its values.
WIDER: Mapping[Kind, tuple[Kind, ...]] = {
    Kind.BOOL: (Kind.INT, Kind.FLOAT, Kind.NUMBER, Kind.ARRAY),
    Kind.INT: (Kind.FLOAT, Kind.NUMBER, Kind.ARRAY, Kind.AXES),
    Kind.FLOAT: (Kind.NUMBER, Kind.ARRAY),
    Kind.NUMBER: (Kind.ARRAY,),
    Kind.ENUM: (Kind.STR,),
    Kind.INTS: (Kind.SHAPE, Kind.AXES, Kind.FLOATS),
    Kind.SHAPE: (Kind.INTS, Kind.AXES, Kind.FLOATS),
    Kind.ARRAYS: (Kind.OPTIONALS,),
}

# Metal's integers, by the first name in METAL_TYPES, and the C++ integers of the same width.
METAL_INTS: Mapping[str, str] = {
    "int": "int",
    "uint": "uint32_t",
    "int64_t": "int64_t",
    "uint64_t": "uint64_t",
}


def _list(of: CppType) -> CppType:
    return CppType("vector", "std", (of,))


_STRING, _INTS = CppType("string", "std"), _list(INT)
KINDS: Mapping[Kind, Spelling] = {
    Kind.ARRAY: Spelling(ARRAY, "array", "array"),
    Kind.ARRAYS: Spelling(ARRAYS, "list[array]", "arrays"),
    # Not an input of a primitive: composites and bound functions only.
    Kind.OPTIONALS: Spelling(
        _list(CppType("optional", "std", (ARRAY,))), "Sequence[array | None]", "optionals"
    ),
    Kind.FLOAT: Spelling(DOUBLE, "float", "float", True, (ELEMENT, FLOAT, DOUBLE), (FLOAT,)),
    Kind.INT: Spelling(INT, "int", "int", True, (INT, INT64), (INT, INT64)),
    Kind.BOOL: Spelling(BOOL, "bool", "bool", True, (BOOL,), (BOOL,)),
    # A number that remembers whether it is a bool, an int or a float; kernels receive a float.
    Kind.NUMBER: Spelling(
        NUMBER, "int | float", "scalar", True, (ELEMENT, FLOAT, DOUBLE), (FLOAT,)
    ),
    Kind.STR: Spelling(_STRING, "str", "str"),
    # Kernels receive the index of the choice.
    Kind.ENUM: Spelling(
        _STRING, "Literal[{}]", "str", False, (INT,), tuple(map(CppType, METAL_INTS))
    ),
    Kind.INTS: Spelling(_INTS, "Sequence[int]", "ints"),
    Kind.FLOATS: Spelling(_list(DOUBLE), "Sequence[float]", "floats"),
    Kind.BOOLS: Spelling(_list(BOOL), "Sequence[bool]", "bools"),
    Kind.NESTED: Spelling(_list(_INTS), "Sequence[Sequence[int]]", "nested"),
    Kind.SHAPE: Spelling(CppType("Shape", "mlx"), "Sequence[int]", "shape"),
    Kind.AXES: Spelling(_INTS, "int | Sequence[int]", "ints1"),
    Kind.DTYPE: Spelling(CppType("Dtype", "mlx"), "Dtype", "dtype", True),
}

REAL = (Kind.FLOAT, Kind.NUMBER)  # kernels receive a float

# The C++ types that are passed by value; all others are passed by const reference.
BY_VALUE = frozenset({FLOAT, INT64, *(k.cpp for k in KINDS.values() if k.by_value)})
