"""Writes the table of functions, mlxgen/formula/data/functions.json.

The table combines facts from MLX's releases with hand-written ones from tools/functions.txt, whose
first lines explain all of them. ``python -m tools.mlx_releases`` downloads the releases, and
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
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from mlxgen.formula.mlx import PARTS, TABLE, PythonParam, Trace, stored
from mlxgen.plugins.importers import stubs

from .functions import Functions

HEADERS = ("ops.h", "einsum.h", "linalg.h", "fft.h", "random.h", "fast.h")
WRITTEN = Path(__file__).with_name("functions.txt")
FROM_MLX = ("signatures", "result", "overloads", "method")  # keys of a record from MLX


def rows(table: Path, sign: str) -> list[list[str]]:
    """Return the lines of a table without comments, split at a separator."""
    lines = table.read_text(encoding="utf-8").splitlines()
    return [
        [part.strip() for part in line.split(sign)] for line in lines if line and line[0] != "#"
    ]


def section(name: str) -> list[list[str]]:
    """Return the rows of a section of the hand-written table."""
    return _sections()[name]


@cache
def _sections() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    row: list[str] = []
    for parts in rows(WRITTEN, " : "):
        if parts[0].startswith("["):
            found[parts[0][1:-1]] = listed = []
        else:  # a row without names continues the names of the previous row
            row = parts if parts[0] else [a or b for a, b in zip(parts, row, strict=True)]
            listed.append(row)
    return found


def _by_name(name: str) -> dict[str, list[list[str]]]:
    """Return the rows of a section, without the name, by name."""
    found: dict[str, list[list[str]]] = {}
    for names, *rest in section(name):
        for each in names.split():
            found.setdefault(each, []).append(rest)
    return found


def written() -> dict[str, dict[str, Any]]:
    """Return the hand-written parts of the records."""
    found: dict[str, dict[str, Any]] = {name: {} for name in _by_name("operations")}
    for name, lines in _by_name("effects").items():
        (text,) = lines
        rank, dtype, degree, *more = text[0].split()
        trace = next((word for word in more if word in get_args(Trace)), "-")
        words = {"rank": rank, "dtype": dtype, "degree": degree, "shapeless": trace}
        effect: dict[str, Any] = {key: word for key, word in words.items() if word != "-"}
        if "repeats" in more:
            effect["repeats"] = True
        if unknown := {*more} - {trace, "repeats", "wrapped"}:
            raise ValueError(f"{name} has {unknown}")
        found.setdefault(name, {})["effect"] = effect
    for name, lines in _by_name("operations").items():
        found[name]["operations"] = [_operation(name, *line) for line in lines]
    for name, lines in _by_name("calls").items():
        key = "signatures" if lines[0][0] == "mlx" else lines[0][0]
        found.setdefault(name, {})[key] = [
            [_pack(param) for param in _parsed(text, "")] for _, text in lines
        ]
    for name, (reason,) in _by_name("omitted").items():
        found.setdefault(name, {})["omitted"] = reason[0]
    return found


def _operation(name: str, takes: str, gives: str, cpp: str) -> list[Any]:
    text = cpp.replace("{name}", name)
    called = re.match(r"(?:mx|mlxgen)::(\w+)\(.*\{s\}", text)  # functions with a stream are MLX's
    return [takes.split(), gives, text, called[1] if called else ""]


def derive(root: Path) -> dict[str, Any]:
    """Return the part of the table that MLX determines, for the release in the folder ``root``.

    Raises ``ValueError`` if the overloads of a function in the stubs can neither be derived nor are
    hand-written, unless the function is omitted.
    """
    overloads = _overloads(root / "include" / "mlx")
    omitted, special = _by_name("omitted"), _by_name("overloads")
    operations = {name for name, (call, *_) in _by_name("calls").items() if call[0] == "mlx"}
    functions: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    found = stubs.read(root)
    for name, function in found.functions.items():
        node = function.overloads[0]
        if name in omitted or name in operations:
            continue
        if not _gives_arrays(node) and name not in special:
            continue
        try:
            functions[name] = _derive_function(name, node, overloads)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    for name, signatures in _by_name("C++ only").items():
        _add_from_headers(functions, name, [_parsed(text) for (text,) in signatures], overloads)
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


def _derive_function(
    name: str, node: ast.FunctionDef, overloads: Mapping[str, list[tuple[str, list[_CppParam]]]]
) -> dict[str, Any]:
    signatures = _written_signatures(name) or [_params(node.args)]
    if name in _by_name("overloads"):
        return _written_function(name, signatures)
    cpp = dict(section("C++ names")).get(name, name.replace(".", "::"))
    if cpp not in overloads:
        raise ValueError(f"no function {cpp} in the headers")
    found, results = [], set()
    for returned, cpp_params in overloads[cpp]:
        overload = _align(cpp, signatures[0], cpp_params)
        if overload is not None and overload not in found:
            found.append(overload)
            results.add(returned + ("" if any(p.type == "stream" for p in cpp_params) else "!"))
    if len(results) != 1:
        raise ValueError(f"{len(found)} overloads with results {sorted(results)}")
    result = results.pop()
    stub = ast.unparse(node.returns) if node.returns else ""
    exact = re.fullmatch(r"tuple\[((?:array, )*array)\]", stub.replace("mlx.core.", ""))
    if exact and name != "quantize" and ":" not in result:
        result = f"{result}:{exact[1].count('array')}"
    return _function(name, signatures, result, _settle(found))


def _add_from_headers(
    functions: dict[str, dict[str, Any]],
    name: str,
    signatures: Sequence[list[PythonParam]],
    overloads: Mapping[str, list[tuple[str, list[_CppParam]]]],
) -> None:
    """Add a function that Python lacks, or further signatures of one, if the headers have it."""
    cpp, found = name.replace(".", "::"), list[str]()
    for params in signatures:
        aligned = [_align(cpp, params, cpp_params) for _, cpp_params in overloads.get(cpp, ())]
        found += [overload for overload in aligned if overload and overload not in found]
    if found:
        known = functions.get(name)
        new = _function(name, [*signatures], "array", found)
        if known is not None:
            for part in ("signatures", "overloads"):
                new[part] = [*known[part], *(item for item in new[part] if item not in known[part])]
        functions[name] = {**(known or {}), **new}


def _written_signatures(name: str) -> list[list[PythonParam]]:
    """Return the hand-written signatures of a function, if any."""
    return [_parsed(text) for (text,) in _by_name("signatures").get(name, ())]


def _written_function(name: str, signatures: list[list[PythonParam]]) -> dict[str, Any]:
    """Return a function with hand-written overloads, without parameters that a release lacks."""
    names = {param.name for params in signatures for param in params}
    listed = _by_name("overloads")[name]
    return _function(
        name, signatures, listed[0][0], [_of_release(text, names) for _, text in listed]
    )


def _function(
    name: str, signatures: list[list[PythonParam]], result: str, overloads: list[str]
) -> dict[str, Any]:
    if any(name in names.split() and "wrapped" in words for names, words in section("effects")):
        overloads = [f"mlxgen::{overload}" for overload in overloads]
    packed = [[_pack(param) for param in params] for params in signatures]
    return {"signatures": packed, "result": result, "overloads": overloads}


def _of_release(overload: str, names: set[str]) -> str:
    """Return an overload without the parameters that an older release lacks."""
    head, _, rest = overload.partition("(")
    slots = rest[:-1].split(", ")
    own = [s for s in slots if s[0] in "='" or s.partition(":")[0].partition(".")[0] in names]
    return f"{head}({', '.join(own)})"


def _settle(overloads: list[str]) -> list[str]:
    """Sort shorter ones first; an int may replace a list only if no overload takes an int."""
    for param in set(re.findall(r"(\w+):int\b", " ".join(overloads))):
        overloads = [re.sub(rf"\b{param}:(ints|shape)1", rf"{param}:\1", o) for o in overloads]
    overloads = [o.replace(":weak", ":value") if o.count(":weak") == 1 else o for o in overloads]
    return sorted(overloads, key=lambda o: o.count(":"))


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
    strings = dict(section("strings"))  # from the documentation
    return [
        param._replace(annotation=f"Literal{strings[param.name].split()!r}")
        if param.annotation == "str" and param.name in strings
        else param
        for param in stubs.parameters(args, untyped)
    ]


@dataclass(frozen=True, slots=True)
class _CppParam:
    name: str
    type: str  # slot type, "stream", or "" for a type that formulas cannot use
    default: str | None


CPP_TYPES = {
    "array": "array",
    "std::optional<array>": "array?",
    "std::vector<array>": "arrays",
    "int": "int",
    "std::optional<int>": "int?",
    "std::vector<int>": "ints",
    "std::optional<std::vector<int>>": "ints?",
    "Shape": "shape",
    "Strides": "strides",
    "bool": "bool",
    "std::optional<bool>": "bool?",
    "float": "float",
    "double": "float",
    "std::optional<float>": "float?",
    "Dtype": "dtype",
    "std::optional<Dtype>": "dtype?",
    "std::string": "str",
    "std::pair<int, int>": "pair",
    "std::tuple<int, int, int>": "triple",
    "size_t": "size",
    "uint64_t": "size",
    "FFTNorm": "fftnorm",
    "StreamOrDevice": "stream",
}
CPP_RESULTS = {
    "array": "array",
    "std::vector<array>": "arrays",
    "std::pair<array, array>": "tuple:2",
    "std::tuple<array, array>": "tuple:2",
}


def _overloads(include: Path) -> dict[str, list[tuple[str, list[_CppParam]]]]:
    """Return the result and parameters of each overload in MLX's headers, by its C++ name."""
    found: dict[str, list[tuple[str, list[_CppParam]]]] = {}
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
    return _CppParam(name, CPP_TYPES.get(type_, ""), default.strip() or None)


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


def _align(cpp: str, params: Sequence[PythonParam], cpp_params: Sequence[_CppParam]) -> str | None:
    """Return one overload as text, or None if it rejects the Python function's arguments."""
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
    slots = [f"{chosen[i].name}:{_slot_type(chosen[i], t.type)}" for i, t in enumerate(targets)]
    return f"{cpp}({', '.join(slots)})"


def _fits(param: PythonParam, target: _CppParam) -> bool:
    base = target.type.removesuffix("?")
    if not base:
        return False
    if param.kind == "*":
        return base == "arrays"
    if param.annotation.startswith("Literal"):
        return base in ("str", "fftnorm")
    return any(base in _ALTERNATIVES.get(a, ()) for a in _alternatives(param.annotation))


def _alternatives(annotation: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(annotation):
        depth += {"[": 1, "]": -1}.get(c, 0)
        if c == "|" and depth == 0:
            parts.append(annotation[start:i].strip())
            start = i + 1
    return [*parts, annotation[start:].strip()]


def _slot_type(param: PythonParam, type_: str) -> str:
    alternatives = _alternatives(param.annotation)
    if param.name == "key" and type_ == "array?":
        return "key"
    if type_ == "array" and "scalar" in alternatives:
        return "weak"
    if "int" in alternatives and type_ in ("shape", "pair", "triple"):
        return f"{type_}1"
    if "int" in alternatives and type_ == "ints":
        return "ints1"
    return type_


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
    lines = WRITTEN.read_text(encoding="utf-8").splitlines()
    header = itertools.takewhile(lambda line: line.startswith("#"), lines)
    whole = {
        "format": [line[2:] for line in header],
        "mlx": newest["mlx"],
        "functions": {name: {**derived.get(name, {}), **own.get(name, {})} for name in names},
        "aliases": dict(sorted(newest["aliases"].items())),
        "older": older,
    }
    levels = {"mlx": 0, "older": 3}
    parts = [f' "{key}": {_json(part, levels.get(key, 1), " ")}' for key, part in whole.items()]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    Functions.model_validate_json(text)
    return text


def _json(value: Any, levels: int, indent: str) -> str:
    """Return JSON in which the first ``levels`` levels have a line for each item."""
    if not levels or not value:
        return json.dumps(value)
    if isinstance(value, list):
        parts, ends = [json.dumps(item) for item in value], "[]"
    else:
        parts = [
            f"{json.dumps(key)}: {_json(item, levels - 1, indent + ' ')}"
            for key, item in value.items()
        ]
        ends = "{}"
    inner = f",\n{indent} ".join(parts)
    return f"{ends[0]}\n{indent} {inner}\n{indent}{ends[1]}"


if __name__ == "__main__":
    TABLE.write_text(as_text(from_mlx(), stored()["older"]), encoding="utf-8")
