"""What a hand-written function must look like to fit an entry.

``Expected`` is the one list of its parameters: it holds a declaration against the entry, and prints
the declaration that would fit. ``Asked`` looks for such a function, and reports what is wrong with
those of its name. Kernels are asked for in kernels.py and metal.py; here gradients and functions
that an entry binds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath

from ..diagnostics import Span, did_you_mean
from ..model.kinds import Kind
from ..read.cpp import Function, Param
from ..read.keys import Part
from ..read.sources import last_name
from .context import Context, Path, camel

QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)
"""A C++ name with its namespaces."""

_NAMESPACE = re.compile(r"\b(?:mlxgen|mx|std|mlx|core)::")
_NO_TYPE = re.compile(r"\bconst\b|&|\s+")


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
    ``also``: what else there is to say of a function.
    """

    result: str
    params: Sequence[Wanted]
    elements: tuple[str, ...] | None = None
    by_value: str = "by value or as a const reference"
    also: Callable[[Function], str | None] = lambda function: None

    def declaration(self, name: str) -> str:
        """The help of whoever wrote another function of that name."""
        template = "template <typename T> " if self.elements else ""
        params = ", ".join(wanted.shown() for wanted in self.params)
        return f"expected: {template}{self.result} {last_name(name)}({params})"

    def problem(self, function: Function) -> str | None:
        """Why a function does not fit, or None."""
        if problem := self.also(function):
            return problem
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


def spelled(context: Context, function: Function) -> str:
    """A function's name in generated code, where arguments and classes may have a part of it."""
    name = function.qualified_name
    hidden = "::" not in name or name.split("::")[0] in context.around.class_names
    return f"::{name}" if hidden else name


@dataclass
class Asked:
    """A hand-written function that an entry names."""

    context: Context
    name: str
    path: Path  # where the entry names it
    codes = ("MG511", "MG512")  # of errors: it is missing, it does not fit

    def error(self, wrong: str, /, notes: Sequence[str] = (), **about: object) -> None:
        """Report at the function's name."""
        about = {"name": self.name, **about}
        self.context.error(wrong, self.path, notes=notes, key=False, **about)

    def place(self, span: Span) -> str:
        """A place in hand-written code, for messages."""
        path = FilePath(os.path.abspath(span.file))
        return f"{self.context.settings.relative(path)}:{span.line}"

    def missing(self, names: Iterable[str], folder: FilePath, what: str, help: str) -> None:
        """Report that there is no such function, unless a file that may have it was not read."""
        sources = self.context.sources
        if sources.unread:
            self.context.ok = False
            return
        message = f"no {what} '{self.name}' in {self.context.settings.relative(folder)}"
        message += did_you_mean(self.name, sorted(set(names)))
        notes = sources.unread_places(self.name)
        self.context.report(self.codes[0], message, self.path, help, notes=notes)

    def misfit(
        self, function: Function, problems: str | Sequence[tuple[str, Span]], help: str
    ) -> None:
        """Report all that does not fit, with places in the function's file where there are many."""
        notes: list[str] = []
        if isinstance(problems, str) or len(problems) == 1:
            what = f": {problems if isinstance(problems, str) else problems[0][0]}"
        else:
            what = f" in {len(problems)} points"
            notes = [f"{self.place(span)}:{span.column}: {text}" for text, span in problems]
        message = f"'{self.name}' ({self.place(function.span)}) does not fit{what}"
        self.context.report(self.codes[1], message, self.path, help, notes=notes)

    def fitting(self, found: list[Function], expected: Expected) -> list[Function]:
        """Those functions of the name that fit; reports it where there is none."""
        fitting = [f for f in found if expected.problem(f) is None]
        if not fitting:
            found.sort(key=lambda f: len(f.params) < len(expected.params))
            problem = str(expected.problem(found[0]))
            self.misfit(found[0], problem, expected.declaration(self.name))
        return fitting

    def in_csrc(self, expected: Expected) -> list[Function]:
        """The overloads that fit, one in a header first; reports it where there is none."""
        sources, settings = self.context.sources, self.context.settings
        help = expected.declaration(self.name)
        found = sources.find(self.name) if QUALIFIED.fullmatch(self.name) else []
        if not found:
            names = [f.qualified_name for f in sources.functions if f.class_name is None]
            self.missing([*names, *map(last_name, names)], settings.csrc, "function", help)
            return []
        fitting = self.fitting(found, expected)
        names = sorted({f.qualified_name for f in fitting})
        if len(names) > 1:
            self.error("two_namespaces", names=" or ".join(names))
        if len(names) != 1:
            return []
        in_header = [f for f in fitting if sources.header_of(f)]
        problem = None
        if not in_header:
            problem = "it must be in a header (.h), so that generated code can use it"
        elif not any(f.is_definition for f in (in_header if in_header[0].template else fitting)):
            problem = "it is declared, and defined nowhere"
        if problem:
            self.misfit((in_header or fitting)[0], problem, help)
            return []
        return [*in_header, *(f for f in fitting if f not in in_header)]


def _wanted(context: Context, **others: str) -> list[Wanted]:
    """The entry's arguments as generated functions take them, and a stream after the others."""
    types = {a.name: a.type.cpp_param for a in context.signature.args} | others
    types["s"] = "mx::StreamOrDevice"
    return [Wanted(name, f"'{name}'", (type,)) for name, type in types.items()]


def own_function(context: Context, name: str, path: Path) -> Function | None:
    """The hand-written function that an entry binds: it takes the arguments and a stream."""
    outputs = context.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    result = "mx::array" if single else "std::vector<mx::array>"
    return _by_hand(context, name, Expected(result, _wanted(context)), path)


def gradient_function(context: Context, name: str, path: Path) -> str:
    """The qualified name of a hand-written gradient, which returns one array per gradient."""
    arrays = "const std::vector<mx::array>&"
    wanted = _wanted(context, cotangents=arrays, outputs=arrays)
    function = _by_hand(context, name, Expected("std::vector<mx::array>", wanted), path)
    return spelled(context, function) if function else name


def _by_hand(context: Context, name: str, expected: Expected, path: Path) -> Function | None:
    for function in Asked(context, name, path).in_csrc(expected):
        context.includes[str(context.sources.header_of(function))] = None
        return function
    return None


def check_own_name(context: Context) -> None:
    """The C++ function that is generated for an op must not be written by hand already."""
    settings = context.settings
    asked = Asked(context, f"{settings.namespace}::{context.name}", context.at_name)
    types = [plain(want.types[0]) for want in _wanted(context)]
    for function in context.sources.find(asked.name, everywhere=False):
        given = [plain(param.type) for param in function.params]
        if function.qualified_name == asked.name and given == types:
            place, folder = asked.place(function.span), settings.relative(settings.csrc)
            return asked.error("own_name", folder=folder, place=place)


def check_manual(context: Context, part: Part) -> None:
    """A part written by hand must be defined in csrc, as a member of the primitive's class."""
    sources, settings, name = context.sources, context.settings, f"{camel(context.name)}::{part}"
    if sources.defines_member(camel(context.name), part):
        return
    context.ok = False
    if not sources.unread:
        csrc = settings.relative(settings.csrc)
        asked = Asked(context, name, ("manual", context.raw.manual.index(part)))
        asked.error("no_manual", sources.unread_places(part), part=part, folder=csrc)
