"""What a project says about itself: the ``[tool.mlxgen]`` table of its pyproject.toml.

Every key has a default, so that a package with the usual layout needs no table at all:

=========== ======================= ====================================================
key         default                 what it is
=========== ======================= ====================================================
name        the distribution's name import name of the package and name of its library
namespace   the name                C++ namespace of the generated code
yaml        ``mlx_ops.yaml``        the operators
csrc        ``csrc``                hand-written C++: CPU kernels (``*.h``), ``*.cpp``
metal       ``kernels/metal``       hand-written Metal kernels
python      ``python/<name>``       the importable package
docs        ``docs``                where the reference of the operators is written
tests       ``["tests"]``           what ``mlxgen metal-test`` runs: folders or files
=========== ======================= ====================================================

Only ``yaml`` and ``python`` must exist. Paths are relative to pyproject.toml and stay inside the
project. Two facts are taken from the ``[project]`` table rather than said again: the version, and
the release of MLX that the package pins.

This module runs before the build requirements are there: it needs the standard library only (and
tomli on Python 3.10).
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostics, Span, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PATHS = {
    **{"yaml": "mlx_ops.yaml", "csrc": "csrc", "metal": "kernels/metal"},
    **{"python": "python/{name}", "docs": "docs"},
}
KEYS = ("name", "namespace", *_PATHS, "tests")

# Names that would hide the packages which generated code imports or links.
RESERVED_NAMES = frozenset({"mlx", "mlxgen", "nanobind"})


@dataclass(frozen=True, slots=True)
class Settings:
    """A project, resolved: names, and absolute paths."""

    root: Path
    name: str
    namespace: str
    yaml: Path
    csrc: Path
    metal: Path
    python: Path
    docs: Path
    tests: tuple[Path, ...]
    version: str
    mlx: str | None  # the release that [project] dependencies pin with ==

    def relative(self, path: Path) -> str:
        """``path`` as messages show it: relative to the project where it lies inside."""
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else str(path)


def load(root: Path, diagnostics: Diagnostics) -> Settings | None:
    """The settings of the project in the folder ``root``; None when something was reported as an
    error."""
    root = root.resolve()
    reader = _Reader(root / "pyproject.toml", diagnostics)
    before = len(diagnostics)
    document = reader.read()
    settings = _resolve(root, document, reader) if document is not None else None
    return settings if len(diagnostics) == before else None


def _resolve(root: Path, document: dict[str, Any], reader: _Reader) -> Settings:
    project = reader.table(document, "project")
    table = reader.table(reader.table(document, "tool"), "mlxgen")
    for key, value in table.items():
        if key not in KEYS:
            message = f"unknown key '{key}' in [tool.mlxgen]" + did_you_mean(key, KEYS)
            help = f"the keys are {', '.join(KEYS)}"
            reader.error("MG703", message, key, whole_key=True, help=help)
        elif key == "tests" and not _texts(value):
            reader.error("MG704", "'tests' must be a list of paths", key)
        elif key != "tests" and not (isinstance(value, str) and value):
            reader.error("MG704", f"'{key}' must be a text, not {_describe(value)}", key)
    tests = _texts(table.get("tests")) or ["tests"]
    table = {key: value for key, value in table.items() if isinstance(value, str) and value}

    name = table.get("name", re.sub(r"[-.]", "_", str(project.get("name", ""))))
    namespace = table.get("namespace", name)
    _check_names(name, namespace, reader)
    paths = {
        key: _path(root, key, table.get(key, default.format(name=name)), reader)
        for key, default in _PATHS.items()
    }
    shown = {key: path.relative_to(root) for key, path in paths.items()}
    if not paths["yaml"].is_file():
        message = f"the operators' file '{shown['yaml']}' does not exist"
        reader.error("MG706", message, "yaml")
    if not (paths["python"] / "__init__.py").is_file():
        help = f"it needs one line: from {name}._load import *"
        message = f"the package '{shown['python']}' has no __init__.py"
        reader.error("MG706", message, "python", help=help)
    elif paths["python"].name != name:
        message = f"the package's folder must be called '{name}', as 'name' says"
        reader.error("MG707", message, "python")
    return Settings(
        root=root,
        name=name,
        namespace=namespace,
        tests=tuple(_path(root, "tests", text, reader) for text in tests),
        version=str(project.get("version", "0")),
        mlx=_mlx_pin(project.get("dependencies", []), reader),
        **paths,
    )


def _check_names(name: str, namespace: str, reader: _Reader) -> None:
    usable = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    if not usable or name in RESERVED_NAMES:
        reader.error("MG705", f"'{name}' cannot be the name of a package", "name")
    elif not all(re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) for part in namespace.split("::")):
        reader.error("MG705", f"'{namespace}' cannot be a C++ namespace", "namespace")


def _texts(value: object) -> list[str]:
    """A list of texts, none of them empty; or else nothing."""
    good = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
    return list(value) if good and isinstance(value, list) else []


def _path(root: Path, key: str, text: str, reader: _Reader) -> Path:
    path = (root / text).resolve()
    if Path(text).is_absolute() or not path.is_relative_to(root):
        reader.error("MG708", f"'{key}' must be a path inside the project", key)
        return root
    return path


def _mlx_pin(dependencies: object, reader: _Reader) -> str | None:
    """The release in ``mlx[cpu]==0.32.4`` among the dependencies."""
    found = set()
    for text in dependencies if isinstance(dependencies, list) else []:
        match = re.match(r"\s*mlx\s*(?:\[[^]]*\])?\s*(?P<spec>[^;]*)", str(text))
        if match and not re.match(r"[\w.-]", match["spec"]):
            exact = re.fullmatch(r"==\s*([\w.!+]+)\s*", match["spec"])
            found.add(exact[1] if exact else "")
    if "" in found or len(found) > 1:
        help = 'the C++ interface of MLX changes between patch releases; write "mlx[cpu]==X.Y.Z"'
        message = "the dependency on mlx must name one exact release"
        reader.error("MG709", message, "dependencies", table="project", help=help)
        return None
    return found.pop() if found else None


def _describe(value: object) -> str:
    return "an empty text" if value == "" else f"{value!r}"


class _Reader:
    """pyproject.toml with places to report: tomllib keeps none, so keys are found again in the
    text."""

    def __init__(self, path: Path, diagnostics: Diagnostics) -> None:
        self.path = path
        self.diagnostics = diagnostics
        self.lines: list[str] = []

    def read(self) -> dict[str, Any] | None:
        here = Span("pyproject.toml", 1, 1, 1, 1)
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.diagnostics.error("MG701", f"cannot read {self.path}: {reason}", here)
            return None
        self.lines = text.splitlines()
        self.diagnostics.add_source("pyproject.toml", text)
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message, line, column = str(error), len(self.lines), 1
            place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
            if place:
                message = message[: place.start()]
                line, column = int(place[1] or line), int(place[2] or column)
            here = Span("pyproject.toml", line, column, line, column + 1)
            self.diagnostics.error("MG702", message, here)
            return None

    def table(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        """A table in a table; empty when it is not there."""
        found = parent.get(key, {})
        if isinstance(found, dict):
            return found
        self.error("MG704", f"'{key}' must be a table, not {_describe(found)}", key)
        return {}

    def error(
        self,
        code: str,
        message: str,
        key: str,
        *,
        table: str = "tool.mlxgen",
        whole_key: bool = False,
        help: str | None = None,
    ) -> None:
        self.diagnostics.error(code, message, self.span(table, key, whole_key), help=help)

    def span(self, table: str, key: str, whole_key: bool) -> Span:
        """Where ``key`` or its value stands; the table's header, or the first line, when the key is
        not written."""
        current, header = "", Span("pyproject.toml", 1, 1, 1, 1)
        pattern = re.compile(
            rf"\s*(?P<key>[\"']?{re.escape(key)}[\"']?)\s*=\s*(?P<value>[^#]*[^#\s])?"
        )
        for number, line in enumerate(self.lines, 1):
            heading = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
            if heading:
                current = re.sub(r"[\s\"']", "", heading[1])
                if current == table:
                    header = _span(number, line, heading.start(), heading.end())
            elif current == table and (match := pattern.match(line)):
                part = "key" if whole_key or match["value"] is None else "value"
                return _span(number, line, *match.span(part))
        return header


def _span(number: int, line: str, start: int, end: int) -> Span:
    start += len(line[start:end]) - len(line[start:end].lstrip())
    return Span("pyproject.toml", number, start + 1, number, end + 1)
