"""The hand-written C++ and Metal of a project: what its files declare, found by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from ..diagnostics import Diagnostics, Span
from ..emulator.frontend import cxx, metal
from ..emulator.frontend.preprocess import OWN_INCLUDES, include_of
from ..emulator.frontend.tokens import lex
from .settings import Settings


def metal_stem(include: str) -> str:
    """What generated C++ calls the source of a .metal file, or of a header that Metal shares."""
    return re.sub(r"[/.-]", "_", include.removesuffix(".metal"))


class Sources:
    """The hand-written C++ and Metal of a project, scanned when first asked for."""

    def __init__(self, settings: Settings, diags: Diagnostics, mlx_include: Path | None) -> None:
        self.settings = settings
        self.diags = diags
        self.mlx_include = mlx_include
        self.unread = False  # whether some file could not be read: what is missing may be in it
        self._headers: dict[str, str | None] = {}
        self._unreadable: dict[str, str | None] = {}
        self._metal_texts: dict[tuple[str, bool], str] = {}

    def cpp_files(self) -> list[Path]:
        """Headers and sources of the csrc folder."""
        folder = self.settings.csrc
        found = [*folder.rglob("*.h"), *folder.rglob("*.cpp")] if folder.is_dir() else []
        return sorted(found)

    def metal_files(self) -> list[Path]:
        """The .metal files."""
        folder = self.settings.metal
        return sorted(folder.rglob("*.metal")) if folder.is_dir() else []

    @cached_property
    def functions(self) -> list[cxx.Function]:
        """Every function declared in csrc."""
        found: dict[tuple[Span, str], cxx.Function] = {}  # a header is read by all that include it
        for path in self.cpp_files():
            try:
                scanned = cxx.scan_cpp(
                    [_near(path)],
                    [_near(self.settings.csrc)],
                    ignore=(f"{self.settings.name}/",),  # generated headers
                )
                for function in scanned:
                    found.setdefault((function.span, function.qualified_name), function)
            except cxx.SourceError as error:
                self._report(error)
        return list(found.values())

    @cached_property
    def functions_by_name(self) -> dict[str, list[cxx.Function]]:
        """The same by unqualified name, so that a lookup does not walk them all."""
        return _by_name(self.functions)

    def find(self, name: str) -> list[cxx.Function]:
        """The free functions of csrc called ``name``, which may leave out outer namespaces."""
        found = cxx.find_function(self.functions_by_name.get(last_name(name), ()), name)
        return [f for f in found if f.class_name is None]

    @cached_property
    def metal_by_name(self) -> dict[str, list[tuple[Path, metal.MetalFile, cxx.Function]]]:
        """Functions and kernels of the Metal files by unqualified name."""
        found: dict[str, list[tuple[Path, metal.MetalFile, cxx.Function]]] = {}
        for path, file in self.metal:
            for function in file.functions:
                found.setdefault(function.name, []).append((path, file, function))
        return found

    def metal_named(self, name: str) -> list[tuple[Path, metal.MetalFile, cxx.Function]]:
        """Those that a name may mean, before its namespaces are looked at."""
        return self.metal_by_name.get(last_name(name), [])

    @cached_property
    def metal(self) -> list[tuple[Path, metal.MetalFile]]:
        """Every Metal file with what it declares."""
        found = []
        for path in self.metal_files():
            try:
                includes = [_near(folder) for folder in self.metal_includes]
                found.append((path, metal.scan_metal([_near(path)], includes)))
            except cxx.SourceError as error:
                self._report(error)
        return found

    @property
    def metal_includes(self) -> list[Path]:
        """Where Metal includes are looked up."""
        mlx = [self.mlx_include] if self.mlx_include else []
        return [self.settings.metal, self.settings.csrc, Path(OWN_INCLUDES), *mlx]

    def metal_text(self, include: str, shared: bool) -> str:
        """A .metal file, or (`shared`) a header of csrc, with its includes."""
        if (include, shared) not in self._metal_texts:
            folder = self.settings.csrc if shared else self.settings.metal
            text = metal.embed_metal(folder / include, self.metal_includes)
            self._metal_texts[include, shared] = text
        return self._metal_texts[include, shared]

    def unreadable(self, header: str) -> str | None:
        """Why a header of csrc cannot be read as Metal, or None; "" where that was reported."""
        if header not in self._unreadable:
            try:
                self._unreadable[header] = self._foreign_include(_near(self.settings.csrc / header))
            except cxx.SourceError as error:
                self._unreadable[header] = ""
                self._report(error)
        return self._unreadable[header]

    def _foreign_include(self, path: str) -> str | None:
        folders = [_near(folder) for folder in self.metal_includes]
        for file in metal.scan_metal([path], folders).includes:
            included = Path(file).resolve()
            mlx = self.mlx_include and included.is_relative_to(self.mlx_include.resolve() / "mlx")
            if mlx and "metal/kernels" not in included.as_posix():
                return f"it includes {included.name} of MLX's C++"
        lexed = lex(path, metal.embed_metal(path, folders))
        for start, stop in lexed.directives:
            include = include_of(lexed.tokens[start:stop])
            if include is not None and not include.name.startswith("metal"):
                return f"it includes <{include.name}>"
        return None

    def header_of(self, function: cxx.Function) -> str | None:
        """The header that declares a function, as generated C++ includes it; None: not a header."""
        file = function.span.file
        if file not in self._headers:
            path = os.path.relpath(os.path.realpath(file), os.path.realpath(self.settings.csrc))
            usable = path.endswith(".h") and not path.startswith("..")
            self._headers[file] = Path(path).as_posix() if usable else None
        return self._headers[file]

    def _report(self, error: cxx.SourceError) -> None:
        self.unread = True
        self.diags.error("MG501", error.message, error.span, help=error.help, notes=error.notes)


def last_name(name: str) -> str:
    """A name without its namespaces."""
    return name.rsplit("::", 1)[-1].strip()


def _by_name(functions: Iterable[cxx.Function]) -> dict[str, list[cxx.Function]]:
    found: dict[str, list[cxx.Function]] = {}
    for function in functions:
        found.setdefault(function.name, []).append(function)
    return found


def _near(path: Path) -> str:
    """A path as people write it here: relative to the working directory, if it is below."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
