"""Writes the table of functions, mlxgen/formula/data/functions.json.

The table combines facts from MLX's releases with hand-written ones from tools/functions.yaml,
which explains them. ``python -m tools.mlx_releases`` downloads the releases, and
compares or stores the table. It contains the newest release and, for each older one, the
differences from the next newer one. ``python -m tools.mlx_table`` updates only the hand-written
part of the stored table.

The parameters of a stub (``mlx/core/*.pyi``) are aligned with those of each C++ overload in the
headers: by name, or else in order among those of a matching type. Functions whose binding does more
than pass its arguments on cannot be derived, and are written by hand.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlxgen.formula.mlx import PARTS, TABLE, PythonParam, Slot, stored
from mlxgen.plugins.importers import stubs

from .functions import Functions, Written, WrittenSlot
from .tables import as_json, read

HEADERS = ("ops.h", "einsum.h", "linalg.h", "fft.h", "random.h", "fast.h")
WRITTEN: Written = read(Path(__file__).with_name("functions.yaml"), Written)
WRAPPED = {name for effect in WRITTEN.effects if effect.wrapped for name in effect.of}
OMITTED = {name: reason for reason, names in WRITTEN.omitted.items() for name in names}
# The keys of a record from MLX.
FROM_MLX = ("signatures", "result", "count", "stream", "overloads", "method")


def written() -> dict[str, dict[str, Any]]:
    """Return the hand-written parts of the records."""
    found: dict[str, dict[str, Any]] = {name: {} for row in WRITTEN.operations for name in row.of}

    def record(name: str) -> dict[str, Any]:
        return found.setdefault(name, {})

    for effect in WRITTEN.effects:
        words = effect.model_dump(exclude={"of", "wrapped"}, exclude_defaults=True)
        for name in effect.of:
            if record(name):
                raise ValueError(f"{name} has two effects")
            record(name)["effect"] = words
    for row in WRITTEN.operations:
        for name in row.of:
            cpp = row.cpp.replace("{name}", name)
            called = re.match(r"(?:mx|mlxgen)::(\w+)\(.*\{s\}", cpp)  # MLX's have a stream
            operation = [row.takes, row.gives, cpp, called[1] if called else ""]
            record(name).setdefault("operations", []).append(operation)
    for call in WRITTEN.calls:
        for name in call.of:
            key = "signatures" if call.kind == "mlx" else call.kind
            record(name)[key] = [
                [_pack(param) for param in _parsed(text, "")] for text in call.signatures
            ]
    for name, reason in OMITTED.items():
        record(name)["omitted"] = reason
    return found


def derive(root: Path) -> dict[str, Any]:
    """Return the part of the table that MLX determines, for the release in the folder ``root``.

    Raises ``ValueError`` if the overloads of a function in the stubs can neither be derived nor are
    hand-written, unless the function is omitted.
    """
    overloads = _overloads(root / "include" / "mlx")
    operations = {name for call in WRITTEN.calls if call.kind == "mlx" for name in call.of}
    functions: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    found = stubs.read(root)
    for name, function in found.functions.items():
        node = function.overloads[0]
        if name in OMITTED or name in operations:
            continue
        if not _gives_arrays(node) and name not in WRITTEN.overloads:
            continue
        try:
            functions[name] = _derive_function(name, node, overloads)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    for row in WRITTEN.cpp_only:
        for name in row.of:
            _add_from_headers(
                functions, name, [_parsed(text) for text in row.signatures], overloads
            )
    if "astype" not in functions:  # only a method until 0.31.2
        functions["astype"] = _written_function("astype", _written_signatures("astype"))
    if problems:
        raise ValueError("no C++ overload found for " + "; ".join(problems))
    methods = _methods(found.methods)
    for name in methods.keys() & functions.keys():
        functions[name]["method"] = methods[name]
    known = functions.keys() | operations
    return {
        "mlx": _version(root),
        "functions": functions,
        "aliases": {a: f for a, f in found.aliases.items() if f in known},
    }


def _version(root: Path) -> str:
    text = (root / "include" / "mlx" / "version.h").read_text(encoding="utf-8")
    parts = dict(re.findall(r"#define MLX_VERSION_(MAJOR|MINOR|PATCH) (\d+)", text))
    return ".".join(parts[p] for p in ("MAJOR", "MINOR", "PATCH"))


def _gives_arrays(node: ast.FunctionDef) -> bool:
    return "array" in (ast.unparse(node.returns) if node.returns else "array")


def _methods(nodes: Sequence[ast.FunctionDef]) -> dict[str, Any]:
    """Return methods of the array class by name, with their parameters after ``self``."""
    found = {}
    for item in nodes:
        if not item.name.startswith("_"):
            decorated = bool(item.decorator_list)
            if not decorated:
                params = _params(item.args)[1:]
                if item.name in ("reshape", "transpose"):  # x.reshape(2, -1), x.transpose(1, 0)
                    params = [PythonParam(p.name, p.kind, "int") for p in params]
                found[item.name] = [_pack(p) for p in params if p.name != "correction"]
    return found


def _derive_function(name: str, node: ast.FunctionDef, overloads: _Overloads) -> dict[str, Any]:
    signatures = _written_signatures(name) or [_params(node.args)]
    if name in WRITTEN.overloads:
        return _written_function(name, signatures)
    cpp = WRITTEN.cpp_names.get(name, name.replace(".", "::"))
    if cpp not in overloads:
        raise ValueError(f"no function {cpp} in the headers")
    found, results = [], set[CppResult]()
    for returned, cpp_params in overloads[cpp]:
        overload = _align(cpp, signatures[0], cpp_params)
        if overload is not None and overload not in found:
            found.append(overload)
            stream = any(p.type == "stream" for p in cpp_params)
            results.add(returned._replace(stream=stream))
    if len(results) != 1:
        raise ValueError(f"{len(found)} overloads with {len(results)} results")
    result = results.pop()
    stub = ast.unparse(node.returns) if node.returns else ""
    exact = re.fullmatch(r"tuple\[((?:array, )*array)\]", stub.replace("mlx.core.", ""))
    if exact and name != "quantize" and result.number is None:
        result = result._replace(number=exact[1].count("array"))
    return _function(name, signatures, result, _settle(found))


def _add_from_headers(
    functions: dict[str, dict[str, Any]],
    name: str,
    signatures: Sequence[list[PythonParam]],
    overloads: _Overloads,
) -> None:
    """Add a function that Python lacks, or further signatures of one, if the headers have it."""
    cpp, found = name.replace(".", "::"), list[CppOverload]()
    for params in signatures:
        aligned = [_align(cpp, params, cpp_params) for _, cpp_params in overloads.get(cpp, ())]
        found += [overload for overload in aligned if overload and overload not in found]
    if found:
        known = functions.get(name)
        new = _function(name, [*signatures], CppResult("array"), found)
        if known is not None:
            for part in ("signatures", "overloads"):
                new[part] = [*known[part], *(item for item in new[part] if item not in known[part])]
        functions[name] = {**(known or {}), **new}


def _written_signatures(name: str) -> list[list[PythonParam]]:
    """Return the hand-written signatures of a function, if any."""
    return [_parsed(text) for text in WRITTEN.signatures.get(name, ())]


def _written_function(name: str, signatures: list[list[PythonParam]]) -> dict[str, Any]:
    """Return a function with hand-written overloads, without parameters that a release lacks."""
    names = {param.name for params in signatures for param in params}
    row = WRITTEN.overloads[name]
    overloads = []
    for overload in row.overloads:
        slots = [slot for written in overload.takes for slot in _written_slots(written)]
        own = [slot for slot in slots if slot.param in ("", *names)]
        overloads.append(CppOverload(overload.cpp, own))
    return _function(name, signatures, CppResult(row.result, row.count, row.stream), overloads)


def _written_slots(written: str | Mapping[str, str | WrittenSlot | None]) -> Iterator[Slot]:
    if isinstance(written, str):
        yield Slot("", "", text=written)
        return
    for param, slot in written.items():
        if isinstance(slot, WrittenSlot):
            more = slot.model_dump(exclude={"slot"})
            yield Slot(param, slot.slot, **more)
        else:
            yield Slot(param, slot or "")


class CppOverload(NamedTuple):
    """A C++ function, in the namespace mx unless it has mlxgen::, and its slots."""

    cpp: str
    slots: list[Slot]


def _function(
    name: str, signatures: list[list[PythonParam]], result: CppResult, overloads: list[CppOverload]
) -> dict[str, Any]:
    stored = []
    for cpp, slots in overloads:
        space = "mlxgen" if name in WRAPPED else "mx"
        cpp = cpp if cpp.startswith("mlxgen::") else f"{space}::{cpp}"
        stored.append({"cpp": cpp, "slots": [_pack_slot(slot) for slot in slots]})
    packed = [[_pack(param) for param in params] for params in signatures]
    found: dict[str, Any] = {"signatures": packed, "result": result.kind}
    if result.number is not None:
        found["count"] = result.number
    if not result.stream:
        found["stream"] = False
    return {**found, "overloads": stored}


def _pack_slot(slot: Slot) -> list[Any]:
    """Return the fields of a slot up to the last one that is not the default."""
    default = Slot("", "")
    last = max(1, *(i for i, value in enumerate(slot) if value != default[i]))
    return [*slot][: last + 1]


def _settle(overloads: list[CppOverload]) -> list[CppOverload]:
    """Sort shorter ones first; an int may replace a list only if no overload takes an int."""
    ints = {slot.param for _, slots in overloads for slot in slots if slot.type == "int"}
    settled = []
    for cpp, slots in overloads:
        types = {"weak": "value"} if [slot.type for slot in slots].count("weak") == 1 else {}
        beside_int = {**types, "ints1": "ints", "shape1": "shape"}
        new = [(beside_int if slot.param in ints else types).get(slot.type) for slot in slots]
        found = [slot._replace(type=t or slot.type) for slot, t in zip(slots, new, strict=True)]
        settled.append(CppOverload(cpp, found))
    return sorted(settled, key=lambda overload: len(overload.slots))


def _parsed(text: str, untyped: str = "array") -> list[PythonParam]:
    """Return the parameters of a signature in text form."""
    function = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return _params(function.args, untyped)


def _pack(param: PythonParam) -> list[str | None]:
    packed = [param.name, param.kind, param.annotation, param.default]
    return packed if param.default is not None else packed[:3]


def _params(args: ast.arguments, untyped: str = "array") -> list[PythonParam]:
    """Return the parameters of a stub, with the strings that the stubs lack."""
    return [
        param._replace(annotation=f"Literal{WRITTEN.strings[param.name]!r}")
        if param.annotation == "str" and param.name in WRITTEN.strings
        else param
        for param in stubs.parameters(args, untyped)
    ]


@dataclass(frozen=True, slots=True)
class _CppParam:
    name: str
    type: str  # slot type, "stream", or "" for a type that formulas cannot use
    optional: bool
    default: str | None


CPP_TYPES = {
    "array": "array",
    "std::vector<array>": "arrays",
    "int": "int",
    "std::vector<int>": "ints",
    "Shape": "shape",
    "Strides": "strides",
    "bool": "bool",
    "float": "float",
    "double": "float",
    "Dtype": "dtype",
    "std::string": "str",
    "std::pair<int, int>": "pair",
    "std::tuple<int, int, int>": "triple",
    "size_t": "size",
    "uint64_t": "size",
    "FFTNorm": "fftnorm",
    "StreamOrDevice": "stream",
}


class CppResult(NamedTuple):
    """The result of a C++ function: its kind, the number of arrays, and if it has a stream."""

    kind: str
    number: int | None = None
    stream: bool = True


CPP_RESULTS = {
    "array": CppResult("array"),
    "std::vector<array>": CppResult("arrays"),
    "std::pair<array, array>": CppResult("tuple", 2),
    "std::tuple<array, array>": CppResult("tuple", 2),
}


_Overloads = dict[str, list[tuple[CppResult, list[_CppParam]]]]


def _overloads(include: Path) -> _Overloads:
    """Return the result and parameters of each overload in MLX's headers, by its C++ name."""
    found: _Overloads = {}
    results = "|".join(re.escape(r) for r in CPP_RESULTS)
    head = re.compile(rf"(?:^|[;}}])\s*(?:MLX_API|inline)\s+({results})\s+(\w+)\s*\(")
    for header in HEADERS:
        text = (include / header).read_text(encoding="utf-8")
        text = re.sub(r"/\*.*?\*/|//[^\n]*|#[^\n]*", " ", text, flags=re.S)
        module = re.search(r"namespace mlx::core(::\w+)?", text)
        prefix = f"{module[1][2:]}::" if module and module[1] else ""
        text = re.sub(r"\s+", " ", text[module.end() + 2 :] if module else text)
        text = _without_bodies(text)
        position = 0
        while match := head.search(text, position):
            end = _closing(text, match.end())
            params = [_cpp_param(p) for p in _split(text[match.end() : end])]
            found.setdefault(prefix + match[2], []).append((CPP_RESULTS[match[1]], params))
            position = end
    return found


def _without_bodies(text: str) -> str:
    """Replace function bodies and classes by ``;`` (default arguments such as ``{}`` stay)."""
    out, depth, parens = [], 0, 0
    for c in text:
        if depth == 0 and c in "()":
            parens += 1 if c == "(" else -1
        if parens == 0 and c == "{":
            depth += 1
        elif parens == 0 and c == "}":
            depth -= 1
            if depth == 0:
                out.append(";")
            continue
        if depth == 0:
            out.append(c)
    return "".join(out)


def _split(text: str) -> list[str]:
    """Split at commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _closing(text: str, start: int) -> int:
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError("unbalanced parentheses in a header")


def _cpp_param(text: str) -> _CppParam:
    declaration, _, default = text.partition("=")
    declaration = re.sub(r"\bconst\b|&", " ", declaration).strip()
    match = re.fullmatch(r"(.*?[\w>])\s+(\w+)", declaration)
    type_, name = (match[1], match[2]) if match else (declaration, "")
    type_ = re.sub(r"\s+", " ", type_)
    inner = re.sub(r"^std::optional<(.*)>$", r"\1", type_)
    return _CppParam(name, CPP_TYPES.get(inner, ""), inner != type_, default.strip() or None)


# The slot types that accept an alternative of a Python annotation.
_ALTERNATIVES = {
    "array": {"array"},
    "scalar": {"array"},
    "int": {"int", "size", "float"},
    "float": {"float"},
    "bool": {"bool"},
    "str": {"str", "fftnorm"},
    "Dtype": {"dtype"},
    "Sequence[int]": {"ints", "shape", "strides"},
    "list[int]": {"ints", "shape"},
    "tuple[int]": {"ints", "shape"},
    "tuple[int, ...]": {"ints", "shape"},
    "tuple[int, int]": {"pair"},
    "tuple[int, int, int]": {"triple"},
    "list[array]": {"arrays"},
    "Sequence[array]": {"arrays"},
}


def _align(
    cpp: str, params: Sequence[PythonParam], cpp_params: Sequence[_CppParam]
) -> CppOverload | None:
    """Return one overload, or None if it rejects the Python function's arguments."""
    targets = [p for p in cpp_params if p.type != "stream"]
    chosen: dict[int, PythonParam] = {}
    free = list(params)
    for by_name in (True, False):
        for i, target in enumerate(targets):
            if i in chosen:
                continue
            for param in free:
                if (not by_name or param.name == target.name) and _fits(param, target):
                    chosen[i] = param
                    free.remove(param)
                    break
    if len(chosen) != len(targets) or any(not p.takes_none for p in free):
        return None
    return CppOverload(cpp, [_slot(chosen[i], target) for i, target in enumerate(targets)])


def _fits(param: PythonParam, target: _CppParam) -> bool:
    if not target.type:
        return False
    if param.kind == "*":
        return target.type == "arrays"
    if param.annotation.startswith("Literal"):
        return target.type in ("str", "fftnorm")
    return any(target.type in _ALTERNATIVES.get(a, ()) for a in _alternatives(param.annotation))


def _alternatives(annotation: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(annotation):
        depth += {"[": 1, "]": -1}.get(c, 0)
        if c == "|" and depth == 0:
            parts.append(annotation[start:i].strip())
            start = i + 1
    return [*parts, annotation[start:].strip()]


def _slot(param: PythonParam, target: _CppParam) -> Slot:
    alternatives, type_ = _alternatives(param.annotation), target.type
    if target.optional and type_ == "array" and param.name == "key":
        return Slot(param.name, "key")
    if target.optional:
        return Slot(param.name, type_, optional=True)
    if type_ == "array" and "scalar" in alternatives:
        type_ = "weak"
    elif "int" in alternatives and type_ in ("ints", "shape", "pair", "triple"):
        type_ += "1"
    return Slot(param.name, type_)


def combined(tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of all releases, newest first, as JSON with one function per line."""
    older = {
        old["mlx"]: {part: changed(new[part], old[part]) for part in PARTS}
        for new, old in itertools.pairwise(tables)
    }
    return as_text(tables[0], older)


def changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes from the newer table to the older one; None removes a value."""
    here = {name: old[name] for name in sorted(old) if new.get(name) != old[name]}
    return {**here, **dict.fromkeys(sorted(new.keys() - old.keys()))}


def from_mlx() -> dict[str, Any]:
    """Return the part of the stored table that MLX determines, as ``derive`` does for a release."""
    functions = {
        name: {key: record[key] for key in FROM_MLX if key in record}
        for name, record in stored()["functions"].items()
        if "overloads" in record
    }
    return {"mlx": stored()["mlx"], "functions": functions, "aliases": stored()["aliases"]}


def as_text(newest: Mapping[str, Any], older: Mapping[str, Any]) -> str:
    """Return the table as JSON: the derived and the hand-written part."""
    derived, own = newest["functions"], written()
    names = dict.fromkeys([*sorted(derived), *own])
    whole = {
        "mlx": newest["mlx"],
        "functions": {name: {**derived.get(name, {}), **own.get(name, {})} for name in names},
        "aliases": dict(sorted(newest["aliases"].items())),
        "older": older,
    }
    levels = {"mlx": 0, "older": 3}
    parts = [f' "{key}": {as_json(part, levels.get(key, 1), " ")}' for key, part in whole.items()]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    Functions.model_validate_json(text)
    return text


if __name__ == "__main__":
    TABLE.write_text(as_text(from_mlx(), stored()["older"]), encoding="utf-8")
