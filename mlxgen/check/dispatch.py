"""An item of `dispatch`: the kernel that an entry names for a backend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..model.cpp import DOUBLE, ELEMENT, CppType
from ..model.dtypes import (
    ACCUMULATOR,
    CATEGORIES,
    CPP_TYPES,
    FLOATING,
    METAL_TYPES,
    computes_integers,
    element_type,
)
from ..model.op import Arguments, Backend, Parameter, Rule
from ..model.signature import Type
from ..read.cpp import Function
from ..read.keys import KernelEntry
from .arguments import expand_dtypes
from .context import Environment, Path
from .fit import Lookup, Mismatch, mismatch

MAX_BUFFERS = 31  # that Metal binds

# The dtypes that satisfy a concept or type trait of the standard library.
_CONCEPTS = {
    "floating_point": ("float32", "float64"),
    "integral": ("bool_", *CATEGORIES["integer"]),
    "signed_integral": CATEGORIES["signedinteger"],
    "unsigned_integral": ("bool_", *CATEGORIES["unsignedinteger"]),
}
_CONCEPT = re.compile(rf"\b(?:is_)?({'|'.join(_CONCEPTS)})(?:_v)?\b")
NUMBER = re.compile(
    r"(?:std::)?(?:u?int(?:\d+_t)?|bool|size_t|auto|u?(?:char|short|long)|unsigned)"
)


def dtype_of(arguments: Arguments, rule: Rule | None) -> str:
    """Return the dtype of an output: its name, ``accumulator``, T of the kernel, or "": unknown."""
    own = {p.name: p.dtype or "T" for p in arguments.arrays}
    of = {own.get(one, one) for one in rule.expr.promoted} if rule else {"T"}
    return ACCUMULATOR if of == {"T", "float32"} else "".join(of if len(of) == 1 else ())


@dataclass
class Dispatch(Lookup):
    """A kernel as named by an entry."""

    backend: Backend
    spec: KernelEntry
    env: Environment
    rules: Sequence[Rule | None]  # dtypes of the outputs; None: the dtype of the kernel
    beside: frozenset[str]  # arguments used in formulas, except those of its launch
    kind = "kernel"

    def at(self, *path: str | int) -> Path:
        """Return the path of a key next to the function's name."""
        return (*self.path[:-1], *path)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that the kernel is compiled for, as far as the backend supports them."""
        every = self.group or (next(iter(self.fixed.values()), "float32"),)
        if self.spec.dtypes is None:
            return every
        path = self.at("dtypes")
        found = expand_dtypes(self.context, self.spec.dtypes, path)
        kept = tuple(dtype for dtype in every if dtype in found)
        for other in [d for d in found if not kept or d in {*self.spec.dtypes} - {*every}][:1]:
            self.context.error("not_of_entry", path, dtype=other, known=every)
        return kept or every

    @property
    def fixed(self) -> dict[str, str]:
        """The dtypes of arguments that are not promoted, by name."""
        return {p.name: p.dtype for p in self.arguments.arrays if p.dtype}

    @property
    def passed(self) -> list[Parameter]:
        """The arguments that a kernel receives: all but donated ones."""
        donors = {*self.context.raw.donate.values()}
        return [p for p in self.arguments.params if p.name not in donors or not p.is_plain]

    @property
    def arguments(self) -> Arguments:
        """The arguments of the entry."""
        return self.env.arguments

    @property
    def group(self) -> tuple[str, ...]:
        """The dtypes of the arguments that are promoted together."""
        return self.arguments.group.dtypes if self.arguments.group else ()

    @property
    def metal_dtypes(self) -> list[str]:
        """The dtypes that Metal supports."""
        return [d for d in self.dtypes if d in METAL_TYPES]

    def numbers(self, type: Type, types: Iterable[CppType]) -> tuple[CppType, ...]:
        """Return the types of a kernel parameter that can represent every value of ``type``."""
        cut = [ELEMENT, element_type(ACCUMULATOR)] if computes_integers(self.dtypes) else []
        cut += [DOUBLE] if self.backend == "metal" else []
        return tuple(t for t in type.wide(types) if t not in cut)

    @cached_property
    def outputs(self) -> tuple[str | None, ...] | None:
        """The dtype of each output, None for the kernel's; None if an error was reported."""
        context, keys = self.context, self.context.keys("dtype")
        found: list[str | None] = []
        for name, rule in zip(context.output_names, self.rules, strict=True):
            path = ("dtype", keys.get(name, name))
            dtype = dtype_of(self.arguments, rule)
            if dtype == ACCUMULATOR and computes_integers(self.dtypes):
                context.error("no_sums", path, name=name)
                return None
            if dtype not in (*CPP_TYPES, ACCUMULATOR, "T"):
                context.error("dtype_of_call", path, text=rule.text if rule else "")
                return None
            found.append(None if dtype == "T" else dtype)
        return tuple(found)

    @property
    def elements(self) -> tuple[CppType, ...]:
        """The C++ element type of each output."""
        return tuple(map(element_type, self.outputs or ()))

    def template_problem(self, function: Function) -> Mismatch | None:
        """Return the reason why a function is not a template over the entry's dtypes, if any."""
        dtypes = self.metal_dtypes if self.backend == "metal" else self.dtypes
        kinds, elementwise = function.template_kinds, self.context.elementwise
        if not kinds and not elementwise and len(dtypes) > 1:
            return mismatch("no_template", function.span, dtypes=dtypes)
        if kinds and (NUMBER.fullmatch(kinds[0]) or function.template[0].endswith("...")):
            return mismatch("no_dtype", function.span)
        asked = f"{' '.join(kinds)} {function.requires}"
        if re.search(r"!|\|\||\bnot\b|\bor\b", asked):
            return None
        # Scalar functions compute half precision in float; in Metal, half is a floating type.
        as_float = FLOATING[:2] if elementwise or self.backend == "metal" else ()
        for concept in _CONCEPT.findall(asked):
            for dtype in dtypes:
                if ("float32" if dtype in as_float else dtype) not in _CONCEPTS[concept]:
                    return mismatch("concept", function.span, concept=concept, dtype=dtype)
        return None

    def has_dtype(self, dtypes: Sequence[str]) -> bool:
        """Check that at least one dtype remains for the kernel."""
        if not dtypes:
            self.error("no_dtypes", given=self.group)
        return bool(dtypes)
