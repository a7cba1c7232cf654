"""Reads hand-written Metal kernels, and makes one self-contained source of each file.

What the generator must know of a `.metal` file: the parameters of its kernels, because it binds
buffers by their names, and which kernels there are in the end, because a template has to be
instantiated for every dtype. `scan_metal` finds both, in either spelling of each:

    [[kernel]] void f(...)
    kernel void f(...)

    template [[host_name("f_float32")]] [[kernel]] decltype(f<float>) f<float>;
    template [[host_name("f_float32")]] [[kernel]] void f<float>(device float* x, ...);
    instantiate_kernel("f_float32", f, float)    // MLX's macro for the first

At run time the kernels are compiled from source, where no include path exists: `embed_metal` puts
the project's and MLX's headers into the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...diagnostics import Span
from .cxx import Function, Head, Report, Scanner, deduced, find_function
from .cxx_types import Attribute, Path
from .preprocess import Include, Preprocessor, find_include, include_of, missing_include
from .tokens import Lexed, SourceError, Token, between, lex, read_source

# What Metal's compiler and <metal_stdlib> define. Versions newer than this are not assumed.
DEFINES = {"__METAL__": "1", "__METAL_VERSION__": "310", "METAL_FUNC": "inline"}

# Of these only the macros are read: they declare nothing of the project's.
LIBRARY_INCLUDES = ("mlx/", "mlxgen/")

_MAX_DEPTH = 64  # of includes; deeper is a cycle


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A kernel under the name by which the host finds it.

    Attributes:
        host_name: "segment_sum_float32"; the function's name for a kernel that is no template.
        function: the kernel function as it is written there, without arguments.
        arguments: its template arguments, normalised: ("float",); () for one that is no template.
        unit: the path given to the scan.
        span: the kernel's name, or the macro call that makes it.
    """

    host_name: str
    function: str
    arguments: tuple[str, ...]
    unit: str
    span: Span


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    """A `constant bool has_w [[function_constant(20)]];`, which the host must give a value."""

    name: str
    type: str
    index: Attribute
    span: Span


@dataclass(frozen=True, slots=True)
class MetalFile:
    """What Metal source declares; `includes` are the files read, the given ones among them."""

    functions: tuple[Function, ...]
    instantiations: tuple[Instantiation, ...]
    constants: tuple[FunctionConstant, ...]
    includes: tuple[str, ...]

    @property
    def kernels(self) -> tuple[Function, ...]:
        """The kernel functions."""
        return tuple(function for function in self.functions if function.is_kernel)

    def instantiation(self, host_name: str) -> Instantiation | None:
        """The kernel of that host name."""
        return next((i for i in self.instantiations if i.host_name == host_name), None)


def scan_metal(
    paths: Iterable[str | os.PathLike[str]],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    defines: Mapping[str, str] | None = None,
    macros_only: Sequence[str] = LIBRARY_INCLUDES,
    report: Report | None = None,
) -> MetalFile:
    """The functions, kernels and instantiations of Metal files and the headers they include.

    Args:
        paths: the files; each is read as a translation unit of its own.
        include_dirs: the project's include folders and MLX's. Angled includes that are not found
            there are Metal's own, and left out.
        defines: macros to take as defined, beside Metal's.
        macros_only: prefixes of includes whose declarations are not wanted.
        report: called with the error of each file that cannot be read, which then counts as empty.

    Raises:
        SourceError: for the first file that cannot be read, unless `report` is given.
    """
    folders = [os.fspath(folder) for folder in include_dirs]
    preprocessor = Preprocessor(
        folders, defines={**DEFINES, **(defines or {})}, macros_only=macros_only
    )
    functions: dict[tuple[Span, str], Function] = {}
    instantiations: dict[tuple[Span, str], Instantiation] = {}
    constants: dict[Span, FunctionConstant] = {}
    includes: dict[str, None] = {}
    for path in [os.fspath(path) for path in paths]:
        try:
            scanner = MetalScanner(preprocessor.run(path), path)
            scanner.scan()
        except SourceError as error:
            if report is None:
                raise
            report(error)
            continue
        includes.update(dict.fromkeys(preprocessor.includes))
        for function in scanner.functions:
            functions.setdefault((function.span, function.qualified_name), function)
        for instantiation in scanner.instantiations.values():
            instantiations.setdefault((instantiation.span, instantiation.host_name), instantiation)
        for constant in scanner.constants:
            constants.setdefault(constant.span, constant)
    return MetalFile(
        tuple(functions.values()),
        tuple(instantiations.values()),
        tuple(constants.values()),
        tuple(includes),
    )


class MetalScanner(Scanner):
    """Reads one translation unit's functions, and its instantiations by host name."""

    macro_headers: Mapping[str, str] = {
        "instantiate_kernel": '"mlx/backend/metal/kernels/defines.h"'
    }

    def __init__(self, tokens: Sequence[Token], unit: str) -> None:
        super().__init__(tokens, unit, metal=True)
        self.instantiations: dict[str, Instantiation] = {}
        self.constants: list[FunctionConstant] = []

    def found_function(self, function: Function) -> None:
        """A kernel that is no template can be called under its own name."""
        super().found_function(function)
        if function.is_kernel and function.is_definition and not function.template:
            host_name = function.attributes.get("host_name") or function.qualified_name
            self._add(str(host_name), function.name, function.specialization or (), function.span)

    def found_variable(self, head: Head) -> None:
        """Function constants are parameters of a kernel as well."""
        if head.path is not None and "function_constant" in head.attributes:
            self.constants.append(
                FunctionConstant(
                    head.path.text,
                    self.type_before(head),
                    head.attributes["function_constant"],
                    self.span(head.path.start, head.path.stop),
                )
            )

    def explicit_instantiation(self, i: int, stop: int) -> int:
        """Read `template [[host_name("n")]] [[kernel]] ... f<float>...;`."""
        end = self.semicolon(i, stop)
        head = self.head(i + 1, end)
        host_name = head.attributes.get("host_name")
        if head.is_class or (head.stage != "kernel" and host_name is None):
            return end
        path = head.path
        if path is None:
            raise self.error("expected the kernel that this instantiates", head.stop)
        if not isinstance(host_name, str):
            raise self.error(
                f"the instantiation of {path.text} has no host_name",
                path.start,
                'without [[host_name("...")]] the host cannot find the kernel',
            )
        span = self.span(path.start, path.stop)
        arguments = self._deduced(path, head) if path.arguments is None else path.arguments
        self._add(host_name, "::".join(path.names), arguments, span)
        return end

    def _deduced(self, path: Path, head: Head) -> tuple[str, ...]:
        """The template arguments of an instantiation that gives the parameters only."""
        given = self.params(head.stop) if self.text(head.stop) == "(" else ()
        for function in find_function(self.functions, "::".join(path.names)):
            if function.template and len(function.params) == len(given):
                values = deduced(function, [param.type for param in given])
                if values is not None:
                    return values
        raise self.error(
            f"cannot tell the template arguments of this instantiation of {path.text}",
            path.start,
            f"write them: {path.text}<...>",
        )

    def _add(self, host_name: str, function: str, arguments: tuple[str, ...], span: Span) -> None:
        earlier = self.instantiations.get(host_name)
        if earlier is not None:
            raise SourceError(f'host_name "{host_name}" exists already, from {earlier.span}', span)
        found = Instantiation(host_name, function, arguments, self.unit, span)
        self.instantiations[host_name] = found


# ------------------------------------------------------------------------------------ embedding


def embed_metal(
    path: str | os.PathLike[str], include_dirs: Sequence[str | os.PathLike[str]] = ()
) -> str:
    """The file's text with the headers it includes in place of the includes.

    What is meant for C++ only, by an `#ifdef __METAL_VERSION__` or `#ifndef`, is left out.
    Angled includes that `include_dirs` do not hold stay as they are, because Metal's compiler has
    them; so do quoted ones inside of an `#if`, which may never be needed. A header with
    `#pragma once` or an include guard comes in once. Comment lines say which file a piece is from.

    Raises:
        SourceError: for an include that cannot be found, or that never ends.
    """
    path = os.fspath(path)
    embedder = _Embedder([os.fspath(folder) for folder in include_dirs], path)
    text = embedder.file(path, read_source(path), os.path.basename(path), conditional=False)
    return re.sub(r"\n{3,}", "\n\n", text)  # where something was left out


class _Embedder:
    """Puts included files into a text.

    Which branch of an `#if` counts is for Metal's compiler to say. So a header that is included
    inside of one may be needed again after it: there, it stands between a guard of its own.
    """

    def __init__(self, include_dirs: Sequence[str], root: str) -> None:
        self._include_dirs = include_dirs
        self._done = {os.path.realpath(root)}  # headers that need not come again
        self._open: set[str] = set()  # guarded headers that are being put in
        self._guards: dict[str, str] = {}
        self._depth = 0

    def file(self, path: str, text: str, name: str, conditional: bool) -> str:
        """The text of one file; `name` is what comments call it."""
        lexed = lex(path, text)
        guard = _include_guard(lexed)
        cuts = _cpp_only(lexed, text)
        pieces: list[str] = []
        position = depth = 0

        def keep(stop: int) -> None:
            at = position
            for first, last in cuts:
                if at <= first < stop:
                    pieces.append(text[at:first])
                    at = last
            pieces.append(text[at:stop])

        for start, stop in lexed.directives:
            directive = lexed.tokens[start:stop]
            word = directive[1].text if len(directive) > 1 else ""
            if any(first <= directive[0].offset < last for first, last in cuts):
                continue
            if word in ("if", "ifdef", "ifndef"):
                depth += 1
            elif word == "endif":
                depth -= 1
            replacement: str | None = None
            if word == "pragma" and len(directive) > 2 and directive[2].text == "once":
                replacement = ""
            if word == "include":
                include = include_of(directive)
                if include is None:
                    raise SourceError(
                        "an include that a macro names cannot be embedded",
                        between(directive[1], directive[-1]),
                    )
                inside = conditional or depth > (guard is not None)
                replacement = self._included(include, path, name, inside)
            if replacement is None:
                continue
            keep(directive[0].offset)
            pieces.append(replacement)
            position = directive[-1].end
            line_end = text.find("\n", position)
            line_end = line_end if line_end >= 0 else len(text)
            if text[position:line_end].strip():
                pieces.append("\n")  # a comment follows, which may be longer than the line
            elif not replacement:
                position = line_end + 1
        keep(len(text))
        return "".join(pieces)

    def _included(self, include: Include, path: str, name: str, conditional: bool) -> str | None:
        """What takes the place of an include; None where it stays."""
        found = find_include(include, path, self._include_dirs)
        if found is None:
            if include.angled or conditional:
                return None
            raise missing_include(include, self._include_dirs)
        identity = os.path.realpath(found)
        if identity in self._done or identity in self._open:
            return f'// "{include.name}" is above'
        text = read_source(found, include.span)
        lexed = lex(found, text)
        once = any(
            [token.text for token in lexed.tokens[start + 1 : stop]] == ["pragma", "once"]
            for start, stop in lexed.directives
        )
        guard = ""
        if once or _include_guard(lexed):
            if conditional:
                guard = self._guards.setdefault(identity, f"MLXGEN_EMBEDDED_{len(self._guards)}")
            else:
                guard = self._guards.get(identity, "")
                self._done.add(identity)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise SourceError(
                f'"{include.name}" includes itself', include.span, "add #pragma once to it"
            )
        if guard:
            self._open.add(identity)
        body = self.file(found, text, include.name, conditional).strip("\n")
        self._open.discard(identity)
        self._depth -= 1
        opening = f"#ifndef {guard}\n#define {guard}\n" if guard else ""
        closing = "#endif\n" if guard else ""
        return (
            f'// ---- "{include.name}", included by {name}:{include.span.line}\n'
            f"{opening}{body}\n{closing}// ---- {name} again"
        )


def _cpp_only(lexed: Lexed, text: str) -> list[tuple[int, int]]:
    """What an `#ifdef __METAL_VERSION__` or `#ifndef` leaves to C++: places in the text, in order.

    The directives are among them. With an `#elif` all stays, for Metal's compiler to choose.
    """
    found: list[tuple[int, int]] = []
    conditions: list[tuple[tuple[str, ...], list[int]]] = []
    for start, stop in lexed.directives:
        words = tuple(token.text for token in lexed.tokens[start + 1 : stop])
        if not words:
            continue
        if words[0] in ("if", "ifdef", "ifndef"):
            conditions.append((words, [start]))
        elif words[0] in ("else", "elif", "elifdef", "elifndef") and conditions:
            conditions[-1][1].append(start if words[0] == "else" else -1)
        elif words[0] == "endif" and conditions:
            opening, places = conditions.pop()
            if opening[1:] != ("__METAL_VERSION__",) or opening[0] == "if" or -1 in places:
                continue
            ends = [*places[1:], start]
            lines = [_line(lexed.tokens[at], text) for at in (places[0], *ends)]
            if opening[0] == "ifdef":
                found += [lines[0], (lines[1][0], lines[-1][1])]
            else:
                found.append((lines[0][0], lines[1][1]))
                found += [lines[2]] if len(lines) == 3 else []
    outer: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if not outer or first >= outer[-1][1]:
            outer.append((first, last))
    return outer


def _line(token: Token, text: str) -> tuple[int, int]:
    """Where the line of a directive begins, and the next one."""
    end = text.find("\n", token.offset)
    return text.rfind("\n", 0, token.offset) + 1, end + 1 if end >= 0 else len(text)


def _include_guard(lexed: Lexed) -> str | None:
    """The macro of a classical include guard around all of a file's tokens."""
    lines = [[t.text for t in lexed.tokens[start:stop]] for start, stop in lexed.directives]
    if len(lines) < 3 or lines[0][1:2] != ["ifndef"] or lines[1][1:2] != ["define"]:
        return None
    first, last = lexed.directives[0][0], lexed.directives[-1][1]
    if first != 0 or last != len(lexed.tokens) or lines[-1][1:] != ["endif"]:
        return None
    depth = 0
    for line in lines[:-1]:
        word = line[1] if len(line) > 1 else ""
        depth += word in ("if", "ifdef", "ifndef")
        depth -= word == "endif"
        if depth == 0:
            return None
    return lines[0][2] if lines[0][2:3] == lines[1][2:3] else None
