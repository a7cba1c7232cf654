"""The models of the tables of functions: functions.yaml, which explains the terms, and the JSON."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mlxgen.formula.mlx import Degree, DtypeEffect, RankEffect, Trace

Slot = Literal[
    "array",
    "weak",
    "value",
    "arrays",
    "number",
    "double",
    "exact",
    "dynamic",
    "float",
    "real",
    "scalar",
    "bits",
    "int",
    "int32",
    "int64",
    "wide",
    "size",
    "natural",
    "bool",
    "str",
    "flag",
    "dtype",
    "category",
    "finfo",
    "iinfo",
    "fftnorm",
    "shape",
    "shape1",
    "ints",
    "ints1",
    "strides",
    "strides1",
    "sequence",
    "pair",
    "pair1",
    "pairs",
    "triple",
    "triple1",
    "list",
    "floats",
    "reals",
    "bools",
    "optionals",
    "int_list",
    "double_list",
    "bool_list",
    "key",
    "nested",
]
Result = Literal[
    "array",
    "arrays",
    "bool",
    "int",
    "float",
    "scalar",
    "shape",
    "ints",
    "nested",
    "pairs",
    "dtype",
    "finfo",
    "iinfo",
    "category",
    "none",
    "common",
    "same",
    "int64",
]
Kind = Literal["/", "", "k", "*"]
Parameter = tuple[str, Kind, str] | tuple[str, Kind, str, str]
Signature = list[Parameter]
Operation = tuple[list[Slot], Result, str, str]


def is_degree(text: str) -> str:
    """Check a degree: a word, or sums and products of parameters."""
    if not re.fullmatch(r"\w+([*+]\w+)*", text):
        raise ValueError(f"{text!r} is not a degree")
    return text


ResultOfCpp = Literal["array", "arrays", "tuple", "flags", "bool"]


class Strict(BaseModel):
    """A model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Effect(Strict):
    """The facts about a function's result, from those about its operands."""

    rank: RankEffect = ""
    dtype: DtypeEffect = ""
    degree: Degree | Annotated[str, AfterValidator(is_degree)]
    shapeless: Trace = ""
    repeats: bool = False


class Overload(Strict):
    """A C++ overload; its slots are the fields of ``mlxgen.formula.mlx.Slot`` in order."""

    cpp: str = Field(pattern=r"^(mx|mlxgen)::[\w:]+$")
    slots: list[
        tuple[str, Slot]
        | tuple[str, Slot, bool]
        | tuple[str, Slot | Literal[""], bool, str]
        | tuple[str, Slot, bool, str, Literal[0, 1]]
        | tuple[str, Slot, bool, str, None, str]
        | tuple[str, Slot, bool, str, None, str, str]
        | tuple[str, Literal[""]]
    ]


class FromMLX(Strict):
    """The facts about a function that MLX determines."""

    signatures: list[Signature] = []
    result: ResultOfCpp | None = None
    count: int | None = None
    stream: bool = True
    overloads: list[Overload] = []
    method: Signature | None = None


class Record(FromMLX):
    """A function, operator, attribute or name."""

    effect: Effect | None = None
    operations: list[Operation] = []
    python: list[Signature] = []
    loop: list[Signature] = []
    omitted: str | None = None


class WrittenEffect(Effect):
    """The effect of functions."""

    of: list[str]
    wrapped: bool = False


class WrittenOperation(Strict):
    """An operation of functions, operators, attributes or names."""

    of: list[str]
    takes: list[Slot]
    gives: Result
    cpp: str


class WrittenCall(Strict):
    """The parameters of functions with operations."""

    of: list[str]
    kind: Literal["mlx", "python", "loop"]
    signatures: list[str]


class WrittenSlot(Strict):
    """The argument of a parameter in C++, if more than its slot is to be said."""

    slot: Slot
    optional: bool = Field(False, description="It also accepts None.")
    item: Literal[0, 1] | None = Field(None, description="Which item of a pair of lists.")
    like: str = Field("", description="The parameter whose dtype a number has.")
    only: str = Field("", description="The only string that it accepts.")


class WrittenOverload(Strict):
    """A C++ function and the arguments of its parameters."""

    cpp: str = Field(description="In the namespace mx, unless it has mlxgen::.")
    takes: list[
        Annotated[str, Field(description="C++ text.")]
        | Annotated[dict[str, Slot | WrittenSlot | None], Field(min_length=1, max_length=1)]
    ]


class WrittenOverloads(Strict):
    """The C++ functions for a function."""

    result: ResultOfCpp
    count: int | None = Field(None, description="The number of arrays, or of those for a flag.")
    stream: bool = Field(True, description="The C++ function takes a stream.")
    overloads: list[WrittenOverload]


class WrittenSignatures(Strict):
    """The parameters of functions in the headers."""

    of: list[str]
    signatures: list[str]


class Written(Strict):
    """The hand-written table, functions.yaml."""

    effects: list[WrittenEffect]
    operations: list[WrittenOperation]
    calls: list[WrittenCall]
    signatures: dict[str, list[str]]
    overloads: dict[str, WrittenOverloads]
    cpp_names: dict[str, str]
    cpp_only: list[WrittenSignatures]
    strings: dict[str, list[str]]
    omitted: dict[str, list[str]]


class Older(Strict):
    """The differences of an older release from the next newer one."""

    functions: dict[str, FromMLX | None]
    aliases: dict[str, str | None]


class Functions(Strict):
    """The whole table, as mlxgen reads it."""

    mlx: str
    functions: dict[str, Record]
    aliases: dict[str, str]
    older: dict[str, Older]
