"""The YAML entry as it is written: one pydantic field per key, and nothing derived.

This is the single description of the file's keys: validation, the JSON Schema for editors
(``mlxgen schema``) and the key reference in the documentation are read off these models.
What the keys mean together is decided in ``check``.
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

Part = Literal["vjp", "jvp", "vmap", "output_shapes", "is_equivalent", "eval_cpu", "eval_gpu"]

# A text that is left empty was forgotten.
Text = Annotated[str, Field(min_length=1)]

# A formula may be written as a bare number (`y: 0`); it reaches the model as its text.
Formula = Annotated[str, Field(json_schema_extra={"type": ["string", "number"]})]


Extents = Annotated[list[Formula], Field(min_length=1, max_length=3)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _whole(value: Any) -> Any:
    """A number that is read as text."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else value


def key(description: str, default: Any = None, **more: Any) -> Any:
    """A key of a mapping; its default is None, that of a key that must be there is ``...``."""
    if isinstance(default, list | dict):  # pydantic's own copies take long
        more |= {"default_factory": default.copy, "json_schema_extra": {"default": default}}
        return Field(description=description, **more)
    return Field(default, description=description, **more)


class Model(BaseModel):
    """Base: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Whole = Annotated[int, BeforeValidator(_whole)]


class TemplateEntry(Model):
    """An integer template parameter of a [[kernel]], and what it is for a call."""

    of: Formula = key("What it has to be at least: a formula of shapes and attributes.", ...)
    values: Annotated[list[Whole], Field(min_length=1)] = key("What it can be, ascending.", ...)


class KernelEntry(Model):
    """A kernel with its launch geometry."""

    kernel: str = key("Name of the hand-written function or [[kernel]].", ...)
    grid: Extents | None = key("Threads along x, y, z (Metal).")
    threadgroup: Extents | None = key("Threads of a threadgroup along x, y, z.")
    constants: dict[str, Formula] = key("Integers passed by parameter name.", {})
    template: dict[str, TemplateEntry] = key("Integer template parameters by name (Metal).", {})
    zero: list[str] = key("Outputs filled with zeros before the launch.", [])


class GradFunction(Model):
    """A hand-written function that gives gradients."""

    function: str = key("C++ function in the hand-written sources.", ...)


class Check(Model):
    """A condition on the arguments, checked when the graph is built."""

    that: Formula = key("Condition on arguments, their shapes and dtypes.", ...)
    otherwise: Text = key("What is wrong if it does not hold.", ..., alias="else")


Number = int | float


class ArraySample(Model):
    """An array argument of a sample: random values in a domain, or given values."""

    shape: list[int] | None = key("Shape; (3, 4) unless given.")
    low: Number = key("Lower end of the domain.", -2.0)
    high: Number = key("Upper end of the domain.", 2.0)
    values: Any = key("Nested lists of numbers instead of random ones.")
    dtype: str | None = key("Dtype if it is not the tested one.")
    away_from: list[Number] = key("Points to keep a distance of 0.1 from.", [])


SampleScalar = bool | int | float | str
SampleValue = ArraySample | SampleScalar | list[ArraySample | SampleScalar]
Sample = dict[str, SampleValue | None]
Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


class OpEntry(Model):
    """One operator."""

    name: str | None = key("C++ name; taken from the signature if absent.")
    signature: str | None = key("Signature in any of three spellings.")
    cpp_signature: str | None = key("Signature in C++ spelling.")
    python_signature: str | None = key("Signature in Python spelling.")
    python_name: str | None = key("Name in Python; `name` if absent.")
    cpp: Text | None = key("Existing C++ function to bind.")
    composite: Formula | None = key("The forward as a formula of MLX ops.")
    dispatch: str | Annotated[dict[Backend, str | KernelEntry], Field(min_length=1)] | None = key(
        "Kernel per backend, or one scalar function for all of them."
    )
    grad: Literal["none"] | dict[str, Formula | GradFunction] | None = key(
        "Gradient per array argument: formula, `none` or `zero`."
    )
    jvp: Literal["elementwise", "linear", "none"] | dict[str, Formula] | None = key(
        "Forward-mode rule; derived from the gradient if absent."
    )
    vmap: Literal["elementwise", "batch", "sequential", "none"] | None = key(
        "Vectorisation rule; elementwise or sequential if absent."
    )
    axes: dict[str, Text] = key(
        "Axes by name, such as `B T D`, of arguments (checked) and outputs (their shapes).", {}
    )
    shape: Formula | Annotated[dict[str, Formula], Field(min_length=1)] | None = key(
        "Output shape, or one per output; makes the kernels non-elementwise."
    )
    dtype: Formula | dict[str, Formula] | None = key(
        "Output dtype, or one per output; the promoted dtype if absent."
    )
    dtypes: Names | dict[str, Names] | None = key(
        "Dtypes or categories allowed, for all arrays or per argument."
    )
    integers: Literal["float32", "keep", "error"] | None = key(
        "What integer inputs become where the kernels take none."
    )
    checks: list[Check] = key("Conditions that raise when they do not hold.", [])
    unused: dict[str, Text] = key("Why an argument or a cotangent is used nowhere.", {})
    doc: str | None = key("Docstring: a line, a blank line, details.")
    args: dict[str, str] = key("One line of documentation per argument.", {})
    returns: str | dict[str, str] | None = key("Documentation of the outputs.")
    module: str | None = key("Submodule path, such as `special`.")
    variants: Annotated[list[Literal["function", "method"]], Field(min_length=1)] = key(
        "`method`: also an mx.array method after install_methods().", ["function"]
    )
    tags: list[Tag] = key("Labels for `--select` and the reference.", [])
    deprecated: Text | None = key("What to use instead.")
    aliases: list[str] = key("Further names in Python.", [])
    samples: Annotated[list[Sample], BeforeValidator(_listed)] = key(
        "Inputs and their domain for the generated checks.", []
    )
    manual: list[Part] = key("Parts written by hand in the csrc sources.", [])


def listed(keys: Iterable[str]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """The names in the keys of a mapping, ``x`` or ``"x, y"``: each with its key and its place."""
    for key in keys:
        end = -1
        for part in key.split(","):
            start, end = end + 1, end + 1 + len(part)
            name = part.strip()
            start += part.find(name)
            yield name, key, (start, start + len(name))


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a whole file: a list of entries."""
    item = OpEntry.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mlxgen operators",
        "type": "array",
        "items": item,
        "$defs": item.pop("$defs"),
    }
