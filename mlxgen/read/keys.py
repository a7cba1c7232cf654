"""The YAML entry as it is written: one pydantic field per key, and nothing derived.

This is the single description of the file's keys: validation, the JSON Schema for editors
(``mlxgen schema``) and the key reference in the documentation are read off these models.
What the keys mean together is decided in ``resolve``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..diagnostics import Diagnostics, did_you_mean, suggest
from .yaml import TYPED_KEYS, Entry

Tag = Literal[
    "elementwise", "reduction", "indexing", "linalg", "nn", "special", "fused", "sampling",
    "experimental", "internal"
]  # fmt: skip
TAGS: tuple[str, ...] = get_args(Tag)
YamlPath = tuple[str | int, ...]

Part = Literal["vjp", "jvp", "vmap", "output_shapes", "is_equivalent", "eval_cpu", "eval_gpu"]
Backend = Literal["cpu", "metal"]

# A text that is left empty was forgotten.
Text = Annotated[str, Field(min_length=1)]

# A formula may be written as a bare number (`y: 0`); it reaches the model as its text.
Formula = Annotated[str, Field(json_schema_extra={"type": ["string", "number"]})]


Extents = Annotated[list[Formula], Field(min_length=1, max_length=3)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _whole(value: Any) -> Any:
    """A number that is read as text."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value) else value


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


def validate(
    entry: Entry, op: str | None, diags: Diagnostics
) -> tuple[OpEntry | None, frozenset[str]]:
    """The entry's values as a model, and the keys that are left out of it.

    A key in which something is wrong is left out, so that the others are looked at all the same;
    so is a key without a value, which was reported when the file was read.
    """
    data = {key: value for key, value in entry.data.items() if value is not None}
    left_out = set(entry.data) - set(data)
    try:
        return OpEntry.model_validate(data), frozenset(left_out)
    except ValidationError as error:
        found = _by_place(error, data)
    for path, wrong in found.items():
        left_out.add(str(path[0]))
        if "extra_forbidden" in wrong and len(path) == 1:  # nor is the key missing that was meant
            left_out.add(suggest(str(path[0]), _keys_at(path)) or "")
        value = _at(data, path)
        if value is not None or path[0] in TYPED_KEYS:  # else it was said when the file was read
            code, message, help = _explain(path, wrong, value)
            place = path[:-1] if "missing" in wrong else path
            span = entry.span(place, key=code in ("MG101", "MG104"))
            diags.error(code, message, span, help=help, op=op)
    data = {key: value for key, value in data.items() if key not in left_out}
    return OpEntry.model_validate(data), frozenset(left_out)


# -------------------------------------------------------------------------------------------------
# What is wrong, in the words of the file: pydantic's errors are about Python's types
# -------------------------------------------------------------------------------------------------

_KINDS = {
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "bool_type": "a boolean",
    "int_type": "a whole number",
    "float_type": "a number",
}
_MODELS: dict[str, type[Model]] = {
    "dispatch": KernelEntry,
    "grad": GradFunction,
    "checks": Check,
    "samples": ArraySample,
}
_FORMULAS = frozenset({"composite", "shape", "dtype", "grad", "jvp", "checks"})
_FORMS: dict[str | int, str] = {
    "checks": "[{that: x.ndim == 2, else: x must have 2 axes}]",
    "unused": "{x: why it is used nowhere}",
    "axes": "{x: B T D}",
    "args": "{x: what it is}",
}
_NOWHERE = object()
_Wrong = dict[str, Any]  # pydantic's errors, by type


def _by_place(error: ValidationError, data: Any) -> dict[YamlPath, _Wrong]:
    """What pydantic found wrong at each place.

    Of a value that may have several forms, it says what is wrong with each. Of interest is the form
    that fits best, whose errors are the innermost.
    """
    found: dict[YamlPath, _Wrong] = {}
    for wrong in error.errors():
        path: YamlPath = ()
        for step in wrong["loc"]:
            if _at(data, (*path, step)) is not _NOWHERE:  # or it says which form is meant
                path = (*path, step)
        if wrong["type"] == "missing":
            path = (*path, wrong["loc"][-1])
        found.setdefault(path, {})[wrong["type"]] = wrong
    outer = {path[:length] for path in found for length in range(len(path))}
    # Beside a key that is not known, none is missing: it is there, misspelt.
    unknown = {path[:-1] for path, wrong in found.items() if "extra_forbidden" in wrong}
    return {
        path: wrong
        for path, wrong in found.items()
        if path not in outer and not ("missing" in wrong and path[:-1] in unknown)
    }


def _at(value: Any, path: YamlPath) -> Any:
    """What is at a path."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step in range(len(value)):
            value = value[int(step)]
        else:
            return _NOWHERE
    return value


def _keys_at(path: YamlPath) -> list[str]:
    """The keys of the mapping that has the one at ``path``."""
    model = OpEntry if len(path) == 1 else _MODELS[str(path[0])]
    model = TemplateEntry if "template" in path[:-2] else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(path: YamlPath, wrong: _Wrong, value: Any) -> tuple[str, str, str | None]:
    """Code, message and help for what is wrong at a place."""
    last, where = str(path[-1]), _where(path)
    is_item = isinstance(path[-1], int)
    if "missing" in wrong:
        return "MG103", f"{_where(path[:-1])} needs a key '{last}'", None
    if "extra_forbidden" in wrong:
        known = _keys_at(path)
        near = did_you_mean(last, known)
        help = None if near else f"keys here are: {', '.join(known)}"
        return "MG101", f"unknown key '{last}'{near}", help
    if "string_too_short" in wrong:
        return "MG106", f"{where} is empty", "give it a value, or remove it"
    if "too_short" in wrong:
        return "MG106", f"{where} needs at least one item", None
    if "too_long" in wrong:
        most = wrong["too_long"]["ctx"]["max_length"]
        return "MG106", f"{where} needs at most {most} items", None
    if literal := wrong.get("literal_error"):
        words = re.findall(r"'(.*?)'", literal["ctx"]["expected"])
        if literal["loc"][-1] == "[key]":
            message = f"unknown backend '{last}'" + did_you_mean(last, words)
            return "MG104", message, f"backends are: {', '.join(words)}"
        message = f"{where} cannot {'have' if is_item else 'be'} {_what(value)}"
        help = f"{'one of: ' if len(words) > 1 else 'write '}{', '.join(words)}"
        if "dict_type" in wrong:
            help += ", or a mapping of arguments to formulas"
        if isinstance(value, str):
            return "MG105", message + did_you_mean(value, words), help
        return "MG102", message, help
    kinds = list(dict.fromkeys(kind for name, kind in _KINDS.items() if name in wrong))
    if "float_type" in wrong:
        kinds.remove("a whole number")
    help = None
    if last == "deprecated":
        help = "say what to use instead"
    elif isinstance(value, list) and path[0] in _FORMULAS:
        help = "a formula that begins with a bracket stands in quotes"
    elif path[0] in _FORMS and len(path) - is_item == 1:
        help = f"write {_FORMS[path[0]]}"
    elif kinds == ["a list"] and str(value)[:1] == "(":
        help = "a list stands in [ and ]"
    elif kinds == ["a list"] and re.fullmatch(r"(?!true|false)[\w., -]+", str(value)):
        help = None if last in _MODELS else f"write [{value}]"
    message = f"{'every item of ' * is_item}{where} must be {' or '.join(kinds)}"
    return "MG102", f"{message}, not {_what(value)}", help


def _where(path: YamlPath) -> str:
    return f"'{'.'.join(part for part in path if isinstance(part, str))}'"


def _what(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "empty (null)" if value is None else f"the boolean {str(value).lower()}"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"'{value}'" if isinstance(value, str) else f"the number {value}"


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
