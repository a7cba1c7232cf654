"""Expected declarations of hand-written functions, and the search for functions that match.

``Expected`` describes any function that an entry can name: a bound function or a gradient (both
here), a CPU kernel or scalar function (kernels.py), or a ``[[kernel]]`` (metal.py). It compares a
declaration with the entry, and prints the declaration that would match. ``Lookup`` looks up the
functions of a name and reports their mismatches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from .context import MESSAGES, Context, Path

# A C++ name with its namespaces.
QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)

_NAMESPACE = re.compile(r"\b(?:mlxgen|mx|std|mlx|core|metal)::")
_NO_TYPE = re.compile(r"(?<![<,] )(?<![<,])\bconst\b|&|\s+")
_ATOMIC = re.compile(r"^(?:(?:mlx_)?atomic<(.*)>|atomic_(\w+))$")
_VECTOR = re.compile(r"vec<(\w+),[234]>|(?:packed_)?([a-z]+)[234]")
_SEVERAL = re.compile(r"[*&\])].*[*&]|\(")  # a pointer to a pointer, a reference to an array, ...
_SHARED = ("device", "constant", "threadgroup")  # address spaces without a kernel's locals
_CPP_SAME = {"int32_t": "int"}
_SHARED_OUT = CppType("MLXGEN_OUT(T)")
_MOST = 20  # mismatches of a function that are shown


@cache
def plain(type: str, metal: bool = False) -> str:
    """Normalize the spelling of a type: remove namespaces, const and reference; unify synonyms."""
    text, same = _NAMESPACE.sub("", type), METAL_SAME if metal else _CPP_SAME
    return re.sub(r"\w+", lambda match: same.get(match[0], match[0]), _NO_TYPE.sub("", text))


@cache
def _plain(type: CppType, metal: bool = False) -> str:
    """Return an expected type in the spelling of ``plain``."""
    value = type._replace(mark="", const=False, space="")
    return value.text(NO_NAMESPACES, METAL_SAME if metal else _CPP_SAME)


def _is_passed(type: CppType, param: Param) -> bool:
    """Return whether a parameter is passed like this type: by value, reference or pointer.

    A const reference counts as by value.
    """
    mark = "*" if param.pointer else "&" if param.reference else ""
    if _SEVERAL.search(param.type):
        return False
    if not type.mark or type == type.by_reference:
        return param.space not in _SHARED and (not mark or (mark == "&" and param.const))
    if type.space == "constant":  # implies const; a number may be in any memory that is read
        read = param.space == "constant" or (param.space == "device" and param.const)
        return read and mark in (type.mark, "*" * (type.mark == "&"))
    same_const = param.const == type.const
    return mark == type.mark and (param.space or "") == type.space and same_const


class Mismatch(NamedTuple):
    """A mismatch of a function: a problem of messages.yaml, its location and its parameters."""

    problem: str
    span: Span
    about: Mapping[str, object]


def mismatch(problem: str, span: Span, /, **about: object) -> Mismatch:
    """Return a mismatch; ``about`` are the parameters of its text."""
    return Mismatch(problem, span, about)


class Slot(NamedTuple):
    """A parameter of the expected function."""

    name: str
    types: tuple[CppType, ...]  # accepted types, the usual one first; T: the element type
    is_output: bool = False  # the function writes to it
    note: str = ""  # for messages
    # For a [[kernel]], whose parameters are identified by name: whether it is required, and the
    # data that the launch binds to it, as in Binding.
    needed: bool = True
    holds: Holds | None = None
    of: str = ""
    part: Property = Property.ELEMENTS


class Expected(NamedTuple):
    """The signature of a function that matches an entry.

    ``template``: its template parameters, if it may be a template. ``elements``: the types that may
    replace T, the first of them, in a function without a template. ``also``: a further check.
    """

    params: Sequence[Slot]
    result: CppType = VOID
    template: str = ""
    elements: tuple[CppType, ...] = (ELEMENT,)
    namespaces: Namespaces = KERNEL
    metal: bool = False
    is_kernel: bool = False
    shared: bool = False  # by C++ and Metal, whose outputs have a macro as their type
    also: Callable[[Function], Mismatch | None] = lambda function: None

    def declaration(self, name: str) -> Declaration:
        """Return the declaration of a function of that name that would match."""
        params = tuple(
            Declared(self.shown(p)[0], p.name, p.is_output) for p in self.params if p.needed
        )
        about = self.namespaces, self.template, self.is_kernel
        return Declaration(last_name(name), self.result, params, *about)

    def shown(self, slot: Slot) -> tuple[CppType, ...]:
        """Return the types of a parameter for messages."""
        return (_SHARED_OUT,) if self.shared and slot.is_output else slot.types

    def problems(self, function: Function) -> list[Mismatch]:
        """Return the mismatches of a function."""
        span, given, wanted = function.span, len(function.params), len(self.params)
        number = mismatch("number", span, given=given, wanted=wanted)
        if problem := self.also(function):
            return [problem]
        if given < wanted or (given > wanted and function.params[wanted].default is None):
            return [number]
        if function.template and not self.template:
            return [mismatch("template", span)]
        names = [want.name for want in self.params]
        pairs = list(zip(self.params, function.params, strict=False))
        moved = any(param.name in names and param.name != want.name for want, param in pairs)
        if moved and given == wanted:
            params = [param.name or param.type for param in function.params]
            return [mismatch("order", span, params=params)]
        found = [*filter(None, (self.other_param(function, *pair) for pair in pairs))]
        if found and given > wanted:
            return [number]
        return [*found, *filter(None, [self.other_result(function)])]

    def other_param(self, function: Function, want: Slot, param: Param) -> Mismatch | None:
        """Return the mismatch of a parameter, if any."""
        element = self.element(function)
        elements = (element,) if function.template or element in self.elements else self.elements
        types = dict.fromkeys(type.filled(e) for type in want.types for e in elements)
        is_atomic = self.is_kernel and want.is_output
        base = plain(param.base, self.metal)
        if is_atomic:
            base = plain(_ATOMIC.sub(r"\1\2", base), self.metal)
        if want.holds in (Holds.INPUT, Holds.OUTPUT):
            if base in ("void", "int8_t") and param.pointer:  # bytes, that the kernel converts
                types |= {t._replace(name=base): None for t in types}
            elif vector := _VECTOR.fullmatch(base):
                base = plain(vector[1] or vector[2], self.metal)
        if any(_is_passed(type, param) and _plain(type, self.metal) == base for type in types):
            return None
        problems = ("output", "output_as") if want.is_output else ("param", "param_as")
        problem = problems[param.name not in ("", want.name)]
        shown = types if self.shown(want) == want.types else self.shown(want)
        texts = [f"`{type.text(self.namespaces)}`" for type in shown]
        return mismatch(problem, param.span, param=param, want=want, types=texts)

    def other_result(self, function: Function) -> Mismatch | None:
        """Return the mismatch of a function's return type, if any."""
        result = self.result.filled(self.element(function))
        if plain(function.result, self.metal) == _plain(result, self.metal):
            return None
        wanted = result.text(self.namespaces)
        return mismatch("result", function.span, wanted=wanted, given=function.result)

    def ambiguity(self, overloads: Sequence[Function]) -> Mismatch | None:
        """Return the reason why a call of these overloads would be ambiguous, if any.

        Overloads may differ only in element types, not in the types of other parameters.
        """
        for i, want in enumerate(self.params):
            bases = [(CppType(f.params[i].base), self.element(f)) for f in overloads]
            if len({plain(base.name) for base, element in bases if base != element}) > 1:
                return mismatch("ambiguous", overloads[0].span, want=want)
        return None

    def element(self, function: Function) -> CppType:
        """Return the type of T in a function; without a template, of its first array."""
        if function.template:
            return CppType(function.template[0])
        pairs = zip(self.params, function.params, strict=False)
        found = (CppType(param.base) for want, param in pairs if want.types == (ELEMENT,))
        return next(found, self.elements[0])


def spelled(context: Context, function: Function) -> str:
    """Return a function's name in generated code, where an argument or class could hide it."""
    name = function.qualified_name
    hidden = "::" not in name or context.others.hides(name.split("::")[0])
    return f"::{name}" if hidden else name


@dataclass
class Lookup:
    """The lookup of a hand-written function that an entry names."""

    context: Context
    name: str
    path: Path  # where the entry names it
    kind = "function"  # in the names of messages

    def error(self, wrong: str, /, **about: Any) -> None:
        """Report at the function's name."""
        self.context.error(wrong, self.path, **{"name": self.name, **about})

    def missing(
        self, names: Iterable[str], folder: FilePath, what: str, expected: Expected
    ) -> None:
        """Report a missing function, unless an unparsed file may contain it."""
        sources = self.context.sources
        if sources.unread:
            self.context.fail(self.path)
            return
        guess = did_you_mean(self.name, sorted(set(names)))
        guess = replace(guess, certain=False)  # the function may not be written yet
        wanted = expected.declaration(self.name)._replace(missing_in=folder)
        about = {"problem": what, "folder": self.context.settings.relative(folder), "guess": guess}
        related = sources.unread_places(self.name)
        self.error(f"no_{self.kind}", **about, expected=wanted, related=related)

    def mismatched(self, expected: Expected, *problems: Mismatch) -> None:
        """Report mismatches with their locations in the function's file."""
        count, wanted = len(problems), expected.declaration(self.name)
        wrong = f"mismatches_of_{self.kind}" if count > 1 else f"mismatch_of_{self.kind}"
        about = {"name": self.name, "count": count, "expected": wanted}
        said = [
            MESSAGES(wrong, p.problem, problem=p.problem, **about, **p.about)
            for p in problems[:_MOST]
        ]
        related = [Related(one.note, p.span) for one, p in zip(said, problems, strict=False)]
        self.context.report(said[0], self.path, related=related, expected=wanted)

    def fitting(
        self,
        found: Sequence[Function],
        expected: Expected,
        header: Callable[[Function], object] = bool,
    ) -> list[Function]:
        """Return the matching overloads, those in a header first; report problems."""
        fitting = [f for f in found if not expected.problems(f)]
        names = sorted({f.qualified_name for f in fitting})
        if len(names) > 1:
            self.error("two_namespaces", names=names)
            return []
        seen = sorted(filter(header, fitting), key=lambda f: not f.is_definition)
        usable = seen if seen and seen[0].template else fitting
        inline = {expected.element(f) for f in fitting if f.inline}  # by any declaration
        problems: Sequence[Mismatch | None] = ()
        if not fitting:
            fitting = sorted(found, key=lambda f: len(f.params) < len(expected.params))
            problems = expected.problems(fitting[0])
        elif not seen:
            problems = [mismatch("no_header", fitting[0].span)]
        elif not any(f.is_definition for f in usable):
            problems = [mismatch("undefined", seen[0].span)]
        elif any(f.is_definition and expected.element(f) not in inline for f in seen):
            problems = [mismatch("not_inline", seen[0].span)]
        elif not fitting[0].template:
            problems = [expected.ambiguity(fitting)]
        if several := [*filter(None, problems)]:
            self.mismatched(expected, *several)
            return []
        templates = any(f.template for f in fitting)
        once = self.once(fitting, lambda f: templates or expected.element(f))
        return [*seen, *(f for f in fitting if f not in seen)] if once else []

    def once(
        self, functions: Iterable[Function], meant: Callable[[Function], object] = lambda _: None
    ) -> bool:
        """Check that functions with the same ``meant`` are defined at most once."""
        alike: dict[object, list[Span]] = {}
        for function in functions:
            if function.is_definition:
                alike.setdefault(meant(function), []).append(function.span)
        if several := next((found for found in alike.values() if len(found) > 1), None):
            self.error("two_places", related=several)
        return several is None

    def in_csrc(self, expected: Expected) -> list[Function]:
        """Return the matching overloads in csrc, those in a header first; report if none match."""
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
    """Return the expected function in csrc: the entry's arguments, ``others``, and a stream."""
    types = {a.name: a.type.cpp_param for a in context.signature.args} | others
    types["s"] = CppType("StreamOrDevice", "mlx")
    params = [Slot(name, (type,)) for name, type in types.items()]
    return Expected(params, result, namespaces=BY_HAND)


def own_function(context: Context, name: str, path: Path) -> Function | None:
    """Find the hand-written function that an entry binds."""
    outputs = context.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    return _found(context, name, _by_hand(context, ARRAY if single else ARRAYS), path)


def gradient_function(context: Context, name: str, path: Path) -> tuple[str, str]:
    """Find a hand-written gradient function; return its qualified name and header."""
    given = ARRAYS.by_reference
    expected = _by_hand(context, ARRAYS, cotangents=given, outputs=given)
    function = _found(context, name, expected, path)
    if function is None:
        return name, ""
    return spelled(context, function), str(context.sources.header_of(function))


def _found(context: Context, name: str, expected: Expected, path: Path) -> Function | None:
    return next(iter(Lookup(context, name, path).in_csrc(expected)), None)


def check_own_name(context: Context) -> None:
    """Report a hand-written function with the name and type of the generated one."""
    settings = context.settings
    lookup = Lookup(context, f"{settings.namespace}::{context.name}", context.at_name)
    for function in context.sources.find(lookup.name, everywhere=False):
        types = [_plain(want.types[0]) for want in _by_hand(context, ARRAY).params]
        given = [plain(param.type) for param in function.params]
        if function.qualified_name == lookup.name and given == types:
            folder = settings.relative(settings.csrc)
            return lookup.error("own_name", folder=folder, related=[function.span])


def check_manual(context: Context, part: Part) -> None:
    """Check that csrc defines a manual part, as a member of the primitive's class."""
    sources, settings, name = context.sources, context.settings, f"{camel(context.name)}::{part}"
    if sources.defines_member(camel(context.name), part):
        return
    context.fail(("manual",))
    if not sources.unread:
        csrc = settings.relative(settings.csrc)
        lookup = Lookup(context, name, ("manual", context.raw.manual.index(part)))
        unread = sources.unread_places(part)
        lookup.error("no_manual", related=unread, part=part, folder=csrc)
