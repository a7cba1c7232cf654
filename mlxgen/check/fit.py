"""What a hand-written function must look like to fit an entry.

``Expected`` is the one list of its parameters: it holds a declaration against the entry, and prints
the declaration that would fit. Whoever needs a function by hand makes such a list: kernels over
scalars and over views (kernels.py), and here gradients and functions that an entry binds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath

from ..diagnostics import Span, did_you_mean
from ..model.kinds import Kind
from ..read.cpp import Function, Param
from ..read.keys import Part
from ..read.settings import Settings
from ..read.sources import last_name
from .context import Context, Path, camel

QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)
"""A C++ name with its namespaces."""

_NAMESPACE = re.compile(r"\b(?:mlxgen|mx|std|mlx|core)::")
_NO_TYPE = re.compile(r"\bconst\b|&|\s+")
_STREAM = "mx::StreamOrDevice"
_ARRAYS = "const std::vector<mx::array>&"


@cache
def plain(type: str) -> str:
    """A type in one spelling: without namespaces, const and reference."""
    text = _NO_TYPE.sub("", _NAMESPACE.sub("", type))
    return text.replace("<int>", "<int32_t>")


def _renamed(type: str, element: str | None) -> str:
    """The same of a type in a template, whose parameter is then called T."""
    text = plain(type)
    return text if element in (None, "T", "") else re.sub(rf"\b{element}\b", "T", text)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter that the entry needs."""

    name: str
    what: str  # how messages call what it is for
    types: tuple[str, ...]  # those that fit, the usual one first; T: the element's
    written_to: str = ""  # how it is declared if the function returns through it: "T&"

    def shown(self) -> str:
        """The parameter as the entry would declare it."""
        return f"{self.written_to or self.types[0]} {self.name}"


@dataclass(frozen=True, slots=True)
class Expected:
    """A function that fits an entry.

    ``elements``: if it is a template over the element type T, and what T is in one that is none.
    """

    result: str
    params: Sequence[Wanted]
    elements: tuple[str, ...] | None = None
    by_value: str = "by value or as a const reference"

    def declaration(self, name: str) -> str:
        """The help of whoever wrote another function of that name."""
        template = "template <typename T> " if self.elements else ""
        params = ", ".join(wanted.shown() for wanted in self.params)
        return f"expected: {template}{self.result} {last_name(name)}({params})"

    def problem(self, function: Function) -> str | None:
        """Why a function does not fit, or None."""
        given, wanted = len(function.params), len(self.params)
        if given != wanted:
            return f"it takes {given} parameter{'s' * (given != 1)}, the entry needs {wanted}"
        element = function.template[0] if function.template else None
        if element is not None and self.elements is None:
            return "it is a template"
        for want, param in zip(self.params, function.params, strict=True):
            if problem := self._mismatch(want, param, element):
                return problem
        names = [want.name for want in self.params]
        names_given = [param.name for param in function.params]
        if names_given != names and sorted(names_given) == sorted(names):
            return f"its parameters are in the order {', '.join(names_given)}"
        results = self._spelled((self.result,), element)
        if _renamed(function.result, element) in map(plain, results):
            return None
        if self.result != "void":
            return f"it returns {function.result}, not {results[0]}"
        outputs = any(want.written_to for want in self.params)
        return "it must return void" + " and write its outputs through references" * outputs

    def takes(self, function: Function) -> bool:
        """Whether a function has parameters of exactly these types."""
        types = [plain(param.type) for param in function.params]
        return types == [plain(want.types[0]) for want in self.params]

    def _mismatch(self, want: Wanted, param: Param, element: str | None) -> str | None:
        """Why a parameter does not fit."""
        base = _renamed(param.base, element)
        if want.written_to:
            if not param.reference or param.const or base not in want.types:
                return f"'{param.name}' must be a reference for {want.what}"
            if want.written_to.startswith("thread") and param.space != "thread":
                return f"'{param.name}' must be in the thread address space (`thread T&`)"
            return None
        if param.pointer or (param.reference and not param.const):
            return f"'{param.name}' must be passed {self.by_value}"
        types = self._spelled(want.types, element)
        if base in map(plain, types):
            return None
        return f"'{param.name}' is {param.type}, {want.what} needs {' or '.join(types)}"

    def _spelled(self, types: Iterable[str], element: str | None) -> tuple[str, ...]:
        """Types in a function's own words: without a template T is one of the elements."""
        if element is not None or self.elements is None:
            return tuple(types)
        every = (re.sub(r"\bT\b", e, type) for type in types for e in self.elements)
        return tuple(dict.fromkeys(every))


def place(span: Span, settings: Settings) -> str:
    """A place in hand-written code, for messages."""
    return f"{settings.relative(FilePath(os.path.abspath(span.file)))}:{span.line}"


def spelled(context: Context, function: Function) -> str:
    """A function's name in generated code, where arguments and classes may have a part of it."""
    name = function.qualified_name
    hidden = "::" not in name or name.split("::")[0] in context.around.class_names
    return f"::{name}" if hidden else name


def one_of(context: Context, name: str, found: Iterable[Function], path: Path) -> bool:
    """Whether functions that fit are one; reports those of several namespaces."""
    names = sorted({f.qualified_name for f in found})
    if len(names) > 1:
        message = f"'{name}' may be {' or '.join(names)}"
        context.error("MG514", message, path, help="write the namespace too")
    return len(names) == 1


def _arguments(context: Context) -> list[Wanted]:
    """The entry's arguments as generated functions take them."""
    args = context.signature.args
    return [Wanted(a.name, f"'{a.name}'", (a.type.cpp_param,)) for a in args]


def _others(**types: str) -> list[Wanted]:
    return [Wanted(name, f"'{name}'", (type,)) for name, type in types.items()]


def own_function(context: Context, name: str, path: Path) -> Function | None:
    """The hand-written function that an entry binds: it takes the arguments and a stream."""
    outputs = context.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    result = "mx::array" if single else "std::vector<mx::array>"
    wanted = [*_arguments(context), *_others(s=_STREAM)]
    return _by_hand(context, name, Expected(result, wanted), path)


def gradient_function(context: Context, name: str, path: Path) -> str:
    """The qualified name of a hand-written gradient, which returns one array per gradient."""
    others = _others(cotangents=_ARRAYS, outputs=_ARRAYS, s=_STREAM)
    expected = Expected("std::vector<mx::array>", [*_arguments(context), *others])
    function = _by_hand(context, name, expected, path)
    return spelled(context, function) if function else name


def _by_hand(context: Context, name: str, expected: Expected, path: Path) -> Function | None:
    """The function of csrc that fits; reports it where there is none."""
    sources, settings = context.sources, context.settings
    help = expected.declaration(name)
    found = sources.find(name) if QUALIFIED.fullmatch(name) else []
    if not found:
        context.ok = False
        if not sources.unread:
            known = [f.qualified_name for f in sources.functions if f.class_name is None]
            known += [last_name(f) for f in known]
            message = f"no function '{name}' in {settings.relative(settings.csrc)}"
            message += did_you_mean(name, known)
            notes = sources.unread_places(name)
            context.error("MG511", message, path, help=help, notes=notes)
        return None
    fitting = [f for f in found if expected.problem(f) is None]
    if fitting and not one_of(context, name, fitting, path):
        return None
    function = next((f for f in fitting if sources.header_of(f)), None)
    problem = None
    if not fitting:
        problem = f"does not fit: {expected.problem(found[0])}"
    elif function is None:
        problem = "must be declared in a header (.h), so that generated code can use it"
    elif not any(f.is_definition for f in fitting):
        problem = "is declared, and defined nowhere"
    if problem or function is None:
        where = place((fitting or found)[0].span, settings)
        context.error("MG512", f"'{name}' ({where}) {problem}", path, help=help)
        return None
    context.includes[str(sources.header_of(function))] = None
    return function


def check_own_name(context: Context) -> None:
    """The C++ function that is generated for an op must not be written by hand already."""
    sources, settings = context.sources, context.settings
    name = f"{settings.namespace}::{context.name}"
    expected = Expected("", [*_arguments(context), *_others(s=_STREAM)])
    for function in sources.find(name, everywhere=False):
        if function.qualified_name == name and expected.takes(function):
            context.error(
                "MG516",
                f"{settings.relative(settings.csrc)} defines {name} itself "
                f"({place(function.span, settings)})",
                context.at_name,
                help="generated code defines a function of this name and type: rename one of them",
            )
            return


def check_manual(context: Context, part: Part) -> None:
    """A part written by hand must be defined in csrc, as a member of the primitive's class."""
    sources, name = context.sources, camel(context.name)
    if sources.defines_member(name, part):
        return
    context.ok = False
    if sources.unread:
        return
    context.error(
        "MG513",
        f"`manual: [{part}]`, but {context.settings.relative(context.settings.csrc)} does "
        f"not define {name}::{part}",
        ("manual", context.raw.manual.index(part)),
        help=f"define {name}::{part} in a .cpp file, with mlx::core::Primitive's signature",
        notes=sources.unread_places(part),
    )
