"""The Rust crate of a package: safe functions over its C interface (c.py).

Decisions are values here: names, types, defaults and the lines of calls. The output is formatted as
by rustfmt with the crate's rustfmt.toml, which allows lines of 100 characters everywhere.

A function has the name of the C++ function, which is unique. Its parameters are the arguments
without a default, a struct of the others, and the stream. A name that Rust reserves, or that the
function uses itself, ends in an underscore.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...model.dtypes import ACCUMULATOR
from ...model.kinds import Kind
from ...model.languages import Clash, Package
from ...model.op import Op, camel
from ...model.signature import Type, parted
from ...render.cpp import wrapped
from ...render.python import check_samples
from ...render.reference import documented, results
from ...render.templates import Templates
from ..common.markdown import markdown
from .c import CFunction, CParam, Passed, c_function, spelling

WIDTH = 100
# Keywords, and names of the prelude that no variable can hide.
_KEYWORDS = frozenset(
    """Array Arrays Err None Ok Self Some Stream abstract as async await become box break const
    continue crate do dyn else enum extern false final fn for gen if impl in let loop macro
    match mod move mut override priv pub ref return self static struct super trait true try type
    typeof unsafe unsized use virtual where while yield""".split()  # noqa: SIM905
)
# Names of a function's own parameters and variables, and modules of every crate.
_PARAMETERS = _KEYWORDS | {"stream", "options", "out"}
_FUNCTIONS = _KEYWORDS | {"error", "ffi"}
_MODULES = _KEYWORDS | {"array", "error", "ffi", "lib", "number", "operators", "pass", "stream"}
_NUMBERS = {"double": "f64", "float": "f32", "int": "i32", "int64_t": "i64", "bool": "bool"}
_VALUES = {**_NUMBERS, "mlx_dtype": "Dtype", "mlxgen_number": "Number"}
_C_TYPES = {**_VALUES, "mlxgen_number": "mlxgen_number", "char": "c_char", "int": "c_int"}
_ESCAPES = {c: f"\\x{c:02x}" for c in (*range(1, 32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}


def free(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken: with underscores at its end if necessary."""
    while name in taken:
        name += "_"
    return name


def escaped(name: str, words: Container[str]) -> str:
    """Return a name that is none of some words; different names stay different."""
    return f"{name}_" if name.rstrip("_") in words else name


def rust_string(text: str) -> str:
    """Return a Rust string literal."""
    return f'"{text.translate(_ESCAPES)}"'


def rust_comment(text: str) -> str:
    """Return a documentation comment with wrapped paragraphs."""
    return "\n".join(f"/// {line}".rstrip() for line in wrapped(text, WIDTH - 8))


def module_name(name: str) -> str:
    """Return the name of a Python module in Rust."""
    return escaped(name, _MODULES)


def rust_path(op: Op) -> str:
    """Return the path of an operator's function, without the crate."""
    modules = (op.entry.module or "").split(".")
    return "::".join([*map(module_name, filter(None, modules)), escaped(op.name, _FUNCTIONS)])


def use_lines(names: Iterable[str]) -> list[str]:
    """Return the imports of a module, such as ``crate::array::Arrays``, as rustfmt sorts them."""
    homes: dict[str, list[str]] = {}
    for name in sorted(names):
        home, _, last = name.rpartition("::")
        homes.setdefault(home, []).append(last)
    inside = homes.pop("crate", [])
    more = [
        f"{home}::{'{' + ', '.join(of) + '}' if len(of) > 1 else of[0]}"
        for home, of in homes.items()
    ]
    own = [name for name in more if name.startswith("crate::")]
    standard = [f"use {name};" for name in more if name not in own]
    return [
        *standard,
        *[""] * bool(standard and (own or inside)),
        *(f"use {name};" for name in own),
        *[f"use crate::{{{', '.join(inside)}}};"] * bool(inside),
    ]


class Enum(NamedTuple):
    """The type of a choice."""

    name: str
    label: str  # the argument
    variants: Mapping[str, str]  # the strings by variant


class Field(NamedTuple):
    """A field of the results."""

    name: str
    documentation: str


@dataclass(frozen=True, slots=True)
class RustParam:
    """An argument."""

    name: str
    c: CParam
    enum: Enum | None
    dtype: str  # of an array in examples, unless the sample has another one
    shape: str  # such as "(B, T)"; empty if the entry names no axes
    text: str  # its documentation in Markdown

    @property
    def type(self) -> Type:
        """Its type in the entry."""
        return self.c.type

    @property
    def is_option(self) -> bool:
        """True if it has a default."""
        return self.c.value is not None

    @property
    def item(self) -> str:
        """The documentation of a parameter."""
        shape = f" of shape `{self.shape}`" if self.shape else ""
        return f"- `{self.name}`{shape}{': ' if self.text else ''}{self.text}"

    @property
    def documentation(self) -> str:
        """The documentation of a field."""
        text = self.text or f"The argument `{self.c.label}`."
        shape = f" Shape `{self.shape}`." if self.shape else ""
        return f"{text.rstrip('.')}.{shape} Default: `{self.default}`."

    def spelled(self, lifetime: str = "") -> str:
        """Return the type, whose references have a lifetime."""
        ref = f"&{lifetime} ".rstrip() + " " * bool(lifetime)
        kind, of = self.type.kind, self._value
        if kind is Kind.ARRAY:
            found = f"{ref}Array"
        elif kind is Kind.ARRAYS:
            found = f"{ref}[{ref}Array]"
        elif kind is Kind.OPTIONALS:
            found = f"{ref}[Option<{ref}Array>]"
        elif kind is Kind.NESTED:
            found = f"{ref}[{ref}[{of}]]"
        elif self.enum is not None:
            found = self.enum.name
        elif self.c.passed is Passed.TEXT:
            found = f"{ref}str"
        elif self.c.passed is Passed.LIST:
            found = f"[{of}; {self.type.length}]" if self.is_fixed else f"{ref}[{of}]"
        else:
            found = of
        return f"Option<{found}>" if self.type.optional else found

    @property
    def _value(self) -> str:
        """The type of a number or dtype, or of the items of a list; empty for others."""
        return _VALUES.get(spelling(self.type).name, "")

    @property
    def is_fixed(self) -> bool:
        """True for a list of a fixed number of ints."""
        return (self.type.length or 1) > 1 and not self.type.empty

    @property
    def field(self) -> str:
        """The type of a field of the options."""
        return self.spelled("'a")

    @property
    def borrows(self) -> bool:
        """True if the type of the field has a lifetime."""
        return "'a" in self.field

    @property
    def default(self) -> str:
        """The default in Rust."""
        assert self.c.value is not None
        return self.literal(self.c.value.value)

    def literal(self, value: object) -> str:
        """Return a value of an attribute, or None, in Rust."""
        if value is None:
            return "None"
        text = self._plain_literal(self.type.spread(value))
        return f"Some({text})" if self.type.optional else text

    def _plain_literal(self, value: Any) -> str:
        if self.enum is not None:
            (variant,) = (name for name, text in self.enum.variants.items() if text == value)
            return f"{self.enum.name}::{variant}"
        if self.type.kind is Kind.DTYPE:
            return f"Dtype::{dtype_name(value)}"
        if self.type.kind is Kind.NESTED:
            lists = (", ".join(_number(item, self._value) for item in one) for one in value)
            return f"&[{', '.join(f'&[{items}]' for items in lists)}]"
        if isinstance(value, list | tuple):
            items = ", ".join(_number(item, self._value) for item in value)
            return f"[{items}]" if self.is_fixed else f"&[{items}]"
        if self.type.kind is Kind.NUMBER:
            name, of = _NUMBER_KINDS[value.__class__]
            return f"Number::{name}({_number(value, of)})"
        return rust_string(value) if isinstance(value, str) else _number(value, self._value)

    def passed(self, value: str) -> tuple[list[str], list[str]]:
        """Return the statements before the call, and the arguments of C, for an expression."""
        optional, kind, name = self.type.optional, self.type.kind, self.name
        if kind is Kind.ARRAY:
            return [], [f"pass::array({value})" if optional else f"{value}.0"]
        if kind is Kind.ARRAYS:
            return [f"let {name} = Arrays::new({value})?;"], [f"{name}.0"]
        if kind is Kind.OPTIONALS:
            given = f"{value}.map(pass::arrays)" if optional else f"pass::arrays({value})"
            return [f"let {name} = {given};"], self._list(name, owned=True)
        if self.enum is not None:
            text = f"{self.enum.name}::text"
            given = f"pass::text({value}.map({text}))" if optional else f"{value}.text().as_ptr()"
            return [], [given]
        if self.c.passed is Passed.TEXT:
            if not optional:
                return [f"let {name} = pass::owned({value})?;"], [f"{name}.as_ptr()"]
            made = f"let {name} = {value}.map(pass::owned).transpose()?;"
            return [made], [f"pass::text({name}.as_deref())"]
        if self.c.passed is Passed.LISTS:
            given = f"{value}.map(pass::lists)" if optional else f"pass::lists({value})"
            items, sizes = f"{name}.0", f"{name}.1"
            taken = [f"{items}.as_ptr()", f"{sizes}.as_ptr()", f"{sizes}.len()"]
            if optional:
                parts = [f"{name}.as_ref().map(|lists| &lists.{i}[..])" for i in range(2)]
                taken = [*(f"pass::pointer({part})" for part in parts), f"pass::size({parts[1]})"]
            return [f"let {name} = {given};"], taken
        if self.c.passed is Passed.LIST:
            return [], self._list(value, owned=self.is_fixed)
        return [], [f"{value}.into()" if optional or kind is Kind.NUMBER else value]

    def _list(self, value: str, owned: bool) -> list[str]:
        """Return pointer and size; ``owned``: of a vector or an array, not of a slice."""
        if not self.type.optional:
            return [f"{value}.as_ptr()", f"{value}.len()"]
        given = f"{value}.as_ref().map(|list| &list[..])" if owned else value
        return [f"pass::pointer({given})", f"pass::size({given})"]

    @property
    def declared(self) -> Iterator[tuple[str, str]]:
        """The parameters of the C function: names in C, and types."""
        of = _C_TYPES.get(self.c.c, self.c.c)
        is_value = self.c.passed in (Passed.HANDLE, Passed.VALUE)
        yield self.c.name, of if is_value else f"*const {of}"
        if self.c.sizes:
            yield self.c.sizes, "*const usize"
        if self.c.size:
            yield self.c.size, "usize"


_NUMBER_KINDS = {bool: ("Bool", "bool"), int: ("Int", "i64"), float: ("Float", "f64")}


def _number(value: Any, of: str) -> str:
    """Return a number of a Rust type as a literal."""
    if of == "bool":
        return "true" if value else "false"
    if of[0] == "i":
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return f"{of}::NAN"
    if math.isinf(number):
        return f"{of}::INFINITY" if number > 0 else f"{of}::NEG_INFINITY"
    return repr(number)


def dtype_name(name: str) -> str:
    """Return a dtype's variant of ``Dtype``."""
    return name.rstrip("_").capitalize()


def split(prefix: str, items: Sequence[str], suffix: str, indent: int = 0, rest: str = "") -> str:
    """Return ``prefix`` with the items in parentheses or braces and ``suffix``, as rustfmt does.

    The last character of ``prefix`` opens the list, and the first of ``suffix`` closes it. The
    items are on one line if they fit, else on one each. ``rest`` follows them without a comma.
    """
    space = " " * (prefix[-1] == "{" and bool(items))
    every = [*items, *[rest] * bool(rest)]
    line = f"{prefix}{space}{', '.join(every)}{space}{suffix}"
    if indent + len(line) <= WIDTH or not items:
        return line
    lines = [textwrap.indent(f"{item},", "    ") for item in items] + [f"    {rest}"] * bool(rest)
    return "\n".join([prefix, *lines, suffix])


class RustFunction:
    """An operator's function, for the template."""

    def __init__(self, c: CFunction, crate: str) -> None:
        self.c, self.op, self.crate = c, c.op, crate
        self.name = escaped(self.op.name, _FUNCTIONS)
        self.path = rust_path(self.op)
        title = camel(self.op.name)
        several = len(self.op.outputs) > 1
        taken = {f"{title}Options", f"{title}Outputs"}
        self.options_type, self.outputs_type = f"{title}Options", f"{title}Outputs"
        self.params: list[RustParam] = []
        names: set[str] = set(_PARAMETERS)
        dtypes = {p.name: rule.dtypes for rule in self.op.dtype_rules for p in rule.params}
        for p, of in zip(c.params, self.op.arguments.params, strict=True):
            argument = documented(self.op, of.arg)
            name = free(p.label, names)
            names.add(name)
            enum = None
            if p.type.kind is Kind.ENUM:
                enum = Enum(free(title + camel(p.label), taken), p.label, _variants(p.type.choices))
                taken.add(enum.name)
            dtype = _sample_dtype(of.dtype, dtypes.get(p.label, ()))
            text = markdown(argument.text)
            self.params.append(RustParam(name, p, enum, dtype, argument.shape, text))
        self.required = [p for p in self.params if not p.is_option]
        self.options = [p for p in self.params if p.is_option]
        self.enums = [p.enum for p in self.params if p.enum is not None]
        self.outputs = [
            Field(escaped(r.name, _KEYWORDS), _result(r.shape, r.text) or f"The result `{r.name}`.")
            for r in results(self.op)
            if several
        ]
        self.is_list = self.op.outputs[0].type.kind is Kind.ARRAYS

    # Types

    @property
    def _borrows(self) -> bool:
        return any(p.borrows for p in self.options)

    @property
    def options_generic(self) -> str:
        """The type of the options in its definition."""
        return f"{self.options_type}<'a>" if self._borrows else self.options_type

    @property
    def options_elided(self) -> str:
        """The type of the options elsewhere."""
        return f"{self.options_type}<'_>" if self._borrows else self.options_type

    @property
    def default_value(self) -> str:
        """The expression of the default options."""
        return split("Self {", [f"{p.name}: {p.default}" for p in self.options], "}", 8)

    @property
    def result(self) -> str:
        """The type of the result."""
        return self.outputs_type if self.outputs else "Vec<Array>" if self.is_list else "Array"

    @property
    def types(self) -> list[str]:
        """The types that the module defines for this function."""
        options = [self.options_type] * bool(self.options)
        return [*options, *[self.outputs_type] * bool(self.outputs), *(e.name for e in self.enums)]

    @property
    def uses(self) -> list[str]:
        """The imports that the function and its types need."""
        text = {"crate::Array", "crate::Result", "crate::Stream", "crate::error", "crate::ffi"}
        for p in self.params:
            statements, arguments = p.passed(p.name)
            text |= (
                {"crate::pass"} if any("pass::" in t for t in (*statements, *arguments)) else set()
            )
            text |= {"std::ffi::CStr"} if p.enum else set()
            text |= {"crate::Dtype"} if p.type.kind is Kind.DTYPE else set()
            text |= {"crate::Number"} if p.type.kind is Kind.NUMBER else set()
            text |= {"crate::array::Arrays"} if p.type.kind is Kind.ARRAYS else set()
        return sorted(text | {"crate::array::Arrays"} if self.is_list else text)

    # The function

    def _parameters(self) -> list[str]:
        required = [f"{p.name}: {p.spelled()}" for p in self.required]
        options = [f"options: {self.options_elided}"] * bool(self.options)
        return [*required, *options, "stream: &Stream"]

    @property
    def signature(self) -> str:
        """The head of the function after ``pub fn``."""
        head = f"pub fn {self.name}("
        text = split(head, self._parameters(), f") -> Result<{self.result}> {{")
        return text.removeprefix("pub fn ").removesuffix(" {")

    @property
    def shown(self) -> str:
        """The signature in the reference, with the options."""
        text = f"use {self.crate}::{self.path};\n\n"
        text += split(f"fn {self.name}(", self._parameters(), f") -> Result<{self.result}>", 12)
        fields = [f"{p.name}: {p.field}" for p in self.options]
        if fields:
            text += "\n" + split(f"struct {self.options_generic} {{", fields, "}", 12)
        if self.outputs:
            fields = [f"{o.name}: Array" for o in self.outputs]
            text += "\n" + split(f"struct {self.outputs_type} {{", fields, "}", 12)
        for e in self.enums:
            text += "\n" + split(f"enum {e.name} {{", list(e.variants), "}", 12)
        return text

    @property
    def declaration(self) -> str:
        """The declaration of the C function."""
        results = [f"{r.name}: *mut {r.c}" for r in self.c.results]
        taken = {*_KEYWORDS}
        params = []
        for name, of in (item for p in self.params for item in p.declared):
            params.append(f"{free(name, taken)}: {of}")
            taken.add(free(name, taken))
        names = [*results, *params, "s: mlx_stream"]
        text = split(f"pub fn {self.c.name}(", names, ") -> c_int;", 4)
        # rustfmt counts the semicolon only after it has chosen one line.
        line = f"pub fn {self.c.name}({', '.join(names)})"
        return f"{line}\n-> c_int;" if len(f"    {line} -> c_int") == WIDTH - 1 else text

    def _passed(self) -> Iterator[tuple[list[str], list[str]]]:
        for p in self.params:
            yield p.passed(f"options.{p.name}" if p.is_option else p.name)

    @property
    def before(self) -> list[str]:
        """The statements before the call."""
        return [line for statements, _ in self._passed() for line in statements]

    @property
    def empty(self) -> str:
        """The statement that makes the variable for the results."""
        start = "let mut out ="
        if not self.outputs:
            return f"{start} {'Arrays' if self.is_list else 'Array'}::empty();"
        fields = [f"{o.name}: Array::empty()" for o in self.outputs]
        line = f"{self.outputs_type} {{ {', '.join(fields)} }};"
        if len(f"    {start} {line}") > WIDTH >= len(f"        {line}"):
            return f"{start}\n    {line}"
        return split(f"{start} {self.outputs_type} {{", fields, "};", 4)

    @property
    def call(self) -> str:
        """The statement that calls C."""
        results = [f"&mut out.{o.name}.0" for o in self.outputs] or ["&mut out.0"]
        arguments = [text for _, texts in self._passed() for text in texts]
        items = [*results, *arguments, "stream.0"]
        head = f"ffi::{self.c.name}("
        line = f"error::call(|| unsafe {{ {head}{', '.join(items)}) }})?;"
        if len(line) + 4 <= WIDTH:
            return line
        inner = textwrap.indent(split(head, items, ")", 8), "    ")
        return f"error::call(|| unsafe {{\n{inner}\n}})?;"

    # Documentation

    @property
    def documentation(self) -> str:
        """The documentation comment, with an example."""
        entry, checks = self.op.entry, self.op.checks
        parts = [markdown((entry.doc or f"{self.op.python_name}.").strip())]
        if self.required:
            parts.append("# Arguments\n\n" + "\n".join(p.item for p in self.required))
        returns = entry.returns if isinstance(entry.returns, str) else ""
        if self.op.single:
            (one,) = results(self.op)
            returns = _result(one.shape, one.text if entry.returns else "")
        if returns:
            parts.append(f"# Returns\n\n{returns}")
        rules = ["Every array has the documented shape."] * any(check.array for check in checks)
        rules += [check.message for check in checks if not check.array]
        if rules:
            listed = "\n".join(f"- {markdown(rule)}" for rule in rules)
            parts.append(f"# Errors\n\nA call breaks one of these rules:\n\n{listed}")
        comment = rust_comment("\n\n".join(map(_not_rust, parts)))
        return comment + "\n///\n" + "\n".join(f"/// {line}".rstrip() for line in self._example())

    def _example(self) -> Iterator[str]:
        """Yield the lines of an example: the entry's first sample, or guessed values."""
        args = [p.arg for p in self.op.arguments.params]
        samples = [parted(args, sample) for sample in check_samples(self.op)]
        known = bool(samples) or all(p.type.optional or p.is_option for p in self.params)
        sample = samples[0] if samples else {p.c.label: _guess(p) for p in self.required}
        call = SampleCall(self, sample)
        home = "::".join([self.crate, *self.path.split("::")[:-1]])
        yield from ("# Examples", "", "```" if known else "```no_run")
        for path in sorted({self.crate, home}):
            of = sorted(n for n in call.types if path == (home if n in self.types else self.crate))
            if of:
                yield f"use {path}::{of[0] if len(of) == 1 else '{' + ', '.join(of) + '}'};"
        yield ""
        yield from call.lines
        yield from f"let out = {call.text}?;".splitlines()
        if self.is_list:
            yield from ("for array in &out {", "    array.eval()?;", "}")
        yield from (f"{name}.eval()?;" for name in self._arrays("out"))
        yield from (f"# Ok::<(), {self.crate}::Error>(())", "```")

    def _arrays(self, out: str) -> list[str]:
        """Return the arrays of the results, unless these are a list."""
        several = [f"{out}.{o.name}" for o in self.outputs]
        return [] if self.is_list else several or [out]


class SampleCall:
    """The call of an operator with a sample, in an example: ``lines`` make the arrays."""

    def __init__(self, function: RustFunction, sample: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self.types = {"Stream"}
        arguments = [self._value(p, sample) for p in function.required]
        if function.options:
            given = {p.name: p for p in function.options if p.c.label in sample}
            fields = [f"{name}: {self._value(p, sample)}" for name, p in given.items()]
            rest = "..Default::default()" * (len(given) < len(function.options))
            self.types.add(function.options_type)
            made = f"{function.options_type}::default()"
            if fields:
                made = split(f"{function.options_type} {{", fields, "}", 12, rest)
            arguments.append(made)
        head = f"{function.crate}::{function.path}("
        self.text = split(head, [*arguments, "&Stream::default()"], ")", 16)

    def _value(self, p: RustParam, sample: Mapping[str, Any]) -> str:
        """Return the expression of an argument."""
        value, kind = sample.get(p.c.label), p.type.kind
        if kind in (Kind.ARRAYS, Kind.OPTIONALS):
            items = [{}, {}] if value is None and not p.type.optional else value
            if items is None:
                return "None"
            names = [self._array(p, item or {}, f"{p.name}_{i}") for i, item in enumerate(items)]
            listed = ", ".join(f"Some({n})" if kind is Kind.OPTIONALS else n for n in names)
            return f"Some(&[{listed}])" if p.type.optional else f"&[{listed}]"
        if kind is Kind.ARRAY:
            if value is None and p.type.optional:
                return "None"
            name = self._array(p, value or {}, p.name)
            return f"Some({name})" if p.type.optional else name
        if value is not None:
            self.types |= {p.enum.name} if p.enum else set()
            self.types |= {"Dtype"} if kind is Kind.DTYPE else set()
            self.types |= {"Number"} if kind is Kind.NUMBER else set()
        return p.literal(value)

    def _array(self, p: RustParam, given: Mapping[str, Any], name: str) -> str:
        """Return a reference to an array of the call."""
        self.types |= {"Array", "Dtype"}
        dtype = given.get("dtype") or p.dtype
        variant = f"Dtype::{dtype_name(dtype)}"
        if (values := given.get("values")) is not None:
            flat, shape = _flat(values)
            numbers = textwrap.fill(", ".join(_number(n, "f64") for n in flat), WIDTH - 16)
            wraps = "\n" in numbers
            listed = f"&[\n{textwrap.indent(numbers, '    ')}\n]" if wraps else f"&[{numbers}]"
            made = split("from_numbers(", [listed, f"&{shape}", variant], ")", 30)
        else:
            shape = [3, 4] if given.get("shape") is None else list(given["shape"])
            low, high = given.get("low", -2), given.get("high", 2)
            if dtype.startswith(("bool", "uint")):
                low, high = max(low, 0), max(high, 1)
            made = f"spread({_number(low, 'f64')}, {_number(high, 'f64')}, &{shape}, {variant})"
        self.lines += f"let {name} = Array::{made}?;".splitlines()
        return f"&{name}"


def _flat(values: Any) -> tuple[list[Any], list[int]]:
    """Return the numbers of nested lists, and their shape."""
    if not isinstance(values, list):
        return [values], []
    parts = [_flat(value) for value in values]
    inner = parts[0][1] if parts else []
    return [number for flat, _ in parts for number in flat], [len(values), *inner]


def _guess(p: RustParam) -> Any:
    """Return a value for an argument without a sample."""
    if p.type.optional or p.type.is_array or p.type.kind is Kind.OPTIONALS:
        return None
    guesses: dict[Kind, Any] = {Kind.STR: "", Kind.DTYPE: "float32", Kind.BOOL: False}
    if p.type.choices:
        return p.type.choices[0]
    if p.c.passed is Passed.LISTS:
        return [[1]]
    if p.c.passed is Passed.LIST:
        return [1] * (p.type.length or 1)
    return guesses.get(p.type.kind, 1)


def _variants(choices: Sequence[str]) -> dict[str, str]:
    """Return the variants of an enum: the words of each choice in camel case."""
    found: dict[str, str] = {}
    for i, choice in enumerate(choices):
        words = re.findall(r"[A-Za-z0-9]+", choice)
        name = "".join(word[0].upper() + word[1:] for word in words) or f"Choice{i}"
        name = f"_{name}" if name[0].isdigit() else name
        found[free(name, {*found, "Self"})] = choice
    return found


def _result(shape: str, text: str) -> str:
    """Return the documentation of a result, or an empty string."""
    if not shape:
        return markdown(text)
    return f"Array of shape `{shape}`{': ' if text else '.'}{markdown(text)}"


def _sample_dtype(fixed: str | None, dtypes: Sequence[str]) -> str:
    """Return the dtype of an array without one in the sample, as in mlxgen.testing."""
    if fixed and fixed != ACCUMULATOR:
        return fixed
    return dtypes[0] if dtypes and "float32" not in dtypes else "float32"


def _not_rust(text: str) -> str:
    """Mark code blocks as text: rustdoc would compile a block without a language."""
    lines: list[str] = []
    fence, indented, blank = "", False, True
    for line in text.splitlines():
        found = re.match(r"[ ]*(```+|~~~+)(.*)", line)
        if indented and line.strip() and not line.startswith("    "):
            lines.append("```")
            indented = False
        if found and not fence:
            fence = found[1]
            line += "" if found[2].strip() else "text"
        elif found and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        elif line.startswith("    ") and blank and not fence and not indented:
            lines.append("```text")
            indented = True
        blank = not line.strip()
        lines.append(line)
    return "\n".join([*lines, *["```"] * indented])


TEMPLATES = Templates(
    Path(__file__).parent / "templates" / "rust",
    {"rust_comment": rust_comment, "rust_string": rust_string},
)


class Piece(NamedTuple):
    """The function of an operator in the crate."""

    name: str  # of the operator
    modules: Sequence[str]  # in Rust
    text: str  # its types, and the function
    declaration: str  # of the C function
    uses: Sequence[str]  # the imports of `text`
    types: Sequence[str]  # their names


def piece(op: Op, package: Package) -> tuple[str, Piece]:
    """Return the declaration for the reference, and the function."""
    function = RustFunction(c_function(op, package), package.name)
    modules = [module_name(part) for part in op.path.split(".")[:-1]]
    text, types = _text(function, package), function.types
    made = Piece(op.name, modules, text, function.declaration, function.uses, types)
    return function.shown, made


def _text(function: RustFunction, package: Package) -> str:
    return "\n".join(TEMPLATES.blocks("operator.rs.j2", package, f=function)).strip()


def code(op: Op, package: Package) -> str:
    """Return the types and the safe function of an operator."""
    return _text(RustFunction(c_function(op, package), package.name), package) + "\n"


def clashes(pieces: Sequence[Any]) -> Iterator[Clash]:
    """Yield the types that two operators of a module would define."""
    owners: dict[tuple[str, ...], str] = {}
    for p in (Piece(*of) for of in pieces):
        for name in p.types:
            first = owners.setdefault((*p.modules, name), p.name)
            if first != p.name:
                yield Clash(first, p.name, "Rust type", name)


def files(pieces: Sequence[Any], package: Package) -> dict[str, str]:
    """Return the files of the crate, whose modules are those of Python."""
    public = [Piece(*of) for of in pieces]
    modules: dict[str, list[Piece]] = {"": []}
    for p in public:
        for i in range(len(p.modules)):
            modules.setdefault("/".join(p.modules[: i + 1]), [])
        modules["/".join(p.modules)].append(p)
    found: dict[str, str] = {}
    fixed = [path for path in sorted(TEMPLATES.folder.iterdir()) if path.suffix in (".rs", ".toml")]
    for path in fixed:
        found[f"src/{path.name}" if path.suffix == ".rs" else path.name] = path.read_text()
    numbers = [*re.findall(r"\d+", package.version)[:3], "0", "0", "0"][:3]
    version = ".".join(str(int(number)) for number in numbers)
    own = [path.stem for path in fixed if path.suffix == ".rs"]
    top = [("pub ", name) for name in modules if name and "/" not in name]
    crate = [*(("", name) for name in own), ("", "ffi"), *[("", "operators")] * bool(modules[""])]
    found["Cargo.toml"] = TEMPLATES.render("Cargo.toml.j2", package, version=version)
    found["build.rs"] = TEMPLATES.render("build.rs.j2", package)
    found["src/ffi.rs"] = TEMPLATES.render("ffi.rs.j2", package, public=public)
    found["src/lib.rs"] = TEMPLATES.render(
        "lib.rs.j2",
        package,
        modules=sorted([*crate, *top], key=lambda item: item[1]),
        has_operators=bool(modules[""]),
    )
    for module, ops in modules.items():
        if module or ops:
            found[f"src/{module or 'operators'}.rs"] = TEMPLATES.render(
                "operators.rs.j2",
                package,
                module="::".join([package.name, *module.split("/")][: 1 + bool(module) * 9]),
                children=sorted(
                    child.rpartition("/")[2]
                    for child in modules
                    if module and child.rpartition("/")[0] == module
                ),
                uses=use_lines({name for p in ops for name in p.uses}),
                ops=ops,
            )
    return {f"rust/{package.name}/{path}": text for path, text in found.items()}
