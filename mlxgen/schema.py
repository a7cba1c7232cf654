"""The YAML entry as it is written: one pydantic field per key, and nothing derived.

This is the single description of the file's keys: validation, the JSON Schema for editors
(``mlxgen schema``) and the key reference in the documentation are read off these models.
What the keys mean together is decided in ``resolve``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

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

from .diagnostics import Diagnostics, suggest
from .source import Entry

Tag = Literal[
    "elementwise",
    "reduction",
    "indexing",
    "linalg",
    "nn",
    "special",
    "fused",
    "sampling",
    "experimental",
    "internal",
]
TAGS: dict[str, str] = {
    "elementwise": "Each output element depends on one element of every input.",
    "reduction": "Combines elements along axes or segments.",
    "indexing": "Gathers, scatters or rearranges elements.",
    "linalg": "Linear algebra.",
    "nn": "Neural network building block.",
    "special": "Special function of mathematics.",
    "fused": "Does in one kernel what several MLX ops would do.",
    "sampling": "Draws or interpolates samples.",
    "experimental": "May change without notice; left out of `mlxgen diff`'s breaking changes.",
    "internal": "For other entries' formulas: C++ only, not bound in Python, not documented.",
}
Part = Literal["vjp", "jvp", "vmap", "output_shapes", "is_equivalent", "eval_cpu", "eval_gpu"]
Backend = Literal["cpu", "metal"]

# A formula may be written as a bare number (`y: 0`); it reaches the model as its text.
Formula = Annotated[StrictStr, Field(json_schema_extra={"type": ["string", "number"]})]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


class Model(BaseModel):
    """Base: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelEntry(Model):
    """A kernel with its launch geometry."""

    kernel: StrictStr = Field(description="Name of the hand-written function or [[kernel]].")
    grid: list[Formula] | None = Field(
        None, description="Threads along x, y, z (Metal).", min_length=1, max_length=3
    )
    threadgroup: list[Formula] | None = Field(
        None, description="Threads of a threadgroup along x, y, z.", min_length=1, max_length=3
    )
    constants: dict[str, Formula] = Field({}, description="Integers passed by parameter name.")
    zero: list[StrictStr] = Field([], description="Outputs filled with zeros before the launch.")


class GradFunction(Model):
    """A hand-written function that gives gradients."""

    function: StrictStr = Field(description="C++ function in the hand-written sources.")


class Check(Model):
    """A condition on the arguments, checked when the graph is built."""

    that: Formula = Field(description="Condition on arguments, their shapes and dtypes.")
    otherwise: StrictStr = Field(alias="else", description="What is wrong if it does not hold.")


Number = StrictInt | StrictFloat


class ArraySample(Model):
    """An array argument of a sample: random values in a domain, or given values."""

    shape: list[StrictInt] | None = Field(None, description="Shape; (3, 4) unless given.")
    low: Number = Field(-2.0, description="Lower end of the domain.")
    high: Number = Field(2.0, description="Upper end of the domain.")
    values: Any = Field(None, description="Nested lists of numbers instead of random ones.")
    dtype: StrictStr | None = Field(None, description="Dtype if it is not the tested one.")
    away_from: list[Number] = Field([], description="Points to keep a distance of 0.1 from.")


SampleValue = (
    ArraySample | list[ArraySample] | StrictBool | StrictInt | StrictFloat | StrictStr | list[StrictInt]
)
Sample = dict[str, SampleValue | None]
Names = Annotated[list[StrictStr], BeforeValidator(_listed)]


class OpEntry(Model):
    """One operator."""

    name: StrictStr | None = Field(None, description="C++ name; taken from the signature if absent.")
    signature: StrictStr | None = Field(None, description="Signature in any of three spellings.")
    cpp_signature: StrictStr | None = Field(None, description="Signature in C++ spelling.")
    python_signature: StrictStr | None = Field(None, description="Signature in Python spelling.")
    python_name: StrictStr | None = Field(None, description="Name in Python; `name` if absent.")
    cpp: StrictStr | None = Field(None, description="Existing C++ function to bind.")
    composite: Formula | None = Field(None, description="The forward as a formula of MLX ops.")
    dispatch: dict[Backend, StrictStr | KernelEntry] | None = Field(
        None, description="Kernel per backend.", min_length=1
    )
    grad: Literal["none"] | dict[str, Formula | GradFunction] | None = Field(
        None, description="Gradient per array argument: formula, `none` or `zero`."
    )
    jvp: Literal["elementwise", "linear", "none"] | dict[str, Formula] | None = Field(
        None, description="Forward-mode rule; derived from the gradient if absent."
    )
    vmap: Literal["elementwise", "batch", "sequential", "none"] | None = Field(
        None, description="Vectorisation rule; elementwise or sequential if absent."
    )
    shape: Formula | dict[str, Formula] | None = Field(
        None, description="Output shape, or one per output; makes the kernels non-elementwise."
    )
    dtype: Formula | dict[str, Formula] | None = Field(
        None, description="Output dtype, or one per output; the promoted dtype if absent."
    )
    dtypes: Names | dict[str, Names] | None = Field(
        None, description="Dtypes or categories allowed, for all arrays or per argument."
    )
    integers: Literal["float32", "keep", "error"] | None = Field(
        None, description="What integer inputs become where the kernels take none."
    )
    checks: list[Check] = Field([], description="Conditions that raise when they do not hold.")
    doc: StrictStr | None = Field(None, description="Docstring: a line, a blank line, details.")
    args: dict[str, StrictStr] = Field({}, description="One line of documentation per argument.")
    returns: StrictStr | dict[str, StrictStr] | None = Field(
        None, description="Documentation of the outputs."
    )
    module: StrictStr | None = Field(None, description="Submodule path, such as `special`.")
    variants: list[Literal["function", "method"]] = Field(
        ["function"], description="`method`: also an mx.array method after install_methods()."
    )
    tags: list[Tag] = Field([], description="Labels for `--select` and the reference.")
    deprecated: StrictStr | None = Field(None, description="What to use instead.")
    aliases: list[StrictStr] = Field([], description="Further names in Python.")
    samples: Annotated[list[Sample], BeforeValidator(_listed)] = Field(
        [], description="Inputs and their domain for the generated checks."
    )
    manual: list[Part] = Field([], description="Parts written by hand in the csrc sources.")


def validate(entry: Entry, label: str, diags: Diagnostics) -> OpEntry | None:
    """The entry's values as a model, or None when something is reported."""
    try:
        return OpEntry.model_validate(entry.data)
    except PydanticError as error:
        reported: set[tuple[Any, ...]] = set()
        for item in error.errors(include_url=False, include_context=True):
            _report(entry, label, item, reported, diags)
        return None


_EXPECTED = {
    "string_type": "text",
    "dict_type": "a mapping",
    "list_type": "a list",
    "bool_type": "true or false",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
}


def _report(
    entry: Entry,
    label: str,
    item: Any,
    reported: set[tuple[Any, ...]],
    diags: Diagnostics,
) -> None:
    """Say one pydantic error in the words of the file; a union's alternatives count once."""
    path = _yaml_path(entry, item["loc"])
    kind = item["type"]
    where = ".".join(str(part) for part in path)
    if kind == "missing":
        parent, key = path[:-1], path[-1]
        if (parent, "missing", key) not in reported:
            reported.add((parent, "missing", key))
            inside = ".".join(str(part) for part in parent)
            diags.error("MG103", f"{label}: '{inside}' needs a key '{key}'", entry.span(parent))
        return
    if kind == "extra_forbidden":
        if path in reported:
            return
        reported.add(path)
        parent_type = _model_at(path[:-1])
        names = [f.alias or n for n, f in parent_type.model_fields.items()]
        guess = suggest(str(path[-1]), names)
        diags.error(
            "MG101",
            f"{label}: unknown key '{path[-1]}'"
            + (f" (did you mean '{guess}'?)" if guess else ""),
            entry.span(path, key=True),
            help=None if guess else f"keys here are: {', '.join(names)}",
        )
        return
    if path in reported:
        return
    reported.add(path)
    if path[:1] == ("dispatch",) and len(path) == 2 and path[1] not in get_args(Backend):
        guess = suggest(str(path[1]), get_args(Backend))
        diags.error(
            "MG104",
            f"{label}: unknown backend '{path[1]}'"
            + (f" (did you mean '{guess}'?)" if guess else ""),
            entry.span(path, key=True),
            help="backends are: cpu, metal",
        )
        return
    if kind == "literal_error":
        allowed = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        guess = suggest(str(item["input"]), allowed)
        if isinstance(item["input"], str):
            options = _literals_of(path) or allowed
            diags.error(
                "MG105",
                f"{label}: '{where}' cannot be '{item['input']}'"
                + (f" (did you mean '{guess}'?)" if guess else ""),
                entry.span(path),
                help=f"one of: {', '.join(options)}" + _or_mapping(path),
            )
        else:
            diags.error(
                "MG102",
                f"{label}: '{where}' cannot be {_what(item['input'])}",
                entry.span(path),
                help=f"one of: {', '.join(allowed)}" + _or_mapping(path),
            )
        return
    if kind in ("too_short", "too_long"):
        few = "at least" if kind == "too_short" else "at most"
        bound = item["ctx"].get("min_length", item["ctx"].get("max_length"))
        diags.error("MG106", f"{label}: '{where}' needs {few} {bound} items", entry.span(path))
        return
    expected = _EXPECTED.get(kind, item["msg"])
    help_text = None
    if isinstance(item["input"], bool) and kind == "string_type":
        help_text = "YAML reads on, off, yes, no, true and false as booleans: put it in quotes"
    diags.error(
        "MG102",
        f"{label}: '{where}' must be {expected}, not {_what(item['input'])}",
        entry.span(path),
        help=help_text,
    )


def _what(value: Any) -> str:
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{type(value).__name__} {value!r}" if not isinstance(value, str) else f"'{value}'"


def _or_mapping(path: tuple[Any, ...]) -> str:
    return {("grad",): ", or a mapping of arguments", ("jvp",): ", or a mapping of arguments"}.get(
        path, ""
    )


def _literals_of(path: tuple[Any, ...]) -> list[str] | None:
    known = {"tags": Tag, "manual": Part}
    return list(get_args(known[path[0]])) if path and path[0] in known else None


def _yaml_path(entry: Entry, loc: tuple[Any, ...]) -> tuple[str | int, ...]:
    """Pydantic's location without the names it adds for the members of a union."""
    path: list[str | int] = []
    node: Any = entry.data
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if part == "[key]":
            continue
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        elif last and isinstance(node, dict) and isinstance(part, str) and part.isidentifier():
            if "[" in part or part in ("str", "int", "float", "bool"):
                continue
            path.append(part)  # a missing key
            break
        else:
            continue
        path.append(part)
    return tuple(path)


def _model_at(path: tuple[str | int, ...]) -> type[Model]:
    if not path:
        return OpEntry
    return {
        "dispatch": KernelEntry,
        "grad": GradFunction,
        "checks": Check,
        "samples": ArraySample,
    }.get(str(path[0]), OpEntry)


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
