"""Makes the entries of the functions of the installed MLX, or says why there are none.

The stubs of MLX (stubs.py) have the functions and their parameters. mlxgen's table of MLX's
functions (formula/mlx.py) has the C++ overloads of these, from MLX's headers. Most functions become
entries that bind their C++ function. One that has several types for an argument becomes an entry
for each type: they are overloads. ``mlx/functions.yaml`` has what neither source states.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...diagnostics import COMMAND_LINE, Diagnostics, did_you_mean, install
from ...formula.mlx import MODULES, MlxFunction, PythonParam, Table, table
from ...read.settings import numbers
from ..common import entries as write
from . import MESSAGES, stubs
from .stubs import Stubs

_WRITTEN = Path(__file__).parent / "mlx" / "functions.yaml"
_SITE = "https://ml-explore.github.io/mlx/build/html/python/_autosummary"

# The types in the language for the alternatives of an annotation, apart from None. Several types
# are several overloads; the one with the plain C++ name is the last.
_TYPES: Mapping[str, Sequence[str]] = {
    **{name: (name,) for name in ("array", "int", "float", "bool", "str", "Dtype", "list[array]")},
    "scalar | array": ("array",),
    "scalar": ("float",),
    "Sequence[int]": ("list[int]",),
    "tuple[int, ...]": ("list[int]",),
    "int | Sequence[int]": ("int | list[int]",),
    "int | list[int]": ("int | list[int]",),
    "int | tuple[int]": ("int | list[int]",),
    "int | tuple[int, int]": ("int | tuple[int, int]",),
    "int | tuple[int, int, int]": ("int | tuple[int, int, int]",),
    "int | array": ("array",),
    "int | float | str": ("str", "float"),
    "int | list[Sequence[int]]": ("int", "list[list[int]]"),
}
_LISTS = ("list[int]", "int | list[int]")
# The parts of overloads' C++ names for the types of arguments with several; others are choices.
_SUFFIXES = {
    **{"int": "int", "float": "float", "str": "str", "int | float": "number", "axes": "axes"},
    **{"list[int]": "list", "list[list[int]]": "lists"},
    **dict.fromkeys(("array", "array | None"), "array"),
}


class Row(NamedTuple):
    """The hand-written facts about a function."""

    reason: str = ""  # why it has no entry
    entries: Sequence[Mapping[str, Any]] = ()  # in place of the derived ones
    types: Mapping[str, Sequence[str]] = {}  # of arguments
    result: str = ""
    keys: Mapping[str, Any] = {}  # further keys of the derived entries


class Made(NamedTuple):
    """The entries of a function."""

    entries: Sequence[Mapping[str, Any]]
    written: bool  # formulas from functions.yaml


class LeftOut(NamedTuple):
    """A function without an entry."""

    reason: str


class Imported(NamedTuple):
    """The result of an import, by function in the order of the stubs."""

    version: str
    functions: Mapping[str, Made | LeftOut]

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """The entries, in the order of the file."""
        made = (each for each in self.functions.values() if isinstance(each, Made))
        return [entry for each in made for entry in each.entries]


class Unsupported(Exception):
    """Raised with the reason why a function has no entry."""


class Installed(NamedTuple):
    """The installed MLX."""

    version: str
    stubs: Stubs


def installed(diags: Diagnostics) -> Installed | None:
    """Return the installed MLX; report an error if it, or its stubs, cannot be read."""
    try:
        version = importlib.metadata.version("mlx").partition("+")[0]
        spec = importlib.util.find_spec("mlx")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        spec = None
    if spec is None:
        diags.error(MESSAGES("no_MLX", install=install.mlx()), COMMAND_LINE)
        return None
    roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
    root = next((root for root in roots if (root / "core" / "__init__.pyi").is_file()), None)
    try:
        if root is None:
            raise FileNotFoundError("its package has no file core/__init__.pyi")
        return Installed(version, stubs.read(root))
    except (OSError, SyntaxError, ValueError) as error:
        diags.error(MESSAGES("unreadable_stubs", version=version, error=error), COMMAND_LINE)
        return None


def select(names: Sequence[str], mlx: Installed, diags: Diagnostics) -> list[str]:
    """Return the selected functions in the order of the stubs; report unknown names."""
    chosen: set[str] = set()
    for name in names:
        function = mlx.stubs.aliases.get(name, name)
        if name in MODULES:
            chosen |= {each for each in mlx.stubs.functions if each.startswith(f"{name}.")}
        elif function in mlx.stubs.functions:
            chosen.add(function)
        else:
            known = [*MODULES, *mlx.stubs.functions, *mlx.stubs.aliases]
            about = {"version": mlx.version, "name": name, "near": did_you_mean(name, known)}
            diags.error(MESSAGES("unknown_function", **about), COMMAND_LINE)
    return [name for name in mlx.stubs.functions if not names or name in chosen]


def written() -> Mapping[str, Row]:
    """Return the hand-written facts, by function."""
    rows: dict[str, Row] = {}
    for names, row in yaml.safe_load(_WRITTEN.read_text(encoding="utf-8")).items():
        for name in names.split():
            if isinstance(row, str):
                rows[name] = Row(reason=row)
            elif isinstance(row, list):
                rows[name] = Row(entries=row)
            else:
                own = {**row}
                types, result = own.pop("types", {}), own.pop("result", "")
                rows[name] = Row(types=types, result=result, keys=own)
    return rows


def _filled(value: Any, name: str) -> Any:
    """Replace ``{name}`` in all strings."""
    if isinstance(value, str):
        return value.replace("{name}", name)
    if isinstance(value, list):
        return [_filled(item, name) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, name) for key, item in value.items()}
    return value


def make(names: Iterable[str], mlx: Installed) -> Imported:
    """Return the outcome of each of these functions."""
    rows, api = written(), table(mlx.version)
    aliases: dict[str, list[str]] = {}
    for alias, function in mlx.stubs.aliases.items():
        aliases.setdefault(function, []).append(alias)
    found = {name: _function(name, aliases.get(name, ()), mlx, rows, api) for name in names}
    return Imported(mlx.version, found)


def _function(
    name: str, aliases: Sequence[str], mlx: Installed, rows: Mapping[str, Row], api: Table
) -> Made | LeftOut:
    row = rows.get(name, Row())
    try:
        if row.reason or (name in api.omitted and not row.entries):
            raise Unsupported(row.reason or api.omitted[name])
        overloads = row.entries or _overloads(_known(name, mlx, api), row, mlx)
    except Unsupported as error:
        return LeftOut(str(error))
    module = name.rpartition(".")[0]
    beside = [alias for alias in aliases if alias.rpartition(".")[0] == module]
    elsewhere = [alias for alias in aliases if alias not in beside]  # entries of their own
    names = [(name, beside), *((alias, []) for alias in elsewhere)]
    entries = [_entry(keys, own, others, name) for own, others in names for keys in overloads]
    return Made(entries, bool(row.entries or row.keys))


def _known(name: str, mlx: Installed, api: Table) -> MlxFunction:
    """Return a function of the table; raise ``Unsupported`` if MLX has another one."""
    function = api.function(name)
    if function is None or not function.overloads:
        raise Unsupported(f"mlxgen, which knows MLX {api.release}, does not know this function")
    if numbers(mlx.version) > numbers(api.release):
        own = [params for params in function.signatures if _same(params, name, mlx)]
        if not own:
            raise Unsupported(f"MLX {mlx.version} changed it after MLX {api.release}")
    return function


def _same(params: Sequence[PythonParam], name: str, mlx: Installed) -> bool:
    """Return whether a signature of the table is one of the stubs, apart from annotations."""
    plain = [(p.name, p.kind, p.default) for p in params]
    return any(
        [(p.name, p.kind, p.default) for p in each] == plain
        for each in mlx.stubs.functions[name].signatures
    )


def _overloads(function: MlxFunction, row: Row, mlx: Installed) -> list[dict[str, Any]]:
    """Return the keys of an entry for each combination of the types of its arguments."""
    params = function.signatures[0]
    types = [row.types.get(param.name) or _types(param, function) for param in params]
    result = row.result or _result(function, mlx)
    found = []
    for chosen in itertools.product(*types):
        several = [(one, of[-1]) for one, of in zip(chosen, types, strict=True) if len(of) > 1]
        plain = all(one == last for one, last in several)
        words = [] if plain else [_SUFFIXES.get(one, "choice") for one, _ in several]
        args = ", ".join(_arguments(params, chosen))
        keys: dict[str, Any] = {"signature": f"{{name}}({args}) -> {result}", **row.keys}
        if groups := _groups(function, params):
            keys["dtypes"] = groups
        found.append({"suffix": "_".join(words), **keys})
    return found


def _result(function: MlxFunction, mlx: Installed) -> str:
    """Return the result, in the form that Python gets from MLX."""
    if function.result == "array":
        return "array"
    stub = mlx.stubs.functions[function.name].overloads[0].returns
    in_tuple = stub is not None and ast.unparse(stub).startswith("tuple")
    if function.result == "flags":
        return "array | tuple[array, ...]"
    if function.result == "tuple" or (function.count and in_tuple):
        return f"tuple[{', '.join(['array'] * (function.count or 1))}]"
    return "list[array]"


def _types(param: PythonParam, function: MlxFunction) -> Sequence[str]:
    """Return the types of an argument; raise ``Unsupported`` if the language has none."""
    alternatives = [part for part in param.annotation.split(" | ") if part != "None"]
    annotation = " | ".join(alternatives)
    types = (annotation,) if annotation.startswith("Literal[") else _TYPES.get(annotation)
    if types is None:
        raise Unsupported(f"the type of its argument {param.name} is {param.annotation}")
    slots = {
        slot.type
        for overload in function.overloads
        for slot in overload.slots
        if slot.param.partition(".")[0] == param.name
    }
    if param.kind == "*":
        return types
    if slots <= {"shape"} and types == ("list[int]",):
        types = ("shape",)
    if any(slot.startswith("value@") for slot in slots) and not param.takes_none:
        types = ("int | float", "array")  # a number takes the dtype that another argument states
    if "int" in slots and slots - {"int"} and len(types) == 1 and " | " in annotation:
        types = ("int", types[0].removeprefix("int | "))  # C++ has a function for each
    if "None" in param.annotation.split(" | ") and (param.takes_none or annotation == "Dtype"):
        if set(types) & {*_LISTS} and "int" in alternatives:
            return ("axes",)
        types = (*types[:-1], f"{types[-1]} | None")
    return types


def _arguments(params: Sequence[PythonParam], types: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of a signature, with ``/`` and ``*``."""
    kinds = [param.kind for param in params]
    for i, (param, type) in enumerate(zip(params, types, strict=True)):
        if param.kind == "k" and not {"k", "*"} & {*kinds[:i]}:
            yield "*"
        default = _default(param, type)
        equals = f" = {default}" if default is not None else ""
        yield f"{'*' * (param.kind == '*')}{param.name}: {type}{equals}"
        if param.kind == "/" and kinds[i + 1 : i + 2] != ["/"]:
            yield "/"


def _default(param: PythonParam, type: str) -> str | None:
    """Return the default of an argument, which belongs to one of several overloads."""
    none = type == "axes" or type.endswith("| None")
    nested = type == "list[list[int]]"
    return None if nested or (param.default == "None" and not none) else param.default


def _groups(function: MlxFunction, params: Sequence[PythonParam]) -> list[dict[str, str]]:
    """Return groups of arguments with a dtype each, if numbers take the dtype of only some."""
    slots = {slot.param: slot.type for o in function.overloads for slot in o.slots}
    alone = [p.name for p in params if slots.get(p.name) == "value"]
    weak = [p.name for p in params if slots.get(p.name) == "weak"]
    return [{", ".join(weak): "generic"}, {", ".join(alone): "generic"}] if alone and weak else []


def _entry(
    keys: Mapping[str, Any], path: str, aliases: Sequence[str], function: str
) -> dict[str, Any]:
    """Return an entry: its names, the function that it binds, and its documentation."""
    module, _, python_name = path.rpartition(".")
    suffix = keys.get("suffix", "")
    name = keys.get("name") or "_".join(filter(None, [module, python_name, suffix]))
    entry = {"name": name, "python_name": python_name} if name != python_name else {}
    if module:
        entry["module"] = module
    entry["signature"] = _filled(keys["signature"], python_name)
    if "composite" not in keys and name != function:
        entry["cpp"] = "::".join(["mlx", "core", *function.split(".")])
    plain = function.rpartition(".")[2]
    own = {key: keys[key] for key in keys if key not in ("name", "signature", "suffix")}
    entry |= _filled(own, plain)
    entry["doc"] = f"As [mx.{function}]({_SITE}/mlx.core.{function}.html)."
    if aliases:
        entry["aliases"] = [*aliases]
    return entry


def entries(imported: Imported) -> str:
    """Return the file of entries; comments at its end list the functions without any."""
    source = f"MLX {imported.version}"
    blocks = []
    for name, made in imported.functions.items():
        if isinstance(made, Made):
            origin = "Written for" if made.written else "From the stub of"
            blocks += [write.block(keys, f"{origin} mlx.core.{name}.") for keys in made.entries]
    reasons: dict[str, list[str]] = {}
    for name, left in imported.functions.items():
        if isinstance(left, LeftOut):
            reasons.setdefault(left.reason, []).append(name)
    listed = [_comment(f"{', '.join(names)}: {reason}.") for reason, names in reasons.items()]
    if listed:
        blocks.append("\n".join(["# Functions without an entry.\n#", *listed]) + "\n")
    return write.file(source, "The next import replaces this file.", blocks)


def _comment(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="# - ", subsequent_indent="#   ")


def report(imported: Imported) -> str:
    """Return the report: a line for each function."""
    made = [each for each in imported.functions.values() if isinstance(each, Made)]
    lines = [
        "the outcome of each function.",
        f"Functions: {len(imported.functions)}; with entries: {len(made)}.",
        f"Entries: {len(imported.entries)}.",
    ]
    rows = {name: _outcome(each) for name, each in imported.functions.items()}
    return write.report(f"MLX {imported.version}", lines, rows)


def _outcome(outcome: Made | LeftOut) -> dict[str, str]:
    if isinstance(outcome, LeftOut):
        return {"left out": outcome.reason}
    return {"from": "functions.yaml" if outcome.written else "stub"}


def summary(imported: Imported) -> str:
    """Return the line that the command prints."""
    made = sum(isinstance(each, Made) for each in imported.functions.values())
    counts = f"{len(imported.entries)} entries for {made} of {len(imported.functions)} functions"
    return f"MLX {imported.version}: {counts}"
