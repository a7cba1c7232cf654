"""Rewrites Metal source as C++ that the system's compiler takes.

Metal is C++14 with address spaces, attributes and a library. The library is in
`include/mlxgen_metal`; this module does what a header cannot, on the tokens of the preprocessed
source (never by regular expressions over its text):

* `device`, `thread` and `threadgroup` go, `constant` becomes `const`. Overloads that differ by
  these alone become one, provided that they do the same.
* `threadgroup T a[N];` becomes storage of which there is one per threadgroup.
* `[[...]]` attributes and explicit instantiations go; each host name becomes an entry, with a table
  that says where each parameter comes from.
* Floating literals without a suffix are floats, as there is no double in Metal.
* Swizzles become calls; function constants become variables that the launch sets.

Every line says with `#line` where it is from, so that the compiler's errors point into the Metal
source. What is not understood is a `SourceError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..diagnostics import Span
from .frontend.cxx import Function
from .frontend.cxx_types import Param
from .frontend.metal import DEFINES, Instantiation
from .frontend.preprocess import Preprocessor
from .frontend.tokens import SourceError, Token
from .overloads import DROPPED, SPACES, Overloads

# The indices of mlxgen_metal::Position, by attribute.
POSITIONS = {
    name: i
    for i, name in enumerate(
        (
            "thread_position_in_grid",
            "thread_position_in_threadgroup",
            "thread_index_in_threadgroup",
            "thread_index_in_simdgroup",
            "simdgroup_index_in_threadgroup",
            "thread_index_in_quadgroup",
            "quadgroup_index_in_threadgroup",
            "threadgroup_position_in_grid",
            "threads_per_grid",
            "threadgroups_per_grid",
            "threads_per_threadgroup",
            "dispatch_threads_per_threadgroup",
            "simdgroups_per_threadgroup",
            "threads_per_simdgroup",
        )
    )
}
POSITIONS["dispatch_simdgroups_per_threadgroup"] = POSITIONS["simdgroups_per_threadgroup"]
POSITIONS["thread_execution_width"] = POSITIONS["threads_per_simdgroup"]

MAX_BUFFERS = 31
_SPECIFIERS = SPACES | {"const", "constexpr", "static", "inline", "volatile"}
_AFTER_FUNCTION = frozenset({"{", ";", ":", "const", "noexcept", "->", "=", "override"}) | SPACES
_UNSUPPORTED = {
    "texture1d": "textures",
    "texture2d": "textures",
    "texture3d": "textures",
    "texture_buffer": "textures",
    "sampler": "samplers",
    "imageblock": "image blocks",
    "visible_function_table": "function tables",
    "intersection_function_table": "ray tracing",
    "threadgroup_imageblock": "image blocks",
    "object_data": "mesh shaders",
    "ray_data": "ray tracing",
    "cooperative_tensor": "tensor operations",
}
_SWIZZLE = re.compile(r"[xyzw]{2,4}$|[rgba]{2,4}$")
_FLOATING = re.compile(r"(?:\d[\d']*\.?[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?$")
_HEX_FLOATING = re.compile(r"0[xX][\da-fA-F']*\.?[\da-fA-F']*[pP][+-]?\d+$")
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/="})


@dataclass(frozen=True, slots=True)
class Translation:
    """C++ made from Metal source.

    Attributes:
        text: the C++.
        entries: the kernels' host names, in the order of the library's table.
        includes: the Metal files that were read.
    """

    text: str
    entries: tuple[str, ...]
    includes: tuple[str, ...]


def translate(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
    defines: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
) -> Translation:
    """The C++ of the Metal file at `path` (of `text`, where given).

    Args:
        path: the file, which error messages name.
        include_dirs: where its includes are; angled ones not found there are Metal's own.
        text: the source, in place of what the file holds.
        defines: macros beside Metal's.
        only: the host names of the kernels that are wanted; None for all.

    Raises:
        SourceError: for source that cannot be read or run on the CPU.
    """
    path = os.fspath(path)
    folders = [os.fspath(folder) for folder in include_dirs]
    preprocessor = Preprocessor(folders, defines={**DEFINES, **(defines or {})})
    tokens = preprocessor.run(path, text)
    tokens = without_pragmas(tokens)
    translator = Translator(tokens, path)
    translator.scan()
    body = translator.rewritten()
    tables, entries = translator.entries(only)
    pieces = ['#include "mlxgen_metal/kernel.h"\n', body, tables]
    return Translation("".join(pieces), entries, tuple(preprocessor.includes))


def without_pragmas(tokens: list[Token]) -> list[Token]:
    """The tokens without `_Pragma("...")`, which tells compilers how to optimise."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        if tokens[i].text == "_Pragma" and i + 3 < len(tokens) and tokens[i + 1].text == "(":
            i += 4
            continue
        out.append(tokens[i])
        i += 1
    return out


class Translator(Overloads):
    """Reads one translation unit as the generator does, and writes it as C++."""

    def __init__(self, tokens: Sequence[Token], unit: str) -> None:
        super().__init__(tokens, unit)
        self._after: dict[int, str] = {}
        self._shared = 0

    # -- reading

    def explicit_instantiation(self, i: int, stop: int) -> int:
        """Instantiations become entries, and go."""
        end = super().explicit_instantiation(i, stop)
        self._skip(i, end)
        return end

    # -- writing

    def rewritten(self) -> str:
        """The source as C++, without entries."""
        texts = self.texts
        i = 0
        skipped = {start: stop for start, stop in self._skipped}
        while i < len(texts):
            if i in skipped:
                i = skipped[i]
                continue
            i = self._rewrite(i)
        self._function_constants()
        self._scope_of_tokens(0, len(texts))
        return self._laid_out()

    def _rewrite(self, i: int) -> int:
        token = self.tokens[i]
        text = token.text
        if token.kind == "number":
            new = self._number(i)
            if new is not None:
                self._new[i] = new
        elif token.kind == "name":
            if text in _UNSUPPORTED:
                raise self.error(f"the emulation has no {_UNSUPPORTED[text]}", i)
            if text == "threadgroup" and self.is_storage(i):
                return self._storage(i)
            if text in DROPPED or text == "kernel":
                self._new[i] = ""
            elif text == "constant":
                self._new[i] = self._constant(i)
            elif (
                i and self.texts[i - 1] == "." and _SWIZZLE.match(text) and self.text(i + 1) != "("
            ):
                self._swizzle(i)
            elif text == "is_function_constant_defined":
                raise self.error("the emulation sets all function constants; this asks whether", i)
        elif text == "[" and self.text(i + 1) == "[" and self._is_attribute(i):
            stop = self.partner[i] + 1
            self._skip(i, stop)
            return stop
        return i + 1

    def _is_attribute(self, i: int) -> bool:
        # `a[[] {...}()]` is the only other way to have two brackets
        return self.partner[i] == self.partner[i + 1] + 1

    def _number(self, i: int) -> str | None:
        text = self.tokens[i].text
        lower = text.lower()
        is_hex = lower.startswith("0x")
        if is_hex:
            if "p" not in lower:
                return None
            if _HEX_FLOATING.match(text):
                return text + "f"
            return None
        if lower.endswith("bf"):
            return f"bfloat({text[:-2]}f)"
        if lower.endswith("h"):
            return f"half({text[:-1]}f)"
        if lower.endswith("l") and ("." in lower or "e" in lower):
            raise self.error("there is no long double in Metal", i)
        if _FLOATING.match(text) and ("." in text or "e" in lower):
            return text + "f"
        return None

    def _swizzle(self, i: int) -> None:
        text = self.texts[i]
        letters = "xyzw" if text[0] in "xyzw" else "rgba"
        lanes = ", ".join(str(letters.index(c)) for c in text)
        name = "swz_to" if self.text(i + 1) in _ASSIGNMENTS else "swz"
        self._new[i] = f"{name}(mlxgen_metal::Swizzle<{lanes}>())"

    def _constant(self, i: int) -> str:
        """`const`, unless it is there already or this qualifies a member function."""
        before = self.text(i - 1) if i else ""
        after = self.text(i + 1)
        if (before == ")" and after in _AFTER_FUNCTION) or (
            before == "const" and after in ("{", ";", ":")
        ):
            return ""
        j = i - 1
        while j >= 0 and self.texts[j] in _SPECIFIERS:
            j -= 1
        k = i + 1
        while self.text(k) in _SPECIFIERS:
            k += 1
        return "" if "const" in self.texts[j + 1 : k] else "const"

    # -- threadgroup variables

    def is_storage(self, i: int) -> bool:
        """Whether the `threadgroup` at `i` declares a variable, rather than what one points to."""
        j = i - 1
        while j >= 0 and self.texts[j] in ("const", "volatile", "static"):
            j -= 1
        if j < 0 or self.texts[j] not in (";", "{", "}", ":"):
            return False
        end = self._statement_end(i)
        return not any(self.texts[k] in ("*", "&") for k in self._outside(i, end))

    def _statement_end(self, i: int) -> int:
        return self.find(i, len(self.texts), ";", "{", "}")

    def _outside(self, i: int, end: int) -> list[int]:
        """The tokens from `i` to `end` outside of brackets and initialisers."""
        found = []
        while i < end and self.texts[i] != "=":
            found.append(i)
            i = self.over(i)
        return found

    def _storage(self, i: int) -> int:
        """Make `threadgroup T a[N], b;` a typedef each and a reference to storage."""
        end = self._statement_end(i)
        last = end
        if self.text(end) == "{":
            # `= {0}` and `= {}` are dropped: which thread would write them, and when, Metal does
            # not say, so a kernel that relies on them sees NaN
            close = self.partner[end]
            zero = self.texts[end + 1 : close] in ([], ["0"]) and self.texts[end - 1] == "="
            if zero and self.text(close + 1) == ";":
                last, end = end - 1, close + 1
                self._skip(last, end)
        if self.text(end) != ";":
            raise self.error("a threadgroup variable cannot be initialised", i)
        names: list[int] = []
        for n, (start, stop) in enumerate(self.split(i + 1, last)):
            if self.find(start, stop, "=") < stop:
                raise self.error("a threadgroup variable cannot be initialised", start)
            bracket = self.find(start, stop, "[")
            name = bracket - 1
            if not self.is_name(name, stop) or (n == 0 and name == start):
                raise self.error("cannot read this threadgroup variable", start)
            names.append(name)
        self._new[i] = "typedef"
        after = ""
        for name in names:
            text = self.texts[name]
            self._shared += 1
            alias = f"mlxgen_shared_{self._shared}_{text}"
            self._new[name] = alias
            after += self._shared_reference(alias, text)
        self._after[end] = after
        for k in range(i + 1, last):
            if k not in names:
                self._rewrite(k)
        return end

    def _shared_reference(self, alias: str, name: str) -> str:
        return f' auto& {name} = mlxgen_metal::shared<{alias}, {self._shared}>("{name}");'

    # -- function constants

    def _function_constants(self) -> None:
        """`constant T n [[function_constant(i)]];` is a variable that a launch sets."""
        for constant in self.constants:
            if not isinstance(constant.index, int):
                raise SourceError("the index of a function constant is a number", constant.span)
        names = {constant.name for constant in self.constants}
        for i, token in enumerate(self.tokens):
            if token.text not in names or token.kind != "name":
                continue
            if self.text(i + 1) == "[" and self.text(i + 2) == "[":
                # the declaration: its `constant` is further to the left
                j = i - 1
                while j >= 0 and self.texts[j] not in (";", "}", "{"):
                    if self.texts[j] == "constant":
                        self._new[j] = "static"
                    j -= 1

    # -- output

    def _laid_out(self) -> str:
        skipped: dict[int, int] = {}
        for start, stop in sorted(self._skipped):
            skipped[start] = max(stop, skipped.get(start, 0))
        pieces: list[str] = []
        source = None
        line = 0
        i = 0
        while i < len(self.tokens):
            if i in skipped:
                i = skipped[i]
                continue
            token = self.tokens[i]
            here = token.span.line
            if token.source is not source or here != line:
                if token.source is source and line < here <= line + 3:
                    pieces.append("\n" * (here - line))
                else:
                    name = token.source.path.replace("\\", "\\\\").replace('"', '\\"')
                    pieces.append(f'\n#line {here} "{name}"\n')
                source, line = token.source, here
            text = self._new.get(i, token.text)
            if text:
                # `>>` and `>>=` come as two tokens
                split = not token.before and text in (">", ">=") and self.texts[i - 1] == ">"
                pieces.append(text if split else " " + text)
                line += text.count("\n")
            if i in self._after:
                pieces.append(self._after[i])
            i += 1
        return "".join(pieces)

    # -- entries

    def entries(self, only: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
        """The tables of kernels and function constants, and the host names."""
        out: list[str] = ['\n#line 1 "entries"\n']
        rows: list[str] = []
        names: list[str] = []
        tables: dict[int, str] = {}
        for name in only or ():
            if name not in self.instantiations:
                raise SourceError(f'no kernel has the host name "{name}"', self._start())
        for instantiation in self.instantiations.values():
            if only is not None and instantiation.host_name not in only:
                continue
            function = self._kernel(instantiation)
            if id(function) not in tables:
                tables[id(function)] = f"mlxgen_table_{len(tables)}"
                out.append(self._table(tables[id(function)], function))
            arguments = ", ".join(instantiation.arguments)
            called = "::" + function.qualified_name + (f"<{arguments}>" if arguments else "")
            called = _without_spaces(called)
            bound = f"mlxgen_metal::Bound<{called}, {tables[id(function)]}>"
            limit = function.attributes.get("max_total_threads_per_threadgroup")
            limit = limit if isinstance(limit, int) else 0
            rows.append(
                f'    {{"{instantiation.host_name}", &{bound}::run, &{bound}::parameters, '
                f"{len(function.params)}, {limit}}},\n"
            )
            names.append(instantiation.host_name)
        out.append("static const mlxgen_metal::Entry mlxgen_entries[] = {\n")
        out += rows
        out.append("    {nullptr, nullptr, nullptr, 0, 0}};\n")
        out.append("static const mlxgen_metal::Constant mlxgen_constants[] = {\n")
        for constant in self.constants:
            value = f"::{constant.name}"
            out.append(
                f'    {{"{constant.name}", {constant.index}, sizeof({value}), '
                f"mlxgen_metal::CodeOf<decltype({value})>::value, &{value}, nullptr}},\n"
            )
        out.append("    {nullptr, 0, 0, 0, nullptr, nullptr}};\n")
        out.append(
            "static const mlxgen_metal::Library mlxgen_library = {\n"
            f"    mlxgen_metal::abi_version, mlxgen_entries, {len(names)}, mlxgen_constants, "
            f"{len(self.constants)}}};\n"
            "const mlxgen_metal::Library* mlxgen_metal_library() {\n"
            "  return &mlxgen_library;\n}\n"
        )
        return "".join(out), tuple(names)

    def _start(self) -> Span:
        return self.tokens[0].span if self.tokens else Span(self.unit, 1, 1, 1, 1)

    def _kernel(self, instantiation: Instantiation) -> Function:
        found = [
            function
            for function in self.functions
            if function.is_kernel
            and function.is_definition
            and function.qualified_name.endswith(instantiation.function)
            and function.name == instantiation.function.split("::")[-1]
        ]
        if len(found) != 1:
            raise SourceError(
                f"{instantiation.function} is the name of {len(found)} kernels; the emulation "
                "needs exactly one",
                instantiation.span,
            )
        return found[0]

    def _table(self, name: str, function: Function) -> str:
        taken = set()
        for param in function.params:
            index = param.attributes.get("buffer")
            if isinstance(index, int):
                if index in taken:
                    raise SourceError(f"buffer({index}) is there twice", param.span)
                taken.add(index)
        rows = []
        for param in function.params:
            rows.append(self._row(param, taken))
        text = "".join(rows)
        return f"static constexpr mlxgen_metal::Declared {name}[] = {{\n{text}    {{}}}};\n"

    def _row(self, param: Param, taken: set[int]) -> str:
        positions = [a for a in param.attributes if a in POSITIONS]
        kind = "position"
        index: int
        if positions:
            index = POSITIONS[positions[0]]
            if param.pointer or param.reference:
                raise SourceError("a position is no pointer", param.span)
        elif "threadgroup" in param.attributes or param.space == "threadgroup":
            kind = "threadgroup_memory"
            value = param.attributes.get("threadgroup", 0)
            if not isinstance(value, int):
                raise SourceError("threadgroup(...) takes a number", param.span)
            index = value
        elif param.pointer or param.reference:
            kind = "buffer"
            value = param.attributes.get("buffer")
            if value is None:
                value = next(i for i in range(2 * MAX_BUFFERS) if i not in taken)
                taken.add(value)
            if not isinstance(value, int):
                raise SourceError("buffer(...) takes a number", param.span)
            index = value
            if index >= MAX_BUFFERS:
                raise SourceError(
                    f"buffer {index}: Metal has {MAX_BUFFERS} buffers, 0 to 30", param.span
                )
        else:
            known = ", ".join(sorted(set(param.attributes))) or "no attribute"
            raise SourceError(
                f"the emulation cannot give a value to parameter {param.name} ({known})",
                param.span,
            )
        return f'    {{"{param.name}", "{param.type}", mlxgen_metal::{kind}, {index}}},\n'


def _without_spaces(text: str) -> str:
    """Template arguments without Metal's address spaces."""
    return re.sub(r"\b(?:device|thread|threadgroup)\s+", "", text)
