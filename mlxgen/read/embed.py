"""Inlines the includes of a Metal file: at run time, Metal's compiler has no include path.

Only Metal's compiler can tell which branch of an `#if` is active. A header that is included inside
a branch may therefore be needed again after it. Such a header is wrapped in a generated include
guard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

from . import MESSAGES
from .preprocess import SourceError, SourceText

# A classical include guard around a whole file.
_GUARD = re.compile(
    r"\s*#[ \t]*ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1[ \t]*\n.*#[ \t]*endif\s*\Z", re.S
)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.M)
_FOR_METAL = re.compile(r"[ \t]*#[ \t]*ifn?def[ \t]+__METAL_VERSION__\s*$")


# Returns slices of a file that are left out.
LeftOut = Callable[[str], Iterable[tuple[int, int]]]


def embed_metal(
    path: str | os.PathLike[str],
    folders: Sequence[str],
    left_out: LeftOut = lambda path: (),
) -> str:
    """Return the file's text with its includes inlined.

    Code for C++ only, according to `#ifdef __METAL_VERSION__` or `#ifndef`, is removed. Angled
    includes that are not in the folders stay, because Metal's compiler has them. Missing quoted
    includes inside an `#if` stay too, because they may never be needed. A header with
    `#pragma once` or an include guard is inlined once. `#line` directives name the files.

    Raises:
        SourceError: an include cannot be found, or is recursive.
    """
    source = SourceText(os.fspath(path))
    name = os.path.basename(source.path)
    text = _Embedder(folders, source.path, left_out).text(source, name, False)
    return f'#line 1 "{name}"\n{text}'


def read_header(path: str, folders: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether a header has `#pragma once` or a guard, and the paths that it includes."""
    header = SourceText(path)
    includes = (header.include(line) for line in header.directives() if line[1] == "include")
    paths = [include.find(folders, needed=False) for include in includes if include]
    return _is_once(header), [path for path in paths if path]


def _is_once(header: SourceText) -> bool:
    return bool(_ONCE.search(header.plain) or _GUARD.match(header.plain))


class _Embedder:
    """Inlines included files."""

    def __init__(self, folders: Sequence[str], root: str, left_out: LeftOut) -> None:
        self.folders = folders
        self.left_out = left_out
        self.done = {os.path.realpath(root)}  # headers that are inlined unconditionally
        self.open: list[str] = []  # headers that are being inlined
        self.guards: dict[str, str] = {}  # generated guards of headers inside conditions

    def text(self, source: SourceText, name: str, conditional: bool) -> str:
        """Return the text of one file, which comments refer to as ``name``."""
        guarded = bool(_GUARD.match(source.plain))
        original = source.original
        for start, end in self.left_out(source.path):
            blank = re.sub(r"[^\n]", " ", original[start:end])
            original = original[:start] + blank + original[end:]
        cpp_only = _cpp_only(source)
        text, at, depth = "", 0, 0
        for line in source.directives():
            if line.start() < at:
                continue
            word, rest = line.groups()
            given, stop = "", cpp_only.get(line.start())
            if stop is None:
                depth += word.startswith("if") - (word == "endif")
                if word == "include":
                    given = self.included(source, line, name, conditional or depth > guarded)
                if not given and (word, rest.strip()) != ("pragma", "once"):
                    continue
                stop = line.end() + 1
            elif "\n" in original[line.end() + 1 : stop]:
                given = _line(source, stop, name)
            text += original[at : line.start()] + (given or "\n")
            at = stop
        return text + original[at:]

    def included(
        self, source: SourceText, line: re.Match[str], name: str, conditional: bool
    ) -> str:
        """Return the replacement of an include and its trailing comment; "" if it stays."""
        include = source.include(line)
        if include is None:
            raise SourceError(MESSAGES("macro_include"), source.place(*line.span(1)))
        path = include.find(self.folders, needed=not conditional)
        if path is None:
            return ""
        comment = source.original[line.end(1) + len(line[2].rstrip()) : line.end()].strip()
        identity = os.path.realpath(path)
        header = SourceText(path, include.span)
        once = _is_once(header)
        if identity in self.done or (once and identity in self.open):
            return f'// "{include.name}" is above {comment}'.rstrip() + "\n"
        if identity in self.open:
            raise SourceError(MESSAGES("includes_itself", name=include.name), include.span)
        guard = self.guards.get(identity)
        if once and conditional:
            guard = self.guards.setdefault(identity, f"MLXGEN_EMBEDDED_{len(self.guards)}")
        elif once:
            self.done.add(identity)
        self.open.append(identity)
        body = self.text(header, include.name, conditional).rstrip("\n")
        self.open.pop()
        body = f'#line 1 "{include.name}"\n{body}'
        if guard:
            body = f"#ifndef {guard}\n#define {guard}\n{body}\n#endif"
        after = f"{_line(source, line.start(), name)}{comment}\n" if comment else ""
        return f"{body}\n{after or _line(source, line.end() + 1, name)}"


def _line(source: SourceText, at: int, name: str) -> str:
    """Return a directive with the line of an offset of the original."""
    return f'#line {source.place(at, at).line} "{name}"\n'


def _cpp_only(source: SourceText) -> dict[int, int]:
    """Return the slices with code for C++ only, with their `__METAL_VERSION__` directives.

    A conditional with an `#elif` stays as it is.
    """
    found: dict[int, int] = {}
    opened: list[list[re.Match[str]]] = []
    for line in source.directives():
        if line[1].startswith("if"):
            opened.append([])
        if opened and line[1].startswith(("if", "el", "endif")):
            opened[-1].append(line)
        if not opened or line[1] != "endif":
            continue
        first, *between, last = opened.pop()
        if [other[1] for other in between] in ([], ["else"]) and _FOR_METAL.match(first[0]):
            middle = between[0] if between else last
            metal = first[1] == "ifdef"
            for start, stop in (
                (first, first if metal else middle),
                (middle if metal else last, last),
            ):
                found[start.start()] = stop.end() + 1
    return found
