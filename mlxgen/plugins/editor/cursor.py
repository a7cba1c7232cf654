"""Finds the position of the cursor in an entry, and the completions that are valid there.

An entry is rarely valid YAML while it is typed. The module therefore inspects its text: the keys
of the lines above, by indentation, and the open brackets. The JSON Schema defines the values of
each key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ...check.context import SIGNATURES
from ...diagnostics import LINE_BREAK
from ...formula import mlx
from ...formula.compile import VALUES
from ...formula.mlx import MODULES, table
from ...model.dtypes import ACCUMULATOR, CATEGORIES, DTYPES
from ...model.signature import Signature
from ...read.keys import json_schema
from ...read.signature import parse_signature

if TYPE_CHECKING:
    from .project import Project

_LINE = re.compile(r"( *(?:- +)*)(?:[\"']?(\w[\w, ]*)[\"']?\s*:(?=\s|$))?(.*)")
_TOKEN = re.compile(
    r"([\"'](?P<keys>\w[\w, ]*)[\"']|(?P<key>\w+))\s*:(?=\s|\Z)"
    r"|\"(?:\\.|[^\"\\])*\"?|'(?:''|[^'])*'?|[\[{\]},]|.",
    re.DOTALL,
)
_ENTRY = re.compile(r"^-(?=\s)", re.MULTILINE)
_SAYS = re.compile(r"\s*[^\s#]")  # a line with content: neither empty nor a comment
_SIGNATURE = re.compile(
    rf"\b({'|'.join(SIGNATURES)}):[ \t]*(\"(?:\\.|[^\"\\])*\"|'(?:''|[^'])*'|[^\n\"']+)"
)
_AXES = re.compile(r"^(?:-| ) +axes:(.*(?:\n {3,}\S.*)*)", re.MULTILINE)
_LET = re.compile(r"^(?:-| ) +(let:.*(?:\n {3,}\S.*)*)", re.MULTILINE)
_RESULTS = {"array": "array", "arrays": "list[array]"}  # of MLX's functions
# Further names that are valid in formulas, by the key above the formula.
_OF_KEY = {"grad": ("grad", "none", "zero"), "jvp": ("tangent",)}


class Item(NamedTuple):
    """One completion."""

    name: str
    kind: str  # as in the LSP
    detail: str = ""
    insert: str = ""  # the inserted text, if it differs from the name


class Cursor(NamedTuple):
    """A position in a file: the keys above it and the text at it."""

    path: tuple[str, ...]
    key: bool  # whether a key is valid here
    value: bool  # whether a value is valid here
    word: str  # the word before the cursor, including its dots
    entry: str  # the text of the entire entry

    @classmethod
    def at(cls, text: str, offset: int) -> Cursor | None:
        """Return the cursor before the character at ``offset``; None outside of all entries."""
        begin = max((m.start() for m in _ENTRY.finditer(text, 0, offset)), default=-1)
        if begin < 0:
            return None
        following = _ENTRY.search(text, offset)
        entry = text[begin : following.start() if following else len(text)]
        *lines, last = LINE_BREAK.split(text[begin:offset])
        word = re.findall(r"[\w.]*$", last)[0]
        if last.lstrip()[:1] == "#":
            return None
        above = [(0, "", "")]  # indentation, key and text of the value; the entry itself is first
        for line in [*filter(_SAYS.match, lines), last]:
            match = _LINE.match(line)
            indent, key, value = len(match[1]), match[2], match[3]  # type: ignore[index]
            inside = _goes_on(above[-1][2], indent > above[-1][0])
            if inside:
                above[-1] = (*above[-1][:2], f"{above[-1][2]}\n{line}")
                continue
            while len(above) > 1 and above[-1][0] >= indent:
                above.pop()
            inside = key is not None or value[:1] == "{"
            if inside:
                above.append((indent, key or "", value))
        path = tuple(key for _, key, _ in above if key)
        if inside:
            opened = _opened(above[-1][2])
            is_key = opened[-1:] == [("{", "")]
            path += tuple(key for _, key in opened if key)
            return cls(path, is_key, not is_key, word, entry)
        return cls(path, True, path != (), word, entry) if path or last[:1] in (" ", "-") else None

    def signature(self) -> Signature | None:
        """Return the signature of the entry, or None if it cannot be parsed."""
        for key, text in _SIGNATURE.findall(self.entry):
            try:
                written = str(yaml.safe_load(text))
            except yaml.YAMLError:
                continue
            if found := parse_signature(written, SIGNATURES[key], lambda *_: None):
                return found
        return None

    def axes(self) -> set[str]:
        """Return the names of axes in the entry."""
        text = "".join(_AXES.findall(re.sub(r"#.*", "", self.entry)))
        values = re.findall(r":([^,}\n]*)", text)
        return {word for value in values for word in re.findall(r"[A-Za-z_]\w*", value)}

    def lets(self) -> dict[str, str]:
        """Return the formulas of the entry's `let` by name; empty while it is invalid YAML."""
        for text in _LET.findall(self.entry):
            with suppress(yaml.YAMLError):
                found = yaml.safe_load(text)["let"]
                return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
        return {}


def _goes_on(value: str, deeper: bool) -> bool:
    """Return true if the next line continues ``value``; ``deeper``: it is indented further."""
    value = value.strip()
    first = _TOKEN.match(value)
    if first is None or value[0] == "#":
        return False
    if value[0] in "'\"":
        return len(first[0]) == 1 or first[0][-1] != value[0]
    return bool(_opened(value)) if value[0] in "{[" else deeper


def _opened(value: str) -> list[tuple[str, str]]:
    """Return the open brackets of a value, each with the key whose value it opens."""
    opened: list[tuple[str, str]] = []
    for token in _TOKEN.finditer(value.strip()):
        sign, key = token[0], token["key"] or token["keys"]
        if not opened and sign not in ("{", "["):
            break
        if sign in ("{", "["):
            opened.append((sign, ""))
        elif sign in ("}", "]"):
            opened.pop()
        elif sign == "," or (key and opened[-1] == ("{", "")):
            opened[-1] = opened[-1][0], key or ""
    return opened


# Queries of the schema


@cache
def _schema() -> dict[str, Any]:
    return json_schema()


def _forms(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all alternatives of a part of the schema, with lists replaced by their items."""
    if "$ref" in node:
        yield from _forms(_schema()["$defs"][node["$ref"].rpartition("/")[2]])
    for form in node.get("anyOf", ()):
        yield from _forms(form)
    if "items" in node:
        yield from _forms(node["items"])
    yield node


def forms(path: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Return the parts of the schema that describe the value at a path."""
    found = list(_forms(_schema()["items"]))
    for key in path:
        of = [
            form.get("properties", {}).get(key) or form.get("additionalProperties")
            for form in found
        ]
        found = [form for node in of if isinstance(node, dict) for form in _forms(node)]
    return found


def keys(path: tuple[str, ...]) -> dict[str, str]:
    """Return the keys of the mapping at a path, with their descriptions."""
    known = (form.get("properties", {}) for form in forms(path))
    return {key: node.get("description", "") for of in known for key, node in of.items()}


def is_formula(path: tuple[str, ...]) -> bool:
    """Return true if the value at a path may be a formula."""
    return any(form.get("type") == ["string", "number"] for form in forms(path))


# Completions

_OF_OUTPUTS = ("axes", "shape", "dtype", "returns")  # keys that name arguments and outputs


def items(cursor: Cursor, project: Project) -> Iterator[Item]:
    """Yield all completions at the cursor; the editor filters them by the typed prefix."""
    path, signature = cursor.path, cursor.signature()
    names = [arg.name for arg in signature.declared] if signature else []
    outputs = [output.name for output in signature.outputs] if signature else []
    groups: list[tuple[str, str, Iterable[str]]] = []  # kind, detail, names
    if cursor.key:
        yield from (Item(key, "Property", of, f"{key}: ") for key, of in keys(path).items())
        of = [*names, *outputs] if path and path[0] in _OF_OUTPUTS else names
        for form in forms(path):
            if isinstance(form.get("additionalProperties"), dict):
                known = form.get("propertyNames", {}).get("enum", of)
                yield from (Item(key, "Property", insert=f"{key}: ") for key in known)
    if not cursor.value or not path:
        return
    for form in forms(path):
        groups.append(("EnumMember", "", form.get("enum", filter(None, [form.get("const")]))))
    if path[0] == "dtypes" or path[-1] == "dtype":
        groups.append(("EnumMember", "", (*CATEGORIES, *DTYPES, ACCUMULATOR)))
    if path[0] == "axes":
        groups.append(("Variable", "axis", cursor.axes()))
    if is_formula(path):
        before, dot, _ = cursor.word.rpartition(".")
        yield from _members(before, project.release)
        yield from _used(cursor.word, project)
        if not dot:
            yield from _entries(project)
            groups += [("Variable", "argument", names), ("Variable", "output", outputs)]
            groups += [("Variable", "axis", cursor.axes())]
            yield from (Item(name, "Variable", text) for name, text in cursor.lets().items())
            groups += [("Keyword", "", _OF_KEY.get(path[0], ())), ("Module", "", MODULES)]
            api = table(project.release)
            groups += [("Function", "", (*api.loops, *api.python)), ("Constant", "", VALUES)]
    elif project.sources and (path[0] in ("dispatch", "cpp") or path[-1] == "function"):
        files = project.sources.metal if "metal" in path else project.sources.cpp
        functions = (f for unit in files.all().values() for f in unit.functions)
        groups.append(("Function", "", (f.name for f in functions if not f.class_name)))
    yield from (Item(name, kind, detail) for kind, detail, of in groups for name in of)


def _entries(project: Project) -> Iterator[Item]:
    found: dict[str, list[str]] = {}
    for entry in project.document.entries if project.document else ():
        signatures = [text for key in SIGNATURES for text in entry.words(key)]
        for name in dict.fromkeys((entry.name, entry.python_name)):
            found.setdefault(name or "", []).extend(signatures[:1])
    yield from (Item(name, "Function", "\n".join(texts)) for name, texts in found.items())


def _used(word: str, project: Project) -> Iterator[Item]:
    """Yield what can follow the last dot of a name in a package that the project uses."""
    before, dot, _ = word.rpartition(".")
    modules = set()
    for name, overloads in project.used.items():
        if name.startswith(before + dot):
            own, inside, _ = name.removeprefix(before + dot).partition(".")
            if inside:
                modules.add(own)
            else:
                usages = [operator.signature.python() for operator in overloads]
                yield Item(own, "Function", "\n".join(usages))
    yield from (Item(name, "Module") for name in sorted(modules))


def _members(before: str, release: str | None) -> Iterator[Item]:
    """Yield the members of MLX that are valid after ``before``, which is empty or ends in a dot."""
    module = before.removeprefix("mx.").removeprefix("mx")
    if module not in ("", *MODULES):
        yield from (Item(name, "Property") for name in table(release).attributes)
        methods = table(release).methods
        yield from (Item(name, "Method", usage(name, release, method=True)) for name in methods)
    prefix = f"{module}." if module else ""
    for name in table(release).names:
        own = name.removeprefix(prefix)
        if prefix + own == name and "." not in own and module in ("", *MODULES):
            yield Item(own, "Function", usage(name, release))


@cache
def usage(name: str, release: str | None, method: bool = False) -> str:
    """Return the usage of an MLX function, ``softmax(a: array, ...) -> array``; "" if unknown."""
    api = table(release)
    function = api.method(name) if method else api.function(name)
    if function is None:
        return ""
    result = _RESULTS.get(function.result, "tuple[array, ...]")
    forms = (mlx.usage(params, name, method, typed=True) for params in function.signatures)
    return "\n".join(f"{form} -> {result}" for form in forms)
