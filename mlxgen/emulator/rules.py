"""Refuses what a C++ compiler takes and Metal's does not.

`check_rules` reads a project's own Metal source, which is `.metal` files and the headers of scalar
functions that every backend shares; the headers of MLX that they include are known to be right. It
reports everything that it finds, each with a code of `diagnostics`. Whether address spaces fit is
for `spaces` to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..diagnostics import Span
from .frontend.cxx import Function
from .frontend.metal import DEFINES, LIBRARY_INCLUDES, Instantiation
from .frontend.preprocess import OWN_INCLUDES, Preprocessor, include_of
from .frontend.tokens import SourceError, Token, lex, read_source
from .translate import Translator, without_pragmas

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
_SPACES = ("device", "constant", "threadgroup", "thread")
_KEYWORDS = frozenset({*_SPACES, "half", "bfloat", "kernel", "vertex", "fragment"})
_LOCAL_HELP = "device, constant, threadgroup or thread"
_NO_TYPES = frozenset(
    {*_SPACES, "auto", "return", "delete", "throw", "case", "else", "goto", "do", "using"}
)

THREADGROUP_BYTES = 32 * 1024
_SIZES = {
    **dict.fromkeys(("bool", "char", "uchar", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("short", "ushort", "half", "bfloat", "float16_t", "bfloat16_t"), 2),
    **dict.fromkeys(("int16_t", "uint16_t"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("long", "ulong", "size_t", "int64_t", "uint64_t", "complex64_t"), 8),
}
_VECTOR = re.compile(r"(\w+)([234])$")


class BrokenRule(SourceError):
    """A rule of Metal that source breaks; `code` is explained in diagnostics/errors.md."""

    def __init__(self, code: str, message: str, span: Span, help: str | None = None) -> None:
        super().__init__(message, span, help)
        self.code = code


def check_rules(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
) -> list[SourceError]:
    """The rules of Metal that a file and its project's headers break, in their order.

    Double, virtual functions, exceptions, dynamic memory (MG801), recursion (MG802), more than 31
    buffers (MG803) or 32 KiB of threadgroup memory (MG804), pointers without an address space
    (MG805), and a missing `#include <metal_stdlib>` or `using namespace metal` (MG807).

    Args:
        path: the file.
        include_dirs: where its includes are.
        text: the source, in place of what the file holds.

    Returns:
        A `BrokenRule` for each; for a file that cannot be read the `SourceError` that says why.
    """
    path = os.fspath(path)
    folders = [os.fspath(folder) for folder in include_dirs]
    try:
        preprocessor = Preprocessor(folders, defines=DEFINES, macros_only=LIBRARY_INCLUDES)
        tokens = without_pragmas(preprocessor.run(path, text))
        scanner = Translator(tokens, path)
        scanner.scan()
    except SourceError as error:
        return [error]
    folder = os.path.realpath(os.path.dirname(path)) + os.sep
    library = os.path.realpath(OWN_INCLUDES) + os.sep

    def own(source_path: str) -> bool:
        place = os.path.realpath(source_path)
        return place.startswith(folder) or not (
            place.startswith(library) or "/mlx/backend/" in place.replace(os.sep, "/")
        )

    found: list[SourceError] = []
    indices = own_files(tokens, own)
    _words(scanner, indices, found)
    _includes(path, text, preprocessor.includes, scanner, found)
    functions = [f for f in scanner.functions if own(f.span.file)]
    for function in functions:
        _parameters(function, found)
    _variables(scanner, indices, found)
    _recursion(scanner, functions, found)
    _Memory(scanner).check(functions, found)
    return sorted(found, key=lambda error: (error.span.file, error.span.line, error.span.column))


def own_files(tokens: Sequence[Token], own: Callable[[str], bool]) -> list[int]:
    """The indices of the tokens that stand in the project's own files."""
    known: dict[str, bool] = {}
    indices = []
    for i, token in enumerate(tokens):
        name = token.source.path
        if name not in known:
            known[name] = own(name)
        if known[name]:
            indices.append(i)
    return indices


def _words(scanner: Translator, indices: Sequence[int], found: list[SourceError]) -> None:
    for i in indices:
        word = scanner.texts[i]
        message = _WORDS.get(word)
        declared = scanner.text(i + 1) == "=" and scanner.tokens[i - 1].kind == "name"
        if word in _KEYWORDS and declared:
            message = f"'{word}' is a keyword of Metal; name the variable otherwise"
        if message is None:
            continue
        if scanner.texts[i] == "delete" and scanner.texts[i - 1] == "=":
            continue  # a deleted function
        if scanner.texts[i] == "std" and scanner.text(i + 1) != "::":
            continue
        found.append(BrokenRule("MG801", message, scanner.tokens[i].span))


def _includes(
    path: str,
    text: str | None,
    read: Sequence[str],
    scanner: Translator,
    found: list[SourceError],
) -> None:
    """Metal's names need its header, and its functions a using-directive or `metal::`."""
    named = set()
    using = False
    for name in read:
        lexed = lex(name, text if text is not None and name == path else read_source(name))
        for start, stop in lexed.directives:
            include = include_of(lexed.tokens[start:stop])
            if include is not None and include.angled:
                named.add(include.name)
        words = [token.text for token in lexed.tokens]
        starts = (i for i, word in enumerate(words) if word == "using")
        using = using or any(words[i : i + 3] == ["using", "namespace", "metal"] for i in starts)
    if not any(name.startswith("metal_") for name in named):
        first = scanner.tokens[0].span if scanner.tokens else None
        if first is not None:
            found.append(
                BrokenRule("MG807", "no #include <metal_stdlib>: Metal's library is unknown", first)
            )
    texts = scanner.texts
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
                BrokenRule(
                    "MG807",
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
                BrokenRule(
                    "MG805",
                    f"the {kind} {param.name or param.type} of {function.name} needs an address "
                    f"space: {_LOCAL_HELP}",
                    param.span,
                )
            )
        if function.is_kernel and (param.pointer or param.reference):
            buffers += param.space != "threadgroup"
    if buffers > 31:
        found.append(
            BrokenRule(
                "MG803", f"{function.name} takes {buffers} buffers; Metal has 31", function.span
            )
        )


def _variables(scanner: Translator, indices: Sequence[int], found: list[SourceError]) -> None:
    """Pointers and references that are declared without an address space: `float* p = x;`."""
    texts = scanner.texts
    for i in indices:
        if texts[i] not in ("*", "&") or i + 2 >= len(texts):
            continue
        if scanner.tokens[i + 1].kind != "name" or texts[i + 2] not in ("=", ";"):
            continue
        j = i - 1
        if texts[j] == "const":
            j -= 1
        if scanner.tokens[j].kind != "name" or texts[j] in _NO_TYPES:
            continue
        start = j - 1
        while start >= 0 and texts[start] in ("const", "volatile", "static", "unsigned", "signed"):
            start -= 1
        if start >= 0 and texts[start] in (";", "{", "}"):
            kind = "pointer" if texts[i] == "*" else "reference"
            found.append(
                BrokenRule(
                    "MG805",
                    f"the {kind} {texts[i + 1]} needs an address space: {_LOCAL_HELP}",
                    scanner.tokens[i + 1].span,
                )
            )


def _recursion(
    scanner: Translator, functions: Sequence[Function], found: list[SourceError]
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
            and _may_be(single[scanner.texts[i]], scanner.texts, i)
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
                    BrokenRule(
                        "MG802", f"{name} calls itself: Metal has no recursion", function.span
                    )
                )
                break
            if callee not in seen:
                seen.add(callee)
                stack.extend(calls.get(callee, ()))


def _may_be(function: Function, texts: Sequence[str], i: int) -> bool:
    """Whether the name at `i` can mean this function, by what stands before it."""
    if texts[i - 1] in (".", "->"):
        return False
    if texts[i - 1] != "::":
        return True
    return texts[i - 2] in ("", *function.qualified_name.split("::")[:-1])


def _bodies(scanner: Translator, single: dict[str, Function]) -> dict[str, tuple[int, int]]:
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


# ------------------------------------------------------------------------------ threadgroup memory


@dataclass(frozen=True, slots=True)
class _Array:
    """A `threadgroup T a[N][M];`: the tokens of its type, and of its lengths."""

    type: tuple[str, ...]
    lengths: tuple[tuple[str, ...], ...]


class _Memory:
    """Adds up what a kernel declares, as far as its lengths are known before it runs."""

    def __init__(self, scanner: Translator) -> None:
        self._scanner = scanner
        self._constants = self._definitions()

    def check(self, functions: Sequence[Function], found: list[SourceError]) -> None:
        """Report each instantiation of a kernel that needs more than there is."""
        single = {f.name: f for f in functions if f.is_kernel and f.is_definition}
        for name, (start, stop) in _bodies(self._scanner, single).items():
            arrays = self._arrays(start, stop)
            if not arrays:
                continue
            for instantiation in self._scanner.instantiations.values():
                if instantiation.function.split("::")[-1] != name:
                    continue
                total = sum(self._size(array, single[name], instantiation) for array in arrays)
                if total > THREADGROUP_BYTES:
                    found.append(
                        BrokenRule(
                            "MG804",
                            f"{instantiation.host_name} declares {total} bytes of threadgroup "
                            f"memory; there are {THREADGROUP_BYTES}",
                            single[name].span,
                        )
                    )

    def _definitions(self) -> dict[str, tuple[str, ...]]:
        """`constexpr int n = 4 * 8;` and `using T = float;`: what such names stand for."""
        texts = self._scanner.texts
        out: dict[str, tuple[str, ...]] = {}
        for i, text in enumerate(texts):
            if text == "=" and (texts[i - 2] == "using" or "constexpr" in texts[max(0, i - 6) : i]):
                stop = self._scanner.find(i, len(texts), ";")
                out[texts[i - 1]] = tuple(texts[i + 1 : stop])
        return out

    def _arrays(self, start: int, stop: int) -> list[_Array]:
        scanner = self._scanner
        out = []
        for i in range(start, stop):
            if scanner.texts[i] != "threadgroup" or not scanner.is_storage(i):
                continue
            kind: tuple[str, ...] = ()
            for first, last in scanner.split(i + 1, scanner.find(i, stop, ";", "=", "{")):
                bracket = scanner.find(first, last, "[")
                kind = kind or tuple(scanner.texts[first : bracket - 1])
                lengths = []
                while bracket < last and scanner.text(bracket) == "[":
                    lengths.append(tuple(scanner.texts[bracket + 1 : scanner.partner[bracket]]))
                    bracket = scanner.partner[bracket] + 1
                out.append(_Array(kind, tuple(lengths)))
        return out

    def _size(self, array: _Array, function: Function, instantiation: Instantiation) -> int:
        """Bytes; 0 where they are not known here, so that the launch has to tell."""
        given = {
            name: tuple(re.findall(r"\w+|\S", value))
            for name, value in zip(function.template, instantiation.arguments, strict=False)
        }
        names = {**self._constants, **given}
        size = self._size_of(array.type, names)
        for length in array.lengths:
            size *= self._value(length, names) or 0
        return size

    def _size_of(self, words: tuple[str, ...], names: Mapping[str, tuple[str, ...]]) -> int:
        kept = [word for word in words if word not in ("const", "volatile", "metal", "::")]
        for _ in range(8):
            if len(kept) == 1 and kept[0] in names:
                kept = list(names[kept[0]])
        if len(kept) == 6 and kept[0] == "vec":  # vec < T , N >
            lanes = self._value((kept[4],), names) or 0
            return self._size_of((kept[2],), names) * (4 if lanes == 3 else lanes)
        if len(kept) == 4 and kept[0] == "atomic":
            return self._size_of((kept[2],), names)
        if len(kept) != 1:
            return 0
        vector = _VECTOR.match(kept[0])
        if vector and vector[1] in _SIZES:
            return _SIZES[vector[1]] * (2 if vector[2] == "2" else 4)
        return _SIZES.get(kept[0].removeprefix("atomic_"), 0)

    def _value(
        self, words: tuple[str, ...], names: Mapping[str, tuple[str, ...]], depth: int = 0
    ) -> int | None:
        """An integer expression's value; None where it is not as simple as that."""
        out = []
        i = 0
        while i < len(words):
            word = words[i]
            if word == "sizeof" and words[i + 1 : i + 2] == ("(",) and ")" in words[i:]:
                stop = words.index(")", i)
                out.append(str(self._size_of(words[i + 2 : stop], names)))
                i = stop
            elif word in names and depth < 8:
                value = self._value(names[word], names, depth + 1)
                out.append("?" if value is None else str(value))
            elif re.fullmatch(r"\d+[uUlL]*", word):
                out.append(word.rstrip("uUlL"))
            elif word in ("+", "-", "*", "(", ")", "%", "<<"):
                out.append(word)
            else:
                out.append("//" if word == "/" else "?")
            i += 1
        try:
            return int(eval(" ".join(out), {"__builtins__": {}})) if "?" not in out else None
        except (SyntaxError, ArithmeticError, ValueError):
            return None
