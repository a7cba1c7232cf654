"""The schema of the table of functions; tools/functions.txt explains the terms."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

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


def is_overload(text: str) -> str:
    """Check an overload, ``sum(a:array, axis:ints)``, with valid slots."""
    match = re.fullmatch(r"[\w:]+\((.+)\)", text)
    for slot in match[1].split(", ") if match else [""]:
        if slot.startswith("="):
            continue
        parts = re.fullmatch(r"\w+(?:\.[01])?:(?:(\w+?)(?:@\w+)?\??|'\w+'|)", slot)
        if not parts or parts[1] not in (None, *get_args(Slot)):
            raise ValueError(f"{slot!r} is not a slot")
    return text


def is_degree(text: str) -> str:
    """Check a degree: a word, or sums and products of parameters."""
    if not re.fullmatch(r"\w+([*+]\w+)*", text):
        raise ValueError(f"{text!r} is not a degree")
    return text


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


class FromMLX(Strict):
    """The facts about a function that MLX determines."""

    signatures: list[Signature] = []
    result: str | None = Field(None, pattern=r"^((array|arrays|tuple|flags)(:[1-9])?|bool)!?$")
    overloads: list[Annotated[str, AfterValidator(is_overload)]] = []
    method: Signature | None = None


class Record(FromMLX):
    """A function, operator, attribute or name."""

    effect: Effect | None = None
    operations: list[Operation] = []
    python: list[Signature] = []
    loop: list[Signature] = []
    omitted: str | None = None


class Older(Strict):
    """The differences of an older release from the next newer one."""

    functions: dict[str, FromMLX | None]
    aliases: dict[str, str | None]


class Functions(Strict):
    """The whole table."""

    format: list[str]
    mlx: str
    functions: dict[str, Record]
    aliases: dict[str, str]
    older: dict[str, Older]
