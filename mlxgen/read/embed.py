"""One self-contained text of a Metal file: at run time no include path exists.

Which branch of an `#if` counts is for Metal's compiler to say. So a header that is included inside
of one may be needed again after it: there, it stands between a guard of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .preprocess import Include, SourceError, SourceText, find_include

# A classical include guard around all of a file.
_GUARD = re.compile(
    r"\s*#[ \t]*ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1[ \t]*\n.*#[ \t]*endif\s*\Z", re.S
)
_MAX_DEPTH = 64  # of includes; deeper is a cycle


def embed_metal(path: str | os.PathLike[str], folders: Sequence[str]) -> str:
    """The file's text with the headers it includes in place of the includes.

    What is meant for C++ only, by an `#ifdef __METAL_VERSION__` or `#ifndef`, is left out.
    Angled includes that the folders do not hold stay as they are, because Metal's compiler has
    them; so do quoted ones inside of an `#if`, which may never be needed. A header with
    `#pragma once` or an include guard comes in once. Comment lines say which file a piece is from.

    Raises:
        SourceError: for an include that cannot be found, or that never ends.
    """
    source = SourceText.load(os.fspath(path))
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
        pieces, at, depth = [], 0, 0
        for line in source.directives():
            if line.start() < at:
                continue
            word, rest = line.groups()
            stop, given = left_out.get(line.start()), ""
            if stop is None:
                depth += word.startswith("if") - (word == "endif")
                if word == "include":
                    include = Include.of(source, line)
                    if include is None:
                        span = source.original_span(*line.span(1))
                        raise SourceError("an include that a macro names cannot be embedded", span)
                    inside = conditional or depth > guarded
                    given = self.included(include, source.path, name, inside)
                    behind = line.start(2) + len(rest.rstrip())
                    comment = source.original[behind : line.end()].strip()
                    given += f" {comment}\n" if given and comment else ""
                if not given and (word, rest.strip()) != ("pragma", "once"):
                    continue
                stop = line.end() + 1
            pieces += [source.original[at : line.start()], given]
            at = stop
        return "".join([*pieces, source.original[at:]])

    def included(self, include: Include, path: str, name: str, conditional: bool) -> str:
        """What takes the place of an include; "" where it stays."""
        found = find_include(include, path, self.folders, needed=not conditional)
        if found is None:
            return ""
        identity = os.path.realpath(found)
        source = SourceText.load(found, include.span)
        once = "once" in (line[2].strip() for line in source.directives())
        once = once or bool(_GUARD.match(source.plain))
        if identity in self.done or (once and identity in self.open):
            return f'// "{include.name}" is above\n'
        if len(self.open) > _MAX_DEPTH:
            message = f'"{include.name}" includes itself'
            raise SourceError(message, include.span, "add #pragma once to it")
        guard = self.guards.get(identity, "")
        if once and conditional:
            guard = self.guards.setdefault(identity, f"MLXGEN_EMBEDDED_{len(self.guards)}")
        elif once:
            self.done.add(identity)
        self.open.append(identity)
        body = self.text(source, include.name, conditional).strip("\n")
        self.open.pop()
        if guard:
            body = f"#ifndef {guard}\n#define {guard}\n{body}\n#endif"
        return (
            f'// ---- "{include.name}", included by {name}:{include.span.line}\n'
            f"{body}\n// ---- {name} again\n"
        )


def _cpp_only(source: SourceText) -> dict[int, int]:
    """What `__METAL_VERSION__` leaves to C++, and the directives that say so: from where to where.

    With an `#elif` all stays, for Metal's compiler to choose.
    """
    found: dict[int, int] = {}
    opened: list[list[re.Match[str]]] = []
    for line in source.directives():
        word = line[1]
        if word.startswith("if"):
            opened.append([line])
        elif word.startswith(("el", "endif")) and opened:
            opened[-1].append(line)
        if word != "endif" or not opened:
            continue
        first, *others, last = opened.pop()
        plain = [other[1] for other in others] in ([], ["else"])
        if not plain or first[1] == "if" or first[2].strip() != "__METAL_VERSION__":
            continue
        middle = others[0] if others else last
        if first[1] == "ifdef":
            found |= {first.start(): first.end() + 1, middle.start(): last.end() + 1}
        else:
            found |= {last.start(): last.end() + 1, first.start(): middle.end() + 1}
    return found
