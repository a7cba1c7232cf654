"""One self-contained text of a Metal file: at run time no include path exists.

Which branch of an `#if` counts is for Metal's compiler to say. So a header that is included inside
of one may be needed again after it: there, it stands between a guard of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .preprocess import SourceError, SourceText

# A classical include guard around all of a file.
_GUARD = re.compile(
    r"\s*#[ \t]*ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1[ \t]*\n.*#[ \t]*endif\s*\Z", re.S
)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.M)
_FOR_METAL = re.compile(r"[ \t]*#[ \t]*ifn?def[ \t]+__METAL_VERSION__\s*$")


def embed_metal(path: str | os.PathLike[str], folders: Sequence[str]) -> str:
    """The file's text with the headers it includes in place of the includes.

    What is meant for C++ only, by an `#ifdef __METAL_VERSION__` or `#ifndef`, is left out.
    Angled includes that the folders do not hold stay as they are, because Metal's compiler has
    them; so do quoted ones inside of an `#if`, which may never be needed. A header with
    `#pragma once` or an include guard comes in once. Comment lines say which file a piece is from.

    Raises:
        SourceError: for an include that cannot be found, or that never ends.
    """
    source = SourceText(os.fspath(path))
    text = _Embedder(folders, source.path).text(source, os.path.basename(source.path), False)
    return re.sub(r"\n{3,}", "\n\n", text)  # where something was left out


class _Embedder:
    """Puts included files into a text."""

    def __init__(self, folders: Sequence[str], root: str) -> None:
        self.folders = folders
        self.done = {os.path.realpath(root)}  # headers that need not come again
        self.open: list[str] = []  # those that are being put in
        self.guards: dict[str, str] = {}  # of those that stand inside of a condition

    def text(self, source: SourceText, name: str, conditional: bool) -> str:
        """The text of one file; ``name`` is what comments call it."""
        guarded = bool(_GUARD.match(source.plain))
        left_out = _cpp_only(source)
        text, at, depth = "", 0, 0
        for line in source.directives():
            if line.start() < at:
                continue
            word, rest = line.groups()
            given, stop = "", left_out.get(line.start())
            if stop is None:
                depth += word.startswith("if") - (word == "endif")
                if word == "include":
                    given = self.included(source, line, name, conditional or depth > guarded)
                if not given and (word, rest.strip()) != ("pragma", "once"):
                    continue
                stop = line.end() + 1
            text += source.original[at : line.start()] + given
            at = stop
        return text + source.original[at:]

    def included(
        self, source: SourceText, line: re.Match[str], name: str, conditional: bool
    ) -> str:
        """What takes the place of an include, and the comment behind it; "" where it stays."""
        include = source.include(line)
        if include is None:
            span = source.place(*line.span(1))
            raise SourceError("an include that a macro names cannot be embedded", span)
        path = include.find(self.folders, needed=not conditional)
        if path is None:
            return ""
        comment = source.original[line.end(1) + len(line[2].rstrip()) : line.end()].strip()
        behind = f" {comment}\n" if comment else ""
        identity = os.path.realpath(path)
        header = SourceText(path, include.span)
        once = bool(_ONCE.search(header.plain) or _GUARD.match(header.plain))
        if identity in self.done or (once and identity in self.open):
            return f'// "{include.name}" is above\n{behind}'
        if identity in self.open:
            message = f'"{include.name}" includes itself'
            raise SourceError(message, include.span, "add #pragma once to it")
        guard = self.guards.get(identity)
        if once and conditional:
            guard = self.guards.setdefault(identity, f"MLXGEN_EMBEDDED_{len(self.guards)}")
        elif once:
            self.done.add(identity)
        self.open.append(identity)
        body = self.text(header, include.name, conditional).strip("\n")
        self.open.pop()
        if guard:
            body = f"#ifndef {guard}\n#define {guard}\n{body}\n#endif"
        begins = f'// ---- "{include.name}", included by {name}:{include.span.line}'
        return f"{begins}\n{body}\n// ---- {name} again\n{behind}"


def _cpp_only(source: SourceText) -> dict[int, int]:
    """What `__METAL_VERSION__` leaves to C++, and the directives that say so: from where to where.

    With an `#elif` all stays, for Metal's compiler to choose.
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
