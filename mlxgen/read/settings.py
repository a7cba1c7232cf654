"""Reads the settings of a project: the ``[tool.mlxgen]`` table of its pyproject.toml.

Every key has a default (``PATHS``, ``TESTS``), so that a package with the usual layout needs no
table. The user documentation explains the keys. Only ``yaml`` and ``python`` must exist; ``yaml``
can be a list of paths and patterns. Paths are relative to pyproject.toml and must be inside the
project. The version, and without ``mlx`` the release of MLX that the package pins, come from the
``[project]`` table.

This module runs before the build requirements are installed, and therefore uses only the standard
library (and tomli on Python 3.10).
"""

from __future__ import annotations

import errno
import keyword
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from ..diagnostics import Diagnostics, Span, Text, did_you_mean
from ..model import languages
from . import MESSAGES, unreadable
from .names import clash

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATHS = {
    "yaml": "mlx_ops.yaml",  # the operators; can also be a list
    "csrc": "csrc",  # hand-written C++: CPU kernels (*.h), *.cpp
    "metal": "kernels/metal",  # hand-written Metal kernels
    "python": "python/{name}",  # the importable package
    "docs": "docs",  # the generated reference of the operators
}
TESTS = ("tests",)  # folders or files that `mlxgen metal-test` runs
LISTS = {"tests": "paths", "mlx": "releases", "uses": "packages", "languages": "languages"}
KEYS = ("name", "namespace", *PATHS, *LISTS)

OLDEST_MLX = "0.31.0"  # generated code does not compile with older ones

# Names that would hide packages that generated code imports or links.
RESERVED_NAMES = frozenset({"mlx", "mlxgen", "nanobind"})

# The maximum size of a file of operators.
MAX_BYTES = 5_000_000

_FILE = "pyproject.toml"
_TABLE = re.compile(
    r"^[ \t]*(?P<header>\[([^\[\]\n]+)\])(?P<body>.*?)(?=^[ \t]*\[|\Z)", re.M | re.S
)
_PATTERN = re.compile(r"[*?[]")
_NAMESPACE = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", re.ASCII)
_MLX = re.compile(r"\s*mlx\s*(?:\[[^]]*\])?\s*(?![\w.-])\(?(?P<versions>[^;)]*)")
_DISTRIBUTION = re.compile(r"\s*([\w.-]+)")
_EXACT = re.compile(r"==\s*([\w.!+]+)\s*")
_VERSION = re.compile(r"\s*(~=|===?|!=|<=?|>=?)\s*([\w.!+]+?)(\.\*)?\s*")
_RELEASE = re.compile(r"\d+\.\d+\.\d+\w*", re.ASCII)
_OWN_VERSION = re.compile(r"\w[\w.!+-]*", re.ASCII)  # goes into Python and CMake


class Use(NamedTuple):
    """Another package whose operators formulas may call."""

    name: str
    span: Span  # of the setting


class Settings(NamedTuple):
    """The resolved settings of a project: names and absolute paths."""

    root: Path
    name: str
    namespace: str
    yaml: Path  # the first file of operators, to which new ones are added
    csrc: Path
    metal: Path
    python: Path
    docs: Path
    tests: tuple[Path, ...]
    version: str
    mlx: str | None  # the release that entries are checked against: the oldest of `releases`
    releases: tuple[str, ...] = ()  # that packages are built for, newest first; none: the installed
    uses: tuple[Use, ...] = ()  # packages that mlxgen built, whose operators formulas may call
    dependencies: tuple[str, ...] = ()  # the names of the distributions that it requires
    languages: tuple[str, ...] = ()  # that can call the operators (model/languages.py)
    called: tuple[tuple[Path, str], ...] = ()  # paths that messages show by other names
    more: tuple[Path, ...] = ()  # the other files of operators

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of operators, in order."""
        return (self.yaml, *self.more)

    def relative(self, path: Path) -> str:
        """Return ``path`` as shown in messages: relative to the project if it is inside."""
        if name := dict(self.called).get(path):
            return name
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else str(path)


def find(folder: Path) -> Path | None:
    """Find the project of a folder: the nearest parent whose pyproject.toml mentions mlxgen."""
    for root in (folder, *folder.parents):
        with suppress(OSError):
            # Reading a pipe would never end.
            if (root / _FILE).is_file() and b"mlxgen" in (root / _FILE).read_bytes():
                return root
    return None


def load(root: Path, diagnostics: Diagnostics, yaml: Path | None = None) -> Settings | None:
    """Read the settings of the project in the folder ``root``; None if an error was reported.

    ``yaml`` replaces the project's files of operators, unless it is one of them.
    """
    root = root.resolve()
    reader = _Reader(diagnostics)
    document = reader.document(root / _FILE)
    return None if document is None else _resolve(root, document, reader, yaml)


def _resolve(
    root: Path, document: dict[str, Any], reader: _Reader, yaml: Path | None
) -> Settings | None:
    project = reader.table(document, "project")
    table = reader.table(reader.table(document, "tool"), "mlxgen", "tool")
    for key, value in table.items():
        what = f"a list of {LISTS[key]}" if key in LISTS else "a string"
        what = "a path or a list of paths" if key == "yaml" else what
        if key not in KEYS:
            near, known = did_you_mean(key, KEYS), list(KEYS)
            reader.error("unknown_setting", key, part="key", near=near, known=known)
        elif not _fits(key, value):
            reader.error("wrong_setting", key, what=what, value=value)
    given = {key: value for key, value in table.items() if _fits(key, value)}
    name = given.get("name", re.sub(r"[-.]", "_", str(project.get("name", ""))))
    namespace = given.get("namespace", name)
    if not reader.failed and not _is_package(name):
        reader.error("no_package_name", "name", name=name)
    elif not reader.failed and not _is_namespace(namespace):
        reader.error("no_namespace", "namespace", name=namespace)

    def path(key: str, text: str) -> Path:
        found = Path(os.path.realpath(root / text.replace("\0", "/")))
        if Path(text).is_absolute() or "\0" in text or not found.is_relative_to(root):
            reader.error("path_outside", key)
        return found

    def files(texts: str | list[str]) -> Iterator[Path]:
        for text in [texts] if isinstance(texts, str) else texts:
            place = path("yaml", text)
            known = reader.failed or not _PATTERN.search(text)
            found = [] if known else sorted(glob(text, root_dir=root))
            matches = [path("yaml", match) for match in found if os.path.isfile(root / match)]
            yield from matches or [place]

    uses = [Use(text, reader.place("uses")) for text in dict.fromkeys(given.get("uses", ()))]
    for used in uses:
        if not _is_package(used.name) or used.name == name:
            reader.error("no_other_package", "uses", name=used.name)
    version = project.get("version", "0")
    if not isinstance(version, str) or not _OWN_VERSION.fullmatch(version):
        reader.error("no_version", "version", table="project", version=version)
    named = {key: given.get(key, PATHS[key].format(name=name)) for key in PATHS}
    first, *more = files(named.pop("yaml"))
    if yaml is not None and Path(os.path.realpath(yaml)) not in (first, *more):
        first, more = yaml.absolute(), []
    releases = _releases(given.get("mlx"), project, reader)
    settings = Settings(
        root=root,
        name=name,
        namespace=namespace,
        tests=tuple(path("tests", text) for text in given.get("tests", TESTS)),
        version=version,
        mlx=releases[-1] if releases else None,
        releases=releases,
        uses=tuple(uses),
        dependencies=_required(project.get("dependencies", [])),
        languages=_languages(given.get("languages", ()), reader),
        called=(),
        yaml=first,
        more=tuple(more),
        **{key: path(key, text) for key, text in named.items()},
    )
    if reader.failed:
        return None
    for i, file in enumerate(settings.files if yaml is None or more else ()):
        shown = settings.relative(file)
        if file in settings.files[:i]:
            reader.error("file_twice", "yaml", file=shown)
        elif not os.path.isfile(file):
            wrong = "unmatched_pattern" if _PATTERN.search(shown) else "no_file"
            reader.error(wrong, "yaml", file=shown)
    if not os.path.isfile(settings.python / "__init__.py"):
        folder = settings.relative(settings.python)
        reader.error("no_init", "python", folder=folder, name=name)
    elif settings.python.name != name:
        reader.error("folder_of_other_name", "python", name=name)
    return None if reader.failed else settings


def _languages(listed: Sequence[str], reader: _Reader) -> tuple[str, ...]:
    """Return the languages of a package with those that their interfaces need."""
    for name in dict.fromkeys(name for name in listed if not languages.exists(name)):
        known = languages.names()
        about: Any = {"name": name, "near": did_you_mean(name, known), "known": known}
        reader.error("unknown_language", "languages", **about)
    try:
        return languages.with_required(filter(languages.exists, listed))
    except languages.LanguageError as error:
        reader.error("language_error", "languages", error=error)
        return ()


def _is_package(name: str) -> bool:
    """Return whether the name can be that of a package."""
    usable = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return usable and name not in RESERVED_NAMES


def _is_namespace(text: str) -> bool:
    """Return whether the name is a C++ namespace that generated code can open."""
    words = text.split("::")
    usable = _NAMESPACE.fullmatch(text) and words[0] not in ("std", "mx", "mlxgen")
    return bool(usable) and all(clash(word, "an operator") is None for word in words)


def _fits(key: str, value: object) -> bool:
    """Check that a setting is a string, or a list of strings, and no string empty."""
    if isinstance(value, list) and key in (*LISTS, "yaml"):
        return value != [] and all(_fits("", text) for text in value)
    return isinstance(value, str) and value != "" and key not in LISTS


def _releases(
    listed: list[str] | None, project: dict[str, Any], reader: _Reader
) -> tuple[str, ...]:
    """Return the releases of MLX to build for, newest first: the setting's, else the pinned one."""
    releases = _pinned(project, reader) if listed is None else _listed(listed, project, reader)
    key, table = ("dependencies", "project") if listed is None else ("mlx", "tool.mlxgen")
    for release in releases:
        if numbers(release) < numbers(OLDEST_MLX):
            reader.error("old_release", key, table=table, oldest=OLDEST_MLX, release=release)
    return tuple(sorted(releases, key=numbers, reverse=True))


def _pinned(project: dict[str, Any], reader: _Reader) -> set[str]:
    """Return the release in ``mlx==0.32.4`` among the dependencies; an empty set without MLX."""
    specs = [spec for _, spec in _mlx_specs(project.get("dependencies", []))]
    found = [_EXACT.fullmatch(spec) for spec in specs]
    pins = {match[1] for match in found if match}
    if None in found or len(pins) > 1:
        reader.error("no_exact_release", "dependencies", table="project")
        return set()
    return pins


def _listed(listed: list[str], project: dict[str, Any], reader: _Reader) -> set[str]:
    """Return the releases that the setting ``mlx`` lists, all of which MLX's dependency allows."""
    for release in listed:
        if not _RELEASE.fullmatch(release):
            reader.error("no_release", "mlx", release=release)
            return set()
    extras = reader.table(project, "optional-dependencies")
    requirements = [project.get("dependencies", []), *extras.values()]
    for text, spec in (found for each in requirements for found in _mlx_specs(each)):
        for release in listed:
            if not _allows(spec, release):
                reader.error("excluded_release", "mlx", dependency=text, release=release)
                return set()
    return set(listed)


def _required(requirements: object) -> tuple[str, ...]:
    """Return the names of the required distributions."""
    texts = requirements if isinstance(requirements, list) else []
    found = (_DISTRIBUTION.match(str(text)) for text in texts)
    return tuple(match[1] for match in found if match)


def _mlx_specs(requirements: object) -> list[tuple[str, str]]:
    """Return the requirements on MLX, each with the versions that it allows: ``>=0.32,<0.33``."""
    texts = requirements if isinstance(requirements, list) else [requirements]
    found = [(str(text), _MLX.match(str(text))) for text in texts]
    return [(text, match["versions"].strip()) for text, match in found if match]


def _allows(spec: str, release: str) -> bool:
    """Check a release against the versions of a requirement; their syntax is checked by pip."""
    ours = numbers(release)
    for part in filter(None, spec.split(",")):
        found = _VERSION.fullmatch(part)
        if found is None:
            continue
        sign, text, wildcard = found.groups()
        given = tuple(map(int, re.findall(r"\d+", text)))
        prefix = given if wildcard else given[:-1]
        same = ours[: len(given)] == given if wildcard else ours == _padded(given)
        allowed = {
            "==": same,
            "===": release == text,
            "!=": not same,
            "~=": ours >= _padded(given) and ours[: len(prefix)] == prefix,
            "<": ours < _padded(given),
            "<=": ours <= _padded(given),
            ">": ours > _padded(given),
            ">=": ours >= _padded(given),
        }
        if not allowed[sign]:
            return False
    return True


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    """Return a release with three numbers."""
    return (*release, 0, 0)[:3]


def numbers(release: str) -> tuple[int, ...]:
    """Return a release as a comparable tuple: (0, 32, 4) for 0.32.4.dev1."""
    return tuple(map(int, re.findall(r"\d+", release)[:3]))


class _Reader:
    """Reads pyproject.toml and reports errors with locations.

    tomllib provides no locations, so keys are searched in the text.
    """

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics
        self.text = Text(_FILE, "")
        self.failed = False

    def document(self, path: Path) -> dict[str, Any] | None:
        try:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, path)
            self.text = Text(_FILE, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            self.error("unreadable_settings", "", path=path, **unreadable(error))
            return None
        self.diagnostics.add_source(_FILE, self.text.text)
        try:
            return tomllib.loads(self.text.text)
        except tomllib.TOMLDecodeError as error:
            message, _, place = str(error).partition(" (at ")
            line, column = re.findall(r"\d+", place) or (len(self.text.lines), 1)
            span = Span(_FILE, int(line), int(column), int(line), int(column) + 1)
            self.diagnostics.error(MESSAGES("not_toml", message=message), span)
        except RecursionError:
            self.diagnostics.error(MESSAGES("deep_toml"), Span(_FILE, 1, 1, 1, 1))
        return None

    def table(self, parent: dict[str, Any], key: str, table: str = "") -> dict[str, Any]:
        """Return a table inside a ``table``; empty if it is missing."""
        inside = f"{table}." if table else ""
        found = parent.get(key, {})
        if isinstance(found, dict):
            return found
        self.error("no_table", key, table=table, inside=inside, value=found)
        return {}

    def error(
        self, wrong: str, key: str, table: str = "tool.mlxgen", part: str = "value", **about: Any
    ) -> None:
        """Report a message of messages.yaml at a key or its value; the key is a parameter."""
        self.failed = True
        self.diagnostics.error(MESSAGES(wrong, key=key, **about), self.place(key, table, part))

    def place(self, key: str, table: str = "tool.mlxgen", part: str = "value") -> Span:
        """Return the location of a key or its value.

        If it is missing, the location is that of its table, or the first line.
        """
        text = self.text.text
        first = re.search(r"^[ \t]*\[|\Z", text, re.M)
        dotted = re.compile(
            rf"^[ \t]*(?P<key>({re.escape(table)}\.)?{re.escape(key)})[ \t]*=", re.M
        )
        above = dotted.search(text, 0, first.start() if first else 0)
        span = self.text.at(*above.span("key")) if above else Span(_FILE, 1, 1, 1, 1)
        name = rf"^[ \t]*(?P<key>[\"']?{re.escape(key)}[\"']?)[ \t]*="
        pattern = re.compile(name + r"[ \t]*(?P<value>[^#\n]*[^#\s])?", re.M)
        for found in _TABLE.finditer(self.text.text):
            if re.sub(r"[\s\"']", "", found[2]) == table:
                at = pattern.search(self.text.text, *found.span("body"))
                place = at.span(part if at[part] else "key") if at else found.span("header")
                span = self.text.at(*place)
        return span
