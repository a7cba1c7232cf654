"""Hand-written kernels held against their entries: does what `dispatch` names exist, and fit?

Four cases. On the CPU a *scalar function* (elementwise op) or a function over *views*
(``mlxgen/kernel.h``); on Metal a scalar function, or a ``[[kernel]]`` whose buffers are bound by
parameter name. What does not fit is reported here, in the words of the entry, so that neither the
C++ compiler nor Metal ever gets to complain about it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..diagnostics import Span, did_you_mean
from ..formula.compile import Scope, Want, compile_formula
from ..model.dtypes import CPP_TYPES, METAL_TYPES
from ..model.kinds import KINDS
from ..model.op import Expr, Kernel, Parameter
from ..model.signature import Kind, Type, with_article
from ..read.cpp import Function, Unit, find_function
from ..read.keys import Backend, KernelEntry, Part
from ..read.settings import Settings
from ..read.sources import last_name
from .buffers import MAX_BUFFERS, MAX_THREADS, Buffers, declaration

if TYPE_CHECKING:
    from .resolve import OpResolver

# Attributes that a scalar function can take, and the parameter types they fit.
# The dtype rule of outputs in which half precision is accumulated: accum_t<T> in C++.
_ACCUMULATOR = re.compile(r"result_type\((\w+)\.dtype, *(?:mx\.)?float32\)")
QUALIFIED = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)
"""A C++ name with its namespaces."""


def spelled(op: OpResolver, function: Function) -> str:
    """A function's name in generated code, where arguments and classes may have a part of it."""
    name = function.qualified_name
    hidden = "::" not in name or name.split("::")[0] in op.resolver.class_names
    return f"::{name}" if hidden else name


def several(count: int) -> str:
    """``1 parameter``, ``2 parameters``."""
    return f"{count} parameter{'s' * (count != 1)}"


def match_kernels(op: OpResolver) -> tuple[Kernel, ...]:
    """The op's kernels, each checked against the entry; reports what does not fit."""
    out = []
    if isinstance(op.raw.dispatch, str):
        return _shared_kernels(op, op.raw.dispatch)
    for backend, spec in (op.raw.dispatch or {}).items():
        entry = spec if isinstance(spec, KernelEntry) else KernelEntry(kernel=spec)
        path: tuple[str | int, ...] = ("dispatch", backend)
        at = (*path, "kernel") if isinstance(spec, KernelEntry) else path
        if not QUALIFIED.fullmatch(entry.kernel):
            op.error("MG502", f"'{entry.kernel}' is not the name of a function", at)
            continue
        matcher = (
            _Cpu(op, backend, entry, path, at)
            if backend == "cpu"
            else _Metal(op, backend, entry, path, at)
        )
        kernel = matcher.match()
        if kernel is not None:
            out.append(kernel)
    return tuple(out)


def _shared_kernels(op: OpResolver, name: str) -> tuple[Kernel, ...]:
    """The kernels of all backends around one scalar function of csrc."""
    at = ("dispatch",)
    if not QUALIFIED.fullmatch(name):
        op.error("MG502", f"'{name}' is not the name of a function", at)
        return ()
    if not op.elementwise:
        op.error(
            "MG503",
            f"'{name}' is to serve every backend, which only a scalar function can; an op with a "
            "`shape` rule has a kernel per backend",
            at,
            help=f"write dispatch: {{cpu: {name}, metal: ...}}",
        )
        return ()
    if name in get_args(Backend):
        op.error(
            "MG502",
            f"'{name}' is a backend, not a function",
            at,
            help=f"write dispatch: {{{name}: {op.draft.name}}}",
        )
        return ()
    matcher = _Cpu(op, "cpu", KernelEntry(kernel=name), at, at)
    cpu = matcher.match()
    if cpu is None or not matcher.few_buffers():
        return ()
    reason = op.resolver.sources.unreadable(cpu.include)
    if reason is not None:
        op.ok = False
        if reason:
            op.error(
                "MG503",
                f"'{name}' ({cpu.include}) cannot be read as Metal: {reason}",
                at,
                help='a header for every backend includes "mlxgen/scalar.h"; what is for C++ only '
                "stands between #ifndef __METAL_VERSION__ and #endif",
            )
        return ()
    dtypes = tuple(d for d in cpu.dtypes if d in METAL_TYPES)
    if matcher.no_dtype(dtypes):
        return ()
    return cpu, replace(cpu, backend="metal", dtypes=dtypes, shared=True, elements=())


class _Matcher:
    """What the backends have in common."""

    def __init__(
        self,
        op: OpResolver,
        backend: str,
        spec: KernelEntry,
        path: tuple[str | int, ...],
        at: tuple[str | int, ...],
    ) -> None:
        self.op = op
        self.backend = backend
        self.spec = spec
        self.path = path
        self.at = at
        self.sources = op.resolver.sources
        self.group = next((r.dtypes for r in op.rules if r.name == "kDtypes"), ())
        self.fixed = {p.name: p.dtype for p in op.arrays if p.dtype}

    def match(self) -> Kernel | None:
        """The kernel, or None when something was reported."""
        raise AssertionError  # pragma: no cover - each backend has its own

    def where(self, function: Function) -> str:
        """A function's place, for messages."""
        return f"{_shown(function.span.file, self.op.resolver.settings)}:{function.span.line}"

    def missing(self, names: Iterable[str], folder: Path, what: str) -> None:
        """Report that there is no such function, unless a file that may have it was not read."""
        if self.sources.unread:
            self.op.ok = False
            return
        self.op.error(
            "MG502",
            f"no {what} '{self.spec.kernel}' in {self.op.resolver.settings.relative(folder)}"
            + did_you_mean(self.spec.kernel, sorted(set(names))),
            self.at,
            help=self.expected(),
            notes=self.sources.unread_places(self.spec.kernel),
        )

    def one_of(self, found: Sequence[Function]) -> bool:
        """Whether functions that fit are one; reports those of several namespaces."""
        names = sorted({f.qualified_name for f in found})
        if len(names) > 1:
            self.op.error(
                "MG514",
                f"'{self.spec.kernel}' may be {' or '.join(names)}",
                self.at,
                help="write the namespace too",
            )
        return len(names) == 1

    def no_dtype(self, dtypes: Sequence[str]) -> bool:
        """Whether no dtype is left to run the kernel for; reports it."""
        if not dtypes:
            self.op.error(
                "MG515",
                f"'{self.spec.kernel}' computes none of the entry's dtypes: "
                + ", ".join(self.group),
                self.at,
            )
        return not dtypes

    def expected(self) -> str:
        """The declaration that would fit."""
        return ""

    def misfit(self, function: Function, problem: str) -> None:
        """Report that the function does not fit the entry."""
        self.misfits(function, [(problem, function.span)], self.expected())

    def misfits(self, function: Function, problems: Sequence[tuple[str, Span]], help: str) -> None:
        """Report all that does not fit, with places in the function's file where there are many."""
        settings = self.op.resolver.settings
        message, notes = f"does not fit: {problems[0][0]}", []
        if len(problems) > 1:
            message = f"does not fit in {len(problems)} points"
            notes = [
                f"{_shown(span.file, settings)}:{span.line}:{span.column}: {problem}"
                for problem, span in problems
            ]
        self.op.error(
            "MG503",
            f"'{self.spec.kernel}' ({self.where(function)}) {message}",
            self.at,
            help=help,
            notes=notes,
        )

    def scalar_ready(self) -> bool:
        """Whether the entry's arguments can be passed to a scalar function at all."""
        for p in self.op.params:
            if p.type.is_array:
                if p.type.kind is Kind.ARRAY and not p.type.optional and p.dtype is None:
                    continue
                what = (
                    "a list of arrays"
                    if p.is_list
                    else "an optional array"
                    if p.type.optional
                    else f"an array of fixed dtype {p.dtype}"
                )
            elif KINDS[p.type.kind].scalars and not p.type.optional:
                continue
            else:
                what = with_article(p.type)
            self.op.error(
                "MG504",
                f"an elementwise kernel cannot take '{p.name}', {what}",
                self.at,
                help="add a `shape` rule and write the kernel over whole arrays",
            )
            return False
        return True

    def few_buffers(self) -> bool:
        """Whether Metal has as many buffers as the launch of an elementwise kernel takes."""
        op = self.op
        # Arrays and their strides, outputs, attributes; number of elements, shape, number of axes.
        buffers = len(op.params) + len(op.arrays) + len(op.signature.outputs) + 3
        if buffers > MAX_BUFFERS:
            op.error(
                "MG504",
                f"the launch of an elementwise kernel has {buffers} buffers here, and Metal allows "
                f"{MAX_BUFFERS}",
                self.at,
                help="take fewer arguments",
            )
        return buffers <= MAX_BUFFERS

    def no_geometry(self) -> None:
        """Launch geometry means nothing here."""
        for key in ("grid", "threadgroup", "constants", "zero"):
            if getattr(self.spec, key):
                self.op.error(
                    "MG505",
                    f"`{key}` is for a [[kernel]] on Metal; "
                    + (
                        "a CPU kernel has no launch geometry"
                        if self.backend == "cpu"
                        else "the launch around a scalar function is generated"
                    ),
                    (*self.path, key),
                    key=True,
                )

    def scalar_expected(self, reference: str) -> str:
        """Declaration of a fitting scalar function."""
        name = self.spec.kernel.rsplit("::", 1)[-1]
        parts = []
        for p in self.op.params:
            kind = p.type.kind
            base = "T" if kind is Kind.ARRAY else (KINDS[kind].scalars or ("?",))[0]
            parts.append(f"{base} {p.name}")
        outputs = self.op.signature.outputs
        if len(outputs) > 1:
            parts += [f"{reference}T& {o.name}" for o in outputs]
        result = "T" if len(outputs) == 1 else "void"
        return f"expected: template <typename T> {result} {name}({', '.join(parts)})"

    def scalar_problem(self, function: Function, space: str | None) -> str | None:
        """Why this scalar function does not fit, if it does not."""
        outputs = self.op.signature.outputs
        params = function.params
        inputs = self.op.params
        extra = len(outputs) if len(outputs) > 1 else 0
        if len(params) != len(inputs) + extra:
            return f"it takes {several(len(params))}, the entry needs {len(inputs) + extra}"
        if len(function.template) > 1 and not _by_sign(function):
            return (
                "beside the dtype it can have one template parameter, `bool positive = false`, "
                "which is true where all inputs are above 0"
            )
        if _by_sign(function) and "complex64" in self.group:
            return "'positive' is for real numbers, and the entry allows complex64"
        t = function.template[0] if function.template else None
        for p, param in zip(inputs, params, strict=False):
            base = "T" if t is not None and param.base == t else param.base
            if param.pointer or (param.reference and not param.const):
                return f"'{param.name}' must be passed by value"
            if p.type.is_array:
                allowed: tuple[str, ...] = ("T",) if t else ("float", "double")
            else:
                allowed = KINDS[p.type.kind].scalars
            if base not in allowed:
                return (
                    f"'{param.name}' is {param.type}, '{p.name}' ({p.type.python}) needs "
                    f"{' or '.join(allowed)}"
                )
        names = [p.name for p in inputs]
        given = [q.name for q in params[: len(inputs)]]
        if given != names and sorted(given) == sorted(names):
            return f"its parameters are in the order {', '.join(given)}"
        for output, param in zip(outputs, params[len(inputs) :], strict=False):
            base = "T" if t is not None and param.base == t else param.base
            if not param.reference or param.const or base not in ("T", "float", "double"):
                return f"'{param.name}' must be a reference for the output '{output.name}'"
            if space and param.space != space:
                return f"'{param.name}' must be in the thread address space (`thread T&`)"
        result = "T" if t is not None and function.result == t else function.result
        if extra and result != "void":
            return "it must return void and write its outputs through references"
        if not extra and result not in (("T",) if t else ("float", "double")):
            return f"it returns {function.result}, not {'T' if t else 'float'}"
        return None

    def output_elements(self) -> tuple[str, ...] | None:
        """Element type of each output's view."""
        texts = self.op._per_output(self.op.raw.dtype, "dtype")
        out = []
        for output in self.op.signature.outputs:
            text = texts.get(output.name, "").strip().removeprefix("mx.")
            argument = text.removesuffix(".dtype")
            wide = _ACCUMULATOR.fullmatch(text)
            if text in CPP_TYPES:
                out.append(CPP_TYPES[text].removeprefix("mx::"))
            elif wide and any(p.name == wide[1] and p.dtype is None for p in self.op.arrays):
                out.append("accum_t<T>")
            elif argument in self.fixed:
                out.append(CPP_TYPES[self.fixed[argument]].removeprefix("mx::"))
            elif not text or any(argument == p.name != text for p in self.op.arrays):
                out.append("T")
            else:
                self.op.error(
                    "MG126",
                    f"a kernel is compiled for each dtype, and '{text}' depends on the call",
                    ("dtype",) if isinstance(self.op.raw.dtype, str) else ("dtype", output.name),
                    help="write the name of a dtype, that of an argument (`x.dtype`), or "
                    "`result_type(x.dtype, float32)` to accumulate in",
                )
                return None
        return tuple(out)


class _Cpu(_Matcher):
    """Kernels in csrc."""

    def expected(self) -> str:
        if self.op.elementwise:
            return self.scalar_expected("")
        parts = []
        for p in self.op.params:
            parts.append(f"{self.view_of(p) if p.type.is_array else _attribute(p.type)} {p.name}")
        parts += [
            f"Out<{e}> {o.name}"
            for o, e in zip(self.op.signature.outputs, self.output_elements() or (), strict=False)
        ]
        name = self.spec.kernel.rsplit("::", 1)[-1]
        return f"expected: template <typename T> void {name}({', '.join(parts)})"

    def view_of(self, p: Parameter) -> str:
        """Type of the view of an array argument."""
        element = CPP_TYPES[p.dtype].removeprefix("mx::") if p.dtype else "T"
        return f"const std::vector<In<{element}>>&" if p.is_list else f"In<{element}>"

    def match(self) -> Kernel | None:
        self.no_geometry()
        candidates = self.sources.find(self.spec.kernel)
        if not candidates:
            names = (f.name for f in self.sources.functions if f.class_name is None)
            self.missing(names, self.op.resolver.settings.csrc, "function")
            return None
        if not (self.scalar_ready() if self.op.elementwise else self.views_ready()):
            return None
        problems = [(f, self.problem(f)) for f in candidates]
        fitting = [f for f, problem in problems if problem is None]
        if not fitting:
            wanted = len(self.op.params)
            problems.sort(key=lambda item: len(item[0].params) < wanted)
            function, problem = problems[0]
            over_views = any(re.search(r"\b(In|Out)\s*<", p.type) for p in function.params)
            if self.op.elementwise and over_views:
                problem = "it is a function over whole arrays, for which the entry needs a `shape`"
            elif not self.op.elementwise and not over_views:
                problem = "it is a scalar function, and an op with a `shape` needs one over views"
            self.misfit(function, str(problem))
            return None
        return self.kernel(fitting, candidates) if self.one_of(fitting) else None

    def problem(self, function: Function) -> str | None:
        """Why a function does not fit, if it does not."""
        if self.op.elementwise:
            return self.scalar_problem(function, None)
        return self.view_problem(function)

    def views_ready(self) -> bool:
        """Whether the entry's arguments and outputs can be passed to a function over views."""
        for p in self.op.params:
            if p.type.kind is Kind.ENUM and p.type.optional:
                self.op.error(
                    "MG504",
                    f"a kernel cannot take '{p.name}', {with_article(p.type)}",
                    self.at,
                    help="add a string to its choices that stands for None",
                )
                return False
        return self.output_elements() is not None

    def kernel(self, fitting: Sequence[Function], candidates: Sequence[Function]) -> Kernel | None:
        """The kernel around a function that fits: its overloads, and all of that name."""
        function = next((f for f in fitting if self.sources.header_of(f)), fitting[0])
        header = self.sources.header_of(function)
        if header is None:
            self.misfit(function, "it must be in a header (.h), so that generated code can use it")
            return None
        same = [f for f in candidates if f.qualified_name == function.qualified_name]
        if function.template:
            same = [f for f in same if self.sources.header_of(f)]
        if not any(f.is_definition for f in same):
            self.misfit(function, "it is declared, and defined nowhere")
            return None
        dtypes: Sequence[str] = self.group or (next(iter(self.fixed.values()), "float32"),)
        if self.op.elementwise and not function.template:
            # Overloads instead of a template: the dtypes are those that they compute.
            types = {f.params[0].base for f in fitting}
            wide = {"float32", "float16", "bfloat16"} if "float" in types else set()
            wide |= {"float64"} if "double" in types else set()
            dtypes = tuple(d for d in dtypes if d in wide)
        if self.no_dtype(dtypes):
            return None
        return Kernel(
            backend="cpu",
            name=self.spec.kernel,
            function=spelled(self.op, function),
            include=header,
            dtypes=tuple(dtypes),
            scalar=self.op.elementwise,
            templated=bool(function.template),
            by_sign=self.op.elementwise and _by_sign(function),
            by_reference=len(self.op.signature.outputs) > 1,
            elements=self.output_elements() or (),
        )

    def view_problem(self, function: Function) -> str | None:
        """Why this function over views does not fit, if it does not."""
        inputs, outputs = self.op.params, self.op.signature.outputs
        if len(function.params) != len(inputs) + len(outputs):
            return (
                f"it takes {several(len(function.params))}, "
                f"the entry needs {len(inputs) + len(outputs)}"
            )
        if len(function.template) > 1:
            return "it has more than one template parameter"
        t = function.template[0] if function.template else None
        only = self.group[0] if self.group else next(iter(self.fixed.values()), "float32")
        if t is None and len(self.group) > 1:
            return "it must be a template over the dtype: template <typename T>"
        if function.result != "void":
            return "it must return void"
        for param in function.params:
            if param.reference and not param.const:
                return f"'{param.name}' must be passed by value or as a const reference"

        def spelled(view: str) -> str:
            plain = CPP_TYPES[only].removeprefix("mx::")
            return view if t else re.sub(r"\bT\b", plain, view)

        for p, param in zip(inputs, function.params, strict=False):
            wanted = spelled(self.view_of(p)) if p.type.is_array else _attribute(p.type)
            if not _same_type(param.type, wanted, t, p.type):
                return f"'{param.name}' is {param.type}, '{p.name}' needs {wanted}"
        elements = self.output_elements() or ()
        rest = function.params[len(inputs) :]
        for output, element, param in zip(outputs, elements, rest, strict=False):
            wanted = spelled(f"Out<{element}>")
            if not _same_type(param.type, wanted, t, output.type):
                return f"'{param.name}' is {param.type}, the output '{output.name}' needs {wanted}"
        names = [p.name for p in inputs] + [o.name for o in outputs]
        given = [q.name for q in function.params]
        if given != names and sorted(given) == sorted(names):
            return f"its parameters are in the order {', '.join(given)}"
        return None


def _by_sign(function: Function) -> bool:
    """Whether a scalar function can be compiled for positive inputs."""
    return function.template[1:] == ("positive",) and function.template_defaults[1] == "false"


def _attribute(type: Type) -> str:
    """Type of an attribute's parameter in a CPU kernel."""
    if type.kind is Kind.ENUM:
        return "int"
    return type.cpp_param.replace("mx::", "")


def _same_type(given: str, wanted: str, t: str | None, type: Type) -> bool:
    def plain(text: str) -> str:
        text = re.sub(r"\b(mlxgen|mx|std|mlx::core|mlx|core)::", "", text)
        text = re.sub(r"\bconst\b|&", " ", text)
        text = re.sub(r"<\s*int\s*>", "<int32_t>", text)
        if t:
            text = re.sub(rf"\b{re.escape(t)}\b", "T", text)
        return re.sub(r"\s+", "", text)

    if plain(given) == plain(wanted):
        return True
    if type.kind is Kind.FLOAT and not type.optional:
        return plain(given) in ("float", "double", "T", "accum_t<T>")
    if type.kind is Kind.INT and not type.optional:
        return plain(given) in ("int", "int64_t", "int32_t")
    return False


class _Metal(_Matcher):
    """Kernels in .metal files."""

    def expected(self) -> str:
        if self.op.elementwise:
            return self.scalar_expected("thread ")
        outputs = self.output_dtypes() or [None] * len(self.op.signature.outputs)
        fitting = declaration(self.op, last_name(self.spec.kernel), self.spec.constants, outputs)
        return f"expected: {fitting}"

    def match(self) -> Kernel | None:
        named = [
            (path, file, function)
            for path, file, function in self.sources.metal_named(self.spec.kernel)
            if find_function([function], self.spec.kernel)
        ]
        if any(function.is_kernel for _, _, function in named):
            named = [item for item in named if item[2].is_kernel]
        files = sorted({f.span.file for _, _, f in named})
        if len(files) > 1:
            files = [self.op.resolver.settings.relative(Path(file)) for file in files]
            self.op.error(
                "MG514",
                f"'{self.spec.kernel}' is in {' and in '.join(files)}",
                self.at,
                help="give one of them another name",
            )
            return None
        if named and named[0][2].is_kernel:
            # A header may be included by several files: the one that instantiates it counts.
            made = (item for item in named if _instantiates(item[1], item[2]))
            return self.launch(*next(made, named[0]))
        if named:
            path = named[0][0]
            return self.scalar(path, [f for p, _, f in named if p == path])
        units = self.sources.metal.all().values()
        names = [f.name for unit in units for f in (*unit.kernels, *unit.functions)]
        what = "function or [[kernel]]" if self.op.elementwise else "[[kernel]]"
        self.missing(names, self.op.resolver.settings.metal, what)
        return None

    def scalar(self, path: Path, found: Sequence[Function]) -> Kernel | None:
        """A scalar function, around which the kernels are generated."""
        if not self.op.elementwise:
            self.misfit(
                found[0],
                "it is a scalar function, and an op with a `shape` rule needs a [[kernel]]",
            )
            return None
        self.no_geometry()
        if not self.scalar_ready():
            return None
        if not self.few_buffers():
            return None
        problems = []
        for function in found:
            problem = self.scalar_problem(function, "thread")
            if problem is None:
                dtypes = tuple(d for d in self.group if d in METAL_TYPES)
                if not function.template:  # computed in float, whatever it is stored in
                    dtypes = tuple(d for d in dtypes if d in ("float32", "float16", "bfloat16"))
                if self.no_dtype(dtypes):
                    return None
                return Kernel(
                    backend="metal",
                    name=self.spec.kernel,
                    function=spelled(self.op, function),
                    include=path.relative_to(self.op.resolver.settings.metal).as_posix(),
                    dtypes=dtypes,
                    scalar=True,
                    templated=bool(function.template),
                    by_reference=len(self.op.signature.outputs) > 1,
                )
            problems.append((function, problem))
        self.misfit(*problems[0])
        return None

    def launch(self, path: Path, file: Unit, function: Function) -> Kernel | None:
        """A hand-written [[kernel]] with its buffers, grid and instantiations."""
        op = self.op
        if lists := [p.name for p in op.arrays if p.is_list]:
            op.error(
                "MG504",
                f"a [[kernel]] cannot take '{lists[0]}', a list of arrays",
                self.at,
                help="remove it: without a Metal kernel the operator runs its `composite` there",
            )
            return None
        grid = self.geometry("grid", self.spec.grid)
        group = self.geometry("threadgroup", self.spec.threadgroup)
        if not self.spec.grid:
            op.error(
                "MG506",
                f"the [[kernel]] '{function.name}' needs a `grid`",
                self.at,
                help=f"e.g. {{kernel: {function.name}, grid: [out.size], threadgroup: [256]}}",
            )
        constants = self.constants(function)
        outputs = self.output_dtypes()
        if outputs is None or self.no_dtype(self.compiled):
            return None
        names = [o.name for o in op.signature.outputs]
        for name, dtype in [*self.fixed.items(), *zip(names, outputs, strict=True)]:
            if dtype is not None and dtype not in METAL_TYPES:
                op.error("MG515", f"Metal has no {dtype}, the dtype of '{name}'", self.at)
                return None
        buffers = Buffers(op, function, dict(constants), outputs, self.compiled)
        if buffers.problems:
            only = None if function.template else self.compiled[0]
            names = [name for name, _ in constants]
            fitting = declaration(op, function.name, names, outputs, only)
            self.misfits(function, buffers.problems, f"expected: {fitting}")
        zero = []
        for i, name in enumerate(self.spec.zero):
            names = [o.name for o in op.signature.outputs]
            if name in self.spec.zero[:i]:
                op.error("MG127", f"'{name}' is there twice", (*self.path, "zero", i))
            elif name in names:
                zero.append(names.index(name))
            else:
                op._unknown_argument(
                    "MG507", name, (*self.path, "zero", i), names, "output", key=False
                )
        dtypes = self.instantiated(file, function)
        if not op.ok:
            return None
        return Kernel(
            backend="metal",
            name=self.spec.kernel,
            function=function.name,
            include=path.relative_to(op.resolver.settings.metal).as_posix(),
            dtypes=dtypes,
            scalar=False,
            templated=bool(function.template),
            bindings=tuple(buffers.bindings),
            constants=tuple(constants),
            grid=tuple(grid),
            threadgroup=tuple(group),
            zero=tuple(zero),
            uses=frozenset(n for e in (*grid, *group, *(c for _, c in constants)) for n in e.names),
        )

    def scope(self) -> Scope:
        """Names in launch geometry: arguments, and outputs for their shapes and sizes."""
        from ..formula.compile import Name

        names = self.op._scope(member=True)
        for i, output in enumerate(self.op.signature.outputs):
            names[output.name] = Name(output.type, f"outputs[{i}]")
        return self.op._make_scope(names, None)

    def geometry(self, key: str, texts: list[str] | None) -> list[Expr]:
        """Three integers, the missing ones 1."""
        out = []
        for i, text in enumerate(texts or []):
            expr = self.op.formula((*self.path, key, i), text, self.scope(), Want.int())
            if expr is not None:
                out.append(expr)
        numbers = [int(text) for text in texts or [] if re.fullmatch(r"-?\d{1,18}", text.strip())]
        if any(number < 1 for number in numbers):
            self.op.error("MG517", f"`{key}` has less than one thread", (*self.path, key))
        elif key == "threadgroup" and math.prod(numbers) > MAX_THREADS:
            self.op.error(
                "MG517",
                f"a threadgroup of {math.prod(numbers)} threads, and Metal allows {MAX_THREADS}",
                (*self.path, key),
            )
        return out

    def constants(self, function: Function) -> list[tuple[str, Expr]]:
        """Formulas passed by parameter name."""
        op = self.op
        out = []
        taken = {*(p.name for p in op.params), *(o.name for o in op.signature.outputs)}
        for name, text in self.spec.constants.items():
            path = (*self.path, "constants", name)
            if name in taken:
                what = f"'{name}' is an argument or output, and cannot be a constant"
                op.error("MG508", what, path, key=True)
            elif name not in {p.name for p in function.params}:
                what = f"'{function.name}' has no parameter for the constant '{name}'"
                op.error("MG508", what, path, key=True)
            expr = self.op.formula((*self.path, "constants", name), text, self.scope(), Want.int())
            if expr is not None:
                out.append((name, expr))
        return out

    @property
    def compiled(self) -> list[str]:
        """The dtypes for which the kernel must be there."""
        dtypes = self.group or (next(iter(self.fixed.values()), "float32"),)
        return [d for d in dtypes if d in METAL_TYPES]

    def output_dtypes(self) -> list[str | None] | None:
        """The dtype of each output, None for the kernel's; None when something was reported."""
        elements = self.output_elements()
        if elements is None:
            return None
        # Metal has no float64, so that accumulators are all float.
        names = {c.removeprefix("mx::"): d for d, c in CPP_TYPES.items()} | {
            "accum_t<T>": "float32"
        }
        return [names.get(element) for element in elements]

    def instantiated(self, file: Unit, function: Function) -> tuple[str, ...]:
        """The dtypes for which the kernel has a host name; reports those that are missing."""
        wanted = self.compiled
        if not function.template:
            hosts = {i.host_name for i in file.instantiations}
            plain = function.name in hosts or not any(
                i.function.rsplit("::", 1)[-1] == function.name for i in file.instantiations
            )
            if len(wanted) > 1 or not plain:
                self.misfit(
                    function,
                    f"it is no template, and the entry allows {', '.join(wanted)}",
                )
            return tuple(wanted)
        found = {i.host_name: i for i in file.instantiations}
        out = []
        missing = []
        for dtype in wanted:
            instance = found.get(f"{function.name}_{dtype}")
            if instance is None:
                missing.append(dtype)
                continue
            given = instance.arguments[0] if instance.arguments else ""
            if instance.function.rsplit("::", 1)[-1] != function.name:
                self.misfit(
                    function,
                    f"host name '{instance.host_name}' instantiates '{instance.function}'",
                )
            elif given not in METAL_TYPES[dtype]:
                self.misfit(
                    function, f"host name '{instance.host_name}' is instantiated with '{given}'"
                )
            else:
                out.append(dtype)
        if missing:
            host = f"{function.name}_{missing[0]}"
            self.op.error(
                "MG509",
                f"the [[kernel]] '{function.name}' ({self.where(function)}) is not instantiated "
                f"for {', '.join(missing)}",
                self.at,
                help=f'add: template [[host_name("{host}")]] [[kernel]] decltype({function.name}'
                f"<{METAL_TYPES[missing[0]][0]}>) {function.name}<{METAL_TYPES[missing[0]][0]}>; "
                "or restrict `dtypes`",
            )
        return tuple(out)


def _instantiates(file: Unit, function: Function) -> bool:
    return any(last_name(i.function) == function.name for i in file.instantiations)


def _shown(file: str, settings: Settings) -> str:
    return settings.relative(Path(os.path.abspath(file)))


def bound_call(op: OpResolver, scope: Scope, want: Want) -> tuple[Expr | None, str]:
    """The call of the function that a `bind` entry names, checked against MLX's API."""
    target = op.raw.cpp or f"mlx::core::{op.draft.name}"
    path: tuple[str | int, ...] = ("cpp",) if op.raw.cpp else op.draft.at_name
    if not QUALIFIED.fullmatch(target):
        op.error(
            "MG128",
            f"'{target}' is not the name of a C++ function",
            path,
            help="write e.g. mlx::core::exp; a formula goes under `composite`",
        )
        return None, ""
    plain = re.sub(r"^(::)?(mlx::core|mx)::", "", target)
    if op.raw.cpp and plain == target:
        return _own_call(op, target, path)
    name = "mx." + plain.replace("::", ".")
    positional = [a.name for a in op.signature.args]
    attempts = [f"{name}({', '.join(positional)})"]
    arrays = [a.name for a in op.signature.args if a.type.is_array]
    rest = [a.name for a in op.signature.args if not a.type.is_array]
    if rest:
        attempts.append(f"{name}({', '.join([*arrays, *(f'{a}={a}' for a in rest)])})")
    problems: list[tuple[str, str | None]] = []

    def note(code: str, message: str, start: int, end: int, help: str | None) -> None:
        problems.append((message, help))

    for text in attempts:
        expr = compile_formula(text, scope, want, note)
        if expr is not None:
            return expr, text
    message, hint = problems[0] if problems else ("it does not fit the signature", None)
    op.error(
        "MG510",
        f"cannot bind {target}: {message}",
        path,
        help=hint or "give `cpp`, `composite` or `dispatch`, or mend the signature",
    )
    return None, ""


def _own_call(op: OpResolver, target: str, path: tuple[str | int, ...]) -> tuple[Expr | None, str]:
    """The call of a hand-written C++ function from csrc."""
    outputs = op.signature.outputs
    single = len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY
    wanted = [a.type.cpp_param for a in op.signature.args] + ["mx::StreamOrDevice"]
    names = [a.name for a in op.signature.args] + ["s"]
    result = "mx::array" if single else "std::vector<mx::array>"
    function = _hand_written(op, target, wanted, names, result, path)
    if function is None:
        return None, ""
    values = [*(p.cpp for p in op.params), "s"]
    expr = Expr(outputs[0].type, f"{spelled(op, function)}({', '.join(values)})")
    return expr, f"{function.qualified_name}({', '.join(values)})"


def require_own_name(op: OpResolver) -> None:
    """The C++ function that is generated for an op must not be written by hand already."""
    sources, settings = op.resolver.sources, op.resolver.settings
    name = f"{settings.namespace}::{op.draft.name}"
    types = [a.type.cpp_param for a in op.signature.args] + ["mx::StreamOrDevice"]
    for function in sources.find(name, everywhere=False):
        given = [p.type for p in function.params]
        same = len(given) == len(types) and all(
            _same_type(g, t, None, Type(Kind.STR)) for g, t in zip(given, types, strict=True)
        )
        if function.qualified_name == name and same:
            op.error(
                "MG516",
                f"{settings.relative(settings.csrc)} defines {name} itself "
                f"({_shown(function.span.file, settings)}:{function.span.line})",
                ("name",) if op.raw.name else (),
                help="generated code defines a function of this name and type: rename one of them",
            )
            return


def require_function(op: OpResolver, name: str, path: tuple[str | int, ...]) -> str:
    """A hand-written gradient function: its qualified name, checked against csrc.

    It takes the op's arguments, `const std::vector<array>& cotangents`,
    `const std::vector<array>& outputs` and a stream, and returns one array per gradient.
    """
    vector = "const std::vector<mx::array>&"
    wanted = [a.type.cpp_param for a in op.signature.args] + [vector, vector, "mx::StreamOrDevice"]
    names = [a.name for a in op.signature.args] + ["cotangents", "outputs", "s"]
    function = _hand_written(op, name, wanted, names, "std::vector<mx::array>", path)
    return spelled(op, function) if function else name


def _hand_written(
    op: OpResolver,
    name: str,
    types: Sequence[str],
    names: Sequence[str],
    result: str,
    path: tuple[str | int, ...],
) -> Function | None:
    """The function of csrc that takes these types; reports it where there is none that does."""
    sources, settings = op.resolver.sources, op.resolver.settings
    shown = ", ".join(f"{t} {n}" for t, n in zip(types, names, strict=True))
    help = f"expected: {result} {last_name(name)}({shown})"
    found = sources.find(name) if QUALIFIED.fullmatch(name) else []
    if not found:
        op.ok = False
        if not sources.unread:
            known = [f.qualified_name for f in sources.functions if f.class_name is None]
            known += [last_name(f) for f in known]
            op.error(
                "MG511",
                f"no function '{name}' in {settings.relative(settings.csrc)}"
                + did_you_mean(name, known),
                path,
                help=help,
                notes=sources.unread_places(name),
            )
        return None
    fitting = [f for f in found if _takes(f, types, result)]
    function = next((f for f in fitting if sources.header_of(f)), None)
    problem = None
    if not fitting:
        problem = "does not fit"
    elif len({f.qualified_name for f in fitting}) > 1:
        both = " or ".join(sorted({f.qualified_name for f in fitting}))
        op.error("MG514", f"'{name}' may be {both}", path, help="write the namespace too")
        return None
    elif function is None:
        problem = "must be declared in a header (.h), so that generated code can use it"
    elif not any(f.is_definition for f in fitting):
        problem = "is declared, and defined nowhere"
    if problem or function is None:
        place = (fitting or found)[0].span
        shown_at = f"{_shown(place.file, settings)}:{place.line}"
        op.error("MG512", f"'{name}' ({shown_at}) {problem}", path, help=help)
        return None
    op.extra_includes.append(str(sources.header_of(function)))
    return function


def _takes(function: Function, types: Sequence[str], result: str) -> bool:
    """Whether a function takes arguments of these types, and returns the result's."""
    plain = Type(Kind.STR)
    return (
        len(function.params) == len(types)
        and not function.template
        and _same_type(function.result, result, None, plain)
        and not any(p.reference and not p.const for p in function.params)
        and all(
            _same_type(p.type, t, None, plain) for p, t in zip(function.params, types, strict=True)
        )
    )


def require_manual(op: OpResolver, part: Part, class_name: str) -> None:
    """A part written by hand must be defined in csrc, as a member of the primitive's class."""
    if op.resolver.sources.defines_member(class_name, part):
        return
    op.ok = False
    if op.resolver.sources.unread:
        return
    op.error(
        "MG513",
        f"`manual: [{part}]`, but {op.resolver.settings.relative(op.resolver.settings.csrc)} does "
        f"not define {class_name}::{part}",
        ("manual", op.raw.manual.index(part)),
        help=f"define {class_name}::{part} in a .cpp file, with mlx::core::Primitive's signature",
        notes=op.resolver.sources.unread_places(part),
    )
