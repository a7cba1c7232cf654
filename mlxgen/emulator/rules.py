"""Refuses what a C++ compiler takes and Metal's does not.

`check_rules` reads a project's own `.metal` files; the headers of MLX that they include are known
to be right. It reports everything that it finds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..cxx import Function
from ..metal import DEFINES, MetalScanner
from ..preprocess import Preprocessor, include_of
from ..tokens import SourceError, Token, lex, read_source

_WORDS = {
    "double": "Metal has no double; use float",
    "virtual": "Metal has no virtual functions",
    "try": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "throw": "Metal has no exceptions",
    "new": "Metal has no dynamic memory",
    "delete": "Metal has no dynamic memory",
    "dynamic_cast": "Metal has no run-time type information",
    "typeid": "Metal has no run-time type information",
    "goto": "Metal has no goto",
    "thread_local": "Metal has no thread_local",
    "asm": "Metal has no inline assembler",
    "std": "Metal has no namespace std; its library is in namespace metal",
}


def check_rules(
    path: str | os.PathLike[str], include_dirs: Sequence[str | os.PathLike[str]] = ()
) -> list[SourceError]:
    """The rules of Metal that a file and its project's headers break, in their order.

    Double, virtual functions, exceptions, dynamic memory, recursion, pointers without an address
    space, more than 31 buffers, and a missing `#include <metal_stdlib>` or `using namespace metal`.
    A file that cannot be read at all gives the one error that says why.
    """
    path = os.fspath(path)
    folders = [os.fspath(folder) for folder in include_dirs]
    try:
        preprocessor = Preprocessor(folders, defines=DEFINES)
        tokens = preprocessor.run(path)
        scanner = MetalScanner(tokens, path)
        scanner.scan()
    except SourceError as error:
        return [error]
    folder = os.path.realpath(os.path.dirname(path))

    def own(source_path: str) -> bool:
        return os.path.realpath(source_path).startswith(folder + os.sep)

    found: list[SourceError] = []
    _words(scanner, own_files(tokens, own), found)
    _includes(path, preprocessor.includes, scanner, found)
    functions = [f for f in scanner.functions if own(f.span.file)]
    for function in functions:
        _parameters(function, found)
    _recursion(scanner, functions, found)
    return sorted(found, key=lambda error: (error.span.file, error.span.line, error.span.column))


def own_files(tokens: Sequence[Token], own: object) -> list[int]:
    """The indices of the tokens that stand in the project's own files."""
    assert callable(own)
    known: dict[str, bool] = {}
    indices = []
    for i, token in enumerate(tokens):
        name = token.source.path
        if name not in known:
            known[name] = bool(own(name))
        if known[name]:
            indices.append(i)
    return indices


def _words(scanner: MetalScanner, indices: Sequence[int], found: list[SourceError]) -> None:
    for i in indices:
        message = _WORDS.get(scanner.texts[i])
        if message is None:
            continue
        if scanner.texts[i] == "delete" and scanner.texts[i - 1] == "=":
            continue  # a deleted function
        if scanner.texts[i] == "std" and scanner.text(i + 1) != "::":
            continue
        found.append(SourceError(message, scanner.tokens[i].span))


def _includes(
    path: str, read: Sequence[str], scanner: MetalScanner, found: list[SourceError]
) -> None:
    """Metal's names need its header, and its functions a using-directive or `metal::`."""
    named = set()
    for name in read:
        text = read_source(name)
        lexed = lex(name, text)
        for start, stop in lexed.directives:
            include = include_of(lexed.tokens[start:stop])
            if include is not None and include.angled:
                named.add(include.name)
    if not any(name.startswith("metal_") or name == "metal_stdlib" for name in named):
        first = scanner.tokens[0].span if scanner.tokens else None
        if first is not None:
            found.append(
                SourceError("no #include <metal_stdlib>: Metal's library is unknown", first)
            )
    texts = scanner.texts
    using = any(texts[i : i + 3] == ["using", "namespace", "metal"] for i in range(len(texts) - 2))
    if using:
        return
    library = {
        "threadgroup_barrier", "simdgroup_barrier", "simd_sum", "simd_max", "simd_min", "exp",
        "log", "sqrt", "rsqrt", "fabs", "floor", "ceil", "rint", "trunc", "sin", "cos", "tanh",
        "pow", "fma", "isnan", "isinf", "atomic_fetch_add_explicit", "mem_flags", "precise", "fast",
    }  # fmt: skip
    declared = {function.name for function in scanner.functions}
    for i, text in enumerate(texts):
        follows = scanner.text(i + 1) in ("(", "::")
        bare = i == 0 or texts[i - 1] not in ("::", ".", "->")
        if text in library and text not in declared and follows and bare:
            found.append(
                SourceError(
                    f"{text} is metal::{text}: add `using namespace metal;`",
                    scanner.tokens[i].span,
                )
            )
            return


def _parameters(function: Function, found: list[SourceError]) -> None:
    buffers = 0
    for param in function.params:
        if (param.pointer or param.reference) and param.space is None:
            kind = "pointer" if param.pointer else "reference"
            found.append(
                SourceError(
                    f"the {kind} {param.name or param.type} of {function.name} needs an address "
                    "space: device, constant, threadgroup or thread",
                    param.span,
                )
            )
        if function.is_kernel and (param.pointer or param.reference):
            buffers += param.space != "threadgroup"
    if buffers > 31:
        found.append(
            SourceError(f"{function.name} takes {buffers} buffers; Metal has 31", function.span)
        )


def _recursion(
    scanner: MetalScanner, functions: Sequence[Function], found: list[SourceError]
) -> None:
    """Functions of the project that call themselves, over others or directly."""
    by_name: dict[str, list[Function]] = {}
    for function in scanner.functions:
        if function.is_definition:
            by_name.setdefault(function.name, []).append(function)
    # an overloaded name does not tell which function is called
    own = {id(function) for function in functions}
    single = {
        name: group[0] for name, group in by_name.items() if len(group) == 1 and id(group[0]) in own
    }
    bodies = _bodies(scanner, single)
    calls = {
        name: {
            scanner.texts[i]
            for i in range(start, stop)
            if scanner.texts[i] in single
            and scanner.tokens[i].kind == "name"
            and scanner.text(i + 1) in ("(", "<")
            and scanner.texts[i - 1] not in (".", "->")
        }
        for name, (start, stop) in bodies.items()
    }
    for name, function in single.items():
        seen: set[str] = set()
        stack = list(calls.get(name, ()))
        while stack:
            callee = stack.pop()
            if callee == name:
                found.append(
                    SourceError(f"{name} calls itself: Metal has no recursion", function.span)
                )
                break
            if callee not in seen:
                seen.add(callee)
                stack.extend(calls.get(callee, ()))


def _bodies(scanner: MetalScanner, single: dict[str, Function]) -> dict[str, tuple[int, int]]:
    bodies: dict[str, tuple[int, int]] = {}
    for i, token in enumerate(scanner.tokens):
        function = single.get(token.text)
        if function is None or scanner.text(i + 1) != "(":
            continue
        if token.span != function.span:
            continue
        j = scanner.find(scanner.partner[i + 1] + 1, len(scanner.texts), "{", ";")
        if scanner.text(j) == "{":
            bodies[token.text] = (j + 1, scanner.partner[j])
    return bodies
