"""Rewrites Metal source as C++ that the system's compiler accepts.

Metal is C++14 with address spaces, attributes and a library. The library is in
`include/mlxgen_metal`. This module rewrites the remaining parts, on the tokens of the preprocessed
source (never by regular expressions over its text):

* `device`, `thread` and `threadgroup` are removed, `constant` becomes `const`. Overloads that
  differ only by these are merged if they do the same.
* `threadgroup T a[N];` becomes storage that exists once per threadgroup.
* `[[...]]` attributes and explicit instantiations are removed. Each host name becomes an entry,
  with a table of the origins of its parameters.
* Floating literals without a suffix become floats, because Metal has no double.
* Swizzles become calls; function constants become variables that the launch sets.

Every line has its origin in a `#line` directive, so that the compiler's errors point into the Metal
source. Unsupported source raises a `SourceError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..check.metal import POSITIONS, SCALAR_POSITIONS
from ..read.cpp import Function, Param, find_function, normalised
from ..read.preprocess import SourceError
from .cxx import MESSAGES
from .overloads import DROPPED, SPACES, Overloads

MAX_BUFFERS = 31
_SPECIFIERS = SPACES | {"const", "constexpr", "static", "inline", "volatile"}
_AFTER_FUNCTION = frozenset({"{", ";", ":", "const", "noexcept", "->", "=", "override"}) | SPACES
_TEXTURES = (
    "texture1d texture2d texture2d_ms texture3d texturecube texture_buffer depth2d depthcube"
)
_UNSUPPORTED = {
    **{name + array: "textures" for name in _TEXTURES.split() for array in ("", "_array")},
    "sampler": "samplers",
    "imageblock": "image blocks",
    "visible_function_table": "function tables",
    "intersection_function_table": "ray tracing",
    "threadgroup_imageblock": "image blocks",
    "object_data": "mesh shaders",
    "ray_data": "ray tracing",
    "cooperative_tensor": "tensor operations",
    "mpp": "tensor operations",
    "simdgroup_event": "asynchronous copies",
    "os_log_default": "logging",
}
_SWIZZLE = re.compile(r"[xyzw]{2,4}$|[rgba]{2,4}$")
_FLOATING = re.compile(r"(?:\d[\d']*\.?[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?$")
_HEX_FLOATING = re.compile(r"0[xX][\da-fA-F']*\.?[\da-fA-F']*[pP][+-]?\d+$")
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/="})


@dataclass(frozen=True, slots=True)
class Translation:
    """C++ made from Metal source.

    Attributes:
        text: The C++.
        entries: The kernels' host names, in the order of the library's table.
    """

    text: str
    entries: tuple[str, ...]


def translate(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    *,
    text: str | None = None,
    defines: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
) -> Translation:
    """Translate the Metal file at `path` (or `text`, if given) to C++.

    Args:
        path: The file, which error messages name.
        include_dirs: The include folders; other angled includes are Metal's own.
        text: The source, if it differs from the file's contents.
        defines: Macros in addition to Metal's.
        only: The host names of the requested kernels; None for all.

    Raises:
        SourceError: If the source cannot be parsed or run on the CPU.
    """
    translator = MetalTranslator(path, include_dirs, text=text, defines=defines)
    body = translator.rewritten()
    tables, entries = translator.entries(only)
    return Translation(f'#include "mlxgen_metal/kernel.h"\n{body}{tables}', entries)


class Instance(NamedTuple):
    """A kernel under the name by which the host finds it.

    Attributes:
        function: The name in the source, without template arguments.
        arguments: The template arguments; "" for a kernel that is not a template.
        at: Its token.
    """

    function: str
    arguments: str
    at: int


class MetalTranslator(Overloads):
    """Reads one translation unit and writes it as C++."""

    _shared = 0  # number of threadgroup variables

    # -- reading

    @cached_property
    def explicit(self) -> dict[int, int]:
        """The ranges of explicit instantiations."""
        found = {}
        for i, text in enumerate(self.texts):
            is_last = text == "template" and self.text(i + 1) != "<"
            if is_last and (i == 0 or self.texts[i - 1] not in ("extern", ".", "->", "::")):
                found[i] = self.find(i, len(self.texts), ";") + 1
        return found

    @cached_property
    def instances(self) -> dict[str, Instance]:
        """The kernels by host name, in source order."""
        found = [named for i, stop in self.explicit.items() for named in self._instances(i, stop)]
        for function in self.unit.functions:
            if function.is_kernel and function.body and not function.template:
                name = function.attributes.get("host_name", function.qualified_name)
                at = self.at(function.body[0])
                found.append((_string(str(name)), Instance(function.qualified_name, "", at)))
        instances: dict[str, Instance] = {}
        for name, instance in sorted(found, key=lambda item: item[1].at):
            if name in instances:
                first = self.where(instances[name].at)
                raise self.error("host_name_twice", instance.at, name=name, first=first)
            instances[name] = instance
        return instances

    def _instances(self, i: int, end: int) -> Iterator[tuple[str, Instance]]:
        """Read `template [[host_name("n")]] [[kernel]] ... f<float>...;`."""
        words = self.texts[i : end - 1]
        if "host_name" not in words and "kernel" not in words:
            return
        stop = self.partner[end - 2] if words[-1] == ")" else end - 1
        start = j = i + 1
        while j < stop:
            if self.is_name(j) and self.texts[j - 1] != "::":
                start = j  # the last name
            j = self.over(j)
        opened = self.find(start, stop, "<")
        if "host_name" not in words:
            raise self.error("no_host_name", start)
        if opened == stop:
            raise self.error("no_template_arguments", start)
        given = i + words.index("host_name") + 1
        name = _string(" ".join(self.texts[given + 1 : self.partner[given]]))
        arguments = normalised(" ".join(self.texts[opened + 1 : stop - 1]))
        yield name, Instance("".join(self.texts[start:opened]), arguments, start)

    # -- writing

    def rewritten(self) -> str:
        """Return the source as C++, without entries, which instantiate it."""
        self.skipped |= self.explicit
        self._rewrite_all()
        self._function_constants()
        self.merge()
        return self.written()

    def _rewrite_all(self) -> None:
        i = 0
        while i < len(self.texts):
            i = self.skipped.get(i) or self._rewrite(i)

    def _rewrite(self, i: int) -> int:
        token = self.tokens[i]
        text = token.text
        if token.kind == "number":
            new = self._number(i)
            if new is not None:
                self.new[i] = new
        elif token.kind == "name":
            if text in _UNSUPPORTED:
                raise self.error("unsupported", i, what=_UNSUPPORTED[text])
            if text == "threadgroup" and self.is_storage(i):
                return self._storage(i)
            # Vectors and bfloat, which Metal builds in, are classes without volatile operators.
            if text in DROPPED or text in ("kernel", "volatile"):
                self.new[i] = ""
            elif text == "coherent":
                stop = self.over(i + 1) if self.text(i + 1) == "(" else i + 1
                if self.is_name(stop):  # otherwise it is a variable
                    self.skip(i, stop)
                    return stop
            elif text == "constant":
                self.new[i] = self._constant(i)
            elif (
                i and self.texts[i - 1] == "." and _SWIZZLE.match(text) and self.text(i + 1) != "("
            ):
                self._swizzle(i)
            elif text == "is_function_constant_defined" and self.text(i + 1) == "(":
                self.new[i] = f"mlxgen_defined_{self.texts[i + 2]}"
                self.skip(i + 1, i + 4)
                return i + 4
        elif text == "[" and self.text(i + 1) == "[" and self._is_attribute(i):
            stop = self.partner[i] + 1
            self.skip(i, stop)
            return stop
        elif text == "{" and self.text(i + 1) == "[" and self.texts[i - 1] == "=":
            self._range(i)
        return i + 1

    def _range(self, i: int) -> None:
        """Convert `T a[N] = {[0 ... N - 1] = x};`, an extension of clang, to a loop."""
        last, close = self.partner[i + 1], self.partner[i]
        name = self.partner[i - 2] - 1
        if "..." in self.texts[i:last] and self.text(last + 1) == "=" and self.is_name(name):
            self.new[i - 1] = f"; for (auto& mlxgen_element : {self.texts[name]}) mlxgen_element"
            self.skip(i, last + 1)
            self.new[close] = ""

    def _is_attribute(self, i: int) -> bool:
        # `a[[] {...}()]` is the only other source of two adjacent brackets.
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
            raise self.error("long_double", i)
        if _FLOATING.match(text) and ("." in text or "e" in lower):
            return text + "f"
        return None

    def _swizzle(self, i: int) -> None:
        text = self.texts[i]
        letters = "xyzw" if text[0] in "xyzw" else "rgba"
        lanes = ", ".join(str(letters.index(c)) for c in text)
        name = "swz_to" if self.text(i + 1) in _ASSIGNMENTS else "swz"
        self.new[i] = f"{name}(mlxgen_metal::Swizzle<{lanes}>())"

    def _constant(self, i: int) -> str:
        """Return `const`, or "" if it is already const or if this qualifies a member function."""
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
        """Return true if the `threadgroup` at `i` declares a variable, not a pointer's target."""
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
        """Return the tokens from `i` to `end` outside of brackets and initializers."""
        found = []
        while i < end and self.texts[i] != "=":
            found.append(i)
            i = self.over(i)
        return found

    def _storage(self, i: int) -> int:
        """Convert `threadgroup T a[N], b;` to a typedef each and a reference to storage."""
        end = self._statement_end(i)
        last = end
        if self.text(end) == "{":
            # `= {0}` and `= {}` are dropped. Metal does not specify which thread writes them and
            # when, so that a kernel that relies on them reads NaN.
            close = self.partner[end]
            zero = self.texts[end + 1 : close] in ([], ["0"]) and self.texts[end - 1] == "="
            if zero and self.text(close + 1) == ";":
                last, end = end - 1, close + 1
                self.skip(last, end)
        if self.text(end) != ";":
            raise self.error("initialized", i)
        names: list[int] = []
        for n, (start, stop) in enumerate(self.split(i + 1, last)):
            if self.find(start, stop, "=") < stop:
                raise self.error("initialized", start)
            bracket = self.find(start, stop, "[")
            name = bracket - 1
            if not self.is_name(name) or (n == 0 and name == start):
                raise self.error("strange_variable", start)
            names.append(name)
        self.new[i] = "typedef"
        after = ""
        for name in names:
            text = self.texts[name]
            self._shared += 1
            alias = f"mlxgen_shared_{self._shared}_{text}"
            self.new[name] = alias
            after += self._shared_reference(alias, text)
        self.after[end] = after
        for k in range(i + 1, last):
            if k not in names:
                self._rewrite(k)
        return end

    def _shared_reference(self, alias: str, name: str) -> str:
        return f' auto& {name} = mlxgen_metal::shared<{alias}, {self._shared}>("{name}");'

    # -- function constants

    def _function_constants(self) -> None:
        """Convert `constant T n [[function_constant(i)]];` to a variable that a launch sets."""
        self.constants: list[tuple[str, int]] = []  # names and indices
        for i in range(1, len(self.texts)):
            if self.texts[i : i + 3] != ["[", "[", "function_constant"]:
                continue
            start = i
            while start and self.texts[start] not in (";", "{", "}", "("):
                start -= 1
            if self.texts[start] == "(":
                continue  # a parameter, which exists if the constant is true
            index = self.unit.number(" ".join(self.texts[i + 4 : self.partner[i + 3]]))
            if index is None:
                raise self.error("constant_index", i)
            self.constants.append((self.texts[i - 1], index))
            at = self.texts.index("constant", start)
            self.new[at] = f"static int32_t mlxgen_defined_{self.texts[i - 1]} = 0; static"
        self._computed_constants({name for name, _ in self.constants})

    def _computed_constants(self, unset: set[str]) -> None:
        """Convert `constant T m = !n;` to an object that computes its value when it is used."""
        for i in [i for i, text in enumerate(self.texts) if unset and text == "="]:
            start, end = i, self.texts.index(";", i)
            while start and self.texts[start - 1] not in (";", "{", "}"):
                start -= 1
            if self.texts[start] == "constant" and not unset.isdisjoint(self.texts[i:end]):
                name = self.texts[i - 1]
                unset.add(name)
                self.new |= {start: "static const struct { operator", i - 1: " () const { return"}
                self.new |= {i: " ", end: f"; }} }} {name}{{}};"}

    # -- entries

    def entries(self, only: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
        """Return the tables of kernels and function constants, and the host names."""
        out: list[str] = ['\n#line 1 "entries"\n']
        rows: list[str] = []
        names: list[str] = []
        tables: dict[int, str] = {}
        for name in only or ():
            if name not in self.instances:
                raise self.error("no_kernel", 0, name=name)
        for host_name, instance in self.instances.items():
            if only is not None and host_name not in only:
                continue
            function = self._kernel(instance)
            if id(function) not in tables:
                tables[id(function)] = f"mlxgen_table_{len(tables)}"
                out.append(self._table(tables[id(function)], function))
            arguments = f"<{instance.arguments}>" if instance.arguments else ""
            called = _without_spaces(f"::{function.qualified_name}{arguments}")
            bound = f"mlxgen_metal::Bound<{called}, {tables[id(function)]}>"
            limit = function.attributes.get("max_total_threads_per_threadgroup")
            limit = limit if isinstance(limit, int) else 0
            rows.append(
                f'    {{"{host_name}", &{bound}::run, &{bound}::parameters, '
                f"{len(function.params)}, {limit}}},\n"
            )
            names.append(host_name)
        out.append("static const mlxgen_metal::Entry mlxgen_entries[] = {\n")
        out += rows
        out.append("    {nullptr, nullptr, nullptr, 0, 0}};\n")
        out.append("static const mlxgen_metal::Constant mlxgen_constants[] = {\n")
        for name, index in self.constants:
            value = f"::{name}"
            out.append(
                f'    {{"{name}", {index}, sizeof({value}), '
                f"mlxgen_metal::CodeOf<decltype({value})>::value, &{value}, "
                f"&::mlxgen_defined_{name}}},\n"
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

    def _kernel(self, instance: Instance) -> Function:
        named = find_function(self.unit.functions, instance.function)
        found = [function for function in named if function.is_kernel and function.is_definition]
        if len(found) != 1:
            about = {"name": instance.function, "count": len(found)}
            raise self.error("not_unique", instance.at, **about)
        return found[0]

    def _wrong(self, wrong: str, param: Param, /, **about: object) -> SourceError:
        """Return an error about a parameter."""
        return SourceError(MESSAGES(wrong, **about), self.place(param.span))

    def _table(self, name: str, function: Function) -> str:
        taken = set()
        for param in function.params:
            index = param.attributes.get("buffer")
            if isinstance(index, int):
                if index in taken:
                    raise self._wrong("buffer_twice", param, index=index)
                taken.add(index)
        rows = []
        for param in function.params:
            rows.append(self._row(param, taken))
        text = "".join(rows)
        return f"static constexpr mlxgen_metal::Declared {name}[] = {{\n{text}    {{}}}};\n"

    def _row(self, param: Param, taken: set[int]) -> str:
        positions = (POSITIONS | SCALAR_POSITIONS).intersection(param.attributes)
        kind = "position"
        index: int | str
        if positions:
            index = f"mlxgen_metal::{min(positions)}"
            if param.pointer or param.reference:
                raise self._wrong("position_pointer", param)
        elif "threadgroup" in param.attributes or param.space == "threadgroup":
            kind = "threadgroup_memory"
            value = param.attributes.get("threadgroup", 0)
            if not isinstance(value, int):
                raise self._wrong("no_index", param, attribute="threadgroup")
            index = value
        elif param.pointer or param.reference:
            kind = "buffer"
            value = param.attributes.get("buffer")
            if value is None:
                value = next(i for i in range(2 * MAX_BUFFERS) if i not in taken)
                taken.add(value)
            if not isinstance(value, int):
                raise self._wrong("no_index", param, attribute="buffer")
            index = value
            if index >= MAX_BUFFERS:
                raise self._wrong("no_buffer", param, index=index, count=MAX_BUFFERS)
        else:
            known = ", ".join(sorted(set(param.attributes))) or "no attribute"
            raise self._wrong("no_value", param, name=param.name, known=known)
        return f'    {{"{param.name}", "{param.type}", mlxgen_metal::{kind}, {index}}},\n'


def _without_spaces(text: str) -> str:
    """Return template arguments without Metal's address spaces."""
    return re.sub(r"\b(?:device|thread|threadgroup)\s+", "", text)


def _string(literals: str) -> str:
    """Return the value of adjacent string literals."""
    return re.sub(r'"\s*"?', "", literals)
