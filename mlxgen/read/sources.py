"""The hand-written C++ and Metal of a project: what its files declare, found by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path

from ..diagnostics import Diagnostics, Related, install
from .cpp import Function, Reader, Unit, find_function
from .embed import embed_metal
from .preprocess import OWN_INCLUDES, SourceError, Texts, read_text
from .settings import Settings

_FEW = 8  # names, for which only the files are read that contain them

Named = tuple[Path, Unit, Function]  # a file, what it declares, and one function of that


class Files:
    """The files of one language, read when something in them is asked for."""

    def __init__(
        self, reader: Reader, paths: Iterable[Path], report: Callable[[SourceError], None]
    ) -> None:
        self.reader = reader
        self.units: dict[Path, Unit] = {}
        self._report = report
        self._pending = {path: _peek(path, reader.unsaved) for path in paths}
        self._named: dict[str, list[Named]] = {}
        self._asked: set[str] = set()

    def named(self, name: str, everywhere: bool = True) -> list[Named]:
        """The functions that a name may mean, before its namespaces are looked at."""
        word = last_name(name)
        self._asked.add(word)
        many = len(self._asked) > _FEW
        wanted = (p for p, text in self._pending.items() if many or not text or word in text)
        self._read(list(wanted))
        if everywhere and word not in self._named:  # a header that they include may have it
            self._read(list(self._pending))
        return sorted(self._named.get(word, []), key=lambda item: item[0])

    def all(self) -> dict[Path, Unit]:
        """What every file declares."""
        self._read(list(self._pending))
        return dict(sorted(self.units.items()))

    def _read(self, paths: list[Path]) -> None:
        for path in paths:
            del self._pending[path]
            try:
                unit = self.reader.unit(near(path))
            except SourceError as error:
                self._report(error)
                continue
            self.units[path] = unit
            for function in unit.functions:
                self._named.setdefault(function.name, []).append((path, unit, function))


class Sources:
    """The hand-written C++ and Metal of a project.

    Texts in ``unsaved`` stand for files, by absolute paths: an editor has them open.
    """

    def __init__(
        self, settings: Settings, diags: Diagnostics, mlx: Path | None, unsaved: Texts | None = None
    ) -> None:
        self.settings = settings
        self.unsaved = unsaved or {}
        self.diags = diags
        self.mlx_include = mlx
        self._told = False  # that MLX is not installed
        self.unread = False  # whether some file could not be read: what is missing may be in it
        self.metal_text = cache(self._metal_text)
        self.unreadable = cache(self._unreadable)

    def cpp_files(self) -> list[Path]:
        """Headers and sources of the csrc folder."""
        return self._files(self.settings.csrc, ".h", ".cpp")

    def metal_files(self) -> list[Path]:
        """The .metal files."""
        return self._files(self.settings.metal, ".metal")

    def _files(self, folder: Path, *kinds: str) -> list[Path]:
        found = {p for kind in kinds for p in folder.rglob(f"*{kind}") if not p.is_dir()}
        new = (p for p in map(Path, self.unsaved) if p.suffix in kinds and p.is_relative_to(folder))
        return sorted({*found, *new})

    @cached_property
    def cpp(self) -> Files:
        """What csrc declares. MLX's headers are not needed for that, nor are generated ones."""
        unread = ("mlx/", "nanobind/", f"{self.settings.name}/")
        reader = Reader([near(self.settings.csrc), OWN_INCLUDES], unread=unread)
        reader.unsaved = self.unsaved
        return Files(reader, self.cpp_files(), self._report)

    @cached_property
    def metal(self) -> Files:
        """What the .metal files declare."""
        reader = Reader([near(folder) for folder in self.metal_includes], metal=True)
        reader.unsaved = self.unsaved
        return Files(reader, self.metal_files(), self._report)

    @property
    def functions(self) -> list[Function]:
        """Every function declared in csrc."""
        return _once(f for unit in self.cpp.all().values() for f in unit.functions)

    def find(self, name: str, everywhere: bool = True) -> list[Function]:
        """The free functions of csrc called ``name``, which may leave out outer namespaces.

        With ``everywhere``, all files are read where those that contain the name do not declare it.
        """
        named = _once(function for _, _, function in self.cpp.named(name, everywhere))
        return [f for f in find_function(named, name) if f.class_name is None]

    def defines_member(self, class_name: str, name: str) -> bool:
        """Whether csrc defines this member of a class outside of the class."""
        return any(
            last_name(f.class_name or "") == class_name and f.is_definition
            for _, _, f in self.cpp.named(name)
        )

    def unread_places(self, name: str) -> list[Related]:
        """What could not be read in the files that contain a name."""
        found: dict[Related, None] = {}
        for unit in (*self.cpp.units.values(), *self.metal.units.values()):
            for file in unit.files:
                if file.unread and last_name(name) in file.source.original:
                    found[Related("this could not be read", file.unread)] = None
        return list(found)

    @property
    def metal_includes(self) -> list[Path]:
        """Where Metal includes are looked up."""
        mlx = [self.mlx_include] if self.mlx_include else []
        return [self.settings.metal, self.settings.csrc, Path(OWN_INCLUDES), *mlx]

    def _metal_text(self, include: str, shared: bool) -> str:
        """A .metal file, or (`shared`) a header of csrc, with its includes."""
        folder = self.settings.csrc if shared else self.settings.metal
        return embed_metal(near(folder / include), self.metal.reader.folders)

    def _unreadable(self, header: str) -> str | None:
        """Why a header of csrc cannot be read as Metal, or None; "" where that was reported."""
        reader, path = self.metal.reader, near(self.settings.csrc / header)
        try:
            reader.unit(path)
        except SourceError as error:
            self._report(error)
            return ""
        read = reader.closure(path, libraries=True)
        included = {name: found for source in read for name, found in source.includes.items()}
        cpp = [n for n in included if n.startswith("mlx/") and "metal/kernels" not in n]
        if cpp:
            return f"it includes {os.path.basename(cpp[0])} of MLX's C++"
        foreign = (n for n, found in included.items() if not found and not n.startswith("metal"))
        return next((f"it includes <{name}>" for name in foreign), None)

    def header_of(self, function: Function) -> str | None:
        """The header that declares a function, as generated C++ includes it; None: not a header."""
        return _below(function.span.file, self.settings.csrc)

    def _report(self, error: SourceError) -> None:
        self.unread = True
        message, help = error.message, error.help
        if error.missing.startswith("mlx/") and self.mlx_include is None:
            if self._told:
                return  # the other files lack the same
            self._told = True
            message, help = f"{message}: MLX is not installed for {sys.executable}", install.mlx()
        self.diags.error("MG501", message, error.span, help=help, related=error.related)


def last_name(name: str) -> str:
    """A name without its namespaces."""
    return name.rsplit("::", 1)[-1].strip()


def _peek(path: Path, unsaved: Texts) -> str:
    """A file's text; "" where it cannot be read, which reading it properly reports."""
    try:
        return read_text(path, unsaved)
    except (OSError, ValueError):
        return ""


def _once(functions: Iterable[Function]) -> list[Function]:
    """Functions in the order of the files, headers first, without what was read twice."""
    found = {
        (not f.span.file.endswith(".h"), f.span.file, f.span.line, f.span.column, f.name): f
        for f in functions
    }
    return [found[place] for place in sorted(found)]


@cache
def _below(file: str, folder: Path) -> str | None:
    path = os.path.relpath(os.path.realpath(file), os.path.realpath(folder))
    return Path(path).as_posix() if path.endswith(".h") and not path.startswith("..") else None


def near(path: Path) -> str:
    """A path as people write it here: relative to the working directory, if it is below."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
