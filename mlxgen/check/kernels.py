"""Hand-written kernels held against their entries: does what `dispatch` names exist, and fit?

On the CPU a *scalar function* (elementwise op) or a function over *views* (``mlxgen/kernel.h``); on
Metal a scalar function, or a ``[[kernel]]`` (metal.py). What does not fit is reported here, in the
words of the entry, so that neither the C++ compiler nor Metal ever gets to complain about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import get_args

from ..model.dtypes import METAL_TYPES
from ..model.kinds import KINDS, Kind
from ..model.op import Kernel, Parameter
from ..model.signature import Type, with_article
from ..read.cpp import Function, find_function
from ..read.keys import Backend, KernelEntry
from ..read.sources import last_name
from .context import Context, Path
from .dispatch import Dispatch, cpp_type
from .fit import QUALIFIED, Expected, Wanted, one_of, spelled
from .metal import declaration, launch

# Beside the usual type of a number, a function over views may take these.
_NUMBERS = {Kind.FLOAT: ("float", "double", "T", "accum_t<T>"), Kind.INT: ("int", "int64_t")}


def match_kernels(context: Context) -> tuple[Kernel, ...]:
    """The op's kernels, each checked against the entry; reports what does not fit."""
    given = context.raw.dispatch
    if isinstance(given, str):
        item = Dispatch(context, "cpu", KernelEntry(kernel=given), ("dispatch",))
        return _shared(item) if _is_name(item) else ()
    found = []
    for backend, spec in (given or {}).items():
        path: Path = ("dispatch", backend)
        entry = spec if isinstance(spec, KernelEntry) else KernelEntry(kernel=spec)
        item = Dispatch(context, backend, entry, path)
        if _is_name(item):
            found.append(_cpu(item) if backend == "cpu" else _metal(item))
    return tuple(kernel for kernel in found if kernel)


def _is_name(item: Dispatch) -> bool:
    if QUALIFIED.fullmatch(item.name):
        return True
    item.error("MG502", f"'{item.name}' is not the name of a function")
    return False


def _shared(item: Dispatch) -> tuple[Kernel, ...]:
    """The kernels of all backends around one scalar function of csrc."""
    context, name = item.context, item.name
    if not context.elementwise:
        item.error(
            "MG503",
            f"'{name}' is to serve every backend, which only a scalar function can; an op with a "
            "`shape` rule has a kernel per backend",
            help=f"write dispatch: {{cpu: {name}, metal: ...}}",
        )
        return ()
    if name in get_args(Backend):
        help = f"write dispatch: {{{name}: {context.name}}}"
        item.error("MG502", f"'{name}' is a backend, not a function", help=help)
        return ()
    cpu = _cpu(item)
    if cpu is None or not item.has_buffers():
        return ()
    reason = context.sources.unreadable(cpu.include)
    if reason is not None:
        context.ok = False
        if reason:
            item.error(
                "MG503",
                f"'{name}' ({cpu.include}) cannot be read as Metal: {reason}",
                help='a header for every backend includes "mlxgen/scalar.h"; what is for C++ only '
                "stands between #ifndef __METAL_VERSION__ and #endif",
            )
        return ()
    dtypes = tuple(d for d in cpu.dtypes if d in METAL_TYPES)
    if not item.has_dtype(dtypes):
        return ()
    return cpu, replace(cpu, backend="metal", dtypes=dtypes, shared=True, elements=())


# What fits


def _scalar_function(context: Context, reference: str = "T&") -> Expected:
    """A function of one element of every array, which returns one, or writes several."""
    params = []
    for p in context.params:
        types = ("T",) if p.type.is_array else KINDS[p.type.kind].scalars or ("?",)
        params.append(Wanted(p.name, f"'{p.name}' ({p.type.python})", types))
    outputs = context.output_names
    if len(outputs) > 1:
        types = ("T", "float", "double")
        params += [Wanted(o, f"the output '{o}'", types, reference) for o in outputs]
    result = "T" if len(outputs) == 1 else "void"
    return Expected(result, params, ("float", "double"), "by value")


def _view_function(item: Dispatch) -> Expected:
    """A function over whole arrays."""
    context = item.context
    params = [Wanted(p.name, f"'{p.name}'", _view_types(p)) for p in context.params]
    for name, element in zip(context.output_names, item.elements or (), strict=False):
        params.append(Wanted(name, f"the output '{name}'", (f"Out<{element}>",)))
    return Expected("void", params, (cpp_type(item.dtypes[0]),))


def _view_types(p: Parameter) -> tuple[str, ...]:
    if p.type.is_array:
        view = f"In<{cpp_type(p.dtype) if p.dtype else 'T'}>"
        return (f"const std::vector<{view}>&" if p.is_list else view,)
    if p.type.kind is Kind.ENUM:
        return ("int",)
    usual = p.type.cpp_param.replace("mx::", "")
    return tuple(dict.fromkeys((usual, *_also(p.type))))


def _also(type: Type) -> tuple[str, ...]:
    return () if type.optional else _NUMBERS.get(type.kind, ())


def _by_sign(function: Function) -> bool:
    """Whether a scalar function can be compiled for positive inputs."""
    return function.template[1:] == ("positive",) and function.template_defaults[1] == "false"


def _problem(context: Context, expected: Expected, function: Function) -> str | None:
    """Why a function does not fit, if it does not."""
    template = len(function.template)
    if not context.elementwise:
        if template > 1:
            return "it has more than one template parameter"
        if template == 0 and len(context.group) > 1:
            return "it must be a template over the dtype: template <typename T>"
    elif template > 1 and not _by_sign(function):
        return (
            "beside the dtype it can have one template parameter, `bool positive = false`, "
            "which is true where all inputs are above 0"
        )
    elif _by_sign(function) and "complex64" in context.group:
        return "'positive' is for real numbers, and the entry allows complex64"
    return expected.problem(function)


def _can_take(item: Dispatch) -> bool:
    """Whether kernels of the op's sort can take its arguments at all."""
    scalar = item.context.elementwise
    for p in item.context.params:
        type = p.type
        what = None
        if not scalar:
            if type.kind is Kind.ENUM and type.optional:
                what = with_article(type)
        elif not type.is_array:
            if type.optional or not KINDS[type.kind].scalars:
                what = with_article(type)
        elif p.is_list:
            what = "a list of arrays"
        elif type.optional:
            what = "an optional array"
        elif p.dtype:
            what = f"an array of fixed dtype {p.dtype}"
        if what:
            item.error(
                "MG504",
                f"a{'n elementwise' * scalar} kernel cannot take '{p.name}', {what}",
                help="add a `shape` rule and write the kernel over whole arrays"
                if scalar
                else "add a string to its choices that stands for None",
            )
            return False
    return True


# What is there


def _cpu(item: Dispatch) -> Kernel | None:
    """A kernel in csrc."""
    context, sources = item.context, item.context.sources
    item.check_no_geometry()
    expected = _scalar_function(context) if context.elementwise else _view_function(item)
    help = expected.declaration(item.name)
    candidates = sources.find(item.name)
    if not candidates:
        names = (f.name for f in sources.functions if f.class_name is None)
        item.missing(names, context.settings.csrc, "function", help)
        return None
    if not _can_take(item) or (not context.elementwise and item.elements is None):
        return None
    problems = [(f, _problem(context, expected, f)) for f in candidates]
    fitting = [f for f, problem in problems if problem is None]
    if not fitting:
        problems.sort(key=lambda found: len(found[0].params) < len(context.params))
        function, problem = problems[0]
        over_views = any(re.search(r"\b(In|Out)\s*<", p.type) for p in function.params)
        if context.elementwise and over_views:
            problem = "it is a function over whole arrays, for which the entry needs a `shape`"
        elif not context.elementwise and not over_views:
            problem = "it is a scalar function, and an op with a `shape` needs one over views"
        item.misfit(function, str(problem), help)
        return None
    if not one_of(context, item.name, fitting, (*item.path, "kernel")):
        return None
    function = next((f for f in fitting if sources.header_of(f)), fitting[0])
    same = [f for f in candidates if f.qualified_name == function.qualified_name]
    header = sources.header_of(function)
    if header is None:
        problem = "it must be in a header (.h), so that generated code can use it"
        item.misfit(function, problem, help)
        return None
    if function.template:
        same = [f for f in same if sources.header_of(f)]
    if not any(f.is_definition for f in same):
        item.misfit(function, "it is declared, and defined nowhere", help)
        return None
    dtypes = item.dtypes
    if context.elementwise and not function.template:
        # Overloads instead of a template: the dtypes are those that they compute.
        types = {f.params[0].base for f in fitting}
        computed = {"float32", "float16", "bfloat16"} if "float" in types else set()
        computed |= {"float64"} if "double" in types else set()
        dtypes = tuple(d for d in dtypes if d in computed)
    return _kernel(item, function, header, dtypes)


def _kernel(
    item: Dispatch, function: Function, include: str, dtypes: Sequence[str]
) -> Kernel | None:
    """The kernel around a function that generated code calls, if it computes any dtype."""
    context = item.context
    if not item.has_dtype(dtypes):
        return None
    return Kernel(
        backend=item.backend,
        name=item.name,
        function=spelled(context, function),
        include=include,
        dtypes=tuple(dtypes),
        scalar=context.elementwise,
        templated=bool(function.template),
        by_sign=item.backend == "cpu" and context.elementwise and _by_sign(function),
        by_reference=len(context.output_names) > 1,
        elements=item.elements or () if item.backend == "cpu" else (),
    )


def _metal(item: Dispatch) -> Kernel | None:
    """A kernel in a .metal file."""
    context, sources = item.context, item.context.sources
    named = [
        (path, file, function)
        for path, file, function in sources.metal_named(item.name)
        if find_function([function], item.name)
    ]
    if any(function.is_kernel for _, _, function in named):
        named = [found for found in named if found[2].is_kernel]
    files = sorted({context.settings.relative(FilePath(f.span.file)) for _, _, f in named})
    if len(files) > 1:
        message = f"'{item.name}' is in {' and in '.join(files)}"
        item.error("MG514", message, help="give one of them another name")
        return None
    if not named:
        declared = (f for unit in sources.metal.all().values() for f in unit.functions)
        what = "function or [[kernel]]" if context.elementwise else "[[kernel]]"
        if context.elementwise:
            help = _scalar_function(context, "thread T&").declaration(item.name)
        else:
            help = declaration(item)
        item.missing((f.name for f in declared), context.settings.metal, what, help)
        return None
    path, _, function = named[0]
    if not function.is_kernel:
        return _metal_function(item, path, [f for p, _, f in named if p == path])
    # A header may be included by several files: the one that instantiates it counts.
    for path, file, function in named:
        if any(last_name(i.function) == function.name for i in file.instantiations):
            return launch(item, path, file, function)
    return launch(item, *named[0])


def _metal_function(item: Dispatch, path: FilePath, found: Sequence[Function]) -> Kernel | None:
    """A scalar function, around which the kernels are generated."""
    context = item.context
    if not context.elementwise:
        problem = "it is a scalar function, and an op with a `shape` rule needs a [[kernel]]"
        item.misfit(found[0], problem, declaration(item))
        return None
    item.check_no_geometry()
    if not _can_take(item) or not item.has_buffers():
        return None
    expected = _scalar_function(context, "thread T&")
    problems = [_problem(context, expected, function) for function in found]
    if None not in problems:
        item.misfit(found[0], str(problems[0]), expected.declaration(item.name))
        return None
    function = found[problems.index(None)]
    dtypes = [d for d in context.group if d in METAL_TYPES]
    if not function.template:  # computed in float, whatever it is stored in
        dtypes = [d for d in dtypes if d in ("float32", "float16", "bfloat16")]
    include = path.relative_to(context.settings.metal).as_posix()
    return _kernel(item, function, include, dtypes)
