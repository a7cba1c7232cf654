"""Resolves the arguments of an entry: C++ names, dtypes, axes and documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..diagnostics import did_you_mean
from ..model.dtypes import (
    ACCUMULATOR,
    CATEGORIES,
    DTYPES,
    FLOATING,
    INTEGER,
    computes_integers,
)
from ..model.kinds import Kind
from ..model.names import free, free_names
from ..model.op import GROUP, Arguments, DtypeRule, Form, Integers, Length, Parameter, camel
from ..read.keys import listed
from ..read.names import cpp_names, in_cpp
from .axes import another, why_no_axis
from .context import GENERATED, Context, Path

# Local names of generated functions, by the form of the operator. An argument of such a name gets a
# suffix in C++. A test finds missing names.
LOCALS = GENERATED["locals"]
OF_ARRAYS, OF_ELEMENTS = (
    LOCALS | GENERATED["locals of kernels"] | GENERATED[f"locals of {kind}"]
    for kind in ("arrays", "elements")
)
HELPERS = GENERATED["of operators"]  # <op>_shapes...


class Group(NamedTuple):
    """Arguments that are promoted together, and the dtypes that they may have."""

    names: list[str]
    dtypes: tuple[str, ...]


def read_arguments(context: Context) -> Arguments:
    """Return the parameters of an entry and its dtype rules."""
    fixed, groups = _dtypes(context)
    params = tuple(_parameters(context, fixed, groups))
    arrays = [p for p in params if p.type.is_array]
    rules: list[DtypeRule] = []
    for group in groups:
        if grouped := tuple(p for p in arrays if p.name in group.names and p.dtype is None):
            integers = _integers(context, group.dtypes)
            rules.append(DtypeRule(grouped[0].rule, group.dtypes, integers, grouped))
    rules += [_own_rule(p, p.dtype) for p in arrays if p.dtype]
    arguments = Arguments(params, tuple(rules), dict(_lengths(context, params)))
    context.not_twice(context.raw.strided, ("strided",))
    single = [p.name for p in arrays if not p.is_list and p.name not in context.raw.donate.values()]
    for i, name in enumerate(context.raw.strided):
        context.is_known("unknown_strided", name, single, ("strided", i), key=False)
    declared = [arg.name for arg in context.signature.declared]
    context.known("unknown_in_args", context.raw.args, declared, ("args",))
    if isinstance(context.raw.returns, dict):
        outputs = context.output_names
        context.known("unknown_in_returns", context.raw.returns, outputs, ("returns",))
    _check_axes(context, arguments)
    return arguments


def _check_axes(context: Context, arguments: Arguments) -> None:
    """Report invalid axes, and axes whose size cannot be inferred."""
    axes, by_name = context.axes, arguments.by_name
    outputs = [o.name for o in context.signature.outputs if o.type.kind is Kind.ARRAY]
    shapes, seen = context.keys("shape"), set[str]()
    for name, key, at in listed(context.raw.axes):
        path, p = ("axes", key), by_name.get(name)
        if name in seen:
            context.error("twice", path, key=True, at=at, item=name)
            continue
        seen.add(name)
        if p and p.type.kind is not Kind.ARRAY:
            context.error("axes_of_other", path, key=True, at=at, name=name, kind=p.type)
            continue
        arrays = [p.name for p in arguments.arrays if not p.is_list]
        if not context.is_known("unknown_in_axes", name, [*arrays, *outputs], path, at=at):
            continue
        for wrong, axis in axes.problems(name):
            found = _place(context.raw.axes[key], axis)
            about: Any = {"better": another(axis)}
            if wrong == "bad_axis":
                wrong, about = why_no_axis(axis)
            context.error(wrong, path, **about, name=name, axis=axis, at=found)
        if name in outputs and (name in shapes or isinstance(context.raw.shape, str)):
            place = ("shape", shapes[name]) if shapes else ("shape",)
            context.error("shape_twice", place, key=True, name=name)


def _place(text: str, axis: str) -> tuple[int, int] | None:
    """Return the location of an axis, or of a name in one; None for the whole text."""
    for pattern in (r"(?<![^\s|])%s(?![^\s|])", r"\b%s\b") if axis else ():
        if found := re.search(pattern % re.escape(axis), text):
            return found.span()
    return None


def _own_rule(p: Parameter, dtype: str) -> DtypeRule:
    """Return the dtype rule of an argument that is not promoted."""
    if dtype == ACCUMULATOR:
        return DtypeRule(p.rule, FLOATING, Integers.FLOAT32, (p,))
    return DtypeRule(p.rule, (dtype,), Integers.KEEP, (p,))


def _parameters(
    context: Context, fixed: Mapping[str, str], groups: Sequence[Group]
) -> Iterator[Parameter]:
    """Yield the arguments with their C++ names, and arrays with their input positions."""
    place, after = 0, list[Parameter]()
    others = {name: i for i, group in enumerate(groups[1:]) for name in group.names}
    rules: dict[int, str] = {}  # of these groups, named after their first arguments
    declared = cpp_names([arg.name for arg in context.signature.args])
    inside = _cpp_names(context, declared)
    for arg, public, cpp in zip(context.signature.args, declared, inside, strict=True):
        if not arg.type.is_array:
            yield Parameter(arg, arg.name, arg.type, cpp, public)
            continue
        own, rule = fixed.get(arg.name), f"k{camel(cpp)}Dtypes"
        if own is None:
            rule = rules.setdefault(others[arg.name], rule) if arg.name in others else GROUP
        possible = (own,) if own else groups[others.get(arg.name, -1) + 1].dtypes
        p = Parameter(
            arg,
            arg.name,
            arg.type,
            cpp,
            public,
            place,
            tuple(after),
            dtype=own,
            integral=all(dtype in (*INTEGER, "bool_") for dtype in possible),
            strided=arg.name in context.raw.strided,
            rule=rule,
        )
        place += p.is_plain
        after += [p] * (not p.is_plain)
        yield p


def names_in_use(context: Context) -> set[str]:
    """Return the names of C++ variables in the operator's functions."""
    declared = cpp_names([arg.name for arg in context.signature.args])
    taken = _locals(context).union(*map(_derived, _cpp_names(context, declared)))
    return taken.union(_axis_names(context, taken).values())


def _locals(context: Context) -> set[str]:
    """Return the names that an operator's generated code uses."""
    own = {f"{context.name}_{part}" for part in HELPERS} | {camel(context.name)}
    if context.form is not Form.KERNELS:
        return own | LOCALS
    return own | (OF_ELEMENTS if context.elementwise else OF_ARRAYS)


def _lengths(context: Context, params: Iterable[Parameter]) -> Iterator[tuple[str, Length]]:
    """Yield the sizes of named axes, with names for C++ variables."""
    taken = _locals(context).union(*(_derived(p.cpp) for p in params))
    names = _axis_names(context, taken)
    for name, length in context.axes.lengths.items():
        yield name, length._replace(cpp=names[name])


def _axis_names(context: Context, taken: set[str]) -> dict[str, str]:
    """Return the C++ variables of named axes: their names, or others if these are in use."""
    return free_names(context.axes.lengths, "axis", lambda cpp: cpp in taken or in_cpp(cpp))


def _cpp_names(context: Context, declared: Iterable[str]) -> Iterator[str]:
    """Yield the local C++ name of each argument: the declared one, with a suffix if that is in use.

    Names in use are the locals of generated functions, and names _derived from other arguments and
    outputs, such as ``alpha_`` for the member that stores ``alpha``.
    """
    taken = {*_locals(context)}
    if len(context.signature.outputs) > 1:
        taken |= {f"to_{o}{at}" for o in context.output_names for at in ("", "_at")}

    def is_taken(cpp: str) -> bool:
        return in_cpp(cpp) or not taken.isdisjoint(_derived(cpp))

    for cpp in declared:
        cpp = free(cpp, "arg", is_taken)
        taken |= _derived(cpp)
        yield cpp


@cache
def _derived(cpp: str) -> frozenset[str]:
    """Return the name of an argument, and all names that generated C++ derives from it."""
    members = {f"{name}{end}" for name in (cpp, f"{cpp}_size", f"has_{cpp}") for end in ("", "_")}
    suffixes = ("at", "place", "scalar", "is_scalar", "value", "values", "dtype", "given")
    return frozenset(members) | {f"{cpp}_{what}" for what in suffixes} | {f"k{camel(cpp)}Dtypes"}


def _integers(context: Context, group: tuple[str, ...]) -> Integers:
    """Return the handling of integer inputs."""
    if context.form is not Form.KERNELS:  # MLX's functions convert them
        return Integers.FLOAT32 if "float32" in group else Integers.KEEP
    given = context.raw.integers
    has_integers = any(d in INTEGER for d in group)
    if given == "float32" and "float32" not in group:
        context.error("no_float32", ("integers",))
    if given == "keep" and not has_integers:
        context.error("no_integers", ("integers",))
    if given is None:
        given = "keep" if has_integers else "float32" if "float32" in group else "error"
    return Integers.FLOAT32 if given == "float32" else Integers(given)


def _dtypes(context: Context) -> tuple[dict[str, str], list[Group]]:
    """Return the dtypes of arguments with a single one, and the groups of the others."""
    given, kernels = context.raw.dtypes, context.form is Form.KERNELS
    arrays = [a.name for a in context.signature.arrays]
    usual = FLOATING if kernels else DTYPES
    mappings: dict[Path, dict[str, list[str]]] = {}
    if isinstance(given, dict):
        mappings["dtypes",] = given
    else:
        mappings = {("dtypes", i): g for i, g in enumerate(given or ()) if isinstance(g, dict)}
    if not mappings:
        words = [word for word in given or () if isinstance(word, str)]
        return {}, [Group(arrays, expand_dtypes(context, words, ("dtypes",)) or usual)]
    fixed: dict[str, str] = {}
    groups: list[Group] = []
    places: dict[str, Path] = {}
    for path, mapping in mappings.items():
        found = list(listed(mapping))
        for name, key, at in found:
            if name in places:
                context.error("in_two_groups", (*path, key), key=True, at=at, name=name)
        places |= {name: (*path, key) for name, key, _ in found}
        group = _group(context, mapping, path, fixed)
        groups.append(group._replace(dtypes=group.dtypes or usual))
    grouped = {name for group in groups for name in group.names}
    if rest := [name for name in arrays if name not in fixed and name not in grouped]:
        if isinstance(given, dict):
            groups[0].names.extend(rest)
        else:
            groups.append(Group(rest, usual))
    groups = [group for group in groups if group.names]
    sums = next((name for name in fixed if fixed[name] == ACCUMULATOR), "")
    if sums and not kernels:
        context.error("sums_of_mlx", places[sums])
    elif kernels and groups[1:]:
        first, second, *_ = (group.names[0] for group in groups)
        context.error("two_groups", ("dtypes",), key=True, first=first, second=second)
    elif sums and (not groups or computes_integers(groups[0].dtypes)):
        context.error("no_sums", places[sums], name=sums)
    return fixed, groups


def _group(
    context: Context, mapping: Mapping[str, list[str]], path: Path, fixed: dict[str, str]
) -> Group:
    """Return a group of arguments; add the single dtypes of others to ``fixed``."""
    arrays = [a.name for a in context.signature.arrays]
    group = Group([], ())
    for key, names in context.known_in("unknown_in_dtypes", mapping, arrays, *path).items():
        dtypes: tuple[str, ...] = (ACCUMULATOR,)
        if mapping[key] != [ACCUMULATOR]:
            dtypes = expand_dtypes(context, mapping[key], (*path, key))
        if len(dtypes) == 1:
            fixed |= dict.fromkeys(names, dtypes[0])
        elif group.dtypes and dtypes and dtypes != group.dtypes:
            context.error("different_dtypes", (*path, key), name=names[0])
        else:
            group = Group([*group.names, *names], dtypes or group.dtypes)
    return group


def expand_dtypes(context: Context, names: Iterable[str], path: Path) -> tuple[str, ...]:
    """Return the dtypes of a list, with its categories expanded."""
    found: dict[str, None] = {}
    words = [{"bool": "bool_", "any": "generic"}.get(name, name) for name in names]
    context.not_twice(words, path)
    for i, name in enumerate(words):
        if name in CATEGORIES or name in DTYPES:
            found.update(dict.fromkeys(CATEGORIES.get(name, (name,))))
            continue
        if name == ACCUMULATOR:
            arrays = [a.name for a in context.signature.arrays]
            of = path[1] if path[1:] else arrays[-1]
            keys = ("alone",) if len(arrays) == 1 else ()
            context.error("sums_of_all", (*path, i), *keys, name=of)
            continue
        known = [f"[{name}]"] if "," in name else [*DTYPES, *CATEGORIES]
        known += [ACCUMULATOR] if len(path) > 1 and len(words) == 1 else []
        guess = did_you_mean(name, known)
        about: Any = {"dtypes": list(DTYPES), "categories": list(CATEGORIES)}
        context.error("unknown_dtype", (*path, i), name=name, guess=guess, **about)
    return tuple(found)
