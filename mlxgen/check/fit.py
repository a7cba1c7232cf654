"""What a hand-written function must look like to fit an entry.

``Expected`` is the one list of its parameters: it holds a declaration against the entry, and prints
the declaration that would fit. ``Asked`` looks for such a function, and reports what is wrong with
those of its name. Kernels are asked for in kernels.py and metal.py; here gradients and functions
that an entry binds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from ..diagnostics import Declaration, Related, Span, did_you_mean
from ..model.kinds import Kind
from ..model.op import camel
from ..read.cpp import Function, Param
from ..read.keys import Part
from ..read.sources import last_name
from .context import Context, Path

# A C++ name with its namespaces.
QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)

_NAMESPACE = re.compile(r"\b(?:mlxgen|mx|std|mlx|core)::")
_SHARED = ("device", "constant", "threadgroup")  # where no local of a kernel is
_NO_TYPE = re.compile(r"(?<![<,] )(?<![<,])\bconst\b|&|\s+")


@cache
def plain(type: str) -> str:
    """A type in one spelling: without namespaces, const and reference."""
    text = _NO_TYPE.sub("", _NAMESPACE.sub("", type))
    return re.sub(r"\bint32_t\b", "int", text)


class Wanted(NamedTuple):
    """A parameter that the entry needs."""

    name: str
    what: str  # how messages call what it is for
    types: tuple[str, ...]  # those that fit, the usual one first; T: the element's
    written_to: str = ""  # how it is declared if the function returns through it: "T&"


class Expected(NamedTuple):
    """A function that fits an entry.

    ``elements``: if it is a template over the element type T, and what T is in one that is none.
    ``also``: what else there is to say of a function.
    """

    result: str
    params: Sequence[Wanted]
    elements: tuple[str, ...] | None = None
    by_value: str = "by value or as a const reference"
    also: Callable[[Function], str | None] = lambda function: None

    def declaration(self, name: str) -> Declaration:
        """The function of that name that would fit."""
        template = "typename T" if self.elements else ""
        params = tuple((p.written_to or p.types[0], p.name) for p in self.params)
        return Declaration(last_name(name), self.result, params, template)

    def problem(self, function: Function) -> str | None:
        """Why a function does not fit, or None."""
        if problem := self.also(function):
            return problem
        given, wanted = len(function.params), len(self.params)
        number = f"it takes {given} parameter{'s' * (given != 1)}, the entry needs {wanted}"
        if given < wanted or (given > wanted and function.params[wanted].default is None):
            return number
        if function.template and self.elements is None:
            return "it is a template"
        names = [want.name for want in self.params]
        pairs = zip(names, function.params, strict=False)
        moved = any(param.name in names and param.name != name for name, param in pairs)
        if moved and given == wanted:
            listed = ", ".join(param.name or param.type for param in function.params)
            return f"its parameters are in the order {listed}"
        element = self.element(function)
        known_element = function.template or not self.elements or element in self.elements
        elements = (element,) if known_element else self.elements or ()
        for want, param in zip(self.params, function.params, strict=False):
            if problem := _mismatch(want, param, elements, self.by_value):
                return problem if given == wanted else number
        result = _spelled((self.result,), elements)[0]
        if plain(function.result) == plain(result):
            return None
        if result != "void":
            return f"it returns {function.result}, not {result}"
        outputs = any(want.written_to for want in self.params)
        return "it must return void" + " and write its outputs through references" * outputs

    def ambiguity(self, overloads: Sequence[Function]) -> str | None:
        """Which numbers overloads take in other types, so that none of them fits a call best."""
        for i, want in enumerate(self.params):
            bases = [(plain(f.params[i].base), self.element(f)) for f in overloads]
            if len({base for base, element in bases if base != element}) > 1:
                return f"its overloads differ in the type of '{want.name}'"
        return None

    def element(self, function: Function) -> str:
        """What T is in a function; without a template what its first array is of."""
        if function.template:
            return function.template[0]
        pairs = zip(self.params, function.params, strict=False)
        usual = self.elements[0] if self.elements else "T"
        return next((param.base for want, param in pairs if want.types == ("T",)), usual)


def _mismatch(want: Wanted, param: Param, elements: tuple[str, ...], by_value: str) -> str | None:
    """Why a parameter does not fit."""
    types = _spelled(want.types, elements)
    name = f"'{param.name}'" if param.name else f"the parameter for {want.what}"
    declared, base = param.type.removeprefix(f"{param.space} "), param.base
    if want.written_to:
        if declared != f"{base}&":
            return f"{name} must be a reference for {want.what}"
        if want.written_to.startswith("thread") and param.space != "thread":
            return f"{name} must be in the thread address space (`thread T&`)"
        types = tuple(f"{type}&" for type in types)
        base += "&"
    elif declared not in (base, f"const {base}", f"const {base}&") or param.space in _SHARED:
        return f"{name} must be passed {by_value}"
    if plain(base) in map(plain, types):
        return None
    return f"{name} is {param.type}, {want.what} needs {' or '.join(types)}"


@cache
def _spelled(types: tuple[str, ...], elements: tuple[str, ...]) -> tuple[str, ...]:
    """Types in a function's own words, which has one of some elements in T's place."""
    every = (re.sub(r"\bT\b", e, type) for type in types for e in elements)
    return tuple(dict.fromkeys(every))


def declared_at(span: Span) -> Related:
    """The place of a hand-written function, for messages."""
    return Related("it is declared here", span)


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

    def error(self, wrong: str, /, **about: Any) -> None:
        """Report at the function's name."""
        self.context.error(wrong, self.path, **{"name": self.name, **about})

    def missing(
        self, names: Iterable[str], folder: FilePath, what: str, wanted: Declaration
    ) -> None:
        """Report that there is no such function, unless a file that may have it was not read."""
        sources = self.context.sources
        if sources.unread:
            self.context.fail(self.path)
            return
        guess = did_you_mean(self.name, sorted(set(names)))
        message = f"no {what} '{self.name}' in {self.context.settings.relative(folder)}{guess}"
        help = guess.advice(f"expected: {wanted}", certain=False)  # it may be yet to be written
        more = {
            "related": sources.unread_places(self.name),
            "expected": wanted._replace(missing_in=folder),
        }
        self.context.report(self.codes[0], message, self.path, help, **more)

    def misfit(
        self, function: Function, problems: str | Sequence[tuple[str, Span]], wanted: Declaration
    ) -> None:
        """Report all that does not fit, with its places in the function's file."""
        if isinstance(problems, str):
            problems = [(problems, function.span)]
        more: dict[str, Any] = {"expected": wanted}
        if len(problems) == 1:
            ((text, span),) = problems
            what, more["related"] = f": {text}", [declared_at(span)]
        else:
            what = f" in {len(problems)} points"
            more["related"] = [Related(text, span) for text, span in problems[:20]]
            more["notes"] = [f"and {len(problems) - 20} more"] * (len(problems) > 20)
        message = f"'{self.name}' does not fit{what}"
        self.context.report(self.codes[1], message, self.path, f"expected: {wanted}", **more)

    def fitting(
        self,
        found: Sequence[Function],
        expected: Expected,
        header: Callable[[Function], object] = bool,
    ) -> list[Function]:
        """The overloads that fit, one that generated code sees first; reports what is wrong."""
        fitting = [f for f in found if expected.problem(f) is None]
        names = sorted({f.qualified_name for f in fitting})
        if len(names) > 1:
            self.error("two_namespaces", names=" or ".join(names))
            return []
        seen = sorted(filter(header, fitting), key=lambda f: not f.is_definition)
        usable = seen if seen and seen[0].template else fitting
        inline = {expected.element(f) for f in fitting if f.inline}  # by any declaration
        problem = None
        if not fitting:
            fitting = sorted(found, key=lambda f: len(f.params) < len(expected.params))
            problem = expected.problem(fitting[0])
        elif not seen:
            problem = "it must be in a header (.h), so that generated code can use it"
        elif not any(f.is_definition for f in usable):
            problem = "it is declared, and defined nowhere"
        elif any(f.is_definition and expected.element(f) not in inline for f in seen):
            problem = "it must be `inline`, as more than one source may include its header"
        elif not fitting[0].template:
            problem = expected.ambiguity(fitting)
        if problem:
            self.misfit((seen or fitting)[0], problem, expected.declaration(self.name))
            return []
        templates = any(f.template for f in fitting)
        once = self.once((f, "" if templates else expected.element(f)) for f in fitting)
        return [*seen, *(f for f in fitting if f not in seen)] if once else []

    def once(self, meant: Iterable[tuple[Function, str]]) -> bool:
        """Whether functions that would mean the same are defined once; reports it if not."""
        alike: dict[str, list[Function]] = {}
        for function, what in meant:
            if function.is_definition:
                alike.setdefault(what, []).append(function)
        several = next((found for found in alike.values() if len(found) > 1), None)
        if several:
            places = [declared_at(function.span) for function in several]
            self.error("two_places", related=places)
        return several is None

    def in_csrc(self, expected: Expected) -> list[Function]:
        """The overloads that fit, one in a header first; reports it where there is none."""
        sources, settings = self.context.sources, self.context.settings
        found = sources.find(self.name) if QUALIFIED.fullmatch(self.name) else []
        if not found:
            names = [f.qualified_name for f in sources.functions if f.class_name is None]
            self.missing(
                [*names, *map(last_name, names)],
                settings.csrc,
                "function",
                expected.declaration(self.name),
            )
            return []
        fitting = self.fitting(found, expected, sources.header_of)
        files = {f.span.file: (f, "") for f in fitting if f.is_definition and sources.header_of(f)}
        return fitting if self.once(files.values()) else []


def _wanted(context: Context, **others: str) -> list[Wanted]:
    """The entry's arguments as generated functions take them, and a stream after the others."""
    types = {a.name: a.type.cpp_param for a in context.signature.args} | others
    types["s"] = "mx::StreamOrDevice"
    return [Wanted(name, f"'{name}'", (_outside(type),)) for name, type in types.items()]


def _outside(type: str) -> str:
    """A type of generated code as a file by hand can name it, which may not know `mx`."""
    return type.replace("mx::", "mlx::core::")


def own_function(context: Context, name: str, path: Path) -> Function | None:
    """The hand-written function that an entry binds: it takes the arguments and a stream."""
    outputs = context.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    result = _outside("mx::array" if single else "std::vector<mx::array>")
    return _by_hand(context, name, Expected(result, _wanted(context)), path)


def gradient_function(context: Context, name: str, path: Path) -> tuple[str, str]:
    """A hand-written gradient, which returns one array per gradient: its qualified name and
    header."""
    arrays = "const std::vector<mx::array>&"
    wanted = _wanted(context, cotangents=arrays, outputs=arrays)
    result = _outside("std::vector<mx::array>")
    function = _by_hand(context, name, Expected(result, wanted), path)
    if function is None:
        return name, ""
    return spelled(context, function), str(context.sources.header_of(function))


def _by_hand(context: Context, name: str, expected: Expected, path: Path) -> Function | None:
    return next(iter(Asked(context, name, path).in_csrc(expected)), None)


def check_own_name(context: Context) -> None:
    """The C++ function that is generated for an op must not be written by hand already."""
    settings = context.settings
    asked = Asked(context, f"{settings.namespace}::{context.name}", context.at_name)
    for function in context.sources.find(asked.name, everywhere=False):
        types = [plain(want.types[0]) for want in _wanted(context)]
        given = [plain(param.type) for param in function.params]
        if function.qualified_name == asked.name and given == types:
            folder, related = settings.relative(settings.csrc), [declared_at(function.span)]
            return asked.error("own_name", folder=folder, related=related)


def check_manual(context: Context, part: Part) -> None:
    """A part written by hand must be defined in csrc, as a member of the primitive's class."""
    sources, settings, name = context.sources, context.settings, f"{camel(context.name)}::{part}"
    if sources.defines_member(camel(context.name), part):
        return
    context.fail(("manual",))
    if not sources.unread:
        csrc = settings.relative(settings.csrc)
        asked = Asked(context, name, ("manual", context.raw.manual.index(part)))
        unread = sources.unread_places(part)
        asked.error("no_manual", related=unread, part=part, folder=csrc)
