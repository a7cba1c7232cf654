"""The tables of mlxgen: their models, and the files that are written from them.

``python -m tools.tables`` checks the tables, which are YAML, and writes them as JSON in the form in
which mlxgen uses them. It also writes the schemas by which editors complete and check the tables:
the first line of a table names its schema in tools/schemas.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .functions import Written

ROOT = Path(__file__).parents[1]
SCHEMAS = Path(__file__).parent / "schemas"
_CODE = r"^MG\d{3}$"


class Row(BaseModel):
    """A mapping without unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Help(Row):
    """A help for some keys, or the default."""

    keys: list[str] = Field([], alias="for", description="Its keys; the default has none.")
    text: str
    fix: str | None = Field(None, description="The replacement; by default the {guess}, if any.")
    certain: bool = Field(True, description="Apply the fix without confirmation.")


class Message(Row):
    """A message with its helps. All strings are format templates."""

    code: str = Field(pattern=_CODE, description="errors.md explains it.")
    text: str
    note: str | None = Field(None, description="A note about a second location.")
    problems: dict[str, str] = Field({}, description="The texts of {problem} by name.")
    help: str | list[str | Help] | None = Field(
        description="The help, or that of the first key that the code passes, else the default."
    )


def _messages(messages: dict[str, Message]) -> dict[str, Any]:
    found = {}
    for name, message in messages.items():
        listed = [message.help] if isinstance(message.help, str) else message.help or []
        helps = [Help(text=help) if isinstance(help, str) else help for help in listed]
        by_key = [(key, help) for help in helps for key in help.keys or [""]]
        if len(by_key) > len(dict(by_key)):
            raise ValueError(f"a key of {name} has two helps")
        found[name] = {
            "code": message.code,
            "text": message.text,
            "helps": {key: help.text for key, help in by_key},
            "fixes": {k: (help.fix, help.certain) for k, help in by_key if help.fix is not None},
        }
        more = {"note": message.note, "problems": message.problems}
        found[name] |= {key: value for key, value in more.items() if value}
    return found


def _words(words: dict[str, list[str]]) -> dict[str, str]:
    return {name: spelling for spelling, names in words.items() for name in names}


def _signs(signs: dict[str, dict[str, str]]) -> dict[str, tuple[str, str]]:
    return {name: (key, form) for key, forms in signs.items() for name, form in forms.items()}


class Others(Row):
    """The words of other languages and libraries for one of ours."""

    same: list[str] = []
    ambiguous: list[str] = Field([], description="Words that can also have another meaning.")


def _elsewhere(words: dict[str, Others]) -> dict[str, list[tuple[str, bool]]]:
    found: dict[str, list[tuple[str, bool]]] = {}
    for ours, others in words.items():
        for theirs in (*others.same, *others.ambiguous):
            found.setdefault(theirs, []).append((ours, theirs in others.same))
    return found


Scope = Literal[
    "everything", "cpp", "metal", "argument", "gradients", "kernels", "generated", "not in Metal"
]
Location = Literal[
    "locals",
    "locals of kernels",
    "locals of arrays",
    "locals of elements",
    "of operators",
    "packages",
    "stubs",
    "mx.array",
]


class MetalNames(Row):
    """The names of Metal's language and standard library."""

    positions: list[str]
    scalar_positions: list[str]
    attributes: list[str]
    types: list[str]
    vectors: list[str]
    matrices: list[str]
    traits: list[str]
    functions: list[str]
    namespaces: list[str]


def _metal(names: MetalNames) -> dict[str, list[str]]:
    """Return the names with all attributes, and with the types that are formed from others."""
    sizes = [*"234"]
    squares = [f"{n}x{m}" for n, m in itertools.product(sizes, sizes)]
    formed = (names.vectors, sizes), (names.matrices, squares), (names.traits, ["_t", "_v"])
    types = [name + end for stems, ends in formed for name in stems for end in ends]
    return {
        "positions": names.positions,
        "scalar positions": names.scalar_positions,
        "attributes": [*names.positions, *names.scalar_positions, *names.attributes],
        "types": [*names.types, *types],
        "functions": names.functions,
        "namespaces": names.namespaces,
    }


class Kind(NamedTuple):
    """A kind of table: the type of its contents, and their form in JSON."""

    model: Any
    form: Callable[[Any], Any] = lambda contents: contents


# functions.yaml is one part of functions.json, which mlx_table.py writes.
KINDS = {
    "functions": Kind(Written),
    "elsewhere": Kind(dict[str, Others], _elsewhere),
    "generated_names": Kind(dict[Location, list[str]]),
    "messages": Kind(dict[str, Message], _messages),
    "metal_names": Kind(MetalNames, _metal),
    "reserved": Kind(dict[Scope, dict[str, list[str]]]),
    "signs": Kind(dict[str, dict[str, str]], _signs),
    "syntax": Kind(dict[str, str]),
    "words": Kind(dict[str, list[str]], _words),
}


class _Loader(yaml.CSafeLoader):
    """Rejects mappings with a key twice, of which YAML takes the last value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))}: given twice")
        return super().construct_mapping(node, deep)


def read(path: Path, model: Any) -> Any:
    """Return the contents of a table; raise ``ValueError`` if they do not fit the model."""
    contents = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    return TypeAdapter(model).validate_python(contents)


def tables() -> Iterator[tuple[Path, Kind]]:
    """Yield the tables."""
    for path in sorted([*ROOT.glob("mlxgen/**/*.yaml"), *ROOT.glob("tools/*.yaml")]):
        with path.open(encoding="utf-8") as file:
            schema = path.parent / file.readline().strip().partition("$schema=")[2]
        if schema.resolve().parent == SCHEMAS:
            yield path, KINDS[schema.stem]


def written() -> Iterator[tuple[Path, str]]:
    """Yield the files that are written from the tables and their models."""
    for path, kind in tables():
        contents = kind.form(read(path, kind.model))
        if kind.model is not Written:
            yield path.with_suffix(".json"), as_json(contents) + "\n"
    for name, kind in KINDS.items():
        schema = TypeAdapter(kind.model).json_schema()
        yield SCHEMAS / f"{name}.json", json.dumps(schema, indent=1) + "\n"


def as_json(value: Any, levels: int = 1, indent: str = "") -> str:
    """Return JSON in which the first ``levels`` levels have a line for each item."""
    if not levels or not value:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        parts, ends = [as_json(item, 0) for item in value], "[]"
    else:
        parts = [
            f"{as_json(key, 0)}: {as_json(item, levels - 1, indent + ' ')}"
            for key, item in value.items()
        ]
        ends = "{}"
    inner = f",\n{indent} ".join(parts)
    return f"{ends[0]}\n{indent} {inner}\n{indent}{ends[1]}"


if __name__ == "__main__":
    for path, text in written():
        path.write_text(text, encoding="utf-8")
