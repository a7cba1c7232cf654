"""The keys of a YAML entry: one pydantic field per key, without derived values.

These models are the only description of the keys. Validation, the JSON Schema for editors
(``mlxgen schema``) and the key reference in the documentation are derived from them. ``check``
decides which keys can be combined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ..model.op import Backend

Tag = Literal[
    "elementwise", "reduction", "indexing", "linalg", "nn", "special", "fused", "sampling",
    "internal"
]  # fmt: skip
TAGS: tuple[str, ...] = get_args(Tag)

Variant = Literal["function", "method", "inplace", "out"]
Part = Literal["vjp", "jvp", "vmap", "output_shapes", "is_equivalent", "eval_cpu", "eval_gpu"]

# An empty string is an error, because its text was probably forgotten.
Text = Annotated[str, Field(min_length=1)]

# A formula may be a bare number (`y: 0`); the model receives it as a string.
Formula = Annotated[str, Field(json_schema_extra={"type": ["string", "number"]})]


Extents = Annotated[list[Formula], Field(min_length=1, max_length=3)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _whole(value: Any) -> Any:
    """Convert an integer that is read as a string."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else value


def key(description: str, default: Any = None, **more: Any) -> Any:
    """Declare a key of a mapping; its default is None, or ``...`` for a required key."""
    if isinstance(default, list | dict):  # pydantic's own copies take long
        more |= {"default_factory": default.copy, "json_schema_extra": {"default": default}}
        return Field(description=description, **more)
    return Field(default, description=description, **more)


class Model(BaseModel):
    """The base of all models: unknown keys are errors, and values are not coerced."""

    # Only the validators in use are built.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


Whole = Annotated[int, BeforeValidator(_whole)]
Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


class TemplateEntry(Model):
    """A template parameter of a [[kernel]]: its formula and values, or its dtype."""

    of: Formula | None = key("Lower bound of an int, or a bool: a formula.")
    values: list[Whole] = key("Possible values of an int, ascending.", [])
    dtype: str | None = key("The dtype of a type.")


class KernelEntry(Model):
    """A kernel with its launch geometry."""

    kernel: str = key("Name of the hand-written function or [[kernel]].", ...)
    dtypes: Names | None = key("Dtypes or categories that it computes; all of the entry if absent.")
    grid: Extents | None = key("Threads along x, y, z (Metal).")
    threadgroup: Extents | None = key("Threads of a threadgroup along x, y, z.")
    constants: dict[str, Formula] = key("Integers by the name of a parameter.", {})
    template: dict[str, TemplateEntry] = key("Template parameters by name (Metal).", {})
    zero: list[str] = key("Outputs filled with zeros before the launch.", [])


class GradFunction(Model):
    """A hand-written function that computes gradients."""

    function: str = key("C++ function in the hand-written sources.", ...)


class Check(Model):
    """A condition on the arguments, checked when the graph is built."""

    that: Formula = key("Condition on arguments, their shapes and dtypes.", ...)
    otherwise: Text = key("Error message if the condition is false.", ..., alias="else")


Number = int | float
Bound = Number | Formula


class ArraySample(Model):
    """An array argument of a sample: random values in a domain, or fixed values."""

    shape: list[int] | None = key("Shape; (3, 4) if absent.")
    low: Bound = key("Lower end of the domain: a number, or a formula of shapes and scalars.", -2.0)
    high: Bound = key("Upper end of the domain: a number, or a formula of shapes and scalars.", 2.0)
    values: Any = key("Nested lists of numbers; other sizes get random ones from low to high.")
    dtype: str | None = key("Dtype; the tested one if absent.")
    away_from: list[Number] = key("Points that random values keep a distance of 0.1 from.", [])
    sorted: bool = key("Ascending along the last axis, from low to high.", False)
    distinct: bool = key("No number twice along the last axis.", False)
    any: bool = key("A number other than 0 along each last axis, such as a true one.", False)
    positive_definite: bool = key("Symmetric positive definite matrices, of any size.", False)


SampleScalar = bool | int | float | str
SampleValue = ArraySample | SampleScalar | list[ArraySample | SampleScalar | list[int] | None]
Sample = dict[str, SampleValue | None]


class OpEntry(Model):
    """One operator."""

    name: str | None = key("C++ name; taken from the signature if absent.")
    signature: str | None = key("Signature in any of three spellings.")
    cpp_signature: str | None = key("Signature in C++ spelling.")
    python_signature: str | None = key("Signature in Python spelling.")
    python_name: str | None = key("Name in Python; `name` if absent. Overloads share it.")
    cpp: Text | None = key("Existing C++ function to bind.")
    let: dict[str, Formula] = key("Subexpressions by name, which the entry's formulas use.", {})
    composite: Formula | None = key("Forward computation as a formula of MLX ops.")
    dispatch: str | Annotated[dict[Backend, str | KernelEntry], Field(min_length=1)] | None = key(
        "Kernel per backend, or one scalar function for all of them."
    )
    grad: Literal["none", "todo"] | dict[str, Formula | GradFunction] | None = key(
        "Gradient per array argument: formula, `none` or `zero`. `todo`: none yet."
    )
    jvp: Literal["elementwise", "linear", "none"] | dict[str, Formula] | None = key(
        "Forward-mode rule; derived from the gradient if absent."
    )
    vmap: Literal["elementwise", "batch", "sequential", "none"] | None = key(
        "Vectorization rule; elementwise or sequential if absent."
    )
    axes: dict[str, Text] = key(
        "Named axes such as `B T D`: checked for arguments, the shapes of outputs.", {}
    )
    shape: Formula | Annotated[dict[str, Formula], Field(min_length=1)] | None = key(
        "Output shape, or one per output; makes kernels non-elementwise, describes a composite."
    )
    dtype: Formula | dict[str, Formula] | None = key(
        "Output dtype, or one per output; the promoted dtype if absent. Describes a composite."
    )
    init: dict[str, Formula] = key("Number that fills an output before its kernel runs.", {})
    donate: dict[str, Text] = key(
        "Array whose values and memory an output takes over; a copy if the memory is in use.", {}
    )
    strided: list[str] = key("Arrays that kernels receive with any strides, without a copy.", [])
    dtypes: (
        Names | dict[str, Names] | Annotated[list[dict[str, Names]], Field(min_length=1)] | None
    ) = key("Dtypes or categories allowed, for all arrays, per argument, or per group of them.")
    integers: Literal["float32", "keep", "error"] | None = key(
        "Conversion of integer inputs if no kernel supports integers."
    )
    checks: list[Check] = key("Conditions that raise an error if they are false.", [])
    unused: dict[str, Text] = key("Reasons for unused arguments, cotangents and outputs.", {})
    doc: str | None = key("Docstring: a line, an empty line, details.")
    args: dict[str, str] = key("One line of documentation per argument.", {})
    returns: str | dict[str, str] | None = key("Documentation of the outputs.")
    module: str | None = key("Submodule path, such as `special`.")
    variants: Annotated[list[Variant], Field(min_length=1)] = key(
        "`method`: also an mx.array method after install_methods(). `inplace`: also `name_`, which "
        "gives its argument the new value. `out`: also an argument for the array that gets it.",
        ["function"],
    )
    tags: list[Tag] = key("Labels for `--select` and the reference.", [])
    deprecated: Text | None = key("Replacement of a deprecated operator.")
    aliases: list[str] = key("Further names in Python; a dotted one names its submodule.", [])
    samples: Annotated[list[Sample], BeforeValidator(_listed)] = key(
        "Inputs and their domain for the generated checks.", []
    )
    manual: list[Part] = key("Parts written by hand in the csrc sources.", [])


def listed(keys: Iterable[str]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the names in the keys of a mapping, ``x`` or ``"x, y"``, with key and location."""
    for key in keys:
        end = -1
        for part in key.split(","):
            start, end = end + 1, end + 1 + len(part)
            name = part.strip()
            start += part.find(name)
            yield name, key, (start, start + len(name))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a whole file: a list of entries."""
    item = OpEntry.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mlxgen operators",
        "type": "array",
        "items": item,
        "$defs": item.pop("$defs"),
    }
