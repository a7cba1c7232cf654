"""What a hand-written function must look like to fit an entry: one description for all of them.

``Expected`` lists the parameters of a function that an entry binds, of a gradient (both here), of a
CPU kernel or scalar function (kernels.py), or of a ``[[kernel]]`` (metal.py). It compares a
declaration with the entry, and gives the one that would fit. ``Asked`` looks for such a function,
and reports what is wrong with those of its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from ..diagnostics import Related, Span, did_you_mean
from ..model.cpp import (
    ARRAY,
    ARRAYS,
    BY_HAND,
    ELEMENT,
    KERNEL,
    NO_NAMESPACES,
    VOID,
    CppType,
    Declaration,
    Declared,
    Namespaces,
)
from ..model.dtypes import METAL_SAME
from ..model.kinds import Kind
from ..model.op import Holds, Property, camel
from ..read.cpp import Function, Param
from ..read.keys import Part
from ..read.sources import last_name
from .context import Context, Path

# A C++ name with its namespaces.
QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)

_NAMESPACE = re.compile(r"\b(?:mlxgen|mx|std|mlx|core)::")
_NO_TYPE = re.compile(r"(?<![<,] )(?<![<,])\bconst\b|&|\s+")
_ATOMIC = re.compile(r"^(metal::)?(atomic|mlx_atomic)<(.*)>$")
_SEVERAL = re.compile(r"[*&\])].*[*&]|\(")  # a pointer to a pointer, a reference to an array, ...
_SHARED = ("device", "constant", "threadgroup")  # where no local of a kernel is
_CPP_SAME = {"int32_t": "int"}


@cache
def plain(type: str, metal: bool = False) -> str:
    """A type in one spelling: without namespaces, const and reference, and by one name."""
    text, same = (type, METAL_SAME) if metal else (_NAMESPACE.sub("", type), _CPP_SAME)
    return re.sub(r"\w+", lambda match: same.get(match[0], match[0]), _NO_TYPE.sub("", text))


@cache
def _plain(type: CppType, metal: bool = False) -> str:
    """An expected type in that spelling."""
    value = type._replace(mark="", const=False, space="")
    return value.text(NO_NAMESPACES, METAL_SAME if metal else _CPP_SAME)


def _is_passed(type: CppType, param: Param) -> bool:
    """Whether a parameter is passed like one of this type: by value or as a const reference, by
    reference, or as a pointer."""
    mark = "*" if param.pointer else "&" if param.reference else ""
    if _SEVERAL.search(param.type):
        return False
    if not type.mark or type == type.by_reference:
        return param.space not in _SHARED and (not mark or (mark == "&" and param.const))
    same_const = param.const == type.const or type.space == "constant"  # which implies it
    return mark == type.mark and (param.space or "") == type.space and same_const


class Wanted(NamedTuple):
    """A parameter that the entry needs."""

    name: str
    types: tuple[CppType, ...]  # those that fit, the usual one first; T: the element's
    is_output: bool = False  # whether the function writes to it
    note: str = ""  # what messages say of it
    # Of a [[kernel]], whose parameters are known by their names: whether the entry needs it, and
    # what the launch binds there, as Binding has it.
    needed: bool = True
    holds: Holds | None = None
    of: str = ""
    part: Property = Property.ELEMENTS


class Expected(NamedTuple):
    """A function that fits an entry.

    ``template``: its parameters, if it may be one. ``elements``: what T, the first of them, may be
    in a function that is none. ``also``: what else there is to say of a function.
    """

    params: Sequence[Wanted]
    result: CppType = VOID
    template: str = ""
    elements: tuple[CppType, ...] = (ELEMENT,)
    namespaces: Namespaces = KERNEL
    metal: bool = False
    is_kernel: bool = False
    also: Callable[[Function], str | None] = lambda function: None

    def declaration(self, name: str) -> Declaration:
        """The function of that name that would fit."""
        params = tuple(Declared(p.types[0], p.name, p.is_output) for p in self.params if p.needed)
        about = self.namespaces, self.template, self.is_kernel
        return Declaration(last_name(name), self.result, params, *about)

    def problems(self, function: Function) -> list[Related]:
        """Why a function does not fit."""
        given, wanted = len(function.params), len(self.params)
        number = f"it takes {given} parameter{'s' * (given != 1)}, the entry needs {wanted}"
        names = [want.name for want in self.params]
        pairs = list(zip(self.params, function.params, strict=False))
        moved = any(param.name in names and param.name != want.name for want, param in pairs)
        if not (problem := self.also(function)):
            if given < wanted or (given > wanted and function.params[wanted].default is None):
                problem = number
            elif function.template and not self.template:
                problem = "it is a template"
            elif moved and given == wanted:
                listed = ", ".join(param.name or param.type for param in function.params)
                problem = f"its parameters are in the order {listed}"
            else:
                found = [self.mismatch(function, *pair) for pair in pairs]
                if given == wanted or not any(found):
                    return list(filter(None, (*found, self.other_result(function))))
                problem = number
        return [Related(problem, function.span)]

    def mismatch(self, function: Function, want: Wanted, param: Param) -> Related | None:
        """Why a parameter does not fit."""
        element = self.element(function)
        elements = (element,) if function.template or element in self.elements else self.elements
        types = dict.fromkeys(type.filled(e) for type in want.types for e in elements)
        is_atomic = self.is_kernel and want.is_output
        base = plain(_ATOMIC.sub(r"\3", param.base) if is_atomic else param.base, self.metal)
        if any(_is_passed(type, param) and _plain(type, self.metal) == base for type in types):
            return None
        what = f"{'the output ' * want.is_output}'{want.name}'{want.note}"
        if param.name != want.name:
            what = f"{repr(param.name) if param.name else 'the parameter'} for {what}"
        *more, last = [f"`{type.text(self.namespaces)}`" for type in types]
        shown = f"{', '.join(more)} or {last}" if more else last
        return Related(f"{what} must be {shown}, not `{param.type}`", param.span)

    def other_result(self, function: Function) -> Related | None:
        """Why a function returns something else."""
        result = self.result.filled(self.element(function))
        if plain(function.result, self.metal) == _plain(result, self.metal):
            return None
        shown = result.text(self.namespaces)
        return Related(f"it must return `{shown}`, not `{function.result}`", function.span)

    def ambiguity(self, overloads: Sequence[Function]) -> str | None:
        """Which numbers overloads take in other types, so that none of them fits a call best."""
        for i, want in enumerate(self.params):
            bases = [(CppType(f.params[i].base), self.element(f)) for f in overloads]
            if len({plain(base.name) for base, element in bases if base != element}) > 1:
                return f"its overloads differ in the type of '{want.name}'"
        return None

    def element(self, function: Function) -> CppType:
        """What T is in a function; without a template what its first array is of."""
        if function.template:
            return CppType(function.template[0])
        pairs = zip(self.params, function.params, strict=False)
        found = (CppType(param.base) for want, param in pairs if want.types == (ELEMENT,))
        return next(found, self.elements[0])


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
        self, names: Iterable[str], folder: FilePath, what: str, expected: Expected
    ) -> None:
        """Report that there is no such function, unless a file that may have it was not read."""
        sources = self.context.sources
        if sources.unread:
            self.context.fail(self.path)
            return
        guess = did_you_mean(self.name, sorted(set(names)))
        message = f"no {what} '{self.name}' in {self.context.settings.relative(folder)}{guess}"
        wanted = expected.declaration(self.name)._replace(missing_in=folder)
        help = guess.advice(f"expected: {wanted}", certain=False)  # it may be yet to be written
        more = {"related": sources.unread_places(self.name), "expected": wanted}
        self.context.report(self.codes[0], message, self.path, help, **more)

    def misfit(
        self, function: Function, problems: str | Sequence[Related], expected: Expected
    ) -> None:
        """Report all that does not fit, with its places in the function's file."""
        if isinstance(problems, str):
            problems = [Related(problems, function.span)]
        count, wanted = len(problems), expected.declaration(self.name)
        what = f" in {count} points" if count > 1 else f": {problems[0].message}"
        more: dict[str, Any] = {
            "related": problems[:20] if count > 1 else [declared_at(problems[0].span)],
            "notes": [f"and {count - 20} more"] * (count > 20),
            "expected": wanted,
        }
        message = f"'{self.name}' does not fit{what}"
        self.context.report(self.codes[1], message, self.path, f"expected: {wanted}", **more)

    def fitting(
        self,
        found: Sequence[Function],
        expected: Expected,
        header: Callable[[Function], object] = bool,
    ) -> list[Function]:
        """The overloads that fit, one that generated code sees first; reports what is wrong."""
        fitting = [f for f in found if not expected.problems(f)]
        names = sorted({f.qualified_name for f in fitting})
        if len(names) > 1:
            self.error("two_namespaces", names=" or ".join(names))
            return []
        seen = sorted(filter(header, fitting), key=lambda f: not f.is_definition)
        usable = seen if seen and seen[0].template else fitting
        inline = {expected.element(f) for f in fitting if f.inline}  # by any declaration
        problem: str | Sequence[Related] | None = None
        if not fitting:
            fitting = sorted(found, key=lambda f: len(f.params) < len(expected.params))
            problem = expected.problems(fitting[0])
        elif not seen:
            problem = "it must be in a header (.h), so that generated code can use it"
        elif not any(f.is_definition for f in usable):
            problem = "it is declared, and defined nowhere"
        elif any(f.is_definition and expected.element(f) not in inline for f in seen):
            problem = "it must be `inline`, as more than one source may include its header"
        elif not fitting[0].template:
            problem = expected.ambiguity(fitting)
        if problem:
            self.misfit((seen or fitting)[0], problem, expected)
            return []
        templates = any(f.template for f in fitting)
        once = self.once(fitting, lambda f: templates or expected.element(f))
        return [*seen, *(f for f in fitting if f not in seen)] if once else []

    def once(
        self, functions: Iterable[Function], meant: Callable[[Function], object] = lambda _: None
    ) -> bool:
        """Whether functions that would mean the same are defined once; reports it if not."""
        alike: dict[object, list[Related]] = {}
        for function in functions:
            if function.is_definition:
                alike.setdefault(meant(function), []).append(declared_at(function.span))
        if several := next((found for found in alike.values() if len(found) > 1), None):
            self.error("two_places", related=several)
        return several is None

    def in_csrc(self, expected: Expected) -> list[Function]:
        """The overloads that fit, one in a header first; reports it where there is none."""
        sources, settings = self.context.sources, self.context.settings
        found = sources.find(self.name) if QUALIFIED.fullmatch(self.name) else []
        if not found:
            names = [f.qualified_name for f in sources.functions if f.class_name is None]
            known = (*names, *map(last_name, names))
            self.missing(known, settings.csrc, "function", expected)
            return []
        fitting = self.fitting(found, expected, sources.header_of)
        files = {f.span.file: f for f in fitting if f.is_definition and sources.header_of(f)}
        return fitting if self.once(files.values()) else []


def _by_hand(context: Context, result: CppType, **others: CppType) -> Expected:
    """A function of csrc, which takes the entry's arguments and, after the others, a stream."""
    types = {a.name: a.type.cpp_param for a in context.signature.args} | others
    types["s"] = CppType("StreamOrDevice", "mlx")
    params = [Wanted(name, (type,)) for name, type in types.items()]
    return Expected(params, result, namespaces=BY_HAND)


def own_function(context: Context, name: str, path: Path) -> Function | None:
    """The hand-written function that an entry binds."""
    outputs = context.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    return _found(context, name, _by_hand(context, ARRAY if single else ARRAYS), path)


def gradient_function(context: Context, name: str, path: Path) -> tuple[str, str]:
    """A hand-written gradient, which returns one array per gradient: its qualified name and
    header."""
    given = ARRAYS.by_reference
    expected = _by_hand(context, ARRAYS, cotangents=given, outputs=given)
    function = _found(context, name, expected, path)
    if function is None:
        return name, ""
    return spelled(context, function), str(context.sources.header_of(function))


def _found(context: Context, name: str, expected: Expected, path: Path) -> Function | None:
    return next(iter(Asked(context, name, path).in_csrc(expected)), None)


def check_own_name(context: Context) -> None:
    """The C++ function that is generated for an op must not be written by hand already."""
    settings = context.settings
    asked = Asked(context, f"{settings.namespace}::{context.name}", context.at_name)
    for function in context.sources.find(asked.name, everywhere=False):
        types = [_plain(want.types[0]) for want in _by_hand(context, ARRAY).params]
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
