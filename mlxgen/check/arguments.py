"""The arguments of an entry: their names in C++, their dtypes, and what is written about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..diagnostics import did_you_mean
from ..model.dtypes import CATEGORIES, DTYPES, FLOATING, INTEGER
from ..model.kinds import Kind
from ..model.op import DtypeRule, Form, Parameter
from .context import Context, Path, camel

# What generated functions use themselves: an argument of such a name gets a suffix in C++. A test
# finds what is missing.
LOCALS = frozenset(
    """C apply arg axes batched bfloat composite constant count dense device dtype element encoder
    eval_cpu eval_gpu forward gradient grid_x grid_y group_x group_y half has_kernel i in int32_t
    int64_t interleaved is_equivalent item joint jvp jvps k kDispatch kDtypes kKernels library like
    name ndim next one op other output_shapes pipeline positive primitive pullback run_cpu run_metal
    shape shapes size_t tag task term thread_grid thread_index to uint2 vjp vjps
    vmap""".split()  # noqa: SIM905
)
HELPERS = ("shapes", "composite", "loop", "python", "dense", "strided")  # <op>_shapes...


def read_arguments(context: Context) -> None:
    """Give the context its parameters and dtype rules."""
    fixed, group = _dtypes(context)
    context.params = list(_parameters(context, fixed))
    context.arrays = [p for p in context.params if p.type.is_array]
    grouped = tuple(p for p in context.arrays if p.dtype is None)
    rules = []
    if grouped:
        integers = _integers(context, group) if context.form is Form.KERNELS else "keep"
        rules.append(DtypeRule("kDtypes", group, integers, grouped))
    rules += [DtypeRule(p.rule, (p.dtype,), "keep", (p,)) for p in context.arrays if p.dtype]
    context.rules = tuple(rules)
    _check_documentation(context)


def _parameters(context: Context, fixed: dict[str, str]) -> Iterator[Parameter]:
    """The arguments as C++ sees them, and where arrays are among a primitive's inputs."""
    position = 0
    dynamic: list[str] = []
    for arg, cpp in zip(context.signature.args, _cpp_names(context, fixed), strict=True):
        if not arg.type.is_array:
            yield Parameter(arg, cpp)
            continue
        at = " + ".join([str(position), *dynamic])
        present = ""
        if arg.type.kind is Kind.ARRAYS:
            dynamic.append(f"{cpp}_size_")
        elif arg.type.optional:
            present = f"has_{cpp}_"
            dynamic.append(present)
        else:
            position += 1
        own = fixed.get(arg.name)
        yield Parameter(
            arg,
            cpp,
            position=at,
            present=present,
            dtype=own,
            integral=own in INTEGER or own == "bool_",
            rule=f"k{camel(cpp)}Dtypes" if own else "kDtypes",
        )


def _cpp_names(context: Context, fixed: dict[str, str]) -> Iterator[str]:
    """What generated C++ calls each argument: its name, with a suffix where that is taken.

    Taken are the locals of generated functions, and what they are called after other arguments
    and outputs, such as ``alpha_`` for the member that keeps ``alpha``.
    """
    name = context.name
    taken = {f"{name}_{part}" for part in HELPERS} | {camel(name)}
    if len(context.signature.outputs) > 1:
        taken |= {f"{p}_{o}" for o in context.output_names for p in ("to", "value")}
    for arg in context.signature.args:
        cpp = arg.name
        while True:
            names = {cpp}
            if arg.type.kind is Kind.ARRAYS:
                names |= {f"{cpp}_size", f"{cpp}_size_"}
            elif not arg.type.is_array:
                names.add(f"{cpp}_")
            elif arg.type.optional:
                names |= {f"has_{cpp}", f"has_{cpp}_"}
            if arg.type.is_array:
                names.add(f"strides_{cpp}")
            if arg.name in fixed:
                names |= {f"{cpp}_dtype", f"k{camel(cpp)}Dtypes"}
            if not names & taken and cpp not in LOCALS:
                break
            cpp += "_arg"
        taken |= names
        yield cpp


def _integers(context: Context, group: tuple[str, ...]) -> str:
    """What integer inputs become."""
    given = context.raw.integers
    has_integers = any(d in INTEGER for d in group)
    if given == "float32" and "float32" not in group:
        message = "integers cannot become float32, which `dtypes` does not have"
        help = "add float32 to `dtypes`, or write `integers: error`"
        context.error("MG129", message, ("integers",), help)
    if given == "keep" and not has_integers:
        message = "integers cannot be kept: `dtypes` has none"
        help = "add them to `dtypes`, or write float32 or error"
        context.error("MG129", message, ("integers",), help)
    if given is None:
        given = "keep" if has_integers else "float32" if "float32" in group else "error"
    return "to_float32" if given == "float32" else given


def _dtypes(context: Context) -> tuple[dict[str, str], tuple[str, ...]]:
    """Dtypes fixed per argument, and those of the promoted group."""
    given = context.raw.dtypes
    fixed: dict[str, str] = {}
    group: tuple[str, ...] = ()
    if isinstance(given, list):
        group = _expand(context, given, ("dtypes",))
    elif given is not None:
        arrays = [a.name for a in context.signature.arrays]
        names = context.known("MG120", given, arrays, "array argument", ("dtypes",))
        context.dtypes_known &= len(names) == len(given)
        for name in names:
            dtypes = _expand(context, given[name], ("dtypes", name))
            if len(dtypes) == 1:
                fixed[name] = dtypes[0]
            elif group and dtypes and dtypes != group:
                context.dtypes_known = False
                message = f"the arguments promoted together have different dtypes: '{name}'"
                help = "give them the same list, or one single dtype to fix an argument"
                context.error("MG121", message, ("dtypes", name), help)
            else:
                group = dtypes or group
    return fixed, group or FLOATING


def _expand(context: Context, names: Iterable[str], path: Path) -> tuple[str, ...]:
    """The dtypes that a list names, its categories spelled out."""
    out: dict[str, None] = {}
    seen: set[str] = set()
    for i, given in enumerate(names):
        name = {"bool": "bool_", "any": "generic"}.get(given, given)
        if name in seen:
            context.error("MG127", f"'{name}' is there twice", (*path, i))
        seen.add(name)
        if name in CATEGORIES or name in DTYPES:
            out.update(dict.fromkeys(CATEGORIES.get(name, (name,))))
            continue
        context.dtypes_known = False
        message = f"unknown dtype '{name}'" + did_you_mean(name, [*DTYPES, *CATEGORIES])
        help = f"dtypes: {', '.join(DTYPES)}; categories: {', '.join(CATEGORIES)}"
        context.error("MG113", message, (*path, i), help)
    return tuple(out)


def _check_documentation(context: Context) -> None:
    names = [p.name for p in context.params]
    context.known("MG112", context.raw.args, names, "argument", ("args",))
    if isinstance(context.raw.returns, dict):
        given = context.raw.returns
        context.known("MG112", given, context.output_names, "output", ("returns",))
