"""The languages other than Python and C++ that can call operators; plug-ins add them.

``LANGUAGES`` lists those of mlxgen. Other packages add languages by entry points of the group
``mlxgen.languages``. Each names a ``Language``, which is small, because settings are read before
the requirements of a build are installed. The module that renders a language is imported when an
operator is rendered. Installed packages are searched only for a name that ``LANGUAGES`` lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from .op import Op

LANGUAGES: Mapping[str, str] = {
    "c": "mlxgen.plugins.languages:C",
    "rust": "mlxgen.plugins.languages:RUST",
}


class LanguageError(Exception):
    """Raised for a language whose plug-in is not installed or cannot be imported."""


class Package(Protocol):
    """The names of a package, such as its settings."""

    @property
    def name(self) -> str:
        """The name in Python and in paths."""

    @property
    def namespace(self) -> str:
        """The C++ namespace."""

    @property
    def version(self) -> str:
        """The version."""

    @property
    def languages(self) -> Iterable[str]:
        """The languages other than Python and C++ that can call its operators."""


@dataclass(frozen=True)
class Clash:
    """A name that two operators would define in a language."""

    first: str
    second: str  # the operator that comes later
    kind: str  # such as "Rust type"
    name: str


class Renderer(Protocol):
    """The functions of a module that renders a language; operators are public ones."""

    def piece(self, op: Op, package: Package) -> tuple[str, Any]:
        """Return the declaration for the reference, and a value that JSON can store for `files`."""

    def files(self, pieces: Sequence[Any], package: Package) -> Mapping[str, str]:
        """Return the files of a package by path below the output folder.

        Args:
            pieces: The value of each operator; if it was cached, tuples are lists.
            package: The package.
        """

    def clashes(self, pieces: Sequence[Any]) -> Iterable[Clash]:
        """Yield the names that two operators would define."""

    def code(self, op: Op, package: Package) -> str:
        """Return the code of an operator, for ``mlxgen show``."""


@dataclass(frozen=True)
class Language:
    """A language. Its name is also that in Markdown."""

    module: str  # with the functions of `Renderer`
    requires: tuple[str, ...] = ()  # all other languages that its interface needs

    @property
    def renderer(self) -> Renderer:
        """The module, which is imported."""
        with _importing(self.module):
            return cast(Renderer, import_module(self.module))

    @property
    def source(self) -> Path:
        """The folder of the module's package, or the file of a module outside of packages."""
        spec = find_spec(self.module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {self.module!r}")
        file = Path(spec.origin)
        return file.parent if "." in self.module or file.stem == "__init__" else file


@cache
def installed() -> Mapping[str, str]:
    """Return the places of the languages of other packages."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="mlxgen.languages")}


def exists(name: str) -> bool:
    """Return whether a language exists."""
    return name in LANGUAGES or name in installed()


def names() -> list[str]:
    """Return the names of all languages."""
    return sorted({*LANGUAGES, *installed()})


@cache
def language(name: str) -> Language:
    """Return a language by its name.

    Raises:
        LanguageError: If its plug-in is not installed or cannot be imported.
    """
    if not exists(name):
        raise LanguageError(f"the language '{name}' is not installed")
    module, _, attribute = (LANGUAGES.get(name) or installed()[name]).partition(":")
    with _importing(module):
        found: Language = getattr(import_module(module), attribute)
        _ = found.source  # exists
        return found


def with_required(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names of languages and of those that their interfaces need, sorted.

    Raises:
        LanguageError: If a plug-in is not installed or cannot be imported.
    """
    wanted = {*wanted}
    every = sorted(wanted.union(*(language(name).requires for name in wanted)))
    for name in every:
        language(name)
    return tuple(every)


@contextmanager
def _importing(module: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the plug-in
        reason = f"{error.__class__.__name__}: {error}"
        raise LanguageError(f"cannot import the language {module}: {reason}") from error
