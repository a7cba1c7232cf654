"""Overloads: the operators that share a Python name, and the one that a call means.

A call of Python tries them in the order of the file, twice: first with exact kinds, then with
conversions, of which there are two: a bool can be an int, and an int or bool can be a float. This
module says the same without Python, for formulas and for overloads that no call can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .kinds import KINDS, Kind
from .signature import Arg, Signature, Type

_ACCEPTS = {kind: frozenset(row.accepts.split()) for kind, row in KINDS.items()}


def accepted(type: Type, convert: bool) -> frozenset[str]:
    """Return the kinds of values that an argument accepts, exactly or with conversions."""
    kinds = _ACCEPTS[type.kind] | ({"str"} if type.is_union else set())
    if type.length is not None:
        kinds |= {"int"}
    if convert and "int" in kinds:
        kinds |= {"bool"}
    elif convert and "float" in kinds:
        kinds |= {"bool", "int"}
    elif convert and "floats" in kinds:
        kinds |= {"ints"}
    return kinds | {"none"} if type.optional else kinds


def chosen(
    overloads: Mapping[str, Signature],
    positional: Sequence[frozenset[str]],
    keywords: Mapping[str, frozenset[str]],
) -> str | None:
    """Return the overload that Python calls, or None if none accepts the arguments.

    Args:
        overloads: The signatures by name, in the order of the file.
        positional: The kinds that each positional argument may have.
        keywords: The kinds that each keyword argument may have.
    """
    for convert in (False, True):
        for name, signature in overloads.items():
            if _accepts(signature, positional, keywords, convert):
                return name
    return None


def _accepts(
    signature: Signature,
    positional: Sequence[frozenset[str]],
    keywords: Mapping[str, frozenset[str]],
    convert: bool,
) -> bool:
    places = [a.name for a in signature.declared if not a.kw_only and not a.type.variadic]
    if any(arg.type.variadic for arg in signature.declared):
        if not all(kinds <= _ACCEPTS[Kind.ARRAY] for kinds in positional[len(places) :]):
            return False
        positional = positional[: len(places)]
    given = {**keywords, **dict(zip(places, positional, strict=False))}
    if len(positional) > len(places) or len(given) < len(positional) + len(keywords):
        return False
    fixed = [arg for arg in signature.declared if not arg.type.variadic]
    return keywords.keys() <= {arg.name for arg in fixed if not arg.pos_only} and all(
        given[arg.name] <= accepted(arg.type, convert)
        if arg.name in given
        else arg.default is not None
        for arg in fixed
    )


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
    return _ACCEPTS[Kind.ARRAY] if type.variadic else accepted(type, convert)


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
