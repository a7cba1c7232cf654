"""The YAML entry as it is written: one pydantic field per key, and nothing derived.

This is the single description of the file's keys: validation, the JSON Schema for editors
(``mlxgen schema``) and the key reference in the documentation are read off these models.
What the keys mean together is decided in ``resolve``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)
from pydantic import ValidationError as PydanticError

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
Text = Annotated[StrictStr, Field(min_length=1)]

# A formula may be written as a bare number (`y: 0`); it reaches the model as its text.
Formula = Annotated[StrictStr, Field(json_schema_extra={"type": ["string", "number"]})]


Extents = Annotated[list[Formula], Field(min_length=1, max_length=3)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def key(description: str, default: Any = None, **more: Any) -> Any:
    """A key of a mapping; its default is None, that of a key that must be there is ``...``."""
    return Field(default, description=description, **more)


class Model(BaseModel):
    """Base: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelEntry(Model):
    """A kernel with its launch geometry."""

    kernel: StrictStr = key("Name of the hand-written function or [[kernel]].", ...)
    grid: Extents | None = key("Threads along x, y, z (Metal).")
    threadgroup: Extents | None = key("Threads of a threadgroup along x, y, z.")
    constants: dict[str, Formula] = key("Integers passed by parameter name.", {})
    zero: list[StrictStr] = key("Outputs filled with zeros before the launch.", [])


class GradFunction(Model):
    """A hand-written function that gives gradients."""

    function: StrictStr = key("C++ function in the hand-written sources.", ...)


class Check(Model):
    """A condition on the arguments, checked when the graph is built."""

    that: Formula = key("Condition on arguments, their shapes and dtypes.", ...)
    otherwise: Text = key("What is wrong if it does not hold.", ..., alias="else")


Number = StrictInt | StrictFloat


class ArraySample(Model):
    """An array argument of a sample: random values in a domain, or given values."""

    shape: list[StrictInt] | None = key("Shape; (3, 4) unless given.")
    low: Number = key("Lower end of the domain.", -2.0)
    high: Number = key("Upper end of the domain.", 2.0)
    values: Any = key("Nested lists of numbers instead of random ones.")
    dtype: StrictStr | None = key("Dtype if it is not the tested one.")
    away_from: list[Number] = key("Points to keep a distance of 0.1 from.", [])


SampleScalar = StrictBool | StrictInt | StrictFloat | StrictStr
SampleValue = ArraySample | SampleScalar | list[ArraySample | SampleScalar]
Sample = dict[str, SampleValue | None]
Names = Annotated[list[StrictStr], BeforeValidator(_listed), Field(min_length=1)]


class OpEntry(Model):
    """One operator."""

    name: StrictStr | None = key("C++ name; taken from the signature if absent.")
    signature: StrictStr | None = key("Signature in any of three spellings.")
    cpp_signature: StrictStr | None = key("Signature in C++ spelling.")
    python_signature: StrictStr | None = key("Signature in Python spelling.")
    python_name: StrictStr | None = key("Name in Python; `name` if absent.")
    cpp: Text | None = key("Existing C++ function to bind.")
    composite: Formula | None = key("The forward as a formula of MLX ops.")
    dispatch: (
        StrictStr | Annotated[dict[Backend, StrictStr | KernelEntry], Field(min_length=1)] | None
    ) = key("Kernel per backend, or one scalar function for all of them.")
    grad: Literal["none"] | dict[str, Formula | GradFunction] | None = key(
        "Gradient per array argument: formula, `none` or `zero`."
    )
    jvp: Literal["elementwise", "linear", "none"] | dict[str, Formula] | None = key(
        "Forward-mode rule; derived from the gradient if absent."
    )
    vmap: Literal["elementwise", "batch", "sequential", "none"] | None = key(
        "Vectorisation rule; elementwise or sequential if absent."
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
    doc: StrictStr | None = key("Docstring: a line, a blank line, details.")
    args: dict[str, StrictStr] = key("One line of documentation per argument.", {})
    returns: StrictStr | dict[str, StrictStr] | None = key("Documentation of the outputs.")
    module: StrictStr | None = key("Submodule path, such as `special`.")
    variants: Annotated[list[Literal["function", "method"]], Field(min_length=1)] = key(
        "`method`: also an mx.array method after install_methods().", ["function"]
    )
    tags: list[Tag] = key("Labels for `--select` and the reference.", [])
    deprecated: Text | None = key("What to use instead.")
    aliases: list[StrictStr] = key("Further names in Python.", [])
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
    except PydanticError:
        pass
    for problem in _of_model(data, OpEntry, ()):
        left_out.add(str(problem.path[0]))
        if problem.code:
            span = entry.span(problem.path, key=problem.at_key)
            diags.error(problem.code, problem.message, span, help=problem.help, op=op)
        if problem.meant and len(problem.path) == 1:
            left_out.add(problem.meant)  # is not missing: it is here, misspelt
    data = {key: value for key, value in data.items() if key not in left_out}
    try:
        return OpEntry.model_validate(data), frozenset(left_out)
    except PydanticError:
        return None, frozenset(left_out)


# -------------------------------------------------------------------------------------------------
# What is wrong, in the words of the file: pydantic's errors are about Python's types
# -------------------------------------------------------------------------------------------------

_NAMES = {str: "text", dict: "a mapping", list: "a list", int: "a whole number"}
_SHAPES: dict[str | int, str] = {  # what keys with several forms take
    "grad": "a mapping of arguments, or none",
    "jvp": "a word or a mapping of arguments",
    "shape": "a formula, or a mapping of outputs",
    "dtype": "a formula, or a mapping of outputs",
    "dtypes": "a list of dtypes, or a mapping of arguments",
    "returns": "a text, or a mapping of outputs",
    "dispatch": "a function, or a mapping of backends",
}


class _Problem(NamedTuple):
    """Something wrong; without a code, it was said when the file was read."""

    path: YamlPath
    code: str = ""
    message: str = ""
    help: str | None = None
    at_key: bool = False
    meant: str | None = None


def _of_model(value: dict[str, Any], model: type[Model], path: YamlPath) -> Iterator[_Problem]:
    """What is wrong in a mapping that has the fields of a model."""
    hints = get_type_hints(model, include_extras=True)
    fields = {field.alias or name: (name, field) for name, field in model.model_fields.items()}
    for key, item in value.items():
        if key in fields:
            yield from _of_value(item, hints[fields[key][0]], (*path, key))
            continue
        near = suggest(key, fields)
        message = f"unknown key '{key}'" + did_you_mean(key, fields)
        help = None if near else f"keys here are: {', '.join(fields)}"
        yield _Problem((*path, key), "MG101", message, help, at_key=True, meant=near)
    for key, (_, field) in fields.items():
        if field.is_required() and key not in value:
            yield _Problem(path, "MG103", f"'{_where(path)}' needs a key '{key}'")


def _of_value(value: Any, kind: Any, path: YamlPath) -> Iterator[_Problem]:
    """What is wrong in a value, of which a type says what it may be."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    fitting = [member for member in members if _form(member) in (type(value), Any)]
    where = _where(path)
    if not fitting:
        one_for_a_list = any("listed" in _plain(member)[1] for member in members)
        if one_for_a_list and isinstance(value, str | dict):
            yield from _of_value([value], kind, path)
        else:
            yield _wrong_form(value, members, path)
        return
    base, bounds = _plain(fitting[0])
    origin = get_origin(base) or base
    if origin is Literal and value not in get_args(base):
        yield _unknown_word(value, members, path)
    elif bounds.get("min_length") and value == "":
        yield _Problem(path, "MG106", f"'{where}' is empty", "give it a value, or remove it")
    elif isinstance(value, list | dict) and len(value) < bounds.get("min_length", 0):
        yield _Problem(path, "MG106", f"'{where}' needs at least one item")
    elif isinstance(value, list | dict) and len(value) > bounds.get("max_length", len(value)):
        yield _Problem(path, "MG106", f"'{where}' needs at most {bounds['max_length']} items")
    elif origin is list:
        for i, item in enumerate(value):
            yield from _of_value(item, get_args(base)[0], (*path, i))
    elif origin is dict:
        of_key, of_item = get_args(base)
        for key, item in value.items():
            if get_origin(of_key) is Literal and key not in get_args(of_key):
                known = get_args(of_key)
                message = f"unknown backend '{key}'" + did_you_mean(key, known)
                help = f"backends are: {', '.join(known)}"
                yield _Problem((*path, key), "MG104", message, help, at_key=True)
            else:
                yield from _of_value(item, of_item, (*path, key))
    elif isinstance(base, type) and issubclass(base, Model):
        yield from _of_model(value, base, path)


def _wrong_form(value: Any, members: tuple[Any, ...], path: YamlPath) -> _Problem:
    """A mapping instead of a text, and the like."""
    if value is None and path[0] not in TYPED_KEYS:
        return _Problem(path)
    if get_origin(_plain(members[0])[0]) is Literal and len(path) > 1:
        return _unknown_word(value, members, path)
    forms = [_form(member) for member in members]
    expected = _SHAPES.get(path[0]) if len(path) == 1 else None
    expected = expected or ("a number" if float in forms else _NAMES.get(forms[0], "a list"))
    where = f"every item of '{_where(path)}'" if isinstance(path[-1], int) else f"'{_where(path)}'"
    help = None
    if isinstance(value, bool) and str in forms:
        help = "YAML reads on, off, yes, no, true and false as booleans: put it in quotes"
    return _Problem(path, "MG102", f"{where} must be {expected}, not {_what(value)}", help)


def _unknown_word(value: Any, members: tuple[Any, ...], path: YamlPath) -> _Problem:
    """Something else than one of the words that are allowed at this place."""
    allowed = get_args(_plain(members[0])[0])
    verb = "have" if isinstance(path[-1], int) else "be"
    message = f"'{_where(path)}' cannot {verb} {_what(value)}"
    help = f"{'one of: ' if len(allowed) > 1 else 'write '}{', '.join(allowed)}"
    if dict in map(_form, members):
        help += ", or a mapping of arguments to formulas"
    if not isinstance(value, str):
        return _Problem(path, "MG102", message, help)
    return _Problem(path, "MG105", message + did_you_mean(value, allowed), help)


def _plain(kind: Any) -> tuple[Any, dict[str, int]]:
    """A type without its annotations, and the bounds of its length that they set."""
    if get_origin(kind) is not Annotated:
        return kind, {}
    base, *extras = get_args(kind)
    bounds: dict[str, int] = {}
    for extra in extras:
        if isinstance(extra, BeforeValidator):
            bounds["listed"] = 1
        for bound in getattr(extra, "metadata", ()):
            lengths = {name: getattr(bound, name, None) for name in ("min_length", "max_length")}
            bounds |= {name: length for name, length in lengths.items() if length is not None}
    return base, bounds


def _form(kind: Any) -> Any:
    """What values of a type are in Python."""
    base, _ = _plain(kind)
    origin = get_origin(base) or base
    if origin is Literal:
        return str
    return dict if isinstance(origin, type) and issubclass(origin, Model) else origin


def _where(path: YamlPath) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def _what(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "empty (null)" if value is None else f"the boolean {str(value).lower()}"
    if isinstance(value, dict | list):
        return _NAMES[type(value)]
    return f"'{value}'" if isinstance(value, str) else f"the number {value}"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a whole file: a list of entries."""
    item = OpEntry.model_json_schema(by_alias=True)
    definitions = item.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mlxgen operators",
        "type": "array",
        "items": item,
        "$defs": definitions,
    }
