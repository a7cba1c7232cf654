"""Reports code that a C++ compiler accepts and Metal's compiler rejects (MG801 to MG808).

The rules apply to a kernel's file and the project's headers that it includes. Headers of MLX and of
mlxgen are known to be correct. `mlxgen.emulator.spaces` checks conversions of address spaces.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from ..check.dispatch import MAX_BUFFERS
from ..model.dtypes import METAL_TYPES
from ..model.op import Kernel
from ..read.cpp import File, Function, Reader, Unit
from ..read.names import NOT_IN_METAL
from ..read.preprocess import LITERAL, SourceError, calculated
from ..read.sources import last_name
from .cxx import MESSAGES
from .names import unknown_names

_KEYWORDS = "device|constant|threadgroup|thread|half|bfloat|kernel|vertex|fragment"
_FORBIDDEN = re.compile(
    rf"{LITERAL}|=\s*delete\b|\bstd\b(?!\s*::)|\b({'|'.join(NOT_IN_METAL)})\b"
    rf"|(?<=\w)\s+({_KEYWORDS})\s*=(?!=)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
# A pointer or reference declared at the beginning of a statement: `float* p = x;`
_LOCAL = re.compile(
    r"(?<=[;{}])\s*(?:(?:const|volatile|static|unsigned|signed)\s+)*"
    r"(?!(?:device|constant|threadgroup|thread|auto|return|delete|throw|case|else|goto|do|using)\b)"
    r"[A-Za-z_]\w*(?:\s+const)?\s*([*&])\s*([A-Za-z_]\w*)\s*(?=[=;])"
)
_CALL = re.compile(r"(\w*\s*::\s*|\.\s*|->\s*)?\b([A-Za-z_]\w*)\s*([(<])")
_LIBRARY = re.compile(
    r"(?<![\w.:>])(threadgroup_barrier|simdgroup_barrier|simd_sum|simd_max|simd_min|exp|log|sqrt"
    r"|rsqrt|fabs|floor|ceil|rint|trunc|sin|cos|tanh|pow|fma|isnan|isinf|mem_flags|precise|fast"
    r"|atomic_fetch_add_explicit)\s*(?=\(|::)"
)

THREADGROUP_BYTES = 32 * 1024
_SIZES = {"size_t": 8, "complex64_t": 8} | {
    spelled: int("".join(filter(str.isdigit, dtype)) or 8) // 8
    for dtype, spellings in METAL_TYPES.items()
    for spelled in spellings
}
# `threadgroup T a[N][M], b[N];` and definitions of the names in it.
_ARRAYS = re.compile(r"\bthreadgroup\s+([\w\s:<>,]+?)\s*\b(\w+\s*(?:\[[^;]*?)?)\s*(?=[;={])")
_CONSTANT = re.compile(r"\b(?:using|constexpr)\b[^;=(){}]*?\b(\w+)\s*=\s*([^;]+);")


def broken_rules(reader: Reader, path: str, kernels: Iterable[Kernel] = ()) -> list[SourceError]:
    """Return the violations of Metal's rules in a file and its project's headers, by location.

    ``kernels``: the kernels in the file that launchers instantiate. Raises `SourceError` for a file
    that cannot be read.
    """
    unit = reader.unit(path)
    kernels = list(kernels)
    shared = any(kernel.shared for kernel in kernels)  # by the CPU
    found = list(_library(reader, unit, shared))
    for file in unit.files:
        found += [*_words(file, shared), *_locals(file)]
    for function in unit.functions:
        found += _parameters(function, shared)
    found += [*_recursion(unit), *_memory(unit, kernels)]
    found += unknown_names(reader, unit, shared)
    return sorted(found, key=lambda error: (error.span.file, error.span.line, error.span.column))


def _words(file: File, shared: bool) -> Iterator[SourceError]:
    for match in _FORBIDDEN.finditer(file.source.text):
        if match.lastindex:
            wrong = "not_in_Metal" if match[1] else "keyword"
            if shared and match[1] == "std":
                wrong = "std"
            at = file.source.span(*match.span(match.lastindex))
            yield SourceError(MESSAGES(wrong, what=NOT_IN_METAL.get(match[1]), word=match[2]), at)


def _locals(file: File) -> Iterator[SourceError]:
    for match in _LOCAL.finditer(file.source.text):
        at = file.source.span(*match.span(2))
        yield SourceError(MESSAGES("no_space", kind=_kind(match[1] == "*"), name=match[2]), at)


def _kind(pointer: bool) -> str:
    return "pointer" if pointer else "reference"


def _parameters(function: Function, shared: bool) -> Iterator[SourceError]:
    passed = [p for p in function.params if p.pointer or p.reference]
    for param in passed:
        # An array without a mark is in the thread's memory.
        if param.space is None and ("*" in param.type or "&" in param.type):
            name = f"{param.name or param.type} of {function.name}"
            kind = _kind(param.pointer)
            said = MESSAGES("no_space", "shared" * shared, kind=kind, name=name)
            yield SourceError(said, param.span)
    buffers = sum(param.space != "threadgroup" for param in passed)
    if function.is_kernel and buffers > MAX_BUFFERS:
        about = {"function": function.name, "count": buffers, "limit": MAX_BUFFERS}
        yield SourceError(MESSAGES("buffers", **about), function.span)


def _library(reader: Reader, unit: Unit, shared: bool) -> Iterator[SourceError]:
    """Report uses of Metal's library without its header, or without `metal::` or a using-directive.

    A header that C++ shares uses the functions of mlxgen/scalar.h instead.
    """
    read = reader.closure(unit.files[0].source.path, libraries=True)
    if not any(name.startswith("metal_") for source in read for name in source.includes):
        source = unit.files[0].source
        if first := re.search(r"\w+|\S", source.text):
            wrong = "no_scalar_header" if shared else "no_metal_header"
            yield SourceError(MESSAGES(wrong), source.span(*first.span()))
        if shared:
            return
    if any(re.search(r"\busing\s+namespace\s+metal\b", source.plain) for source in read):
        return
    declared = {function.name for function in unit.functions}
    for file in unit.files:
        for match in _LIBRARY.finditer(file.source.text):
            if match[1] not in declared:
                wrong = "function_outside" if shared else "function_without_using"
                yield SourceError(MESSAGES(wrong, name=match[1]), file.source.span(*match.span(1)))
                return


def _bodies(unit: Unit) -> Iterator[tuple[Function, str]]:
    for file in unit.files:
        for function in file.functions:
            if function.body:
                yield function, file.source.text[slice(*function.body)]


def _recursion(unit: Unit) -> Iterator[SourceError]:
    """Report functions that call themselves, directly or through others.

    Overloaded functions are skipped, because a call does not show which overload it means. A call
    with template arguments next to ``if constexpr`` can be another instantiation, at compile time.
    """
    named = defaultdict(list)
    for function, body in _bodies(unit):
        named[function.name].append((function, body))
    single = {name: group[0] for name, group in named.items() if len(group) == 1}

    def means(scope: str, name: str) -> bool:
        known = single[name][0].qualified_name.split("::")[:-1] if name in single else None
        return known is not None and scope.rstrip(": \n\t") in ("", *known)

    calls = {
        name: {
            callee
            for scope, callee, opened in _CALL.findall(body)
            if means(scope, callee) and (opened == "(" or "if constexpr" not in body)
        }
        for name, (_, body) in single.items()
    }
    for name, (function, _) in single.items():
        reached = [*calls[name]]
        for callee in reached:  # grows in the loop
            reached += calls[callee].difference(reached)
        if name in reached:
            yield SourceError(MESSAGES("recursion", function=name), function.span)


def _memory(unit: Unit, kernels: Iterable[Kernel]) -> Iterator[SourceError]:
    """Report instantiations of kernels that declare too much threadgroup memory."""
    constants = {
        name: f"({value})"
        for file in unit.files
        for name, value in _CONSTANT.findall(file.source.text)
    }
    launched = {last_name(kernel.function): kernel.variants for kernel in kernels}
    for kernel, body in _bodies(unit):
        arrays = [
            (kind, re.findall(r"\[([^\]]*)\]", one))
            for kind, declared in _ARRAYS.findall(body)
            for one in re.split(r",\s*(?=\w+\s*\[)", declared)
        ]
        found: list[tuple[int, str]] = []
        variants = launched.get(kernel.name, {}) if kernel.template else {kernel.name: ()}
        for host_name, arguments in variants.items() if kernel.is_kernel and arrays else ():
            defaults = dict(zip(kernel.template, kernel.template_defaults, strict=True))
            given = dict(zip(kernel.template, arguments, strict=False))
            names = constants | {n: d for n, d in defaults.items() if d} | given
            total = sum(
                _size(kind, names) * prod(_value(length, names) for length in lengths)
                for kind, lengths in arrays
            )
            if total > THREADGROUP_BYTES:
                found.append((total, host_name))
        if found:
            total, name = max(found, key=lambda each: each[0])
            wrong = "memory_of_several" if len(found) > 1 else "memory"
            about = {"name": name, "bytes": total, "limit": THREADGROUP_BYTES}
            yield SourceError(MESSAGES(wrong, more=len(found) - 1, **about), kernel.span)


def _resolved(text: str, names: Mapping[str, str]) -> str:
    """Replace the names in ``text`` by their definitions."""
    for _ in range(6):  # definitions may contain names
        text = _NAME.sub(lambda m: names.get(m[0], m[0]), text)
    return text


def _size(kind: str, names: Mapping[str, str]) -> int:
    """Return the bytes of a type; 0 if unknown, which leaves the error to the launch."""
    kind = re.sub(r"\b(const|volatile)\b|\bmetal::|[\s()]", "", _resolved(kind, names))
    if match := re.fullmatch(r"vec<(.+),(.+)>|([a-z]+)([234])", kind):
        lanes = _value(match[2] or match[4], names)
        return _size(match[1] or match[3], names) * (4 if lanes == 3 else lanes)
    if match := re.fullmatch(r"atomic<(.+)>|atomic_(\w+)", kind):
        return _size(match[1] or match[2], names)
    return _SIZES.get(kind, 0)


def _value(text: str, names: Mapping[str, str]) -> int:
    """Return the value of an integer expression; 0 if it cannot be computed."""
    text = re.sub(r"\bsizeof\s*\(([^()]*)\)", lambda m: str(_size(m[1], names)), text)
    return calculated(re.sub(r"\b(\d+)[uUlL]+\b", r"\1", _resolved(text, names))) or 0
