"""Checks that calls reach each of the operators that share a Python name: some, and the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...check.context import Context, Named
from ...model.kinds import Kind
from ...model.overloads import ACCEPTS, accepted, chosen
from ...model.signature import Arg, Signature, Type
from ...read.keys import Sample
from . import MESSAGES


def check_overload(context: Context, samples: Mapping[int, Sample]) -> None:
    """Report samples with which Python calls another overload of the same name."""
    others = context.others
    names = others.overloads.get(context.python_name, ())
    signatures = {name: others.signatures[name] for name in names if name in others.signatures}
    if context.name not in signatures or not context.signature.arrays:
        return
    for i, sample in samples.items():
        args = context.signature.declared
        given = {arg.name: _kind(arg.type, sample.get(arg.name)) for arg in args}
        passed = [a for a in args if a.type.is_array or a.name in sample]
        places = {arg.name for arg in args[: context.signature.by_position]}
        first = []
        for arg in passed:
            if arg.name in places:
                value = sample.get(arg.name)
                arrays = len(value) if isinstance(value, list) else 2  # the default of the checks
                first += [frozenset({given[arg.name]})] * (arrays if arg.type.variadic else 1)
        named = {a.name: frozenset({given[a.name]}) for a in passed if a.name not in places}
        other = chosen(signatures, first, named)
        if other in (context.name, None):
            continue
        if i < 0:
            context.warning("other_overload", table=MESSAGES, other=other)
        else:
            context.error("other_overload", ("samples", i), table=MESSAGES, other=other)


def _kind(type: Type, value: Any) -> str:
    """Return the kind of the Python value that a sample passes."""
    if type.kind is Kind.ARRAY:
        absent = "none" if type.optional and value is None else "array"
        return "str" if isinstance(value, str) else absent
    if type.variadic:
        return "array"
    if type.kind is Kind.ARRAYS:
        return "arrays" if value else "empty"
    if type.kind is Kind.OPTIONALS and value:
        return "optionals" if None in value else "arrays"
    if isinstance(value, list):
        nested = type.kind is Kind.NESTED
        return "empty" if not value else "nested" if nested else "ints"
    if type.kind is Kind.DTYPE and value is not None:
        return "dtype"
    return "none" if value is None else value.__class__.__name__


def check_overloads(entries: Iterable[Named], signature: Callable[[str], Signature | None]) -> None:
    """Report overloads that Python never calls, because an earlier one accepts their calls."""
    seen = dict[str, list[Named]]()
    for entry in entries:
        for name, path in entry.named if not entry.internal else ():
            others = seen.setdefault(name, [])
            first = None if entry in others else _covering(others, entry, signature)
            if first:
                below = not _covering([entry], first, signature)
                keys = ["order"] * below + [str(path[0]) if path else "name"]
                about: Any = {"name": name, "owner": first.label}
                entry.error("taken_in_python", path, *keys, table=MESSAGES, **about)
            others.append(entry)


def _covering(
    others: Iterable[Named], entry: Named, signature: Callable[[str], Signature | None]
) -> Named | None:
    """Return the first of other overloads that accepts every call of an entry, if any."""
    for other in others:
        first, second = signature(other.name), signature(entry.name)
        if first and second and covers(first, second):
            return other
    return None


def covers(first: Signature, second: Signature) -> bool:
    """Return whether the first of two overloads accepts every call of the second one."""
    met = {arg.name for arg in first.declared if arg.type.variadic}  # needs no argument
    for i, arg in enumerate(second.declared):
        other = _counterpart(first.declared, i, arg)
        if other is None or (arg.default is not None and other.default is None):
            return False
        if arg.type.variadic and not other.type.variadic:
            return False
        if not all(_each(arg.type, way) <= _each(other.type, way) for way in (False, True)):
            return False
        met.add(other.name)
    return all(arg.default is not None for arg in first.declared if arg.name not in met)


def _each(type: Type, convert: bool) -> frozenset[str]:
    """Return the kinds of values that an argument accepts at its position."""
    return ACCEPTS[Kind.ARRAY] if type.variadic else accepted(type, convert)


def _counterpart(args: Sequence[Arg], place: int, arg: Arg) -> Arg | None:
    """Return the argument that receives the value of another overload's argument in every call."""
    by_name = {other.name: other for other in args if not other.pos_only}
    star = next((i for i, other in enumerate(args) if other.type.variadic), len(args))
    place = min(place, star)
    here = args[place] if place < len(args) and not args[place].kw_only else None
    if arg.pos_only:
        return here
    if arg.kw_only:
        return by_name.get(arg.name)
    return here if here is not None and by_name.get(arg.name) is here else None
