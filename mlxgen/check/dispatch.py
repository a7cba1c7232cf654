"""One item of `dispatch`: a kernel that an entry names for a backend, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath

from ..diagnostics import Span, did_you_mean
from ..model.dtypes import CPP_TYPES, METAL_TYPES
from ..read.cpp import Function
from ..read.keys import KernelEntry
from .context import Context, Path
from .fit import place
from .results import texts_by_output

MAX_BUFFERS = 31  # that Metal binds

# The dtype rule of outputs in which half precision is accumulated: accum_t<T> in C++.
_ACCUMULATOR = re.compile(r"result_type\((\w+)\.dtype, *(?:mx\.)?float32\)")
_GEOMETRY = ("grid", "threadgroup", "constants", "zero")


def cpp_type(dtype: str) -> str:
    """The C++ type of a dtype's elements, as kernels name it."""
    return CPP_TYPES[dtype].removeprefix("mx::")


@dataclass
class Dispatch:
    """A kernel as an entry names it."""

    context: Context
    backend: str
    spec: KernelEntry
    path: Path

    @property
    def name(self) -> str:
        """The function's name, as in the entry."""
        return self.spec.kernel

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that the kernel is compiled for, if its backend has them."""
        context = self.context
        return context.group or (next(iter(context.fixed.values()), "float32"),)

    @property
    def metal_dtypes(self) -> list[str]:
        """Those that Metal has."""
        return [d for d in self.dtypes if d in METAL_TYPES]

    @cached_property
    def elements(self) -> tuple[str, ...] | None:
        """C++ element type of each output, T for the kernel's; None when something was reported."""
        context = self.context
        texts = texts_by_output(context, "dtype")
        plain = [p.name for p in context.arrays if p.dtype is None]
        out = []
        for name in context.output_names:
            text = texts.get(name, "").strip().removeprefix("mx.")
            argument = text.removesuffix(".dtype")
            wide = _ACCUMULATOR.fullmatch(text)
            if text in CPP_TYPES:
                out.append(cpp_type(text))
            elif wide and wide[1] in plain:
                out.append("accum_t<T>")
            elif argument in context.fixed:
                out.append(cpp_type(context.fixed[argument]))
            elif not text or (argument in plain and argument != text):
                out.append("T")
            else:
                context.error(
                    "MG126",
                    f"a kernel is compiled for each dtype, and '{text}' depends on the call",
                    ("dtype", name),
                    help="write the name of a dtype, that of an argument (`x.dtype`), or "
                    "`result_type(x.dtype, float32)` to accumulate in",
                )
                return None
        return tuple(out)

    # What is wrong

    def error(
        self, code: str, message: str, help: str | None = None, notes: Sequence[str] = ()
    ) -> None:
        """Report at the function's name."""
        self.context.error(code, message, (*self.path, "kernel"), help=help, notes=notes)

    def missing(self, names: Iterable[str], folder: FilePath, what: str, help: str) -> None:
        """Report that there is no such function, unless a file that may have it was not read."""
        if self.context.sources.unread:
            self.context.ok = False
            return
        message = f"no {what} '{self.name}' in {self.context.settings.relative(folder)}"
        message += did_you_mean(self.name, sorted(set(names)))
        self.error("MG502", message, help, self.context.sources.unread_places(self.name))

    def misfit(self, function: Function, problem: str, help: str) -> None:
        """Report that the function does not fit the entry."""
        self.misfits(function, [(problem, function.span)], help)

    def misfits(self, function: Function, problems: Sequence[tuple[str, Span]], help: str) -> None:
        """Report all that does not fit, with places in the function's file where there are many."""
        settings = self.context.settings
        message, notes = f"does not fit: {problems[0][0]}", []
        if len(problems) > 1:
            message = f"does not fit in {len(problems)} points"
            notes = [f"{place(span, settings)}:{span.column}: {text}" for text, span in problems]
        message = f"'{self.name}' ({place(function.span, settings)}) {message}"
        self.error("MG503", message, help, notes)

    def has_dtype(self, dtypes: Sequence[str]) -> bool:
        """Whether a dtype is left to run the kernel for; reports it if not."""
        if not dtypes:
            given = ", ".join(self.context.group)
            self.error("MG515", f"'{self.name}' computes none of the entry's dtypes: {given}")
        return bool(dtypes)

    def has_buffers(self) -> bool:
        """Whether Metal has as many buffers as the launch of an elementwise kernel takes."""
        context = self.context
        # Arrays and their strides, outputs, attributes; number of elements, shape, number of axes.
        count = len(context.params) + len(context.arrays) + len(context.output_names) + 3
        if count > MAX_BUFFERS:
            self.error(
                "MG504",
                f"the launch of an elementwise kernel has {count} buffers here, and Metal allows "
                f"{MAX_BUFFERS}",
                help="take fewer arguments",
            )
        return count <= MAX_BUFFERS

    def check_no_geometry(self) -> None:
        """Launch geometry means nothing for a function that generated code calls."""
        why = "a CPU kernel has no launch geometry"
        if self.backend == "metal":
            why = "the launch around a scalar function is generated"
        for key in _GEOMETRY:
            if getattr(self.spec, key):
                message = f"`{key}` is for a [[kernel]] on Metal; {why}"
                self.context.error("MG505", message, (*self.path, key), key=True)
