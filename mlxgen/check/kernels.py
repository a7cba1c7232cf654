"""Finds the kernels that `dispatch` names, and compares their declarations with the entry.

A CPU kernel is a *scalar function* (elementwise op) or a function over *views*
(``mlxgen/kernel.h``). A Metal kernel is a scalar function or a ``[[kernel]]`` (metal.py). Every
mismatch is reported here, in terms of the entry, so that the compilers never have to report one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from ..model.cpp import ARRAYS, DOUBLE, ELEMENT, FLOAT, INT, VOID, CppType
from ..model.dtypes import ACCUMULATOR, METAL_TYPES, element_type
from ..model.kinds import KINDS, REAL, Kind
from ..model.op import Backend, Condition, Kernel, OutputRules, Parameter
from ..model.signature import Type
from ..read.cpp import Function, find_function
from ..read.keys import KernelEntry
from .context import Context, Environment
from .dispatch import MAX_BUFFERS, Dispatch
from .fit import QUALIFIED, Expected, Mismatch, Slot, mismatch, spelled
from .metal import kernel_function, launch

_VIEW = re.compile(r"\b(In|Out|Strided)\s*<")


def match_kernels(
    context: Context,
    env: Environment,
    rules: OutputRules,
    checks: Sequence[Condition],
) -> tuple[Kernel, ...]:
    """Return the op's kernels that match the entry; report mismatches."""
    exprs = [rule.expr for rule in (*checks, *rules.shapes, *rules.dtypes) if rule]
    beside = frozenset(name for expr in exprs for name in expr.names)
    given = context.raw.dispatch or {}
    shared = isinstance(given, str)
    specs: Mapping[Backend, str | KernelEntry] = {"cpu": given} if isinstance(given, str) else given
    found: list[Kernel | None] = []
    for backend, spec in specs.items():
        entry = spec if isinstance(spec, KernelEntry) else KernelEntry(kernel=spec)
        path = ("dispatch", "kernel") if shared else ("dispatch", backend, "kernel")
        item = Dispatch(context, entry.kernel, path, backend, entry, env, rules.dtypes, beside)
        if not QUALIFIED.fullmatch(item.name):
            item.error("no_function_name")
        elif shared:
            found += _shared(item)
        else:
            found.append(_cpu(item) if backend == "cpu" else _metal(item))
    return tuple(kernel for kernel in found if kernel)


def _shared(item: Dispatch) -> tuple[Kernel, ...]:
    """Return the kernels of all backends for one scalar function in csrc."""
    context, name = item.context, item.name
    if not context.elementwise:
        item.error("serves_all")
        return ()
    if name in get_args(Backend):
        item.error("backend", op=context.name)
        return ()
    cpu = _cpu(item)
    if cpu is None or not _has_buffers(item):
        return ()
    if unreadable := context.sources.unreadable(cpu.include):
        problem, include = unreadable
        context.fail(item.path)
        if problem:
            file = context.settings.relative(context.settings.csrc / cpu.include)
            item.error("not_metal", file=file, problem=problem, include=include)
        return ()
    dtypes = tuple(d for d in cpu.dtypes if d in METAL_TYPES)
    if not item.has_dtype(dtypes):
        return ()
    return cpu, cpu._replace(backend="metal", dtypes=dtypes, shared=True, elements=())


# Expected functions


def _scalar_function(item: Dispatch) -> Expected:
    """Return the expected scalar function: it returns one element, or writes several."""
    context, metal = item.context, item.backend == "metal"

    def problem(function: Function) -> Mismatch | None:
        if _has_views(function):
            return mismatch("views", function.span)
        if problem := item.template_problem(function):
            return problem
        if len(function.template) > 1 and not _by_sign(function):
            return mismatch("only_positive", function.span)
        if _by_sign(function) and "complex64" in item.group:
            return mismatch("no_sign", function.span)
        return None

    params = []
    for p in item.arguments.params:
        types = (ELEMENT,) if p.type.is_array else item.numbers(p.type, KINDS[p.type.kind].scalars)
        note = f" ({p.type.cpp if p.type.int64 else p.type.python})"
        params.append(Slot(p.declared, types or (CppType("?"),), note=note))
    outputs, result = context.output_names, ELEMENT
    if len(outputs) > 1:
        result, to = VOID, ELEMENT._replace(mark="&", space="thread" * metal)
        params += [Slot(name, (to,), is_output=True) for name in outputs]
    elements = (FLOAT,) if metal else (FLOAT, DOUBLE)
    shared = isinstance(context.raw.dispatch, str)
    return Expected(
        params, result, "typename T", elements, metal=metal, shared=shared, also=problem
    )


def _view_function(item: Dispatch) -> Expected:
    """Return the expected function over whole arrays."""

    def problem(function: Function) -> Mismatch | None:
        if not _has_views(function):
            return mismatch("no_views", function.span)
        several = mismatch("several_templates", function.span) if function.template[1:] else None
        return item.template_problem(function) or several

    params = [Slot(p.declared, _view_types(item, p)) for p in item.passed]
    for name, element in zip(item.context.output_names, item.elements, strict=False):
        params.append(Slot(name, (CppType("Out", "mlxgen", (element,)),), is_output=True))
    elements = (element_type(item.dtypes[0]),)
    return Expected(params, template="typename T", elements=elements, also=problem)


def _view_types(item: Dispatch, p: Parameter) -> tuple[CppType, ...]:
    if p.type.is_array:
        view = CppType("Strided" if p.strided else "In", "mlxgen", (element_type(p.dtype),))
        return (ARRAYS._replace(of=(view,)).by_reference if p.is_list else view,)
    kind = p.type.kind
    own, numbers = INT if kind is Kind.ENUM else p.type.cpp_param, KINDS[kind].scalars
    if kind is Kind.NUMBER:
        own = Type(Kind.FLOAT, p.type.optional).cpp_param
    if kind in REAL:
        numbers += (element_type(ACCUMULATOR),)
    others = () if p.type.optional else item.numbers(p.type, numbers)
    return tuple(dict.fromkeys((own, *others)))


def _has_views(function: Function) -> bool:
    return any(_VIEW.search(p.type) for p in function.params)


def _by_sign(function: Function) -> bool:
    """Return whether a scalar function can be compiled for positive inputs."""
    second = (function.template[1:], function.template_kinds[1:], function.template_defaults[1:])
    return second == (("positive",), ("bool",), ("false",))


def _can_take(item: Dispatch) -> bool:
    """Check that this kind of kernel supports the types of the op's arguments."""
    scalar = item.context.elementwise
    for p in item.arguments.params:
        kind, optional = p.type.kind, p.type.optional
        unsupported = optional or not (kind is Kind.ARRAY or KINDS[kind].scalars)
        if scalar and (unsupported or p.dtype):
            about = {"type": (p.arg.declared or p.arg).type, "dtype": p.dtype}
            name, problem = p.arg.mode_of or p.name, "of_type" if unsupported else "fixed"
            item.error("elementwise_take", name=name, problem=problem, **about)
            return False
    return True


def _has_buffers(item: Dispatch) -> bool:
    """Check that Metal has enough buffers for the launch of an elementwise kernel."""
    # Arguments, outputs; for arrays with strides: shape, strides, ndim.
    count = len(item.arguments.params) + len(item.context.output_names) + 3
    if count > MAX_BUFFERS:
        item.error("too_many_buffers", count=count, limit=MAX_BUFFERS)
    return count <= MAX_BUFFERS


def _check_no_geometry(item: Dispatch) -> None:
    """Report launch geometry of a function that generated code calls."""
    for key in ("grid", "threadgroup", "constants", "template", "zero"):
        if getattr(item.spec, key):
            item.context.error("geometry", item.at(key), key=True, what=key, problem=item.backend)


# Functions found


def _cpu(item: Dispatch) -> Kernel | None:
    """Return the kernel of a function in csrc."""
    context, sources = item.context, item.context.sources
    _check_no_geometry(item)
    expected = _scalar_function(item) if context.elementwise else _view_function(item)
    if sources.find(item.name) and not (_can_take(item) and item.outputs is not None):
        return None
    fitting = item.in_csrc(expected)
    for other in sources.find(item.name) if fitting and not context.elementwise else ():
        alike = _has_views(other) and len(other.params) == len(fitting[0].params)
        if fitting[0].template and alike and not other.template:
            item.mismatched(expected, mismatch("beside_template", other.span))
            return None
    include = str(sources.header_of(fitting[0])) if fitting else ""
    return _kernel(item, expected, fitting, include) if fitting else None


def _kernel(
    item: Dispatch, expected: Expected, fitting: Sequence[Function], include: str
) -> Kernel | None:
    """Return the kernel of a function that generated code calls, if it computes any dtype."""
    context, cpu, function = item.context, item.backend == "cpu", fitting[0]
    dtypes = item.dtypes if cpu else item.metal_dtypes
    if context.elementwise and not function.template:
        # Overloads instead of a template compute their own dtypes only.
        types = {expected.element(f) for f in fitting}
        computed = ("float32", "float16", "bfloat16") * (FLOAT in types)
        dtypes = [d for d in dtypes if d in computed or (d == "float64" and DOUBLE in types)]
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
        by_sign=cpu and context.elementwise and _by_sign(function),
        by_reference=len(context.output_names) > 1,
        elements=item.elements if cpu else (),
    )


def _metal(item: Dispatch) -> Kernel | None:
    """Return the kernel of a function in a .metal file."""
    context, sources = item.context, item.context.sources
    expected = _scalar_function(item) if context.elementwise else kernel_function(item)
    named = [n for n in sources.metal.named(item.name) if find_function([n[2]], item.name)]
    named.sort(key=lambda n: not n[2].is_definition)
    kernels = [n for n in named if n[2].is_kernel]
    # A file may overload a scalar function, but not a kernel.
    places = {(n[2].span if kernels else n[2].span.file): n[2] for n in kernels or named}
    if not item.once(places.values()):
        return None
    if kernels:
        return launch(item, *kernels[0])
    if not named:
        declared = (f.name for unit in sources.metal.all().values() for f in unit.functions)
        what = "kernel" if expected.is_kernel else "function_or_kernel"
        item.missing(declared, context.settings.metal, what, expected)
    elif expected.is_kernel:
        item.mismatched(expected, mismatch("no_kernel", named[0][2].span))
    else:
        _check_no_geometry(item)
        if not _can_take(item) or not _has_buffers(item):
            return None
        path = named[0][0]
        include = path.relative_to(context.settings.metal).as_posix()
        fitting = item.fitting([f for p, _, f in named if p == path], expected)
        return _kernel(item, expected, fitting, include) if fitting else None
    return None
