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

from ..diagnostics import Diagnostics, did_you_mean, suggest
from .yaml import TYPED_KEYS, Entry

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
YamlPath = tuple[str | int, ...]

Part = Literal["vjp", "jvp", "vmap", "output_shapes", "is_equivalent", "eval_cpu", "eval_gpu"]
Backend = Literal["cpu", "metal"]

# A text that is left empty was forgotten.
Text = Annotated[StrictStr, Field(min_length=1)]

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
    otherwise: Text = Field(alias="else", description="What is wrong if it does not hold.")


Number = StrictInt | StrictFloat


class ArraySample(Model):
    """An array argument of a sample: random values in a domain, or given values."""

    shape: list[StrictInt] | None = Field(None, description="Shape; (3, 4) unless given.")
    low: Number = Field(-2.0, description="Lower end of the domain.")
    high: Number = Field(2.0, description="Upper end of the domain.")
    values: Any = Field(None, description="Nested lists of numbers instead of random ones.")
    dtype: StrictStr | None = Field(None, description="Dtype if it is not the tested one.")
    away_from: list[Number] = Field([], description="Points to keep a distance of 0.1 from.")


SampleScalar = StrictBool | StrictInt | StrictFloat | StrictStr
SampleValue = ArraySample | SampleScalar | list[ArraySample | SampleScalar]
Sample = dict[str, SampleValue | None]
Names = Annotated[list[StrictStr], BeforeValidator(_listed), Field(min_length=1)]


class OpEntry(Model):
    """One operator."""

    name: StrictStr | None = Field(
        None, description="C++ name; taken from the signature if absent."
    )
    signature: StrictStr | None = Field(None, description="Signature in any of three spellings.")
    cpp_signature: StrictStr | None = Field(None, description="Signature in C++ spelling.")
    python_signature: StrictStr | None = Field(None, description="Signature in Python spelling.")
    python_name: StrictStr | None = Field(None, description="Name in Python; `name` if absent.")
    cpp: Text | None = Field(None, description="Existing C++ function to bind.")
    composite: Formula | None = Field(None, description="The forward as a formula of MLX ops.")
    dispatch: (
        StrictStr | Annotated[dict[Backend, StrictStr | KernelEntry], Field(min_length=1)] | None
    ) = Field(None, description="Kernel per backend, or one scalar function for all of them.")
    grad: Literal["none"] | dict[str, Formula | GradFunction] | None = Field(
        None, description="Gradient per array argument: formula, `none` or `zero`."
    )
    jvp: Literal["elementwise", "linear", "none"] | dict[str, Formula] | None = Field(
        None, description="Forward-mode rule; derived from the gradient if absent."
    )
    vmap: Literal["elementwise", "batch", "sequential", "none"] | None = Field(
        None, description="Vectorisation rule; elementwise or sequential if absent."
    )
    shape: Formula | Annotated[dict[str, Formula], Field(min_length=1)] | None = Field(
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
        ["function"],
        min_length=1,
        description="`method`: also an mx.array method after install_methods().",
    )
    tags: list[Tag] = Field([], description="Labels for `--select` and the reference.")
    deprecated: Text | None = Field(None, description="What to use instead.")
    aliases: list[StrictStr] = Field([], description="Further names in Python.")
    samples: Annotated[list[Sample], BeforeValidator(_listed)] = Field(
        [], description="Inputs and their domain for the generated checks."
    )
    manual: list[Part] = Field([], description="Parts written by hand in the csrc sources.")


def validate(
    entry: Entry, op: str | None, diags: Diagnostics
) -> tuple[OpEntry | None, frozenset[str]]:
    """The entry's values as a model, and the keys that are left out of it.

    A key in which something is wrong is left out, so that the others are looked at all the same;
    so is a key without a value, which was reported when the file was read.
    """
    data = {key: value for key, value in entry.data.items() if value is not None}
    left_out = set(entry.data) - set(data)
    for _ in range(2):
        try:
            return OpEntry.model_validate(data), frozenset(left_out)
        except PydanticError as error:
            reporter = _Reporter(entry, op, diags)
            found = error.errors(include_url=False, include_context=True)
            reporter.report_all([(_yaml_path(entry, item["loc"]), item) for item in found])
            left_out |= reporter.keys
            data = {key: value for key, value in data.items() if key not in left_out}
    return None, frozenset(left_out)


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


class _Reporter:
    """Says pydantic's errors in the words of the file; a union's alternatives count once."""

    def __init__(self, entry: Entry, op: str | None, diags: Diagnostics) -> None:
        self.entry = entry
        self.op = op
        self.diags = diags
        self.reported: set[tuple[Any, ...]] = set()
        self.keys: set[str] = set()  # of the entry, that have an error

    def error(
        self, code: str, message: str, path: YamlPath, *, key: bool = False, help: str | None = None
    ) -> None:
        self.diags.error(code, message, self.entry.span(path, key=key), help=help, op=self.op)

    def report_all(self, items: list[tuple[YamlPath, Any]]) -> None:
        """Report errors, but no union as a whole where something inside it is wrong."""
        above = {path[:i] for path, item in items for i in range(len(path))}
        # "too few" rather than another type, "a number" where both would do
        order = {"too_short": 0, "int_type": 2}
        items.sort(key=lambda at: order.get(at[1]["type"], 1))
        for path, item in items:
            if path not in above:
                self.report(path, item)

    def report(self, path: YamlPath, item: Any) -> None:
        """Report one error, unless its place has one already."""
        kind, value = item["type"], item["input"]
        self.keys.add(str(path[0]) if path else "")
        if path in self.reported:
            return
        self.reported.add(path)
        where = ".".join(part for part in path if isinstance(part, str))
        if kind == "missing":
            inside = ".".join(part for part in path[:-1] if isinstance(part, str))
            self.error("MG103", f"'{inside}' needs a key '{path[-1]}'", path[:-1])
        elif value is None and path[0] not in TYPED_KEYS:
            pass  # said when the file was read
        elif kind == "extra_forbidden":
            self.unknown_key(path)
        elif path[0] == "dispatch" and len(path) == 2 and path[1] not in get_args(Backend):
            self.error(
                "MG104",
                f"unknown backend '{path[1]}'" + did_you_mean(str(path[1]), get_args(Backend)),
                path,
                key=True,
                help="backends are: cpu, metal",
            )
        elif kind == "literal_error":
            self.unknown_word(path, where, item)
        elif kind in ("too_short", "too_long"):
            few = "at least" if kind == "too_short" else "at most"
            bound = item["ctx"].get("min_length", item["ctx"].get("max_length"))
            items = "one item" if bound == 1 else f"{bound} items"
            self.error("MG106", f"'{where}' needs {few} {items}", path)
        elif kind == "string_too_short":
            self.error("MG106", f"'{where}' is empty", path, help="give it a value, or remove it")
        else:
            help = None
            if isinstance(value, bool) and kind == "string_type":
                help = "YAML reads on, off, yes, no, true and false as booleans: put it in quotes"
            expected = _SHAPES.get(path[0]) if len(path) == 1 else None
            expected = expected or _EXPECTED.get(kind, item["msg"])
            where = f"every item of '{where}'" if isinstance(path[-1], int) else f"'{where}'"
            self.error("MG102", f"{where} must be {expected}, not {_what(value)}", path, help=help)

    def unknown_key(self, path: YamlPath) -> None:
        """A key that the entry, or a mapping in it, does not have."""
        names = [f.alias or n for n, f in _model_at(path[:-1]).model_fields.items()]
        guess = suggest(str(path[-1]), names)
        if guess and len(path) == 1 and guess not in self.entry.data:
            self.keys.add(guess)  # is not missing: it is here, misspelt
        self.error(
            "MG101",
            f"unknown key '{path[-1]}'" + did_you_mean(str(path[-1]), names),
            path,
            key=True,
            help=None if guess else f"keys here are: {', '.join(names)}",
        )

    def unknown_word(self, path: YamlPath, where: str, item: Any) -> None:
        """Something else than one of the words that are allowed at this place."""
        value = item["input"]
        allowed = _literals_of(path) or (
            item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        )
        text = isinstance(value, str)
        self.error(
            "MG105" if text else "MG102",
            f"'{where}' cannot {'have' if isinstance(path[-1], int) else 'be'} {_what(value)}"
            + (did_you_mean(value, allowed) if text else ""),
            path,
            help=f"{'one of: ' if len(allowed) > 1 else 'write '}{', '.join(allowed)}"
            + _or_mapping(path),
        )


# What keys with several forms take, where pydantic's union would name the last of them only.
_SHAPES: dict[str | int, str] = {
    "grad": "a mapping of arguments, or none",
    "jvp": "a word or a mapping of arguments",
    "shape": "a formula, or a mapping of outputs",
    "dtype": "a formula, or a mapping of outputs",
    "dtypes": "a list of dtypes, or a mapping of arguments",
    "returns": "a text, or a mapping of outputs",
    "dispatch": "a function, or a mapping of backends",
}


def _what(value: Any) -> str:
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"'{value}'" if isinstance(value, str) else f"the number {value}"


def _or_mapping(path: YamlPath) -> str:
    return ", or a mapping of arguments to formulas" if path in (("grad",), ("jvp",)) else ""


def _literals_of(path: tuple[Any, ...]) -> list[str] | None:
    known = {"tags": Tag, "manual": Part}
    return list(get_args(known[path[0]])) if path and path[0] in known else None


def _yaml_path(entry: Entry, loc: tuple[Any, ...]) -> YamlPath:
    """Pydantic's location without the names it adds for the members of a union."""
    path: list[str | int] = []
    node: Any = entry.data
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if part == "[key]":
            continue
        inside = isinstance(node, dict) and part in node
        if inside or (isinstance(node, list) and isinstance(part, int) and part < len(node)):
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


def _model_at(path: YamlPath) -> type[Model]:
    """The model of the mapping at ``path``."""
    models: dict[str | int, type[Model]] = {
        "dispatch": KernelEntry,
        "grad": GradFunction,
        "checks": Check,
        "samples": ArraySample,
    }
    return models.get(path[0], OpEntry) if path else OpEntry


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
