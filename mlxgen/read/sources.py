"""The hand-written C++ and Metal of a project, and the lookup of its functions by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path

from ..diagnostics import Diagnostics, Span, install
from . import MESSAGES
from .cpp import Function, Reader, Unit, find_function
from .embed import embed_metal, read_header
from .preprocess import OWN_INCLUDES, SourceError, Texts, read_text
from .settings import Settings

_FEW = 8  # lookups that parse only files containing the name; later ones parse all files

Named = tuple[Path, Unit, Function]  # a file, its declarations, and one of its functions


class Files:
    """The files of one language, parsed on first use."""

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
        """Return the functions of this name in any namespace."""
        word = last_name(name)
        self._asked.add(word)
        many = len(self._asked) > _FEW
        wanted = (p for p, text in self._pending.items() if many or not text or word in text)
        self._read(list(wanted))
        if everywhere and word not in self._named:  # an included header may declare it
            self._read(list(self._pending))
        return sorted(self._named.get(word, []), key=lambda item: item[0])

    def all(self) -> dict[Path, Unit]:
        """Return the declarations of every file."""
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

    ``unsaved`` contains the contents of files that an editor has open, by absolute path.
    """

    def __init__(
        self, settings: Settings, diags: Diagnostics, mlx: Path | None, unsaved: Texts | None = None
    ) -> None:
        self.settings = settings
        self.unsaved = unsaved or {}
        self.diags = diags
        self.mlx_include = mlx
        self._told = False  # the missing MLX was reported
        self.unread = False  # some file could not be parsed, and may contain missing functions
        self.metal_text = cache(self._metal_text)
        self.unreadable = cache(self._unreadable)

    def cpp_files(self) -> list[Path]:
        """Return the headers and sources of the csrc folder."""
        return self._files(self.settings.csrc, ".h", ".cpp")

    def metal_files(self) -> list[Path]:
        """Return the .metal files."""
        return self._files(self.settings.metal, ".metal")

    def _files(self, folder: Path, *kinds: str) -> list[Path]:
        found = {p for kind in kinds for p in folder.rglob(f"*{kind}") if not p.is_dir()}
        new = (p for p in map(Path, self.unsaved) if p.suffix in kinds and p.is_relative_to(folder))
        return sorted({*found, *new})

    @cached_property
    def cpp(self) -> Files:
        """The files in csrc. Their declarations do not need MLX's or generated headers."""
        unread = ("mlx/", "nanobind/", f"{self.settings.name}/")
        reader = Reader([near(self.settings.csrc), OWN_INCLUDES], unread=unread)
        reader.unsaved = self.unsaved
        return Files(reader, self.cpp_files(), self._report)

    @cached_property
    def metal(self) -> Files:
        """The .metal files."""
        reader = Reader([near(folder) for folder in self.metal_includes], metal=True)
        reader.unsaved = self.unsaved
        return Files(reader, self.metal_files(), self._report)

    @property
    def functions(self) -> list[Function]:
        """All functions that csrc declares."""
        return _once(f for unit in self.cpp.all().values() for f in unit.functions)

    def find(self, name: str, everywhere: bool = True) -> list[Function]:
        """Return the free functions in csrc called ``name``, which may omit outer namespaces.

        With ``everywhere``, all files are parsed if no file that contains the name declares it.
        """
        named = _once(function for _, _, function in self.cpp.named(name, everywhere))
        return [f for f in find_function(named, name) if f.class_name is None]

    def defines_member(self, class_name: str, name: str) -> bool:
        """Return whether csrc defines this member of a class outside of the class."""
        return any(
            last_name(f.class_name or "") == class_name and f.is_definition
            for _, _, f in self.cpp.named(name)
        )

    def unread_places(self, name: str) -> list[Span]:
        """Return the unparsed places in files that contain a name."""
        found: dict[Span, None] = {}
        for unit in (*self.cpp.units.values(), *self.metal.units.values()):
            for file in unit.files:
                if file.unread and last_name(name) in file.source.original:
                    found[file.unread] = None
        return list(found)

    @property
    def metal_includes(self) -> list[Path]:
        """The search path of Metal includes."""
        mlx = [self.mlx_include] if self.mlx_include else []
        return [self.settings.metal, self.settings.csrc, Path(OWN_INCLUDES), *mlx]

    @property
    def covered(self) -> bool:
        """True if all files that were read are in folders whose contents runs hash."""
        folders = tuple(os.path.join(os.path.abspath(path), "") for path in self.metal_includes)
        readers = (self.cpp.reader, self.metal.reader)
        read = {os.path.abspath(path) for reader in readers for path in reader.texts}
        return all(path.startswith(folders) for path in read)

    def _metal_text(self, include: str, shared: bool) -> str:
        """Return a .metal file, or (`shared`) a header in csrc, with its includes inlined."""
        folder = self.settings.csrc if shared else self.settings.metal
        reader, path = self.metal.reader, near(folder / include)
        reader.unit(path)

        def instantiations(path: str) -> Iterator[tuple[int, int]]:
            """Yield the slices of a file that instantiate kernels, which launchers do."""
            for file in map(reader.declared, reader.texts.get(path, ())):
                yield from (*file.source.removed, *file.instances)

        return embed_metal(path, reader.folders, instantiations)

    def in_csrc(self, headers: Iterable[str]) -> dict[str, set[str] | None]:
        """Return those of the headers that are in csrc, each with all of csrc that it includes.

        None for a header that one source cannot include twice.
        """
        csrc = os.path.normpath(self.settings.csrc)
        read = cache(lambda path: read_header(path, [csrc]))
        result: dict[str, set[str] | None] = {}
        for header in {*headers}:
            first = os.path.normpath(os.path.join(csrc, header))
            if os.path.isfile(first):
                pending = [first]
                for path in pending:  # grows in the loop
                    pending += [other for other in read(path)[1] if other not in pending]
                paths = {os.path.relpath(path, csrc) for path in pending}
                result[header] = paths if read(first)[0] else None
        return result

    def _unreadable(self, header: str) -> tuple[str, str] | None:
        """Return why a header in csrc is not valid Metal: a problem, "" if reported; an include."""
        reader, path = self.metal.reader, near(self.settings.csrc / header)
        try:
            reader.unit(path)
        except SourceError as error:
            self._report(error)
            return "", ""
        read = reader.closure(path, libraries=True)
        included = {name: found for source in read for name, found in source.includes.items()}
        cpp = [n for n in included if n.startswith("mlx/") and "metal/kernels" not in n]
        if cpp:
            return "api", os.path.basename(cpp[0])
        foreign = (n for n, found in included.items() if not found and not n.startswith("metal"))
        return next((("system", name) for name in foreign), None)

    def header_of(self, function: Function) -> str | None:
        """Return the header that declares a function, relative to csrc; None for other files."""
        return _below(function.span.file, self.settings.csrc)

    def entries_of(self, header: str) -> set[str]:
        """Return the entries whose generated headers a header in csrc includes, also indirectly."""
        generated = f"{self.settings.name}/"
        try:
            read = self.cpp.reader.closure(near(self.settings.csrc / header))
        except SourceError:  # reported by parsing, or a header of another package
            return set()
        names = {name for source in read for name in source.includes}
        return {
            name.removeprefix(generated).removesuffix(".h")
            for name in names
            if name.startswith(generated)
        }

    def _report(self, error: SourceError) -> None:
        self.unread = True
        if error.missing.startswith("mlx/") and self.mlx_include is None:
            if self._told:
                return  # the other files have the same problem
            self._told = True
            about = {"message": error.message, "python": sys.executable, "install": install.mlx()}
            self.diags.error(MESSAGES("no_MLX", **about), error.span)
            return
        self.diags.error(error.said, error.span, related=error.related)


def last_name(name: str) -> str:
    """Return a name without its namespaces."""
    return name.rsplit("::", 1)[-1].strip()


def _peek(path: Path, unsaved: Texts) -> str:
    """Return a file's text; "" if it cannot be read, which parsing it reports."""
    try:
        return read_text(path, unsaved)
    except (OSError, ValueError):
        return ""


def _once(functions: Iterable[Function]) -> list[Function]:
    """Return functions in the order of the files, headers first, without duplicates."""
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
    """Return a path for messages: relative to the working directory, if it is below."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
