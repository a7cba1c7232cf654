"""Checks the samples of an entry: the inputs with which the generated checks call the operator.

Each value must match the type of its argument, and each array the dtypes of the entry. The
generated check `test_sample` reports everything else: numbers that cannot be drawn, and calls that
the operator rejects. The bounds of an array can be formulas: their numbers for the sample's own
sizes are computed here, and those for other sizes by the generated checks.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any, NamedTuple

from ..diagnostics import did_you_mean
from ..formula.compile import Want
from ..model.dtypes import DTYPES
from ..model.kinds import REAL, Kind
from ..model.numbers import ArrayFacts, Impossible, evaluated
from ..model.op import Arguments, DtypeRule, Form, Integers, Parameter
from ..model.signature import Type, parted
from ..read.keys import ArraySample, Sample
from .context import Context, Environment, Path

AXES = 32

_USUAL = ArraySample()
_ORDERS = ("sorted", "distinct", "any")


class Problem(NamedTuple):
    """A problem of a sample's value."""

    path: Path  # inside of the value
    name: str  # in messages.yaml
    about: Mapping[str, Any] = {}  # its parameters


class Bounds(NamedTuple):
    """Bounds of samples that are formulas."""

    found: dict[Path, tuple[str, float]]  # by path in `samples`: formula, value for the sample
    lets: set[str]  # the `let`s that they use


def check_samples(context: Context, arguments: Arguments) -> dict[int, Sample]:
    """Return the valid samples by position; report invalid and missing values."""
    types = {arg.name: arg.type for arg in context.signature.declared}
    needed = {p.name for p in arguments.attributes if not (p.type.optional or p.arg.default)}
    fitting: dict[int, Sample] = {}
    for i, sample in enumerate(context.raw.samples):
        base: Path = ("samples", i)
        valid = [name for name in sample if name in types]
        found = {name: next(_problems(types[name], sample[name]), None) for name in valid}
        # YAML cuts `{x: (3, 4)}` at the comma: `4)` is another key, without a value.
        cut = any(problem and problem.name == "parentheses" for problem in found.values())
        names = [name for name in sample if not cut or name in types or sample[name] is not None]
        known = context.known("unknown_in_sample", names, types, base)
        for name, problem in found.items():
            if problem:
                _report(context, i, name, problem)
        for name in sorted(needed - set(sample)):
            context.error("no_sample", base, name=name)
        if not any(found.values()) and needed <= set(known) == set(sample):
            fitting[i] = sample
    for arg in context.signature.declared if fitting else ():
        given = [sample.get(arg.name) for sample in fitting.values()]
        by_default = not (arg.type.optional or arg.default)
        covered = any(isinstance(v, ArraySample) or (v is None and by_default) for v in given)
        if arg.type.is_union and not covered:
            context.warning("no_array_sample", ("samples",), key=True, name=arg.name)
    if not (context.raw.samples or needed or "samples" in context.left_out):
        fitting[-1] = {}  # by default
    return fitting


def _report(context: Context, i: int, name: str, problem: Problem) -> None:
    """Report a problem of an argument in the sample at ``i``."""
    path = ("samples", i, name, *problem.path)
    context.error("bad_sample", path, name=name, problem=problem.name, **problem.about)


def _problems(type: Type, value: Any) -> Iterator[Problem]:
    """Yield the problems of a sample's value for an argument of this type."""
    if value is None:
        if not type.optional:
            yield Problem((), "none", {"type": type})
    elif type.kind is not Kind.STR and isinstance(value, str) and value[:1] == "(":
        yield Problem((), "parentheses")
    elif type.is_union and not isinstance(value, ArraySample):
        if not type.takes(value):
            yield Problem((), "union", {"choices": type.listed_choices})
    elif type.kind is Kind.ARRAY:
        if isinstance(value, ArraySample):
            yield from _array_problems(value)
        else:
            yield Problem((), "array")
    elif type.kind in (Kind.ARRAYS, Kind.OPTIONALS):
        kinds = (ArraySample, NoneType) if type.kind is Kind.OPTIONALS else ArraySample
        if not isinstance(value, list) or not all(isinstance(item, kinds) for item in value):
            yield Problem((), type.kind.value, {"kind": type.kind.label})
            return
        for i, item in enumerate(value):
            for found in _array_problems(item) if item is not None else ():
                yield found._replace(path=(i, *found.path))
    else:
        value = type.spread(value)
        if not type.takes(value) or (type.kind is Kind.SHAPE and min(value, default=0) < 0):
            name = "choice" if type.choices else "length" if (type.length or 1) > 1 else "type"
            if type.kind is Kind.INT and isinstance(value, int):
                name = "int64" if type.int64 else "int32"
            about = {"type": type, "length": type.length, "choices": type.listed_choices}
            yield Problem((), name, about)
        elif type.kind in REAL and abs(value) > 1e308 and math.isfinite(value):
            yield Problem((), "large")


def _array_problems(sample: ArraySample) -> Iterator[Problem]:
    """Yield the problems of an array's description that do not depend on the argument."""
    if sample.dtype is not None and sample.dtype not in (*DTYPES, "bool"):
        near = did_you_mean(sample.dtype, DTYPES)
        yield Problem(("dtype",), "dtype", {"dtype": sample.dtype, "near": near})
    shape = sample.shape or []
    if len(shape) > AXES or any(not 0 <= n < 1 << 31 for n in shape):
        yield Problem(("shape",), "shape", {"shape": shape, "limit": AXES})
    given = sample.model_fields_set
    if sample.values is not None:
        if {"shape", "away_from"} & given:
            yield Problem((), "values_of_shape")
        if len(missing := {"low", "high"} - given) == 1:
            yield Problem((), "one_end", {"end": min(missing)})
        if _shape_of(sample.values) is None:
            yield Problem(("values",), "values")
    if sample.away_from and (sample.sorted or sample.positive_definite):
        yield Problem(("away_from",), "away_from")
    if sample.positive_definite and (wrong := {"low", "high", *_ORDERS} & given):
        yield Problem((), "definite", {"others": sorted(wrong)})


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists of numbers, or None if their lengths differ."""
    if isinstance(values, (bool, int, float)):
        return ()
    if not isinstance(values, list):
        return None
    shapes = {_shape_of(value) for value in values}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(values), *(shapes.pop() or () if shapes else ()))


# -------------------------------------------------------------------------------------------------
# Combinations of values
# -------------------------------------------------------------------------------------------------


def check_calls(context: Context, env: Environment, samples: Mapping[int, Sample]) -> Bounds:
    """Report arrays of samples whose dtypes or bounds do not match the entry.

    Return the bounds that are formulas.
    """
    bounds, arguments = Bounds({}, set()), env.arguments
    for i, sample in samples.items():
        given = parted([p.arg for p in arguments.params], sample)
        _check_dtypes(context, arguments, i, given)
        names = Call.of(context, arguments, given).names(arguments)
        for path, array in _described(sample):
            for end in ("low", "high"):
                if isinstance(text := getattr(array, end), str):
                    _read_bound(context, env, (i, *path, end), text, names, bounds)
    return bounds


def _read_bound(
    context: Context,
    env: Environment,
    path: Path,
    text: str,
    names: Mapping[str, Any],
    bounds: Bounds,
) -> None:
    """Add the bound at ``path`` in `samples` to ``bounds``; report an invalid one."""
    where, want = ("samples", *path), Want(Kind.FLOAT)
    expr = context.formula(where, text, want, env.names(), stream=False)
    if expr is None:
        return
    tree = context.expanded(text)
    try:
        value = evaluated(tree, names, None)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Impossible("value", value)
    except Impossible as error:
        problem = f"bound_{error.reason}"
        context.error("bad_sample", where, name=path[1], problem=problem, value=error.value)
        return
    bounds.found[path] = ast.unparse(tree), value
    bounds.lets.update(expr.lets)


def _check_dtypes(
    context: Context, arguments: Arguments, i: int, sample: Mapping[str, Any]
) -> None:
    """Report arrays with other dtypes than the entry's."""
    for rule in _rules(context, arguments):
        drawn = list(_drawn(rule, sample))
        several = len({dtype for *_, dtype in drawn}) > 1  # MLX promotes them
        for path, _, dtype in drawn:
            if not (rule.resolve(dtype) or several):
                others = [r for r in arguments.rules if len(r.dtypes) > 1]
                sums = context.form is Form.KERNELS and bool(others)
                name = "of_entry"
                if dtype == "float64" and rule.dtypes == ("float32",):
                    name = "float64_sums" if sums else "float64"
                about = {"argument": rule.params[0].name, "known": rule.dtypes}
                problem = Problem((*path[1:], "dtype"), name, {"dtype": dtype, **about})
                _report(context, i, str(path[0]), problem)


def _described(sample: Sample) -> Iterator[tuple[Path, ArraySample]]:
    """Yield the arrays that a sample describes, with their paths."""
    for name, value in sample.items():
        for i, item in enumerate(value) if isinstance(value, list) else ((-1, value),):
            if isinstance(item, ArraySample):
                yield (name, i) if isinstance(value, list) else (name,), item


class Call(NamedTuple):
    """The arguments of a call: shapes and dtypes of arrays by path, and other values by name."""

    shapes: Mapping[Path, tuple[int, ...]]
    dtypes: Mapping[Path, str | None]
    values: dict[str, Any]

    @classmethod
    def of(cls, context: Context, arguments: Arguments, sample: Mapping[str, Any]) -> Call:
        """Return the call of a sample."""
        shapes, dtypes = dict[Path, tuple[int, ...]](), dict[Path, str | None]()
        for rule in _rules(context, arguments):
            drawn = list(_drawn(rule, sample))
            several = len({dtype for *_, dtype in drawn}) > 1  # MLX promotes them
            for path, given, dtype in drawn:
                shapes[path] = _extents(given)
                dtypes[path] = None if several else rule.resolve(dtype)
        return cls(shapes, dtypes, {p.name: _attribute(p, sample) for p in arguments.params})

    def names(self, arguments: Arguments, *batch: int) -> dict[str, Any]:
        """Return the names in formulas, if all arrays have the sizes ``batch`` in front."""
        names = dict(self.values)
        for mode, array in arguments.modes:
            if names[mode] is not None:
                names[array] = names[mode]
        for path, shape in self.shapes.items():
            (name, *index), facts = path, ArrayFacts((*batch, *shape), self.dtypes[path])
            names[str(name)] = (*names[str(name)], facts) if index else facts
        for axis, (array, at, _) in arguments.lengths.items():
            with suppress(IndexError):  # too few axes, which a condition reports
                names.setdefault(axis, names[array].shape[at])
        return names


def _attribute(p: Parameter, sample: Mapping[str, Any]) -> Any:
    """Return the value of an argument that is not an array; lists of arrays start empty."""
    value = sample.get(p.name, p.arg.default.value if p.arg.default is not None else None)
    if p.type.is_array:
        return () if p.is_list else None
    value = p.type.spread(value)
    return tuple(value) if isinstance(value, list) else value


def _rules(context: Context, arguments: Arguments) -> Sequence[DtypeRule]:
    """Return the dtype rules of the arrays; without any, MLX promotes all dtypes."""
    if context.form is Form.KERNELS or context.raw.dtypes is not None:
        return arguments.rules
    return [DtypeRule("", DTYPES, Integers.KEEP, (p,)) for p in arguments.arrays]


def _drawn(rule: DtypeRule, sample: Mapping[str, Any]) -> Iterator[tuple[Path, ArraySample, str]]:
    """Yield the arrays of a rule with their dtypes; the default is float32 if allowed."""
    usual = "float32" if "float32" in rule.dtypes else rule.dtypes[0]
    for p in rule.params:
        value = sample.get(p.name)
        listed = [_USUAL, _USUAL] if value is None else value
        if not p.is_list:
            listed = [] if value is None and p.type.optional else [value or _USUAL]
        for i, given in enumerate(listed):
            dtype = "bool_" if given.dtype == "bool" else given.dtype or usual
            yield (p.name, i) if p.is_list else (p.name,), given, dtype


def _extents(given: ArraySample) -> tuple[int, ...]:
    if given.values is not None:
        return _shape_of(given.values) or ()
    return (3, 4) if given.shape is None else tuple(given.shape)
