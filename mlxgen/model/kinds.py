"""The kinds of arguments: one table of what each accepts, and how each language spells it.

``KINDS`` is the only table of kinds in the core; the languages of plug-ins have a column of their
own (plugins/languages/c.py). dtypes.py has the types of array elements.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal, NamedTuple

from .cpp import ARRAY, ARRAYS, BOOL, DOUBLE, ELEMENT, FLOAT, INT, INT64, NUMBER, CppType


class Kind(enum.Enum):
    """The kind of an argument; the value is its key in ``ops.json``, which never changes."""

    ARRAY = "array"
    ARRAYS = "arrays"
    OPTIONALS = "optionals"
    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    NUMBER = "number"
    STR = "str"
    ENUM = "enum"
    INTS = "ints"
    FLOATS = "floats"
    BOOLS = "bools"
    NESTED = "nested"
    SHAPE = "shape"
    AXES = "axes"
    DTYPE = "dtype"

    __hash__ = object.__hash__  # by identity: Enum's own is written in Python

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        """Find a kind by its name in messages, which older tables contain."""
        return next((kind for kind, row in KINDS.items() if row.label == value), None)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return KINDS[self].label


# Kinds of values in formulas: those of arguments, and others that only formulas have.
ValueKind = Literal[
    "array", "arrays", "optionals", "union", "none", "str", "dtype", "category", "finfo", "iinfo",
    "int", "float", "bool", "scalar", "shape", "ints", "floats", "bools", "nested", "pairs",
    "tuple", "slice", "ellipsis", "truth",
]  # fmt: skip


class Row(NamedTuple):
    """The facts about a kind. Kernels support kinds with ``scalars`` and ``metal``."""

    label: str  # in messages
    cpp: CppType
    python: str  # in annotations; {}: the strings of an enumerated string
    slot: ValueKind | Literal["ints1"]  # in the table of MLX's functions
    accepts: str  # the kinds of Python values that need no conversion; `empty` is an empty list
    words: tuple[str, str, str] = ("", "", "")  # in signatures in C++, Python and torch
    wider: tuple[Kind, ...] = ()  # the other kinds that accept all of its values
    item: Kind | None = None  # of a list of attributes
    values: tuple[type, ...] = ()  # of defaults and samples, other than lists
    bound: str = ""  # the parameter of the function that Python calls; empty: the C++ type
    by_value: bool = False  # C++ passes it by value
    scalars: tuple[CppType, ...] = ()  # for parameters of CPU kernels; the first is the usual one
    metal: tuple[CppType, ...] = ()  # for parameters of Metal kernels


# Metal's integers, by the first name in METAL_TYPES, and the C++ integers of the same width.
METAL_INTS: Mapping[str, str] = {
    "int": "int",
    "uint": "uint32_t",
    "int64_t": "int64_t",
    "uint64_t": "uint64_t",
}
# Metal's floating types, with their C++ types.
METAL_FLOATS: Mapping[str, str] = {
    "float": "float",
    "half": "mx::float16_t",
    "bfloat": "mx::bfloat16_t",
}


def _list(of: CppType) -> CppType:
    return CppType("vector", "std", (of,))


_STRING, _INTS = CppType("string", "std"), _list(INT)
KINDS: Mapping[Kind, Row] = {
    Kind.ARRAY: Row(
        label="array",
        cpp=ARRAY,
        python="array",
        words=("array", "array", "Tensor array"),
        slot="array",
        accepts="array bool int float",
        values=(bool, int, float),  # defaults of arrays are numbers
        bound="const mlxgen::ArrayArg&",
    ),
    Kind.ARRAYS: Row(
        label="list of arrays",
        cpp=ARRAYS,
        python="list[array]",
        slot="arrays",
        accepts="arrays ints empty",
        wider=(Kind.OPTIONALS,),
        bound="const std::vector<mlxgen::ArrayArg>&",
    ),
    # Not an input of a primitive: composites and bound functions only.
    Kind.OPTIONALS: Row(
        label="list of optional arrays",
        cpp=_list(CppType("optional", "std", (ARRAY,))),
        python="Sequence[array | None]",
        slot="optionals",
        accepts="arrays optionals empty",
        bound="const std::vector<std::optional<mlxgen::ArrayArg>>&",
    ),
    Kind.FLOAT: Row(
        label="float",
        cpp=DOUBLE,
        python="float",
        words=("double", "float", "float"),
        slot="float",
        accepts="float",
        wider=(Kind.NUMBER, Kind.ARRAY),
        values=(int, float),
        by_value=True,
        scalars=(ELEMENT, FLOAT, DOUBLE),
        metal=tuple(map(CppType, METAL_FLOATS)),
    ),
    Kind.INT: Row(
        label="int",
        cpp=INT,
        python="int",
        words=("int int32_t", "int", "int SymInt"),
        slot="int",
        accepts="int",
        wider=(Kind.FLOAT, Kind.NUMBER, Kind.ARRAY, Kind.AXES),
        values=(int,),
        bound="const mlxgen::IntArg&",
        by_value=True,
        scalars=(INT, INT64),
        metal=tuple(map(CppType, METAL_INTS)),
    ),
    Kind.BOOL: Row(
        label="bool",
        cpp=BOOL,
        python="bool",
        words=("bool", "bool", "bool"),
        slot="bool",
        accepts="bool",
        wider=(Kind.INT, Kind.FLOAT, Kind.NUMBER, Kind.ARRAY),
        values=(bool,),
        by_value=True,
        scalars=(BOOL,),
        metal=(BOOL,),
    ),
    # A number that remembers whether it is a bool, an int or a float; kernels receive a float.
    Kind.NUMBER: Row(
        label="number",
        cpp=NUMBER,
        python="int | float",
        words=("mlxgen::Scalar Scalar", "", "Scalar"),
        slot="scalar",
        accepts="bool int float",
        wider=(Kind.ARRAY,),
        values=(bool, int, float),
        bound="const mlxgen::NumberArg&",
        by_value=True,
        scalars=(ELEMENT, FLOAT, DOUBLE),
        metal=tuple(map(CppType, METAL_FLOATS)),
    ),
    Kind.STR: Row(
        label="string",
        cpp=_STRING,
        python="str",
        words=("std::string", "str", "str"),
        slot="str",
        accepts="str",
        values=(str,),
    ),
    # Kernels receive the index of the choice.
    Kind.ENUM: Row(
        label="enumerated string",
        cpp=_STRING,
        python="Literal[{}]",
        slot="str",
        accepts="str",
        wider=(Kind.STR,),
        values=(str,),
        scalars=(INT,),
        metal=tuple(map(CppType, METAL_INTS)),
    ),
    Kind.INTS: Row(
        label="list of ints",
        cpp=_INTS,
        python="Sequence[int]",
        slot="ints",
        accepts="ints empty",
        wider=(Kind.SHAPE, Kind.AXES, Kind.FLOATS),
        item=Kind.INT,
    ),
    Kind.FLOATS: Row(
        label="list of floats",
        cpp=_list(DOUBLE),
        python="Sequence[float]",
        slot="floats",
        accepts="floats empty",
        item=Kind.FLOAT,
    ),
    Kind.BOOLS: Row(
        label="list of bools",
        cpp=_list(BOOL),
        python="Sequence[bool]",
        slot="bools",
        accepts="bools empty",
        item=Kind.BOOL,
    ),
    Kind.NESTED: Row(
        label="list of lists of ints",
        cpp=_list(_INTS),
        python="Sequence[Sequence[int]]",
        slot="nested",
        accepts="nested empty",
        item=Kind.INTS,
    ),
    Kind.SHAPE: Row(
        label="shape",
        cpp=CppType("Shape", "mlx"),
        python="Sequence[int]",
        words=("Shape", "shape", "shape"),
        slot="shape",
        accepts="ints empty",
        wider=(Kind.INTS, Kind.AXES, Kind.FLOATS),
        item=Kind.INT,
        bound="const std::vector<mlxgen::IntArg>&",
    ),
    Kind.AXES: Row(
        label="axes",
        cpp=_INTS,
        python="int | Sequence[int]",
        words=("axes", "axes", "axes"),
        slot="ints1",
        accepts="ints empty int none",
        item=Kind.INT,
        bound="const mlxgen::AxesArg&",
    ),
    Kind.DTYPE: Row(
        label="dtype",
        cpp=CppType("Dtype", "mlx"),
        python="Dtype",
        words=("Dtype", "Dtype dtype", "ScalarType Dtype"),
        slot="dtype",
        accepts="dtype",
        values=(str,),
        by_value=True,
    ),
}

REAL = (Kind.FLOAT, Kind.NUMBER)  # kernels receive a float

# The C++ types that are passed by value; all others are passed by const reference.
BY_VALUE = frozenset({FLOAT, INT64, *(row.cpp for row in KINDS.values() if row.by_value)})
